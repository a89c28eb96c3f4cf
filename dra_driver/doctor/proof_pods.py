"""The pods that prove a node through the cluster: their manifests, and what came of them. Pure.

Each pod runs `gpu-dra-cuda-check` of our own image, with a claim that belongs to the pod: deleting the pod deletes
both, and a pod that nobody deletes ends by itself.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from dra_driver.api.meta import JsonObject, Model
from dra_driver.api.resource import Device, ResourceClaim, ResourceSlice
from dra_driver.doctor.proofs import Proof, ProofChange, failed, not_tried, passed
from dra_driver.errors import InvalidInput
from dra_driver.names import GPU_DRIVER
from dra_driver.phrases import and_more

LABEL = "dra.gpu/proof"
ENDS_AFTER_S = 120
"""Kubernetes ends the pod then, if nobody deletes it."""
_PROGRAM = "gpu-dra-cuda-check"
_USER = 65532
_HELD_S, _HELD_UNTIL_TOLD_S = 1, 4
"""How long a pod stays: its claim says what it was given as long as it does; and of a MIG device that is made for it,
the plugin writes only a second later which one that is."""

type What = Literal["gpu", "mig", "shared"]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a pod is given, and whose it is."""

    name: str
    what: What
    root: bool


SHAPES: tuple[Shape, ...] = tuple(
    Shape(f"pod-{what}{'' if root else '-user'}", what, root)
    for what in ("gpu", "mig", "shared")
    for root in (True, False)
)


@dataclass(frozen=True, slots=True)
class ProofDevice:
    """A device that the node publishes; `why` no claim gets it now, None if one could."""

    device: Device
    why: str | None


@dataclass(frozen=True, slots=True)
class ProofRequest:
    """What a claim asks for. `held_s`: how long the pod has to stay."""

    device_class: str
    selector: str
    sharing: str | None = None
    held_s: int = _HELD_S


def request_for(
    what: What, standings: Sequence[ProofDevice], also: Collection[ProofChange], driver: str
) -> ProofRequest | Proof:
    """What to ask for, or why nothing is tried: the node publishes no such device, or none is free."""
    attribute = f"device.attributes['{driver}']"
    exclusive = [standing for standing in standings if _text(standing, "sharing", driver) in ("", "exclusive")]
    gpus = [standing for standing in exclusive if _text(standing, "type", driver) == "gpu"]
    if what == "mig":
        migs = [standing for standing in exclusive if _text(standing, "type", driver) == "mig"]
        there = [mig for mig in migs if _text(mig, "uuid", driver)]
        made = f"{attribute}.sharing == 'exclusive'"
        if any(standing.why is None for standing in there):
            return ProofRequest("mig.nvidia.com", f"{made} && has({attribute}.uuid)")
        if migs and not there and ProofChange.MIG not in also:
            return not_tried("MIG devices of this node are created for claims; to try one, add --also mig")
        return _free(migs, "MIG device") or ProofRequest("mig.nvidia.com", made, held_s=_HELD_UNTIL_TOLD_S)
    if what == "shared":
        shared = [standing for standing in standings if _text(standing, "sharing", driver) in ("time-slicing", "mps")]
        there = [standing for standing in shared if _text(standing, "uuid", driver)]
        if there:
            return _free(there, "share") or ProofRequest("shared.gpu.nvidia.com", f"has({attribute}.uuid)")
        return _free(gpus, "GPU") or ProofRequest(
            "gpu.nvidia.com", f"{attribute}.sharing == 'exclusive'", sharing="MPS"
        )
    return _free(gpus, "GPU") or ProofRequest("gpu.nvidia.com", f"{attribute}.sharing == 'exclusive'")


def _free(standings: Sequence[ProofDevice], name: str) -> Proof | None:
    if not standings:
        return not_tried(f"the node publishes no {name} that a claim can use")
    if all(standing.why is not None for standing in standings):
        reasons = and_more(sorted({str(standing.why) for standing in standings}), 2)
        return not_tried(f"no {name} of the node is free: {reasons}", "see what uses them: dractl get devices")
    return None


def _text(standing: ProofDevice, name: str, driver: str) -> str:
    attributes = standing.device.attributes
    value = attributes.get(name) or attributes.get(f"{driver}/{name}")
    return (value.string or "") if value is not None else ""


# -- manifests


def claim_of(name: str, request: ProofRequest, pod: JsonObject) -> JsonObject:
    """It belongs to `pod`, as the API server has that."""
    metadata = pod["metadata"]
    exactly = {
        "deviceClassName": request.device_class,
        "selectors": [{"cel": {"expression": request.selector}}],
    }
    devices: JsonObject = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if request.sharing is not None:
        parameters = {
            "apiVersion": "resource.nvidia.com/v1beta1",
            "kind": "GpuConfig",
            "sharing": {"strategy": request.sharing},
        }
        devices["config"] = [{"requests": ["gpu"], "opaque": {"driver": GPU_DRIVER, "parameters": parameters}}]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "labels": {LABEL: "true"}, "ownerReferences": [owner]},
        "spec": {"devices": devices},
    }


def pod_of(
    name: str, shape: Shape, request: ProofRequest, *, node: str, image: str, secrets: Sequence[str]
) -> JsonObject:
    """On this node alone, whatever its taints are; it uses the claim of its own name."""
    user: JsonObject = {"runAsUser": 0}
    if not shape.root:
        user = {
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "runAsNonRoot": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        }
    on_node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {LABEL: "true"}},
        "spec": {
            "restartPolicy": "Never",
            "activeDeadlineSeconds": ENDS_AFTER_S,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "tolerations": [{"operator": "Exists"}],
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [on_node]}}
            },
            **({"imagePullSecrets": [{"name": secret} for secret in secrets]} if secrets else {}),
            "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            "containers": [
                {
                    "name": "check",
                    "image": image,
                    "command": [_PROGRAM, "--seconds", str(request.held_s)],
                    "securityContext": user,
                    "resources": {"claims": [{"name": "gpu"}]},
                }
            ],
        },
    }


# -- what came of it


class _Device(Model):
    uuid: str
    name: str = ""


class CudaReport(Model):
    """What `gpu-dra-cuda-check` wrote."""

    user: int
    devices: list[_Device]
    step: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ProofOutcome:
    """All that was seen of a pod: the pod and its claim at last, UUIDs that the plugin named meanwhile, messages of
    events, and for how long it was waited."""

    pod: JsonObject
    claim: JsonObject
    told: frozenset[str]
    events: tuple[str, ...]
    waited_s: float


_ADVICE = {
    "load": "run dractl doctor --node there, and see the checks node-files and node-hook",
    "cuInit": "run dractl inventory on the node: its CDI edits must have /dev/nvidiactl, /dev/nvidia-uvm and the GPU's"
    " device node; then search the kernel log for NVRM",
    "cuMemAlloc_v2": "run nvidia-smi on the node to see what uses the memory",
}


def judged(shape: Shape, outcome: ProofOutcome, slices: Iterable[ResourceSlice], driver: str) -> Proof:
    """Whether CUDA worked in the pod, and on exactly what the claim has."""
    statuses: list[JsonObject] = (outcome.pod.get("status") or {}).get("containerStatuses") or []
    status = statuses[0] if statuses else {}
    state = status.get("state") or {}
    ended = state.get("terminated")
    if ended is None:
        return _never_ended(outcome, state)
    report = _report(str(ended.get("message") or ""))
    if report is None:
        words = " ".join(str(ended.get("message") or ended.get("reason") or "").split())
        return failed(
            f"the container ended with status {ended.get('exitCode')} and without a report: {words[:300]}",
            "use the plugin's image of this release: --image",
        )
    texts = {"report": str(ended["message"])}
    if report.error is not None:
        message = f"{report.step}: {report.error}" if report.step != "load" else report.error
        return failed(message, _ADVICE.get(report.step or "", "search the kernel log of the node for NVRM"), **texts)
    wanted = _claimed(outcome, slices, driver)
    results = sorted(_digits(device.uuid) for device in report.devices)
    if wanted is None:
        return not_tried(f"CUDA works, but the claim's status does not name its device: {and_more(results, 5)}")
    if results != sorted(map(_digits, wanted)):
        return failed(
            f"CUDA lists {and_more(results, 5) or 'nothing'}, and the claim has {and_more(sorted(wanted), 5)}",
            "run dractl doctor --node there, and see the checks node-cdi-files and node-runtime",
            **texts,
        )
    if shape.root != (report.user == 0):
        return failed(
            f"the container ran as user {report.user}",
            "check which mutating webhook changes pods: kubectl get mutatingwebhookconfigurations",
        )
    names = ", ".join(device.name for device in report.devices)
    return passed(f"CUDA works on {names} as user {report.user}", **texts)


def _never_ended(outcome: ProofOutcome, state: JsonObject) -> Proof:
    conditions = {item["type"]: item for item in (outcome.pod.get("status") or {}).get("conditions") or ()}
    scheduled = conditions.get("PodScheduled") or {}
    waiting = state.get("waiting") or {}
    name, after = outcome.pod["metadata"]["name"], f"{outcome.waited_s:.0f} s"
    if scheduled.get("status") != "True":
        why = scheduled.get("message") or "the scheduler has not reported on it"
        return failed(f"pod {name} was not scheduled within {after}: {why}", "run dractl doctor and dractl get devices")
    why = (
        outcome.events[-1]
        if outcome.events
        else waiting.get("message") or waiting.get("reason") or "no reason was reported"
    )
    return failed(
        f"pod {name} has not ended after {after}: {' '.join(why.split())[:400]}", "run dractl doctor --node there"
    )


def _report(message: str) -> CudaReport | None:
    try:
        return CudaReport.model_validate(json.loads(message))
    except (ValueError, ValidationError):
        return None


def _claimed(outcome: ProofOutcome, slices: Iterable[ResourceSlice], driver: str) -> tuple[str, ...] | None:
    """UUIDs of what the claim has: those that slices have, or the plugin has told. None when not all are known."""
    try:
        claim = ResourceClaim.of(outcome.claim)
    except InvalidInput:
        return None
    allocation = claim.status.allocation
    results = allocation.devices.results if allocation is not None else []
    devices = {
        (slice_.spec.pool.name, device.name): device
        for slice_ in slices
        if slice_.spec.driver == driver
        for device in slice_.spec.devices or ()
    }
    claimed = []
    for result in results or ():
        device = devices.get((result.pool, result.device))
        uuid = _text(ProofDevice(device, None), "uuid", driver) if device is not None else ""
        if uuid:
            claimed.append(uuid)
    if len(claimed) == len(results or ()):
        return tuple(claimed)
    return tuple(outcome.told) if len(outcome.told) == len(results or ()) else None


def told_uuids(claim: JsonObject, driver: str) -> frozenset[str]:
    """What the plugin says in the claim's status: the MIG device, if it is one, else the GPU."""
    entries: list[Any] = [
        item for item in (claim.get("status") or {}).get("devices") or () if item.get("driver") == driver
    ]
    data = [entry.get("data") or {} for entry in entries]
    return frozenset(str(uuid) for item in data if (uuid := item.get("migUUID") or item.get("uuid")))


def _digits(uuid: str) -> str:
    """Without what kind of device it is: CUDA has the number alone."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()
