"""What `dractl get` reads of a cluster, typed: slices and claims, and what else makes the answer better."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dra_driver.allocation.behavior import Behavior
from dra_driver.allocation.headroom import Headroom
from dra_driver.allocation.nodes import NodeView
from dra_driver.allocation.snapshot import Catalog, PublishedSlice, Snapshot, Usage
from dra_driver.api.inventory import NodeInventory
from dra_driver.api.meta import (
    NODE_INVENTORIES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
    Resource,
)
from dra_driver.api.resource import DeviceTaintRule, ResourceClaim, ResourceSlice
from dra_driver.cli.session import TAINT_RULES, listed
from dra_driver.cli.usage import (
    PublishedDevice,
    consumers_of,
    published_devices,
)
from dra_driver.errors import NotFound
from dra_driver.kube.client import Kube
from dra_driver.terminal import messages


@dataclass(frozen=True)
class ClusterSeen:
    """What was read of a cluster, typed."""

    slices: tuple[ResourceSlice, ...]
    claims: tuple[ResourceClaim, ...]
    nodes: tuple[NodeView, ...]
    inventories: tuple[NodeInventory, ...]
    pods: tuple[JsonObject, ...]
    taint_rules: tuple[DeviceTaintRule, ...]
    behavior: Behavior

    def headrooms(self, driver: str) -> dict[str, Headroom]:
        """By node, of all nodes that a slice is for."""
        catalog = Catalog([PublishedSlice(slice_) for slice_ in self.slices], self.behavior)
        held = [claim.status.allocation for claim in self.claims if claim.status.allocation is not None]
        snapshot = Snapshot(catalog, {}, Usage.of(held), self.taint_rules)
        known = {node.name: node for node in self.nodes}
        names = {*known, *(slice_.spec.node_name for slice_ in self.slices if slice_.spec.node_name is not None)}
        return {name: Headroom(known.get(name) or NodeView(name), snapshot, driver) for name in sorted(names)}

    def devices(self, headrooms: Iterable[Headroom], drivers: Sequence[str]) -> tuple[PublishedDevice, ...]:
        standings = {standing.candidate.id: standing for headroom in headrooms for standing in headroom.standings}
        return published_devices(
            self.slices, self.claims, drivers, consumers=consumers_of(self.pods), standings=standings
        )


async def read_cluster(kube: Kube, *, say: bool = True) -> ClusterSeen:
    """Slices and claims must be there to be read; all else only makes the answer better. `say` what is left out."""
    _, minor = await kube.server_version()
    slices = [ResourceSlice.of(item) for item in (await kube.list(RESOURCE_SLICES)).items]
    claims = [ResourceClaim.of(item) for item in (await kube.list(RESOURCE_CLAIMS)).items]
    return ClusterSeen(
        tuple(slices),
        tuple(claims),
        tuple(NodeView.of(item) for item in await readable(kube, NODES, say=say)),
        tuple(NodeInventory.of(item) for item in await readable(kube, NODE_INVENTORIES, say=say)),
        tuple(await readable(kube, PODS, say=say)),
        tuple(DeviceTaintRule.of(taint_rule) for taint_rule in await _taint_rules(kube, say=say)),
        # Fields of features that are switched off are not in the objects, so no gate needs to be known.
        Behavior.of(minor, partitionable=True, consumable=True, taints=True),
    )


async def readable(kube: Kube, resource: Resource, *, say: bool = True) -> list[JsonObject]:
    """All objects; none if they do not exist, or, with a message, if they may not be read."""
    cluster_error = await listed(kube, resource)
    if isinstance(cluster_error, list):
        return cluster_error
    if say and not isinstance(cluster_error, NotFound):
        messages.print(f"{resource.plural} are left out: {cluster_error}", markup=False, soft_wrap=True)
    return []


async def _taint_rules(kube: Kube, *, say: bool) -> list[JsonObject]:
    for resource in TAINT_RULES:
        if taint_rules := await readable(kube, resource, say=say):
            return taint_rules
    return []
