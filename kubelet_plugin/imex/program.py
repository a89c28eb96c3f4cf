"""Keeps one program running: starts it, starts it again when it ends, and ends it with the supervisor."""

import asyncio
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Never

import structlog

from dra_driver.kube.watch import Backoff

_log = structlog.get_logger(__name__)

_STEADY_S = 60.0
"""A program that ran so long is started again at once when it ends."""
_STOP_S = 10.0
"""For an orderly end; kubelet kills the pod after 30 s."""
NOTICED_S = 7.0
"""kubelet asks every 5 s whether the pod is ready, and what ended by itself is to be known even when it is back sooner:
then the domain's status says so, and Events do to the pods whose programs it served."""
_YOUNG_S = 10.0
"""So long after its start a program may not have looked names up yet, or may be about to."""


class Program:
    """`run` it, then say `restart` for the first start, too. What it prints goes where the supervisor's log goes.
    `noticed_s` is how long an end that nobody asked for is a problem at least."""

    def __init__(self, command: Sequence[str], backoff: Backoff | None = None, *, noticed_s: float = NOTICED_S) -> None:
        self._problem = "has not been started"
        self._problem_until_s = 0.0
        """By the event loop's clock; while it does not run, it is a problem anyway."""
        self._noticed_s = noticed_s
        self._command = tuple(command)
        self._backoff = backoff or Backoff(first_s=0.5, longest_s=30.0)
        self._wanted = asyncio.Event()
        self._again = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._started_s = 0.0

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        return self._process.pid if self._process is not None else None

    @property
    def problem(self) -> str | None:
        """Why it does not run, or did not a moment ago; None while all is well."""
        if self._process is None:
            return self._problem
        if asyncio.get_running_loop().time() < self._problem_until_s:
            return f"{self._problem}, and is only just back"
        return None

    def restart(self) -> None:
        """It starts anew, with the files as they are now."""
        self._wanted.set()
        self._again.set()

    def rest(self) -> None:
        """It is not needed: it is ended, and stays so until `restart`."""
        self._wanted.clear()
        self._again.set()

    def look_up(self) -> None:
        """Addresses have changed: it looks its names up again. One that does not run will do so anyway.

        A program that was only just started may miss the signal, so it is told again.
        """
        process = self._process
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGUSR1)
        loop = asyncio.get_running_loop()
        young_s = self._started_s + _YOUNG_S - loop.time()
        if young_s > 0:
            loop.call_later(young_s, self._look_up_again, process)

    def _look_up_again(self, process: asyncio.subprocess.Process) -> None:
        if process is self._process:
            self.look_up()

    async def run(self) -> Never:
        """Until cancelled; then the program is ended first."""
        try:
            while True:
                await self._wanted.wait()
                self._again.clear()
                await self._run_once()
        finally:
            await self._stop()

    async def _run_once(self) -> None:
        """From one start to the time for the next."""
        loop = asyncio.get_running_loop()
        try:
            self._process = await asyncio.create_subprocess_exec(*self._command, stdin=asyncio.subprocess.DEVNULL)
        except OSError as error:
            await self._pause(f"cannot be started: {error.strerror}")
            return
        self._started_s = loop.time()
        _log.info("started", program=self._command[0], pid=self._process.pid)
        ended, asked = asyncio.ensure_future(self._process.wait()), asyncio.ensure_future(self._again.wait())
        try:
            await asyncio.wait((ended, asked), return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            ended.cancel()
        status = self._process.returncode
        if status is None:
            await self._stop()
            return
        self._process = None
        if loop.time() - self._started_s >= _STEADY_S:
            self._backoff.reset()
        await self._pause(f"ended by signal {-status}" if status < 0 else f"ended with status {status}")

    async def _pause(self, problem: str) -> None:
        self._problem = problem
        self._problem_until_s = asyncio.get_running_loop().time() + self._noticed_s
        wait_s = self._backoff.next_s()
        _log.error("does not run", program=self._command[0], reason=problem, retry_s=round(wait_s, 1))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._again.wait(), wait_s)

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        self._problem = "was stopped"
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            _log.warning("did not end when it was asked to, and is killed", program=self._command[0])
            process.kill()
            await process.wait()
