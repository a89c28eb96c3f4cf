"""Which devices of a node could serve a request without regard to the others: the part of the search that is done once.

The order of the questions is upstream's, because a selector that fails on a device ends the whole attempt, and a device
that a claim holds is not even asked. Pure.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

from dra_driver.allocation.nodes import NodeView, untolerated
from dra_driver.allocation.requests import Alternatives, Cause, Refusal, Wanted
from dra_driver.allocation.selection import Failure, never
from dra_driver.allocation.snapshot import Candidate, Pool, Snapshot
from dra_driver.allocation.usage import Ledger
from dra_driver.errors import InvalidInput, NodeNotReady


class Site:
    """One node as a search sees it: its pools, and what is left there before anything is chosen.

    The devices of usable pools are numbered through in the order in which they are tried. When it is `enough`, no more
    selectors are evaluated: what needs one raises OutOfTime.
    """

    def __init__(self, node: NodeView, snapshot: Snapshot, enough: Callable[[], bool] = never) -> None:
        self.enough = enough
        self.node = node
        self.snapshot = snapshot
        self.behavior = snapshot.catalog.behavior
        self.pools: Sequence[Pool] = snapshot.catalog.pools(node)
        self.usable = [pool for pool in self.pools if pool.problem is None]

    def ledger(self) -> Ledger:
        return Ledger(self.usable, self.snapshot.usage, self.behavior)

    @cached_property
    def untouched(self) -> Ledger:
        """One from which nothing is taken."""
        return self.ledger()

    @cached_property
    def candidates(self) -> Sequence[Candidate]:
        return [candidate for pool in self.usable for candidate in pool.candidates]


type Place = tuple[int, Candidate]
"""A device and its number."""


class Prospects:
    """What one request finds on a site, as far as it is asked: most searches end at the first devices."""

    def __init__(self, wanted: Wanted, site: Site) -> None:
        """Raises what `every` raises when the request is for all devices."""
        self.wanted = wanted
        self._site = site
        self._ledger = site.untouched
        self.every: tuple[Candidate, ...] | None = tuple(self._every()) if wanted.wants_all else None
        self.count = wanted.count if self.every is None else len(self.every)
        self._failing: dict[Candidate, InvalidInput] = {}
        self._tried: list[Place] = []
        self._numbers: list[int] = []
        """Of `_tried`."""
        self._rest = self._looked_at()

    def _every(self) -> Iterator[Candidate]:
        """Every device that is meant. Raises NodeNotReady for a pool that may have more, InvalidInput for a selector
        that fails on one."""
        for pool in self._site.pools:
            if pool.problem is not None:
                message = f"{pool.problem}, and {self.wanted} asks for all devices"
                raise NodeNotReady(message, about=f"pool {pool}")
            for _, candidate, failure in pool.selected(self.wanted.expressions, self._site.enough):
                if failure is not None:
                    raise self._error(candidate, failure)
                if self._unsuitable(candidate) is None:
                    yield candidate

    def _looked_at(self) -> Iterator[Place]:
        """Devices that can serve the request as long as no other is chosen, and those that end the attempt."""
        first = 0
        for pool in self._site.usable:
            held = () if self.wanted.admin_access else self._ledger.usage_of(pool.id).whole
            if not (held and pool.is_used_up(held)):
                for index, candidate, failure in pool.selected(self.wanted.expressions, self._site.enough):
                    if candidate.id.device in held:
                        continue
                    if failure is not None:
                        self._failing[candidate] = self._error(candidate, failure)
                    elif self._unsuitable(candidate) is not None or self._unavailable(candidate) is not None:
                        continue
                    yield first + index, candidate
            first += pool.size

    def places_from(self, start: int) -> Iterator[Place]:
        """The devices to look at from number `start` on, which is 0 or follows one of them."""
        index = bisect_left(self._numbers, start)
        while index < len(self._tried) or self._goes_on():
            yield self._tried[index]
            index += 1

    def number_from(self, start: int) -> int:
        """How many devices `places_from` has."""
        self._look_at_all()
        return len(self._numbers) - bisect_left(self._numbers, start)

    def _goes_on(self) -> bool:
        place = next(self._rest, None)
        if place is None:
            return False
        self._tried.append(place)
        self._numbers.append(place[0])
        return True

    def _look_at_all(self) -> None:
        while self._goes_on():
            pass

    @property
    def failing(self) -> Mapping[Candidate, InvalidInput]:
        """Devices that end the whole attempt when they are looked at."""
        self._look_at_all()
        return self._failing

    def error(self, candidate: Candidate) -> InvalidInput | None:
        """Why a device ends the attempt that is looked at."""
        return self._failing.get(candidate)

    @cached_property
    def eligible(self) -> tuple[Candidate, ...]:
        """Devices that can serve the request as long as no other is chosen, in order."""
        failing = self.failing
        return tuple(candidate for _, candidate in self._tried if candidate not in failing)

    @cached_property
    def eligible_set(self) -> frozenset[Candidate]:
        return frozenset(self.eligible)

    @property
    def is_enough(self) -> bool:
        """Whether there are as many devices as are wanted; not yet whether they go together."""
        return 0 < self.count <= len(self.eligible)

    def refusal(self, candidate: Candidate) -> Refusal | None:
        """Why the device cannot serve the request. Raises InvalidInput when a selector fails on it."""
        if not self.wanted.admin_access and self._ledger.in_use(candidate):
            return Refusal(Cause.IN_USE, "in use")
        if candidate in self.failing:
            raise self.failing[candidate]
        return self._unselected(candidate) or self._unsuitable(candidate) or self._unavailable(candidate)

    def _unselected(self, candidate: Candidate) -> Refusal | None:
        wanted = self.wanted
        pool = next(item for item in self._site.usable if item.id == candidate.pool)
        if candidate in pool.select(wanted.expressions, self._site.enough).matching:
            return None
        own = len(wanted.device_class.spec.selectors)
        if candidate in pool.select(wanted.expressions[:own], self._site.enough).matching:
            return Refusal(Cause.SELECTOR, "not selected by the request")
        return Refusal(Cause.CLASS, f"not of class {wanted.device_class.metadata.name}")

    def _unsuitable(self, candidate: Candidate) -> Refusal | None:
        if not candidate.is_for(self._site.node):
            return Refusal(Cause.NODE, "for other nodes")
        if candidate.device.binding_conditions and not self._site.behavior.binding_conditions:
            return Refusal(Cause.GATE, "with binding conditions, which this scheduler does not support")
        return self._ledger.short_of_capacity(self.wanted, candidate)

    def _unavailable(self, candidate: Candidate) -> Refusal | None:
        behavior = self._site.behavior
        if candidate.device.consumes_counters and not behavior.partitionable:
            return Refusal(Cause.GATE, "a partition, which this scheduler does not support")
        if (short := self._ledger.short_of_counters(candidate)) is not None:
            return short
        taints = self._site.snapshot.taints(candidate) if behavior.taints else ()
        taint = untolerated(taints, self.wanted.tolerations) if taints else None
        return Refusal(Cause.TAINT, f"tainted {taint}") if taint else None

    def _error(self, candidate: Candidate, failure: Failure) -> InvalidInput:
        about, index = self.wanted.writer_of(failure.index)
        message = f"selector {index} on device {candidate.id}: {failure.error}\n{failure.error.excerpt}"
        invalid_input = InvalidInput(message, about=about)
        invalid_input.__cause__ = failure.error
        return invalid_input


class Reasons:
    """Collects during the search; `sentence` is asked for afterwards, if at all."""

    def __init__(self, site: Site, prospects: Mapping[Wanted, Prospects]) -> None:
        self._site = site
        self._prospects = prospects
        self._furthest = (-1, -1)
        self._notes: dict[Wanted, dict[Candidate, Refusal]] = {}
        self._shown: Refusal | None = None

    def reached(self, claim: int, request: int, wanted: Wanted) -> dict[Candidate, Refusal] | None:
        """Where to note refusals for this request; None when the search got further than that."""
        if (claim, request) < self._furthest:
            return None
        if (claim, request) > self._furthest:
            self._furthest = (claim, request)
            self._notes.clear()
        return self._notes.setdefault(wanted, {})

    def note(self, claim: int, request: int, wanted: Wanted, candidate: Candidate, refusal: Refusal) -> None:
        notes = self.reached(claim, request, wanted)
        if notes is not None:
            # The first refusal is the one that does not depend on what else was tried.
            notes.setdefault(candidate, refusal)

    def hopeless(self, alternatives: Alternatives) -> None:
        """No device was tried: this request finds too few, even if the others get none."""
        self._notes = {wanted: {} for wanted in alternatives}

    def impossible(self, why: Refusal) -> None:
        """No solution exists, by a sentence of its own."""
        self._shown = why

    def sentence(self) -> str:
        problems = [f"pool {pool} {pool.problem}" for pool in self._site.pools if pool.problem is not None]
        usable = len(self._site.candidates)
        if usable == 0:
            return "; ".join(problems) or "no devices are published for it"
        if self._shown is not None:
            return "; ".join([self._shown.text, *problems])
        return "; ".join([*(self._refused(wanted, notes) for wanted, notes in self._notes.items()), *problems])

    def causes(self) -> frozenset[Cause]:
        """Why devices were refused that `sentence` counts."""
        if self._shown is not None:
            return frozenset([self._shown.cause])
        refusals = (self._all_refusals(self._prospects[wanted], notes) for wanted, notes in self._notes.items())
        return frozenset(refusal.cause for each in refusals for refusal in each)

    def _refused(self, wanted: Wanted, notes: Mapping[Candidate, Refusal]) -> str:
        prospects, usable = self._prospects[wanted], len(self._site.candidates)
        if prospects.every == ():
            return f"{wanted} needs all devices of class {wanted.device_class.metadata.name}, and none matches"
        number = "all devices" if wanted.wants_all else "1 device" if wanted.count == 1 else f"{wanted.count} devices"
        counted = Counter(refusal.text for refusal in self._all_refusals(prospects, notes))
        if not counted:
            return f"{wanted} needs {number}; the node has {usable}"
        most_first = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
        reasons = ", ".join(f"{count} {reason}" for reason, count in most_first)
        return f"{wanted} needs {number}; of {usable} on the node: {reasons}"

    def _all_refusals(self, prospects: Prospects, notes: Mapping[Candidate, Refusal]) -> list[Refusal]:
        """One per device: that of the request alone, else the one met in the search."""
        refusals: list[Refusal] = []
        for candidate in self._site.candidates:
            noted = notes.get(candidate)
            own = None if candidate in prospects.failing else prospects.refusal(candidate)
            refusals += [refusal for refusal in (own or noted,) if refusal is not None]
        return refusals
