"""NVML through a pynvml-shaped library: what the driver knows of itself and of each GPU.

Discovery enters here. The library is a parameter, so the simulated one takes the same road as the real one. A session
serves several threads, but only one for each GPU: see `kubelet_plugin.hardware.lanes`.

Three kinds of question are asked of a GPU:

- identity (UUID, minor, PCI address, product, ...): any failure makes this GPU unreadable, and only this one;
- what changes how it may be used (memory, MIG mode, fabric, virtualisation): "not supported" is an answer, any other
  failure makes the GPU unreadable, because guessing would offer a device that is not there;
- description (serial, power limit, PCIe, ...): absent when the driver gives no answer, for any reason, unless the
  reason is that the GPU or the driver is gone.
"""

import ctypes
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol

import pynvml
from pydantic import ValidationError

from dra_driver.api.inventory import DriverFacts, FabricFacts, GpuFacts, NvlinkFacts, Problem
from dra_driver.errors import HardwareError
from dra_driver.names import gpu_device_names
from kubelet_plugin.hardware.calls import (
    GPU_GONE,
    NOT_THERE,
    Calls,
    NvmlCode,
    NvmlLibrary,
    answered_wrong,
    problem_of,
    session_over,
)
from kubelet_plugin.hardware.health import HealthReading, health_reading
from kubelet_plugin.hardware.lanes import is_silent
from kubelet_plugin.hardware.mig import MigGpu
from kubelet_plugin.hardware.sysfs import pci_address

_LINK_LOOP_ENDS = frozenset({NvmlCode.INVALID_ARGUMENT, NvmlCode.FUNCTION_NOT_FOUND})

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
"""Products that drive a screen and nothing else, as in a DGX Station; no call distinguishes them."""

_NO_FABRIC = 0
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


class InLane(Protocol):
    """Does work about one GPU, and returns its result; or gives it up and raises HardwareError."""

    def __call__[T](self, about: str, work: Callable[[], T], /) -> T: ...


def at_once[T](about: str, work: Callable[[], T], /) -> T:
    """Without a lane: for as long as it takes."""
    return work()


class Nvml(Calls):
    """One NVML session, from `start` to `stop`. Calls block for as long as NVML does.

    Handles are kept for the session: asking for them again attaches to the GPU each time, and by UUID takes seconds
    when several callers do it at once. All dictionaries are by PCI address.
    After a HardwareError for which `session_over` holds, a new session is needed.
    """

    def __init__(self, library: NvmlLibrary) -> None:
        super().__init__(library)
        self._addresses: dict[int, str] = {}
        """By the index that NVML gave the GPU when the session began."""
        self._handles: dict[str, Any] = {}
        self._known: dict[str, _Identity] = {}
        self._mig_gpus: dict[str, MigGpu] = {}
        self._links: dict[tuple[str, int], _Link] = {}
        """Active links, by GPU and number. What the driver said of a link does not change while it is active."""

    def start(self) -> None:
        """Initialise NVML, also on a node whose GPUs are all bound to another driver. Raises HardwareError."""
        self.call("driver", self.library.nvmlInitWithFlags, pynvml.NVML_INIT_FLAG_NO_GPUS)

    def stop(self) -> None:
        """Give the session back. A driver that is already gone has nothing to be given back to."""
        self._addresses.clear()
        self._handles.clear()
        self._known.clear()
        self._mig_gpus.clear()
        self._links.clear()
        with suppress(HardwareError):
            self.call("driver", self.library.nvmlShutdown)

    def driver(self, root: str) -> DriverFacts:
        """Versions of the driver whose files lie below `root` on the host. Raises HardwareError."""
        cuda = self.call("driver", self.library.nvmlSystemGetCudaDriverVersion_v2)
        return DriverFacts(
            version=self.call("driver", self.library.nvmlSystemGetDriverVersion),
            cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}",
            nvml_version=self.described("driver", self.library.nvmlSystemGetNVMLVersion),
            root=root,
        )

    def gpus(self, in_lane: InLane = at_once) -> GpuReadings:
        """Read all GPUs. One that fails becomes a problem and hides no other.

        Published names are given here; PCI locality is not NVML's to know and left out. Raises HardwareError when NVML
        as a whole fails: see `session_over`.
        """
        readings: dict[str, _Reading] = {}
        problems: list[Problem] = []
        count = self.call("driver", self.library.nvmlDeviceGetCount)
        for index in range(count):
            try:
                address = self._address_at(index, in_lane)
                reading = in_lane(f"GPU {address}", partial(self._reading, address))
                if reading is None:
                    problems.append(_display_only(self._known[address]))
                    continue
                readings[address] = reading
                problems.extend(self._of_mig(address))
            except HardwareError as error:
                if session_over(error):
                    raise
                problems.append(problem_of(error, self._about(index)))
        readings, alike = _distinct(readings)
        readings, silent = self._with_nvlink(readings, in_lane)
        listed = tuple(address for index, address in self._addresses.items() if index < count)
        health = {reading.gpu.uuid: reading.health for reading in readings.values()}
        named = _with_names([reading.gpu for reading in readings.values()])
        return GpuReadings(named, (*problems, *alike, *silent), listed, health)

    def _address_at(self, index: int, in_lane: InLane) -> str:
        address = self._addresses.get(index)
        if address is None:
            about = self._about(index)
            address, handle = in_lane(about, partial(self._found_at, about, index))
            self._addresses[index], self._handles[address] = address, handle
        return address

    def _found_at(self, about: str, index: int) -> tuple[str, Any]:
        handle = self.call(about, self.library.nvmlDeviceGetHandleByIndex, index)
        return _address(about, self.call(about, self.library.nvmlDeviceGetPciInfo, handle).busId), handle

    def _identity(self, address: str) -> _Identity:
        """Who is there now. Called in the GPU's lane, as everything below."""
        about = f"GPU {address}"
        uuid = _checked_uuid(about, self._uuid_at(address))
        handle = self._handles[address]
        pci = self.call(about, self.library.nvmlDeviceGetPciInfo, handle)
        self._known[address] = _Identity(
            uuid=uuid,
            minor=self.call(about, self.library.nvmlDeviceGetMinorNumber, handle),
            pci_bus_id=_address(about, pci.busId),
            pci_device_id=f"0x{pci.pciDeviceId >> 16:04x}",
            product_name=self.call(about, self.library.nvmlDeviceGetName, handle),
        )
        return self._known[address]

    def _uuid_at(self, address: str) -> str:
        try:
            return self._asked_uuid(address)
        except HardwareError as error:
            if error.code != NvmlCode.INVALID_ARGUMENT or address not in self._handles:
                raise
        # The handle of a GPU with its own NUMA memory ends when persistence mode is switched off, by anyone.
        # Source: nvml.h, nvmlDeviceSetPersistenceMode.
        self._handles.pop(address)
        self._mig_gpus.pop(address, None)
        return self._asked_uuid(address)

    def _asked_uuid(self, address: str) -> str:
        about = f"GPU {address}"
        handle = self._handles.get(address)
        if handle is None:
            handle = self.call(about, self.library.nvmlDeviceGetHandleByPciBusId, address)
            self._handles[address] = handle
        return str(self.call(about, self.library.nvmlDeviceGetUUID, handle))

    def find(self, uuid: str, address: str) -> None:
        """Make the GPU known, by the PCI address where it was last. While it is there, no other GPU is asked.

        Called before anything else is asked about it. Raises HardwareError when it does not answer.
        """
        if any(identity.uuid == uuid for identity in list(self._known.values())):
            return
        try:
            self._identity(address)
        except HardwareError as error:
            if error.code not in (NvmlCode.NOT_FOUND, NvmlCode.INVALID_ARGUMENT):
                raise  # otherwise it may be in another place by now

    def handle(self, uuid: str) -> Any:
        """The GPU's handle. Raises HardwareError (NOT_FOUND) when NVML does not have it."""
        return self._handles[self._place(uuid)]

    def mig(self, uuid: str) -> MigGpu:
        """MIG of one GPU. Raises HardwareError (NOT_FOUND) when NVML does not have the GPU."""
        return self._mig_gpu(self._place(uuid))

    def compute_mode(self, uuid: str) -> int:
        """0 default, 2 prohibited, 3 exclusive process. Raises HardwareError."""
        return int(self.call(f"GPU {uuid}", self.library.nvmlDeviceGetComputeMode, self.handle(uuid)))

    def set_compute_mode(self, uuid: str, mode: int) -> None:
        """Raises HardwareError, NO_PERMISSION for all but root."""
        self.call(f"GPU {uuid}", self.library.nvmlDeviceSetComputeMode, self.handle(uuid), mode)

    def _place(self, uuid: str) -> str:
        for address, identity in list(self._known.items()):
            if identity.uuid == uuid and self._uuid_at(address) == uuid:
                return address
        return self._search(uuid)

    def _search(self, uuid: str) -> str:
        """The address of a GPU that is not where it was: all are asked."""
        for index in range(self.call("driver", self.library.nvmlDeviceGetCount)):
            try:
                address = self._address_at(index, at_once)
                if self._identity(address).uuid == uuid:
                    return address
            except HardwareError as error:
                if session_over(error):
                    raise
        raise HardwareError(
            "NVML does not list it now; run `nvidia-smi -L`, and search the kernel log for NVRM",
            about=f"GPU {uuid}",
            code=NvmlCode.NOT_FOUND,
        )

    def _mig_gpu(self, address: str) -> MigGpu:
        gpu = self._mig_gpus.get(address)
        if gpu is None:
            gpu = self._mig_gpus[address] = MigGpu(self, f"GPU {address}", self._handles[address])
        return gpu

    def _about(self, index: int) -> str:
        address = self._addresses.get(index)
        return f"GPU {address}" if address is not None else f"GPU at index {index}"

    def _of_mig(self, address: str) -> Iterator[Problem]:
        mig = self._mig_gpu(address)
        if mig.denied:
            yield Problem(
                subject=f"MIG of GPU {address}",
                reason="NoPermission",
                message="only root may read the GPU's MIG profiles; no partition of it is offered",
            )
        if mig.odd_profiles:
            yield Problem(
                subject=f"MIG of GPU {address}",
                reason="UnknownProfile",
                message="partitions of these profiles are not offered, because this version of the plugin does not"
                f" support them: {', '.join(mig.odd_profiles)}; upgrade it, or report the GPU's model",
            )

    def _reading(self, address: str) -> "_Reading | None":
        """None of a GPU that computes nothing."""
        identity = self._identity(address)
        if identity.display_only:
            return None
        about, handle = f"GPU {address}", self._handles[address]
        health = health_reading(partial(self.described, about), self.library, handle)
        try:
            gpu = self._gpu(about, handle, identity, self._mig_gpu(address))
        except ValidationError as error:
            raise answered_wrong(error, about) from error
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
            memory_bytes=(memory.total or None) if memory is not None else None,
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
        return int(cores) // per_multiprocessor

    def _module_id(self, about: str, handle: Any) -> int | None:
        # The binding's default argument is one holder shared by all callers, so this call has its own. Boards that do
        # not sit on an SXM base board answer 0 or an error.
        number = self.described(about, self.library.nvmlDeviceGetModuleId, handle, ctypes.c_uint())
        return int(number) if number else None

    def _fabric(self, about: str, handle: Any) -> FabricFacts | None:
        info = self._fabric_info(about, handle)
        if info is None or info.state == _NO_FABRIC:
            return None
        if info.state not in _FABRIC_STATES:
            raise HardwareError(
                f"NVML gives {info.state} as the state of its NVLink fabric, which this driver does not know; upgrade"
                " it, and search the kernel log for NVRM if that does not help",
                about=about,
            )
        cluster = bytes(info.clusterUuid)
        return FabricFacts.model_validate(
            {
                "state": _FABRIC_STATES[info.state],
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
                if error.code in (NvmlCode.ARGUMENT_VERSION_MISMATCH, NvmlCode.INVALID_ARGUMENT):
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
            if state != 1:
                self._links.pop((about, link), None)
                continue
            active = self._links.get((about, link)) or self._link(about, handle, link)
            if active.is_known:
                self._links[about, link] = active
            yield active

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

    def _with_nvlink(
        self, readings: dict[str, "_Reading"], in_lane: InLane
    ) -> tuple[dict[str, "_Reading"], list[Problem]]:
        """Add the NVLink facts. Peers need the whole node, so this comes after every GPU was read.

        Answers the GPUs whose peers could be asked for, and the problems of those that no longer answer.
        """
        linked = [address for address, reading in readings.items() if reading.links]
        added: dict[str, _Reading] = {}
        problems: list[Problem] = []
        for address, reading in readings.items():
            if not reading.links:
                added[address] = reading
                continue
            others = [other for other in linked if other != address]
            try:
                peers = in_lane(f"GPU {address}", partial(self._peers, address, others, readings))
            except HardwareError as error:
                if not is_silent(error):
                    raise
                problems.append(problem_of(error, f"GPU {address}"))
                continue
            facts = NvlinkFacts(
                links=len(reading.links),
                version=next((link.version for link in reading.links if link.version is not None), None),
                switched=any(link.to_switch for link in reading.links),
                peers=sorted(peers),
            )
            added[address] = replace(reading, gpu=reading.gpu.model_copy(update={"nvlink": facts}))
        return added, problems

    def _peers(self, address: str, others: list[str], readings: dict[str, "_Reading"]) -> list[str]:
        return [readings[other].gpu.uuid for other in others if self._connected(address, other, readings)]

    def _connected(self, address: str, other: str, readings: dict[str, "_Reading"]) -> bool:
        """Whether NVLink carries traffic between two GPUs: what the driver says, or else where the links lead."""
        try:
            status = self.call(
                f"GPU {address}",
                self.library.nvmlDeviceGetP2PStatus,
                self._handles[address],
                self._handles[other],
                pynvml.NVML_P2P_CAPS_INDEX_NVLINK,
            )
        except HardwareError as error:
            if session_over(error):
                raise
            return any(link.remote == other for link in readings[address].links)
        return bool(status == pynvml.NVML_P2P_STATUS_OK)


@dataclass(frozen=True, slots=True)
class _Link:
    """One active NVLink. `remote` is the PCI address of the GPU at its other end, None behind a switch."""

    version: str | None
    to_switch: bool
    remote: str | None

    @property
    def is_known(self) -> bool:
        """Whether the driver has said all of it."""
        return self.version is not None and (self.to_switch or self.remote is not None)


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


def _distinct(readings: dict[str, _Reading]) -> tuple[dict[str, _Reading], list[Problem]]:
    """Without GPUs that report the same UUID or minor number, each of which is a problem: what is asked of one, or
    given to a container, could be the other."""
    same: dict[str, list[str]] = {}
    for address, reading in readings.items():
        for text in (f"UUID {reading.gpu.uuid}", f"minor number {reading.gpu.minor}"):
            same.setdefault(text, []).append(address)
    alike = {address: text for text, addresses in same.items() if len(addresses) > 1 for address in addresses}
    problems = [
        Problem(
            subject=f"GPU {address}",
            reason="NotDistinct",
            message=f"GPUs {' and '.join(same[text])} report the same {text}, so this driver cannot distinguish them,"
            " and offers none of them; reset them or reboot the node, and replace them if that does not help",
        )
        for address, text in alike.items()
    ]
    return {address: reading for address, reading in readings.items() if address not in alike}, problems


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
