"""Files and links of a simulated host's tree, and where its GPUs lie in sysfs. For the modules of this package."""

import os
import posixpath
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from kubelet_plugin.simulation.state import GpuState, NodeState


def path(root: Path, host_path: PurePosixPath | str) -> Path:
    return root / str(host_path).lstrip("/")


def write(root: Path, host_path: PurePosixPath | str, text: str) -> None:
    # Plain strings, here and below: a machine is some three hundred files, and tests make hundreds of machines.
    place = f"{root}/{str(host_path).lstrip('/')}"
    try:
        _write(place, text)
    except FileNotFoundError:
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        _write(place, text)


def _write(place: str, text: str) -> None:
    with open(place, "w", encoding="utf-8") as file:
        file.write(text)


def link(root: Path, host_path: PurePosixPath, target: PurePosixPath) -> None:
    """A relative link, as sysfs has them; it leads to the right place from outside the root, too."""
    link_text(root, host_path, posixpath.relpath(target, host_path.parent))


def link_text(root: Path, host_path: PurePosixPath, text: str) -> None:
    """A link that says `text`."""
    place = f"{root}/{str(host_path).lstrip('/')}"
    try:
        _link(place, text)
    except FileNotFoundError:
        Path(place).parent.mkdir(parents=True, exist_ok=True)
        _link(place, text)


def _link(place: str, text: str) -> None:
    try:
        os.symlink(text, place)
    except FileExistsError:
        os.unlink(place)
        os.symlink(text, place)


def device_folders(state: NodeState) -> Iterator[PurePosixPath]:
    """A driver in a container makes its nodes in the container's /dev; the host's has them too."""
    yield PurePosixPath("/dev")
    if state.recorded is not None and state.recorded.driver_root != "/":
        yield PurePosixPath(state.recorded.driver_root) / "dev"
    elif state.layout == "operator":
        yield PurePosixPath("/run/nvidia/driver/dev")


def function_folder(complex_: str, address: str) -> PurePosixPath:
    """Behind one port of the root complex, as PCIe has it: /sys/devices/pci0000:15/0000:15:01.0/0000:1b:00.0."""
    port = f"{complex_.removeprefix('pci')}:01.0"
    return PurePosixPath(f"/sys/devices/{complex_}/{port}/{address}")


def pci_folder(gpu: GpuState) -> PurePosixPath:
    if gpu.recorded is not None and gpu.recorded.folder is not None:
        return PurePosixPath(gpu.recorded.folder)
    return function_folder(gpu.root, gpu.address)
