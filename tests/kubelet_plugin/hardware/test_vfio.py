"""What the kernel's files say about lending a GPU."""

import os
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.errors import NodeNotReady
from kubelet_plugin.hardware.sysfs import HostFiles, PciFacts
from kubelet_plugin.hardware.vfio import (
    Console,
    GpuUser,
    HostModules,
    companions,
    console_on,
    has_instances,
    intruders,
    is_vfio,
    node_names,
    users,
    uuid_at,
    vfio_module,
)

GPU = "0000:41:00.0"


def function(root: Path, address: str, device_class: int, driver: str | None, vendor: int = 0x10DE) -> None:
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"0x{vendor:04x}\n")
    (folder / "class").write_text(f"0x{device_class:06x}\n")
    group = root / "sys/kernel/iommu_groups/9/devices"
    group.mkdir(parents=True, exist_ok=True)
    (group / address).symlink_to(folder)
    (folder / "iommu_group").symlink_to("/sys/kernel/iommu_groups/9")
    if driver is not None:
        place = root / "sys/bus/pci/drivers" / driver
        place.mkdir(parents=True, exist_ok=True)
        (folder / "driver").symlink_to(f"/sys/bus/pci/drivers/{driver}")


@pytest.fixture
def files(tmp_path: Path) -> HostFiles:
    function(tmp_path, GPU, 0x030000, "nvidia")
    return HostFiles(tmp_path)


def names(functions: Sequence[PciFacts]) -> list[str]:
    return [pci.address for pci in functions]


class TestGroups:
    @pytest.mark.parametrize(
        ("address", "device_class", "driver", "vendor"),
        [
            ("0000:40:01.0", 0x060400, "pcieport", 0x8086),
            ("0000:40:00.0", 0x060000, None, 0x8086),
            ("0000:42:00.0", 0x020000, None, 0x8086),
            ("0000:42:00.0", 0x020000, "pci-stub", 0x8086),
        ],
    )
    def test_bridges_and_what_nobody_drives_may_be_in_it(
        self, files: HostFiles, address: str, device_class: int, driver: str | None, vendor: int
    ) -> None:
        function(files.root, address, device_class, driver, vendor)
        assert intruders(files, files.pci(GPU)) == companions(files, files.pci(GPU)) == ()

    @pytest.mark.parametrize(
        ("address", "device_class", "driver", "vendor"),
        [
            ("0000:42:00.0", 0x020000, "mlx5_core", 0x15B3),
            ("0000:42:00.0", 0x020000, "vfio-pci", 0x15B3),  # another virtual machine may have it
            ("0000:42:00.0", 0x030200, None, 0x10DE),
            ("0000:42:00.0", 0x030200, "vfio-pci", 0x10DE),
            ("0000:42:00.0", 0x068000, "nvidia-nvswitch", 0x10DE),
            ("0000:41:00.1", 0x010802, "nvme", 0x144D),
        ],
    )
    def test_other_devices_may_not(
        self, files: HostFiles, address: str, device_class: int, driver: str | None, vendor: int
    ) -> None:
        function(files.root, address, device_class, driver, vendor)
        assert names(intruders(files, files.pci(GPU))) == [address]

    def test_the_other_functions_of_the_board_come_along(self, files: HostFiles) -> None:
        for number, (device_class, driver) in enumerate(
            ((0x040300, "snd_hda_intel"), (0x0C0330, "xhci_hcd"), (0x0C8000, None)), start=1
        ):
            function(files.root, f"0000:41:00.{number}", device_class, driver)
        assert names(companions(files, files.pci(GPU))) == ["0000:41:00.1", "0000:41:00.2", "0000:41:00.3"]
        assert intruders(files, files.pci(GPU)) == ()

    @pytest.mark.parametrize("driver", ["snd_hda_intel", "vfio-pci", None])
    def test_they_are_that_whoever_has_them_now(self, files: HostFiles, driver: str | None) -> None:
        """A look at the node may fall between any two steps of lending it."""
        function(files.root, "0000:41:00.1", 0x040300, "snd_hda_intel")
        seen = iter(["snd_hda_intel", driver])

        class Changing(HostFiles):
            def pci(self, address: str) -> PciFacts:
                facts = super().pci(address)
                return replace(facts, driver=next(seen, driver)) if address == "0000:41:00.1" else facts

        assert intruders(Changing(files.root), files.pci(GPU)) == ()


class TestModules:
    ALIASES = """\
alias pci:v000010DEd*sv*sd*bc03sc02i00* nvidia
alias vfio_pci:v*d*sv*sd*bc*sc*i* vfio_pci
alias vfio_pci:v000015B3d0000101Esv*sd*bc*sc*i* mlx5_vfio_pci
alias vfio_pci:v000010DEd00002342sv*sd*bc*sc*i* nvgrace_gpu_vfio_pci
"""

    @pytest.mark.parametrize(
        ("device", "module"), [(0x2342, "nvgrace_gpu_vfio_pci"), (0x2330, "vfio_pci"), (None, "vfio_pci")]
    )
    def test_the_one_that_fits_best_is_chosen(self, files: HostFiles, device: int | None, module: str) -> None:
        (files.root / "proc/sys/kernel").mkdir(parents=True)
        (files.root / "proc/sys/kernel/osrelease").write_text("6.8.0-31-generic\n")
        (files.root / "lib/modules/6.8.0-31-generic").mkdir(parents=True)
        (files.root / "lib/modules/6.8.0-31-generic/modules.alias").write_text(self.ALIASES)
        if device is not None:
            alias = f"pci:v000010DEd{device:08X}sv000010DEsd000016C1bc03sc02i00\n"
            (files.root / "sys/bus/pci/devices" / GPU / "modalias").write_text(alias)
        assert vfio_module(files, GPU) == module

    def test_a_kernel_without_a_list_of_aliases_has_the_one_for_all(self, files: HostFiles) -> None:
        assert vfio_module(files, GPU) == "vfio_pci"

    @pytest.mark.parametrize("driver", ["vfio-pci", "nvgrace_gpu_vfio_pci", "mlx5-vfio-pci"])
    def test_their_drivers_are_known(self, driver: str) -> None:
        assert is_vfio(driver)

    @pytest.mark.parametrize("driver", ["nvidia", "pci-stub", "nouveau", None])
    def test_others_are_not(self, driver: str | None) -> None:
        assert not is_vfio(driver)

    def test_the_hosts_own_modprobe_loads_them(self, files: HostFiles) -> None:
        ran: list[Sequence[str]] = []

        def run(words: Sequence[str], about: str) -> str:
            ran.append(words)
            return ""

        with pytest.raises(NodeNotReady, match="module vfio_pci: the host has no modprobe"):
            HostModules(files, run).modprobe("vfio_pci")
        for folder in ("run/current-system/sw/bin", "sbin"):
            (files.root / folder).mkdir(parents=True)
            (files.root / folder / "modprobe").touch()
            HostModules(files, run).modprobe("vfio_pci")
        assert ran == [[f"/{folder}/modprobe", "vfio_pci"] for folder in ("run/current-system/sw/bin", "sbin")]


class TestUsers:
    def process(self, root: Path, pid: int, command: str, *targets: str) -> None:
        fds = root / f"proc/{pid}/fd"
        fds.mkdir(parents=True)
        (root / f"proc/{pid}/comm").write_text(command + "\n")
        for number, target in enumerate(targets):
            (fds / str(number)).symlink_to(target)

    def test_are_found_by_what_they_have_open(self, files: HostFiles) -> None:
        self.process(files.root, 12, "python3", "/dev/null", "/dev/nvidia1", "/dev/nvidia1")
        self.process(files.root, 7, "dcgm", "/dev/nvidia1 (deleted)")
        self.process(files.root, 8, "container", "/run/nvidia/driver/dev/nvidia1")
        self.process(files.root, 13, "other", "/dev/nvidia10", "/dev/nvidiactl", "socket:[4711]", "/data/nvidia1")
        self.process(files.root, 14, "Xorg", "/dev/dri/card2")
        (files.root / "proc/driver").mkdir()
        assert users(files, {"nvidia1"}) == (GpuUser(7, "dcgm"), GpuUser(8, "container"), GpuUser(12, "python3"))
        assert users(files, {"dri/card2", "nvidia4"}) == (GpuUser(14, "Xorg"),)

    def test_have_a_device_open_and_not_a_file_with_its_name(self) -> None:
        """Else a pod without a GPU keeps GPUs of others from being passed through, and from a reset."""
        # Not below /dev/shm, where names of files begin like those of devices.
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, ExitStack() as opened:
            (Path(folder) / "dev").mkdir()
            named = Path(folder) / "dev/null"
            named.touch()
            files = [
                os.open("/dev/null", os.O_RDONLY),
                os.open("/dev/null", os.O_PATH),
                os.open(named, os.O_RDONLY),
            ]
            if os.getuid() == 0:
                named.unlink()
                os.mknod(named, 0o600 | stat.S_IFCHR, os.makedev(1, 5))
                files.append(os.open(named, os.O_RDONLY))
            for file in files:
                opened.callback(os.close, file)
            found_by = []
            for file in files:
                pipe = subprocess.PIPE
                with subprocess.Popen(["sleep", "60"], stdin=file, stdout=pipe, stderr=pipe) as process:
                    pids = [user.pid for user in users(HostFiles(Path("/")), {"null"})]
                    found_by.append(process.pid in pids)
                    process.kill()
            assert found_by == [True] + [False] * (len(files) - 1)

    def test_nodes_are_those_of_whoever_has_the_gpu(self, files: HostFiles) -> None:
        (files.root / "sys/bus/pci/devices" / GPU / "drm/renderD130").mkdir(parents=True)
        assert node_names(files, files.pci(GPU), 3) == {"nvidia3", "dri/renderD130"}
        other = "0000:43:00.0"
        function(files.root, other, 0x030200, "vfio-pci")
        (files.root / "sys/bus/pci/devices" / other / "vfio-dev/vfio5").mkdir(parents=True)
        assert node_names(files, files.pci(other), None) == {"vfio/9", "vfio/devices/vfio5"}


class TestDriver:
    @pytest.mark.parametrize(
        ("text", "uuid"),
        [
            ("Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-1234\nDevice Minor: \t 0\n", "GPU-1234"),
            ("GPU UUID: \t GPU-????????-????-????-????-????????????\n", None),
            ("", None),
        ],
    )
    def test_says_which_gpu_is_at_an_address_once_it_knows(self, files: HostFiles, text: str, uuid: str | None) -> None:
        folder = files.root / "proc/driver/nvidia/gpus" / GPU
        folder.mkdir(parents=True)
        (folder / "information").write_text(text)
        assert uuid_at(files, GPU) == uuid

    def test_says_whether_there_are_instances(self, files: HostFiles) -> None:
        mig = files.root / "proc/driver/nvidia/capabilities/gpu2/mig"
        mig.mkdir(parents=True)
        assert not has_instances(files, 2)
        (mig / "gi1").mkdir()
        assert has_instances(files, 2)
        assert not has_instances(files, 1)


class TestConsole:
    """By files as the kernel has them: what else is no console on this GPU."""

    def show(self, files: HostFiles, *buffers: str, console: str = "(M) frame buffer device", bind: str = "1") -> None:
        for number, device in enumerate(buffers):
            folder = files.path(f"/sys/class/graphics/fb{number}")
            folder.mkdir(parents=True)
            target = f"/sys/devices/{device}"
            files.path(target).mkdir(parents=True, exist_ok=True)
            (folder / "device").symlink_to(target)
        folder = files.path("/sys/class/vtconsole/vtcon1")
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"{console}\n")
        (folder / "bind").write_text(f"{bind}\n")

    def test_of_the_gpus_own_driver(self, files: HostFiles) -> None:
        assert console_on(files, GPU) is None
        self.show(files, f"pci0000:40/{GPU}")
        assert console_on(files, GPU) == Console("fb0", vtconsole="vtcon1")

    @pytest.mark.parametrize(
        ("buffers", "console", "bind"),
        [
            (("pci0000:00/0000:02:00.0", f"pci0000:40/{GPU}"), "(M) frame buffer device", "1"),
            ((f"pci0000:40/{GPU}",), "(M) frame buffer device", "0"),
            ((f"pci0000:40/{GPU}",), "(S) dummy device", "1"),
            (("platform/efi-framebuffer.0",), "(M) frame buffer device", "1"),
        ],
        ids=["on the board management controller", "not bound", "no frame buffer", "of another GPU's firmware"],
    )
    def test_that_is_elsewhere(self, files: HostFiles, buffers: Sequence[str], console: str, bind: str) -> None:
        self.show(files, *buffers, console=console, bind=bind)
        assert console_on(files, GPU) is None

    @pytest.mark.parametrize("device", ["efi-framebuffer.0", "simple-framebuffer.0", "vesa-framebuffer.0"])
    def test_of_the_firmware(self, files: HostFiles, device: str) -> None:
        """Whether a console is bound or not: the memory is taken."""
        self.show(files, f"platform/{device}", bind="0")
        files.path(f"/sys/bus/pci/devices/{GPU}/boot_vga").write_text("1\n")
        assert console_on(files, GPU) == Console("fb0", firmware=device)
