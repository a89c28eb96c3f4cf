"""What `dractl explain` and `dractl get` read of a cluster, typed. Kinds that the user may not list are noted."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dra_driver.allocation.behavior import Behavior
from dra_driver.allocation.headroom import Headroom
from dra_driver.allocation.loading import world_of
from dra_driver.allocation.nodes import NodeView
from dra_driver.allocation.snapshot import Catalog, PublishedSlice, Snapshot, Usage
from dra_driver.allocation.world import UnreadKind, World
from dra_driver.api.core import Pod
from dra_driver.api.inventory import NodeInventory
from dra_driver.api.meta import (
    COMPUTE_DOMAINS,
    DEVICE_CLASSES,
    NAMESPACES,
    NODE_INVENTORIES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
    Resource,
)
from dra_driver.api.resource import DeviceTaintRule, ResourceClaim, ResourceSlice
from dra_driver.cli.session import FORBIDDEN, TAINT_RULES, ask, listed
from dra_driver.cli.usage import (
    PublishedDevice,
    consumers_of,
    published_devices,
)
from dra_driver.errors import ClusterError, NotFound
from dra_driver.kube.client import Kube
from dra_driver.terminal import messages

_QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota", True)
_OPTIONAL = (NODE_INVENTORIES, COMPUTE_DOMAINS, _QUOTAS, *TAINT_RULES)
"""Kinds that a cluster need not have."""
_LISTS = frozenset({"ints", "bools", "strings", "versions"})
"""Fields of attributes that only a server with DRAListTypeAttributes keeps."""


def ask_world(kubeconfig: Path | None, context: str | None, namespace: str) -> World:
    """The world of the cluster that the kubeconfig names. Raises ClusterError when it cannot be asked at all."""
    return ask(kubeconfig, context, lambda kube: live_world(kube, namespace))


async def live_world(kube: Kube, namespace: str) -> World:
    """`namespace` is that of the pod or claim; templates and quotas of other namespaces are not needed."""
    _, minor = await kube.server_version()
    readings = await asyncio.gather(
        _read(kube, RESOURCE_SLICES),
        _read(kube, DEVICE_CLASSES),
        _read(kube, NODES),
        _read(kube, PODS, or_in=namespace),
        _read(kube, RESOURCE_CLAIMS, or_in=namespace),
        _read(kube, RESOURCE_CLAIM_TEMPLATES, namespace),
        _read(kube, COMPUTE_DOMAINS, or_in=namespace),
        _read(kube, _QUOTAS, namespace),
        _read(kube, NODE_INVENTORIES),
        _read_namespace(kube, namespace),
        *(_read(kube, rules) for rules in TAINT_RULES),
    )
    objects = _each_once(obj for results, _ in readings for obj in results)
    unread = tuple(item for _, item in readings if item is not None)
    loaded = world_of(objects, behavior=_behavior(minor, objects), unread=unread, live=True)
    # The server has accepted them, so what we cannot read is new to us: better said than guessed.
    strange = tuple(UnreadKind(problem.about or "object", problem.message) for problem in loaded.problems)
    return replace(loaded.world, unread=(*loaded.world.unread, *strange))


async def _read(
    kube: Kube, resource: Resource, namespace: str | None = None, *, or_in: str | None = None
) -> tuple[list[JsonObject], UnreadKind | None]:
    """All objects, or those of namespace `or_in` if this user may not list all of them."""
    cluster_error = await listed(kube, resource, namespace)
    if isinstance(cluster_error, list):
        return cluster_error, None
    if isinstance(cluster_error, NotFound):
        return [], None if resource in _OPTIONAL else UnreadKind(resource.kind, "this cluster does not have it")
    if or_in is not None:
        some, unread = await _read(kube, resource, or_in)
        return some, unread or UnreadKind(resource.kind, f"you may list those of namespace {or_in} only")
    return [], UnreadKind(resource.kind, "you may not list them; the answer leaves them out")


async def _read_namespace(kube: Kube, name: str) -> tuple[list[JsonObject], UnreadKind | None]:
    try:
        return [{**await kube.get(NAMESPACES, name), "kind": NAMESPACES.kind}], None
    except NotFound:
        return [], None
    except ClusterError as error:
        if error.status not in FORBIDDEN:
            raise
        return [], UnreadKind(NAMESPACES.kind, f"you may not read {name}; its labels are not known")


def _each_once(objects: Iterable[JsonObject]) -> list[JsonObject]:
    """Taint rules are served in more than one version."""
    by_key = {(obj["kind"], obj["metadata"].get("namespace"), obj["metadata"]["name"]): obj for obj in objects}
    return list(by_key.values())


def _has_list(device: JsonObject) -> bool:
    return any(not _LISTS.isdisjoint(item) for item in (device.get("attributes") or {}).values())


def _behavior(minor: int, objects: Iterable[JsonObject]) -> Behavior:
    """Of the version with its default gates, and those that must be on, since the server kept what they are for."""
    behavior = Behavior.of(minor)
    for obj in objects:
        spec = obj.get("spec") or {}
        if obj["kind"] == "ResourceSlice":
            devices = spec.get("devices") or ()
            behavior = replace(
                behavior,
                partitionable=behavior.partitionable
                or bool(spec.get("sharedCounters"))
                or any(device.get("consumesCounters") for device in devices),
                consumable=behavior.consumable or any(device.get("allowMultipleAllocations") for device in devices),
                taints=behavior.taints or any(device.get("taints") for device in devices),
                list_attributes=behavior.list_attributes or any(map(_has_list, devices)),
            )
        elif obj["kind"] == "DeviceTaintRule" and not behavior.taints:
            behavior = replace(behavior, taints=True)
    return behavior


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
        tuple(NodeView.read(item) for item in await readable(kube, NODES, say=say)),
        tuple(NodeInventory.of(item) for item in await readable(kube, NODE_INVENTORIES, say=say)),
        tuple(Pod.of(item) for item in await readable(kube, PODS, say=say)),
        tuple(DeviceTaintRule.of(taint_rule) for taint_rule in await _taint_rules(kube, say=say)),
        # Fields of features that are switched off are not in the objects, so no gate needs to be known.
        Behavior.of(minor, partitionable=True, consumable=True, taints=True),
    )


async def readable(kube: Kube, resource: Resource, *, say: bool = True) -> list[JsonObject]:
    """All objects; none if they do not exist, or, with a message, if they may not be read."""
    objects = await listed(kube, resource)
    if isinstance(objects, list):
        return objects
    if say and not isinstance(objects, NotFound):
        messages.print(f"{resource.plural} are left out: {objects}", markup=False, soft_wrap=True)
    return []


async def _taint_rules(kube: Kube, *, say: bool) -> list[JsonObject]:
    for resource in TAINT_RULES:
        if taint_rules := await readable(kube, resource, say=say):
            return taint_rules
    return []
