"""Objects of other projects that count GPUs or make nodes: what they do with claims, and the text to add. Pure.

None of them is edited. Sources: Kueue 0.14 to 0.19 (pkg/dra, apis/config); Volcano's capacity plugin; KAI 0.17, whose
queues count devices of claims as whole GPUs; kubernetes-sigs/scheduler-plugins, Koordinator and nos; Karpenter 1.14;
Cluster Autoscaler 1.36.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from dra_driver.api.meta import JsonObject
from dra_driver.migration.claims.templates import class_name
from dra_driver.migration.codes import (
    AUTOSCALER,
    DOUBLE_ALLOCATION,
    NODE_ONLY_LABEL,
    QUOTA,
    FindingCode,
    FindingSeverity,
)
from dra_driver.migration.counts.counting import MENTION, Changes, Workloads, amount_of, maps_in, pasted
from dra_driver.migration.demands.label_table import is_gpu_label
from dra_driver.migration.model import MigrationFinding, MigrationTarget, Path, finding, value_at
from dra_driver.migration.understand.offering import OFFERED_BY
from dra_driver.names import INVENTORY_GROUP
from dra_driver.quantity import Quantity

_KUEUE = "kueue.x-k8s.io"
_QUEUE_LABEL = f"{_KUEUE}/queue-name"


def texts_in(value: object, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Keys and strings of an object with their paths."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, str(key)), str(key)
            yield from texts_in(inner, (*path, str(key)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from texts_in(inner, (*path, index))
    elif isinstance(value, str):
        yield path, value


# -- one sentence for a kind


@dataclass(frozen=True, slots=True)
class _Advice:
    """For the first place in the object whose key or text has `pattern`, if workloads become `target`."""

    message: str
    advice: str
    pattern: re.Pattern[str] = MENTION
    code: FindingCode = QUOTA
    target: MigrationTarget = MigrationTarget.CLAIMS
    paste: str = ""
    severity: FindingSeverity | None = None

    def apply(self, changes: Changes, workloads: Workloads) -> None:
        for path, text in texts_in(changes.obj):
            if self.pattern.search(text) is None:
                continue
            if workloads.become(self.target):
                changes.say(self.code, path, self.message, advice=self.advice, paste=self.paste, severity=self.severity)
            elif self.code is QUOTA:
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
        AUTOSCALER,
    ),
    _Advice(
        "Karpenter creates nodes for the extended resource, but waits until the node has it, which a node of the "
        "driver never does: the NodeClaim stays uninitialized and is not consolidated",
        "Use nodes that run until they expire (`expireAfter`), or keep the device plugin in such pools.",
        _OF_NODE_POOLS,
        AUTOSCALER,
        MigrationTarget.EXTENDED,
    ),
    _Advice(
        f"nodes that are created during the cut-over have no label {OFFERED_BY}, so nothing offers their GPUs",
        "Give the pool this label before the cut-over, and `driver` instead of `device-plugin` after it. Each change "
        "replaces its nodes, at the pace of `spec.disruption.budgets`.",
        _OF_NODE_POOLS,
        AUTOSCALER,
        paste=pasted({"spec": {"template": {"metadata": {"labels": {OFFERED_BY: "device-plugin"}}}}}),
        severity=FindingSeverity.INFO,
    ),
)
_BOTTLEROCKET = _Advice(
    "Bottlerocket runs a device plugin as a system service on nodes with NVIDIA GPUs",
    "Set `enabled = false` below `[settings.kubelet-device-plugins.nvidia]` in spec.userData for the driver's nodes, "
    "or use another AMI for them.",
    re.compile(r"^(?:bottlerocket@|Bottlerocket$)"),
    DOUBLE_ALLOCATION,
    severity=FindingSeverity.WARNING,
)
_MACHINES = _Advice(
    "the Cluster Autoscaler expects the extended resource of new nodes of this group, and no devices for claims",
    "Replace this annotation by `capacity.cluster-autoscaler.kubernetes.io/dra-driver: gpu.nvidia.com`, or keep one "
    "node in the group. Pods that keep the extended resource need a group of their own.",
    re.compile(r"^capacity\.cluster-autoscaler\.kubernetes\.io/gpu-type$"),
    AUTOSCALER,
)
_OLD_AUTOSCALER = _Advice(
    "Cluster Autoscaler before 1.35 creates nodes for claims only with --enable-dynamic-resource-allocation=true "
    "(1.32 and newer), or not at all",
    "Use the release of your Kubernetes, 1.35 or newer; or add the flag, and let its ClusterRole read resourceclaims, "
    "resourceslices and deviceclasses.",
    re.compile(r"(?:^|/)cluster-autoscaler(?:-\w+)?:v1\.(?:[12]?\d|3[0-4])\."),
    AUTOSCALER,
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


def _kueue_queue(changes: Changes, workloads: Workloads) -> None:
    for index, group in enumerate(maps_in(value_at(changes.obj, ("spec", "resourceGroups")))):
        covered = [str(item) for item in value_at(group, ("coveredResources",)) or ()]
        names: dict[str, str] = {}
        classes: set[str] = set()
        for position, resource in enumerate(covered):
            path: Path = ("spec", "resourceGroups", index, "coveredResources", position)
            use = workloads.use_of(resource)
            if not workloads.is_old(resource):
                continue
            if not use.claims:
                changes.say_unchanged(path, f"{resource} keeps counting: the workloads keep the extended resource")
            elif not workloads.is_number(resource):
                message = f"{resource}: Kueue counts devices of claims, and this is an amount of a device"
                changes.say(QUOTA, path, message, advice="Limit devices, or use `sources` of Kueue 0.19 for amounts.")
            elif missing := [name for name in use.classes if _name_in_kueue(name) not in covered]:
                classes |= set(missing)
                names[resource] = _name_in_kueue(missing[0])
        if names:
            _say_group(changes, ("spec", "resourceGroups", index, "coveredResources"), group, names, classes)


def _name_in_kueue(class_of: str) -> str:
    """Not that of the extended resource, because pods may use that one, too."""
    return f"{INVENTORY_GROUP}/{class_of.split('.')[0]}"


def _say_group(
    changes: Changes, path: Path, group: JsonObject, names: Mapping[str, str], classes: Iterable[str]
) -> None:
    flavors = []
    for flavor in maps_in(group.get("flavors")):
        quotas = [item for item in maps_in(flavor.get("resources")) if item.get("name") in names]
        renamed = [{**quota, "name": names[quota["name"]]} for quota in quotas]
        flavors.append({"name": flavor.get("name"), "resources": renamed})
    new = {"coveredResources": [*group["coveredResources"], *dict.fromkeys(names.values())], "flavors": flavors}
    message = f"{', '.join(names)} counts no claims; Kueue counts claims by class, under names that you choose"
    advice = (
        "Add these names and amounts to the resource group, and the mapping to Kueue's configuration. If several "
        "resources became one class, add their amounts up. Before Kueue 0.19 the old and the new name count "
        "separately: divide the amounts. Remove the old resource when no pod asks for it."
    )
    changes.say(QUOTA, path, message, advice=advice, paste=f"{pasted(new)}---\n{_mapping(classes)}")


def _mapping(classes: Iterable[str]) -> str:
    entries = [{"name": _name_in_kueue(class_), "deviceClassNames": [class_]} for class_ in sorted(classes)]
    note = (
        "# Kueue's configuration: ConfigMap kueue-manager-config, or managerConfig of its chart. Restart its manager.\n"
        "# Kueue 0.14 to 0.17 also need their feature gate DynamicResourceAllocation.\n"
    )
    return note + pasted({"resources": {"deviceClassMappings": entries}})


def not_admitted(workloads: Workloads) -> Iterator[MigrationFinding]:
    """Workloads with claims in queues of Kueue."""
    for workload in workloads.all:
        labels = value_at(workload.pod.document.obj, ("metadata", "labels"))
        if workload.choice.target is MigrationTarget.CLAIMS and isinstance(labels, dict) and _QUEUE_LABEL in labels:
            classes = {class_name(demand.want, workloads.options) for demand in workload.reading.demands}
            listed = " and ".join(sorted(classes))
            message = f"Kueue admits claims of class {listed} if its configuration maps the class"
            advice = (
                "Add the mapping, and the name with a quota to the ClusterQueue. Claims with selectors need Kueue "
                "0.18, with a config or constraints 0.19, with admin access 0.20."
            )
            path: Path = ("metadata", "labels", _QUEUE_LABEL)
            yield finding(QUOTA, workload.pod.document, path, message, advice=advice, paste=_mapping(classes))


def _resource_flavor(changes: Changes, _workloads: Workloads) -> None:
    labels = value_at(changes.obj, ("spec", "nodeLabels"))
    for key in filter(is_gpu_label, map(str, labels if isinstance(labels, dict) else ())):
        message = f"{key}: Kueue adds this node label to the pods, so the nodes must keep it"
        changes.say(NODE_ONLY_LABEL, ("spec", "nodeLabels", key), message)


def _volcano_queue(changes: Changes, workloads: Workloads) -> None:
    for at in (("capability",), ("deserved",), ("guarantee", "resource")):
        path: Path = ("spec", *at)
        amounts = value_at(changes.obj, path)
        keys: dict[str, Fraction] = {}
        for resource, value in amounts.items() if isinstance(amounts, dict) else ():
            use, amount, where = workloads.use_of(str(resource)), amount_of(value), (*path, str(resource))
            if not workloads.is_old(str(resource)) or "deviceclass/" in str(resource):
                continue
            if not use.claims:
                changes.say_unchanged(where, f"{resource} keeps counting: the workloads keep the extended resource")
            elif amount is None or not workloads.is_number(str(resource)):
                changes.say(QUOTA, where, f"{resource}: {value}: Volcano cannot count this for claims", advice="")
            else:
                for class_of in use.classes:
                    key = f"deviceclass/{class_of}"
                    keys[key] = keys.get(key, Fraction(0)) + amount.value
        missing: JsonObject = {key: str(Quantity(total)) for key, total in keys.items() if key not in amounts}
        if missing:
            for part in reversed(path):
                missing = {str(part): missing}
            advice = (
                "Add the keys; remove the old ones when no pod asks for the old resource. Volcano counts claims with "
                "its capacity plugin, if `capacity.DynamicResourceAllocationEnable` is on."
            )
            message = "Volcano counts claims by class, under separate keys"
            changes.say(QUOTA, path, message, advice=advice, paste=pasted(missing))


type Handler = Callable[[Changes, Workloads], None]

HANDLERS: Mapping[tuple[str, str], tuple[Handler, ...]] = {
    (_KUEUE, "ClusterQueue"): (_kueue_queue,),
    (_KUEUE, "Cohort"): (_kueue_queue,),
    (_KUEUE, "ResourceFlavor"): (_resource_flavor,),
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
