"""What commands show of a cluster: which kinds they read, how these become typed, and what follows together. Pure.

`dractl get` reads once. `top` and `ui` follow the cluster on a `Board`, where a change of one object costs the
decisions about its node only.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from dra_driver.allocation.behavior import Behavior
from dra_driver.allocation.headroom import Headroom, Largest, Shape
from dra_driver.allocation.nodes import NodeView
from dra_driver.allocation.snapshot import Catalog, PublishedSlice, Snapshot, Usage
from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.core import Key, Pod
from dra_driver.api.gpupolicy import SeenPolicy
from dra_driver.api.inventory import NodeInventory
from dra_driver.api.meta import (
    COMPUTE_DOMAINS,
    GPU_POLICIES,
    NODE_INVENTORIES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
    Resource,
)
from dra_driver.api.resource import DeviceTaintRule, ResourceClaim, ResourceSlice
from dra_driver.cli.tables.usage import (
    SHOWN_ATTRIBUTES,
    PublishedDevice,
    PublishedGpu,
    claims_of_pod,
    consumers_of,
    published_devices,
    published_gpus,
    waits_for_devices,
)
from dra_driver.grouping import grouped

TAINT_RULES = tuple(
    Resource("resource.k8s.io", version, "devicetaintrules", "DeviceTaintRule", False) for version in ("v1", "v1beta2")
)
"""In the versions that serve them, newest first."""

type Objects = Mapping[Resource, Sequence[Any]]
"""Typed objects by kind, as `READ_AS` types them."""
type Selection = tuple[str | None, str | None]
"""A namespace and a label selector; None for all."""


def _without_gpus(obj: JsonObject) -> NodeInventory:
    """Most of an inventory are facts of each GPU, and those that matter to who looks from outside are in slices."""
    return NodeInventory.of({**obj, "spec": {**obj["spec"], "gpus": []}})


def _with_claims(obj: JsonObject) -> Pod | None:
    """None for the many pods that have no claims."""
    if not obj["spec"].get("resourceClaims") and not (obj.get("status") or {}).get("extendedResourceClaimStatus"):
        return None
    return Pod.of(obj)


def _with_shown_attributes(obj: JsonObject) -> ResourceSlice:
    """Most of a large cluster are attributes that nothing here shows or selects by."""

    def shown(device: JsonObject) -> JsonObject:
        attributes = device.get("attributes") or {}
        return {**device, "attributes": {name: attributes[name] for name in _shown(tuple(attributes))}}

    devices = [shown(device) for device in obj["spec"].get("devices") or ()]
    return ResourceSlice.of({**obj, "spec": {**obj["spec"], "devices": devices}})


@lru_cache(1 << 10)
def _shown(attributes: tuple[str, ...]) -> tuple[str, ...]:
    """Most devices of a cluster have attributes of the same names."""
    return tuple(name for name in attributes if name.rpartition("/")[2] in SHOWN_ATTRIBUTES)


READ_AS: Mapping[Resource, Callable[[JsonObject], Any]] = {
    RESOURCE_SLICES: _with_shown_attributes,
    RESOURCE_CLAIMS: ResourceClaim.of,
    NODES: NodeView.read,
    NODE_INVENTORIES: _without_gpus,
    PODS: _with_claims,
    GPU_POLICIES: SeenPolicy.of,
    COMPUTE_DOMAINS: ComputeDomain.of,
    **dict.fromkeys(TAINT_RULES, DeviceTaintRule.of),
}
"""How each kind is read; None is left out."""

SHOWN = (RESOURCE_SLICES, RESOURCE_CLAIMS, NODES, NODE_INVENTORIES, PODS, *TAINT_RULES)
"""What `ClusterSeen` is made of. Slices and claims must be there to be read; all else only makes the answer better."""


class ClusterSeen:
    """The objects of `SHOWN` in a cluster of Kubernetes 1.`minor`."""

    def __init__(self, objects: Objects, minor: int) -> None:
        self.slices: Sequence[ResourceSlice] = objects.get(RESOURCE_SLICES, ())
        self.claims: Sequence[ResourceClaim] = objects.get(RESOURCE_CLAIMS, ())
        self.nodes: Sequence[NodeView] = objects.get(NODES, ())
        self.inventories: Sequence[NodeInventory] = objects.get(NODE_INVENTORIES, ())
        self.pods: Sequence[Pod] = objects.get(PODS, ())
        self._taint_rules = tuple(next((rules for kind in TAINT_RULES if (rules := objects.get(kind))), ()))
        # Fields of features that are switched off are not in the objects, so no gate needs to be known.
        self._behavior = Behavior.of(minor, partitionable=True, consumable=True, taints=True)

    @property
    def waiting(self) -> list[Pod]:
        """Pods with claims that no scheduler has found a node for."""
        return list(filter(waits_for_devices, self.pods))

    def headrooms(self, driver: str) -> dict[str, Headroom]:
        """By node, of all nodes that a slice is for."""
        catalog = Catalog([PublishedSlice(slice_) for slice_ in self.slices], self._behavior)
        held = [claim.status.allocation for claim in self.claims if claim.status.allocation is not None]
        snapshot = Snapshot(catalog, {}, Usage.of(held), self._taint_rules)
        known = {node.name: node for node in self.nodes}
        names = {*known, *(slice_.spec.node_name for slice_ in self.slices if slice_.spec.node_name is not None)}
        answers: dict[Shape, Largest] = {}
        return {
            name: Headroom(known.get(name) or NodeView(name), snapshot, driver, answers=answers)
            for name in sorted(names)
        }

    def devices(self, headrooms: Iterable[Headroom], drivers: Sequence[str]) -> tuple[PublishedDevice, ...]:
        standings = {standing.candidate.id: standing for headroom in headrooms for standing in headroom.standings}
        consumers = consumers_of(self.pods)
        return published_devices(self.slices, self.claims, consumers, drivers=drivers, standings=standings)

    def overviews(self, driver: str) -> list["NodeOverview"]:
        """Of the nodes that have GPUs or have reported what they have, in order of name."""
        headrooms = self.headrooms(driver)
        gpus = grouped(published_gpus(self.devices(headrooms.values(), [driver])), lambda gpu: gpu.whole.node or "-")
        inventories = {inventory.spec.node_name: inventory for inventory in self.inventories}
        return [
            NodeOverview(name, tuple(gpus.get(name, ())), inventories.get(name), headrooms.get(name))
            for name in sorted({*gpus, *inventories})
        ]


@dataclass(frozen=True)
class NodeOverview:
    """A node with its GPUs as they are published, what it reported (None: nothing), what a claim could get, and what is
    counted and searched of it."""

    name: str
    gpus: tuple[PublishedGpu, ...]
    inventory: NodeInventory | None
    headroom: Headroom | None

    @property
    def count(self) -> int:
        """GPUs that the node has; some of them may not be published."""
        return self.inventory.spec.summary.gpus if self.inventory is not None else len(self.gpus)

    @property
    def healthy(self) -> str | None:
        """`7/8`, as the node reported it."""
        return self.inventory.spec.summary.healthy if self.inventory is not None else None

    @property
    def healthy_count(self) -> int | None:
        number = (self.healthy or "").partition("/")[0]
        return int(number) if number.isdecimal() else None

    @property
    def driver(self) -> str | None:
        """The version of the NVIDIA driver, as the node reported or published it."""
        if self.inventory is not None:
            return self.inventory.spec.summary.driver
        return self.gpus[0].whole.attribute("driverVersion") if self.gpus else None

    @property
    def clique(self) -> str | None:
        """Of nodes that NVLink connects."""
        clique = self.inventory.spec.summary.clique if self.inventory is not None else "-"
        return None if clique == "-" else clique

    @cached_property
    def states(self) -> Counter[str]:
        """GPUs by state."""
        return Counter(gpu.state for gpu in self.gpus)

    @cached_property
    def drawn_states(self) -> Counter[str]:
        """As `states`, except that unhealthy GPUs are `unhealthy`."""
        return Counter(gpu.drawn_state for gpu in self.gpus)

    @property
    def free(self) -> int:
        """GPUs of which no claim has anything, and that a claim could have."""
        return self.states["free"]

    @cached_property
    def unhealthy(self) -> int:
        """GPUs that have a taint of the driver, or that the node reports so: one that is lost may no longer be
        published."""
        reported = self.count - self.healthy_count if self.healthy_count is not None else 0
        return max(reported, sum(gpu.unhealthy for gpu in self.gpus))

    @cached_property
    def products(self) -> tuple[str, ...]:
        if self.inventory is not None:
            return (self.inventory.spec.summary.product,)
        return tuple(sorted({gpu.whole.attribute("productName") for gpu in self.gpus}))

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """In words, the worst first: what the node reported, pools of which no claim gets anything, and taints."""
        problems: list[str] = []
        if self.inventory is not None:
            problems += [f"{problem.subject}: {problem.reason}" for problem in self.inventory.spec.problems]
            problems += [
                ": ".join(part for part in (limitation.rule, limitation.subject, limitation.reason) if part)
                for limitation in self.inventory.status.limitations
                if limitation.rule is not None
            ]
            problems += [f"{warning.subject}: {warning.reason}" for warning in self.inventory.spec.warnings]
        problems += self.headroom.problems if self.headroom is not None else ()
        return (*problems, *(f"{gpu.name}: {', '.join(gpu.taints)}" for gpu in self.gpus if gpu.taints))

    @cached_property
    def searched(self) -> str:
        """Names that a filter finds, in lower case."""
        holders = [holder for gpu in self.gpus for _, holder in gpu.held]
        names = {self.name, *self.products, *(holder.claim for holder in holders)}
        names |= {pod for holder in holders for pod in holder.pods} | {gpu.name for gpu in self.gpus}
        return "\n".join((*names, *self.problems)).lower()


# -- a cluster that is followed

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
        for obj, now in ((before, None), (after, after)):
            match obj:
                case ResourceSlice():
                    node = obj.spec.node_name or NOWHERE
                    self._nodes_of[obj.spec.driver, obj.spec.pool.name].add(node)
                    _put(self._slices[node], key, now)
                    self._stale[node] = None
                case ResourceClaim():
                    for pool in {(result.driver, result.pool) for result in obj.results}:
                        _put(self._claims[pool], key, now)
                        self._stale |= dict.fromkeys(self._nodes_of[pool])
                case Pod() if obj.node is not None:
                    _put(self._pods[obj.node], key, now)
                    if obj.node in self._slices:
                        self._stale[obj.node] = None
        if kind == PODS:
            name = "/".join(key)
            _put(self._waiting, name, after if after is not None and waits_for_devices(after) else None)
            _put(self._placed, name, after if after is not None and after.node is not None else None)
        elif kind in TAINT_RULES:
            self._stale |= dict.fromkeys(self._slices)
        elif kind in (NODES, NODE_INVENTORIES) and (kind == NODE_INVENTORIES or key[1] in self._slices):
            self._stale[key[1]] = None

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
        overviews = ClusterSeen(objects, self._minor).overviews(self._driver)
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


def uses(pod: Pod, claim: str) -> bool:
    """Whether the pod uses the claim `namespace/name`."""
    return any(f"{pod.namespace}/{name}" == claim for name in claims_of_pod(pod).values())
