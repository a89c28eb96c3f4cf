"""Of what a node offers, what this cluster can have without giving one piece of hardware away twice.

Partitions need counters to exclude each other, shares of one device need consumable capacity. Where the API server has
neither, less is published: the full GPU without its partitions, shares as separate devices, without the device that
they are shares of. Pure.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from dra_driver.api.inventory import GpuFacts
from dra_driver.api.policy import SharingRule
from dra_driver.devices.limitations import Cause, Note
from dra_driver.devices.model import Kind, Offer
from dra_driver.slices.features import ServerFeatures


@dataclass(frozen=True, slots=True)
class Selection:
    """The devices to publish, in the order of the offers. One with `sharing` and without `share` is for several claims
    at once; one without `sharing` is for one at a time, whatever the policy would like."""

    offers: tuple[Offer, ...]
    notes: tuple[Note, ...]


def publishable(
    offers: Sequence[Offer], features: ServerFeatures, rule_of: Callable[[GpuFacts, Kind], object] = lambda *_: None
) -> Selection:
    """`offers` are those of one node, GPU after GPU. `rule_of` is the rule that asks for such devices of a GPU."""
    chosen: list[Offer] = []
    notes: list[Note] = []
    for _, group in groupby(offers, key=lambda offer: offer.gpu.uuid):
        devices = list(group)
        gpu = devices[0].gpu
        if not features.partitionable:
            devices, dropped = _without_counters(devices)
            notes += [Note(Cause.NO_PARTITIONABLE_DEVICES, _DROPPED[kind], gpu, rule_of(gpu, kind)) for kind in dropped]
        devices, alone = _with_shares(devices, features)
        notes += [Note(Cause.NO_CONSUMABLE_CAPACITY, _ALONE, gpu, rule) for rule in alone]
        chosen += devices
    return Selection(tuple(chosen), tuple(notes))


_DROPPED = {
    Kind.MIG: "MIG devices are not made on demand because this cluster has no partitionable devices",
    Kind.VFIO: "the GPU is not offered to virtual machines because this cluster has no partitionable devices",
}
_ALONE = "devices are for one claim at a time because this cluster has no consumable capacity"


def _without_counters(devices: Sequence[Offer]) -> tuple[list[Offer], list[Kind]]:
    """Nothing keeps two devices of one GPU apart then, so only what cannot collide is published."""
    dropped = []
    kept = [offer for offer in devices if offer.kind is not Kind.MIG or offer.existing is not None]
    if len(kept) < len(devices):
        dropped.append(Kind.MIG)
    others = [offer for offer in kept if offer.kind is not Kind.VFIO]
    if others and len(others) < len(kept):
        dropped.append(Kind.VFIO)
        kept = others
    return kept, dropped


def _with_shares(devices: Sequence[Offer], features: ServerFeatures) -> tuple[list[Offer], list[SharingRule]]:
    """Shares in the form that the cluster has, and the rules that cannot be followed for want of one."""
    if features.consumable:
        return [offer for offer in devices if offer.share is None], []
    shared = {_place(offer) for offer in devices if offer.share is not None}
    alone = {
        id(offer.sharing): offer.sharing
        for offer in devices
        if offer.sharing is not None and _place(offer) not in shared
    }
    return list(_separate(devices, shared, features)), list(alone.values())


def _separate(devices: Sequence[Offer], shared: set[object], features: ServerFeatures) -> Iterator[Offer]:
    for offer in devices:
        if offer.share is not None:
            yield offer
        elif _place(offer) not in shared or features.partitionable:
            yield replace(offer, sharing=None)


def _place(offer: Offer) -> object:
    return offer.kind, offer.partition
