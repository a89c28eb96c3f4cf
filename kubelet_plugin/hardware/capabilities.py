"""The device nodes of the driver's capabilities: of MIG devices, and the one that an IMEX daemon needs.

The kernel module shows in /proc which capabilities exist, with the minor number of each. A MIG device has two: of its
GPU instance, and of its compute instance. Two others are of no MIG device and are never given away: `mig/config`, which
lets its owner divide GPUs, and `mig/monitor`. With their numbers in the CDI spec the host need not have the nodes.
"""

from dra_driver.cdi.model import DeviceNode
from dra_driver.errors import NodeNotReady
from dra_driver.quantity import whole_number
from kubelet_plugin.hardware.sysfs import HostFiles

_CLASS = "nvidia-caps"
_EXISTING = "/proc/driver/nvidia/capabilities"
_ALL = "/proc/driver/nvidia-caps/mig-minors"
_MANAGEMENT = "/proc/driver/nvidia/capabilities/fabric-imex-mgmt"
_READABLE = 0o444


def capability_nodes(host: HostFiles, about: str, gpu_minor: int, gi: int, ci: int) -> tuple[DeviceNode, ...]:
    """The nodes of GPU instance `gi` and of compute instance `ci` in it, in this order. Raises NodeNotReady when there
    is no such instance, or the kernel has no capabilities."""
    major = host.device_majors().get(_CLASS)
    if major is None:
        raise NodeNotReady(
            f"the kernel has no device class {_CLASS} in /proc/devices, which MIG devices need: load the nvidia kernel"
            " module of a driver that knows MIG",
            about=about,
        )
    names = (f"gi{gi}/access", f"gi{gi}/ci{ci}/access")
    return tuple(_cap_node(major, *_capability(host, about, gpu_minor, name)) for name in names)


def management_node(host: HostFiles) -> DeviceNode:
    """What an IMEX daemon manages the fabric through. Raises NodeNotReady where there is none."""
    major, capability = host.device_majors().get(_CLASS), _shown(host, _MANAGEMENT, 0o400)
    if major is None or capability is None:
        raise NodeNotReady(
            f"{_MANAGEMENT} does not exist or names no minor number:"
            " an IMEX daemon cannot run with the driver on this node",
            about="IMEX",
        )
    return _cap_node(major, *capability)


def _cap_node(major: int, minor: int, mode: int) -> DeviceNode:
    return numbered_node(f"/dev/{_CLASS}/nvidia-cap{minor}", major, minor, mode)


def numbered_node(path: str, major: int, minor: int, mode: int) -> DeviceNode:
    """A character device that the host need not have, to read and write."""
    return DeviceNode(path=path, type="c", major=major, minor=minor, file_mode=mode, permissions="rw")


def _capability(host: HostFiles, about: str, gpu_minor: int, name: str) -> tuple[int, int]:
    """Minor and permission bits. The kernel's own file of an existing instance decides; the table of all possible ones
    only where the kernel shows none."""
    path = f"{_EXISTING}/gpu{gpu_minor}/mig/{name}"
    if (capability := _shown(host, path, _READABLE)) is not None:
        return capability
    if host.resolve(_EXISTING) is None and (minor := _minor_by_table(host, f"gpu{gpu_minor}/{name}")) is not None:
        return minor, _READABLE
    raise NodeNotReady(
        f"{path} {'does not exist' if host.resolve(path) is None else 'cannot be parsed'}, so the kernel has no such"
        " MIG instance: the layout of the GPU was changed; the next attempt searches for the device again",
        about=about,
    )


def _shown(host: HostFiles, path: str, default_mode: int) -> tuple[int, int] | None:
    """Minor and permission bits in the kernel's file of a capability; None where there is none."""
    fields = host.fields(path)
    minor, mode = (whole_number(fields.get(name, "")) for name in ("DeviceFileMinor", "DeviceFileMode"))
    return None if minor is None else (minor, default_mode if mode is None else mode)


def _minor_by_table(host: HostFiles, name: str) -> int | None:
    lines = (line.split() for line in (host.read_text(_ALL) or "").splitlines())
    return next((whole_number(parts[1]) for parts in lines if len(parts) == 2 and parts[0] == name), None)
