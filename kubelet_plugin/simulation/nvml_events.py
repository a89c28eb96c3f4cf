"""The functions of simulated NVML that wait for something to happen to a GPU."""

import ctypes
import time
from pathlib import Path
from typing import Any

import pynvml

from kubelet_plugin.simulation.nvml_session import Session, address, error, gpu_query
from kubelet_plugin.simulation.operations import MIG_CONFIGURATION_CHANGED
from kubelet_plugin.simulation.state import GpuState

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
