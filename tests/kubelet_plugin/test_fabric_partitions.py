"""Claims on nodes whose NVSwitches are shared: the real services over a simulated Fabric Manager, NVML and kernel."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.allocation import exactly
from support.inventories import policy
from support.mishaps import active_partitions, fabric_mishap, set_partition, start_fabric_manager, stop_fabric_manager
from support.nodes import a_node
from support.plugin import eventually
from support.prepared import unprepare_one
from support.rows import slow_but
from support.whole_node import OWN, WholeNode, whole_node

from dra_driver.api.meta import JsonObject
from dra_driver.api.resource import Allocation, Device, ResourceClaim
from dra_driver.errors import DriverError, InvalidInput, NodeNotReady
from dra_driver.features import Gates
from dra_driver.names import ClaimRef
from kubelet_plugin.prepare.lifecycle import HeldByOther
from kubelet_plugin.simulation.programs.cuda import CudaLibrary
from kubelet_plugin.simulation.programs.node import DEVICES_VARIABLE, RootedNode

GATES = Gates.parse("FabricManagerPartitioning=true")
EVERY = [(board, kind) for board in ("dgx-h100", "hgx-h200", "dgx-b200", "dgx-a100-80") for kind in ("gpu", "vfio")]


VIRTUAL = policy(passthrough=[{}])


def a_claim(
    name: str, count: int, *, partition: int | None = None, kind: str = "gpu", own: str = "true"
) -> ResourceClaim:
    constraints = [] if partition is None else [{"matchAttribute": f"gpu.nvidia.com/partition{partition}"}]
    request = exactly("gpus", f"{OWN}.type == '{kind}'", own, class_name="any", count=count)
    return ResourceClaim.of(
        {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
            "spec": {"devices": {"requests": [request], "constraints": constraints}},
        }
    )


def devices(slices: Sequence[JsonObject]) -> list[Device]:
    return [Device.of(device) for item in slices for device in item["spec"].get("devices", ())]


async def prepared(node: WholeNode, claim: ResourceClaim) -> ClaimRef:
    allocation = node.allocated(await node.slices(), claim)
    assert allocation is not None, f"{claim.metadata.name} is not allocated"
    return await node.prepare(claim, allocation)


async def refusal(node: WholeNode, claim: ResourceClaim, allocation: Allocation) -> DriverError:
    with pytest.raises(DriverError) as caught:
        await node.prepare(claim, allocation)
    return caught.value


def shared(folder: Path, profile: str = "hgx-h200") -> Any:
    node = a_node(folder, profile)
    node.host.share_switches()
    return node


def sizes_of_active(node: Any) -> list[int]:
    return [len(part.gpus) for part in node.host.state.fabric_manager.partitions if part.active]


@pytest.mark.parametrize(("profile", "kind"), slow_but(EVERY, ("dgx-a100-80", "vfio")))
async def test_gpus_of_one_partition_are_allocated_and_connected_until_the_claim_goes(
    tmp_path: Path, profile: str, kind: str
) -> None:
    node = shared(tmp_path, profile)
    sizes = (4, 2) if kind == "gpu" else (2, 1)
    async with whole_node(tmp_path, node, VIRTUAL, gates=GATES) as plugin:
        before, slices = node.host.snapshots(), await plugin.slices()
        held = []
        for number, size in enumerate(sizes):
            held.append(await prepared(plugin, a_claim(str(number), size, partition=size, kind=kind)))
            assert sorted(sizes_of_active(node)) == sorted(sizes[: number + 1])
            assert await plugin.slices() == slices
        for ref in held:
            await plugin.unprepare(ref)
        assert active_partitions(node.host) == []
        assert node.host.snapshots() == before and await plugin.slices() == slices


@pytest.mark.parametrize("gates", [GATES, Gates.DEFAULT])
async def test_containers_do_not_reach_fabric_manager(tmp_path: Path, gates: Gates) -> None:
    node = a_node(tmp_path, "hgx-h200")
    async with whole_node(tmp_path, node, VIRTUAL, gates=gates) as plugin:
        await prepared(plugin, a_claim("a", 1))
        (file,) = (tmp_path / "cdi").glob("k8s.*.json")
        assert "nvidia-persistenced/socket" in file.read_text()
        assert "nvidia-fabricmanager" not in file.read_text()


@pytest.mark.slow
async def test_the_demo_of_nvidias_own_driver_runs(tmp_path: Path) -> None:
    """Two GPUs of `vfio.gpu.nvidia.com` that share the partition of two, as in its fabric-manager-partitioning."""
    node = shared(tmp_path, "dgx-b200")
    async with whole_node(tmp_path, node, VIRTUAL, gates=GATES) as plugin:
        await prepared(plugin, a_claim("fm-partition-2gpu", 2, partition=2, kind="vfio"))
        (active,) = (part for part in node.host.state.fabric_manager.partitions if part.active)
        lent = [gpu.module for gpu in node.host.state.gpus if gpu.bound_to == "vfio-pci"]
        assert sorted(lent) == active.gpus and len(lent) == 2


async def test_gpus_that_form_no_partition_are_refused_before_anything_is_changed(tmp_path: Path) -> None:
    node = shared(tmp_path)
    async with whole_node(tmp_path, node, VIRTUAL, gates=GATES) as plugin:
        before, slices = node.host.snapshots(), await plugin.slices()
        everything = plugin.allocated(slices, a_claim("all", 8))
        assert everything is not None
        results = {result.device: result for result in everything.devices.results}
        by_module = {
            device.attributes["gpuModuleID"].int_: device.name
            for device in devices(slices)
            if device.attributes["type"].string == "gpu"
        }

        def of(*modules: int) -> Allocation:
            some = [results[by_module[module]] for module in modules]
            return everything.model_copy(update={"devices": everything.devices.model_copy(update={"results": some})})

        error = await refusal(plugin, a_claim("pair", 2), of(1, 2))
        assert isinstance(error, InvalidInput)
        assert "matchAttribute: gpu.nvidia.com/partition2" in str(error) and "are not a fabric partition" in str(error)
        error = await refusal(plugin, a_claim("three", 3), of(1, 2, 3))
        assert "request as many GPUs as a partition of this node has (1, 2, 4, 8)" in str(error)
        assert active_partitions(node.host) == [] and node.host.snapshots() == before
        assert not plugin.claims.held
        del plugin.held[next(iter(plugin.held))]
        await plugin.prepare(a_claim("right", 2), of(3, 1))
        assert active_partitions(node.host) == [3]


@pytest.mark.slow
async def test_two_claims_that_share_a_gpu_share_its_partition_and_another_partition_of_it_waits(
    tmp_path: Path,
) -> None:
    node = shared(tmp_path)
    shares = policy(sharing=[{"strategy": "TimeSlicing", "replicas": 4}])
    async with whole_node(tmp_path, node, shares, gates=GATES) as plugin:
        first, second = [await prepared(plugin, a_claim(name, 1)) for name in ("a", "b")]
        (gpu,) = {device.gpu_uuid for entry in plugin.claims.held.values() for device in entry.devices}
        assert sizes_of_active(node) == [1]
        slices = await plugin.slices()
        mine = next(device for device in devices(slices) if device.attributes["uuid"].string == gpu)
        wide = a_claim("wide", 2, own=f"{OWN}.partition2 == {mine.attributes['partition2'].int_}")
        allocation = plugin.allocated(slices, wide)
        assert allocation is not None
        error = await refusal(plugin, wide, allocation)
        assert isinstance(error, HeldByOther) and "needs fabric partition" in str(error) and "default/a" in str(error)
        await plugin.unprepare(first)
        assert sizes_of_active(node) == [1]
        await plugin.unprepare(second)
        assert active_partitions(node.host) == []
        plugin.held.clear()
        await plugin.prepare(wide, allocation)
        assert sizes_of_active(node) == [2]


DOWN: dict[str, tuple[Any, str]] = {
    "does not run": (lambda host: stop_fabric_manager(host), "start the service nvidia-fabricmanager"),
    "is starting": (lambda host: start_fabric_manager(host, ready=False), "is starting"),
    "waits for a list": (lambda host: start_fabric_manager(host, restart=1), "FABRIC_MODE_RESTART=0"),
    "fails": (lambda host: fabric_mishap(host, "fmGetSupportedFabricPartitions", code=-2), "FM_ST_GENERIC_ERROR"),
}


@pytest.mark.parametrize("how", slow_but(DOWN, "is starting"))
async def test_without_an_answer_gpus_have_no_partitions_and_claims_wait(tmp_path: Path, how: str) -> None:
    node = shared(tmp_path)
    happens, advice = DOWN[how]
    async with whole_node(tmp_path, node, VIRTUAL, gates=GATES) as plugin:
        slices = await plugin.slices()
        claim = a_claim("a", 2, partition=2)
        allocation = plugin.allocated(slices, claim)
        assert allocation is not None
        happens(node.host)
        now = devices(await plugin.slices())
        assert len(now) == len(devices(slices)) and not any("partition2" in device.attributes for device in now)
        assert plugin.allocated(await plugin.slices(), claim) is None
        (problem,) = (item for item in plugin.discovery.facts.problems if item.subject == "Fabric Manager")
        assert advice in problem.message
        error = await refusal(plugin, claim, allocation)
        assert isinstance(error, NodeNotReady) and error.retry_after_s is not None and advice in str(error)
        assert not plugin.claims.held
        fabric_mishap(node.host, "fmGetSupportedFabricPartitions")
        start_fabric_manager(node.host)
        assert await plugin.slices() == slices
        plugin.held.clear()
        await plugin.prepare(claim, allocation)
        assert sizes_of_active(node) == [2]


@pytest.mark.parametrize("mode", slow_but([0, 2], 0))
async def test_a_node_whose_switches_are_not_shared_works_as_without_the_gate(tmp_path: Path, mode: int) -> None:
    node = a_node(tmp_path, "hgx-h200")
    async with whole_node(tmp_path, node, VIRTUAL) as plugin:
        without = await plugin.slices()
    if mode == 0:
        async with whole_node(tmp_path, node, VIRTUAL, gates=GATES) as plugin:
            assert await plugin.slices() == without
            (warning,) = plugin.discovery.facts.warnings
            assert "FABRIC_MODE=1" in warning.message and not plugin.discovery.facts.problems
            await prepared(plugin, a_claim("three", 3))
            assert active_partitions(node.host) == []
        return
    start_fabric_manager(node.host, 2)
    async with whole_node(tmp_path, node, VIRTUAL, gates=GATES) as plugin:
        claim = a_claim("a", 1)
        allocation = plugin.allocated(await plugin.slices(), claim)
        assert allocation is not None
        error = await refusal(plugin, claim, allocation)
        assert "FM_ST_NOT_SUPPORTED" in str(error) and "FABRIC_MODE=1" in str(error) and not plugin.claims.held


@pytest.mark.slow
async def test_a_restart_of_fabric_manager_is_noticed_and_partitions_of_claims_are_activated_again(
    tmp_path: Path,
) -> None:
    node = shared(tmp_path)
    async with whole_node(tmp_path, node, VIRTUAL, gates=GATES) as plugin, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(plugin.claims.run())
        await prepared(plugin, a_claim("a", 2, partition=2))
        await prepared(plugin, a_claim("b", 1))
        active = active_partitions(node.host)
        start_fabric_manager(node.host)
        assert active_partitions(node.host) == []
        await plugin.discovery.observe()
        await eventually(lambda: active_partitions(node.host) == active)
        running.cancel()


async def test_a_claim_goes_while_fabric_manager_is_down_and_its_partition_later(tmp_path: Path) -> None:
    node = shared(tmp_path)
    async with whole_node(tmp_path, node, VIRTUAL, gates=GATES) as plugin:
        ref = await prepared(plugin, a_claim("a", 2, partition=2))
        (before,) = active_partitions(node.host)
        fabric_mishap(node.host, "fmConnect", code=-9)
        await plugin.unprepare(ref)
        assert not plugin.claims.held and active_partitions(node.host) == [before]
        fabric_mishap(node.host, "fmConnect")
        await plugin.claims.sweep()
        assert active_partitions(node.host) == []


@pytest.mark.parametrize("kind", slow_but(["gpu", "vfio"], "gpu"))
async def test_a_plugin_that_is_started_again_keeps_what_claims_have(tmp_path: Path, kind: str) -> None:
    """Also with the gate off: what was activated is taken back."""
    node = shared(tmp_path)
    async with whole_node(tmp_path, node, VIRTUAL, gates=GATES) as plugin:
        before, slices = node.host.snapshots(), await plugin.slices()
        ref = await prepared(plugin, a_claim("a", 2, partition=2, kind=kind))
        api = plugin.api
        active = active_partitions(node.host)
    async with whole_node(tmp_path, node, VIRTUAL, gates=GATES, api=api) as plugin:
        assert list(plugin.claims.held) == [ref.uid]
        assert active_partitions(node.host) == active and await plugin.slices() == slices
    async with whole_node(tmp_path, node, VIRTUAL, api=api) as plugin:
        await unprepare_one(plugin.claims, ref)
        assert active_partitions(node.host) == [] and node.host.snapshots() == before


@pytest.mark.parametrize("profile", ["hgx-h200", "dgx-a100-80"])
def test_cuda_of_a_pod_starts_once_every_gpu_of_it_is_in_an_active_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    node = shared(tmp_path, profile)
    pair = next(part for part in node.host.state.fabric_manager.partitions if len(part.gpus) == 2)
    minors = [gpu.minor for gpu in node.host.state.gpus]
    statuses = []
    for active in (False, True):
        set_partition(node.host, pair.id, active=active)
        for minor in minors:
            monkeypatch.setenv(DEVICES_VARIABLE, f"/dev/nvidiactl:/dev/nvidia-uvm:/dev/nvidia{minor}")
            statuses.append(CudaLibrary(RootedNode(str(node.host.root)), None).cuInit(0))
    assert (statuses.count(802), statuses.count(0)) == (14, 2)
    monkeypatch.setenv(
        DEVICES_VARIABLE, ":".join(["/dev/nvidiactl:/dev/nvidia-uvm", *(f"/dev/nvidia{m}" for m in minors)])
    )
    assert CudaLibrary(RootedNode(str(node.host.root)), None).cuInit(0) == 802
