"""The kinds that doctor and bundles read from a cluster, and what is kept of each object; nothing else is remembered or
written. Pure.

Secrets are not among the kinds. Of pods that are not this driver's, only what says who uses a claim is kept.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

from dra_driver.api import core, meta
from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.gpupolicy import SeenPolicy
from dra_driver.api.inventory import NodeInventory
from dra_driver.api.meta import JsonObject, Resource
from dra_driver.api.resource import DeviceClass, ResourceClaim, ResourceClaimTemplate
from dra_driver.api.untyped import maps_in, value_at
from dra_driver.doctor.cluster import ClusterFacts, ClusterView, OperatorResource, SliceSeen
from dra_driver.doctor.conflicts import software_of
from dra_driver.doctor.findings import SeenKind
from dra_driver.errors import InvalidInput
from dra_driver.names import CONFIG_GROUP, INVENTORY_GROUP

_DRA_GROUP = "resource.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"
WEBHOOKS = Resource(_ADMISSION, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", False)
ADMISSION_POLICIES = Resource(_ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", False)
POLICY_BINDINGS = Resource(
    _ADMISSION, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", False
)
CLUSTER_POLICIES = Resource("nvidia.com", "v1", "clusterpolicies", "ClusterPolicy", False)
GPU_CLUSTERS = Resource("nvidia.com", "v1alpha1", "gpuclusters", "GPUCluster", False)


@dataclass(frozen=True, slots=True)
class ObservedKind:
    """`field` is the part of `ClusterView` that it becomes, None for a kind that only bundles have. `keep` returns what
    is kept of an object, None if it does not concern this driver."""

    resource: Resource
    field: str | None
    decode: Callable[[JsonObject], Any]
    keep: Callable[[JsonObject], JsonObject | None] = lambda obj: obj

    @property
    def file(self) -> str:
        """Its name in a bundle."""
        group = f".{self.resource.group}" if self.resource.group else ""
        return f"cluster/{self.resource.plural}{group}.json"


def _only(obj: JsonObject, *names: str) -> JsonObject:
    return {name: obj[name] for name in names if name in obj}


def _node(obj: JsonObject) -> JsonObject:
    names = ("capacity", "allocatable", "conditions", "nodeInfo", "features", "runtimeHandlers", "declaredFeatures")
    return {**obj, "status": _only(obj.get("status") or {}, *names)}


def _pod(obj: JsonObject) -> JsonObject | None:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    typed = core.PodSpec.or_none(spec)
    if typed is not None and typed.ours is not None:
        return obj
    if not spec.get("resourceClaims") and not status.get("extendedResourceClaimStatus"):
        return None
    metadata = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp")
    statuses = ("phase", "reason", "resourceClaimStatuses", "extendedResourceClaimStatus")
    return {
        "metadata": _only(obj["metadata"], *metadata),
        "spec": {**_only(spec, "nodeName", "resourceClaims"), "containers": []},
        "status": _only(status, *statuses),
    }


def _workload(obj: JsonObject, *, conflicting: bool = False) -> JsonObject | None:
    """This driver's, and those that may be `conflicting` with it."""
    workload = core.AppsWorkload.or_none(obj)
    concerns = workload is not None and (workload.program or (conflicting and software_of(workload)))
    return obj if concerns else None


_OUR_GROUPS = frozenset((INVENTORY_GROUP, CONFIG_GROUP))
_OUR_NAME = "gpu-dra"
"""In all names that the chart makes, unless `fullnameOverride` is set."""


def _definition(obj: JsonObject) -> JsonObject | None:
    return obj if value_at(obj, ("spec", "group")) in _OUR_GROUPS else None


def _webhook(obj: JsonObject) -> JsonObject | None:
    """This driver's, by the name that the chart gives it, or by an annotation of the controller."""
    metadata = obj["metadata"]
    annotated = any(name.startswith(f"{INVENTORY_GROUP}/") for name in metadata.get("annotations") or ())
    return obj if annotated or _OUR_NAME in metadata["name"] else None


def _admission_policy(obj: JsonObject) -> JsonObject | None:
    """Every policy about claims, slices or this driver's objects; and this driver's own policies about others."""
    rules = maps_in(value_at(obj, ("spec", "matchConstraints", "resourceRules")))
    groups = {group for rule in rules for group in rule.get("apiGroups") or ()}
    return obj if groups & {_DRA_GROUP, *_OUR_GROUPS} or _OUR_NAME in obj["metadata"]["name"] else None


LISTED_KINDS = (
    ObservedKind(meta.NODES, "nodes", core.Node.of, _node),
    ObservedKind(meta.NODE_INVENTORIES, "inventories", NodeInventory.of),
    ObservedKind(meta.GPU_POLICIES, "gpu_policies", SeenPolicy.of),
    ObservedKind(meta.RESOURCE_SLICES, "slices", SliceSeen.of),
    ObservedKind(meta.RESOURCE_CLAIMS, "claims", ResourceClaim.of),
    ObservedKind(meta.RESOURCE_CLAIM_TEMPLATES, None, ResourceClaimTemplate.of),
    ObservedKind(meta.COMPUTE_DOMAINS, "domains", ComputeDomain.of),
    ObservedKind(meta.DEVICE_CLASSES, "classes", DeviceClass.of),
    ObservedKind(meta.CRDS, "definitions", core.CustomResource.of, _definition),
    ObservedKind(meta.PODS, "pods", core.Pod.of, _pod),
    ObservedKind(meta.DAEMON_SETS, "daemon_sets", core.AppsWorkload.of, partial(_workload, conflicting=True)),
    ObservedKind(meta.DEPLOYMENTS, "deployments", core.AppsWorkload.of, _workload),
    ObservedKind(WEBHOOKS, "webhooks", core.WebhookConfiguration.of, _webhook),
    ObservedKind(ADMISSION_POLICIES, "admission_policies", core.AdmissionPolicy.of, _admission_policy),
    ObservedKind(POLICY_BINDINGS, "policy_bindings", core.PolicyBinding.of),
    ObservedKind(CLUSTER_POLICIES, "operators", OperatorResource.of),
    ObservedKind(GPU_CLUSTERS, "operators", OperatorResource.of),
)
"""All objects of these are read; of the others, those with certain names, or of certain namespaces."""
NAMESPACE_KIND = ObservedKind(meta.NAMESPACES, "namespaces", core.Namespace.of)
CONFIG_MAP_KIND = ObservedKind(meta.CONFIG_MAPS, "config_maps", core.ConfigMap.of)
LEASE_KIND = ObservedKind(meta.LEASES, "leases", core.Lease.of)
EVENT_KIND = ObservedKind(meta.EVENTS, "events", core.Event.of)
ALL_KINDS = (*LISTED_KINDS, NAMESPACE_KIND, CONFIG_MAP_KIND, LEASE_KIND, EVENT_KIND)


class DecodedObjects:
    """Collects objects. An object that cannot be decoded is left out with a note, so that the others can be checked."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self._items: dict[str, list[Any]] = {}

    def add(self, kind: ObservedKind, obj: JsonObject) -> None:
        """`obj` as `kind.keep` returned it."""
        if kind.field is None:
            return
        try:
            self._items.setdefault(kind.field, []).append(kind.decode(obj))
        except (InvalidInput, KeyError, TypeError, ValueError) as error:
            name = (obj.get("metadata") or {}).get("name")
            self.notes.append(f"{kind.resource.kind} {name} is left out: {error}")

    def cluster(self, facts: ClusterFacts) -> ClusterView:
        values: dict[str, Any] = {field.name: getattr(facts, field.name) for field in fields(facts)}
        values |= {
            kind.field: SeenKind(tuple(self._items.get(kind.field, ())), facts.unread_kinds.get(kind.field))
            for kind in ALL_KINDS
            if kind.field is not None
        }
        return ClusterView(**values)
