"""Everything that the search may look at: published devices, the pools that a node sees, what claims hold. Immutable.

A pool is what one driver publishes under one name. A node sees those of its slices that are for the node, and every
slice with counters: partitions on one node may draw on the same counters as those on another.

Source: kubernetes/dynamic-resource-allocation, pool gathering of the structured allocator, Kubernetes 1.36.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from operator import is_
from types import MappingProxyType
from typing import NamedTuple

from dra_driver.allocation.amounts import Amount, amount
from dra_driver.allocation.behavior import CURRENT, Behavior
from dra_driver.allocation.nodes import NodeView, selector_matches
from dra_driver.allocation.requests import Alternatives, checked_requests
from dra_driver.allocation.selection import Failure, SelectorFacts, Selectors, never
from dra_driver.api.resource import (
    Allocation,
    Device,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
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
            (CounterId(owner, consumes_counter.counter_set, name), amount(value.value))
            for consumes_counter in self.device.consumes_counters or ()
            for name, value in consumes_counter.counters.items()
        )

    @cached_property
    def facts(self) -> SelectorFacts:
        """For selectors."""
        return SelectorFacts(self.id.driver, self.device)

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
        spec = slice_.spec
        self._slice = slice_
        self.name = slice_.metadata.name
        self.pool: PoolId = (spec.driver, spec.pool.name)
        self.generation = spec.pool.generation
        self.node_name = spec.node_name
        self.slices_of_pool = spec.pool.resource_slice_count
        """How many slices it says that its pool has."""
        self.has_counters = bool(spec.shared_counters)

    @property
    def slice(self) -> ResourceSlice:
        return self._slice

    @property
    def spec(self) -> ResourceSliceSpec:
        return self.slice.spec

    @property
    def model(self) -> "PublishedSlice":
        """A slice that says the same about devices and counters, names and texts of attributes aside: itself, or one
        that was read before, whose devices are typed already. See `dra_driver.allocation.alike`."""
        return self

    def look(self, _attributes: Collection[str]) -> Hashable:
        """Equal for slices with the same `model` whose devices have equal values of these attributes. None for a slice
        that is not for one node alone."""
        return None if self.node_name is None else (self, ())

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        return tuple(
            Candidate(DeviceId(*self.pool, device.name), device, self.slice) for device in self.spec.devices or ()
        )

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(device.name for device in self.spec.devices or ())

    @cached_property
    def size(self) -> int:
        """How many devices it has."""
        return len(self.model.spec.devices or ())

    @cached_property
    def drawing(self) -> tuple[Candidate, ...]:
        """Devices that draw on counters."""
        return tuple(candidate for candidate in self.candidates if candidate.consumes) if self.draws else ()

    @cached_property
    def draws(self) -> bool:
        """Whether it has devices that draw on counters."""
        return any(device.consumes_counters for device in self.model.spec.devices or ())

    @cached_property
    def drawn(self) -> frozenset[CounterId]:
        """Counters that its devices draw on."""
        return frozenset(id_ for candidate in self.drawing for id_, _ in candidate.consumes)

    @cached_property
    def owner(self) -> SliceId:
        """Of its counter sets: beside devices, as in 1.34, they belong to the slice; see Candidate.consumes."""
        return self.name if self.size else ""

    @cached_property
    def counter_sets(self) -> Sequence[str]:
        return [shared_counter.name for shared_counter in self.model.spec.shared_counters or ()]

    @cached_property
    def counters(self) -> Mapping[CounterId, Amount] | None:
        """What all its counter sets have; None when two of them have one name."""
        if len(set(self.counter_sets)) < len(self.counter_sets):
            return None
        return {
            CounterId(self.owner, shared_counter.name, name): amount(counter.value)
            for shared_counter in self.model.spec.shared_counters or ()
            for name, counter in shared_counter.counters.items()
        }

    @cached_property
    def attached(self) -> bool:
        """Whether it has devices that are attached after the decision."""
        return any(device.binding_conditions is not None for device in self.model.spec.devices or ())

    def is_for(self, node: NodeView) -> bool:
        """Whether the node can use some of these devices."""
        if self.model.spec.per_device_node_selection:
            return any(candidate.is_for(node) for candidate in self.candidates)
        return self.node_name == node.name if self.node_name is not None else _selects(self.spec, node)


def _selects(selection: ResourceSliceSpec | Device, node: NodeView) -> bool:
    """Slices and devices say in the same fields which nodes they are for; one that says nothing is for none."""
    if selection.node_name is not None:
        return selection.node_name == node.name
    if selection.node_selector is not None:
        return selector_matches(selection.node_selector, node)
    return bool(selection.all_nodes)


@dataclass(frozen=True, slots=True)
class SelectedDevices:
    """What a list of selectors makes of a pool's devices."""

    matching: tuple[Candidate, ...]
    failing: Mapping[Candidate, Failure]


type Selected = tuple[int, Candidate, Failure | None]
"""A device, its index in the pool, and how selectors fail on it."""


@dataclass(frozen=True, slots=True)
class PoolProblem:
    """`text` continues the pool's name. `lasting`: it stays until the driver publishes something else."""

    text: str
    lasting: bool = False

    def __str__(self) -> str:
        return self.text


class Pool:
    """The devices of one pool that a node can use, in order. `problem` says why none of them may be chosen.

    `elsewhere` are devices that draw on the pool's counters and are not for this node.
    """

    def __init__(
        self,
        id_: PoolId,
        offering: Sequence[PublishedSlice],
        selectors: Selectors,
        problem: "PoolProblem | None" = None,
        counters: Mapping[CounterId, Amount] = MappingProxyType({}),
        elsewhere: tuple[Candidate, ...] = (),
        slices: Sequence[PublishedSlice] = (),
    ) -> None:
        """`slices` are those of the devices and of the counters."""
        self.id = id_
        self.driver, self.name = id_
        self.problem = problem
        self.counters = counters
        self.elsewhere = elsewhere
        self._offering = offering
        self._slices = slices
        self._selectors = selectors
        self._selected: dict[tuple[str, ...], Sequence[Selected]] = {}
        self._selections: dict[tuple[str, ...], SelectedDevices] = {}

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        if len(self._offering) == 1:
            return self._offering[0].candidates
        return tuple(candidate for slice_ in self._offering for candidate in slice_.candidates)

    @property
    def size(self) -> int:
        return sum(len(slice_.names) for slice_ in self._offering)

    @property
    def attached(self) -> bool:
        """Whether it has devices that are attached after the decision: it comes last."""
        return any(slice_.attached for slice_ in self._offering)

    def look(self, attributes: Collection[str]) -> Hashable:
        """Equal for pools that serve requests equally which read these attributes, as long as nothing is held of them.
        None for a pool that has a problem, or a slice that is not for one node alone."""
        looks = tuple(slice_.look(attributes) for slice_ in self._slices)
        return (self.driver, looks) if looks and None not in looks else None

    def is_used_up(self, names: Set[str]) -> bool:
        """Whether all its devices are among these."""
        return all(slice_.names <= names for slice_ in self._offering)

    @cached_property
    def draws(self) -> Mapping[str, tuple[tuple[CounterId, Amount], ...]]:
        """What each device draws on the counters, by name, on any node."""
        return {
            candidate.id.device: candidate.consumes
            for candidate in (*self.elsewhere, *self.candidates)
            if candidate.consumes
        }

    def selected(self, expressions: tuple[str, ...], enough: Callable[[], bool] = never) -> Iterable[Selected]:
        """The devices on which the selectors hold or fail, one after the other. The whole answer is kept. Raises
        OutOfTime when it is `enough`."""
        known = self._selected.get(expressions)
        return self._look(expressions, enough) if known is None else known

    def _look(self, expressions: tuple[str, ...], enough: Callable[[], bool]) -> Iterator[Selected]:
        results: list[Selected] = []
        question = self._selectors.question(expressions)
        for index, candidate in enumerate(self.candidates):
            verdict = question.verdict(candidate.facts, enough)
            if verdict is not False:
                results.append((index, candidate, None if verdict is True else verdict))
                yield results[-1]
        self._selected[expressions] = results

    def select(self, expressions: tuple[str, ...], enough: Callable[[], bool] = never) -> SelectedDevices:
        """The same for all devices, in another form; kept, too."""
        if expressions not in self._selections:
            results = list(self.selected(expressions, enough))
            matching = tuple(candidate for _, candidate, failure in results if failure is None)
            failing = {candidate: failure for _, candidate, failure in results if failure is not None}
            self._selections[expressions] = SelectedDevices(matching, failing)
        return self._selections[expressions]

    def __str__(self) -> str:
        return f"{self.driver}/{self.name}"


class Catalog:
    """All published slices as one scheduler sees them, ready to be asked for a node's pools. Made once per change."""

    def __init__(self, slices: Sequence[PublishedSlice], behavior: Behavior = CURRENT) -> None:
        self.behavior = behavior
        self._slices = slices
        self._selectors = Selectors(behavior.server)
        self._first: dict[str | None, PublishedSlice] = {}
        """By the one node that it is for; those that may be for several are under None."""
        self._more: dict[str | None, list[PublishedSlice]] = defaultdict(list)
        """The others of the same node. Most have one, and thousands of lists would take longer than all the rest."""
        self._counters: dict[PoolId, list[PublishedSlice]] = defaultdict(list)
        self._pools: dict[str, tuple[NodeView, tuple[Pool, ...]]] = {}
        partitionable, counters_apart = behavior.partitionable, behavior.counters_apart
        for slice_ in slices:
            if slice_.has_counters:
                if partitionable and counters_apart:
                    self._counters[slice_.pool].append(slice_)
                    continue
                if not partitionable:
                    continue
            # A scheduler without partitionable devices skips such a slice, too.
            elif not partitionable and slice_.model.spec.per_device_node_selection is not None:
                continue
            if self._first.setdefault(slice_.node_name, slice_) is not slice_:
                self._more[slice_.node_name].append(slice_)

    @cached_property
    def _known(self) -> Mapping[PoolId, Sequence[PublishedSlice]]:
        """All slices by pool, for all nodes."""
        known: dict[PoolId, list[PublishedSlice]] = defaultdict(list)
        for slice_ in self._slices:
            known[slice_.pool].append(slice_)
        return known

    def pools(self, node: NodeView) -> tuple[Pool, ...]:
        """The pools that a node sees, by driver and name; those with devices that are attached later come last."""
        seen = self._pools.get(node.name)
        if seen is None or seen[0].labels != node.labels:
            seen = self._pools[node.name] = (node, self._gathered(node))
        return seen[1]

    def _of_node(self, name: str | None) -> Sequence[PublishedSlice]:
        first = self._first.get(name)
        return () if first is None else (first, *self._more.get(name, ()))

    def _gathered(self, node: NodeView) -> tuple[Pool, ...]:
        usable: dict[PoolId, list[PublishedSlice]] = {}
        for slice_ in self._of_node(node.name):
            usable.setdefault(slice_.pool, []).append(slice_)
        for slice_ in self._of_node(None):
            if slice_.is_for(node):
                usable.setdefault(slice_.pool, []).append(slice_)
        results = [self._pool([*slices, *self._counters.get(id_, ())]) for id_, slices in usable.items()]
        results += [pool for id_, pool in self._troubled.items() if id_ not in usable]
        pools = [pool for pool in results if pool is not None]
        if len(pools) > 1:
            pools.sort(key=lambda pool: (pool.attached, pool.id))
        return tuple(pools)

    @cached_property
    def _troubled(self) -> Mapping[PoolId, Pool]:
        """Pools of which every node sees the counters, and with them that they are incomplete or invalid."""
        pools = {id_: self._pool(slices) for id_, slices in self._counters.items()}
        return {id_: pool for id_, pool in pools.items() if pool is not None and pool.problem is not None}

    def _pool(self, usable: Sequence[PublishedSlice]) -> Pool | None:
        """The pool as a node sees it that can use these slices: those of the newest generation among them.

        None when a newer generation has nothing for the node.
        """
        if len(usable) == 1 and usable[0].slices_of_pool == 1:
            return self._complete(usable, ())
        id_ = usable[0].pool
        newest = max(slice_.generation for slice_ in usable)
        current = sorted((slice_ for slice_ in usable if slice_.generation == newest), key=lambda slice_: slice_.name)
        everywhere: Sequence[PublishedSlice] = current
        if not _is_complete(current):
            if any(slice_.generation > newest for slice_ in self._known[id_]):
                return None
            everywhere = [slice_ for slice_ in self._known[id_] if slice_.generation == newest]
        if not _is_complete(everywhere):
            wanted = max(slice_.slices_of_pool for slice_ in everywhere)
            return Pool(id_, (), self._selectors, PoolProblem(_incomplete(len(everywhere), wanted)))
        mine = {slice_.name for slice_ in current}
        return self._complete(current, [slice_ for slice_ in everywhere if slice_.name not in mine])

    def _complete(self, current: Sequence[PublishedSlice], elsewhere: Sequence[PublishedSlice]) -> Pool:
        apart = self.behavior.counters_apart
        offering = [slice_ for slice_ in current if not (apart and slice_.has_counters)]
        drawing = [slice_ for slice_ in (*offering, *elsewhere) if slice_.draws]
        counters, problem = _counters(current) if self.behavior.partitionable else ({}, None)
        problem = _twice(offering) or problem
        if (
            problem is None
            and self.behavior.partitionable
            and not all(slice_.drawn <= counters.keys() for slice_ in drawing)
        ):
            problem = _unknown_counter([candidate for slice_ in drawing for candidate in slice_.drawing], counters)
        if problem is not None:
            return Pool(current[0].pool, (), self._selectors, PoolProblem(f"is invalid: {problem}", lasting=True))
        others = tuple(candidate for slice_ in elsewhere for candidate in slice_.drawing)
        return Pool(current[0].pool, offering, self._selectors, None, counters, others, current)


def _is_complete(slices: Sequence[PublishedSlice]) -> bool:
    return {slice_.slices_of_pool for slice_ in slices} == {len(slices)}


def _incomplete(number: int, wanted: int) -> str:
    if number < wanted:
        return f"is being updated: it has {number} of {wanted} slices"
    return f"is being updated: it has {number} slices, and some of them state another number"


def _twice(slices: Sequence[PublishedSlice]) -> str | None:
    if len(frozenset[str]().union(*(slice_.names for slice_ in slices))) == sum(slice_.size for slice_ in slices):
        return None
    names = Counter(device.name for slice_ in slices for device in slice_.spec.devices or ())
    return f"it has two devices called {min(name for name, count in names.items() if count > 1)}"


def _counters(slices: Sequence[PublishedSlice]) -> tuple[Mapping[CounterId, Amount], str | None]:
    """The counters of all sets, and what is wrong with them."""
    with_counters = [slice_ for slice_ in slices if slice_.has_counters]
    if len(with_counters) == 1 and with_counters[0].counters is not None:
        return with_counters[0].counters, None
    counters: dict[CounterId, Amount] = {}
    sets: set[tuple[SliceId, str]] = set()
    for counter in with_counters:
        for name in counter.counter_sets:
            if (counter.owner, name) in sets:
                return {}, f"it has two counter sets called {name}"
            sets.add((counter.owner, name))
        counters |= counter.counters or {}
    return counters, None


def _unknown_counter(candidates: Iterable[Candidate], counters: Mapping[CounterId, Amount]) -> str | None:
    for candidate in candidates:
        for id_, _ in candidate.consumes:
            if id_ not in counters:
                return f"device {candidate.id.device} draws on counter {id_.counter} of {id_.set}, which does not exist"
    return None


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

    def taken_of(self, candidate: Candidate) -> Mapping[str, Amount]:
        """What claims consume of the capacities of a device that is given away in parts."""
        return self.pools.get(candidate.pool, UNUSED).shared.get(candidate.id.device, {})

    def replaced(self, pools: Collection[PoolId], by: "Usage") -> "Usage":
        """With what `by` has of these pools."""
        others = {pool: used for pool, used in self.pools.items() if pool not in pools}
        return Usage(others | {pool: by.pools[pool] for pool in pools if pool in by.pools})

    def plus(self, *allocations: Allocation) -> "Usage":
        """With more allocations; this one stays as it is."""
        pools = dict(self.pools)
        whole: dict[PoolId, set[str]] = defaultdict(set)
        for result in (
            result for allocation in allocations for result in allocation.devices.results if not result.admin_access
        ):
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
    _asked: list[tuple[Sequence[ResourceClaim], list[list[Alternatives]]]] = field(
        default_factory=list, repr=False, compare=False
    )

    def requests(self, claims: Sequence[ResourceClaim]) -> list[list[Alternatives]]:
        """Checked once for all nodes, which are asked for the same claims one after the other."""
        for known, requests in self._asked:
            if len(known) == len(claims) and all(map(is_, known, claims)):
                return requests
        self._asked[:] = [(tuple(claims), checked_requests(claims, self.classes, self.catalog.behavior))]
        return self._asked[0][1]

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
