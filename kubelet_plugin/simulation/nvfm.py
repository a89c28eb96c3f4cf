"""libnvfm of a simulated node: Fabric Manager's partitions, answered from the node's state file.

`SimulatedFabricLibrary(root)` goes where the library of `kubelet_plugin.hardware.nvfm` goes. Structures are that
module's, codes and rules those of the Fabric Manager User Guide: partitions that share a GPU exclude each other, and
only mode 1 activates. What no source says was not invented: an activation takes no time, and NVLinks always train.
"""

import time
from ctypes import sizeof
from pathlib import Path
from typing import Any

from kubelet_plugin.hardware.nvfm import FmCode, PartitionInfo, PartitionList
from kubelet_plugin.hardware.sysfs import nvml_bus_id
from kubelet_plugin.simulation.fabric import fabric_manager_of, physical_id
from kubelet_plugin.simulation.host import SimulatedHost
from kubelet_plugin.simulation.nvml_session import Crash
from kubelet_plugin.simulation.state import FabricManagerState, FabricPartitionState, NodeState, mishaps_after

_AMPERE = 7
_RATE_MBPS = 26562
"""Of one NVLink; the published listing of an H200 board."""


class SimulatedFabricLibrary:
    """Stands for the library, and for the service behind it. One object for each library that a process loads."""

    def __init__(self, root: Path) -> None:
        self._host = SimulatedHost(root)
        self._initialized = False
        self._connections: dict[int, int] = {}
        """The start of Fabric Manager that each open connection belongs to."""
        self._next = 1

    def fmLibInit(self) -> int:
        if self._initialized:
            return FmCode.IN_USE
        self._initialized = True
        return self._met("fmLibInit")[1]

    def fmConnect(self, params: Any, handle: Any) -> int:
        if not self._initialized:
            return FmCode.UNINITIALIZED
        _, code = self._met("fmConnect")
        given, manager = params._obj, self._manager()
        if code:
            return code
        number = given.version >> 24
        if number > manager.connect_version or given.version & 0xFFFFFF != sizeof(given):
            return FmCode.VERSION_MISMATCH
        if not given.addressInfo or not given.timeoutMs:
            return FmCode.BADPARAM
        if not manager.running:
            return FmCode.CONNECTION_NOT_VALID
        if given.addressIsUnixSocket and not Path(given.addressInfo.decode()).exists():
            return FmCode.CONNECTION_NOT_VALID
        self._connections[self._next] = manager.starts
        handle._obj.value = self._next
        self._next += 1
        return FmCode.SUCCESS

    def fmDisconnect(self, handle: Any) -> int:
        return FmCode.BADPARAM if self._connections.pop(handle.value, None) is None else FmCode.SUCCESS

    def fmGetSupportedFabricPartitions(self, handle: Any, partitions: Any) -> int:
        answer: PartitionList = partitions._obj
        _, code = self._asked("fmGetSupportedFabricPartitions", handle)
        if code:
            return code
        if answer.version != sizeof(PartitionList) | PartitionList.NUMBER << 24:
            return FmCode.VERSION_MISMATCH
        state = self._host.state
        manager = fabric_manager_of(state)
        answer.numPartitions = answer.maxNumPartitions = len(manager.partitions)
        for info, partition in zip(answer.partitionInfo, manager.partitions, strict=False):
            _describe(info, partition, state)
        return FmCode.SUCCESS

    def fmActivateFabricPartition(self, handle: Any, partition: int) -> int:
        return self._change("fmActivateFabricPartition", handle, partition, active=True)

    def fmDeactivateFabricPartition(self, handle: Any, partition: int) -> int:
        return self._change("fmDeactivateFabricPartition", handle, partition, active=False)

    def _change(self, function: str, handle: Any, partition: int, *, active: bool) -> int:
        dies, code = self._asked(function, handle)
        if code:
            return code
        with self._host.edit() as state:
            manager = fabric_manager_of(state)
            code = _refusal(state, manager, partition, active=active)
            if not code:
                _named(manager, partition).active = active
        if dies:
            raise Crash(function)
        return code

    def _asked(self, function: str, handle: Any) -> tuple[bool, int]:
        """As `_met`, and what keeps any question from being answered."""
        if not self._initialized:
            return False, FmCode.UNINITIALIZED
        if handle.value not in self._connections:
            return False, FmCode.BADPARAM
        dies, code = self._met(function)
        manager = self._manager()
        if not code and (not manager.running or self._connections[handle.value] != manager.starts):
            code = FmCode.CONNECTION_NOT_VALID
        if not code and manager.mode == 0:
            code = FmCode.NOT_SUPPORTED
        if not code and not manager.ready:
            code = FmCode.NOT_CONFIGURED
        return dies, code

    def _manager(self) -> FabricManagerState:
        return fabric_manager_of(self._host.state)

    def _met(self, function: str) -> tuple[bool, int]:
        """Whether the caller dies when the work is done, and the code of the function's mishap, 0 when it has none."""
        mishap = self._manager().mishaps.get(function)
        if mishap is None:
            return False, 0
        if mishap.times is not None:
            with self._host.edit() as state:
                manager = fabric_manager_of(state)
                manager.mishaps = mishaps_after(manager.mishaps, function, mishap)
        time.sleep(mishap.delay_s)
        if mishap.crash == "before":
            raise Crash(function)
        return mishap.crash == "after", mishap.code


def _refusal(state: NodeState, manager: FabricManagerState, number: int, *, active: bool) -> int:
    if number not in {partition.id for partition in manager.partitions}:
        return FmCode.BADPARAM
    if manager.mode != 1:
        return FmCode.NOT_SUPPORTED
    wanted = _named(manager, number)
    if not active:
        return FmCode.SUCCESS if wanted.active else FmCode.UNINITIALIZED
    if any(partition.active and set(partition.gpus) & set(wanted.gpus) for partition in manager.partitions):
        return FmCode.IN_USE
    members = [gpu for gpu in state.gpus if physical_id(state, gpu) in wanted.gpus]
    in_mig_mode = any(gpu.mig is not None and gpu.mig.current for gpu in members)
    if state.model.architecture <= _AMPERE and len(members) > 1 and in_mig_mode:
        return FmCode.NVLINK_ERROR
    return FmCode.SUCCESS


def _named(manager: FabricManagerState, number: int) -> FabricPartitionState:
    return next(partition for partition in manager.partitions if partition.id == number)


def _describe(info: PartitionInfo, partition: FabricPartitionState, state: NodeState) -> None:
    names = fabric_manager_of(state).names_gpus
    by_number = {physical_id(state, gpu): gpu for gpu in state.gpus if gpu.bound_to == "nvidia"} if names else {}
    links = state.model.nvlink.links if state.model.nvlink is not None and len(partition.gpus) > 1 else 0
    info.partitionId, info.isActive, info.numGpus = partition.id, int(partition.active), len(partition.gpus)
    for place, number in zip(info.gpuInfo, partition.gpus, strict=False):
        gpu = by_number.get(number)
        place.physicalId = number
        place.uuid = gpu.uuid.encode() if gpu is not None else b""
        place.pciBusId = nvml_bus_id(gpu.address).encode() if gpu is not None else b"00000000:00:00.0"
        place.numNvLinksAvailable = place.maxNumNvLinks = links
        place.nvlinkLineRateMBps = _RATE_MBPS
