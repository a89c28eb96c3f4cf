"""The DaemonSet controller of a simulated cluster: a pod for each node that a DaemonSet is for, and none elsewhere.

A pod is made for one node by name and placed by the scheduler; its successor on a node waits until it is gone. A
changed template replaces pods one after the other, so many at a time as may be unavailable. Surge, history and adoption
of pods that others made are not simulated. Source: the DaemonSet controller of Kubernetes 1.36.
"""

import asyncio
import json
import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Never

import structlog

from dra_driver.allocation.nodes import NodeView, daemon_unfit_for
from dra_driver.api.core import PodSpec
from dra_driver.api.meta import DAEMON_SETS, NODES, PODS, JsonObject
from dra_driver.errors import AlreadyExists, ClusterError, NotFound
from dra_driver.kube.client import Kube
from dra_driver.kube.watch import Change, Key, Mirror, MirrorChange, Reflector, follow, key_of
from dra_driver.kube.workqueue import WorkQueue
from dra_driver.simulation.pods import is_being_deleted, is_done, is_owned_by

_log = structlog.get_logger(__name__)

_HASH = "controller-revision-hash"
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


@dataclass(frozen=True, slots=True)
class DaemonSetDecision:
    """What to do about the pods of one DaemonSet: nodes that need one, pods that must go, and the status."""

    create_on: tuple[str, ...]
    delete: tuple[JsonObject, ...]
    status: JsonObject


class SimulatedDaemonSetController:
    """`run` until cancelled."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._queue = WorkQueue()
        self._sets = Reflector(kube, DAEMON_SETS, on_change=self._set_changed)
        self._nodes = Mirror(kube, NODES, keep=NodeView.read, on_change=self._node_changed)
        self._pods = Reflector(kube, PODS, on_change=self._pod_changed)
        self._made: dict[str, JsonObject] = {}
        """Pods that were made here and are not in the cache yet, by UID."""

    async def run(self) -> Never:
        async with asyncio.TaskGroup() as group:
            await follow((self._sets, self._nodes, self._pods), group)
            group.create_task(self._queue.work(self._handle, workers=4))
        raise AssertionError("reflectors and workers run until they are cancelled")

    def _set_changed(self, change: Change) -> None:
        self._queue.add("/".join(change.key))

    def _node_changed(self, change: MirrorChange[NodeView]) -> None:
        for key in self._sets.objects:
            self._queue.add("/".join(key))

    def _pod_changed(self, change: Change) -> None:
        for pod in (change.before, change.after):
            if pod is not None:
                self._made.pop(pod["metadata"]["uid"], None)
                for owner in pod["metadata"].get("ownerReferences") or ():
                    if owner["kind"] == DAEMON_SETS.kind:
                        self._queue.add(f"{change.key[0]}/{owner['name']}")

    async def _handle(self, item: str) -> None:
        namespace, _, name = item.partition("/")
        try:
            await self._sync((namespace, name))
        except NotFound:
            self._queue.succeeded(item)
        except ClusterError as error:
            pause_s = self._queue.retry(item, error.retry_after_s or 0.0)
            _log.debug("DaemonSet controller tries again", item=item, error=str(error), pause_s=round(pause_s, 2))
        else:
            self._queue.succeeded(item)

    async def _sync(self, key: Key) -> None:
        daemon_set = self._sets.objects.get(key)
        if daemon_set is None or is_being_deleted(daemon_set):
            return
        known = {pod["metadata"]["uid"]: pod for pod in self._pods.objects.values()} | self._made
        pods = [pod for pod in known.values() if is_owned_by(pod, daemon_set)]
        nodes = [node for _, node in sorted(self._nodes.objects.items())]
        decision = decide(daemon_set, nodes, pods)
        for pod in decision.delete:
            metadata = pod["metadata"]
            await self._kube.delete(PODS, metadata["name"], namespace=key[0], uid=metadata["uid"])
        for node in decision.create_on:
            made = await self._create(key[0], pod_for(daemon_set, node))
            if key_of(made) not in self._pods.objects:
                self._made[made["metadata"]["uid"]] = made
        if (daemon_set.get("status") or {}) != decision.status:
            patch = {"status": dict.fromkeys(_OMITTED) | decision.status}
            await self._kube.merge_patch(DAEMON_SETS, key[1], patch, namespace=key[0], subresource="status")

    async def _create(self, namespace: str, pod: JsonObject) -> JsonObject:
        while True:
            try:
                return await self._kube.create(PODS, pod, namespace=namespace)
            except AlreadyExists:  # a generated name that is taken
                continue


def decide(daemon_set: JsonObject, nodes: Sequence[NodeView], pods: Sequence[JsonObject]) -> DaemonSetDecision:
    """Pure. `pods` are those that the DaemonSet owns, wherever they are."""
    pod = _pod_spec(daemon_set)
    wanted = {node.name for node in nodes if pod.node_name in ("", node.name) and daemon_unfit_for(pod, node) is None}
    by_node: dict[str, list[JsonObject]] = {}
    for owned in pods:
        by_node.setdefault(_node_of(owned), []).append(owned)
    delete = list(_surplus(by_node, wanted))
    going = {pod["metadata"]["uid"] for pod in delete}
    by_wanted_node = {node: _daemon(all_, going) for node, all_ in by_node.items() if node in wanted}
    daemons = {node: pod for node, pod in by_wanted_node.items() if pod is not None}
    hash_ = template_hash(daemon_set)
    updated = {node for node, pod in daemons.items() if pod["metadata"]["labels"].get(_HASH) == hash_}
    ready = {node for node, pod in daemons.items() if _is_ready(pod)}
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
    create_on = tuple(sorted(wanted - by_node.keys()))
    shown = {name: count for name, count in status.items() if count or name not in _OMITTED}
    return DaemonSetDecision(create_on, tuple(delete), shown)


def pod_for(daemon_set: JsonObject, node: str) -> JsonObject:
    """The pod of the template for one node, as it is created."""
    metadata, template = daemon_set["metadata"], deepcopy(daemon_set["spec"]["template"])
    given = template.get("metadata") or {}
    spec = template["spec"]
    spec["tolerations"] = _tolerations(spec)
    field = {"matchFields": [{"key": _NODE, "operator": "In", "values": [node]}]}
    node_affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    # Replaced, not joined: whether the template's own affinity selects the node was decided before.
    node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [field]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{metadata['name']}-",
            "namespace": metadata["namespace"],
            "labels": {
                **(given.get("labels") or {}),
                _HASH: template_hash(daemon_set),
                _GENERATION: str(metadata.get("generation", 1)),
            },
            "annotations": given.get("annotations") or {},
            "ownerReferences": [
                {
                    "apiVersion": DAEMON_SETS.api_version,
                    "kind": DAEMON_SETS.kind,
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": spec,
    }


def template_hash(daemon_set: JsonObject) -> str:
    return sha256(json.dumps(daemon_set["spec"]["template"], sort_keys=True).encode()).hexdigest()[:10]


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
        rest = sorted((pod for pod in alive if pod not in over), key=_age)
        yield from rest[1:]


def _age(pod: JsonObject) -> tuple[str, str]:
    return pod["metadata"].get("creationTimestamp") or "", pod["metadata"]["name"]


def _daemon(pods: Sequence[JsonObject], going: set[str]) -> JsonObject | None:
    """The one that counts on its node."""
    staying = (pod for pod in pods if pod["metadata"]["uid"] not in going and not is_being_deleted(pod))
    return next(staying, None)


def _replaced(daemon_set: JsonObject, old: Sequence[JsonObject], wanted: int, unavailable: int) -> Iterator[JsonObject]:
    """Pods of an earlier template: those that are not ready at once, the others as many as may be unavailable."""
    strategy = daemon_set["spec"].get("updateStrategy") or {}
    if strategy.get("type", "RollingUpdate") != "RollingUpdate":
        return
    most = (strategy.get("rollingUpdate") or {}).get("maxUnavailable", 1)
    allowed = math.ceil(wanted * int(most[:-1]) / 100) if isinstance(most, str) else int(most)
    for pod in old:
        if not _is_ready(pod):
            yield pod
        elif unavailable < allowed:
            unavailable += 1
            yield pod


def _is_ready(pod: JsonObject) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
