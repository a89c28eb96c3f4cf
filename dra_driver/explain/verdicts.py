"""Verdicts on devices and nodes: codes, reasons, and the claims that hold the devices. Values only. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from dra_driver.allocation.requests import Wanted
from dra_driver.allocation.snapshot import Candidate, CounterId, Pool, PoolId
from dra_driver.allocation.world import World, claim_key
from dra_driver.api.core import Key
from dra_driver.api.resource import ResourceClaim
from dra_driver.cel.errors import CelError
from dra_driver.errors import DriverError
from dra_driver.explain.failing import ExpressionPart
from dra_driver.names import DeviceId


@dataclass(frozen=True, slots=True)
class ClaimHolder:
    """A claim that has devices, with the pods that it is reserved for; `gone` are those of them that do not exist."""

    claim: Key
    pods: tuple[str, ...]
    gone: tuple[str, ...]

    @property
    def is_forgotten(self) -> bool:
        """Whether no pod that uses it is left."""
        return len(self.gone) == len(self.pods)

    def __str__(self) -> str:
        return f"{self.claim[0]}/{self.claim[1]}"

    @property
    def described(self) -> str:
        """With who uses it: `team-a/train-7-gpu (pod train-7)`."""
        if not self.pods:
            return f"{self} (used by no pod)"
        alive = [pod for pod in self.pods if pod not in self.gone]
        if not alive:
            return f"{self} (pod {self.pods[0]}, which no longer exists)"
        return f"{self} ({_listed(alive, 'pod')})"


def holder_of(claim: ResourceClaim, world: World) -> ClaimHolder:
    users = [consumer for consumer in claim.status.reserved_for if consumer.resource == "pods"]
    namespace = claim_key(claim)[0]
    return ClaimHolder(
        claim_key(claim),
        tuple(user.name for user in users),
        tuple(user.name for user in users if _is_gone(world, namespace, user.name, user.uid)),
    )


def _is_gone(world: World, namespace: str, name: str, uid: str) -> bool:
    """False where pods could not be read: what is not known is not claimed."""
    if not world.live or any(unread.kind == "Pod" for unread in world.unread):
        return False
    pod = world.pods.get((namespace, name))
    return pod is None or bool(uid and pod.uid and uid != pod.uid)


class Holders:
    """Of all devices of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._by_counter: dict[PoolId, Mapping[CounterId, tuple[ClaimHolder, ...]]] = {}

    @cached_property
    def _by_device(self) -> Mapping[DeviceId, tuple[ClaimHolder, ...]]:
        by_device: dict[DeviceId, list[ClaimHolder]] = defaultdict(list)
        for claim in self._world.claims.values():
            holder = holder_of(claim, self._world)
            for result in claim.results:
                if not result.admin_access and holder not in by_device[result.id]:
                    by_device[result.id].append(holder)
        return {device: tuple(sorted(holders, key=str)) for device, holders in by_device.items()}

    def of(self, device: DeviceId) -> tuple[ClaimHolder, ...]:
        return self._by_device.get(device, ())

    def of_counters(self, candidate: Candidate, pool: Pool) -> tuple[ClaimHolder, ...]:
        """Claims with devices that draw on the same counters as this one, which they may have made scarce."""
        if pool.id not in self._by_counter:
            self._by_counter[pool.id] = self._drawing(pool)
        known = self._by_counter[pool.id]
        claims = dict.fromkeys(holder for id_, _ in candidate.consumes for holder in known.get(id_, ()))
        return tuple(sorted(claims, key=str))

    def _drawing(self, pool: Pool) -> Mapping[CounterId, tuple[ClaimHolder, ...]]:
        drawing: dict[CounterId, tuple[ClaimHolder, ...]] = {}
        for name, draws in pool.draws.items():
            if holders := self.of(DeviceId(pool.driver, pool.name, name)):
                for id_, _ in draws:
                    drawing[id_] = (*drawing.get(id_, ()), *holders)
        return drawing


_MOST_NAMED = 3


def listed_holders(holders: Iterable[ClaimHolder]) -> str:
    """`team-a/train-7 (pod train-7) and 3 others`."""
    results = list(dict.fromkeys(holders))
    if not results:
        return "an unknown claim"
    named = [holder.described for holder in results[:_MOST_NAMED]]
    more = len(results) - len(named)
    return _listed([*named, *([f"{more} other{'s' if more > 1 else ''}"] if more else [])])


def _listed(parts: Iterable[str], word: str = "") -> str:
    texts = list(parts)
    lead = f"{word}{'s' if len(texts) > 1 else ''} " if word else ""
    return lead + (texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}")


class ReasonCode(StrEnum):
    """What keeps a device from being used. The texts are part of what `-o json` promises."""

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


_NOT_MEANT = (ReasonCode.CLASS, ReasonCode.SELECTOR, ReasonCode.GATE, ReasonCode.NODE, ReasonCode.TOO_SMALL)
"""Devices that are not what is asked for, in use or not; the nearest miss comes last."""


@dataclass(frozen=True)
class DeviceVerdict:
    """What one device is to one request. `parts` are of the selector that is false, written by `selector`."""

    wanted: Wanted
    candidate: Candidate
    code: ReasonCode
    text: str
    holders: tuple[ClaimHolder, ...] = ()
    parts: tuple[ExpressionPart, ...] = ()
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
    """A reason whose holders are still open: nodes with the same `shape` form a group.

    `held` are the holders to name at each HELD, in order.
    """

    shape: str
    held: tuple[tuple[ClaimHolder, ...], ...] = ()

    @property
    def text(self) -> str:
        first, *rest = self.shape.split(HELD)
        return first + "".join(listed_holders(holders) + text for holders, text in zip(self.held, rest, strict=True))

    def beside(self, others: Iterable["Sentence"]) -> "Sentence":
        """With the holders of sentences of the same shape."""
        lists = zip(*(sentence.held for sentence in (self, *others)), strict=True)
        return Sentence(self.shape, tuple(tuple(holder for item in place for holder in item) for place in lists))


def joined(separator: str, sentences: Iterable[Sentence]) -> Sentence:
    parts = list(sentences)
    return Sentence(separator.join(part.shape for part in parts), tuple(held for part in parts for held in part.held))


def after(lead: str, sentence: Sentence) -> Sentence:
    return Sentence(lead + sentence.shape, sentence.held)


@dataclass(frozen=True)
class NodeVerdict:
    """One node. `sentence` is the first reason, without the node name; `devices` are those of its request, or those of
    a node that is like this one."""

    node: str
    code: ReasonCode
    sentence: Sentence
    claim: str | None = None
    request: str | None = None
    devices: tuple[DeviceVerdict, ...] = ()
    error: DriverError | None = None
    """What ended the attempt."""

    @property
    def text(self) -> str:
        return self.sentence.text

    @property
    def fits(self) -> bool:
        return self.code is ReasonCode.FITS


_ORDER = tuple(ReasonCode)


def nearness(code: ReasonCode) -> int:
    return _ORDER.index(code)
