"""Starts, monitors and restarts the webhook's process. Only that process (`worker`) reads, parses and reviews requests,
with its own memory limit. Therefore requests cannot delay the controller's event loop, on which its lease depends, or
use its memory. The process reports the data for probes and metrics twice a second. The controller restarts it when it
ends, and kills it if it stops reporting. The process ends with the controller, even if that is killed, because its
input is then closed.
"""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import NoReturn

import structlog
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from dra_driver.kube.watch import Backoff

_log = structlog.get_logger(__name__)

_SILENT_S = 60.0
"""Reports come twice a second; a busy node may delay them."""
_LONGEST_REPORT = 4 * 1024 * 1024
_END_S = 5.0
"""Time for the process to end, in addition to the time for which it still answers."""


class WebhookProcess(Collector):
    """One process at a time. It gets the controller's arguments."""

    def __init__(self, arguments: Sequence[str], *, drain_s: float) -> None:
        self._command = (sys.executable, "-m", "controller.webhook.worker", *arguments)
        self._drain_s = drain_s
        self._problem: str | None = "the webhook's process has not reported yet"
        self._families: tuple[Metric, ...] = ()
        self._process: Process | None = None
        self._retry = Backoff(first_s=0.2, longest_s=30.0)

    def problem(self) -> str | None:
        """Why this replica cannot answer reviews, or None; for the readiness probe."""
        return self._problem

    def collect(self) -> Iterable[Metric]:
        """Metrics from its last report."""
        return self._families

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serves during the block, and `drain_s` longer."""
        running = asyncio.create_task(self._run())
        try:
            yield
        finally:
            # Do not restart the process while it ends.
            running.cancel()
            await asyncio.wait([running])
            await self._end()

    async def _run(self) -> NoReturn:
        while True:
            try:
                reason = await self._one_life()
            except OSError as error:
                reason = f"it cannot be started: {error}"
            pause_s = self._retry.next_s()
            self._problem = f"the webhook's process has ended: {reason}"
            _log.error("restarting the webhook's process", reason=reason, pause_s=round(pause_s, 1))
            await asyncio.sleep(pause_s)

    async def _one_life(self) -> str:
        """Returns why the process ended. Raises OSError if it cannot be started."""
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, limit=_LONGEST_REPORT
        )
        reason = await self._follow(process)
        with suppress(ProcessLookupError):
            process.kill()
        return f"{reason} (status {await process.wait()})"

    async def _follow(self, process: Process) -> str:
        """Reads its reports; returns why they ended."""
        assert process.stdout is not None
        while True:
            try:
                async with asyncio.timeout(_SILENT_S):
                    line = await process.stdout.readline()
                if not line:
                    return "it closed its output"
                self._take(json.loads(line))
            except TimeoutError:
                return f"it has reported nothing for {_SILENT_S:.0f} s"
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                return f"its report is invalid: {type(error).__name__}: {str(error)[:200]}"

    def _take(self, report: dict[str, str | None]) -> None:
        problem, families = report["problem"], tuple(text_string_to_metric_families(report["metrics"] or ""))
        self._problem, self._families = problem, families
        if self._problem is None:
            self._retry.reset()

    async def _end(self) -> None:
        process = self._process
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(self._drain_s + _END_S):
                # Read its last reports, so that it does not block on writing them.
                await process.communicate()
        except TimeoutError:
            _log.warning("the webhook's process does not end; killing it")
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
