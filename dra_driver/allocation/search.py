"""Which devices a pod's claims get on a node: the scheduler's decision as a pure function.

`allocate` searches like kube-scheduler's structured allocator: claims, requests and devices in their order, depth
first with backtracking, the first complete solution wins. Of a request only combinations of devices are tried, across
requests everything. A search that must turn back asks `shortcuts` whether to continue; the answer stays the same.

Source: kubernetes/dynamic-resource-allocation, structured allocator ("incubating"), Kubernetes 1.36.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from dra_driver.allocation.constraints import DistinctAttribute, constraints_of
from dra_driver.allocation.nodes import NodeView
from dra_driver.allocation.prospects import Place, Prospects, Reasons, Site
from dra_driver.allocation.requests import MAX_RESULTS, Cause, Refusal, Wanted, check_size
from dra_driver.allocation.result import Chosen, ShareIds, allocation_of, derived_share_id
from dra_driver.allocation.selection import OutOfTime, never
from dra_driver.allocation.shortcuts import Room, SearchProblem, Symmetry, Twins, impossible
from dra_driver.allocation.snapshot import Candidate, Snapshot
from dra_driver.api.resource import Allocation, ResourceClaim
from dra_driver.errors import InvalidInput

MOST_STEPS = 500_000
"""Devices tried in one search: about what kube-scheduler tries in the ten seconds that it takes for one node."""
_STEPS_BETWEEN = 1_000


@dataclass(frozen=True, slots=True)
class Limit:
    """How long one search may last. `steps` are devices tried, so that the same input ends in the same way everywhere;
    `enough` is asked now and then, and ends the search when it is true."""

    steps: int = MOST_STEPS
    enough: Callable[[], bool] = never


@dataclass(frozen=True, slots=True)
class Allocated:
    """One allocation per claim, in the order of the claims."""

    allocations: tuple[Allocation, ...]


class NotAllocatable:
    """The claims do not fit on this node now. Most nodes of a cluster are never asked why."""

    def __init__(self, reasons: Callable[[], Reasons]) -> None:
        self._ask = reasons

    @cached_property
    def _reasons(self) -> Reasons:
        return self._ask()

    @cached_property
    def reason(self) -> str:
        """A sentence without the node's name."""
        try:
            return self._reasons.sentence()
        except OutOfTime as error:
            return str(error)

    @cached_property
    def causes(self) -> frozenset[Cause]:
        """What `reason` is about."""
        return self._reasons.causes()

    def __repr__(self) -> str:
        return f"NotAllocatable({self.reason!r})"


class Undecided(NotAllocatable):
    """The search reached its limit: whether the claims fit is not known."""

    def __init__(self, site: Site, reason: str) -> None:
        super().__init__(lambda: Reasons(site, {}))
        self.reason = reason


def allocate(
    claims: Sequence[ResourceClaim],
    node: NodeView,
    snapshot: Snapshot,
    *,
    share_ids: ShareIds = derived_share_id,
    limit: Limit = Limit(),
) -> Allocated | NotAllocatable:
    """Devices for all of `claims` on `node`, or why there are none. `share_ids` names shares of devices.

    The answer is `Undecided` where the search reaches its limit.

    Some things keep the pod from every node, because kube-scheduler gives up on the whole attempt then. Raises
    InvalidInput: a class that does not exist, a selector that does not compile or fails on a device, a constraint
    that one of "all" devices violates, a claim of more than 32 devices. Raises NodeNotReady: a request for all
    devices while a pool is being updated.
    """
    site = Site(node, snapshot, limit.enough)
    try:
        search = _Search(claims, site, limit)
        succeeds = search.succeeds()
    except (_LimitReached, OutOfTime) as reached:
        return Undecided(site, str(reached))
    if not succeeds:
        return NotAllocatable(search.all_reasons)
    pairs = zip(claims, search.chosen, strict=True)
    return Allocated(tuple(allocation_of(claim, chosen, search.site, share_ids) for claim, chosen in pairs))


_STEPS_BEFORE_SHORTCUTS = 24
"""Shortcuts cost as much as some steps, and most searches that turn back end after a few more."""
_ADVICE = "kube-scheduler may not decide in time either: make the claim simpler"


class _TooMany(Exception):
    """This way leads to more devices in a claim than the API has room for."""


class _Impossible(Exception):
    """No way leads anywhere."""


class _LimitReached(Exception):
    """The search took too long."""


_CHOSEN_FOR_CLAIM = Refusal(Cause.CHOSEN, "already chosen for this claim")
_CHOSEN_FOR_POD = Refusal(Cause.CHOSEN, "already chosen for this pod")


class _Search:
    """One attempt on one node. State is what was chosen so far; every step can be taken back."""

    def __init__(self, claims: Sequence[ResourceClaim], site: Site, limit: Limit) -> None:
        self.site = site
        self._limit = limit
        self._steps = 0
        self.chosen: list[list[Chosen]] = [[] for _ in claims]
        self._requests = site.snapshot.requests(claims)
        self._constraints = [constraints_of(claim, site.behavior) for claim in claims]
        self._ledger = site.ledger()
        self._prospects = {
            wanted: Prospects(wanted, site)
            for claim in self._requests
            for alternatives in claim
            for wanted in alternatives
        }
        self._holders: dict[Candidate, list[int]] = {}
        """Claims that devices were chosen for, when they are not shared."""
        self._bounded = False
        """Whether bounds were looked at."""
        self._symmetry: Symmetry | None = None
        self._rooms: dict[Wanted, Room] = {}
        """Of requests without alternatives, the last one first; made together with `_symmetry`."""
        self._later: dict[tuple[int, int], list[Room]] = {}
        """By claim and request, those of requests after it."""
        self._dead_ends: set[Hashable] = set()
        """States from which the search found no solution."""
        self.reasons = Reasons(site, self._prospects)

    @cached_property
    def _repeats(self) -> bool:
        """Whether a request may get one device twice. The shortcuts know no such thing."""
        return self.site.behavior.repeats and any(map(self._ledger.shares, self.site.candidates))

    @cached_property
    def _any_order(self) -> bool:
        """Whether trying the devices of a request in every order can make a difference."""
        if not self.site.behavior.any_order:
            return False
        return self._repeats or any(isinstance(item, DistinctAttribute) for each in self._constraints for item in each)

    def _may_fail_hard(self) -> bool:
        """Whether a device that is looked at may end the attempt. Then every step must be the one upstream takes."""
        prospects = self._prospects.values()
        all_devices = any(prospect.every is not None for prospect in prospects)
        return (all_devices and any(self._constraints)) or any(prospect.failing for prospect in prospects)

    def succeeds(self) -> bool:
        """Whether there is a solution; it is `chosen` then."""
        for requests in self._requests:
            check_size(requests, lambda wanted: self._prospects[wanted].count)
        try:
            return self._claim(0)
        except (_TooMany, _Impossible):
            return False

    def all_reasons(self) -> Reasons:
        """Those of a search that found nothing, with what bounds say if it ended before it looked at them."""
        if not self._bounded and self._may_cut():
            self._is_possible()
        return self.reasons

    # -- the search

    def _claim(self, claim: int) -> bool:
        if claim == len(self._requests):
            return True
        return self._request(claim, 0)

    def _request(self, claim: int, request: int) -> bool:
        if request == len(self._requests[claim]):
            try:
                return self._claim(claim + 1)
            except _TooMany:
                return False
        alternatives = self._requests[claim][request]
        if len(alternatives) == 1:
            return self._devices(claim, request, alternatives[0], 0, 0)
        exceeded = 0
        for wanted in alternatives:
            try:
                if self._devices(claim, request, wanted, 0, 0):
                    return True
            except _TooMany:
                exceeded += 1
        if exceeded == len(alternatives):
            raise _TooMany
        return False

    def _devices(self, claim: int, request: int, wanted: Wanted, taken: int, start: int) -> bool:
        """The devices of one request from the `taken`-th on, which has at least the number `start`."""
        self.reasons.reached(claim, request, wanted)
        prospects = self._prospects[wanted]
        if prospects.count == 0:
            return False
        if taken == prospects.count:
            settled = self._settle(claim, taken)
            try:
                return self._request(claim, request + 1)
            finally:
                self._unsettle(settled)
        if len(self.chosen[claim]) + prospects.count - taken > MAX_RESULTS:
            raise _TooMany
        state = self._state(claim, request, wanted, taken, start)
        if state is not None and state in self._dead_ends:
            return False
        if self._goes_on(claim, request, wanted, taken, start):
            return True
        # What failed before there was anything to tell states by is found out again.
        if state is not None:
            self._dead_ends.add(state)
        return False

    def _goes_on(self, claim: int, request: int, wanted: Wanted, taken: int, start: int) -> bool:
        """Whether some device for the next place leads to a solution. Raises _Impossible."""
        prospects, failed = self._prospects[wanted], set[Twins]()
        # An alternative that asks for all devices continues as the first one with some schedulers.
        is_cut = wanted.wants_all and self.site.behavior.later_all_is_cut
        onward = self._requests[claim][request][0] if is_cut else wanted
        for place, candidate in self._tries(prospects, taken, start):
            if failed and self._symmetry is not None and self._symmetry.twins(candidate) in failed:
                continue
            if not self._try(claim, request, wanted, candidate):
                continue
            try:
                next_start = 0 if self._any_order or prospects.every is not None else place + 1
                # Each later request must still find enough devices for itself.
                leaves_room = all(room.left >= room.needed for room in self._later.get((claim, request), ()))
                if leaves_room and self._devices(claim, request, onward, taken + 1, next_start):
                    return True
            except _TooMany:
                self._undo(claim, wanted)
                raise
            self._undo(claim, wanted)
            if self._symmetry is not None:
                failed.add(self._symmetry.twins(candidate))
        if self._steps >= _STEPS_BEFORE_SHORTCUTS and self._symmetry is None and self._may_cut():
            self._bounded = True
            if not self._is_possible():
                raise _Impossible
            self._begin_symmetry(wanted)
        return False

    def _tries(self, prospects: Prospects, taken: int, start: int) -> Iterable[Place]:
        """Devices for the next place."""
        if prospects.every is not None:
            # All are needed, so the order does not matter and no other one can take this place.
            return ((0, prospects.every[taken]),)
        if self._symmetry is not None:
            needed, room = prospects.count - taken, self._rooms.get(prospects.wanted)
            if prospects.number_from(start) < needed or (room is not None and room.left < needed):
                return ()
        return prospects.places_from(start)

    # -- one device

    def _try(self, claim: int, request: int, wanted: Wanted, candidate: Candidate) -> bool:
        """Choose the device if it may be chosen; otherwise note why not. Raises _LimitReached."""
        self._count_step()
        refusal = self._refusal(claim, wanted, candidate) or self._violated(claim, wanted, candidate)
        if refusal is not None:
            self.reasons.note(claim, request, wanted, candidate, refusal)
            return False
        self._ledger.take(wanted, candidate)
        if not self._ledger.shares(candidate):
            self._holders.setdefault(candidate, []).append(claim)
        if self._symmetry is not None:
            self._symmetry.take(candidate, claim, self._ledger.share_of(wanted, candidate))
            for room in self._rooms.values():
                room.update(candidate, -1)
        self.chosen[claim].append(Chosen(wanted, candidate))
        return True

    def _count_step(self) -> None:
        self._steps += 1
        if self._steps > self._limit.steps:
            raise _LimitReached(f"not decided: the search was ended after {self._limit.steps} steps; {_ADVICE}")
        if self._steps % _STEPS_BETWEEN == 0 and self._limit.enough():
            raise _LimitReached(
                f"not decided: the search ran out of time after {self._steps} steps; {_ADVICE}, or raise dractl's"
                " --timeout"
            )

    def _undo(self, claim: int, wanted: Wanted) -> None:
        candidate = self.chosen[claim].pop().candidate
        self._ledger.give_back(candidate)
        if not self._ledger.shares(candidate):
            self._holders[candidate].remove(claim)
        if self._symmetry is not None:
            self._symmetry.give_back()
            for room in self._rooms.values():
                room.update(candidate, 1)
        for constraint in self._constraints[claim]:
            constraint.remove(wanted.name)

    def _refusal(self, claim: int, wanted: Wanted, candidate: Candidate) -> Refusal | None:
        """Raises InvalidInput when a selector fails on the device."""
        holders = self._holders.get(candidate)
        if holders:
            if not wanted.admin_access:
                return _CHOSEN_FOR_POD
            if claim in holders:
                return _CHOSEN_FOR_CLAIM
        prospects = self._prospects[wanted]
        if (error := prospects.error(candidate)) is not None:
            raise error
        if prospects.every is not None and candidate not in prospects.eligible_set:
            return prospects.refusal(candidate)
        if candidate.consumes and (short := self._ledger.short_of_counters(candidate)) is not None:
            return short
        short = self._ledger.short_of_capacity(wanted, candidate) if candidate.shareable else None
        if short is not None and wanted.wants_all and self._violated(claim, wanted, candidate) is None:
            # Upstream reads the constraints before the capacity, so their error comes first.
            for constraint in self._constraints[claim]:
                constraint.remove(wanted.name)
        return short

    def _violated(self, claim: int, wanted: Wanted, candidate: Candidate) -> Refusal | None:
        """Adds the device to all constraints of the claim, or to none when it violates one."""
        constraints = self._constraints[claim]
        for index, constraint in enumerate(constraints):
            if not constraint.add(wanted.name, candidate):
                for added in constraints[:index]:
                    added.remove(wanted.name)
                refusal = constraint.refusal(candidate)
                if wanted.wants_all:
                    message = f'request "{wanted.name}" asks for all devices, but {candidate.id} is {refusal.text}'
                    raise InvalidInput(message, about=wanted.about)
                return refusal
        return None

    # -- shortcuts

    def _may_cut(self) -> bool:
        return not self._repeats and not self._may_fail_hard()

    def _problem(self) -> SearchProblem:
        return SearchProblem(self.site, self.site.untouched, self._requests, self._constraints, self._prospects)

    def _is_possible(self) -> bool:
        """Whether the bounds leave room for a solution. If they do not, `reasons` says why."""
        for requests in self._requests:
            for alternatives in requests:
                if not any(self._prospects[alternative].is_enough for alternative in alternatives):
                    self.reasons.hopeless(alternatives)
                    return False
        if (why := impossible(self._problem())) is not None:
            self.reasons.impossible(why)
        return why is None

    def _begin_symmetry(self, wanted: Wanted) -> None:
        """From here on, what is like something that failed is not tried."""
        self._symmetry = symmetry = Symmetry(self._problem())
        for claim, chosen in enumerate(self.chosen):
            for item in chosen:
                share = self._ledger.share_of(item.wanted, item.candidate)
                symmetry.take(item.candidate, claim, share, goes_on=item.wanted is wanted)
        taken = [item.candidate for chosen in self.chosen for item in chosen]
        for claim, requests in reversed(list(enumerate(self._requests))):
            for request, alternatives in reversed(list(enumerate(requests))):
                self._later[claim, request] = list(self._rooms.values())
                if len(alternatives) == 1:
                    self._rooms[alternatives[0]] = Room(self._prospects[alternatives[0]], self._ledger, taken)

    def _state(self, claim: int, request: int, wanted: Wanted, taken: int, start: int) -> Hashable:
        """All that the rest of the search depends on; None as long as states are not compared."""
        if self._symmetry is None:
            return None
        constraints = tuple([constraint.state for constraint in self._constraints[claim]])
        place = claim, request, wanted.name.alternative, taken, len(self.chosen[claim])
        return place, constraints, self._symmetry.state, start if self._symmetry.minds_order else None

    def _settle(self, claim: int, count: int) -> list[Chosen]:
        """The request for which the last devices were chosen has all of them: the shareable ones."""
        if self._symmetry is None:
            return []
        shared = [item for item in self.chosen[claim][-count:] if self._ledger.shares(item.candidate)]
        for chosen in shared:
            self._symmetry.settle(chosen.candidate, claim, self._ledger.share_of(chosen.wanted, chosen.candidate))
        return shared

    def _unsettle(self, settled: Sequence[Chosen]) -> None:
        if self._symmetry is not None:
            for _ in settled:
                self._symmetry.give_back()
