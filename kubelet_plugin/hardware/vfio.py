"""What the kernel says about lending a GPU to a virtual machine: IOMMU groups, VFIO drivers, who has it open.

Discovery enters here for facts, `kubelet_plugin.effects.vfio` before and after it changes a binding. Reads go through
`HostFiles`; `Sysfs` is the one thing that writes, and it decides nothing.
Source: Documentation/ABI/testing/sysfs-bus-pci and Documentation/driver-api/vfio.rst of the kernel.
"""

import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Protocol

from dra_driver.api.inventory import PassthroughFacts, Problem
from dra_driver.errors import NodeNotReady
from kubelet_plugin.hardware.sysfs import DeviceFile, HostFiles, PciFacts

VFIO_API = "/dev/vfio/vfio"
IOMMUFD_API = "/dev/iommu"

_DEVICES = "/sys/bus/pci/devices"
_DRIVERS = "/sys/bus/pci/drivers"
_GRAPHICS, _VTCONSOLES = "/sys/class/graphics", "/sys/class/vtconsole"
_NVIDIA_VENDOR = 0x10DE
_BRIDGE_CLASSES = (0x0600, 0x0604)
"""Of the host and of PCI. NVSwitches are bridges of another class, with a driver that works."""
_HARMLESS = frozenset({"pci-stub", "pcieport"})
"""Drivers that do no DMA of their own, so the kernel lets them stay beside a VFIO driver in a group."""
_NO_OVERRIDE = "(null)"
_ANY_DEVICE = "vfio_pci"


class SysfsWriter(Protocol):
    """Writes to files of sysfs, which act. One write is one act: the kernel does it before `write` returns."""

    def write(self, host_path: str, text: str) -> None:
        """Blocks as long as the kernel does: for ever, where a driver waits for its last user. Raises OSError."""


class KernelModules(Protocol):
    def modprobe(self, module: str) -> None:
        """Load a module of the running kernel; loaded already is fine. Blocks. Raises NodeNotReady."""


class HostModules:
    """The node's kernel, whose modules fit its own modprobe. `run` runs a program of the host, by its host path; the
    second argument is what it is about, for errors."""

    def __init__(self, host: HostFiles, run: Callable[[Sequence[str], str], str]) -> None:
        self._host = host
        self._run = run

    def modprobe(self, module: str) -> None:
        for folder in ("/usr/sbin", "/sbin", "/usr/bin", "/bin", "/run/current-system/sw/bin"):  # NixOS
            if self._host.resolve(f"{folder}/modprobe") is not None:
                self._run([f"{folder}/modprobe", module], f"module {module}")
                return
        raise NodeNotReady("the host has no modprobe; load it at boot (modules-load.d)", about=f"module {module}")


class Sysfs:
    """The node's sysfs."""

    def __init__(self, host: HostFiles) -> None:
        self._host = host

    def write(self, host_path: str, text: str) -> None:
        resolved = self._host.resolve(host_path)
        if resolved is None:
            raise FileNotFoundError(host_path)
        # Not buffered, and in one piece: the kernel takes each write(2) as a whole order.
        file = os.open(self._host.path(resolved), os.O_WRONLY)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)


@dataclass(frozen=True, slots=True, order=True)
class GpuUser:
    """A program of the node. `command` is the kernel's short name of it, up to 15 characters."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"{self.command} ({self.pid})"


def is_vfio(driver: str | None) -> bool:
    """Whether a kernel driver hands its devices to virtual machines: `vfio-pci`, `nvgrace_gpu_vfio_pci`."""
    return driver is not None and driver.replace("_", "-").endswith("vfio-pci")


def passthrough_facts(host: HostFiles, pci: PciFacts) -> PassthroughFacts | None:
    """What VFIO needs of a GPU; None when it cannot be had: no IOMMU, or other devices are in the GPU's group.

    A user of one device of a group can reach the memory of all of them, so a group is lent as a whole or not at all.
    """
    if pci.iommu_group is None or intruders(host, pci):
        return None
    return PassthroughFacts(iommu_group=pci.iommu_group, iommufd=host.device_node(IOMMUFD_API) is not None)


def bound_elsewhere(pci: PciFacts) -> Problem:
    """A GPU that was bound to a VFIO driver by other means. It has no NVML identity, so it cannot be offered."""
    return Problem(
        subject=f"GPU {pci.address}",
        reason="BoundToVfio",
        message=f"it is bound to {pci.driver}, and not by this driver, so it is not offered;"
        " bind it to nvidia to offer it",
    )


def companions(host: HostFiles, pci: PciFacts) -> tuple[PciFacts, ...]:
    """The other functions of the GPU's own board in its group, by address: audio, USB. They go where the GPU goes."""
    return tuple(other for other in _others(host, pci) if _is_companion(other, pci))


def intruders(host: HostFiles, pci: PciFacts) -> tuple[PciFacts, ...]:
    """The devices that keep the GPU's group from being lent, by address: other GPUs with any driver, and what a
    driver of the node works with. Bridges and devices without a driver do no harm."""
    return tuple(other for other in _others(host, pci) if not _is_companion(other, pci) and not _harmless(other))


def _is_companion(other: PciFacts, pci: PciFacts) -> bool:
    """With any driver: that changes as the GPU is lent."""
    return _slot(other) == _slot(pci) and other.vendor == _NVIDIA_VENDOR and not other.is_nvidia_gpu


def _harmless(other: PciFacts) -> bool:
    if other.device_class is not None and other.device_class >> 8 in _BRIDGE_CLASSES:
        return True
    return not other.is_nvidia_gpu and (other.driver is None or other.driver in _HARMLESS)


def _others(host: HostFiles, pci: PciFacts) -> Iterator[PciFacts]:
    for name in sorted(host.names(f"{_DEVICES}/{pci.address}/iommu_group/devices")):
        if name != pci.address:
            yield host.pci(name)


def _slot(pci: PciFacts) -> str:
    return pci.address.rpartition(".")[0]


def iommu_on(host: HostFiles) -> bool:
    return bool(host.names("/sys/kernel/iommu_groups"))


def virtual_functions(host: HostFiles, address: str) -> int:
    """How many SR-IOV functions exist on top of a GPU: vGPUs of a hypervisor."""
    text = host.read_text(f"{_DEVICES}/{address}/sriov_numvfs")
    return int(text) if text is not None and text.isdigit() else 0


@dataclass(frozen=True, slots=True)
class Console:
    """The node's text console on a GPU. `firmware` is the platform device that draws it in the GPU's memory,
    `vtconsole` the console that is bound to the GPU's own driver; one of the two is empty."""

    frame_buffer: str
    firmware: str = ""
    vtconsole: str = ""


_FIRMWARE_BUFFERS = ("efi-framebuffer", "simple-framebuffer", "vesa-framebuffer")


def console_on(host: HostFiles, address: str) -> Console | None:
    """The console that the kernel shows on this GPU; it holds the GPU without a process that has it open.

    The console is on the first frame buffer, unless `fbcon=map` says something else.
    Source: Documentation/fb/fbcon.rst of the kernel; /sys/class/graphics and /sys/class/vtconsole.
    """
    numbers = [int(name[2:]) for name in host.names(_GRAPHICS) if name.startswith("fb") and name[2:].isdecimal()]
    device = host.resolve(f"{_GRAPHICS}/fb{min(numbers)}/device") if numbers else None
    if device is None:
        return None
    buffer = f"fb{min(numbers)}"
    if device.name == address:
        bound = next((name for name in sorted(host.names(_VTCONSOLES)) if _shows_frame_buffers(host, name)), None)
        return Console(buffer, vtconsole=bound) if bound is not None else None
    # The firmware's own frame buffer is in the memory of the GPU that it started with.
    at_boot = host.read_text(f"{_DEVICES}/{address}/boot_vga") == "1"
    is_firmwares = device.name.rpartition(".")[0] in _FIRMWARE_BUFFERS
    return Console(buffer, firmware=device.name) if at_boot and is_firmwares else None


def _shows_frame_buffers(host: HostFiles, name: str) -> bool:
    folder = f"{_VTCONSOLES}/{name}"
    return "frame buffer" in (host.read_text(f"{folder}/name") or "") and host.read_text(f"{folder}/bind") == "1"


def minor_at(host: HostFiles, address: str) -> int | None:
    """N of /dev/nvidiaN of the GPU at an address; None while the driver does not hold it."""
    text = _information(host, address).get("Device Minor", "")
    return int(text) if text.isdigit() else None


def uuid_at(host: HostFiles, address: str) -> str | None:
    """The UUID of the GPU that is at an address now; None while the driver does not hold it, or never opened it."""
    text = _information(host, address).get("GPU UUID", "")
    return text if text and "?" not in text else None


def _information(host: HostFiles, address: str) -> dict[str, str]:
    return host.fields(f"/proc/driver/nvidia/gpus/{address}/information")


def has_instances(host: HostFiles, minor: int) -> bool:
    """Whether GPU instances exist, asked of the kernel."""
    return any(name.startswith("gi") for name in host.names(f"/proc/driver/nvidia/capabilities/gpu{minor}/mig"))


def driver_override(host: HostFiles, address: str) -> str:
    """The only driver that may have this function; empty when there is no such order."""
    text = host.read_text(f"{_DEVICES}/{address}/driver_override") or ""
    return "" if text == _NO_OVERRIDE else text


def driver_exists(host: HostFiles, driver: str) -> bool:
    return host.resolve(f"{_DRIVERS}/{driver}") is not None


def vfio_module(host: HostFiles, address: str) -> str:
    """The kernel module that fits a function best: a variant made for it, or else `vfio_pci`.

    Modules say in modules.alias what they drive for VFIO (`alias vfio_pci:v000010DEd00002342sv*... module`), and the
    one with the fewest wildcards wins.
    """
    modalias = (host.read_text(f"{_DEVICES}/{address}/modalias") or "").removeprefix("pci:")
    release = host.read_text("/proc/sys/kernel/osrelease")
    fitting: list[tuple[int, str]] = []
    for line in (host.read_text(f"/lib/modules/{release}/modules.alias") or "").splitlines():
        # Hundreds of kilobytes on a real node, of which a handful of lines is about VFIO.
        if line.startswith("alias vfio_pci:"):
            _, pattern, module = line.split(maxsplit=2)
            if fnmatchcase(modalias, pattern.removeprefix("vfio_pci:")):
                fitting.append((pattern.count("*"), module))
    return min(fitting, default=(0, _ANY_DEVICE))[1]


def driver_of(host: HostFiles, module: str) -> str | None:
    """The name in sysfs of the driver that a VFIO module has; None while it is not loaded. `vfio_pci` is `vfio-pci`,
    variants are called as their module."""
    names = (module.replace("_", "-"), module)
    return next((name for name in names if driver_exists(host, name)), None)


@dataclass(frozen=True, slots=True)
class VfioNodes:
    """What a virtual machine's process opens: the group (legacy) or the device (iommufd), and the API beside it."""

    node: str
    api: str


def vfio_nodes(host: HostFiles, pci: PciFacts, *, iommufd: bool) -> VfioNodes | None:
    """None when they are not there (yet). With `iommufd` those of IOMMUFD where this kernel has them."""
    names = host.names(f"{_DEVICES}/{pci.address}/vfio-dev")
    paths = (f"/dev/vfio/{pci.iommu_group}", VFIO_API)
    if iommufd and names and host.device_node(IOMMUFD_API) is not None:
        paths = (f"/dev/vfio/devices/{names[0]}", IOMMUFD_API)
    return VfioNodes(*paths) if all(host.device_node(path) is not None for path in paths) else None


def node_names(host: HostFiles, pci: PciFacts, minor: int | None) -> frozenset[str]:
    """The device nodes by which programs have a GPU open, as its driver has them. Paths below /dev."""
    if is_vfio(pci.driver):
        cdevs = host.names(f"{_DEVICES}/{pci.address}/vfio-dev")
        return frozenset({f"vfio/{pci.iommu_group}", *(f"vfio/devices/{name}" for name in cdevs)})
    own = {f"nvidia{minor}"} if minor is not None else set()
    return frozenset({*own, *(f"dri/{name}" for name in pci.drm_nodes)})


_OPEN_NODE = re.compile(r"/dev/(?P<name>[^ ]+)(?: \(deleted\))?")


def users(host: HostFiles, nodes: Collection[str]) -> tuple[GpuUser, ...]:
    """The programs of the node, in containers or not, that have one of these device nodes open; by process id.

    `nodes` are paths below /dev. Processes that end meanwhile, or that we may not look at, are left out.
    """
    gpu_users = []
    # A host in a folder has links in place of open files.
    devices = {node: host.device_node(f"/dev/{node}") for node in nodes} if host.path(_OWN_FILES).is_dir() else None
    for name in host.names("/proc"):
        if name.isdigit() and any(
            node in nodes and (devices is None or _is_open(host.path(f"/proc/{name}"), descriptor, devices[node]))
            for descriptor, node in _open_nodes(host, name)
        ):
            gpu_users.append(GpuUser(int(name), host.read_text(f"/proc/{name}/comm") or "?"))
    return tuple(sorted(gpu_users))


def this_process(host: HostFiles) -> int | None:
    """This process's id as `users` has it: that of the host, also when we are in a container."""
    try:
        return int(host.path("/proc/self").readlink().name)
    except (OSError, ValueError):
        return None


_OWN_FILES = "/proc/self/fdinfo"
_WITH_DEVICES = frozenset({"devtmpfs", "tmpfs", "overlay", "ext4", "xfs", "btrfs"})
"""File systems in which a container has device nodes. To ask another one, such as FUSE, may take for ever."""


def _is_open(process: Path, descriptor: str, device: DeviceFile | None) -> bool:
    """Whether a file that is named like a device is this device, and open: a pod can give a file any name, and refer to
    a device that it may not open (O_PATH). `device` is None if the host does not have it. A file that is closed
    meanwhile is not open. Source: proc(5), /proc/<pid>/fdinfo and mountinfo.
    """
    try:
        text = (process / "fdinfo" / descriptor).read_text()
        facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        if int(facts["flags"], 8) & os.O_PATH:
            return False
        mounts = (line.partition(" - ") for line in (process / "mountinfo").read_text().splitlines())
        kinds = {place.split()[0]: kind.split()[0] for place, _, kind in mounts}
        if kinds.get(facts["mnt_id"].strip(), "tmpfs") not in _WITH_DEVICES:
            return False
        status = (process / "fd" / descriptor).stat()
    except (OSError, KeyError, ValueError):
        return False
    number = (os.major(status.st_rdev), os.minor(status.st_rdev))
    return stat.S_ISCHR(status.st_mode) and (device is None or number == (device.major, device.minor))


def _open_nodes(host: HostFiles, pid: str) -> Iterator[tuple[str, str]]:
    """Descriptors, and the device for which the name of each stands."""
    folder = host.path(PurePosixPath("/proc") / pid / "fd")
    try:
        descriptors = os.listdir(folder)  # noqa: PTH208 - some ten thousand of them on a busy node
    except OSError:
        return
    for descriptor in descriptors:
        try:
            target = os.readlink(folder / descriptor)  # noqa: PTH115 - the text, in its process' own mount namespace
        except OSError:
            continue
        match = _OPEN_NODE.search(target)
        if match is not None:
            yield descriptor, match["name"]
