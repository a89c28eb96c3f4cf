"""CDI values for tests: strategies for valid specs, and builders for the claims' specs."""

import string

from hypothesis import strategies as st

from dra_driver.api.inventory import GpuFacts
from dra_driver.cdi.edits import ClaimDevice, DriverFile, DriverFiles, HookProgram, Link
from dra_driver.cdi.model import (
    DEVICE_TYPES,
    HOOK_NAMES,
    CdiDevice,
    CdiSpec,
    ContainerEdits,
    DeviceNode,
    Hook,
    Mount,
    spec_of,
)

UUID = "GPU-5a7b12c3-0000-4000-8000-000000000000"
"""Of the first GPU that `gpu_facts` makes."""

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_PATHS = st.builds(lambda parts: "/" + "/".join(parts), st.lists(st.text("abc.", min_size=1, max_size=3), max_size=4))
_IDS = st.integers(min_value=0, max_value=2**32 - 1)
_NUMBERS = st.integers(min_value=0, max_value=511)
_ENV = st.builds(lambda name, value: f"{name}={value}", st.sampled_from(["A", "B", "PATH", "é"]), _TEXT)

_INNER = string.ascii_letters + string.digits + "_-."


def _names(first: str, inner: str) -> st.SearchStrategy[str]:
    ends = st.sampled_from(string.ascii_letters + string.digits)
    middle = st.text(inner, max_size=8)
    longer = st.builds(lambda *parts: "".join(parts), st.sampled_from(first), middle, ends)
    return st.one_of(st.sampled_from(first), longer)


vendors = _names(string.ascii_letters, _INNER)
class_names = _names(string.ascii_letters, _INNER)
device_names = _names(string.ascii_letters + string.digits, _INNER + ":")

device_nodes = st.builds(
    DeviceNode,
    path=_PATHS,
    host_path=st.one_of(st.just(""), _PATHS),
    type=st.sampled_from(("", *DEVICE_TYPES)),
    major=_NUMBERS,
    minor=_NUMBERS,
    file_mode=st.one_of(st.none(), st.integers(0, 0o777)),
    permissions=st.sampled_from(("", "r", "rw", "rwm", "none")),
    uid=st.one_of(st.none(), _IDS),
    gid=st.one_of(st.none(), _IDS),
)
mounts = st.builds(
    Mount,
    host_path=_PATHS,
    container_path=_PATHS,
    options=st.lists(_TEXT, max_size=2).map(tuple),
    type=st.sampled_from(("", "tmpfs")),
)
hooks = st.builds(
    Hook,
    hook_name=st.sampled_from(HOOK_NAMES),
    path=_PATHS,
    args=st.lists(_TEXT, max_size=2).map(tuple),
    env=st.lists(_ENV, max_size=2).map(tuple),
    timeout=st.one_of(st.none(), st.integers(0, 60)),
)
container_edits = st.builds(
    ContainerEdits,
    env=st.lists(_ENV, max_size=3).map(tuple),
    device_nodes=st.lists(device_nodes, max_size=3).map(tuple),
    hooks=st.lists(hooks, max_size=2).map(tuple),
    mounts=st.lists(mounts, max_size=3).map(tuple),
    additional_gids=st.lists(_IDS, max_size=2).map(tuple),
)
_annotations = st.dictionaries(st.sampled_from(["note", "example.com/note"]), _TEXT, max_size=2)
devices = st.builds(
    CdiDevice,
    name=device_names,
    container_edits=container_edits.filter(lambda edits: edits != ContainerEdits()),
    annotations=_annotations,
)


@st.composite
def specs(draw: st.DrawFn) -> CdiSpec:
    """Valid specs of their lowest version."""
    some = draw(st.lists(devices, min_size=1, max_size=3, unique_by=lambda device: device.name))
    return spec_of(f"{draw(vendors)}/{draw(class_names)}", tuple(some), draw(container_edits), draw(_annotations))


def gpu_facts(minor: int = 0, *, pci_bus_id: str | None = None) -> GpuFacts:
    digits = f"{0x5A7B12C3 + minor:08x}"
    return GpuFacts(
        uuid=f"GPU-{digits}-0000-4000-8000-000000000000",
        name=f"gpu-{digits}",
        minor=minor,
        pci_bus_id=pci_bus_id or f"0000:{0x1B + minor:02x}:00.0",
        product_name="NVIDIA H100 80GB HBM3",
        brand="Nvidia",
        architecture="Hopper",
        cuda_compute_capability="9.0",
    )


def gpu_node(minor: int = 0, **changes: object) -> DeviceNode:
    known: dict[str, object] = {"type": "c", "major": 195, "minor": minor, "file_mode": 0o666, "permissions": "rwm"}
    return DeviceNode(f"/dev/nvidia{minor}", **(known | changes))  # type: ignore[arg-type]


def drm_nodes(number: int = 1, **changes: object) -> tuple[DeviceNode, DeviceNode]:
    known: dict[str, object] = {"type": "c", "major": 226, "file_mode": 0o666, "permissions": "rwm"} | changes
    return (
        DeviceNode(f"/dev/dri/card{number}", minor=number, **known),  # type: ignore[arg-type]
        DeviceNode(f"/dev/dri/renderD{127 + number}", minor=127 + number, **known),  # type: ignore[arg-type]
    )


def claim_device(minor: int = 0, *, admin_access: bool = False, drm: bool = False) -> ClaimDevice:
    gpu = gpu_facts(minor)
    nodes = (gpu_node(minor), *(drm_nodes(minor + 1) if drm else ()))
    return ClaimDevice(gpu.name, gpu, nodes, admin_access)


HOOK = HookProgram(
    path="/usr/bin/nvidia-cdi-hook",
    arguments=("nvidia-cdi-hook",),
    sub_commands={
        "create-symlinks": frozenset({"--link"}),
        "update-ldcache": frozenset({"--folder", "--ldconfig-path"}),
        "enable-cuda-compat": frozenset({"--host-driver-version"}),
        "disable-device-node-modification": frozenset(),
    },
    version="1.18.0",
    ldconfig="/sbin/ldconfig",
)

_FOLDER = "/usr/lib/x86_64-linux-gnu"


def driver_files(**changes: object) -> DriverFiles:
    """A small driver 580.82.07 in a driver container, its libraries where Debian has them."""
    root = "/run/nvidia/driver"

    def mounted(path: str) -> DriverFile:
        return DriverFile(root + path, path)

    known: dict[str, object] = {
        "version": "580.82.07",
        "machine": "x86_64",
        "libraries": (
            mounted(f"{_FOLDER}/libcuda.so.580.82.07"),
            mounted(f"{_FOLDER}/libnvidia-glcore.so.580.82.07"),
            mounted(f"{_FOLDER}/libnvidia-ml.so.580.82.07"),
            mounted(f"{_FOLDER}/vdpau/libvdpau_nvidia.so.580.82.07"),
        ),
        "links": (
            Link(f"{_FOLDER}/libcuda.so", "libcuda.so.1"),
            Link(f"{_FOLDER}/libcuda.so.1", "libcuda.so.580.82.07"),
            Link(f"{_FOLDER}/libnvidia-ml.so.1", "libnvidia-ml.so.580.82.07"),
        ),
        "library_folders": (_FOLDER,),
        "cuda_folders": (_FOLDER,),
        "files": (mounted("/lib/firmware/nvidia/580.82.07/gsp_ga10x.bin"), mounted("/usr/bin/nvidia-smi")),
        "sockets": (mounted("/run/nvidia-persistenced/socket"),),
        "control_nodes": (
            DeviceNode("/dev/nvidia-uvm", type="c", major=508, file_mode=0o666, permissions="rwm"),
            DeviceNode("/dev/nvidiactl", type="c", major=195, minor=255, file_mode=0o666, permissions="rwm"),
        ),
    }
    return DriverFiles(**(known | changes))  # type: ignore[arg-type]
