"""Objects of other projects that count GPUs or make nodes: what they do with claims, and the text to add. Pure.

None of them is edited. Sources: Kueue 0.14 to 0.19 (pkg/dra, apis/config); Volcano's capacity plugin; KAI 0.17, whose
queues count devices of claims as whole GPUs; kubernetes-sigs/scheduler-plugins, Koordinator and nos; Karpenter 1.14;
Cluster Autoscaler 1.36.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Unpack

import yaml

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.api.untyped import Path, list_in, map_in, maps_in, places_in, value_at
from dra_driver.checking.codes import Severity
from dra_driver.migration import codes
from dra_driver.migration.claims.templates import class_name
from dra_driver.migration.codes import FindingCode
from dra_driver.migration.demands.node_labels import is_gpu_label
from dra_driver.migration.demands.resources import is_whole_or_mig
from dra_driver.migration.model import (
    DeviceShare,
    Edit,
    FindingDetails,
    MigratedWorkload,
    MigrationFinding,
    MigrationTarget,
    Options,
    Want,
    What,
    finding,
)
from dra_driver.migration.read.kind_table import is_known
from dra_driver.migration.read.kinds import pods_of
from dra_driver.migration.read.unrendered import OF_SYSTEMS
from dra_driver.migration.understand.labels import Hints
from dra_driver.migration.understand.meaning import SYSTEMS, UNKNOWN_NODES, Meaning
from dra_driver.migration.understand.offering import OFFERED_BY
from dra_driver.migration.understand.plugin_config import GPU_RESOURCE
from dra_driver.names import INVENTORY_GROUP

MENTION = re.compile(rf"nvidia\.com/(?:gpu|mig-)|nvidia_com_(?:gpu|mig)|DCGM_FI_|{OF_SYSTEMS}")
"""Names of GPU resources of device plugins, and of metrics about them."""
_NUMBERS = tuple(system.count for system in SYSTEMS if system.count)


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """How workloads use one resource. `claims`: some get claims instead, or no workload is known; `old`: some keep the
    resource, or no workload is known."""

    claims: bool
    old: bool
    classes: tuple[str, ...]
    """DeviceClasses of the claims, sorted; those that claims would name if there are none."""
    wants: tuple[Want, ...]


class Workloads:
    """All workloads of a run, with what was decided for them."""

    def __init__(self, workloads: Sequence[MigratedWorkload], meaning: Meaning, options: Options) -> None:
        self.all = workloads
        self.meaning = meaning
        self.options = options
        self._documents = {workload.document for workload in workloads}
        self._anywhere = replace(options, unknown_kinds=True)

    def contain(self, document: Document) -> bool:
        """Whether the document describes pods, which are read and reported elsewhere."""
        return document in self._documents or is_known(document.obj) or bool(pods_of(document, self._anywhere))

    def become(self, target: MigrationTarget) -> bool:
        """Whether some workload becomes that, or no workload is known."""
        targets = {workload.choice.target for workload in self.all}
        return target in targets or not targets

    def use_of(self, resource: str, namespace: str | None = None) -> ResourceUse:
        """By workloads of a namespace, or of all namespaces."""
        demands = [
            (workload.choice.target, demand.want)
            for workload in self.all
            if namespace is None or (workload.document.namespace or "default") == namespace
            for demand in workload.reading.demands
            if demand.resource == resource
        ]
        targets = {target for target, _ in demands}
        wants = tuple(dict.fromkeys(want for target, want in demands if target is MigrationTarget.CLAIMS))
        wants = wants or self._wants(resource)
        return ResourceUse(
            claims=MigrationTarget.CLAIMS in targets or not targets,
            old=bool(targets - {MigrationTarget.CLAIMS}) or not targets,
            classes=tuple(sorted({class_name(want, self.options) for want in wants})),
            wants=wants,
        )

    def is_number(self, resource: str) -> bool:
        """Whether it is a number of devices or of shares."""
        known = resource in (self.meaning.hami.count, *_NUMBERS) or resource in self.meaning.own
        return known or is_whole_or_mig(resource)

    def is_old(self, resource: str) -> bool:
        """Whether device plugins offer it."""
        return MENTION.search(resource) is not None or resource in self.meaning.own

    def _wants(self, resource: str) -> tuple[Want, ...]:
        """What no workload asks for, as it would be read on any node."""
        own = self.meaning.own.get(resource)
        if own is not None:
            return (own,)
        if resource in _NUMBERS:
            return (Want(What.GPU, share=DeviceShare()),)
        meanings = list(self.meaning.meanings(resource, (), Hints())) or [UNKNOWN_NODES.means(resource, Hints())]
        wants = [
            Want(meaning.what, profile=meaning.profile, share=DeviceShare() if meaning.sharing else None)
            for meaning in meanings
        ]
        if resource == GPU_RESOURCE and any(meaning.what is What.MIG for meaning in meanings):
            # A node without MIG devices offers its whole GPUs under this name, too.
            wants.append(Want(What.GPU))
        return tuple(dict.fromkeys(wants))


@dataclass(slots=True)
class Changes:
    """What becomes of one document."""

    document: Document
    edits: list[Edit] = field(default_factory=list)
    findings: list[MigrationFinding] = field(default_factory=list)

    @property
    def obj(self) -> JsonObject:
        return self.document.obj

    def say(self, code: FindingCode, path: Path, message: str, **details: Unpack[FindingDetails]) -> None:
        self.findings.append(finding(code, self.document, path, message, **details))

    def say_unchanged(self, path: Path, message: str) -> None:
        """Nothing to do."""
        self.say(codes.QUOTA, path, message, severity=Severity.INFO, advice="")


def pasted(obj: JsonObject) -> str:
    """YAML for a person to add to an object."""
    return str(yaml.safe_dump(obj, sort_keys=False, allow_unicode=True, default_flow_style=None, width=110))


type Handler = Callable[[Changes, Workloads], None]

_KUEUE = "kueue.x-k8s.io"
_QUEUE_LABEL = f"{_KUEUE}/queue-name"


def texts_in(value: object) -> Iterator[tuple[Path, str]]:
    """Keys and strings of an object with their paths."""
    for path, text in places_in(value):
        if path and isinstance(path[-1], str):
            yield path, path[-1]
        if isinstance(text, str):
            yield path, text


# -- one sentence for a kind


@dataclass(frozen=True, slots=True)
class _Advice:
    """For the first place in the object whose key or text has `pattern`, if workloads become `target`."""

    message: str
    advice: str
    pattern: re.Pattern[str] = MENTION
    code: FindingCode = codes.QUOTA
    target: MigrationTarget = MigrationTarget.CLAIMS
    paste: str = ""
    severity: Severity | None = None

    def apply(self, changes: Changes, workloads: Workloads) -> None:
        for path, text in texts_in(changes.obj):
            if self.pattern.search(text) is None:
                continue
            if workloads.become(self.target):
                changes.say(self.code, path, self.message, advice=self.advice, paste=self.paste, severity=self.severity)
            elif self.code is codes.QUOTA:
                changes.say_unchanged(path, "keeps counting: the workloads keep the extended resource")
            return


_OF_NODE_POOLS = re.compile(r"^nvidia\.com/|^karpenter\.k8s\.aws/instance-gpu-|^karpenter\.azure\.com/sku-gpu-")
_KARPENTER = (
    _Advice(
        "Karpenter creates no nodes for pods with claims (before 1.14 never; since then only with "
        "IGNORE_DRA_REQUESTS=false and a cloud provider that describes devices, which AWS's does not in 1.14), and "
        "its limits do not count nodes of the driver",
        "Keep nodes for these pods with `replicas` of a NodePool or a node group of the cloud, and limit the pool by "
        "`nodes`; or keep the extended resource (`strategy: extended`).",
        _OF_NODE_POOLS,
        codes.AUTOSCALER,
    ),
    _Advice(
        "Karpenter creates nodes for the extended resource, but waits until the node has it, which a node of the "
        "driver never does: the NodeClaim stays uninitialized and is not consolidated",
        "Use nodes that run until they expire (`expireAfter`), or keep the device plugin in such pools.",
        _OF_NODE_POOLS,
        codes.AUTOSCALER,
        MigrationTarget.EXTENDED,
    ),
    _Advice(
        f"nodes that are created during the cut-over have no label {OFFERED_BY}, so nothing offers their GPUs",
        "Give the pool this label before the cut-over, and `driver` instead of `device-plugin` after it. Each change "
        "replaces its nodes, at the pace of `spec.disruption.budgets`.",
        _OF_NODE_POOLS,
        codes.AUTOSCALER,
        paste=pasted({"spec": {"template": {"metadata": {"labels": {OFFERED_BY: "device-plugin"}}}}}),
        severity=Severity.INFO,
    ),
)
_BOTTLEROCKET = _Advice(
    "Bottlerocket runs a device plugin as a system service on nodes with NVIDIA GPUs",
    "Set `enabled = false` below `[settings.kubelet-device-plugins.nvidia]` in spec.userData for the driver's nodes, "
    "or use another AMI for them.",
    re.compile(r"^(?:bottlerocket@|Bottlerocket$)"),
    codes.DOUBLE_ALLOCATION,
    severity=Severity.WARNING,
)
_MACHINES = _Advice(
    "the Cluster Autoscaler expects the extended resource of new nodes of this group, and no devices for claims",
    "Replace this annotation by `capacity.cluster-autoscaler.kubernetes.io/dra-driver: gpu.nvidia.com`, or keep one "
    "node in the group. Pods that keep the extended resource need a group of their own.",
    re.compile(r"^capacity\.cluster-autoscaler\.kubernetes\.io/gpu-type$"),
    codes.AUTOSCALER,
)
_OLD_AUTOSCALER = _Advice(
    "Cluster Autoscaler before 1.35 creates nodes for claims only with --enable-dynamic-resource-allocation=true "
    "(1.32 and newer), or not at all",
    "Use the release of your Kubernetes, 1.35 or newer; or add the flag, and let its ClusterRole read resourceclaims, "
    "resourceslices and deviceclasses.",
    re.compile(r"(?:^|/)cluster-autoscaler(?:-\w+)?:v1\.(?:[12]?\d|3[0-4])\."),
    codes.AUTOSCALER,
)
_POD_GROUP = _Advice(
    "minResources: nodes of the driver have none of this resource, so a group whose pods have claims would wait",
    "Remove it when the pods of the group have claims.",
)
_ELASTIC_QUOTA = _Advice(
    "its scheduler counts what pods request, and no claims",
    "Limit claims with a ResourceQuota in each namespace, or with Kueue, whose cohorts lend quota, too; or keep the "
    "extended resource (`strategy: extended`).",
    re.compile(rf"{MENTION.pattern}|nos\.nebuly\.com/gpu-memory"),
)
_KAI_QUEUE = _Advice(
    "KAI counts each device of a claim as one GPU, also a share, if the scheduler's DRA is on; it counts no claims of "
    "a class without `gpu` in its name",
    "Raise quota and limit for claims of shares, and use classes with `gpu` in their names "
    "(`classes: {mig: mig.gpu.example.com}`).",
    re.compile(r"^gpu$"),
)
_RUNAI_PROJECT = _Advice(
    "the release of Run:ai decides whether the project's GPUs include those of claims",
    "Read Run:ai's notes on DRA before its workloads get claims.",
    re.compile(r"^(?:deservedGpus|nodePoolsResources)$"),
)


# -- Kueue and Volcano, which count claims under names of their own


def _counted(
    changes: Changes,
    workloads: Workloads,
    path: Path,
    resource: str,
    message: str,
    advice: str,
    *,
    mapped: bool = False,
) -> None:
    """Of one resource that a queue counts."""
    use = workloads.use_of(resource)
    if not workloads.is_old(resource):
        return
    if not use.claims:
        changes.say_unchanged(path, f"{resource} keeps counting: the workloads keep the extended resource")
    else:
        paste = _mapping(use.classes) if mapped else ""
        changes.say(codes.QUOTA, path, f"{resource} counts no claims; {message}", advice=advice, paste=paste)


def _kueue_queue(changes: Changes, workloads: Workloads) -> None:
    for index, group in enumerate(maps_in(value_at(changes.obj, ("spec", "resourceGroups")))):
        covered = list(map(str, list_in(group.get("coveredResources"))))
        if any(name.startswith(f"{INVENTORY_GROUP}/") for name in covered):
            continue
        for position, resource in enumerate(covered):
            _counted(
                changes,
                workloads,
                ("spec", "resourceGroups", index, "coveredResources", position),
                resource,
                "Kueue counts devices of claims by class, under names that its configuration maps",
                "Add the mapping to Kueue's configuration, and these names with amounts to the resource group. Before "
                "Kueue 0.19 the old and the new name count separately: divide the amounts. Remove the old resource "
                "when no pod asks for it.",
                mapped=True,
            )


def _mapping(classes: Iterable[str]) -> str:
    # The names are not those of extended resources, because pods may use those, too.
    entries = [
        {"name": f"{INVENTORY_GROUP}/{class_.split('.')[0]}", "deviceClassNames": [class_]}
        for class_ in sorted(classes)
    ]
    note = (
        "# Kueue's configuration: ConfigMap kueue-manager-config, or managerConfig of its chart. Restart its manager.\n"
        "# Kueue 0.14 to 0.17 also need their feature gate DynamicResourceAllocation.\n"
    )
    return note + pasted({"resources": {"deviceClassMappings": entries}})


def not_admitted(workloads: Workloads) -> Iterator[MigrationFinding]:
    """Workloads with claims in queues of Kueue."""
    for workload in workloads.all:
        labels = map_in(value_at(workload.document.obj, ("metadata", "labels")))
        if workload.choice.target is MigrationTarget.CLAIMS and _QUEUE_LABEL in labels:
            classes = {class_name(demand.want, workloads.options) for demand in workload.reading.demands}
            listed = " and ".join(sorted(classes))
            message = f"Kueue admits claims of class {listed} if its configuration maps the class"
            advice = (
                "Add the mapping, and the name with a quota to the ClusterQueue. Claims with selectors need Kueue "
                "0.18, with a config or constraints 0.19, with admin access 0.20."
            )
            path: Path = ("metadata", "labels", _QUEUE_LABEL)
            yield finding(codes.QUOTA, workload.document, path, message, advice=advice, paste=_mapping(classes))


def _node_labels(at: Path, who: str) -> Handler:
    """Of an object whose labels are added to what pods ask of their nodes."""

    def handle(changes: Changes, _workloads: Workloads) -> None:
        for key in filter(is_gpu_label, map(str, map_in(value_at(changes.obj, at)))):
            message = f"{key}: {who} adds this node label to the pods, so the nodes must keep it"
            changes.say(codes.NODE_ONLY_LABEL, (*at, key), message)

    return handle


def _volcano_queue(changes: Changes, workloads: Workloads) -> None:
    for at in (("capability",), ("deserved",), ("guarantee", "resource")):
        for resource in map_in(value_at(changes.obj, ("spec", *at))):
            if not str(resource).startswith("deviceclass/"):
                _counted(
                    changes,
                    workloads,
                    ("spec", *at, str(resource)),
                    str(resource),
                    "Volcano counts devices of claims by class, under keys such as deviceclass/gpu.nvidia.com",
                    "Add the keys of your classes, and remove the old ones when no pod asks for the old resource. "
                    "Volcano counts claims with its capacity plugin, with `capacity.DynamicResourceAllocationEnable`.",
                )


HANDLERS: Mapping[tuple[str, str], tuple[Handler, ...]] = {
    (_KUEUE, "ClusterQueue"): (_kueue_queue,),
    (_KUEUE, "Cohort"): (_kueue_queue,),
    (_KUEUE, "ResourceFlavor"): (_node_labels(("spec", "nodeLabels"), "Kueue"),),
    ("node.k8s.io", "RuntimeClass"): (_node_labels(("scheduling", "nodeSelector"), "the RuntimeClass"),),
    ("scheduling.volcano.sh", "Queue"): (_volcano_queue,),
    ("scheduling.volcano.sh", "PodGroup"): (_POD_GROUP.apply,),
    ("scheduling.x-k8s.io", "PodGroup"): (_POD_GROUP.apply,),
    ("scheduling.x-k8s.io", "ElasticQuota"): (_ELASTIC_QUOTA.apply,),
    ("scheduling.sigs.k8s.io", "ElasticQuota"): (_ELASTIC_QUOTA.apply,),
    ("nos.nebuly.com", "ElasticQuota"): (_ELASTIC_QUOTA.apply,),
    ("nos.nebuly.com", "CompositeElasticQuota"): (_ELASTIC_QUOTA.apply,),
    ("scheduling.run.ai", "Queue"): (_KAI_QUEUE.apply,),
    ("run.ai", "Project"): (_RUNAI_PROJECT.apply,),
    ("karpenter.sh", "NodePool"): tuple(advice.apply for advice in _KARPENTER),
    ("karpenter.sh", "Provisioner"): tuple(advice.apply for advice in _KARPENTER[:2]),
    ("karpenter.sh", "NodeOverlay"): (_KARPENTER[0].apply,),
    ("karpenter.k8s.aws", "EC2NodeClass"): (_BOTTLEROCKET.apply,),
    ("cluster.x-k8s.io", "MachineDeployment"): (_MACHINES.apply,),
    ("cluster.x-k8s.io", "MachineSet"): (_MACHINES.apply,),
    ("cluster.x-k8s.io", "MachinePool"): (_MACHINES.apply,),
    ("apps", "Deployment"): (_OLD_AUTOSCALER.apply,),
}
"""By group and kind."""
