"""What the scheduler knows of devices: slices, and the pools that a node sees. Pure, immutable.

Source: kubernetes/dynamic-resource-allocation, pool gathering of the structured allocator, Kubernetes 1.36.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dra_driver.allocation.nodes import NodeView, selector_matches
from dra_driver.api.resource import Device, DeviceClass, ResourceSlice
from dra_driver.cel.device import CelDevice
from dra_driver.names import DeviceId


@dataclass(frozen=True, eq=False)
class Candidate:
    """A published device, compared by identity."""

    id: DeviceId
    device: Device
    slice: ResourceSlice

    @cached_property
    def cel(self) -> CelDevice:
        return CelDevice(self.id.driver, self.device)


class PublishedSlice:
    """A ResourceSlice with its devices; made once per version of the slice."""

    def __init__(self, slice_: ResourceSlice) -> None:
        self.slice = slice_
        self.spec = slice_.spec
        self.candidates = tuple(
            Candidate(DeviceId(self.spec.driver, self.spec.pool.name, device.name), device, slice_)
            for device in self.spec.devices or ()
        )

    def is_for(self, node: NodeView) -> bool:
        """Whether the node can use these devices."""
        spec = self.spec
        if spec.node_name is not None:
            return spec.node_name == node.name
        if spec.node_selector is not None:
            return selector_matches(spec.node_selector, node)
        return bool(spec.all_nodes)


@dataclass(frozen=True, slots=True)
class Pool:
    """The devices of one pool that a node can use, in order. `problem` says why none of them may be chosen."""

    driver: str
    name: str
    candidates: tuple[Candidate, ...]
    problem: str | None = None

    def __str__(self) -> str:
        return f"{self.driver}/{self.name}"


@dataclass(frozen=True)
class Snapshot:
    """All that a decision looks at besides the claims. `in_use` has no devices with admin access."""

    slices: Sequence[PublishedSlice]
    classes: Mapping[str, DeviceClass]
    in_use: frozenset[DeviceId] = frozenset()

    @cached_property
    def _by_pool(self) -> Mapping[tuple[str, str], list[PublishedSlice]]:
        pools: dict[tuple[str, str], list[PublishedSlice]] = defaultdict(list)
        for one in self.slices:
            pools[one.spec.driver, one.spec.pool.name].append(one)
        return pools

    @cached_property
    def _by_node(self) -> Mapping[str | None, list[PublishedSlice]]:
        """Slices by the one node that they are for; those that may be for several are under None."""
        nodes: dict[str | None, list[PublishedSlice]] = defaultdict(list)
        for one in self.slices:
            nodes[one.spec.node_name].append(one)
        return nodes

    def pools(self, node: NodeView) -> tuple[Pool, ...]:
        """The pools that a node sees, by driver and name."""
        usable: dict[tuple[str, str], list[PublishedSlice]] = defaultdict(list)
        for one in (*self._by_node.get(node.name, ()), *self._by_node.get(None, ())):
            if one.is_for(node):
                usable[one.spec.driver, one.spec.pool.name].append(one)
        found = (_pool(key, usable[key], self._by_pool[key]) for key in sorted(usable))
        return tuple(pool for pool in found if pool is not None)


def _pool(key: tuple[str, str], usable: Sequence[PublishedSlice], known: Sequence[PublishedSlice]) -> Pool | None:
    """The pool as the node sees it: its slices of the newest generation that are for the node.

    None when a newer generation has nothing for the node any more. `known` are the pool's slices for all nodes.
    """
    newest = max(one.spec.pool.generation for one in usable)
    current = sorted((one for one in usable if one.spec.pool.generation == newest), key=_slice_name)
    counted: Sequence[PublishedSlice] = current
    if not _is_complete(current):
        if any(one.spec.pool.generation > newest for one in known):
            return None
        counted = [one for one in known if one.spec.pool.generation == newest]
    candidates = tuple(candidate for one in current for candidate in one.candidates)
    if not _is_complete(counted):
        wanted = max(one.spec.pool.resource_slice_count for one in counted)
        return Pool(*key, candidates, f"is being updated: it has {len(counted)} of {wanted} slices")
    names = Counter(candidate.id.device for candidate in candidates)
    twice = sorted(name for name, count in names.items() if count > 1)
    return Pool(*key, candidates, f"is invalid: it has two devices called {twice[0]}" if twice else None)


def _is_complete(slices: Sequence[PublishedSlice]) -> bool:
    return {one.spec.pool.resource_slice_count for one in slices} == {len(slices)}


def _slice_name(one: PublishedSlice) -> str:
    return one.slice.metadata.name
