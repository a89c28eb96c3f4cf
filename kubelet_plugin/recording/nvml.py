"""NVML with a memory: `RecordingNvml` goes where module `pynvml` goes, and writes down every call and its answer.

It stands at the border of `kubelet_plugin.hardware.calls`, so whatever discovery asks, now or in a later release, is
recorded without being named here. `CallLog` also knows the call that is under way: one that never returns is recorded
as hung by whoever waits for it.
"""

import ctypes
import json
import threading
import time
from collections.abc import Callable
from typing import Any

from kubelet_plugin.record.format import Call
from kubelet_plugin.record.values import encoded, is_handle, pointed, shape

_TIMEOUT = 10
"""NVML's code."""


class CallLog:
    """Every call, equal ones together, in the order of the first. For two threads: who calls, and who watches."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._calls: dict[str, Call] = {}
        self._open: tuple[Call, float] | None = None
        self._closed = False
        self._lock = threading.Lock()

    def begin(self, call: Call) -> None:
        with self._lock:
            self._open = call, self._clock()

    def end(self, call: Call) -> None:
        """The call that is open came back; `call` has its answer."""
        with self._lock:
            if self._closed or self._open is None:
                return
            call.ms = self._milliseconds(self._open[1])
            self._open = None
            key = json.dumps(call.model_dump(exclude={"ms", "times"}), sort_keys=True)
            known = self._calls.setdefault(key, call)
            if known is not call:
                known.times += 1
                known.ms = max(known.ms, call.ms)

    def open_for_s(self) -> float:
        """How long the call under way has been; 0 when there is none."""
        with self._lock:
            return self._clock() - self._open[1] if self._open is not None else 0.0

    def close(self) -> tuple[Call, ...]:
        """All of them, with the one that is under way as hung. What comes later is not recorded."""
        with self._lock:
            self._closed = True
            calls = tuple(self._calls.values())
            if self._open is None:
                return calls
            call, started = self._open
            return (*calls, call.model_copy(update={"hung": True, "ms": self._milliseconds(started)}))

    @property
    def closed(self) -> bool:
        return self._closed

    def _milliseconds(self, started: float) -> float:
        return round(1000 * (self._clock() - started), 3)


class RecordingNvml:
    """`library` is shaped like module `pynvml`. Constants and structures are the library's own."""

    def __init__(self, library: Any, log: CallLog) -> None:
        self._library = library
        self._log = log
        self._names: dict[tuple[str, int], str] = {}
        self._counts: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._library, name)
        if not name.startswith("nvml") or not callable(attribute) or isinstance(attribute, type):
            return attribute

        def recorded(*args: Any) -> Any:
            return self._call(name, attribute, args)

        return recorded

    def _call(self, name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        if self._log.closed:
            raise self._library.NVMLError(_TIMEOUT)  # the recording ended while a call hung
        call = Call(function=name, args=[shape(arg, self._named) for arg in args])
        self._log.begin(call)
        try:
            result = function(*args)
        except self._library.NVMLError as error:
            call.code = int(getattr(error, "value", 999))
            self._end(call, args)
            raise
        except Exception as error:
            call.problem = f"{type(error).__name__}: {error}"
            self._end(call, args)
            raise
        if name.startswith("nvmlDeviceGetHandleByIndex"):
            self._names[_identity(result)] = f"gpu{args[0]}"
        call.result = encoded(result, self._named)
        self._end(call, args)
        return result

    def _end(self, call: Call, args: tuple[Any, ...]) -> None:
        call.out = {
            place: encoded(arg, self._named)
            for place, arg in enumerate(args)
            if isinstance(call.args[place], dict) and not is_handle(pointed(arg))
        }
        self._log.end(call)

    def _named(self, handle: Any) -> str:
        identity = _identity(handle)
        if identity not in self._names:
            kind = identity[0].removeprefix("struct_c_nvml").removesuffix("_t")
            number = self._counts[kind] = self._counts.get(kind, 0) + 1
            self._names[identity] = f"{kind}{number}"
        return self._names[identity]


def _identity(handle: Any) -> tuple[str, int]:
    return type(handle)._type_.__name__, ctypes.cast(handle, ctypes.c_void_p).value or 0
