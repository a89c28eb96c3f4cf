"""Objects by which autoscalers make nodes, and what they make of claims: Karpenter, Cluster Autoscaler. Pure.

A node of the driver has no `nvidia.com/gpu` in its capacity, by which both of them count, limit and wait. Nothing of
theirs is edited: findings say what to change. Source: Karpenter 1.14 (provisioning, node initialization, limits; AWS's
provider describes no devices); Cluster Autoscaler 1.36 (its processor of GPU nodes, the annotations of Cluster API).
"""

import re
from collections.abc import Callable, Iterator, Mapping

from dra_driver.api.meta import JsonObject
from dra_driver.migration.codes import AUTOSCALER, DOUBLE_ALLOCATION, Severity
from dra_driver.migration.counts.counting import Found, World, dicts, pasted
from dra_driver.migration.model import Path, Target, value_at
from dra_driver.migration.understand.offering import OFFERED_BY

_GPU = "nvidia.com/gpu"
_OF_GPUS = re.compile(r"nvidia\.com/|karpenter\.k8s\.aws/instance-gpu-|karpenter\.azure\.com/sku-gpu-")
_COUNTS = ("karpenter.k8s.aws/instance-gpu-count", "karpenter.azure.com/sku-gpu-count")


def _becomes(world: World, target: Target) -> bool:
    """Whether workloads become that, or nothing is known of any."""
    targets = {one.choice.target for one in world.workloads}
    return target in targets or not targets


# -- Karpenter


def _node_pool(found: Found, world: World) -> None:
    template: Path = ("spec", "template")
    if not isinstance(value_at(found.obj, template), dict) or not _makes_gpu_nodes(found.obj):
        return
    if _becomes(world, Target.CLAIMS):
        message = (
            "Karpenter makes no nodes for pods with claims: before 1.14 never, since then only with "
            "IGNORE_DRA_REQUESTS=false and devices that the cloud's provider describes, which AWS's does not in 1.14"
        )
        advice = (
            "Keep nodes for these pods by `replicas` of a NodePool or a node group of the cloud, or leave the "
            "workloads with the extended resource (`strategy: extended`)."
        )
        found.say(AUTOSCALER, template, message, advice=advice)
    if _becomes(world, Target.EXTENDED):
        message = (
            f"Karpenter makes nodes for {_GPU}, then waits until the node has it, which a node of the driver never "
            "does: the NodeClaim stays uninitialized, and is not consolidated"
        )
        advice = "Count on nodes that run until they expire (`expireAfter`), or keep such pools with the device plugin."
        found.say(AUTOSCALER, template, message, advice=advice)
    if value_at(found.obj, (*template, "metadata", "labels", OFFERED_BY)) is None:
        label = {"spec": {"template": {"metadata": {"labels": {OFFERED_BY: "device-plugin"}}}}}
        message = f"nodes that are made during the cut-over have no label {OFFERED_BY}, so nobody offers their GPUs"
        advice = (
            "Give the pool this label before the cut-over, and `driver` instead of `device-plugin` after it; each "
            "change replaces its nodes, in the pace of `spec.disruption.budgets`."
        )
        path = (*template, "metadata")
        found.say(AUTOSCALER, path, message, advice=advice, severity=Severity.INFO, paste=pasted(label))
    _limits(found, ("spec", "limits"))


def _limits(found: Found, path: Path) -> None:
    limits = value_at(found.obj, path)
    if not isinstance(limits, dict) or _GPU not in limits:
        return
    message = f"{_GPU} limits nodes by what a device plugin has to give; nodes of the driver have none of it"
    where = (*path, _GPU)
    nodes = _nodes_of(found.obj, limits[_GPU])
    if "nodes" in limits:
        found.say(AUTOSCALER, where, f"{message}, and count by `nodes` only", severity=Severity.INFO, advice="")
        return
    advice = "Limit the pool by `nodes` (Karpenter 1.11 and newer) or by cpu, too."
    same = pasted({"spec": {"limits": {"nodes": str(nodes)}}}) if nodes is not None else ""
    found.say(AUTOSCALER, where, message, advice=advice, paste=same)


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


def _keys(value: object) -> Iterator[str]:
    yield from map(str, value if isinstance(value, dict) else ())


def _provisioner(found: Found, world: World) -> None:
    """Karpenter before its v1beta1."""
    _limits(found, ("spec", "limits", "resources"))


def _node_overlay(found: Found, world: World) -> None:
    for resource in filter(_OF_GPUS.match, _keys(value_at(found.obj, ("spec", "capacity")))):
        message = f"{resource} is what Karpenter expects of nodes; an overlay describes no devices for claims"
        advice = "Keep nodes for pods with claims by `replicas` of a NodePool."
        found.say(AUTOSCALER, ("spec", "capacity", resource), message, advice=advice)


def _node_class(found: Found, world: World) -> None:
    """Of AWS. Bottlerocket's variants with GPUs run a device plugin of their own."""
    terms = dicts(value_at(found.obj, ("spec", "amiSelectorTerms")))
    index = next((at for at, one in enumerate(terms) if str(one.get("alias")).startswith("bottlerocket@")), None)
    data = value_at(found.obj, ("spec", "userData"))
    off = isinstance(data, str) and re.search(r"kubelet-device-plugins\.nvidia\][^\[]*enabled\s*=\s*false", data)
    if off or (index is None and value_at(found.obj, ("spec", "amiFamily")) != "Bottlerocket"):
        return
    path: Path = ("spec", "amiFamily") if index is None else ("spec", "amiSelectorTerms", index, "alias")
    message = "Bottlerocket runs a device plugin as a system service on nodes with NVIDIA GPUs, whatever is deployed"
    advice = (
        "Put `enabled = false` under `[settings.kubelet-device-plugins.nvidia]` into spec.userData of the class of "
        "the driver's nodes, with a Bottlerocket that has the setting, or take another AMI for them."
    )
    found.say(DOUBLE_ALLOCATION, path, message, advice=advice, severity=Severity.WARNING)


# -- Cluster Autoscaler

_CAPACITY = "capacity.cluster-autoscaler.kubernetes.io/"


def _machines(found: Found, world: World) -> None:
    """Cluster API says by annotations what nodes of a group that has none will have."""
    path: Path = ("metadata", "annotations")
    annotations = value_at(found.obj, path)
    gpu_type, driver = f"{_CAPACITY}gpu-type", f"{_CAPACITY}dra-driver"
    if not isinstance(annotations, dict) or annotations.get(gpu_type) != _GPU:
        return
    if _becomes(world, Target.CLAIMS) and driver not in annotations:
        message = f"the Cluster Autoscaler expects {_GPU} of new nodes of this group, and no devices for claims"
        advice = (
            f"Replace {gpu_type} by this annotation; pods that still ask for {_GPU} need a group of their own. The "
            "autoscaler gives new nodes the attribute `type` only: for claims with other selectors keep one node."
        )
        paste = pasted({"metadata": {"annotations": {driver: world.options.driver}}})
        found.say(AUTOSCALER, (*path, gpu_type), message, advice=advice, paste=paste)
    elif _becomes(world, Target.EXTENDED) and not _becomes(world, Target.CLAIMS):
        message = f"the autoscaler goes on making nodes for {_GPU}, and takes them for not ready without it"
        advice = "Leave the label cluster-api/accelerator off the group's nodes."
        found.say(AUTOSCALER, (*path, gpu_type), message, advice=advice)


_IMAGE = re.compile(r"(?:^|/)cluster-autoscaler(?:-\w+)?:v1\.(\d+)\.")
_FLAG = "--enable-dynamic-resource-allocation"
_FIRST_WITH_FLAG, _FIRST_WITH_CLAIMS = 32, 35


def _autoscaler(found: Found, world: World) -> None:
    """The Deployment of the Cluster Autoscaler itself."""
    where: Path = ("spec", "template", "spec", "containers")
    for index, container in enumerate(dicts(value_at(found.obj, where))):
        match = _IMAGE.search(str(container.get("image")))
        minor = int(match[1]) if match is not None else _FIRST_WITH_CLAIMS
        if minor >= _FIRST_WITH_CLAIMS or not _becomes(world, Target.CLAIMS):
            continue
        image = (*where, index, "image")
        given = [container.get(part) for part in ("args", "command")]
        words = [str(word) for listed in given if isinstance(listed, list) for word in listed]
        if minor < _FIRST_WITH_FLAG:
            advice = f"Take the release of your Kubernetes, 1.{_FIRST_WITH_CLAIMS} or newer."
            found.say(AUTOSCALER, image, f"Cluster Autoscaler 1.{minor} makes no nodes for claims", advice=advice)
        elif not any(word.startswith(_FLAG) and not word.endswith("=false") for word in words):
            message = f"Cluster Autoscaler 1.{minor} makes nodes for claims with {_FLAG}=true only"
            advice = "Add the flag, and let its ClusterRole read resourceclaims, resourceslices and deviceclasses."
            found.say(AUTOSCALER, image, message, advice=advice)


HANDLERS: Mapping[tuple[str, str], Callable[[Found, World], None]] = {
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
