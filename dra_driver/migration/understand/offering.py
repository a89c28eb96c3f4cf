"""Who offers the GPUs of each node now, and which pods hold some: read from a cluster's objects. Pure.

`dra_driver.migration.cutover.cutover_plan` makes its plan of it. What counts is what a scheduler sees: allocatable
amounts of a device plugin's resources, and ResourceSlices of the driver.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dra_driver.api.meta import JsonObject
from dra_driver.api.untyped import maps_in, value_at
from dra_driver.migration.model import ObjectRef
from dra_driver.migration.read.unrendered import OF_SYSTEMS
from dra_driver.migration.understand.labels import is_other
from dra_driver.migration.understand.operator_parts import is_plugin_image
from dra_driver.quantity import Quantity

_PLUGIN_RESOURCE = re.compile(rf"nvidia\.com/.|{OF_SYSTEMS}")
_GKE_PLUGIN = re.compile(r"nvidia-gpu-device-plugin")
_DONE = ("Succeeded", "Failed")
_OTHER_DRIVER_IMAGE = re.compile(r"k8s-dra-driver-gpu|dra-driver-nvidia-gpu")
OFFERED_BY = "dra.gpu/offered-by"
DRIVER_RUNS = "dra.gpu/driver"


class Installed(StrEnum):
    """How a device plugin was installed, and so how it is kept from a node."""

    OPERATOR = "GPU Operator"
    """A label of the node, which the operator reads."""
    GKE = "GKE"
    """A label of the node, which GKE's DaemonSet reads."""
    DAEMON_SET = "DaemonSet"
    """Its node selector."""


@dataclass(frozen=True, slots=True, order=True)
class DevicePlugin:
    installed: Installed
    namespace: str
    name: str
    """Of the DaemonSet; with OPERATOR that of the ClusterPolicy."""


@dataclass(frozen=True, slots=True, order=True)
class GpuHolder:
    """A pod that has GPUs of a node, by either way."""

    namespace: str
    name: str
    owner: ObjectRef | None
    """What creates it again after deletion: a Deployment rather than its ReplicaSet. None: nothing does."""
    by_claim: bool

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def made_by(self) -> ObjectRef:
        """Its owner, or the pod itself if it has none."""
        return self.owner or ObjectRef("Pod", self.namespace, self.name)


@dataclass(frozen=True, slots=True)
class GpuNode:
    name: str
    resources: Mapping[str, int]
    """What a device plugin has to give here, by resource name; zeros are left out."""
    driver: bool
    """Whether slices of the driver are for this node."""
    holders: tuple[GpuHolder, ...] = ()
    mig_config: str | None = None
    """The layout that the MIG manager keeps here."""
    begun: bool = False
    """Whether it has a label of a plan, which may have stopped halfway."""
    driver_label: bool = False
    """Whether that is the one that brings the driver's pod."""
    beside: tuple[str, ...] = ()
    """Resources whose names are like those of GPUs, and which stay: network cards."""


@dataclass(frozen=True, slots=True)
class Offering:
    """Nodes by name; those without GPUs are left out."""

    nodes: tuple[GpuNode, ...]
    plugins: tuple[DevicePlugin, ...] = ()
    mig_manager: bool = False
    other_drivers: tuple[str, ...] = ()
    """What installs NVIDIA's own DRA driver, whose slices have the same driver name."""
    slices: bool = True
    """Whether ResourceSlices were read, of any driver."""


def offering_of(objects: Iterable[JsonObject], driver: str, others: Collection[str] = ()) -> Offering:
    """From Nodes, Pods, ResourceSlices, DaemonSets, ClusterPolicies and GPUClusters, in any order. Others are passed
    over. `others` are resources of which a person says that they are no GPUs."""
    by_kind: dict[str, list[JsonObject]] = defaultdict(list)
    for obj in objects:
        by_kind[str(obj.get("kind"))].append(obj)
    published = {
        item["spec"].get("nodeName")
        for item in by_kind["ResourceSlice"]
        if (item.get("spec") or {}).get("driver") == driver
    }
    holders = _holders(by_kind["Pod"], others)
    gpu_nodes = []
    for node in by_kind["Node"]:
        name = node["metadata"]["name"]
        labels = node["metadata"].get("labels") or {}
        allocatable = (node.get("status") or {}).get("allocatable") or {}
        gpu_node = GpuNode(
            name,
            _resources(allocatable, others),
            name in published,
            tuple(sorted(holders.get(name, ()), key=lambda holder: (holder.namespace, holder.name))),
            labels.get("nvidia.com/mig.config"),
            begun=OFFERED_BY in labels or DRIVER_RUNS in labels,
            driver_label=DRIVER_RUNS in labels,
            beside=_beside(allocatable, others),
        )
        if gpu_node.resources or gpu_node.driver or gpu_node.begun or labels.get("nvidia.com/gpu.present") == "true":
            gpu_nodes.append(gpu_node)
    policies = [item for item in by_kind["ClusterPolicy"] if str(item.get("apiVersion", "")).startswith("nvidia.com/")]
    operators = (
        DevicePlugin(Installed.OPERATOR, "", policy["metadata"]["name"])
        for policy in policies
        if _enabled(policy, "devicePlugin")
    )
    return Offering(
        tuple(sorted(gpu_nodes, key=lambda node: node.name)),
        tuple(sorted({*operators, *_daemon_sets(by_kind["DaemonSet"], bool(policies))})),
        any(_enabled(policy, "migManager") for policy in policies),
        tuple(_other_drivers(by_kind["GPUCluster"], by_kind["DaemonSet"])),
        bool(by_kind["ResourceSlice"]),
    )


def is_plugin_resource(name: str, others: Collection[str] = ()) -> bool:
    """Whether an extended resource is one that device plugins for NVIDIA GPUs give. `others` are no such ones."""
    return _PLUGIN_RESOURCE.match(name) is not None and not is_other(name, others)


def _resources(allocatable: Mapping[str, Any], others: Collection[str]) -> dict[str, int]:
    known = [name for name in sorted(allocatable) if is_plugin_resource(name, others)]
    amounts = {name: Quantity.read(allocatable[name]) for name in known}
    return {name: int(amount.value) for name, amount in amounts.items() if amount is not None and int(amount.value)}


def _beside(allocatable: Mapping[str, Any], others: Collection[str]) -> tuple[str, ...]:
    return tuple(
        name for name in sorted(allocatable) if _PLUGIN_RESOURCE.match(name) and not is_plugin_resource(name, others)
    )


# -- pods


def _holders(pods: Sequence[JsonObject], others: Collection[str]) -> dict[str, list[GpuHolder]]:
    holders: dict[str, list[GpuHolder]] = defaultdict(list)
    for pod in pods:
        spec, status = pod.get("spec") or {}, pod.get("status") or {}
        node = spec.get("nodeName")
        if not node or status.get("phase") in _DONE:
            continue
        # Beside GPUs of the device plugin a pod may have claims of something else, such as a ComputeDomain's channel.
        asks, claims = _asks(spec, others), bool(spec.get("resourceClaims"))
        by_claim = bool(status.get("extendedResourceClaimStatus")) or (claims and not asks)
        if asks or by_claim:
            metadata = pod["metadata"]
            namespace = metadata.get("namespace") or "default"
            holders[node].append(GpuHolder(namespace, metadata["name"], _owner(metadata, namespace), by_claim))
    return holders


def _asks(spec: JsonObject, others: Collection[str]) -> bool:
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        resources = container.get("resources") or {}
        if _resources({**(resources.get("requests") or {}), **(resources.get("limits") or {})}, others):
            return True
    return False


def _owner(metadata: JsonObject, namespace: str) -> ObjectRef | None:
    owner = next((item for item in metadata.get("ownerReferences") or () if item.get("controller")), None)
    if owner is None:
        return None
    kind, name = owner["kind"], owner["name"]
    hashed = (metadata.get("labels") or {}).get("pod-template-hash")
    if kind == "ReplicaSet" and hashed and name.endswith(f"-{hashed}"):
        return ObjectRef("Deployment", namespace, name.removesuffix(f"-{hashed}"))
    return ObjectRef(kind, namespace, name)


# -- device plugins


def _enabled(policy: JsonObject, part: str) -> bool:
    """Parts of a ClusterPolicy are on unless it says otherwise."""
    return value_at(policy, ("spec", part, "enabled")) is not False


def _daemon_sets(daemon_sets: Sequence[JsonObject], operator: bool) -> Iterable[DevicePlugin]:
    for daemon_set in daemon_sets:
        metadata = daemon_set["metadata"]
        owners = {owner.get("kind") for owner in metadata.get("ownerReferences") or ()}
        if operator and "ClusterPolicy" in owners:
            continue
        if any(is_plugin_image(str(container.get("image", ""))) for container in _containers(daemon_set)):
            gke = metadata.get("namespace") == "kube-system" and _GKE_PLUGIN.match(metadata["name"])
            installed = Installed.GKE if gke else Installed.DAEMON_SET
            yield DevicePlugin(installed, metadata.get("namespace") or "default", metadata["name"])


def _other_drivers(clusters: Sequence[JsonObject], daemon_sets: Sequence[JsonObject]) -> Iterable[str]:
    """NVIDIA's operator brings its driver by a GPUCluster, in some versions for ComputeDomains alone; its chart has a
    container `gpus` where it offers GPUs."""
    named = [
        f"GPUCluster {cluster['metadata']['name']}"
        for cluster in clusters
        if str(cluster.get("apiVersion", "")).startswith("nvidia.com/")
        and _enabled(cluster, "draDriver")
        and value_at(cluster, ("spec", "draDriver", "gpus", "enabled")) is not False
    ]
    yield from named
    for daemon_set in () if named else daemon_sets:
        if any(
            container.get("name") == "gpus" and _OTHER_DRIVER_IMAGE.search(str(container.get("image", "")))
            for container in _containers(daemon_set)
        ):
            metadata = daemon_set["metadata"]
            yield f"DaemonSet {metadata.get('namespace') or 'default'}/{metadata['name']}"


def _containers(daemon_set: JsonObject) -> list[JsonObject]:
    return maps_in(value_at(daemon_set, ("spec", "template", "spec", "containers")))
