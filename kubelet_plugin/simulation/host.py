"""A simulated node: its file tree, what the kernel, the NVIDIA driver and its packages leave on a host, and its state.

`create_host` builds it below a folder from a profile; `SimulatedHost` is that node afterwards, for tests and the demo,
which let things happen to it while a plugin runs: a GPU is lost, the driver is unloaded, the machine reboots. State
and tree are changed together, so that NVML and the file system tell one story. Sizes and contents of binary files are
made up; names, links, numbers and text formats are those of a real host.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from dra_driver.errors import InvalidInput, UnreadableFile
from dra_driver.names import model_label, names_record
from kubelet_plugin.hardware.layouts import DRIVER_ROOTS
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.simulation import driver_files, kernel_files, partitions, vfio
from kubelet_plugin.simulation.driver_files import driver_root, library_folder
from kubelet_plugin.simulation.fabric import fabric_manager_for, fabric_manager_of, restarted, without_missing
from kubelet_plugin.simulation.kernel_files import made_up_uuid
from kubelet_plugin.simulation.partitions import layout, mig_device, table_of
from kubelet_plugin.simulation.profiles import FabricModel, Profile, load_profile, profile_names
from kubelet_plugin.simulation.recorded.format import read_record, write_record
from kubelet_plugin.simulation.recorded.replay import RECORD, adopt_recorded, of_node, state_of, write_tree
from kubelet_plugin.simulation.state import (
    MIG_CONFIGURATION_CHANGED,
    XID,
    Client,
    DriverState,
    GpuState,
    Layout,
    MigState,
    NodeState,
    SimulatedFabric,
    StateFile,
    add_event,
)
from kubelet_plugin.simulation.tree import capabilities, change_capabilities, device_folders
from kubelet_plugin.simulation.tree import path as _path


class SimulatedHost:
    """A node that exists below `root`, made by `create_host`. May be opened by several processes at once. Methods name
    GPUs by their index, as NVML enumerates them."""

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
        """Change what NVML answers, in any way the state knows. Nothing is changed when the block raises.

        Files of MIG instances and of processes follow, and those who wait for NVML's events hear of a new division;
        the rest of the tree is left as it is.
        """
        with self._file.edit() as state:
            session = state.driver.session
            layouts = {gpu.uuid: (layout(gpu), capabilities(gpu)) for gpu in state.gpus}
            users = [(list(gpu.clients), gpu.persistenced) for gpu in state.gpus]
            yield state
            if state.driver.loaded and state.driver.session == session:
                for gpu in state.gpus:
                    before, files = layouts[gpu.uuid]
                    if layout(gpu) != before:
                        add_event(state, gpu.uuid, MIG_CONFIGURATION_CHANGED, 0)
                        change_capabilities(self.root, gpu.minor, files, capabilities(gpu), device_folders(state))
            if [(gpu.clients, gpu.persistenced) for gpu in state.gpus] != users:
                vfio.write_processes(self.root, state)

    @property
    def driver_root(self) -> PurePosixPath:
        """The host folder below which the driver's files lie."""
        return driver_root(self.state)

    @property
    def configured_root(self) -> str | None:
        """The driver root that a recorded node needs as a setting: None when it is found without."""
        root = str(self.driver_root)
        return root if self.state.recorded is not None and root not in DRIVER_ROOTS else None

    @property
    def library_folder(self) -> PurePosixPath:
        """The host folder of the driver's libraries."""
        return library_folder(self.state)

    def reboot(self) -> None:
        """A new boot id and an empty /run. Faults of GPUs are gone, compute partitions and pending MIG changes with
        them."""
        with self.edit() as state:
            check_may_change(state)
            state.boots += 1
            state.driver.session += 1
            state.driver.loaded = True
            state.events = []
            state.passthrough.loaded = []
            state.driver.daemon, state.driver.daemon_outdated = True, False
            if state.fabric_manager is not None:
                restarted(state.fabric_manager, state.fabric_manager.mode)
            for gpu in state.gpus:
                _restart(gpu, state)
            for folder in ("run", "dev", "proc", "sys"):
                shutil.rmtree(self.root / folder, ignore_errors=True)
            _write_files(self.root, state)

    def adopt_programs(self) -> None:
        """Run the driver's programs by the interpreter of this process, which is what lasts longest.

        The interpreter that made them may be gone: an older image with another Python, or a dractl beside the node.
        """
        if self.state.recorded is None:
            driver_files.adopt_programs(self.root, self.state)
        else:
            adopt_recorded(self.root, read_record(self.root / RECORD), self.state)

    def path(self, host_path: PurePosixPath | str) -> Path:
        return _path(self.root, host_path)

    def snapshot(self, index: int) -> dict[str, Any]:
        return _snapshot(self.state.gpus[index])

    def snapshots(self) -> dict[str, dict[str, Any]]:
        """Of every GPU, by UUID: the order may change at a reboot."""
        return {gpu.uuid: _snapshot(gpu) for gpu in self.state.gpus}

    # Failures

    def lose_gpu(self, index: int, code: int = 15) -> None:
        """Every query of this GPU answers `code` from now on: 15 GPU is lost, 999 unknown error, 0 it works again."""
        with self.edit() as state:
            state.gpus[index].fault = code or None

    def set_health(self, index: int, **facts: int | bool) -> None:
        """Facts by the names of `HealthState`: `uncorrected_errors=2`, `remap_pending=True`, `recovery_action=1`."""
        with self.edit() as state:
            health = state.gpus[index].health
            state.gpus[index].health = type(health).model_validate(health.model_dump() | facts)

    def inject_event(self, index: int, xid: int) -> None:
        """NVML's event of a GPU for an Xid with this number."""
        with self.edit() as state:
            add_event(state, state.gpus[index].uuid, XID, xid)

    # Fabric Manager

    def share_switches(self) -> None:
        """Start Fabric Manager in the shared NVSwitch mode where it runs in bare-metal mode; nothing without it."""
        manager = self.state.fabric_manager
        if manager is not None and manager.mode == 0:
            with self.edit() as state:
                restarted(fabric_manager_of(state), 1)

    # Programs

    def attach_client(
        self,
        index: int,
        *,
        name: str = "cuda-program",
        kind: Literal["compute", "monitor"] = "compute",
        mig_uuid: str | None = None,
        memory_mib: int = 0,
        pid: int | None = None,
    ) -> int:
        """A process opens a GPU or a MIG device. Answers its pid, a made-up one unless given."""
        with self.edit() as state:
            gpu = state.gpus[index]
            client = Client(pid=pid or _free_pid(state), name=name, kind=kind, memory_mib=memory_mib)
            if mig_uuid is not None:
                instance, item = mig_device(gpu, mig_uuid)
                client.gpu_instance, client.compute_instance = instance.id, item.id
            gpu.clients.append(client)
            return client.pid

    def detach_client(self, pid: int) -> None:
        """The process ends, on all its GPUs."""
        with self.edit() as state:
            for gpu in state.gpus:
                gpu.clients = [client for client in gpu.clients if client.pid != pid]

    # The administrator

    def set_mig(self, index: int, current: int, pending: int | None = None) -> None:
        """The mode as it is from now on, without asking the hardware; a GPU that is not divided has no instances."""
        with self.edit() as state:
            gpu = state.gpus[index]
            gpu.mig = MigState(current=current, pending=current if pending is None else pending)
            if not current:
                gpu.instances = []

    def reset_gpu(self, index: int) -> None:
        """Raises PartitionRefused while a process has the GPU open."""
        with self.edit() as state:
            partitions.reset(state.gpus[index])

    def set_resets(self, resets: Literal["nvml", "nvidia-smi", "together"]) -> None:
        """What resets one GPU of the node, see `DriverState`."""
        with self.edit() as state:
            state.driver.resets = resets

    def make_instance(
        self, index: int, profile: str, start: int | None = None, *, parts: tuple[int, ...] | None = None
    ) -> tuple[str, ...]:
        """Create a GPU instance in MIG mode, and fill it with one compute instance, or with `parts` of so many slices.

        Answers the UUIDs of the MIG devices. No parts: a GPU instance that no program can use. Raises InvalidInput for
        an unknown profile and PartitionRefused when the hardware refuses.
        """
        with self.edit() as state:
            gpu, table = state.gpus[index], table_of(state)
            wanted = table.named(profile)
            instance = partitions.create_gpu_instance(gpu, table, wanted.id, start, wanted.size)
            kinds = {item.slices: item.kind for item in partitions.compute_profiles(table, wanted)}
            made = [
                partitions.create_compute_instance(gpu, table, instance, kinds[slices])
                for slices in (parts if parts is not None else (wanted.slices,))
            ]
            return tuple(item.uuid for item in made)

    def destroy_instance(self, index: int, start: int) -> None:
        """Destroy the GPU instance at `start`, with what is in it. Raises PartitionRefused when it is in use."""
        with self.edit() as state:
            gpu = state.gpus[index]
            instance = next(item for item in gpu.instances if item.start == start)
            for item in list(instance.compute_instances):
                partitions.destroy_compute_instance(gpu, instance, item)
            partitions.destroy_gpu_instance(gpu, instance)


def check_may_change(state: NodeState) -> None:
    """Raises InvalidInput for a node that was made from a record."""
    if state.recorded is not None:
        raise InvalidInput(
            "was made from a record, which has one state of the hardware; simulate a profile to change it",
            about=f"simulated node {state.profile}",
        )


def create_host(
    root: Path,
    profile: str,
    node_index: int = 0,
    *,
    machine: str = "",
    layout: Layout = "root",
    gpus: int | None = None,
) -> SimulatedHost:
    """Build the node below `root`, an empty or missing folder.

    The same profile and index give the same UUIDs and serial numbers each time; two indices share none, but GPUs of
    one rack share the cluster UUID and clique. Neither do two machines, whose names tell apart nodes of one index.
    With `gpus` the node has that many of the profile's GPUs, the first ones. `profile` may be the file of a record,
    which says all else.
    Raises InvalidInput for an unknown profile and for a file that is no record, UnreadableFile if the folder cannot be
    made.
    """
    if names_record(profile):
        return _recorded_host(root, Path(profile), node_index, machine)
    state = _initial_state(profile, load_profile(profile), node_index, machine, layout)
    state.gpus = state.gpus[:gpus]
    without_missing(state)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnreadableFile(
            f"cannot be made: {error.strerror}; name another folder", about=f"folder {root}"
        ) from error
    _write_files(root, state)
    host = SimulatedHost(root)
    host._file.write(state)
    return host


def _write_files(root: Path, state: NodeState) -> None:
    kernel_files.write_machine(root, state)
    kernel_files.write_kernel_files(root, state)
    driver_files.write_driver_files(root, state)


def _recorded_host(root: Path, file: Path, node_index: int, machine: str) -> SimulatedHost:
    """As it was recorded. The archive goes with it, because the node may outlive the file."""
    record, name = read_record(file), model_label(str(file))
    if node_index or machine:
        record = of_node(record, f"{name}/{node_index}/{machine}")
    new = not root.exists()
    try:
        write_tree(root, record)
        state = state_of(record, HostFiles(root), name, node_index)
        adopt_recorded(root, record, state)
        (root / "sim").mkdir(exist_ok=True)
        write_record(record, root / RECORD)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OSError) as error:
        if new:
            shutil.rmtree(root, ignore_errors=True)
        raise InvalidInput(
            f"cannot become a node ({error!r}); record the node again", about=f"record {file}"
        ) from error
    host = SimulatedHost(root)
    host._file.write(state)
    return host


def open_simulated(root: Path, wanted: str, machine: str = "") -> SimulatedHost:
    """The node that `--simulate` names: `PROFILE`, the file of a record, either with `:N` for the N-th of its kind.

    A node that exists below `root` is left as it is: a restarted plugin finds its machine again. `machine`
    distinguishes nodes that were all given the same name without a number. Raises InvalidInput, also when the node
    there is of another profile.
    """
    profile, index = parse_simulated(wanted)
    host = SimulatedHost(root)
    if not host.exists:
        return create_host(root, profile, index or 0, machine=machine if index is None else "")
    if profile in profile_names() and (there := host.state.profile) != profile:
        raise InvalidInput(f"has a simulated {there}, not {profile}: name another folder", about=f"folder {root}")
    return host


def parse_simulated(wanted: str) -> tuple[str, int | None]:
    """A profile's name or a record's file, and the number behind it. Raises InvalidInput."""
    name, _, index = wanted.rpartition(":") if ":" in wanted else (wanted, "", "")
    if index and not index.isdecimal():
        raise InvalidInput(f"{index!r} is not the number of a node", about=f"simulated node {wanted}")
    return name, int(index) if index else None


def _initial_state(name: str, profile: Profile, node_index: int, machine: str, layout: Layout) -> NodeState:
    model = profile.gpu
    gpus = []
    whose = f"{name}/{node_index}/{machine}/" if machine else f"{name}/{node_index}/"
    for index, place in enumerate(profile.gpus):
        identity = made_up_uuid(f"{whose}{index}")
        gpus.append(
            GpuState(
                uuid=f"GPU-{identity}",
                minor=place.minor,
                address=place.address,
                root=place.root,
                numa=place.numa,
                serial=f"165{int(identity[:8], 16) % 10**10:010d}",
                module=place.module,
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
        fabric_manager=fabric_manager_for(profile),
    )


def _fabric(name: str, fabric: FabricModel | None, node_index: int) -> SimulatedFabric | None:
    if fabric is None:
        return None
    cluster = made_up_uuid(f"{name}/rack/{node_index // fabric.nodes}") if fabric.nodes else None
    return SimulatedFabric(cluster=cluster, clique=fabric.clique, summary=fabric.summary, mask=fabric.mask)


def _restart(gpu: GpuState, state: NodeState) -> None:
    gpu.fault = None
    gpu.mishaps = {}
    gpu.links_down = []
    gpu.bound_to = "nvidia"
    gpu.persistence_mode = 0
    gpu.persistenced = True
    partitions.reboot(gpu, state.model.architecture)


_FIRST_PID = 4000


def _free_pid(state: NodeState) -> int:
    return max((client.pid + 1 for gpu in state.gpus for client in gpu.clients), default=_FIRST_PID)


def _snapshot(gpu: GpuState) -> dict[str, Any]:
    """How a GPU stands, without what only counts up. Equal before a claim came and after it is gone."""
    return {
        **gpu.model_dump(include={"uuid", "mig", "compute_mode", "time_slice", "bound_to"}),
        "persistent": gpu.persistent,
        "instances": sorted(
            (part.profile, part.start, sorted((item.profile, item.start, item.uuid) for item in part.compute_instances))
            for part in gpu.instances
        ),
        "clients": sorted((client.pid, client.name) for client in gpu.clients),
    }
