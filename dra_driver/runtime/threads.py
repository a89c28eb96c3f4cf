"""Threads for blocking work: one for short work of an event loop, and threads of their own for work that may hang."""

import asyncio
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue

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
            try:
                outcome: T | Exception = work()
            except Exception as error:  # noqa: BLE001 - for the caller, as it is
                outcome = error
            with suppress(RuntimeError):  # The loop is closed.
                loop.call_soon_threadsafe(settle, future, outcome)

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


def settle[T](future: asyncio.Future[T], outcome: T | Exception) -> None:
    """Completes the future with the result or the error. Does nothing if it is done, as after it was canceled."""
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
        future.exception()  # Its caller may be canceled before it looks.
    else:
        future.set_result(outcome)


def in_own_thread[T](name: str, work: Callable[[], T]) -> Future[T]:
    """Starts `work`, which may hang forever, in a daemon thread, which does not keep the process from ending. The
    future gets the result, or the error of any type."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # To cancel a wait for it changes nothing.

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - for the caller, as it is
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
