"""What a claim needs of the hardware beyond its files: settings and objects that outlive a call, shared by claims.

A *hold* says how something on the node must be while at least one claim needs it: this MIG mode, this GPU instance at
this place, this time slice, this MPS daemon. It is a value, equal to the same hold of another claim. `plan` lists a
claim's holds in the order in which they are made, `execute` makes each when its first claim comes and undoes it when
its last one goes, and the journal remembers for each (`HoldRecord`) that it was begun, and what came of it.

Making and undoing is for `kubelet_plugin.effects`: one `Effect` for each kind of hold. Both are idempotent, because a
crash can come between the act and the journal: `make` looks at what is there first, and `undo` takes away only what it
can identify as this driver's. Pure: values and the port.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, Protocol

from dra_driver.api.inventory import GpuFacts
from dra_driver.devices.model import Partition


@dataclass(frozen=True, slots=True, order=True)
class GpuIdentity:
    """A physical GPU. The UUID is the identity; the PCI address finds it where NVML does not see it."""

    uuid: str
    pci_bus_id: str

    @classmethod
    def of(cls, gpu: GpuFacts) -> "GpuIdentity":
        return cls(gpu.uuid, gpu.pci_bus_id)

    def __str__(self) -> str:
        return f"GPU {self.uuid} ({self.pci_bus_id})"


@dataclass(frozen=True, slots=True)
class MigMode:
    """MIG mode on. Made: whether it was on before, and then it is left on."""

    gpu: GpuIdentity


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A GPU instance at a place, in memory slices. Needs MigMode."""

    gpu: GpuIdentity
    profile: str
    profile_id: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """A compute instance of a GPU instance: all of it, or `slices` compute slices from `start`."""

    parent: GpuInstance
    slices: int | None = None
    start: int = 0

    @property
    def partition(self) -> Partition:
        parent = self.parent
        return Partition(parent.profile, parent.start, parent.size, self.slices, self.start)


type MigDevice = ComputeInstance | str
"""One that is made for claims, or the UUID of one that an administrator made."""


@dataclass(frozen=True, slots=True)
class FabricPartition:
    """A fabric partition active: NVSwitches connect these GPUs, and no others. Made: `was` (`active`, `inactive`)."""

    partition: int
    """Fabric Manager's number of it."""
    gpus: tuple[GpuIdentity, ...]
    """All GPUs of the partition, sorted."""


@dataclass(frozen=True, slots=True)
class ComputeMode:
    """NVML's compute mode of a GPU: 0 default, 3 exclusive process. Made: the mode before."""

    gpu: GpuIdentity
    mode: Literal[0, 3]


@dataclass(frozen=True, slots=True)
class TimeSlice:
    """The time slice of a GPU. Made: nothing to remember, the way back is Default."""

    gpu: GpuIdentity
    interval: Literal["Default", "Short", "Medium", "Long"]


@dataclass(frozen=True, slots=True)
class MpsDaemon:
    """One MPS control daemon, for these GPUs or MIG devices. `key` names its directories: a DNS label.

    A claim that has GPUs for itself has a daemon of its own (`key` made from the claim's UID); shares of one device
    have one together (`key` made from the device's name). Limits are the daemon's defaults for its clients: percent of
    threads, bytes of device memory by GPU UUID or MIG device. A share's own limits go into its containers instead.
    """

    key: str
    gpus: tuple[GpuIdentity, ...]
    """The GPUs that it serves, or whose MIG device it serves."""
    mig: MigDevice | None = None
    multi_user: bool = False
    thread_percentage: int | None = None
    memory_limits: tuple[tuple[str, int], ...] = ()
    """GPU UUID, or `mig` for the MIG device, to bytes; sorted."""


@dataclass(frozen=True, slots=True)
class VfioBinding:
    """The GPU bound to a VFIO driver. Made: which driver it had, and what a container gets."""

    gpu: GpuIdentity
    iommufd: bool


@dataclass(frozen=True, slots=True)
class UnknownHold:
    """A hold of a newer release, of another kind or with another field: it can neither be made nor undone here."""

    kind: str
    text: str
    """The JSON object, with its kind."""


@dataclass(frozen=True, slots=True)
class SwitchedMode:
    """MIG mode of a GPU that switches it only by a reset, because the policy asks for it. No claim's: its record stays
    from the intent to switch it on until it is off again, and UNDOING is switching it off."""

    gpu: GpuIdentity


type Hold = (
    MigMode
    | GpuInstance
    | ComputeInstance
    | FabricPartition
    | ComputeMode
    | TimeSlice
    | MpsDaemon
    | VfioBinding
    | SwitchedMode
    | UnknownHold
)

_ORDER = (
    MigMode, GpuInstance, ComputeInstance, FabricPartition, ComputeMode, TimeSlice, MpsDaemon, VfioBinding,
    SwitchedMode, UnknownHold,
)  # fmt: skip


def in_order(holds: Iterable[Hold]) -> tuple[Hold, ...]:
    """Each once, in the order in which every claim makes its holds: what others need first, then by content.

    It is the same for all claims, so that two that wait for each other's holds cannot wait for ever.
    """
    return tuple(sorted(set(holds), key=lambda hold: (_ORDER.index(type(hold)), repr(hold))))


def gpus_of(hold: Hold) -> tuple[GpuIdentity, ...]:
    """The GPUs that a hold is about; none of one that is not known."""
    if isinstance(hold, UnknownHold):
        return ()
    if isinstance(hold, MpsDaemon | FabricPartition):
        return hold.gpus
    return (hold.parent.gpu,) if isinstance(hold, ComputeInstance) else (hold.gpu,)


def rests_on(hold: Hold) -> Hold | None:
    """What must be there as long as the hold is, and is undone after it; None: nothing."""
    match hold:
        case GpuInstance(gpu):
            return MigMode(gpu)
        case ComputeInstance(parent):
            return parent
        case _:
            return None


def subject_of(hold: Hold) -> Hashable:
    """What a hold says something about: two different holds of one subject cannot be at once."""
    match hold:
        case GpuInstance(gpu, _, _, start, _):
            return GpuInstance, gpu, start
        case ComputeInstance(parent, slices, start):
            return ComputeInstance, parent, slices, start
        case FabricPartition(partition):
            return FabricPartition, partition
        case MpsDaemon(key):
            return MpsDaemon, key
        case UnknownHold(_, text):
            return UnknownHold, text
        case _:
            return type(hold), hold.gpu


def excludes(hold: Hold, other: Hold) -> bool:
    """Whether two holds cannot be at once: they differ about a subject, or are two partitions with a GPU in common."""
    if isinstance(hold, FabricPartition) and isinstance(other, FabricPartition):
        return hold != other and not set(hold.gpus).isdisjoint(other.gpus)
    return hold != other and subject_of(hold) == subject_of(other)


def described(hold: Hold) -> str:
    """For people: what is wanted, and of what."""
    match hold:
        case MigMode(gpu):
            return f"MIG mode of {gpu}"
        case GpuInstance(gpu, profile, _, start, _):
            return f"GPU instance {profile} at memory slice {start} of {gpu}"
        case ComputeInstance(parent, None, _):
            return f"the compute instance of {described(parent)}"
        case ComputeInstance(parent, slices, start):
            return f"a compute instance of {slices} slices from {start} of {described(parent)}"
        case FabricPartition(partition, gpus):
            return f"fabric partition {partition} of {', '.join(map(str, gpus))}"
        case ComputeMode(gpu, mode):
            return f"compute mode {'EXCLUSIVE_PROCESS' if mode else 'DEFAULT'} of {gpu}"
        case TimeSlice(gpu, interval):
            return f"time slice {interval} of {gpu}"
        case MpsDaemon(key, gpus, _, multi_user):
            users = " for several users" if multi_user else ""
            return f"MPS daemon {key}{users} of {', '.join(map(str, gpus))}"
        case VfioBinding(gpu, iommufd):
            return f"a VFIO driver ({'iommufd' if iommufd else 'legacy group'}) for {gpu}"
        case SwitchedMode(gpu):
            return f"MIG mode of {gpu}, switched by a reset"
        case UnknownHold(kind, _):
            return f"something of a newer release ({kind})"


@dataclass(frozen=True, slots=True)
class Made:
    """What came of a hold: facts that its undoing, later holds and the CDI spec need. Keys are those of the effect.

    MigMode: `was` (`on`, `off`). GpuInstance: `gi`. ComputeInstance: `gi`, `ci`, `uuid`. ComputeMode: `was` (number).
    FabricPartition: `was` (`active`, `inactive`), `persistent` (UUIDs of GPUs, separated by commas).
    MpsDaemon: `pipe`, `shm`, `log` (host folders), `launcher`, `unit` or `pid` and `started`. VfioBinding: `was`
    (driver), `group`, and `node` (the container's device, `/dev/vfio/...`).
    """

    facts: tuple[tuple[str, str], ...] = ()

    def __getitem__(self, key: str) -> str:
        return dict(self.facts)[key]

    def get(self, key: str) -> str | None:
        return dict(self.facts).get(key)

    def with_facts(self, other: "Made") -> "Made":
        """These facts, and those of `other`, which win."""
        return Made(tuple(sorted({**dict(self.facts), **dict(other.facts)}.items())))


class HoldState(Enum):
    """INTENT: making was begun. MADE: it is as it must be. UNDOING: its last claim goes, undoing was begun."""

    INTENT = "intent"
    MADE = "made"
    UNDOING = "undoing"


@dataclass(frozen=True, slots=True)
class HoldRecord:
    """The journal's memory of a hold. `boot_id` is that of the boot in which it was made: nothing but MIG mode on
    Ampere outlives another one.

    An INTENT has the facts of `Effect.before`; in a later boot, or after an undo that failed, those of the last time,
    but of instances none.
    """

    state: HoldState
    boot_id: str
    made: Made = Made()
    extra: str = ""
    """Fields of a newer release, as a JSON object; empty when there are none."""


type Records = Mapping[Hold, HoldRecord]


class Effect[H](Protocol):
    """Makes and undoes one kind of hold; blocking, called in a thread, for one hold by one caller at a time.

    What an effect needs of earlier holds it finds in `records`: the MIG device that an MPS daemon serves, for instance.
    """

    def before(self, hold: H, records: Records) -> Made:
        """What must be remembered before anything is done: how it was. Changes nothing.

        Durable, with the INTENT, when `make` begins. Called when there is no record of the hold; the holds that come
        before it may not have been made yet. Raises NodeNotReady that says what is in the way already.
        """

    def make(self, hold: H, records: Records) -> Made:
        """Make it so, or find it made: `records[hold]` is what an earlier attempt left, also of another boot.

        Raises NodeNotReady (HardwareError) that says what is in the way, whose move it is; then nothing of this hold
        is left behind, or `undo` with the same record clears it.
        """

    def undo(self, hold: H, records: Records, boot_id: str) -> None:
        """Undo what this driver made of it: `records[hold]` says what that was, and in which boot.

        A missing hold is fine. Raises NodeNotReady (HardwareError) when it cannot be undone now.
        """


type Effects = Mapping[type[Any], Effect[Any]]
"""By the type of hold. What is missing cannot be made or undone on this node, and is refused."""
