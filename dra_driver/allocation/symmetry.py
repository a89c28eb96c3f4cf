"""What is equivalent in a search: devices, and states from which the same can be reached. Pure.

A device is skipped when a twin that comes first was tried in the same place and led nowhere: a solution with the later
one, the twins changed for each other in what is still to be chosen, would be a solution that the search had met before.
In the same way the search does not continue from a state like one from which it failed.

Everything is numbered, and what follows from a number and a choice is remembered, because a search asks for it after
every step.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping

from dra_driver.allocation.constraints import DistinctAttribute
from dra_driver.allocation.shortcuts import SearchProblem
from dra_driver.allocation.snapshot import Candidate, CounterSetId

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
