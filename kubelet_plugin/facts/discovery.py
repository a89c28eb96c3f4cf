"""What this node has, now and whenever it changes, for the services of the plugin.

The reporter, prepare and the health stream enter here. `Discovery` runs `kubelet_plugin.facts.hardware` in one thread
beside the event loop. No caller waits for a look without a limit, and no second look is started while one hangs.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import structlog

from dra_driver.api.inventory import Problem
from dra_driver.errors import NodeNotReady
from dra_driver.runtime.threads import settle
from kubelet_plugin.facts.hardware import Hardware, NodeFacts, by_subject

_log = structlog.get_logger(__name__)

OBSERVE_INTERVAL_S = 30.0
"""How old facts may be. One look at eight GPUs takes some tens of milliseconds."""

DIVIDED_INTERVAL_S = 5.0
"""The same while a GPU is in MIG mode: its layout may be changed by hand at any time, and an event may be missed."""

PATIENCE_S = 60.0
"""A driver that needs longer than this for one look is reported as not responding; a cold start takes about 10 s."""


class Discovery:
    """The node's facts for the services of the plugin; lives in one event loop."""

    def __init__(
        self, hardware: Hardware, *, interval_s: float = OBSERVE_INTERVAL_S, patience_s: float = PATIENCE_S
    ) -> None:
        self._hardware = hardware
        self._interval_s = interval_s
        self._patience_s = patience_s
        self._facts: NodeFacts | None = None
        self._running: asyncio.Future[NodeFacts] | None = None
        self._next: asyncio.Future[NodeFacts] | None = None
        self._listeners: list[Callable[[NodeFacts], None]] = []

    @property
    def facts(self) -> NodeFacts:
        """The last facts. Raises NodeNotReady before the first look."""
        if self._facts is None:
            raise NodeNotReady("the hardware has not been read yet", about="driver")
        return self._facts

    def subscribe(self, listener: Callable[[NodeFacts], None]) -> Callable[[], None]:
        """Call `listener` in the event loop whenever the facts differ from the last; returns what ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def run(self) -> None:
        """Look at every interval, for ever; at once if there are no facts yet."""
        while True:
            if self._facts is not None:
                await asyncio.sleep(
                    min(self._interval_s, DIVIDED_INTERVAL_S) if self._facts.divided else self._interval_s
                )
            try:
                await self.observe()
            except NodeNotReady as error:
                _log.warning("the node cannot be read", error=str(error))
                if self._facts is None:
                    await asyncio.sleep(self._interval_s)

    async def observe(self) -> NodeFacts:
        """Facts that are fresh: of a look that began after this call. Callers at the same time share one.

        When NVML does not come back in time, the last facts with a problem about the driver. Raises NodeNotReady when
        the kernel does not tell its boot id.
        """
        look = self._begin()
        try:
            async with asyncio.timeout(self._patience_s):
                return await asyncio.shield(look)
        except TimeoutError:
            # A caller after the hang must not wait behind those that gave up.
            facts = self._not_responding()
            self._publish(facts)
            return facts

    def poke(self) -> None:
        """Look soon, and wait for nothing; called in the event loop."""
        self._begin()

    def _begin(self) -> "asyncio.Future[NodeFacts]":
        if self._running is None:
            self._running = self._start_look()
            return self._running
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        return self._next

    def _start_look(self, result: "asyncio.Future[NodeFacts] | None" = None) -> "asyncio.Future[NodeFacts]":
        loop = asyncio.get_running_loop()
        future = result if result is not None else loop.create_future()

        def look() -> None:
            try:
                outcome: NodeFacts | Exception = self._hardware.look()
            except Exception as error:  # noqa: BLE001 - handed to the waiting caller as it is
                outcome = error
            with suppress(RuntimeError):  # the loop was closed while the driver hung: no caller waits
                loop.call_soon_threadsafe(self._finish, future, outcome)

        # A daemon, unlike the threads of an executor: a hung driver must not keep the process from ending.
        threading.Thread(target=look, name="hardware", daemon=True).start()
        return future

    def _finish(self, future: "asyncio.Future[NodeFacts]", outcome: NodeFacts | Exception) -> None:
        self._running, self._next = self._next, None
        if self._running is not None:
            self._start_look(self._running)
        if isinstance(outcome, NodeFacts):
            self._publish(outcome)
        settle(future, outcome)

    def _publish(self, facts: NodeFacts) -> None:
        before, self._facts = self._facts, facts
        if facts == before:
            return
        _log.info(
            "the node's hardware",
            gpus=[gpu.name for gpu in facts.gpus],
            driver=facts.driver.version if facts.driver is not None else None,
            problems=[f"{problem.subject}: {problem.reason}" for problem in facts.problems],
        )
        for listener in list(self._listeners):
            listener(facts)

    def _not_responding(self) -> NodeFacts:
        problem = Problem(
            subject="driver",
            reason="NotResponding",
            message=f"NVML has not answered for {self._patience_s:g} s; the facts below are the last ones known",
        )
        if self._facts is None:
            return NodeFacts(self._hardware.boot_id(), None, (), (problem,))
        others = tuple(item for item in self._facts.problems if item.subject != "driver")
        return replace(self._facts, problems=tuple(sorted((*others, problem), key=by_subject)))
