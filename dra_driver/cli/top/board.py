"""What `dractl top` knows, by node: a change of one object costs the decisions about its node only. Pure."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dra_driver.api.core import Key, Pod
from dra_driver.api.meta import NODE_INVENTORIES, NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, JsonObject, Resource
from dra_driver.api.resource import ResourceClaim, ResourceSlice
from dra_driver.cli.tables.seen import READ_AS, SHOWN, TAINT_RULES, ClusterSeen, NodeOverview
from dra_driver.cli.tables.usage import claims_of_pod, waits_for_devices

type PoolKey = tuple[str, str]
"""Driver and name."""

EXPORTERS: Mapping[str, str] = {"app": "nvidia-dcgm-exporter", "app.kubernetes.io/name": "dcgm-exporter"}
"""Labels of the pods of NVIDIA's DCGM exporter, as the GPU Operator and as its own chart make them."""
_AT_ONCE = 20
"""Nodes that are decided about before keys are read or requests are answered again."""
NOWHERE = "-"
"""Instead of the node of slices that are not for one node."""


def is_exporter(labels: Mapping[str, str]) -> bool:
    return any(labels.get(name) == value for name, value in EXPORTERS.items())


def _with_claims_or_exporter(obj: JsonObject) -> Pod | None:
    return Pod.of(obj) if is_exporter(obj["metadata"].get("labels") or {}) else READ_AS[PODS](obj)


FOLLOWED: Mapping[Resource, Callable[[JsonObject], Any]] = {
    **{kind: READ_AS[kind] for kind in SHOWN},
    PODS: _with_claims_or_exporter,
}
"""The kinds whose changes a board takes."""


@dataclass(frozen=True)
class KnownGpus:
    """What there is to show. `use` is the utilization of GPUs in percent, by UUID; few clusters have it for all."""

    nodes: Mapping[str, NodeOverview]
    waiting: Mapping[str, Pod]
    """Pods with claims that no scheduler has found a node for, by `namespace/name`."""
    pods: Mapping[str, Pod]
    """Those that have a node, in the same way."""
    use: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()
    """What is still read, and what cannot be."""

    @classmethod
    def of(cls, nodes: Iterable[NodeOverview], waiting: Iterable[Pod]) -> "KnownGpus":
        """Of what was read once."""
        return cls({node.name: node for node in nodes}, {str(pod): pod for pod in waiting}, {})

    @cached_property
    def gpus(self) -> int:
        return sum(node.count for node in self.nodes.values())

    @cached_property
    def unhealthy(self) -> int:
        return sum(node.unhealthy for node in self.nodes.values())

    @cached_property
    def states(self) -> Counter[str]:
        """GPUs of all nodes by state."""
        return sum((node.states for node in self.nodes.values()), Counter())


class Board:
    """Takes changes of objects, and decides again about the nodes that these are about when it is asked to."""

    def __init__(self, driver: str, minor: int) -> None:
        self._driver = driver
        self._minor = minor
        self._objects: dict[Resource, dict[Key, Any]] = {kind: {} for kind in SHOWN}
        self._slices: defaultdict[str, dict[Key, ResourceSlice]] = defaultdict(dict)
        self._claims: defaultdict[PoolKey, dict[Key, ResourceClaim]] = defaultdict(dict)
        self._pods: defaultdict[str, dict[Key, Pod]] = defaultdict(dict)
        self._nodes_of: defaultdict[PoolKey, set[str]] = defaultdict(set)
        self._waiting: dict[str, Pod] = {}
        self._placed: dict[str, Pod] = {}
        self._stale: dict[str, None] = {}
        self.nodes: dict[str, NodeOverview] = {}

    # -- changes

    def learn(self, kind: Resource, key: Key, before: Any, after: Any) -> None:
        """`before` None: it is new; `after` None: it is gone."""
        _put(self._objects[kind], key, after)
        if kind == RESOURCE_SLICES:
            self._learn_slice(key, before, after)
        elif kind == RESOURCE_CLAIMS:
            self._learn_claim(key, before, after)
        elif kind == PODS:
            self._learn_pod(key, before, after)
        elif kind in TAINT_RULES:
            self._stale |= dict.fromkeys(self._slices)
        elif kind in (NODES, NODE_INVENTORIES) and (kind == NODE_INVENTORIES or key[1] in self._slices):
            self._stale[key[1]] = None

    def _learn_slice(self, key: Key, before: ResourceSlice | None, after: ResourceSlice | None) -> None:
        for slice_ in (before, after):
            if slice_ is not None:
                node = slice_.spec.node_name or NOWHERE
                self._nodes_of[slice_.spec.driver, slice_.spec.pool.name].add(node)
                _put(self._slices[node], key, after if slice_ is after else None)
                self._stale[node] = None

    def _learn_claim(self, key: Key, before: ResourceClaim | None, after: ResourceClaim | None) -> None:
        for claim in (before, after):
            for pool in _pools(claim):
                _put(self._claims[pool], key, after if claim is after else None)
                self._stale |= dict.fromkeys(self._nodes_of[pool])

    def _learn_pod(self, key: Key, before: Pod | None, after: Pod | None) -> None:
        for pod in (before, after):
            if pod is not None and pod.node is not None:
                _put(self._pods[pod.node], key, after if pod is after else None)
                if pod.node in self._slices:
                    self._stale[pod.node] = None
        name = "/".join(key)
        _put(self._waiting, name, after if after is not None and waits_for_devices(after) else None)
        _put(self._placed, name, after if after is not None and after.node is not None else None)

    # -- decisions

    @property
    def stale(self) -> int:
        """Nodes to decide about again."""
        return len(self._stale)

    @property
    def notes(self) -> list[str]:
        """A note while there is much to decide about."""
        return [f"{self.stale} nodes to look at"] if self.stale > _AT_ONCE else []

    def refresh(self, most: int = _AT_ONCE) -> None:
        """Decide again about so many of the nodes that changed, first come first served."""
        for name in list(self._stale)[:most]:
            del self._stale[name]
            _put(self.nodes, name, self._overview(name))

    def _overview(self, name: str) -> NodeOverview | None:
        slices = self._slices.get(name) or {}
        pools = {(slice_.spec.driver, slice_.spec.pool.name) for slice_ in slices.values()}
        claims = {key: claim for pool in sorted(pools) for key, claim in self._claims[pool].items()}
        key = ("", name)
        objects = {
            RESOURCE_SLICES: tuple(slices.values()),
            RESOURCE_CLAIMS: tuple(claims.values()),
            PODS: tuple(self._pods[name].values()),
            **{kind: _at(self._objects[kind], key) for kind in (NODES, NODE_INVENTORIES)},
            **{kind: tuple(self._objects[kind].values()) for kind in TAINT_RULES},
        }
        overviews = ClusterSeen.of(objects, self._minor).overviews(self._driver)
        return next((overview for overview in overviews if overview.name == name), None)

    def known(self, use: Mapping[str, float], notes: Sequence[str]) -> KnownGpus:
        """A view of what is known now; it changes with the board."""
        return KnownGpus(self.nodes, self._waiting, self._placed, use, notes)

    def exporters(self, nodes: Iterable[str]) -> list[Pod]:
        """The pods of the DCGM exporter on these nodes."""
        pods = (pod for node in nodes for pod in self._pods.get(node, {}).values())
        return [pod for pod in pods if is_exporter(pod.metadata.labels)]


def _put[K, V](items: dict[K, V], key: K, value: V | None) -> None:
    if value is None:
        items.pop(key, None)
    else:
        items[key] = value


def _at(items: Mapping[Key, Any], key: Key) -> tuple[Any, ...]:
    item = items.get(key)
    return () if item is None else (item,)


def _pools(claim: ResourceClaim | None) -> set[PoolKey]:
    return {(result.driver, result.pool) for result in claim.results} if claim is not None else set()


def uses(pod: Pod, claim: str) -> bool:
    """Whether the pod uses the claim `namespace/name`."""
    return any(f"{pod.namespace}/{name}" == claim for name in claims_of_pod(pod).values())
