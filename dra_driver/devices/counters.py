"""What the devices of one GPU take from it, so that a scheduler never gives away one piece of hardware twice.

A counter set says how much a GPU has, each of its devices how much it takes. A partition takes its engines and memory
and, one by one, its memory slices; that keeps partitions apart that overlap. The full GPU and its twin for virtual
machines take everything. Two kinds of devices share a piece of hardware with their like and with no others: compute
instances that are parts of one GPU instance, and separate shares of a full GPU. For them each memory slice counts more
than one (`_Scale`), a device alone on it takes all of it, and one of `n` that fit together takes an n-th: so nothing
else fits beside even one of them. Parts take slots inside the GPU instance too, so that two do not take the same.

GPUs whose published devices cannot get in each other's way, because all of them fit, have no counters. Pure.
Source: KEP-4815 (partitionable devices); the numbers are NVML's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dra_driver.api.inventory import GpuFacts, MigFacts, MigProfileFacts
from dra_driver.devices.model import DeviceKind, Offer, Partition

MEMORY = "memory"
"""The counter that is an amount of bytes; all others are plain numbers."""

type Amounts = Mapping[str, int]
"""By name of the counter; none is zero."""


@dataclass(frozen=True, slots=True)
class GpuCounters:
    """The counter set of one GPU and what each of its devices, by name, consumes of it. No consumption is empty."""

    name: str
    totals: Amounts
    consumption: Mapping[str, Amounts]


def engines(profile: MigProfileFacts) -> dict[str, int]:
    """What a GPU instance of `profile` has, by name of the counter."""
    return {
        "multiprocessors": profile.multiprocessors,
        "copy-engines": profile.copy_engines,
        "decoders": profile.decoders,
        "encoders": profile.encoders,
        "jpeg-engines": profile.jpeg_engines,
        "ofa-engines": profile.ofa_engines,
        MEMORY: profile.memory_bytes,
    }


def engines_left(mig: MigFacts) -> dict[str, int]:
    """What the GPU has for partitions: as much as its largest profile, less the GPU instances of others."""
    left = {name: max(engines(profile)[name] for profile in mig.profiles) for name in engines(mig.profiles[0])}
    profiles = {profile.name: profile for profile in mig.profiles}
    for instance in mig.instances:
        if (profile := profiles.get(instance.profile)) is not None:
            left = {name: amount - engines(profile)[name] for name, amount in left.items()}
    return left


def fitting_beside_foreign(partitions: Sequence[Offer], mig: MigFacts) -> list[Offer]:
    """Those that can be made beside the GPU instances of others."""
    if not mig.instances:
        return list(partitions)
    left = engines_left(mig)
    foreign = [Partition(instance.profile, instance.start, instance.size) for instance in mig.instances]
    return [offer for offer in partitions if _fits_beside(offer, left, foreign)]


def _fits_beside(offer: Offer, left: Amounts, foreign: Sequence[Partition]) -> bool:
    if offer.partition is None or offer.profile is None:
        return False
    if any(amount > left[name] for name, amount in engines(offer.profile).items()):
        return False
    return not any(map(offer.partition.overlaps, foreign))


def memory_slices(profiles: Sequence[MigProfileFacts]) -> int:
    """How many memory slices a GPU has: 8, or 4 on the smaller ones."""
    return max((start + profile.size for profile in profiles for start in profile.starts), default=0)


def gpu_counters(gpu: GpuFacts, published: Sequence[Offer]) -> GpuCounters | None:
    """The counters of `gpu` for those of its devices that are published; None when they need none."""
    dynamic = any(offer.kind is DeviceKind.MIG and offer.existing is None for offer in published)
    if dynamic and gpu.mig is not None:
        totals, consumption = _partitioned(gpu.mig, published)
    else:
        totals, consumption = _shared(gpu, published)
    all_taken = {name: sum(taken.get(name, 0) for taken in consumption.values()) for name in totals}
    if all(all_taken[name] <= amount for name, amount in totals.items()):
        return None  # No counter refuses a device, even if claims have all of them.
    return GpuCounters(f"{gpu.name}-counters", totals, consumption)


@dataclass(frozen=True, slots=True)
class _Scale:
    """`parts` compute instances that fill a GPU instance fit together, and `shares` shares of the full GPU."""

    parts: int
    shares: int

    @property
    def whole(self) -> int:
        """How much of a memory slice there is."""
        return self.parts * self.shares


def _partitioned(mig: MigFacts, published: Sequence[Offer]) -> tuple[Amounts, dict[str, Amounts]]:
    parts = [offer for offer in published if offer.partition is not None and offer.partition.compute_slices is not None]
    shares = sum(offer.share is not None for offer in published)
    scale = _Scale(max((offer.profile.slices for offer in parts if offer.profile is not None), default=1), shares or 1)
    slices = range(memory_slices(mig.profiles))
    totals = _positive(engines_left(mig) | dict.fromkeys(map(_slice, slices), scale.whole))
    for instance in mig.instances:
        for number in range(instance.start, instance.start + instance.size):
            totals.pop(_slice(number), None)
    slots = dict.fromkeys(slot for offer in parts for slot in _slots(offer))
    totals |= dict.fromkeys(slots, scale.shares)
    consumption: dict[str, Amounts] = {}
    for offer in published:
        if offer.partition is not None and offer.profile is not None:
            consumption[offer.name] = _partition_amounts(offer, offer.partition, offer.profile, scale)
        elif offer.share is not None:
            consumption[offer.name] = dict.fromkeys(map(_slice, slices), scale.parts) | dict.fromkeys(slots, 1)
        else:
            consumption[offer.name] = totals
    return totals, consumption


def _partition_amounts(offer: Offer, partition: Partition, profile: MigProfileFacts, scale: _Scale) -> Amounts:
    own = range(partition.start, partition.start + partition.size)
    if partition.compute_slices is None:
        return _positive(engines(profile) | {_slice(number): scale.whole for number in own})
    # Rounded down, or the parts would not all fit; what that leaves over stays unused, because the GPU instance's
    # memory slices are gone.
    part = {name: amount * partition.compute_slices // profile.slices for name, amount in engines(profile).items()}
    taken = scale.whole * partition.compute_slices // scale.parts
    slots = dict.fromkeys(_slots(offer), scale.shares)
    return _positive(part | {_slice(number): taken for number in own} | slots)


def _shared(gpu: GpuFacts, published: Sequence[Offer]) -> tuple[Amounts, dict[str, Amounts]]:
    """Counters for a GPU without partitions on demand: for each piece that is more than one device, how many shares.

    The pieces are the full GPU (with its shares, and its twin for virtual machines) and each MIG device that exists.
    """
    pieces: dict[str, list[Offer]] = {}
    for offer in published:
        device = "" if offer.partition is None else offer.name.removeprefix(f"{gpu.name}-")
        piece = f"{device.removesuffix(f'-share-{offer.share}')}-shares" if device else "shares"
        pieces.setdefault(piece, []).append(offer)
    totals: dict[str, int] = {}
    consumption: dict[str, Amounts] = {}
    for counter, devices in pieces.items():
        if len(devices) > 1:
            totals[counter] = sum(offer.share is not None for offer in devices) or 1
            for offer in devices:
                consumption[offer.name] = {counter: 1 if offer.share is not None else totals[counter]}
    return totals, consumption


def _slice(number: int) -> str:
    return f"memory-slice-{number}"


def _slots(offer: Offer) -> list[str]:
    place = offer.partition
    if place is None or place.compute_slices is None:
        return []
    return [f"ci-{place.start}-{place.compute_start + number}" for number in range(place.compute_slices)]


def _positive(amounts: Amounts) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if amount > 0}
