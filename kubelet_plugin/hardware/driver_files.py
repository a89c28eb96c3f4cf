"""Which files of a driver root a container needs: libraries, links, programs, firmware, configuration, sockets.

`kubelet_plugin.hardware.driver_root` enters here with a root that it found. Patterns and places, not lists of what a
driver has: every library with the driver's version in its name belongs to it. What is found is sorted, and what
was looked at is remembered in a `Seen`. Nothing here decides whether a driver is complete.
"""

import ctypes
import posixpath
import re
import stat
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path, PurePosixPath
from platform import machine as this_machine

from dra_driver.cdi.edits import DriverFile, Link
from kubelet_plugin.hardware.layouts import BINARY_FOLDERS, LIBRARY_FOLDERS
from kubelet_plugin.hardware.sysfs import HostFiles, Seen

_BINARIES = (
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-debugdump",
    "nvidia-imex",
    "nvidia-imex-ctl",
    "nvidia-persistenced",
    "nvidia-smi",
    "nvidia-xconfig",
)

_CONFIG_FOLDERS = ("/etc", "/usr/share", "/usr/local/etc", "/usr/local/share", "/")
_CONFIG_FOR_USR_SHARE = (
    "X11/xorg.conf.d/10-nvidia.conf",
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
    "egl/egl_external_platform.d/09_nvidia_wayland2.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "egl/egl_external_platform.d/20_nvidia_xcb.json",
    "egl/egl_external_platform.d/20_nvidia_xlib.json",
    "glvnd/egl_vendor.d/10_nvidia.json",
    "nvidia/nvoptix.bin",
)
_CONFIG_FOR_ETC = (
    "OpenCL/vendors/nvidia.icd",
    "vulkan/icd.d/nvidia_icd.aarch64.json",
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_icd.x86_64.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
)
"""Loaders in a container look in the standard place, wherever the host has the file (GKE: at the top of the root)."""

_SOCKETS = ("/run/nvidia-persistenced/socket", "/var/run/nvidia-persistenced/socket")
"""Never that of Fabric Manager, unlike NVIDIA's own tools: it exists where an administrator had it made for commands
(FM_CMD_UNIX_SOCKET_PATH), and who reaches it can activate and deactivate fabric partitions. Source: Fabric Manager User
Guide, "Fabric Manager SDK"; NVIDIA/enroot#231 shows a node without it."""

_XORG_MODULES = ("modules/drivers", "modules/extensions", "modules/updates/drivers", "modules/updates/extensions")
_XORG_FOLDERS = ("/usr/lib/xorg", "/usr/lib64/xorg", "/usr/X11R6/lib", "/usr/X11R6/lib64")

_OWN_VERSION = re.compile(r"libnvidia-(nvvm70\.so\.\d.*|egl-(gbm|wayland2?|xcb|xlib)\.so\.\d+\.\d+.*)")
"""Libraries of the driver that have a version of their own."""

_LINKED = {
    "libGLX_nvidia": (("libGLX_indirect.so.0", "libGLX_nvidia.so.{version}"),),
    "libcuda": (("libcuda.so.1", "libcuda.so.{version}"), ("libcuda.so", "libcuda.so.1")),
    "libglxserver_nvidia": (("libglxserver_nvidia.so", "libglxserver_nvidia.so.{version}"),),
    "libnvidia-allocator": (
        ("libnvidia-allocator.so.1", "libnvidia-allocator.so.{version}"),
        ("gbm/nvidia-drm_gbm.so", "../libnvidia-allocator.so.1"),
    ),
    "libnvidia-ml": (("libnvidia-ml.so.1", "libnvidia-ml.so.{version}"), ("libnvidia-ml.so", "libnvidia-ml.so.1")),
    "libnvidia-opticalflow": (
        ("libnvidia-opticalflow.so.1", "libnvidia-opticalflow.so.{version}"),
        ("libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1"),
    ),
    "libnvidia-vulkan-producer": (("libnvidia-vulkan-producer.so", "libnvidia-vulkan-producer.so.{version}"),),
}
"""Links that programs count on, by library, whether the host has them or not: link, and where it leads."""

_ELF_HEADER = struct.Struct("<4sB13xH")
_ELF_PROGRAM_HEADERS = struct.Struct("<32xQ14xHH")
_ELF_SEGMENT = struct.Struct("<I4xQ16xQ16x")
_PT_LOAD = 1
_ELF_MACHINES = {62: "x86_64", 183: "aarch64"}
ELF_64_BIT = 2

_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_CACHE_HEADER = struct.Struct("<20s2I20x")
_CACHE_ENTRY = struct.Struct("<i2IIQ")


LINKER_CACHE = "/etc/ld.so.cache"

DRIVER_LIBRARIES_CACHED = ("libcuda.so", "libnvidia-ml.so")
"""Where the linker's cache has these, the driver's other libraries are."""

_NVML = re.compile(r"libnvidia-ml\.so\.(\d+\.\d+(?:\.\d+)*)")


class DriverTree:
    """The files below one root, which the container runtime finds at `prefix`; containers see paths below the root."""

    def __init__(self, files: HostFiles, prefix: str, seen: Seen) -> None:
        self._files = files
        self._prefix = PurePosixPath(prefix)
        self._seen = seen
        self._looked: dict[PurePosixPath, PurePosixPath | None] = {}
        self._listed: dict[PurePosixPath, tuple[str, ...]] = {}
        self._folders = tuple(self._library_folders())

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders of libraries that exist, best first, as containers see them."""
        return tuple(map(str, self._folders))

    def nvml_versions(self) -> dict[str, PurePosixPath]:
        """Driver versions whose NVML library is here, to its host path."""
        versions: dict[str, PurePosixPath] = {}
        for folder in self._folders:
            for name in self._names(folder):
                match = _NVML.fullmatch(name)
                file = self._file(folder / name) if match is not None and match[1] not in versions else None
                if match is not None and file is not None and self._fits(file):
                    versions[match[1]] = PurePosixPath(file.host_path)
        return versions

    def libraries(self, version: str) -> tuple[DriverFile, ...]:
        """Every library of driver `version`: by its version, and the few with versions of their own."""
        files: dict[str, DriverFile] = {}
        for path in chain(self._versioned(version), self._own_versions(), self._xorg_modules(version)):
            # The best folder wins; a 32-bit library of the same name lies in another folder of some distributions.
            if path.name not in files and (file := self._file(path)) is not None and self._fits(file):
                files[path.name] = file
        return _sorted(files.values())

    def links(self, libraries: Sequence[DriverFile], version: str) -> tuple[Link, ...]:
        """The names under which programs look for `libraries`: links that are here, and some that must always exist."""
        links = {link.path: link for link in self._links_here(libraries)}
        for library in libraries:
            folder, name = posixpath.split(library.container_path)
            if name.endswith(f".so.{version}"):
                for link, target in _LINKED.get(_stem(name), ()):
                    path = f"{folder.rstrip('/')}/{link}"
                    links.setdefault(path, Link(path, target.format(version=version)))
        return tuple(sorted(links.values(), key=lambda link: link.path))

    def programs(self) -> tuple[DriverFile, ...]:
        return _sorted(self._first(f"{folder}/{name}" for folder in BINARY_FOLDERS) for name in _BINARIES)

    def configuration(self) -> tuple[DriverFile, ...]:
        wanted = {f"/usr/share/{name}": name for name in _CONFIG_FOR_USR_SHARE}
        wanted |= {f"/etc/{name}": name for name in _CONFIG_FOR_ETC}
        files = {
            path: self._first(f"{folder.rstrip('/')}/{name}" for folder in _CONFIG_FOLDERS)
            for path, name in wanted.items()
        }
        return _sorted(DriverFile(file.host_path, path) for path, file in files.items() if file is not None)

    def firmware(self, version: str, folders: Iterable[str]) -> tuple[DriverFile, ...]:
        """That of the GPU system processor, from the first of the kernel's firmware `folders` that has any."""
        for folder in folders:
            place = PurePosixPath(folder) / "nvidia" / version
            names = [name for name in self._names(place) if name.startswith("gsp") and name.endswith(".bin")]
            if names:
                return _sorted(self._file(place / name) for name in names)
        return ()

    def sockets(self) -> tuple[DriverFile, ...]:
        for path in map(PurePosixPath, _SOCKETS):
            self._look(path.parent)
            resolved = self._files.resolve(path)
            mode = self._files.mode(resolved) if resolved is not None else None
            if resolved is not None and mode is not None and not stat.S_ISDIR(mode):
                return (self._driver_file(path, resolved),)
        return ()

    def machine(self, libraries: Sequence[DriverFile]) -> str:
        """The machine that the driver is for, as in `x86_64-linux-gnu`."""
        cuda = [library for library in libraries if _stem(posixpath.basename(library.container_path)) == "libcuda"]
        for library in cuda:
            for machine in _ELF_MACHINES.values():
                if f"/{machine}-linux-gnu" in library.container_path:
                    return machine
        headers = [header for library in cuda if (header := self._elf_header(library)) is not None]
        return next((_ELF_MACHINES[machine] for _, machine in headers if machine in _ELF_MACHINES), this_machine())

    def _library_folders(self) -> Iterator[PurePosixPath]:
        """All that exist, best first, none twice; those of the linker's cache last, because it may be out of date."""
        done: set[PurePosixPath] = set()
        for path in map(PurePosixPath, (*LIBRARY_FOLDERS, *self._cached_folders())):
            resolved = self._look(path)
            if resolved is not None and resolved not in done:
                done.add(resolved)
                yield path

    def _cached_folders(self) -> list[str]:
        """Where the dynamic linker's cache of this root has the driver's libraries."""
        resolved = self._look(PurePosixPath(LINKER_CACHE))
        try:
            data = self._files.path(resolved).read_bytes() if resolved is not None else b""
        except OSError:
            return []
        return sorted({posixpath.dirname(path) for path in cached_libraries(data, DRIVER_LIBRARIES_CACHED)})

    def _versioned(self, version: str) -> Iterator[PurePosixPath]:
        for folder in self._folders:
            for place in (folder, folder / "vdpau"):
                yield from (place / name for name in self._names(place) if name.endswith(f".so.{version}"))

    def _own_versions(self) -> Iterator[PurePosixPath]:
        for folder in self._folders:
            for name in self._names(folder):
                # A link to a file of the same name is that file: NixOS has nothing but such links.
                target = self._target(folder / name) or name
                if _OWN_VERSION.fullmatch(name) and posixpath.basename(target) == name:
                    yield folder / name

    def _xorg_modules(self, version: str) -> Iterator[PurePosixPath]:
        wanted = ("nvidia_drv.so", f"libglxserver_nvidia.so.{version}")
        beside = [place for folder in self._folders for place in (folder / "nvidia/xorg", folder / "xorg")]
        for root in chain(beside, map(PurePosixPath, _XORG_FOLDERS)):
            if self._look(root) is not None:
                for place in (root, *(root / modules for modules in _XORG_MODULES)):
                    yield from (place / name for name in self._names(place) if name in wanted)

    def _links_here(self, libraries: Sequence[DriverFile]) -> Iterator[Link]:
        by_place = {library.host_path: library.container_path for library in libraries}
        stems = {_stem(posixpath.basename(path)) for path in by_place.values()}
        folders = {PurePosixPath(path).parent for path in by_place.values()}
        for folder in sorted({*self._folders, *folders}):
            for name in self._names(folder):
                target = self._target(folder / name) if _stem(name) in stems else None
                file = self._file(folder / name) if target is not None else None
                if target is None or file is None or file.host_path not in by_place:
                    continue
                path = str(folder / name)
                library = by_place[file.host_path]
                if path != library:
                    # A link by way of /etc/alternatives or another folder would lead nowhere in a container.
                    yield Link(path, target if "/" not in target else posixpath.relpath(library, folder))

    def _target(self, path: PurePosixPath) -> str | None:
        """The text of the link at `path`; None when it is not a link."""
        folder = self._look(path.parent)
        try:
            return str(self._files.path(folder / path.name).readlink()) if folder is not None else None
        except OSError:
            return None

    def _first(self, paths: Iterable[str]) -> DriverFile | None:
        return next((file for path in paths if (file := self._file(PurePosixPath(path))) is not None), None)

    def _file(self, path: PurePosixPath) -> DriverFile | None:
        """The regular file at `path`; None when there is none."""
        if self._look(path.parent) is None:
            return None
        resolved = self._files.resolve(path)
        if resolved is None or not stat.S_ISREG(self._files.mode(resolved) or 0):
            return None
        return self._driver_file(path, resolved)

    def _driver_file(self, path: PurePosixPath, resolved: PurePosixPath) -> DriverFile:
        return DriverFile(str(self._prefix / resolved.relative_to("/")), str(path))

    def _look(self, path: PurePosixPath) -> PurePosixPath | None:
        if path not in self._looked:
            self._looked[path] = self._seen.look(self._files, path)
        return self._looked[path]

    def _names(self, folder: PurePosixPath) -> tuple[str, ...]:
        if folder not in self._listed:
            resolved = self._look(folder)
            try:
                entries = self._files.path(resolved).iterdir() if resolved is not None else ()
                self._listed[folder] = tuple(sorted(entry.name for entry in entries))
            except OSError:
                self._listed[folder] = ()
        return self._listed[folder]

    def _fits(self, library: DriverFile) -> bool:
        header = self._elf_header(library)
        return header is None or header[0] == ELF_64_BIT

    def _elf_header(self, library: DriverFile) -> tuple[int, int] | None:
        return elf_header(self._files.path(PurePosixPath(library.host_path).relative_to(self._prefix)))


def elf_header(file: Path) -> tuple[int, int] | None:
    """Class (2: 64 bits) and machine; None for a file that is no ELF library."""
    try:
        with file.open("rb") as library:
            magic, bits, machine = _ELF_HEADER.unpack(library.read(_ELF_HEADER.size))
    except (OSError, struct.error):
        return None
    return (bits, machine) if magic == b"\x7fELF" else None


def load(file: Path) -> ctypes.CDLL:
    """The library, loaded into this process. Raises OSError.

    Also if the file ends before its last segment, as while a driver is installed: the kernel ends a process that loads
    such a file (SIGBUS). Source: elf(5), Elf64_Ehdr and Elf64_Phdr; mmap(2).
    """
    if file.stat().st_size < _loaded_bytes(file):
        raise OSError(f"{file} is shorter than its header says; it is still being copied, or damaged")
    return ctypes.CDLL(str(file))


def _loaded_bytes(file: Path) -> int:
    """Where the last segment ends that is loaded; 0 of a file that is no 64-bit ELF file, which the loader refuses."""
    header = elf_header(file)
    if header is None or header[0] != ELF_64_BIT:
        return 0
    with file.open("rb") as library:
        try:
            start, size, count = _ELF_PROGRAM_HEADERS.unpack(library.read(_ELF_PROGRAM_HEADERS.size))
            library.seek(start)
            segments = [_ELF_SEGMENT.unpack(library.read(size)[: _ELF_SEGMENT.size]) for _ in range(count)]
        except struct.error:
            return 0  # too short for its headers, which the loader reads before it maps anything
    return max((offset + length for kind, offset, length in segments if kind == _PT_LOAD), default=0)


def cached_libraries(cache: bytes, names: Sequence[str]) -> Iterator[str]:
    """Paths of the libraries in a dynamic linker's cache (ld.so.cache) whose names begin with one of `names`.

    Source: glibc, `struct cache_file_new`. A file in the older format only, or a damaged one, has none.
    """
    start = cache.find(_CACHE_MAGIC)
    if start < 0 or len(cache) < start + _CACHE_HEADER.size:
        return
    cache = cache[start:]
    count = _CACHE_HEADER.unpack_from(cache)[1]
    end = min(_CACHE_HEADER.size + count * _CACHE_ENTRY.size, len(cache))
    wanted = tuple(name.encode() for name in names)
    for offset in range(_CACHE_HEADER.size, end - _CACHE_ENTRY.size + 1, _CACHE_ENTRY.size):
        _, key, value, _, _ = _CACHE_ENTRY.unpack_from(cache, offset)
        if cache.startswith(wanted, key):
            yield cache[value : cache.find(b"\0", value)].decode(errors="replace")


def linker_cache(libraries: Sequence[str]) -> bytes:
    """A dynamic linker's cache that knows these libraries, by their paths. Source: glibc, `struct cache_file_new`."""
    start = _CACHE_HEADER.size + _CACHE_ENTRY.size * len(libraries)
    strings = entries = b""
    for library in libraries:
        key = start + len(strings)
        strings += posixpath.basename(library).encode() + b"\0"
        value = start + len(strings)
        strings += library.encode() + b"\0"
        entries += _CACHE_ENTRY.pack(0x0303, key, value, 0, 0)
    return _CACHE_HEADER.pack(_CACHE_MAGIC, len(libraries), len(strings)) + entries + strings


def _stem(name: str) -> str:
    """`libcuda` of libcuda.so, libcuda.so.1 and libcuda.so.580.82.07."""
    return name.partition(".so")[0]


def _sorted(files: Iterable[DriverFile | None]) -> tuple[DriverFile, ...]:
    return tuple(sorted((file for file in files if file is not None), key=lambda file: file.container_path))
