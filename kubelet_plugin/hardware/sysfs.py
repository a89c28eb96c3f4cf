"""The kernel's view of the node: PCI, NUMA, device nodes, boot id; every host path goes through `HostFiles`.

Discovery enters here for what NVML does not know, prepare and `kubelet_plugin.hardware.driver_root` for device nodes
and for following links inside a root. A simulated host is just another root: nothing here asks which kind it is.
Nothing here writes. A fact that the kernel does not give is None, never an error.

`kubelet_plugin.hardware.driver_root` keeps a result together with the `Seen` of the scan that gave it. Checking costs
one stat call for each path: names of files come and go with their folder's time stamp, a remounted or replaced folder
is another inode, and a folder that did not exist is watched through the nearest one that did.
"""

import errno
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from operator import eq
from pathlib import Path, PurePosixPath
from typing import Literal

from dra_driver.errors import NodeNotReady

_PCI_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE)
_PCI_DEVICES = "/sys/bus/pci/devices"
_PCI_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")
_DESCRIBED_NODE = re.compile(
    r"simulated device node (?P<type>[cb]) (?P<major>\d+):(?P<minor>\d+) (?P<mode>0[0-7]{3})(?: gid (?P<gid>\d+))?\s*"
)

_NVIDIA_VENDOR = 0x10DE
_DISPLAY_CLASSES = (0x0300, 0x0302)
"""VGA and 3D controllers; the GPU's audio and USB functions and NVSwitch bridges are of other classes."""

_MOST_LINKS = 40
"""Linux gives up after as many symbolic links (MAXSYMLINKS)."""


def pci_address(text: str) -> str:
    """A PCI address in sysfs' spelling, `0000:1b:00.0`, from that of NVML, nvidia-smi or sysfs.

    The domain has four digits, and five or more only above ffff (VMD), as the kernel prints it (`%04x`).
    Raises ValueError for anything that is not domain:bus:device.function.
    """
    match = _PCI_ADDRESS.fullmatch(text)
    if match is None:
        raise ValueError(f"not a PCI address: {text!r}")
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}".lower()


def nvml_bus_id(address: str) -> str:
    """A PCI address in NVML's spelling (`busId`): 8-digit domain, upper case, `00000000:1B:00.0`."""
    domain, rest = pci_address(address).split(":", 1)
    return f"{int(domain, 16):08X}:{rest.upper()}"


@dataclass(frozen=True, slots=True)
class PciFacts:
    """One PCI function as sysfs shows it. `root` is `pci0000:15`; `driver` the bound kernel driver."""

    address: str
    numa_node: int | None = None
    root: str | None = None
    vendor: int | None = None
    device: int | None = None
    device_class: int | None = None
    driver: str | None = None
    iommu_group: int | None = None
    drm_nodes: tuple[str, ...] = ()
    """Names below /dev/dri, sorted: `card1`, `renderD129`."""

    @property
    def is_nvidia_gpu(self) -> bool:
        return (
            self.vendor == _NVIDIA_VENDOR
            and self.device_class is not None
            and self.device_class >> 8 in _DISPLAY_CLASSES
        )


@dataclass(frozen=True, slots=True)
class DeviceFile:
    """A device node that exists. `path` is the host's; `mode` the permission bits, `gid` the owning group."""

    path: str
    type: Literal["c", "b"]
    major: int
    minor: int
    mode: int
    gid: int = 0


class HostFiles:
    """The host's files below `root`; host paths are absolute with any root.

    `runtime_root` is what the container runtime calls that root. It is `/`, except for a simulated host: that is a
    folder for the runtime, too, which can so mount files of it into real containers.
    """

    def __init__(self, root: Path, *, runtime_root: str = "/") -> None:
        self.root = root
        self._root = str(root).rstrip("/")
        self._runtime_root = PurePosixPath(runtime_root)

    def for_runtime(self, host_path: str | PurePosixPath) -> str:
        """A host path as the container runtime must get it."""
        return str(self._runtime_root / str(host_path).lstrip("/"))

    def path(self, host_path: str | PurePosixPath) -> Path:
        """Where `host_path` lies for this process. Links on the way are the caller's: see `resolve`."""
        return self.root / str(host_path).lstrip("/")

    def resolve(self, host_path: str | PurePosixPath, folder: str = "") -> PurePosixPath | None:
        """The host path that `host_path` leads to, links followed inside the root; None when nothing is there.

        An absolute link means the host's file, not this process', and no link leads out of the root. `folder` is as in
        `read_text`.
        """
        resolved = self._resolved(str(host_path), folder)
        return PurePosixPath(resolved) if resolved is not None else None

    def _resolved(self, host_path: str, folder: str = "") -> str | None:
        """`host_path` is relative to `folder`, which is resolved already."""
        # Plain strings: a scan of a driver root asks some hundred times.
        done, links = folder.split("/")[1:], 0
        todo = host_path.split("/")[::-1]
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                del done[-1:]
                continue
            try:
                target = self._link_text("/".join(("", *done, part)))
            except OSError as error:
                if error.errno != errno.EINVAL:
                    return None
                done.append(part)  # there, and not a link
                continue
            links += 1
            if links > _MOST_LINKS:
                return None
            if target.startswith("/"):
                done.clear()
            todo.extend(target.split("/")[::-1])
        return "/" + "/".join(done)

    def _link_text(self, place: str) -> str:
        """Of the link at `place`, which has none on its way. Every look into the tree comes by here. Raises OSError."""
        return os.readlink(self._root + place)  # noqa: PTH115 - hundreds a look

    def below(self, host_path: str | PurePosixPath) -> "HostFiles":
        """The tree below a folder, as a root of its own: no link leads out of it."""
        return HostFiles(self.path(host_path))

    def read_text(self, host_path: str, folder: str = "") -> str | None:
        """The content without surrounding white space, links followed inside the root; None when unreadable.

        With a `folder`, which `resolve` answered, the path is relative to it, and the way to it is not walked again.
        """
        resolved = self._resolved(host_path, folder)
        return self._text(resolved) if resolved is not None else None

    def _text(self, place: str) -> str | None:
        try:
            with open(self._root + place, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - see resolve
                return file.read().strip()
        except OSError:
            return None

    def fields(self, host_path: str) -> dict[str, str]:
        """A file of the kernel with lines of `Name: value`; empty when it cannot be read."""
        pairs = (line.partition(":") for line in (self.read_text(host_path) or "").splitlines())
        return {name.strip(): value.strip() for name, _, value in pairs}

    def boot_id(self) -> str:
        """Differs after every boot. Raises NodeNotReady when the kernel's file is not there."""
        boot_id = self.read_text("/proc/sys/kernel/random/boot_id")
        if not boot_id:
            raise NodeNotReady(
                "cannot be read; the host root must be the / of this machine, with its /proc",
                about=f"file {self.path('/proc/sys/kernel/random/boot_id')}",
            )
        return boot_id

    def kernel_driver_version(self) -> str | None:
        """What the loaded NVIDIA kernel module says of itself, as one text; None when it is not loaded."""
        return self.read_text("/proc/driver/nvidia/version")

    def device_majors(self) -> dict[str, int]:
        """Character device classes of /proc/devices to their majors: `nvidia-uvm` → 511. Majors can be dynamic."""
        majors: dict[str, int] = {}
        for line in (self.read_text("/proc/devices") or "").splitlines():
            if line.startswith("Block devices"):
                break
            number, _, name = line.strip().partition(" ")
            if number.isdigit() and name:
                majors.setdefault(name.strip(), int(number))
        return majors

    def device_node(self, host_path: str) -> DeviceFile | None:
        """The device node at `host_path`; None when there is none, or something else.

        A host in a folder cannot hold real nodes without privileges: there a small file describes one.
        """
        resolved = self.resolve(host_path)
        if resolved is None:
            return None
        try:
            status = self.path(resolved).stat()
        except OSError:
            return None
        if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            return DeviceFile(
                path=host_path,
                type="c" if stat.S_ISCHR(status.st_mode) else "b",
                major=os.major(status.st_rdev),
                minor=os.minor(status.st_rdev),
                mode=stat.S_IMODE(status.st_mode),
                gid=status.st_gid,
            )
        return self._described_node(host_path, resolved) if stat.S_ISREG(status.st_mode) else None

    def _described_node(self, host_path: str, resolved: PurePosixPath) -> DeviceFile | None:
        match = _DESCRIBED_NODE.fullmatch(self.read_text(str(resolved)) or "")
        if match is None:
            return None
        return DeviceFile(
            path=host_path,
            type="c" if match["type"] == "c" else "b",
            major=int(match["major"]),
            minor=int(match["minor"]),
            mode=int(match["mode"], 8),
            gid=int(match["gid"] or 0),
        )

    def mode(self, resolved: PurePosixPath) -> int | None:
        """Type and permissions of what is at a path that `resolve` answered; None when that cannot be read."""
        try:
            return self.path(resolved).stat().st_mode
        except OSError:
            return None

    def names(self, folder: str) -> list[str]:
        """What is in a folder, in no order; empty when there is none, or when it cannot be read."""
        resolved = self._resolved(folder)
        if resolved is None:
            return []
        try:
            return os.listdir(self._root + resolved)  # noqa: PTH208 - see resolve
        except OSError:
            return []

    def pci(self, address: str) -> PciFacts:
        """What sysfs says of the function at `address` (sysfs' spelling). All None when it is not there."""
        folder = self._resolved(f"{_PCI_DEVICES}/{address}")
        return self._pci_in(folder) if folder is not None else PciFacts(address)

    def _pci_in(self, folder: str) -> PciFacts:
        """`folder` is where the link of a function leads."""
        place = PurePosixPath(folder)
        numa_node = _number(self.read_text("numa_node", folder))
        iommu_group = self.resolve("iommu_group", folder)
        driver = self.resolve("driver", folder)
        return PciFacts(
            address=place.name,
            numa_node=numa_node if numa_node is not None and numa_node >= 0 else None,
            root=_pci_root(place),
            vendor=_number(self.read_text("vendor", folder)),
            device=_number(self.read_text("device", folder)),
            device_class=_number(self.read_text("class", folder)),
            driver=driver.name if driver is not None else None,
            iommu_group=_number(iommu_group.name) if iommu_group is not None else None,
            drm_nodes=tuple(
                sorted(name for name in self.names(f"{folder}/drm") if name.startswith(("card", "renderD")))
            ),
        )

    def nvidia_gpus(self) -> tuple[PciFacts, ...]:
        """All NVIDIA GPUs on the PCI bus, by address, with any driver; no virtual functions."""
        return tuple(facts for facts in map(self._pci_in, self._nvidia_functions()) if facts.is_nvidia_gpu)

    def _nvidia_functions(self) -> Iterator[str]:
        """Folders of physical functions. A large machine has hundreds, most of which have another vendor."""
        devices = self._resolved(_PCI_DEVICES)
        if devices is None:
            return
        for name in sorted(self.names(devices)):
            # Links of sysfs are relative, so the kernel's way is the same, and many times as fast.
            if _number(self._text(f"{devices}/{name}/vendor")) == _NVIDIA_VENDOR:
                folder = self._resolved(name, devices)
                if folder is not None and self._resolved("physfn", folder) is None:
                    yield folder


def described_node(kind: Literal["c", "b"], major: int, minor: int, mode: int = 0o666, gid: int = 0) -> str:
    """The text of a file that stands for a device node below a folder: see `HostFiles.device_node`."""
    group = f" gid {gid}" if gid else ""
    return f"simulated device node {kind} {major}:{minor} {mode:04o}{group}\n"


def _pci_root(folder: PurePosixPath) -> str | None:
    """The root complex of a function whose resolved folder in sysfs is `folder`."""
    if folder.parts[:3] != ("/", "sys", "devices") or len(folder.parts) < 5:
        return None
    root = folder.parts[3]
    return root if _PCI_ROOT.fullmatch(root) else None


def _number(text: str | None) -> int | None:
    try:
        return int(text, 0) if text is not None else None
    except ValueError:
        return None


_STILL_MOVING_NS = 50_000_000
"""Time stamps move in ticks of up to 10 ms: a folder that changed just now may change again with the same stamp."""

type _State = tuple[int, int, int, int] | None


class Seen:
    """Grows while a scan runs, on one thread; afterwards it is only compared."""

    def __init__(self) -> None:
        self._states: dict[str, _State] = {}
        self._moving = False

    def look(self, files: HostFiles, path: str | PurePosixPath) -> PurePosixPath | None:
        """Where `path` leads, links followed inside the root of `files`; None when nothing is there. Remembered."""
        resolved = files.resolve(path)
        existing, place = resolved, PurePosixPath(path)
        while existing is None and place != place.parent:
            place = place.parent
            existing = files.resolve(place)
        for item in {place, existing or place}:
            here = str(files.path(item))
            if here not in self._states:
                self._states[here] = state = _state(here)
                self._moving |= state is not None and time.time_ns() - state[2] < _STILL_MOVING_NS
        return resolved

    def unchanged(self) -> bool:
        return all(map(eq, map(_state, self._states), self._states.values()))

    def settled(self) -> bool:
        """Whether a change from now on would be noticed: nothing had changed just before it was looked at."""
        return not self._moving


def _state(path: str) -> _State:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
