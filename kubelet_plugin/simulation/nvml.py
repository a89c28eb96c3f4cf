"""NVML of a simulated node: the functions of module `pynvml`, answered from the node's state file.

`SimulatedNvml(root)` goes where the module goes. Exceptions, structures and constants are pynvml's own, handles are
pointers that mean nothing to the caller, counts and codes are those of the hardware; so the adapter takes the same
branches as on a real node. Functions that are not simulated answer FUNCTION_NOT_FOUND, as an older library would.
Here are health and events, and what a GPU is; MIG is in the module `nvml_mig`.
"""

import ctypes
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

from kubelet_plugin.hardware.sysfs import HostFiles, nvml_bus_id
from kubelet_plugin.simulation.fabric import connected
from kubelet_plugin.simulation.nvml_mig import MigCalls
from kubelet_plugin.simulation.nvml_session import Mig, Session, address, device_query, error, gpu_query, supported
from kubelet_plugin.simulation.partitions import AMPERE, PartitionRefused
from kubelet_plugin.simulation.state import MIG_CONFIGURATION_CHANGED, GpuState, NodeState

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
        return supported(self._remapped_rows(gpu))

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
            for gpu_uuid in waiting.masks:
                self.met(state, gpu_uuid, "nvmlEventSetWait_v2")
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


_FILLER_BUS_ID = "FFFFFFFF:FF:FF.0"


class SimulatedNvml(MigCalls, HealthCalls, EventCalls):
    """Stands for the module `pynvml`, and for the library and the kernel behind it."""

    def __getattr__(self, name: str) -> Any:
        """Constants, structures and exceptions are pynvml's; its functions must not reach a real library."""
        if (
            name.startswith("nvml")
            and callable(getattr(pynvml, name, None))
            and not isinstance(getattr(pynvml, name), type)
        ):
            return _not_found
        return getattr(pynvml, name)

    def nvmlInitWithFlags(self, flags: int) -> None:
        state = self._file.read()
        files = HostFiles(self._file.path.parent.parent)
        library = files.resolve(self._host.library_folder / "libnvidia-ml.so.1")
        if library is None:
            raise error(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        if not state.driver.loaded:
            raise error(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        if library.name != f"libnvidia-ml.so.{state.driver.version}":
            raise error(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
        uuids = tuple(gpu.uuid for gpu in state.gpus if gpu.bound_to == "nvidia")
        if not uuids and not flags & pynvml.NVML_INIT_FLAG_NO_GPUS:
            raise error(pynvml.NVML_ERROR_NOT_FOUND)
        if not self._started or self._session != state.driver.session:
            self._started, self._session, self._uuids = 0, state.driver.session, uuids
            self.detach()
            self.attach()
        self._started += 1

    def nvmlShutdown(self) -> None:
        if not self._started:
            raise error(pynvml.NVML_ERROR_UNINITIALIZED)
        self._started -= 1
        if not self._started:
            self.detach()

    def nvmlSystemGetDriverVersion(self) -> str:
        return self.node("nvmlSystemGetDriverVersion").driver.version

    def nvmlSystemGetNVMLVersion(self) -> str:
        return "13." + self.node("nvmlSystemGetNVMLVersion").driver.version

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self.node("nvmlSystemGetCudaDriverVersion_v2").driver.cuda

    def nvmlDeviceGetCount(self) -> int:
        self.node("nvmlDeviceGetCount")
        return len(self._uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        state = self.node("nvmlDeviceGetHandleByIndex")
        if not 0 <= index < len(self._uuids):
            raise error(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        _, gpu = self.met(state, self._uuids[index], "nvmlDeviceGetHandleByIndex")
        self.check(gpu)
        return self.gpu_handle(gpu.uuid)

    def nvmlDeviceGetHandleByPciBusId(self, pciBusId: str) -> Any:
        state = self.node("nvmlDeviceGetHandleByPciBusId")
        for index, name in enumerate(self._uuids):
            if nvml_bus_id(state.gpu(name).address).endswith(pciBusId.upper().removeprefix("0000")):
                return self.nvmlDeviceGetHandleByIndex(index)
        raise error(pynvml.NVML_ERROR_NOT_FOUND)

    @device_query
    def nvmlDeviceGetUUID(self, gpu: GpuState, mig: Mig | None) -> str:
        return gpu.uuid if mig is None else mig[1].uuid

    @gpu_query
    def nvmlDeviceGetPciInfo(self, gpu: GpuState) -> Any:
        info = pynvml.nvmlPciInfo_t()
        info.busId = nvml_bus_id(gpu.address)
        info.busIdLegacy = nvml_bus_id(gpu.address)[4:]
        domain, bus, device = gpu.address.split(".")[0].split(":")
        info.domain, info.bus, info.device = int(domain, 16), int(bus, 16), int(device, 16)
        info.pciDeviceId = self._file.latest.model.pci_device << 16 | 0x10DE
        info.pciSubSystemId = self._file.latest.model.pci_subsystem << 16 | 0x10DE
        return info

    @gpu_query
    def nvmlDeviceGetMemoryInfo(self, gpu: GpuState) -> Any:
        total = supported(self._file.latest.model.memory_mib) << 20
        return pynvml.c_nvmlMemory_t(total, total, 0)

    @gpu_query
    def nvmlDeviceGetGpuFabricInfoV(self, gpu: GpuState, gpuFabricInfo: Any) -> int:
        # The caller hands over `byref(structure)`, as the C function takes it.
        info = gpuFabricInfo._obj
        if info.version >> 24 > self._file.latest.driver.fabric_structure:
            raise error(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        fabric = supported(gpu.fabric)
        if fabric.cluster is not None:
            info.clusterUuid[:] = list(uuid.UUID(fabric.cluster).bytes)
        info.status, info.cliqueId, info.state = fabric.status, fabric.clique, fabric.state
        if not connected(self._file.latest, gpu):
            info.state = pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS
        info.healthMask = fabric.mask
        if hasattr(info, "healthSummary"):
            info.healthSummary = fabric.summary
        return 0

    @gpu_query
    def nvmlDeviceGetNvLinkState(self, gpu: GpuState, link: int) -> int:
        self._check_link(gpu, link)
        return int(link not in gpu.links_down)

    @gpu_query
    def nvmlDeviceGetNvLinkVersion(self, gpu: GpuState, link: int) -> int:
        self._check_link(gpu, link)
        return supported(self._file.latest.model.nvlink).version

    @gpu_query
    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu: GpuState, link: int) -> int:
        self._check_link(gpu, link)
        switched = supported(self._file.latest.model.nvlink).switches
        return int(pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH if switched else pynvml.NVML_NVLINK_DEVICE_TYPE_GPU)

    @gpu_query
    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu: GpuState, link: int) -> Any:
        self._check_link(gpu, link)
        state = self._file.latest
        info = pynvml.nvmlPciInfo_t()
        others = [other.address for other in state.gpus if other.uuid != gpu.uuid]
        switched = supported(state.model.nvlink).switches
        info.busId = _FILLER_BUS_ID if switched or not others else nvml_bus_id(others[link % len(others)])
        return info

    @gpu_query
    def nvmlDeviceGetP2PStatus(self, gpu: GpuState, device2: Any, p2pIndex: int) -> int:
        other = self.gpu_of(device2, "nvmlDeviceGetP2PStatus")
        if any(gpu_state.mig is not None and gpu_state.mig.current for gpu_state in (gpu, other)):
            return int(pynvml.NVML_P2P_STATUS_GPU_NOT_SUPPORTED)
        if p2pIndex == pynvml.NVML_P2P_CAPS_INDEX_NVLINK and self._file.latest.model.nvlink is None:
            return int(pynvml.NVML_P2P_STATUS_NOT_SUPPORTED)
        if not connected(self._file.latest, gpu, other):
            return int(pynvml.NVML_P2P_STATUS_DISABLED_BY_REGKEY)
        return int(pynvml.NVML_P2P_STATUS_OK)

    def _check_link(self, gpu: GpuState, link: int) -> None:
        if link in gpu.links_absent:
            raise error(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if link >= supported(self._file.latest.model.nvlink).links:
            raise error(pynvml.NVML_ERROR_INVALID_ARGUMENT)


def _not_found(*_args: object, **_kwargs: object) -> None:
    raise error(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


type _Read = Callable[[NodeState, GpuState], Any]

_FACTS: dict[str, _Read] = {
    "Name": lambda state, gpu: gpu.product or state.model.name,
    "MinorNumber": lambda state, gpu: gpu.minor,
    "AddressingMode": lambda state, gpu: supported(state.model.addressing_mode),
    "VirtualizationMode": lambda state, gpu: gpu.virtualization,
    "ComputeMode": lambda state, gpu: gpu.compute_mode,
    # The kernel's, as in a container that does not have the daemon's socket.
    "PersistenceMode": lambda state, gpu: gpu.persistence_mode,
    "EccMode": lambda state, gpu: [int(supported(state.model.ecc))] * 2,
    "NumGpuCores": lambda state, gpu: supported(state.model.cores),
    "EnforcedPowerLimit": lambda state, gpu: supported(state.model.power_limit_mw),
    "MaxPcieLinkGeneration": lambda state, gpu: supported(state.model.pcie_generation),
    "MaxPcieLinkWidth": lambda state, gpu: supported(state.model.pcie_width),
    "ModuleId": lambda state, gpu: supported(gpu.module),
    "Serial": lambda state, gpu: gpu.serial,
    "VbiosVersion": lambda state, gpu: state.model.vbios,
    "Brand": lambda state, gpu: state.model.brand,
    "Architecture": lambda state, gpu: state.model.architecture,
    "CudaComputeCapability": lambda state, gpu: state.model.compute_capability,
}
"""Functions `nvmlDeviceGet...` that answer a fact of a GPU."""


def _answering(name: str, read: _Read) -> Callable[..., Any]:
    def answer(self: SimulatedNvml, gpu: GpuState, *_: Any) -> Any:
        return read(self._file.latest, gpu)

    answer.__name__ = name
    return answer


for _name, _read in _FACTS.items():
    _function = f"nvmlDeviceGet{_name}"
    setattr(SimulatedNvml, _function, gpu_query(_answering(_function, _read)))
