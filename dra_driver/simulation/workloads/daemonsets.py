"""DaemonSets: a pod for each node that a DaemonSet is for, and none elsewhere. Pure.

A pod is made for one node by name and placed by the scheduler; its successor on a node waits until it is gone. A
changed template replaces pods one after the other, so many at a time as may be unavailable. Surge, history and adoption
of pods that others made are not simulated. Source: the DaemonSet controller of Kubernetes 1.36.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from dra_driver.allocation.nodes import NodeView, daemon_unfit_for
from dra_driver.api.core import PodSpec
from dra_driver.api.meta import JsonObject
from dra_driver.simulation.pods import is_being_deleted, is_done
from dra_driver.simulation.workloads.workload_plan import (
    REVISION_HASH,
    WorkloadPlan,
    age_key,
    is_ready,
    pod_of,
    share_of,
    template_hash,
    without_zeros,
)

_GENERATION = "pod-template-generation"
_NODE = "metadata.name"

_OMITTED = ("numberAvailable", "numberUnavailable", "updatedNumberScheduled")
"""Counts that are left out while they are 0."""

_TOLERATED = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)
"""What every pod of a DaemonSet tolerates."""


def daemon_set_plan(daemon_set: JsonObject, nodes: Sequence[NodeView], pods: Sequence[JsonObject]) -> WorkloadPlan:
    """`pods` are those that the DaemonSet owns, wherever they are."""
    pod = _pod_spec(daemon_set)
    wanted = {node.name for node in nodes if pod.node_name in ("", node.name) and daemon_unfit_for(pod, node) is None}
    by_node: dict[str, list[JsonObject]] = {}
    for owned in pods:
        by_node.setdefault(_node_of(owned), []).append(owned)
    delete = list(_surplus(by_node, wanted))
    going = {pod["metadata"]["uid"] for pod in delete}
    by_wanted_node = {node: _daemon(all_, going) for node, all_ in by_node.items() if node in wanted}
    daemons = {node: pod for node, pod in by_wanted_node.items() if pod is not None}
    hash_ = template_hash(daemon_set["spec"]["template"])
    updated = {node for node, pod in daemons.items() if pod["metadata"]["labels"].get(REVISION_HASH) == hash_}
    ready = {node for node, pod in daemons.items() if is_ready(pod)}
    old = [daemons[node] for node in sorted(daemons.keys() - updated)]
    delete += _replaced(daemon_set, old, len(wanted), len(wanted - ready))
    status = {
        "currentNumberScheduled": len(daemons),
        "desiredNumberScheduled": len(wanted),
        "numberMisscheduled": len(
            {node for node, all_ in by_node.items() if node not in wanted and any(not is_done(pod) for pod in all_)}
        ),
        "numberReady": len(ready),
        "numberAvailable": len(ready),
        "numberUnavailable": len(wanted - ready),
        "updatedNumberScheduled": len(updated),
        "observedGeneration": daemon_set["metadata"].get("generation", 1),
    }
    create = tuple(daemon_pod(daemon_set, node) for node in sorted(wanted - by_node.keys()))
    return WorkloadPlan(create, tuple(delete), status=without_zeros(status, *_OMITTED))


def daemon_pod(daemon_set: JsonObject, node: str) -> JsonObject:
    """The pod of the template for one node, as it is created."""
    metadata, template = daemon_set["metadata"], daemon_set["spec"]["template"]
    labels = {REVISION_HASH: template_hash(template), _GENERATION: str(metadata.get("generation", 1))}
    pod = pod_of(daemon_set, template, f"{metadata['name']}-", labels)
    spec = pod["spec"]
    spec["tolerations"] = _tolerations(spec)
    field = {"matchFields": [{"key": _NODE, "operator": "In", "values": [node]}]}
    node_affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    # Replaced, not joined: whether the template's own affinity selects the node was decided before.
    node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [field]}
    return pod


def _tolerations(spec: JsonObject) -> list[JsonObject]:
    own: list[JsonObject] = list(spec.get("tolerations") or ())
    more = [{"key": key, "operator": "Exists", "effect": effect} for key, effect in _TOLERATED]
    if spec.get("hostNetwork"):
        more.append({"key": "node.kubernetes.io/network-unavailable", "operator": "Exists", "effect": "NoSchedule"})
    return own + [item for item in more if item not in own]


def _pod_spec(daemon_set: JsonObject) -> PodSpec:
    spec = dict(daemon_set["spec"]["template"]["spec"])
    return PodSpec.of({**spec, "tolerations": _tolerations(spec)})


def _node_of(pod: JsonObject) -> str:
    """Where it is, or where it was made for."""
    spec = pod["spec"]
    if spec.get("nodeName"):
        return str(spec["nodeName"])
    required: Any = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return str(required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])


def _surplus(by_node: dict[str, list[JsonObject]], wanted: set[str]) -> Iterator[JsonObject]:
    """Pods on nodes that should have none, that have ended, or of which there are several on a node: the newer ones."""
    for node, pods in sorted(by_node.items()):
        alive = [pod for pod in pods if not is_being_deleted(pod)]
        over = [pod for pod in alive if is_done(pod) or node not in wanted]
        yield from over
        rest = sorted((pod for pod in alive if pod not in over), key=age_key)
        yield from rest[1:]


def _daemon(pods: Sequence[JsonObject], going: set[str]) -> JsonObject | None:
    """The one that counts on its node."""
    staying = (pod for pod in pods if pod["metadata"]["uid"] not in going and not is_being_deleted(pod))
    return next(staying, None)


def _replaced(daemon_set: JsonObject, old: Sequence[JsonObject], wanted: int, unavailable: int) -> Iterator[JsonObject]:
    """Pods of an earlier template: those that are not ready at once, the others as many as may be unavailable."""
    strategy = daemon_set["spec"].get("updateStrategy") or {}
    if strategy.get("type", "RollingUpdate") != "RollingUpdate":
        return
    allowed = share_of((strategy.get("rollingUpdate") or {}).get("maxUnavailable", 1), wanted, up=True)
    for pod in old:
        if not is_ready(pod):
            yield pod
        elif unavailable < allowed:
            unavailable += 1
            yield pod
