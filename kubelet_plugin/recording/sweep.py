"""Questions to NVML beyond what discovery asks: read only, cheap, and useful when a defect is looked for later.

`sweep` asks through the recording library (`kubelet_plugin.recording.nvml`), which keeps the answers; here they are
ignored, and so are refusals. Functions that this binding does not have are left out.
"""

import ctypes
from collections.abc import Callable
from typing import Any

import pynvml

_SYSTEM = ("nvmlSystemGetCudaDriverVersion", "nvmlSystemGetNVMLVersion", "nvmlUnitGetCount")

OF_GPU = tuple(
    f"nvmlDeviceGet{name}"
    for name in (
        *("Name", "Brand", "Architecture", "UUID", "MinorNumber", "PciInfo", "CudaComputeCapability", "Serial"),
        *("BoardPartNumber", "BoardId", "MultiGpuBoard", "VbiosVersion", "InforomImageVersion", "BusType"),
        *("MemoryInfo", "BAR1MemoryInfo", "MemoryBusWidth", "NumGpuCores", "EccMode", "DefaultEccMode"),
        *("RemappedRows", "RowRemapperHistogram", "RetiredPagesPendingStatus", "RepairStatus", "MigMode"),
        *("MaxMigDeviceCount", "ComputeMode", "PersistenceMode", "DisplayMode", "DisplayActive"),
        *("VirtualizationMode", "HostVgpuMode", "AddressingMode", "NumaNodeId", "IrqNum", "GspFirmwareVersion"),
        *("GspFirmwareMode", "MaxPcieLinkGeneration", "GpuMaxPcieLinkGeneration", "MaxPcieLinkWidth"),
        *("CurrPcieLinkGeneration", "CurrPcieLinkWidth", "PcieLinkMaxSpeed", "PcieSpeed", "EnforcedPowerLimit"),
        *("PowerManagementLimit", "PowerManagementDefaultLimit", "PowerManagementLimitConstraints"),
        *("PowerManagementMode", "PerformanceState", "NumFans", "SupportedEventTypes"),
        *("ComputeRunningProcesses_v3", "GraphicsRunningProcesses_v3", "MPSComputeRunningProcesses_v3"),
    )
)
"""Each takes a handle and nothing else."""

_OF_MIG_DEVICE = ("UUID", "Name", "GpuInstanceId", "ComputeInstanceId", "Attributes_v2", "MemoryInfo", "ComputeMode")
_MOST_LINKS = 36
_LINK_CAPABILITIES = 6
_P2P_INDICES = (0, 1, 2, 3, 4)
"""Read, write, NVLink, atomics, PCI. Source: nvml.h, nvmlGpuP2PCapsIndex_t; the binding has a tuple for the first."""
_FIELDS = range(1, 301)
_FIELDS_AT_ONCE = 50
_EVENT_WAIT_MS = 100

type Progress = Callable[[str], None]


def sweep(library: Any, progress: Progress) -> None:
    """Ask all of it, in a session of its own. `library` is initialised again, which NVML counts."""
    ask = _Asking(library)
    if ask("nvmlInitWithFlags", pynvml.NVML_INIT_FLAG_NO_GPUS) is FAILED:
        return
    for name in _SYSTEM:
        ask(name)
    count = ask("nvmlDeviceGetCount")
    handles = [ask("nvmlDeviceGetHandleByIndex", index) for index in range(count if isinstance(count, int) else 0)]
    gpus = [handle for handle in handles if handle is not FAILED]
    for number, gpu in enumerate(gpus):
        progress(f"asking NVML about GPU {number + 1} of {len(gpus)}")
        _one(ask, gpu)
    for first in gpus:
        for second in gpus:
            if first is not second:
                _pair(ask, first, second)
    _events(ask, gpus)
    ask("nvmlShutdown")


FAILED = object()


class _Asking:
    """Calls by name; FAILED for a refusal and for a function that is not there."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __call__(self, name: str, *args: Any) -> Any:
        if not hasattr(self._library, name):
            return FAILED
        try:
            return getattr(self._library, name)(*args)
        except (self._library.NVMLError, UnicodeDecodeError, ValueError, TypeError):
            return FAILED


def _one(ask: _Asking, gpu: Any) -> None:
    for name in OF_GPU:
        ask(name, gpu)
    ask("nvmlDeviceGetModuleId", gpu, ctypes.c_uint())
    for kind in range(4):
        ask("nvmlDeviceGetMaxClockInfo", gpu, kind)
    for kind in (0, 1):
        for counter in (0, 1):
            ask("nvmlDeviceGetTotalEccErrors", gpu, kind, counter)
        ask("nvmlDeviceGetRetiredPages", gpu, kind)
    ask("nvmlDeviceGetCpuAffinity", gpu, 16)
    ask("nvmlDeviceGetMemoryAffinity", gpu, 4, 0)
    for start in range(0, len(_FIELDS), _FIELDS_AT_ONCE):
        ask("nvmlDeviceGetFieldValues", gpu, list(_FIELDS[start : start + _FIELDS_AT_ONCE]))
    for structure in ("c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t"):
        ask("nvmlDeviceGetGpuFabricInfoV", gpu, ctypes.byref(getattr(pynvml, structure)()))
    _links(ask, gpu)
    _mig(ask, gpu)


def _links(ask: _Asking, gpu: Any) -> None:
    for link in range(_MOST_LINKS):
        if ask("nvmlDeviceGetNvLinkState", gpu, link) is not FAILED:
            for name in ("Version", "RemoteDeviceType", "RemotePciInfo"):
                ask(f"nvmlDeviceGetNvLink{name}", gpu, link)
            for capability in range(_LINK_CAPABILITIES):
                ask("nvmlDeviceGetNvLinkCapability", gpu, link, capability)


def _mig(ask: _Asking, gpu: Any) -> None:
    mode, most = ask("nvmlDeviceGetMigMode", gpu), ask("nvmlDeviceGetMaxMigDeviceCount", gpu)
    if mode is FAILED or not mode[0] or not isinstance(most, int):
        return
    for index in range(most):
        device = ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu, index)
        if device is not FAILED:
            for name in _OF_MIG_DEVICE:
                ask(f"nvmlDeviceGet{name}", device)


def _pair(ask: _Asking, first: Any, second: Any) -> None:
    ask("nvmlDeviceGetTopologyCommonAncestor", first, second)
    for index in _P2P_INDICES:
        ask("nvmlDeviceGetP2PStatus", first, second, index)


def _events(ask: _Asking, gpus: list[Any]) -> None:
    """Whether events can be waited for, and whether a wait lasts as long as it should."""
    events = ask("nvmlEventSetCreate")
    if events is FAILED:
        return
    for gpu in gpus:
        supported = ask("nvmlDeviceGetSupportedEventTypes", gpu)
        if isinstance(supported, int):
            ask("nvmlDeviceRegisterEvents", gpu, supported, events)
    if gpus:
        ask("nvmlEventSetWait_v2", events, _EVENT_WAIT_MS)
    ask("nvmlEventSetFree", events)
