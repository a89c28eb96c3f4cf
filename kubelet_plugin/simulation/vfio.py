"""The part of a simulated kernel that lends GPUs to virtual machines: sysfs that reacts to writes, groups, modules.

`SimulatedKernel` takes the place of the writer of sysfs and of `modprobe` on a real node: what is written to
`driver/unbind`, `driver_override` and `drivers/<name>/bind` changes the binding of a function as the kernel would
change it, with the kernel's error numbers, and files, device nodes and NVML follow. Letting go of a function blocks
while a process has it open.

`write_machine` is for `kubelet_plugin.simulation.host`, which builds the tree.
"""

import errno
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from dra_driver.errors import NodeNotReady
from kubelet_plugin.hardware.sysfs import HostFiles, described_node
from kubelet_plugin.hardware.vfio import is_vfio
from kubelet_plugin.simulation.partitions import release
from kubelet_plugin.simulation.programs.smi import DAEMON, OF_STATE
from kubelet_plugin.simulation.state import Function, GpuState, NodeState, StateFile
from kubelet_plugin.simulation.tree import (
    capabilities,
    change_capabilities,
    device_folders,
    function_folder,
    link,
    path,
    pci_folder,
    write,
    write_pci_ids,
)

_RELEASE = "6.8.0-simulated"
_FIRST_GROUP = 20
_VFIO_MAJOR, _VFIO_DEVICES_MAJOR = 244, 511
_DRIVERS = PurePosixPath("/sys/bus/pci/drivers")
GRAPHICS, VTCONSOLE = PurePosixPath("/sys/class/graphics"), PurePosixPath("/sys/class/vtconsole/vtcon1")
_DEVICES = PurePosixPath("/sys/bus/pci/devices")
_MODULES = PurePosixPath(f"/lib/modules/{_RELEASE}/modules.alias")
_POLL_S = 0.005
_NO_OVERRIDE = "(null)"

_ALIASES = {
    "vfio_pci": "vfio_pci:v*d*sv*sd*bc*sc*i*",
    "nvgrace_gpu_vfio_pci": "vfio_pci:v000010DEd00002342sv*sd*bc*sc*i*",
}
"""What a module says that it can drive, when asked for VFIO. Source: MODULE_DEVICE_TABLE of the kernel's modules."""
_DRIVER_NAMES = {"vfio_pci": "vfio-pci"}
"""Where it is not the module's: variants use their module's name as it is."""


class SimulatedKernel:
    """The kernel of the node below `root`. May be several objects, in several processes; the tree is the memory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._file = StateFile(root)
        self._files = HostFiles(root)

    def write(self, host_path: str, text: str) -> None:
        """A write to a file of sysfs. Raises OSError as the kernel refuses it; blocks while a function is in use."""
        if self._file.read().recorded is not None:
            raise _error(errno.EPERM)  # a recorded node does not change
        parts = PurePosixPath(host_path).parts
        match parts:
            case ("/", "sys", "bus", "pci", "devices", address, "driver", "unbind"):
                driver = self.driver(address)
                if driver is None:
                    raise _error(errno.ENOENT)
                self._unbind(driver, text.strip())
            case ("/", "sys", "bus", "pci", "devices", address, "driver_override"):
                self._override(address, text.strip())
            case ("/", "sys", "bus", "pci", "drivers", driver, "bind"):
                self._bind(driver, text.strip())
            case _:
                raise _error(errno.EACCES if path(self.root, host_path).exists() else errno.ENOENT)

    def modprobe(self, module: str) -> None:
        """Load a module. Raises NodeNotReady when this kernel has none of that name."""
        with self._file.edit() as state:
            if module not in state.passthrough.modules:
                raise NodeNotReady(f"not found in directory /lib/modules/{_RELEASE}", about=f"module {module}")
            if module not in state.passthrough.loaded:
                state.passthrough.loaded = [*state.passthrough.loaded, module]
            _write_modules(self.root, state)

    def driver(self, address: str) -> str | None:
        """The driver that a function is bound to."""
        return self._files.pci(address).driver

    def _override(self, address: str, driver: str) -> None:
        place = path(self.root, self._folder(address) / "driver_override")
        place.write_text((driver or _NO_OVERRIDE) + "\n", encoding="utf-8")

    def _bind(self, driver: str, address: str) -> None:
        if not path(self.root, _DRIVERS / driver).is_dir():
            raise _error(errno.ENOENT)
        folder = self._folder(address)
        with self._file.edit() as state:
            if self.driver(address) is not None:
                raise _error(errno.EBUSY)
            if not self._matches(driver, folder):
                raise _error(errno.ENODEV)
            if driver == "nvidia" and not state.driver.loaded:
                raise _error(errno.ENOENT)
            attach(self.root, state, address, folder, driver)

    def _matches(self, driver: str, folder: PurePosixPath) -> bool:
        """A VFIO driver takes what is meant for it only, any other what is not meant for another driver."""
        override = self._files.read_text(str(folder / "driver_override")) or _NO_OVERRIDE
        return override == driver or (override == _NO_OVERRIDE and not is_vfio(driver))

    def _unbind(self, driver: str, address: str) -> None:
        folder = self._folder(address)
        if self.driver(address) != driver:
            raise _error(errno.ENODEV)
        # The kernel waits inside the driver for the last user, for ever.
        while self._in_use(address):
            time.sleep(_POLL_S)
        with self._file.edit() as state:
            _detach(self.root, state, address, folder)

    def _in_use(self, address: str) -> bool:
        state = self._file.read()
        gpu = next((gpu for gpu in state.gpus if gpu.address == address), None)
        if gpu is not None and self.driver(address) == "nvidia":
            return bool(gpu.clients or gpu.persistent or self._has_console(address))
        names = {f"/dev/vfio/{_group(state, address)}", *(f"/dev/vfio/devices/{cdev}" for cdev in self._cdevs(address))}
        return any(target in names for target in self._open_files())

    def _has_console(self, address: str) -> bool:
        shown = self._files.resolve(GRAPHICS / "fb0/device") == self._folder(address)
        return shown and self._files.read_text(str(VTCONSOLE / "bind")) == "1"

    def _open_files(self) -> Iterator[str]:
        for fd in path(self.root, "/proc").glob("[0-9]*/fd/*"):
            try:
                yield os.readlink(fd)  # noqa: PTH115 - as text
            except OSError:
                continue

    def _cdevs(self, address: str) -> Sequence[str]:
        return self._files.names(f"{_DEVICES}/{address}/vfio-dev")

    def _folder(self, address: str) -> PurePosixPath:
        """Raises OSError (ENODEV) when there is no such function."""
        folder = self._files.resolve(_DEVICES / address)
        if folder is None:
            raise _error(errno.ENODEV)
        return folder


def write_machine(root: Path, state: NodeState) -> None:
    """What the kernel shows of passthrough, before anything is bound: after GPUs are in sysfs."""
    for gpu in state.gpus:
        _write_function(root, state, pci_folder(gpu), gpu.address)
        count = state.passthrough.virtual_functions.get(gpu.address, 0)
        write(root, pci_folder(gpu) / "sriov_numvfs", f"{count}\n")
    for function in state.passthrough.functions:
        folder = _folder_of(state, function)
        write_pci_ids(root, folder, function.vendor, function.device, function.pci_class)
        new = not path(root, _DEVICES / function.address).is_symlink()
        link(root, _DEVICES / function.address, folder)
        _write_function(root, state, folder, function.address)
        if new and function.home is not None:
            path(root, _DRIVERS / function.home).mkdir(parents=True, exist_ok=True)
            link(root, folder / "driver", _DRIVERS / function.home)
    write(root, "/proc/sys/kernel/osrelease", _RELEASE + "\n")
    write_processes(root, state)
    if state.passthrough.iommu and state.passthrough.iommufd:
        write(root, "/dev/iommu", described_node("c", 10, 127))
    _write_modules(root, state)


def attach(root: Path, state: NodeState, address: str, folder: PurePosixPath, driver: str) -> None:
    """Bind a function that has no driver."""
    link(root, folder / "driver", _DRIVERS / driver)
    gpu = next((gpu for gpu in state.gpus if gpu.address == address), None)
    if gpu is not None:
        gpu.bound_to = driver
        if driver == "nvidia":
            hold(root, state, gpu)
    if is_vfio(driver) and state.passthrough.iommu:
        group = _group(state, address)
        write(root, f"/dev/vfio/{group}", described_node("c", _VFIO_MAJOR, group, 0o600))
        if state.passthrough.iommufd and state.passthrough.cdev:
            number = _free_cdev(root)
            path(root, folder / "vfio-dev" / f"vfio{number}").mkdir(parents=True)
            write(root, f"/dev/vfio/devices/vfio{number}", described_node("c", _VFIO_DEVICES_MAJOR, number, 0o600))


def write_processes(root: Path, state: NodeState) -> None:
    """/proc of the programs that have GPUs open: those of the state, and the driver's daemon."""
    for marked in path(root, "/proc").glob(f"[0-9]*/{OF_STATE}"):
        shutil.rmtree(marked.parent)
    programs: dict[tuple[int, str], list[str]] = {}
    for gpu in state.gpus:
        users = [(client.pid, client.name) for client in gpu.clients]
        if gpu.persistenced and gpu.bound_to == "nvidia" and state.driver.loaded:
            users.append((DAEMON, "nvidia-persistenced"))
        for user in users:
            programs.setdefault(user, []).append(f"/dev/nvidia{gpu.minor}")
    for (pid, command), devices in programs.items():
        shutil.rmtree(path(root, f"/proc/{pid}"), ignore_errors=True)
        write_process(root, pid, command, devices)
        write(root, f"/proc/{pid}/{OF_STATE}", "")


def hold(root: Path, state: NodeState, gpu: GpuState) -> None:
    """The NVIDIA driver has this GPU: what sysfs and /proc show of it."""
    folder = pci_folder(gpu)
    link(root, folder / "driver", _DRIVERS / "nvidia")
    for name in drm_names(state, gpu):
        path(root, folder / "drm" / name).mkdir(parents=True, exist_ok=True)
    write(
        root,
        f"/proc/driver/nvidia/gpus/{gpu.address}/information",
        f"Model: \t\t {gpu.product or state.model.name}\nGPU UUID: \t {gpu.uuid}\nBus Type: \t PCIe\n"
        f"Bus Location: \t {gpu.address}\nDevice Minor: \t {gpu.minor}\nGPU Excluded:\t No\n",
    )


def drm_names(state: NodeState, gpu: GpuState) -> tuple[str, ...]:
    """Of a profile's node card0 is the board management controller's, as on most servers."""
    number = state.gpus.index(gpu)
    return f"card{number + 1}", f"renderD{number + 128}"


def _detach(root: Path, state: NodeState, address: str, folder: PurePosixPath) -> None:
    path(root, folder / "driver").unlink()
    for entry in path(root, folder / "vfio-dev").glob("vfio*"):
        path(root, f"/dev/vfio/devices/{entry.name}").unlink(missing_ok=True)
    shutil.rmtree(path(root, folder / "vfio-dev"), ignore_errors=True)
    shutil.rmtree(path(root, folder / "drm"), ignore_errors=True)
    shutil.rmtree(path(root, f"/proc/driver/nvidia/gpus/{address}"), ignore_errors=True)
    group, files = _group(state, address), HostFiles(root)
    members = files.names(f"/sys/kernel/iommu_groups/{group}/devices")
    if not any(is_vfio(files.pci(member).driver) for member in members):
        path(root, f"/dev/vfio/{group}").unlink(missing_ok=True)
    for gpu in state.gpus:
        if gpu.address == address:
            before = capabilities(gpu)
            release(gpu, state.model.architecture)
            change_capabilities(root, gpu.minor, before, capabilities(gpu), device_folders(state))
            gpu.bound_to = None
            gpu.persistence_mode = 0
    if all(gpu.bound_to != "nvidia" for gpu in state.gpus):
        state.driver.daemon_outdated = True


def _write_function(root: Path, state: NodeState, folder: PurePosixPath, address: str) -> None:
    vendor, device, pci_class = (
        int(path(root, folder / name).read_text(encoding="utf-8"), 16) for name in ("vendor", "device", "class")
    )
    write(
        root,
        folder / "modalias",
        f"pci:v{vendor:08X}d{device:08X}sv{vendor:08X}sd00000000bc{pci_class >> 16:02X}sc{pci_class >> 8 & 0xFF:02X}"
        f"i{pci_class & 0xFF:02X}\n",
    )
    if not path(root, folder / "driver_override").exists():
        write(root, folder / "driver_override", _NO_OVERRIDE + "\n")
    path(root, folder / "iommu_group").unlink(missing_ok=True)
    if state.passthrough.iommu:
        group = PurePosixPath(f"/sys/kernel/iommu_groups/{_group(state, address)}")
        link(root, group / "devices" / address, folder)
        link(root, folder / "iommu_group", group)


def _write_modules(root: Path, state: NodeState) -> None:
    lines = [f"alias {_ALIASES.get(name, '')} {name}" for name in state.passthrough.modules]
    write(root, _MODULES, "# Aliases extracted from modules themselves.\n" + "\n".join(lines) + "\n")
    for name in state.passthrough.loaded:
        path(root, _DRIVERS / _DRIVER_NAMES.get(name, name)).mkdir(parents=True, exist_ok=True)
    if state.passthrough.loaded:
        write(root, "/dev/vfio/vfio", described_node("c", 10, 196))


def write_process(root: Path, pid: int, command: str, devices: Sequence[str]) -> None:
    process = PurePosixPath(f"/proc/{pid}")
    write(root, process / "comm", command[:15] + "\n")  # the kernel keeps no more
    for number, device in enumerate(devices):
        link = path(root, process / "fd" / str(number + 3))
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(device)


def _group(state: NodeState, address: str) -> int:
    beside = {function.address: function.beside for function in state.passthrough.functions}
    gpu = beside.get(address, address)
    number = next((number for number, gpu_state in enumerate(state.gpus) if gpu_state.address == gpu), len(state.gpus))
    return state.passthrough.groups.get(gpu, number + _FIRST_GROUP)


def _folder_of(state: NodeState, function: Function) -> PurePosixPath:
    gpu = next(gpu for gpu in state.gpus if gpu.address == function.beside)
    return function_folder(gpu.root, function.address)


def _free_cdev(root: Path) -> int:
    taken = set(HostFiles(root).names("/dev/vfio/devices"))
    return next(number for number in range(len(taken) + 1) if f"vfio{number}" not in taken)


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))
