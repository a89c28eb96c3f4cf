"""The files of the NVIDIA driver's packages on a simulated node: libraries, programs, firmware, configuration.

Where they lie depends on who installed them: the node's layout.
"""

import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kubelet_plugin.simulation.profiles import load_mig_table
from kubelet_plugin.simulation.programs import script
from kubelet_plugin.simulation.state import Layout, NodeState
from kubelet_plugin.simulation.tree import link, link_text, path, write

_LIBRARIES = {
    **dict.fromkeys(
        ("libcuda", "libcudadebugger", "libnvcuvid", "libnvidia-allocator", "libnvidia-cfg", "libnvidia-encode",
         "libnvidia-fbc", "libnvidia-ml", "libnvidia-ngx", "libnvidia-opencl", "libnvidia-opticalflow",
         "libnvidia-ptxjitcompiler", "libnvidia-sandboxutils", "libnvoptix"),
        "1",
    ),
    "libEGL_nvidia": "0", "libGLESv1_CM_nvidia": "1", "libGLESv2_nvidia": "2", "libGLX_nvidia": "0",
    "libnvidia-nvvm": "4",
    **dict.fromkeys(
        ("libnvidia-eglcore", "libnvidia-glcore", "libnvidia-glsi", "libnvidia-glvkspirv", "libnvidia-gpucomp",
         "libnvidia-rtcore", "libnvidia-tls", "libnvidia-pkcs11-openssl3"),
        "",
    ),
}  # fmt: skip
"""Driver libraries, installed as `<name>.so.<driver version>`, with the number of their soname link; without one: they
are loaded by their full name only."""

_BINARIES = (
    "nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server",
    "nvidia-modprobe",
)  # fmt: skip
CUDA_CHECK = PurePosixPath("/sim/simulated-cuda-check")
"""What a pod of a proof would run: see `kubelet_plugin.simulation.programs.cuda`."""
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


@dataclass(frozen=True, slots=True)
class DriverPlaces:
    """Where one kind of system has the driver. Host paths; `{machine}` stands for x86_64 or aarch64."""

    libraries: str
    programs: str
    root: str = "/"
    """The host folder below which all of it lies."""
    store: str = ""
    """Where the files are if the folders have links only."""
    usr: str = ""
    """Where /usr leads, if it is a link."""


PLACES: dict[Layout, DriverPlaces] = {
    "root": DriverPlaces("/usr/lib/{machine}-linux-gnu", "/usr/bin"),
    "operator": DriverPlaces(
        "/run/nvidia/driver/usr/lib/{machine}-linux-gnu", "/run/nvidia/driver/usr/bin", root="/run/nvidia/driver"
    ),
    "gke": DriverPlaces(
        "/home/kubernetes/bin/nvidia/lib64", "/home/kubernetes/bin/nvidia/bin", root="/home/kubernetes/bin/nvidia"
    ),
    "talos": DriverPlaces("/usr/local/glibc/usr/lib", "/usr/local/bin"),
    "flatcar": DriverPlaces("/opt/nvidia/current/usr/lib64", "/opt/bin"),
    "bottlerocket": DriverPlaces(
        "/usr/lib/nvidia/tesla", "/usr/libexec/nvidia/tesla/bin", usr="/{machine}-bottlerocket-linux-gnu/sys-root/usr"
    ),
    "nixos": DriverPlaces("/run/opengl-driver/lib", "/run/current-system/sw/bin", store="/nix/store/0sim-nvidia-x11"),
}


def driver_root(state: NodeState) -> PurePosixPath:
    return PurePosixPath(state.recorded.driver_root if state.recorded is not None else PLACES[state.layout].root)


def library_folder(state: NodeState) -> PurePosixPath:
    if state.recorded is not None:
        return PurePosixPath(state.recorded.library_folder)
    return PurePosixPath(PLACES[state.layout].libraries.format(machine=state.machine))


def files_of_driver(state: NodeState) -> Iterator[tuple[PurePosixPath, str | PurePosixPath]]:
    """Every file of the driver's packages, with its text, or with the link's target when it is a link."""
    yield from _stored(_libraries(state), PLACES[state.layout].store)
    version = state.driver.version
    programs = [(file, f"#!/bin/sh\n# simulated {file.name} {version}\nexit 0\n") for file in _programs(state)]
    yield from _stored(programs, PLACES[state.layout].store)
    inside = driver_root(state) if state.layout == "operator" else PurePosixPath("/")
    for name in ("gsp_ga10x.bin", "gsp_tu10x.bin"):
        yield inside / "lib/firmware/nvidia" / version / name, f"simulated {name}\n"
    if state.layout in ("root", "operator"):
        for name in _SHARED_CONFIG:
            yield inside / "usr/share" / name, f"simulated {name}\n"
        for name in _HOST_CONFIG:
            yield inside / "etc" / name, f"simulated {name}\n"
    # The daemons' sockets lie in the /run of the system that they run in.
    yield inside / "run/nvidia-persistenced/socket", "simulated socket\n"
    if state.model.nvlink is not None and state.model.nvlink.switches and state.machine == "x86_64":
        yield inside / "run/nvidia-fabricmanager/socket", "simulated socket\n"


def _stored(
    files: Iterable[tuple[PurePosixPath, str | PurePosixPath]], store: str
) -> Iterator[tuple[PurePosixPath, str | PurePosixPath]]:
    """`files` in `store`, with links to them where they are looked for. `files` themselves if there is no store."""
    for host_path, content in files:
        if store:
            stored = PurePosixPath(store) / host_path.parent.name / host_path.name
            yield stored, content
            yield host_path, PurePosixPath(posixpath.relpath(stored, host_path.parent))
        else:
            yield host_path, content


def _programs(state: NodeState) -> list[PurePosixPath]:
    several_nodes = any(gpu.fabric is not None and gpu.fabric.cluster is not None for gpu in state.gpus)
    folder = PurePosixPath(PLACES[state.layout].programs)
    return [folder / name for name in (*_BINARIES, *(_MULTI_NODE_BINARIES if several_nodes else ()))]


def _libraries(state: NodeState) -> Iterator[tuple[PurePosixPath, str | PurePosixPath]]:
    folder, version = library_folder(state), state.driver.version
    for name, number in _LIBRARIES.items():
        full_name = f"{name}.so.{version}"
        yield folder / full_name, f"simulated {full_name}\n"
        if number:
            yield folder / f"{name}.so.{number}", PurePosixPath(full_name)
    yield folder / "libcuda.so", PurePosixPath("libcuda.so.1")
    yield folder / "libnvidia-ml.so", PurePosixPath("libnvidia-ml.so.1")
    yield folder / "vdpau" / f"libvdpau_nvidia.so.{version}", f"simulated libvdpau_nvidia.so.{version}\n"
    yield folder / "libnvidia-egl-gbm.so.1.1.2", "simulated libnvidia-egl-gbm.so.1.1.2\n"
    yield folder / "libnvidia-egl-gbm.so.1", PurePosixPath("libnvidia-egl-gbm.so.1.1.2")
    if state.fabric_manager is not None:
        yield folder / f"libnvfm.so.{version}", f"simulated libnvfm.so.{version}\n"
        yield folder / "libnvfm.so.1", PurePosixPath(f"libnvfm.so.{version}")


def write_driver_files(root: Path, state: NodeState) -> None:
    if usr := PLACES[state.layout].usr:
        path(root, usr.format(machine=state.machine)).mkdir(parents=True, exist_ok=True)
        link(root, PurePosixPath("/usr"), PurePosixPath(usr.format(machine=state.machine)))
    for host_path, content in files_of_driver(state):
        if isinstance(content, PurePosixPath):
            link_text(root, host_path, str(content))
        else:
            write(root, host_path, content)
    if state.model.mig is not None:
        write(root, PurePosixPath("/sim/mig.json"), load_mig_table(state.model.mig).model_dump_json())
    for program in (*_programs(state), CUDA_CHECK):
        text = script(program.name, root, state.driver.version)
        if text is not None:
            path(root, program).unlink(missing_ok=True)  # a process that was just killed may still run it
            write(root, program, text)
        path(root, program).chmod(0o755)


def adopt_programs(root: Path, state: NodeState) -> None:
    """Those that are there are run by this process's interpreter from now on."""
    for program in (*_programs(state), CUDA_CHECK):
        text, file = script(program.name, root, state.driver.version), path(root, program)
        if text is not None and file.exists() and file.read_text() != text:
            write(root, program, text)
            file.chmod(0o755)
