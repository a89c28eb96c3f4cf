"""ReplicaSets, Deployments, StatefulSets and DaemonSets: which pods they want, and what their status counts. Pure.

Left out: pods that others made are not adopted, `minReadySeconds` is 0, StatefulSets make no PersistentVolumeClaims
because nothing is mounted, DaemonSets know neither surge nor history. Source: the controllers of Kubernetes 1.36.

A pod of a DaemonSet is made for one node by name and placed by the scheduler; its successor on a node waits until it is
gone. A changed template replaces pods one after the other, so many at a time as may be unavailable.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from dra_driver.allocation.nodes import NodeView, daemon_unfit_for
from dra_driver.api.core import PodSpec
from dra_driver.api.meta import REPLICA_SETS, JsonObject
from dra_driver.simulation.pods import is_being_deleted, is_done, is_scheduled
from dra_driver.simulation.workloads.workload_plan import (
    REVISION_HASH,
    WorkloadPlan,
    active,
    add_volumes,
    age_key,
    child_of,
    conditions_of,
    is_ready,
    labeled,
    pod_of,
    ready_count,
    share_of,
    status_of,
    staying,
    template_hash,
)

_POD_HASH = "pod-template-hash"
_REVISION = "deployment.kubernetes.io/revision"
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def replica_set(owner: JsonObject, pods: Sequence[JsonObject], now: datetime) -> WorkloadPlan:
    """As many pods as replicas. Those that go first: without a node, not ready, the youngest."""
    name, spec = owner["metadata"]["name"], owner["spec"]
    alive = active(pods)
    missing = spec.get("replicas", 1) - len(alive)
    youngest_first = sorted(alive, key=age_key, reverse=True)
    surplus = sorted(youngest_first, key=lambda pod: (is_scheduled(pod), is_ready(pod)))[: max(-missing, 0)]
    ready = ready_count(alive)
    ending = sum(is_being_deleted(pod) and not is_done(pod) for pod in pods)
    counts = {"fullyLabeledReplicas": len(alive), "readyReplicas": ready, "availableReplicas": ready}
    status = status_of(owner, {"replicas": len(alive), "terminatingReplicas": ending}, counts)
    created = tuple(pod_of(owner, spec["template"], f"{name}-", {}) for _ in range(missing))
    return WorkloadPlan(created, tuple(surplus), status=status)


def deployment(owner: JsonObject, sets: Sequence[JsonObject], now: datetime) -> WorkloadPlan:
    """A ReplicaSet for each template there was; the newest has the replicas, once the others have given them up."""
    spec, hash_ = owner["spec"], template_hash(owner["spec"]["template"])
    sets = staying(sets)
    newest = next((item for item in sets if item["metadata"]["labels"].get(_POD_HASH) == hash_), None)
    old = [item for item in sets if item is not newest]
    wanted = _sizes(spec, newest, old)
    revision = max((_revision(item) for item in old), default=0) + 1
    create: tuple[JsonObject, ...] = ()
    patches: list[tuple[JsonObject, JsonObject]]
    patches = [(item, {"spec": {"replicas": size}}) for item, size in wanted[1] if item["spec"]["replicas"] != size]
    if newest is None and not spec.get("paused"):
        create = (_replica_set_of(owner, hash_, revision, wanted[0]),)
    elif newest is not None:
        revision = max(_revision(newest), revision)
        if _revision(newest) != revision or newest["spec"]["replicas"] != wanted[0]:
            patches.append((newest, _noted(revision) | {"spec": {"replicas": wanted[0]}}))
    if (owner["metadata"].get("annotations") or {}).get(_REVISION) != str(revision) and not spec.get("paused"):
        patches.append((owner, _noted(revision)))
    gone = [item for item in old if not item["spec"]["replicas"] and not _count(item, "replicas")]
    outdated = gone[: max(len(gone) - spec.get("revisionHistoryLimit", 10), 0)]
    status = _deployment_status(owner, newest, sets, now)
    return WorkloadPlan(create, tuple(outdated), tuple(patches), status)


def _sizes(
    spec: JsonObject, newest: JsonObject | None, old: Sequence[JsonObject]
) -> tuple[int, list[tuple[JsonObject, int]]]:
    """Replicas of the newest ReplicaSet, and of each older one."""
    desired = spec.get("replicas", 1)
    now_new = newest["spec"]["replicas"] if newest is not None else 0
    if spec.get("paused"):
        return (desired if newest is not None and not any(item["spec"]["replicas"] for item in old) else now_new), [
            (item, item["spec"]["replicas"]) for item in old
        ]
    strategy = spec.get("strategy") or {}
    if strategy.get("type") == "Recreate":
        # Also pods that are still ending hold devices.
        waits = any(_count(item, "replicas") + _count(item, "terminatingReplicas") for item in old)
        return (now_new if waits else desired), [(item, 0) for item in old]
    limits = strategy.get("rollingUpdate") or {}
    surge = share_of(limits.get("maxSurge", "25%"), desired, up=True)
    unavailable = share_of(limits.get("maxUnavailable", "25%"), desired, up=False)
    unavailable = unavailable or int(surge == 0)
    total_old = sum(item["spec"]["replicas"] for item in old)
    new = min(desired, max(now_new, desired + surge - total_old)) if old else desired
    ready_new = min(_count(newest, "availableReplicas"), now_new) if newest is not None else 0
    # What may go: above the least that must be available, and everything that is not available anyway.
    ready_old = sum(min(_count(item, "availableReplicas"), item["spec"]["replicas"]) for item in old)
    spare = max(ready_old + ready_new - (desired - unavailable), 0)
    sizes = []
    for item in old:
        healthy = min(_count(item, "availableReplicas"), item["spec"]["replicas"])
        goes = min(healthy, spare)
        spare -= goes
        sizes.append((item, healthy - goes))
    return new, sizes


def _replica_set_of(owner: JsonObject, hash_: str, revision: int, replicas: int) -> JsonObject:
    metadata, selector = owner["metadata"], owner["spec"]["selector"]
    template = labeled(owner["spec"]["template"], {_POD_HASH: hash_})
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != _LAST_APPLIED}
    about = {"labels": template["metadata"]["labels"], "annotations": {**annotations, _REVISION: str(revision)}}
    matched = {**selector, "matchLabels": {**(selector.get("matchLabels") or {}), _POD_HASH: hash_}}
    spec = {"replicas": replicas, "selector": matched, "template": template}
    return child_of(owner, REPLICA_SETS, f"{metadata['name']}-{hash_}", about, spec)


def _noted(revision: int) -> JsonObject:
    return {"metadata": {"annotations": {_REVISION: str(revision)}}}


def _revision(item: JsonObject) -> int:
    return int((item["metadata"].get("annotations") or {}).get(_REVISION, 0))


def _count(item: JsonObject, name: str) -> int:
    count: int = (item.get("status") or {}).get(name) or 0
    return count


def _deployment_status(
    owner: JsonObject, newest: JsonObject | None, sets: Sequence[JsonObject], now: datetime
) -> JsonObject:
    name, spec = owner["metadata"]["name"], owner["spec"]
    desired = spec.get("replicas", 1)
    total, ready = (sum(_count(item, field) for item in sets) for field in ("replicas", "readyReplicas"))
    updated = _count(newest, "replicas") if newest is not None else 0
    limits = (spec.get("strategy") or {}).get("rollingUpdate") or {}
    enough = ready >= desired - share_of(limits.get("maxUnavailable", 0), desired, up=False)
    has, minimum = ("has", "Available") if enough else ("does not have", "Unavailable")
    available = ("Available", enough, f"MinimumReplicas{minimum}", f"Deployment {has} minimum availability.")
    complete = updated == desired == total == ready
    reason, does = ("ReplicaSetUpdated", "is progressing")
    if complete:
        reason, does = ("NewReplicaSetAvailable", "has successfully progressed")
    of_set = newest["metadata"]["name"] if newest is not None else name
    progressing = ("Progressing", True, reason, f'ReplicaSet "{of_set}" {does}.')
    counts = {
        "replicas": total,
        "updatedReplicas": updated,
        "readyReplicas": ready,
        "availableReplicas": ready,
        "unavailableReplicas": max(max(total, desired) - ready, 0),
    }
    shown: JsonObject = {"conditions": conditions_of(owner, now, available, progressing)}
    shown["terminatingReplicas"] = sum(_count(item, "terminatingReplicas") for item in sets)
    return status_of(owner, shown, counts)


def stateful_set(owner: JsonObject, pods: Sequence[JsonObject], now: datetime) -> WorkloadPlan:
    """Pods with ordinals: in order, each after the one before is ready, unless they are managed in parallel. Those of
    an older template are replaced from the last one on, one at a time."""
    spec = owner["spec"]
    replicas, hash_ = spec.get("replicas", 1), template_hash(spec["template"])
    first = (spec.get("ordinals") or {}).get("start", 0)
    names = [f"{owner['metadata']['name']}-{number}" for number in range(first, first + replicas)]
    by_name = {pod["metadata"]["name"]: pod for pod in pods}
    wanted = [by_name[name] for name in names if name in by_name]
    over = sorted(staying(pod for pod in pods if pod["metadata"]["name"] not in names), key=_ordinal, reverse=True)
    ended = [pod for pod in staying(wanted) if is_done(pod)]
    ready = [pod for pod in wanted if is_ready(pod) and not is_being_deleted(pod)]
    missing = [name for name in names if name not in by_name]
    updated = [pod for pod in wanted if pod["metadata"]["labels"].get(REVISION_HASH) == hash_]
    outdated = [] if missing or over else _outdated(spec, wanted, ready, hash_)
    if spec.get("podManagementPolicy") != "Parallel":
        before = names[: names.index(missing[0])] if missing else names
        settled = all(by_name[name] in ready for name in before)
        missing, over = missing[: int(settled)], over[: int(settled and not missing)]
    created = [_pod_of_set(owner, name, hash_) for name in missing]
    revision = f"{owner['metadata']['name']}-{hash_}"
    known = (owner.get("status") or {}).get("currentRevision") or revision
    shown = {
        "replicas": len(staying(pods)),
        "availableReplicas": len(ready),
        "currentRevision": revision if len(updated) == replicas == len(ready) else known,
        "updateRevision": revision,
        "collisionCount": 0,
    }
    current = len(wanted) - len(updated) if known != revision else len(updated)
    counts = {"readyReplicas": len(ready), "updatedReplicas": len(updated), "currentReplicas": current}
    status = status_of(owner, shown, counts)
    return WorkloadPlan(tuple(created), (*over, *ended, *outdated), status=status)


def _outdated(
    spec: JsonObject, wanted: Sequence[JsonObject], ready: Sequence[JsonObject], hash_: str
) -> list[JsonObject]:
    """The next pod to replace; none while another one is on its way, except for one of an older template itself."""
    strategy = spec.get("updateStrategy") or {}
    if strategy.get("type", "RollingUpdate") != "RollingUpdate":
        return []
    partition = (strategy.get("rollingUpdate") or {}).get("partition", 0)
    old = [
        pod
        for pod in staying(wanted)
        if pod["metadata"]["labels"].get(REVISION_HASH) != hash_ and _ordinal(pod) >= partition
    ]
    busy = [pod for pod in wanted if pod not in ready]
    if not old or any(pod not in old for pod in busy):
        return []
    return [max([pod for pod in busy if pod in old] or old, key=_ordinal)]


def _ordinal(pod: JsonObject) -> int:
    return int(pod["metadata"]["name"].rpartition("-")[2])


def _pod_of_set(owner: JsonObject, name: str, hash_: str) -> JsonObject:
    spec = owner["spec"]
    labels = {
        REVISION_HASH: hash_,
        "statefulset.kubernetes.io/pod-name": name,
        "apps.kubernetes.io/pod-index": name.rpartition("-")[2],
    }
    pod = pod_of(owner, spec["template"], name, labels)
    add_volumes(pod["spec"], spec.get("volumeClaimTemplates") or (), name)
    pod["spec"] |= {"hostname": name}
    if spec.get("serviceName"):
        pod["spec"]["subdomain"] = spec["serviceName"]
    return pod


_DAEMON_GENERATION = "pod-template-generation"
_NODE_FIELD = "metadata.name"

_TOLERATED_BY_DAEMONS = (
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
    spec = daemon_set["spec"]["template"]["spec"]
    pod = PodSpec.of({**spec, "tolerations": _daemon_tolerations(spec)})
    wanted = {node.name for node in nodes if pod.node_name in ("", node.name) and daemon_unfit_for(pod, node) is None}
    by_node: dict[str, list[JsonObject]] = {}
    for owned in pods:
        by_node.setdefault(_node_of(owned), []).append(owned)
    daemons: dict[str, JsonObject] = {}
    delete: list[JsonObject] = []
    for node, there in sorted(by_node.items()):
        # The oldest counts. Those go that are newer, have ended, or are on a node that should have none.
        oldest = active(there)[:1] if node in wanted else []
        daemons.update((node, item) for item in oldest)
        delete += [item for item in staying(there) if item not in oldest]
    hash_ = template_hash(daemon_set["spec"]["template"])
    updated = {node for node, pod in daemons.items() if pod["metadata"]["labels"].get(REVISION_HASH) == hash_}
    ready = {node for node, pod in daemons.items() if is_ready(pod)}
    old = [daemons[node] for node in sorted(daemons.keys() - updated)]
    delete += _daemons_to_replace(daemon_set, old, len(wanted), len(wanted - ready))
    alive = {node for node, all_ in by_node.items() if any(not is_done(pod) for pod in all_)}
    shown = {
        "currentNumberScheduled": len(daemons),
        "desiredNumberScheduled": len(wanted),
        "numberMisscheduled": len(alive - wanted),
        "numberReady": len(ready),
    }
    counts = {
        "numberAvailable": len(ready),
        "numberUnavailable": len(wanted - ready),
        "updatedNumberScheduled": len(updated),
    }
    create = tuple(daemon_pod(daemon_set, node) for node in sorted(wanted - by_node.keys()))
    return WorkloadPlan(create, tuple(delete), status=status_of(daemon_set, shown, counts))


def daemon_pod(daemon_set: JsonObject, node: str) -> JsonObject:
    """The pod of the template for one node, as it is created."""
    metadata, template = daemon_set["metadata"], daemon_set["spec"]["template"]
    labels = {REVISION_HASH: template_hash(template), _DAEMON_GENERATION: str(metadata.get("generation", 1))}
    pod = pod_of(daemon_set, template, f"{metadata['name']}-", labels)
    spec = pod["spec"]
    spec["tolerations"] = _daemon_tolerations(spec)
    field = {"matchFields": [{"key": _NODE_FIELD, "operator": "In", "values": [node]}]}
    node_affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    # Replaced, not joined: whether the template's own affinity selects the node was decided before.
    node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [field]}
    return pod


def _daemon_tolerations(spec: JsonObject) -> list[JsonObject]:
    own: list[JsonObject] = list(spec.get("tolerations") or ())
    more = [{"key": key, "operator": "Exists", "effect": effect} for key, effect in _TOLERATED_BY_DAEMONS]
    if spec.get("hostNetwork"):
        more.append({"key": "node.kubernetes.io/network-unavailable", "operator": "Exists", "effect": "NoSchedule"})
    return own + [item for item in more if item not in own]


def _node_of(pod: JsonObject) -> str:
    """Where it is, or where it was made for."""
    spec = pod["spec"]
    if spec.get("nodeName"):
        return str(spec["nodeName"])
    required: Any = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return str(required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])


def _daemons_to_replace(
    daemon_set: JsonObject, old: Sequence[JsonObject], wanted: int, unavailable: int
) -> Iterator[JsonObject]:
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
