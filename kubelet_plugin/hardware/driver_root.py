"""Where the NVIDIA driver lives on this host, and what containers need of it, complete or not at all.

Discovery asks for the NVML library, prepare for `DriverFiles` and for the device nodes of a GPU. Every path in a value
is the host's. A driver that is half there (being installed or upgraded, or in a container that is just starting) gives
a `NodeNotReady` that lists all that is missing; and only a complete result is kept, for as long as nothing that was
looked at has changed.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from dra_driver.api.inventory import GpuFacts
from dra_driver.cdi.edits import DriverFile, DriverFiles, HookProgram
from dra_driver.cdi.model import DeviceNode
from dra_driver.errors import NodeNotReady
from kubelet_plugin.hardware.capabilities import capability_nodes
from kubelet_plugin.hardware.driver_files import DriverTree
from kubelet_plugin.hardware.hook_program import HookChoice, HookPrograms, InstalledHook
from kubelet_plugin.hardware.layouts import DRIVER_ROOTS
from kubelet_plugin.hardware.sysfs import HostFiles, Seen

_KERNEL_MODULE = re.compile(r"Kernel Module\b.*?\s(\d+\.\d+(?:\.\d+)*)(?:\s|$)")

_WSL_DEVICE = "/dev/dxg"
_WSL = (
    f"this node is WSL 2 ({_WSL_DEVICE}): its GPUs have no device nodes, and NVML gives no minor numbers there, so this"
    " driver cannot hand them out; use Linux on the machine itself, or NVIDIA's device plugin"
)
"""Source: the answers of NVML in NVIDIA/k8s-device-plugin#332 and kubernetes-sigs/dra-driver-nvidia-gpu#1201."""

_JETSON = (
    "this node is a Jetson or another Tegra system without a GPU on the PCI bus. This driver does not support"
    " integrated GPUs: use NVIDIA's device plugin on this node, and keep this driver away from it"
    " (kubeletPlugin.nodeSelector)"
)
"""Such GPUs have no /dev/nvidiaN, and their driver's files are others. Sources: HasTegraFiles of NVIDIA/go-nvlib; the
README of NVIDIA/k8s-device-plugin, which supports them since 0.13.0; NVIDIA/gpu-operator#1453, which does not."""

_CONTROL_NODES = ("nvidiactl", "nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools")
_NEEDED_NODES = {
    "nvidiactl": "load the nvidia kernel module, and make the node with nvidia-modprobe",
    "nvidia-uvm": "load the nvidia-uvm kernel module and make the node: `nvidia-modprobe -u -c=0` does both",
}
_NEEDED_LIBRARIES = ("libcuda.so", "libnvidia-ml.so")
_GPU_MAJOR = 195
_NO_GROUP_NEEDED = 0o006


@dataclass(frozen=True, slots=True)
class DriverRoot:
    """A driver that was found. `path` is the host folder below which its files lie."""

    path: str
    version: str
    """In the names of its libraries; what runs is for NVML to say."""
    nvml_library: Path
    """libnvidia-ml with the version in its name, where this process can load it."""


def find_driver_root(host: HostFiles, configured: str | None = None, seen: Seen | None = None) -> DriverRoot:
    """The driver root: `configured` and no other if it is given, else the first of `DRIVER_ROOTS` that has a driver.

    When several are there, the one of the loaded kernel module's version wins: an old package on a host whose driver
    comes in a container is not the driver. Raises NodeNotReady.
    """
    roots = (configured,) if configured is not None else DRIVER_ROOTS
    seen = seen or Seen()
    loaded = kernel_module_version(host)
    if loaded is None and seen.look(host, _WSL_DEVICE) is not None:
        raise NodeNotReady(_WSL, about="driver")
    if _is_tegra(host, seen) and not host.nvidia_gpus():
        raise NodeNotReady(_JETSON, about="driver")
    driver_roots = [root for path in roots for root in _drivers_at(host, path, seen)]
    if not driver_roots:
        where = f"{configured}, which is configured as driver root" if configured is not None else ", ".join(roots)
        raise NodeNotReady(
            f"libnvidia-ml.so.<version> is in no library folder below {where}: install the NVIDIA driver, wait for the"
            " driver container to start, or configure the driver root",
            about="driver",
        )
    return next((root for root in driver_roots if root.version == loaded), driver_roots[0])


def _is_tegra(host: HostFiles, seen: Seen) -> bool:
    family = host.read_text("/sys/devices/soc0/family") or ""
    return family.lower().startswith("tegra") or seen.look(host, "/etc/nv_tegra_release") is not None


def kernel_module_version(host: HostFiles) -> str | None:
    """`580.82.07` of the loaded nvidia kernel module; None when none is loaded."""
    match = _KERNEL_MODULE.search(host.kernel_driver_version() or "")
    return match[1] if match is not None else None


class DriverInstallation:
    """The driver of this node as prepare needs it, found again whenever something changed. For any thread.

    `configured_root` and `configured_hook` are host paths; None to search. `shipped_hook` is for hosts without one.
    """

    def __init__(
        self,
        host: HostFiles,
        *,
        configured_root: str | None = None,
        configured_hook: str | None = None,
        shipped_hook: InstalledHook | None = None,
    ) -> None:
        self._host = host
        self._configured_root = configured_root
        self._hooks = HookPrograms(host, configured_hook, shipped_hook)
        self._complete: CompleteDriver | None = None
        self._looking = Lock()

    def root(self) -> DriverRoot:
        """Where the driver is now. Raises NodeNotReady."""
        return find_driver_root(self._host, self._configured_root)

    def hook(self) -> HookChoice:
        """What finishes containers now. Raises NodeNotReady when the configured program is not there."""
        with self._looking:
            choice = self._hooks.find(Seen())
            if self._complete is not None and self._complete.files.hook != choice.program:
                self._complete = None
            return choice

    def for_containers(self, version: str) -> "CompleteDriver":
        """What containers need of driver `version`, which is the one that NVML says runs.

        It is the same object as long as nothing changed. That costs some dozen stat calls to know; looking again, some
        tens of milliseconds. Raises NodeNotReady naming everything that the driver lacks, and remembers nothing.
        """
        # A caller that comes during a look needs the same answer, and gets it sooner by waiting for it.
        with self._looking:
            current = self._complete
            if current is None or current.files.version != version or not current.seen.unchanged():
                self._complete = None
                current = self._look(version)
                if current.seen.settled():
                    self._complete = current
            return current

    def known_for_containers(self, version: str) -> "CompleteDriver | None":
        """What `for_containers` returned last, if nothing changed; None also while another thread looks."""
        if not self._looking.acquire(blocking=False):
            return None
        try:
            known = self._complete
            return known if known is not None and known.files.version == version and known.seen.unchanged() else None
        finally:
            self._looking.release()

    def mig_nodes(self, gpu_uuid: str, minor: int, gi: int, ci: int) -> tuple[DeviceNode, ...]:
        """What a container needs of a MIG device besides the driver's files: the node of its GPU, `minor` being that of
        now, and those of GPU instance `gi` and compute instance `ci`. No other node of the GPU: they lead to all of it.

        Raises NodeNotReady when one is missing.
        """
        about = f"GPU {gpu_uuid}"
        parent = gpu_node(self._host, self._dev_root(), gpu_uuid, minor, Seen())
        return (parent, *capability_nodes(self._host, about, minor, gi, ci))

    def host_node(self, path: str) -> DeviceNode | None:
        """A device node that is not the driver's, as the host has it in its own /dev; None when it has none."""
        return _node(self._host, "", path, Seen())

    def _dev_root(self) -> str:
        with self._looking:
            complete = self._complete
            if complete is not None and complete.seen.unchanged():
                return complete.dev_root
        return find_dev_root(self._host, self.root().path, Seen())

    def _look(self, version: str) -> "CompleteDriver":
        seen = Seen()
        root = find_driver_root(self._host, self._configured_root, seen)
        dev_root = find_dev_root(self._host, root.path, seen)
        files = scan(self._host, root.path, dev_root, version, self._hooks.find(seen).program, seen)
        return CompleteDriver(self._host, files, dev_root, seen)


class CompleteDriver:
    """A driver that has everything, and what was looked at to know that."""

    def __init__(self, host: HostFiles, files: DriverFiles, dev_root: str, seen: Seen) -> None:
        self.files = files
        self.seen = seen
        self._host = host
        self.dev_root = dev_root
        self._nodes: dict[tuple[str, int, str], tuple[tuple[DeviceNode, ...], Seen]] = {}

    def nodes_of(self, gpu: GpuFacts) -> tuple[DeviceNode, ...]:
        """The device nodes of a GPU. Raises NodeNotReady when its own is missing, or is another GPU's."""
        identity = (gpu.uuid, gpu.minor, gpu.pci_bus_id)
        known = self._nodes.get(identity)
        if known is not None and known[1].unchanged():
            return known[0]
        seen = Seen()
        nodes = gpu_nodes(self._host, self.dev_root, gpu, seen)
        if seen.settled():
            self._nodes[identity] = (nodes, seen)
        return nodes


def scan(host: HostFiles, root: str, dev_root: str, version: str, hook: HookProgram | None, seen: Seen) -> DriverFiles:
    """The files of driver `version` below `root`, complete. Raises NodeNotReady naming all that is missing."""
    tree, host_tree = _tree(host, root, seen), _tree(host, "/", seen)
    libraries = tree.libraries(version)
    nodes = {name: node for name in _CONTROL_NODES if (node := _node(host, dev_root, f"/dev/{name}", seen)) is not None}
    _check_complete(root, version, libraries, _node_problems(host, dev_root, nodes))
    paths = {library.container_path for library in libraries}
    folders_of_libraries = {path.rpartition("/")[0] for path in paths}
    folders = [folder for folder in tree.folders if folder.rstrip("/") in folders_of_libraries]
    return DriverFiles(
        version=version,
        machine=tree.machine(libraries),
        libraries=libraries,
        links=tree.links(libraries, version),
        library_folders=tuple(folders),
        cuda_folders=tuple(folder for folder in folders if f"{folder.rstrip('/')}/libcuda.so.{version}" in paths),
        files=_merged(
            tree.programs(),
            tree.configuration(),
            # The kernel module and the daemons may be the host's, when the root has libraries and programs only.
            tree.firmware(version, _firmware_folders(host)) or host_tree.firmware(version, _firmware_folders(host)),
        ),
        sockets=_merged(tree.sockets(), host_tree.sockets()),
        control_nodes=tuple(nodes.values()),
        hook=hook,
    )


def find_dev_root(host: HostFiles, root: str, seen: Seen) -> str:
    """The host folder whose /dev has the driver's nodes: the driver root, unless only the host's own root has them.

    A driver container makes them in its own /dev, and a root with nothing but libraries has none.
    """
    if seen.look(host, _on_host(root, "/dev/nvidiactl")) is not None:
        return root
    has_dev = seen.look(host, _on_host(root, "/dev")) is not None
    return "/" if not has_dev or seen.look(host, "/dev/nvidiactl") is not None else root


def gpu_nodes(host: HostFiles, dev_root: str, gpu: GpuFacts, seen: Seen) -> tuple[DeviceNode, ...]:
    """The device nodes of `gpu`. Raises NodeNotReady when its own is missing, or is another GPU's."""
    node = gpu_node(host, dev_root, gpu.uuid, gpu.minor, seen)
    seen.look(host, f"/sys/bus/pci/devices/{gpu.pci_bus_id}/drm")
    drm = (_node(host, dev_root, f"/dev/dri/{name}", seen) for name in host.pci(gpu.pci_bus_id).drm_nodes)
    return (node, *(device_node for device_node in drm if device_node is not None))


def gpu_node(host: HostFiles, dev_root: str, uuid: str, minor: int, seen: Seen) -> DeviceNode:
    """/dev/nvidiaN of a GPU. Raises NodeNotReady when it is missing, or has other numbers."""
    path = f"/dev/nvidia{minor}"
    node = _node(host, dev_root, path, seen)
    about = f"GPU {uuid}"
    if node is None:
        raise NodeNotReady(
            f"its device node {_on_host(dev_root, path)} is missing: make it with `nvidia-modprobe -c={minor}`, and"
            " see the kernel log if that does not help",
            about=about,
        )
    if (node.type, node.major, node.minor) != ("c", _GPU_MAJOR, minor):
        raise NodeNotReady(
            f"its device node {_on_host(dev_root, path)} is {node.type} {node.major}:{node.minor}, and must be"
            f" c {_GPU_MAJOR}:{minor}: remove it, and make it again with `nvidia-modprobe -c={minor}`",
            about=about,
        )
    return node


def _drivers_at(host: HostFiles, root: str, seen: Seen) -> Iterator[DriverRoot]:
    if seen.look(host, root) is not None:
        for version, library in _tree(host, root, seen).nvml_versions().items():
            yield DriverRoot(root, version, host.path(library))


def _tree(host: HostFiles, root: str, seen: Seen) -> DriverTree:
    """The files below `root`, which is a root of its own: no link leads out of it."""
    resolved = host.resolve(root)
    files = host if root == "/" or resolved is None else host.below(resolved)
    return DriverTree(files, host.for_runtime(resolved or root), seen)


def _check_complete(root: str, version: str, libraries: tuple[DriverFile, ...], node_problems: Iterable[str]) -> None:
    missing = [
        f"{library}.{version} is in no library folder below {root}: wait for the driver's installation to finish, or"
        " reboot if it was upgraded while loaded"
        for library in _NEEDED_LIBRARIES
        if not any(driver_file.container_path.endswith(f"/{library}.{version}") for driver_file in libraries)
    ]
    problems = [*missing, *node_problems]
    if problems:
        raise NodeNotReady(f"driver {version} is not complete: {'; '.join(problems)}", about="driver")


def _node_problems(host: HostFiles, dev_root: str, nodes: Mapping[str, DeviceNode]) -> Iterator[str]:
    for name, advice in _NEEDED_NODES.items():
        if name not in nodes:
            yield f"{_on_host(dev_root, f'/dev/{name}')} is missing: {advice}"
    uvm, majors = nodes.get("nvidia-uvm"), host.device_majors()
    major = majors.get("nvidia-uvm")
    if uvm is not None and without_uvm(majors):
        yield (
            f"{_on_host(dev_root, uvm.path)} is there, but the nvidia-uvm kernel module is not loaded:"
            " `nvidia-modprobe -u -c=0` does that"
        )
    if uvm is not None and major is not None and uvm.major != major:
        # The major changes each time the module is loaded; a node of the last time opens something else.
        yield (
            f"{_on_host(dev_root, uvm.path)} has major {uvm.major}, and the kernel gave nvidia-uvm {major}: remove it,"
            " and make it again with `nvidia-modprobe -u -c=0`"
        )


def without_uvm(majors: Mapping[str, int]) -> bool:
    """Whether the kernel has the module for GPUs and not the one for unified memory, without which no program can use
    CUDA. A device node may be left of it, whose major can belong to another driver by now."""
    return _GPU_MAJOR in majors.values() and "nvidia-uvm" not in majors


def _node(host: HostFiles, dev_root: str, path: str, seen: Seen) -> DeviceNode | None:
    """The node that a container needs at `path`, as the host has it; None when the host has none."""
    host_path = _on_host(dev_root, path)
    seen.look(host, host_path)
    device_file = host.device_node(host_path)
    if device_file is None:
        return None
    open_to_all = device_file.mode & _NO_GROUP_NEEDED == _NO_GROUP_NEEDED
    return DeviceNode(
        path=path,
        host_path=host_path if host_path != path else "",
        type=device_file.type,
        major=device_file.major,
        minor=device_file.minor,
        file_mode=device_file.mode,
        permissions="rwm",
        gid=device_file.gid if device_file.gid and not open_to_all else None,
    )


def _on_host(root: str, path: str) -> str:
    return f"{root.rstrip('/')}{path}"


def _firmware_folders(host: HostFiles) -> tuple[str, ...]:
    """Where the kernel looks for firmware. Source: firmware_class, `fw_path`."""
    release = host.read_text("/proc/sys/kernel/osrelease")
    configured = host.read_text("/sys/module/firmware_class/parameters/path")
    folders = (f"/lib/firmware/updates/{release}", "/lib/firmware/updates", f"/lib/firmware/{release}", "/lib/firmware")
    return (configured, *folders) if configured else folders


def _merged(*parts: tuple[DriverFile, ...]) -> tuple[DriverFile, ...]:
    """All files, sorted by container path; the earlier part wins where two want the same path."""
    by_path: dict[str, DriverFile] = {}
    for file in (driver_file for part in parts for driver_file in part):
        by_path.setdefault(file.container_path, file)
    return tuple(by_path[path] for path in sorted(by_path))
