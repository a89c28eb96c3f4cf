"""Proves a node through the cluster: makes one pod after the other with a claim, waits for it, and removes both.

Whatever happens, what was made is deleted; of a command that was killed, the pods end by themselves, and the next run
deletes them. Nothing here runs with the rights of the driver: whoever asks must be allowed to make pods and claims.
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import uuid4

from dra_driver.api.core import KUBELET_PLUGIN, Pod, moment
from dra_driver.api.meta import EVENTS, NODE_INVENTORIES, PODS, RESOURCE_CLAIMS, JsonObject, Resource
from dra_driver.api.resource import ResourceSlice
from dra_driver.cli.live import ClusterSeen, read_cluster
from dra_driver.doctor.proof_pods import (
    ENDS_AFTER_S,
    LABEL,
    SHAPES,
    ProofDevice,
    ProofOutcome,
    ProofRequest,
    Shape,
    claim_of,
    judged,
    pod_of,
    request_for,
    told_uuids,
)
from dra_driver.doctor.proofs import IN_PODS, Proof, ProofChange, failed, not_tried
from dra_driver.errors import ClusterError, NotFound, Rejected
from dra_driver.kube.client import Kube

_FORBIDDEN = (401, 403)
_POLL_S = 0.3
_GONE_WITHIN_S = 60.0
_NOTHING = ProofRequest("gpu.nvidia.com", "true")
"""Of a pod that is not made: to ask whether it could be."""


@dataclass(frozen=True, slots=True)
class ProofPlace:
    """Where pods are made, and of what image; `secrets` are names of pull secrets there."""

    node: str
    namespace: str
    image: str
    secrets: tuple[str, ...] = ()


async def proven_in_pods(
    kube: Kube,
    node: str,
    *,
    driver: str,
    also: Collection[ProofChange],
    image: str | None,
    patience_s: float,
    tell: Callable[[str], None],
) -> tuple[Proof, ...]:
    """In the order of `IN_PODS`. Raises ClusterError when the cluster cannot be asked at all."""
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    if task is not None:
        # What was made is deleted at a SIGTERM, too; a SIGINT cancels by itself.
        with contextlib.suppress(ValueError, RuntimeError):
            loop.add_signal_handler(signal.SIGTERM, task.cancel)
    cluster = await read_cluster(kube, say=False)
    known = any(inventory.metadata.name == node for inventory in cluster.inventories)
    if not known and not await _has_inventory(kube, node):
        return _all(not_tried(f"the driver reports no node {node} to this cluster", "dractl get nodes"))
    place = await _place(kube, node, image)
    if isinstance(place, Proof):
        return _all(place)
    try:
        await _remove_old(kube, place)
        tried = pod_of("gpu-dra-proof", SHAPES[0], _NOTHING, node=node, image=place.image, secrets=())
        await kube.create(PODS, tried, namespace=place.namespace, dry_run=True)
    except Rejected as error:
        if error.status in _FORBIDDEN:
            return _all(_not_allowed(place, error))
        return _all(failed(f"pods cannot be made in namespace {place.namespace}: {error.message}", "do what it says"))
    return tuple([await _one(kube, place, shape, driver, also, patience_s, tell) for shape in SHAPES])


def _all(proof: Proof) -> tuple[Proof, ...]:
    return tuple(replace(proof, name=name) for name, _ in IN_PODS)


def _not_allowed(place: ProofPlace, error: ClusterError) -> Proof:
    return not_tried(
        f"you may not make pods in namespace {place.namespace}: {error.message}",
        f"with an administrator's kubeconfig: dractl doctor --prove --on {place.node}",
    )


async def _has_inventory(kube: Kube, node: str) -> bool:
    try:
        await kube.get(NODE_INVENTORIES, node)
    except NotFound:
        return False
    except Rejected as error:
        return error.status in _FORBIDDEN  # then slices say it
    return True


async def _place(kube: Kube, node: str, image: str | None) -> ProofPlace | Proof:
    """The namespace, image and pull secrets of the node's own plugin; another image if that is named."""
    try:
        results = (await kube.list(PODS, field_selector=f"spec.nodeName={node}")).items
    except Rejected as error:
        if error.status in _FORBIDDEN:
            return _not_allowed(ProofPlace(node, "(all)", ""), error)
        raise
    for pod in results:
        ours = Pod.of(pod).spec.ours
        if ours is not None and ours.program == KUBELET_PLUGIN:
            secrets = tuple(str(item["name"]) for item in pod["spec"].get("imagePullSecrets") or ())
            return ProofPlace(node, pod["metadata"]["namespace"], image or ours.image, secrets)
    if image is None:
        return not_tried(f"node {node} has no pod of the plugin, whose image the pods would have", "--image IMAGE")
    return ProofPlace(node, "default", image)


async def _remove_old(kube: Kube, place: ProofPlace) -> None:
    """Pods of runs that were killed: those that are over, or older than any pod of a run may get."""
    for pod in (await kube.list(PODS, namespace=place.namespace, label_selector=LABEL)).items:
        made = moment(pod["metadata"].get("creationTimestamp"))
        age_s = (datetime.now(UTC) - made).total_seconds() if made is not None else 0.0
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed") or age_s > 2 * ENDS_AFTER_S:
            await _delete(kube, pod["metadata"]["name"], place.namespace)


async def _one(
    kube: Kube,
    place: ProofPlace,
    shape: Shape,
    driver: str,
    also: Collection[ProofChange],
    patience_s: float,
    tell: Callable[[str], None],
) -> Proof:
    begun = time.monotonic()
    cluster = await read_cluster(kube, say=False)
    request = request_for(shape.what, _standings(cluster, place.node, driver), also, driver)
    if isinstance(request, Proof):
        return replace(request, name=shape.name)
    tell(f"{shape.name}: a pod on {place.node}, in namespace {place.namespace}")
    try:
        proof = await _tried(kube, place, shape, request, cluster.slices, driver, patience_s)
    except Rejected as error:
        proof = _not_allowed(place, error) if error.status in _FORBIDDEN else failed(str(error), "do what it says")
    return replace(proof, name=shape.name, seconds=time.monotonic() - begun)


def _standings(cluster: ClusterSeen, node: str, driver: str) -> tuple[ProofDevice, ...]:
    headroom = cluster.headrooms(driver).get(node)
    return tuple(
        ProofDevice(standing.candidate.device, standing.refusal.text if standing.refusal is not None else None)
        for standing in (headroom.standings if headroom is not None else ())
        if standing.candidate.id.driver == driver
    )


async def _tried(
    kube: Kube,
    place: ProofPlace,
    shape: Shape,
    request: ProofRequest,
    slices: tuple[ResourceSlice, ...],
    driver: str,
    patience_s: float,
) -> Proof:
    name = f"gpu-dra-proof-{shape.name}-{uuid4().hex[:8]}"
    begun = time.monotonic()
    manifest = pod_of(name, shape, request, node=place.node, image=place.image, secrets=place.secrets)
    async with _removed(kube, name, place.namespace) as left:
        pod = await kube.create(PODS, manifest, namespace=place.namespace)
        await kube.create(RESOURCE_CLAIMS, claim_of(name, request, pod), namespace=place.namespace)
        outcome = await _followed(kube, name, place.namespace, driver, begun + patience_s)
        proof = judged(shape, replace(outcome, waited_s=time.monotonic() - begun), slices, driver)
    return proof if not left else failed(left[0], f"kubectl -n {place.namespace} describe pod,resourceclaim {name}")


async def _followed(kube: Kube, name: str, namespace: str, driver: str, deadline: float) -> ProofOutcome:
    told: frozenset[str] = frozenset()
    claim: JsonObject = {}
    while True:
        now = await kube.get(RESOURCE_CLAIMS, name, namespace)
        # Once the pod has ended, its claim is taken from it, and with it what it was given.
        claim = now if (now.get("status") or {}).get("allocation") or not claim else claim
        told = told_uuids(now, driver) or told
        pod = await kube.get(PODS, name, namespace)
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            return ProofOutcome(pod, claim, told, (), 0.0)
        if time.monotonic() > deadline:
            return ProofOutcome(pod, claim, told, await _warnings(kube, name, namespace), 0.0)
        await asyncio.sleep(_POLL_S)


async def _warnings(kube: Kube, name: str, namespace: str) -> tuple[str, ...]:
    try:
        results = (await kube.list(EVENTS, namespace=namespace)).items
    except Rejected:
        return ()
    ours = [item for item in results if item.get("type") == "Warning" and item["involvedObject"].get("name") == name]
    ours.sort(key=lambda item: str(item.get("lastTimestamp") or item.get("eventTime") or ""))
    return tuple(str(item.get("message", "")) for item in ours)


@contextlib.asynccontextmanager
async def _removed(kube: Kube, name: str, namespace: str) -> AsyncIterator[list[str]]:
    """Pod and claim are gone afterwards; what could not be removed is added to the list. A claim is there as long as
    its GPU is not given back, so this waits for the node, too."""
    left: list[str] = []
    try:
        yield left
    finally:
        left += await _gone(kube, name, namespace)


async def _gone(kube: Kube, name: str, namespace: str) -> list[str]:
    deadline = time.monotonic() + _GONE_WITHIN_S
    try:
        await _delete(kube, name, namespace)
        while time.monotonic() < deadline:
            if not await _there(kube, PODS, name, namespace) and not await _there(
                kube, RESOURCE_CLAIMS, name, namespace
            ):
                return []
            await asyncio.sleep(_POLL_S)
    except ClusterError as error:
        return [f"pod and claim {name} may be left: {error}"]
    return [f"pod or claim {name} is still there {_GONE_WITHIN_S:.0f} s after its deletion"]


async def _delete(kube: Kube, name: str, namespace: str) -> None:
    """The claim belongs to the pod, but a server without garbage collection leaves it."""
    for resource in (PODS, RESOURCE_CLAIMS):
        with contextlib.suppress(NotFound):
            await kube.delete(resource, name, namespace=namespace)


async def _there(kube: Kube, resource: Resource, name: str, namespace: str) -> JsonObject | None:
    with contextlib.suppress(NotFound):
        return await kube.get(resource, name, namespace)
    return None
