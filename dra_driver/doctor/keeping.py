"""What is looked at in a cluster, kind by kind, and what of each object: nothing else is remembered or written. Pure.

Secrets are not among the kinds. Of pods that are not ours only what tells who uses a claim is kept.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.inventory import NodeInventory
from dra_driver.api.meta import (
    COMPUTE_DOMAINS,
    CONFIG_MAPS,
    CRDS,
    DEVICE_CLASSES,
    EVENTS,
    LEASES,
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
from dra_driver.api.resource import DeviceClass, ResourceClaim
from dra_driver.doctor.conflicts import software_of
from dra_driver.doctor.objects import (
    AdmissionPolicy,
    ConfigMap,
    CustomResource,
    EventSeen,
    Lease,
    NamespaceSeen,
    NodeObject,
    OperatorResource,
    PodObject,
    PodSpec,
    PolicyBinding,
    SliceSeen,
    WebhookConfiguration,
    WorkloadObject,
)
from dra_driver.errors import InvalidInput
from dra_driver.names import CONFIG_GROUP, INVENTORY_GROUP

type Keep = Callable[[JsonObject], JsonObject | None]
"""What is kept of an object; None: nothing, it is none of our business."""

_DRA_GROUP = "resource.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet", True)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", True)
WEBHOOKS = Resource(_ADMISSION, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", False)
ADMISSION_POLICIES = Resource(_ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", False)
POLICY_BINDINGS = Resource(
    _ADMISSION, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", False
)
CLUSTER_POLICIES = Resource("nvidia.com", "v1", "clusterpolicies", "ClusterPolicy", False)
GPU_CLUSTERS = Resource("nvidia.com", "v1alpha1", "gpuclusters", "GPUCluster", False)


@dataclass(frozen=True, slots=True)
class ObservedKind:
    """One kind. `field` is the part of `Cluster` that it becomes, None where only a bundle has it; `named`: objects are
    read one by one, by names that follow from others, or by a selection, instead of all of the kind."""

    resource: Resource
    field: str | None
    decode: Callable[[JsonObject], Any]
    keep: Keep
    named: bool = False

    @property
    def file(self) -> str:
        """Its name in a bundle."""
        group = f".{self.resource.group}" if self.resource.group else ""
        return f"cluster/{self.resource.plural}{group}.json"


def _all(obj: JsonObject) -> JsonObject:
    return obj


def _node(obj: JsonObject) -> JsonObject:
    status = obj.get("status") or {}
    names = ("capacity", "allocatable", "conditions", "nodeInfo", "features", "runtimeHandlers", "declaredFeatures")
    return {**obj, "status": {name: status[name] for name in names if name in status}}


def _pod_spec(obj: JsonObject) -> PodSpec:
    try:
        return PodSpec.of(obj.get("spec") or {})
    except InvalidInput:
        return PodSpec()


def _pod(obj: JsonObject) -> JsonObject | None:
    if _pod_spec(obj).ours is not None:
        return obj
    spec, status, metadata = obj.get("spec") or {}, obj.get("status") or {}, obj["metadata"]
    if not spec.get("resourceClaims") and not status.get("extendedResourceClaimStatus"):
        return None
    names = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp")
    return {
        "metadata": {name: metadata[name] for name in names if name in metadata},
        "spec": {name: spec[name] for name in ("nodeName", "resourceClaims") if name in spec},
        "status": {
            name: status[name]
            for name in ("phase", "reason", "resourceClaimStatuses", "extendedResourceClaimStatus")
            if name in status
        },
    }


def _workload(obj: JsonObject) -> WorkloadObject | None:
    try:
        workload = WorkloadObject.of(obj)
        _ = workload.program
    except InvalidInput:
        return None
    return workload


def _daemon_set(obj: JsonObject) -> JsonObject | None:
    workload = _workload(obj)
    return obj if workload is not None and (workload.program or software_of(workload)) else None


def _deployment(obj: JsonObject) -> JsonObject | None:
    workload = _workload(obj)
    return obj if workload is not None and workload.program else None


_OUR_GROUPS = frozenset((INVENTORY_GROUP, CONFIG_GROUP))


def _definition(obj: JsonObject) -> JsonObject | None:
    return obj if (obj.get("spec") or {}).get("group") in _OUR_GROUPS else None


_OURS = "gpu-dra"
"""In the names of whatever the chart makes, unless `fullnameOverride` is set."""


def _webhook(obj: JsonObject) -> JsonObject | None:
    """Ours by its name, as the chart gives it, or by a mark of the controller that keeps it."""
    metadata = obj["metadata"]
    marked = any(name.startswith(f"{INVENTORY_GROUP}/") for name in metadata.get("annotations") or ())
    return obj if marked or _OURS in metadata["name"] else None


def _admission_policy(obj: JsonObject) -> JsonObject | None:
    """What judges our objects or claims, whoever made it; and ours that judge other objects, by their names."""
    rules = ((obj.get("spec") or {}).get("matchConstraints") or {}).get("resourceRules") or ()
    groups = {group for rule in rules for group in rule.get("apiGroups") or ()}
    return obj if groups & {_DRA_GROUP, *_OUR_GROUPS} or _OURS in obj["metadata"]["name"] else None


def _inventory(obj: JsonObject) -> NodeInventory:
    """Without the profiles that each GPU could have: half of it all, in a cluster of thousands of GPUs, and no check
    asks for them."""
    spec = obj.get("spec")
    gpus = spec.get("gpus") if isinstance(spec, dict) else None
    if not isinstance(gpus, list):
        return NodeInventory.of(obj)
    return NodeInventory.of({**obj, "spec": {**obj["spec"], "gpus": [_without_profiles(gpu) for gpu in gpus]}})


def _without_profiles(gpu: Any) -> Any:
    if not isinstance(gpu, dict) or not isinstance(gpu.get("mig"), dict):
        return gpu
    return {**gpu, "mig": {name: value for name, value in gpu["mig"].items() if name != "profiles"}}


def _gone(obj: JsonObject) -> JsonObject:
    raise AssertionError("only in bundles, nobody decodes it")


SOURCES = (
    ObservedKind(NODES, "nodes", NodeObject.of, _node),
    ObservedKind(NODE_INVENTORIES, "inventories", _inventory, _all),
    ObservedKind(RESOURCE_SLICES, "slices", SliceSeen.of, _all),
    ObservedKind(RESOURCE_CLAIMS, "claims", ResourceClaim.of, _all),
    ObservedKind(RESOURCE_CLAIM_TEMPLATES, None, _gone, _all),
    ObservedKind(COMPUTE_DOMAINS, "domains", ComputeDomain.of, _all),
    ObservedKind(DEVICE_CLASSES, "classes", DeviceClass.of, _all),
    ObservedKind(CRDS, "definitions", CustomResource.of, _definition),
    ObservedKind(PODS, "pods", PodObject.of, _pod),
    ObservedKind(DAEMON_SETS, "daemon_sets", WorkloadObject.of, _daemon_set),
    ObservedKind(DEPLOYMENTS, "deployments", WorkloadObject.of, _deployment),
    ObservedKind(WEBHOOKS, "webhooks", WebhookConfiguration.of, _webhook),
    ObservedKind(ADMISSION_POLICIES, "admission_policies", AdmissionPolicy.of, _admission_policy),
    ObservedKind(POLICY_BINDINGS, "policy_bindings", PolicyBinding.of, _all),
    ObservedKind(CLUSTER_POLICIES, "operators", OperatorResource.of, _all),
    ObservedKind(GPU_CLUSTERS, "operators", OperatorResource.of, _all),
)
"""Read whole."""

NAMESPACE_SOURCE = ObservedKind(NAMESPACES, "namespaces", NamespaceSeen.of, _all, named=True)
CONFIG_MAP_SOURCE = ObservedKind(CONFIG_MAPS, "config_maps", ConfigMap.of, _all, named=True)
LEASE_SOURCE = ObservedKind(LEASES, "leases", Lease.of, _all, named=True)
EVENT_SOURCE = ObservedKind(EVENTS, "events", EventSeen.of, _all, named=True)
ALL_SOURCES = (*SOURCES, NAMESPACE_SOURCE, CONFIG_MAP_SOURCE, LEASE_SOURCE, EVENT_SOURCE)
