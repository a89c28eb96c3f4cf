"""What shows that a search need not go on: bounds that no choice can beat, and devices that are as good as each other.

Nothing here changes an answer. A bound says "impossible" only where the exhaustive search would find nothing. A device
is skipped only when a twin of it, that comes first, was tried in the same place and led nowhere: a solution with the
later one, the twins changed for each other, would be a solution that the search had met before. In the same way the
search does not go on from a state like one from which it failed. All this is worth its price only to a search that had
to turn back, so no other asks for it. Pure.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dra_driver.allocation.amounts import Amount
from dra_driver.allocation.constraints import AnyConstraint, DistinctAttribute, MatchAttribute, Value
from dra_driver.allocation.prospects import Prospects, Site
from dra_driver.allocation.requests import Alternatives, Wanted
from dra_driver.allocation.snapshot import Candidate, CounterId, CounterSetId
from dra_driver.allocation.trace import Cause, Refusal
from dra_driver.allocation.usage import Ledger

type Twins = tuple[int, int | None]
"""Equal for devices that are as good as each other."""


@dataclass(frozen=True)
class Problem:
    """What a search has to solve, before anything is chosen."""

    site: Site
    ledger: Ledger
    requests: Sequence[Sequence[Alternatives]]
    """By claim."""
    constraints: Sequence[Sequence[AnyConstraint]]
    """By claim."""
    prospects: Mapping[Wanted, Prospects]

    @property
    def certain(self) -> list[Prospects]:
        """Of the requests without alternatives: these will be served or nothing will."""
        return [self.prospects[one[0]] for claim in self.requests for one in claim if len(one) == 1]


# -- bounds


def impossible(problem: Problem) -> Refusal | None:
    """Why no choice can serve the requests, if that can be seen without searching."""
    bounds = (
        (Cause.CONSTRAINT, _too_few_that_match),
        (Cause.CONSTRAINT, _too_few_that_differ),
        (Cause.CHOSEN, _too_few_devices),
        (Cause.COUNTERS, _too_little_room_for_one),
        (Cause.COUNTERS, _too_little_of_a_counter),
    )
    return next((Refusal(cause, why) for cause, bound in bounds if (why := bound(problem)) is not None), None)


def _too_few_that_match(problem: Problem) -> str | None:
    """A matchAttribute of which no value has enough devices for all requests that it covers."""
    for claim, constraints in zip(problem.requests, problem.constraints, strict=True):
        for constraint in constraints:
            covered = [problem.prospects[one[0]] for one in claim if len(one) == 1 and constraint.covers(one[0].name)]
            if isinstance(constraint, MatchAttribute) and covered:
                groups = [_by_value(problem, constraint, one) for one in covered]
                if not any(_group_is_enough(problem, covered, groups, value) for value in groups[0]):
                    return _match_sentence(constraint, covered, groups)
    return None


def _too_few_that_differ(problem: Problem) -> str | None:
    """A distinctAttribute that has too few values for the requests that it covers.

    In the end each request has a value of its own: that of its last device. `_paired` finds the most requests that can
    have one.
    """
    for claim, constraints in zip(problem.requests, problem.constraints, strict=True):
        for constraint in constraints:
            if not isinstance(constraint, DistinctAttribute):
                continue
            covered = [problem.prospects[one[0]] for one in claim if len(one) == 1 and constraint.covers(one[0].name)]
            if (
                why := next(filter(None, (_too_few_turns(problem, constraint, one) for one in covered)), None)
            ) is not None:
                return why
            values = [frozenset(_by_value(problem, constraint, one)) for one in covered]
            known = len(frozenset[Value]().union(*values))
            # While its devices are chosen, a request of several needs two values besides those of the requests before.
            needed = max((place + min(one.count, 2) for place, one in enumerate(covered)), default=0)
            if needed > known or _paired(values) < len(covered):
                return (
                    f"{len(covered)} requests need devices with different {constraint.attribute}; "
                    f"their devices have {known} values"
                )
    return None


def _too_few_turns(problem: Problem, constraint: DistinctAttribute, prospects: Prospects) -> str | None:
    """A request for more devices than the value changes along its devices.

    They are chosen in their order, and each differs from the one before it. With lists that is not so simple.
    """
    values = [own for one in _devices(problem, prospects) if (own := constraint.values(one))]
    if any(len(own) > 1 for own in values):
        return None
    turns = sum(before != own for before, own in pairwise(values)) + bool(values)
    if prospects.count <= turns:
        return None
    return (
        f"{prospects.wanted} needs {prospects.count} devices that differ in {constraint.attribute} each from the one "
        f"before; in their order there are {turns}"
    )


def _paired(choices: Sequence[Collection[Value]]) -> int:
    """To how many of the requests a value can be given, no value twice (bipartite matching)."""
    owner: dict[Value, int] = {}

    def give(request: int, tried: set[Value]) -> bool:
        for value in choices[request]:
            if value not in tried:
                tried.add(value)
                if value not in owner or give(owner[value], tried):
                    owner[value] = request
                    return True
        return False

    return sum(give(request, set()) for request in range(len(choices)))


type _Groups = Mapping[Value, Collection[Candidate]]


def _by_value(problem: Problem, constraint: AnyConstraint, prospects: Prospects) -> _Groups:
    groups: dict[Value, set[Candidate]] = defaultdict(set)
    for candidate in _devices(problem, prospects):
        for value in constraint.values(candidate):
            groups[value].add(candidate)
    return groups


def _group_is_enough(problem: Problem, covered: Sequence[Prospects], groups: Sequence[_Groups], value: Value) -> bool:
    members = [group.get(value, ()) for group in groups]
    if any(len(own) < one.count for own, one in zip(members, covered, strict=True)):
        return False
    together = {candidate for own in members for candidate in own}
    if _may_repeat(problem, covered, together):
        return True
    return len(together) >= sum(one.count for one in covered)


def _match_sentence(constraint: AnyConstraint, covered: Sequence[Prospects], groups: Sequence[_Groups]) -> str:
    needed = sum(one.count for one in covered)
    sizes = Counter({value: len({c for group in groups for c in group.get(value, ())}) for value in groups[0]})
    largest = sizes.most_common(1)
    found = f'the largest group has {largest[0][1]} ("{_text(largest[0][0][1])}")' if largest else "no device has it"
    whose = f"{covered[0].wanted} needs" if len(covered) == 1 else f"{len(covered)} requests need"
    return f"{whose} {needed} devices with one {constraint.attribute}; {found}"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _too_few_devices(problem: Problem) -> str | None:
    """Fewer devices than all requests need that must have devices of their own."""
    certain = [one for one in problem.certain if not one.wanted.admin_access]
    together = {candidate for one in certain for candidate in _devices(problem, one)}
    needed = sum(one.count for one in certain)
    if _may_repeat(problem, certain, together) or needed <= len(together):
        return None
    return f"the requests need {needed} devices together, and only {len(together)} could serve them"


def _may_repeat(problem: Problem, requests: Iterable[Prospects], candidates: Iterable[Candidate]) -> bool:
    """Whether one device may serve more than one request."""
    return any(one.wanted.admin_access for one in requests) or any(map(problem.ledger.shares, candidates))


def _too_little_room_for_one(problem: Problem) -> str | None:
    return next((why for one in problem.certain if (why := _too_little_room(problem, one))), None)


def _too_little_room(problem: Problem, prospects: Prospects) -> str | None:
    fits = room(problem.ledger, _devices(problem, prospects))
    if fits >= prospects.count:
        return None
    return f"{prospects.wanted} needs {prospects.count} devices; their shared counters leave room for {fits}"


def room(ledger: Ledger, candidates: Iterable[Candidate]) -> int:
    """No more of these devices than this can be chosen together."""
    free, sharing = 0, defaultdict[CounterSetId, list[Candidate]](list)
    for candidate in candidates:
        sets = candidate.counter_sets if ledger.draws(candidate) else ()
        if len(sets) == 1:
            sharing[next(iter(sets))].append(candidate)
        else:
            free += 1
    return free + sum(min(len(members), _room_in_set(ledger, members)) for members in sharing.values())


def _room_in_set(ledger: Ledger, members: Sequence[Candidate]) -> int:
    """How often the least that any of them draws goes into what is left, for the scarcest counter."""
    left = ledger.left_for(members[0])
    least = _least(members)
    return min((int(max(left[id_], 0) // needed) for id_, needed in least.items() if needed > 0), default=len(members))


def _least(members: Sequence[Candidate]) -> Mapping[CounterId, Amount]:
    """Of each counter that all of them draw on, the least that one of them takes."""
    least = dict(members[0].consumes)
    for one in members[1:]:
        own = dict(one.consumes)
        least = {id_: min(needed, own[id_]) for id_, needed in least.items() if id_ in own}
    return least


def _too_little_of_a_counter(problem: Problem) -> str | None:
    """A counter, of all sets together, of which less is left than the requests draw at the very least."""
    supply: dict[str, Amount] = defaultdict(int)
    for left in problem.ledger.left.values():
        for id_, amount in left.items():
            supply[id_.counter] += max(amount, 0)
    demand: dict[str, Amount] = defaultdict(int)
    for one in problem.certain:
        for name, needed in _least_by_name(problem, one).items():
            demand[name] += needed * one.count
    for name in sorted(demand):
        if demand[name] > supply[name]:
            return f"the requests draw at least {demand[name]} on counters called {name}; {supply[name]} is left"
    return None


def _least_by_name(problem: Problem, prospects: Prospects) -> Mapping[str, Amount]:
    least: dict[str, Amount] | None = None
    for candidate in _devices(problem, prospects):
        own: dict[str, Amount] = defaultdict(int)
        # A device that can be chosen again without drawing makes the request cost nothing.
        if problem.ledger.draws(candidate) and not problem.ledger.shares(candidate):
            for id_, needed in candidate.consumes:
                own[id_.counter] += needed
        least = own if least is None else {name: min(least[name], own[name]) for name in least if name in own}
    return least or {}


def _devices(problem: Problem, prospects: Prospects) -> list[Candidate]:
    return [problem.site.candidates[place] for place in prospects.eligible]


# -- what is as good as something else


class Symmetry:
    """Devices that are as good as each other, and states of a search that are.

    Two devices look the same when every request may have both or none, their attributes agree wherever a constraint
    looks, and they give and draw the same. Devices without counters that look the same are twins; with counters they
    are when their sets are of one kind: the same is left in them, and devices that look the same draw on them.
    """

    def __init__(self, problem: Problem) -> None:
        self._by_claim = any(one.wanted.admin_access for one in problem.prospects.values())
        self._looks: dict[Candidate, int] = {}
        self._kinds: dict[CounterSetId, int] = {}
        self._minds_order = any(_minds_order(problem, claim) for claim in range(len(problem.requests)))
        if not self._minds_order:
            self._looks = _numbered({one: _look(problem, one) for one in problem.site.candidates})
            self._kinds = _numbered(_kinds_of_sets(problem, self._looks))

    def twins(self, candidate: Candidate) -> Twins | None:
        """Equal for twins; None for a device that is like no other."""
        sets = candidate.counter_sets
        if candidate not in self._looks or not all(one in self._kinds for one in sets):
            return None
        return self._looks[candidate], self._kinds[sets[0]] if sets else None

    def state(self, taken: Iterable[tuple[int, Candidate, object]], start: int) -> Hashable:
        """Equal for states from which the same can be reached. `taken`: for which claim, what, and which share of it.

        `start` is the number of the device from which the search goes on in its request. It counts only where the
        order of devices does: what can be reached with devices before it was tried before.
        """
        devices: dict[Candidate, Counter[Hashable]] = defaultdict(Counter)
        for claim, candidate, share in taken:
            devices[candidate][claim if self._by_claim else None, share] += 1
        alone: Counter[Hashable] = Counter()
        sets: dict[CounterSetId, Counter[Hashable]] = defaultdict(Counter)
        for candidate, marks in devices.items():
            taking, own = frozenset(marks.items()), candidate.counter_sets
            if self.twins(candidate) is None:
                alone[candidate, taking] += 1
            elif own:
                sets[own[0]][self._looks[candidate], taking] += 1
            else:
                alone[self._looks[candidate], taking] += 1
        kinds = Counter((self._kinds[key], frozenset(members.items())) for key, members in sets.items())
        return start if self._minds_order else None, frozenset(alone.items()), frozenset(kinds.items())


def _numbered[K](values: Mapping[K, Hashable]) -> dict[K, int]:
    """Equal numbers for equal values: they are compared more often than made."""
    numbers: dict[Hashable, int] = {}
    return {key: numbers.setdefault(value, len(numbers)) for key, value in values.items()}


def _minds_order(problem: Problem, claim: int) -> bool:
    """distinctAttribute remembers one value per request, so of several devices in it the order counts."""
    distinct = [one for one in problem.constraints[claim] if isinstance(one, DistinctAttribute)]
    return any(
        constraint.covers(wanted.name) and problem.prospects[wanted].count > 1
        for constraint in distinct
        for alternatives in problem.requests[claim]
        for wanted in alternatives
    )


def _look(problem: Problem, candidate: Candidate) -> Hashable:
    """What requests, constraints and counters see of the device."""
    place = problem.site.places[candidate]
    serves = tuple(place in one.eligible_set for one in problem.prospects.values())
    values = tuple(constraint.values(candidate) for claim in problem.constraints for constraint in claim)
    draws = tuple(sorted((id_.counter, needed) for id_, needed in candidate.consumes))
    return serves, values, draws, problem.ledger.stock(candidate)


def _kinds_of_sets(problem: Problem, looks: Mapping[Candidate, int]) -> dict[CounterSetId, Hashable]:
    """Equal for counter sets of one kind; without those that a device draws on together with another set."""
    members: dict[CounterSetId, list[Candidate]] = defaultdict(list)
    for candidate in problem.site.candidates:
        for one in candidate.counter_sets:
            members[one].append(candidate)
    kinds: dict[CounterSetId, Hashable] = {}
    for key, own in members.items():
        if all(len(one.counter_sets) == 1 for one in own):
            left = problem.ledger.left_for(own[0])
            amounts = sorted((id_.counter, amount) for id_, amount in left.items() if (id_.slice, id_.set) == key[1:])
            kinds[key] = (tuple(amounts), frozenset(Counter(looks[one] for one in own).items()))
    return kinds


def neighbourhood(candidate: Candidate) -> tuple[Hashable, ...]:
    """What a choice of the device touches: itself and its counter sets. Twins are twins only while untouched."""
    return (candidate, *candidate.counter_sets)
