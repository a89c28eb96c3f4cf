"""The workload controllers of a simulated cluster, as one: each workload becomes its pods, or other workloads.

What each kind wants is decided by the pure functions of the table; here it is done, with an Event for each object that
is created. What was created but is not in the cache yet is remembered, so nothing is created twice.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

from dra_driver.allocation.nodes import NodeView
from dra_driver.api.meta import (
    CRON_JOBS,
    DAEMON_SETS,
    DEPLOYMENTS,
    JOBS,
    NODES,
    PODS,
    REPLICA_SETS,
    RESOURCE_CLAIM_TEMPLATES,
    STATEFUL_SETS,
    JsonObject,
    Resource,
)
from dra_driver.errors import Rejected
from dra_driver.kube.client import Kube
from dra_driver.kube.watch import Change, Key, Mirror, MirrorChange, follow, key_of
from dra_driver.kube.workqueue import WorkQueue
from dra_driver.simulation.pods import is_being_deleted
from dra_driver.simulation.workloads import apps, batch
from dra_driver.simulation.workloads.frameworks import FRAMEWORKS
from dra_driver.simulation.workloads.workload_plan import WorkloadPlan
from dra_driver.simulation.writes import delete, tell

type Decide = Callable[[JsonObject, Sequence[JsonObject], datetime], WorkloadPlan]
"""From a workload, the objects that it controls, and the time."""

_MADE = (PODS, RESOURCE_CLAIM_TEMPLATES)
"""What workloads become, beside other workloads."""

WORKLOADS: dict[Resource, Decide] = {
    DEPLOYMENTS: apps.deployment,
    REPLICA_SETS: apps.replica_set,
    STATEFUL_SETS: apps.stateful_set,
    JOBS: batch.job,
    CRON_JOBS: batch.cron_job,
    **{framework.resource: framework.plan for framework in FRAMEWORKS},
}


class SimulatedWorkloadController:
    """`run` until cancelled."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._queue = WorkQueue()
        self._nodes = Mirror(kube, NODES, keep=NodeView.read, on_change=self._node_changed)
        self._decide: dict[Resource, Decide] = {**WORKLOADS, DAEMON_SETS: self._daemon_set}
        self._types = {(resource.group, resource.kind): resource for resource in (*self._decide, *_MADE)}
        self._caches = {
            resource: Mirror(kube, resource, keep=partial(_typed, resource), on_change=partial(self._changed, resource))
            for resource in self._types.values()
        }
        self._children: dict[str, dict[tuple[str, Key], JsonObject]] = defaultdict(dict)
        """What each workload controls, by the workload's UID; by kind, namespace and name."""
        self._complaints: set[tuple[str, str]] = set()
        """UID of the workload, and message: each is an Event once."""

    async def run(self) -> None:
        # A framework's type may be missing: its cache is filled once it is served.
        optional = {framework.resource for framework in FRAMEWORKS}
        async with asyncio.TaskGroup() as group:
            for resource in optional:
                group.create_task(self._caches[resource].run())
            await follow((self._nodes, *(self._caches[item] for item in self._caches.keys() - optional)), group)
            group.create_task(self._queue.work(self._handle, workers=4))

    def _daemon_set(self, owner: JsonObject, pods: Sequence[JsonObject], _now: datetime) -> WorkloadPlan:
        nodes = [node for _, node in sorted(self._nodes.objects.items())]
        return apps.daemon_set_plan(owner, nodes, pods)

    # -- what changed

    def _node_changed(self, change: MirrorChange[NodeView]) -> None:
        for key in self._caches[DAEMON_SETS].objects:
            self._add(DAEMON_SETS, key)

    def _changed(self, resource: Resource, change: Change) -> None:
        if resource in self._decide:
            self._add(resource, change.key)
        if change.after is None and change.before is not None:
            self._forget(change.before["metadata"]["uid"])
        for obj in (change.before, change.after):
            for owner in (obj["metadata"].get("ownerReferences") or ()) if obj is not None else ():
                owned_by = self._types.get(_type_of(owner))
                if not owner.get("controller") or owned_by is None:
                    continue
                self._children[owner["uid"]].pop((resource.kind, change.key), None)
                if obj is not None and obj is change.after:
                    self._children[owner["uid"]][resource.kind, change.key] = obj
                self._add(owned_by, (change.key[0], owner["name"]))

    def _forget(self, uid: str) -> None:
        self._complaints = {complaint for complaint in self._complaints if complaint[0] != uid}
        if not self._children.get(uid):
            self._children.pop(uid, None)

    def _add(self, resource: Resource, key: Key) -> None:
        self._queue.add(f"{resource.group}/{resource.kind}/{key[0]}/{key[1]}")

    # -- decide and do

    async def _handle(self, item: str) -> None:
        await self._queue.attempt(item, self._sync(item))

    async def _sync(self, item: str) -> None:
        group, kind, namespace, name = item.split("/")
        resource = self._types[group, kind]
        owner = self._caches[resource].objects.get((namespace, name))
        if owner is None or is_being_deleted(owner):
            return
        children = list(self._children[owner["metadata"]["uid"]].values())
        plan = self._decide[resource](owner, children, datetime.now(UTC))
        for obj in plan.delete:
            await delete(self._kube, self._types[_type_of(obj)], obj)
        for obj, patch in plan.patch:
            about = self._types[_type_of(obj)]
            await self._kube.merge_patch(about, obj["metadata"]["name"], patch, namespace=namespace)
        for obj in plan.create:
            await self._create(owner, obj)
        known = owner.get("status") or {}
        if plan.status is not None and any(known.get(name) != value for name, value in plan.status.items()):
            patch = {"status": plan.status}
            await self._kube.merge_patch(resource, name, patch, namespace=namespace, subresource="status")
        if plan.again_s is not None:
            self._queue.add_after(item, plan.again_s)

    async def _create(self, owner: JsonObject, obj: JsonObject) -> None:
        resource, uid = self._types[_type_of(obj)], owner["metadata"]["uid"]
        try:
            made = await self._kube.create(resource, obj)
        except Rejected as error:
            complaint = (uid, str(error))
            if complaint not in self._complaints:
                self._complaints.add(complaint)
                await tell(self._kube, _component(owner), owner, "Warning", "FailedCreate", f"Error creating: {error}")
            raise
        self._children[uid].setdefault((resource.kind, key_of(made)), made)
        message = f"Created {resource.kind.lower()}: {made['metadata']['name']}"
        await tell(self._kube, _component(owner), owner, "Normal", "SuccessfulCreate", message)


def _typed(resource: Resource, obj: JsonObject) -> JsonObject:
    """Objects of a list do not say what they are."""
    return {"apiVersion": resource.api_version, "kind": resource.kind, **obj}


def _type_of(obj: JsonObject) -> tuple[str, str]:
    """Group and kind of an object, or of a reference to one."""
    return obj["apiVersion"].rpartition("/")[0], obj["kind"]


def _component(owner: JsonObject) -> str:
    return f"{owner['kind'].lower()}-controller"
