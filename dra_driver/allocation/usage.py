"""Counters and capacities in use during a search: what claims hold, and what was chosen so far. Pure.

A device draws on counters of its pool. A counter that is overdrawn, because a slice changed after devices were given
away, blocks every device of its pool that draws on any counter. A device that several claims may hold has amounts to
share out; it draws on its counters once, with its first share.

Source: kubernetes/dynamic-resource-allocation, structured allocator ("incubating"), Kubernetes 1.36; KEP-4815, 5075.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property

from dra_driver.allocation.amounts import Amount, amount, amount_of, consumed, most
from dra_driver.allocation.behavior import Behavior
from dra_driver.allocation.requests import Cause, Refusal, Wanted
from dra_driver.allocation.snapshot import UNUSED, Candidate, CounterId, Pool, PoolId, PoolUsage, Usage
from dra_driver.quantity import Quantity


class Ledger:
    """What is left in the pools of one node. Every `take` can be given back, last one first."""

    def __init__(self, pools: Sequence[Pool], usage: Usage, behavior: Behavior) -> None:
        self._behavior = behavior
        self._usage = usage
        self._pools = pools
        self._shares: dict[Candidate, list[Mapping[str, Amount]]] = defaultdict(list)
        """Chosen in this search."""
        self._known: dict[tuple[Wanted, Candidate], Mapping[str, tuple[Amount | None, Amount]]] = {}

    @cached_property
    def left(self) -> dict[PoolId, dict[CounterId, Amount]]:
        """Of the counters of each pool that has some; negative when they are overdrawn."""
        counts_shares = self._behavior.counts_shares
        return {pool.id: _left(pool, self.usage_of(pool.id), counts_shares) for pool in self._pools if pool.counters}

    @cached_property
    def _blocked(self) -> dict[PoolId, str | None]:
        """The counter that was overdrawn before anything was chosen."""
        return {
            id_: next((item.counter for item, amount in left.items() if amount < 0), None)
            for id_, left in self.left.items()
        }

    # -- questions

    def usage_of(self, pool: PoolId) -> PoolUsage:
        """What claims hold of it."""
        return self._usage.pools.get(pool, UNUSED)

    def in_use(self, candidate: Candidate) -> bool:
        """Whether a claim holds the whole device."""
        return candidate.id.device in self.usage_of(candidate.pool).whole

    def shares(self, candidate: Candidate) -> bool:
        """Whether several claims may hold the device."""
        return candidate.shareable and self._behavior.consumable

    def stock(self, candidate: Candidate) -> Hashable:
        """What a shareable device offers, and what claims have of it; None for one that is given whole."""
        if not self.shares(candidate):
            return None
        has = sorted((name, repr(capacity)) for name, capacity in candidate.device.capacity.items())
        return tuple(has), tuple(sorted(self._usage.taken_of(candidate).items()))

    def share_of(self, wanted: Wanted, candidate: Candidate) -> Hashable:
        """What the request takes of a shareable device; None for one that is given whole."""
        if not self.shares(candidate):
            return None
        return tuple(self._share(wanted, candidate).items())

    def draws(self, candidate: Candidate) -> bool:
        """Whether choosing the device draws on counters: a shareable one does with its first share."""
        if not candidate.consumes:
            return False
        if self._behavior.draws_per_share:
            return True
        return not (self._shares.get(candidate) or (candidate.shareable and self._usage.taken_of(candidate)))

    def left_for(self, candidate: Candidate) -> Mapping[CounterId, Amount]:
        """The counters of the device's pool."""
        return self.left[candidate.pool]

    def short_of_counters(self, candidate: Candidate) -> Refusal | None:
        if not self.draws(candidate):
            return None
        id_ = candidate.pool
        if (counter := self._blocked[id_]) is not None:
            return Refusal(Cause.COUNTERS, f"of a pool whose counter {counter} is overdrawn")
        left = self.left[id_]
        for counter_id, needed in candidate.consumes:
            if left[counter_id] < needed:
                return Refusal(Cause.COUNTERS, f"short of counter {counter_id.counter}")
        return None

    def short_of_capacity(self, wanted: Wanted, candidate: Candidate) -> Refusal | None:
        """Whether what the request takes of the device's capacities fits beside what is taken already."""
        shares, held = self._shares.get(candidate), self._usage.taken_of(candidate)
        if not (wanted.capacity or shares or held):
            return None
        for name in wanted.capacity:
            if name not in candidate.device.capacity:
                return Refusal(Cause.CAPACITY, f"without capacity {name}")
        for name, (taking, total) in self._amounts(wanted, candidate).items():
            if taking is None or taking > total:
                capacity, requested = candidate.device.capacity[name], wanted.capacity.get(name)
                few = f"with at most {most(capacity)} of {name} for one claim" if capacity.request_policy else None
                return Refusal(Cause.CAPACITY, few or f"with less than {requested} of {name}")
            if (shares or held) and self._taken(candidate, name) + taking > total:
                beside = " beside the pod's other requests" if shares else ""
                return Refusal(Cause.CAPACITY, f"without enough {name} left{beside}")
        return None

    def consumption(self, wanted: Wanted, candidate: Candidate) -> dict[str, Quantity]:
        """What a share of the device takes of each of its capacities, for a request that was found to fit."""
        amounts: dict[str, Quantity] = {}
        for name, capacity in candidate.device.capacity.items():
            taking = consumed(wanted.capacity.get(name), capacity, self._behavior)
            assert taking is not None, f"{candidate} has no such amount of {name}"
            amounts[name] = taking
        return amounts

    def _amounts(self, wanted: Wanted, candidate: Candidate) -> Mapping[str, tuple[Amount | None, Amount]]:
        """What a share takes of each capacity (None: no such amount can be had), and what the device has, by name."""
        key = wanted, candidate
        if key not in self._known:
            amounts: dict[str, tuple[Amount | None, Amount]] = {}
            for name, capacity in sorted(candidate.device.capacity.items()):
                taking = consumed(wanted.capacity.get(name), capacity, self._behavior)
                amounts[name] = None if taking is None else amount_of(taking), amount(capacity.value)
            self._known[key] = amounts
        return self._known[key]

    def _share(self, wanted: Wanted, candidate: Candidate) -> dict[str, Amount]:
        return {name: taking for name, (taking, _) in self._amounts(wanted, candidate).items() if taking is not None}

    # -- changes

    def take(self, wanted: Wanted, candidate: Candidate) -> None:
        if self.draws(candidate):
            self._draw(candidate, -1)
        if self.shares(candidate):
            self._shares[candidate].append(self._share(wanted, candidate))

    def give_back(self, candidate: Candidate) -> None:
        if self.shares(candidate):
            self._shares[candidate].pop()
        if self.draws(candidate):
            self._draw(candidate, 1)

    # -- inside

    def _taken(self, candidate: Candidate, name: str) -> Amount:
        held = self._usage.taken_of(candidate).get(name, 0)
        return held + sum(share.get(name, 0) for share in self._shares.get(candidate, ()))

    def _draw(self, candidate: Candidate, sign: int) -> None:
        left = self.left[candidate.pool]
        for id_, needed in candidate.consumes:
            left[id_] += sign * needed


def _left(pool: Pool, usage: PoolUsage, counts_shares: bool) -> dict[CounterId, Amount]:
    """What claims leave of the pool's counters, on all nodes."""
    left = dict(pool.counters)
    for name in {*usage.whole, *usage.shared} if usage.shared and counts_shares else usage.whole:
        for id_, needed in pool.draws.get(name, ()):
            left[id_] -= needed
    return left
