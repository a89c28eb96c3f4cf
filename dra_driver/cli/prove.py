"""`dractl doctor --prove`: tries on a node, and in pods on it, what containers need; then makes an archive.

The node's proofs need root there. Pods are made with the permissions of the user, never with those of the driver: one
after the other, each with a claim. They are deleted in every case. If the command is killed, its pods end by
themselves, and the next run deletes them.
"""

import asyncio
import contextlib
import os
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from uuid import uuid4

from dra_driver import __version__
from dra_driver.api.core import KUBELET_PLUGIN, Event, Pod, moment
from dra_driver.api.meta import EVENTS, NODE_INVENTORIES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.api.resource import ResourceClaim, ResourceSlice
from dra_driver.cli.doctor import put_node, refuse_archive
from dra_driver.cli.reading.session import FORBIDDEN, ask
from dra_driver.cli.tables.following import read_objects
from dra_driver.cli.tables.seen import READ_AS, SHOWN, ClusterSeen
from dra_driver.doctor.archive import Bundle
from dra_driver.doctor.node_part import NodePlaces, node_part
from dra_driver.doctor.proofs import (
    ENDS_AFTER_S,
    LABEL,
    SHAPES,
    Proof,
    ProofChange,
    ProofDevice,
    ProofOutcome,
    ProofRequest,
    ProofResult,
    Shape,
    claim_of,
    failed,
    judged,
    lines,
    not_tried,
    pod_of,
    reported_uuids,
    request_for,
    summary,
)
from dra_driver.errors import ClusterError, DriverError, InvalidInput, NoSuchObject, NotFound, Rejected
from dra_driver.kube.client import Kube
from dra_driver.runtime.tasks import cancel_on_sigterm
from dra_driver.terminal import Format, Status, echo, print_data, print_message, stop

ARCHIVE = "gpu-dra-proof.tar.gz"
_WIDEST = 120
_WIDTH = 140
_POLL_S = 0.3
_GONE_WITHIN_S = 60.0
_ANY_GPU = ProofRequest("gpu.nvidia.com", "true")
"""Of the pod that is created in a dry run, to see whether the user may create pods."""


@dataclass(frozen=True, slots=True)
class PodOptions:
    """How pods are made. `node` is the cluster's name of the node. `image` None: that of the node's plugin."""

    node: str
    driver: str
    also: Collection[ProofChange]
    image: str | None
    patience_s: float


def node_name() -> str:
    """Of this machine, as the plugin's pod gets it, or as the kubelet chooses it by default."""
    return os.environ.get("GPU_DRA_NODE_NAME") or socket.gethostname().lower()


def prove(
    places: NodePlaces | None,
    options: PodOptions,
    kubeconfig: Path | None,
    context: str | None,
    archive: Path | None,
    output: Format,
) -> None:
    """Tries everything and ends the command, with status 1 if something failed. `places` None: only in pods."""
    archive = _archive(archive)
    proofs: list[Proof] = []
    for proof in () if places is None else node_part().prove(places, options.also):
        _show(proof, output, proofs)
    for proof in _in_pods(options, kubeconfig, context, required=places is None):
        _show(proof, output, proofs)
    _pack(archive, places, proofs)
    if output is not Format.TABLE:
        print_data({"proofs": [item.to_data() for item in proofs], "archive": str(archive)}, output)
    print_message(f"{summary(proofs)}; full results: {archive}")
    if any(item.outcome is ProofResult.FAIL for item in proofs):
        raise SystemExit(Status.NO)


def _show(proof: Proof, output: Format, proofs: list[Proof]) -> None:
    """At once, because some proofs take a minute."""
    proofs.append(proof)
    if output is Format.TABLE:
        width = min(shutil.get_terminal_size((80, 0)).columns, _WIDEST)
        for line in lines([proof], width):
            echo(line)


def _archive(named: Path | None) -> Path:
    """A file that does not exist and can be created. Raises InvalidInput if the user's choice exists or cannot."""
    if named is None:
        folder = Path.cwd() if os.access(Path.cwd(), os.W_OK) else Path(tempfile.gettempdir())
        stem, suffix = ARCHIVE.split(".", 1)
        names = (f"{stem}{f'-{number}' if number > 1 else ''}.{suffix}" for number in count(1))
        return next(path for name in names if not (path := folder / name).exists())
    refuse_archive(named)
    return named


def _pack(archive: Path, places: NodePlaces | None, proofs: list[Proof]) -> None:
    with tempfile.TemporaryDirectory(prefix="gpu-dra-proof-") as folder:
        bundle = Bundle(Path(folder))
        if places is not None:
            try:
                put_node(bundle, places, None)
            except DriverError as error:
                bundle.error("node", error)
        bundle.data("prove.json", {"proofs": [proof.to_data() for proof in proofs]})
        bundle.text("prove.txt", lines(proofs, _WIDTH))
        bundle.pack(archive, release=__version__, time=datetime.now(UTC))


# -- in pods


def _in_pods(options: PodOptions, kubeconfig: Path | None, context: str | None, *, required: bool) -> tuple[Proof, ...]:
    """Raises DriverError only if pods are all that the user asked for."""
    try:
        return ask(kubeconfig, context, lambda kube: proven_in_pods(kube, options))
    except asyncio.CancelledError:
        stop("ended by a signal; deleted the pods and claims of the proofs", Status.NO)
    except NoSuchObject as error:
        if required:
            raise
        return _all(not_tried(str(error)))
    except (ClusterError, InvalidInput) as error:
        if required:
            raise
        fix = f"run with an administrator's kubeconfig: dractl doctor --prove --on {options.node}"
        return _all(not_tried(f"no cluster: {error}", fix))


def _all(proof: Proof) -> tuple[Proof, ...]:
    return tuple(replace(proof, name=shape.name) for shape in SHAPES)


async def proven_in_pods(kube: Kube, options: PodOptions) -> tuple[Proof, ...]:
    """In the order of `SHAPES`. Raises ClusterError if the cluster does not answer at all, and NoSuchObject if it does
    not have the node."""
    cancel_on_sigterm()  # the pods must be deleted
    cluster = await _read_cluster(kube)
    node = options.node
    known = any(inventory.metadata.name == node for inventory in cluster.inventories)
    if not known and not await _has_inventory(kube, node):
        raise NoSuchObject("the driver reports no such node to this cluster; dractl get nodes lists them", about=node)
    place = await place_of(kube, node, options.image)
    if isinstance(place, Proof):
        return _all(place)
    try:
        await place.remove_old()
        pod = pod_of("gpu-dra-proof", SHAPES[0], _ANY_GPU, node=node, image=place.image, secrets=())
        await kube.create(PODS, pod, namespace=place.namespace, dry_run=True)
    except Rejected as error:
        if error.status in FORBIDDEN:
            return _all(_not_allowed(node, place.namespace, error))
        return _all(failed(f"pods cannot be made in namespace {place.namespace}: {error.message}", "do what it says"))
    return tuple([await _proof(place, shape, options) for shape in SHAPES])


async def _read_cluster(kube: Kube) -> ClusterSeen:
    """With whole slices. Raises ClusterError when slices or claims cannot be read."""
    _, minor = await kube.server_version()
    required, read_as = (RESOURCE_SLICES, RESOURCE_CLAIMS), {**READ_AS, RESOURCE_SLICES: ResourceSlice.of}
    return ClusterSeen(await read_objects(kube, SHOWN, required, read_as=read_as, say=False), minor)


def _not_allowed(node: str, namespace: str, error: ClusterError) -> Proof:
    return not_tried(
        f"you may not make pods in namespace {namespace}: {error.message}",
        f"with an administrator's kubeconfig: dractl doctor --prove --on {node}",
    )


async def _has_inventory(kube: Kube, node: str) -> bool:
    try:
        await kube.get(NODE_INVENTORIES, node)
    except NotFound:
        return False
    except Rejected as error:
        return error.status in FORBIDDEN  # then the slices show whether there is such a node
    return True


async def place_of(kube: Kube, node: str, image: str | None) -> "ProofPlace | Proof":
    """The namespace, image and pull secrets of the node's plugin; `image` replaces its image."""
    try:
        pods = [Pod.of(item) for item in (await kube.list(PODS, field_selector=f"spec.nodeName={node}")).items]
    except Rejected as error:
        if error.status in FORBIDDEN:
            return _not_allowed(node, "(all)", error)
        raise
    for pod in pods:
        if pod.program == KUBELET_PLUGIN and pod.spec.ours is not None:
            secrets = tuple(secret.name for secret in pod.spec.image_pull_secrets)
            return ProofPlace(kube, node, pod.namespace, image or pod.spec.ours.image, secrets)
    if image is None:
        return not_tried(
            f"node {node} has no pod of the plugin, whose image the pods would have", "name one with --image IMAGE"
        )
    return ProofPlace(kube, node, "default", image)


async def _proof(place: "ProofPlace", shape: Shape, options: PodOptions) -> Proof:
    begun = time.monotonic()
    cluster = await _read_cluster(place.kube)
    request = request_for(shape.what, _devices(cluster, place.node, options.driver), options.also, options.driver)
    if isinstance(request, Proof):
        return replace(request, name=shape.name)
    print_message(f"{shape.name}: a pod on {place.node}, in namespace {place.namespace}")
    try:
        proof = await place.tried(shape, request, cluster.slices, options.driver, options.patience_s)
    except Rejected as error:
        forbidden = error.status in FORBIDDEN
        proof = _not_allowed(place.node, place.namespace, error) if forbidden else failed(str(error), "do what it says")
    except NotFound as error:
        proof = not_tried(f"its pod or claim was deleted meanwhile: {error}", "run it again")
    return replace(proof, name=shape.name, seconds=time.monotonic() - begun)


def _devices(cluster: ClusterSeen, node: str, driver: str) -> tuple[ProofDevice, ...]:
    headroom = cluster.headrooms(driver).get(node)
    return tuple(
        ProofDevice(standing.candidate.device, standing.refusal.text if standing.refusal is not None else None)
        for standing in (headroom.standings if headroom is not None else ())
        if standing.candidate.id.driver == driver
    )


@dataclass(frozen=True, slots=True)
class ProofPlace:
    """Where pods are made, and with which image; `secrets` are names of pull secrets there."""

    kube: Kube
    node: str
    namespace: str
    image: str
    secrets: tuple[str, ...] = ()

    async def remove_old(self) -> None:
        """Deletes pods of runs that were killed: those that have ended, or are older than any pod of a run."""
        for item in (await self.kube.list(PODS, namespace=self.namespace, label_selector=LABEL)).items:
            pod = Pod.of(item)
            created = moment(pod.metadata.creation_timestamp)
            age_s = (datetime.now(UTC) - created).total_seconds() if created is not None else 0.0
            if pod.is_done or age_s > 2 * ENDS_AFTER_S:
                await self._delete(pod.name)

    async def tried(
        self, shape: Shape, request: ProofRequest, slices: Sequence[ResourceSlice], driver: str, patience_s: float
    ) -> Proof:
        name = f"gpu-dra-proof-{shape.name}-{uuid4().hex[:8]}"
        begun = time.monotonic()
        manifest = pod_of(name, shape, request, node=self.node, image=self.image, secrets=self.secrets)
        async with self._removed(name) as left:
            pod = Pod.of(await self.kube.create(PODS, manifest, namespace=self.namespace))
            await self.kube.create(RESOURCE_CLAIMS, claim_of(name, request, pod), namespace=self.namespace)
            outcome = await self._outcome(name, driver, begun + patience_s)
            proof = judged(shape, replace(outcome, waited_s=time.monotonic() - begun), slices, driver)
        return failed(left[0], f"kubectl -n {self.namespace} describe pod,resourceclaim {name}") if left else proof

    async def _outcome(self, name: str, driver: str, deadline: float) -> ProofOutcome:
        reported: frozenset[str] = frozenset()
        claim: ResourceClaim | None = None
        while True:
            obj = await self.kube.get(RESOURCE_CLAIMS, name, self.namespace)
            # When the pod has ended, the claim loses its devices.
            now = ResourceClaim.of(obj)
            claim = now if claim is None or now.status.allocation is not None else claim
            reported = reported_uuids(obj, driver) or reported
            pod = Pod.of(await self.kube.get(PODS, name, self.namespace))
            if pod.is_done:
                return ProofOutcome(pod, claim, reported)
            if time.monotonic() > deadline:
                return ProofOutcome(pod, claim, reported, await self._warnings(name))
            await asyncio.sleep(_POLL_S)

    async def _warnings(self, name: str) -> tuple[str, ...]:
        try:
            events = [Event.of(item) for item in (await self.kube.list(EVENTS, namespace=self.namespace)).items]
        except Rejected:
            return ()
        ours = [event for event in events if event.type == "Warning" and event.involved_object.name == name]
        ours.sort(key=lambda event: event.last or datetime.min.replace(tzinfo=UTC))
        return tuple(event.message for event in ours)

    @contextlib.asynccontextmanager
    async def _removed(self, name: str) -> AsyncIterator[list[str]]:
        """Deletes pod and claim afterwards; the list then says what could not be deleted. A claim exists until the node
        has released its GPU, so this waits for that, too."""
        left: list[str] = []
        try:
            yield left
        finally:
            deadline = time.monotonic() + _GONE_WITHIN_S
            try:
                await self._delete(name)
                while await self._exists(name):
                    if time.monotonic() > deadline:
                        left.append(f"pod or claim {name} is still there {_GONE_WITHIN_S:.0f} s after its deletion")
                        break
                    await asyncio.sleep(_POLL_S)
            except ClusterError as error:
                left.append(f"pod and claim {name} may be left: {error}")

    async def _delete(self, name: str) -> None:
        """The pod owns the claim, but a server without garbage collection keeps it."""
        for resource in (PODS, RESOURCE_CLAIMS):
            with contextlib.suppress(NotFound):
                await self.kube.delete(resource, name, namespace=self.namespace)

    async def _exists(self, name: str) -> bool:
        for resource in (PODS, RESOURCE_CLAIMS):
            with contextlib.suppress(NotFound):
                await self.kube.get(resource, name, self.namespace)
                return True
        return False
