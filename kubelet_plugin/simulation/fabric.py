"""The fabric of a simulated node with NVSwitches: the partitions that Fabric Manager offers, and what they connect.

Fabric Manager's numbers of GPUs, its physical IDs, are NVML's module IDs on H100 and later.
"""

from typing import Literal

from kubelet_plugin.simulation.profiles import Profile
from kubelet_plugin.simulation.state import FabricManagerState, FabricPartitionState, GpuState, NodeState

_ALL = (1, 2, 3, 4, 5, 6, 7, 8)
_HOPPER, _BLACKWELL = 9, 10
_PAIRS = {
    7: ((1, 2), (3, 4), (5, 6), (7, 8)),
    _HOPPER: ((1, 3), (2, 4), (5, 7), (6, 8)),
    _BLACKWELL: ((1, 2), (3, 4), (5, 6), (7, 8)),
}
"""Partitions of two GPUs by architecture. Sources: the published listing of an H200 board, and for Blackwell the
example of kubernetes-sigs/dra-driver-nvidia-gpu. Ampere is assumed."""


def fabric_manager_for(profile: Profile) -> FabricManagerState | None:
    """As it starts by default, in bare-metal mode; None for a node without NVSwitches of its own."""
    model = profile.gpu
    switched = model.nvlink is not None and model.nvlink.switches and profile.machine == "x86_64"
    if not switched or sorted(place.module or 0 for place in profile.gpus) != list(_ALL):
        return None
    sets = [_ALL, _ALL[:4], _ALL[4:], *_PAIRS[model.architecture], *((number,) for number in _ALL)]
    first = 1 if model.architecture == _BLACKWELL else 0
    partitions = [FabricPartitionState(id=number, gpus=list(gpus)) for number, gpus in enumerate(sets, first)]
    return FabricManagerState(partitions=partitions, names_gpus=model.architecture < _HOPPER)


def without_missing(state: NodeState) -> None:
    """Take away the partitions with a GPU that the node does not have."""
    manager = state.fabric_manager
    if manager is not None:
        there = {physical_id(state, gpu) for gpu in state.gpus}
        manager.partitions = [partition for partition in manager.partitions if there.issuperset(partition.gpus)]


def fabric_manager_of(state: NodeState) -> FabricManagerState:
    """Raises KeyError on a node without NVSwitches of its own."""
    if state.fabric_manager is None:
        raise KeyError("fabric manager")
    return state.fabric_manager


def restarted(manager: FabricManagerState, mode: Literal[0, 1, 2], restart: Literal[0, 1] = 0) -> None:
    manager.mode, manager.restart, manager.running, manager.ready = mode, restart, True, True
    manager.starts += 1
    for partition in manager.partitions:
        partition.active = partition.active and bool(restart)


def physical_id(state: NodeState, gpu: GpuState) -> int:
    """Before H100 it is not NVML's module ID: here it counts from the other end."""
    module = gpu.module or 0
    names = state.fabric_manager is not None and state.fabric_manager.names_gpus
    return len(_ALL) + 1 - module if names else module


def connected(state: NodeState, *gpus: GpuState) -> bool:
    """Whether the switches connect these GPUs: where they are shared, in an active partition that has all of them."""
    manager = state.fabric_manager
    if manager is None or manager.mode != 1:
        return True
    wanted = {physical_id(state, gpu) for gpu in gpus}
    return any(partition.active and wanted.issubset(partition.gpus) for partition in manager.partitions)
