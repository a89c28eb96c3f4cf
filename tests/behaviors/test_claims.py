"""What Kubernetes' own tests expect of prepared claims, with the real node plugin."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.mishaps import load_driver, remove_driver_files
from support.objects import allocate, allocation, claim, pod, result
from support.plugin import eventually
from support.plugin_process import PluginForks
from support.real_node import RealNode

from dra_driver.api.meta import NAMESPACES, PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, JsonObject
from dra_driver.kube.client import Kube
from dra_driver.simulation.apiserver import SimulatedApiServer


@pytest_asyncio.fixture
async def one(api_server: SimulatedApiServer, kube: Kube, forks: PluginForks, folder: Path) -> AsyncIterator[RealNode]:
    """A node with four T4s, its plugin registered."""
    node = RealNode(api_server, kube, forks, folder)
    async with node.running(), node.plugin():
        await node.registered()
        yield node


async def pod_with(
    node: RealNode, *results: JsonObject, manifest: JsonObject | None = None, config: list[JsonObject] | None = None
) -> JsonObject:
    """A claim `gpu` with these results, and a pod it is reserved for."""
    requests = sorted({one["request"].partition("/")[0] for one in results})
    created = await node.kube.create(RESOURCE_CLAIMS, claim(requests=requests))
    consumer = await node.kube.create(PODS, manifest or pod())
    await reserve(node, created, [consumer], *results, config=config)
    return consumer


async def reserve(
    node: RealNode,
    created: JsonObject,
    pods: list[JsonObject],
    *results: JsonObject,
    config: list[JsonObject] | None = None,
) -> None:
    name = created["metadata"]["name"]
    reserved = [{"resource": "pods", "name": one["metadata"]["name"], "uid": one["metadata"]["uid"]} for one in pods]
    status = {"allocation": allocation(*results, config=config or ()), "reservedFor": reserved}
    await node.kube.merge_patch(RESOURCE_CLAIMS, name, {"status": status}, namespace="default", subresource="status")


def config(parameters: JsonObject, *requests: str, source: str = "FromClaim") -> JsonObject:
    full = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", **parameters}
    return {"source": source, "requests": list(requests), "opaque": {"driver": "gpu.nvidia.com", "parameters": full}}


WRONG = {"kind": "NoSuchConfig"}


def gpus(container: JsonObject) -> list[str]:
    """The GPUs that a program in the container is told of."""
    return sorted(one.partition("=")[2] for one in container["env"] if one.startswith("NVIDIA_DRA_DEVICE_"))


def uuid(node: RealNode, index: int) -> str:
    return node.node.host.state.gpus[index].uuid


async def test_the_container_gets_its_gpu_and_nothing_is_left_after_the_pod(one: RealNode) -> None:
    consumer = await pod_with(one, result(one.node.devices[0]))
    await one.machine.runs()
    (container,) = one.machine.containers(consumer).values()
    assert gpus(container) == [uuid(one, 0)]
    minor = one.node.host.state.gpus[0].minor
    nodes = {node["path"] for node in container["deviceNodes"]}
    assert nodes >= {f"/dev/nvidia{minor}", "/dev/nvidiactl", "/dev/nvidia-uvm"}
    assert not nodes & {f"/dev/nvidia{gpu.minor}" for gpu in one.node.host.state.gpus if gpu.minor != minor}
    await one.kube.delete(PODS, "pod", namespace="default")
    await one.machine.gone()
    assert one.node.cdi_files() == set()


async def test_a_claim_that_no_container_uses_is_prepared_all_the_same(one: RealNode) -> None:
    consumer = await pod_with(one, result(one.node.devices[0]), manifest=pod(use=[]))
    await one.machine.runs()
    assert len(one.node.cdi_files()) == 2
    assert gpus(one.machine.containers(consumer)["main"]) == []


async def test_containers_get_the_requests_that_they_refer_to(one: RealNode) -> None:
    manifest = pod()
    manifest["spec"]["containers"] = [
        {"name": "all", "image": "i", "resources": {"claims": [{"name": "gpu"}]}},
        {"name": "only-b", "image": "i", "resources": {"claims": [{"name": "gpu", "request": "b"}]}},
        {"name": "none", "image": "i"},
    ]
    manifest["spec"]["initContainers"] = [
        {"name": "init", "image": "i", "resources": {"claims": [{"name": "gpu", "request": "a"}]}}
    ]
    results = (result(one.node.devices[0], "a"), result(one.node.devices[1], "b"))
    consumer = await pod_with(one, *results, manifest=manifest)
    await one.machine.runs()
    assert {name: gpus(container) for name, container in one.machine.containers(consumer).items()} == {
        "all": sorted([uuid(one, 0), uuid(one, 1)]),
        "only-b": [uuid(one, 1)],
        "none": [],
        "init": [uuid(one, 0)],
    }


async def test_configs_of_class_and_claim_are_both_read_and_a_bad_one_names_its_place(one: RealNode) -> None:
    configs = [config({}, source="FromClass"), config(WRONG, "gpu")]
    await pod_with(one, result(one.node.devices[0]), config=configs)
    await one.machine.says("NoSuchConfig")
    assert await one.machine.phase() == "Pending"
    assert one.node.cdi_files() == set()


async def test_a_config_for_another_request_or_driver_does_not_matter(one: RealNode) -> None:
    foreign = config(WRONG)
    foreign["opaque"]["driver"] = "dra.net"
    await pod_with(one, result(one.node.devices[0]), config=[config({}, "gpu"), foreign])
    await one.machine.runs()


@pytest.mark.parametrize(("wrong", "runs"), [("gpu/small", False), ("gpu", False), ("gpu/large", True)])
async def test_the_config_of_the_chosen_alternative_counts_and_no_other(one: RealNode, wrong: str, runs: bool) -> None:
    manifest = claim()
    manifest["spec"]["devices"]["requests"] = [
        {
            "name": "gpu",
            "firstAvailable": [
                {"name": "large", "deviceClassName": "gpu.nvidia.com"},
                {"name": "small", "deviceClassName": "gpu.nvidia.com"},
            ],
        }
    ]
    created = await one.kube.create(RESOURCE_CLAIMS, manifest)
    consumer = await one.kube.create(PODS, pod())
    chosen = result(one.node.devices[0], "gpu/small")
    await reserve(one, created, [consumer], chosen, config=[config({}, "gpu/small"), config(WRONG, wrong)])
    if runs:
        await one.machine.runs()
        assert gpus(one.machine.containers(consumer)["main"]) == [uuid(one, 0)]
    else:
        await one.machine.says("NoSuchConfig")
        assert await one.machine.phase() == "Pending"


async def test_pods_share_a_claim_at_once_and_one_after_another(one: RealNode) -> None:
    created = await one.kube.create(RESOURCE_CLAIMS, claim())
    pods = [await one.kube.create(PODS, pod(name)) for name in ("a", "b")]
    await reserve(one, created, pods, result(one.node.devices[0]))
    await one.machine.runs("a", "b")
    for consumer in pods:
        assert gpus(one.machine.containers(consumer)["main"]) == [uuid(one, 0)]
    await one.kube.delete(PODS, "a", namespace="default")
    await one.machine.gone("a")
    assert len(one.node.cdi_files()) == 2
    await one.kube.delete(PODS, "b", namespace="default")
    await one.machine.gone("b")
    assert one.node.cdi_files() == set()
    last = await one.kube.create(PODS, pod("c"))
    await reserve(one, created, [last], result(one.node.devices[0]))
    await one.machine.runs("c")
    assert gpus(one.machine.containers(last)["main"]) == [uuid(one, 0)]


async def test_one_gpu_is_never_in_two_claims_and_the_second_pod_runs_when_the_first_is_gone(one: RealNode) -> None:
    await pod_with(one, result(one.node.devices[0]))
    await one.machine.runs()
    other = await one.kube.create(RESOURCE_CLAIMS, claim("other"))
    second = await one.kube.create(PODS, pod("second", ["other"]))
    await allocate(one.kube, other, result(one.node.devices[0]), pods=[second])
    await one.machine.says("claim default/gpu")
    assert await one.machine.phase("second") == "Pending"
    await one.kube.delete(PODS, "pod", namespace="default")
    await one.machine.gone()
    await one.machine.runs("second")


async def test_admin_access_sees_gpus_that_others_use(one: RealNode) -> None:
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    await one.kube.merge_patch(NAMESPACES, "default", label)
    await pod_with(one, result(one.node.devices[0]))
    await one.machine.runs()
    manifest = claim("monitor")
    manifest["spec"]["devices"]["requests"][0]["exactly"] |= {"adminAccess": True, "allocationMode": "All"}
    monitor = await one.kube.create(RESOURCE_CLAIMS, manifest)
    watcher = await one.kube.create(PODS, pod("watcher", ["monitor"]))
    everything = [result(device, adminAccess=True) for device in one.node.devices]
    await allocate(one.kube, monitor, *everything, pods=[watcher])
    await one.machine.runs("watcher")
    container = one.machine.containers(watcher)["main"]
    seen = [entry for entry in container["env"] if entry.startswith("NVIDIA_DRA_ADMIN_DEVICE_")]
    assert len(seen) == len(one.node.devices)


async def test_a_re_created_claim_waits_for_the_old_one_and_gets_its_own_devices(one: RealNode) -> None:
    await pod_with(one, result(one.node.devices[0]))
    await one.machine.runs()
    old_uid = await one.machine.claim_uid()
    with one.node.refusing(one.node.cdi, "EROFS"):
        await one.kube.delete(PODS, "pod", namespace="default", grace_period_s=0)
        await one.kube.delete(RESOURCE_CLAIMS, "gpu", namespace="default")
        again = await one.kube.create(RESOURCE_CLAIMS, claim())
        second = await one.kube.create(PODS, pod("second"))
        await allocate(one.kube, again, result(one.node.devices[1]), pods=[second])
        await one.machine.says("an older claim of this name is still being released")
    await one.machine.runs("second")
    assert gpus(one.machine.containers(second)["main"]) == [uuid(one, 1)]
    assert len(one.node.cdi_files()) == 2
    assert not any(old_uid in name for name in one.node.cdi_files())


async def test_a_driver_that_is_not_ready_is_explained_on_the_pod_which_runs_when_it_is(one: RealNode) -> None:
    remove_driver_files(one.node.host)
    await pod_with(one, result(one.node.devices[0]))
    await one.machine.says("driver")
    assert await one.machine.phase() == "Pending"
    assert one.node.cdi_files() == set()
    load_driver(one.node.host)
    await one.machine.runs()


async def test_everything_goes_on_after_kubelet_and_plugin_were_restarted(
    api_server: SimulatedApiServer, kube: Kube, forks: PluginForks, folder: Path
) -> None:
    """The running pod keeps its devices; a pod that came meanwhile runs; one that went meanwhile is released."""
    one = RealNode(api_server, kube, forks, folder)
    async with one.running():
        async with one.plugin() as plugin:
            await one.registered()
            stays = await pod_with(one, result(one.node.devices[0]))
            other = await kube.create(RESOURCE_CLAIMS, claim("goes"))
            goes = await kube.create(PODS, pod("goes", ["goes"]))
            await allocate(kube, other, result(one.node.devices[1]), pods=[goes])
            await one.machine.runs("pod", "goes")
            before = one.machine.containers(stays)
            await one.machine.stop()
            await plugin.kill()
        await kube.delete(PODS, "goes", namespace="default", grace_period_s=0)
        third = await kube.create(RESOURCE_CLAIMS, claim("comes"))
        comes = await kube.create(PODS, pod("comes", ["comes"]))
        await allocate(kube, third, result(one.node.devices[1]), pods=[comes])
        await one.machine.start()
        async with one.plugin():
            await one.machine.runs("comes")
            record = one.machine.kubelet.claims.record_of("default", "gpu")
            assert record is not None
            await eventually(lambda: record.devices["gpu.nvidia.com"])
            assert one.machine.containers(stays) == before
            uid = other["metadata"]["uid"]
            await eventually(lambda: not any(uid in name for name in one.node.cdi_files()))
            for name in ("pod", "comes"):
                await kube.delete(PODS, name, namespace="default")
                await one.machine.gone(name)
            assert one.node.cdi_files() == set()


async def test_a_generated_claim_is_deleted_when_its_pod_is_done_and_not_before(one: RealNode) -> None:
    """With the scheduler and the controller that makes claims from templates."""
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "gpu", "namespace": "default"},
        "spec": {"spec": claim()["spec"]},
    }
    manifest = pod(node_name=None)
    manifest["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    manifest["spec"]["restartPolicy"] = "Never"
    async with one.publishing(), one.scheduling():
        await one.published()
        await one.kube.create(RESOURCE_CLAIM_TEMPLATES, template)
        consumer = await one.kube.create(PODS, manifest)
        await one.machine.runs()
        assert len(gpus(one.machine.containers(consumer)["main"])) == 1
        (generated,) = (await one.kube.list(RESOURCE_CLAIMS)).items
        restarted = {"status": {"containerStatuses": await _restarted(one)}}
        await one.kube.merge_patch(PODS, "pod", restarted, namespace="default", subresource="status")
        done = {"metadata": {"annotations": {"simulation.dra.gpu/complete": "true"}}}
        assert (await one.kube.list(RESOURCE_CLAIMS)).items == [generated]
        await one.kube.merge_patch(PODS, "pod", done, namespace="default")
        await one.machine.gone(generated["metadata"]["name"], RESOURCE_CLAIMS)
        assert await one.machine.phase() == "Succeeded"
        await eventually(lambda: one.node.cdi_files() == set())


async def _restarted(one: RealNode) -> list[JsonObject]:
    statuses = (await one.kube.get(PODS, "pod", "default"))["status"]["containerStatuses"]
    return [{**status, "restartCount": 1} for status in statuses]


async def test_a_pod_that_asks_for_nvidia_com_gpu_runs_and_gives_it_back(one: RealNode) -> None:
    manifest = pod(claims=[], node_name=None)
    manifest["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "2"}}
    async with one.publishing(), one.scheduling():
        await one.published()
        consumer = await one.kube.create(PODS, manifest)
        await one.machine.runs()
        assert len(gpus(one.machine.containers(consumer)["main"])) == 2
        await one.kube.delete(PODS, "pod", namespace="default")
        await one.machine.gone()
        assert one.node.cdi_files() == set()
