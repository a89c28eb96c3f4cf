"""What commands show of a cluster: which kinds they read, how these become typed, and what follows together. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from dra_driver.allocation.behavior import Behavior
from dra_driver.allocation.headroom import Headroom, Largest, Shape
from dra_driver.allocation.nodes import NodeView
from dra_driver.allocation.snapshot import Catalog, PublishedSlice, Snapshot, Usage
from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.core import Pod
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


@dataclass(frozen=True)
class ClusterSeen:
    """What was read of a cluster, typed."""

    slices: tuple[ResourceSlice, ...]
    claims: tuple[ResourceClaim, ...]
    nodes: tuple[NodeView, ...]
    inventories: tuple[NodeInventory, ...]
    pods: tuple[Pod, ...]
    taint_rules: tuple[DeviceTaintRule, ...]
    behavior: Behavior

    @classmethod
    def of(cls, objects: Objects, minor: int) -> "ClusterSeen":
        """Of `SHOWN` in a cluster of Kubernetes 1.`minor`."""
        return cls(
            tuple(objects.get(RESOURCE_SLICES, ())),
            tuple(objects.get(RESOURCE_CLAIMS, ())),
            tuple(objects.get(NODES, ())),
            tuple(objects.get(NODE_INVENTORIES, ())),
            tuple(objects.get(PODS, ())),
            tuple(next((rules for kind in TAINT_RULES if (rules := objects.get(kind))), ())),
            # Fields of features that are switched off are not in the objects, so no gate needs to be known.
            Behavior.of(minor, partitionable=True, consumable=True, taints=True),
        )

    @property
    def waiting(self) -> list[Pod]:
        """Pods with claims that no scheduler has found a node for."""
        return list(filter(waits_for_devices, self.pods))

    def headrooms(self, driver: str) -> dict[str, Headroom]:
        """By node, of all nodes that a slice is for."""
        catalog = Catalog([PublishedSlice(slice_) for slice_ in self.slices], self.behavior)
        held = [claim.status.allocation for claim in self.claims if claim.status.allocation is not None]
        snapshot = Snapshot(catalog, {}, Usage.of(held), self.taint_rules)
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
