"""Programs of a cluster that is kept running are started again when they end, as kubelet does with containers.

At once the first time; one that ends again soon, after a pause that doubles up to a minute. `dractl cluster` looks
every second; demos and tests don't, for there a program that ends by itself is what they are to find.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Protocol

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_STEADY_S = 60.0
"""Who ran for as long is started again at once when it ends."""


class Program(Protocol):
    """What is needed of `dra_driver.simulation.cluster.Process`."""

    name: str
    log: Path

    @property
    def ended(self) -> int | None:
        """Exit status, negative for a signal; None while it runs, or before its start."""


@dataclass(slots=True)
class _Life:
    started_at: float
    pause_s: float = 0.0
    """Before its next start."""
    again_at: float | None = None
    """None while it runs."""


class Restarts[P: Program]:
    """Of programs that run now. `told` gets a sentence each time that one has ended; `clock` gives seconds."""

    def __init__(
        self,
        programs: Iterable[P],
        start: Callable[[P], Awaitable[None]],
        told: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._start = start
        self._told = told
        self._clock = clock
        self._lives = [(one, _Life(clock())) for one in programs]

    async def look(self) -> None:
        """Start again what has ended, when it is its time."""
        for program, life in self._lives:
            if program.ended is None:
                continue
            if life.again_at is None:
                self._note_end(program, life)
            if life.again_at is not None and self._clock() >= life.again_at:
                await self._start(program)
                life.started_at, life.again_at = self._clock(), None
                life.pause_s = min(max(2 * life.pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)

    def _note_end(self, program: P, life: _Life) -> None:
        now = self._clock()
        if now - life.started_at >= _STEADY_S:
            life.pause_s = 0.0
        life.again_at = now + life.pause_s
        when = f"in {life.pause_s:.0f} s" if life.pause_s else "now"
        self._told(f"{program.name} {_how(program.ended)}; it is started again {when}. Its log: {program.log}")


def _how(status: int | None) -> str:
    if status is not None and status < 0:
        return f"was ended by {Signals(-status).name}"
    return f"ended with status {status}"
