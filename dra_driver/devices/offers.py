"""Inventory and policy to everything that a node offers, in the order in which schedulers should try it.

GPU after GPU in the order of the inventory; on one GPU the smallest piece first, because schedulers take the first
device that fits: partitions by size (each profile's places as `packing` orders them), shares, the full GPU, the GPU
for virtual machines. What a cluster cannot express (partitions that exclude each other, devices that several claims
hold) is left out by the publisher, `dra_driver.slices.describe`; here is all of it, so that the node plugin finds the
hardware of every allocated device, under this API server or the one before.

Pure: same input, same offers.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from dra_driver.api.inventory import (
    ComputeInstanceFacts,
    GpuFacts,
    GpuInstanceFacts,
    MigFacts,
    MigProfileFacts,
    ModeObstacle,
    NodeInventorySpec,
)
from dra_driver.api.policy import MigRule, PublishingPolicy, Rule, SharingRule
from dra_driver.devices.counters import fitting_beside_foreign
from dra_driver.devices.exclusion import PlannedUse, unsupported
from dra_driver.devices.limitations import LimitationCause, Note
from dra_driver.devices.mig import by_size, compute_parts, placement_order
from dra_driver.devices.model import DeviceKind, Offer, Partition
from dra_driver.names import is_dns_label

MOST_DEVICES = 4096
"""Of one node: 16 GPUs with 128 shares each are half of it. So one node's inventory does not keep a publisher from the
others."""


@dataclass(frozen=True, slots=True)
class Offers:
    """What one node offers, its names all different and DNS labels.

    `withheld` are the devices that the policy keeps back: they are not offered, but a claim that was allocated one
    before the policy said so still finds it. `notes` says what cannot be offered and why.
    """

    offers: tuple[Offer, ...]
    withheld: tuple[Offer, ...]
    notes: tuple[Note, ...]


def offers(inventory: NodeInventorySpec, policy: PublishingPolicy, labels: Mapping[str, str]) -> Offers:
    """Everything that can be published of `inventory`'s node. `labels` are the node's; only the policy reads them."""
    offered: dict[str, Offer] = {}
    withheld: dict[str, Offer] = {}
    notes: list[Note] = []
    devices = 0
    uuids: set[str] = set()
    for position, gpu in enumerate(inventory.gpus):
        if gpu.uuid in uuids:
            text = "is not published because another GPU of the node has its UUID"
            notes.append(Note(LimitationCause.NAME_UNUSABLE, text, gpu))
            continue
        uuids.add(gpu.uuid)
        published = policy.publishes(inventory.node_name, labels, gpu)
        look = _Look(inventory.node_name, labels, policy, gpu)
        results, reasons = look.offers(), look.notes
        devices += len(results)
        if devices > MOST_DEVICES:
            text = f"is not published because the node would have more than {MOST_DEVICES} devices"
            notes += [Note(LimitationCause.TOO_MANY_DEVICES, text, omitted) for omitted in inventory.gpus[position:]]
            break
        if published:
            notes += reasons
        for offer in results:
            if not is_dns_label(offer.name):
                text = "is not published because its name is not a DNS label"
            elif offer.name in offered or offer.name in withheld:
                text = "is not published because another device of the node has this name"
            else:
                (offered if published else withheld)[offer.name] = offer
                continue
            notes.append(Note(LimitationCause.NAME_UNUSABLE, text, gpu, device=offer.name))
    return Offers(tuple(offered.values()), tuple(withheld.values()), tuple(notes))


def by_name(all_offers: Offers) -> dict[str, Offer]:
    """The table that a claim's devices are looked up in; withheld ones too."""
    return {offer.name: offer for offer in (*all_offers.withheld, *all_offers.offers)}


class _Look:
    """At one GPU."""

    def __init__(self, node: str, labels: Mapping[str, str], policy: PublishingPolicy, gpu: GpuFacts) -> None:
        self._node = node
        self._labels = labels
        self._policy = policy
        self._gpu = gpu
        self.notes: list[Note] = []

    def offers(self) -> list[Offer]:
        gpu = self._gpu
        results: list[Offer] = []
        if (rule := self._dynamic_rule()) is not None and gpu.mig is not None:
            results = self._dynamic(gpu.mig, rule)
        elif gpu.mig is not None and gpu.mig.enabled:
            results = self._static(gpu.mig)
            if gpu.mig.obstacle is not None:
                self._note_obstacle(gpu.mig.obstacle, "off", None)
        else:
            results = [self._full()]
        return [*self._with_shares(results), *self._vfio()]

    def _dynamic_rule(self) -> MigRule | None:
        gpu = self._gpu
        rule = self._policy.mig_rule(self._node, self._labels, gpu)
        if rule is None or rule.mode != "Dynamic":
            return None
        if gpu.mig is None:
            if rule.nodes is None and rule.gpus is None:
                return None  # Such a rule is for all GPUs that can.
            self._note(LimitationCause.NO_MIG, "MIG devices are not offered because this GPU has no MIG mode", rule)
            return None
        if gpu.virtualization == "VGPUGuest" or not gpu.mig.profiles:
            text = "MIG devices are not made on demand because the driver names no profiles"
            self._note(LimitationCause.NO_MIG_PROFILES, text, rule)
            return None
        return rule

    def _dynamic(self, mig: MigFacts, rule: MigRule) -> list[Offer]:
        whole = [self._full()] if rule.whole_gpu else []
        if not (mig.enabled or mig.switchable):
            self._note_mode(mig, rule)
            return whole
        for instance in mig.instances:
            self._note(
                LimitationCause.FOREIGN_INSTANCE,
                f"what overlaps GPU instance {instance.profile} at memory slice {instance.start} is not offered because"
                " this driver did not make that instance",
                rule,
            )
        possible = list(self._partitions(mig, rule))
        if not possible:
            self._note(LimitationCause.NO_SUCH_PROFILE, "no MIG profile of this GPU is one that the rule names", rule)
        partitions = fitting_beside_foreign(possible, mig)
        # An administrator who enabled MIG mode wants it on: it is never disabled to give the full GPU away.
        return partitions if mig.enabled or mig.instances else [*partitions, *whole]

    def _note_mode(self, mig: MigFacts, rule: MigRule) -> None:
        """Why MIG mode is off. While the node's plugin is about to switch it, there is nothing to do about that."""
        if not rule.changes_mode or self._gpu.virtualization is not None:
            mode = "is set to on and waits for a reset of the GPU" if mig.pending else "is off, and needs a reset"
            only = "only the whole GPU" if rule.whole_gpu else "nothing"
            self._note(LimitationCause.RESET_NEEDED, f"{only} is offered because MIG mode {mode}", rule)
        elif mig.obstacle is not None:
            self._note_obstacle(mig.obstacle, "on", rule)

    def _note_obstacle(self, obstacle: ModeObstacle, mode: str, rule: MigRule | None) -> None:
        text = f"MIG mode cannot be switched {mode} by a reset now: {obstacle.message}"
        self.notes.append(Note(LimitationCause.MODE_CHANGE_BLOCKED, text, self._gpu, rule, fix=obstacle.fix))

    def _partitions(self, mig: MigFacts, rule: MigRule) -> Iterator[Offer]:
        matches = (_PART.fullmatch(name) for name in sorted(set(rule.compute_instances)))
        parts = [(match[2], int(match[1])) for match in matches if match is not None]
        possible = {profile.name: profile.slices for profile in mig.profiles}
        for parent, slices in parts:
            if not compute_parts(possible.get(parent, 0), slices):
                text = f"compute instances {slices}c.{parent} are not offered because this GPU cannot have them"
                self._note(LimitationCause.NO_SUCH_PROFILE, text, rule)
        for profile in by_size(_that_make_sense(mig)):
            own = [slices for parent, slices in parts if parent == profile.name]
            whole = rule.profiles is None or any(fnmatchcase(profile.name, pattern) for pattern in rule.profiles)
            for place in _places(profile, mig.profiles, own, whole=whole):
                yield replace(self._mig(place), profile=profile)

    def _static(self, mig: MigFacts) -> list[Offer]:
        profiles = {profile.name: profile for profile in _that_make_sense(mig)}
        static = [
            replace(
                self._mig(_existing_partition(instance, part)), profile=profiles.get(instance.profile), existing=part
            )
            for instance in mig.instances
            for part in sorted(instance.compute_instances, key=lambda part: (part.start, part.id))
        ]
        if not static and not mig.switched:  # Such a GPU waits until its plugin switches the mode off.
            rule = self._policy.mig_rule(self._node, self._labels, self._gpu)
            text = "nothing is offered because the GPU is in MIG mode and has no MIG devices"
            self._note(LimitationCause.NO_MIG_DEVICES, text, rule)
        return static

    def _full(self) -> Offer:
        return Offer(self._gpu.name, DeviceKind.GPU, self._gpu)

    def _mig(self, partition: Partition) -> Offer:
        return Offer(f"{self._gpu.name}-mig-{_place_name(partition)}", DeviceKind.MIG, self._gpu, partition)

    def _vfio(self) -> list[Offer]:
        gpu = self._gpu
        rule = self._policy.passthrough_rule(self._node, self._labels, gpu)
        if rule is None:
            return []
        if (reason := unsupported(gpu, PlannedUse(DeviceKind.VFIO))) is not None:
            cause = LimitationCause.NO_IOMMU if gpu.passthrough is None else LimitationCause.NO_PASSTHROUGH
            self._note(cause, f"the GPU is not offered to virtual machines because {reason}", rule)
            return []
        return [Offer(f"{gpu.name}-vfio", DeviceKind.VFIO, gpu)]

    def _with_shares(self, results: Iterable[Offer]) -> Iterator[Offer]:
        """Separate share devices come before what they are shares of.

        Only of a full GPU and of a MIG device that exists: shares of a partition that is made on demand would need to
        exclude other partitions and not each other, which counters cannot say.
        """
        for offer in results:
            rule = self._sharing_rule(offer)
            shared = replace(offer, sharing=rule)
            if rule is not None and rule.replicas is not None and (offer.kind is DeviceKind.GPU or offer.existing):
                for number in range(rule.replicas):
                    yield replace(shared, name=f"{offer.name}-share-{number}", share=number)
            yield shared

    def _sharing_rule(self, offer: Offer) -> SharingRule | None:
        """What a GPU cannot do, it is not asked to do: its device is for one claim at a time then."""
        profile = offer.partition.name if offer.partition is not None else None
        rule = self._policy.sharing_rule(self._node, self._labels, self._gpu, profile)
        if rule is None:
            return None
        wish = PlannedUse(
            offer.kind, rule.shares_by, rule.multi_user, rule.enforced, rule.interval is not None, rule.replicas or 1
        )
        reason = unsupported(self._gpu, wish)
        if reason is None:
            return rule
        devices = "the GPU is" if offer.kind is DeviceKind.GPU else "its MIG devices are"
        self._note(LimitationCause.NO_SHARING, f"{devices} for one claim at a time because {reason}", rule)
        return None

    def _note(self, cause: LimitationCause, text: str, rule: Rule | None) -> None:
        note = Note(cause, text, self._gpu, rule)
        if note not in self.notes:
            self.notes.append(note)


def _that_make_sense(mig: MigFacts) -> list[MigProfileFacts]:
    """Profiles with compute slices. No hardware has others, but a node may write anything."""
    return [profile for profile in mig.profiles if profile.slices]


_PART = re.compile(r"(\d)c\.(.+)")
"""Compute slices and GPU instance profile of `1c.3g.40gb`, as the policy has it."""


def _places(
    profile: MigProfileFacts, profiles: Sequence[MigProfileFacts], parts: Sequence[int], *, whole: bool
) -> Iterator[Partition]:
    """Of compute instances of so many `parts` slices, and then of the GPU instance itself if it is `whole`."""
    starts = placement_order(profile, profiles)
    for slices in parts:
        for start in starts:
            for compute_start in compute_parts(profile.slices, slices):
                yield Partition(profile.name, start, profile.size, slices, compute_start)
    if whole:
        for start in starts:
            yield Partition(profile.name, start, profile.size)


def _existing_partition(instance: GpuInstanceFacts, part: ComputeInstanceFacts) -> Partition:
    place = Partition(instance.profile, instance.start, instance.size)
    if part.profile == instance.profile:
        return place
    return replace(place, compute_slices=part.slices, compute_start=part.start)


def _place_name(partition: Partition) -> str:
    """`1g10gb-0`, `1c3g40gb-4-2`; `+me` becomes `-me` and `-me` becomes `-nome`, so that they differ."""
    profile = partition.name.lower().replace("-", "-no").replace("+", "-").replace(".", "").replace(",", "")
    if partition.compute_slices is None:
        return f"{profile}-{partition.start}"
    return f"{profile}-{partition.start}-{partition.compute_start}"
