"""The host's files with a memory: what discovery looked at, and what else lies in the same places.

`RecordingFiles` goes where `HostFiles` goes. Every place that it was asked about is noted, and `Capture` then looks at
all of them at once: a look twice costs little, and the record shows one moment. Text is kept of sysfs and /proc only,
because nothing else is known to be free of secrets.
"""

import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from kubelet_plugin.hardware.driver_files import (
    DRIVER_LIBRARIES_CACHED,
    ELF_64_BIT,
    LINKER_CACHE,
    cached_libraries,
    elf_header,
)
from kubelet_plugin.hardware.layouts import BINARY_FOLDERS
from kubelet_plugin.hardware.sysfs import DeviceFile, HostFiles
from kubelet_plugin.hardware.vfio import GpuUser
from kubelet_plugin.simulation.recorded.format import Elf, File

_READABLE = re.compile(
    r"/proc/(devices|driver/.*|modules|\d+/comm|sys/kernel/(osrelease|random/boot_id))|/sys/.*|/etc/os-release"
    r"|/usr/lib/os-release"
)
_ALIASES = re.compile(r"/lib/modules/[^/]+/modules\.alias|/usr/lib/modules/[^/]+/modules\.alias")
"""Of kernel modules, of which only those for VFIO are kept."""
_LISTED = re.compile(r"/(sys|dev|proc/driver)(/|$)")
"""Folders whose names are all kept; in other folders, only names that discovery or a question looked up."""
_MOST_TEXT = 512 * 1024
_PROCESS = re.compile(r"/proc/(self|\d+)(/.*)?")
_MOST_ENTRIES = 100_000


class RecordingFiles(HostFiles):
    """Adds the host paths that were looked at to `looked`. `prefix` is the host folder that is the root here."""

    def __init__(self, root: Path, looked: set[str], prefix: str = "") -> None:
        super().__init__(root)
        self._looked = looked
        self._prefix = prefix

    def below(self, host_path: str | PurePosixPath) -> HostFiles:
        return RecordingFiles(self.path(host_path), self._looked, f"{self._prefix}/{str(host_path).strip('/')}")

    def path(self, host_path: str | PurePosixPath) -> Path:
        self._looked.add(f"{self._prefix}/{str(host_path).lstrip('/')}")
        return super().path(host_path)

    def names(self, folder: str) -> list[str]:
        results = super().names(folder)
        if _LISTED.match(folder):
            self._looked.update(f"{self.resolve(folder)}/{name}" for name in results)
        return results

    def _link_text(self, place: str) -> str:
        self._looked.add(self._prefix + place)
        return super()._link_text(place)


class Capture:
    """Entries of a record for places below `root`, the host's root for this process."""

    def __init__(self, root: Path) -> None:
        self._root = str(root).rstrip("/")
        self._files = HostFiles(root)
        self._entries: dict[str, File] = {}

    def add(self, places: Iterable[str]) -> None:
        """What is at these host paths, and the folders and links on the way. What is not there is left out."""
        for place in sorted(places):
            if not _PROCESS.fullmatch(place) and len(self._entries) < _MOST_ENTRIES:
                self._add(place)

    def add_tree(self, folder: str, *, depth: int = 8) -> None:
        """A folder with all that is below it. Links are kept as links."""
        self.add([folder])
        if depth and (entry := self._entries.get(folder)) is not None and entry.kind == "folder":
            for name in self._files.names(folder):
                self.add_tree(f"{folder}/{name}", depth=depth - 1)

    def add_users(self, node: str, programs: Iterable[GpuUser]) -> None:
        """Programs that have the device node `node` open, which is a path below /dev."""
        for program in programs:
            folder = f"/proc/{program.pid}"
            self._entries[f"{folder}/comm"] = File(path=f"{folder}/comm", kind="file", text=f"{program.command}\n")
            path = f"{folder}/fd/{len([entry for entry in self._entries if entry.startswith(f'{folder}/fd/')])}"
            self._entries[path] = File(path=path, kind="link", target=f"/dev/{node}")

    def files(self) -> tuple[File, ...]:
        return tuple(sorted(self._entries.values(), key=lambda entry: entry.path))

    def _add(self, place: str) -> None:
        path = ""
        for part in PurePosixPath(place).parts[1:]:
            path = f"{path}/{part}"
            if path not in self._entries:
                entry = self._entry(path)
                if entry is None:
                    return
                self._entries[path] = entry
            if self._entries[path].kind != "folder":
                return

    def _entry(self, path: str) -> File | None:
        try:
            status = os.lstat(self._root + path)
            if stat.S_ISLNK(status.st_mode):
                return File(path=path, kind="link", target=str(Path(self._root + path).readlink()))
        except OSError:
            return None
        node = self._files.device_node(path)
        if node is not None:
            return _of_node(path, node)
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISDIR(status.st_mode):
            return File(path=path, kind="folder")
        if stat.S_ISSOCK(status.st_mode):
            return File(path=path, kind="socket", mode=mode, gid=status.st_gid)
        if not stat.S_ISREG(status.st_mode):
            return File(path=path, kind="other", mode=mode)
        return File(
            path=path, kind="file", size=status.st_size, mode=mode, text=self._text(path), elf=_elf(self._root + path)
        )

    def _text(self, path: str) -> str | None:
        if path.endswith(LINKER_CACHE):  # of which a record has the paths of the driver's libraries, a line each
            try:
                data = Path(self._root + path).read_bytes()
            except OSError:
                return None
            return "".join(
                f"{cached_library}\n" for cached_library in sorted(set(cached_libraries(data, DRIVER_LIBRARIES_CACHED)))
            )
        if _ALIASES.fullmatch(path):
            lines = (self._files.read_text(path) or "").splitlines()
            return "".join(f"{line}\n" for line in lines if " vfio_pci:" in line)
        if not _READABLE.fullmatch(path):
            return None
        try:
            with Path(self._root + path).open(encoding="utf-8", errors="replace") as file:
                return file.read(_MOST_TEXT)
        except OSError:
            return None


def _of_node(path: str, node: DeviceFile) -> File:
    return File(
        path=path,
        kind="char" if node.type == "c" else "block",
        major=node.major,
        minor=node.minor,
        mode=node.mode,
        gid=node.gid,
    )


def _elf(path: str) -> Elf | None:
    header = elf_header(Path(path)) if ".so" in path else None
    return Elf(bits=64 if header[0] == ELF_64_BIT else 32, machine=header[1]) if header is not None else None


_GPU_FACTS = (
    *("class", "current_link_speed", "current_link_width", "device", "driver", "driver_override", "drm", "enable"),
    *("iommu_group", "local_cpulist", "max_link_speed", "max_link_width", "modalias", "numa_node", "physfn"),
    *("power_state", "reset_method", "revision", "sriov_numvfs", "sriov_totalvfs", "subsystem_device"),
    *("subsystem_vendor", "vendor", "vfio-dev"),
)
_OF_A_DRIVER = re.compile(r"nvidia|cuda|nvcuvid|nvoptix|vdpau|GLX|EGL|GLES|gbm|vulkan|imex|\.icd$|^gsp_", re.IGNORECASE)
_DEVICE_FOLDERS = ("", "/dri", "/nvidia-caps", "/nvidia-caps-imex-channels", "/vfio", "/vfio/devices")
_DEVICE = re.compile(r"nvidia.*|card\d+|renderD\d+|vfio.*|iommu|\d+|cap\d*|channel\d+|gdrdrv")
_DRIVER_FOLDERS = (
    *("/etc/OpenCL/vendors", "/etc/vulkan/icd.d", "/etc/vulkan/implicit_layer.d", "/run/nvidia-persistenced"),
    *("/run/nvidia-fabricmanager", "/usr/share/nvidia", "/usr/share/glvnd/egl_vendor.d"),
    "/usr/share/egl/egl_external_platform.d",
)


def further_places(files: HostFiles, driver_root: str | None, library_folders: Iterable[str]) -> Iterator[str]:
    """What may be worth knowing later, of the kernel and of a driver: names as far as they are its own."""
    yield from (
        "/proc/devices",
        "/proc/modules",
        "/proc/sys/kernel/osrelease",
        "/etc/os-release",
        "/usr/lib/os-release",
    )
    yield from ("/sys/fs/selinux/enforce", "/dev/iommu", "/run/systemd/private")
    for gpu in files.nvidia_gpus():
        resolved = files.resolve(f"/sys/bus/pci/devices/{gpu.address}")
        yield from (f"{resolved}/{name}" for name in _GPU_FACTS)
    for root in {"", (driver_root or "").rstrip("/")}:
        for folder in _DEVICE_FOLDERS:
            yield from _matching(files, f"{root}/dev{folder}", _DEVICE)
        for folder in (*BINARY_FOLDERS, *_DRIVER_FOLDERS):
            yield from _matching(files, f"{root}{folder}", _OF_A_DRIVER)
    for folder in library_folders:
        yield from _matching(files, folder, _OF_A_DRIVER)
        yield from _matching(files, f"{folder}/vdpau", _OF_A_DRIVER)


def _matching(files: HostFiles, folder: str, pattern: re.Pattern[str]) -> Iterator[str]:
    resolved = files.resolve(folder)
    if resolved is not None:
        yield from (f"{resolved}/{name}" for name in files.names(folder) if pattern.search(name))
