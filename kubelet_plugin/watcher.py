"""What the GPUs tell by themselves: NVML events, in a thread of their own, as values in the event loop.

`kubelet_plugin.monitor` makes conditions of Xids; a changed MIG layout makes Discovery look. Events are a hint to look
sooner and the only source of Xids; everything else is found by looking, too. So nothing is lost but time when events do
not work: a GPU that supports none is named as unmonitored, and a broken session is begun anew.

The wait happens inside the library with no lock of ours held, in a session of its own, because it lasts seconds.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pynvml
import structlog

from dra_driver.errors import HardwareError, NodeNotReady
from kubelet_plugin.discovery import OpenNvml
from kubelet_plugin.hardware.calls import Code, translated

_log = structlog.get_logger(__name__)

_WAIT_MS = 1000
"""The longest that a stop, a pause or a new session has to wait."""
_PAUSE_PATIENCE_S = 5.0
_RETRY_S = (1.0, 2.0, 5.0, 15.0, 30.0)

MIG_CONFIG_CHANGE = 0x100
"""nvmlEventMigConfigChange; the Python binding has no name for it."""

_WANTED = (
    pynvml.nvmlEventTypeXidCriticalError
    | pynvml.nvmlEventTypeDoubleBitEccError
    | pynvml.nvmlEventTypeDramRetirementFailure
    | pynvml.nvmlEventTypeFatalPoisonError
    | pynvml.nvmlEventTypeGpuUnavailableError
    | pynvml.nvmlEventTypeGpuRecoveryAction
    | MIG_CONFIG_CHANGE
)
_WHOLE_GPU = 0xFFFFFFFF


class EventKind(Enum):
    """XID: `number` says which. LAYOUT: the MIG layout changed. LOOK: something else happened that a look will show."""

    XID = "xid"
    LAYOUT = "layout"
    LOOK = "look"


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """`gpu` is the UUID of the physical GPU, None when the driver did not say. Instance ids are None for all of it."""

    kind: EventKind
    gpu: str | None
    number: int = 0
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which GPUs are listened to, by UUID; and which have no events, or refused, with the reason."""

    monitored: frozenset[str] = frozenset()
    unmonitored: tuple[tuple[str, str], ...] = ()


class EventWatcher:
    """Listens to all GPUs; lives in one event loop. `on_event` and `on_coverage` are called in it."""

    def __init__(
        self, open_nvml: OpenNvml, on_event: Callable[[GpuEvent], None], on_coverage: Callable[[Coverage], None]
    ) -> None:
        self._open_nvml = open_nvml
        self._on_event = on_event
        self._on_coverage = on_coverage
        self._renew = threading.Event()
        self._stop = threading.Event()
        self._gate = threading.Condition()
        self._pauses = 0
        self._open = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No session of ours is open inside: the kernel does not let go of a GPU that somebody has open.

        Blocking, from any thread, several at once. A library that hangs is waited for a few seconds, no longer: then
        the caller's own attempt will say what is in the way.
        """
        with self._gate:
            self._pauses += 1
            self._renew.set()
            self._gate.wait_for(lambda: not self._open, _PAUSE_PATIENCE_S)
        try:
            yield
        finally:
            with self._gate:
                self._pauses -= 1
                self._gate.notify_all()

    def renew(self) -> None:
        """Begin a new session soon: the GPUs are others, or the driver is."""
        self._renew.set()

    async def run(self) -> None:
        """Listen until cancelled. The thread ends by itself within a moment; a hung driver does not keep anybody."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def listen() -> None:
            try:
                self._listen(loop)
            finally:
                with suppress(RuntimeError):  # the loop is closed, nobody waits
                    loop.call_soon_threadsafe(ended.cancel)

        thread = threading.Thread(target=listen, name="nvml-events", daemon=True)
        thread.start()
        try:
            await ended
        finally:
            self._stop.set()

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        failures = 0
        while not self._stop.is_set():
            if not self._may_open():
                continue
            try:
                with self._opened() as session:
                    self._tell(loop, self._on_coverage, session.coverage)
                    failures = 0
                    self._hear(loop, session)
            except NodeNotReady as error:
                if self._stop.is_set():
                    return  # nobody listens to us any more
                # Which GPU it was, NVML does not say: a look finds out.
                self._tell(loop, self._on_event, GpuEvent(EventKind.LOOK, None))
                delay = _RETRY_S[min(failures, len(_RETRY_S) - 1)]
                if failures == 0:
                    _log.info("events of the GPUs cannot be heard now", error=str(error), retry_s=delay)
                failures += 1
                self._stop.wait(delay)

    def _may_open(self) -> bool:
        """Whether nobody wants a pause; waits a moment for that."""
        with self._gate:
            if not self._gate.wait_for(lambda: self._pauses == 0, _WAIT_MS / 1000):
                return False
            self._renew.clear()
            self._open = True
            return True

    @contextmanager
    def _opened(self) -> Iterator["_Session"]:
        try:
            with _Session(self._open_nvml) as session:
                yield session
        finally:
            with self._gate:
                self._open = False
                self._gate.notify_all()

    def _hear(self, loop: asyncio.AbstractEventLoop, session: "_Session") -> None:
        while not self._stop.is_set() and not self._renew.is_set():
            event = session.wait()
            if event is not None:
                self._tell(loop, self._on_event, event)

    def _tell[T](self, loop: asyncio.AbstractEventLoop, listener: Callable[[T], None], value: T) -> None:
        with suppress(RuntimeError):  # the loop is closed, nobody listens
            loop.call_soon_threadsafe(listener, value)


class _Session:
    """An NVML session with one event set. Every failure is a NodeNotReady."""

    def __init__(self, open_nvml: OpenNvml) -> None:
        self._library: Any = open_nvml().library
        self.coverage = Coverage()
        self._set: Any = None

    def __enter__(self) -> "_Session":
        self._call(self._library.nvmlInitWithFlags, pynvml.NVML_INIT_FLAG_NO_GPUS)
        try:
            self._set = self._call(self._library.nvmlEventSetCreate)
            self.coverage = self._registered()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for function, *args in ((self._library.nvmlEventSetFree, self._set), (self._library.nvmlShutdown,)):
            if args == [None]:
                continue
            with suppress(HardwareError):  # a driver that is gone has nothing to be given back to
                self._call(function, *args)

    def wait(self) -> GpuEvent | None:
        """The next event; None when there was none for a while."""
        try:
            data = self._call(self._library.nvmlEventSetWait_v2, self._set, _WAIT_MS)
        except HardwareError as error:
            if error.code == Code.TIMEOUT:
                return None
            raise
        return self._event(data)

    def _event(self, data: Any) -> GpuEvent:
        try:
            gpu = self._call(self._library.nvmlDeviceGetUUID, data.device)
        except HardwareError:
            gpu = None  # a GPU that just got lost does not tell its name any more
        if data.eventType == pynvml.nvmlEventTypeXidCriticalError and gpu is not None:
            return GpuEvent(
                EventKind.XID,
                gpu,
                int(data.eventData),
                _instance(data.gpuInstanceId),
                _instance(data.computeInstanceId),
            )
        kind = EventKind.LAYOUT if data.eventType == MIG_CONFIG_CHANGE else EventKind.LOOK
        return GpuEvent(kind, gpu)

    def _registered(self) -> Coverage:
        monitored: set[str] = set()
        unmonitored: list[tuple[str, str]] = []
        for index in range(self._call(self._library.nvmlDeviceGetCount)):
            try:
                handle = self._call(self._library.nvmlDeviceGetHandleByIndex, index)
                uuid = self._call(self._library.nvmlDeviceGetUUID, handle)
            except HardwareError:
                continue  # Discovery reports it
            try:
                supported = self._call(self._library.nvmlDeviceGetSupportedEventTypes, handle)
                self._call(self._library.nvmlDeviceRegisterEvents, handle, supported & _WANTED, self._set)
            except HardwareError as error:
                unmonitored.append((uuid, error.message))
            else:
                monitored.add(uuid)
        return Coverage(frozenset(monitored), tuple(sorted(unmonitored)))

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except self._library.NVMLError as error:
            raise translated(error, "events") from error


def _instance(number: int) -> int | None:
    return None if number == _WHOLE_GPU else int(number)
