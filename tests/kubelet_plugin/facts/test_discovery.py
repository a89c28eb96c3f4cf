"""Facts are fresh, complete and in order, whatever the driver does meanwhile."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.mishaps import (
    bind_gpu,
    load_driver,
    reboot_renumbered,
    remove_driver_files,
    set_fabric,
    unload_driver,
)
from support.nodes import Node, a_node

from dra_driver.api.inventory import DriverFacts, Problem
from dra_driver.errors import HardwareError, NodeNotReady
from kubelet_plugin.facts.discovery import Discovery
from kubelet_plugin.facts.hardware import Hardware, NodeFacts, NvmlSource, _with_silent
from kubelet_plugin.hardware.nvml import Nvml
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.prepare.holds import GpuIdentity
from kubelet_plugin.prepare.ours import DriverFootprint, InUse
from kubelet_plugin.simulation.host import SimulatedHost
from kubelet_plugin.simulation.state import SimulatedFabric


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return a_node(tmp_path)


def reasons(facts: NodeFacts) -> list[tuple[str, str]]:
    return [(problem.subject, problem.reason) for problem in facts.problems]


class TestLooking:
    def test_locality_is_that_of_sysfs(self, node: Node) -> None:
        gpus = node.hardware.look().gpus
        assert [(gpu.numa_node, gpu.pcie_root) for gpu in gpus[3:5]] == [(0, "pci0000:5b"), (1, "pci0000:97")]

    def test_gpus_are_in_the_order_of_their_addresses_whatever_nvmls_is(self, node: Node) -> None:
        before = node.hardware.look()
        reboot_renumbered(node.host)
        after = node.hardware.look()
        assert [gpu.uuid for gpu in after.gpus] == [gpu.uuid for gpu in before.gpus]
        assert [gpu.name for gpu in after.gpus] == [gpu.name for gpu in before.gpus]
        assert [gpu.minor for gpu in after.gpus] != [gpu.minor for gpu in before.gpus]
        assert after.boot_id != before.boot_id

    def test_of_more_gpus_than_an_inventory_can_have_the_first_are_reported(
        self, node: Node, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        every = node.hardware.look().gpus
        monkeypatch.setattr("kubelet_plugin.facts.hardware.MOST_GPUS", 3)
        facts = node.hardware.look()
        assert facts.gpus == every[:3]
        assert ("GPUs", "TooMany") in reasons(facts)

    def test_looking_twice_at_a_quiet_node_sees_the_same(self, node: Node) -> None:
        hardware = node.hardware
        assert hardware.look() == hardware.look() == node.hardware.look()

    def test_the_driver_is_told_with_its_root(self, tmp_path: Path) -> None:
        assert a_node(tmp_path, "t4").hardware.look().driver == DriverFacts(
            version="550.163.01", cuda_version="12.4", nvml_version="13.550.163.01", root="/"
        )

    def test_mixed_cliques_on_one_node_are_a_problem_of_the_fabric(self, tmp_path: Path) -> None:
        node = a_node(tmp_path, "gb200")
        fabric = node.host.state.gpus[0].fabric
        assert fabric is not None
        set_fabric(node.host, 0, SimulatedFabric(cluster=fabric.cluster, clique=fabric.clique + 1))
        facts = node.hardware.look()
        assert reasons(facts) == [("fabric", "MixedCliques")]
        assert len(facts.gpus) == 4

    def test_without_boot_id_there_are_no_facts(self, node: Node) -> None:
        node.host.path("/proc/sys/kernel/random/boot_id").unlink()
        with pytest.raises(NodeNotReady):
            node.hardware.look()


class TestDriverComesAndGoes:
    @pytest.mark.parametrize(
        ("befalls", "reason"),
        [
            (lambda host: remove_driver_files(host), "LibraryNotFound"),
            (lambda host: unload_driver(host), "DriverNotLoaded"),
            (lambda host: load_driver(host, "590.48.01", libraries=False), "DriverVersionMismatch"),
        ],
    )
    def test_a_driver_that_cannot_be_used_is_a_problem_until_it_can(
        self, node: Node, befalls: Callable[[SimulatedHost], None], reason: str
    ) -> None:
        befalls(node.host)
        hardware = node.hardware
        facts = hardware.look()
        assert (facts.driver, facts.gpus) == (None, ())
        assert reasons(facts) == [("driver", reason)]
        assert "8 NVIDIA GPUs are on the PCI bus" in facts.problems[0].message
        load_driver(node.host)
        facts = hardware.look()
        assert len(facts.gpus) == 8
        assert facts.problems == ()

    def test_a_reloaded_driver_is_seen_at_the_next_look(self, node: Node) -> None:
        hardware = node.hardware
        hardware.look()
        unload_driver(node.host)
        load_driver(node.host, "590.48.01")
        facts = hardware.look()
        assert facts.driver is not None and facts.driver.version == "590.48.01"
        assert len(facts.gpus) == 8

    def test_the_same_driver_loaded_again_is_not_even_noticed(self, node: Node) -> None:
        hardware = node.hardware
        before = hardware.look()
        unload_driver(node.host)
        load_driver(node.host)
        assert hardware.look() == before

    def test_a_driver_that_is_unloaded_while_it_is_used_is_a_problem_and_no_crash(self, node: Node) -> None:
        hardware = node.hardware
        hardware.look()
        unload_driver(node.host)
        assert reasons(hardware.look()) == [("driver", "DriverNotLoaded")]

    def test_a_root_that_is_not_ready_is_a_problem(self, node: Node) -> None:
        def nothing() -> NvmlSource:
            raise NodeNotReady("no driver root yet", about="driver root")

        assert reasons(Hardware(node.files, nothing).look()) == [("driver", "DriverNotFound")]

    def test_a_gpu_that_is_given_away_and_comes_back_is_followed(self, node: Node) -> None:
        hardware = node.hardware
        hardware.look()
        bind_gpu(node.host, 2, "vfio-pci")
        facts = hardware.look()
        assert len(facts.gpus) == 7
        assert reasons(facts) == [("GPU 0000:52:00.0", "BoundToVfio")]
        bind_gpu(node.host, 2, "nvidia")
        assert len(hardware.look().gpus) == 8

    def test_a_session_is_kept_while_it_serves(self, node: Node) -> None:
        opened: list[int] = []

        def open_nvml() -> NvmlSource:
            opened.append(1)
            return node.open_nvml()

        hardware = Hardware(node.files, open_nvml)
        for _ in range(3):
            hardware.look()
        node.host.lose_gpu(0)
        hardware.look()
        assert len(opened) == 1

    def test_when_no_gpu_answers_the_next_look_starts_anew(self, node: Node) -> None:
        opened: list[int] = []

        def open_nvml() -> NvmlSource:
            opened.append(1)
            return node.open_nvml()

        hardware = Hardware(node.files, open_nvml)
        for index in range(8):
            node.host.lose_gpu(index)
        assert len(hardware.look().problems) == 8
        for index in range(8):
            node.host.lose_gpu(index, 0)
        assert len(hardware.look().gpus) == 8
        assert len(opened) == 2


class TestSilentGpus:
    """GPUs that the kernel driver holds and NVML does not list."""

    def test_one_is_reported_by_its_address(self) -> None:
        (problem,) = _with_silent([], ["0000:1b:00.0", "0000:43:00.0"], ["0000:1b:00.0"])
        assert (problem.subject, problem.reason) == ("GPU 0000:43:00.0", "NotListed")

    def test_one_that_has_only_an_index_is_not_counted_twice_and_gets_its_address(self) -> None:
        lost = Problem(subject="GPU at index 1", reason="GpuIsLost", message="")
        assert _with_silent([lost], ["a", "b"], ["a"]) == [lost.model_copy(update={"subject": "GPU b"})]

    def test_when_it_is_not_clear_which_is_which_nothing_is_claimed(self) -> None:
        lost = [Problem(subject=f"GPU at index {index}", reason="GpuIsLost", message="") for index in (0, 1)]
        assert _with_silent(lost, ["a", "b"], []) == lost

    def test_a_gpu_lost_before_the_first_look_is_named_by_its_address(self, node: Node) -> None:
        node.host.lose_gpu(7)
        assert reasons(node.hardware.look()) == [("GPU 0000:df:00.0", "GpuIsLost")]

    @given(
        held=st.sets(st.sampled_from("abcdefgh")),
        listed=st.sets(st.sampled_from("abcdefgh")),
        nameless=st.integers(0, 3),
    )
    def test_no_gpu_is_counted_twice(self, held: set[str], listed: set[str], nameless: int) -> None:
        problems = [Problem(subject=f"GPU at index {index}", reason="X", message="") for index in range(nameless)]
        subjects = [problem.subject for problem in _with_silent(problems, held, listed)]
        assert len(subjects) == len(set(subjects)) == (nameless or len(held - listed))
        assert not {f"GPU {address}" for address in listed} & set(subjects)


class SlowHardware(Hardware):
    """Looks as long as `gate` is closed, and counts who looks."""

    def __init__(self, files: HostFiles) -> None:
        self.gate = threading.Event()
        self.looks = 0
        self.inside = 0
        self.most_inside = 0
        self._files = files

    def look(self) -> NodeFacts:
        self.looks += 1
        number = self.looks
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        self.gate.wait(20)
        self.inside -= 1
        return NodeFacts(f"boot {number}", None, (), ())

    def boot_id(self) -> str:
        return "boot"


@pytest.fixture
def slow(node: Node) -> SlowHardware:
    return SlowHardware(node.files)


class TestDiscovery:
    async def test_before_the_first_look_there_are_no_facts(self, node: Node) -> None:
        with pytest.raises(NodeNotReady):
            _ = node.discovery().facts

    async def test_listeners_hear_of_changes_and_of_nothing_else(self, node: Node) -> None:
        discovery, heard = node.discovery(), []
        stop = discovery.subscribe(heard.append)
        await discovery.observe()
        await discovery.observe()
        assert len(heard) == 1
        node.host.lose_gpu(0)
        assert await discovery.observe() == discovery.facts == heard[-1]
        assert len(heard) == 2
        stop()
        node.host.lose_gpu(1)
        await discovery.observe()
        assert len(heard) == 2

    async def test_it_looks_again_at_every_interval(self, node: Node) -> None:
        discovery = node.discovery(interval_s=0.01)
        seen: asyncio.Queue[int] = asyncio.Queue()
        discovery.subscribe(lambda facts: seen.put_nowait(len(facts.gpus)))
        task = asyncio.create_task(discovery.run())
        try:
            async with asyncio.timeout(30):
                assert await seen.get() == 8
                node.host.lose_gpu(0)
                assert await seen.get() == 7
        finally:
            task.cancel()

    async def test_a_node_that_cannot_be_looked_at_does_not_end_the_service(self, node: Node) -> None:
        boot_id = node.host.path("/proc/sys/kernel/random/boot_id")
        text = boot_id.read_text()
        boot_id.unlink()
        discovery = node.discovery(interval_s=0.01)
        seen = asyncio.Event()
        discovery.subscribe(lambda facts: seen.set())
        task = asyncio.create_task(discovery.run())
        try:
            await asyncio.sleep(0.05)
            boot_id.write_text(text)
            async with asyncio.timeout(5):
                await seen.wait()
        finally:
            task.cancel()

    async def test_callers_at_the_same_time_share_one_look_that_began_after_they_asked(
        self, slow: SlowHardware
    ) -> None:
        discovery = Discovery(slow)
        first = asyncio.create_task(discovery.observe())
        await asyncio.sleep(0.01)
        later = [asyncio.create_task(discovery.observe()) for _ in range(5)]
        await asyncio.sleep(0.01)
        slow.gate.set()
        assert (await first).boot_id == "boot 1"
        assert {(await task).boot_id for task in later} == {"boot 2"}
        assert slow.looks == 2

    async def test_a_hung_driver_blocks_nobody_and_piles_up_no_threads(self, slow: SlowHardware) -> None:
        discovery = Discovery(slow, patience_s=0.02)
        for _ in range(3):
            facts = await discovery.observe()
            assert reasons(facts) == [("driver", "NotResponding")]
        assert slow.most_inside == slow.looks == 1
        # A thread that is no daemon would keep the process from ending.
        assert {thread.daemon for thread in threading.enumerate() if thread.name == "hardware"} == {True}
        slow.gate.set()
        async with asyncio.timeout(5):
            while reasons(await discovery.observe()):
                pass
        assert slow.most_inside == 1

    async def test_while_the_driver_hangs_the_last_facts_stay(self, node: Node) -> None:
        discovery = node.discovery(patience_s=5)
        await discovery.observe()
        hardware = SlowHardware(node.files)
        discovery._hardware = hardware
        discovery._patience_s = 0.02
        facts = await discovery.observe()
        assert len(facts.gpus) == 8
        assert reasons(facts) == [("driver", "NotResponding")]
        hardware.gate.set()

    async def test_a_caller_that_gives_up_takes_nothing_from_the_others(self, slow: SlowHardware) -> None:
        discovery = Discovery(slow)
        impatient, patient = (asyncio.create_task(discovery.observe()) for _ in range(2))
        await asyncio.sleep(0.01)
        impatient.cancel()
        slow.gate.set()
        assert (await patient).boot_id in ("boot 1", "boot 2")

    async def test_an_unexpected_error_reaches_whoever_asked(self, node: Node) -> None:
        class Broken(Hardware):
            def look(self) -> NodeFacts:
                raise HardwareError("broken", about="driver")

        discovery = Discovery(Broken(node.files, node.open_nvml))
        with pytest.raises(HardwareError):
            await discovery.observe()
        with pytest.raises(HardwareError):
            await discovery.observe()


class TestChangingHardware:
    def test_a_change_and_a_look_never_happen_at_once(self, node: Node) -> None:
        hardware, order = node.hardware, list[str]()
        begun, done = threading.Event(), threading.Event()

        def change(nvml: Nvml) -> None:
            begun.set()
            done.wait(10)
            order.append("change")

        changing = threading.Thread(target=lambda: hardware.use(node.gpu(0), change))
        changing.start()
        assert begun.wait(10)
        looking = threading.Thread(target=lambda: order.append(hardware.look().boot_id))
        looking.start()
        done.set()
        changing.join(10)
        looking.join(10)
        assert order == ["change", node.hardware.boot_id()]

    def test_a_session_that_is_over_is_replaced_and_the_change_done(self, node: Node) -> None:
        hardware = node.hardware
        hardware.look()
        unload_driver(node.host)
        load_driver(node.host, "590.48.01")
        assert hardware.use(node.gpu(0), lambda nvml: nvml.driver("/")).version == "590.48.01"

    def test_a_gpu_that_came_after_the_session_began_is_found(self, node: Node) -> None:
        hardware, uuid = node.hardware, node.host.state.gpus[3].uuid
        bind_gpu(node.host, 3, "vfio-pci")
        hardware.look()
        bind_gpu(node.host, 3, "nvidia")
        assert hardware.use(node.gpu(3), lambda nvml: nvml.compute_mode(uuid)) == 0

    def test_a_refusal_is_not_asked_for_twice(self, node: Node) -> None:
        asked: list[int] = []

        def refuse(nvml: Nvml) -> None:
            asked.append(1)
            raise HardwareError("no", about="GPU", code=19)

        with pytest.raises(HardwareError, match="no"):
            node.hardware.use(node.gpu(0), refuse)
        assert len(asked) == 1

    def test_without_a_driver_nothing_can_be_changed(self, node: Node) -> None:
        unload_driver(node.host)
        with pytest.raises(HardwareError, match="kernel module is not loaded"):
            node.hardware.use(node.gpu(0), lambda nvml: nvml.driver("/"))

    def test_what_needs_the_gpus_closed_finds_them_closed(self, node: Node) -> None:
        hardware = node.hardware
        hardware.look()
        assert hardware._session is not None
        assert hardware.without_session(lambda: hardware._session) is None
        assert len(hardware.look().gpus) == 8


class TestLayouts:
    def test_a_layout_changed_by_hand_is_told_and_looked_for_every_few_seconds(self, node: Node) -> None:
        hardware = node.hardware
        assert not hardware.look().divided
        node.host.set_mig(0, 1)
        (uuid,) = node.host.make_instance(0, "3g.40gb", 4)
        facts = hardware.look()
        assert facts.divided
        mig = facts.gpus[0].mig
        assert mig is not None
        assert [device.uuid for instance in mig.instances for device in instance.compute_instances] == [uuid]

    async def test_while_a_gpu_is_divided_the_interval_is_short(
        self, node: Node, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("kubelet_plugin.facts.discovery.DIVIDED_INTERVAL_S", 0.01)
        node.host.set_mig(0, 1)
        discovery = node.discovery(interval_s=3600)
        seen: asyncio.Queue[int] = asyncio.Queue()
        discovery.subscribe(lambda facts: seen.put_nowait(sum(len(gpu.mig.instances) for gpu in facts.gpus if gpu.mig)))
        task = asyncio.create_task(discovery.run())
        try:
            async with asyncio.timeout(30):
                assert await seen.get() == 0
                node.host.make_instance(0, "1g.10gb", 0)
                assert await seen.get() == 1
        finally:
            task.cancel()

    async def test_a_mode_that_claims_need_is_no_news(self, node: Node) -> None:
        gpu = node.host.state.gpus[0]
        facts = node.hardware.look().gpus[0]
        ours = DriverFootprint()
        discovery = Discovery(Hardware(node.files, node.open_nvml, lambda: ours))
        heard: list[NodeFacts] = []
        discovery.subscribe(lambda news: heard.append(replace(news, health={})))
        await discovery.observe()
        ours = DriverFootprint(modes={GpuIdentity(gpu.uuid, gpu.address): facts})
        node.host.set_mig(0, 1)
        after = await discovery.observe()
        assert after.divided
        assert discovery.facts.divided
        assert heard and all(news.gpus == after.gpus for news in heard)

    def test_what_a_claim_lost_is_told(self, node: Node) -> None:
        node.host.set_mig(0, 1)
        (uuid,) = node.host.make_instance(0, "3g.40gb", 4)
        gpu = node.host.state.gpus[0].uuid
        hardware = Hardware(node.files, node.open_nvml, lambda: DriverFootprint(in_use=(InUse(gpu, uuid),)))
        assert hardware.look().lost == ()
        node.host.destroy_instance(0, 4)
        assert [(loss.gpu_uuid, loss.mig_uuid) for loss in hardware.look().lost] == [(gpu, uuid)]
