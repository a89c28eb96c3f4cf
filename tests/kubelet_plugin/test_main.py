"""The node plugin as a process: without a driver, without a cluster, when refused, and when it is told to go."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import grpc.aio
import pytest
import pytest_asyncio
from support.claims import a_ref
from support.mishaps import run_persistenced, unload_driver
from support.objects import allocate, allocation, claim, result
from support.observed_api import ObservedApiServer
from support.plugin import eventually, short_folder
from support.plugin_process import PluginForks
from support.pod_resources import kubelet, pod
from support.ports import free_port
from support.real_node import RealNode
from support.spans import collecting

from dra_driver.api.meta import NODES, RESOURCE_CLAIMS, JsonObject
from dra_driver.errors import NotFound
from dra_driver.kube import kubelet_api
from dra_driver.kube.client import Kube
from dra_driver.kube.events import EVENTS_V1
from dra_driver.kube.kubelet_api.generated import health_v1_pb2, registration_pb2
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, CONFIG_API_VERSION, GPU_DRIVER, RELEASE_GPUS, ClaimRef
from kubelet_plugin.commands.simulate import act
from kubelet_plugin.facts.hardware import RELEASED
from kubelet_plugin.facts.own_node import OwnNode
from kubelet_plugin.main import _node
from kubelet_plugin.prepare.journal import DomainClaim, DomainDevice, DomainName
from kubelet_plugin.prepare.store import JournalFile
from kubelet_plugin.rpc.pod_resources import SOCKET
from kubelet_plugin.settings import read_settings
from kubelet_plugin.simulation.host import SimulatedHost, create_host

POD: JsonObject = {"metadata": {"name": "train-0", "uid": "uid-of-train-0"}}


@pytest_asyncio.fixture
async def scene(api_server: ObservedApiServer, kube: Kube, forks: PluginForks) -> AsyncIterator[RealNode]:
    with short_folder() as folder:
        node = RealNode(api_server, kube, forks, folder)
        async with node.running():
            yield node


async def allocated(scene: RealNode) -> ClaimRef:
    created = await scene.kube.create(RESOURCE_CLAIMS, claim())
    await allocate(scene.kube, created, result(scene.node.devices[0]))
    return ClaimRef("default", "gpu", created["metadata"]["uid"])


async def with_long_slices(scene: RealNode) -> ClaimRef:
    """A claim of the second GPU that sets its time slice."""
    created = await scene.kube.create(RESOURCE_CLAIMS, claim("long"))
    sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
    parameters = {"apiVersion": CONFIG_API_VERSION, "kind": "GpuConfig", "sharing": sharing}
    config = {"source": "FromClaim", "requests": [], "opaque": {"driver": GPU_DRIVER, "parameters": parameters}}
    status = {"allocation": allocation(result(scene.node.devices[1]), config=[config])}
    await scene.kube.merge_patch(RESOURCE_CLAIMS, "long", {"status": status}, namespace="default", subresource="status")
    return ClaimRef("default", "long", created["metadata"]["uid"])


async def test_without_a_driver_it_registers_and_serves_and_says_what_is_missing(scene: RealNode) -> None:
    ref = await allocated(scene)
    async with scene.plugin() as plugin:
        await plugin.ready()
        assert isinstance((await plugin.prepare(ref))[ref.uid], tuple)
        await plugin.kill()
    await scene.registered(0)
    unload_driver(scene.node.host)
    async with scene.plugin() as plugin:
        await scene.registered()
        other = ClaimRef("default", "other", "uid-of-other")
        assert await plugin.unprepare(ref, other) == {ref.uid: "", other.uid: ""}
        refusal = (await plugin.prepare(ref))[ref.uid]
        assert isinstance(refusal, str)
        assert "driver" in refusal
        problems = (await scene.inventory())["spec"]["problems"]
        assert [problem["reason"] for problem in problems] == ["DriverNotLoaded"]


def node_of(folder: Path, profile: str, *arguments: str) -> Any:
    """What the plugin finds and acts on, as `main` puts it together for this node."""
    places = {"host-root": folder / "host", "kubelet-root": folder / "kubelet", "cdi-root": folder / "cdi"}
    words = [f"--{name}={place}" for name, place in places.items()]
    settings = read_settings([*words, "--node-name=a", f"--simulate={profile}", *arguments], {})
    return _node(settings, OwnNode("a"))


def test_device_nodes_that_are_missing_are_made_before_the_first_look(tmp_path: Path) -> None:
    host = create_host(tmp_path / "host", "t4")
    for path in host.path("/dev").glob("nvidia*"):
        if path.is_file():
            path.unlink()
    node = node_of(tmp_path, "t4")
    facts = node.hardware.look()
    assert facts.problems == ()
    driver = node.driver.for_containers(facts.driver.version)
    assert len([driver.nodes_of(gpu) for gpu in facts.gpus]) == 4


@pytest.mark.parametrize(
    ("gates", "reasons"),
    [
        ((), ["ForeignDaemon"]),
        (("HostManagedIMEXDaemon=true",), []),
        (("ComputeDomains=false",), []),
    ],
    ids=["daemons in pods", "daemons of nodes", "no domains"],
)
def test_a_daemon_of_the_node_is_in_the_way_of_those_in_pods(
    tmp_path: Path, gates: tuple[str, ...], reasons: list[str]
) -> None:
    host = create_host(tmp_path / "host", "gb200")
    folder = host.path("/proc/812")
    folder.mkdir()
    (folder / "comm").write_text("nvidia-imex\n")
    facts = node_of(tmp_path, "gb200", *(f"--feature-gates={gate}" for gate in gates)).hardware.look()
    assert [problem.reason for problem in facts.problems] == reasons


async def test_the_inventory_says_what_the_nodes_container_runtime_cannot_read(scene: RealNode) -> None:
    node = await scene.kube.get(NODES, "node-1")
    info = {"containerRuntimeVersion": "containerd://1.7.12"}
    await scene.kube.replace(NODES, {**node, "status": {"nodeInfo": info}}, subresource="status")
    async with scene.plugin() as plugin:
        await plugin.ready()
        await eventually(lambda: _warnings(scene, ["OldCdi"]))
        ref = await allocated(scene)
        assert isinstance((await plugin.prepare(ref))[ref.uid], tuple)


async def _warnings(scene: RealNode, reasons: list[str]) -> bool:
    try:
        spec = (await scene.inventory())["spec"]
    except NotFound:
        return False
    return [warning["reason"] for warning in spec.get("warnings") or ()] == reasons


async def test_told_the_same_profile_as_other_nodes_it_makes_gpus_of_its_own(scene: RealNode) -> None:
    others = {gpu.uuid for gpu in scene.node.host.state.gpus}
    empty = scene.folder / "empty"
    scene.node.options = (f"--host-root={empty}",)
    async with scene.plugin() as plugin:
        await plugin.ready()
        made = {gpu.uuid for gpu in SimulatedHost(empty).state.gpus}
    assert len(made) == len(others)
    assert not made & others


async def test_without_an_api_server_it_registers_and_releases(scene: RealNode) -> None:
    ref = await allocated(scene)
    async with scene.plugin() as plugin:
        await plugin.ready()
        await plugin.prepare(ref)
        await plugin.kill()
    await scene.registered(0)
    await scene.server.stop()
    async with scene.plugin() as plugin:
        await scene.registered()
        assert await plugin.unprepare(ref) == {ref.uid: ""}
    await scene.server.start()


async def test_a_signal_removes_both_sockets_and_ends_with_status_0(scene: RealNode) -> None:
    async with scene.plugin() as plugin:
        await scene.registered()
        sockets = [*scene.node.kubelet.rglob("*.sock")]
        assert len(sockets) == 2
        assert await plugin.stop() == 0
        assert [*scene.node.kubelet.rglob("*.sock")] == []
        assert "Traceback" not in scene.node.log.read_text()


async def test_a_refused_registration_ends_it_with_status_1_and_the_reason(scene: RealNode) -> None:
    await scene.machine.stop()
    async with scene.plugin() as plugin:
        await plugin.ready()
        registration = scene.node.kubelet / "plugins_registry" / f"{GPU_DRIVER}-reg.sock"
        await eventually(registration.exists)
        async with grpc.aio.insecure_channel(f"unix:{registration}") as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="version not supported"):
                await channel.unary_unary(
                    f"/{kubelet_api.REGISTRATION}/NotifyRegistrationStatus",
                    request_serializer=lambda message: message.SerializeToString(),
                    response_deserializer=registration_pb2.RegistrationStatusResponse.FromString,
                )(registration_pb2.RegistrationStatus(plugin_registered=False, error="version not supported"))
        assert await plugin.ended() == 1
    assert "kubelet refused the registration: version not supported" in scene.node.log.read_text()
    assert [*scene.node.kubelet.rglob("*.sock")] == []
    await scene.machine.start()


async def test_a_setting_that_cannot_work_ends_it_with_status_2_and_a_line(scene: RealNode) -> None:
    scene.node.kubeconfig.unlink()
    async with scene.plugin(ready=False) as plugin:
        assert await plugin.ended() == 2
    (line,) = scene.node.log.read_text().splitlines()
    assert f"kubeconfig {scene.node.kubeconfig}" in line


async def test_a_policy_that_cannot_be_read_ends_it_with_a_line(scene: RealNode) -> None:
    policy = scene.node.folder / "policy.yaml"
    policy.write_text("{:")
    scene.node.options = ("--publisher=node", f"--policy={policy}")
    async with scene.plugin(ready=False) as plugin:
        assert await plugin.ended() != 0
    (line,) = scene.node.log.read_text().splitlines()
    assert f"policy {policy}" in line


async def test_a_claim_that_cannot_be_prepared_has_an_event_that_says_why(scene: RealNode) -> None:
    created = await scene.kube.create(RESOURCE_CLAIMS, claim())
    await allocate(scene.kube, created, result("gpu-of-another-node"), pods=[POD])
    async with scene.plugin() as plugin:
        await plugin.ready()
        ref = ClaimRef("default", "gpu", created["metadata"]["uid"])
        assert isinstance((await plugin.prepare(ref))[ref.uid], str)

        async def are_written() -> bool:
            return len((await scene.kube.list(EVENTS_V1)).items) == 2

        await eventually(are_written)
    events = (await scene.kube.list(EVENTS_V1)).items
    assert {event["reason"] for event in events} == {"PrepareFailed"}
    assert all("gpu-of-another-node" in event["note"] for event in events)
    assert {event["regarding"]["uid"] for event in events} == {ref.uid, "uid-of-train-0"}


async def test_a_gpu_that_nvidias_own_driver_prepared_is_given_to_nobody_until_that_claim_ends(scene: RealNode) -> None:
    """That driver was uninstalled while its pods ran. Kubelet tells who is registered now when they end."""
    ref, theirs = await allocated(scene), ClaimRef("default", "theirs", "uid-of-theirs")
    nodes = ", ".join(f"{{path: /dev/nvidia{minor}}}" for minor in range(8))
    file = scene.node.cdi / f"k8s.{GPU_DRIVER}-claim_{theirs.uid}.yaml"
    file.write_text(f"devices: [{{containerEdits: {{deviceNodes: [{nodes}]}}}}]")
    async with scene.plugin() as plugin:
        await plugin.ready()
        refusal = (await plugin.prepare(ref))[ref.uid]
        assert isinstance(refusal, str) and f"is in claim UID {theirs.uid} of another driver" in refusal
        assert await plugin.unprepare(theirs) == {theirs.uid: ""}
        assert not file.exists()
        assert isinstance((await plugin.prepare(ref))[ref.uid], tuple)


async def test_a_pod_hears_that_its_gpu_is_ill(scene: RealNode) -> None:
    created = await scene.kube.create(RESOURCE_CLAIMS, claim())
    await allocate(scene.kube, created, result(scene.node.devices[0]), pods=[POD])
    ref = ClaimRef("default", "gpu", created["metadata"]["uid"])
    async with scene.plugin() as plugin:
        await plugin.ready()
        await plugin.prepare(ref)

        async def healthy() -> str | None:
            obj = await scene.kube.get(RESOURCE_CLAIMS, "gpu", "default")
            conditions = [each for device in obj["status"].get("devices", ()) for each in device["conditions"]]
            return next((each["status"] for each in conditions if each["type"] == "Healthy"), None)

        async def is_healthy() -> bool:
            return await healthy() == "True"

        async def is_reported() -> bool:
            events = (await scene.kube.list(EVENTS_V1)).items
            heard = ("GpuUnhealthy", "train-0") in {(event["reason"], event["regarding"]["name"]) for event in events}
            return heard and await healthy() == "False"

        await eventually(is_healthy)
        await asyncio.sleep(2.5)  # all that a prepare sets off is over: what comes now is of the Xid
        act(scene.node.host.root, "xid", ["0", "79"], None)
        await eventually(is_reported)


async def test_probes_and_metrics_follow_registration_and_claims(scene: RealNode) -> None:
    port = free_port()
    scene.node.options = (f"--http-endpoint=127.0.0.1:{port}",)
    ref = await allocated(scene)
    await scene.machine.stop()
    async with scene.plugin() as plugin, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        await plugin.ready()
        async with http.get("/readyz") as response:
            assert (response.status, await response.text()) == (
                503,
                "registration: the kubelet has not registered the driver yet",
            )
        await scene.machine.start()

        async def ready() -> bool:
            async with http.get("/readyz") as response:
                return response.status == 200

        await eventually(ready)
        await plugin.prepare(ref)
        async with http.get("/metrics") as response:
            lines = (await response.text()).splitlines()
        async with http.get("/debug") as response:
            assert response.status == 404
    begins = {line.partition("{")[0] for line in lines}
    assert {"gpu_dra_build_info", "gpu_dra_api_requests_total", "gpu_dra_step_seconds_count"} <= begins
    assert 'gpu_dra_gpus{health="healthy"} 4.0' in lines
    assert "gpu_dra_claims_held 1.0" in lines
    assert 'gpu_dra_claims_total{call="prepare",driver="gpu.nvidia.com",outcome="ok"} 1.0' in lines


async def test_the_debug_page_has_what_failed_last(scene: RealNode) -> None:
    port = free_port()
    scene.node.options = (f"--http-endpoint=127.0.0.1:{port}", "--debug-pages")
    created = await scene.kube.create(RESOURCE_CLAIMS, claim())
    await allocate(scene.kube, created, result("gpu-of-another-node"))
    ref = ClaimRef("default", "gpu", created["metadata"]["uid"])
    async with scene.plugin() as plugin, aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        await plugin.ready()
        await plugin.prepare(ref)
        async with http.get("/debug") as response:
            page = await response.text()
    assert re.search(r"prepare claim default/gpu \(.*gpu-of-another-node", page)


async def test_a_claim_tells_its_devices_while_it_is_held_and_a_restart_writes_nothing(scene: RealNode) -> None:
    ref = await allocated(scene)

    async def has_devices() -> bool:
        obj = await scene.kube.get(RESOURCE_CLAIMS, "gpu", "default")
        return bool(obj["status"].get("devices"))

    async def cleared() -> bool:
        return not await has_devices()

    async with scene.plugin() as plugin:
        await plugin.ready()
        await plugin.prepare(ref)
        await eventually(has_devices)
        await plugin.kill()
    obj = await scene.kube.get(RESOURCE_CLAIMS, "gpu", "default")
    (device,) = obj["status"]["devices"]
    assert {condition["type"]: condition["status"] for condition in device["conditions"]} == {
        "Ready": "True",
        "Healthy": "True",
    }
    async with scene.plugin() as plugin:
        await scene.registered()
        await plugin.prepare(ref)
        await asyncio.sleep(1.5)  # longer than writes are gathered: none may come
        assert (await scene.kube.get(RESOURCE_CLAIMS, "gpu", "default"))["metadata"] == obj["metadata"]
        await plugin.unprepare(ref)
        await eventually(cleared)


async def test_kubelet_is_told_the_health_of_every_published_device(scene: RealNode) -> None:
    async with scene.plugin() as plugin:
        await plugin.ready()
        endpoint = scene.node.kubelet / "plugins" / GPU_DRIVER / "dra.sock"
        async with grpc.aio.insecure_channel(f"unix:{endpoint}") as channel, asyncio.timeout(10):
            stream = channel.unary_stream(
                f"/{kubelet_api.HEALTH_V1}/NodeWatchResources",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=health_v1_pb2.NodeWatchResourcesResponse.FromString,
            )(health_v1_pb2.NodeWatchResourcesRequest())
            response = await stream.read()
            stream.cancel()
    assert sorted(health.device.device_name for health in response.devices) == sorted(scene.node.devices)
    assert {(health.device.pool_name, health.health) for health in response.devices} == {
        ("node-1", health_v1_pb2.HEALTHY)
    }


MPS: JsonObject = {
    "source": "FromClaim",
    "requests": [],
    "opaque": {
        "driver": GPU_DRIVER,
        "parameters": {"apiVersion": CONFIG_API_VERSION, "kind": "GpuConfig", "sharing": {"strategy": "MPS"}},
    },
}


async def test_gates_switch_off_health_status_of_devices_and_what_claims_may_ask_for(scene: RealNode) -> None:
    """In one life of the plugin all three are on, and in the next they are not."""
    created = await scene.kube.create(RESOURCE_CLAIMS, claim())
    ref = ClaimRef("default", "gpu", created["metadata"]["uid"])
    # The second GPU is sick from the beginning; the claim has the first.
    scene.node.host.set_health(1, uncorrected_errors=1)
    status: JsonObject = {"status": {"allocation": allocation(result(scene.node.devices[0]), config=[MPS])}}
    await scene.kube.merge_patch(RESOURCE_CLAIMS, "gpu", status, namespace="default", subresource="status")

    async def devices() -> list[JsonObject]:
        obj: JsonObject = await scene.kube.get(RESOURCE_CLAIMS, "gpu", "default")
        return list(obj["status"].get("devices") or ())

    async def sick() -> list[str]:
        gpus = (await scene.inventory())["spec"]["gpus"]
        return [gpu["name"] for gpu in gpus if gpu["health"].get("conditions")]

    async with scene.plugin() as plugin:
        await plugin.ready()
        assert not isinstance((await plugin.prepare(ref))[ref.uid], str)
        await eventually(devices)
        await eventually(sick)
        await plugin.unprepare(ref)
        await eventually(lambda: _none(devices))
        await plugin.stop()
    scene.node.options = ("--feature-gates=MPSSupport=false,DeviceStatus=false,NVMLDeviceHealthCheck=false",)
    async with scene.plugin() as plugin:
        await plugin.ready()
        refusal = (await plugin.prepare(ref))[ref.uid]
        assert isinstance(refusal, str) and "feature gate MPSSupport" in refusal
        await eventually(lambda: _none(sick))
        await plugin.stop()
    # With the refusal, a condition of status.devices would have said so.
    assert not await devices()


async def _none(listed: Callable[[], Awaitable[list[Any]]]) -> bool:
    return not await listed()


def put_domain_claim(scene: RealNode, claim: DomainClaim) -> JournalFile:
    file = JournalFile(scene.node.state)
    file.transact([lambda journal: replace(journal, domains={claim.claim.uid: claim})])
    return file


async def test_with_domains_switched_off_claims_that_have_something_of_them_are_released(scene: RealNode) -> None:
    """Else kubelet could not end their pods; nothing else is done for domains, which the roles do not allow then."""
    ref = a_ref()
    device = DomainDevice("channel-0", "channel", ("channel",), "d", "Single")
    journal = put_domain_claim(scene, DomainClaim(ref, (device,), None))
    scene.node.options = ("--feature-gates=ComputeDomains=false",)
    async with scene.plugin() as plugin:
        await scene.registered(2)
        assert await plugin.serving(COMPUTE_DOMAIN_DRIVER).unprepare(ref) == {ref.uid: ""}
        assert not journal.current().domains
        await plugin.stop()
    scene.server.accesses.clear()
    async with scene.plugin() as plugin:
        await scene.registered()
        assert not [*(scene.node.kubelet / "plugins" / COMPUTE_DOMAIN_DRIVER).glob("*.sock")]
    assert not [access for access in scene.server.accesses if access.resource == "computedomains"]


async def test_metrics_tell_the_channels_of_claims_and_their_pods(scene: RealNode) -> None:
    port = free_port()
    scene.node.options = (f"--http-endpoint=127.0.0.1:{port}",)
    created = await scene.kube.create(RESOURCE_CLAIMS, claim())
    given = result("channel-0", pool=scene.node.name, driver=COMPUTE_DOMAIN_DRIVER)
    await allocate(scene.kube, created, given, pods=[POD])
    ref = ClaimRef("default", "gpu", created["metadata"]["uid"])
    channel = DomainDevice("channel-0", "channel", ("gpu",), "d", "Single")
    put_domain_claim(scene, DomainClaim(ref, (channel,), DomainName("default", "d", "d")))
    wanted = {
        'gpu_dra_claim_device{admin_access="false",claim="gpu",device="channel-0",gpu="",namespace="default",share="",'
        'type="channel"} 1.0',
        'gpu_dra_claim_pod{claim="gpu",namespace="default",pod="train-0"} 1.0',
        f'nvidia_dra_prepared_devices{{device_type="channel",driver="{COMPUTE_DOMAIN_DRIVER}",'
        f'node="{scene.node.name}"}} 1.0',
    }

    async def is_shown() -> bool:
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/metrics") as response:
            return wanted <= set((await response.text()).splitlines())

    async with scene.plugin():
        await scene.registered(2)
        await eventually(is_shown)


async def test_pods_of_a_group_are_those_that_kubelet_names(scene: RealNode) -> None:
    port = free_port()
    scene.node.options = (f"--http-endpoint=127.0.0.1:{port}",)
    created = await scene.kube.create(RESOURCE_CLAIMS, claim())
    await allocate(scene.kube, created, result(scene.node.devices[0]))
    group = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "gang", "uid": "uid-of-gang"}
    reserved = {"status": {"reservedFor": [group]}}
    await scene.kube.merge_patch(RESOURCE_CLAIMS, "gpu", reserved, namespace="default", subresource="status")
    ref = ClaimRef("default", "gpu", created["metadata"]["uid"])
    named = pod("gang-0", ("default", "gpu"), namespace="default")
    wanted = 'gpu_dra_claim_pod{claim="gpu",namespace="default",pod="gang-0"} 1.0'

    async def is_shown() -> bool:
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/metrics") as response:
            return wanted in (await response.text()).splitlines()

    async with kubelet(scene.node.kubelet / SOCKET, named), scene.plugin() as plugin:
        await plugin.ready()
        await plugin.prepare(ref)
        await eventually(is_shown)


async def test_a_collector_gets_the_spans_of_claims_with_their_requests(scene: RealNode) -> None:
    ref = await allocated(scene)
    with collecting() as collector:
        scene.node.options = (f"--otlp-endpoint={collector.url}", "--publisher=node")
        async with scene.plugin() as plugin:
            await scene.registered()
            await plugin.prepare(ref)
            await plugin.unprepare(ref)
            assert await plugin.stop() == 0
    expected = {"prepare", "unprepare", "read_claim", "get resourceclaims", "write", "remove", "publish"}
    assert expected <= set(collector.names)


async def test_gpus_are_released_by_the_process_and_by_the_next_one_after_it_was_killed(scene: RealNode) -> None:
    """From the node's annotation to nvidia-smi, which refuses to reset a GPU that any process has open."""

    async def reset() -> int:
        smi = scene.node.host.root / "usr/bin/nvidia-smi"
        process = await asyncio.create_subprocess_exec(smi, "--gpu-reset", stdout=asyncio.subprocess.DEVNULL)
        return await process.wait()

    async def annotate(value: str | None) -> None:
        await scene.kube.merge_patch(NODES, scene.node.name, {"metadata": {"annotations": {RELEASE_GPUS: value}}})

    async def reasons() -> list[str]:
        return [problem["reason"] for problem in (await scene.inventory())["spec"]["problems"]]

    async def released() -> bool:
        return RELEASED in await reasons()

    async def back() -> bool:
        return not await released()

    def slices() -> list[int]:
        return [gpu.time_slice for gpu in scene.node.host.state.gpus[:2]]

    run_persistenced(scene.node.host, running=False)
    ref, long = await allocated(scene), await with_long_slices(scene)
    async with scene.plugin() as plugin:
        await plugin.ready()
        await scene.registered()
        assert isinstance((await plugin.prepare(long))[long.uid], tuple) and slices() == [0, 3]
        assert await reset() == 255
        await annotate("true")
        await eventually(released)
        assert await reset() == 0 and slices() == [0, 0]
        refusal = (await plugin.prepare(ref))[ref.uid]
        assert isinstance(refusal, str) and f"kubectl annotate node node-1 {RELEASE_GPUS}-" in refusal
        await plugin.kill()
    async with scene.plugin() as plugin:
        await plugin.ready()
        assert await reset() == 0
        inventory = (await scene.inventory())["spec"]
        assert len(inventory["gpus"]) == len(scene.node.devices) and inventory["summary"]["healthy"].startswith("0/")
        await annotate(None)
        await eventually(back)
        assert isinstance((await plugin.prepare(ref))[ref.uid], tuple)
        assert await reset() == 255
        await eventually(lambda: slices() == [0, 3])
