"""The device nodes by which a program gets at a MIG device: one for its GPU instance, one for its compute instance.

`kubelet_plugin.hardware.driver_root` enters here. The kernel module shows in /proc which capabilities exist, with the
minor number of each; there is one for every instance that exists. Two others are of no MIG device and are never given
away: `mig/config`, which lets its owner divide GPUs, and `mig/monitor`.
"""

from dra_driver.cdi.model import DeviceNode
from dra_driver.errors import NodeNotReady
from kubelet_plugin.hardware.sysfs import HostFiles

_CLASS = "nvidia-caps"
_EXISTING = "/proc/driver/nvidia/capabilities"
_ALL = "/proc/driver/nvidia-caps/mig-minors"
_READABLE = 0o444


def capability_nodes(host: HostFiles, about: str, gpu_minor: int, gi: int, ci: int) -> tuple[DeviceNode, ...]:
    """The nodes of GPU instance `gi` and of compute instance `ci` in it, in this order.

    With their numbers in the CDI spec the host need not have the nodes themselves.
    Raises NodeNotReady when there is no such instance, or the kernel has no capabilities.
    """
    major = host.device_majors().get(_CLASS)
    if major is None:
        raise NodeNotReady(
            f"the kernel has no device class {_CLASS} in /proc/devices, which MIG devices need: load the nvidia kernel"
            " module of a driver that knows MIG",
            about=about,
        )
    names = (f"gi{gi}/access", f"gi{gi}/ci{ci}/access")
    return tuple(_node(major, *_capability(host, about, gpu_minor, name)) for name in names)


def _node(major: int, minor: int, mode: int) -> DeviceNode:
    return DeviceNode(
        path=f"/dev/nvidia-caps/nvidia-cap{minor}",
        type="c",
        major=major,
        minor=minor,
        file_mode=mode,
        permissions="rw",
    )


def _capability(host: HostFiles, about: str, gpu_minor: int, name: str) -> tuple[int, int]:
    """Minor and permission bits. The kernel's own file of an existing instance decides; the table of all possible ones
    only where the kernel shows none."""
    path = f"{_EXISTING}/gpu{gpu_minor}/mig/{name}"
    text = host.read_text(path)
    if text is not None:
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        minor, mode = _number(fields.get("DeviceFileMinor")), _number(fields.get("DeviceFileMode"))
        if minor is not None:
            return minor, mode if mode is not None else _READABLE
    elif host.resolve(_EXISTING) is None:
        minor = _minor_by_table(host, f"gpu{gpu_minor}/{name}")
        if minor is not None:
            return minor, _READABLE
    raise NodeNotReady(
        f"{path} {'does not exist' if text is None else 'cannot be parsed'}, so the kernel has no such MIG instance:"
        " the layout of the GPU was changed; the next attempt searches for the device again",
        about=about,
    )


def _minor_by_table(host: HostFiles, name: str) -> int | None:
    lines = (line.split() for line in (host.read_text(_ALL) or "").splitlines())
    return next((_number(parts[1]) for parts in lines if len(parts) == 2 and parts[0] == name), None)


def _number(text: str | None) -> int | None:
    stripped = (text or "").strip()
    return int(stripped) if stripped.isdigit() else None
