"""`status.devices` of claims: whether each device is prepared and healthy, and which hardware it is.

`wanted_status` decides, from the journal and the node's health; for claims of ComputeDomains
`kubelet_plugin.domains.readiness` does. `DeviceStatusWriter` writes what differs from what was written last, through
`kubelet_plugin.reporting.claim_devices`, in the background and for several changes together. The kubelet's calls never
wait for it, and a node at rest writes nothing: after a restart, claims are read and compared. If the cluster does not
allow or keep a claim's status, the writer retries ten minutes later. It removes the status of a released claim, also
after a restart (`kubelet_plugin.reporting.reported`).
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Any, Literal, Protocol

import structlog

from dra_driver.api.binding import BINDING_FAILED, BINDING_READY
from dra_driver.api.gpu_settings import HealthPolicy
from dra_driver.api.inventory import GpuFacts
from dra_driver.api.meta import RESOURCE_CLAIMS, JsonObject, wire_time
from dra_driver.devices.health import affecting, worst
from dra_driver.devices.model import DeviceKind
from dra_driver.errors import ClusterError, Conflict, DriverError, NotFound, Unreachable
from dra_driver.kube.client import Kube
from dra_driver.kube.watch import Backoff
from dra_driver.names import ClaimRef
from dra_driver.runtime.tasks import until
from kubelet_plugin.facts.hardware import NodeFacts
from kubelet_plugin.facts.monitor import SeenFacts
from kubelet_plugin.prepare.holds import Records
from kubelet_plugin.prepare.lifecycle import BindingStage, Entry, HeldDevice, made_mig_uuid
from kubelet_plugin.prepare.listener import AllocatedTo, ClaimListener, Operation
from kubelet_plugin.prepare.store import JournalStore
from kubelet_plugin.reporting.claim_devices import Entries, Key, entries_of, in_order, key_of, put_entries
from kubelet_plugin.reporting.reported import Reported, Section

_log = structlog.get_logger(__name__)

_TOGETHER_S = 1.0
"""Changes within as long are one write: a claim that is prepared and released at once needs none."""
_LOOK_EVERY_S = 60.0
"""Claims are also released without kubelet's asking."""
_NOT_ALLOWED_PAUSE_S = 600.0
_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class StatusCondition:
    type: Literal["Ready", "Healthy", "PeersReady", "BindingReady", "BindingFailed"]
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """What is said of one device of a claim. `data` are names and values, sorted."""

    device: AllocatedTo
    conditions: tuple[StatusCondition, ...]
    data: tuple[tuple[str, str], ...] = ()


class BindingAnswer(Enum):
    """What follows for a pod that waits until the node has prepared a claim, and the node has not."""

    WAIT = auto()
    """The node tries again."""
    GIVE_UP = auto()
    """The scheduler should choose other devices."""
    BIND = auto()
    """The author of the claim must act: the pod is bound, and the kubelet reports why it does not start."""


@dataclass(frozen=True, slots=True)
class PrepareRefusal:
    """The last prepare of a claim failed."""

    claim: ClaimRef
    devices: tuple[AllocatedTo, ...]
    reason: str
    message: str
    binding: BindingAnswer | None = None
    """None: its pod does not wait for the node."""

    @property
    def conditions(self) -> tuple[StatusCondition, ...]:
        condition = StatusCondition("Ready", "False", self.reason, self.message)
        return (condition,) if self.binding is None else (condition, *self._binding(self.binding))

    def _binding(self, answer: BindingAnswer) -> tuple[StatusCondition, ...]:
        if answer is BindingAnswer.BIND:
            message = "no node can prepare the claim as it is; see Ready"
            return (StatusCondition(BINDING_READY, "True", self.reason, message),)
        ready = StatusCondition(BINDING_READY, "False", self.reason, self.message)
        if answer is BindingAnswer.WAIT:
            return (ready,)
        return ready, StatusCondition(BINDING_FAILED, "True", self.reason, self.message)

    def status(self) -> tuple[DeviceStatus, ...]:
        """Of a claim that has nothing of the node."""
        return tuple(DeviceStatus(device, self.conditions) for device in self.devices)


def wanted_status(
    entry: Entry | None, refusal: PrepareRefusal | None, records: Records, facts: NodeFacts, policy: HealthPolicy
) -> tuple[DeviceStatus, ...]:
    """The status to write for a claim's devices; none for a claim that is neither held nor refused."""
    if entry is None:
        return () if refusal is None else refusal.status()
    gpus = {gpu.uuid: gpu for gpu in facts.gpus}
    ready = (_ready(entry, facts.boot_id),) if refusal is None else refusal.conditions
    if entry.in_use:
        ready += bound(entry.binding, refusal)
    return tuple(_held(device, ready, held_mig_uuid(device, records), gpus, policy) for device in entry.devices)


def bound(stage: BindingStage, refusal: PrepareRefusal | None) -> tuple[StatusCondition, ...]:
    """What a claim says that has binding conditions and was prepared in this allocation, also of later boots: a pod
    that comes later, and shares the claim, must not wait."""
    if stage is BindingStage.NONE or (refusal is not None and refusal.binding is not None):
        return ()
    return (StatusCondition(BINDING_READY, "True", "Prepared", "the node has prepared the claim"),)


def _ready(entry: Entry, boot_id: str) -> StatusCondition:
    if entry.releasing:
        return StatusCondition("Ready", "False", "Releasing", "the claim is being released")
    if entry.boot_id != boot_id:
        return StatusCondition("Ready", "False", "NodeRebooted", "the node booted since the claim was prepared")
    if entry.cdi_digest is None:
        return StatusCondition("Ready", "False", "Preparing", "the claim is being prepared")
    return StatusCondition("Ready", "True", "Prepared", "the claim is prepared")


def _held(
    device: HeldDevice,
    ready: tuple[StatusCondition, ...],
    mig_uuid: str | None,
    gpus: Mapping[str, GpuFacts],
    policy: HealthPolicy,
) -> DeviceStatus:
    data = {"uuid": device.gpu_uuid, "pciBusID": device.pci_bus_id}
    if mig_uuid:
        data["migUUID"] = mig_uuid
    healthy = _healthy(gpus.get(device.gpu_uuid), mig_uuid, policy)
    who = AllocatedTo(device.pool, device.device, device.share_id)
    return DeviceStatus(who, (*ready, healthy), tuple(sorted(data.items())))


def held_mig_uuid(device: HeldDevice, records: Records) -> str | None:
    """Of the MIG device; empty while it does not exist, None for what is none."""
    if device.kind is not DeviceKind.MIG:
        return None
    return device.mig_uuid or made_mig_uuid(device.gpu_uuid, device.partition, records)


def _healthy(gpu: GpuFacts | None, mig_uuid: str | None, policy: HealthPolicy) -> StatusCondition:
    if gpu is None:
        return StatusCondition("Healthy", "Unknown", "NotSeen", "the GPU cannot be read")
    bad = worst(affecting(gpu.health.conditions, mig_uuid), policy)
    if bad is None:
        return StatusCondition("Healthy", "True", "Healthy", "nothing is known to be wrong")
    return StatusCondition("Healthy", "False", bad.type, bad.message)


class StatusSource(Protocol):
    """The claims of one driver on this node. Both methods raise DriverError while that is not known."""

    async def held(self) -> Mapping[str, ClaimRef]:
        """Those that have something of the node, by UID."""

    def status(self, uid: str, refusal: PrepareRefusal | None) -> tuple[DeviceStatus, ...]:
        """The status to write for a claim's devices, as `held` found it last; none for a claim that it did not find."""


class GpuClaims:
    """The claims of GPUs, from the journal and the node's health."""

    def __init__(self, facts: SeenFacts, journal: JournalStore, policy: Callable[[], HealthPolicy]) -> None:
        self._facts = facts
        self._journal = journal
        self._policy = policy

    async def held(self) -> Mapping[str, ClaimRef]:
        return {uid: entry.claim for uid, entry in self._journal.current.held.items()}

    def status(self, uid: str, refusal: PrepareRefusal | None) -> tuple[DeviceStatus, ...]:
        journal = self._journal.current
        return wanted_status(journal.held.get(uid), refusal, journal.holds, self._facts.facts, self._policy())


@dataclass(frozen=True, slots=True)
class ReportedDevices:
    """`devices` are at most those that the claim's status has: a write may have failed."""

    claim: ClaimRef
    devices: frozenset[Key]


def _parsed(uid: str, raw: Mapping[str, Any]) -> ReportedDevices:
    devices = frozenset((str(pool), str(device), str(share)) for pool, device, share in raw["devices"])
    return ReportedDevices(ClaimRef(str(raw["namespace"]), str(raw["name"]), uid), devices)


def _plain(reported: ReportedDevices) -> dict[str, Any]:
    claim = reported.claim
    return {"namespace": claim.namespace, "name": claim.name, "devices": sorted(reported.devices)}


@dataclass(frozen=True, slots=True)
class _Known:
    """This driver's entries of a claim on the API server, and the entries that the API server refused."""

    claim: ClaimRef
    devices: Entries
    refused: Entries | None = None
    again_at: float = _NEVER
    """By the event loop's clock: when to try again what was refused."""

    @property
    def last(self) -> Entries:
        """What was said last, whether it was taken or not."""
        return self.devices if self.refused is None else self.refused


class DeviceStatusWriter(ClaimListener):
    """Keeps `status.devices` of this node's claims true. `run` until cancelled."""

    def __init__(
        self,
        kube: Kube,
        driver: str,
        claims: StatusSource,
        reported: Reported,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        together_s: float = _TOGETHER_S,
        look_every_s: float = _LOOK_EVERY_S,
        pause_s: float = _NOT_ALLOWED_PAUSE_S,
    ) -> None:
        self._kube = kube
        self._driver = driver
        self._claims = claims
        self._section = Section(reported, f"status of {driver}", _parsed, _plain)
        self._reported = self._section.read()
        self._is_remembered = True
        """False while the disk refuses."""
        self._now = now
        self._together_s = together_s
        self._look_every_s = look_every_s
        self._pause_s = pause_s
        self._refused: dict[str, PrepareRefusal] = {}
        self._known: dict[str, _Known] = {}
        self._quiet_until = 0.0
        self._changed = asyncio.Event()
        self._urgent = asyncio.Event()
        """A pod waits for an answer."""

    def changed(self) -> None:
        """Something happened to devices: look soon."""
        self._changed.set()

    def ended(self, operation: Operation) -> None:
        uid, error = operation.claim.uid, operation.error
        if operation.ahead and error is not None:
            return  # `kubelet_plugin.reporting.binding` decides what is said of it
        if operation.call == "prepare" and error is not None and operation.devices:
            before = self._refused.get(uid)
            self._refused[uid] = refusal_of(
                operation.claim, operation.devices, error, None if before is None else before.binding
            )
        elif error is None:
            if operation.call == "prepare" or not self._is_given_up(uid):
                self._refused.pop(uid, None)
            if operation.ahead:
                self._urgent.set()
        self._changed.set()

    def _is_given_up(self, uid: str) -> bool:
        """The scheduler must read that, and it is said once. The kubelet may release the claim for an earlier pod."""
        refusal = self._refused.get(uid)
        return refusal is not None and refusal.binding is BindingAnswer.GIVE_UP

    def waits_for_binding(self, refusal: PrepareRefusal) -> None:
        """The node has not prepared a claim whose pod waits for it."""
        self._refused[refusal.claim.uid] = refusal
        if refusal.binding is BindingAnswer.BIND:
            self._urgent.set()  # but a node that gave up has its devices tainted before the scheduler chooses again
        self._changed.set()

    def waits_no_longer(self, claim_uid: str) -> None:
        """The scheduler has the answer, or gave the claim up: what was said goes with the allocation, and the kubelet
        never comes for the claim. Unless the answer was that the pod is bound, and only its author can correct it."""
        refusal, known = self._refused.get(claim_uid), self._known.get(claim_uid)
        if refusal is None or refusal.binding is None:
            return
        if refusal.binding is not BindingAnswer.BIND or known is None or known.refused is not None:
            del self._refused[claim_uid]
            self._changed.set()

    def say_again(self, claim_uid: str) -> None:
        """The claim may have been allocated again: the API server then dropped what was said about its devices."""
        self._known.pop(claim_uid, None)
        self._changed.set()

    async def run(self) -> None:
        backoff = Backoff(first_s=1.0, longest_s=60.0)
        met = False
        while True:
            try:
                if not met:
                    await self._meet()
                    met = True
                await self.write()
            except DriverError:
                await asyncio.sleep(backoff.next_s())
                continue
            backoff.reset()
            if await until(self._changed, self._look_every_s):
                await until(self._urgent, self._together_s)

    async def _meet(self) -> None:
        """Find out what the API server has of the claims that are held or were reported. Raises Unreachable,
        NodeNotReady."""
        held, reported = await self._claims.held(), dict(self._reported)
        for uid, ref in ({uid: before.claim for uid, before in reported.items()} | dict(held)).items():
            if uid in self._known:
                continue
            try:
                claim = await self._kube.get(RESOURCE_CLAIMS, ref.name, ref.namespace)
            except Unreachable:
                raise
            except NotFound:
                await self._note(ref, ())
                continue
            except ClusterError:
                # The status of a held claim is written again, or the refusal is logged.
                if uid not in held:
                    self._known[uid] = _Known(ref, _unread(reported[uid].devices))
                continue
            there = entries_of(claim, self._driver) if claim["metadata"]["uid"] == uid else ()
            # A released claim may be another node's by now, and so may be what is said of other devices.
            ours = there if uid in held else tuple(entry for entry in there if key_of(entry) in reported[uid].devices)
            if ours:
                self._known[uid] = _Known(ref, ours)
            elif uid not in held:
                await self._note(ref, ())

    async def _note(self, claim: ClaimRef, devices: Collection[Key]) -> None:
        """All devices that a claim's status may have from now on; without any, the claim is forgotten."""
        reported = {uid: before for uid, before in self._reported.items() if uid != claim.uid}
        if devices:
            reported[claim.uid] = ReportedDevices(claim, frozenset(devices))
        if reported != self._reported:
            self._reported = reported
            await self._remember()

    async def _remember(self) -> None:
        self._is_remembered = await asyncio.to_thread(self._section.write, self._reported)

    async def write(self) -> None:
        """Write what differs. Raises Unreachable, or NodeNotReady before the hardware was seen."""
        self._changed.clear()
        self._urgent.clear()
        held = await self._claims.held()
        for uid in [*held, *(uid for uid in {**self._refused, **self._known} if uid not in held)]:
            refusal, known = self._refused.get(uid), self._known.get(uid)
            if uid not in held and refusal is None and known is not None and _binds(known.last):
                # The conditions go with the allocation. While others use it, they must not wait for the node again.
                self._known.pop(uid)
                await self._note(known.claim, ())
                continue
            devices = self._to_wire(self._claims.status(uid, refusal), known.last if known is not None else ())
            if devices == (known.devices if known is not None else ()):
                if not devices:
                    self._known.pop(uid, None)
                elif known is not None and known.refused is not None:
                    self._known[uid] = _Known(known.claim, devices)
                continue
            if known is not None and devices == known.refused and _clock() < known.again_at:
                continue
            said_of = next((item.claim for item in (refusal, known) if item is not None), None)
            # Of one that was refused, and was prepared while others were written, it is said at the next look.
            if (claim := held.get(uid) or said_of) is not None:
                await self._put(claim, devices)
        # `say_again` forgot these, and then their claims were released: the status went with the allocation.
        for uid in self._reported.keys() - held.keys() - self._refused.keys() - self._known.keys():
            await self._note(self._reported[uid].claim, ())
        if not self._is_remembered:
            await self._remember()

    async def _put(self, claim: ClaimRef, devices: Entries) -> None:
        known = self._known.get(claim.uid)
        before = [key_of(device) for device in known.devices] if known is not None else []
        await self._note(claim, [*before, *map(key_of, devices)])
        try:
            accepted = await put_entries(self._kube, claim, self._driver, devices, before)
        except NotFound:
            self._known.pop(claim.uid, None)
            self._refused.pop(claim.uid, None)
            await self._note(claim, ())
        except Unreachable:
            raise
        except ClusterError as error:
            # 422: it was allocated again, or is no longer allocated. The old entries must still be removed later.
            final = error.status == 422 and bool(devices)
            pause_s = self._look_every_s if isinstance(error, Conflict) else self._pause_s
            self._note_refusal(claim, devices, str(error), _NEVER if final else _clock() + pause_s)
        else:
            if accepted:
                self._known[claim.uid] = _Known(claim, devices)
                await self._note(claim, [key_of(device) for device in devices])
                return
            why = "the API server keeps none: its gate DRAResourceClaimDeviceStatus is off"
            self._note_refusal(claim, devices, why, _clock() + self._pause_s)

    def _note_refusal(self, claim: ClaimRef, devices: Entries, why: str, again_at: float) -> None:
        """Remember the refusal of one claim; the others are still written. Logged at most once per pause."""
        if _clock() >= self._quiet_until:
            _log.warning("device status cannot be written", claim=str(claim), error=why)
            self._quiet_until = _clock() + self._pause_s
        known = self._known.get(claim.uid)
        self._known[claim.uid] = _Known(claim, known.devices if known is not None else (), devices, again_at)

    def _to_wire(self, statuses: Sequence[DeviceStatus], before: Sequence[JsonObject]) -> Entries:
        """With the times of conditions that are as before."""
        times: dict[tuple[str, ...], str] = {
            (*key_of(device), condition["type"], condition["status"]): condition["lastTransitionTime"]
            for device in before
            for condition in device.get("conditions") or ()
        }
        now = wire_time(self._now())
        return in_order(self._device(status, times, now) for status in statuses)

    def _device(self, status: DeviceStatus, times: Mapping[tuple[str, ...], str], now: str) -> JsonObject:
        device: JsonObject = {"driver": self._driver, "pool": status.device.pool, "device": status.device.device}
        if status.device.share_id is not None:
            device["shareID"] = status.device.share_id
        device["conditions"] = [
            {
                "type": condition.type,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message,
                "lastTransitionTime": times.get((*key_of(device), condition.type, condition.status), now),
            }
            for condition in status.conditions
        ]
        return device | ({"data": dict(status.data)} if status.data else {})


def refusal_of(
    claim: ClaimRef, devices: tuple[AllocatedTo, ...], error: DriverError, binding: BindingAnswer | None
) -> PrepareRefusal:
    """Why the devices of the claim could not be prepared."""
    return PrepareRefusal(claim, devices, type(error).__name__, error.beside(str(claim)), binding)


def _binds(devices: Entries) -> bool:
    return any(condition["type"] == BINDING_READY for device in devices for condition in device.get("conditions") or ())


def _unread(devices: Collection[Key]) -> Entries:
    """Of a claim that could not be read: which devices may have entries, without their content."""
    keys = ({"pool": pool, "device": device, "shareID": share} for pool, device, share in devices)
    return in_order(keys)


def _clock() -> float:
    return asyncio.get_running_loop().time()
