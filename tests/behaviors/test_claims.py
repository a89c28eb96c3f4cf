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
from dra_driver.simulation.apiserver.server import SimulatedApiServer


@pytest_asyncio.fixture
async def cluster(
    api_server: SimulatedApiServer, kube: Kube, forks: PluginForks, folder: Path
) -> AsyncIterator[RealNode]:
    """A node with four T4s, its plugin registered."""
    node = RealNode(api_server, kube, forks, folder)
    async with node.running(), node.plugin():
        await node.registered()
        yield node


async def pod_with(
    node: RealNode, *results: JsonObject, manifest: JsonObject | None = None, config: list[JsonObject] | None = None
) -> JsonObject:
    """A claim `gpu` with these results, and a pod it is reserved for."""
    requests = sorted({device_result["request"].partition("/")[0] for device_result in results})
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
    reserved = [
        {"resource": "pods", "name": consumer["metadata"]["name"], "uid": consumer["metadata"]["uid"]}
        for consumer in pods
    ]
    status = {"allocation": allocation(*results, config=config or ()), "reservedFor": reserved}
    await node.kube.merge_patch(RESOURCE_CLAIMS, name, {"status": status}, namespace="default", subresource="status")


def config(parameters: JsonObject, *requests: str, source: str = "FromClaim") -> JsonObject:
    full = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", **parameters}
    return {"source": source, "requests": list(requests), "opaque": {"driver": "gpu.nvidia.com", "parameters": full}}


WRONG = {"kind": "NoSuchConfig"}


def gpus(container: JsonObject) -> list[str]:
    """The GPUs that a program in the container is told of."""
    return sorted(
        variable.partition("=")[2] for variable in container["env"] if variable.startswith("NVIDIA_DRA_DEVICE_")
    )


def uuid(node: RealNode, index: int) -> str:
    return node.node.host.state.gpus[index].uuid


async def test_the_container_gets_its_gpu_and_nothing_is_left_after_the_pod(cluster: RealNode) -> None:
    consumer = await pod_with(cluster, result(cluster.node.devices[0]))
    await cluster.machine.runs()
    (container,) = cluster.machine.containers(consumer).values()
    assert gpus(container) == [uuid(cluster, 0)]
    minor = cluster.node.host.state.gpus[0].minor
    nodes = {node["path"] for node in container["deviceNodes"]}
    assert nodes >= {f"/dev/nvidia{minor}", "/dev/nvidiactl", "/dev/nvidia-uvm"}
    assert not nodes & {f"/dev/nvidia{gpu.minor}" for gpu in cluster.node.host.state.gpus if gpu.minor != minor}
    await cluster.kube.delete(PODS, "pod", namespace="default")
    await cluster.machine.gone()
    assert cluster.node.cdi_files() == set()


async def test_a_claim_that_no_container_uses_is_prepared_all_the_same(cluster: RealNode) -> None:
    consumer = await pod_with(cluster, result(cluster.node.devices[0]), manifest=pod(use=[]))
    await cluster.machine.runs()
    assert len(cluster.node.cdi_files()) == 2
    assert gpus(cluster.machine.containers(consumer)["main"]) == []


async def test_containers_get_the_requests_that_they_refer_to(cluster: RealNode) -> None:
    manifest = pod()
    manifest["spec"]["containers"] = [
        {"name": "all", "image": "i", "resources": {"claims": [{"name": "gpu"}]}},
        {"name": "only-b", "image": "i", "resources": {"claims": [{"name": "gpu", "request": "b"}]}},
        {"name": "none", "image": "i"},
    ]
    manifest["spec"]["initContainers"] = [
        {"name": "init", "image": "i", "resources": {"claims": [{"name": "gpu", "request": "a"}]}}
    ]
    results = (result(cluster.node.devices[0], "a"), result(cluster.node.devices[1], "b"))
    consumer = await pod_with(cluster, *results, manifest=manifest)
    await cluster.machine.runs()
    assert {name: gpus(container) for name, container in cluster.machine.containers(consumer).items()} == {
        "all": sorted([uuid(cluster, 0), uuid(cluster, 1)]),
        "only-b": [uuid(cluster, 1)],
        "none": [],
        "init": [uuid(cluster, 0)],
    }


async def test_configs_of_class_and_claim_are_both_read_and_a_bad_one_names_its_place(cluster: RealNode) -> None:
    configs = [config({}, source="FromClass"), config(WRONG, "gpu")]
    await pod_with(cluster, result(cluster.node.devices[0]), config=configs)
    await cluster.machine.says("NoSuchConfig")
    assert await cluster.machine.phase() == "Pending"
    assert cluster.node.cdi_files() == set()


async def test_a_config_for_another_request_or_driver_does_not_matter(cluster: RealNode) -> None:
    foreign = config(WRONG)
    foreign["opaque"]["driver"] = "dra.net"
    await pod_with(cluster, result(cluster.node.devices[0]), config=[config({}, "gpu"), foreign])
    await cluster.machine.runs()


@pytest.mark.parametrize(("wrong", "runs"), [("gpu/small", False), ("gpu", False), ("gpu/large", True)])
async def test_the_config_of_the_chosen_alternative_counts_and_no_other(
    cluster: RealNode, wrong: str, runs: bool
) -> None:
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
    created = await cluster.kube.create(RESOURCE_CLAIMS, manifest)
    consumer = await cluster.kube.create(PODS, pod())
    chosen = result(cluster.node.devices[0], "gpu/small")
    await reserve(cluster, created, [consumer], chosen, config=[config({}, "gpu/small"), config(WRONG, wrong)])
    if runs:
        await cluster.machine.runs()
        assert gpus(cluster.machine.containers(consumer)["main"]) == [uuid(cluster, 0)]
    else:
        await cluster.machine.says("NoSuchConfig")
        assert await cluster.machine.phase() == "Pending"


async def test_pods_share_a_claim_at_once_and_one_after_another(cluster: RealNode) -> None:
    created = await cluster.kube.create(RESOURCE_CLAIMS, claim())
    pods = [await cluster.kube.create(PODS, pod(name)) for name in ("a", "b")]
    await reserve(cluster, created, pods, result(cluster.node.devices[0]))
    await cluster.machine.runs("a", "b")
    for consumer in pods:
        assert gpus(cluster.machine.containers(consumer)["main"]) == [uuid(cluster, 0)]
    await cluster.kube.delete(PODS, "a", namespace="default")
    await cluster.machine.gone("a")
    assert len(cluster.node.cdi_files()) == 2
    await cluster.kube.delete(PODS, "b", namespace="default")
    await cluster.machine.gone("b")
    assert cluster.node.cdi_files() == set()
    last = await cluster.kube.create(PODS, pod("c"))
    await reserve(cluster, created, [last], result(cluster.node.devices[0]))
    await cluster.machine.runs("c")
    assert gpus(cluster.machine.containers(last)["main"]) == [uuid(cluster, 0)]


async def test_one_gpu_is_never_in_two_claims_and_the_second_pod_runs_when_the_first_is_gone(cluster: RealNode) -> None:
    await pod_with(cluster, result(cluster.node.devices[0]))
    await cluster.machine.runs()
    other = await cluster.kube.create(RESOURCE_CLAIMS, claim("other"))
    second = await cluster.kube.create(PODS, pod("second", ["other"]))
    await allocate(cluster.kube, other, result(cluster.node.devices[0]), pods=[second])
    await cluster.machine.says("claim default/gpu")
    assert await cluster.machine.phase("second") == "Pending"
    await cluster.kube.delete(PODS, "pod", namespace="default")
    await cluster.machine.gone()
    await cluster.machine.runs("second")


async def test_admin_access_sees_gpus_that_others_use(cluster: RealNode) -> None:
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    await cluster.kube.merge_patch(NAMESPACES, "default", label)
    await pod_with(cluster, result(cluster.node.devices[0]))
    await cluster.machine.runs()
    manifest = claim("monitor")
    manifest["spec"]["devices"]["requests"][0]["exactly"] |= {"adminAccess": True, "allocationMode": "All"}
    monitor = await cluster.kube.create(RESOURCE_CLAIMS, manifest)
    watcher = await cluster.kube.create(PODS, pod("watcher", ["monitor"]))
    everything = [result(device, adminAccess=True) for device in cluster.node.devices]
    await allocate(cluster.kube, monitor, *everything, pods=[watcher])
    await cluster.machine.runs("watcher")
    container = cluster.machine.containers(watcher)["main"]
    seen = [entry for entry in container["env"] if entry.startswith("NVIDIA_DRA_ADMIN_DEVICE_")]
    assert len(seen) == len(cluster.node.devices)


async def test_a_re_created_claim_waits_for_the_old_one_and_gets_its_own_devices(cluster: RealNode) -> None:
    await pod_with(cluster, result(cluster.node.devices[0]))
    await cluster.machine.runs()
    old_uid = await cluster.machine.claim_uid()
    with cluster.node.refusing(cluster.node.cdi, "EROFS"):
        await cluster.kube.delete(PODS, "pod", namespace="default", grace_period_s=0)
        await cluster.kube.delete(RESOURCE_CLAIMS, "gpu", namespace="default")
        again = await cluster.kube.create(RESOURCE_CLAIMS, claim())
        second = await cluster.kube.create(PODS, pod("second"))
        await allocate(cluster.kube, again, result(cluster.node.devices[1]), pods=[second])
        await cluster.machine.says("an older claim of this name is still being released")
    await cluster.machine.runs("second")
    assert gpus(cluster.machine.containers(second)["main"]) == [uuid(cluster, 1)]
    assert len(cluster.node.cdi_files()) == 2
    assert not any(old_uid in name for name in cluster.node.cdi_files())


async def test_a_driver_that_is_not_ready_is_explained_on_the_pod_which_runs_when_it_is(cluster: RealNode) -> None:
    remove_driver_files(cluster.node.host)
    await pod_with(cluster, result(cluster.node.devices[0]))
    await cluster.machine.says("driver")
    assert await cluster.machine.phase() == "Pending"
    assert cluster.node.cdi_files() == set()
    load_driver(cluster.node.host)
    await cluster.machine.runs()


async def test_everything_goes_on_after_kubelet_and_plugin_were_restarted(
    api_server: SimulatedApiServer, kube: Kube, forks: PluginForks, folder: Path
) -> None:
    """The running pod keeps its devices; a pod that came meanwhile runs; one that went meanwhile is released."""
    cluster = RealNode(api_server, kube, forks, folder)
    async with cluster.running():
        async with cluster.plugin() as plugin:
            await cluster.registered()
            stays = await pod_with(cluster, result(cluster.node.devices[0]))
            other = await kube.create(RESOURCE_CLAIMS, claim("goes"))
            goes = await kube.create(PODS, pod("goes", ["goes"]))
            await allocate(kube, other, result(cluster.node.devices[1]), pods=[goes])
            await cluster.machine.runs("pod", "goes")
            before = cluster.machine.containers(stays)
            await cluster.machine.stop()
            await plugin.kill()
        await kube.delete(PODS, "goes", namespace="default", grace_period_s=0)
        third = await kube.create(RESOURCE_CLAIMS, claim("comes"))
        comes = await kube.create(PODS, pod("comes", ["comes"]))
        await allocate(kube, third, result(cluster.node.devices[1]), pods=[comes])
        await cluster.machine.start()
        async with cluster.plugin():
            await cluster.machine.runs("comes")
            record = cluster.machine.kubelet.claims.record_of("default", "gpu")
            assert record is not None
            await eventually(lambda: record.devices["gpu.nvidia.com"])
            assert cluster.machine.containers(stays) == before
            uid = other["metadata"]["uid"]
            await eventually(lambda: not any(uid in name for name in cluster.node.cdi_files()))
            for name in ("pod", "comes"):
                await kube.delete(PODS, name, namespace="default")
                await cluster.machine.gone(name)
            assert cluster.node.cdi_files() == set()


async def test_a_generated_claim_is_deleted_when_its_pod_is_done_and_not_before(cluster: RealNode) -> None:
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
    async with cluster.publishing(), cluster.scheduling():
        await cluster.published()
        await cluster.kube.create(RESOURCE_CLAIM_TEMPLATES, template)
        consumer = await cluster.kube.create(PODS, manifest)
        await cluster.machine.runs()
        assert len(gpus(cluster.machine.containers(consumer)["main"])) == 1
        (generated,) = (await cluster.kube.list(RESOURCE_CLAIMS)).items
        restarted = {"status": {"containerStatuses": await _restarted(cluster)}}
        await cluster.kube.merge_patch(PODS, "pod", restarted, namespace="default", subresource="status")
        done = {"metadata": {"annotations": {"simulation.dra.gpu/complete": "true"}}}
        assert (await cluster.kube.list(RESOURCE_CLAIMS)).items == [generated]
        await cluster.kube.merge_patch(PODS, "pod", done, namespace="default")
        await cluster.machine.gone(generated["metadata"]["name"], RESOURCE_CLAIMS)
        assert await cluster.machine.phase() == "Succeeded"
        await eventually(lambda: cluster.node.cdi_files() == set())


async def _restarted(cluster: RealNode) -> list[JsonObject]:
    statuses = (await cluster.kube.get(PODS, "pod", "default"))["status"]["containerStatuses"]
    return [{**status, "restartCount": 1} for status in statuses]


async def test_a_pod_that_asks_for_nvidia_com_gpu_runs_and_gives_it_back(cluster: RealNode) -> None:
    manifest = pod(claims=[], node_name=None)
    manifest["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "2"}}
    async with cluster.publishing(), cluster.scheduling():
        await cluster.published()
        consumer = await cluster.kube.create(PODS, manifest)
        await cluster.machine.runs()
        assert len(gpus(cluster.machine.containers(consumer)["main"])) == 2
        await cluster.kube.delete(PODS, "pod", namespace="default")
        await cluster.machine.gone()
        assert cluster.node.cdi_files() == set()
