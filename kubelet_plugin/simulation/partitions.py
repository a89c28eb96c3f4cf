"""How a simulated GPU is divided: MIG mode, GPU instances and compute instances, and what the hardware refuses.

Works on the state of one GPU (`kubelet_plugin.simulation.state`) and the table of its model; the caller has the
state open for editing. Simulated NVML calls it, and `kubelet_plugin.simulation.host` for what administrators do.
A refusal changes nothing, except that an Ampere GPU remembers a mode that waits for its reset.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import NAMESPACE_URL, uuid5

import pynvml

from kubelet_plugin.simulation.profiles import DOUBLE_MEMORY, MigProfile, MigTable, load_mig_table
from kubelet_plugin.simulation.state import (
    Client,
    ComputeInstanceState,
    GpuInstanceState,
    GpuState,
    MigState,
    NodeState,
)

AMPERE = 7
"""NVML's number of the architecture that changes its MIG mode by a reset, and keeps it over a reboot."""

_VGPU_GUEST = 2
_PASSTHROUGH = 1

_COMPUTE_SLICES = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7}
"""Slices by NVML's enumeration of compute instance profiles, which is their id too."""
_WITH_MEDIA = 7
"""NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE_REV1: what fills a `1g` instance with double memory on Hopper and newer."""


class PartitionRefused(Exception):
    """The hardware says no; `code` is NVML's return value."""

    def __init__(self, code: int) -> None:
        super().__init__(f"NVML code {code}")
        self.code = code


@dataclass(frozen=True, slots=True)
class ComputeProfile:
    """One kind of compute instance that a GPU instance can have. `kind` is NVML's enumeration and id."""

    kind: int
    slices: int
    multiprocessors: int
    starts: tuple[int, ...]


def set_mode(
    gpu: GpuState, wanted: int, architecture: int, *, open_elsewhere: bool = False, resets: bool = True
) -> int:
    """Switch MIG mode. Answers the activation status: 0, or why the mode is not (yet) what was asked for.

    Hopper and newer switch at once or not at all; Ampere remembers, and resets itself when it is not in use: by a
    program, or by another session of NVML (`open_elsewhere`). Not `resets`: it waits for a reset by another tool.
    """
    if gpu.mig is None or gpu.virtualization == _VGPU_GUEST:
        raise PartitionRefused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    if wanted not in (0, 1):
        raise PartitionRefused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    in_use = bool(gpu.clients or gpu.instances)
    if wanted == gpu.mig.current:
        gpu.mig = MigState(current=wanted, pending=wanted)
        return 0
    if architecture > AMPERE:
        if in_use:
            return int(pynvml.NVML_ERROR_IN_USE)
        gpu.mig = MigState(current=wanted, pending=wanted)
        return 0
    gpu.mig = MigState(current=gpu.mig.current, pending=wanted)
    if gpu.virtualization == _PASSTHROUGH:
        return int(pynvml.NVML_ERROR_RESET_REQUIRED)
    if in_use or open_elsewhere:
        return int(pynvml.NVML_ERROR_IN_USE)
    if not resets:
        return int(pynvml.NVML_ERROR_RESET_REQUIRED)
    gpu.mig = MigState(current=wanted, pending=wanted)
    return 0


def reset(gpu: GpuState) -> None:
    """Reset the GPU, as an administrator does: a pending mode takes effect, instances are gone, errors forgotten."""
    if gpu.clients:
        raise PartitionRefused(pynvml.NVML_ERROR_IN_USE)
    if gpu.mig is not None:
        gpu.mig = MigState(current=gpu.mig.pending, pending=gpu.mig.pending)
    gpu.instances = []
    gpu.fault = None
    forget_errors(gpu)


def forget_errors(gpu: GpuState) -> None:
    """What a reset or a new driver repairs: counts start again, rows are remapped, nothing more is asked for."""
    gpu.health = gpu.health.model_copy(
        update={
            "corrected_errors": 0,
            "uncorrected_errors": 0,
            "remap_pending": False,
            "channel_repair_pending": False,
            "tpc_repair_pending": False,
            "recovery_action": 0,
        }
    )


def reboot(gpu: GpuState, architecture: int) -> None:
    """Instances are gone with the driver, and the mode, except that Ampere has it on the board."""
    release(gpu, architecture)
    gpu.clients = []
    forget_errors(gpu)
    if gpu.mig is not None:
        gpu.mig = MigState(current=gpu.mig.pending, pending=gpu.mig.pending)


def release(gpu: GpuState, architecture: int) -> None:
    """The driver lets go of this GPU, which stays as it is in nothing but Ampere's mode."""
    gpu.instances = []
    gpu.compute_mode = gpu.time_slice = 0
    if gpu.mig is not None and architecture > AMPERE:
        gpu.mig = MigState()


def create_gpu_instance(
    gpu: GpuState, table: MigTable, profile_id: int, start: int | None = None, size: int | None = None
) -> GpuInstanceState:
    """Without `start` the driver chooses the place: from the upper half of the GPU first."""
    _check_divided(gpu)
    profile = profile_of(table, profile_id)
    if any(client.kind == "compute" and client.gpu_instance is None for client in gpu.clients):
        raise PartitionRefused(pynvml.NVML_ERROR_IN_USE)
    if start is not None and (start not in profile.starts or size != profile.size):
        raise PartitionRefused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    free = free_starts(gpu.instances, table, profile)
    if start is None:
        start = min(free, key=lambda place: (place < table.memory_slices // 2, place), default=None)
    if start is None or start not in free:
        raise PartitionRefused(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
    instance = GpuInstanceState(
        id=_instance_id(gpu, table, start, profile.size),
        number=_next_number(gpu),
        profile=profile.id,
        start=start,
        size=profile.size,
    )
    gpu.instances.append(instance)
    return instance


def destroy_gpu_instance(gpu: GpuState, instance: GpuInstanceState) -> None:
    if instance.compute_instances or _clients(gpu, instance):
        raise PartitionRefused(pynvml.NVML_ERROR_IN_USE)
    gpu.instances.remove(instance)


def create_compute_instance(
    gpu: GpuState,
    table: MigTable,
    parent: GpuInstanceState,
    profile_id: int,
    start: int | None = None,
    size: int | None = None,
) -> ComputeInstanceState:
    """Without `start` it lies as low as it can."""
    _check_divided(gpu)
    profile = compute_profile(table, parent, profile_id)
    if profile is None:
        raise PartitionRefused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    if start is not None and (start not in profile.starts or size != profile.slices):
        raise PartitionRefused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    free = _free_compute_starts(parent, profile)
    if start is None:
        start = min(free, default=None)
    if start is None or start not in free:
        raise PartitionRefused(pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES)
    number = _next_number(gpu)
    instance = ComputeInstanceState(
        id=_lowest(item.id for item in parent.compute_instances),
        uuid=f"MIG-{uuid5(NAMESPACE_URL, f'{gpu.uuid}/mig/{number}')}",
        profile=profile.kind,
        slices=profile.slices,
        start=start,
        index=_lowest(item.index for other in gpu.instances for item in other.compute_instances),
    )
    parent.compute_instances.append(instance)
    return instance


def destroy_compute_instance(gpu: GpuState, parent: GpuInstanceState, instance: ComputeInstanceState) -> None:
    if any(client.compute_instance == instance.id for client in _clients(gpu, parent)):
        raise PartitionRefused(pynvml.NVML_ERROR_IN_USE)
    parent.compute_instances.remove(instance)


def compute_profiles(table: MigTable, parent: MigProfile) -> tuple[ComputeProfile, ...]:
    """What compute instances a GPU instance of this profile can have: parts of it, and the one that fills it."""
    single = next(item.multiprocessors for item in table.profiles if item.slices == 1 and item.size == 1)
    results = []
    for kind, slices in _COMPUTE_SLICES.items():
        if slices == parent.slices:
            # Such an instance has more multiprocessors than one slice, and a profile of its own for all of them.
            larger = parent.kind == DOUBLE_MEMORY and parent.multiprocessors > single
            results.append(ComputeProfile(_WITH_MEDIA if larger else kind, slices, parent.multiprocessors, (0,)))
        elif 2 * slices <= parent.slices + 1:
            starts = tuple(range(0, parent.slices - slices + 1, slices))
            results.append(ComputeProfile(kind, slices, slices * single, starts))
    return tuple(results)


def compute_profile(table: MigTable, parent: GpuInstanceState, kind: int) -> ComputeProfile | None:
    profiles = compute_profiles(table, profile_of(table, parent.profile))
    return next((profile for profile in profiles if profile.kind == kind), None)


def layout(gpu: GpuState) -> object:
    """Equal while nothing about the division changes; what an event is sent for, and files are written."""
    instances = [
        (instance.number, instance.id, [(item.uuid, item.id) for item in instance.compute_instances])
        for instance in gpu.instances
    ]
    return gpu.mig and gpu.mig.current, instances


def table_of(state: NodeState) -> MigTable:
    """Of the node's GPU model. Raises PartitionRefused when it cannot be divided."""
    if state.model.mig is None:
        raise PartitionRefused(3)
    return load_mig_table(state.model.mig)


def mig_device(gpu: GpuState, uuid: str) -> tuple[GpuInstanceState, ComputeInstanceState]:
    """The MIG device and the GPU instance that it is in. Raises PartitionRefused when the GPU has no such
    device."""
    for instance, item in mig_devices(gpu):
        if item.uuid == uuid:
            return instance, item
    raise PartitionRefused(pynvml.NVML_ERROR_NOT_FOUND)


def mig_devices(gpu: GpuState) -> Iterator[tuple[GpuInstanceState, ComputeInstanceState]]:
    for instance in gpu.instances:
        for item in instance.compute_instances:
            yield instance, item


def _check_divided(gpu: GpuState) -> None:
    if gpu.mig is None or not gpu.mig.current or gpu.virtualization == _VGPU_GUEST:
        raise PartitionRefused(pynvml.NVML_ERROR_NOT_SUPPORTED)


def profile_of(table: MigTable, profile_id: int) -> MigProfile:
    """By the id that placements and creation name. Raises PartitionRefused when the table has none."""
    profile = table.profile(profile_id)
    if profile is None:
        raise PartitionRefused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return profile


def free_starts(instances: Sequence[GpuInstanceState], table: MigTable, profile: MigProfile) -> list[int]:
    """Where one more fits: memory slices, engines and the number of instances of its profile."""
    if sum(1 for instance in instances if instance.profile == profile.id) >= profile.max_instances:
        return []
    used = [profile_of(table, instance.profile).amounts for instance in instances]
    sums = (sum(column) for column in zip(profile.amounts, *used, strict=True))
    if any(amount > there for amount, there in zip(sums, table.totals.amounts, strict=True)):
        return []
    taken = {piece for instance in instances for piece in range(instance.start, instance.start + instance.size)}
    return [start for start in profile.starts if taken.isdisjoint(range(start, start + profile.size))]


def _free_compute_starts(parent: GpuInstanceState, profile: ComputeProfile) -> list[int]:
    taken = {piece for item in parent.compute_instances for piece in range(item.start, item.start + item.slices)}
    return [start for start in profile.starts if taken.isdisjoint(range(start, start + profile.slices))]


def _instance_id(gpu: GpuState, table: MigTable, start: int, size: int) -> int:
    """Ids count places from the largest to the smallest. Which half of the GPU comes first differs between boards."""
    places = table.memory_slices // size
    position = start // size
    if int(gpu.uuid[-1], 16) % 2:
        position = (position + places // 2) % places
    return places - 1 + position


def _next_number(gpu: GpuState) -> int:
    gpu.created += 1
    return gpu.created


def _lowest(taken: Iterator[int]) -> int:
    used = set(taken)
    return next(number for number in range(len(used) + 1) if number not in used)


def _clients(gpu: GpuState, instance: GpuInstanceState) -> list[Client]:
    return [client for client in gpu.clients if client.gpu_instance == instance.id]
