"""From the devices of a claim and the driver's files to the claim's CDI spec. Pure.

`kubelet_plugin.hardware.driver_root` fills `DriverFiles`, `kubelet_plugin.prepare.plan` builds specs from it, one for
each claim. The edits that all claims of a node share are made once per `DriverFiles` and cached with it.

**Variables.** Each device sets one variable, `NVIDIA_DRA_DEVICE_<NAME>=<UUID>`, with the name in upper case and `_` in
place of `-`: `NVIDIA_DRA_DEVICE_GPU_5A7B12C3=GPU-5a7b12c3-…`. Variables of the same name replace each other, so one
variable with a list would be wrong for containers that use only one request of a claim, or two claims. A program reads
all variables with the prefix: `env | sed -n 's/^NVIDIA_DRA_DEVICE_[^=]*=//p'`. Devices with admin access have the
prefix `NVIDIA_DRA_ADMIN_DEVICE_`.

**Libraries, with and without a hook program.** Programs ask the dynamic linker for `libcuda.so.1`, drivers install
`libcuda.so.580.82.07`. With `nvidia-cdi-hook` on the host, hooks create the links and rebuild the linker's cache in the
container before it starts. Without it, or without `ldconfig` on the host, each library is mounted under all its names
into the folders that glibc searches by default, after its cache: `/usr/lib/<machine>-linux-gnu` (Debian, Ubuntu) and
`/usr/lib64` (Red Hat, SUSE, Amazon; a link to `/usr/lib` in Arch and Wolfi). No variable is set, so an image keeps its
own LD_LIBRARY_PATH, set-uid programs work, and no hook runs. This lacks CUDA forward compatibility, the linker's cache,
and the hook that prevents the driver's libraries from creating device nodes: containers have CAP_MKNOD by default, so
then only their device cgroup prevents them from opening these nodes.

A host's own MPS daemon (`/tmp/nvidia-mps`) is not mounted, because its clients would share GPUs across claims. A claim
with MPS gets the folders of its own daemon at that path.

**Virtual machines.** For a passed-through GPU the container gets only a VFIO node, because the guest has its own driver
and the host's files could conflict with it. If a claim has such a GPU and others, the driver's files belong to each of
the others instead of the claim.
"""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dra_driver.api.inventory import GpuFacts
from dra_driver.cdi.model import CdiDevice, CdiSpec, ContainerEdits, DeviceNode, Hook, Mount, qualified_name, spec_of
from dra_driver.devices.mps import PIPE_IN_CONTAINER, SHM_IN_CONTAINER, client_environment

DEVICE_VARIABLE = "NVIDIA_DRA_DEVICE_"
ADMIN_DEVICE_VARIABLE = "NVIDIA_DRA_ADMIN_DEVICE_"

NOTHING_ELSE = "NVIDIA_VISIBLE_DEVICES=void"
"""Prevents the NVIDIA runtime, if it is the default, from injecting GPUs itself; images often request `all`."""

_FILE_OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")
_SOCKET_OPTIONS = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
_WORLD_READ_WRITE = 0o006


@dataclass(frozen=True, slots=True)
class DriverFile:
    """A file or socket of the driver: its path on the host and in containers."""

    host_path: str
    container_path: str


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link that a container needs; `target` is relative to the folder of `path`."""

    path: str
    target: str


@dataclass(frozen=True, slots=True)
class HookProgram:
    """`nvidia-cdi-hook` or `nvidia-ctk` on the host, and the features of its version."""

    path: str
    arguments: tuple[str, ...]
    """Arguments before the subcommand: the program's name, and `hook` for nvidia-ctk."""
    sub_commands: Mapping[str, frozenset[str]]
    """Flags of each hook, by its name; for example `--ldconfig-path`."""
    version: str
    ldconfig: str | None
    """The host's `ldconfig`; None if it has none, so that the linker's cache cannot be rebuilt."""

    @property
    def places_libraries(self) -> bool:
        return self.ldconfig is not None and {"create-symlinks", "update-ldcache"} <= self.sub_commands.keys()


@dataclass(frozen=True)
class DriverFiles:
    """The files of one complete driver installation that containers need. Tuples are sorted; folders are container
    paths."""

    version: str
    machine: str
    """The `x86_64` of `x86_64-linux-gnu`, in a folder name of the dynamic linker."""
    libraries: tuple[DriverFile, ...]
    links: tuple[Link, ...]
    library_folders: tuple[str, ...]
    cuda_folders: tuple[str, ...]
    """The folders in `library_folders` that contain libcuda."""
    files: tuple[DriverFile, ...]
    """Programs, firmware, configuration: all other files, mounted read-only."""
    sockets: tuple[DriverFile, ...]
    control_nodes: tuple[DeviceNode, ...]
    hook: HookProgram | None = None

    @cached_property
    def common_edits(self) -> ContainerEdits:
        """Edits for every container with a GPU. Made once, and so is their text."""
        placed_by_hook = self.hook is not None and self.hook.places_libraries
        libraries = self.libraries if placed_by_hook else tuple(_under_all_names(self))
        folders = self.cuda_folders if placed_by_hook else _linker_folders(self.machine)[:1]
        files = sorted({*libraries, *self.files}, key=lambda file: file.container_path)
        return ContainerEdits(
            env=(f"NVIDIA_CTK_LIBCUDA_DIR={':'.join(folders)}", NOTHING_ELSE),
            device_nodes=self.control_nodes,
            hooks=_hooks(self, self.hook) if self.hook is not None else (),
            mounts=(
                *(Mount(file.host_path, file.container_path, _FILE_OPTIONS) for file in files),
                *(Mount(socket.host_path, socket.container_path, _SOCKET_OPTIONS) for socket in self.sockets),
            ),
            additional_gids=_groups(self.control_nodes),
        )


@dataclass(frozen=True, slots=True)
class MpsClient:
    """The host's folders of the MPS daemon that serves a device, and the limits of a share."""

    pipe: str
    shm: str
    thread_percentage: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ClaimDevice:
    """One device of a claim. `device` is its published name, `nodes` are its own device nodes."""

    device: str
    gpu: GpuFacts | None
    """The GPU itself, or the GPU of which it is a part; not needed for a device without the driver's files."""
    nodes: tuple[DeviceNode, ...]
    admin_access: bool = False
    identity: str | None = None
    """Value of its variable: the UUID of a MIG device, the PCI address of a GPU for a virtual machine. None: the GPU's
    UUID."""
    share_id: str | None = None
    mps: MpsClient | None = None
    driver_files: bool = True
    """Whether a container needs the host's driver for it."""


def claim_kind(driver: str) -> str:
    """The CDI kind of the claims of `driver`: `k8s.gpu.nvidia.com/claim`."""
    return f"k8s.{driver}/claim"


def cdi_device_id(driver: str, claim_uid: str, device: str, share_id: str | None = None) -> str:
    """What the kubelet passes to the runtime: `k8s.gpu.nvidia.com/claim=<claim UID>-<device>`.

    A claim may have several shares of one device, so the name also contains the share.
    """
    return qualified_name(claim_kind(driver), _cdi_name(claim_uid, device, share_id))


def claim_spec(driver: str, claim_uid: str, devices: Sequence[ClaimDevice], files: DriverFiles) -> CdiSpec:
    """The spec of one claim, devices in the order given. The same arguments give the same spec."""
    apart = any(not device.driver_files for device in devices)
    return spec_of(
        claim_kind(driver),
        tuple(
            CdiDevice(
                _cdi_name(claim_uid, device.device, device.share_id),
                _with_driver(device, files) if apart else _own_edits(device, files.hook),
            )
            for device in devices
        ),
        ContainerEdits() if apart else files.common_edits,
    )


def device_variable(device: ClaimDevice) -> str:
    """The variable for this device: `NVIDIA_DRA_DEVICE_GPU_5A7B12C3=GPU-5a7b12c3-…`."""
    prefix = ADMIN_DEVICE_VARIABLE if device.admin_access else DEVICE_VARIABLE
    identity = device.identity or (device.gpu.uuid if device.gpu is not None else "")
    return f"{prefix}{in_variables(device.device)}={identity}"


def in_variables(device: str) -> str:
    """The name of a device as variables have it."""
    return device.upper().replace("-", "_")


def _cdi_name(claim_uid: str, device: str, share_id: str | None) -> str:
    return f"{claim_uid}-{device}" if share_id is None else f"{claim_uid}-{device}-{share_id}"


def _with_driver(device: ClaimDevice, files: DriverFiles) -> ContainerEdits:
    edits = _own_edits(device, files.hook)
    common = files.common_edits if device.driver_files else ContainerEdits(env=(NOTHING_ELSE,))
    return ContainerEdits(
        env=(*common.env, *edits.env),
        device_nodes=(*common.device_nodes, *edits.device_nodes),
        hooks=(*common.hooks, *edits.hooks),
        mounts=(*common.mounts, *edits.mounts),
        additional_gids=tuple(sorted({*common.additional_gids, *edits.additional_gids})),
    )


def _own_edits(device: ClaimDevice, hook: HookProgram | None) -> ContainerEdits:
    nodes, hooks = device.nodes, tuple[Hook, ...]()
    by_path = dict(_by_path(device))
    if by_path and hook is not None and "create-symlinks" in hook.sub_commands:
        links = [Link(path, f"../{posixpath.basename(node.path)}") for path, node in by_path.items()]
        hooks = (_hook(hook, "create-symlinks", *_link_arguments(links)),)
    else:
        # A second node with the same numbers works like a link to the first.
        nodes += tuple(replace(node, path=path) for path, node in by_path.items())
    variables, mounts = _mps_edits(device.mps)
    return ContainerEdits(
        env=(device_variable(device), *variables),
        device_nodes=nodes,
        hooks=hooks,
        mounts=mounts,
        additional_gids=_groups(device.nodes),
    )


def _mps_edits(mps: MpsClient | None) -> tuple[tuple[str, ...], tuple[Mount, ...]]:
    """Client and server communicate through the pipe folder, and share memory below /dev/shm."""
    if mps is None:
        return (), ()
    limits = {} if mps.memory_bytes is None else {0: mps.memory_bytes}
    variables = client_environment(mps.thread_percentage, limits)
    folders = ((mps.pipe, PIPE_IN_CONTAINER), (mps.shm, SHM_IN_CONTAINER))
    return (
        tuple(f"{name}={value}" for name, value in variables),
        tuple(Mount(host, container, _SOCKET_OPTIONS) for host, container in folders),
    )


def _by_path(device: ClaimDevice) -> Iterator[tuple[str, DeviceNode]]:
    """Names below /dev/dri/by-path for the GPU's DRM nodes; EGL and Vulkan find a GPU by its PCI address there."""
    for node in device.nodes:
        name = posixpath.basename(node.path)
        if device.gpu is not None and node.path.startswith("/dev/dri/"):
            end = "card" if name.startswith("card") else "render"
            yield f"/dev/dri/by-path/pci-{device.gpu.pci_bus_id}-{end}", node


def _groups(nodes: Sequence[DeviceNode]) -> tuple[int, ...]:
    """The groups whose processes may open device nodes that are not open to all users."""
    return tuple(
        sorted(
            {
                node.gid
                for node in nodes
                if node.gid and node.file_mode is not None and node.file_mode & _WORLD_READ_WRITE != _WORLD_READ_WRITE
            }
        )
    )


def _hooks(files: DriverFiles, hook: HookProgram) -> tuple[Hook, ...]:
    """In the order in which they must run: links first, then the inputs of the cache, then the cache."""
    wanted: list[tuple[str, tuple[str, ...]]] = []
    if files.links and hook.places_libraries:
        wanted.append(("create-symlinks", _link_arguments(files.links)))
    wanted.append(("enable-cuda-compat", (f"--host-driver-version={files.version}",)))
    if hook.places_libraries and hook.ldconfig is not None:
        folders = (argument for folder in _cached_folders(files) for argument in ("--folder", folder))
        # Without the flag it runs /sbin/ldconfig.
        program = ("--ldconfig-path", hook.ldconfig) if "--ldconfig-path" in hook.sub_commands["update-ldcache"] else ()
        wanted.append(("update-ldcache", (*program, *folders)))
    wanted += [("disable-device-node-modification", ()), ("update-application-profile", ())]
    return tuple(_hook(hook, name, *arguments) for name, arguments in wanted if name in hook.sub_commands)


def _cached_folders(files: DriverFiles) -> Iterator[str]:
    """Folders for the linker's cache: those of libraries, and below them those of VDPAU's back ends."""
    used = {posixpath.dirname(library.container_path) for library in files.libraries}
    for folder in files.library_folders:
        yield from (text for text in (folder, posixpath.join(folder, "vdpau")) if text in used)


_HOOK_ENVIRONMENT = ("NVIDIA_CTK_DEBUG=false",)
"""Never empty: without variables of its own, runc gives a hook those of the container, so that an image with LD_PRELOAD
runs its code as root on the host (CVE-2025-23266; seen with runc 1.1)."""


def _hook(hook: HookProgram, sub_command: str, *arguments: str) -> Hook:
    return Hook("createContainer", hook.path, (*hook.arguments, sub_command, *arguments), _HOOK_ENVIRONMENT)


def _link_arguments(links: Sequence[Link]) -> tuple[str, ...]:
    return tuple(argument for link in links for argument in ("--link", f"{link.target}::{link.path}"))


def _linker_folders(machine: str) -> tuple[str, ...]:
    return (f"/usr/lib/{machine}-linux-gnu", "/usr/lib64")


def _under_all_names(files: DriverFiles) -> Iterator[DriverFile]:
    """Each library under its own name and the names of all links to it, in each folder of the linker."""
    for path, host_path in _names(files).items():
        inside = _inside(path, files.library_folders)
        if inside is None:
            yield DriverFile(host_path, path)
        else:
            yield from (DriverFile(host_path, f"{folder}/{inside}") for folder in _linker_folders(files.machine))


def _names(files: DriverFiles) -> dict[str, str]:
    """The library's host path, by the container paths of the library and of links to it."""
    names = {library.container_path: library.host_path for library in files.libraries}
    links = {
        link.path: posixpath.normpath(posixpath.join(posixpath.dirname(link.path), link.target)) for link in files.links
    }
    for path, target in links.items():
        seen = {path}
        while target in links and target not in seen:
            seen.add(target)
            target = links[target]
        if target in names:
            names.setdefault(path, names[target])
    return names


def _inside(path: str, folders: Sequence[str]) -> str | None:
    """`path` relative to the deepest of `folders` that contains it; None if none does."""
    prefixes = [folder.rstrip("/") + "/" for folder in folders]
    return min((path.removeprefix(prefix) for prefix in prefixes if path.startswith(prefix)), key=len, default=None)
