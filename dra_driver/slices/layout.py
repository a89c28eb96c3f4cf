"""Devices to slices: within the API's limits per slice, and so that a device stays in the slice that it is in.

A device that moves costs a rewrite of the whole pool, a device that changes in its place costs one update. So where a
device is now decides where it goes; only what is new looks for room. The index of a slice is its place in the pool: it
leads the slice's generated name, and schedulers go through slices by name. Counter sets have slices of their own, with
indices far behind, so that devices and counter sets never push each other aside.

Before Kubernetes 1.35 a counter set was in the slice of its devices: there each GPU has a slice of its own.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dra_driver.api.resource import CounterSet, Device
from dra_driver.slices.describe import DescribedGpu
from dra_driver.slices.features import ServerFeatures

DEVICES_PER_SLICE = 128
ADVANCED_DEVICES_PER_SLICE = 64
"""As soon as one device of the slice has taints or consumes counters. Source: ResourceSlice validation, 1.35."""
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
    """Slice index to its contents, both in order; at least one slice, be it empty, so that the pool exists.

    A layout that needs more slices than necessary is given up for a fresh one.
    """
    if any(gpu.counters is not None for gpu in gpus) and not features.counters_apart:
        return _by_gpu(gpus, now)
    devices = [device for gpu in gpus for device in gpu.devices]
    counter_sets = [gpu.counters for gpu in gpus if gpu.counters is not None]
    in_front = {name: index for name, index in now.devices.items() if index < COUNTER_SLICES}
    behind = {name: index for name, index in now.counter_sets.items() if index >= COUNTER_SLICES}
    layout = {
        index: SliceContents(devices=tuple(members))
        for index, members in _placed(devices, _name, in_front, _capacity(devices, features)).items()
    } or {0: SliceContents()}
    for index, members in _placed(counter_sets, _set_name, behind, COUNTER_SETS_PER_SLICE, COUNTER_SLICES).items():
        layout[index] = SliceContents(counter_sets=tuple(members))
    return layout


def _by_gpu(gpus: Sequence[DescribedGpu], now: Places) -> dict[int, SliceContents]:
    """Every GPU in a slice of its own, with counters or without."""
    placed = _placed([gpu for gpu in gpus if gpu.devices], _first_name, now.devices, 1)
    return {
        index: SliceContents(gpu.devices, (gpu.counters,) if gpu.counters is not None else ())
        for index, (gpu,) in placed.items()
    }


def _capacity(devices: Iterable[Device], features: ServerFeatures) -> int:
    # Where there can be taints, the first one must not spread a full slice over two.
    advanced = features.taints or any(device.taints or device.consumes_counters for device in devices)
    return ADVANCED_DEVICES_PER_SLICE if advanced else DEVICES_PER_SLICE


def _name(device: Device) -> str:
    return device.name


def _set_name(counter_set: CounterSet) -> str:
    return counter_set.name


def _first_name(gpu: DescribedGpu) -> str:
    return gpu.devices[0].name


def _placed[T](
    items: Sequence[T], name: Callable[[T], str], now: Mapping[str, int], capacity: int, first: int = 0
) -> dict[int, list[T]]:
    """Items by slice index, at most `capacity` in each; where they are `now`, unless that wastes slices."""
    indices = _kept([name(item) for item in items], now, capacity)
    if len(set(indices.values())) > -(-len(items) // capacity):
        indices = {}
    sizes: dict[int, int] = {}
    for index in indices.values():
        sizes[index] = sizes.get(index, 0) + 1
    for item in items:
        if name(item) not in indices:
            room = [index for index, size in sizes.items() if size < capacity]
            index = min(room) if room else max(sizes, default=first - 1) + 1
            indices[name(item)] = index
            sizes[index] = sizes.get(index, 0) + 1
    placed: dict[int, list[T]] = {index: [] for index in sorted(sizes)}
    for item in items:
        placed[indices[name(item)]].append(item)
    return placed


def _kept(names: Iterable[str], now: Mapping[str, int], capacity: int) -> dict[str, int]:
    kept: dict[str, int] = {}
    sizes: dict[int, int] = {}
    for name in names:
        index = now.get(name)
        if index is not None and sizes.get(index, 0) < capacity:
            kept[name] = index
            sizes[index] = sizes.get(index, 0) + 1
    return kept
