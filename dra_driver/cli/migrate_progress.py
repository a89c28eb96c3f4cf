"""How far a long run is, on standard error; and its end, when the time for it is up."""

import time
from collections.abc import Callable

from dra_driver.terminal import messages

_SILENT_S = 2.0
"""A run that is done sooner needs no words."""
_EVERY_S = 5.0


class MigrationProgress:
    """Is asked between one workload and the next, and says now and then how many are done."""

    def __init__(self, what: str, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`what` is done, for people: `workloads tried`."""
        self._what = what
        self._clock = clock
        self._begun = clock()
        self._end = self._begun + limit_s
        self._next = self._begun + _SILENT_S
        self._over = False

    def __call__(self, done: int, of: int) -> bool:
        now = self._clock()
        if now >= self._end:
            if self._over:
                return False
            self._over = True
            messages.print(
                f"{done} of {of} {self._what}; the time limit was reached, the others were not tried", markup=False
            )
            return False
        if now >= self._next:
            messages.print(f"{done} of {of} {self._what} …", markup=False)
            self._next = now + _EVERY_S
        return True
