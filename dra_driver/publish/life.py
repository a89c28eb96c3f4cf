"""May slices of this pool be created? Only for a plugin that lives.

kubelet wipes the slices of a node when it starts, and those of one driver 30 s after the driver's last connection went
away. Publishers put them back for a plugin that lives and must not for one that is dead, and a wipe looks the same in
both cases. The sign of life is the registration time in the node's inventory, which the plugin renews whenever kubelet
registers it, and when asked (`dra_driver.api.inventory.confirmation_annotation`). The rule:

1. A complete pool needs no proof: kubelet would have wiped it. From then on its slices may be created and changed.
2. A slice that somebody else deleted ends that, and so do publishers that start and find the pool not complete.
3. Then slices are created on either of two proofs that the plugin lived after the slices were gone:
   a. a registration younger than 15 s that no earlier restoration was based on: a wipe that follows a death comes at
      least 30 s after the last registration, so this loss cannot be one, in whichever order its news and the
      registration's arrive (a starting kubelet may register plugins before it has wiped); clocks may differ by 15 s;
   b. an answer: the publisher wrote the doubtful time into the annotation, guarded by the inventory's
      resourceVersion, and the time has changed since. No clocks are compared, so no skew can fool it.
4. Without a registration nothing is created and nobody is asked: the plugin will register.

A dead plugin answers nothing; it costs one question. A plugin whose clock is wrong costs one question and answers it.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum, auto

FRESH = timedelta(seconds=15)
"""More than news needs to get here, and half of the 30 s that kubelet waits before it wipes: the rest is for clocks."""


class Verdict(Enum):
    CREATE = auto()
    ASK = auto()
    """Nothing proves that the plugin lives: write its registration time into the annotation."""
    WAIT = auto()
    """Not registered, or asked already: the inventory will change, or never."""


@dataclass(frozen=True, slots=True)
class Life:
    """What is known of the plugin behind one pool; times are those of its registrations, as they are written."""

    granted: bool = False
    spent: str | None = None
    """The registration on which slices were created, or with which they were found complete."""
    doubted: str | None = None
    """The registration that was the latest when a question became necessary."""

    def found_complete(self, registration: str | None) -> "Life":
        return self if self.granted else Life(granted=True, spent=registration)

    def lost_slices(self) -> "Life":
        return replace(self, granted=False)

    def judged(self, registration: str | None, asked: str | None, now: datetime) -> "tuple[Life, Verdict]":
        """Whether slices may be created. `asked` is the annotation's value."""
        if self.granted:
            return self, Verdict.CREATE
        if registration is None:
            return self, Verdict.WAIT
        answered = self.doubted is not None and asked == self.doubted and registration != self.doubted
        unspent = registration not in (self.spent, self.doubted)
        if answered or (unspent and _is_fresh(registration, now)):
            return Life(granted=True, spent=registration), Verdict.CREATE
        return replace(self, doubted=registration), Verdict.WAIT if asked == registration else Verdict.ASK


def _is_fresh(registration: str, now: datetime) -> bool:
    try:
        time = datetime.fromisoformat(registration)
    except ValueError:
        return False
    return time.tzinfo is not None and abs(now - time) < FRESH
