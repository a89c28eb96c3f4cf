"""A GPU is lent to a virtual machine and comes back as it was, whatever happens on the way."""

import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.killed import Killed
from support.mishaps import (
    bind_gpu,
    configure,
    end_program,
    load_driver,
    open_gpu,
    open_vfio,
    set_persistence,
    show_console,
    unload_driver,
)
from support.mps import until
from support.rows import slow_but

from dra_driver.errors import HardwareError
from kubelet_plugin.effects.vfio import VfioBindings, VfioPatience
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.hardware.vfio import driver_override
from kubelet_plugin.prepare.execute import _OUT_OF_REACH
from kubelet_plugin.prepare.holds import GpuIdentity, Hold, HoldRecord, HoldState, Made, VfioBinding
from kubelet_plugin.simulation.host import SimulatedHost, create_host
from kubelet_plugin.simulation.state import Function, NodeState
from kubelet_plugin.simulation.vfio import SimulatedKernel

IMPATIENT = VfioPatience(users_s=0.3, last_users_s=0.1, write_s=1.0, nodes_s=0.3, return_s=0.3)


class Driver:
    """The NVIDIA driver of the simulated node, as `DriverOfNode` has it."""

    def __init__(self, host: SimulatedHost, kernel: "Acting") -> None:
        self.host = host
        self.kernel = kernel
        self.away = 0

    def persistence(self, gpu: GpuIdentity) -> bool:
        return self.host.state.gpu(gpu.uuid).persistent

    def set_persistence(self, gpu: GpuIdentity, *, on: bool) -> None:
        index = [listed.uuid for listed in self.host.state.gpus].index(gpu.uuid)
        self.kernel.act(lambda: set_persistence(self.kernel.real, index, on=on))

    def mig_enabled(self, gpu: GpuIdentity) -> bool:
        mig = self.host.state.gpu(gpu.uuid).mig
        return mig is not None and bool(mig.current)

    def sees(self, gpu: GpuIdentity) -> bool:
        return self.host.state.gpu(gpu.uuid).bound_to == "nvidia"

    def without_nvml(self, work: Callable[[], None]) -> None:
        self.away += 1
        work()


class Acting:
    """The kernel, for a plugin that is killed before or after its n-th act; None: never."""

    def __init__(self, kernel: SimulatedKernel, killed_at: int | None = None, *, after: bool = False) -> None:
        self.real = kernel
        self.acts = 0
        self.written: list[tuple[str, str]] = []
        self._killed_at = killed_at
        self._after = after

    def act(self, what: Callable[[], None]) -> None:
        self.acts += 1
        if self.acts == self._killed_at and not self._after:
            raise Killed
        what()
        if self.acts == self._killed_at:
            raise Killed

    def write(self, host_path: str, text: str) -> None:
        self.written.append((host_path.removeprefix("/sys/bus/pci/"), text))
        self.act(lambda: self.real.write(host_path, text))

    def modprobe(self, module: str) -> None:
        self.act(lambda: self.real.modprobe(module))


class Plugin:
    """One life of the plugin; the journal is that of the node."""

    def __init__(self, host: SimulatedHost, journal: "Journal", kernel: Acting | None = None) -> None:
        self.kernel = kernel or Acting(SimulatedKernel(host.root))
        self.driver = Driver(host, self.kernel)
        self.files = HostFiles(host.root)
        self.effect = VfioBindings(self.files, self.kernel, self.kernel, self.driver, IMPATIENT)
        self.journal = journal

    def lend(self, hold: VfioBinding) -> Made:
        if hold not in self.journal:
            self.journal.intent(hold, self.effect.before(hold, self.journal), self.files.boot_id())
        elif self.journal[hold].boot_id != self.files.boot_id():
            self.journal.intent(hold, self.journal[hold].made, self.files.boot_id())
        made = self.effect.make(hold, self.journal)
        self.journal.made(hold, made)
        return made

    def take_back(self, hold: VfioBinding) -> None:
        if hold in self.journal:
            self.effect.undo(hold, self.journal, self.files.boot_id())
            del self.journal[hold]


class Journal(dict[Hold, HoldRecord]):
    def intent(self, hold: Hold, made: Made, boot_id: str) -> None:
        self[hold] = HoldRecord(HoldState.INTENT, boot_id, made)

    def made(self, hold: Hold, made: Made) -> None:
        self[hold] = HoldRecord(HoldState.MADE, self[hold].boot_id, made)


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    host = create_host(tmp_path, "l40s")
    SimulatedKernel(tmp_path).modprobe("vfio_pci")
    return host


@pytest.fixture
def kernel(host: SimulatedHost) -> SimulatedKernel:
    return SimulatedKernel(host.root)


@pytest.fixture
def plugin(host: SimulatedHost) -> Plugin:
    return Plugin(host, Journal())


def binding(host: SimulatedHost, index: int = 0, *, iommufd: bool = False) -> VfioBinding:
    gpu = host.state.gpus[index]
    return VfioBinding(GpuIdentity(gpu.uuid, gpu.address), iommufd)


def with_audio(host: SimulatedHost) -> str:
    gpu = host.state.gpus[0]
    address = gpu.address[:-1] + "1"
    configure(SimulatedKernel(host.root), functions=[Function(address=address, beside=gpu.address)])
    return address


def everything(host: SimulatedHost) -> tuple[Mapping[str, str], NodeState]:
    """The node to the last file, without the lock that writers of the state take."""

    def entries() -> Iterator[tuple[str, str]]:
        start = len(str(host.root)) + 1
        for top in ("sys", "dev", "proc", "run", "lib"):
            for folder, folders, files in os.walk(host.root / top):
                for place in (f"{folder}/{name}" for name in (*folders, *files)):
                    yield place[start:], described(place)

    def described(place: str) -> str:
        try:
            return f"link to {os.readlink(place)}"  # noqa: PTH115 - a node has hundreds, and this is asked hundreds of times
        except OSError:
            return "folder" if os.path.isdir(place) else Path(place).read_text(encoding="utf-8")  # noqa: PTH112

    return {name: text for name, text in entries() if name != "dev/vfio/devices"}, host.state.model_copy(deep=True)


type Step = tuple[str, int, int | None, bool]


def everything_lent(host: SimulatedHost) -> object:
    """All that lending changes of a node: bindings, orders about them, persistence mode, and device nodes."""
    files = HostFiles(host.root)
    functions = [*host.state.gpus, *host.state.passthrough.functions]
    return (
        [(files.pci(function.address), driver_override(files, function.address)) for function in functions],
        [(gpu.bound_to, gpu.persistent) for gpu in host.state.gpus],
        sorted(name for name in files.names("/dev/vfio") if name.isdigit()),
    )


class TestLending:
    def test_a_group_is_lent_to_a_machine_that_wants_the_group(self, host: SimulatedHost, plugin: Plugin) -> None:
        hold = binding(host)
        made = plugin.lend(hold)
        pci = plugin.files.pci(hold.gpu.pci_bus_id)
        assert pci.driver == made["driver"] == "vfio-pci"
        assert made["group"] == str(pci.iommu_group)
        assert (made["node"], made["api"]) == (f"/dev/vfio/{pci.iommu_group}", "/dev/vfio/vfio")
        for path in (made["node"], made["api"]):
            assert plugin.files.device_node(path) is not None

    def test_a_device_is_lent_to_a_machine_that_wants_iommufd(self, host: SimulatedHost, plugin: Plugin) -> None:
        first, second = (plugin.lend(binding(host, index, iommufd=True)) for index in (0, 1))
        assert first["api"] == second["api"] == "/dev/iommu"
        assert {first["node"], second["node"]} == {"/dev/vfio/devices/vfio0", "/dev/vfio/devices/vfio1"}

    @pytest.mark.parametrize("missing", ["iommufd", "cdev"])
    def test_without_iommufd_on_the_node_it_is_the_group(
        self, host: SimulatedHost, plugin: Plugin, kernel: SimulatedKernel, missing: str
    ) -> None:
        configure(kernel, **{missing: False})
        assert plugin.lend(binding(host, iommufd=True))["api"] == "/dev/vfio/vfio"

    def test_audio_of_the_board_goes_along_and_comes_back(self, host: SimulatedHost, plugin: Plugin) -> None:
        audio = with_audio(host)
        start = everything(host)
        plugin.lend(binding(host))
        assert plugin.files.pci(audio).driver == "vfio-pci"
        plugin.take_back(binding(host))
        assert plugin.files.pci(audio).driver == "snd_hda_intel"
        assert everything(host) == start

    def test_it_is_meant_for_vfio_before_it_is_free(self, host: SimulatedHost, plugin: Plugin) -> None:
        """A driver that is loaded just then takes what is free and meant for nobody."""
        address = binding(host).gpu.pci_bus_id
        plugin.lend(binding(host))
        assert plugin.kernel.written == [
            (f"devices/{address}/driver_override", "vfio-pci\n"),
            (f"devices/{address}/driver/unbind", f"{address}\n"),
            ("drivers/vfio-pci/bind", f"{address}\n"),
        ]

    def test_so_is_what_goes_along(self, host: SimulatedHost, plugin: Plugin) -> None:
        audio = with_audio(host)
        plugin.lend(binding(host))
        assert [write for write in plugin.kernel.written if audio in write[0] or audio in write[1]] == [
            (f"devices/{audio}/driver_override", "vfio-pci\n"),
            (f"devices/{audio}/driver/unbind", f"{audio}\n"),
            ("drivers/vfio-pci/bind", f"{audio}\n"),
        ]

    def test_nothing_is_changed_twice(self, host: SimulatedHost, plugin: Plugin) -> None:
        with_audio(host)
        made = plugin.lend(binding(host))
        acts = plugin.kernel.acts
        assert plugin.lend(binding(host)) == made
        assert plugin.kernel.acts == acts

    def test_our_own_nvml_is_away_while_the_kernel_lets_go(self, host: SimulatedHost, plugin: Plugin) -> None:
        plugin.lend(binding(host))
        assert plugin.driver.away == 1

    def test_the_driver_made_for_a_gpu_goes_before_the_one_for_all(
        self, tmp_path: Path, kernel: SimulatedKernel
    ) -> None:
        host = create_host(tmp_path / "grace", "gh200")
        configure(SimulatedKernel(host.root), modules=["vfio_pci", "nvgrace_gpu_vfio_pci"])
        assert Plugin(host, Journal()).lend(binding(host))["driver"] == "nvgrace_gpu_vfio_pci"

    def test_a_module_that_is_not_loaded_is_loaded(self, tmp_path: Path) -> None:
        host = create_host(tmp_path, "t4")
        Plugin(host, Journal()).lend(binding(host))
        assert host.state.passthrough.loaded == ["vfio_pci"]


class TestComingBack:
    @pytest.mark.parametrize("persistence", [True, False])
    def test_the_node_is_as_before(self, host: SimulatedHost, plugin: Plugin, persistence: bool) -> None:
        set_persistence(plugin.kernel.real, 0, on=persistence)
        start = everything(host)
        plugin.lend(binding(host))
        assert everything(host) != start
        plugin.take_back(binding(host))
        assert everything(host) == start

    def test_an_order_about_drivers_that_was_there_is_there_again(self, host: SimulatedHost, plugin: Plugin) -> None:
        address = binding(host).gpu.pci_bus_id
        plugin.kernel.real.write(f"/sys/bus/pci/devices/{address}/driver_override", "nvidia\n")
        plugin.lend(binding(host))
        plugin.take_back(binding(host))
        assert driver_override(plugin.files, address) == "nvidia"

    def test_a_machine_that_still_runs_keeps_it(
        self, host: SimulatedHost, plugin: Plugin, kernel: SimulatedKernel
    ) -> None:
        start = everything(host)
        made = plugin.lend(binding(host))
        open_vfio(kernel, made["group"], 4711, "qemu-system-x86_64")
        with pytest.raises(HardwareError, match=r"still in use by qemu-system-x86 \(4711\)") as caught:
            plugin.take_back(binding(host))
        assert caught.value.retry_after_s is not None
        assert plugin.files.pci(binding(host).gpu.pci_bus_id).driver == "vfio-pci"
        end_program(kernel, 4711)
        plugin.take_back(binding(host))
        assert everything(host) == start

    def test_a_driver_that_is_not_loaded_finds_it_free(self, host: SimulatedHost, plugin: Plugin) -> None:
        plugin.lend(binding(host))
        unload_driver(host)
        plugin.take_back(binding(host))
        assert plugin.files.pci(binding(host).gpu.pci_bus_id).driver is None
        load_driver(host)
        assert plugin.files.pci(binding(host).gpu.pci_bus_id).driver == "nvidia"

    def test_a_gpu_that_nvml_does_not_see_does_not_keep_the_claim(self, host: SimulatedHost, plugin: Plugin) -> None:
        set_persistence(plugin.kernel.real, 0, on=False)
        plugin.lend(binding(host))
        plugin.driver.sees = lambda gpu: False
        plugin.take_back(binding(host))
        assert not plugin.journal

    def test_nor_does_one_whose_persistence_mode_is_still_to_be_set(self, host: SimulatedHost, plugin: Plugin) -> None:
        """It is left behind, and its mode is set when NVML sees it."""
        plugin.lend(binding(host))
        plugin.driver.sees = lambda gpu: False
        with pytest.raises(HardwareError, match="persistence mode cannot be switched on again") as caught:
            plugin.take_back(binding(host))
        assert caught.value.code in _OUT_OF_REACH
        del plugin.driver.sees
        plugin.take_back(binding(host))
        assert host.state.gpus[0].persistent

    def test_nvml_that_fails_for_a_moment_is_asked_again(
        self, host: SimulatedHost, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plugin.lend(binding(host))
        answers = iter([HardwareError("not yet", about="GPU"), True])

        def sees(gpu: GpuIdentity) -> bool:
            answer = next(answers)
            if isinstance(answer, HardwareError):
                raise answer
            return answer

        monkeypatch.setattr(plugin.driver, "sees", sees)
        plugin.take_back(binding(host))
        assert list(answers) == []

    def test_what_an_administrator_gave_to_another_driver_is_left_alone(
        self, host: SimulatedHost, plugin: Plugin
    ) -> None:
        plugin.lend(binding(host))
        bind_gpu(host, 0, "pci-stub")
        plugin.take_back(binding(host))
        assert plugin.files.pci(binding(host).gpu.pci_bus_id).driver == "pci-stub"


class TestRefusals:
    def refused(self, host: SimulatedHost, plugin: Plugin, message: str) -> HardwareError:
        start = everything(host)
        with pytest.raises(HardwareError, match=message) as caught:
            plugin.lend(binding(host))
        assert everything(host) == start
        assert not plugin.journal
        assert caught.value.about == str(binding(host).gpu)
        return caught.value

    def test_without_an_iommu(self, host: SimulatedHost, plugin: Plugin, kernel: SimulatedKernel) -> None:
        configure(kernel, iommu=False)
        self.refused(host, plugin, "IOMMU is off: turn on VT-d or AMD-Vi in the firmware")

    def test_beside_a_device_that_the_node_uses(
        self, host: SimulatedHost, plugin: Plugin, kernel: SimulatedKernel
    ) -> None:
        gpu = host.state.gpus[0]
        other = Function(
            address="0000:e1:00.0", beside=gpu.address, vendor=0x15B3, pci_class=0x020000, home="mlx5_core"
        )
        configure(kernel, functions=[other])
        self.refused(host, plugin, r"other devices .* 0000:e1:00\.0 \(mlx5_core\); turn on ACS")

    def test_beside_another_gpu_whoever_has_it(
        self, host: SimulatedHost, plugin: Plugin, kernel: SimulatedKernel
    ) -> None:
        first, second = host.state.gpus[:2]
        configure(kernel, groups={first.address: 7, second.address: 7})
        bind_gpu(host, 1, "vfio-pci")
        self.refused(host, plugin, f"{second.address} .vfio-pci.")

    def test_with_virtual_gpus(self, host: SimulatedHost, plugin: Plugin, kernel: SimulatedKernel) -> None:
        configure(kernel, virtual_functions={host.state.gpus[0].address: 4})
        self.refused(host, plugin, "4 virtual functions")

    def test_that_shows_the_console(self, host: SimulatedHost, plugin: Plugin, kernel: SimulatedKernel) -> None:
        """The kernel itself has the GPU open then, and unbinding would never end."""
        show_console(kernel, host.state.gpus[0].address)
        self.refused(host, plugin, r"console is on it \(fb0\): boot with nvidia-drm\.fbdev=0, or .*/vtcon1/bind`")
        show_console(kernel, host.state.gpus[0].address, bound=False)
        assert plugin.lend(binding(host))["driver"] == "vfio-pci"

    def test_that_shows_the_firmwares_console(self, host: SimulatedHost, plugin: Plugin) -> None:
        address = host.state.gpus[0].address
        buffer = host.path("/sys/devices/platform/efi-framebuffer.0")
        buffer.mkdir(parents=True)
        (graphics := host.path("/sys/class/graphics/fb0")).mkdir(parents=True)
        (graphics / "device").symlink_to("../../../devices/platform/efi-framebuffer.0")
        (host.path("/sys/bus/pci/devices") / address / "boot_vga").write_text("1\n")
        self.refused(host, plugin, "boot with video=efifb:off, .* /sys/bus/platform/drivers/efi-framebuffer/unbind`")

    def test_of_a_gpu_that_is_bound_to_vfio_already(self, host: SimulatedHost, plugin: Plugin) -> None:
        bind_gpu(host, 0, "vfio-pci")
        self.refused(host, plugin, "bound to vfio-pci, and not by this driver")

    def test_of_a_gpu_without_driver(self, host: SimulatedHost, plugin: Plugin) -> None:
        bind_gpu(host, 0, None)
        self.refused(host, plugin, "has no driver")

    def test_of_another_gpu_at_its_place(self, host: SimulatedHost, plugin: Plugin) -> None:
        first, second = host.state.gpus[:2]
        wrong = VfioBinding(GpuIdentity(first.uuid, second.address), False)
        with pytest.raises(HardwareError, match=f"{second.uuid} is at this PCI address now"):
            plugin.lend(wrong)

    def test_in_mig_mode(self, tmp_path: Path) -> None:
        host = create_host(tmp_path, "dgx-a100-40", gpus=2)
        host.set_mig(0, 1)
        self.refused(host, Plugin(host, Journal()), "MIG mode")

    def test_with_mig_instances(self, tmp_path: Path) -> None:
        host = create_host(tmp_path, "dgx-a100-40", gpus=2)
        host.set_mig(0, 1)
        host.make_instance(0, "1g.5gb")
        self.refused(host, Plugin(host, Journal()), "it has MIG instances, which would be lost")

    def test_of_what_has_changed_since_the_intent(
        self, host: SimulatedHost, plugin: Plugin, kernel: SimulatedKernel
    ) -> None:
        hold = binding(host)
        plugin.journal.intent(hold, plugin.effect.before(hold, plugin.journal), plugin.files.boot_id())
        beside = host.state.gpus[0].address
        other = Function(address="0000:e1:00.0", beside=beside, vendor=0x15B3, pci_class=0x020000, home="mlx5_core")
        configure(kernel, functions=[other])
        start = everything(host)
        with pytest.raises(HardwareError, match="turn on ACS"):
            plugin.lend(hold)
        assert everything(host) == start

    def test_without_its_device_node(
        self, host: SimulatedHost, plugin: Plugin, kernel: SimulatedKernel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start = everything(host)
        bind = kernel.write

        def without_udev(host_path: str, text: str) -> None:
            bind(host_path, text)
            for node in host.path("/dev/vfio").glob("[0-9]*"):
                node.unlink()

        monkeypatch.setattr(plugin.kernel.real, "write", without_udev)
        with pytest.raises(HardwareError, match=r"bound to vfio-pci, but there is no /dev/vfio/.*is udev running"):
            plugin.lend(binding(host))
        monkeypatch.undo()
        plugin.take_back(binding(host))
        assert everything(host) == start

    def test_whose_device_node_is_made_a_moment_later(
        self, host: SimulatedHost, plugin: Plugin, kernel: SimulatedKernel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bind, folder = kernel.write, host.path("/dev/vfio")
        late: list[Path] = []

        def slow_udev(host_path: str, text: str) -> None:
            bind(host_path, text)
            for node in folder.glob("[0-9]*"):
                late.append(node.rename(folder / f"late-{node.name}"))
                threading.Timer(0.1, late[-1].rename, (node,)).start()

        monkeypatch.setattr(plugin.kernel.real, "write", slow_udev)
        made = plugin.lend(binding(host))
        assert late and made["node"] == f"/dev/vfio/{made['group']}"

    @pytest.mark.parametrize(("driver", "words"), [("pci-stub", "pci-stub"), (None, "no driver")])
    def test_that_the_kernel_gives_to_another_driver(
        self, host: SimulatedHost, plugin: Plugin, monkeypatch: pytest.MonkeyPatch, driver: str | None, words: str
    ) -> None:
        address, pci = binding(host).gpu.pci_bus_id, plugin.files.pci
        bound = plugin.kernel.write

        def write(host_path: str, text: str) -> None:
            bound(host_path, text)
            if host_path.endswith("/bind"):
                monkeypatch.setattr(plugin.files, "pci", lambda place: replace(pci(place), driver=driver))

        monkeypatch.setattr(plugin.kernel, "write", write)
        with pytest.raises(HardwareError, match=f"{address} could not be bound to vfio-pci: it is bound to {words};"):
            plugin.lend(binding(host))

    def test_whose_module_drives_no_device(
        self, host: SimulatedHost, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("kubelet_plugin.effects.vfio.driver_of", lambda host, module: None)
        with pytest.raises(HardwareError, match="the kernel module vfio_pci is loaded and drives no PCI device"):
            plugin.lend(binding(host))
        assert plugin.files.pci(binding(host).gpu.pci_bus_id).driver == "nvidia"

    def test_all_that_is_wrong_is_said_at_once(
        self, host: SimulatedHost, plugin: Plugin, kernel: SimulatedKernel
    ) -> None:
        configure(kernel, iommu=False, virtual_functions={host.state.gpus[0].address: 1})
        self.refused(host, plugin, "IOMMU is off.*; 1 virtual functions")

    def test_without_the_module(self, tmp_path: Path) -> None:
        host = create_host(tmp_path, "t4")
        configure(SimulatedKernel(tmp_path), modules=[])
        start = everything(host)
        plugin = Plugin(host, Journal())
        with pytest.raises(HardwareError, match=r"vfio_pci cannot be loaded.*install the package"):
            plugin.lend(binding(host))
        plugin.take_back(binding(host))
        assert everything(host) == start


class TestUsers:
    def test_programs_are_waited_for(self, host: SimulatedHost, plugin: Plugin, kernel: SimulatedKernel) -> None:
        open_gpu(kernel, 0, 1234, "python3")
        threading.Timer(0.1, end_program, (kernel, 1234)).start()
        assert plugin.lend(binding(host))["driver"] == "vfio-pci"

    def test_this_process_has_it_open_until_its_own_session_is_away(
        self, host: SimulatedHost, plugin: Plugin, kernel: SimulatedKernel
    ) -> None:
        open_gpu(kernel, 0, 55, "gpu-dra-kubelet")
        (host.root / "proc" / "self").symlink_to("55")

        def away(work: Callable[[], None]) -> None:
            end_program(kernel, 55)
            work()

        plugin.driver.without_nvml = away
        assert plugin.lend(binding(host))["driver"] == "vfio-pci"

    def test_programs_that_stay_are_named_and_the_gpu_stays_theirs(
        self, host: SimulatedHost, plugin: Plugin, kernel: SimulatedKernel
    ) -> None:
        start = everything(host)
        open_gpu(kernel, 0, 1234, "python3")
        with pytest.raises(HardwareError, match=r"still in use by python3 \(1234\)") as caught:
            plugin.lend(binding(host))
        assert caught.value.retry_after_s is not None
        assert plugin.driver.away == 0, "NVML must not go away, for all other GPUs, while somebody is waited for"
        assert plugin.files.pci(binding(host).gpu.pci_bus_id).driver == "nvidia"
        end_program(kernel, 1234)
        plugin.take_back(binding(host))
        assert everything(host) == start

    def test_a_program_that_comes_while_nvml_goes_away_keeps_the_gpu(
        self, host: SimulatedHost, plugin: Plugin, kernel: SimulatedKernel
    ) -> None:
        def away(work: Callable[[], None]) -> None:
            open_gpu(kernel, 0, 1234, "python3")
            work()

        plugin.driver.without_nvml = away
        with pytest.raises(HardwareError, match=r"still in use by python3 \(1234\)"):
            plugin.lend(binding(host))
        assert plugin.kernel.written == []

    def test_programs_are_named_in_one_order(
        self, host: SimulatedHost, plugin: Plugin, kernel: SimulatedKernel
    ) -> None:
        for process in (1234, 99, 500):
            open_gpu(kernel, 0, process, "python3")
        with pytest.raises(HardwareError, match=r"python3 \(99\), python3 \(500\), python3 \(1234\)"):
            plugin.lend(binding(host))

    def test_users_of_other_gpus_do_no_harm(self, host: SimulatedHost, plugin: Plugin, kernel: SimulatedKernel) -> None:
        open_gpu(kernel, 1, 1234, "python3")
        assert plugin.lend(binding(host))["driver"] == "vfio-pci"

    def test_a_persistence_daemon_out_of_reach_is_named(self, host: SimulatedHost, plugin: Plugin) -> None:
        plugin.driver.set_persistence = lambda gpu, on: None
        with pytest.raises(HardwareError, match="nvidia-persistenced still has it open"):
            plugin.lend(binding(host))


class TestKernel:
    def test_a_refused_write_is_reported_and_can_be_tried_again(
        self, host: SimulatedHost, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bind = plugin.kernel.real.write

        def refuse_once(_path: str, _text: str) -> None:
            monkeypatch.setattr(plugin.kernel.real, "write", bind)
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

        start = everything(host)
        for number in range(3):
            monkeypatch.setattr(plugin.kernel.real, "write", refuse_once)
            with pytest.raises(HardwareError, match=r"kernel refused a write .*Invalid argument"):
                plugin.lend(binding(host, number))
        for number in range(3):
            assert plugin.lend(binding(host, number))["driver"] == "vfio-pci"
            plugin.take_back(binding(host, number))
        assert everything(host) == start

    def test_a_write_that_hangs_is_left_alone_and_nothing_else_is_written_meanwhile(
        self, host: SimulatedHost, kernel: SimulatedKernel
    ) -> None:
        start = everything(host)
        hanging = Hanging(kernel)
        plugin = Plugin(host, Journal(), Acting(hanging))
        with pytest.raises(HardwareError, match="has not ended a write for 1 s"):
            plugin.lend(binding(host))
        with pytest.raises(HardwareError, match="still does not end a write"):
            plugin.lend(binding(host))
        assert hanging.begun == 1
        hanging.go_on.set()
        until(lambda: plugin.files.pci(binding(host).gpu.pci_bus_id).driver is None)
        assert lend_patiently(plugin, binding(host))["driver"] == "vfio-pci"
        plugin.take_back(binding(host))
        assert everything(host) == start


class Hanging(SimulatedKernel):
    """A kernel that does not end an unbinding until it may."""

    def __init__(self, kernel: SimulatedKernel) -> None:
        super().__init__(kernel.root)
        self.go_on = threading.Event()
        self.begun = 0

    def write(self, host_path: str, text: str) -> None:
        if host_path.endswith("/unbind"):
            self.begun += 1
            self.go_on.wait(30)
        super().write(host_path, text)


def lend_patiently(plugin: Plugin, hold: VfioBinding) -> Made:
    for _ in range(5):
        try:
            return plugin.lend(hold)
        except HardwareError as error:
            assert "just ended an earlier write" in str(error)
    raise AssertionError("never")


KILLS = [*((number, False) for number in range(1, 8)), (7, True)]
"""Before each act, which is after the one before, and after the last."""


class TestCrashes:
    """Killed before or after any act, the next life of the plugin makes it so, or takes it back without a trace."""

    @pytest.fixture
    def start(self, host: SimulatedHost) -> tuple[Mapping[str, str], NodeState]:
        with_audio(host)
        return everything(host)

    def test_these_are_all_acts_there_are(self, host: SimulatedHost, plugin: Plugin) -> None:
        with_audio(host)
        plugin.lend(binding(host))
        lending = plugin.kernel.acts
        plugin.take_back(binding(host))
        assert (lending, plugin.kernel.acts - lending) == (7, 7)

    @pytest.mark.parametrize(("number", "after"), KILLS)
    @pytest.mark.parametrize("then", ["make", "undo", *slow_but(["make after a boot", "undo after a boot"])])
    def test_while_lending(
        self, host: SimulatedHost, start: tuple[Mapping[str, str], NodeState], number: int, after: bool, then: str
    ) -> None:
        journal = Journal()
        kernel = SimulatedKernel(host.root)
        with pytest.raises(Killed):
            Plugin(host, journal, Acting(kernel, number, after=after)).lend(binding(host))
        if "boot" in then:
            host.reboot()
            start = self.rebooted(host)
        following = Plugin(host, journal)
        if then.startswith("make"):
            assert following.lend(binding(host))["driver"] == "vfio-pci"
            assert following.files.pci(binding(host).gpu.pci_bus_id[:-1] + "1").driver == "vfio-pci"
        following.take_back(binding(host))
        kernel.modprobe("vfio_pci")
        assert everything(host) == start

    @pytest.mark.parametrize(("number", "after"), KILLS)
    @pytest.mark.parametrize("then", ["undo", "make", *slow_but(["undo after a boot"])])
    def test_while_taking_back(
        self, host: SimulatedHost, start: tuple[Mapping[str, str], NodeState], number: int, after: bool, then: str
    ) -> None:
        journal = Journal()
        kernel = SimulatedKernel(host.root)
        Plugin(host, journal).lend(binding(host))
        with pytest.raises(Killed):
            Plugin(host, journal, Acting(kernel, number, after=after)).take_back(binding(host))
        if "boot" in then:
            host.reboot()
            start = self.rebooted(host)
        following = Plugin(host, journal)
        if then == "make":
            assert following.lend(binding(host))["driver"] == "vfio-pci"
        following.take_back(binding(host))
        assert everything(host) == start

    def rebooted(self, host: SimulatedHost) -> tuple[Mapping[str, str], NodeState]:
        SimulatedKernel(host.root).modprobe("vfio_pci")
        return everything(host)


class TestLaw:
    """After any lives of the plugin and its node, what no claim has is as it was at the start."""

    STEPS = st.lists(
        st.tuples(
            st.sampled_from(["lend", "take back", "boot", "reload the driver", "let a program use it"]),
            st.integers(0, 1),
            st.none() | st.integers(1, 7),
            st.booleans(),
        ),
        max_size=8,
    )

    @given(steps=STEPS)
    @settings(max_examples=25)
    def test_nothing_is_left(self, tmp_path_factory: pytest.TempPathFactory, steps: list[Step]) -> None:
        host = create_host(tmp_path_factory.mktemp("law"), "l40s", gpus=2)
        with_audio(host)
        start = everything_lent(host)
        journal = Journal()
        for what, index, killed_at, after in steps:
            plugin = Plugin(host, journal, Acting(SimulatedKernel(host.root), killed_at, after=after))
            with suppress(Killed, HardwareError):
                self.do(what, index, host, plugin)
        kernel = SimulatedKernel(host.root)
        end_program(kernel, 4711)
        for hold in list(journal):
            assert isinstance(hold, VfioBinding)
            Plugin(host, journal).take_back(hold)
        assert everything_lent(host) == start

    def do(self, what: str, index: int, host: SimulatedHost, plugin: Plugin) -> None:
        match what:
            case "lend":
                plugin.lend(binding(host, index))
            case "take back":
                plugin.take_back(binding(host, index))
            case "boot":
                host.reboot()
            case "reload the driver":
                unload_driver(host)
                load_driver(host)
            case "let a program use it":
                end_program(plugin.kernel.real, 4711)
                if host.state.gpus[index].bound_to == "nvidia":
                    open_gpu(plugin.kernel.real, index, 4711, "python3")


class TestBoots:
    def test_a_boot_gives_it_back_and_a_claim_that_stands_gets_it_again(
        self, host: SimulatedHost, plugin: Plugin
    ) -> None:
        plugin.lend(binding(host))
        host.reboot()
        assert plugin.files.pci(binding(host).gpu.pci_bus_id).driver == "nvidia"
        assert Plugin(host, plugin.journal).lend(binding(host))["driver"] == "vfio-pci"

    def test_what_an_administrator_binds_at_boot_is_not_taken_for_ours(
        self, host: SimulatedHost, plugin: Plugin
    ) -> None:
        plugin.lend(binding(host))
        host.reboot()
        bind_gpu(host, 0, "vfio-pci")
        following = Plugin(host, plugin.journal)
        with pytest.raises(HardwareError, match="bound to vfio-pci, and not by this driver"):
            following.lend(binding(host))
        following.take_back(binding(host))
        assert following.files.pci(binding(host).gpu.pci_bus_id).driver == "vfio-pci"

    def test_and_not_taken_back_for_a_claim_of_before(self, host: SimulatedHost, plugin: Plugin) -> None:
        """As tools do it that keep orders about drivers over boots."""
        plugin.lend(binding(host))
        host.reboot()
        kernel = SimulatedKernel(host.root)
        kernel.modprobe("vfio_pci")
        kernel.write(f"/sys/bus/pci/devices/{binding(host).gpu.pci_bus_id}/driver_override", "vfio-pci\n")
        bind_gpu(host, 0, "vfio-pci")
        following = Plugin(host, plugin.journal)
        following.take_back(binding(host))
        assert following.files.pci(binding(host).gpu.pci_bus_id).driver == "vfio-pci"


ERRNOS = (errno.ENOENT, errno.EBUSY, errno.EIO, errno.EACCES, errno.ENODEV)
CODES = (6, 15, 999)


class Faulty(Acting):
    """The act `number` fails, once or as often as it comes until all is well. `done`: what was asked for is done, and
    refused all the same."""

    def __init__(self, kernel: SimulatedKernel) -> None:
        super().__init__(kernel)
        self.begin(None)

    def begin(self, error: Exception | None, number: int = 0, *, once: bool = True, done: bool = False) -> None:
        self.error, self.number, self.once, self.done = error, number, once, done
        self.places: list[str] = []

    def check(self, place: str, what: Callable[[], None]) -> None:
        self.places.append(place)
        fails = len(self.places) == self.number or (not self.once and place in self.places[self.number - 1 : -1][:1])
        if self.error is None or not fails:
            what()
            return
        if self.done:
            what()
        raise self.error

    def write(self, host_path: str, text: str) -> None:
        self.check(host_path, lambda: self.real.write(host_path, text))

    def act(self, what: Callable[[], None]) -> None:
        self.check("persistence", what)


class Unsure(Driver):
    """The driver may also fail to say whether it sees a GPU."""

    def sees(self, gpu: GpuIdentity) -> bool:
        assert isinstance(self.kernel, Faulty)
        self.kernel.check("sees", lambda: None)
        return super().sees(gpu)


def one_life(host: SimulatedHost, kernel: Faulty) -> tuple[object, Journal]:
    """A claim comes and goes while something is wrong, as `kubelet_plugin.prepare.execute` does it; then all is well,
    and what was left is taken back. Returns the hardware as it is then, and the journal."""
    plugin = Plugin(host, Journal(), kernel)
    plugin.effect = VfioBindings(plugin.files, kernel, kernel, Unsure(host, kernel), replace(IMPATIENT, return_s=0.01))
    with suppress(HardwareError):
        plugin.lend(binding(host))
    with suppress(HardwareError):
        plugin.take_back(binding(host))
    kernel.error = None
    plugin.take_back(binding(host))
    return everything_lent(host), plugin.journal


@pytest.mark.parametrize("kind", slow_but(["sysfs", "NVML"], "NVML"))
def test_whatever_was_refused_the_gpu_is_as_before_when_all_is_well_again(
    host: SimulatedHost, kernel: SimulatedKernel, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every write to sysfs and every question to the driver, and every error, once or until all is well."""
    monkeypatch.setattr("kubelet_plugin.effects.vfio._NVML_POLL_S", 0.001)
    errors: list[Exception] = [OSError(code, os.strerror(code)) for code in ERRNOS]
    if kind == "NVML":
        errors = [HardwareError("refused", about="GPU", code=code) for code in CODES]
    with_audio(host)
    start, faulty = everything_lent(host), Faulty(kernel)
    assert one_life(host, faulty) == (start, {})
    places = list(faulty.places)
    assert len([place for place in places if place.startswith("/sys")]) == 12
    for number, place in enumerate(places, 1):
        if place.startswith("/sys") != (kind == "sysfs"):
            continue
        for row, error in enumerate(errors):
            faulty.begin(error, number, once=bool((row + number) % 2), done=not (row + number) % 3)
            assert one_life(host, faulty) == (start, {}), (error, place, number, faulty.once, faulty.done)
