"""NVIDIA Fabric Manager through libnvfm: which GPUs behind NVSwitches form partitions, and which partitions are active.

`kubelet_plugin.facts.fabric_answers` and the effect of fabric partitions enter here. The library is a parameter, so the
simulated library takes the same road as the real one. Its functions return a number; every number but 0 becomes a
`HardwareError` about Fabric Manager in one place. Each question has a connection of its own, because a connection ends
when Fabric Manager restarts.

Sources: nv_fm_types.h and nv_fm_agent.h of driver 580, and the Fabric Manager User Guide, "Fabric Manager SDK". All of
it was read, and nothing was seen on hardware.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from ctypes import POINTER, Structure, byref, c_char, c_int, c_uint, c_void_p, sizeof
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar

from dra_driver.errors import HardwareError
from dra_driver.runtime.threads import in_own_thread
from kubelet_plugin.hardware.driver_files import load
from kubelet_plugin.hardware.driver_root import DriverRoot
from kubelet_plugin.hardware.layouts import FABRIC_MANAGER, daemon_socket, library_below
from kubelet_plugin.hardware.sysfs import HostFiles, pci_address

ABOUT = "Fabric Manager"
"""What errors and problems are about."""

_LIBRARIES = ("libnvfm.so.1", "libnvfm.so")
_CONNECT_MS = 5000
_READ_S = 15.0
_CHANGE_S = 90.0
"""How long to wait for an answer. No source gives a limit; NVLinks may need to train."""


class FmCode(IntEnum):
    """Return values of the library, without the prefix `FM_ST_`."""

    SUCCESS = 0
    BADPARAM = -1
    GENERIC_ERROR = -2
    NOT_SUPPORTED = -3
    UNINITIALIZED = -4
    TIMEOUT = -5
    VERSION_MISMATCH = -6
    IN_USE = -7
    NOT_CONFIGURED = -8
    CONNECTION_NOT_VALID = -9
    NVLINK_ERROR = -10
    RESOURCE_BAD = -11
    RESOURCE_IN_USE = -12
    RESOURCE_NOT_IN_USE = -13
    RESOURCE_EXHAUSTED = -14
    RESOURCE_NOT_READY = -15
    PARTITION_EXISTS = -16
    PARTITION_ID_IN_USE = -17
    PARTITION_ID_NOT_IN_USE = -18
    PARTITION_NAME_IN_USE = -19
    PARTITION_NAME_NOT_IN_USE = -20
    PARTITION_ID_NAME_MISMATCH = -21
    NOT_READY = -22
    RESOURCE_USED_IN_THIS_PARTITION = -23
    RESOURCE_USED_IN_ANOTHER_PARTITION = -24
    PARTITION_MISWIRED_TRUNKS = -25
    PARTITION_INSUFFICIENT_TRUNKS = -26
    PARTITION_MISSING_SWITCHES = -27
    PARTITION_NETWORK_CONFIG_ERROR = -28
    PARTITION_ROUTE_PROGRAMMING_ERROR = -29


FM_SILENT = (FmCode.TIMEOUT, FmCode.NOT_CONFIGURED, FmCode.CONNECTION_NOT_VALID, FmCode.NOT_READY)
"""Fabric Manager is not there, hangs or is starting: nothing can be asked or changed now."""

_ADVICE = {
    FmCode.BADPARAM: "Fabric Manager has no such partition now; see its log for GPUs or NVLinks that failed",
    FmCode.NOT_SUPPORTED: "start Fabric Manager with FABRIC_MODE=1, the shared NVSwitch mode",
    FmCode.TIMEOUT: "see whether the service nvidia-fabricmanager hangs, and restart it",
    FmCode.VERSION_MISMATCH: "install libnvfm (package nvidia-fabricmanager-devel) in the version of the driver",
    FmCode.IN_USE: "another tool activated a partition at the same time; the kubelet tries again",
    FmCode.NOT_CONFIGURED: "Fabric Manager is starting; if this persists, it may wait for a list of active partitions:"
    " start it with FABRIC_MODE_RESTART=0",
    FmCode.CONNECTION_NOT_VALID: "start the service nvidia-fabricmanager, or correct --fabric-manager",
    FmCode.NVLINK_ERROR: "NVLinks of the GPUs did not train; see the log of Fabric Manager, and reset the GPUs",
    FmCode.NOT_READY: "Fabric Manager is starting; the kubelet tries again",
}
_OTHER_ADVICE = "see the log of Fabric Manager, /var/log/fabricmanager.log"

_MOST_TEXT = 256
_MOST_PARTITIONS = 64
_MOST_GPUS = 16

type _Fields = list[tuple[str, Any]]


class ConnectParamsV1(Structure):
    """fmConnectParams_v1, of drivers before the address had a type."""

    _fields_: ClassVar[_Fields] = [
        ("version", c_uint),
        ("addressInfo", c_char * _MOST_TEXT),
        ("timeoutMs", c_uint),
        ("addressIsUnixSocket", c_uint),
    ]
    NUMBER: ClassVar[int] = 1


class ConnectParamsV2(Structure):
    """fmConnectParams_v2. `addressType`: 1 IPv4 address and port, 2 UNIX socket."""

    _fields_: ClassVar[_Fields] = [*ConnectParamsV1._fields_, ("addressType", c_uint)]
    NUMBER: ClassVar[int] = 2


class PartitionGpuInfo(Structure):
    """fmFabricPartitionGpuInfo_t."""

    _fields_: ClassVar[_Fields] = [
        ("physicalId", c_uint),
        ("uuid", c_char * 80),
        ("pciBusId", c_char * 32),
        ("numNvLinksAvailable", c_uint),
        ("maxNumNvLinks", c_uint),
        ("nvlinkLineRateMBps", c_uint),
    ]


class PartitionInfo(Structure):
    """fmFabricPartitionInfo_t."""

    _fields_: ClassVar[_Fields] = [
        ("partitionId", c_uint),
        ("isActive", c_uint),
        ("numGpus", c_uint),
        ("gpuInfo", PartitionGpuInfo * _MOST_GPUS),
    ]


class PartitionList(Structure):
    """fmFabricPartitionList_v2; its version number is 1."""

    _fields_: ClassVar[_Fields] = [
        ("version", c_uint),
        ("numPartitions", c_uint),
        ("maxNumPartitions", c_uint),
        ("partitionInfo", PartitionInfo * _MOST_PARTITIONS),
    ]
    NUMBER: ClassVar[int] = 1


def versioned[S: (ConnectParamsV1, ConnectParamsV2, PartitionList)](kind: type[S]) -> S:
    """A structure that says its size and version, as MAKE_FM_PARAM_VERSION has it."""
    made = kind()
    made.version = sizeof(kind) | kind.NUMBER << 24
    return made


type FabricLibrary = Any
"""libnvfm, or what stands in for it: the functions that `load_fabric_library` names. Each returns an `FmCode`."""


def load_fabric_library(file: Path) -> FabricLibrary:
    """The real library. Raises HardwareError when it cannot be loaded."""
    try:
        library = load(file)
        for name, arguments in {
            "fmLibInit": [],
            "fmConnect": [c_void_p, POINTER(c_void_p)],
            "fmDisconnect": [c_void_p],
            "fmGetSupportedFabricPartitions": [c_void_p, POINTER(PartitionList)],
            "fmActivateFabricPartition": [c_void_p, c_uint],
            "fmDeactivateFabricPartition": [c_void_p, c_uint],
        }.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int
    except (OSError, AttributeError) as error:
        raise HardwareError(f"{file} cannot be loaded: {error}", about=ABOUT) from error
    return library


@dataclass(frozen=True, slots=True)
class PartitionMember:
    """A GPU of a partition. On H100 and later `physical_id` is NVML's module ID, and the others are None."""

    physical_id: int
    uuid: str | None = None
    pci_bus_id: str | None = None


@dataclass(frozen=True, slots=True)
class FabricPartitionNow:
    """A partition that Fabric Manager offers, and whether it is active."""

    id: int
    active: bool
    members: tuple[PartitionMember, ...]


class FabricManager:
    """Asks and changes. For any thread; one question at a time. Calls block.

    `address` is a socket on the host (a path), or HOST or HOST:PORT; None: the socket is searched for. `load` loads the
    library.
    """

    def __init__(
        self,
        host: HostFiles,
        driver: Callable[[], DriverRoot],
        address: str | None = None,
        load: Callable[[Path], FabricLibrary] = load_fabric_library,
        *,
        read_s: float = _READ_S,
    ) -> None:
        self._host = host
        self._driver = driver
        self._address = address
        self._load = load
        self._read_s = read_s
        self._loaded: tuple[Path, FabricLibrary] | None = None
        self._turn = threading.Lock()
        self._changing = False
        self._last: tuple[FabricPartitionNow, ...] = ()
        self._bridges: dict[str, bool] = {}

    def is_needed(self) -> bool:
        """Whether this node has NVSwitches that it manages itself: as PCI devices, or behind an InfiniBand bridge.

        Source: the start script of the service nvidia-fabricmanager. GB200 and GB300 nodes have none.
        """
        if self._host.names("/proc/driver/nvidia-nvswitch/devices"):
            return True
        for name in self._host.names("/sys/class/infiniband"):
            if name not in self._bridges:  # read once, because a card may take seconds to answer
                text = self._host.read_text(f"/sys/class/infiniband/{name}/device/vpd") or ""
                self._bridges[name] = "SW_MNG" in text
        return any(self._bridges.values())

    def glance(self) -> tuple[FabricPartitionNow, ...]:
        """As `partitions`, without waiting for a change that takes long: then they are as they were before it."""
        return self._last if self._changing and self._last else self.partitions()

    def partitions(self) -> tuple[FabricPartitionNow, ...]:
        """All partitions, sorted by ID. Raises HardwareError, with NOT_SUPPORTED in bare-metal mode; NodeNotReady."""

        def ask(library: FabricLibrary, handle: c_void_p) -> tuple[FabricPartitionNow, ...]:
            answer = versioned(PartitionList)
            _check("fmGetSupportedFabricPartitions", library.fmGetSupportedFabricPartitions(handle, byref(answer)))
            return _decoded(answer)

        self._last = self._connected(ask, self._read_s)
        return self._last

    def activate(self, partition: int) -> None:
        """Raises HardwareError, also when it is active already (IN_USE), and NodeNotReady."""

        def ask(library: FabricLibrary, handle: c_void_p) -> None:
            _check(f"activation of partition {partition}", library.fmActivateFabricPartition(handle, partition))

        self._change(ask)

    def deactivate(self, partition: int) -> None:
        """Raises HardwareError, also when it is not active (UNINITIALIZED), and NodeNotReady."""

        def ask(library: FabricLibrary, handle: c_void_p) -> None:
            _check(f"deactivation of partition {partition}", library.fmDeactivateFabricPartition(handle, partition))

        self._change(ask)

    def _change(self, ask: Callable[[FabricLibrary, c_void_p], None]) -> None:
        self._changing = True
        try:
            self._connected(ask, _CHANGE_S)
        finally:
            self._changing = False

    def _connected[T](self, ask: Callable[[FabricLibrary, c_void_p], T], patience_s: float) -> T:
        library, address = self._library(), self._found_address()

        def work() -> T:
            _check("fmLibInit", library.fmLibInit(), fine=(FmCode.IN_USE,))
            handle = _connect(library, address)
            try:
                return ask(library, handle)
            finally:
                library.fmDisconnect(handle)

        return self._in_time(work, patience_s)

    def _in_time[T](self, work: Callable[[], T], patience_s: float) -> T:
        """What `work` returns or raises. A call that hangs is left to end on its own; until then no other begins."""
        if not self._turn.acquire(timeout=patience_s + (_CHANGE_S if self._changing else 0.0)):
            raise _silent("still does not answer an earlier question")

        def in_turn() -> T:
            try:
                return work()
            finally:
                self._turn.release()

        asking = in_own_thread(ABOUT, in_turn)
        if not wait([asking], patience_s).done:
            raise _silent(f"has not answered for {patience_s:g} s")
        return asking.result()

    def _library(self) -> FabricLibrary:
        root = self._driver().path
        libraries = (library_below(self._host, root, name) for name in _LIBRARIES)
        file = next((path for path in libraries if path is not None), None)
        if file is None:
            raise HardwareError(
                f"{_LIBRARIES[0]} is in no library folder below the driver root {root}; install"
                " nvidia-fabricmanager-devel (Debian: nvidia-fabricmanager-dev) in the version of the driver",
                about=ABOUT,
            )
        if self._loaded is None or self._loaded[0] != file:
            self._loaded = file, self._load(file)
        return self._loaded[1]

    def _found_address(self) -> str:
        address = self._address or daemon_socket(self._host, self._driver().path, FABRIC_MANAGER)
        if address is None:
            raise HardwareError(
                f"no socket {FABRIC_MANAGER}/socket below /run; start Fabric Manager with"
                f" FM_CMD_UNIX_SOCKET_PATH=/run/{FABRIC_MANAGER}/socket, or set --fabric-manager",
                about=ABOUT,
                code=FmCode.CONNECTION_NOT_VALID,
            )
        if not address.startswith("/"):
            return address
        return str(self._host.path(self._host.resolve(address) or address))


def _connect(library: FabricLibrary, address: str) -> c_void_p:
    handle, is_path = c_void_p(), address.startswith("/")
    params = versioned(ConnectParamsV2)
    params.addressType = 2 if is_path else 1
    code = library.fmConnect(byref(_filled(params, address)), byref(handle))
    if code == FmCode.VERSION_MISMATCH:
        code = library.fmConnect(byref(_filled(versioned(ConnectParamsV1), address)), byref(handle))
    _check(f"connection to {address}", code)
    return handle


def _filled[P: (ConnectParamsV1, ConnectParamsV2)](params: P, address: str) -> P:
    params.addressInfo, params.timeoutMs = address.encode(), _CONNECT_MS
    params.addressIsUnixSocket = int(address.startswith("/"))
    return params


def _check(what: str, code: int, *, fine: Sequence[FmCode] = ()) -> None:
    if code == FmCode.SUCCESS or code in fine:
        return
    name = f"FM_ST_{FmCode(code).name}" if code in list(FmCode) else "an unknown error"
    advice = _ADVICE.get(FmCode(code), _OTHER_ADVICE) if code in list(FmCode) else _OTHER_ADVICE
    raise HardwareError(f"{what} failed: {name} ({code}); {advice}", about=ABOUT, code=code)


def _silent(what: str) -> HardwareError:
    return HardwareError(f"{what}; {_ADVICE[FmCode.TIMEOUT]}", about=ABOUT, code=FmCode.TIMEOUT)


def _decoded(answer: PartitionList) -> tuple[FabricPartitionNow, ...]:
    """Raises HardwareError for counts that do not fit: then the library has other structures."""
    partitions = []
    for info in answer.partitionInfo[: _counted(answer.numPartitions, _MOST_PARTITIONS)]:
        gpus = info.gpuInfo[: _counted(info.numGpus, _MOST_GPUS)]
        partitions.append(FabricPartitionNow(info.partitionId, bool(info.isActive), tuple(map(_member, gpus))))
    return tuple(sorted(partitions, key=lambda partition: partition.id))


def _counted(count: int, most: int) -> int:
    if count > most:
        raise HardwareError(
            f"libnvfm reports {count} where at most {most} fit: its structures are others than those of driver 580;"
            " report it with `dractl bundle`, and switch off the feature gate FabricManagerPartitioning",
            about=ABOUT,
        )
    return count


def _member(info: PartitionGpuInfo) -> PartitionMember:
    """What Fabric Manager does not know, it leaves empty: the UUID, and a PCI address of zeros."""
    uuid, bus_id = info.uuid.decode(errors="replace"), info.pciBusId.decode(errors="replace")
    try:
        address = pci_address(bus_id) if bus_id.strip("0:.") else None
    except ValueError:
        address = None
    return PartitionMember(info.physicalId, uuid or None, address)
