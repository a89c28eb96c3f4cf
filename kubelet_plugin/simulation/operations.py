"""What happens to the GPUs of a simulated node while a plugin runs: failures, programs, and an administrator's hand.

The part of `kubelet_plugin.simulation.host.SimulatedHost` that changes state and leaves making files to it. GPUs are
named by their index, as NVML enumerates them.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Literal

from kubelet_plugin.simulation import partitions
from kubelet_plugin.simulation.profiles import MigTable, load_mig_table
from kubelet_plugin.simulation.state import (
    Client,
    ComputeInstanceState,
    GpuInstanceState,
    GpuState,
    MigState,
    Mishap,
    NodeState,
    NvmlEvent,
    SimulatedFabric,
)

MIG_CONFIGURATION_CHANGED = 0x100
"""NVML event."""

_EVENTS_KEPT = 64
"""Of all GPUs: who waits looks every few milliseconds, and the state is read before every answer."""
_FIRST_PID = 4000


class GpuOperations:
    """Needs the two of `SimulatedHost`: its state, and a way to change it."""

    @property
    def state(self) -> NodeState:
        raise NotImplementedError

    def edit(self) -> AbstractContextManager[NodeState]:
        raise NotImplementedError

    def snapshot(self, index: int) -> dict[str, Any]:
        return _snapshot(self.state.gpus[index])

    def snapshots(self) -> dict[str, dict[str, Any]]:
        """Of every GPU, by UUID: the order may change at a reboot."""
        return {gpu.uuid: _snapshot(gpu) for gpu in self.state.gpus}

    # Failures

    def lose_gpu(self, index: int, code: int = 15) -> None:
        """Every query of this GPU answers `code` from now on: 15 GPU is lost, 999 unknown error, 0 well again."""
        with self.edit() as state:
            state.gpus[index].fault = code or None

    def fail_call(self, index: int, function: str, code: int, *, times: int | None = None) -> None:
        """One NVML function answers `code` about one GPU, `times` times or from now on; 0 well again."""
        self._mishap(index, function, code=code, times=times)

    def slow_call(self, index: int, function: str, delay_s: float, *, times: int | None = None) -> None:
        """One NVML function takes `delay_s` about one GPU, `times` times or from now on; 0 takes none."""
        self._mishap(index, function, delay_s=delay_s, times=times)

    def crash_in(self, index: int, function: str, when: Literal["before", "after"] = "after") -> None:
        """The next process that calls this function about this GPU dies, before or after the function's work."""
        self._mishap(index, function, crash=when, times=1)

    def _mishap(self, index: int, function: str, **changes: Any) -> None:
        with self.edit() as state:
            gpu = state.gpus[index]
            mishap = gpu.mishaps.get(function, Mishap()).model_copy(update=changes)
            others = {name: other for name, other in gpu.mishaps.items() if name != function}
            gpu.mishaps = others if mishap == Mishap() else others | {function: mishap}

    def set_health(self, index: int, **facts: int | bool) -> None:
        """Facts by the names of `HealthState`: `uncorrected_errors=2`, `remap_pending=True`, `recovery_action=1`."""
        with self.edit() as state:
            health = state.gpus[index].health
            state.gpus[index].health = type(health).model_validate(health.model_dump() | facts)

    def set_links_down(self, index: int, *links: int) -> None:
        """These NVLinks of a GPU are inactive and all others are active."""
        with self.edit() as state:
            state.gpus[index].links_down = list(links)

    def set_fabric(self, index: int, fabric: SimulatedFabric | None) -> None:
        """None: NVML answers NOT_SUPPORTED."""
        with self.edit() as state:
            state.gpus[index].fabric = fabric

    def set_privileged(self, *, privileged: bool) -> None:
        """Whether callers of NVML are root."""
        with self.edit() as state:
            state.driver.privileged = privileged

    def inject_event(self, index: int, data: int, kind: int = 8, *, mig_uuid: str | None = None) -> None:
        """An NVML event of a GPU, or of one MIG device of it; for the default kind `data` is the number of an Xid."""
        with self.edit() as state:
            gpu = state.gpus[index]
            if mig_uuid is None:
                add_event(state, gpu.uuid, kind, data)
                return
            instance, item = mig_device(gpu, mig_uuid)
            add_event(state, gpu.uuid, kind, data, instance.id, item.id)

    # Programs

    def attach_client(
        self,
        index: int,
        *,
        name: str = "cuda-program",
        kind: Literal["compute", "mps", "monitor"] = "compute",
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

    def run_persistenced(self, *, running: bool) -> None:
        """Start nvidia-persistenced, which opens all GPUs of the driver, or stop it."""
        with self.edit() as state:
            state.driver.daemon, state.driver.daemon_outdated = running, False
            for gpu in state.gpus:
                gpu.persistenced = running and gpu.bound_to == "nvidia"

    def set_mig(self, index: int, current: int, pending: int | None = None) -> None:
        """The mode as it is from now on, without asking the hardware; a GPU that is not divided has no instances."""
        with self.edit() as state:
            gpu = state.gpus[index]
            gpu.mig = MigState(current=current, pending=current if pending is None else pending)
            if not current:
                gpu.instances = []

    def reset_gpu(self, index: int) -> None:
        """Raises `partitions.Refused` while a process has the GPU open."""
        with self.edit() as state:
            partitions.reset(state.gpus[index])

    def make_instance(
        self, index: int, profile: str, start: int | None = None, *, parts: tuple[int, ...] | None = None
    ) -> tuple[str, ...]:
        """Create a GPU instance in MIG mode, and fill it with one compute instance, or with `parts` of so many slices.

        Answers the UUIDs of the MIG devices. No parts: a GPU instance that no program can use. Raises InvalidInput for
        an unknown profile and `partitions.Refused` when the hardware does.
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
        """Destroy the GPU instance at `start`, with what is in it. Raises `partitions.Refused` when it is in use."""
        with self.edit() as state:
            gpu = state.gpus[index]
            instance = next(item for item in gpu.instances if item.start == start)
            for item in list(instance.compute_instances):
                partitions.destroy_compute_instance(gpu, instance, item)
            partitions.destroy_gpu_instance(gpu, instance)


def table_of(state: NodeState) -> MigTable:
    """Of the node's GPU model. Raises `partitions.Refused` when it cannot be divided."""
    if state.model.mig is None:
        raise partitions.PartitionRefused(3)
    return load_mig_table(state.model.mig)


def add_event(
    state: NodeState,
    uuid: str,
    kind: int,
    data: int,
    gpu_instance: int = 0xFFFFFFFF,
    compute_instance: int = 0xFFFFFFFF,
) -> None:
    number = state.events[-1].number + 1 if state.events else 1
    event = NvmlEvent(
        number=number,
        uuid=uuid,
        type=kind,
        data=data,
        gpu_instance=gpu_instance,
        compute_instance=compute_instance,
    )
    state.events = [*state.events, event][-_EVENTS_KEPT:]


def mig_device(gpu: GpuState, uuid: str) -> tuple[GpuInstanceState, ComputeInstanceState]:
    """The MIG device and the GPU instance that it is in. Raises KeyError when the GPU has no such device."""
    for instance, item in mig_devices(gpu):
        if item.uuid == uuid:
            return instance, item
    raise KeyError(uuid)


def mig_devices(gpu: GpuState) -> Iterator[tuple[GpuInstanceState, ComputeInstanceState]]:
    for instance in gpu.instances:
        for item in instance.compute_instances:
            yield instance, item


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
