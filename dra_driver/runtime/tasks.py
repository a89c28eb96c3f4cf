"""Running a service: tasks that must not end, and the signals that end it in order."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

import structlog

from dra_driver.errors import DriverError, InvalidInput

_log = structlog.get_logger(__name__)


class Stopped(Exception):
    """A signal asked the service to end."""


async def until_signal(then: Callable[[], None] = lambda: None) -> None:
    """Waits for SIGTERM or SIGINT, calls `then`, and raises Stopped, which ends the task group that it runs in.

    From here on a signal cancels nothing that is not in that group.
    """
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked.set)
    await asked.wait()
    then()
    raise Stopped


def exit_after(seconds: float) -> None:
    """End the process then, with status 0, whatever it does: a thread that hangs in a library cannot be ended.

    Only a service that heals at its next start what it left unfinished may do so.
    """

    def end() -> None:
        _log.error("the service ends although some of its work hangs", after_s=seconds)
        os._exit(0)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


async def forever(name: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> NoReturn:
    """Run a part of the service that never ends by itself; ending is a defect, and named.

    The part is begun here, so that a service that fails before its parts had a turn leaves none that nobody awaits.
    """
    await work()
    raise RuntimeError(f"{name} ended by itself")


def run_service(service: Coroutine[Any, Any, None]) -> int:
    """Run to the end. The exit status is 0 after a signal, 2 when what the service was given makes no sense
    (a policy, a kubeconfig), 1 when a part failed with another error of ours.

    Errors of ours are logged as a line each; anything else is a defect and keeps its stack trace.
    """
    status = 0
    try:
        asyncio.run(_stoppable(service))
    except* Stopped:
        pass
    except* DriverError as group:
        for error in _leaves(group):
            _log.error("the service ends", reason=str(error))
        status = 2 if group.subgroup(InvalidInput) else 1
    return status


async def _stoppable(service: Coroutine[Any, Any, None]) -> None:
    """Ends by a signal also before the service waits for one: the first process of a container does not even hear of
    those that nobody handles, so it would go on until it is killed."""
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
