"""Which devices of a node could serve a request, whatever else is chosen: the part of the search that is done once.

The order of the questions is upstream's, because a selector that fails on a device ends the whole attempt, and a device
that somebody holds is not even asked. Pure.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property

from dra_driver.allocation.nodes import NodeView, untolerated
from dra_driver.allocation.requests import Wanted
from dra_driver.allocation.snapshot import Candidate, Pool, Snapshot
from dra_driver.allocation.trace import Cause, Refusal
from dra_driver.allocation.usage import Ledger
from dra_driver.errors import InvalidInput, NodeNotReady


class Site:
    """One node as a search sees it: its pools, and what is left there before anything is chosen.

    The devices of usable pools are numbered through in the order in which they are tried.
    """

    def __init__(self, node: NodeView, snapshot: Snapshot) -> None:
        self.node = node
        self.snapshot = snapshot
        self.behaviour = snapshot.catalog.behaviour
        self.pools: Sequence[Pool] = snapshot.catalog.pools(node)
        self.usable = [pool for pool in self.pools if pool.problem is None]
        self.candidates = [candidate for pool in self.usable for candidate in pool.candidates]

    def ledger(self) -> Ledger:
        return Ledger(self.usable, self.snapshot.usage, self.behaviour)

    @cached_property
    def places(self) -> dict[Candidate, int]:
        """The number of each device."""
        return {candidate: place for place, candidate in enumerate(self.candidates)}


class Prospects:
    """What one request finds on a site."""

    def __init__(self, wanted: Wanted, site: Site, ledger: Ledger) -> None:
        """`ledger` is the site's, untouched. Raises what `every` raises when the request is for all devices."""
        self.wanted = wanted
        self._site = site
        self._ledger = ledger
        self.every: tuple[Candidate, ...] | None = tuple(self._every()) if wanted.wants_all else None
        self.count = wanted.count if self.every is None else len(self.every)
        self.failing = {
            candidate: self._error(candidate)
            for pool in site.usable
            for candidate in pool.select(wanted.expressions).failing
            if wanted.admin_access or not ledger.in_use(candidate)
        }
        """Devices that end the whole attempt when they are looked at."""
        self.eligible = tuple(self._eligible())
        """Numbers of the devices that can serve the request as long as no other is chosen, ascending."""

    def _every(self) -> Iterator[Candidate]:
        """Every device that is meant. Raises NodeNotReady for a pool that may have more, InvalidInput for a selector
        that fails on one."""
        for pool in self._site.pools:
            if pool.problem is not None:
                message = f"{pool.problem}, and {self.wanted} asks for all devices"
                raise NodeNotReady(message, about=f"pool {pool}")
            selection = pool.select(self.wanted.expressions)
            for candidate in selection.failing:
                raise self._error(candidate)
            for candidate in selection.matching:
                if self._unsuitable(candidate) is None:
                    yield candidate

    def _eligible(self) -> Iterator[int]:
        places = self._site.places
        meant = set(self.every) if self.every is not None else None
        for pool in self._site.usable:
            held = () if self.wanted.admin_access else self._ledger.usage_of(pool.id).whole
            for candidate in pool.select(self.wanted.expressions).matching:
                if candidate.id.device in held or (meant is not None and candidate not in meant):
                    continue
                if self._unsuitable(candidate) is None and self._unavailable(candidate) is None:
                    yield places[candidate]

    @cached_property
    def eligible_set(self) -> frozenset[int]:
        return frozenset(self.eligible)

    @cached_property
    def _tried(self) -> tuple[int, ...]:
        """Devices that are looked at one after the other: those that can serve, and those that end the attempt."""
        if not self.failing:
            return self.eligible
        return tuple(sorted({*self.eligible, *(self._site.places[one] for one in self.failing)}))

    def places_from(self, start: int) -> tuple[int, ...]:
        """Numbers of the devices to look at from `start` on."""
        return self._tried[bisect_left(self._tried, start) :]

    @property
    def is_enough(self) -> bool:
        """Whether there are as many devices as are wanted; not yet whether they go together."""
        return 0 < self.count <= len(self.eligible)

    def refusal(self, candidate: Candidate) -> Refusal | None:
        """Why the device cannot serve the request. Raises InvalidInput when a selector fails on it."""
        if self._is_held(candidate):
            return Refusal(Cause.IN_USE, "in use")
        if candidate in self.failing:
            raise self.failing[candidate]
        return self._unselected(candidate) or self._unsuitable(candidate) or self._unavailable(candidate)

    def _is_held(self, candidate: Candidate) -> bool:
        return not self.wanted.admin_access and self._ledger.in_use(candidate)

    def _unselected(self, candidate: Candidate) -> Refusal | None:
        wanted = self.wanted
        pool = next(one for one in self._site.usable if one.id == candidate.pool)
        if candidate in pool.select(wanted.expressions).matching:
            return None
        own = len(wanted.device_class.spec.selectors)
        if candidate in pool.select(wanted.expressions[:own]).matching:
            return Refusal(Cause.SELECTOR, "not selected by the request")
        return Refusal(Cause.CLASS, f"not of class {wanted.device_class.metadata.name}")

    def _unsuitable(self, candidate: Candidate) -> Refusal | None:
        if not candidate.is_for(self._site.node):
            return Refusal(Cause.NODE, "for other nodes")
        if candidate.device.binding_conditions and not self._site.behaviour.binding_conditions:
            return Refusal(Cause.GATE, "attached only after the decision, which this scheduler does not do")
        return self._ledger.short_of_capacity(self.wanted, candidate)

    def _unavailable(self, candidate: Candidate) -> Refusal | None:
        behaviour = self._site.behaviour
        if candidate.device.consumes_counters and not behaviour.partitionable:
            return Refusal(Cause.GATE, "a partition, which this scheduler does not know")
        if (short := self._ledger.short_of_counters(candidate)) is not None:
            return short
        taints = self._site.snapshot.taints(candidate) if behaviour.taints else ()
        taint = untolerated(taints, self.wanted.tolerations) if taints else None
        return Refusal(Cause.TAINT, f"tainted {taint}") if taint else None

    def _error(self, candidate: Candidate) -> InvalidInput:
        pool = next(one for one in self._site.pools if one.id == candidate.pool)
        failure = pool.select(self.wanted.expressions).failing[candidate]
        about, index = self.wanted.writer_of(failure.index)
        message = f"selector {index} on device {candidate.id}: {failure.error}\n{failure.error.excerpt}"
        found = InvalidInput(message, about=about)
        found.__cause__ = failure.error
        return found
