"""Where drivers are on hosts: roots, folders of libraries and programs, sockets of daemons. One list of each.

docs/hardware.md has a table of the systems behind these lists; a test compares the two.
"""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from kubelet_plugin.hardware.sysfs import HostFiles

DRIVER_ROOTS = ("/run/nvidia/driver", "/", "/home/kubernetes/bin/nvidia")
"""The GPU Operator's driver container; packages on the host and most distributions; GKE with Container-Optimized OS."""

_DISTRIBUTIONS = (
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
)

LIBRARY_FOLDERS = (
    *_DISTRIBUTIONS,
    *(f"{folder}/nvidia/current" for folder in _DISTRIBUTIONS),  # Debian's alternatives
    "/usr/local/glibc/usr/lib",  # Talos
    "/usr/local/glibc/lib",
    "/opt/nvidia/current/usr/lib64",  # Flatcar's nvidia.service
    "/usr/lib/nvidia/tesla",  # Bottlerocket
    "/usr/lib/nvidia",
    "/run/opengl-driver/lib",  # NixOS
    "/usr/lib",  # Arch
    "/",  # a root with nothing but libraries
)
"""Below a driver root, best first."""

BINARY_FOLDERS = (
    "/opt/bin",  # Flatcar's nvidia.service
    "/usr/bin",
    "/usr/sbin",
    "/bin",  # GKE
    "/sbin",
    "/usr/local/bin",  # Talos
    "/usr/libexec/nvidia/tesla/bin",  # Bottlerocket
    "/run/current-system/sw/bin",  # NixOS
)
"""Below a driver root, best first."""


def program_below(host: HostFiles, root: str, name: str) -> PurePosixPath | None:
    """The path below `root` of the driver's program `name`, links followed there; None when the root has none."""
    files = _below(host, root)
    return _first(files, BINARY_FOLDERS, name) if files is not None else None


def library_below(host: HostFiles, root: str, name: str) -> Path | None:
    """Where this process finds the library `name` of the driver below `root`; None when the root has none."""
    files = _below(host, root)
    library = _first(files, LIBRARY_FOLDERS, name) if files is not None else None
    return files.path(library) if files is not None and library is not None else None


def _below(host: HostFiles, root: str) -> HostFiles | None:
    resolved = host.resolve(root)
    if resolved is None:
        return None
    return host if root == "/" else host.below(resolved)


def _first(files: HostFiles, folders: Sequence[str], name: str) -> PurePosixPath | None:
    paths = (files.resolve(f"{folder}/{name}") for folder in folders)
    return next((path for path in paths if path is not None), None)


FABRIC_MANAGER, PERSISTENCE_DAEMON = "nvidia-fabricmanager", "nvidia-persistenced"


def daemon_socket(host: HostFiles, driver_root: str | None, daemon: str = PERSISTENCE_DAEMON) -> str | None:
    """The host path of its socket; None when there is none, and so no daemon.

    A driver container runs its own daemons: then the socket is in `/run` below the driver root.
    """
    below_root = [f"{driver_root.rstrip('/')}/run"] if driver_root is not None else []
    for folder in (*below_root, "/run", "/var/run"):
        path = f"{folder}/{daemon}/socket"
        if host.resolve(path) is not None:
            return path
    return None
