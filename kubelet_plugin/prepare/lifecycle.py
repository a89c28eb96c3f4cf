"""What a claim can be on this node, who may hold a GPU, and what a difference between journal and node means.

Pure: `kubelet_plugin.prepare.plan` makes entries, `kubelet_plugin.prepare.store` keeps them, the service and
`kubelet_plugin.prepare.repair` ask here what they mean.

The theory. **An entry of the journal is a promise**: claim C holds these devices, and its CDI file has this digest. It
is the intent, written durably before the file appears. Whether it was carried out is not written down a second time but
looked up: the file either has that digest or not. So a claim is in one of four states,

    entry  file with that digest   state       how it came about
    no     no file                 ABSENT
    yes    yes                     PREPARED    what kubelet was told of
    yes    no                      UNFINISHED  cut short while preparing or unpreparing; or the file was damaged
    no     any file                ORPHANED    cut short while unpreparing; or the journal was damaged

and every one of them can be left in one step: UNFINISHED by writing the file (again), or by undoing the claim, and
ORPHANED by removing the file. Which of the two an UNFINISHED claim needs is for its object in the API to say
(`Standing`), and where that cannot be asked it is finished: a file that nobody reads does no harm, a missing one keeps
a container from restarting. Nothing that was promised is forgotten by a crash, and no second durable write per
claim is needed to say "done".

**The entry is also the lock.** A GPU belongs to a claim from the moment that the entry is in the journal until it is
out of it. Nobody waits for a GPU: whoever comes second is refused at once and told who holds it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from dra_driver.api.resource import AllocatedDevice, ResourceClaim
from dra_driver.errors import DeviceInUse
from dra_driver.names import ClaimRef, RequestName
from kubelet_plugin.prepare.answer import PreparedDevice
from kubelet_plugin.prepare.steps import CdiFileRecord, StepRecord


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
    extra: str = ""
    """Fields of a newer release, as a JSON object; empty when there are none."""

    @property
    def answer(self) -> PreparedDevice:
        return PreparedDevice(self.request_names, self.pool, self.device, self.cdi_ids, self.share_id)


@dataclass(frozen=True, slots=True)
class Entry:
    """One claim in the journal."""

    claim: ClaimRef
    boot_id: str
    """Of the boot in which the devices were prepared; after another boot nothing below /var/run is left."""
    devices: tuple[HeldDevice, ...]
    steps: tuple[StepRecord, ...]
    """In the order in which they were carried out."""
    extra: str = ""

    @property
    def answer(self) -> tuple[PreparedDevice, ...]:
        return tuple(device.answer for device in self.devices)

    @property
    def cdi_digest(self) -> str | None:
        """Of the claim's CDI file as it must be; None for a claim without one."""
        return next((step.digest for step in self.steps if isinstance(step, CdiFileRecord)), None)


type Held = Mapping[str, Entry]
"""The claims that hold devices of this node, by claim UID. Never changed: a change makes a new one."""


class HeldByOther(DeviceInUse):
    """Refused because `holder` has the device."""

    def __init__(self, message: str, *, about: str, holder: Entry) -> None:
        self.holder = holder
        super().__init__(message, about=about)


def admitted(held: Held, entry: Entry) -> Held:
    """`held` with `entry`, in place of an earlier entry of the same claim.

    Raises HeldByOther when another claim holds one of its GPUs; admin access neither holds nor is refused.
    """
    for device in entry.devices:
        holder = None if device.admin_access else holder_of(held, device.gpu_uuid, but=entry.claim.uid)
        if holder is not None:
            raise HeldByOther(
                f"device {device.device} ({device.gpu_uuid}) is still held by {holder.claim} (UID {holder.claim.uid});"
                " it is free once the pods of that claim have stopped; kubelet tries again",
                about=str(entry.claim),
                holder=holder,
            )
    return {**held, entry.claim.uid: entry}


def released(held: Held, claim_uid: str) -> Held:
    """`held` without that claim; the same when it holds nothing."""
    return {uid: entry for uid, entry in held.items() if uid != claim_uid}


def holder_of(held: Held, gpu_uuid: str, *, but: str | None = None) -> Entry | None:
    """The claim that holds this physical GPU, other than the claim with UID `but`."""
    for uid, entry in held.items():
        if uid != but and any(not device.admin_access and device.gpu_uuid == gpu_uuid for device in entry.devices):
            return entry
    return None


class State(Enum):
    """See the table at the top."""

    ABSENT = "absent"
    PREPARED = "prepared"
    UNFINISHED = "unfinished"
    ORPHANED = "orphaned"


def state_of(entry: Entry | None, file_digest: str | None) -> State:
    """`file_digest` is that of the claim's CDI file as it is now; None when there is no file."""
    if entry is None:
        return State.ABSENT if file_digest is None else State.ORPHANED
    return State.PREPARED if file_digest == entry.cdi_digest else State.UNFINISHED


class Standing(Enum):
    """What the API says about a claim that is in the journal; the value ends a sentence that begins with the claim."""

    STANDS = "is allocated as it was"
    GONE = "does not exist any more"
    RECREATED = "was created again with another UID"
    DEALLOCATED = "is not allocated any more"
    MOVED = "has other devices now"
    UNUSED = "is not reserved for any pod since the node booted"
    UNKNOWN = "cannot be read from the API server"

    @property
    def is_stale(self) -> bool:
        """Whether the claim has lost its right to the devices."""
        return self not in (Standing.STANDS, Standing.UNKNOWN)


def standing_of(entry: Entry, claim: ResourceClaim | None, driver: str, boot_id: str) -> Standing:
    """`claim` is the object of that namespace and name, None when there is none; `boot_id` is the present one."""
    if claim is None:
        return Standing.GONE
    if claim.metadata.uid != entry.claim.uid:
        return Standing.RECREATED
    if claim.status.allocation is None:
        return Standing.DEALLOCATED
    results = claim.status.allocation.devices.results
    allocated = Counter(_allocated(result) for result in results if result.driver == driver)
    if allocated != Counter(_allotted(device) for device in entry.devices):
        return Standing.MOVED
    if entry.boot_id != boot_id and not claim.status.reserved_for:
        return Standing.UNUSED
    return Standing.STANDS


type _Allotment = tuple[str, str, tuple[str, ...], bool, str | None]
"""What a claim was given, and how: pool, device, requests, admin access, share. A difference in any is another one."""


def _allocated(result: AllocatedDevice) -> _Allotment:
    request = RequestName.of(result.request).request
    return result.pool, result.device, (request,), result.admin_access is True, result.share_id


def _allotted(device: HeldDevice) -> _Allotment:
    return device.pool, device.device, device.request_names, device.admin_access, device.share_id
