"""What befalls devices in use becomes Events on the pods that hold them, and so does a claim that cannot be prepared.

What is wrong now with the devices of each claim is compared with what the claim's pods were told, which is in a file:
so a restart of the plugin neither repeats what pods know nor loses what ended meanwhile. `claim_tellings` decides; the
pods are those for which the claim is reserved when it is told. A claim that is no pod's own gets further pods without
our being asked: it is read again every minute, and who came late is told what still is wrong (`late_tellings`). Of one
that is reserved for a PodGroup the pods are those that kubelet of this node knows (`kubelet_plugin.rpc.pod_resources`).

Nothing floods: pods are told one after the other, in the pace of the recorder; what ended before a pod's turn came is
not told; what comes and goes counts as one until it has been away for half a minute. Monitors (admin access) hold
nothing, and are told nothing.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import structlog

from dra_driver.api.inventory import HealthCondition
from dra_driver.api.policy import HealthPolicy
from dra_driver.api.resource import ResourceClaim
from dra_driver.devices.health import affecting, judged
from dra_driver.errors import DriverError, InvalidInput, NodeNotReady, UnknownDevice
from dra_driver.kube.events import News, Regarding
from dra_driver.kube.watch import Backoff
from dra_driver.names import ClaimRef
from dra_driver.runtime.files import read_if_present, write_durably
from kubelet_plugin.facts.discovery import NodeFacts
from kubelet_plugin.facts.monitor import CHECK_UNDER_WAY, SeenFacts
from kubelet_plugin.prepare.claims import ClaimReader, PodsOfClaims, is_of_group
from kubelet_plugin.prepare.holds import MpsDaemon, Records
from kubelet_plugin.prepare.journal import Journals
from kubelet_plugin.prepare.lifecycle import Entry, HeldDevice
from kubelet_plugin.prepare.listener import ClaimListener, Operation
from kubelet_plugin.reporting.device_status import held_mig_uuid
from kubelet_plugin.reporting.events import Reason, why

_log = structlog.get_logger(__name__)

OVER_AFTER_S = 30.0
"""How long something must have been away before it is over; after a restart MPS daemons take 10 s to be known again."""

LONG_S = 120.0
"""How long a claim may wait before its pods are told. kubelet tries again after 90 s: most waits end by then."""

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
"""Pods that were told of one of these are told when it is over."""

_OF_PREPARE = (Reason.POD_PREPARE_FAILED, Reason.POD_PREPARE_WAITS)

_STANDING = _LASTING.union(_OF_PREPARE)
"""What concerns a pod that comes later, too; the rest befell programs that ran."""

_ADVICE = {
    Reason.POD_GPU_UNHEALTHY: "If the pod no longer works, delete it; new claims do not get this device.",
    Reason.POD_GPU_DEGRADED: "If the pod's programs were hit, restart them.",
    Reason.POD_MPS_DAEMON_RESTARTED: "Programs that were computing have to start over.",
    Reason.POD_MPS_DAEMON_FAILED: "The node plugin restarts it when that is safe; otherwise delete the pod.",
    Reason.POD_MIG_DEVICE_LOST: "It is made again where its place is free; the pod's programs have to start over.",
    Reason.POD_IMEX_DAEMON_NOT_READY: "Wait; if it lasts, an administrator has to look at the daemons' pods.",
}


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something wrong with what a claim has, or wants. `subject` tells it from others of the same reason and claim;
    `since` from the same at another time, in any form."""

    reason: Reason
    subject: str
    text: str
    since: str = ""

    @property
    def identity(self) -> tuple[str, str]:
        return self.reason.name, self.subject


@dataclass(frozen=True, slots=True)
class Told:
    """A trouble of which the claim's pods know. `away_since` is when it was first seen to be away; `pods` are the UIDs
    of those that were told, None when that was not remembered."""

    trouble: Trouble
    away_since: float | None = None
    pods: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Telling:
    """What all pods of a claim are told; `key` is the same for the same news."""

    reason: Reason
    note: str
    key: str


def claim_tellings(
    told: Sequence[Told], troubles: Sequence[Trouble], now_s: float, over: Reason
) -> tuple[tuple[Telling, ...], tuple[Told, ...]]:
    """What is new for a claim's pods, and what they know then. `over` is the reason to tell that nothing is wrong."""
    present = {one.identity for one in troubles}
    known = {one.trouble.identity for one in told}
    new = [one for one in troubles if one.identity not in known]
    kept: list[Told] = []
    ended: list[Trouble] = []
    for one in told:
        since = None if one.trouble.identity in present else now_s if one.away_since is None else one.away_since
        if since is not None and now_s - since >= OVER_AFTER_S:
            ended.append(one.trouble)
        else:
            kept.append(replace(one, away_since=since))
    after = (*kept, *(Told(one) for one in new))
    lasted = [one for one in ended if one.reason in _LASTING]
    tellings = list(_grouped(new))
    if lasted and not any(one.trouble.reason in _LASTING for one in after):
        tellings.append(Telling(over, f"It is over: {_listed(lasted)}.", _key(lasted)))
    return tuple(tellings), after


def late_tellings(told: Sequence[Told], pod_uid: str) -> tuple[Telling, ...]:
    """What a pod has to hear that came to a claim after the claim's pods were told."""
    missed = [one for one in told if one.pods is not None and pod_uid not in one.pods and one.away_since is None]
    return tuple(_grouped(one.trouble for one in missed if one.trouble.reason in _STANDING))


def _grouped(troubles: Iterable[Trouble]) -> Iterator[Telling]:
    """One for each reason: a pod with eight GPUs that all get lost is told once."""
    of_reason: dict[Reason, list[Trouble]] = {}
    for one in troubles:
        of_reason.setdefault(one.reason, []).append(one)
    for reason, those in of_reason.items():
        advice = f" {_ADVICE[reason]}" if reason in _ADVICE else ""
        yield Telling(reason, f"{_listed(those)}.{advice}", _key(those))


def _listed(troubles: Sequence[Trouble]) -> str:
    rest = f", and {len(troubles) - _NAMED} more" if len(troubles) > _NAMED else ""
    return "; ".join(one.text.rstrip(".") for one in troubles[:_NAMED]) + rest


def _key(troubles: Iterable[Trouble]) -> str:
    return ", ".join(sorted(f"{one.subject} {one.since}" for one in troubles))


def gpu_troubles(entry: Entry, records: Records, facts: NodeFacts, policy: HealthPolicy) -> tuple[Trouble, ...]:
    """What is wrong with the GPUs, MIG devices and shares of a prepared claim, and with its MPS daemon."""
    gpus = {gpu.uuid: gpu for gpu in facts.gpus}
    found: dict[tuple[str, str], Trouble] = {}
    for device in entry.devices:
        gpu = gpus.get(device.gpu_uuid)
        if device.admin_access or gpu is None:
            continue
        for condition in affecting(gpu.health.conditions, held_mig_uuid(device, entry, records)):
            reason = _reason(condition, device, entry, policy)
            if reason is not None:
                subject = " ".join((device.device, condition.type, condition.value or "", condition.instance or ""))
                text = f"{device.device}: {condition.message}"
                trouble = Trouble(reason, subject.rstrip(), text, condition.since)
                found.setdefault(trouble.identity, trouble)
    return tuple(found[identity] for identity in sorted(found))


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
    if condition.type in ("Unmonitored", "Released") or condition.message == CHECK_UNDER_WAY:
        return None
    if critical:
        return Reason.POD_GPU_UNHEALTHY
    return Reason.POD_GPU_DEGRADED if judged(condition, policy) == "Warning" else None


class Source(Protocol):
    """The claims of one driver on this node. Both methods raise DriverError while that cannot be told."""

    async def held(self) -> Mapping[str, ClaimRef]:
        """Those that have something of the node, by UID."""

    def troubles(self, uid: str) -> Sequence[Trouble]:
        """What is wrong now with what such a claim has; nothing of one that has nothing."""


class GpuTroubles:
    """The claims of GPUs, from the journal and the node's health."""

    def __init__(self, facts: SeenFacts, journal: Journals, policy: HealthPolicy) -> None:
        self._facts = facts
        self._journal = journal
        self._policy = policy

    async def held(self) -> Mapping[str, ClaimRef]:
        return {uid: entry.claim for uid, entry in self._journal.current.held.items() if _in_use(entry)}

    def troubles(self, uid: str) -> Sequence[Trouble]:
        journal = self._journal.current
        entry = journal.held.get(uid)
        if entry is None or not _in_use(entry):
            return ()
        return gpu_troubles(entry, journal.holds, self._facts.facts, self._policy)


def _in_use(entry: Entry) -> bool:
    return entry.cdi_digest is not None and not entry.releasing


class Once(Protocol):
    """What is needed of `dra_driver.kube.events.EventRecorder`."""

    async def write_once(self, news: News, key: str) -> None: ...


@dataclass(frozen=True, slots=True)
class _Refused:
    """A claim that could not be prepared the last time. `trouble` is what its pods are to know, if anything."""

    claim: ClaimRef
    since: float
    trouble: Trouble | None


class Members(Protocol):
    """What is needed of `kubelet_plugin.rpc.pod_resources.PodsOfNode`."""

    async def of(self, claim: ClaimRef) -> Sequence[tuple[str, str]]: ...


class PodEvents(ClaimListener):
    """Of the claims of one driver. `run` until cancelled; `clock` gives seconds, and is never set. `pods` says of a
    claim's UID whether further pods can join it, as far as is known, and is told who is of a PodGroup."""

    def __init__(
        self,
        source: Source,
        claims: ClaimReader,
        events: Once,
        file: Path,
        *,
        pods: PodsOfClaims,
        members: Members,
        over: Reason = Reason.POD_GPU_HEALTHY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._claims = claims
        self._events = events
        self._file = _File(file)
        self._users = pods
        self._members = members
        self._over = over
        self._clock = clock
        self._refused: dict[str, _Refused] = {}
        self._told = self._saved = self._file.read()
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
            ending = any(one.away_since is not None for those in self._told.values() for one in those)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), _LOOK_AGAIN_S if ending else _LOOK_EVERY_S)
                await asyncio.sleep(_TOGETHER_S)

    async def look(self) -> None:
        """Tell what is new. Raises Unreachable, or what keeps the source from telling; what was told until then stays
        told."""
        self._changed.clear()
        held = await self._source.held()
        claims = {**{uid: one.claim for uid, one in self._refused.items()}, **held}
        not_known: NodeNotReady | None = None
        try:
            self._told = {uid: told for uid, told in self._told.items() if uid in claims}
            self._read_at = {uid: at for uid, at in self._read_at.items() if uid in claims}
            for ref in claims.values():
                try:
                    await self._look_at(ref)
                except NodeNotReady as error:
                    not_known = error  # of this claim; nothing of it begins or ends
        finally:
            await self._save()
        if not_known is not None:
            raise not_known

    async def _look_at(self, ref: ClaimRef) -> None:
        refused = self._refused.get(ref.uid)
        own = (refused.trouble,) if refused is not None and refused.trouble is not None else ()
        troubles = (*self._source.troubles(ref.uid), *own)
        tellings, after = claim_tellings(self._told.get(ref.uid, ()), troubles, self._clock(), self._over)
        if tellings or self._may_have_changed(ref.uid):
            pods = await self._pods(ref)
            for pod in pods:
                for one in (*tellings, *late_tellings(after, pod.uid)):
                    await self._tell(ref, pod, one)
            heard = frozenset(pod.uid for pod in pods)
            # Of what seems to be over nobody who came late was told; it may come back.
            after = tuple(replace(one, pods=heard) if one.away_since is None else one for one in after)
            self._read_at[ref.uid] = self._clock()
        self._told[ref.uid] = after
        if not after:
            del self._told[ref.uid]

    def _may_have_changed(self, uid: str) -> bool:
        """Whether to read again for whom a claim is reserved."""
        return self._users.shared(uid) and self._clock() - self._read_at.get(uid, float("-inf")) >= _LOOK_EVERY_S

    async def _pods(self, ref: ClaimRef) -> Sequence[Regarding]:
        try:
            claim = await self._claims.read(ref)
        except InvalidInput as error:
            _log.warning("the claim of a device cannot be determined", claim=str(ref), error=str(error))
            return ()  # and the others' pods are told theirs
        if claim is None or claim.metadata.uid != ref.uid:
            self._refused.pop(ref.uid, None)
            return ()
        if not is_of_group(claim):
            return pods_of(claim)
        members = await self._members.of(ref)
        self._users.joined(ref.uid, [name for name, _ in members])
        # An Event that does not say the UID is shown to nobody who looks at the pod.
        found = [Regarding.pod(ref.namespace, name, uid) for name, uid in members if uid]
        return (*pods_of(claim), *found)

    async def _tell(self, ref: ClaimRef, pod: Regarding, telling: Telling) -> None:
        action = "Prepare" if telling.reason in _OF_PREPARE else "Watch"
        news = telling.reason.told(pod, action, f"Claim {ref.name}: {telling.note}")
        await self._events.write_once(news, f"{telling.reason.name} {telling.key}")

    async def _save(self) -> None:
        if self._told != self._saved:
            told = dict(self._told)
            try:
                await asyncio.to_thread(self._file.write, told)
            except NodeNotReady as error:
                _log.warning("the record of Events of pods cannot be written", error=str(error))
            else:
                self._saved = told


def _refusal(claim: ClaimRef, error: DriverError, waited_s: float) -> Trouble | None:
    """Of a claim that could not be prepared for so long. What lasts a moment, kubelet tells pods anyway."""
    # A pod hears of each of its claims.
    subject, text = f"{claim.uid} {type(error).__name__}", why(error, claim)
    if isinstance(error, _FOR_GOOD):
        return Trouble(Reason.POD_PREPARE_FAILED, subject, f"cannot be prepared: {text}")
    if waited_s >= LONG_S:
        return Trouble(Reason.POD_PREPARE_WAITS, subject, f"has not been prepared for minutes: {text}")
    return None


def pods_of(claim: ResourceClaim) -> tuple[Regarding, ...]:
    """The pods for which a claim is reserved. What stands for several, as a PodGroup does, does not name them."""
    return tuple(
        Regarding.pod(claim.metadata.namespace or "", one.name, one.uid)
        for one in claim.status.reserved_for
        if one.resource == "pods" and not one.api_group
    )


class _File:
    """What pods were told, as JSON; a memory, not a promise: one that makes no sense is forgotten. Blocking."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> dict[str, tuple[Told, ...]]:
        try:
            content = read_if_present(self._path)
            raw: dict[str, Any] = {} if content is None else json.loads(content)
            return {uid: tuple(_told(one) for one in those) for uid, those in raw.items()}
        except (NodeNotReady, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            _log.warning(
                "the record of Events of pods cannot be read; starting with an empty one",
                file=str(self._path),
                error=repr(error),
            )
            return {}

    def write(self, told: Mapping[str, Sequence[Told]]) -> None:
        """Raises NodeNotReady when the disk refuses."""
        raw = {uid: [_raw(one) for one in told[uid]] for uid in told}
        write_durably(self._path, json.dumps(raw, sort_keys=True).encode() + b"\n", mode=0o600)


def _raw(told: Told) -> dict[str, Any]:
    """Earlier releases read it, too, and do not look at the pods."""
    pods = {} if told.pods is None else {"pods": sorted(told.pods)}
    return asdict(told.trouble) | {"reason": told.trouble.reason.name} | pods


def _told(raw: dict[str, Any]) -> Told:
    subject, text, since, pods = raw["subject"], raw["text"], raw["since"], raw.get("pods", [])
    if not all(isinstance(one, str) for one in (subject, text, since, *pods)):
        raise TypeError("not what was told")
    return Told(Trouble(Reason[raw["reason"]], subject, text, since), pods=frozenset(pods) if "pods" in raw else None)
