"""Objects by which autoscalers make nodes, and what they make of claims: Karpenter, Cluster Autoscaler. Pure.

A node of the driver has no `nvidia.com/gpu` in its capacity, by which both of them count, limit and wait.
Source: Karpenter 1.14 (provisioning, node initialization, limits; AWS's provider describes no devices); Cluster
Autoscaler 1.36 (its processor of GPU nodes, the annotations of Cluster API, the flags).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.migration.codes import AUTOSCALER, DOUBLE_ALLOCATION, Code, Severity
from dra_driver.migration.counting import Found, World, dicts
from dra_driver.migration.model import Finding, Path, Put, Remove, Target, finding, value_at
from dra_driver.migration.offering import OFFERED_BY

_GPU = "nvidia.com/gpu"
_OF_GPUS = re.compile(r"nvidia\.com/|karpenter\.k8s\.aws/instance-gpu-|karpenter\.azure\.com/sku-gpu-")
_COUNTS = ("karpenter.k8s.aws/instance-gpu-count", "karpenter.azure.com/sku-gpu-count")


def _becomes(world: World, target: Target) -> bool:
    """Whether workloads become that, or nothing is known of any."""
    targets = {one.choice.target for one in world.workloads}
    return target in targets or not targets


def _say(found: Found, path: Path, message: str, advice: str = "", code: Code = AUTOSCALER, **more: Any) -> None:
    found.say(code, path, message, advice=advice, **more)


# -- Karpenter


def _node_pool(found: Found, world: World) -> None:
    spec = value_at(found.obj, ("spec", "template"))
    if not isinstance(spec, dict) or not _makes_gpu_nodes(found.obj):
        return
    template: Path = ("spec", "template")
    if _becomes(world, Target.CLAIMS):
        _say(
            found,
            template,
            "Karpenter makes no nodes for pods with claims: before 1.14 never, since then only with "
            "IGNORE_DRA_REQUESTS=false and devices that the cloud's provider describes, which AWS's does not in 1.14",
            "Keep nodes for these pods by `replicas` of a NodePool or a node group of the cloud, or leave the "
            "workloads with the extended resource (`--strategy extended`).",
        )
    if _becomes(world, Target.EXTENDED):
        _say(
            found,
            template,
            f"Karpenter makes nodes for {_GPU}, then waits until the node has it, which one of the driver never does: "
            "the NodeClaim stays uninitialized, and is not consolidated",
            "Count on nodes that run until they expire (`expireAfter`), or keep such pools with the device plugin.",
        )
    if value_at(spec, ("metadata", "labels", OFFERED_BY)) is None:
        _say(
            found,
            (*template, "metadata"),
            f"nodes that are made during the cut-over have no label {OFFERED_BY}, so nobody offers their GPUs",
            f"Give the pool `spec.template.metadata.labels: {{{OFFERED_BY}: device-plugin}}` before the cut-over, and "
            "`driver` after it; each change replaces its nodes, in the pace of `spec.disruption.budgets`.",
            severity=Severity.INFO,
        )
    _limits(found, ("spec", "limits"))


def _limits(found: Found, path: Path) -> None:
    limits = value_at(found.obj, path)
    if not isinstance(limits, dict) or _GPU not in limits:
        return
    message = f"{_GPU} limits nodes by what a device plugin has to give; nodes of the driver have none of it"
    where = (*path, _GPU)
    nodes = _nodes_of(found.obj, limits[_GPU])
    if "nodes" in limits:
        _say(found, where, f"{message}, and count by `nodes` only", severity=Severity.INFO)
    elif nodes is None:
        advice = "Limit the pool by `nodes` (from Karpenter 1.11 on) or cpu, too: its nodes have no one number of GPUs."
        _say(found, where, message, advice)
    else:
        found.edits.append(Put((*path, "nodes"), str(nodes)))
        advice = "Needs Karpenter 1.11; before, limit the pool by cpu."
        _say(found, where, f"{message}; `nodes: {nodes}` beside it is as many GPUs", advice, fixed=True)


def _nodes_of(pool: JsonObject, limit: object) -> int | None:
    """As many nodes as have the limit's GPUs, where all have one number of them."""
    for one in dicts(value_at(pool, ("spec", "template", "spec", "requirements"))):
        values = one.get("values")
        if one.get("key") in _COUNTS and one.get("operator") == "In" and isinstance(values, list) and len(values) == 1:
            count, most = str(values[0]), str(limit)
            if count.isdigit() and most.isdigit() and int(count) > 0:
                return int(most) // int(count)
    return None


def _makes_gpu_nodes(pool: JsonObject) -> bool:
    template: Path = ("spec", "template")
    listed = (value_at(pool, (*template, "spec", part)) for part in ("requirements", "taints"))
    keys = [str(one.get("key")) for part in listed for one in dicts(part)]
    limits = value_at(pool, ("spec", "limits"))
    labels = value_at(pool, (*template, "metadata", "labels"))
    return any(_OF_GPUS.match(key) for key in (*keys, *_keys(limits), *_keys(labels)))


def _provisioner(found: Found, world: World) -> None:
    """Karpenter before its v1beta1."""
    _limits(found, ("spec", "limits", "resources"))


def _node_overlay(found: Found, world: World) -> None:
    capacity = value_at(found.obj, ("spec", "capacity"))
    for resource in capacity if isinstance(capacity, dict) else ():
        if not _OF_GPUS.match(str(resource)):
            continue
        path: Path = ("spec", "capacity", str(resource))
        message = f"{resource} is what Karpenter expects of nodes; an overlay describes no devices for claims"
        _say(found, path, message, "Keep nodes for pods with claims by `replicas` of a NodePool.")


def _node_class(found: Found, world: World) -> None:
    """Of AWS. Bottlerocket's variants with GPUs run a device plugin of their own."""
    terms = dicts(value_at(found.obj, ("spec", "amiSelectorTerms")))
    index = next((at for at, one in enumerate(terms) if str(one.get("alias")).startswith("bottlerocket@")), None)
    family = value_at(found.obj, ("spec", "amiFamily")) == "Bottlerocket"
    data = value_at(found.obj, ("spec", "userData"))
    off = isinstance(data, str) and re.search(r"kubelet-device-plugins\.nvidia\][^\[]*enabled\s*=\s*false", data)
    if (index is not None or family) and not off:
        _say(
            found,
            ("spec", "amiFamily") if index is None else ("spec", "amiSelectorTerms", index, "alias"),
            "Bottlerocket runs a device plugin as a service of the system on nodes with NVIDIA's GPUs, whatever "
            "DaemonSets select",
            "Put `enabled = false` under `[settings.kubelet-device-plugins.nvidia]` into spec.userData of the class of "
            "the driver's nodes, with a Bottlerocket that has the setting, or take another AMI for them.",
            code=DOUBLE_ALLOCATION,
            severity=Severity.WARNING,
        )


# -- Cluster Autoscaler

_CAPACITY = "capacity.cluster-autoscaler.kubernetes.io/"


def _machines(found: Found, world: World) -> None:
    """Cluster API says by annotations what nodes of a group that has none will have."""
    base: Path = ("metadata", "annotations")
    annotations = value_at(found.obj, base)
    gpu_type = (*base, f"{_CAPACITY}gpu-type")
    if not isinstance(annotations, dict) or annotations.get(gpu_type[-1]) != _GPU:
        return
    driver = (*base, f"{_CAPACITY}dra-driver")
    if not _becomes(world, Target.CLAIMS):
        if _becomes(world, Target.EXTENDED):
            message = f"the autoscaler goes on making nodes for {_GPU}, and takes them for unready without it"
            advice = "Leave the label cluster-api/accelerator off the group's nodes."
            _say(found, gpu_type, message, advice)
        return
    if driver[-1] in annotations:
        return
    found.edits.append(Put(driver, world.options.driver))
    if _becomes(world, Target.EXTENDED):
        message = (
            f"{driver[-1]} says that nodes of the group have devices of {world.options.driver}, {_GPU} is there, too"
        )
        advice = f"Give pods with {_GPU} a group of their own: the autoscaler means one of both."
        _say(found, gpu_type, message, advice, fixed=True)
    else:
        found.edits.append(Remove(gpu_type))
        message = f"{_GPU} became {driver[-1]}: the autoscaler counts devices of {world.options.driver} in new nodes"
        advice = (
            "It gives them the attribute `type` only: for claims with other selectors keep a node of the group "
            "(minimum size 1), of which it learns the rest."
        )
        _say(found, gpu_type, message, advice, fixed=True, severity=Severity.WARNING)


def _keys(value: object) -> Iterator[str]:
    yield from map(str, value if isinstance(value, dict) else ())


_GPU_LABELS: Mapping[str, str] = {
    "k8s.amazonaws.com/accelerator": "AWS",
    "kubernetes.azure.com/accelerator": "Azure",
    "accelerator": "Azure",
    "cluster-api/accelerator": "Cluster API",
    "cloud.google.com/gke-accelerator": "Google Cloud",
}
"""By which the autoscaler knows nodes with GPUs, by cloud."""
_GOOGLE_DRIVER = "cloud.google.com/gke-gpu-dra-driver"


def labels_of_nodes(nodes: Iterable[Document]) -> Iterator[Finding]:
    """One for each label. The autoscaler takes a node with it for unready while `nvidia.com/gpu` is not there."""
    seen: set[str] = set()
    for document in nodes:
        labels = value_at(document.obj, ("metadata", "labels"))
        capacity = value_at(document.obj, ("status", "capacity"))
        if not any(key.startswith("nvidia.com/") for one in (labels, capacity) for key in _keys(one)):
            continue
        for label in sorted(_GPU_LABELS.keys() & labels.keys()) if isinstance(labels, dict) else ():
            if label in seen or labels.get(_GOOGLE_DRIVER) == "true":
                continue
            seen.add(label)
            message = (
                f"the Cluster Autoscaler ({_GPU_LABELS[label]}) knows nodes with GPUs by this label, and takes one "
                f"that has no {_GPU} for unready, which those of the driver are"
            )
            advice = (
                f"Label the nodes of the driver `{_GOOGLE_DRIVER}: \"true\"`, which autoscalers from 1.35 on heed."
                if label.startswith("cloud.google.com")
                else "Where it manages these nodes, leave the label off the groups of the driver's nodes."
            )  # fmt: skip
            yield finding(AUTOSCALER, document, ("metadata", "labels", label), message, advice=advice)


_IMAGE = re.compile(r"(?:^|/)cluster-autoscaler(?:-\w+)?:v1\.(\d+)\.")
_FLAG = "--enable-dynamic-resource-allocation"


def _autoscaler(found: Found, world: World) -> None:
    """The Deployment of the Cluster Autoscaler itself."""
    where: Path = ("spec", "template", "spec", "containers")
    for index, container in enumerate(dicts(value_at(found.obj, where))):
        match = _IMAGE.search(str(container.get("image")))
        if match is None or not _becomes(world, Target.CLAIMS):
            continue
        minor = int(match[1])
        image = (*where, index, "image")
        if minor < _FIRST_WITH_FLAG:
            message = f"Cluster Autoscaler 1.{minor} makes no nodes for claims"
            _say(found, image, message, f"Take the release of your Kubernetes, 1.{_FIRST_WITH_CLAIMS} or newer.")
        elif minor < _FIRST_WITH_CLAIMS:
            _switched_on(found, (*where, index), container, minor)


_FIRST_WITH_FLAG = 32
_FIRST_WITH_CLAIMS = 35
"""From here on it cannot be switched off."""


def _switched_on(found: Found, path: Path, container: JsonObject, minor: int) -> None:
    given = {part: container.get(part) for part in ("args", "command")}
    words = [str(word) for listed in given.values() if isinstance(listed, list) for word in listed]
    if any(word.startswith(_FLAG) and not word.endswith("=false") for word in words):
        return
    part = "args" if isinstance(given["args"], list) else "command"
    listed = given[part]
    message = f"Cluster Autoscaler 1.{minor} makes nodes for claims with {_FLAG}"
    if isinstance(listed, list) and not any(word.startswith(_FLAG) for word in words):
        found.edits.append(Put((*path, part, len(listed)), f"{_FLAG}=true"))
        advice = "Let its ClusterRole read resourceclaims, resourceslices and deviceclasses of resource.k8s.io."
        _say(found, (*path, part), f"{message}, which was added", advice, fixed=True)
    else:
        _say(found, (*path, part), message, f"Set {_FLAG}=true.")


ROOMS: Mapping[tuple[str, str], Callable[[Found, World], None]] = {
    ("karpenter.sh", "NodePool"): _node_pool,
    ("karpenter.sh", "Provisioner"): _provisioner,
    ("karpenter.sh", "NodeOverlay"): _node_overlay,
    ("karpenter.k8s.aws", "EC2NodeClass"): _node_class,
    ("cluster.x-k8s.io", "MachineDeployment"): _machines,
    ("cluster.x-k8s.io", "MachineSet"): _machines,
    ("cluster.x-k8s.io", "MachinePool"): _machines,
    ("apps", "Deployment"): _autoscaler,
}
"""By group and kind."""
