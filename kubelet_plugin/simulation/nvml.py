"""NVML of a simulated node: the functions of module `pynvml`, answered from the node's state file.

`SimulatedNvml(root)` goes where the module goes. Exceptions, structures and constants are pynvml's own, handles are
pointers that mean nothing to the caller, counts and codes are those of the hardware; so the adapter takes the same
branches as on a real node. Functions that are not simulated answer FUNCTION_NOT_FOUND, as an older library would.
"""

import ctypes
import time
import uuid
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate

import pynvml

from kubelet_plugin.hardware.sysfs import HostFiles, nvml_bus_id
from kubelet_plugin.simulation.host import SimulatedHost
from kubelet_plugin.simulation.state import GpuState, NodeState, StateFile

_HANDLES_START = 0x7F0000000000
_FILLER_BUS_ID = "FFFFFFFF:FF:FF.0"
_EVENT_POLL_S = 0.01


def _query[**P, R](
    answer: Callable[Concatenate["SimulatedNvml", GpuState, P], R],
) -> Callable[Concatenate["SimulatedNvml", Any, P], R]:
    """A query of one GPU: finds it by its handle, and fails as the state says."""

    @wraps(answer)
    def wrapper(self: "SimulatedNvml", handle: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return answer(self, self._gpu(handle, answer.__name__), *args, **kwargs)

    return wrapper


class SimulatedNvml:
    """Stands for the module `pynvml`, and for the library and the kernel behind it."""

    def __init__(self, root: Path) -> None:
        self._file = StateFile(root)
        self._host = SimulatedHost(root)
        self._started = 0
        self._session = 0
        self._uuids: tuple[str, ...] = ()
        self._event_sets: dict[int, _EventSet] = {}

    def __getattr__(self, name: str) -> Any:
        """Constants, structures and exceptions are pynvml's; its functions must not reach a real library."""
        if (
            name.startswith("nvml")
            and callable(getattr(pynvml, name, None))
            and not isinstance(getattr(pynvml, name), type)
        ):
            return _not_found
        return getattr(pynvml, name)

    def nvmlInit(self) -> None:
        self.nvmlInitWithFlags(0)

    def nvmlInitWithFlags(self, flags: int) -> None:
        state = self._file.read()
        files = HostFiles(self._file.path.parent.parent)
        library = files.resolve(self._host.library_folder / "libnvidia-ml.so.1")
        if library is None:
            raise _error(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        if not state.driver.loaded:
            raise _error(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        if library.name != f"libnvidia-ml.so.{state.driver.version}":
            raise _error(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
        uuids = tuple(gpu.uuid for gpu in state.gpus if gpu.bound_to == "nvidia")
        if not uuids and not flags & pynvml.NVML_INIT_FLAG_NO_GPUS:
            raise _error(pynvml.NVML_ERROR_NOT_FOUND)
        if not self._started or self._session != state.driver.session:
            self._started, self._session, self._uuids = 0, state.driver.session, uuids
        self._started += 1

    def nvmlShutdown(self) -> None:
        if not self._started:
            raise _error(pynvml.NVML_ERROR_UNINITIALIZED)
        self._started -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return self._node("nvmlSystemGetDriverVersion").driver.version

    def nvmlSystemGetNVMLVersion(self) -> str:
        return "13." + self._node("nvmlSystemGetNVMLVersion").driver.version

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self._node("nvmlSystemGetCudaDriverVersion_v2").driver.cuda

    def nvmlDeviceGetCount(self) -> int:
        self._node("nvmlDeviceGetCount")
        return len(self._uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        self._node("nvmlDeviceGetHandleByIndex")
        if not 0 <= index < len(self._uuids):
            raise _error(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        handle = self._handle(index)
        self._gpu(handle, "nvmlDeviceGetHandleByIndex")
        return handle

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any:
        self._node("nvmlDeviceGetHandleByUUID")
        if uuid not in self._uuids:
            raise _error(pynvml.NVML_ERROR_NOT_FOUND)
        return self.nvmlDeviceGetHandleByIndex(self._uuids.index(uuid))

    def nvmlDeviceGetHandleByPciBusId(self, pciBusId: str) -> Any:
        state = self._node("nvmlDeviceGetHandleByPciBusId")
        for index, name in enumerate(self._uuids):
            if nvml_bus_id(state.gpu(name).address).endswith(pciBusId.upper().removeprefix("0000")):
                return self.nvmlDeviceGetHandleByIndex(index)
        raise _error(pynvml.NVML_ERROR_NOT_FOUND)

    @_query
    def nvmlDeviceGetUUID(self, gpu: GpuState) -> str:
        return gpu.uuid

    @_query
    def nvmlDeviceGetMinorNumber(self, gpu: GpuState) -> int:
        return gpu.minor

    @_query
    def nvmlDeviceGetPciInfo(self, gpu: GpuState) -> Any:
        info = pynvml.nvmlPciInfo_t()
        info.busId = nvml_bus_id(gpu.address)
        info.busIdLegacy = nvml_bus_id(gpu.address)[4:]
        domain, bus, device = gpu.address.split(".")[0].split(":")
        info.domain, info.bus, info.device = int(domain, 16), int(bus, 16), int(device, 16)
        info.pciDeviceId = self._file.read().model.pci_device << 16 | 0x10DE
        return info

    @_query
    def nvmlDeviceGetName(self, gpu: GpuState) -> str:
        return gpu.product or self._file.read().model.name

    @_query
    def nvmlDeviceGetBrand(self, gpu: GpuState) -> int:
        return self._file.read().model.brand

    @_query
    def nvmlDeviceGetArchitecture(self, gpu: GpuState) -> int:
        return self._file.read().model.architecture

    @_query
    def nvmlDeviceGetCudaComputeCapability(self, gpu: GpuState) -> tuple[int, int]:
        return self._file.read().model.compute_capability

    @_query
    def nvmlDeviceGetMemoryInfo(self, gpu: GpuState) -> Any:
        total = _supported(self._file.read().model.memory_mib) << 20
        return pynvml.c_nvmlMemory_t(total, total, 0)

    @_query
    def nvmlDeviceGetAddressingMode(self, gpu: GpuState) -> int:
        return _supported(self._file.read().model.addressing_mode)

    @_query
    def nvmlDeviceGetVirtualizationMode(self, gpu: GpuState) -> int:
        return gpu.virtualization

    @_query
    def nvmlDeviceGetMigMode(self, gpu: GpuState) -> list[int]:
        mig = _supported(gpu.mig)
        return [mig.current, mig.pending]

    @_query
    def nvmlDeviceGetEccMode(self, gpu: GpuState) -> list[int]:
        ecc = _supported(self._file.read().model.ecc)
        return [int(ecc), int(ecc)]

    @_query
    def nvmlDeviceGetNumGpuCores(self, gpu: GpuState) -> int:
        return _supported(self._file.read().model.cores)

    @_query
    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: GpuState) -> int:
        return _supported(self._file.read().model.power_limit_mw)

    @_query
    def nvmlDeviceGetMaxPcieLinkGeneration(self, gpu: GpuState) -> int:
        return _supported(self._file.read().model.pcie_generation)

    @_query
    def nvmlDeviceGetMaxPcieLinkWidth(self, gpu: GpuState) -> int:
        return _supported(self._file.read().model.pcie_width)

    @_query
    def nvmlDeviceGetModuleId(self, gpu: GpuState, moduleId: Any) -> int:
        return _supported(gpu.module)

    @_query
    def nvmlDeviceGetSerial(self, gpu: GpuState) -> str:
        return gpu.serial

    @_query
    def nvmlDeviceGetVbiosVersion(self, gpu: GpuState) -> str:
        return self._file.read().model.vbios

    @_query
    def nvmlDeviceGetGpuFabricInfoV(self, gpu: GpuState, gpuFabricInfo: Any) -> int:
        # The caller hands over `byref(structure)`, as the C function takes it.
        info = gpuFabricInfo._obj
        if info.version >> 24 > self._file.read().driver.fabric_structure:
            raise _error(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        fabric = _supported(gpu.fabric)
        if fabric.cluster is not None:
            info.clusterUuid[:] = list(uuid.UUID(fabric.cluster).bytes)
        info.status, info.cliqueId, info.state = fabric.status, fabric.clique, fabric.state
        info.healthMask = fabric.mask
        if hasattr(info, "healthSummary"):
            info.healthSummary = fabric.summary
        return 0

    @_query
    def nvmlDeviceGetNvLinkState(self, gpu: GpuState, link: int) -> int:
        self._check_link(link)
        return 1

    @_query
    def nvmlDeviceGetNvLinkVersion(self, gpu: GpuState, link: int) -> int:
        self._check_link(link)
        return _supported(self._file.read().model.nvlink).version

    @_query
    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu: GpuState, link: int) -> int:
        self._check_link(link)
        switched = _supported(self._file.read().model.nvlink).switches
        return int(pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH if switched else pynvml.NVML_NVLINK_DEVICE_TYPE_GPU)

    @_query
    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu: GpuState, link: int) -> Any:
        self._check_link(link)
        state = self._file.read()
        info = pynvml.nvmlPciInfo_t()
        others = [other.address for other in state.gpus if other.uuid != gpu.uuid]
        switched = _supported(state.model.nvlink).switches
        info.busId = _FILLER_BUS_ID if switched or not others else nvml_bus_id(others[link % len(others)])
        return info

    @_query
    def nvmlDeviceGetP2PStatus(self, gpu: GpuState, device2: Any, p2pIndex: int) -> int:
        other = self._gpu(device2, "nvmlDeviceGetP2PStatus")
        if any(one.mig is not None and one.mig.current for one in (gpu, other)):
            return int(pynvml.NVML_P2P_STATUS_GPU_NOT_SUPPORTED)
        if p2pIndex == pynvml.NVML_P2P_CAPS_INDEX_NVLINK and self._file.read().model.nvlink is None:
            return int(pynvml.NVML_P2P_STATUS_NOT_SUPPORTED)
        return int(pynvml.NVML_P2P_STATUS_OK)

    @_query
    def nvmlDeviceGetSupportedEventTypes(self, gpu: GpuState) -> int:
        return int(
            pynvml.nvmlEventTypeXidCriticalError
            | pynvml.nvmlEventTypeDoubleBitEccError
            | pynvml.nvmlEventTypeSingleBitEccError
        )

    def nvmlEventSetCreate(self) -> Any:
        state = self._node("nvmlEventSetCreate")
        number = len(self._event_sets) + 1
        self._event_sets[number] = _EventSet(state.events[-1].number if state.events else 0)
        return ctypes.cast(ctypes.c_void_p(number), pynvml.c_nvmlEventSet_t)

    @_query
    def nvmlDeviceRegisterEvents(self, gpu: GpuState, eventTypes: int, eventSet: Any) -> None:
        self._event_set(eventSet).masks[gpu.uuid] = eventTypes

    def nvmlEventSetWait_v2(self, eventSet: Any, timeoutms: int) -> Any:
        """Raises NVMLError_Timeout when nothing happens within `timeoutms`, as the library does."""
        waiting = self._event_set(eventSet)
        deadline = time.monotonic() + timeoutms / 1000
        while True:
            for event in self._node("nvmlEventSetWait_v2").events:
                if event.number > waiting.seen:
                    waiting.seen = event.number
                    if event.type & waiting.masks.get(event.uuid, 0):
                        return pynvml.c_nvmlEventData_t(
                            self._handle(self._uuids.index(event.uuid)),
                            event.type,
                            event.data,
                            event.gpu_instance,
                            event.compute_instance,
                        )
            if time.monotonic() >= deadline:
                raise _error(pynvml.NVML_ERROR_TIMEOUT)
            time.sleep(_EVENT_POLL_S)

    def nvmlEventSetFree(self, eventSet: Any) -> None:
        self._event_set(eventSet)
        del self._event_sets[_address(eventSet)]

    def _node(self, function: str) -> NodeState:
        """The state, for a caller whose session is alive. Raises NVMLError otherwise."""
        state = self._file.read()
        if function in state.driver.missing:
            raise _error(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        if not self._started or state.driver.session != self._session:
            raise _error(pynvml.NVML_ERROR_UNINITIALIZED)
        if not state.driver.loaded:
            raise _error(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        return state

    def _gpu(self, handle: Any, function: str) -> GpuState:
        state = self._node(function)
        session, index = divmod(_address(handle) - _HANDLES_START, 1 << 16)
        if session != self._session or not 0 <= index < len(self._uuids):
            raise _error(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        gpu = state.gpu(self._uuids[index])
        if gpu.bound_to != "nvidia":
            raise _error(pynvml.NVML_ERROR_GPU_IS_LOST)
        code = gpu.fault or gpu.failing.get(function)
        if code:
            raise _error(code)
        return gpu

    def _handle(self, index: int) -> Any:
        address = _HANDLES_START + (self._session << 16) + index
        return ctypes.cast(ctypes.c_void_p(address), pynvml.c_nvmlDevice_t)

    def _check_link(self, link: int) -> None:
        if link >= _supported(self._file.read().model.nvlink).links:
            raise _error(pynvml.NVML_ERROR_INVALID_ARGUMENT)

    def _event_set(self, event_set: Any) -> "_EventSet":
        try:
            return self._event_sets[_address(event_set)]
        except KeyError:
            raise _error(pynvml.NVML_ERROR_INVALID_ARGUMENT) from None


class _EventSet:
    """`masks` are the event bits by GPU UUID; `seen` the number of the last event that was looked at."""

    def __init__(self, seen: int) -> None:
        self.seen = seen
        self.masks: dict[str, int] = {}


def _supported[T](value: T | None) -> T:
    if value is None:
        raise _error(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return value


def _not_found(*_args: object, **_kwargs: object) -> None:
    raise _error(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


def _error(code: int) -> Exception:
    error: Exception = pynvml.NVMLError(code)
    return error


def _address(pointer: Any) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0
