"""What is said of devices and nodes: codes, reasons, and sentences whose holders are still open. Values only. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from dra_driver.allocation.failing import Part
from dra_driver.allocation.holders import Holder, listed_holders
from dra_driver.allocation.requests import Wanted
from dra_driver.allocation.snapshot import Candidate
from dra_driver.api.resource import Allocation
from dra_driver.cel.errors import CelError
from dra_driver.errors import DriverError


class Code(StrEnum):
    """What stands in the way. The texts are part of what `-o json` promises."""

    FITS = "fits"
    # of the node, before devices are looked at
    CORDONED = "cordoned"
    NODE_SELECTOR = "node-selector"
    NODE_TAINT = "node-taint"
    RESOURCES = "resources"
    CLAIM_ELSEWHERE = "claim-elsewhere"
    EXTENDED_RESOURCE = "extended-resource"
    # of its devices
    NO_DEVICES = "no-devices"
    POOL = "pool"
    CLASS = "class"
    SELECTOR = "selector"
    GATE = "gate"
    NODE = "node"
    TOO_SMALL = "too-small"
    IN_USE = "in-use"
    COUNTERS = "counters"
    CAPACITY = "capacity"
    TAINT = "taint"
    TOO_FEW = "too-few"
    CONSTRAINT = "constraint"
    COMBINATION = "combination"
    # of the whole attempt
    ERROR = "error"
    NOT_DECIDED = "not-decided"
    """The search reached its limit."""


_NOT_MEANT = (Code.CLASS, Code.SELECTOR, Code.GATE, Code.NODE, Code.TOO_SMALL)
"""Devices that are not what is asked for, whoever has them; the nearest miss comes last."""


@dataclass(frozen=True)
class DeviceVerdict:
    """What one device is to one request. `parts` are of the selector that is false, written by `selector`."""

    wanted: Wanted
    candidate: Candidate
    code: Code
    text: str
    holders: tuple[Holder, ...] = ()
    parts: tuple[Part, ...] = ()
    selector: int | None = None
    """Index of the false selector among those of class and request."""
    scarce: str | None = None
    """What is left of a capacity."""
    error: CelError | None = None
    """Of a selector that fails on the device."""

    @property
    def is_meant(self) -> bool:
        return self.code not in _NOT_MEANT


HELD = "\0"
"""Where holders are named in the shape of a sentence."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """A reason whose holders are still open: nodes with the same `shape` form a group, whoever is in the way there.

    `held` are the holders to name at each HELD, in order.
    """

    shape: str
    held: tuple[tuple[Holder, ...], ...] = ()

    @property
    def text(self) -> str:
        first, *rest = self.shape.split(HELD)
        return first + "".join(listed_holders(holders) + text for holders, text in zip(self.held, rest, strict=True))

    def beside(self, others: Iterable["Sentence"]) -> "Sentence":
        """With the holders of sentences of the same shape."""
        lists = zip(*(one.held for one in (self, *others)), strict=True)
        return Sentence(self.shape, tuple(tuple(holder for one in place for holder in one) for place in lists))


def joined(separator: str, sentences: Iterable[Sentence]) -> Sentence:
    parts = list(sentences)
    return Sentence(separator.join(one.shape for one in parts), tuple(held for one in parts for held in one.held))


def after(lead: str, sentence: Sentence) -> Sentence:
    return Sentence(lead + sentence.shape, sentence.held)


@dataclass(frozen=True)
class NodeVerdict:
    """One node. `said` is the first reason, without the node's name; `devices` are those of the request it is about."""

    node: str
    code: Code
    said: Sentence
    claim: str | None = None
    request: str | None = None
    devices: tuple[DeviceVerdict, ...] = ()
    allocations: tuple[Allocation, ...] = ()
    error: DriverError | None = None
    """What ended the attempt."""

    @property
    def text(self) -> str:
        return self.said.text

    @property
    def fits(self) -> bool:
        return self.code is Code.FITS


_ORDER = tuple(Code)


def nearness(code: Code) -> int:
    return _ORDER.index(code)
