"""What shows that a search need not continue: bounds that no choice can beat.

Nothing here changes an answer. A bound says "impossible" only where the exhaustive search would find nothing. This is
worth its price only to a search that had to turn back, so no other asks for it. Pure.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dra_driver.allocation.amounts import Amount
from dra_driver.allocation.constraints import AnyConstraint, DistinctAttribute, MatchAttribute, Value
from dra_driver.allocation.prospects import Prospects, Site
from dra_driver.allocation.requests import Alternatives, Cause, Refusal, Wanted
from dra_driver.allocation.snapshot import Candidate, CounterId, CounterSetId
from dra_driver.allocation.usage import Ledger
from dra_driver.phrases import how_many


@dataclass(frozen=True)
class SearchProblem:
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
        return [self.prospects[item[0]] for claim in self.requests for item in claim if len(item) == 1]


# -- bounds


def impossible(problem: SearchProblem) -> Refusal | None:
    """Why no choice can serve the requests, if that can be seen without searching."""
    bounds = (
        (Cause.CONSTRAINT, _too_few_that_match),
        (Cause.CONSTRAINT, _too_few_that_differ),
        (Cause.CHOSEN, _too_few_devices),
        (Cause.COUNTERS, _too_little_room_for_one),
        (Cause.COUNTERS, _too_little_of_a_counter),
    )
    return next((Refusal(cause, why) for cause, bound in bounds if (why := bound(problem)) is not None), None)


def _too_few_that_match(problem: SearchProblem) -> str | None:
    """A matchAttribute of which no value has enough devices for all requests that it covers."""
    for claim, constraints in zip(problem.requests, problem.constraints, strict=True):
        for constraint in constraints:
            covered = [
                problem.prospects[item[0]] for item in claim if len(item) == 1 and constraint.covers(item[0].name)
            ]
            if isinstance(constraint, MatchAttribute) and covered:
                groups = [_by_value(problem, constraint, prospects) for prospects in covered]
                if not any(_group_is_enough(problem, covered, groups, value) for value in groups[0]):
                    return _match_sentence(constraint, covered, groups)
    return None


def _too_few_that_differ(problem: SearchProblem) -> str | None:
    """A distinctAttribute that has too few values for the requests that it covers.

    In the end each request has a value of its own: that of its last device. `_paired` finds the most requests that can
    have one.
    """
    for claim, constraints in zip(problem.requests, problem.constraints, strict=True):
        for constraint in constraints:
            if not isinstance(constraint, DistinctAttribute):
                continue
            covered = [
                problem.prospects[item[0]] for item in claim if len(item) == 1 and constraint.covers(item[0].name)
            ]
            if (
                why := next(
                    filter(None, (_too_few_turns(problem, constraint, prospects) for prospects in covered)), None
                )
            ) is not None:
                return why
            values = [frozenset(_by_value(problem, constraint, prospects)) for prospects in covered]
            known = len(frozenset[Value]().union(*values))
            # While its devices are chosen, a request of several needs two values besides those of the requests before.
            needed = max((place + min(prospects.count, 2) for place, prospects in enumerate(covered)), default=0)
            if needed > known or _paired(values) < len(covered):
                whose = f"{len(covered)} requests need" if len(covered) > 1 else f"{covered[0].wanted} needs"
                return (
                    f"{whose} devices with different {constraint.attribute}; "
                    f"their devices have {how_many(known, 'value')}"
                )
    return None


def _too_few_turns(problem: SearchProblem, constraint: DistinctAttribute, prospects: Prospects) -> str | None:
    """A request for more devices than the value changes along its devices.

    They are chosen in their order, and each differs from the one before it. With lists that is not so simple.
    """
    values = [own for candidate in prospects.eligible if (own := constraint.values(candidate))]
    if any(len(own) > 1 for own in values):
        return None
    turns = sum(before != own for before, own in pairwise(values)) + bool(values)
    if prospects.count <= turns:
        return None
    if not values:
        devices = how_many(prospects.count, "device")
        return f"{prospects.wanted} needs {devices} with attribute {constraint.attribute}; no device has it"
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


def _by_value(problem: SearchProblem, constraint: AnyConstraint, prospects: Prospects) -> _Groups:
    groups: dict[Value, set[Candidate]] = defaultdict(set)
    for candidate in prospects.eligible:
        for value in constraint.values(candidate):
            groups[value].add(candidate)
    return groups


def _group_is_enough(
    problem: SearchProblem, covered: Sequence[Prospects], groups: Sequence[_Groups], value: Value
) -> bool:
    members = [group.get(value, ()) for group in groups]
    if any(len(own) < prospects.count for own, prospects in zip(members, covered, strict=True)):
        return False
    together = {candidate for own in members for candidate in own}
    if _may_repeat(problem, covered, together):
        return True
    return len(together) >= sum(prospects.count for prospects in covered)


def _match_sentence(constraint: AnyConstraint, covered: Sequence[Prospects], groups: Sequence[_Groups]) -> str:
    needed = sum(prospects.count for prospects in covered)
    sizes = Counter({value: len({c for group in groups for c in group.get(value, ())}) for value in groups[0]})
    largest = sizes.most_common(1)
    best = f'the largest group has {largest[0][1]} ("{_text(largest[0][0][1])}")' if largest else "no device has it"
    whose = f"{covered[0].wanted} needs" if len(covered) == 1 else f"{len(covered)} requests need"
    return f"{whose} {how_many(needed, 'device')} with one {constraint.attribute}; {best}"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _too_few_devices(problem: SearchProblem) -> str | None:
    """Fewer devices than all requests need that must have devices of their own."""
    certain = [prospects for prospects in problem.certain if not prospects.wanted.admin_access]
    together = {candidate for prospects in certain for candidate in prospects.eligible}
    needed = sum(prospects.count for prospects in certain)
    if _may_repeat(problem, certain, together) or needed <= len(together):
        return None
    return f"the requests need {needed} devices together, and only {len(together)} could serve them"


def _may_repeat(problem: SearchProblem, requests: Iterable[Prospects], candidates: Iterable[Candidate]) -> bool:
    """Whether one device may serve more than one request."""
    return any(request.wanted.admin_access for request in requests) or any(map(problem.ledger.shares, candidates))


def _too_little_room_for_one(problem: SearchProblem) -> str | None:
    return next((why for prospects in problem.certain if (why := _too_little_room(problem, prospects))), None)


def _too_little_room(problem: SearchProblem, prospects: Prospects) -> str | None:
    fits = room(problem.ledger, prospects.eligible)
    if fits >= prospects.count:
        return None
    needed = how_many(prospects.count, "device")
    return f"{prospects.wanted} needs {needed}; their shared counters leave room for {fits}"


def room(ledger: Ledger, candidates: Iterable[Candidate]) -> int:
    """No more of these devices than this can be chosen together."""
    free, sharing = 0, defaultdict[CounterSetId, list[Candidate]](list)
    for candidate in candidates:
        sets = candidate.counter_sets if ledger.draws(candidate) else ()
        if len(sets) == 1:
            sharing[next(iter(sets))].append(candidate)
        else:
            free += 1
    return free + sum(_Part(ledger, members).room() for members in sharing.values())


def _least(members: Sequence[Candidate]) -> Mapping[CounterId, Amount]:
    """Of each counter that all of them draw on, the least that one of them takes."""
    least = dict(members[0].consumes)
    for member in members[1:]:
        own = dict(member.consumes)
        least = {id_: min(needed, own[id_]) for id_, needed in least.items() if id_ in own}
    return least


def _too_little_of_a_counter(problem: SearchProblem) -> str | None:
    """A counter, of all sets together, of which less is left than the requests draw at the very least."""
    supply: dict[str, Amount] = defaultdict(int)
    for left in problem.ledger.left.values():
        for id_, amount in left.items():
            supply[id_.counter] += max(amount, 0)
    demand: dict[str, Amount] = defaultdict(int)
    for prospects in problem.certain:
        for name, needed in _least_by_name(problem, prospects).items():
            demand[name] += needed * prospects.count
    for name in sorted(demand):
        if demand[name] > supply[name]:
            return f"the requests draw at least {demand[name]} on counters called {name}; {supply[name]} is left"
    return None


def _least_by_name(problem: SearchProblem, prospects: Prospects) -> Mapping[str, Amount]:
    least: dict[str, Amount] | None = None
    for candidate in prospects.eligible:
        own: dict[str, Amount] = defaultdict(int)
        # A device that can be chosen again without drawing makes the request cost nothing.
        if problem.ledger.draws(candidate) and not problem.ledger.shares(candidate):
            for id_, needed in candidate.consumes:
                own[id_.counter] += needed
        least = own if least is None else {name: min(least[name], own[name]) for name in least if name in own}
    return least or {}


# -- what is left for each request during the search


class _Part:
    """The devices of one request that draw on one counter set."""

    def __init__(self, ledger: Ledger, members: Sequence[Candidate]) -> None:
        self._left = ledger.left_for(members[0])
        self._most = len(members)
        self._least = [(id_, needed) for id_, needed in _least(members).items() if needed > 0]

    def room(self) -> int:
        """How often the least that any of them draws goes into what is left, for the scarcest counter."""
        left, room = self._left, self._most
        for id_, needed in self._least:
            times = left[id_] // needed
            if times < room:
                room = int(times)
        return max(room, 0)


class Room:
    """How many devices a request can still get at most if the others get none; kept up to date step by step."""

    def __init__(self, prospects: Prospects, ledger: Ledger, taken: Iterable[Candidate]) -> None:
        """`ledger` is that of the search, which has `taken` these."""
        self.needed = prospects.count
        members: dict[CounterSetId, list[Candidate]] = defaultdict(list)
        alone: list[Candidate] = []
        for candidate in prospects.eligible:
            # A device that is shared already draws nothing more.
            if len(candidate.counter_sets) == 1 and not ledger.shares(candidate):
                members[candidate.counter_sets[0]].append(candidate)
            else:
                alone.append(candidate)
        self._parts = {key: _Part(ledger, own) for key, own in members.items()}
        self._rooms = {key: part.room() for key, part in self._parts.items()}
        self.left = len(alone) + sum(self._rooms.values())
        self._once = {item for item in alone if not (prospects.wanted.admin_access or ledger.shares(item))}
        """Devices that no other request gets, but for admin access."""
        self._holders = Counter(item for item in taken if item in self._once)
        self.left -= len(self._holders)

    def update(self, candidate: Candidate, sign: int) -> None:
        """The device was taken (-1) or given back (1)."""
        if candidate in self._once:
            before = self._holders[candidate] > 0
            self._holders[candidate] -= sign
            self.left += before - (self._holders[candidate] > 0)
        for key in candidate.counter_sets:
            part = self._parts.get(key)
            if part is not None:
                room = part.room()
                self.left += room - self._rooms[key]
                self._rooms[key] = room
