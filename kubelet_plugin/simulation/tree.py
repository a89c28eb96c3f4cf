"""Files and links of a simulated host's tree; where its GPUs are in sysfs; and the files of MIG instances.

The kernel has capabilities in /proc and nodes below /dev for every MIG instance that exists and for no other;
`kubelet_plugin.simulation.host` writes them whenever the division of a GPU changes. For the modules of this package.
"""

import os
import posixpath
import shutil
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path, PurePosixPath

from kubelet_plugin.hardware.sysfs import described_node
from kubelet_plugin.simulation.state import GpuState, NodeState


def path(root: Path, host_path: PurePosixPath | str) -> Path:
    return root / str(host_path).lstrip("/")


def write(root: Path, host_path: PurePosixPath | str, text: str) -> None:
    # Plain strings and descriptors, here and below: a machine is some three hundred files, and tests make hundreds of
    # machines.
    place = f"{root}/{str(host_path).lstrip('/')}"
    content = text.encode()
    try:
        _write(place, content)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        _write(place, content)


def _write(place: str, content: bytes) -> None:
    descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        # A regular file takes all that is written to it, or none where no space is left, which is an error.
        os.write(descriptor, content)
    finally:
        os.close(descriptor)


def link(root: Path, host_path: PurePosixPath, target: PurePosixPath) -> None:
    """A relative link, as sysfs has them; it leads to the right place from outside the root, too."""
    link_text(root, host_path, posixpath.relpath(target, host_path.parent))


def link_text(root: Path, host_path: PurePosixPath, text: str) -> None:
    """A link that says `text`."""
    place = f"{root}/{str(host_path).lstrip('/')}"
    try:
        _link(place, text)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        _link(place, text)


def _link(place: str, text: str) -> None:
    try:
        os.symlink(text, place)
    except FileExistsError:
        os.unlink(place)
        os.symlink(text, place)


def write_pci_ids(root: Path, folder: PurePosixPath, vendor: int, device: int, pci_class: int) -> None:
    """What sysfs says of a function of the bus."""
    for name, text in (("vendor", f"{vendor:04x}"), ("device", f"{device:04x}"), ("class", f"{pci_class:06x}")):
        write(root, folder / name, f"0x{text}\n")


def device_folders(state: NodeState) -> Iterator[PurePosixPath]:
    """A driver in a container makes its nodes in the container's /dev; the host's has them too."""
    yield PurePosixPath("/dev")
    if state.layout == "operator":
        yield PurePosixPath("/run/nvidia/driver/dev")


def function_folder(complex_: str, address: str) -> PurePosixPath:
    """Behind one port of the root complex, as PCIe has it: /sys/devices/pci0000:15/0000:15:01.0/0000:1b:00.0."""
    port = f"{complex_.removeprefix('pci')}:01.0"
    return PurePosixPath(f"/sys/devices/{complex_}/{port}/{address}")


def pci_folder(gpu: GpuState) -> PurePosixPath:
    return function_folder(gpu.root, gpu.address)


CAPS_MAJOR = 237

_GPUS, _GPU_INSTANCES, _COMPUTE_INSTANCES = 32, 15, 8
_FIRST_MINOR = 3
_MINORS_OF_A_GPU = _GPU_INSTANCES * (1 + _COMPUTE_INSTANCES)
_READABLE = 0o444


@cache
def mig_minors() -> str:
    """/proc/driver/nvidia-caps/mig-minors: every possible capability of 32 GPUs, 135 minors each, the first is 3."""
    lines = ["config 1", "monitor 2"]
    for gpu in range(_GPUS):
        for gpu_instance in range(_GPU_INSTANCES):
            lines.append(f"gpu{gpu}/gi{gpu_instance}/access {_minor(gpu, gpu_instance)}")
            lines += [
                f"gpu{gpu}/gi{gpu_instance}/ci{number}/access {_minor(gpu, gpu_instance, number)}"
                for number in range(_COMPUTE_INSTANCES)
            ]
    return "\n".join(lines) + "\n"


def capability_text(minor: int, mode: int) -> str:
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"


def capabilities(gpu: GpuState) -> dict[str, int]:
    """Minors of the capabilities that there are, by path below the GPU's `mig` folder."""
    minors = {}
    for instance in gpu.instances:
        minors[f"gi{instance.id}/access"] = _minor(gpu.minor, instance.id)
        for item in instance.compute_instances:
            minors[f"gi{instance.id}/ci{item.id}/access"] = _minor(gpu.minor, instance.id, item.id)
    return minors


def change_capabilities(
    root: Path, gpu_minor: int, before: dict[str, int], after: dict[str, int], device_folders: Iterable[PurePosixPath]
) -> None:
    """Make the files of one GPU those of `after`; `device_folders` are the /dev that get nodes."""
    folder = root / f"proc/driver/nvidia/capabilities/gpu{gpu_minor}/mig"
    nodes = [root / str(devices).lstrip("/") / "nvidia-caps" for devices in device_folders]
    # A compute instance goes before its GPU instance, whose folder it lies in.
    for name, minor in sorted(before.items() - after.items(), reverse=True):
        shutil.rmtree((folder / name).parent, ignore_errors=True)
        for devices in nodes:
            (devices / f"nvidia-cap{minor}").unlink(missing_ok=True)
    for name, minor in sorted(after.items() - before.items()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(capability_text(minor, _READABLE), encoding="utf-8")
        for devices in nodes:
            devices.mkdir(parents=True, exist_ok=True)
            text = described_node("c", CAPS_MAJOR, minor, _READABLE)
            (devices / f"nvidia-cap{minor}").write_text(text, encoding="utf-8")


def _minor(gpu: int, gpu_instance: int, compute_instance: int = -1) -> int:
    first = _FIRST_MINOR + _MINORS_OF_A_GPU * gpu + (1 + _COMPUTE_INSTANCES) * gpu_instance
    return first + 1 + compute_instance
