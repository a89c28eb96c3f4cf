"""Of what a node offers, what this cluster can have without giving one piece of hardware away twice.

Partitions need counters to exclude each other, shares of one device need consumable capacity. Where the API server has
neither, less is published: the full GPU without its partitions, shares as separate devices, without the device that
they are shares of. Pure.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from dra_driver.devices.model import Kind, Offer
from dra_driver.slices.features import ServerFeatures


@dataclass(frozen=True, slots=True)
class Selection:
    """The devices to publish, in the order of the offers. One with `sharing` and without `share` is for several claims
    at once; one without `sharing` is for one at a time, whatever the policy would like."""

    offers: tuple[Offer, ...]
    notes: tuple[str, ...]


def publishable(offers: Sequence[Offer], features: ServerFeatures) -> Selection:
    """`offers` are those of one node, GPU after GPU."""
    chosen: list[Offer] = []
    notes: list[str] = []
    for _, group in groupby(offers, key=lambda offer: offer.gpu.uuid):
        devices = list(group)
        name = devices[0].gpu.name
        if not features.partitionable:
            devices, dropped = _without_counters(devices)
            notes += [f"{name}: {text}; this cluster has no partitionable devices" for text in dropped]
        devices, alone = _with_shares(devices, features)
        if alone:
            notes.append(f"{name}: {_listed(alone)} for one claim at a time; this cluster has no consumable capacity")
        chosen += devices
    return Selection(tuple(chosen), tuple(notes))


def _without_counters(devices: Sequence[Offer]) -> tuple[list[Offer], list[str]]:
    """Nothing keeps two devices of one GPU apart then, so only what cannot collide is published."""
    dropped = []
    kept = [offer for offer in devices if offer.kind is not Kind.MIG or offer.existing is not None]
    if len(kept) < len(devices):
        dropped.append("its partitions are not published")
    others = [offer for offer in kept if offer.kind is not Kind.VFIO]
    if others and len(others) < len(kept):
        dropped.append("it is not published for virtual machines")
        kept = others
    return kept, dropped


def _with_shares(devices: Sequence[Offer], features: ServerFeatures) -> tuple[list[Offer], list[str]]:
    """Shares in the form that the cluster has, and the names of devices that cannot be shared for want of one."""
    if features.consumable:
        return [offer for offer in devices if offer.share is None], []
    shared = {_place(offer) for offer in devices if offer.share is not None}
    alone = [offer.name for offer in devices if offer.sharing is not None and _place(offer) not in shared]
    return list(_separate(devices, shared, features)), alone


def _separate(devices: Sequence[Offer], shared: set[object], features: ServerFeatures) -> Iterator[Offer]:
    for offer in devices:
        if offer.share is not None:
            yield offer
        elif _place(offer) not in shared or features.partitionable:
            yield replace(offer, sharing=None)


def _place(offer: Offer) -> object:
    return offer.kind, offer.partition


def _listed(names: Sequence[str]) -> str:
    return f"{names[0]} is" if len(names) == 1 else f"{names[0]} and {len(names) - 1} more are"
