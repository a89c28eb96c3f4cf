"""Which news of a node's claims and GPUs become Kubernetes Events, and their text.

`claim_news` and `node_news` decide, without effects; `ClaimEvents` and `NodeEvents` listen and hand the news to the
recorder. The kubelet reports to a pod that its claim could not be prepared; the claim's own Event says why, and who
must act. `kubelet_plugin.reporting.pod_events` decides what is reported to pods about the devices that they hold.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from dra_driver import errors
from dra_driver.api.inventory import GpuFacts, HealthCondition
from dra_driver.kube.events import News, Regarding
from dra_driver.names import ClaimRef
from kubelet_plugin.facts.hardware import NodeFacts
from kubelet_plugin.facts.monitor import CHECK_UNDER_WAY, MonitoredFacts
from kubelet_plugin.prepare.listener import ClaimListener, Operation

type Tell = Callable[[News], None]

_CLAIMS_REMEMBERED = 1000


class Reason(Enum):
    """Every reason that our Events give, with their type and meaning; `docs/events.md` is written from here."""

    PREPARE_FAILED = (
        "ResourceClaim",
        "Warning",
        "The claim could not be prepared. The message says why, and who must act.",
    )
    PREPARED = ("ResourceClaim", "Normal", "The claim is prepared after an earlier failure.")
    UNPREPARE_FAILED = ("ResourceClaim", "Warning", "The claim could not be released, so its devices are not free.")
    GPU_UNHEALTHY = (
        "Node",
        "Warning",
        "New claims do not get a GPU because it is unhealthy. The message names the fault.",
    )
    GPU_HEALTHY = ("Node", "Normal", "The GPU is healthy again.")
    GPU_VALIDATION_FAILED = ("Node", "Warning", "A GPU failed the check that the policy requires.")
    MPS_DAEMON_RESTARTED = ("Node", "Warning", "An MPS daemon and its clients died. The plugin restarted the daemon.")
    MPS_DAEMON_FAILED = ("Node", "Warning", "An MPS daemon died and could not be restarted.")
    MIG_LAYOUT_CHANGED = ("Node", "Warning", "A claim's MIG device no longer exists, because the layout was changed.")
    POD_PREPARE_FAILED = (
        "Pod",
        "Warning",
        "The pod cannot start. The message says what is wrong with its claim, and who must act.",
    )
    POD_PREPARE_WAITS = (
        "Pod",
        "Warning",
        "The pod has waited for minutes for its claim. The message says why, and who must act.",
    )
    POD_GPU_UNHEALTHY = (
        "Pod",
        "Warning",
        "A GPU, MIG device or share of the pod is unhealthy or can no longer be read.",
    )
    POD_GPU_DEGRADED = (
        "Pod",
        "Warning",
        "A GPU of the pod reported a fault but still works. A program may have been affected.",
    )
    POD_GPU_HEALTHY = ("Pod", "Normal", "All faults of the pod's GPUs are resolved.")
    POD_MPS_DAEMON_RESTARTED = (
        "Pod",
        "Warning",
        "The pod's MPS daemon died with its clients, or did not answer. It runs again.",
    )
    POD_MPS_DAEMON_FAILED = (
        "Pod",
        "Warning",
        "The pod's MPS daemon is dead or does not answer, so no program can start to compute.",
    )
    POD_MIG_DEVICE_LOST = ("Pod", "Warning", "The pod's MIG device no longer exists, because the layout was changed.")
    POD_IMEX_DAEMON_NOT_READY = (
        "Pod",
        "Warning",
        "The IMEX daemon of the pod's node is stopped or not ready, so the pod cannot map memory of other nodes.",
    )
    POD_IMEX_DAEMON_READY = ("Pod", "Normal", "The IMEX daemon is ready again.")
    MIG_MODE_SWITCHED = (
        "Node",
        "Normal",
        "The driver switched the MIG mode of a GPU by a reset, as the policy allows.",
    )
    RELEASE_REFUSED = ("Node", "Warning", "The request to release the node's GPUs is invalid. They are not released.")

    def __init__(self, kind: str, type_: Literal["Normal", "Warning"], meaning: str) -> None:
        self.kind = kind
        self.type = type_
        self.meaning = meaning

    @property
    def word(self) -> str:
        """As in the Event: `GpuUnhealthy`, also of a pod."""
        return self.name.removeprefix("POD_").title().replace("_", "")

    def news(self, regarding: Regarding, action: str, note: str, since: str = "") -> News:
        return News(regarding, self.type, self.word, action, note, since)


_MOVES: tuple[tuple[type[errors.DriverError], str], ...] = (
    (errors.InvalidInput, "The author of the claim or its class must change it."),
    (errors.UnknownDevice, "The claim was given a device that this node does not have: delete the pod, or the claim."),
    (errors.DeviceInUse, "Another claim must be released first; the kubelet retries."),
    (errors.DomainNotReady, "Its ComputeDomain must become ready first."),
    (errors.NodeNotReady, "An administrator must check the node. The kubelet tries again."),
    (errors.CorruptState, "An administrator must check the node. The kubelet tries again."),
    (errors.Rejected, "An administrator must give the node plugin its permissions. The kubelet tries again."),
    (errors.ClusterError, "The kubelet tries again when the API server answers."),
)
"""Who must act, by kind of error, the special ones first."""


def claim_news(operation: Operation, failures: int) -> News | None:
    """What is reported about a claim; `failures` is how often the same call failed before."""
    regarding, action = Regarding.claim(operation.claim), operation.call.capitalize()
    if operation.error is not None:
        note = why(operation.error, operation.claim)
        reason = Reason.PREPARE_FAILED if operation.call == "prepare" else Reason.UNPREPARE_FAILED
        return reason.news(regarding, action, note)
    if failures and operation.call == "prepare":
        times = "once" if failures == 1 else f"{failures} times"
        devices = ", ".join(device.device for device in operation.devices)
        return Reason.PREPARED.news(regarding, action, f"Prepared ({devices}), after it could not be {times}.")
    return None


def why(error: errors.DriverError, claim: ClaimRef) -> str:
    """What is wrong, with which field or object, and whose move it is; the claim is named beside it."""
    default = "This is a defect of the driver: see the log of the node plugin."
    move = next((move for kind, move in _MOVES if isinstance(error, kind)), default)
    return f"{error.beside(str(claim)).rstrip('.')}. {move}"


class ClaimEvents(ClaimListener):
    """Reports what users of claims must know."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._failures: dict[str, int] = {}

    def ended(self, operation: Operation) -> None:
        uid = operation.claim.uid
        failures = self._failures.pop(uid, 0)
        if operation.error is not None and len(self._failures) < _CLAIMS_REMEMBERED:
            self._failures[uid] = failures + 1
        news = claim_news(operation, failures)
        if news is not None:
            self._tell(news)


@dataclass(frozen=True, slots=True)
class Known:
    """What was reported about a node's GPUs: why each is unhealthy, by UUID, and conditions with their own Event."""

    troubles: dict[str, str] = field(default_factory=dict)
    conditions: frozenset[tuple[str, str, str]] = frozenset()
    """GPU UUID, type, message."""


def node_news(node: str, known: Known, gpus: Sequence[GpuFacts]) -> tuple[list[News], Known]:
    """What is new about the GPUs, and what is known then. GPUs that were never seen have none."""
    news: list[News] = []
    troubles: dict[str, str] = {}
    conditions = set()
    for gpu in gpus:
        before, now = known.troubles.get(gpu.uuid), _trouble(gpu)
        if now is None and not gpu.health.healthy:
            now = before  # it is being checked: neither healthy nor unhealthy
        if now is not None:
            troubles[gpu.uuid] = now
        if now is not None and now != before:
            failed = gpu.health.reason == "NotValidated"
            reason = Reason.GPU_VALIDATION_FAILED if failed else Reason.GPU_UNHEALTHY
            news.append(_of_gpu(node, gpu, reason, f"{now}. New claims do not get it", _since(gpu)))
        if now is None and before is not None:
            news.append(_of_gpu(node, gpu, Reason.GPU_HEALTHY, "it is healthy again"))
        for condition in gpu.health.conditions:
            own = _own_event(condition)
            if own is None:
                continue
            key = (gpu.uuid, condition.type, condition.message)
            conditions.add(key)
            if key not in known.conditions:
                news.append(_of_gpu(node, gpu, own, condition.message, condition.since))
    return news, Known(troubles, frozenset(conditions))


def _trouble(gpu: GpuFacts) -> str | None:
    health = gpu.health
    if health.healthy or health.reason == "Released" or health.message == CHECK_UNDER_WAY:
        return None
    if health.reason and health.message and health.message.startswith(health.reason):
        return health.message  # as "Xid 79: …" does
    return f"{health.reason}: {health.message}"


def _own_event(condition: HealthCondition) -> Reason | None:
    """A condition that affects running claims has its own Event, whether or not the GPU is unhealthy for others."""
    if condition.type == "MpsDaemon":
        return Reason.MPS_DAEMON_FAILED if condition.severity == "Critical" else Reason.MPS_DAEMON_RESTARTED
    return Reason.MIG_LAYOUT_CHANGED if condition.type == "InstanceLost" else None


def _since(gpu: GpuFacts) -> str:
    """When that began which makes the GPU unhealthy; it is remembered over restarts."""
    bad = (gpu.health.reason, gpu.health.message)
    return next(
        (condition.since for condition in gpu.health.conditions if (condition.type, condition.message) == bad), ""
    )


def _of_gpu(node: str, gpu: GpuFacts, reason: Reason, text: str, since: str = "") -> News:
    return reason.news(Regarding.node(node), "Watch", f"GPU {gpu.name} ({gpu.uuid}): {text.rstrip('.')}.", since)


class NodeEvents:
    """Reports changes of the node's GPUs. After a restart, the API server already has Events of older troubles."""

    def __init__(self, facts: MonitoredFacts, node: str, tell: Tell) -> None:
        self._node = node
        self._tell = tell
        self._known = Known()
        facts.subscribe(self._changed)

    def _changed(self, facts: NodeFacts) -> None:
        news, self._known = node_news(self._node, self._known, facts.gpus)
        for new in news:
            self._tell(new)


def mode_switched(node: str, gpu: str, *, on: bool) -> News:
    """Reported because a reset is nothing to do in silence. `gpu` is the published name."""
    mode = "on" if on else "off"
    note = f"GPU {gpu} was reset while nothing used it, to switch its MIG mode {mode} as the policy asks."
    return Reason.MIG_MODE_SWITCHED.news(Regarding.node(node), "Reset", note)


def release_refused(node: str, mistake: str) -> News:
    """Reported so that users who wait for the release of GPUs learn why it does not happen."""
    return Reason.RELEASE_REFUSED.news(Regarding.node(node), "Release", f"{mistake}.")
