"""What this driver did to the hardware for claims, and the facts of a node without it. Pure.

The inventory says what the hardware is, not what claims make of it: it does not show a MIG mode that this driver
switched on, the instances in it, or a GPU that it lent to a virtual machine. Discovery reads the hardware, takes from
the journal what this driver made (`ours_of`), and publishes the facts `without_ours`. So facts are the same before,
while and after a claim is prepared.

Some facts cannot be read while a GPU serves a claim: NVML does not report NVLink peers in MIG mode, and does not see a
GPU that is bound to a VFIO driver. These facts are the earlier ones, which the journal keeps with the hold (`kept`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from dra_driver.api.inventory import GpuFacts, GpuInstanceFacts, MigFacts, ModeObstacle, NvlinkFacts
from dra_driver.names import gpu_device_names
from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    FabricPartition,
    GpuIdentity,
    GpuInstance,
    Hold,
    HoldRecord,
    HoldState,
    MigMode,
    Records,
    SwitchedMode,
    VfioBinding,
)
from kubelet_plugin.prepare.journal import Journal
from kubelet_plugin.prepare.lifecycle import HeldDevice

KEPT = "gpu"
"""Key in the `Made` of a MigMode or VfioBinding, from its intent on: the GPU's facts before."""

_UNTOLD_IN_MIG_MODE = (
    "memory_bytes", "addressing_mode", "fabric", "ecc_enabled", "multiprocessors",
)  # fmt: skip
"""What NVML may answer otherwise, or not at all, while a GPU is in MIG mode. NVLink is a matter of its own."""


type InstancePlace = tuple[str, str, int, int]
"""Where a GPU instance of this driver is, is being made or is being undone: UUID of the GPU, profile, start and size in
memory slices."""


@dataclass(frozen=True, slots=True, order=True)
class Expected:
    """A MIG device that must be there, because this driver made it for a claim. `described` is `1g.10gb at 3`."""

    gpu_uuid: str
    mig_uuid: str
    described: str


@dataclass(frozen=True, slots=True)
class InUse:
    """A MIG device of an administrator that a claim holds. `instance` is its GPU instance as it was published, with
    this compute instance alone; None when that is no longer known."""

    gpu_uuid: str
    mig_uuid: str
    instance: GpuInstanceFacts | None = None


@dataclass(frozen=True, slots=True)
class DriverFootprint:
    """What the journal says now. `modes` are GPUs whose MIG mode this driver switched on, `lent` those that it bound to
    VFIO: each with its earlier facts, None when they were not kept."""

    modes: Mapping[GpuIdentity, GpuFacts | None] = field(default_factory=dict)
    lent: Mapping[GpuIdentity, GpuFacts | None] = field(default_factory=dict)
    places: frozenset[InstancePlace] = frozenset()
    expected: tuple[Expected, ...] = ()
    in_use: tuple[InUse, ...] = ()
    partitions: frozenset[int] = frozenset()
    """Fabric partitions that must be active, because claims have them."""
    switched: frozenset[str] = frozenset()
    """UUIDs of GPUs whose MIG mode this driver switched on by a reset, or is switching."""
    obstacles: Mapping[str, ModeObstacle] = field(default_factory=dict)
    """By UUID: what is in the way of switching it."""

    def before(self) -> dict[str, GpuFacts]:
        """By GPU UUID, the earlier facts of each GPU that does not show them now."""
        both = (*self.modes.items(), *self.lent.items())
        return {gpu.uuid: facts for gpu, facts in both if facts is not None}


NOTHING = DriverFootprint()


def during(moments: Sequence[DriverFootprint]) -> DriverFootprint:
    """What this driver had made at any of these moments, and what was expected at all of them."""
    first = moments[0]
    return DriverFootprint(
        modes={gpu: facts for moment in moments for gpu, facts in moment.modes.items()},
        lent={gpu: facts for moment in moments for gpu, facts in moment.lent.items()},
        places=frozenset(place for moment in moments for place in moment.places),
        expected=tuple(each for each in first.expected if all(each in moment.expected for moment in moments)),
        in_use=tuple(each for each in first.in_use if all(each in moment.in_use for moment in moments)),
        partitions=frozenset.intersection(*(moment.partitions for moment in moments)),
        switched=moments[-1].switched,
        obstacles=moments[-1].obstacles,
    )


@dataclass(frozen=True, slots=True, order=True)
class Lost:
    """A MIG device that a claim has, and that no longer exists."""

    gpu_uuid: str
    mig_uuid: str
    message: str


def kept_text(gpu: GpuFacts) -> str:
    """The facts of a GPU for its hold's intent, under the key `KEPT`. Its health is not for keeping."""
    return gpu.model_dump_json(by_alias=True, exclude_defaults=True, exclude={"health"})


def kept_facts(record: HoldRecord) -> GpuFacts | None:
    """The facts that were kept with the intent; None when there are none, or none that can be read."""
    text = record.made.get(KEPT)
    if text is None:
        return None
    try:
        return GpuFacts.model_validate_json(text)
    except ValidationError:
        return None


def ours_of(records: Records, boot_id: str, in_use: Iterable[InUse] = ()) -> DriverFootprint:
    """What this driver made, from the journal. What it made in another boot is not expected: it is made again."""
    expected = (_expected(hold, record, boot_id) for hold, record in records.items())
    return DriverFootprint(
        modes={
            hold.gpu: kept_facts(record)
            for hold, record in records.items()
            if isinstance(hold, MigMode) and record.made.get("was") == "off"
        },
        lent={hold.gpu: kept_facts(record) for hold, record in records.items() if isinstance(hold, VfioBinding)},
        places=frozenset(
            (hold.gpu.uuid, hold.profile, hold.start, hold.size) for hold in records if isinstance(hold, GpuInstance)
        ),
        expected=tuple(sorted(item for item in expected if item is not None)),
        in_use=tuple(in_use),
        partitions=frozenset(
            hold.partition
            for hold, record in records.items()
            if isinstance(hold, FabricPartition) and record.state is HoldState.MADE and record.boot_id == boot_id
        ),
        switched=frozenset(hold.gpu.uuid for hold in records if isinstance(hold, SwitchedMode)),
    )


def _expected(hold: Hold, record: HoldRecord, boot_id: str) -> Expected | None:
    if not isinstance(hold, ComputeInstance) or record.state is not HoldState.MADE or record.boot_id != boot_id:
        return None
    uuid = record.made.get("uuid")
    parent = hold.parent
    return Expected(parent.gpu.uuid, uuid, f"{parent.profile} at {parent.start}") if uuid is not None else None


def lost(gpus: Sequence[GpuFacts], ours: DriverFootprint) -> tuple[Lost, ...]:
    """MIG devices of claims that the hardware no longer has, on GPUs that could be read. Sorted.

    `gpus` are as the hardware is: before `without_ours`. A new MIG device at the same place does not replace a lost
    one: it has another UUID, and the container of the lost device cannot use it.
    """
    there = {gpu.uuid: {device.uuid for device in gpu.mig_devices} for gpu in gpus}
    made = (
        Lost(
            expected.gpu_uuid,
            expected.mig_uuid,
            f"MIG device {expected.mig_uuid} ({expected.described}), which was created for a claim, no longer exists,"
            " because an administrator or another tool deleted it; delete the pods that use it, and it is created"
            " again with the claim",
        )
        for expected in ours.expected
    )
    given = (
        Lost(
            in_use.gpu_uuid,
            in_use.mig_uuid,
            f"MIG device {in_use.mig_uuid}, which a claim holds, no longer exists, because the MIG layout was changed"
            " while it was in use; delete the pods that use it",
        )
        for in_use in ours.in_use
    )
    results = {item for item in (*made, *given) if item.gpu_uuid in there and item.mig_uuid not in there[item.gpu_uuid]}
    return tuple(sorted(results))


def without_ours(gpus: Sequence[GpuFacts], ours: DriverFootprint) -> tuple[GpuFacts, ...]:
    """The facts as they would be without this driver, by PCI address; a GPU lent to a virtual machine is among them.

    An administrator's MIG device that a claim holds stays while the claim does, also when it is gone: `lost` says so.
    """
    live = {gpu.uuid: gpu for gpu in gpus}
    lent = {gpu.uuid: facts for gpu, facts in ours.lent.items() if facts is not None and gpu.uuid not in live}
    present = live.keys() | lent.keys()
    before = ours.before()
    restorable = [_without(gpu, ours, before.get(gpu.uuid)) for gpu in gpus] + list(lent.values())
    names = gpu_device_names(present)
    restored = (
        gpu.model_copy(update={"name": names[gpu.uuid], "nvlink": _nvlink(gpu, before, present)}) for gpu in restorable
    )
    return tuple(sorted(restored, key=lambda gpu: gpu.pci_bus_id))


def _without(gpu: GpuFacts, ours: DriverFootprint, before: GpuFacts | None) -> GpuFacts:
    if before is not None:
        untold = {name: getattr(before, name) for name in _UNTOLD_IN_MIG_MODE}
        gpu = gpu.model_copy(update=untold)
    if gpu.mig is None:
        return gpu
    mig = gpu.mig.model_copy(
        update={
            "instances": _instances_without(gpu.uuid, gpu.mig.instances, ours),
            "switched": gpu.uuid in ours.switched,
            "obstacle": ours.obstacles.get(gpu.uuid),
        }
    )
    # If another instance uses the MIG mode that this driver switched on, the mode is no longer this driver's alone.
    if not mig.instances and any(mode.uuid == gpu.uuid for mode in ours.modes):
        mig = mig.model_copy(update={"enabled": False, "pending": False})
    if before is not None and before.mig is not None and before.mig.profiles:
        mig = mig.model_copy(update={"profiles": before.mig.profiles})
    return gpu.model_copy(update={"mig": _with_in_use(gpu.uuid, mig, ours)})


def _instances_without(
    uuid: str, instances: Sequence[GpuInstanceFacts], ours: DriverFootprint
) -> list[GpuInstanceFacts]:
    return [
        instance for instance in instances if (uuid, instance.profile, instance.start, instance.size) not in ours.places
    ]


def _with_in_use(uuid: str, mig: MigFacts, ours: DriverFootprint) -> MigFacts:
    there = {device.uuid for instance in mig.instances for device in instance.compute_instances}
    gone = [
        in_use.instance
        for in_use in ours.in_use
        if in_use.gpu_uuid == uuid and in_use.mig_uuid not in there and in_use.instance is not None
    ]
    if not gone:
        return mig
    instances = list(mig.instances)
    for lost_one in gone:
        instances = _put_back(instances, lost_one)
    # Enabled, because the GPU as a whole is not free as long as a claim holds a part of it.
    return mig.model_copy(update={"enabled": True, "instances": sorted(instances, key=_by_start)})


def _put_back(instances: list[GpuInstanceFacts], lost_one: GpuInstanceFacts) -> list[GpuInstanceFacts]:
    def place(instance: GpuInstanceFacts) -> tuple[int, str, int, int]:
        return instance.id, instance.profile, instance.start, instance.size

    if place(lost_one) not in map(place, instances):
        return [*instances, lost_one]
    devices = lost_one.compute_instances
    return [
        instance.model_copy(update={"compute_instances": [*instance.compute_instances, *devices]})
        if place(instance) == place(lost_one)
        else instance
        for instance in instances
    ]


def _nvlink(gpu: GpuFacts, before: Mapping[str, GpuFacts], present: Iterable[str]) -> NvlinkFacts | None:
    """NVLink as it is without us: a GPU in MIG mode, or one that is lent, carries no traffic for its peers."""
    own = before.get(gpu.uuid)
    facts = own.nvlink if own is not None else gpu.nvlink
    if facts is None:
        return None
    peers = set(facts.peers)
    peers.update(uuid for uuid, other in before.items() if other.nvlink is not None and gpu.uuid in other.nvlink.peers)
    return facts.model_copy(update={"peers": sorted(peers & set(present))})


def _by_start(instance: GpuInstanceFacts) -> tuple[int, int]:
    return (instance.start, instance.id)


def claimed(journal: Journal, boot_id: str) -> DriverFootprint:
    """What was made for claims, and what of an administrator's MIG devices they hold."""
    return ours_of(journal.holds, boot_id, tuple(_in_use(journal)))


def _in_use(journal: Journal) -> Iterator[InUse]:
    for uid in sorted(journal.held):
        for device in journal.held[uid].devices:
            if device.mig_uuid is not None and not device.admin_access:
                yield InUse(device.gpu_uuid, device.mig_uuid, _instance(device))


def _instance(device: HeldDevice) -> GpuInstanceFacts | None:
    try:
        return GpuInstanceFacts.model_validate_json(device.gpu_instance)
    except ValidationError:
        return None
