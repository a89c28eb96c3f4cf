"""Runs a service: tasks that must not end, and signals that stop it gracefully."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, NoReturn

import structlog

from dra_driver.errors import DriverError, InvalidInput

_log = structlog.get_logger(__name__)


class Stopped(Exception):
    """A signal stopped the service."""


async def signal_to_stop() -> None:
    """Waits for SIGTERM or SIGINT."""
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    await asked.wait()


def cancel_on_sigterm() -> None:
    """From now on SIGTERM, as of `timeout`, cancels this task, so that it can take back what it did, as SIGINT does by
    itself. Only the main thread gets signals."""
    task = asyncio.current_task()
    if task is not None and threading.current_thread() is threading.main_thread():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


async def until_signal(then: Callable[[], None] = lambda: None) -> None:
    """Waits for SIGTERM or SIGINT, calls `then`, and raises Stopped, which ends the task group that it runs in.

    After this call, signals cancel only that group.
    """
    await signal_to_stop()
    then()
    raise Stopped


def exit_after(seconds: float) -> None:
    """Ends the process after that time, with status 0, even if threads hang in a library and cannot be stopped. Only
    for services that repair unfinished work at the next start.
    """

    def end() -> None:
        _log.error("the service stops although some of its work hangs", after_s=seconds)
        os._exit(0)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


async def until(event: asyncio.Event, at_most_s: float | None) -> bool:
    """Waits until the event is set, or for that time; None: for ever. Whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            return await event.wait()
    return False


async def end_tasks(*tasks: asyncio.Future[Any]) -> None:
    """Cancels them, and returns when all have ended; how they end does not matter."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Begun[T]:
    """Work that ends although those who wait for it may be canceled. It runs at once, until it first waits; `among` has
    it until it ends.
    """

    def __init__(self, work: Coroutine[Any, Any, T], among: "set[Begun[Any]] | None" = None) -> None:
        self._waiting: list[asyncio.Future[None]] = []
        self._among = set() if among is None else among
        self._among.add(self)
        self.task = asyncio.eager_task_factory(asyncio.get_running_loop(), self._run(work))

    async def ended(self) -> None:
        """Returns when the work has ended, however it did."""
        if not self.task.done():
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await work
        finally:
            self._among.discard(self)
            # Callbacks of the task would come a turn of the event loop later; it has ended when these waiters continue.
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_result(None)


def to_next(interval_s: float) -> float:
    """Seconds to the next multiple of `interval_s` on the event loop's clock, so that all periodic work wakes an idle
    process at the same moments. Skips a moment that is very near, because a timer may fire slightly early."""
    left_s = interval_s - asyncio.get_running_loop().time() % interval_s
    return left_s if left_s > interval_s / 10 else left_s + interval_s


async def forever(name: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> NoReturn:
    """Runs a part of the service that must never end by itself; if it ends, that is a defect and its name is reported.
    The coroutine is created here, so that a service that fails early leaves no coroutine that was never awaited.
    """
    await work()
    raise RuntimeError(f"{name} ended by itself")


def run_service(service: Coroutine[Any, Any, None]) -> int:
    """Runs the service. The exit status is 0 after a signal, 2 if its input is invalid (a policy, a kubeconfig), 1 if a
    part failed with another DriverError. Each DriverError is logged as one line; any other exception is a defect and
    keeps its stack trace.
    """
    status = 0
    try:
        asyncio.run(_stoppable(service))
    except* Stopped:
        pass
    except* DriverError as group:
        for error in _leaves(group):
            _log.error("the service stops", reason=str(error))
        status = 2 if group.subgroup(InvalidInput) else 1
    return status


async def _stoppable(service: Coroutine[Any, Any, None]) -> None:
    """Makes signals stop the process even before the service waits for one: the kernel drops signals without a handler
    for the first process of a container, so it would run until it is killed."""
    task, asked = asyncio.current_task(), asyncio.Event()
    assert task is not None

    def stop() -> None:
        asked.set()
        task.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        await service
    except asyncio.CancelledError:
        if not asked.is_set():
            raise
        raise Stopped from None


def _leaves(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for error in group.exceptions:
        leaves += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return leaves
