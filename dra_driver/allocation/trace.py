"""What happens during a search, as values, and who may listen to it. Pure.

A search tells a `Listener` about every step. The default one does nothing; an explanation keeps what it needs.
"""

from dataclasses import dataclass
from enum import StrEnum

from dra_driver.allocation.requests import Wanted
from dra_driver.allocation.snapshot import Candidate


class Cause(StrEnum):
    """Why a device may not be chosen."""

    IN_USE = "in-use"
    CHOSEN = "chosen"
    """By an earlier request of the same pod."""
    CLASS = "class"
    SELECTOR = "selector"
    NODE = "node"
    CAPACITY = "capacity"
    COUNTERS = "counters"
    TAINT = "taint"
    CONSTRAINT = "constraint"
    GATE = "gate"
    """The scheduler has a feature switched off that the device needs."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """`text` goes on after "3 devices are …" and is the same for devices that are refused for the same reason."""

    cause: Cause
    text: str


class Listener:
    """Told of a search as it goes on; this one does not care."""

    def chose(self, wanted: Wanted, candidate: Candidate) -> None:
        """The device was taken for the request; the search goes on with the next one."""

    def refused(self, wanted: Wanted, candidate: Candidate, refusal: Refusal) -> None:
        """The device may not be chosen beside those that are chosen at this moment."""

    def took_back(self, wanted: Wanted, candidate: Candidate) -> None:
        """No way on was found with this device."""

    def gave_up(self, reason: str) -> None:
        """Without trying further: it was shown that no choice can succeed."""


SILENT = Listener()
