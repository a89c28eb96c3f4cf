"""What runs in a cluster for GPUs (device plugins, parts of the GPU Operator, node labels of autoscalers), who offers
the GPUs of each node now, and which pods hold some. Pure.

DaemonSets of device plugins, feature discovery and the MIG manager see all GPUs of their nodes and never get claims.
`dra_driver.migration.cutover.cutover_plan` makes its plan of what is offered. What counts is what a scheduler sees:
allocatable amounts of a device plugin's resources, and ResourceSlices of the driver.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.api.untyped import Path, list_in, map_in, maps_in, value_at
from dra_driver.checking.codes import Severity
from dra_driver.migration import codes
from dra_driver.migration.codes import FindingCode
from dra_driver.migration.model import MigrationFinding, ObjectRef, finding
from dra_driver.migration.read.unrendered import OF_SYSTEMS
from dra_driver.migration.understand.labels import is_other
from dra_driver.quantity import Quantity

_PLUGIN = re.compile(
    r"k8s-device-plugin|(nvidia|gpu|hami|volcano)[^:@]*device-plugin|device-plugin[^:@]*(nvidia|gpu)|gpushare[^:@]*plugin"
)
_PLUMBING = re.compile(
    rf"{_PLUGIN.pattern}|gpu-feature-discovery|mig-manager|mig-parted|mps-control-daemon|container-toolkit|gpu-operator"
    r"|nvidia(-driver)?-installer|nccl-plugin"
)
"""The last ones are in init containers of DaemonSets. Source: GoogleCloudPlatform/container-engine-accelerators and
kubernetes-engine-samples."""
_SOCKETS = "/var/lib/kubelet/device-plugins"
"""Where device plugins tell kubelet that they are there; who has this folder of the host is one."""


@dataclass(frozen=True, slots=True)
class PluginSettings:
    """What the flags and variables of a device plugin's container say; they go before its configuration file.

    None: not said.
    """

    container: int
    """Position among the containers of its pod."""
    mig_strategy: str | None = None
    driver_root: str | None = None


def is_plumbing(spec: JsonObject) -> bool:
    """Whether any container of a pod's spec is one of these; an image under another name is known by its volume."""
    folders = (value_at(volume, ("hostPath", "path")) for volume in maps_in(spec.get("volumes")))
    containers = (*maps_in(spec.get("containers")), *maps_in(spec.get("initContainers")))
    images = (str(container.get("image")) for container in containers)
    return any(map(_PLUMBING.search, images)) or any(str(folder).rstrip("/") == _SOCKETS for folder in folders)


_OTHER_PROGRAMS = re.compile(r"(.*/)?(gpu-feature-discovery|config-manager)")
"""In the device plugin's own image: they offer nothing."""


def plugin_settings(daemon_set: JsonObject) -> PluginSettings | None:
    """None: it is no device plugin for GPUs of NVIDIA."""
    for number, container in enumerate(_containers(daemon_set)):
        words = (*list_in(container.get("command")), *list_in(container.get("args")))
        others = any(_OTHER_PROGRAMS.fullmatch(str(word)) for word in words)
        if _PLUGIN.search(str(container.get("image"))) and not others:
            given = _given(container)
            root = given.get("nvidia-driver-root")
            return PluginSettings(number, given.get("mig-strategy"), root if root and root.startswith("/") else None)
    return None


def _given(container: JsonObject) -> dict[str, str]:
    """By the flag's name; a flag goes before the variable of the same meaning."""
    given: dict[str, str] = {}
    for item in list_in(container.get("env")):
        if isinstance(item, dict) and isinstance(item.get("value"), str):
            given[str(item.get("name")).lower().replace("_", "-")] = item["value"]
    words = [str(word) for key in ("command", "args") for word in list_in(container.get(key))]
    for word, following in pairwise([*words, ""]):
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and (equals or not following.startswith("-")):
            given[name] = value if equals else following
    return given


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the GPU Operator that needs attention. `at` is below the spec of a ClusterPolicy."""

    at: Path
    applies: Callable[[object], bool]
    """To the value there, None if there is none."""
    code: FindingCode
    message: str
    advice: str | None = None
    severity: Severity | None = None


def _is_not_off(value: object) -> bool:
    return value is not False


_PARTS = (
    _Part(
        ("devicePlugin", "enabled"), _is_not_off, codes.DOUBLE_ALLOCATION,
        "the GPU Operator runs the device plugin on all GPU nodes",
        'Label the nodes that move with `nvidia.com/gpu.deploy.device-plugin: "false"`, node by node as the cut-over '
        "plan says; at the end set `spec.devicePlugin.enabled: false`.",
    ),
    _Part(
        ("migManager", "config", "name"), bool, codes.MIG_LAYOUT,
        "the MIG manager keeps layouts on nodes with the label nvidia.com/mig.config", None, Severity.WARNING,
    ),
    _Part(
        ("migManager", "gpuClientsConfig", "name"), bool, codes.NO_COUNTERPART,
        "the MIG manager stops clients before it changes a layout; the driver changes nothing that is in use",
    ),
    _Part(
        ("cdi", "enabled"), lambda value: value is False, codes.PLUGIN_SETTING,
        "CDI is off; the driver gives devices to containers only by CDI", "Set `spec.cdi.enabled: true`.",
    ),
    _Part(
        ("gfd", "enabled"), lambda value: value is False, codes.PLUGIN_SETTING,
        "GPU Feature Discovery is off: labels of GPUs are stale, or another tool sets them", "Check what sets them.",
    ),
    _Part(
        ("sandboxWorkloads", "enabled"), lambda value: value is True, codes.VIRTUAL_MACHINE,
        "nodes may be for virtual machines, by the label nvidia.com/gpu.workload.config",
    ),
    _Part(
        ("dcgmExporter", "enabled"), _is_not_off, codes.PLUGIN_SETTING,
        "metrics of dcgm-exporter name the pods of claims only with its DRA support switched on",
        "Set `KUBERNETES_ENABLE_DRA` of dcgm-exporter to true.", Severity.INFO,
    ),
)  # fmt: skip


def parts_of_operator(document: Document, spec: JsonObject) -> Iterator[MigrationFinding]:
    """`spec` is that of the ClusterPolicy."""
    for part in _PARTS:
        off = part.at[0] == "migManager" and value_at(spec, ("migManager", "enabled")) is False
        if part.applies(value_at(spec, part.at)) and not (off and part.code is codes.MIG_LAYOUT):
            path: Path = ("spec", part.at[0])
            yield finding(part.code, document, path, part.message, advice=part.advice, severity=part.severity)


_GPU = "nvidia.com/gpu"
_GPU_LABELS: Mapping[str, str] = {
    "k8s.amazonaws.com/accelerator": "AWS",
    "kubernetes.azure.com/accelerator": "Azure",
    "accelerator": "Azure",
    "cluster-api/accelerator": "Cluster API",
    "cloud.google.com/gke-accelerator": "Google Cloud",
}
"""By which the autoscaler knows nodes with GPUs, by cloud."""
_GOOGLE_DRIVER = "cloud.google.com/gke-gpu-dra-driver"


def labels_of_nodes(nodes: Iterable[Document]) -> Iterator[MigrationFinding]:
    """One for each label. The autoscaler takes a node with it for unready while `nvidia.com/gpu` is not there."""
    seen: set[str] = set()
    for document in nodes:
        labels = map_in(value_at(document.obj, ("metadata", "labels")))
        capacity = map_in(value_at(document.obj, ("status", "capacity")))
        if not any(str(key).startswith("nvidia.com/") for key in (*labels, *capacity)):
            continue
        for label in sorted(_GPU_LABELS.keys() & labels.keys()):
            if label in seen or labels.get(_GOOGLE_DRIVER) == "true":
                continue
            seen.add(label)
            message = (
                f"the Cluster Autoscaler ({_GPU_LABELS[label]}) recognizes nodes with GPUs by this label, and treats a "
                f"node without {_GPU} as not ready; nodes of the driver have none"
            )
            advice = (
                f"Label the nodes of the driver `{_GOOGLE_DRIVER}: \"true\"`, which autoscalers support from 1.35 on."
                if label.startswith("cloud.google.com")
                else "If it manages these nodes, remove the label from the node groups of the driver."
            )  # fmt: skip
            yield finding(codes.AUTOSCALER, document, ("metadata", "labels", label), message, advice=advice)


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
    """What a device plugin offers here, by resource name; zeros are left out."""
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
    # A ClusterPolicy that was not given is known by what it owns: the operator would undo a change of its DaemonSet.
    owned = [] if policies else [item for item in by_kind["DaemonSet"] if _operator_of(item) is not None]
    operators = {policy["metadata"]["name"] for policy in policies if _enabled(policy, "devicePlugin")}
    operators |= {str(_operator_of(item)) for item in owned if plugin_settings(item)}
    return Offering(
        tuple(sorted(gpu_nodes, key=lambda node: node.name)),
        tuple(
            sorted(
                {
                    *(DevicePlugin(Installed.OPERATOR, "", name) for name in operators),
                    *_daemon_sets(by_kind["DaemonSet"]),
                }
            )
        ),
        any(_enabled(policy, "migManager") for policy in policies)
        or any("mig-manager" in item["metadata"]["name"] for item in owned),
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


def _operator_of(daemon_set: JsonObject) -> str | None:
    """The name of the GPU Operator's ClusterPolicy that owns it."""
    for owner in daemon_set["metadata"].get("ownerReferences") or ():
        if owner.get("kind") == "ClusterPolicy" and str(owner.get("apiVersion", "nvidia.com/v1")).startswith(
            "nvidia.com/"
        ):
            return str(owner.get("name"))
    return None


def _daemon_sets(daemon_sets: Sequence[JsonObject]) -> Iterable[DevicePlugin]:
    for daemon_set in daemon_sets:
        metadata = daemon_set["metadata"]
        if _operator_of(daemon_set) is None and plugin_settings(daemon_set):
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
