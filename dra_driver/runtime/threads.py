"""A thread for short blocking work of an event loop."""

import asyncio
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

type _Queue = SimpleQueue[Callable[[], None] | None]


class SerialThread:
    """Calls functions one after another, in a thread of its own that begins with the first call, and ends with `close`
    or with this object.

    For work of a fraction of a millisecond, of which a pool's locks and futures would be most. The thread does not keep
    the process from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: _Queue = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def call(self, work: Callable[[], None]) -> None:
        """`work` must not raise. Raises RuntimeError after `close`."""
        if self._is_closed:
            raise RuntimeError(f"the thread {self._name} is closed")
        if self._thread is None:
            self._thread = threading.Thread(target=_call_all, args=(self._calls,), name=self._name, daemon=True)
            self._thread.start()
            weakref.finalize(self, self._calls.put, None).atexit = False
        self._calls.put(work)

    def run[T](self, work: Callable[[], T]) -> asyncio.Future[T]:
        """What `work` returns or raises. Raises RuntimeError after `close`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def call() -> None:
            result: Any = None
            failure: Exception | None = None
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - for the caller, as it is
                failure = error
            with suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(_settle, future, result, failure)

        self.call(call)
        return future

    def close(self) -> None:
        """Waits for the calls that were made."""
        self._is_closed = True
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()


def _call_all(calls: _Queue) -> None:
    for work in iter(calls.get, None):
        work()


def _settle(future: asyncio.Future[Any], result: Any, failure: Exception | None) -> None:
    if future.cancelled():
        return
    if failure is None:
        future.set_result(result)
    else:
        future.set_exception(failure)
        future.exception()  # Its caller may be canceled before it looks.
