"""Watches the MPS daemons of prepared claims, restarts a dead one if that is safe, and reports its death and restart.

`main` runs `MpsWatch` beside the services; the health reports of GPUs include its `conditions`. `remedy_for` decides
what to do about a daemon, from the processes and answers that were seen. When the daemon and its servers are dead, so
are its clients: a restart loses nothing, and restarted containers find the new daemon in the same folders. While a
server is left, its clients still compute, and nothing is changed. The more often a daemon dies, the longer its restart
waits.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum

import structlog

from dra_driver.api.inventory import HealthCondition
from dra_driver.api.meta import wire_time
from dra_driver.errors import DriverError
from dra_driver.runtime.tasks import to_next
from kubelet_plugin.effects.mps import MpsDaemons, Sight, left_alone
from kubelet_plugin.hardware.host_programs import MarkedProcess
from kubelet_plugin.prepare.holds import HoldRecord, HoldState, MpsDaemon, Records

_log = structlog.get_logger(__name__)

INTERVAL_S = 5.0
_ASKED_EVERY = 6
"""Its process is looked at each time, which costs nothing; whether it answers, every so many times."""

_DELAYS_S = (0.0, 1.0, 5.0, 15.0, 60.0)
"""Between two starts of a daemon, by how often it was started lately."""
_LATELY_S = 600.0
_TOLD_S = 60.0
"""How long a death is reported after the daemon is back, because readers of `conditions` poll."""


class MpsRemedy(Enum):
    KEEP = "it is well"
    LEAVE = "it does not answer, but something of it still runs"
    START = "it is dead, and so are its clients"
    WAIT = "it is dead, and was restarted too often"


@dataclass(frozen=True, slots=True)
class History:
    """What is remembered of a daemon. Times are of the watch's clock."""

    starts: tuple[float, ...] = ()
    """Times of its recent restarts."""
    silent: bool = False
    """It did not answer the last time either."""
    trouble: str = ""
    """The message to report; empty when the daemon is healthy."""
    since: str = ""
    """When that message was reported first."""
    critical: bool = False
    until: float = 0.0
    """Until when a trouble that is over is still reported."""

    def is_reported(self, now: float) -> bool:
        return bool(self.trouble) and (self.critical or now < self.until)


def remedy_for(sight: Sight, history: History, now: float) -> MpsRemedy:
    """What to do about a daemon that is seen like this."""
    if sight.answers:
        return MpsRemedy.KEEP
    if sight.processes:
        return MpsRemedy.LEAVE
    lately = [start for start in history.starts if now - start < _LATELY_S]
    delay = _DELAYS_S[min(len(lately), len(_DELAYS_S) - 1)]
    return MpsRemedy.START if not lately or now - lately[-1] >= delay else MpsRemedy.WAIT


class MpsWatch:
    """`again` makes an existing hold again, in its turn, and records the result; it does nothing when the hold no
    longer exists. `records` and `boot_id` are those of the journal and the present boot."""

    def __init__(
        self,
        daemons: MpsDaemons,
        records: Callable[[], Records],
        boot_id: Callable[[], str],
        again: Callable[[MpsDaemon], Awaitable[None]],
        *,
        interval_s: float = INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._daemons = daemons
        self._records = records
        self._boot_id = boot_id
        self._again = again
        self._interval_s = interval_s
        self._clock = clock
        self._histories: dict[MpsDaemon, History] = {}
        self._looks = 0

    def conditions(self) -> Mapping[str, Sequence[HealthCondition]]:
        """What is wrong now with the daemons of GPUs, or of their MIG devices, by GPU UUID.

        Warning: a daemon died with its clients, and is back. Critical: no new program can compute through it.
        """
        now, records = self._clock(), self._records()
        conditions: dict[str, list[HealthCondition]] = {}
        for hold, history in self._histories.items():
            if history.is_reported(now):
                condition = HealthCondition(
                    type="MpsDaemon",
                    severity="Critical" if history.critical else "Warning",
                    message=history.trouble,
                    since=history.since,
                    instance=_instance(hold, records),
                )
                for gpu in hold.gpus:
                    conditions.setdefault(gpu.uuid, []).append(condition)
        return conditions

    async def run(self) -> None:
        """Look at every interval, for ever."""
        while True:
            try:
                await self.look()
            except DriverError as error:
                _log.warning("MPS daemons cannot be checked", error=str(error))
            await asyncio.sleep(to_next(self._interval_s))

    async def look(self) -> None:
        """Look at each existing daemon, and carry out the remedy for it."""
        made = self._made()
        self._histories = {hold: self._histories.get(hold, History()) for hold in made}
        asked = self._looks % _ASKED_EVERY == 0
        self._looks += 1
        seen = await asyncio.to_thread(self._daemons.processes) if asked and made else ()
        for hold, record in made.items():
            # Its history says that something was wrong: then it is asked until it is well.
            try:
                if asked or self._suspect(hold) or not await asyncio.to_thread(self._daemons.stands, record.made):
                    await self._look_at(hold, seen)
            except DriverError as error:
                # Continue with the other daemons.
                _log.warning("an MPS daemon cannot be checked", daemon=hold.key, error=str(error))

    def _made(self) -> Mapping[MpsDaemon, HoldRecord]:
        return {
            hold: record
            for hold, record in self._records().items()
            if isinstance(hold, MpsDaemon) and record.state is HoldState.MADE and record.boot_id == self._boot_id()
        }

    def _suspect(self, hold: MpsDaemon) -> bool:
        history = self._histories[hold]
        return history.silent or history.critical

    async def _look_at(self, hold: MpsDaemon, seen: Sequence[MarkedProcess]) -> None:
        sight = await asyncio.to_thread(self._daemons.look, hold, seen)
        if hold not in self._made():
            return  # released meanwhile: that is why it is not there
        history, now = self._histories[hold], self._clock()
        match remedy_for(sight, history, now):
            case MpsRemedy.KEEP:
                if history.critical:
                    again = "did not answer for a while, and does again"
                    self._note(hold, again, silent=False, critical=False, until=now + _TOLD_S)
                else:
                    self._histories[hold] = replace(history, silent=False)
            case MpsRemedy.LEAVE if not history.silent:
                self._histories[hold] = replace(history, silent=True)  # once may be a busy machine
            case MpsRemedy.LEAVE:
                self._tell(hold, left_alone(sight.processes))
            case MpsRemedy.START:
                await self._start(hold)
            case MpsRemedy.WAIT:
                self._tell(hold, "died with its clients; it was restarted too often, and the next restart waits")

    async def _start(self, hold: MpsDaemon) -> None:
        now = self._clock()
        starts = tuple(start for start in self._histories[hold].starts if now - start < _LATELY_S)
        self._histories[hold] = replace(self._histories[hold], starts=(*starts, now))
        try:
            await self._again(hold)
        except DriverError as error:
            self._tell(hold, f"died with its clients, and cannot be restarted: {error.message}")
            return
        if hold not in self._made():
            return
        message = "died with its clients; it was restarted, so that their containers can restart"
        _log.warning("an MPS daemon died and was restarted", daemon=hold.key)
        self._note(hold, message, silent=False, critical=False, until=now + _TOLD_S)

    def _tell(self, hold: MpsDaemon, message: str) -> None:
        history = self._histories[hold]
        if not history.critical:
            _log.error("an MPS daemon failed", daemon=hold.key, reason=message)
        self._note(hold, message, silent=True, critical=True)

    def _note(self, hold: MpsDaemon, message: str, *, silent: bool, critical: bool, until: float = 0.0) -> None:
        history, trouble = self._histories[hold], f"MPS daemon {hold.key} {message}"
        is_known = history.is_reported(self._clock()) and history.trouble == trouble
        since = history.since if is_known else wire_time(datetime.now(UTC))
        self._histories[hold] = History(history.starts, silent, trouble, since, critical, until)


def _instance(hold: MpsDaemon, records: Records) -> str | None:
    if hold.mig is None or isinstance(hold.mig, str):
        return hold.mig
    record = records.get(hold.mig)
    return record.made.get("uuid") if record is not None else None
