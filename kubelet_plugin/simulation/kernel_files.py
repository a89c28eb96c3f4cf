"""What the kernel shows on a simulated node: PCI, /proc and device nodes, without an NVIDIA driver and with one."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from uuid import NAMESPACE_URL, uuid5

from kubelet_plugin.hardware.sysfs import described_node
from kubelet_plugin.simulation import vfio
from kubelet_plugin.simulation.state import NodeState
from kubelet_plugin.simulation.tree import (
    CAPS_MAJOR,
    capability_text,
    device_folders,
    function_folder,
    link,
    mig_minors,
    path,
    pci_folder,
    write,
    write_pci_ids,
)

_GPU_MAJOR = 195
_MAJORS = {
    "mem": 1,
    "nvidia": _GPU_MAJOR,
    "nvidia-modeset": _GPU_MAJOR,
    "nvidiactl": _GPU_MAJOR,
    "drm": 226,
    "nvidia-caps-imex-channels": 234,
    "nvidia-nvswitch": 235,
    "nvidia-caps": CAPS_MAJOR,
    "vfio": 244,
    "nvidia-uvm": 508,
}

_SWITCH_DEVICE = 0x22A3
_SWITCH_BUS = 0xF2
"""The first of as many buses that no profile has a GPU on."""

_PARAMS = """\
ResmanDebugLevel: 4294967295
ModifyDeviceFiles: 1
DeviceFileUID: 0
DeviceFileGID: 0
DeviceFileMode: 438
ImexChannelCount: 2048
CreateImexChannel0: 0
"""


def made_up_uuid(text: str) -> str:
    """The same UUID for the same text, on every machine."""
    return str(uuid5(NAMESPACE_URL, f"gpu-dra-driver/{text}"))


def boot_id(state: NodeState) -> str:
    return made_up_uuid(f"{state.profile}/{state.node_index}/boot/{state.boots}")


def write_machine(root: Path, state: NodeState) -> None:
    """What is there with the machine and the kernel, with or without an NVIDIA driver."""
    write(root, "/proc/sys/kernel/random/boot_id", boot_id(state) + "\n")
    for folder in ("/dev", "/run", "/tmp", "/var", "/etc", "/sys/bus/pci/drivers"):
        path(root, folder).mkdir(parents=True, exist_ok=True)
    link(root, PurePosixPath("/var/run"), PurePosixPath("/run"))
    for gpu in state.gpus:
        model, place = state.model, (gpu.root, gpu.address)
        function = _write_pci_function(root, *place, model.pci_class, model.pci_device, gpu.numa, bridged=True)
        write(root, function / "subsystem_vendor", "0x10de\n")
        write(root, function / "subsystem_device", f"0x{model.pci_subsystem:04x}\n")
    for address in _switches(state):
        _write_pci_function(root, "pci0000:00", address, 0x068000, _SWITCH_DEVICE, 0)
    vfio.write_machine(root, state)
    write_devices(root, loaded=False)


def _switches(state: NodeState) -> list[str]:
    """PCI addresses of NVSwitches."""
    switches = state.model.nvlink.switches if state.model.nvlink and state.machine == "x86_64" else 0
    return [f"0000:{_SWITCH_BUS + number:02x}:00.0" for number in range(switches)]


def _write_pci_function(
    root: Path, complex_: str, address: str, pci_class: int, device: int, numa: int, *, bridged: bool = False
) -> PurePosixPath:
    folder = function_folder(complex_, address) if bridged else PurePosixPath(f"/sys/devices/{complex_}/{address}")
    write_pci_ids(root, folder, 0x10DE, device, pci_class)
    write(root, folder / "numa_node", f"{numa}\n")
    link(root, PurePosixPath("/sys/bus/pci/devices") / address, folder)
    return folder


def write_kernel_files(root: Path, state: NodeState) -> None:
    """What the NVIDIA kernel modules show: /proc, the binding in sysfs, DRM and device nodes."""
    release = f"{state.machine}  {state.driver.version}  Release Build  (simulation)"
    write(
        root,
        "/proc/driver/nvidia/version",
        f"NVRM version: NVIDIA UNIX Open Kernel Module for {release}\nGCC version:  gcc version 12.2.0\n",
    )
    write(root, "/proc/driver/nvidia/params", _PARAMS)
    for name, minor, mode in (("mig/config", 1, 256), ("mig/monitor", 2, 292), ("fabric-imex-mgmt", 0, 256)):
        write(root, f"/proc/driver/nvidia/capabilities/{name}", capability_text(minor, mode))
    write(root, "/proc/driver/nvidia-caps/mig-minors", mig_minors())
    for address in _switches(state):
        write(root, f"/proc/driver/nvidia-nvswitch/devices/{address}", "")
    write_devices(root, loaded=True)
    path(root, "/sys/bus/pci/drivers/nvidia").mkdir(parents=True, exist_ok=True)
    for gpu in state.gpus:
        if gpu.bound_to == "nvidia":
            vfio.hold(root, state, gpu)
        elif gpu.bound_to is not None:
            link(root, pci_folder(gpu) / "driver", PurePosixPath("/sys/bus/pci/drivers") / gpu.bound_to)
    vfio.write_processes(root, state)
    for host_path, text in device_nodes(state):
        write(root, host_path, text)


def device_nodes(state: NodeState) -> Iterator[tuple[PurePosixPath, str]]:
    """Host paths, and what describes each node."""
    nodes = {
        "nvidiactl": (_GPU_MAJOR, 255),
        "nvidia-modeset": (_GPU_MAJOR, 254),
        "nvidia-uvm": (_MAJORS["nvidia-uvm"], 0),
        "nvidia-uvm-tools": (_MAJORS["nvidia-uvm"], 1),
        "nvidia-caps/nvidia-cap1": (_MAJORS["nvidia-caps"], 1),
        "nvidia-caps/nvidia-cap2": (_MAJORS["nvidia-caps"], 2),
    }
    for number, gpu in enumerate(state.gpus):
        nodes[f"nvidia{gpu.minor}"] = (_GPU_MAJOR, gpu.minor)
        card, render = vfio.drm_names(state, gpu)
        nodes[f"dri/{card}"] = (_MAJORS["drm"], number + 1)
        nodes[f"dri/{render}"] = (_MAJORS["drm"], number + 128)
    for folder in device_folders(state):
        for name, (major, minor) in nodes.items():
            mode = {"nvidia-caps/nvidia-cap1": 0o400, "nvidia-caps/nvidia-cap2": 0o444}.get(name, 0o666)
            yield folder / name, described_node("c", major, minor, mode)


def write_devices(root: Path, *, loaded: bool) -> None:
    """/proc/devices, with the NVIDIA driver's numbers while it is `loaded`."""
    majors = {name: major for name, major in _MAJORS.items() if loaded or not name.startswith("nvidia")}
    lines = [f"{major:3d} {name}" for name, major in sorted(majors.items(), key=lambda item: item[1])]
    write(root, "/proc/devices", "Character devices:\n" + "\n".join(lines) + "\n\nBlock devices:\n  8 sd\n259 blkext\n")
