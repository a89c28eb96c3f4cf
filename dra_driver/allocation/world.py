"""Everything that an allocation offline and an explanation may look at: one cluster, or some files, as typed values.

`dra_driver.allocation.loading` makes it from objects as the API has them.
What could not be read is said in `unread`, so that an answer can say what it does not know. Pure.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from dra_driver.allocation.behavior import CURRENT, Behavior
from dra_driver.allocation.domains import domains_of_pools
from dra_driver.allocation.nodes import NodeView
from dra_driver.allocation.snapshot import Catalog, PoolId, PublishedSlice, Snapshot, Usage
from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.core import DEFAULT_NAMESPACE, Key, ObjectCondition, Pod
from dra_driver.api.gpu_settings import HealthPolicy, WaitingGpu
from dra_driver.api.inventory import GpuFacts, Limitation
from dra_driver.api.meta import JsonObject, Resource
from dra_driver.api.resource import (
    Allocation,
    Device,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimTemplate,
)
from dra_driver.errors import InvalidInput
from dra_driver.names import DeviceId


@dataclass(frozen=True, slots=True)
class UnreadKind:
    """A kind of object that could not be read, and why. `in_part`: those of the namespace in question were read."""

    kind: str
    why: str
    in_part: bool = False


@dataclass(frozen=True, slots=True)
class Quota:
    """A ResourceQuota: hard limits and use, as text, by resource name. Use is empty in files."""

    namespace: str
    name: str
    hard: Mapping[str, str]
    used: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """What a driver reports on a device of a claim, in `status.devices`."""

    conditions: tuple[ObjectCondition, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def mig_uuid(self) -> str:
        """Empty if it is not known, or for other devices."""
        return str(self.data.get("migUUID") or "")


@dataclass(frozen=True)
class World:
    """Immutable; `with_claim` and the like make others.

    `namespaces` are labels by name. `registered` are the drivers that kubelet knows on each node, by node; a node
    that is not in it has not said.
    """

    claims: Mapping[Key, ResourceClaim] = field(default_factory=dict)
    templates: Mapping[Key, ResourceClaimTemplate] = field(default_factory=dict)
    domains: Mapping[Key, ComputeDomain] = field(default_factory=dict)
    """All with UID and namespace."""
    classes: Mapping[str, DeviceClass] = field(default_factory=dict)
    slices: tuple[PublishedSlice, ...] = ()
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    pods: Mapping[Key, Pod] = field(default_factory=dict)
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    taint_rules: tuple[DeviceTaintRule, ...] = ()
    quotas: tuple[Quota, ...] = ()
    registered: Mapping[str, frozenset[str]] = field(default_factory=dict)
    limitations: Mapping[str, tuple[Limitation, ...]] = field(default_factory=dict)
    """What the policy asks for and a node does not offer, by node, as its inventory says."""
    waiting: Mapping[str, tuple[WaitingGpu, ...]] = field(default_factory=dict)
    """GPUs that change when claims are gone, by node."""
    gpus: Mapping[str, tuple[GpuFacts, ...]] = field(default_factory=dict)
    """By node; a node that is not in it has not reported, or its inventory could not be read."""
    health_policies: Mapping[str, HealthPolicy] = field(default_factory=dict)
    """By node."""
    reports: Mapping[tuple[Key, DeviceId], DeviceReport] = field(default_factory=dict)
    """Of the devices of claims, by claim and device."""
    invalid: Mapping[tuple[str, Key], str] = field(default_factory=dict)
    """What is wrong with claims and templates that were left out, by kind and key."""
    behavior: Behavior = CURRENT
    unread: tuple[UnreadKind, ...] = ()
    live: bool = False
    """Whether it is a cluster, in which what is missing is missing; of files one may have left something out."""

    def is_unread(self, kind: Resource) -> bool:
        """Whether its objects could not be listed, so that nothing is known of one that is missing."""
        return any(unread.kind == kind.kind and not unread.in_part for unread in self.unread)

    @cached_property
    def catalog(self) -> Catalog:
        return Catalog(self.slices, self.behavior)

    @cached_property
    def usage(self) -> Usage:
        return Usage.of(_allocations(self.claims.values()))

    @cached_property
    def snapshot(self) -> Snapshot:
        return Snapshot(self.catalog, self.classes, self.usage, self.taint_rules)

    @cached_property
    def domains_of_pools(self) -> Mapping[str, str]:
        """UIDs of the ComputeDomains that claims hold channels of, by pool."""
        return domains_of_pools(self.claims.values())

    @cached_property
    def devices(self) -> Mapping[DeviceId, tuple[str, Device]]:
        """All that are published, each with its node; of a slice for several nodes, with the name of its pool."""
        return {
            DeviceId(slice_.spec.driver, slice_.spec.pool.name, device.name): (
                device.node_name or slice_.spec.node_name or slice_.spec.pool.name,
                device,
            )
            for slice_ in self.slices
            for device in slice_.spec.devices or ()
        }

    @cached_property
    def pods_by_node(self) -> Mapping[str, tuple[Pod, ...]]:
        """Pods that run or are about to."""
        by_node: dict[str, list[Pod]] = defaultdict(list)
        for pod in self.pods.values():
            if pod.node is not None and not pod.is_done:
                by_node[pod.node].append(pod)
        return {node: tuple(pods) for node, pods in by_node.items()}

    @cached_property
    def _claims_by_pool(self) -> Mapping[PoolId, frozenset[Key]]:
        """Claims that have devices of the pool."""
        by_pool: dict[PoolId, set[Key]] = defaultdict(set)
        for key, claim in self.claims.items():
            for pool in _pools_of(claim):
                by_pool[pool].add(key)
        return {pool: frozenset(keys) for pool, keys in by_pool.items()}

    def with_claim(self, claim: ResourceClaim) -> "World":
        """With this version of the claim."""
        return self._with_claims({claim_key(claim): claim})

    def with_pod(self, pod: Pod) -> "World":
        """With this version of the pod."""
        by_node = dict(self.pods_by_node)
        before = self.pods.get(pod.key)
        if before is not None and before.node in by_node:
            by_node[before.node] = tuple(other for other in by_node[before.node] if other.key != pod.key)
        if pod.node is not None and not pod.is_done:
            by_node[pod.node] = (*by_node.get(pod.node, ()), pod)
        derived = {"pods_by_node": by_node, "usage": self.usage, "_claims_by_pool": self._claims_by_pool}
        return self._changed(derived, pods={**self.pods, pod.key: pod})

    def without_allocations(self, keys: Iterable[Key]) -> "World":
        """As if these claims held nothing."""
        return self._with_claims({key: released(self.claims[key]) for key in keys if key in self.claims})

    def _with_claims(self, changed: Mapping[Key, ResourceClaim]) -> "World":
        """Usage is calculated again for the pools of these claims only, because there may be tens of thousands of other
        claims."""
        claims = {**self.claims, **changed}
        before = {key: self.claims[key] for key in changed if key in self.claims}
        about = frozenset(pool for claim in (*before.values(), *changed.values()) for pool in _pools_of(claim))
        by_pool = dict(self._claims_by_pool)
        for pool in about:
            keys = by_pool.get(pool, frozenset()) | changed.keys()
            by_pool[pool] = frozenset(key for key in keys if pool in _pools_of(claims[key]))
        holding = (claims[key] for key in {key for pool in about for key in by_pool[pool]})
        usage = self.usage.replaced(about, Usage.of(_allocations(holding)))
        derived = {"pods_by_node": self.pods_by_node, "usage": usage, "_claims_by_pool": by_pool}
        return self._changed(derived, claims=claims)

    def _changed(self, derived: Mapping[str, Any], **changes: Any) -> "World":
        """`derived` are properties that need not be calculated again. Slices are the same, so the catalog is, too."""
        changed = replace(self, **changes)
        changed.__dict__.update(derived, catalog=self.catalog)
        return changed


def _allocations(claims: Iterable[ResourceClaim]) -> Iterator[Allocation]:
    return (claim.status.allocation for claim in claims if claim.status.allocation is not None)


def _pools_of(claim: ResourceClaim) -> frozenset[PoolId]:
    """Those that it has devices of."""
    return frozenset((result.driver, result.pool) for result in claim.results)


def released(claim: ResourceClaim) -> ResourceClaim:
    """The claim without its allocation."""
    status = claim.status.model_copy(update={"allocation": None, "reserved_for": []})
    return claim.model_copy(update={"status": status})


def claim_key(claim: ResourceClaim) -> Key:
    return claim.metadata.namespace or DEFAULT_NAMESPACE, claim.metadata.name


def key_of(obj: JsonObject) -> Key:
    """Raises InvalidInput for an object without metadata, which only a file can have."""
    metadata = obj.get("metadata")
    if not isinstance(metadata, dict):
        raise InvalidInput("metadata is missing, or is not a map; add metadata.name", about=str(obj.get("kind")))
    return str(metadata.get("namespace") or DEFAULT_NAMESPACE), str(metadata.get("name") or "")


# -- what pods ask for


@dataclass(frozen=True, slots=True)
class PodClaim:
    """The claim of one entry of a pod. `claim` None is one that cannot be had now, for the reason in `missing`.

    `generated` is true for a claim that would be made from `template` and does not exist yet.
    """

    entry: str
    claim: ResourceClaim | None
    missing: str | None = None
    template: str | None = None
    generated: bool = False
    invalid: bool = False
    """Whether what is missing exists, and is not valid."""


def claims_of(world: World, pod: Pod) -> tuple[PodClaim, ...]:
    """Of the pod's entries, in their order. Entries that need no claim are left out."""
    made = {status.name: status.resource_claim_name for status in pod.status.resource_claim_statuses}
    pod_claims: list[PodClaim] = []
    for entry in pod.spec.resource_claims:
        template = entry.resource_claim_template_name
        if entry.resource_claim_name is not None:
            pod_claims.append(_named(world, pod, entry.name, entry.resource_claim_name, None))
        elif entry.name in made:
            name = made[entry.name]
            if name is not None:
                pod_claims.append(_named(world, pod, entry.name, name, template))
        elif template is not None:
            pod_claims.append(_generated(world, pod, entry.name, template))
    return tuple(pod_claims)


def _named(world: World, pod: Pod, entry: str, name: str, template: str | None) -> PodClaim:
    claim = world.claims.get((pod.namespace, name))
    if claim is None and (wrong := world.invalid.get(("ResourceClaim", (pod.namespace, name)))) is not None:
        return PodClaim(entry, None, f"ResourceClaim {pod.namespace}/{name}: {wrong}", template, invalid=True)
    missing = f"there is no ResourceClaim {pod.namespace}/{name}" if claim is None else None
    return PodClaim(entry, claim, missing, template)


def _generated(world: World, pod: Pod, entry: str, template: str) -> PodClaim:
    known = world.templates.get((pod.namespace, template))
    wrong = world.invalid.get(("ResourceClaimTemplate", (pod.namespace, template)))
    if known is None and wrong is not None:
        text = f"ResourceClaimTemplate {pod.namespace}/{template}: {wrong}"
        return PodClaim(entry, None, text, template, invalid=True)
    if known is None:
        return PodClaim(entry, None, f"there is no ResourceClaimTemplate {pod.namespace}/{template}", template)
    metadata = {"name": f"{pod.name}-{entry}", "namespace": pod.namespace, "uid": f"{pod.uid or pod.name}-{entry}"}
    claim = ResourceClaim.model_validate({"metadata": metadata, "spec": known.spec.spec})
    return PodClaim(entry, claim, None, template, generated=True)
