"""Fabric partitions of a simulated Fabric Manager: whose they are, and what is left after a death at any moment."""

from dataclasses import replace
from pathlib import Path

import pytest
from support.mishaps import active_partitions, bind_gpu, fabric_mishap, set_partition, start_fabric_manager
from support.nodes import a_node
from support.rows import slow_but

from dra_driver.errors import DriverError, HardwareError
from kubelet_plugin.effects.fabric_partitions import FabricPartitions
from kubelet_plugin.facts.hardware import Hardware
from kubelet_plugin.hardware.driver_root import DriverInstallation
from kubelet_plugin.hardware.nvfm import FabricManager, FmCode
from kubelet_plugin.prepare.holds import FabricPartition, GpuIdentity, HoldRecord, HoldState, Made
from kubelet_plugin.simulation.host import SimulatedHost
from kubelet_plugin.simulation.nvfm import SimulatedFabricLibrary
from kubelet_plugin.simulation.nvml_session import Crash


class Driver:
    """Persistence mode as the state has it, without the programs that take long. Says what was open, and when."""

    def __init__(self, host: SimulatedHost, hardware: Hardware) -> None:
        self._host = host
        self._hardware = hardware
        self.open_during: list[list[bool]] = []

    def persistence(self, gpu: GpuIdentity) -> bool:
        return self._host.state.gpu(gpu.uuid).persistent

    def set_persistence(self, gpu: GpuIdentity, *, on: bool) -> None:
        with self._host.edit() as state:
            state.gpu(gpu.uuid).persistenced = on

    def without_nvml(self, work: object) -> None:
        self.open_during.append([gpu.persistent for gpu in self._host.state.gpus])
        self._hardware.without_session(work)  # type: ignore[arg-type]


class Plugin:
    """One process on the node: it knows what the journal kept, and may die."""

    def __init__(self, folder: Path, profile: str = "hgx-h200") -> None:
        node = a_node(folder, profile)
        self.host, self.files = node.host, node.files
        self.host.share_switches()
        self.boot = self.files.boot_id()
        self.record: HoldRecord | None = None
        self._node = node
        self.start()

    def start(self) -> None:
        library = SimulatedFabricLibrary(self.host.root)
        self.manager = manager = FabricManager(self.files, DriverInstallation(self.files).root, None, lambda _: library)
        hardware = Hardware(self.files, self._node.open_nvml)
        self.driver = Driver(self.host, hardware)
        self.effect = FabricPartitions(manager, self.driver, hardware)

    def hold(self, partition: int = 3) -> FabricPartition:
        state = next(part for part in self.host.state.fabric_manager.partitions if part.id == partition)  # type: ignore[union-attr]
        gpus = [GpuIdentity(gpu.uuid, gpu.address) for gpu in self.host.state.gpus if gpu.module in state.gpus]
        return FabricPartition(partition, tuple(sorted(gpus)))

    def make(self, hold: FabricPartition) -> Made:
        if self.record is None:
            self.record = HoldRecord(HoldState.INTENT, self.boot, self.effect.before(hold, {}))
        made = self.effect.make(hold, {hold: self.record})
        self.record = HoldRecord(HoldState.MADE, self.files.boot_id(), self.record.made.with_facts(made))
        return self.record.made

    def undo(self, hold: FabricPartition) -> None:
        assert self.record is not None
        record = replace(self.record, state=HoldState.UNDOING)
        self.effect.undo(hold, {hold: record}, self.files.boot_id())


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


def test_its_gpus_are_not_open_while_a_partition_is_activated_and_the_others_are_left_alone(plugin: Plugin) -> None:
    hold, before = plugin.hold(), plugin.host.snapshots()
    members = {gpu.uuid for gpu in hold.gpus}
    assert dict(plugin.make(hold).facts) == {"persistent": "", "was": "inactive"}
    (moment,) = plugin.driver.open_during
    assert moment == [gpu.uuid not in members for gpu in plugin.host.state.gpus]
    assert active_partitions(plugin.host) == [3] and plugin.host.snapshots() == before
    for _ in range(2):
        plugin.undo(hold)
        assert active_partitions(plugin.host) == [] and plugin.host.snapshots() == before


def test_what_is_made_is_found_made(plugin: Plugin) -> None:
    hold = plugin.hold()
    assert plugin.make(hold) == plugin.make(hold)
    assert len(plugin.driver.open_during) == 1


def test_a_partition_that_an_administrator_activated_is_used_and_stays(plugin: Plugin) -> None:
    hold = plugin.hold()
    set_partition(plugin.host, 3, active=True)
    assert dict(plugin.make(hold).facts)["was"] == "active"
    assert plugin.driver.open_during == []
    plugin.undo(hold)
    assert active_partitions(plugin.host) == [3]


def test_it_stays_also_when_fabric_manager_had_to_be_reminded_of_it(plugin: Plugin) -> None:
    hold = plugin.hold()
    set_partition(plugin.host, 3, active=True)
    plugin.make(hold)
    start_fabric_manager(plugin.host)
    plugin.make(hold)
    assert active_partitions(plugin.host) == [3]
    members = {gpu.uuid for gpu in hold.gpus}
    (moment,) = plugin.driver.open_during
    assert moment == [gpu.uuid not in members for gpu in plugin.host.state.gpus]
    plugin.undo(hold)
    assert active_partitions(plugin.host) == [3]


@pytest.mark.parametrize("other", [0, 1, 7, 9])
def test_a_partition_of_another_tool_with_one_of_the_gpus_is_in_the_way(plugin: Plugin, other: int) -> None:
    hold = plugin.hold()
    set_partition(plugin.host, other, active=True)
    with pytest.raises(HardwareError, match=f"partition {other} is active .* `fmpm -d {other}`"):
        plugin.effect.before(hold, {})
    record = HoldRecord(HoldState.INTENT, plugin.boot, Made((("was", "inactive"),)))
    with pytest.raises(HardwareError, match=f"partition {other} is active"):
        plugin.effect.make(hold, {hold: record})
    plugin.effect.undo(hold, {hold: record}, plugin.boot)
    assert active_partitions(plugin.host) == [other] and plugin.driver.open_during == []


def test_a_partition_without_one_of_the_gpus_is_not_in_the_way(plugin: Plugin) -> None:
    set_partition(plugin.host, 4, active=True)
    plugin.make(plugin.hold(3))
    assert active_partitions(plugin.host) == [3, 4]


def test_another_tool_that_activates_it_at_the_same_moment_does_no_harm(
    plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = plugin.hold()
    without_nvml = plugin.driver.without_nvml

    def raced(work: object) -> None:
        set_partition(plugin.host, 3, active=True)
        without_nvml(work)

    monkeypatch.setattr(plugin.driver, "without_nvml", raced)
    plugin.make(hold)
    assert active_partitions(plugin.host) == [3]


def test_a_partition_in_use_that_is_not_active_is_not_called_made(plugin: Plugin) -> None:
    hold = plugin.hold()
    fabric_mishap(plugin.host, "fmActivateFabricPartition", code=int(FmCode.IN_USE))
    with pytest.raises(HardwareError, match="activation of partition 3 failed"):
        plugin.make(hold)
    assert active_partitions(plugin.host) == []


def test_a_partition_that_another_tool_deactivated_is_gone_as_it_should(
    plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = plugin.hold()
    plugin.make(hold)
    set_partition(plugin.host, 3, active=False)
    plugin.undo(hold)
    plugin.make(hold)
    deactivate = plugin.manager.deactivate

    def raced(partition: int) -> None:
        set_partition(plugin.host, 3, active=False)
        deactivate(partition)

    monkeypatch.setattr(plugin.manager, "deactivate", raced)
    plugin.undo(hold)
    assert active_partitions(plugin.host) == []


@pytest.mark.parametrize("code", [FmCode.GENERIC_ERROR, FmCode.UNINITIALIZED])
def test_a_partition_that_cannot_be_deactivated_is_not_called_gone(plugin: Plugin, code: FmCode) -> None:
    hold = plugin.hold()
    plugin.make(hold)
    fabric_mishap(plugin.host, "fmDeactivateFabricPartition", code=int(code))
    with pytest.raises(HardwareError, match="deactivation of partition 3 failed"):
        plugin.undo(hold)
    assert active_partitions(plugin.host) == [3]
    fabric_mishap(plugin.host, "fmDeactivateFabricPartition")
    plugin.undo(hold)
    assert active_partitions(plugin.host) == []


def test_fabric_manager_that_forgot_it_is_reminded(plugin: Plugin) -> None:
    hold, before = plugin.hold(), plugin.host.snapshots()
    plugin.make(hold)
    start_fabric_manager(plugin.host)
    assert active_partitions(plugin.host) == []
    plugin.make(hold)
    assert active_partitions(plugin.host) == [3] and plugin.host.snapshots() == before
    plugin.undo(hold)
    assert active_partitions(plugin.host) == []


def test_after_a_boot_it_is_activated_again_and_one_of_a_released_claim_is_not_this_drivers(plugin: Plugin) -> None:
    hold = plugin.hold()
    plugin.make(hold)
    plugin.host.reboot()
    plugin.start()
    set_partition(plugin.host, 3, active=True)
    plugin.undo(hold)  # recorded in the boot before
    assert active_partitions(plugin.host) == [3]
    set_partition(plugin.host, 3, active=False)
    assert dict(plugin.make(hold).facts)["was"] == "inactive"
    assert active_partitions(plugin.host) == [3]
    plugin.undo(hold)
    assert active_partitions(plugin.host) == []


def test_after_a_boot_a_partition_that_is_active_already_is_another_tools(plugin: Plugin) -> None:
    hold = plugin.hold()
    plugin.make(hold)
    plugin.host.reboot()
    plugin.start()
    set_partition(plugin.host, 3, active=True)
    assert dict(plugin.make(hold).facts)["was"] == "active"


def test_a_gpu_that_is_lent_is_not_asked(plugin: Plugin) -> None:
    hold = plugin.hold()
    for index, gpu in enumerate(plugin.host.state.gpus):
        if gpu.uuid in {gpu_of_hold.uuid for gpu_of_hold in hold.gpus}:
            bind_gpu(plugin.host, index, "vfio-pci")
    before = plugin.host.snapshots()
    plugin.make(hold)
    assert active_partitions(plugin.host) == [3] and plugin.host.snapshots() == before


@pytest.mark.parametrize("change", ["fewer GPUs", "no such ID"])
def test_a_partition_that_is_another_one_now_is_not_activated(plugin: Plugin, change: str) -> None:
    hold = plugin.hold()
    with plugin.host.edit() as state:
        assert state.fabric_manager is not None
        partitions = state.fabric_manager.partitions
        if change == "fewer GPUs":
            partitions[3].gpus = partitions[3].gpus[:1]
        else:
            del partitions[3]
    with pytest.raises(HardwareError, match="offers other partitions now"):
        plugin.effect.before(hold, {})
    record = HoldRecord(HoldState.UNDOING, plugin.boot, Made((("was", "inactive"),)))
    plugin.effect.undo(hold, {hold: record}, plugin.boot)
    assert active_partitions(plugin.host) == []


STEPS = ("fmConnect", "fmGetSupportedFabricPartitions", "fmActivateFabricPartition", "fmDeactivateFabricPartition")


@pytest.mark.parametrize("when", slow_but(["before", "after"], "after"))
@pytest.mark.parametrize("function", STEPS)
@pytest.mark.parametrize("times", slow_but([1, 2, 3, 4], 1))
def test_a_death_in_any_call_is_made_good_by_the_next_attempt(
    plugin: Plugin, function: str, when: str, times: int
) -> None:
    """Of a claim that comes and goes: `times` is in which of the function's calls the process dies."""
    hold, before, deaths = plugin.hold(), plugin.host.snapshots(), 0
    calls = {function: 0}

    def dying(act: object) -> None:
        nonlocal deaths
        while True:
            if calls[function] + 1 == times and not deaths:
                fabric_mishap(plugin.host, function, crash=when, times=1)
            try:
                calls[function] += 1
                act(hold)  # type: ignore[operator]
            except Crash:
                deaths += 1
                fabric_mishap(plugin.host, function)
                plugin.start()
                continue
            fabric_mishap(plugin.host, function)
            return

    for _ in range(2):
        dying(plugin.make)
        assert active_partitions(plugin.host) == [3] and plugin.host.snapshots() == before
        dying(plugin.undo)
        assert active_partitions(plugin.host) == [] and plugin.host.snapshots() == before
        plugin.record = None


def test_a_death_while_persistence_is_off_is_made_good(plugin: Plugin) -> None:
    hold, before = plugin.hold(), plugin.host.snapshots()
    for end in (plugin.make, plugin.undo):
        plugin.record = HoldRecord(HoldState.INTENT, plugin.boot, plugin.effect.before(hold, {}))
        fabric_mishap(plugin.host, "fmActivateFabricPartition", crash="after", times=1)
        real, plugin.driver.set_persistence = plugin.driver.set_persistence, _off_only(plugin.driver)  # type: ignore[method-assign]
        with pytest.raises(Crash):
            plugin.make(hold)
        assert plugin.host.snapshots() != before
        plugin.driver.set_persistence = real  # type: ignore[method-assign]
        end(hold)
        assert plugin.host.snapshots() == before
        plugin.undo(hold)


def _off_only(driver: Driver) -> object:
    """As if the process were dead before it switches persistence on again."""
    real = driver.set_persistence

    def set_persistence(gpu: GpuIdentity, *, on: bool) -> None:
        if not on:
            real(gpu, on=on)

    return set_persistence


FAILURES = [code for code in FmCode if code and code != FmCode.IN_USE]


@pytest.mark.parametrize("code", slow_but(FAILURES, *FAILURES[::5]))
def test_an_activation_that_fails_leaves_the_gpus_as_they_were(plugin: Plugin, code: FmCode) -> None:
    hold, before = plugin.hold(), plugin.host.snapshots()
    fabric_mishap(plugin.host, "fmActivateFabricPartition", code=int(code))
    with pytest.raises(DriverError, match=f"FM_ST_{code.name}"):
        plugin.make(hold)
    plugin.undo(hold)
    assert active_partitions(plugin.host) == [] and plugin.host.snapshots() == before
