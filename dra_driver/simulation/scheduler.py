"""The scheduler of a simulated cluster: pods to nodes, claims to devices.

For every pod without a node it takes the nodes that the pod may run on, asks `dra_driver.allocation` for devices on
each, writes the allocation and the reservation to the claims, and binds the pod. A pod that fits nowhere keeps
waiting, with a condition and an event that say why, until something in the cluster changes. What it has written but
not yet seen in its caches is remembered, so no device is given away twice.

A pod whose claims have binding conditions is bound when these are true (`dra_driver.api.binding`). kube-scheduler looks
every 5 s whether they are; this one looks when a claim changes.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Never
from uuid import uuid4

import structlog

from dra_driver import kubernetes
from dra_driver.allocation.behavior import Behavior
from dra_driver.allocation.nodes import NodeView, UnfitCause, unfit_for
from dra_driver.allocation.placement import (
    ExtendedRequests,
    Placement,
    extended_claim,
    extended_resources,
    highest_score,
    place_on,
)
from dra_driver.allocation.snapshot import Catalog, PublishedSlice, Snapshot, Usage
from dra_driver.api.binding import binding_failure, has_binding_conditions, waiting_results
from dra_driver.api.core import CLAIM_FINALIZER, EXTENDED_CLAIM_ANNOTATION, Pod
from dra_driver.api.meta import (
    DEVICE_CLASSES,
    NODES,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    JsonObject,
)
from dra_driver.api.resource import Allocation, DeviceClass, ResourceClaim, ResourceSlice
from dra_driver.errors import ClusterError, InvalidInput, NodeNotReady, NotFound
from dra_driver.kube.client import Kube
from dra_driver.kube.watch import Backoff, Change, Key, Mirror, MirrorChange, Reflector, follow, key_of
from dra_driver.simulation.pods import (
    claims_of_entries,
    has_finalizer,
    is_being_deleted,
    is_done,
    is_owned_by,
    is_scheduled,
    released,
    without_finalizer,
)
from dra_driver.simulation.workloads.workload_plan import conditions_of
from dra_driver.simulation.writes import delete, patch_status, tell, timestamp

_log = structlog.get_logger(__name__)

NAME = "default-scheduler"
_ACTS_AS = (NAME, "volcano")
"""Schedulers whose pods it takes. Volcano's it takes one by one: of a gang that does not fit, some pods run."""
_BINDING_TIMEOUT_S = 600.0
"""As kube-scheduler's default `bindingTimeout`."""
MAX_CONSUMERS = 256
"""Of one claim; the API has no room for more."""


@dataclass(frozen=True, slots=True)
class _Assumed:
    """What was decided for a pod whose node must still prepare the devices of these claims."""

    node: str
    claims: tuple[Key, ...]
    until: float
    """By the event loop's clock: when the scheduler gives up."""


class _Waits(Exception):
    """The pod cannot be scheduled now; the text says exactly why, empty if that is for the claim controller to say.
    `message` is what kube-scheduler reports to the user, empty if it reports nothing."""

    def __init__(self, reason: str, message: str = "") -> None:
        super().__init__(reason)
        self.message = message


class SimulatedScheduler:
    """`run` until cancelled. It decides as a scheduler of the server's version with its default gates."""

    def __init__(self, kube: Kube, *, binding_timeout_s: float = _BINDING_TIMEOUT_S) -> None:
        self._kube = kube
        self._behavior = Behavior.of(kubernetes.CURRENT)
        self._binding_timeout_s = binding_timeout_s
        self._assumed: dict[str, _Assumed] = {}
        """By the UID of the pod."""
        self._wake = asyncio.Event()
        self._backoff = Backoff(first_s=0.05, longest_s=5.0)
        self._pods = Reflector(kube, PODS, on_change=self._pod_changed)
        self._nodes = Mirror(kube, NODES, keep=NodeView.read, on_change=lambda _: self._wake.set())
        self._claims = Reflector(kube, RESOURCE_CLAIMS, on_change=self._claim_changed)
        self._classes = Mirror(kube, DEVICE_CLASSES, keep=DeviceClass.of, on_change=lambda _: self._wake.set())
        self._slices = Mirror(
            kube, RESOURCE_SLICES, keep=lambda obj: PublishedSlice(ResourceSlice.of(obj)), on_change=self._slice_changed
        )
        self._catalog: Catalog | None = None
        """Of the slices as they are now; made when it is needed."""
        self._allocations: dict[Key, tuple[JsonObject, Allocation | None]] = {}
        """Typed, each with the claim it was read from."""
        self._written_claims: dict[Key, JsonObject] = {}
        """What this scheduler wrote, until the cache has it."""
        self.reasons: dict[str, str] = {}
        """Exactly why pods wait, by UID; what Kubernetes reports has no reasons of devices."""
        self._bound: set[str] = set()
        """UIDs of pods that were bound here and do not look so in the cache yet."""

    def has_placed(self, pod: JsonObject) -> bool:
        """Whether a node was chosen for the pod, also if its devices are still prepared before it is bound."""
        return is_scheduled(pod) or pod["metadata"]["uid"] in self._assumed

    async def run(self) -> None:
        mirrors: list[Mirror[Any]] = [self._pods, self._nodes, self._claims, self._classes, self._slices]
        _, minor = await self._kube.server_version()
        self._behavior = Behavior.of(minor)
        async with asyncio.TaskGroup() as group:
            await follow(mirrors, group)
            group.create_task(self._schedule_forever())

    # -- what changed

    def _pod_changed(self, change: Change) -> None:
        for pod in (change.before, change.after):
            if pod is not None and (change.after is None or is_scheduled(pod)):
                self._bound.discard(pod["metadata"]["uid"])
                self.reasons.pop(pod["metadata"]["uid"], None)
                self._assumed.pop(pod["metadata"]["uid"], None)
        self._wake.set()

    def _claim_changed(self, change: Change) -> None:
        written = self._written_claims.get(change.key)
        if written is not None and (change.after is None or not _is_older(change.after, written)):
            del self._written_claims[change.key]
        self._wake.set()

    def _slice_changed(self, _change: MirrorChange[PublishedSlice]) -> None:
        self._catalog = None
        self._wake.set()

    # -- the loop

    async def _schedule_forever(self) -> Never:
        while True:
            await self._wake.wait()
            self._wake.clear()
            failed = False
            for pod in self._pending():
                # Deciding is pure computation; kubelets and servers of the same process must get their turn.
                await asyncio.sleep(0)
                try:
                    await self._attempt(pod)
                except NotFound:
                    continue  # the pod or a claim is gone: that is a change of its own
                except ClusterError as error:
                    _log.debug("scheduling is tried again", pod=key_of(pod), error=str(error))
                    failed = True
            if failed:
                asyncio.get_running_loop().call_later(self._backoff.next_s(), self._wake.set)
            else:
                self._backoff.reset()

    def _pending(self) -> list[JsonObject]:
        """Pods to schedule: important ones first, then the oldest."""
        pending = [
            pod
            for pod in self._pods.objects.values()
            if not (is_scheduled(pod) or is_done(pod) or is_being_deleted(pod))
            and pod["metadata"]["uid"] not in self._bound
            and pod["spec"].get("schedulerName", NAME) in _ACTS_AS
            and not pod["spec"].get("schedulingGates")
        ]

        def order(pod: JsonObject) -> tuple[int, str, Key]:
            return -(pod["spec"].get("priority") or 0), pod["metadata"].get("creationTimestamp") or "", key_of(pod)

        return sorted(pending, key=order)

    async def _attempt(self, pod: JsonObject) -> None:
        if (assumed := self._assumed.get(pod["metadata"]["uid"])) is not None:
            await self._bind_when_ready(pod, assumed)
            return
        try:
            claims = self._claims_of(pod)
            if await self._drop_extended_leftover(pod):
                return
            placement = self._placement(pod, claims)
        except _Waits as waits:
            if str(waits):
                self.reasons[pod["metadata"]["uid"]] = str(waits)
            if not await self._give_back_one(pod) and waits.message:
                await self._report(pod, waits.message)
            return
        except (InvalidInput, NodeNotReady) as reason:
            self.reasons[pod["metadata"]["uid"]] = str(reason)
            await self._report(pod, self._no_node(self._missing_class(claims) or str(reason), has_claims=False))
            return
        await self._commit(pod, claims, placement)

    # -- decide

    def _claims_of(self, pod: JsonObject) -> list[JsonObject]:
        """The claims of the pod's entries. Raises _Waits while one cannot be used, or is not made: the claim controller
        complains if that takes long."""
        namespace = pod["metadata"]["namespace"]
        claims_of: list[JsonObject] = []
        for entry, name in claims_of_entries(pod):
            if name is None:
                raise _Waits("")
            claim = self._claim((namespace, name))
            if claim is None:
                raise _Waits(f"there is no ResourceClaim {namespace}/{name}")
            if entry.resource_claim_name is None and not is_owned_by(claim, pod):
                raise _Waits(f"ResourceClaim {name} was not created for this pod")
            if problem := _unusable(claim, pod):
                raise _Waits(
                    f"ResourceClaim {name} {problem}", "" if is_being_deleted(claim) else f"resourceclaim {problem}"
                )
            if all(key_of(item) != key_of(claim) for item in claims_of):
                claims_of.append(claim)
        return claims_of

    def _claim(self, key: Key) -> JsonObject | None:
        return self._written_claims.get(key) or self._claims.objects.get(key)

    def _placement(self, pod: JsonObject, claims: Sequence[JsonObject]) -> Placement:
        """The best node: the first one, unless preference lists make another one better. Raises _Waits."""
        snapshot = self._snapshot()
        typed = [ResourceClaim.of(claim) for claim in claims]
        refusals: Counter[str] = Counter()
        reported: Counter[str] = Counter()
        best: Placement | None = None
        nodes = [node for _, node in sorted(self._nodes.objects.items())]
        if not nodes:
            raise _Waits("there are no nodes", "no nodes available to schedule pods")
        typed_pod = Pod.of(pod)
        for node in nodes:
            placement = place_on(typed_pod, typed, node, snapshot, share_ids=lambda *_: str(uuid4()))
            if isinstance(placement, str):
                refusals[placement] += 1
                reported[_reported(placement, typed_pod, node)] += 1
            elif best is None or placement.score > best.score:
                best = placement
            if best is not None and best.score == highest_score(typed):
                break
        if best is None:
            exactly = "; ".join(f"{count} of {len(nodes)} nodes: {reason}" for reason, count in refusals.most_common())
            groups = ", ".join(sorted(f"{count} {reason}" for reason, count in reported.items()))
            raise _Waits(exactly, self._no_node(groups, has_claims=bool(typed) or _NO_DEVICES in reported))
        return best

    def _no_node(self, why: str, *, has_claims: bool) -> str:
        """The sentence of kube-scheduler. Seen in 1.36.2."""
        number = len(self._nodes.objects)
        none = f"0/{number} nodes are available:"
        devices = "still not schedulable" if has_claims else "no new claims to deallocate"
        return f"{none} {why}. {devices}, preemption: {none} {number} Preemption is not helpful for scheduling."

    def _missing_class(self, claims: Sequence[JsonObject]) -> str | None:
        """The first request for a class that does not exist."""
        known = {key[1] for key in self._classes.objects}
        for claim in claims:
            for request in claim["spec"]["devices"].get("requests") or ():
                for wanted in (request.get("exactly"), *(request.get("firstAvailable") or ())):
                    if wanted and wanted["deviceClassName"] not in known:
                        return f"request {request['name']}: device class {wanted['deviceClassName']} does not exist"
        return None

    def _snapshot(self) -> Snapshot:
        if self._catalog is None:
            self._catalog = Catalog(tuple(self._slices.objects.values()), self._behavior)
        return Snapshot(
            self._catalog,
            {name: device_class for (_, name), device_class in self._classes.objects.items()},
            Usage.of(self._held()),
        )

    def _held(self) -> Iterable[Allocation]:
        claims = {**self._claims.objects, **self._written_claims}
        self._allocations = {
            key: known if (known := self._allocations.get(key)) and known[0] is claim else (claim, _allocation(claim))
            for key, claim in claims.items()
        }
        return [allocation for _, allocation in self._allocations.values() if allocation is not None]

    # -- do

    async def _commit(self, pod: JsonObject, claims: Sequence[JsonObject], placement: Placement) -> None:
        """Claims first, then the pod: a pod on a node without its devices would be the worse half."""
        allocations = list(placement.allocations)
        reserved: list[JsonObject] = []
        for claim in claims:
            has_one = (claim.get("status") or {}).get("allocation") is not None
            reserved.append(await self._reserve(pod, claim, None if has_one else allocations.pop(0)))
        if placement.extended is not None:
            reserved.append(await self._commit_extended(pod, placement.extended, allocations.pop(0)))
        if self._behavior.binding_conditions and any(map(has_binding_conditions, reserved)):
            until = asyncio.get_running_loop().time() + self._binding_timeout_s
            asyncio.get_running_loop().call_at(until, self._wake.set)
            assumed = _Assumed(placement.node, tuple(map(key_of, reserved)), until)
            self._assumed[pod["metadata"]["uid"]] = assumed
            message = f"waiting for binding conditions for device on node {placement.node}"
            await tell(self._kube, NAME, pod, "Normal", "BindingConditionsPending", message)
            await self._bind_when_ready(pod, assumed)
        else:
            await self._bind(pod, placement.node)

    async def _bind_when_ready(self, pod: JsonObject, assumed: _Assumed) -> None:
        """Bind a pod whose devices are prepared, or take back the allocation whose devices the node has given up."""
        claims = [claim for key in assumed.claims if (claim := self._claim(key)) is not None]
        failed = next((claim for claim in claims if binding_failure(claim) is not None), None)
        waiting = next((claim for claim in claims if waiting_results(claim)), None)
        over = asyncio.get_running_loop().time() >= assumed.until
        gone = len(claims) < len(assumed.claims) or not all(map(_allocation, claims))
        if gone or failed is not None or (over and waiting is not None):
            self._assumed.pop(pod["metadata"]["uid"], None)
            given_up = failed if failed is not None else waiting
            if given_up is not None:
                why = f"device binding failed: {binding_failure(given_up)}" if failed else "device binding timeout"
                await self._give_back(given_up)
                await self._report(pod, f"{why}: claim={given_up['metadata']['name']}")
            self._wake.set()
        elif waiting is None:
            await self._bind(pod, assumed.node)
            self._assumed.pop(pod["metadata"]["uid"], None)

    async def _bind(self, pod: JsonObject, node: str) -> None:
        metadata = pod["metadata"]
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._kube.create_subresource(PODS, metadata["name"], "binding", binding, namespace=metadata["namespace"])
        self._bound.add(metadata["uid"])
        message = f"Successfully assigned {metadata['namespace']}/{metadata['name']} to {node}"
        await tell(self._kube, NAME, pod, "Normal", "Scheduled", message)

    async def _reserve(self, pod: JsonObject, claim: JsonObject, allocation: Allocation | None) -> JsonObject:
        """Write allocation and reservation in one status update, guarded by the version that was decided on. Returns
        the claim as it is then."""
        metadata = pod["metadata"]
        if allocation is not None and not has_finalizer(claim):
            guarded = deepcopy(claim)
            guarded["metadata"].setdefault("finalizers", []).append(CLAIM_FINALIZER)
            claim = self._remember(await self._kube.replace(RESOURCE_CLAIMS, guarded))
        changed = deepcopy(claim)
        status = changed.setdefault("status", {})
        if allocation is not None:
            status["allocation"] = allocation.to_wire() | {"allocationTimestamp": timestamp()}
        consumers = status.setdefault("reservedFor", [])
        if all(consumer["uid"] != metadata["uid"] for consumer in consumers):
            consumers.append({"resource": PODS.plural, "name": metadata["name"], "uid": metadata["uid"]})
        if changed == claim:
            return claim
        return self._remember(await self._kube.replace(RESOURCE_CLAIMS, changed, subresource="status"))

    async def _commit_extended(self, pod: JsonObject, extended: ExtendedRequests, allocation: Allocation) -> JsonObject:
        wanted = extended_claim(Pod.of(pod), extended.requests, minor=self._behavior.minor)
        claim = self._remember(await self._kube.create(RESOURCE_CLAIMS, wanted))
        claim = await self._reserve(pod, claim, allocation)
        status = {
            "resourceClaimName": claim["metadata"]["name"],
            "requestMappings": [mapping.to_wire() for mapping in extended.mappings],
        }
        await patch_status(self._kube, pod, {"extendedResourceClaimStatus": status})
        return claim

    def _remember(self, claim: JsonObject) -> JsonObject:
        self._written_claims[key_of(claim)] = claim
        return claim

    async def _drop_extended_leftover(self, pod: JsonObject) -> bool:
        """Delete the claim that an earlier, unfinished attempt made for extended resources; try again then."""
        for key, known in {**self._claims.objects, **self._written_claims}.items():
            annotations = known["metadata"].get("annotations") or {}
            if annotations.get(EXTENDED_CLAIM_ANNOTATION) == "true" and is_owned_by(known, pod):
                if has_finalizer(known):
                    await self._kube.replace(RESOURCE_CLAIMS, without_finalizer(known))
                self._written_claims.pop(key, None)
                await delete(self._kube, RESOURCE_CLAIMS, known)
                return True
        return False

    async def _give_back_one(self, pod: JsonObject) -> bool:
        """Release one claim that only this pod holds: allocated where the pod cannot run, it keeps it from running."""
        try:
            claims = self._claims_of(pod)
        except _Waits:
            return False
        for claim in claims:
            status = claim.get("status") or {}
            others = [item for item in status.get("reservedFor") or () if item["uid"] != pod["metadata"]["uid"]]
            if status.get("allocation") is not None and not others:
                await self._give_back(claim)
                self._wake.set()
                return True
        return False

    async def _give_back(self, claim: JsonObject) -> None:
        self._remember(await self._kube.replace(RESOURCE_CLAIMS, released(claim), subresource="status"))

    async def _report(self, pod: JsonObject, reason: str) -> None:
        """Condition and event, once per reason."""
        known = (pod.get("status") or {}).get("conditions") or ()
        if any(item["type"] == "PodScheduled" and item.get("message") == reason for item in known):
            return
        condition = ("PodScheduled", False, "Unschedulable", reason)
        conditions = conditions_of(pod, datetime.now(UTC), condition, keep=True)
        await patch_status(self._kube, pod, {"conditions": conditions})
        await tell(self._kube, NAME, pod, "Warning", "FailedScheduling", reason)


def _unusable(claim: JsonObject, pod: JsonObject) -> str | None:
    """Why a pod cannot use an existing claim."""
    if is_being_deleted(claim):
        return "is being deleted"
    consumers = (claim.get("status") or {}).get("reservedFor") or ()
    if len(consumers) >= MAX_CONSUMERS and all(consumer["uid"] != pod["metadata"]["uid"] for consumer in consumers):
        return f"is in use by {len(consumers)} pods, which is the maximum"
    return None


def _allocation(claim: JsonObject) -> Allocation | None:
    allocation = (claim.get("status") or {}).get("allocation")
    return Allocation.of(allocation) if allocation is not None else None


def _reported(reason: str, pod: Pod, node: NodeView) -> str:
    """What kube-scheduler says of a node that `place_on` refused for this reason. Seen in 1.36.2."""
    unfit = unfit_for(pod.spec, node)
    if unfit is not None and reason == unfit.reason:
        return _UNFIT[unfit.cause]
    for resource in extended_resources(pod.spec):
        if reason in (f"no {resource}", f"too little {resource}"):
            return f"Insufficient {resource}"
    if reason.endswith("is allocated to devices of another node"):
        return "resourceclaim not available on the node"
    return _NO_DEVICES


_NO_DEVICES = "cannot allocate all claims"
_UNFIT = {
    UnfitCause.CORDONED: "node(s) were unschedulable",
    UnfitCause.NOT_SELECTED: "node(s) didn't match Pod's node affinity/selector",
    UnfitCause.TAINTED: "node(s) had untolerated taint(s)",
}


def _is_older(item: JsonObject, other: JsonObject) -> bool:
    """Whether `item` is an earlier version of the object; versions are comparable numbers (KEP-5504)."""
    if item["metadata"]["uid"] != other["metadata"]["uid"]:
        return False
    return int(item["metadata"]["resourceVersion"]) < int(other["metadata"]["resourceVersion"])
