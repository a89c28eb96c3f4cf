"""NVML of a simulated node: the functions of module `pynvml`, answered from the node's state file.

`SimulatedNvml(root)` goes where the module goes. Exceptions, structures and constants are pynvml's own, handles are
pointers that mean nothing to the caller, counts and codes are those of the hardware; so the adapter takes the same
branches as on a real node. Functions that are not simulated answer FUNCTION_NOT_FOUND, as an older library would.
Here is what a GPU is; MIG is in the module `nvml_mig`, health and events are in `nvml_health`.
"""

import uuid
from collections.abc import Callable
from typing import Any

import pynvml

from kubelet_plugin.hardware.sysfs import HostFiles, nvml_bus_id
from kubelet_plugin.simulation.fabric import connected
from kubelet_plugin.simulation.nvml_health import EventCalls, HealthCalls
from kubelet_plugin.simulation.nvml_mig import MigCalls
from kubelet_plugin.simulation.nvml_session import Mig, device_query, error, gpu_query, supported
from kubelet_plugin.simulation.state import GpuState, NodeState

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
    def nvmlDeviceGetEccMode(self, gpu: GpuState) -> list[int]:
        ecc = supported(self._file.latest.model.ecc)
        return [int(ecc), int(ecc)]

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
