"""What spares a search work and never changes its answer: bounds that no choice can beat, and what is equivalent. Pure.

A bound says "impossible" only where the exhaustive search would find nothing. This is worth its price only to a search
that turned back, so no other asks for it.

`Symmetry`: a device is skipped when a twin that comes first was tried in the same place and led nowhere: a solution
with the later one, the twins changed for each other in what is still to be chosen, would be a solution that the search
had met before. In the same way the search does not continue from a state like one from which it failed. Everything is
numbered, and what follows from a number and a choice is remembered, because a search asks for it after every step.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
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
    """What a search must solve, before anything is chosen."""

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

    def constrained(self) -> Iterator[tuple[AnyConstraint, list[Prospects]]]:
        """Each constraint, with those of `certain` that it covers."""
        for claim, constraints in zip(self.requests, self.constraints, strict=True):
            alone = [item[0] for item in claim if len(item) == 1]
            for constraint in constraints:
                yield constraint, [self.prospects[wanted] for wanted in alone if constraint.covers(wanted.name)]


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
    for constraint, covered in problem.constrained():
        if isinstance(constraint, MatchAttribute) and covered:
            groups = [_by_value(constraint, prospects) for prospects in covered]
            if not any(_group_is_enough(problem, covered, groups, value) for value in groups[0]):
                return _match_sentence(constraint, covered, groups)
    return None


def _too_few_that_differ(problem: SearchProblem) -> str | None:
    """A distinctAttribute that has too few values for the requests that it covers.

    In the end each request has a value of its own: that of its last device. `_paired` finds the most requests that can
    have one.
    """
    for constraint, covered in problem.constrained():
        if not isinstance(constraint, DistinctAttribute):
            continue
        for prospects in covered:
            if (why := _too_few_turns(constraint, prospects)) is not None:
                return why
        values = [frozenset(_by_value(constraint, prospects)) for prospects in covered]
        known = len(frozenset[Value]().union(*values))
        # While its devices are chosen, a request of several needs two values besides those of the requests before.
        needed = max((place + min(prospects.count, 2) for place, prospects in enumerate(covered)), default=0)
        if needed > known or _paired(values) < len(covered):
            whose = f"{len(covered)} requests need" if len(covered) > 1 else f"{covered[0].wanted} needs"
            have = f"their devices have {how_many(known, 'value')}"
            return f"{whose} devices with different {constraint.attribute}; {have}"
    return None


def _too_few_turns(constraint: DistinctAttribute, prospects: Prospects) -> str | None:
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


def _by_value(constraint: AnyConstraint, prospects: Prospects) -> _Groups:
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
    best = "no device has it"
    if largest:
        ((_, value), size) = largest[0]
        text = str(value).lower() if isinstance(value, bool) else str(value)
        best = f'the largest group has {size} ("{text}")'
    whose = f"{covered[0].wanted} needs" if len(covered) == 1 else f"{len(covered)} requests need"
    return f"{whose} {how_many(needed, 'device')} with one {constraint.attribute}; {best}"


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
    for prospects in problem.certain:
        fits = room(problem.ledger, prospects.eligible)
        if fits < prospects.count:
            needed = how_many(prospects.count, "device")
            return f"{prospects.wanted} needs {needed}; their shared counters leave room for {fits}"
    return None


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


type Twins = tuple[int, int, int]
"""Equal for equivalent devices."""


class Symmetry:
    """The state of a search up to what is alike. Every `take` and `settle` can be given back, last one first.

    Two devices look the same when every request may have both or none, their attributes agree wherever a constraint
    looks, and they give and draw the same. Those without counters that look the same and are taken in the same way are
    twins; with counters they are when their sets are of one kind (the same was left in them, and devices that look the
    same draw on them) and the same is taken from them.
    """

    def __init__(self, problem: SearchProblem) -> None:
        self._by_claim = any(prospect.wanted.admin_access for prospect in problem.prospects.values())
        self.minds_order = any(_minds_order(problem, claim) for claim in range(len(problem.requests)))
        """Whether the number from which the search continues in its request is a part of the state. Otherwise what can
        be reached with devices before it was tried before."""
        candidates = problem.site.candidates
        looks: Mapping[Candidate, Hashable] = {item: _look(problem, item) for item in candidates}
        kinds: Mapping[CounterSetId, Hashable] = {} if self.minds_order else _kinds_of_sets(problem, looks)
        self._numbers: dict[Hashable, int] = {}
        self._values: list[Hashable] = []
        self._following: dict[Hashable, int] = {}
        """A collection after a change, by collection and change."""
        self._nothing = self._number(frozenset[object]())
        self._looks: dict[Candidate, int] = {}
        self._homes: dict[Candidate, CounterSetId | None] = {}
        for candidate in candidates:
            sets = candidate.counter_sets
            is_like_others = not self.minds_order and (not sets or (len(sets) == 1 and sets[0] in kinds))
            self._homes[candidate] = sets[0] if sets and is_like_others else None
            self._looks[candidate] = self._number(looks[candidate] if is_like_others else candidate)
        self._taken = dict.fromkeys(candidates, self._nothing)
        """What of each device is taken: a collection of marks."""
        self._contents: dict[CounterSetId | None, int] = {
            home: self._number((kind, frozenset[object]())) for home, kind in kinds.items()
        }
        """What is taken from each set: a kind, and a collection of looks and of what is taken of the devices."""
        self._contents[None] = self._number((None, frozenset[object]()))
        self.state = self._number(("all", frozenset(Counter((0, item) for item in self._contents.values()).items())))
        """Equal for states from which the same can be reached, but for what constraints know."""
        self._before: list[tuple[Candidate, int, int, int]] = []

    def twins(self, candidate: Candidate) -> Twins:
        return self._looks[candidate], self._taken[candidate], self._contents[self._homes[candidate]]

    def take(self, candidate: Candidate, claim: int, share: Hashable, *, goes_on: bool = True) -> None:
        """`share` is what is taken of a shareable device. A request that continues gets no second share of it."""
        mark = self._number((claim if self._by_claim else None, share, share is not None and goes_on))
        self._change(candidate, self._exchanged(self._taken[candidate], None, mark))

    def settle(self, candidate: Candidate, claim: int, share: Hashable) -> None:
        """The request that the share is for has all its devices."""
        by_claim = claim if self._by_claim else None
        current, settled = self._number((by_claim, share, True)), self._number((by_claim, share, False))
        self._change(candidate, self._exchanged(self._taken[candidate], current, settled))

    def give_back(self) -> None:
        candidate, taken, content, self.state = self._before.pop()
        self._taken[candidate] = taken
        self._contents[self._homes[candidate]] = content

    # -- inside

    def _number(self, value: Hashable) -> int:
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self._values)
            self._values.append(value)
        return number

    def _change(self, candidate: Candidate, after: int) -> None:
        home, before = self._homes[candidate], self._taken[candidate]
        content = self._contents[home]
        self._before.append((candidate, before, content, self.state))
        self._taken[candidate] = after
        key = content, self._looks[candidate], before, after
        following = self._following.get(key)
        if following is None:
            look = self._looks[candidate]
            gone = (look, before) if before != self._nothing else None
            following = self._following[key] = self._exchanged(content, gone, (look, after))
        self._contents[home] = following
        self.state = self._exchanged(self.state, (0, content), (0, following))

    def _exchanged(self, collection: int, gone: Hashable, come: Hashable) -> int:
        """The collection without one thing and with another."""
        key = collection, gone, come
        following = self._following.get(key)
        if following is None:
            value = self._values[collection]
            kind, items = value if isinstance(value, tuple) else (None, value)
            assert isinstance(items, frozenset)
            counts = Counter(dict(items))
            counts[come] += 1
            if gone is not None:
                counts[gone] -= 1
            left = frozenset((member, count) for member, count in counts.items() if count)
            following = self._following[key] = self._number((kind, left) if isinstance(value, tuple) else left)
        return following


def _minds_order(problem: SearchProblem, claim: int) -> bool:
    """distinctAttribute remembers one value per request, so of several devices in it the order counts."""
    distinct = [constraint for constraint in problem.constraints[claim] if isinstance(constraint, DistinctAttribute)]
    return any(
        constraint.covers(wanted.name) and problem.prospects[wanted].count > 1
        for constraint in distinct
        for alternatives in problem.requests[claim]
        for wanted in alternatives
    )


def _look(problem: SearchProblem, candidate: Candidate) -> Hashable:
    """What requests, constraints and counters see of the device."""
    serves = tuple(candidate in prospect.eligible_set for prospect in problem.prospects.values())
    values = tuple(constraint.values(candidate) for claim in problem.constraints for constraint in claim)
    draws = tuple(sorted((id_.counter, needed) for id_, needed in candidate.consumes))
    return serves, values, draws, problem.ledger.stock(candidate)


def _kinds_of_sets(problem: SearchProblem, looks: Mapping[Candidate, Hashable]) -> dict[CounterSetId, Hashable]:
    """Equal for counter sets of one kind; without those that a device draws on together with another set."""
    members: dict[CounterSetId, list[Candidate]] = defaultdict(list)
    for candidate in problem.site.candidates:
        for counter_set in candidate.counter_sets:
            members[counter_set].append(candidate)
    kinds: dict[CounterSetId, Hashable] = {}
    for key, own in members.items():
        if all(len(item.counter_sets) == 1 for item in own):
            left = problem.ledger.left_for(own[0])
            amounts = sorted((id_.counter, amount) for id_, amount in left.items() if (id_.slice, id_.set) == key[1:])
            kinds[key] = (tuple(amounts), frozenset(Counter(looks[item] for item in own).items()))
    return kinds
