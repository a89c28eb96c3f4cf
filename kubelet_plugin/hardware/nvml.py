"""NVML through a pynvml-shaped library: what the driver knows of itself and of each GPU.

Discovery enters here. The library is a parameter, so the simulated one takes the same road as the real one. Every
call goes through one lock (NVML serves concurrent callers badly) and every foreign exception becomes a `HardwareError`
in `Calls.call` and nowhere else.

Three kinds of question are asked of a GPU:

- identity (UUID, minor, PCI address, product, ...): any failure makes this GPU unreadable, and only this one;
- what changes how it may be used (memory, MIG mode, fabric, virtualisation): "not supported" is an answer, any other
  failure makes the GPU unreadable, because guessing would offer a device that is not there;
- description (serial, power limit, PCIe, ...): absent when the driver does not tell, whatever its reason, unless the
  reason is that the GPU or the driver is gone.
"""

import ctypes
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import pynvml

from dra_driver.api.inventory import DriverFacts, FabricFacts, GpuFacts, NvlinkFacts, Problem
from dra_driver.errors import HardwareError
from dra_driver.names import gpu_device_names
from kubelet_plugin.hardware.calls import GPU_GONE, NOT_THERE, Calls, Code, NvmlLibrary, problem_of, session_over
from kubelet_plugin.hardware.health import HealthReading, health_reading
from kubelet_plugin.hardware.mig import MigGpu
from kubelet_plugin.hardware.sysfs import pci_address

_LINK_LOOP_ENDS = frozenset({Code.INVALID_ARGUMENT, Code.FUNCTION_NOT_FOUND})

_ARCHITECTURES = {
    2: "Kepler", 3: "Maxwell", 4: "Pascal", 5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada Lovelace", 9: "Hopper",
    10: "Blackwell", 11: "DLA", 12: "DLA2", 13: "Rubin", 15: "NPU3", 0xFFFFFFFF: "Unknown",
}  # fmt: skip
_BRANDS = {
    0: "Unknown", 1: "Quadro", 2: "Tesla", 3: "NVS", 4: "Grid", 5: "GeForce", 6: "Titan", 7: "NvidiaVApps",
    8: "NvidiaVPC", 9: "NvidiaVCS", 10: "NvidiaVWS", 11: "NvidiaCloudGaming", 12: "QuadroRTX", 13: "NvidiaRTX",
    14: "Nvidia", 15: "GeForceRTX", 16: "TitanRTX", 17: "NvidiaDLA", 18: "NvidiaVGameDev", 19: "NvidiaNPU",
}  # fmt: skip
_ADDRESSING_MODES = {0: "None", 1: "HMM", 2: "ATS"}
_NVLINK_VERSIONS = {1: "1.0", 2: "2.0", 3: "2.2", 4: "3.0", 5: "3.1", 6: "4.0", 7: "5.0", 8: "6.0"}
_VIRTUALIZATION: dict[int, Literal["Passthrough", "VGPUGuest", "HostVGPU", "HostVSGA"]] = {
    1: "Passthrough",
    2: "VGPUGuest",
    3: "HostVGPU",
    4: "HostVSGA",
}

_CORES_PER_MULTIPROCESSOR = {
    (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 7): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128,
    (10, 1): 128, (10, 3): 128, (11, 0): 128, (12, 0): 128, (12, 1): 128,
}  # fmt: skip
"""FP32 lanes of one multiprocessor by compute capability. Source: CUDA Programming Guide, compute capabilities.

NVML counts the cores of a full GPU (nvmlDeviceGetNumGpuCores) but not its multiprocessors: nvmlDeviceGetAttributes
answers for MIG devices only, and the largest MIG profile may own fewer than the chip has (98 of 108 on an A100).
"""

_DISPLAY_ONLY = ("DGX Display",)
"""Products that drive a screen and nothing else, as in a DGX Station; no call tells them apart."""

_FABRIC_STATES = {1: "NotStarted", 2: "InProgress", 3: "Completed"}
_FABRIC_HEALTH = {1: "Healthy", 2: "Unhealthy", 3: "LimitedCapacity"}

_NVLINK_TO_SWITCH = 2
_NVLINK_TO_GPU = 0

_ENOUGH_LINKS = 64
"""Where the link loop ends when the library does not end it; the largest GPU of 2026 has 36 links."""


@dataclass(frozen=True, slots=True)
class GpuReadings:
    """What one pass over all GPUs gave: those that answered, and a problem for each that did not.

    `listed` are the PCI addresses of all that NVML lists as far as they could be asked, display adapters included.
    """

    gpus: tuple[GpuFacts, ...]
    problems: tuple[Problem, ...]
    listed: tuple[str, ...]
    health: Mapping[str, HealthReading] = field(default_factory=dict)
    """By UUID, of the GPUs that answered."""


@dataclass(frozen=True, slots=True)
class _Identity:
    """Who a GPU is; kept for the session, to name a GPU that no longer answers."""

    uuid: str
    minor: int
    pci_bus_id: str
    pci_device_id: str
    product_name: str

    @property
    def display_only(self) -> bool:
        return any(name in self.product_name for name in _DISPLAY_ONLY)


class Nvml(Calls):
    """One NVML session, from `start` to `stop`. Calls may come from any thread and block for as long as NVML does.

    Handles are kept for the session: asking for them anew attaches to the GPU each time, and by UUID takes seconds
    when several callers do it at once. After a HardwareError for which `session_over` holds, a new session is needed.
    """

    def __init__(self, library: NvmlLibrary) -> None:
        super().__init__(library)
        self._handles: dict[int, Any] = {}
        self._known: dict[int, _Identity] = {}
        self._mig_gpus: dict[int, MigGpu] = {}

    def start(self) -> None:
        """Initialise NVML, also on a node whose GPUs are all bound to another driver. Raises HardwareError."""
        self.call("driver", self.library.nvmlInitWithFlags, pynvml.NVML_INIT_FLAG_NO_GPUS)

    def stop(self) -> None:
        """Give the session back. A driver that is already gone has nothing to be given back to."""
        self._handles.clear()
        self._known.clear()
        self._mig_gpus.clear()
        try:
            self.call("driver", self.library.nvmlShutdown)
        except HardwareError:
            return

    def driver(self, root: str) -> DriverFacts:
        """Versions of the driver whose files lie below `root` on the host. Raises HardwareError."""
        cuda = self.call("driver", self.library.nvmlSystemGetCudaDriverVersion_v2)
        return DriverFacts(
            version=self.call("driver", self.library.nvmlSystemGetDriverVersion),
            cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}",
            nvml_version=self.described("driver", self.library.nvmlSystemGetNVMLVersion),
            root=root,
        )

    def gpus(self) -> GpuReadings:
        """Read all GPUs. One that fails becomes a problem and hides no other.

        Published names are given here; PCI locality is not NVML's to know and left out. Raises HardwareError when NVML
        as a whole fails: see `session_over`.
        """
        readings: dict[int, _Reading] = {}
        problems: list[Problem] = []
        for index in range(self.call("driver", self.library.nvmlDeviceGetCount)):
            try:
                identity = self._known[index] = self._identity(index)
                if identity.display_only:
                    problems.append(_display_only(identity))
                else:
                    readings[index] = self._reading(index, identity)
                    problems.extend(self._denied(index))
            except HardwareError as error:
                if session_over(error):
                    raise
                problems.append(problem_of(error, self._about(index)))
        listed = tuple(identity.pci_bus_id for identity in self._known.values())
        health = {reading.gpu.uuid: reading.health for reading in readings.values()}
        return GpuReadings(_with_names(self._with_nvlink(readings)), tuple(problems), listed, health)

    def _identity(self, index: int) -> _Identity:
        try:
            return self._asked_identity(index)
        except HardwareError as error:
            if error.code != Code.INVALID_ARGUMENT or index not in self._handles:
                raise
        # The handle of a GPU with its own NUMA memory ends when persistence mode is switched off, by anyone.
        # Source: nvml.h, nvmlDeviceSetPersistenceMode.
        self._handles.pop(index)
        self._mig_gpus.pop(index, None)
        return self._asked_identity(index)

    def _asked_identity(self, index: int) -> _Identity:
        about = self._about(index)
        handle = self._handles.get(index)
        if handle is None:
            handle = self._handles[index] = self.call(about, self.library.nvmlDeviceGetHandleByIndex, index)
        pci = self.call(about, self.library.nvmlDeviceGetPciInfo, handle)
        return _Identity(
            uuid=_checked_uuid(about, self.call(about, self.library.nvmlDeviceGetUUID, handle)),
            minor=self.call(about, self.library.nvmlDeviceGetMinorNumber, handle),
            pci_bus_id=_address(about, pci.busId),
            pci_device_id=f"0x{pci.pciDeviceId >> 16:04x}",
            product_name=self.call(about, self.library.nvmlDeviceGetName, handle),
        )

    def handle(self, uuid: str) -> Any:
        """The GPU's handle. Raises HardwareError (NOT_FOUND) when NVML does not have it."""
        return self._handles[self._index(uuid)]

    def mig(self, uuid: str) -> MigGpu:
        """MIG of one GPU. Raises HardwareError (NOT_FOUND) when NVML does not have the GPU."""
        return self._mig_gpu(self._index(uuid))

    def compute_mode(self, uuid: str) -> int:
        """0 default, 2 prohibited, 3 exclusive process. Raises HardwareError."""
        return self.call(f"GPU {uuid}", self.library.nvmlDeviceGetComputeMode, self.handle(uuid))

    def set_compute_mode(self, uuid: str, mode: int) -> None:
        """Raises HardwareError, NO_PERMISSION for all but root."""
        self.call(f"GPU {uuid}", self.library.nvmlDeviceSetComputeMode, self.handle(uuid), mode)

    def _index(self, uuid: str) -> int:
        known = [index for index, identity in self._known.items() if identity.uuid == uuid]
        others = (index for index in range(self.call("driver", self.library.nvmlDeviceGetCount)) if index not in known)
        for index in (*known, *others):
            try:
                self._known[index] = self._identity(index)
            except HardwareError as error:
                if session_over(error) or index in known:
                    raise
                continue
            if self._known[index].uuid == uuid:
                return index
        raise HardwareError(
            "NVML does not list it now; see `nvidia-smi -L` and NVRM in the kernel log",
            about=f"GPU {uuid}",
            code=Code.NOT_FOUND,
        )

    def _mig_gpu(self, index: int) -> MigGpu:
        found = self._mig_gpus.get(index)
        if found is None:
            found = self._mig_gpus[index] = MigGpu(self, self._about(index), self._handles[index])
        return found

    def _about(self, index: int) -> str:
        known = self._known.get(index)
        return f"GPU {known.pci_bus_id}" if known is not None else f"GPU at index {index}"

    def _denied(self, index: int) -> Iterator[Problem]:
        if self._mig_gpu(index).denied:
            yield Problem(
                subject=f"MIG of {self._about(index)}",
                reason="NoPermission",
                message="the driver tells what it can be divided into to root only; no partition of it is offered",
            )

    def _reading(self, index: int, identity: _Identity) -> "_Reading":
        about, handle = self._about(index), self._handles[index]
        health = health_reading(partial(self.described, about), self.library, handle)
        gpu = self._gpu(about, handle, identity, self._mig_gpu(index))
        return _Reading(gpu, tuple(self._active_links(about, handle)), health)

    def _gpu(self, about: str, handle: Any, identity: _Identity, mig: MigGpu) -> GpuFacts:
        library = self.library
        capability = self.call(about, library.nvmlDeviceGetCudaComputeCapability, handle)
        memory = self.supported(about, library.nvmlDeviceGetMemoryInfo, handle)
        virtualization = self.supported(about, library.nvmlDeviceGetVirtualizationMode, handle)
        ecc = self.described(about, library.nvmlDeviceGetEccMode, handle)
        power_limit = self.described(about, library.nvmlDeviceGetEnforcedPowerLimit, handle)
        return GpuFacts(
            uuid=identity.uuid,
            name=identity.uuid,
            minor=identity.minor,
            pci_bus_id=identity.pci_bus_id,
            pci_device_id=identity.pci_device_id,
            product_name=identity.product_name,
            brand=_named(_BRANDS, self.call(about, library.nvmlDeviceGetBrand, handle)),
            architecture=_named(_ARCHITECTURES, self.call(about, library.nvmlDeviceGetArchitecture, handle)),
            cuda_compute_capability=f"{capability[0]}.{capability[1]}",
            memory_bytes=memory.total if memory is not None else None,
            addressing_mode=self._addressing_mode(about, handle),
            virtualization=_VIRTUALIZATION.get(virtualization) if virtualization is not None else None,
            fabric=self._fabric(about, handle),
            mig=mig.facts(),
            ecc_enabled=bool(ecc[0]) if ecc is not None else None,
            multiprocessors=self._multiprocessors(about, handle, (capability[0], capability[1])),
            power_limit_watts=power_limit // 1000 if power_limit is not None else None,
            pcie_generation=self.described(about, library.nvmlDeviceGetMaxPcieLinkGeneration, handle),
            pcie_width=self.described(about, library.nvmlDeviceGetMaxPcieLinkWidth, handle),
            module_id=self._module_id(about, handle),
            serial=self.described(about, library.nvmlDeviceGetSerial, handle),
            vbios_version=self.described(about, library.nvmlDeviceGetVbiosVersion, handle),
        )

    def _addressing_mode(self, about: str, handle: Any) -> str | None:
        mode = self.described(about, self.library.nvmlDeviceGetAddressingMode, handle)
        return _named(_ADDRESSING_MODES, mode) if mode is not None else None

    def _multiprocessors(self, about: str, handle: Any, capability: tuple[int, int]) -> int | None:
        cores = self.described(about, self.library.nvmlDeviceGetNumGpuCores, handle)
        per_multiprocessor = _CORES_PER_MULTIPROCESSOR.get(capability)
        if not cores or per_multiprocessor is None or cores % per_multiprocessor:
            return None
        return cores // per_multiprocessor

    def _module_id(self, about: str, handle: Any) -> int | None:
        # The binding's default argument is one holder shared by all callers, hence one of our own. Boards that do
        # not sit on an SXM base board answer 0 or an error.
        return self.described(about, self.library.nvmlDeviceGetModuleId, handle, ctypes.c_uint()) or None

    def _fabric(self, about: str, handle: Any) -> FabricFacts | None:
        info = self._fabric_info(about, handle)
        state = _FABRIC_STATES.get(info.state) if info is not None else None
        if info is None or state is None:
            return None
        cluster = bytes(info.clusterUuid)
        return FabricFacts.model_validate(
            {
                "state": state,
                "status": info.status,
                "cluster_uuid": str(uuid.UUID(bytes=cluster)) if any(cluster) else None,
                "clique_id": info.cliqueId if any(cluster) else None,
                "health": _FABRIC_HEALTH.get(getattr(info, "healthSummary", 0)),
            }
        )

    def _fabric_info(self, about: str, handle: Any) -> Any | None:
        """The newest structure that the driver knows. Version 1 has the wrong size in the binding: never used."""
        for structure in (self.library.c_nvmlGpuFabricInfo_v3_t, self.library.c_nvmlGpuFabricInfo_v2_t):
            info = structure()
            try:
                self.call(about, self.library.nvmlDeviceGetGpuFabricInfoV, handle, ctypes.byref(info))
            except HardwareError as error:
                if error.code in NOT_THERE:
                    return None
                if error.code in (Code.ARGUMENT_VERSION_MISMATCH, Code.INVALID_ARGUMENT):
                    continue
                raise
            return info
        return None

    def _active_links(self, about: str, handle: Any) -> Iterator["_Link"]:
        """Ask for link after link until the driver says that there is no such link; the constant for it moves.

        NOT_SUPPORTED is about one link: a board may lack any of them, the first too.
        """
        for link in range(_ENOUGH_LINKS):
            try:
                state = self.call(about, self.library.nvmlDeviceGetNvLinkState, handle, link)
            except HardwareError as error:
                if error.code in _LINK_LOOP_ENDS:
                    return
                if session_over(error) or error.code in GPU_GONE:
                    raise
                continue
            if state == 1:
                yield self._link(about, handle, link)

    def _link(self, about: str, handle: Any, link: int) -> "_Link":
        remote_type = self.described(about, self.library.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
        remote = None
        # Behind a switch the remote address is a filler (FFFFFFFF:FF:FF.0).
        if remote_type in (None, _NVLINK_TO_GPU):
            remote = self.described(about, self.library.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        version = self.described(about, self.library.nvmlDeviceGetNvLinkVersion, handle, link)
        return _Link(
            version=_NVLINK_VERSIONS.get(version) if version is not None else None,
            to_switch=remote_type == _NVLINK_TO_SWITCH,
            remote=_address_or_none(remote.busId) if remote is not None else None,
        )

    def _with_nvlink(self, readings: dict[int, "_Reading"]) -> list[GpuFacts]:
        """Add the NVLink facts. Peers need the whole node, so this comes after every GPU was read."""
        gpus = []
        for index, reading in readings.items():
            if not reading.links:
                gpus.append(reading.gpu)
                continue
            peers = [
                readings[other].gpu.uuid
                for other in readings
                if other != index and readings[other].links and self._connected(index, other, readings)
            ]
            facts = NvlinkFacts(
                links=len(reading.links),
                version=next((link.version for link in reading.links if link.version is not None), None),
                switched=any(link.to_switch for link in reading.links),
                peers=sorted(peers),
            )
            gpus.append(reading.gpu.model_copy(update={"nvlink": facts}))
        return gpus

    def _connected(self, index: int, other: int, readings: dict[int, "_Reading"]) -> bool:
        """Whether NVLink carries traffic between two GPUs: what the driver says, or else where the links lead."""
        try:
            status = self.call(
                self._about(index),
                self.library.nvmlDeviceGetP2PStatus,
                self._handles[index],
                self._handles[other],
                pynvml.NVML_P2P_CAPS_INDEX_NVLINK,
            )
        except HardwareError as error:
            if session_over(error):
                raise
            return any(link.remote == readings[other].gpu.pci_bus_id for link in readings[index].links)
        return bool(status == pynvml.NVML_P2P_STATUS_OK)


@dataclass(frozen=True, slots=True)
class _Link:
    """One active NVLink. `remote` is the PCI address of the GPU at its other end, None behind a switch."""

    version: str | None
    to_switch: bool
    remote: str | None


@dataclass(frozen=True, slots=True)
class _Reading:
    gpu: GpuFacts
    links: tuple[_Link, ...]
    health: HealthReading


def _display_only(identity: _Identity) -> Problem:
    return Problem(
        subject=f"display adapter {identity.pci_bus_id}",
        reason="DisplayOnly",
        message=f"{identity.product_name} drives displays only and is not offered",
    )


def _with_names(gpus: list[GpuFacts]) -> tuple[GpuFacts, ...]:
    names = gpu_device_names(gpu.uuid for gpu in gpus)
    return tuple(gpu.model_copy(update={"name": names[gpu.uuid]}) for gpu in gpus)


def _checked_uuid(about: str, text: str) -> str:
    try:
        gpu_device_names([text])
    except ValueError as error:
        raise HardwareError(str(error), about=about) from error
    return text


def _address(about: str, bus_id: str) -> str:
    try:
        return pci_address(bus_id)
    except ValueError as error:
        raise HardwareError(str(error), about=about) from error


def _address_or_none(bus_id: str) -> str | None:
    try:
        return pci_address(bus_id)
    except ValueError:
        return None


def _named(names: dict[int, str], number: int) -> str:
    """The name of an enumeration value; a number that is newer than this table stays visible as a number."""
    return names.get(number, f"Unknown ({number})")
