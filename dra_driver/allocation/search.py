"""Which devices a pod's claims get on a node: the scheduler's decision as a pure function.

`allocate` searches like kube-scheduler's structured allocator: claims, requests and devices in their order, depth
first with backtracking, the first complete solution wins. Of a request only combinations of devices are tried, across
requests everything. A search that has to turn back asks `shortcuts` whether it should go on; the answer stays the same.

Source: kubernetes/dynamic-resource-allocation, structured allocator ("incubating"), Kubernetes 1.36.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from dra_driver.allocation.constraints import DistinctAttribute, constraints_of
from dra_driver.allocation.nodes import NodeView
from dra_driver.allocation.prospects import Prospects, Site
from dra_driver.allocation.reasons import Reasons
from dra_driver.allocation.requests import Alternatives, Wanted, checked_requests
from dra_driver.allocation.result import Chosen, ShareIds, allocation_of, derived_share_id
from dra_driver.allocation.shortcuts import Problem, Symmetry, Twins, impossible, neighbourhood, room
from dra_driver.allocation.snapshot import Candidate, Snapshot
from dra_driver.allocation.trace import SILENT, Cause, Listener, Refusal
from dra_driver.api.resource import Allocation, ResourceClaim
from dra_driver.errors import InvalidInput

MAX_RESULTS = 32
"""Devices in one claim; the API has no room for more."""


MOST_STEPS = 500_000
"""Devices tried in one search: about what kube-scheduler tries in the ten seconds that it takes for one node."""
_STEPS_BETWEEN = 1_000


@dataclass(frozen=True, slots=True)
class Limit:
    """How long one search may go on. `steps` are devices tried, so that the same input ends in the same way everywhere;
    `enough` is asked now and then, and ends the search when it is true."""

    steps: int = MOST_STEPS
    enough: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class Allocated:
    """One allocation per claim, in the order of the claims."""

    allocations: tuple[Allocation, ...]


class NotAllocatable:
    """The claims do not fit on this node now. Most nodes of a cluster are never asked why."""

    def __init__(self, reasons: Reasons) -> None:
        self._reasons = reasons

    @cached_property
    def reason(self) -> str:
        """A sentence without the node's name."""
        return self._reasons.sentence()

    @cached_property
    def causes(self) -> frozenset[Cause]:
        """What `reason` is about."""
        return self._reasons.causes()

    def __repr__(self) -> str:
        return f"NotAllocatable({self.reason!r})"


class Undecided(NotAllocatable):
    """The search reached its limit: whether the claims fit is not known."""

    def __init__(self, reasons: Reasons, reason: str) -> None:
        super().__init__(reasons)
        self.reason = reason


def allocate(
    claims: Sequence[ResourceClaim],
    node: NodeView,
    snapshot: Snapshot,
    *,
    share_ids: ShareIds = derived_share_id,
    listener: Listener = SILENT,
    limit: Limit = Limit(),
) -> Allocated | NotAllocatable:
    """Devices for all of `claims` on `node`, or why there are none. `share_ids` names shares of devices.

    The answer is `Undecided` where the search reaches its limit.

    Some things keep the pod from every node, because kube-scheduler gives up on the whole attempt then. Raises
    InvalidInput: a class that does not exist, a selector that does not compile or fails on a device, a constraint
    that one of "all" devices violates, a claim of more than 32 devices. Raises NodeNotReady: a request for all
    devices while a pool is being updated.
    """
    search = _Search(claims, Site(node, snapshot), listener, limit)
    try:
        succeeds = search.succeeds()
    except _LimitReached as reached:
        reason = str(reached)
        listener.gave_up(reason)
        return Undecided(search.reasons, reason)
    if not succeeds:
        return NotAllocatable(search.reasons)
    return Allocated(
        tuple(
            allocation_of(claim, chosen, search.site, share_ids)
            for claim, chosen in zip(claims, search.chosen, strict=True)
        )
    )


_ADVICE = "kube-scheduler may not decide in time either: make the claim simpler, or raise the limit"


class _TooMany(Exception):
    """This way leads to more devices in a claim than the API has room for."""


class _Impossible(Exception):
    """No way leads anywhere, because of `refusal`."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


class _LimitReached(Exception):
    """The search took too long."""


class _Search:
    """One attempt on one node. State is what was chosen so far; every step can be taken back."""

    def __init__(self, claims: Sequence[ResourceClaim], site: Site, listener: Listener, limit: Limit) -> None:
        self.site = site
        self._limit = limit
        self._steps = 0
        self.chosen: list[list[Chosen]] = [[] for _ in claims]
        self._listener = listener
        self._requests = checked_requests(claims, site.snapshot.classes, site.behaviour)
        self._constraints = [constraints_of(claim, site.behaviour) for claim in claims]
        self._ledger = site.ledger()
        self._prospects = {
            wanted: Prospects(wanted, site, self._ledger)
            for claim in self._requests
            for alternatives in claim
            for wanted in alternatives
        }
        self._holders: dict[Candidate, list[int]] = defaultdict(list)
        """Claims that devices were chosen for, when they are not shared."""
        self._touched: dict[object, int] = defaultdict(int)
        """How many choices touch something; see `neighbourhood`."""
        self._symmetry: Symmetry | None = None
        """Asked for when the search turns back for the first time, if it may skip anything at all."""
        self._later: dict[tuple[int, int], list[Prospects]] = {}
        """By claim and request, those after it that have no alternatives; made together with `_symmetry`."""
        self._dead_ends: set[Hashable] = set()
        """States from which the search went on in vain."""
        self._repeats = site.behaviour.repeats and any(map(self._ledger.shares, site.candidates))
        """Whether a request may get one device twice. The shortcuts know no such thing."""
        self._may_skip = not self._may_fail_hard() and not self._repeats
        distinct = any(isinstance(one, DistinctAttribute) for each in self._constraints for one in each)
        self._any_order = site.behaviour.any_order and (self._repeats or distinct)
        """Whether trying the devices of a request in every order can make a difference."""
        self.reasons = Reasons(site, self._prospects)

    def _may_fail_hard(self) -> bool:
        """Whether a device that is looked at may end the attempt. Then every step must be the one upstream takes."""
        all_devices = any(one.every is not None for one in self._prospects.values())
        return any(one.failing for one in self._prospects.values()) or (all_devices and any(self._constraints))

    def succeeds(self) -> bool:
        """Whether there is a solution; it is `chosen` then."""
        self._check_size()
        if self._may_skip and (hopeless := self._hopeless_request()) is not None:
            self.reasons.hopeless(hopeless)
            return False
        try:
            return self._claim(0)
        except _TooMany:
            return False
        except _Impossible as why:
            self.reasons.impossible(why.refusal)
            self._listener.gave_up(str(why))
            return False

    def _check_size(self) -> None:
        for claim in self._requests:
            least = sum(min(self._prospects[one].count for one in alternatives) for alternatives in claim)
            if least > MAX_RESULTS:
                about = claim[0][0].about
                raise InvalidInput(f"asks for {least} devices; a claim can have {MAX_RESULTS}", about=about)

    def _hopeless_request(self) -> Alternatives | None:
        """The first request that finds too few devices, whatever the others get."""
        for claim in self._requests:
            for alternatives in claim:
                if not any(self._prospects[one].is_enough for one in alternatives):
                    return alternatives
        return None

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
            return self._request(claim, request + 1)
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
        """Whether some device for the next place leads to a solution."""
        prospects, failed = self._prospects[wanted], set[Twins]()
        onward = self._onward(claim, request, wanted)
        for candidate, next_start in self._tries(prospects, taken, start):
            if (failed and self._twins(candidate) in failed) or not self._try(claim, request, wanted, candidate):
                continue
            try:
                if self._leaves_room(claim, request) and self._devices(claim, request, onward, taken + 1, next_start):
                    return True
            except _TooMany:
                self._undo(claim, wanted)
                raise
            self._undo(claim, wanted)
            if (twins := self._twins(candidate)) is not None:
                failed.add(twins)
        return False

    def _onward(self, claim: int, request: int, wanted: Wanted) -> Wanted:
        """What is asked for after a device for `wanted`."""
        if wanted.wants_all and self.site.behaviour.later_all_is_cut:
            return self._requests[claim][request][0]
        return wanted

    def _tries(self, prospects: Prospects, taken: int, start: int) -> Iterator[tuple[Candidate, int]]:
        """Devices for the next place, each with the number from which the place after it goes on."""
        if prospects.every is not None:
            # All are needed, so the order does not matter and no other one can take this place.
            yield prospects.every[taken], 0
            return
        places = prospects.places_from(start)
        needed = prospects.count - taken
        if self._may_skip and not self._is_room_for(needed, places):
            return
        for place in places:
            yield self.site.candidates[place], 0 if self._any_order else place + 1

    def _is_room_for(self, needed: int, places: Sequence[int]) -> bool:
        if len(places) < needed:
            return False
        # Of a single device the search sees for itself whether it fits.
        if needed == 1 or self._symmetry is None or not self._ledger.left:
            return True
        return room(self._ledger, (self.site.candidates[place] for place in places)) >= needed

    # -- one device

    def _try(self, claim: int, request: int, wanted: Wanted, candidate: Candidate) -> bool:
        """Choose the device if it may be chosen; otherwise note why not. Raises _LimitReached."""
        self._count_step()
        refusal = self._refusal(claim, wanted, candidate) or self._violated(claim, wanted, candidate)
        if refusal is not None:
            self.reasons.note(claim, request, wanted, candidate, refusal)
            self._listener.refused(wanted, candidate, refusal)
            return False
        self._ledger.take(wanted, candidate)
        if not self._ledger.shares(candidate):
            self._holders[candidate].append(claim)
        for one in neighbourhood(candidate):
            self._touched[one] += 1
        self.chosen[claim].append(Chosen(wanted, candidate))
        self._listener.chose(wanted, candidate)
        return True

    def _count_step(self) -> None:
        self._steps += 1
        if self._steps > self._limit.steps:
            raise _LimitReached(f"not decided: the search was ended after {self._limit.steps} steps; {_ADVICE}")
        if self._steps % _STEPS_BETWEEN == 0 and self._limit.enough():
            raise _LimitReached(f"not decided: the search ran out of time after {self._steps} steps; {_ADVICE}")

    def _undo(self, claim: int, wanted: Wanted) -> None:
        candidate = self.chosen[claim].pop().candidate
        self._ledger.give_back(candidate)
        if not self._ledger.shares(candidate):
            self._holders[candidate].remove(claim)
        for one in neighbourhood(candidate):
            self._touched[one] -= 1
        for constraint in self._constraints[claim]:
            constraint.remove(wanted.name)
        self._listener.took_back(wanted, candidate)
        if self._symmetry is None and self._may_skip:
            self._look_closer()

    def _refusal(self, claim: int, wanted: Wanted, candidate: Candidate) -> Refusal | None:
        """Raises InvalidInput when a selector fails on the device."""
        holders = self._holders.get(candidate, ())
        if wanted.admin_access and claim in holders:
            return Refusal(Cause.CHOSEN, "already chosen for this claim")
        if holders and not wanted.admin_access:
            return Refusal(Cause.CHOSEN, "already chosen for this pod")
        prospects = self._prospects[wanted]
        if self.site.places[candidate] not in prospects.eligible_set:
            return prospects.refusal(candidate)
        return self._ledger.short_of_capacity(wanted, candidate) or self._ledger.short_of_counters(candidate)

    def _violated(self, claim: int, wanted: Wanted, candidate: Candidate) -> Refusal | None:
        """Adds the device to all constraints of the claim, or to none when it violates one."""
        constraints = self._constraints[claim]
        for index, constraint in enumerate(constraints):
            if not constraint.add(wanted.name, candidate):
                for added in constraints[:index]:
                    added.remove(wanted.name)
                if wanted.wants_all:
                    message = (
                        f'request "{wanted.name}" asks for all devices, but {candidate.id} is against {constraint}'
                    )
                    raise InvalidInput(message, about=wanted.about)
                return constraint.refusal(candidate)
        return None

    # -- shortcuts

    def _look_closer(self) -> None:
        """Whether it makes sense to go on, and what need not be tried. Raises _Impossible."""
        problem = Problem(self.site, self.site.ledger(), self._requests, self._constraints, self._prospects)
        if (why := impossible(problem)) is not None:
            raise _Impossible(why)
        self._symmetry = Symmetry(problem)
        certain = problem.certain
        self._later = {
            (claim, request): [one for one in certain if one.wanted in later]
            for claim, requests in enumerate(self._requests)
            for request in range(len(requests))
            for later in [self._after(claim, request)]
        }

    def _after(self, claim: int, request: int) -> set[Wanted]:
        later = [*self._requests[claim][request + 1 :], *(one for each in self._requests[claim + 1 :] for one in each)]
        return {wanted for alternatives in later for wanted in alternatives}

    def _leaves_room(self, claim: int, request: int) -> bool:
        """Whether each later request still finds enough devices for itself."""
        return all(self._has_room(one) for one in self._later.get((claim, request), ()))

    def _has_room(self, prospects: Prospects) -> bool:
        devices = (self.site.candidates[place] for place in prospects.eligible)
        if not prospects.wanted.admin_access:
            devices = (one for one in devices if not self._holders.get(one))
        return room(self._ledger, devices) >= prospects.count

    def _twins(self, candidate: Candidate) -> Twins | None:
        """Equal for devices that are as good as each other now."""
        if self._symmetry is None or any(self._touched[one] for one in neighbourhood(candidate)):
            return None
        return self._symmetry.twins(candidate)

    def _state(self, claim: int, request: int, wanted: Wanted, taken: int, start: int) -> Hashable:
        """All that the rest of the search depends on; None as long as nobody compares."""
        if self._symmetry is None:
            return None
        have = (
            (index, one.candidate, self._share(one, wanted))
            for index, chosen in enumerate(self.chosen)
            for one in chosen
        )
        constraints = tuple(one.state for one in self._constraints[claim])
        place = (claim, request, wanted.name.alternative, taken, len(self.chosen[claim]))
        return place, constraints, self._symmetry.state(have, start)

    def _share(self, chosen: Chosen, wanted: Wanted) -> Hashable:
        """What a choice took of a shareable device, and whether it was for `wanted`, which gets no second one of it."""
        share = self._ledger.share_of(chosen.wanted, chosen.candidate)
        return None if share is None else (share, chosen.wanted is wanted)
