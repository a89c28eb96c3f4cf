"""What a claim can be on this node, who may hold a GPU, and what a difference between journal and node means.

Pure: `kubelet_plugin.prepare.plan` makes entries, `kubelet_plugin.prepare.store` keeps them, the service and
`kubelet_plugin.prepare.repair` ask here what they mean.

The theory. **An entry of the journal is a promise**: claim C holds these devices, and its CDI file has this digest. It
is the intent, written durably before the file appears. Whether it was carried out is not written down a second time but
looked up: the file either has that digest or not. (A claim with device metadata has several files, with two digests:
all of them are "the file" here.) So a claim is in one of four states,

    entry  file with that digest   state       how it came about
    no     no file                 ABSENT
    yes    yes                     PREPARED    reported to the kubelet
    yes    no                      UNFINISHED  cut short while preparing or unpreparing; or the file was damaged
    no     any file                ORPHANED    cut short while unpreparing; or the journal was damaged

and every one of them can be left in one step: UNFINISHED by writing the file (again), or by undoing the claim, and
ORPHANED by removing the file. Which of the two an UNFINISHED claim needs is for its object in the API to say
(`ClaimStanding`). If the API cannot be asked, the claim is finished: a file that no one reads does no harm, but a
missing one keeps a container from restarting. A crash forgets no promise, and no second durable write per claim is
needed to record "done".

**The entry is also the lock.** Hardware belongs to a claim from the moment that the entry is in the journal until it is
out of it. No claim waits for a GPU: a second claim is refused at once, and the error names the holder.
`dra_driver.devices.exclusion` decides which claims may share hardware.

**The entry also counts the users of its holds** (`kubelet_plugin.prepare.holds`): a hold is needed as long as an entry
lists it. No counter is stored that could be wrong after a crash. An entry with holds is written twice: first with what
must be made, then with the digest of the file, whose content depends on what was made. Between the two it is
UNFINISHED. `releasing` marks an entry that is being released: then it is no longer finished, in any state of the claim.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum

from dra_driver.api.config import SharingStrategy
from dra_driver.api.resource import AllocatedDevice, ResourceClaim
from dra_driver.devices.exclusion import GpuUse, conflict
from dra_driver.devices.model import DeviceKind, Partition
from dra_driver.errors import DeviceInUse, Help, Move, NodeNotReady
from dra_driver.names import ClaimRef, RequestName
from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    Hold,
    HoldState,
    Records,
    SwitchedMode,
    described,
    excludes,
    gpus_of,
)


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One device of a prepared claim, as `Device` of NodePrepareResourceResponse has it.

    `request_names` are top-level request names, never `request/alternative`: kubelet gives the CDI devices only to
    containers that reference one of them. `cdi_ids` are `vendor/class=name`, unique to the claim.
    `share_id` exists in v1 only and names one of several allocations of a device that allows many.
    """

    request_names: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None = None


@dataclass(frozen=True, slots=True)
class SharedUse:
    """How the programs of a claim use a device together, with those of other claims if `shared`."""

    strategy: SharingStrategy
    shared: bool = False
    """Whether other claims may have shares of the device: by policy."""
    number: int | None = None
    """Of the share, where shares are devices of their own."""
    settings: str = ""
    """What all sharers agree on, for people: `time slice Long`."""
    thread_percentage: int | None = None
    """What this claim may have at most, for its containers; None: no limit."""
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class HeldDevice:
    """One allocation result of a claim. Identity of the hardware is `gpu_uuid`; `device` is what it is published as."""

    request_names: tuple[str, ...]
    pool: str
    device: str
    gpu_uuid: str
    pci_bus_id: str
    cdi_ids: tuple[str, ...]
    admin_access: bool = False
    """Looks at the device without holding it."""
    share_id: str | None = None
    kind: DeviceKind = DeviceKind.GPU
    partition: Partition | None = None
    """Of a MIG device, made by this driver or an administrator."""
    mig_uuid: str | None = None
    """Of a MIG device that an administrator made; one that is made for claims has another UUID each time."""
    gpu_instance: str = ""
    """GpuInstanceFacts of that MIG device as JSON, with no other compute instance: as it was published."""
    vfio_api: bool = False
    """Whether a virtual machine's container gets VFIO's common device, too."""
    sharing: SharedUse | None = None
    """None: one program at a time, or however programs of one claim share a GPU without help."""
    alternative: str = ""
    """The chosen one, if its request is a list of alternatives."""
    extra: str = ""
    """Fields of a newer release, as a JSON object; empty when there are none."""

    @property
    def use(self) -> GpuUse:
        """What it does with the hardware."""
        sharing = self.sharing
        if sharing is None:
            return GpuUse(self.gpu_uuid, self.kind, self.partition)
        return GpuUse(
            self.gpu_uuid,
            self.kind,
            self.partition,
            sharing.strategy,
            sharing.shared,
            sharing.number,
            sharing.settings if sharing.shared else None,
        )

    def answer(self, more_cdi_ids: Iterable[str] = ()) -> PreparedDevice:
        cdi_ids = (*self.cdi_ids, *more_cdi_ids)
        return PreparedDevice(self.request_names, self.pool, self.device, cdi_ids, self.share_id)


@dataclass(frozen=True, slots=True)
class ClaimMetadata:
    """That the claim's containers get device metadata, and what only its object says of it."""

    pod_claim: str = ""
    """What the pod calls a claim from a template; empty for any other claim."""
    digest: str = ""
    """Of its files as they must be; empty until the claim's CDI file has its digest."""


class BindingStage(StrEnum):
    """Of a claim whose allocation has binding conditions (`dra_driver.api.binding`)."""

    NONE = ""
    """It has no such conditions."""
    AHEAD = "Ahead"
    """Prepared because its pod waits for the node. The kubelet got no answer about it yet, so no container has it."""
    ASKED = "Asked"
    """The kubelet asked for it: only the kubelet knows when its containers have stopped."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One claim in the journal."""

    claim: ClaimRef
    boot_id: str
    """Of the boot in which the devices were prepared; after another boot nothing below /var/run is left."""
    devices: tuple[HeldDevice, ...]
    cdi_digest: str | None
    """Of the claim's CDI file as it must be; None of an entry with holds until all of these are made."""
    holds: tuple[Hold, ...] = ()
    """In the order in which they are made."""
    releasing: bool = False
    """Taken back, or about to be: by kubelet, or because it could not be prepared."""
    metadata: ClaimMetadata | None = None
    """None: no device metadata; so are claims of releases before it, whose kubelet knows of none."""
    binding: BindingStage = BindingStage.NONE
    extra: str = ""

    @property
    def in_use(self) -> bool:
        """Whether it was prepared, and is not being taken back."""
        return self.cdi_digest is not None and not self.releasing

    @property
    def files(self) -> "FileDigests | None":
        """What the claim's files must be; None until that is decided."""
        if self.cdi_digest is None:
            return None
        return FileDigests(self.cdi_digest, self.metadata.digest if self.metadata is not None else "")


def digest_of(content: bytes) -> str:
    """How a file is compared with what the journal remembers of it: SHA-256, in hex."""
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True, slots=True)
class FileDigests:
    """Of the files of one claim: its CDI file (None: it has none), and its device metadata (empty: it has none)."""

    cdi: str | None
    metadata: str = ""


type Held = Mapping[str, Entry]
"""The claims that hold devices of this node, by claim UID. Never changed: a change makes a new one."""


class HeldByOther(DeviceInUse):
    """Refused because `holder` has the device."""

    help = Help(
        Move.OTHER_CLAIM,
        "The named claim holds the GPU on this node, or needs other settings of it than this claim.",
        "As with [DeviceInUse](#deviceinuse). A claim with other settings of the same GPU (another time slice, MPS"
        " beside time-slicing) waits until the first is released: [sharing.md](sharing.md#what-excludes-what).",
    )

    def __init__(self, message: str, *, about: str, holder: Entry) -> None:
        self.holder = holder
        super().__init__(message, about=about)


class LeftBehind(NodeNotReady):
    """Refused because something that no claim needs is still on the GPU; it is cleared soon."""

    help = Help(
        Move.NO_ONE,
        "What an earlier claim left on the GPU (a partition, an MPS daemon, a binding) could not be removed "
        "then, and blocks this claim.",
        "Usually nothing: the plugin removes it as soon as the GPU answers, and the kubelet tries again. The log "
        "says what could not be removed, and why.",
    )


class ModeChanging(NodeNotReady):
    """Refused because the MIG mode of the GPU is being switched by a reset."""

    help = Help(
        Move.NO_ONE,
        "The policy lets the driver switch the MIG mode of a GPU by a reset, and that was begun when no claim used the "
        "GPU.",
        "Nothing: it takes seconds, and the kubelet tries again. If the GPU then has other devices than the claim was "
        "allocated, the mode is switched back for the claim.",
    )


def admitted(held: Held, entry: Entry, records: Records | None = None) -> Held:
    """`held` with `entry`, in place of an earlier entry of the same claim. `records` are all holds of the journal.

    Raises HeldByOther when another claim has the hardware, or has it set otherwise; admin access neither holds nor is
    refused. Raises LeftBehind when a hold without a claim is in the way.
    """
    others = [other for uid, other in held.items() if uid != entry.claim.uid]
    for device in entry.devices:
        if not device.admin_access:
            for other in others:
                _check_devices(entry, device, other)
    if entry.holds:
        for other in others:
            _check_holds(entry, other)
    if records:
        _check_left_behind(held, entry, records)
    return {**held, entry.claim.uid: entry}


def _check_devices(entry: Entry, device: HeldDevice, other: Entry) -> None:
    for held in other.devices:
        if held.admin_access or held.gpu_uuid != device.gpu_uuid:
            continue
        reason = conflict(held.use, device.use)
        if reason is not None:
            who = f"{other.claim} (UID {other.claim.uid})"
            alias = "" if held.device == device.device else f" as {held.device}"
            shared = held.sharing is not None and held.sharing.shared and bool(held.sharing.settings)
            settings = f" with {held.sharing.settings}" if shared and held.sharing is not None else ""
            raise HeldByOther(
                f"device {device.device} ({device.gpu_uuid}) is still held by {who}{alias}{settings}: {reason};"
                " it is free once the pods of that claim have stopped; the kubelet tries again",
                about=str(entry.claim),
                holder=other,
            )


def _check_holds(entry: Entry, other: Entry) -> None:
    """What the table of uses allows must agree in its settings, too."""
    for hold in entry.holds:
        conflicting = next((held for held in other.holds if excludes(hold, held)), None)
        if conflicting is not None:
            raise HeldByOther(
                f"needs {described(hold)}, but {other.claim} (UID {other.claim.uid}) has {described(conflicting)};"
                " it is free once the pods of that claim have stopped; the kubelet tries again",
                about=str(entry.claim),
                holder=other,
            )


def _check_left_behind(held: Held, entry: Entry, records: Records) -> None:
    gpus = {device.gpu_uuid for device in entry.devices if not device.admin_access}
    for hold in left_behind(held, records):
        if hold not in entry.holds and any(gpu.uuid in gpus for gpu in gpus_of(hold)):
            raise LeftBehind(
                f"{described(hold)} was left by a claim that no longer exists, and is removed first;"
                " the kubelet tries again",
                about=str(entry.claim),
            )


def needed(held: Held, hold: Hold, *, but: str | None = None) -> bool:
    """Whether an entry other than that of the claim with UID `but` lists the hold. One on its way out does, too."""
    return any(hold in entry.holds for uid, entry in held.items() if uid != but)


def left_behind(held: Held, records: Records) -> tuple[Hold, ...]:
    """Holds that no entry lists: of entries that were lost."""
    return tuple(hold for hold in records if not isinstance(hold, SwitchedMode) and not needed(held, hold))


def mig_uuids(entry: Entry, records: Records) -> frozenset[str]:
    """The MIG devices of a claim, those that exist and those that were made for it."""
    made = (
        records[hold].made.get("uuid") for hold in entry.holds if isinstance(hold, ComputeInstance) and hold in records
    )
    return frozenset(uuid for uuid in (*(device.mig_uuid for device in entry.devices), *made) if uuid is not None)


def made_mig_uuid(gpu_uuid: str, partition: Partition | None, records: Records) -> str:
    """Of the MIG device that was made for claims at this place of a GPU; empty while there is none."""
    for hold, record in records.items():
        if isinstance(hold, ComputeInstance) and (hold.parent.gpu.uuid, hold.partition) == (gpu_uuid, partition):
            return record.made.get("uuid") or ""
    return ""


def is_made(entry: Entry, records: Records) -> bool:
    """Whether all of its holds were made in the boot of the entry."""
    hold_records = (records.get(hold) for hold in entry.holds)
    return all(
        hold_record is not None and hold_record.state is HoldState.MADE and hold_record.boot_id == entry.boot_id
        for hold_record in hold_records
    )


def without_claim(held: Held, claim_uid: str) -> Held:
    """`held` without that claim; the same when it holds nothing."""
    return {uid: entry for uid, entry in held.items() if uid != claim_uid}


class JournalState(Enum):
    """See the table at the top."""

    ABSENT = "absent"
    PREPARED = "prepared"
    UNFINISHED = "unfinished"
    ORPHANED = "orphaned"


def state_of(entry: Entry | None, files: FileDigests | None, records: Records | None = None) -> JournalState:
    """`files` are the claim's as they are now; None when it has none at all."""
    if entry is None:
        return JournalState.ABSENT if files is None else JournalState.ORPHANED
    if entry.releasing or (entry.holds and not is_made(entry, records or {})):
        return JournalState.UNFINISHED
    return JournalState.PREPARED if files is not None and files == entry.files else JournalState.UNFINISHED


class ClaimStanding(Enum):
    """What the API says about a claim that is in the journal; the value ends a sentence that begins with the claim."""

    STANDS = "is allocated as it was"
    GONE = "no longer exists"
    RECREATED = "was created again with another UID"
    DEALLOCATED = "is no longer allocated"
    MOVED = "has other devices now"
    UNUSED = "is not reserved for any pod since the node booted"
    UNKNOWN = "cannot be read from the API server"

    @property
    def is_stale(self) -> bool:
        """Whether the claim has lost its right to the devices."""
        return self not in (ClaimStanding.STANDS, ClaimStanding.UNKNOWN)


def standing_of(entry: Entry, claim: ResourceClaim | None, driver: str, boot_id: str) -> ClaimStanding:
    """`claim` is the object of that namespace and name, None when there is none; `boot_id` is the present one."""
    if claim is None:
        return ClaimStanding.GONE
    if claim.metadata.uid != entry.claim.uid:
        return ClaimStanding.RECREATED
    if claim.status.allocation is None:
        return ClaimStanding.DEALLOCATED
    allocated = Counter(map(_allocated, claim.results_of(driver)))
    if allocated != Counter(_allotted(device) for device in entry.devices):
        return ClaimStanding.MOVED
    if entry.boot_id != boot_id and not claim.status.reserved_for:
        return ClaimStanding.UNUSED
    return ClaimStanding.STANDS


type _Allotment = tuple[str, str, tuple[str, ...], bool, str | None]
"""What a claim was given, and how: pool, device, requests, admin access, share. A difference in any is another one."""


def _allocated(result: AllocatedDevice) -> _Allotment:
    request = RequestName.of(result.request).request
    return result.pool, result.device, (request,), result.admin_access is True, result.share_id


def _allotted(device: HeldDevice) -> _Allotment:
    return device.pool, device.device, device.request_names, device.admin_access, device.share_id
