"""What `dractl doctor --prove` tries, and its results. Pure; the node plugin and `dra_driver.cli.prove` do the work.

A check judges what it sees; a proof does something and judges the result. Each proof ends as `pass`, `fail`, or `not
tried` with the reason. A pod of a proof runs `gpu-dra-cuda-check` of our image with its own claim. Deleting the pod
deletes both, and a pod that is not deleted ends by itself.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Literal

from pydantic import ValidationError

from dra_driver.api.core import Pod
from dra_driver.api.meta import JsonObject, Model
from dra_driver.api.resource import Device, ResourceClaim, ResourceSlice
from dra_driver.names import GPU_DRIVER
from dra_driver.phrases import and_more, folded

_NAME_WIDTH = 17


class ProofResult(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    NOT_TRIED = "not tried"


class ProofChange(StrEnum):
    """What a proof may change briefly, if the user asks for it."""

    MIG = "mig"
    VFIO = "vfio"
    IMEX = "imex"


@dataclass(frozen=True, slots=True)
class Proof:
    """`reason` is a sentence, also for a pass; `fix` is empty if there is nothing to do. `texts` are outputs of
    programs, for the archive."""

    name: str
    outcome: ProofResult
    reason: str
    fix: str = ""
    seconds: float | None = None
    texts: Mapping[str, str] = field(default_factory=dict)

    def to_data(self) -> JsonObject:
        seconds = None if self.seconds is None else round(self.seconds, 3)
        return {**asdict(self), "outcome": self.outcome.value, "fix": self.fix or None, "seconds": seconds}


def passed(reason: str, **texts: str) -> Proof:
    return Proof("", ProofResult.PASS, reason, texts=texts)


def failed(reason: str, fix: str, **texts: str) -> Proof:
    return Proof("", ProofResult.FAIL, reason, fix, texts=texts)


def not_tried(reason: str, fix: str = "") -> Proof:
    return Proof("", ProofResult.NOT_TRIED, reason, fix)


ON_NODE: tuple[tuple[str, str], ...] = (
    ("gpu-list", "NVML lists the same GPUs and MIG devices as the driver's `nvidia-smi -L`"),
    ("mig-tables", "NVML has the same MIG profiles and placements as `nvidia-smi mig -lgip` and `-lgipp`"),
    ("events", "a 1 s wait for GPU events lasts 1 s"),
    ("look", "reading all GPUs of the node takes less than 5 s"),
    ("compute-mode", "the compute mode of each idle GPU can be set to its current value"),
    ("time-slice", "the time slice of each idle GPU can be set to its current value"),
    ("mps", "an MPS daemon starts in its own folder, answers, and stops without leftovers"),
    ("cdi-version", "the container runtime reads the CDI version that the plugin writes"),
    ("hook", "a hook program is available for containers, unless it was disabled"),
    ("mig-device", "with `--also mig`: a MIG device is created, listed and destroyed"),
    ("vfio", "with `--also vfio`: a GPU is bound to vfio-pci and back"),
    ("imex-channel", "with `--also imex`: an IMEX channel can be opened"),
)
"""Name and meaning, in the order in which they are tried."""


def summary(proofs: Sequence[Proof]) -> str:
    """`18 proofs: 12 passed, 1 failed, 5 not tried`"""
    words = {ProofResult.PASS: "passed", ProofResult.FAIL: "failed", ProofResult.NOT_TRIED: "not tried"}
    numbers = {word: sum(proof.outcome is outcome for proof in proofs) for outcome, word in words.items()}
    return f"{len(proofs)} proofs: {', '.join(f'{number} {word}' for word, number in numbers.items() if number)}"


def lines(proofs: Iterable[Proof], width: int) -> Iterator[str]:
    """A line for each. Those with a fix, as failures, have it and all of their reason; the archive has the others'."""
    for proof in proofs:
        head = f"{proof.outcome.value:<10}{proof.name:<{_NAME_WIDTH}}"
        if proof.outcome is ProofResult.FAIL or proof.fix:
            yield from folded(head, proof.reason, width)
            if proof.fix:
                yield from folded(f"{'':{len(head)}}fix: ", proof.fix, width)
        else:
            room = max(width - len(head), 40)
            reason = " ".join(proof.reason.split())
            yield head + (reason if len(reason) <= room else reason[: room - 1] + "…")


# -- what pods ask for

LABEL = "dra.gpu/proof"
ENDS_AFTER_S = 120
"""Kubernetes ends a pod then, if it is not deleted."""
_USER = 65532
_STAYS_S, _STAYS_FOR_STATUS_S = 1, 4
"""How long a pod runs: its claim has its devices only as long as it runs, and the plugin reports which MIG device it
created a second later."""

type What = Literal["gpu", "mig", "shared"]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a pod asks for, whether it runs as root, and when the proof passes."""

    name: str
    what: What
    root: bool
    means: str


_IN_PODS: tuple[tuple[What, str], ...] = (
    ("gpu", "root in a pod with a GPU: CUDA starts, lists exactly the claim's GPU, and allocates memory"),
    ("mig", "root in a pod with a MIG device; with `--also mig`, also one that must be created first"),
    ("shared", "root in a pod with a share of a GPU; or with a whole GPU and an MPS daemon, if none is shared"),
)
SHAPES = tuple(
    Shape(f"pod-{what}{'' if root else '-user'}", what, root, means if root else "the same as a non-root user")
    for what, means in _IN_PODS
    for root in (True, False)
)


@dataclass(frozen=True, slots=True)
class ProofDevice:
    """A device that the node publishes; `why` says why no claim gets it now, None if it is free."""

    device: Device
    why: str | None

    def text(self, name: str, driver: str) -> str:
        """An attribute; empty if the device does not have it."""
        attributes = self.device.attributes
        value = attributes.get(name) or attributes.get(f"{driver}/{name}")
        return (value.string or "") if value is not None else ""


@dataclass(frozen=True, slots=True)
class ProofRequest:
    """What a claim asks for, and how long the pod runs."""

    device_class: str
    selector: str
    sharing: str | None = None
    stays_s: int = _STAYS_S


def request_for(
    what: What, devices: Sequence[ProofDevice], also: Collection[ProofChange], driver: str
) -> ProofRequest | Proof:
    """The request, or why nothing is tried: the node publishes no such device, or none is free."""
    attribute = f"device.attributes['{driver}']"
    exclusive = [device for device in devices if device.text("sharing", driver) in ("", "exclusive")]
    gpus = [device for device in exclusive if device.text("type", driver) == "gpu"]
    whole = ProofRequest("gpu.nvidia.com", f"{attribute}.sharing == 'exclusive'")
    if what == "gpu":
        return _not_free(gpus, "GPU") or whole
    if what == "shared":
        shared = [device for device in devices if device.text("sharing", driver) in ("time-slicing", "mps")]
        existing = [device for device in shared if device.text("uuid", driver)]
        if existing:
            return _not_free(existing, "share") or ProofRequest("shared.gpu.nvidia.com", f"has({attribute}.uuid)")
        return _not_free(gpus, "GPU") or ProofRequest(whole.device_class, whole.selector, sharing="MPS")
    migs = [device for device in exclusive if device.text("type", driver) == "mig"]
    existing = [device for device in migs if device.text("uuid", driver)]
    if any(device.why is None for device in existing):
        return ProofRequest("mig.nvidia.com", f"{whole.selector} && has({attribute}.uuid)")
    if migs and not existing and ProofChange.MIG not in also:
        return not_tried("MIG devices of this node are created for claims; to try one, add --also mig")
    created = ProofRequest("mig.nvidia.com", whole.selector, stays_s=_STAYS_FOR_STATUS_S)
    return _not_free(migs, "MIG device") or created


def _not_free(devices: Sequence[ProofDevice], name: str) -> Proof | None:
    if not devices:
        return not_tried(f"the node publishes no {name} that a claim can use")
    reasons = sorted({device.why for device in devices if device.why is not None})
    if all(device.why is not None for device in devices):
        return not_tried(
            f"no {name} of the node is free: {and_more(reasons, 2)}", "see what uses them: dractl get devices"
        )
    return None


def claim_of(name: str, request: ProofRequest, pod: Pod) -> JsonObject:
    """The pod owns it."""
    selectors = [{"cel": {"expression": request.selector}}]
    exactly = {"deviceClassName": request.device_class, "selectors": selectors}
    devices: JsonObject = {"requests": [{"name": "gpu", "exactly": exactly}]}
    if request.sharing is not None:
        parameters = {
            "apiVersion": "resource.nvidia.com/v1beta1",
            "kind": "GpuConfig",
            "sharing": {"strategy": request.sharing},
        }
        devices["config"] = [{"requests": ["gpu"], "opaque": {"driver": GPU_DRIVER, "parameters": parameters}}]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "labels": {LABEL: "true"}, "ownerReferences": [owner]},
        "spec": {"devices": devices},
    }


def pod_of(
    name: str, shape: Shape, request: ProofRequest, *, node: str, image: str, secrets: Sequence[str]
) -> JsonObject:
    """A pod that runs only on this node and tolerates all its taints; its claim has the same name."""
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
    container = {
        "name": "check",
        "image": image,
        "command": ["gpu-dra-cuda-check", "--seconds", str(request.stays_s)],
        "securityContext": user,
        "resources": {"claims": [{"name": "gpu"}]},
    }
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
            "containers": [container],
        },
    }


# -- what came of a pod


class _CudaDevice(Model):
    uuid: str
    name: str = ""


class CudaReport(Model):
    """What `gpu-dra-cuda-check` wrote."""

    user: int
    devices: list[_CudaDevice]
    step: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ProofOutcome:
    """The last state of a pod and its claim, the UUIDs that the plugin reported for the claim, the messages of Warning
    events, and how long the proof waited."""

    pod: Pod
    claim: ResourceClaim
    reported: frozenset[str]
    warnings: tuple[str, ...] = ()
    waited_s: float = 0.0


_ADVICE = {
    "load": "run dractl doctor --node there, and see the checks node-files and node-hook",
    "cuInit": "run dractl inventory on the node: its CDI edits must have /dev/nvidiactl, /dev/nvidia-uvm and the GPU's"
    " device node; then search the kernel log for NVRM",
    "cuMemAlloc_v2": "run nvidia-smi on the node to see what uses the memory",
}


def judged(shape: Shape, outcome: ProofOutcome, slices: Iterable[ResourceSlice], driver: str) -> Proof:
    """Whether CUDA worked in the pod, and on exactly what the claim has."""
    ended = next((status.state.terminated for status in outcome.pod.status.container_statuses), None)
    if ended is None:
        return _never_ended(outcome)
    try:
        report = CudaReport.model_validate_json(ended.message)
    except ValidationError:
        words = " ".join((ended.message or ended.reason).split())
        return failed(
            f"the container ended with status {ended.exit_code} and without a report: {words[:300]}",
            "use the plugin's image of this release: --image",
        )
    texts = {"report": ended.message}
    if report.error is not None:
        message = f"{report.step}: {report.error}" if report.step != "load" else report.error
        return failed(message, _ADVICE.get(report.step or "", "search the kernel log of the node for NVRM"), **texts)
    claimed = _claimed(outcome, slices, driver)
    results = sorted(_digits(device.uuid) for device in report.devices)
    if claimed is None:
        return not_tried(f"CUDA works, but the claim's status does not name its device: {and_more(results, 5)}")
    if results != sorted(map(_digits, claimed)):
        return failed(
            f"CUDA lists {and_more(results, 5) or 'nothing'}, and the claim has {and_more(sorted(claimed), 5)}",
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


def _never_ended(outcome: ProofOutcome) -> Proof:
    pod, after = outcome.pod, f"{outcome.waited_s:.0f} s"
    scheduled = next((condition for condition in pod.status.conditions if condition.type == "PodScheduled"), None)
    if scheduled is None or scheduled.status != "True":
        why = (scheduled.message if scheduled is not None else "") or "the scheduler has not reported on it"
        fix = "run dractl doctor and dractl get devices"
        return failed(f"pod {pod.name} was not scheduled within {after}: {why}", fix)
    waiting = next((status.state.waiting for status in pod.status.container_statuses if status.state.waiting), None)
    reasons = [*outcome.warnings[-1:], *((waiting.message, waiting.reason) if waiting is not None else ())]
    why = next(filter(None, reasons), "no reason was reported")
    fix = "run dractl doctor --node there"
    return failed(f"pod {pod.name} has not ended after {after}: {' '.join(why.split())[:400]}", fix)


def _claimed(outcome: ProofOutcome, slices: Iterable[ResourceSlice], driver: str) -> Collection[str] | None:
    """UUIDs of the claim's devices, from the slices or as the plugin reported them. None if not all are known."""
    devices = {
        (slice_.spec.pool.name, device.name): ProofDevice(device, None)
        for slice_ in slices
        if slice_.spec.driver == driver
        for device in slice_.spec.devices or ()
    }
    results = outcome.claim.results
    held = [devices.get((result.pool, result.device)) for result in results]
    uuids = [uuid for device in held if device is not None and (uuid := device.text("uuid", driver))]
    return next((known for known in (uuids, outcome.reported) if len(known) == len(results)), None)


def reported_uuids(claim: JsonObject, driver: str) -> frozenset[str]:
    """Those that the plugin wrote to the claim's status: of the MIG device if it is one, else of the GPU."""
    entries = [item for item in (claim.get("status") or {}).get("devices") or () if item.get("driver") == driver]
    data = [entry.get("data") or {} for entry in entries]
    return frozenset(str(uuid) for item in data if (uuid := item.get("migUUID") or item.get("uuid")))


def _digits(uuid: str) -> str:
    """CUDA reports a UUID without the kind of device."""
    return uuid.removeprefix("GPU-").removeprefix("MIG-").lower()
