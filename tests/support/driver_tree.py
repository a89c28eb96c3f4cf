"""Hosts with a driver in odd places, built file by file: what simulated nodes, which are complete, do not show."""

import os
import struct
from pathlib import Path

from kubelet_plugin.hardware import driver_files
from kubelet_plugin.hardware.sysfs import HostFiles, described_node

VERSION = "580.82.07"


class DriverTree:
    """A host below `root`, empty at first. Paths are the host's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)

    @property
    def host(self) -> HostFiles:
        return HostFiles(self.root)

    def path(self, host_path: str) -> Path:
        return self.root / host_path.lstrip("/")

    def file(self, host_path: str, content: str | bytes = "") -> None:
        place = self.path(host_path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)

    def program(self, host_path: str, script: str) -> None:
        self.file(host_path, f"#!/bin/sh\n{script}\n")
        self.path(host_path).chmod(0o755)

    def folder(self, host_path: str) -> None:
        self.path(host_path).mkdir(parents=True, exist_ok=True)

    def link(self, host_path: str, target: str) -> None:
        place = self.path(host_path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.symlink_to(target)

    def remove(self, host_path: str) -> None:
        self.path(host_path).unlink()

    def node(self, host_path: str, major: int, minor: int, mode: int = 0o666) -> None:
        self.file(host_path, described_node("c", major, minor, mode))

    def libraries(self, folder: str, *names: str, version: str = VERSION) -> None:
        """Libraries with their version, and no links."""
        for name in names or ("libcuda", "libnvidia-ml"):
            self.file(f"{folder.rstrip('/')}/{name}.so.{version}", f"{name} {version}")

    def control_nodes(self, root: str = "") -> None:
        self.node(f"{root}/dev/nvidiactl", 195, 255)
        self.node(f"{root}/dev/nvidia-uvm", 508, 0)

    def kernel_module(self, version: str = VERSION, *, open_module: bool = True) -> None:
        name = "NVIDIA UNIX Open Kernel Module for x86_64" if open_module else "NVIDIA UNIX x86_64 Kernel Module"
        self.file(
            "/proc/driver/nvidia/version",
            f"NVRM version: {name}  {version}  Release Build  (root@host)\nGCC version:  gcc version 12.2.0\n",
        )

    def complete(self, root: str = "", folder: str = "/usr/lib/x86_64-linux-gnu", version: str = VERSION) -> None:
        """The least that makes a driver complete."""
        self.libraries(root + folder, version=version)
        self.control_nodes(root)

    def settle(self) -> None:
        """Let everything here have been changed long ago."""
        for place in (self.root, *self.root.rglob("*")):
            os.utime(place, (1_700_000_000, 1_700_000_000), follow_symlinks=False)

    def keep_changing(self, host_path: str) -> None:
        """Let `host_path` be changed right now, whenever that is."""
        os.utime(self.path(host_path), (4_000_000_000, 4_000_000_000))


def elf_library(*, machine: int = 62, bits: int = 64) -> bytes:
    """The beginning of a shared library; `machine` 62 is x86_64, 183 aarch64, 3 i386."""
    return b"\x7fELF" + bytes([2 if bits == 64 else 1, 1, 1]) + bytes(9) + struct.pack("<HHI", 3, machine, 1)


def linker_cache(*libraries: str, older_format_before: bool = False) -> bytes:
    """An ld.so.cache that knows these libraries, by their paths."""
    return (b"ld.so-1.7.0\0\0\0\0\0" if older_format_before else b"") + driver_files.linker_cache(libraries)
