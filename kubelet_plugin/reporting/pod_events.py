"""Events on pods: about faults of the devices that they hold, and about a claim that cannot be prepared.

What is wrong now with the devices of each claim is compared with what the claim's pods already know, which
`kubelet_plugin.reporting.reported` remembers: a restart of the plugin neither repeats an Event nor loses the end of a
fault. `pod_news` decides. The pods are those for which the claim is reserved when the Event is written. Further pods
can join a claim that is not a pod's own: it is read again every minute, and a pod that joined gets Events about what is
still wrong (`late_news`). The pods of a PodGroup are those that the kubelet of this node knows
(`kubelet_plugin.rpc.pod_resources`).

Nothing floods: Events are written one after the other, as fast as the recorder allows; a fault that ended before a
pod's turn causes none; a fault that comes and goes counts as one until it has been away for half a minute. Observers
(admin access) hold nothing, and get no Events.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import structlog

from dra_driver.api.gpu_settings import HealthPolicy
from dra_driver.api.inventory import HealthCondition
from dra_driver.devices.health import affecting, judged
from dra_driver.errors import DriverError, InvalidInput, NodeNotReady, UnknownDevice
from dra_driver.kube.events import EventRecorder, Regarding
from dra_driver.kube.watch import Backoff
from dra_driver.names import GPU_DRIVER, ClaimRef
from dra_driver.phrases import and_more
from dra_driver.runtime.tasks import until
from kubelet_plugin.facts.hardware import NodeFacts
from kubelet_plugin.facts.monitor import CHECK_UNDER_WAY, WITHHELD, SeenFacts
from kubelet_plugin.prepare.claim_reads import ClaimReader, PodsOfClaims, is_of_group
from kubelet_plugin.prepare.holds import MpsDaemon, Records
from kubelet_plugin.prepare.lifecycle import Entry, HeldDevice
from kubelet_plugin.prepare.listener import ClaimListener, Operation
from kubelet_plugin.prepare.store import JournalStore
from kubelet_plugin.reporting.device_status import held_mig_uuid
from kubelet_plugin.reporting.events import Reason, why
from kubelet_plugin.reporting.metrics import CallMetrics, NodeCollector
from kubelet_plugin.reporting.reported import Reported, Section
from kubelet_plugin.rpc.pod_resources import PodsOfNode

_log = structlog.get_logger(__name__)

OVER_AFTER_S = 30.0
"""How long something must have been away before it is over; after a restart MPS daemons take 10 s to be known again."""

LONG_S = 120.0
"""How long a claim may wait before its pods get an Event. The kubelet retries after 90 s: most waits end by then."""

_TOGETHER_S = 1.0
_LOOK_EVERY_S = 60.0
_LOOK_AGAIN_S = 10.0
"""While something seems to be over."""
_CLAIMS_REMEMBERED = 1000
_NAMED = 3
"""Devices that a note names; the rest are counted."""

_FOR_GOOD = (InvalidInput, UnknownDevice)

_LASTING = frozenset(
    {
        Reason.POD_GPU_UNHEALTHY,
        Reason.POD_GPU_DEGRADED,
        Reason.POD_MPS_DAEMON_FAILED,
        Reason.POD_MIG_DEVICE_LOST,
        Reason.POD_IMEX_DAEMON_NOT_READY,
    }
)
"""Pods get another Event when one of these is over."""

_OF_PREPARE = (Reason.POD_PREPARE_FAILED, Reason.POD_PREPARE_WAITS)

_STANDING = _LASTING.union(_OF_PREPARE)
"""What concerns a pod that joins later, too; the rest happened to programs that ran."""

_ADVICE = {
    Reason.POD_GPU_UNHEALTHY: "If the pod no longer works, delete it; new claims do not get this device.",
    Reason.POD_GPU_DEGRADED: "If the pod's programs were hit, restart them.",
    Reason.POD_MPS_DAEMON_RESTARTED: "Programs that were computing must start over.",
    Reason.POD_MPS_DAEMON_FAILED: "The node plugin restarts it when that is safe; otherwise delete the pod.",
    Reason.POD_MIG_DEVICE_LOST: "It is made again where its place is free; the pod's programs must start over.",
    Reason.POD_IMEX_DAEMON_NOT_READY: "Wait; if it lasts, an administrator must check the daemons' pods.",
}


@dataclass(frozen=True, slots=True)
class ClaimTrouble:
    """A fault of what a claim has, or wants. `subject` distinguishes faults of one reason and claim, `since` (in any
    form) the same fault at different times."""

    reason: Reason
    subject: str
    text: str
    since: str = ""

    @property
    def identity(self) -> tuple[str, str]:
        return self.reason.name, self.subject


@dataclass(frozen=True, slots=True)
class KnownTrouble:
    """A fault of which the claim's pods know. `away_since` is when it was first seen to be away; `pods` are the UIDs of
    the pods that have the Event, None when that was not remembered."""

    trouble: ClaimTrouble
    away_since: float | None = None
    pods: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class PodNews:
    """An Event for each pod of a claim; `key` is the same for the same news."""

    reason: Reason
    note: str
    key: str


def pod_news(
    before: Sequence[KnownTrouble], troubles: Sequence[ClaimTrouble], now_s: float, over: Reason
) -> tuple[tuple[PodNews, ...], tuple[KnownTrouble, ...]]:
    """What is new for a claim's pods, and what they know then. `over` is the reason when nothing is wrong anymore."""
    present = {trouble.identity for trouble in troubles}
    known = {item.trouble.identity for item in before}
    new = [trouble for trouble in troubles if trouble.identity not in known]
    lasting: list[KnownTrouble] = []
    ended: list[ClaimTrouble] = []
    for item in before:
        since = None if item.trouble.identity in present else now_s if item.away_since is None else item.away_since
        if since is not None and now_s - since >= OVER_AFTER_S:
            ended.append(item.trouble)
        else:
            lasting.append(replace(item, away_since=since))
    after = (*lasting, *map(KnownTrouble, new))
    lasted = [trouble for trouble in ended if trouble.reason in _LASTING]
    news = list(_grouped(new))
    if lasted and not any(item.trouble.reason in _LASTING for item in after):
        news.append(PodNews(over, f"It is over: {_listed(lasted)}.", _key(lasted)))
    return tuple(news), after


def late_news(known: Sequence[KnownTrouble], pod_uid: str) -> tuple[PodNews, ...]:
    """For a pod that joined a claim after the claim's pods got their Events."""
    missed = [item for item in known if item.pods is not None and pod_uid not in item.pods and item.away_since is None]
    return tuple(_grouped(item.trouble for item in missed if item.trouble.reason in _STANDING))


def _grouped(troubles: Iterable[ClaimTrouble]) -> Iterator[PodNews]:
    """One for each reason: a pod that loses eight GPUs gets one Event."""
    of_reason: dict[Reason, list[ClaimTrouble]] = {}
    for trouble in troubles:
        of_reason.setdefault(trouble.reason, []).append(trouble)
    for reason, those in of_reason.items():
        advice = f" {_ADVICE[reason]}" if reason in _ADVICE else ""
        yield PodNews(reason, f"{_listed(those)}.{advice}", _key(those))


def _listed(troubles: Sequence[ClaimTrouble]) -> str:
    return and_more([trouble.text.rstrip(".") for trouble in troubles], _NAMED, separator="; ")


def _key(troubles: Iterable[ClaimTrouble]) -> str:
    return ", ".join(sorted(f"{trouble.subject} {trouble.since}" for trouble in troubles))


def gpu_troubles(entry: Entry, records: Records, facts: NodeFacts, policy: HealthPolicy) -> tuple[ClaimTrouble, ...]:
    """What is wrong with the GPUs, MIG devices and shares of a prepared claim, and with its MPS daemon."""
    gpus = {gpu.uuid: gpu for gpu in facts.gpus}
    troubles: dict[tuple[str, str], ClaimTrouble] = {}
    for device in entry.devices:
        gpu = gpus.get(device.gpu_uuid)
        if device.admin_access or gpu is None:
            continue
        for condition in affecting(gpu.health.conditions, held_mig_uuid(device, records)):
            reason = _reason(condition, device, entry, policy)
            if reason is not None:
                subject = " ".join((device.device, condition.type, condition.value or "", condition.instance or ""))
                text = f"{device.device}: {condition.message}"
                trouble = ClaimTrouble(reason, subject.rstrip(), text, condition.since)
                troubles.setdefault(trouble.identity, trouble)
    return tuple(troubles[identity] for identity in sorted(troubles))


def _reason(condition: HealthCondition, device: HeldDevice, entry: Entry, policy: HealthPolicy) -> Reason | None:
    """None for what does not concern who has the device already."""
    critical = judged(condition, policy) == "Critical"
    if condition.type == "MpsDaemon":
        ours = any(
            isinstance(hold, MpsDaemon) and device.gpu_uuid in {gpu.uuid for gpu in hold.gpus} for hold in entry.holds
        )
        failed = Reason.POD_MPS_DAEMON_FAILED if critical else Reason.POD_MPS_DAEMON_RESTARTED
        return failed if ours else None
    if condition.type == "InstanceLost":
        return Reason.POD_MIG_DEVICE_LOST
    if condition.type in ("Unmonitored", *WITHHELD) or condition.message == CHECK_UNDER_WAY:
        return None
    if critical:
        return Reason.POD_GPU_UNHEALTHY
    return Reason.POD_GPU_DEGRADED if judged(condition, policy) == "Warning" else None


class TroubleSource(Protocol):
    """The claims of one driver on this node. Both methods raise DriverError while that is not known."""

    async def held(self) -> Mapping[str, ClaimRef]:
        """Those that have something of the node, by UID."""

    def troubles(self, uid: str) -> Sequence[ClaimTrouble]:
        """What is wrong now with what such a claim has; nothing of one that has nothing."""


class GpuTroubles:
    """The claims of GPUs, from the journal and the node's health."""

    def __init__(self, facts: SeenFacts, journal: JournalStore, policy: Callable[[], HealthPolicy]) -> None:
        self._facts = facts
        self._journal = journal
        self._policy = policy

    async def held(self) -> Mapping[str, ClaimRef]:
        return {uid: entry.claim for uid, entry in self._journal.current.held.items() if entry.in_use}

    def troubles(self, uid: str) -> Sequence[ClaimTrouble]:
        journal = self._journal.current
        entry = journal.held.get(uid)
        if entry is None or not entry.in_use:
            return ()
        return gpu_troubles(entry, journal.holds, self._facts.facts, self._policy())


@dataclass(frozen=True, slots=True)
class _Refused:
    """A claim that could not be prepared the last time. `trouble` is what its pods must know, if anything."""

    claim: ClaimRef
    since: float
    trouble: ClaimTrouble | None


@dataclass(frozen=True, slots=True)
class ClaimPods:
    """Where the pods of claims are found. `users` remembers who can join a claim, `members` knows pods of PodGroups."""

    claims: ClaimReader
    users: PodsOfClaims
    members: PodsOfNode


class PodEvents(ClaimListener):
    """Of the claims of `driver`. `run` until cancelled; `clock` gives seconds, and is never set."""

    def __init__(
        self,
        source: TroubleSource,
        pods: ClaimPods,
        events: EventRecorder,
        reported: Reported,
        *,
        driver: str = GPU_DRIVER,
        over: Reason = Reason.POD_GPU_HEALTHY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._pod_source = pods
        self._events = events
        self._section = Section(reported, f"pod events of {driver}", _parsed, _plain)
        self._over = over
        self._clock = clock
        self._refused: dict[str, _Refused] = {}
        self._known = self._saved = self._section.read()
        self._read_at: dict[str, float] = {}
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """Something happened to devices: look soon."""
        self._changed.set()

    def ended(self, operation: Operation) -> None:
        uid, error = operation.claim.uid, operation.error
        before = self._refused.get(uid)
        if error is None:
            self._refused.pop(uid, None)
        elif operation.call == "prepare" and (before is not None or len(self._refused) < _CLAIMS_REMEMBERED):
            now = self._clock()
            since = now if before is None else before.since
            self._refused[uid] = _Refused(operation.claim, since, _refusal(operation.claim, error, now - since))
        self._changed.set()

    async def run(self) -> None:
        backoff = Backoff(first_s=1.0, longest_s=60.0)
        while True:
            try:
                await self.look()
            except DriverError as error:
                _log.info("Events of pods are delayed", error=str(error))
                await asyncio.sleep(backoff.next_s())
                continue
            backoff.reset()
            ending = any(item.away_since is not None for known in self._known.values() for item in known)
            if await until(self._changed, _LOOK_AGAIN_S if ending else _LOOK_EVERY_S):
                await asyncio.sleep(_TOGETHER_S)

    async def look(self) -> None:
        """Write what is new. Raises Unreachable, or what keeps the source from answering; the Events that were written
        until then are remembered."""
        self._changed.clear()
        held = await self._source.held()
        claims = {**{uid: refused.claim for uid, refused in self._refused.items()}, **held}
        not_known: NodeNotReady | None = None
        try:
            self._known = {uid: known for uid, known in self._known.items() if uid in claims}
            self._read_at = {uid: at for uid, at in self._read_at.items() if uid in claims}
            for ref in claims.values():
                try:
                    await self._look_at(ref)
                except NodeNotReady as error:
                    not_known = error  # of this claim; nothing of it begins or ends
        finally:
            if self._known != self._saved:
                known = dict(self._known)
                if await asyncio.to_thread(self._section.write, known):
                    self._saved = known
        if not_known is not None:
            raise not_known

    async def _look_at(self, ref: ClaimRef) -> None:
        refused = self._refused.get(ref.uid)
        own = (refused.trouble,) if refused is not None and refused.trouble is not None else ()
        troubles = (*self._source.troubles(ref.uid), *own)
        news, after = pod_news(self._known.get(ref.uid, ()), troubles, self._clock(), self._over)
        if news or self._may_have_changed(ref.uid):
            pods = await self._pods(ref)
            for pod in pods:
                for item in (*news, *late_news(after, pod.uid)):
                    await self._write(ref, pod, item)
            informed = frozenset(pod.uid for pod in pods)
            # A pod that joined late got no Event of what seems to be over, which may come back.
            after = tuple(replace(known, pods=informed) if known.away_since is None else known for known in after)
            self._read_at[ref.uid] = self._clock()
        self._known[ref.uid] = after
        if not after:
            del self._known[ref.uid]

    def _may_have_changed(self, uid: str) -> bool:
        """Whether to read again for whom a claim is reserved."""
        last = self._read_at.get(uid, float("-inf"))
        return self._pod_source.users.shared(uid) and self._clock() - last >= _LOOK_EVERY_S

    async def _pods(self, ref: ClaimRef) -> Sequence[Regarding]:
        try:
            claim = await self._pod_source.claims.read(ref)
        except InvalidInput as error:
            _log.warning("the claim of a device cannot be determined", claim=str(ref), error=str(error))
            return ()  # one claim must not delay the others
        if claim is None or claim.metadata.uid != ref.uid:
            self._refused.pop(ref.uid, None)
            return ()
        pods = tuple(Regarding.pod(ref.namespace, pod.name, pod.uid) for pod in claim.pods)
        if not is_of_group(claim):
            return pods
        members = await self._pod_source.members.of(ref)
        self._pod_source.users.joined(ref.uid, [name for name, _ in members])
        # kubectl describe does not show an Event without the pod's UID.
        return (*pods, *(Regarding.pod(ref.namespace, name, uid) for name, uid in members if uid))

    async def _write(self, ref: ClaimRef, pod: Regarding, news: PodNews) -> None:
        action = "Prepare" if news.reason in _OF_PREPARE else "Watch"
        event = news.reason.news(pod, action, f"Claim {ref.name}: {news.note}")
        await self._events.write_once(event, f"{news.reason.name} {news.key}")


def _refusal(claim: ClaimRef, error: DriverError, waited_s: float) -> ClaimTrouble | None:
    """Of a claim that could not be prepared for a long time. Brief failures are only in the kubelet's own Events."""
    # A pod gets an Event for each of its claims.
    subject, text = f"{claim.uid} {type(error).__name__}", why(error, claim)
    if isinstance(error, _FOR_GOOD):
        return ClaimTrouble(Reason.POD_PREPARE_FAILED, subject, f"cannot be prepared: {text}")
    if waited_s >= LONG_S:
        return ClaimTrouble(Reason.POD_PREPARE_WAITS, subject, f"has not been prepared for minutes: {text}")
    return None


def _plain(troubles: Sequence[KnownTrouble]) -> list[dict[str, Any]]:
    return [
        asdict(known.trouble)
        | {"reason": known.trouble.reason.name}
        | ({} if known.pods is None else {"pods": sorted(known.pods)})
        for known in troubles
    ]


def _parsed(_: str, items: Sequence[dict[str, Any]]) -> tuple[KnownTrouble, ...]:
    return tuple(map(_known_trouble, items))


def _known_trouble(raw: dict[str, Any]) -> KnownTrouble:
    subject, text, since, pods = raw["subject"], raw["text"], raw["since"], raw.get("pods", [])
    if not all(isinstance(item, str) for item in (subject, text, since, *pods)):
        raise TypeError("not a trouble")
    trouble = ClaimTrouble(Reason[raw["reason"]], subject, text, since)
    return KnownTrouble(trouble, pods=frozenset(pods) if "pods" in raw else None)


@dataclass(frozen=True, slots=True)
class Observers:
    """What the drivers of the plugin's process share to measure and report on claims."""

    calls: CallMetrics
    collector: NodeCollector
    listeners: Sequence[ClaimListener]
    events: EventRecorder
    pods: ClaimPods
    reported: Reported
