"""A GPU whose calls hang or are slow delays its own claims, and nothing else on the node."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.claims import a_claim, a_ref, a_result
from support.nodes import Node, a_node
from support.plugin import eventually
from support.prepared import Bench, prepare_one, unprepare_one
from support.stuck_nvml import StuckNvml

from dra_driver.api.policy import PublishingPolicy
from dra_driver.cdi.model import DeviceNode
from dra_driver.errors import DriverError, HardwareError
from dra_driver.names import ClaimRef
from kubelet_plugin.claims.node_effects import CurrentFootprint
from kubelet_plugin.claims.service import ClaimService
from kubelet_plugin.effects.mig import ComputeInstances, GpuInstances, MigModes
from kubelet_plugin.facts.discovery import Discovery
from kubelet_plugin.facts.hardware import Hardware, NodeFacts, NvmlSource
from kubelet_plugin.facts.monitor import HealthFile, HealthMonitor
from kubelet_plugin.facts.watcher import Coverage, EventWatcher, GpuEvent
from kubelet_plugin.prepare.holds import ComputeInstance, GpuInstance, MigMode
from kubelet_plugin.prepare.known_node import ContainerFiles
from kubelet_plugin.prepare.store import JournalStore

POLICY = PublishingPolicy.of({"mig": [{"mode": "Dynamic"}]})


@dataclass
class World:
    """A node with two GPUs or more, of which the first can be made to hang; its NVML is one library for all."""

    node: Node
    nvml: StuckNvml

    def hardware(self, **limits: float) -> Hardware:
        return Hardware(self.node.files, self.open_nvml, **limits)

    def open_nvml(self) -> NvmlSource:
        return NvmlSource(self.nvml, str(self.node.host.driver_root))

    @property
    def uuids(self) -> list[str]:
        return [gpu.uuid for gpu in self.node.host.state.gpus]

    def stick(self, function: str = "") -> None:
        self.nvml.stick(self.uuids[0], function)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    node = a_node(tmp_path, "h100-nvl", gpus=2)
    world = World(node, StuckNvml(node.host.root))
    yield world
    world.nvml.free()


def hung_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("hardware GPU")]


class TestLooking:
    def test_a_gpu_that_hangs_is_a_problem_and_the_others_are_read(self, world: World) -> None:
        hardware = world.hardware(read_s=1.0)
        before = world.hardware().look()
        world.stick()
        for _ in range(3):
            facts = hardware.look()
            assert [gpu.uuid for gpu in facts.gpus] == [gpu.uuid for gpu in before.gpus[1:]]
            assert [(problem.reason, problem.subject.partition(" at ")[0]) for problem in facts.problems] == [
                ("NotResponding", f"GPU {before.gpus[0].pci_bus_id}")
            ]
        assert len(hung_threads()) == 1, "each look would leave one more"

    def test_so_is_one_that_hangs_when_it_is_known_and_it_comes_back_when_it_answers(self, world: World) -> None:
        hardware = world.hardware(read_s=1.0)
        before = hardware.look()
        world.stick("nvmlDeviceGetMemoryInfo")
        facts = hardware.look()
        assert [gpu.uuid for gpu in facts.gpus] == [gpu.uuid for gpu in before.gpus[1:]]
        (problem,) = facts.problems
        assert (problem.subject, problem.reason) == (f"GPU {before.gpus[0].pci_bus_id}", "NotResponding")
        world.nvml.free()
        until_read(hardware, len(before.gpus))
        assert hardware.look() == before

    def test_one_that_hangs_when_it_is_asked_for_its_peers_is_left_out(self, tmp_path: Path) -> None:
        node = a_node(tmp_path, gpus=2)
        world = World(node, StuckNvml(node.host.root))
        hardware = world.hardware(read_s=1.0)
        before = hardware.look()
        assert before.gpus[0].nvlink is not None, "it has peers"
        world.stick("nvmlDeviceGetP2PStatus")
        assert world.uuids[0] not in {gpu.uuid for gpu in hardware.look().gpus}
        world.nvml.free()

    async def test_its_device_stays_with_a_condition_as_that_of_a_lost_gpu(self, world: World, tmp_path: Path) -> None:
        discovery = Discovery(world.hardware(read_s=1.0))
        monitor = HealthMonitor(discovery, HealthFile(tmp_path / "state"), lambda: POLICY.health)
        before = await monitor.observe()
        world.stick()
        after = await monitor.observe()
        assert [gpu.uuid for gpu in after.gpus] == [gpu.uuid for gpu in before.gpus]
        assert [gpu.health.healthy for gpu in after.gpus] == [False, *(True for _ in after.gpus[1:])]


class TestChanging:
    def test_another_gpu_can_be_used_while_a_look_hangs(self, world: World) -> None:
        hardware = world.hardware(read_s=30.0)
        hardware.look()
        world.stick("nvmlDeviceGetMemoryInfo")
        looking = threading.Thread(target=hardware.look)
        looking.start()
        assert world.nvml.hit.wait(10)
        gpu = world.node.gpu(1)
        assert hardware.use(gpu, lambda nvml: nvml.compute_mode(gpu.uuid)) == 0
        assert looking.is_alive()
        world.nvml.free()
        looking.join(10)

    def test_also_in_a_session_that_has_just_begun(self, world: World) -> None:
        """Nothing is asked about the first GPU to find the second."""
        world.stick()
        hardware, gpu = world.hardware(), world.node.gpu(1)
        assert hardware.use(gpu, lambda nvml: nvml.compute_mode(gpu.uuid)) == 0
        assert not world.nvml.hit.is_set()

    def test_a_session_in_which_a_call_hangs_is_not_closed(self, world: World) -> None:
        hardware = world.hardware(read_s=1.0, turn_s=0.1)
        world.stick()
        hardware.look()
        with pytest.raises(HardwareError, match="GPU at index 0"):
            hardware.without_session(lambda: None)
        gpu = world.node.gpu(1)
        assert hardware.use(gpu, lambda nvml: nvml.compute_mode(gpu.uuid)) == 0


def until_read(hardware: Hardware, count: int) -> None:
    for _ in range(100):
        if len(hardware.look().gpus) == count:
            return
    raise AssertionError("it is not read again")


class TestEvents:
    async def test_events_of_the_others_are_heard(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("kubelet_plugin.facts.watcher.READ_S", 1.0)
        events: asyncio.Queue[GpuEvent] = asyncio.Queue()
        covered: asyncio.Queue[Coverage] = asyncio.Queue()
        world.stick("nvmlDeviceRegisterEvents")
        watcher = EventWatcher(world.open_nvml, events.put_nowait, covered.put_nowait, wait_s=0.05)
        running = asyncio.create_task(watcher.run())
        try:
            async with asyncio.timeout(20):
                assert (await covered.get()).monitored == frozenset(world.uuids[1:])
                world.node.host.inject_event(1, 79)
                assert (await events.get()).gpu == world.uuids[1]
                watcher.renew()
                assert (await covered.get()).monitored == frozenset(world.uuids[1:])
            assert len(hung_threads()) == 1
        finally:
            world.nvml.free()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


class Looks:
    """What Discovery knows, without its thread."""

    def __init__(self, hardware: Hardware) -> None:
        self._hardware = hardware
        self.facts = hardware.look()

    async def observe(self) -> NodeFacts:
        self.facts = await asyncio.to_thread(self._hardware.look)
        return self.facts


class RealHardware(Bench):
    """Claims for parts of GPUs that are made on demand."""

    def container_files(self, facts: NodeFacts) -> ContainerFiles:
        files = super().container_files(facts)
        node = DeviceNode("/dev/nvidia-caps/nvidia-cap1", type="c", major=236, minor=1)
        return replace(files, mig_nodes=lambda *_: (node,))

    def part(self, gpu: str, start: int) -> ClaimRef:
        return self.api.put(a_claim(a_ref(f"{gpu}-{start}"), a_result(f"{gpu}-mig-1g12gb-{start}")))


@asynccontextmanager
async def claims(world: World, folder: Path) -> AsyncIterator[tuple[ClaimService, RealHardware, Hardware]]:
    journal = JournalStore(folder / "plugin" / "state")
    hardware = Hardware(world.node.files, world.open_nvml, CurrentFootprint(journal, world.node.files))
    effects = {MigMode: MigModes(hardware), GpuInstance: GpuInstances(hardware)}
    bench = RealHardware(
        folder / "plugin",
        facts=Looks(hardware),  # type: ignore[arg-type]
        policy=POLICY,
        effects={**effects, ComputeInstance: ComputeInstances(hardware)},
    )
    async with bench.plugin(journal=journal) as service:
        yield service, bench, hardware


def threads_of_holds() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("holds")}


async def test_claims_of_other_gpus_are_prepared_and_released_while_those_of_one_wait(
    world: World, tmp_path: Path
) -> None:
    """More claims wait for the GPU than there are threads for it; they are answered when it answers."""
    async with claims(world, tmp_path) as (service, bench, hardware), asyncio.timeout(50):
        first, second = (gpu.name for gpu in hardware.look().gpus[:2])
        of_other_tests = threads_of_holds()
        world.stick()
        waiting = [asyncio.create_task(prepare_one(service, bench.part(first, start))) for start in range(6)]
        await eventually(world.nvml.hit.is_set)
        for start in range(3):
            ref = bench.part(second, start)
            assert await prepare_one(service, ref)
            await unprepare_one(service, ref)
        assert not any(task.done() for task in waiting)
        assert len(threads_of_holds() - of_other_tests) <= 5, "four wait for a GPU"
        world.nvml.free()
        assert len({devices[0].device for devices in await asyncio.gather(*waiting)}) == 6
        await asyncio.gather(*(unprepare_one(service, ClaimRef(*key)) for key in held(service)))
    assert not any(gpu.instances for gpu in world.node.host.state.gpus)


async def test_a_plugin_that_ends_finishes_other_claims_and_does_not_wait_for_one_that_hangs(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubelet_plugin.hardware.lanes.LAST_WAIT_S", 0.2)
    async with claims(world, tmp_path) as (service, bench, hardware), asyncio.timeout(50):
        first, second = (gpu.name for gpu in hardware.look().gpus[:2])
        world.stick()
        hung = asyncio.create_task(prepare_one(service, bench.part(first, 0)))
        await eventually(world.nvml.hit.is_set)
        hardware.end()
        assert await prepare_one(service, bench.part(second, 0))
        with pytest.raises(DriverError, match="NVML has not answered"):
            await hung
    # The block's end has closed the service, with a call that hangs still.
    assert hung_threads()


def held(service: ClaimService) -> list[tuple[str, str, str]]:
    return [(entry.claim.namespace, entry.claim.name, entry.claim.uid) for entry in service.held.values()]
