"""What the GPUs report by themselves: NVML events, in a thread of their own, as values in the event loop.

`kubelet_plugin.facts.monitor` makes conditions of Xids; a changed MIG layout makes Discovery look. Events are a hint to
look sooner and the only source of Xids; everything else is found by looking, too. So nothing is lost but time when
events do not work: a GPU that supports none is named as unmonitored, and a broken session is replaced.

The wait happens inside the library while no lock is held, in a session of its own, because it lasts seconds. NVML
may return early for ever: with GPU_IS_LOST once a GPU of the set fell off the bus, with TIMEOUT when an interrupt
arrives, with event after event. None of that may use a core: a session whose wait fails is replaced ever more rarely,
and without the GPU that is lost; the rest of an early return is slept; an empty event set is not waited on.
"""

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import pynvml
import structlog

from dra_driver.errors import HardwareError, NodeNotReady
from dra_driver.runtime.threads import in_own_thread
from kubelet_plugin.facts.hardware import OpenNvml
from kubelet_plugin.hardware.calls import GPU_GONE, NOT_THERE, Calls, NvmlCode
from kubelet_plugin.hardware.lanes import READ_S, Lanes

_log = structlog.get_logger(__name__)

_WAIT_S = 1.0
"""The longest wait of a stop, a pause or a new session."""
_MOST_EVENTS = 100
"""As many are taken within one wait's time; further ones stay in the driver until the next."""
_LOOK_S = 0.1
"""How often it is looked whether a call has returned that hung."""
_PAUSE_PATIENCE_S = 5.0
_RETRY_S = (1.0, 2.0, 5.0, 15.0, 30.0)
_AGAIN_S = 300.0
"""After as long, GPUs that could not be registered are tried again, in a new session. Those without events are not."""

MIG_CONFIG_CHANGE = 0x100
"""nvmlEventMigConfigChange; the oldest Python binding that we take has no name for it."""

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


@dataclass(frozen=True, slots=True)
class GpuEvent:
    """`gpu` is the UUID of the physical GPU, None when the driver did not say. `xid` None: something else happened, as
    another MIG layout, that a look will show. Instance ids are None for the whole GPU."""

    gpu: str | None
    xid: int | None = None
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
        self,
        open_nvml: OpenNvml,
        on_event: Callable[[GpuEvent], None],
        on_coverage: Callable[[Coverage], None],
        *,
        wait_s: float = _WAIT_S,
        retry_s: Sequence[float] = _RETRY_S,
        again_s: float = _AGAIN_S,
    ) -> None:
        self._wait_s = wait_s
        self._retry_s = retry_s
        self._again_s = again_s
        self._open_nvml = open_nvml
        self._on_event = on_event
        self._on_coverage = on_coverage
        self._renew = threading.Event()
        self._stop = threading.Event()
        self._gate = threading.Condition()
        self._pauses = 0
        self._open = False
        self._failures = 0
        """Sessions that broke since a wait succeeded."""
        self._lost: frozenset[str] = frozenset()
        """GPUs that make every wait fail, by UUID; forgotten when there are other GPUs."""
        self._lanes = Lanes(turn_s=0.0)
        """Of all sessions: a GPU whose calls hang is asked by one thread, and no more."""
        self._sessions: list[_Session] = []
        """The one that is open, and those that are over while a call about a GPU hangs that may use what they have."""

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The watcher has no session open inside: the kernel does not let go of a GPU that a process has open.

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

    @property
    def is_open(self) -> bool:
        """Whether a session is open, which a pause could not end."""
        return self._open

    def renew(self) -> None:
        """Begin a new session soon: the GPUs are others, or the driver is."""
        self._renew.set()

    async def run(self) -> None:
        """Listen until cancelled. The thread ends by itself within a moment; a hung driver blocks no caller."""
        listening = in_own_thread("nvml-events", partial(self._listen, asyncio.get_running_loop()))
        try:
            await asyncio.wrap_future(listening)
        finally:
            self._stop.set()

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stop.is_set():
            self._give_back()
            if not self._may_open():
                continue
            coverage = Coverage()
            try:
                with self._opened() as session:
                    coverage = session.coverage
                    if not coverage.monitored or not self._failures:
                        self._tell(loop, self._on_coverage, coverage)
                    if coverage.monitored:
                        self._hear(loop, session)
                if not coverage.monitored:
                    self._rest(session.again_at(self._again_s))
            except NodeNotReady as error:
                if self._stop.is_set():
                    return  # the listener is gone
                self._failed(loop, error, coverage.monitored if self._failures else frozenset())

    def _failed(self, loop: asyncio.AbstractEventLoop, error: NodeNotReady, deaf: frozenset[str]) -> None:
        """Wait before the next session. `deaf` are GPUs of which nothing was heard in several sessions."""
        # Which GPU it was, NVML does not say: a look finds out.
        self._tell(loop, self._on_event, GpuEvent(None))
        if deaf:
            self._tell(
                loop, self._on_coverage, Coverage(unmonitored=tuple((text, error.message) for text in sorted(deaf)))
            )
        delay = self._retry_s[min(self._failures, len(self._retry_s) - 1)]
        if self._failures == 0:
            _log.info("events of the GPUs cannot be received now", error=str(error), retry_s=delay)
        self._failures += 1
        self._stop.wait(delay)

    def _rest(self, again_at: float) -> None:
        """Until there are other GPUs, because none of these has events; or until a call that hung has returned."""
        self._failures = 0
        while (
            not self._stop.is_set()
            and not self._renew.wait(_LOOK_S if self._sessions else self._wait_s)
            and time.monotonic() < again_at
        ):
            if self._sessions:
                self._give_back()
                if not self._sessions:
                    return

    def _may_open(self) -> bool:
        """Whether no pause is wanted; waits a moment for that."""
        with self._gate:
            # A pause waits for what is still to be given back.
            wait_s = _LOOK_S if self._sessions else self._wait_s
            if not self._gate.wait_for(lambda: self._pauses == 0, wait_s):
                return False
            if self._renew.is_set():
                self._lost = frozenset()
            self._renew.clear()
            self._open = True
            return True

    @contextmanager
    def _opened(self) -> Iterator["_Session"]:
        try:
            session = _Session(self._open_nvml, self._lost, self._lanes)
            self._sessions.append(session)
            session.open()
            yield session
        finally:
            self._give_back()

    def _give_back(self) -> None:
        """End what is over, unless a call hangs: that is, until it returns. As long as NVML counts a session of this
        process, it does not find out which GPUs there are now."""
        if not self._lanes.busy:
            while self._sessions:
                self._sessions.pop().close()
        with self._gate:
            self._open = bool(self._sessions)
            self._gate.notify_all()

    def _hear(self, loop: asyncio.AbstractEventLoop, session: "_Session") -> None:
        pace, again_at = _Pace(self._wait_s), session.again_at(self._again_s)
        while not self._stop.is_set() and not self._renew.is_set() and time.monotonic() < again_at:
            try:
                event = session.wait(self._wait_s)
            except HardwareError as error:
                if error.code in GPU_GONE:
                    self._lost |= session.lost()
                raise
            if self._failures:
                self._failures = 0
                self._tell(loop, self._on_coverage, session.coverage)
            if event is not None:
                self._tell(loop, self._on_event, event)
            self._stop.wait(pace.rest_s(time.monotonic(), event))

    def _tell[T](self, loop: asyncio.AbstractEventLoop, listener: Callable[[T], None], value: T) -> None:
        with suppress(RuntimeError):  # the loop is closed, the listener is gone
            loop.call_soon_threadsafe(listener, value)


class _Pace:
    """How long to sleep after a wait, so that waits that return early do not use a core."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._since = time.monotonic()
        self._events = 0

    def rest_s(self, now: float, event: GpuEvent | None) -> float:
        """0 after a wait that lasted as long as it should, and after an event; less so after many."""
        rest_s = max(0.0, self._since + self._wait_s - now)
        self._events += 1
        if event is not None and self._events < _MOST_EVENTS and rest_s:
            return 0.0
        self._since, self._events = now + rest_s, 0
        return rest_s


class _Session:
    """An NVML session with one event set, without the GPUs `lost`. Every failure is a NodeNotReady.

    Each GPU is registered in its lane. While one hangs there, nothing that it may use may be given back.
    """

    def __init__(self, open_nvml: OpenNvml, lost: frozenset[str], lanes: Lanes) -> None:
        self._lanes = lanes
        self._library: Any = open_nvml().library
        self._call: Callable[..., Any] = partial(Calls(self._library).call, "events")
        self._left_out = lost
        self.coverage = Coverage()
        self._failed_since: float | None = None
        """When a GPU could not be registered that may have events."""
        self._set: Any = None
        self._begun = False
        self._registered: dict[int, tuple[str, Any, int]] = {}
        """UUID, handle and event types of each GPU, by the address that its handle is: a lost GPU has no name."""

    def open(self) -> None:
        """Raises HardwareError; it must be closed then, too."""
        self._call(self._library.nvmlInitWithFlags, pynvml.NVML_INIT_FLAG_NO_GPUS)
        self._begun = True
        self._set = self._call(self._library.nvmlEventSetCreate)
        self.coverage = self._register()

    def close(self) -> None:
        """Give back what there is of it. A driver that is gone has nothing to be given back to."""
        if self._set is not None:
            with suppress(HardwareError):
                self._call(self._library.nvmlEventSetFree, self._set)
        if self._begun:
            with suppress(HardwareError):
                self._call(self._library.nvmlShutdown)

    def again_at(self, again_s: float) -> float:
        """When to try again what could not be registered, by the monotonic clock."""
        return inf if self._failed_since is None else self._failed_since + again_s

    def wait(self, wait_s: float) -> GpuEvent | None:
        """The next event; None when there was none for a while."""
        try:
            data = self._call(self._library.nvmlEventSetWait_v2, self._set, int(wait_s * 1000))
        except HardwareError as error:
            if error.code == NvmlCode.TIMEOUT:
                return None
            raise
        return self._event(data)

    def lost(self) -> frozenset[str]:
        """The GPUs that make a wait fail. None of them when it fails for each: then leaving GPUs out does not help."""
        lost = {uuid for uuid, handle, types in self._registered.values() if self._is_lost(handle, types)}
        return frozenset(lost) if len(lost) < len(self._registered) or len(lost) == 1 else frozenset()

    def _is_lost(self, handle: Any, types: int) -> bool:
        """Whether a wait for this GPU alone fails so."""
        alone = self._call(self._library.nvmlEventSetCreate)
        try:
            self._call(self._library.nvmlDeviceRegisterEvents, handle, types, alone)
            self._call(self._library.nvmlEventSetWait_v2, alone, 0)
        except HardwareError as error:
            return error.code in GPU_GONE
        finally:
            self._call(self._library.nvmlEventSetFree, alone)
        return False

    def _event(self, data: Any) -> GpuEvent:
        known = self._registered.get(_address(data.device))
        gpu = None if known is None else known[0]
        if data.eventType == pynvml.nvmlEventTypeXidCriticalError and gpu is not None:
            instances = _instance(data.gpuInstanceId), _instance(data.computeInstanceId)
            return GpuEvent(gpu, int(data.eventData), *instances)
        return GpuEvent(gpu)

    def _register(self) -> Coverage:
        unmonitored: list[tuple[str, str]] = []
        for index in range(self._call(self._library.nvmlDeviceGetCount)):
            try:
                refused = self._lanes.run(f"GPU at index {index}", partial(self._register_one, index), total_s=READ_S)
            except HardwareError:  # Discovery reports it
                self._failed_since = time.monotonic()
                continue
            if refused is not None:
                unmonitored.append(refused)
        monitored = frozenset(uuid for uuid, _, _ in self._registered.values())
        return Coverage(monitored, tuple(sorted(unmonitored)))

    def _register_one(self, index: int) -> tuple[str, str] | None:
        """The UUID of a GPU that is not listened to, and why. Raises HardwareError when it does not say who it is."""
        handle = self._call(self._library.nvmlDeviceGetHandleByIndex, index)
        uuid = self._call(self._library.nvmlDeviceGetUUID, handle)
        try:
            types = self._call(self._library.nvmlDeviceGetSupportedEventTypes, handle) & _WANTED
            if uuid in self._left_out:
                return uuid, "waiting for its events fails, as for those of a lost GPU"
            self._call(self._library.nvmlDeviceRegisterEvents, handle, types, self._set)
        except HardwareError as error:
            if error.code not in NOT_THERE:
                self._failed_since = time.monotonic()
            return uuid, error.message
        self._registered[_address(handle)] = (uuid, handle, types)
        return None


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _instance(number: int) -> int | None:
    return None if number == _WHOLE_GPU else int(number)


@dataclass(frozen=True, slots=True)
class TriedWait:
    """One wait for events, as the watcher does it. `event`: one came, so it ended early. `seconds` None: no GPU has
    events, so there was nothing to wait for."""

    seconds: float | None
    event: bool
    unmonitored: tuple[tuple[str, str], ...]


def try_wait(open_nvml: OpenNvml) -> TriedWait:
    """Wait once for the events of all GPUs, in a session of its own. Blocks for a second. Raises NodeNotReady."""
    lanes = Lanes(turn_s=0.0)
    session = _Session(open_nvml, frozenset(), lanes)
    try:
        session.open()
        if not session.coverage.monitored:
            return TriedWait(None, False, session.coverage.unmonitored)
        begun = time.monotonic()
        event = session.wait(_WAIT_S)
        return TriedWait(time.monotonic() - begun, event is not None, session.coverage.unmonitored)
    finally:
        if not lanes.busy:
            session.close()
