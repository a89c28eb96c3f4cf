"""The functions of simulated NVML about the state of a GPU: errors, clocks, programs on it, modes, and events."""

import ctypes
import time
from pathlib import Path
from typing import Any

import pynvml

from kubelet_plugin.simulation.nvml_session import Session, address, error, gpu_query, supported
from kubelet_plugin.simulation.partitions import AMPERE, PartitionRefused
from kubelet_plugin.simulation.state import MIG_CONFIGURATION_CHANGED, GpuState

_NO_INSTANCE = 0xFFFFFFFF
_UNSIGNED_INT = 1
"""NVML_VALUE_TYPE_UNSIGNED_INT."""
_COMPUTE_MODES = (0, 2, 3)

_DRIVER_WITH_RECOVERY_ACTION = 565
_DRIVER_WITH_REPAIR_STATUS = 575


class HealthCalls(Session):
    @gpu_query
    def nvmlDeviceGetTotalEccErrors(self, gpu: GpuState, errorType: int, counterType: int) -> int:
        supported(self._file.latest.model.ecc)
        health = gpu.health
        counts = {
            (0, 0): health.corrected_errors,
            (1, 0): health.uncorrected_errors,
            (0, 1): health.lifetime_corrected_errors,
            (1, 1): health.lifetime_uncorrected_errors,
        }
        if (errorType, counterType) not in counts:
            raise PartitionRefused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return counts[errorType, counterType]

    @gpu_query
    def nvmlDeviceGetRemappedRows(self, gpu: GpuState) -> tuple[int, int, int, int]:
        remapped = self._remapped_rows(gpu)
        if remapped is None:
            raise PartitionRefused(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return remapped

    @gpu_query
    def nvmlDeviceGetRepairStatus(self, gpu: GpuState) -> list[int]:
        if self._driver_branch() < _DRIVER_WITH_REPAIR_STATUS:
            raise PartitionRefused(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        if self._file.latest.model.architecture < AMPERE:
            raise PartitionRefused(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [int(gpu.health.channel_repair_pending), int(gpu.health.tpc_repair_pending)]

    @gpu_query
    def nvmlDeviceGetFieldValues(self, gpu: GpuState, fieldIds: list[Any]) -> Any:
        """The call succeeds; each value has a return code of its own."""
        known = self._fields(gpu)
        values = (pynvml.c_nvmlFieldValue_t * len(fieldIds))()
        for value, wanted in zip(values, fieldIds, strict=True):
            value.fieldId, value.scopeId = wanted if isinstance(wanted, tuple) else (wanted, 0)
            number = known.get(value.fieldId)
            value.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED if number is None else 0
            if number is not None:
                value.valueType, value.value.uiVal = _UNSIGNED_INT, number
        return values

    def _fields(self, gpu: GpuState) -> dict[int, int | None]:
        model = self._file.latest.model
        remapped = self._remapped_rows(gpu) or (None,) * 4
        recovery = gpu.health.recovery_action if self._driver_branch() >= _DRIVER_WITH_RECOVERY_ACTION else None
        return {
            pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT: model.nvlink.links if model.nvlink is not None else None,
            pynvml.NVML_FI_DEV_REMAPPED_COR: remapped[0],
            pynvml.NVML_FI_DEV_REMAPPED_UNC: remapped[1],
            pynvml.NVML_FI_DEV_REMAPPED_PENDING: remapped[2],
            pynvml.NVML_FI_DEV_REMAPPED_FAILURE: remapped[3],
            pynvml.NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED: (
                int(model.architecture > AMPERE) if gpu.mig is not None else None
            ),
            pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: recovery,
        }

    def _remapped_rows(self, gpu: GpuState) -> tuple[int, int, int, int] | None:
        """Not answered by GPUs in MIG mode, nor by those that retire pages instead."""
        model = self._file.latest.model
        if model.architecture < AMPERE or not model.ecc or (gpu.mig is not None and gpu.mig.current):
            return None
        health = gpu.health
        pending, failed = int(health.remap_pending), int(health.remap_failed)
        return health.remapped_corrected, health.remapped_uncorrected, pending, failed

    def _driver_branch(self) -> int:
        return int(self._file.latest.driver.version.partition(".")[0])

    @gpu_query
    def nvmlDeviceGetComputeMode(self, gpu: GpuState) -> int:
        return gpu.compute_mode

    @gpu_query
    def nvmlDeviceSetComputeMode(self, gpu: GpuState, mode: int) -> None:
        """On a GPU in MIG mode each MIG device has its own."""
        self.check_privileged()
        if mode not in _COMPUTE_MODES:
            raise PartitionRefused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        if gpu.mig is not None and gpu.mig.current:
            raise PartitionRefused(pynvml.NVML_ERROR_NOT_SUPPORTED)
        with self._host.edit() as state:
            state.gpu(gpu.uuid).compute_mode = mode

    @gpu_query
    def nvmlDeviceGetPersistenceMode(self, gpu: GpuState) -> int:
        """The kernel's, as in a container that does not have the daemon's socket."""
        return gpu.persistence_mode

    @gpu_query
    def nvmlDeviceSetPersistenceMode(self, gpu: GpuState, mode: int) -> None:
        self.check_privileged()
        if mode not in (0, 1):
            raise PartitionRefused(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        with self._host.edit() as state:
            now = state.gpu(gpu.uuid)
            now.persistence_mode = mode
            if not mode and state.model.addressing_mode == pynvml.NVML_DEVICE_ADDRESSING_MODE_ATS:
                now.handles += 1  # it has its own NUMA memory

    def nvmlSystemGetProcessName(self, pid: int) -> str:
        for gpu in self.node("nvmlSystemGetProcessName").gpus:
            for client in gpu.clients:
                if client.pid == pid:
                    return client.name
        raise error(pynvml.NVML_ERROR_NOT_FOUND)

    @gpu_query
    def nvmlDeviceGetComputeRunningProcesses_v3(self, gpu: GpuState) -> list[Any]:
        return [
            pynvml.nvmlFriendlyObject(
                {
                    "pid": client.pid,
                    "usedGpuMemory": client.memory_mib << 20,
                    "gpuInstanceId": _NO_INSTANCE if client.gpu_instance is None else client.gpu_instance,
                    "computeInstanceId": _NO_INSTANCE if client.compute_instance is None else client.compute_instance,
                }
            )
            for client in gpu.clients
            if client.kind == "compute"
        ]


_POLL_S = 0.05


class _EventSet:
    """`masks` are the event bits by GPU UUID; `seen` the number of the last event that was looked at."""

    def __init__(self, seen: int) -> None:
        self.seen = seen
        self.masks: dict[str, int] = {}


class EventCalls(Session):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._event_sets: dict[int, _EventSet] = {}
        self._event_sets_made = 0

    @gpu_query
    def nvmlDeviceGetSupportedEventTypes(self, gpu: GpuState) -> int:
        return int(
            pynvml.nvmlEventTypeXidCriticalError
            | pynvml.nvmlEventTypeDoubleBitEccError
            | pynvml.nvmlEventTypeSingleBitEccError
            | (MIG_CONFIGURATION_CHANGED if gpu.mig is not None else 0)
        )

    def nvmlEventSetCreate(self) -> Any:
        state = self.node("nvmlEventSetCreate")
        self._event_sets_made += 1
        self._event_sets[self._event_sets_made] = _EventSet(state.events[-1].number if state.events else 0)
        return ctypes.cast(ctypes.c_void_p(self._event_sets_made), pynvml.c_nvmlEventSet_t)

    @gpu_query
    def nvmlDeviceRegisterEvents(self, gpu: GpuState, eventTypes: int, eventSet: Any) -> None:
        self._event_set(eventSet).masks[gpu.uuid] = eventTypes

    def nvmlEventSetWait_v2(self, eventSet: Any, timeoutms: int) -> Any:
        """Raises NVMLError_Timeout when nothing happens within `timeoutms`, as the library does; at once for an empty
        set, and NVMLError_GpuIsLost for one with a GPU that fell off the bus. Other early returns are mishaps."""
        waiting = self._event_set(eventSet)
        deadline = time.monotonic() + timeoutms / 1000
        while True:
            state = self.node("nvmlEventSetWait_v2")
            for uuid in waiting.masks:
                self.met(state, uuid, "nvmlEventSetWait_v2")
            for event in state.events:
                if event.number > waiting.seen:
                    waiting.seen = event.number
                    if event.type & waiting.masks.get(event.uuid, 0):
                        return pynvml.c_nvmlEventData_t(
                            self.gpu_handle(event.uuid),
                            event.type,
                            event.data,
                            event.gpu_instance,
                            event.compute_instance,
                        )
            if any(state.gpu(uuid).fault == pynvml.NVML_ERROR_GPU_IS_LOST for uuid in waiting.masks):
                raise error(pynvml.NVML_ERROR_GPU_IS_LOST)
            if not waiting.masks or time.monotonic() >= deadline:
                raise error(pynvml.NVML_ERROR_TIMEOUT)
            time.sleep(_POLL_S)

    def nvmlEventSetFree(self, eventSet: Any) -> None:
        self._event_set(eventSet)
        del self._event_sets[address(eventSet)]

    def _event_set(self, event_set: Any) -> _EventSet:
        try:
            return self._event_sets[address(event_set)]
        except KeyError:
            raise error(pynvml.NVML_ERROR_INVALID_ARGUMENT) from None
