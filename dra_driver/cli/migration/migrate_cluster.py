"""What `dractl migrate --cluster` reads: workloads, and what is around them. Nothing is ever written.

Objects become the texts that a person would keep: without status, and without what the server puts in. What may not be
read is noted and left out.
"""

import asyncio
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from dra_driver.api.meta import (
    CONFIG_MAPS,
    CRDS,
    DAEMON_SETS,
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_QUOTAS,
    RESOURCE_SLICES,
    WORKLOADS,
    JsonObject,
    Resource,
)
from dra_driver.cli.reading.session import ask, listed
from dra_driver.errors import NotFound
from dra_driver.kube.client import Kube
from dra_driver.migration.model import ManifestText
from dra_driver.migration.read.kind_table import is_known
from dra_driver.migration.report.outcome import UnreadInput
from dra_driver.names import CONFIG_GROUP

_WORKLOADS: tuple[Resource, ...] = (
    PODS,
    Resource("", "v1", "replicationcontrollers", "ReplicationController", True),
    Resource("", "v1", "podtemplates", "PodTemplate", True),
    RESOURCE_QUOTAS,
    Resource("", "v1", "limitranges", "LimitRange", True),
    *WORKLOADS,
    RESOURCE_CLAIM_TEMPLATES,
)
_QUEUES = frozenset(
    (
        "ClusterQueue", "Cohort", "ResourceFlavor", "Queue", "NodePool", "NodeOverlay", "EC2NodeClass",
        "MachineDeployment", "MachineSet", "MachinePool",
    )
)  # fmt: skip
_QUEUE_GROUPS = frozenset(
    (
        "kueue.x-k8s.io", "scheduling.volcano.sh", "scheduling.run.ai", "karpenter.sh", "karpenter.k8s.aws",
        "cluster.x-k8s.io",
    )
)  # fmt: skip
_SURROUNDINGS = frozenset((("nvidia.com", "ClusterPolicy"), ("nvidia.com", "GPUCluster")))
_OF_CLAIMS = frozenset(((CONFIG_GROUP, "ComputeDomain"),))
"""Kinds whose controllers make templates that pods name."""
_SERVER_FIELDS = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink")
_SERVER_ANNOTATIONS = (
    "kubectl.kubernetes.io/last-applied-configuration",
    "deployment.kubernetes.io/revision",
    "deprecated.daemonset.template.generation",
)
_CONFIG_MARKS = ("migStrategy", "timeSlicing", "mig-configs", "deviceSplitCount", "kueue.x-k8s.io")
"""What a ConfigMap that matters here has in its text."""


@dataclass(frozen=True, slots=True)
class ClusterRead:
    minor: int
    workloads: tuple[ManifestText, ...]
    """One for each object that no controller created."""
    around: ManifestText
    """Configurations, nodes, slices, DeviceClasses, and claims that pods can name."""
    objects: tuple[JsonObject, ...]
    """Nodes, pods, slices, DaemonSets and ClusterPolicies, for the cut-over."""
    classes: tuple[JsonObject, ...]
    unread: tuple[UnreadInput, ...]
    """Kinds that could not be listed."""


def read_cluster(kubeconfig: Path | None, context: str | None, namespace: str | None) -> ClusterRead:
    """`namespace` is whose workloads are read; None for all. Raises ClusterError when it cannot be asked at all."""
    return ask(kubeconfig, context, lambda kube: _read_cluster(kube, namespace))


async def _read_cluster(kube: Kube, namespace: str | None) -> ClusterRead:
    _, minor = await kube.server_version()
    reading = _Reading(kube)
    crds = await reading.list(CRDS)
    workloads = [*_WORKLOADS, *_resources_of(crds, _holds_work)]
    surroundings = _resources_of(crds, lambda group, kind: (group, kind) in _SURROUNDINGS)
    results = await asyncio.gather(
        *(reading.list(workload, namespace if workload.namespaced else None) for workload in workloads)
    )
    nodes, slices, classes, pods, configs, daemon_sets = await asyncio.gather(
        *map(reading.list, (NODES, RESOURCE_SLICES, DEVICE_CLASSES, PODS, CONFIG_MAPS, DAEMON_SETS))
    )
    policies = [item for resource in surroundings for item in await reading.list(resource)]
    of_claims = (RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, *_resources_of(crds, lambda *kind: kind in _OF_CLAIMS))
    nameable = [item for resource in of_claims for item in await reading.list(resource, namespace)]
    configs = [config for config in configs if any(mark in json.dumps(config.get("data")) for mark in _CONFIG_MARKS)]
    claims = [_unstatused(item) for item in nameable if not _made_for_a_pod(item)]
    items = [*policies, *configs, *nodes, *slices, *classes, *claims]
    around = {"apiVersion": "v1", "kind": "List", "items": items}
    return ClusterRead(
        minor,
        tuple(_source(obj) for objects in results for obj in objects if not _made_by_others(obj)),
        ManifestText("the cluster", json.dumps(around)),
        (*nodes, *pods, *slices, *daemon_sets, *policies),
        tuple(classes),
        tuple(reading.unread),
    )


class _Reading:
    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self.unread: dict[UnreadInput, None] = {}

    async def list(self, resource: Resource, namespace: str | None = None) -> list[JsonObject]:
        """Nothing where that is not allowed."""
        cluster_error = await listed(self._kube, resource, namespace)
        if isinstance(cluster_error, list):
            return cluster_error
        if not isinstance(cluster_error, NotFound):
            of_kinds = ", so objects of kinds that are not Kubernetes' own were not asked for" * (resource is CRDS)
            where = f" in namespace {namespace}" if namespace else " in all namespaces" * resource.namespaced
            self.unread.setdefault(UnreadInput(resource.kind, f"you may not list them{where}{of_kinds}"))
        return []


def _holds_work(group: str, kind: str) -> bool:
    if group in _QUEUE_GROUPS:
        return kind in _QUEUES
    return is_known({"apiVersion": f"{group}/v1", "kind": kind})


def _resources_of(crds: Iterable[JsonObject], wanted: Callable[[str, str], bool]) -> list[Resource]:
    resources_of = []
    for crd in crds:
        spec = crd["spec"]
        group, names = spec["group"], spec["names"]
        served = [item["name"] for item in spec["versions"] if item.get("served")]
        stored = [item["name"] for item in spec["versions"] if item.get("served") and item.get("storage")]
        if served and wanted(group, names["kind"]):
            version = (stored or served)[0]
            resources_of.append(Resource(group, version, names["plural"], names["kind"], spec["scope"] == "Namespaced"))
    return resources_of


def _made_by_others(obj: JsonObject) -> bool:
    return any(item.get("controller") for item in obj["metadata"].get("ownerReferences") or ())


def _made_for_a_pod(obj: JsonObject) -> bool:
    """From a template: clusters have as many of these as pods, and no manifest names them."""
    return any(item.get("kind") == "Pod" for item in obj["metadata"].get("ownerReferences") or ())


def _unstatused(obj: JsonObject) -> JsonObject:
    metadata = {key: obj["metadata"][key] for key in ("name", "namespace") if key in obj["metadata"]}
    return {**{key: obj.get(key) for key in ("apiVersion", "kind", "spec")}, "metadata": metadata}


def _source(obj: JsonObject) -> ManifestText:
    metadata = _without(obj["metadata"], *_SERVER_FIELDS)
    annotations = metadata.get("annotations")
    if annotations is not None:
        metadata = _with(metadata, "annotations", _without(annotations, *_SERVER_ANNOTATIONS))
    whole = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": metadata}
    rest = {key: value for key, value in obj.items() if key not in ("status", *whole)}
    if obj["kind"] == "Pod":
        rest["spec"] = _unscheduled(rest["spec"])
    elif obj["kind"] == "Job" and not rest["spec"].get("manualSelector"):
        rest["spec"] = _unselected(rest["spec"])
        whole["metadata"] = _without_job_labels(metadata)
    # Kinds of others have names that Kubernetes has, too: there is a Job of Volcano's.
    group = obj["apiVersion"].rpartition("/")[0]
    name = f"{obj['kind'].lower()}{f'.{group}' * ('.' in group)}-{metadata['name']}.yaml"
    text = yaml.safe_dump({**whole, **rest}, sort_keys=False, allow_unicode=True, width=10**6)
    return ManifestText(str(Path(metadata.get("namespace") or "_cluster", name)), text)


def _unscheduled(spec: JsonObject) -> JsonObject:
    """Of a pod: without the node that the scheduler chose, which would look like a node that the manifest wants, and
    without the token that admission mounts."""
    tokens = {item["name"] for item in spec.get("volumes") or () if item["name"].startswith("kube-api-access-")}
    rest = _with(_without(spec, "nodeName"), "volumes", _not_named(spec.get("volumes"), tokens))
    for field in ("initContainers", "containers"):
        if field in rest:
            rest[field] = [
                _with(item, "volumeMounts", _not_named(item.get("volumeMounts"), tokens)) for item in rest[field]
            ]
    return rest


_JOB_LABELS = ("controller-uid", "batch.kubernetes.io/controller-uid", "job-name", "batch.kubernetes.io/job-name")


def _unselected(spec: JsonObject) -> JsonObject:
    """Of a Job: without selector and labels that the server generated, with which it takes no new one."""
    template = spec["template"]
    return {
        **_without(spec, "selector"),
        "template": {**template, "metadata": _without_job_labels(template.get("metadata") or {})},
    }


def _without_job_labels(metadata: JsonObject) -> JsonObject:
    return _with(metadata, "labels", _without(metadata.get("labels") or {}, *_JOB_LABELS))


def _without(obj: JsonObject, *keys: str) -> JsonObject:
    return {name: value for name, value in obj.items() if name not in keys}


def _with(obj: JsonObject, key: str, value: object) -> JsonObject:
    """Without the field if the value is empty."""
    rest = _without(obj, key)
    return {**rest, key: value} if value else rest


def _not_named(items: Iterable[JsonObject] | None, names: Collection[str]) -> list[JsonObject]:
    return [item for item in items or () if item["name"] not in names]


def relevant(sources: Sequence[ManifestText]) -> tuple[ManifestText, ...]:
    """Those that may concern GPUs at all, by their text; clusters have thousands of others."""
    return tuple(source for source in sources if any(mark in source.text for mark in _GPU_MARKS))


_GPU_MARKS = ("gpu", "GPU", "nvidia", "NVIDIA", "vcuda", "deviceclass")
