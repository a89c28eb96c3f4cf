"""The controllers of a simulated cluster that care for claims, like kube-controller-manager's.

`SimulatedClaimController` makes claims from templates, and takes them back: a claim is created for every template entry
of a pod; a pod that is done or gone loses its reservation; with the last reservation the devices are released;
generated claims go with their pod.

`SimulatedTaintEviction` evicts pods from tainted devices: a pod whose allocated device gets a taint with effect
NoExecute is deleted, at once or when the time is over for which its claim tolerates the taint. DeviceTaintRules are
ignored. Source: the device taint eviction of Kubernetes 1.36, where device taints are on by default.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Literal

from dra_driver import kubernetes
from dra_driver.allocation.behavior import Behavior
from dra_driver.allocation.nodes import tolerates
from dra_driver.api.core import EXTENDED_CLAIM_ANNOTATION, Pod
from dra_driver.api.meta import PODS, RESOURCE_CLAIM_TEMPLATES, RESOURCE_CLAIMS, RESOURCE_SLICES, JsonObject
from dra_driver.api.resource import ResourceClaim, ResourceSlice, Taint, Toleration
from dra_driver.errors import ClusterError, NotFound, Rejected
from dra_driver.kube.client import Kube
from dra_driver.kube.watch import Backoff, Change, Key, Mirror, Reflector, follow
from dra_driver.kube.workqueue import WorkQueue
from dra_driver.names import POD_CLAIM_ANNOTATION, DeviceId
from dra_driver.runtime.tasks import until
from dra_driver.simulation.pods import (
    claim_entries,
    claims_of_entries,
    generated_claims,
    has_finalizer,
    is_being_deleted,
    is_done,
    is_owned_by,
    is_scheduled,
    released,
    without_finalizer,
)
from dra_driver.simulation.writes import delete, patch_status, tell

_CLAIM_CONTROLLER = "resource-claim-controller"

_NAME_LENGTH = 57
"""Of generateName: with the server's five random characters 62, so that the name still is a DNS label."""


class SimulatedClaimController:
    """`run` until cancelled."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._minor = kubernetes.CURRENT
        self._queue = WorkQueue(lambda: Backoff(first_s=0.05, longest_s=5.0))
        self._pods = Reflector(kube, PODS, on_change=self._pod_changed)
        self._claims = Reflector(kube, RESOURCE_CLAIMS, on_change=self._claim_changed)
        self._templates = Reflector(kube, RESOURCE_CLAIM_TEMPLATES, on_change=lambda it: self._queue_pods_of(it.key[0]))
        self._complaints: set[tuple[str, str]] = set()
        """UID of the pod, and message; as long as the pod exists."""

    async def run(self) -> None:
        _, self._minor = await self._kube.server_version()
        async with asyncio.TaskGroup() as group:
            await follow((self._pods, self._claims, self._templates), group)
            group.create_task(self._queue.work(self._handle, workers=4))

    # -- what a change means

    def _pod_changed(self, change: Change) -> None:
        self._add("pod", change.key)
        if change.after is None and change.before is not None:
            gone = change.before["metadata"]["uid"]
            self._complaints = {complaint for complaint in self._complaints if complaint[0] != gone}
        for pod in (change.before, change.after):
            if pod is not None:
                for _, name in claims_of_entries(pod):
                    if name is not None:
                        self._add("claim", (change.key[0], name))
        for key, claim in self._claims.objects.items():
            if any(pod is not None and is_owned_by(claim, pod) for pod in (change.before, change.after)):
                self._add("claim", key)

    def _claim_changed(self, change: Change) -> None:
        self._add("claim", change.key)
        if change.after is None:
            self._queue_pods_of(change.key[0])

    def _queue_pods_of(self, namespace: str) -> None:
        for key in self._pods.objects:
            if key[0] == namespace:
                self._add("pod", key)

    def _add(self, kind: Literal["pod", "claim"], key: Key) -> None:
        self._queue.add(f"{kind}/{key[0]}/{key[1]}")

    async def _handle(self, item: str) -> None:
        kind, namespace, name = item.split("/")
        sync = self._sync_pod if kind == "pod" else self._sync_claim
        await self._queue.attempt(item, sync((namespace, name)))

    # -- claims from templates

    async def _sync_pod(self, key: Key) -> None:
        pod = self._pods.objects.get(key)
        if pod is None or is_done(pod) or is_being_deleted(pod):
            return
        known = generated_claims(pod)
        created: dict[str, str | None] = {}
        for entry in claim_entries(pod):
            if entry.resource_claim_template_name is None or entry.name in known:
                continue
            claim = await self._claim_for(pod, entry.name, entry.resource_claim_template_name)
            if claim is not None:
                created[entry.name] = claim["metadata"]["name"]
        if created:
            statuses = [{"name": name, "resourceClaimName": claim} for name, claim in (known | created).items()]
            await patch_status(self._kube, pod, {"resourceClaimStatuses": statuses})

    async def _claim_for(self, pod: JsonObject, entry: str, template_name: str) -> JsonObject | None:
        """The claim for a pod's entry: an earlier one, or a new one; None while there is no such template."""
        namespace = pod["metadata"]["namespace"]
        # Asked of the server and not of the cache: after a conflict the cache may not have the claim just created.
        for claim in (await self._kube.list(RESOURCE_CLAIMS, namespace=namespace)).items:
            annotations = claim["metadata"].get("annotations") or {}
            if is_owned_by(claim, pod) and annotations.get(POD_CLAIM_ANNOTATION) == entry:
                return None if is_being_deleted(claim) else claim
        template = self._templates.objects.get((namespace, template_name))
        if template is None:
            missing = f'resourceclaimtemplate.resource.k8s.io "{template_name}" not found'
            await self._complain(pod, f'PodResourceClaim {entry}: resource claim template "{template_name}": {missing}')
            return None
        try:
            return await self._kube.create(RESOURCE_CLAIMS, _claim_of_template(pod, entry, template, self._minor))
        except Rejected as error:
            await self._complain(pod, f"ResourceClaimTemplate {template_name} makes no valid claim: {error}")
            return None

    async def _complain(self, pod: JsonObject, message: str) -> None:
        """Tell the pod's owner, once, why the pod has no claim."""
        complaint = (pod["metadata"]["uid"], message)
        if complaint not in self._complaints:
            self._complaints.add(complaint)
            await tell(self._kube, _CLAIM_CONTROLLER, pod, "Warning", "FailedResourceClaimCreation", message)

    # -- reservations

    async def _sync_claim(self, key: Key) -> None:
        claim = self._claims.objects.get(key)
        if claim is None:
            return
        reserved = (claim.get("status") or {}).get("reservedFor") or []
        still = [consumer for consumer in reserved if not await self._is_over(key[0], consumer)]
        if len(still) < len(reserved) or (not still and is_being_deleted(claim)):
            claim = await self._release(claim, still)
        if still:
            return
        owner = self._owner(claim)
        if owner is not None and is_done(owner) and not is_being_deleted(claim):
            with suppress(NotFound):
                await delete(self._kube, RESOURCE_CLAIMS, claim)

    async def _release(self, claim: JsonObject, still: list[JsonObject]) -> JsonObject:
        """Write the reservations that are left; without any, give back the devices and the finalizer."""
        if still:
            changed = {**claim, "status": {**claim["status"], "reservedFor": still}}
            return await self._kube.replace(RESOURCE_CLAIMS, changed, subresource="status")
        changed = released(claim)
        if changed["status"] != (claim.get("status") or {}):
            changed = await self._kube.replace(RESOURCE_CLAIMS, changed, subresource="status")
        if has_finalizer(changed):
            changed = await self._kube.replace(RESOURCE_CLAIMS, without_finalizer(changed))
        return changed

    async def _is_over(self, namespace: str, consumer: JsonObject) -> bool:
        """Whether a consumer no longer uses the claim."""
        if consumer.get("apiGroup") or consumer["resource"] != PODS.plural:
            return False
        pod = self._pods.objects.get((namespace, consumer["name"]))
        if pod is None or pod["metadata"]["uid"] != consumer["uid"]:
            # The reservation may be newer than what is known of pods.
            try:
                pod = await self._kube.get(PODS, consumer["name"], namespace)
            except NotFound:
                return True
        if pod["metadata"]["uid"] != consumer["uid"] or is_done(pod):
            return True
        return is_being_deleted(pod) and not is_scheduled(pod)

    def _owner(self, claim: JsonObject) -> JsonObject | None:
        """The pod that a generated claim was made for, while it exists."""
        annotations = claim["metadata"].get("annotations") or {}
        if not annotations.keys() & {POD_CLAIM_ANNOTATION, EXTENDED_CLAIM_ANNOTATION}:
            return None
        for reference in claim["metadata"].get("ownerReferences") or ():
            pod = self._pods.objects.get((claim["metadata"]["namespace"], reference["name"]))
            if pod is not None and is_owned_by(claim, pod):
                return pod
        return None


def _claim_of_template(pod: JsonObject, entry: str, template: JsonObject, minor: int) -> JsonObject:
    spec, metadata = template["spec"], template["spec"].get("metadata") or {}
    annotations = (metadata.get("annotations") or {}) | {POD_CLAIM_ANNOTATION: entry}
    return {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": RESOURCE_CLAIMS.kind,
        "metadata": {
            "generateName": f"{pod['metadata']['name']}-{entry}-"[:_NAME_LENGTH],
            "namespace": pod["metadata"]["namespace"],
            "annotations": annotations,
            "labels": metadata.get("labels") or {},
            "ownerReferences": [Pod.of(pod).owner_reference(minor)],
        },
        "spec": deepcopy(spec["spec"]),
    }


_TAINT_EVICTION = "device-taint-eviction"
_RETRY_S = 1.0


class SimulatedTaintEviction:
    """`run` until cancelled."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._wake = asyncio.Event()
        self._slices = Mirror(kube, RESOURCE_SLICES, keep=taints_of, on_change=lambda _: self._wake.set())
        self._claims = Mirror(kube, RESOURCE_CLAIMS, keep=ResourceClaim.of, on_change=lambda _: self._wake.set())
        self._pods = Reflector(kube, PODS)

    async def run(self) -> None:
        _, minor = await self._kube.server_version()
        if not Behavior.of(minor).taints:
            await asyncio.Event().wait()
        async with asyncio.TaskGroup() as group:
            await follow((self._slices, self._claims, self._pods), group)
            while True:
                wait_s = await self._look()
                await until(self._wake, wait_s)
                self._wake.clear()

    async def _look(self) -> float | None:
        """Evict whose time has come; answers after how many seconds to look again."""
        now, waits = datetime.now(UTC), []
        taints = {key: item for known in self._slices.objects.values() for key, item in known.items()}
        for claim in list(self._claims.objects.values()):
            when = eviction_time(claim, taints, now)
            if when is None:
                continue
            if when > now:
                waits.append((when - now).total_seconds())
                continue
            for consumer in claim.status.reserved_for:
                pod = self._pods.objects.get((claim.metadata.namespace or "", consumer.name))
                if pod is not None and pod["metadata"]["uid"] == consumer.uid:
                    waits += [_RETRY_S] if not await self._evict(pod) else []
        return min(waits, default=None)

    async def _evict(self, pod: JsonObject) -> bool:
        if is_done(pod) or is_being_deleted(pod):
            return True
        message = f"Marking for deletion Pod {pod['metadata']['namespace']}/{pod['metadata']['name']}"
        try:
            await tell(self._kube, _TAINT_EVICTION, pod, "Normal", "DeviceTaintManagerEviction", message)
            await delete(self._kube, PODS, pod)
        except NotFound:
            return True
        except ClusterError:
            return False
        return True


def taints_of(obj: JsonObject) -> Mapping[DeviceId, Sequence[Taint]]:
    """The taints of a slice that evict, by device. Pure."""
    spec = ResourceSlice.of(obj).spec
    return {
        DeviceId(spec.driver, spec.pool.name, device.name): evicting
        for device in spec.devices or ()
        if (evicting := [taint for taint in device.taints or () if taint.effect == "NoExecute"])
    }


def eviction_time(claim: ResourceClaim, taints: Mapping[DeviceId, Sequence[Taint]], now: datetime) -> datetime | None:
    """When the pods of a claim must go; None while they may stay. Pure."""
    if claim.status.allocation is None:
        return None
    times = [
        _tolerated_until(taint, result.tolerations or (), now)
        for result in claim.status.allocation.devices.results
        for taint in taints.get(DeviceId(result.driver, result.pool, result.device), ())
    ]
    return min((time for time in times if time is not None), default=None)


def _tolerated_until(taint: Taint, tolerations: Sequence[Toleration], now: datetime) -> datetime | None:
    """None for ever; the longest toleration counts."""
    matching = [toleration for toleration in tolerations if tolerates(toleration, taint)]
    if any(toleration.toleration_seconds is None for toleration in matching):
        return None
    added = datetime.fromisoformat(taint.time_added) if taint.time_added else now
    return max((added + timedelta(seconds=item.toleration_seconds or 0) for item in matching), default=now)
