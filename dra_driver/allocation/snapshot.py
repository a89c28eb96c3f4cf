"""Everything that the search may look at: published devices, the pools that a node sees, what claims hold. Immutable.

A pool is what one driver publishes under one name. A node sees those of its slices that are for the node, and every
slice with counters: partitions on one node may draw on the same counters as those on another.

Source: kubernetes/dynamic-resource-allocation, pool gathering of the structured allocator, Kubernetes 1.36.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from dra_driver.allocation.amounts import Amount, amount
from dra_driver.allocation.behaviour import CURRENT, Behaviour
from dra_driver.allocation.nodes import NodeView, selector_matches
from dra_driver.allocation.selection import Failure, Readability, Selectors
from dra_driver.api.resource import (
    Allocation,
    Device,
    DeviceClass,
    DeviceTaintRule,
    ResourceSlice,
    ResourceSliceSpec,
    Taint,
)
from dra_driver.names import DeviceId

type PoolId = tuple[str, str]
"""Driver and name."""

type SliceId = str


type CounterSetId = tuple[PoolId, SliceId, str]
"""The last one is its name."""


class CounterId(NamedTuple):
    """`slice` is empty where counter sets belong to the whole pool."""

    slice: SliceId
    set: str
    counter: str


class Candidate:
    """A published device, compared by identity."""

    def __init__(self, id_: DeviceId, device: Device, slice_: ResourceSlice) -> None:
        self.id = id_
        self.pool: PoolId = (id_.driver, id_.pool)
        self.device = device
        self.slice = slice_
        self.shareable = bool(device.allow_multiple_allocations)

    @cached_property
    def consumes(self) -> tuple[tuple[CounterId, Amount], ...]:
        """What it draws from the counters of its pool."""
        # Counter sets beside devices in one slice are the form of 1.34, where they belong to the slice.
        owner = self.slice.metadata.name if self.slice.spec.shared_counters else ""
        return tuple(
            (CounterId(owner, one.counter_set, name), amount(value.value))
            for one in self.device.consumes_counters or ()
            for name, value in one.counters.items()
        )

    @cached_property
    def readability(self) -> Readability:
        """Found once: looking at all attributes takes longer than most selectors."""
        return Readability.of(self.device)

    @cached_property
    def counter_sets(self) -> tuple[CounterSetId, ...]:
        """Those that it draws on."""
        return tuple(dict.fromkeys((self.pool, id_.slice, id_.set) for id_, _ in self.consumes))

    def is_for(self, node: NodeView) -> bool:
        """Whether the node can use it, of the nodes that its slice is for."""
        return not self.slice.spec.per_device_node_selection or _selects(self.device, node)

    def __repr__(self) -> str:
        return str(self.id)


class PublishedSlice:
    """A ResourceSlice with its devices; made once per version of the slice."""

    def __init__(self, slice_: ResourceSlice) -> None:
        self.slice = slice_
        self.name = slice_.metadata.name
        self.spec = slice_.spec
        self.pool: PoolId = (slice_.spec.driver, slice_.spec.pool.name)

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        return tuple(Candidate(DeviceId(*self.pool, one.name), one, self.slice) for one in self.spec.devices or ())

    def is_for(self, node: NodeView) -> bool:
        """Whether the node can use some of these devices."""
        if self.spec.per_device_node_selection:
            return any(one.is_for(node) for one in self.candidates)
        return _selects(self.spec, node)


def _selects(selection: ResourceSliceSpec | Device, node: NodeView) -> bool:
    """Slices and devices say in the same fields which nodes they are for; one that says nothing is for none."""
    if selection.node_name is not None:
        return selection.node_name == node.name
    if selection.node_selector is not None:
        return selector_matches(selection.node_selector, node)
    return bool(selection.all_nodes)


@dataclass(frozen=True, slots=True)
class Selection:
    """What a list of selectors makes of a pool's devices."""

    matching: tuple[Candidate, ...]
    failing: Mapping[Candidate, Failure]


@dataclass(frozen=True, eq=False)
class Pool:
    """The devices of one pool that a node can use, in order. `problem` says why none of them may be chosen.

    `elsewhere` are devices that draw on the pool's counters and are not for this node. `attached` are pools with
    devices that are attached after the decision: they come last.
    """

    driver: str
    name: str
    candidates: tuple[Candidate, ...]
    selectors: Selectors
    problem: str | None = None
    counters: Mapping[CounterId, Amount] = field(default_factory=dict)
    elsewhere: tuple[Candidate, ...] = ()
    _selections: dict[tuple[str, ...], Selection] = field(default_factory=dict)

    @property
    def id(self) -> PoolId:
        return self.driver, self.name

    @cached_property
    def attached(self) -> bool:
        return any(one.device.binding_conditions is not None for one in self.candidates)

    @cached_property
    def draws(self) -> Mapping[str, tuple[tuple[CounterId, Amount], ...]]:
        """What each device draws on the counters, by name, on whatever node it is."""
        return {one.id.device: one.consumes for one in (*self.elsewhere, *self.candidates) if one.consumes}

    def select(self, expressions: tuple[str, ...]) -> Selection:
        """Evaluated once; the answer is kept with the pool."""
        if expressions not in self._selections:
            self._selections[expressions] = _select(self.candidates, self.selectors, expressions)
        return self._selections[expressions]

    def __str__(self) -> str:
        return f"{self.driver}/{self.name}"


def _select(candidates: Iterable[Candidate], selectors: Selectors, expressions: tuple[str, ...]) -> Selection:
    matching: list[Candidate] = []
    failing: dict[Candidate, Failure] = {}
    for candidate in candidates:
        found = selectors.verdict(expressions, candidate.id.driver, candidate.device, candidate.readability)
        if found is True:
            matching.append(candidate)
        elif isinstance(found, Failure):
            failing[candidate] = found
    return Selection(tuple(matching), failing)


class Catalog:
    """All published slices as one scheduler sees them, ready to be asked for a node's pools. Made once per change."""

    def __init__(self, slices: Sequence[PublishedSlice], behaviour: Behaviour = CURRENT) -> None:
        self.behaviour = behaviour
        self._selectors = Selectors(behaviour.server)
        self._known: dict[PoolId, list[PublishedSlice]] = defaultdict(list)
        self._of_node: dict[str | None, list[PublishedSlice]] = defaultdict(list)
        """By the one node that they are for; those that may be for several are under None."""
        self._counters: dict[PoolId, list[PublishedSlice]] = defaultdict(list)
        self._pools: dict[str, tuple[NodeView, tuple[Pool, ...]]] = {}
        for one in slices:
            self._known[one.pool].append(one)
            if _is_beyond(one, behaviour):
                continue
            if behaviour.counters_apart and one.spec.shared_counters:
                self._counters[one.pool].append(one)
            else:
                self._of_node[one.spec.node_name].append(one)

    def pools(self, node: NodeView) -> tuple[Pool, ...]:
        """The pools that a node sees, by driver and name; those with devices that are attached later come last."""
        seen = self._pools.get(node.name)
        if seen is None or seen[0].labels != node.labels:
            seen = self._pools[node.name] = (node, self._gathered(node))
        return seen[1]

    def _gathered(self, node: NodeView) -> tuple[Pool, ...]:
        usable: dict[PoolId, list[PublishedSlice]] = defaultdict(list)
        for one in (*self._of_node.get(node.name, ()), *self._of_node.get(None, ())):
            if one.is_for(node):
                usable[one.pool].append(one)
        found = [self._pool([*slices, *self._counters.get(id_, ())]) for id_, slices in usable.items()]
        found += [pool for id_, pool in self._troubled.items() if id_ not in usable]
        pools = [pool for pool in found if pool is not None]
        return tuple(sorted(pools, key=lambda pool: (pool.attached, pool.id)))

    @cached_property
    def _troubled(self) -> Mapping[PoolId, Pool]:
        """Pools of which every node sees the counters, and with them that they are incomplete or invalid."""
        found = {id_: self._pool(slices) for id_, slices in self._counters.items()}
        return {id_: pool for id_, pool in found.items() if pool is not None and pool.problem is not None}

    def _pool(self, usable: Sequence[PublishedSlice]) -> Pool | None:
        """The pool as a node sees it that can use these slices: those of the newest generation among them.

        None when a newer generation has nothing for the node any more.
        """
        id_ = usable[0].pool
        newest = max(one.spec.pool.generation for one in usable)
        current = sorted((one for one in usable if one.spec.pool.generation == newest), key=_name)
        everywhere: Sequence[PublishedSlice] = current
        if not _is_complete(current):
            if any(one.spec.pool.generation > newest for one in self._known[id_]):
                return None
            everywhere = [one for one in self._known[id_] if one.spec.pool.generation == newest]
        if not _is_complete(everywhere):
            wanted = max(one.spec.pool.resource_slice_count for one in everywhere)
            return Pool(*id_, (), self._selectors, _incomplete(len(everywhere), wanted))
        mine = {one.name for one in current}
        return self._complete(current, [one for one in everywhere if one.name not in mine])

    def _complete(self, current: Sequence[PublishedSlice], elsewhere: Sequence[PublishedSlice]) -> Pool:
        apart = self.behaviour.counters_apart
        offering = [one for one in current if not (apart and one.spec.shared_counters)]
        candidates = tuple(candidate for one in offering for candidate in one.candidates)
        others = tuple(candidate for one in elsewhere for candidate in one.candidates if candidate.consumes)
        counters, problem = _counters(current) if self.behaviour.partitionable else ({}, None)
        problem = _twice(candidates) or problem
        if problem is None and self.behaviour.partitionable:
            problem = _unknown_counter((*candidates, *others), counters)
        if problem is not None:
            return Pool(*current[0].pool, (), self._selectors, f"is invalid: {problem}")
        return Pool(*current[0].pool, candidates, self._selectors, None, counters, others)


def _is_beyond(one: PublishedSlice, behaviour: Behaviour) -> bool:
    """Whether a scheduler without partitionable devices skips the slice."""
    needs = one.spec.per_device_node_selection is not None or bool(one.spec.shared_counters)
    return needs and not behaviour.partitionable


def _is_complete(slices: Sequence[PublishedSlice]) -> bool:
    return {one.spec.pool.resource_slice_count for one in slices} == {len(slices)}


def _incomplete(number: int, wanted: int) -> str:
    if number < wanted:
        return f"is being updated: it has {number} of {wanted} slices"
    return f"is being updated: it has {number} slices, which do not agree that there are {number}"


def _twice(candidates: Sequence[Candidate]) -> str | None:
    names = Counter(candidate.id.device for candidate in candidates)
    twice = sorted(name for name, count in names.items() if count > 1)
    return f"it has two devices called {twice[0]}" if twice else None


def _counters(slices: Sequence[PublishedSlice]) -> tuple[dict[CounterId, Amount], str | None]:
    """The counters of all sets, and what is wrong with them."""
    found: dict[CounterId, Amount] = {}
    sets: set[tuple[SliceId, str]] = set()
    for one in slices:
        # Beside devices, as in 1.34, they belong to the slice; see Candidate.consumes.
        owner = one.name if one.spec.devices else ""
        for counter_set in one.spec.shared_counters or ():
            if (owner, counter_set.name) in sets:
                return {}, f"it has two counter sets called {counter_set.name}"
            sets.add((owner, counter_set.name))
            for name, counter in counter_set.counters.items():
                found[CounterId(owner, counter_set.name, name)] = amount(counter.value)
    return found, None


def _unknown_counter(candidates: Iterable[Candidate], counters: Mapping[CounterId, Amount]) -> str | None:
    for candidate in candidates:
        for id_, _ in candidate.consumes:
            if id_ not in counters:
                return f"device {candidate.id.device} draws on counter {id_.counter} of {id_.set}, which does not exist"
    return None


def _name(one: PublishedSlice) -> str:
    return one.name


# -- what claims hold


@dataclass(frozen=True, slots=True)
class PoolUsage:
    """What claims hold of one pool, by device name: whole devices, and shares with what they consume of capacities."""

    whole: frozenset[str] = frozenset()
    shared: Mapping[str, Mapping[str, Amount]] = MappingProxyType({})

    def plus_share(self, device: str, capacity: Mapping[str, str]) -> "PoolUsage":
        before = self.shared.get(device, {})
        taken = {name: before.get(name, 0) + amount(value) for name, value in capacity.items()}
        return PoolUsage(self.whole, {**self.shared, device: {**before, **taken}})


UNUSED = PoolUsage()


@dataclass(frozen=True, slots=True)
class Usage:
    """What allocated claims hold, decisions that are not written yet included. Admin access holds nothing."""

    pools: Mapping[PoolId, PoolUsage] = MappingProxyType({})

    @classmethod
    def of(cls, allocations: Iterable[Allocation]) -> "Usage":
        return cls().plus(*allocations)

    def plus(self, *allocations: Allocation) -> "Usage":
        """With more allocations; this one stays as it is."""
        pools = dict(self.pools)
        whole: dict[PoolId, set[str]] = defaultdict(set)
        for result in (result for one in allocations for result in one.devices.results if not result.admin_access):
            id_ = (result.driver, result.pool)
            if result.share_id is None:
                whole[id_].add(result.device)
            else:
                pools[id_] = pools.get(id_, UNUSED).plus_share(result.device, result.consumed_capacity or {})
        for id_, names in whole.items():
            before = pools.get(id_, UNUSED)
            pools[id_] = PoolUsage(before.whole | names, before.shared)
        return Usage(pools)


@dataclass(frozen=True)
class Snapshot:
    """All that a decision looks at besides the claims and the node."""

    catalog: Catalog
    classes: Mapping[str, DeviceClass]
    usage: Usage = field(default_factory=Usage)
    taint_rules: Sequence[DeviceTaintRule] = ()

    def taints(self, candidate: Candidate) -> tuple[Taint, ...]:
        """The driver's own, and those of rules."""
        own = candidate.device.taints or ()
        if not self.taint_rules:
            return tuple(own)
        return (*own, *(rule.spec.taint for rule in self.taint_rules if _is_about(rule, candidate.id)))


def _is_about(rule: DeviceTaintRule, device: DeviceId) -> bool:
    selector = rule.spec.device_selector
    if selector is None:
        return False
    wanted = ((selector.driver, device.driver), (selector.pool, device.pool), (selector.device, device.device))
    return all(value is None or value == own for value, own in wanted)
