"""Persistence mode, as it keeps a GPU from being lent: of nvidia-persistenced, and of the kernel module."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pynvml
import pytest
from support.killed import Killed
from support.mishaps import end_program, open_gpu, run_persistenced
from support.rows import slow_but

from dra_driver.errors import HardwareError
from kubelet_plugin.effects.on_host import OnHost
from kubelet_plugin.effects.vfio import VfioBindings, VfioPatience
from kubelet_plugin.effects.vfio_driver import DriverOfNode, HostSmi, PatientWrites
from kubelet_plugin.facts.hardware import Hardware, NvmlSource
from kubelet_plugin.hardware.calls import NvmlCode
from kubelet_plugin.hardware.driver_programs import DriverPrograms
from kubelet_plugin.hardware.driver_root import find_driver_root
from kubelet_plugin.hardware.mig import MigGpu
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.hardware.vfio import GpuUser, users
from kubelet_plugin.prepare.holds import GpuIdentity, Hold, HoldRecord, HoldState, Made, VfioBinding
from kubelet_plugin.simulation.host import SimulatedHost, create_host
from kubelet_plugin.simulation.nvml import SimulatedNvml
from kubelet_plugin.simulation.vfio import SimulatedKernel

PATIENCE = VfioPatience(users_s=0.1, last_users_s=0.1, write_s=2.0, nodes_s=0.3, return_s=0.3)


class Deadly(HostSmi):
    """The plugin dies after its next change."""

    def set_persistence(self, gpu: GpuIdentity, *, on: bool) -> None:
        super().set_persistence(gpu, on=on)
        raise Killed


class Plugin:
    """One life of the plugin, through the adapters of a real node; nvidia-smi is a process."""

    def __init__(self, host: SimulatedHost, smi: type[HostSmi] = HostSmi) -> None:
        self.host = host
        files = HostFiles(host.root)
        self.hardware = Hardware(files, lambda: NvmlSource(SimulatedNvml(host.root), str(host.driver_root)))
        programs = DriverPrograms(files, lambda: find_driver_root(files))
        self.driver = DriverOfNode(self.hardware, smi(programs, OnHost.simulated(files)))
        kernel = SimulatedKernel(host.root)
        self.bindings = VfioBindings(files, kernel, kernel, self.driver, PATIENCE)
        self.boot_id = files.boot_id()

    def users(self, index: int = 0) -> list[GpuUser]:
        return list(users(HostFiles(self.host.root), {f"nvidia{self.host.state.gpus[index].minor}"}))

    def record(self, index: int = 0, state: HoldState = HoldState.INTENT) -> dict[Hold, HoldRecord]:
        hold = VfioBinding(identity(self.host, index), False)
        return {hold: HoldRecord(state, self.boot_id, self.bindings.before(hold, {}))}

    def lend(self, records: dict[Hold, HoldRecord]) -> dict[Hold, HoldRecord]:
        ((hold, _),) = records.items()
        assert isinstance(hold, VfioBinding)
        return {hold: HoldRecord(HoldState.MADE, self.boot_id, self.bindings.make(hold, records))}

    def take_back(self, records: dict[Hold, HoldRecord]) -> None:
        ((hold, _),) = records.items()
        assert isinstance(hold, VfioBinding)
        self.bindings.undo(hold, records, self.boot_id)


def identity(host: SimulatedHost, index: int = 0) -> GpuIdentity:
    gpu = host.state.gpus[index]
    return GpuIdentity(gpu.uuid, gpu.address)


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    return machine(tmp_path, "l40s")


def machine(folder: Path, profile: str) -> SimulatedHost:
    host = create_host(folder / profile, profile)
    SimulatedKernel(host.root).modprobe("vfio_pci")
    return host


def set_by_nvml(host: SimulatedHost, mode: int) -> None:
    nvml = SimulatedNvml(host.root)
    nvml.nvmlInitWithFlags(0)
    nvml.nvmlDeviceSetPersistenceMode(nvml.nvmlDeviceGetHandleByIndex(0), mode)
    nvml.nvmlShutdown()


def test_nvmls_call_does_not_reach_the_daemon_and_ours_does(host: SimulatedHost) -> None:
    plugin, gpu = Plugin(host), identity(host)
    set_by_nvml(host, 0)
    assert plugin.driver.persistence(gpu) and [user.command for user in plugin.users()] == ["nvidia-persiste"]
    plugin.driver.set_persistence(gpu, on=False)
    assert not plugin.driver.persistence(gpu) and plugin.users() == []
    plugin.driver.set_persistence(gpu, on=True)
    assert plugin.driver.persistence(gpu) and len(plugin.users()) == 1


def test_a_gpu_that_the_daemon_holds_is_lent_and_is_the_daemons_again(host: SimulatedHost) -> None:
    plugin = Plugin(host)
    records = plugin.lend(plugin.record())
    assert host.state.gpus[0].bound_to == "vfio-pci"
    plugin.take_back(records)
    assert (host.state.gpus[0].bound_to, host.state.gpus[0].persistenced) == ("nvidia", True)


def test_so_is_one_that_the_kernel_module_keeps_beside_the_daemon(host: SimulatedHost) -> None:
    """No process shows that: the write to `unbind` would never end."""
    set_by_nvml(host, 1)
    Plugin(host).lend(Plugin(host).record())
    assert host.state.gpus[0].bound_to == "vfio-pci"


def test_without_a_daemon_it_is_the_kernel_modules_mode(host: SimulatedHost) -> None:
    run_persistenced(host, running=False)
    set_by_nvml(host, 1)
    plugin = Plugin(host)
    plugin.take_back(plugin.lend(plugin.record()))
    assert (host.state.gpus[0].persistence_mode, host.state.gpus[0].persistenced) == (1, False)


def test_the_daemons_restart_changes_nothing(host: SimulatedHost) -> None:
    plugin = Plugin(host)
    plugin.driver.set_persistence(identity(host), on=False)
    run_persistenced(host, running=False)
    run_persistenced(host, running=True)
    plugin.lend(plugin.record())
    assert host.state.gpus[0].bound_to == "vfio-pci"


def test_without_nvidia_smi_whoever_holds_the_gpu_is_named(host: SimulatedHost) -> None:
    (host.root / "usr/bin/nvidia-smi").unlink()
    with pytest.raises(HardwareError, match=r"nvidia-persistenced still has it open: run `nvidia-smi -i 0000:"):
        Plugin(host).lend(Plugin(host).record())


def test_where_the_daemon_cannot_open_it_again_the_kernel_module_keeps_it(host: SimulatedHost) -> None:
    plugin = Plugin(host)
    with host.edit() as state:
        state.driver.daemon_outdated = True
    plugin.take_back(plugin.lend(plugin.record()))
    assert (host.state.gpus[0].persistence_mode, host.state.gpus[0].persistenced) == (1, False)
    plugin.lend(plugin.record())
    assert host.state.gpus[0].bound_to == "vfio-pci"


@pytest.mark.parametrize("profile", slow_but(["gh200", "gb200"], "gb200"))
class TestOwnNumaMemory:
    """The GPU's handles end with persistence mode."""

    def test_a_handle_of_before_is_invalid(self, tmp_path: Path, profile: str) -> None:
        host = machine(tmp_path, profile)
        nvml = SimulatedNvml(host.root)
        nvml.nvmlInitWithFlags(0)
        before = nvml.nvmlDeviceGetHandleByIndex(0)
        nvml.nvmlDeviceSetPersistenceMode(before, 0)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            nvml.nvmlDeviceGetUUID(before)
        assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(0)) == host.state.gpus[0].uuid

    def test_the_gpu_is_asked_on_when_its_lending_has_to_wait(self, tmp_path: Path, profile: str) -> None:
        host = machine(tmp_path, profile)
        set_by_nvml(host, 1)
        plugin = Plugin(host)
        before = plugin.hardware.look()
        records = plugin.record()
        open_gpu(SimulatedKernel(host.root), 0, 5000, "python3")
        with pytest.raises(HardwareError, match="python3"):
            plugin.lend(records)
        assert plugin.hardware.look().gpus == before.gpus and plugin.hardware.look().problems == before.problems
        end_program(SimulatedKernel(host.root), 5000)
        plugin.take_back(plugin.lend(records))

    def test_so_it_is_when_an_administrator_switches_it_off(self, tmp_path: Path, profile: str) -> None:
        host = machine(tmp_path, profile)
        plugin, other = Plugin(host), Plugin(host)
        before = plugin.hardware.look()
        other.driver.set_persistence(identity(host), on=False)
        assert plugin.hardware.look().gpus == before.gpus
        plugin.hardware.use(identity(host), lambda nvml: nvml.compute_mode(host.state.gpus[0].uuid))


def test_a_plugin_that_is_killed_in_between_leaves_nothing_undone(host: SimulatedHost) -> None:
    records = Plugin(host).record()
    with pytest.raises(Killed):
        Plugin(host, Deadly).lend(records)
    assert not host.state.gpus[0].persistent and host.state.gpus[0].bound_to == "nvidia"
    lent = Plugin(host).lend(records)
    with pytest.raises(Killed):
        Plugin(host, Deadly).take_back(lent)
    Plugin(host).take_back(lent)
    assert (host.state.gpus[0].bound_to, host.state.gpus[0].persistenced) == ("nvidia", True)


def test_a_plugin_that_gives_up_after_that_restores_the_mode(host: SimulatedHost) -> None:
    """The claim goes before its GPU was ever bound."""
    records = Plugin(host).record()
    with pytest.raises(Killed):
        Plugin(host, Deadly).lend(records)
    Plugin(host).take_back(records)
    assert host.state.gpus[0].persistenced


def test_what_was_before_is_told_by_the_daemon(host: SimulatedHost) -> None:
    def remembered() -> str | None:
        ((_, record),) = Plugin(host).record().items()
        assert isinstance(record.made, Made)
        return record.made.get("persistence")

    assert remembered() == "on"
    Plugin(host).driver.set_persistence(identity(host), on=False)
    assert remembered() == "off"


class StubNvml:
    """Answers of one GPU; `error` comes for its handle."""

    def __init__(self) -> None:
        self.library = self
        self.error: NvmlCode | None = None
        self.mode: tuple[int, int] | None = (0, 0)
        self.persistent = True

    def handle(self, uuid: str) -> str:
        if self.error is not None:
            raise HardwareError("no handle", about=uuid, code=self.error)
        return uuid

    def supported(self, about: str, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    call = described = supported

    def mig(self, uuid: str) -> MigGpu:
        return MigGpu(cast(Any, self), uuid, self.handle(uuid))

    def nvmlDeviceGetMigMode(self, handle: str) -> tuple[int, int] | None:
        return self.mode

    def nvmlDeviceGetPersistenceMode(self, handle: str) -> int:
        return int(self.persistent)

    def nvmlDeviceSetPersistenceMode(self, handle: str, on: int) -> None:
        self.persistent = bool(on)


class StubHardware:
    def __init__(self, nvml: StubNvml) -> None:
        self.nvml = nvml
        self.sessions = 1

    def use(self, gpu: GpuIdentity, work: Callable[[Any], Any]) -> Any:
        return work(self.nvml)

    def without_session(self, work: Callable[[], None]) -> None:
        work()
        self.sessions += 1


class NoSmi:
    def set_persistence(self, gpu: GpuIdentity, *, on: bool) -> None:
        raise HardwareError("no nvidia-smi", about=str(gpu))


class TestAnswersOfNvml:
    GPU = GpuIdentity("GPU-a", "0000:01:00.0")

    @pytest.fixture
    def hardware(self) -> StubHardware:
        return StubHardware(StubNvml())

    @pytest.fixture
    def driver(self, hardware: StubHardware) -> DriverOfNode:
        return DriverOfNode(cast(Any, hardware), cast(Any, NoSmi()))

    def test_a_gpu_is_looked_for_in_a_new_session(self, hardware: StubHardware, driver: DriverOfNode) -> None:
        assert (driver.sees(self.GPU), hardware.sessions) == (True, 2)
        hardware.nvml.error = NvmlCode.NOT_FOUND
        assert not driver.sees(self.GPU)
        hardware.nvml.error = NvmlCode.GPU_IS_LOST
        with pytest.raises(HardwareError, match="no handle"):
            driver.sees(self.GPU)

    def test_mig_mode_counts_as_it_is_now(self, hardware: StubHardware, driver: DriverOfNode) -> None:
        answers = {}
        for mode in ((1, 0), (0, 1), None):
            hardware.nvml.mode = mode
            answers[mode] = driver.mig_enabled(self.GPU)
        assert answers == {(1, 0): True, (0, 1): False, None: False}

    def test_handles_are_new_after_the_kernel_module_changed_persistence(
        self, hardware: StubHardware, driver: DriverOfNode
    ) -> None:
        driver.set_persistence(self.GPU, on=False)
        assert not hardware.nvml.persistent
        assert hardware.sessions == 2


def test_the_write_after_one_that_hung_is_for_the_next_attempt() -> None:
    class Slow:
        def __init__(self) -> None:
            self.goes_on = threading.Event()
            self.written: list[str] = []

        def write(self, host_path: str, text: str) -> None:
            self.goes_on.wait()
            self.written.append(text)

    slow, gpu = Slow(), GpuIdentity("GPU-a", "0000:01:00.0")
    writes = PatientWrites(slow, 0.05)
    with pytest.raises(HardwareError, match="has not ended a write"):
        writes.order(gpu, "a", "x", "first")
    writes._patience_s = 10.0
    threading.Timer(0.05, slow.goes_on.set).start()
    with pytest.raises(HardwareError, match="has just ended an earlier write") as caught:
        writes.order(gpu, "a", "x", "second")
    assert caught.value.retry_after_s == 0.5
    assert slow.written == ["first\n"]
    writes.order(gpu, "a", "x", "third")
    assert slow.written == ["first\n", "third\n"]
