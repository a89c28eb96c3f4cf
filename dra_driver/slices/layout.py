"""Devices to slices: within the API's limits per slice, and so that a device stays in the slice that it is in.

A device that moves costs a rewrite of the whole pool, a device that changes in its place costs one update. So where the
devices of a GPU are now decides where they go; only what is new looks for room. The index of a slice is its place in
the pool: it leads the slice's generated name, and schedulers go through slices by name. Counter sets have slices of
their own, with indices far behind, so that devices and counter sets never push each other aside.

Before Kubernetes 1.35 a counter set was in the slice of its devices: there each GPU has a slice of its own.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import batched, chain
from typing import Protocol

from dra_driver.api.resource import CounterSet, Device
from dra_driver.slices.describe import DescribedGpu
from dra_driver.slices.features import ServerFeatures

DEVICES_PER_SLICE = 128
ADVANCED_DEVICES_PER_SLICE = 64
"""As soon as one device of the slice has taints, consumes counters or has an attribute that is a list. Source:
ResourceSlice validation, 1.35 and 1.36."""
COUNTER_SETS_PER_SLICE = 8
COUNTER_SLICES = 0xC0000
"""The index of the first slice of counter sets."""


@dataclass(frozen=True, slots=True)
class SliceContents:
    devices: tuple[Device, ...] = ()
    counter_sets: tuple[CounterSet, ...] = ()


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are in the cluster: slice index by name of the device, and by name of the counter set."""

    devices: Mapping[str, int] = field(default_factory=dict)
    counter_sets: Mapping[str, int] = field(default_factory=dict)


def slice_layout(gpus: Sequence[DescribedGpu], now: Places, features: ServerFeatures) -> dict[int, SliceContents]:
    """Slice index to its contents, both in order; at least one slice, even if empty, so that the pool exists.

    The devices of a GPU stay together: a change of one GPU changes one slice. A layout that needs more slices than a
    fresh one is given up for that.
    """
    if any(gpu.counters is not None for gpu in gpus) and not features.counters_apart:
        return _by_gpu(gpus, now)
    # Where there can be taints, the first one must not spread a full slice over two.
    advanced = (
        features.taints
        or features.list_attributes
        or any(device.taints or device.consumes_counters for gpu in gpus for device in gpu.devices)
    )
    capacity = ADVANCED_DEVICES_PER_SLICE if advanced else DEVICES_PER_SLICE
    groups = [group for gpu in gpus for group in batched(gpu.devices, capacity)]
    counter_sets = [(gpu.counters,) for gpu in gpus if gpu.counters is not None]
    in_front = {name: index for name, index in now.devices.items() if index < COUNTER_SLICES}
    behind = {name: index for name, index in now.counter_sets.items() if index >= COUNTER_SLICES}
    layout = {
        index: SliceContents(devices=tuple(chain.from_iterable(members)))
        for index, members in _placed(groups, in_front, capacity).items()
    } or {0: SliceContents()}
    for index, sets in _placed(counter_sets, behind, COUNTER_SETS_PER_SLICE, COUNTER_SLICES).items():
        layout[index] = SliceContents(counter_sets=tuple(chain.from_iterable(sets)))
    return layout


def _by_gpu(gpus: Sequence[DescribedGpu], now: Places) -> dict[int, SliceContents]:
    """Every GPU in a slice of its own, with counters or without."""
    groups = [gpu.devices for gpu in gpus if gpu.devices]
    counters_of = {gpu.devices[0].name: gpu.counters for gpu in gpus if gpu.devices}
    layout = {}
    for index, (devices,) in _placed(groups, now.devices, 1, weight=lambda _: 1).items():
        counters = counters_of[devices[0].name]
        layout[index] = SliceContents(devices, (counters,) if counters is not None else ())
    return layout


class _Named(Protocol):
    @property
    def name(self) -> str: ...


def _placed[T: _Named](
    groups: Sequence[tuple[T, ...]],
    now: Mapping[str, int],
    capacity: int,
    first: int = 0,
    weight: Callable[[tuple[T, ...]], int] = len,
) -> dict[int, list[tuple[T, ...]]]:
    """Groups by slice index; where they are `now`, unless that takes more slices than a fresh start at `first`."""
    weights = [weight(group) for group in groups]
    fresh = _indices(weights, [None] * len(groups), capacity, first)
    places = [next((now[item.name] for item in group if item.name in now), None) for group in groups]
    unmoved = _indices(weights, places, capacity, first)
    indices = unmoved if len(set(unmoved)) <= len(set(fresh)) else fresh
    placed: dict[int, list[tuple[T, ...]]] = {index: [] for index in sorted(set(indices))}
    for index, group in zip(indices, groups, strict=True):
        placed[index].append(group)
    return placed


def _indices(weights: Sequence[int], wanted: Sequence[int | None], capacity: int, first: int) -> list[int]:
    """The slice of each group: the wanted one where there is room, then, for the others, the first with room."""
    filled: dict[int, int] = {}
    indices: dict[int, int] = {}
    for number, index in enumerate(wanted):
        if index is not None and filled.get(index, 0) + weights[number] <= capacity:
            indices[number] = index
            filled[index] = filled.get(index, 0) + weights[number]
    for number, weight in enumerate(weights):
        if number not in indices:
            room = [index for index, used in filled.items() if used + weight <= capacity]
            index = min(room) if room else max(filled, default=first - 1) + 1
            indices[number] = index
            filled[index] = filled.get(index, 0) + weight
    return [indices[number] for number in range(len(weights))]
