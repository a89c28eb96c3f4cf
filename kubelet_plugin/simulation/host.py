"""The file tree of a simulated node: what the kernel, the NVIDIA driver and its packages leave on a host.

`create_host` builds it below a folder from a profile; `SimulatedHost` is that node afterwards, for tests and the demo,
which let things happen to it while a plugin runs: a GPU is lost, the driver is unloaded, the machine reboots. State
and tree are changed together, so that NVML and the file system tell one story. Sizes and contents of binary files are
made up; names, links, numbers and text formats are those of a real host.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from uuid import NAMESPACE_URL, uuid5

from kubelet_plugin.hardware.sysfs import described_node
from kubelet_plugin.simulation import vfio
from kubelet_plugin.simulation.capabilities import (
    CAPS_MAJOR,
    capabilities,
    capability_text,
    change_capabilities,
    mig_minors,
)
from kubelet_plugin.simulation.operations import MIG_CONFIGURATION_CHANGED, GpuOperations, add_event
from kubelet_plugin.simulation.partitions import forget, layout, release
from kubelet_plugin.simulation.programs import script
from kubelet_plugin.simulation.state import (
    DriverState,
    FabricModel,
    FabricState,
    GpuState,
    Layout,
    MigState,
    NodeState,
    Profile,
    StateFile,
    load_profile,
)
from kubelet_plugin.simulation.tree import device_folders
from kubelet_plugin.simulation.tree import function_folder as _function_folder
from kubelet_plugin.simulation.tree import link as _link
from kubelet_plugin.simulation.tree import link_text as _link_text
from kubelet_plugin.simulation.tree import path as _path
from kubelet_plugin.simulation.tree import pci_folder as _pci_folder
from kubelet_plugin.simulation.tree import write as _write

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

_LIBRARIES = (
    "libcuda", "libcudadebugger", "libEGL_nvidia", "libGLESv1_CM_nvidia", "libGLESv2_nvidia", "libGLX_nvidia",
    "libnvcuvid", "libnvidia-allocator", "libnvidia-cfg", "libnvidia-eglcore", "libnvidia-encode", "libnvidia-fbc",
    "libnvidia-glcore", "libnvidia-glsi", "libnvidia-glvkspirv", "libnvidia-gpucomp", "libnvidia-ml", "libnvidia-ngx",
    "libnvidia-nvvm", "libnvidia-opencl", "libnvidia-opticalflow", "libnvidia-pkcs11-openssl3",
    "libnvidia-ptxjitcompiler", "libnvidia-rtcore", "libnvidia-sandboxutils", "libnvidia-tls", "libnvoptix",
)  # fmt: skip
"""Driver libraries: installed as `<name>.so.<driver version>`."""

_SONAMES = {
    "libEGL_nvidia": "0", "libGLESv1_CM_nvidia": "1", "libGLESv2_nvidia": "2", "libGLX_nvidia": "0",
    "libnvidia-nvvm": "4",
}  # fmt: skip
"""The number of the soname link where it is not 1."""

_WITHOUT_SONAME = frozenset(
    {"libnvidia-eglcore", "libnvidia-glcore", "libnvidia-glsi", "libnvidia-glvkspirv", "libnvidia-gpucomp",
     "libnvidia-rtcore", "libnvidia-tls", "libnvidia-pkcs11-openssl3"}
)  # fmt: skip
"""Libraries that are loaded by their full name only."""

_BINARIES = (
    "nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server",
    "nvidia-modprobe",
)  # fmt: skip
CUDA_CLIENT = PurePosixPath("/sim/simulated-cuda-client")
"""What a workload would run: see `kubelet_plugin.simulation.programs.cuda_client`."""
_MULTI_NODE_BINARIES = ("nvidia-imex", "nvidia-imex-ctl")

_SHARED_CONFIG = (
    "glvnd/egl_vendor.d/10_nvidia.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "nvidia/nvoptix.bin",
)
_HOST_CONFIG = (
    "OpenCL/vendors/nvidia.icd",
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
)

_SWITCH_DEVICE = 0x22A3
_SWITCH_BUS = 0xF2
"""The first of as many buses that no profile has a GPU on."""


class SimulatedHost(GpuOperations):
    """A node that exists below `root`, made by `create_host`. May be opened by several processes at once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._file = StateFile(root)

    @property
    def exists(self) -> bool:
        return self._file.path.exists()

    @property
    def state(self) -> NodeState:
        return self._file.read()

    @contextmanager
    def edit(self) -> Iterator[NodeState]:
        """Change what NVML tells, in any way the state knows. Nothing is changed when the block raises.

        Files of MIG instances and of processes follow, and those who wait for NVML's events hear of a new division;
        the rest of the tree is left as it is.
        """
        with self._file.edit() as state:
            session = state.driver.session
            layouts = {gpu.uuid: (layout(gpu), capabilities(gpu)) for gpu in state.gpus}
            users = [(list(gpu.clients), gpu.persistence_mode) for gpu in state.gpus]
            yield state
            if state.driver.loaded and state.driver.session == session:
                for gpu in state.gpus:
                    before, files = layouts[gpu.uuid]
                    if layout(gpu) != before:
                        add_event(state, gpu.uuid, MIG_CONFIGURATION_CHANGED, 0)
                        change_capabilities(self.root, gpu.minor, files, capabilities(gpu), device_folders(state))
            if [(gpu.clients, gpu.persistence_mode) for gpu in state.gpus] != users:
                vfio.write_processes(self.root, state)

    @property
    def driver_root(self) -> PurePosixPath:
        """The host folder below which the driver's files lie."""
        return _DRIVER_ROOTS[self.state.layout]

    @property
    def library_folder(self) -> PurePosixPath:
        """The host folder of the driver's libraries."""
        return _library_folder(self.state)

    def bind(self, index: int, driver: str | None) -> None:
        """Give a GPU to another kernel driver (`vfio-pci`), to none, or back to `nvidia`."""
        with self.edit() as state:
            gpu = state.gpus[index]
            if driver != gpu.bound_to:
                release(gpu, state.model.architecture)
            gpu.bound_to = driver
            link = self.path(_pci_folder(gpu)) / "driver"
            link.unlink(missing_ok=True)
            if driver is not None:
                self.path(f"/sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
                _link(self.root, _pci_folder(gpu) / "driver", PurePosixPath("/sys/bus/pci/drivers") / driver)

    def unload_driver(self) -> None:
        """Remove the kernel module: no device nodes, no /proc/driver/nvidia; NVML answers DRIVER_NOT_LOADED."""
        with self.edit() as state:
            self._unload(state)

    def load_driver(self, version: str | None = None, *, libraries: bool = True) -> None:
        """Load the kernel module, of `version` when given. Without `libraries` the old ones stay: a mismatch."""
        with self.edit() as state:
            if version is not None and libraries:
                self._remove_driver_files(state)
            if state.driver.loaded:
                self._unload(state)
            state.driver.version = version or state.driver.version
            state.driver.loaded = True
            state.driver.session += 1
            vfio.probe(self.root, state)
            _write_kernel_files(self.root, state)
            if libraries:
                _write_driver_files(self.root, state)

    def remove_driver_files(self) -> None:
        """The driver's libraries, programs and configuration go; the kernel module stays loaded."""
        self._remove_driver_files(self.state)

    def reboot(self, *, renumber: bool = False, driver: bool = True) -> None:
        """A new boot id and an empty /run. `renumber`: other minors and another enumeration order than before.

        Faults of GPUs are gone, compute partitions and pending MIG changes with them. Without `driver` the module is
        not loaded yet, as on a node whose driver comes in a container.
        """
        with self.edit() as state:
            state.boots += 1
            state.driver.session += 1
            state.driver.loaded = driver
            state.events = []
            state.passthrough.loaded = []
            if renumber:
                minors = [gpu.minor for gpu in state.gpus]
                for gpu, minor in zip(state.gpus, reversed(minors), strict=True):
                    gpu.minor = minor
                state.gpus = state.gpus[1:] + state.gpus[:1]
            for gpu in state.gpus:
                _restart(gpu, state)
            for folder in ("run", "dev", "proc", "sys"):
                shutil.rmtree(self.root / folder, ignore_errors=True)
            _write_machine(self.root, state)
            if driver:
                _write_kernel_files(self.root, state)
            if driver or state.layout != "operator":
                _write_driver_files(self.root, state)

    def path(self, host_path: PurePosixPath | str) -> Path:
        return _path(self.root, host_path)

    def _unload(self, state: NodeState) -> None:
        state.driver.loaded = False
        for gpu in state.gpus:
            forget(gpu, state.model.architecture, reboot=False)
        _remove_kernel_files(self.root, state)

    def _remove_driver_files(self, state: NodeState) -> None:
        for host_path, _ in _driver_files(state):
            self.path(host_path).unlink(missing_ok=True)


def create_host(
    root: Path, profile: str, node_index: int = 0, *, layout: Layout = "root", driver: bool = True
) -> SimulatedHost:
    """Build the node below `root`, an empty or missing folder.

    The same profile and index give the same UUIDs and serial numbers each time; two indices share none, but GPUs of
    one rack share the cluster UUID and clique. Without `driver` nothing of the driver is there yet. Raises
    InvalidInput for an unknown profile.
    """
    state = _initial_state(profile, load_profile(profile), node_index, layout)
    state.driver.loaded = driver
    root.mkdir(parents=True, exist_ok=True)
    _write_machine(root, state)
    if driver:
        _write_kernel_files(root, state)
        _write_driver_files(root, state)
    host = SimulatedHost(root)
    host._file.write(state)
    return host


def open_host(root: Path, profile: str, node_index: int = 0) -> SimulatedHost:
    """The node below `root` as it is, or a new one when there is none: a restarted plugin finds its machine again."""
    host = SimulatedHost(root)
    return host if host.exists else create_host(root, profile, node_index)


def reboot(root: Path, *, renumber: bool = False, driver: bool = True) -> None:
    """Reboot the node below `root`: see `SimulatedHost.reboot`."""
    SimulatedHost(root).reboot(renumber=renumber, driver=driver)


_DRIVER_ROOTS: dict[Layout, PurePosixPath] = {
    "root": PurePosixPath("/"),
    "operator": PurePosixPath("/run/nvidia/driver"),
    "gke": PurePosixPath("/home/kubernetes/bin/nvidia"),
    "talos": PurePosixPath("/"),
}


def _initial_state(name: str, profile: Profile, node_index: int, layout: Layout) -> NodeState:
    model = profile.gpu
    gpus = []
    for index, place in enumerate(profile.gpus):
        identity = _identity(f"{name}/{node_index}/{index}")
        gpus.append(
            GpuState(
                uuid=f"GPU-{identity}",
                minor=place.minor,
                address=place.address,
                root=place.root,
                numa=place.numa,
                serial=f"165{int(identity[:8], 16) % 10**10:010d}",
                module=index + 1 if model.on_base_board else None,
                mig=MigState() if model.mig else None,
                fabric=_fabric(name, profile.fabric, node_index),
            )
        )
    return NodeState(
        profile=name,
        node_index=node_index,
        machine=profile.machine,
        layout=layout,
        driver=DriverState(
            version=profile.driver.version, cuda=profile.driver.cuda, missing=list(profile.driver.missing)
        ),
        model=model,
        gpus=gpus,
    )


def _fabric(name: str, fabric: FabricModel | None, node_index: int) -> FabricState | None:
    if fabric is None:
        return None
    if not fabric.nodes:
        return FabricState(clique=fabric.clique)
    return FabricState(cluster=_identity(f"{name}/rack/{node_index // fabric.nodes}"), clique=fabric.clique)


def _restart(gpu: GpuState, state: NodeState) -> None:
    gpu.fault = None
    gpu.mishaps = {}
    gpu.links_down = []
    gpu.bound_to = "nvidia"
    gpu.persistence_mode = 1
    gpu.clients = []
    forget(gpu, state.model.architecture, reboot=True)


def _identity(text: str) -> str:
    return str(uuid5(NAMESPACE_URL, f"gpu-dra-driver/{text}"))


def _write_machine(root: Path, state: NodeState) -> None:
    """What is there with the machine and the kernel, with or without an NVIDIA driver."""
    boot_id = _identity(f"{state.profile}/{state.node_index}/boot/{state.boots}")
    _write(root, "/proc/sys/kernel/random/boot_id", boot_id + "\n")
    for folder in ("/dev", "/run", "/tmp", "/var", "/etc", "/sys/bus/pci/drivers"):
        _path(root, folder).mkdir(parents=True, exist_ok=True)
    _link(root, PurePosixPath("/var/run"), PurePosixPath("/run"))
    for gpu in state.gpus:
        _write_pci_gpu(root, state, gpu)
    for number in range(state.model.nvlink.switches if state.model.nvlink and state.machine == "x86_64" else 0):
        _write_pci_function(root, "pci0000:00", f"0000:{_SWITCH_BUS + number:02x}:00.0", 0x068000, _SWITCH_DEVICE, 0)
    vfio.write_machine(root, state)
    _write_devices(root, _majors(loaded=False))


def _write_pci_gpu(root: Path, state: NodeState, gpu: GpuState) -> None:
    _write_pci_function(
        root, gpu.root, gpu.address, state.model.pci_class, state.model.pci_device, gpu.numa, bridged=True
    )


def _write_pci_function(
    root: Path, complex_: str, address: str, pci_class: int, device: int, numa: int, *, bridged: bool = False
) -> PurePosixPath:
    folder = _function_folder(complex_, address) if bridged else PurePosixPath(f"/sys/devices/{complex_}/{address}")
    for name, text in {
        "vendor": "0x10de",
        "device": f"0x{device:04x}",
        "class": f"0x{pci_class:06x}",
        "numa_node": str(numa),
    }.items():
        _write(root, folder / name, text + "\n")
    _link(root, PurePosixPath("/sys/bus/pci/devices") / address, folder)
    return folder


def _write_kernel_files(root: Path, state: NodeState) -> None:
    """What the NVIDIA kernel modules show: /proc, the binding in sysfs, DRM and device nodes."""
    release = f"{state.machine}  {state.driver.version}  Release Build  (simulation)"
    _write(
        root,
        "/proc/driver/nvidia/version",
        f"NVRM version: NVIDIA UNIX Open Kernel Module for {release}\nGCC version:  gcc version 12.2.0\n",
    )
    _write(root, "/proc/driver/nvidia/params", _PARAMS)
    for name, minor, mode in (("mig/config", 1, 256), ("mig/monitor", 2, 292), ("fabric-imex-mgmt", 0, 256)):
        _write(
            root,
            f"/proc/driver/nvidia/capabilities/{name}",
            capability_text(minor, mode),
        )
    _write(root, "/proc/driver/nvidia-caps/mig-minors", mig_minors())
    _write_devices(root, _majors(loaded=True))
    _path(root, "/sys/bus/pci/drivers/nvidia").mkdir(parents=True, exist_ok=True)
    for number, gpu in enumerate(state.gpus):
        if gpu.bound_to is not None:
            _link(root, _pci_folder(gpu) / "driver", PurePosixPath("/sys/bus/pci/drivers") / gpu.bound_to)
        if gpu.bound_to == "nvidia":
            for name in vfio.drm_names(number):
                _path(root, _pci_folder(gpu) / "drm" / name).mkdir(parents=True, exist_ok=True)
            vfio.write_information(root, state, gpu)
    vfio.write_processes(root, state)
    for host_path, text in _device_nodes(state):
        _write(root, host_path, text)


def _remove_kernel_files(root: Path, state: NodeState) -> None:
    for folder in ("/proc/driver/nvidia", "/proc/driver/nvidia-caps"):
        shutil.rmtree(_path(root, folder), ignore_errors=True)
    _write_devices(root, _majors(loaded=False))
    shutil.rmtree(_path(root, "/sys/bus/pci/drivers/nvidia"), ignore_errors=True)
    vfio.write_processes(root, state)
    for gpu in state.gpus:
        if gpu.bound_to == "nvidia":
            (_path(root, _pci_folder(gpu)) / "driver").unlink(missing_ok=True)
        shutil.rmtree(_path(root, _pci_folder(gpu)) / "drm", ignore_errors=True)
    for host_path, _ in _device_nodes(state):
        _path(root, host_path).unlink(missing_ok=True)
    for devices in device_folders(state):
        shutil.rmtree(_path(root, devices / "nvidia-caps"), ignore_errors=True)


def _device_nodes(state: NodeState) -> Iterator[tuple[PurePosixPath, str]]:
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
        card, render = vfio.drm_names(number)
        nodes[f"dri/{card}"] = (_MAJORS["drm"], number + 1)
        nodes[f"dri/{render}"] = (_MAJORS["drm"], number + 128)
    for folder in device_folders(state):
        for name, (major, minor) in nodes.items():
            mode = {"nvidia-caps/nvidia-cap1": 0o400, "nvidia-caps/nvidia-cap2": 0o444}.get(name, 0o666)
            yield folder / name, described_node("c", major, minor, mode)


def _majors(*, loaded: bool) -> dict[str, int]:
    return {name: major for name, major in _MAJORS.items() if loaded or not name.startswith("nvidia")}


def _write_devices(root: Path, majors: dict[str, int]) -> None:
    lines = [f"{major:3d} {name}" for name, major in sorted(majors.items(), key=lambda item: item[1])]
    _write(
        root, "/proc/devices", "Character devices:\n" + "\n".join(lines) + "\n\nBlock devices:\n  8 sd\n259 blkext\n"
    )


_PARAMS = """\
ResmanDebugLevel: 4294967295
ModifyDeviceFiles: 1
DeviceFileUID: 0
DeviceFileGID: 0
DeviceFileMode: 438
ImexChannelCount: 2048
CreateImexChannel0: 0
"""


def _library_folder(state: NodeState) -> PurePosixPath:
    folders: dict[Layout, str] = {
        "root": f"/usr/lib/{state.machine}-linux-gnu",
        "operator": f"/run/nvidia/driver/usr/lib/{state.machine}-linux-gnu",
        "gke": "/home/kubernetes/bin/nvidia/lib64",
        "talos": "/usr/local/glibc/usr/lib",
    }
    return PurePosixPath(folders[state.layout])


def _binary_folder(state: NodeState) -> PurePosixPath:
    folders: dict[Layout, str] = {
        "root": "/usr/bin",
        "operator": "/run/nvidia/driver/usr/bin",
        "gke": "/home/kubernetes/bin/nvidia/bin",
        "talos": "/usr/local/bin",
    }
    return PurePosixPath(folders[state.layout])


def _driver_files(state: NodeState) -> Iterator[tuple[PurePosixPath, str | PurePosixPath]]:
    """Every file of the driver's packages, with its text, or with the link's target when it is a link."""
    yield from _libraries(state)
    for name in _programs(state):
        yield _binary_folder(state) / name, f"#!/bin/sh\n# simulated {name} {state.driver.version}\nexit 0\n"
    inside = _DRIVER_ROOTS[state.layout] if state.layout == "operator" else PurePosixPath("/")
    for name in ("gsp_ga10x.bin", "gsp_tu10x.bin"):
        yield inside / "lib/firmware/nvidia" / state.driver.version / name, f"simulated {name}\n"
    if state.layout in ("root", "operator"):
        for name in _SHARED_CONFIG:
            yield inside / "usr/share" / name, f"simulated {name}\n"
        for name in _HOST_CONFIG:
            yield inside / "etc" / name, f"simulated {name}\n"
    # The daemons' sockets lie in the /run of the system that they run in.
    yield inside / "run/nvidia-persistenced/socket", "simulated socket\n"
    if state.model.nvlink is not None and state.model.nvlink.switches and state.machine == "x86_64":
        yield inside / "run/nvidia-fabricmanager/socket", "simulated socket\n"


def _programs(state: NodeState) -> tuple[str, ...]:
    several_nodes = any(gpu.fabric is not None and gpu.fabric.cluster is not None for gpu in state.gpus)
    return _BINARIES + (_MULTI_NODE_BINARIES if several_nodes else ())


def _libraries(state: NodeState) -> Iterator[tuple[PurePosixPath, str | PurePosixPath]]:
    folder, version = _library_folder(state), state.driver.version
    for name in _LIBRARIES:
        full_name = f"{name}.so.{version}"
        yield folder / full_name, f"simulated {full_name}\n"
        if name not in _WITHOUT_SONAME:
            yield folder / f"{name}.so.{_SONAMES.get(name, '1')}", PurePosixPath(full_name)
    yield folder / "libcuda.so", PurePosixPath("libcuda.so.1")
    yield folder / "libnvidia-ml.so", PurePosixPath("libnvidia-ml.so.1")
    yield folder / "vdpau" / f"libvdpau_nvidia.so.{version}", f"simulated libvdpau_nvidia.so.{version}\n"
    yield folder / "libnvidia-egl-gbm.so.1.1.2", "simulated libnvidia-egl-gbm.so.1.1.2\n"
    yield folder / "libnvidia-egl-gbm.so.1", PurePosixPath("libnvidia-egl-gbm.so.1.1.2")


def _write_driver_files(root: Path, state: NodeState) -> None:
    for host_path, content in _driver_files(state):
        if isinstance(content, PurePosixPath):
            _link_text(root, host_path, str(content))
        else:
            _write(root, host_path, content)
    for program in (*(_binary_folder(state) / name for name in _programs(state)), CUDA_CLIENT):
        text = script(program.name, root, state.driver.version)
        if text is not None:
            _write(root, program, text)
        _path(root, program).chmod(0o755)
