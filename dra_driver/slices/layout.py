"""Devices to slices: within the API's limit per slice, and so that a device stays in the slice that it is in.

A device that moves costs a rewrite of the whole pool, a device that changes in its place costs one update. So where a
device is now decides where it goes; only what is new looks for room. The index of a slice is its place in the pool: it
leads the slice's generated name, and schedulers go through slices by name.
"""

from collections.abc import Mapping, Sequence

from dra_driver.api.resource import Device

DEVICES_PER_SLICE = 128
ADVANCED_DEVICES_PER_SLICE = 64
"""As soon as one device of the slice has taints or consumes counters. Source: ResourceSlice validation, 1.35."""


def slice_layout(devices: Sequence[Device], now: Mapping[str, int]) -> dict[int, tuple[Device, ...]]:
    """Slice index to its devices, both in order; at least one slice, be it empty, so that the pool exists.

    `now` is where devices are in the cluster: name to slice index. A layout that needs more slices than necessary is
    given up for a fresh one.
    """
    capacity = _capacity(devices)
    fewest = max(1, -(-len(devices) // capacity))
    indices = _kept(devices, now, capacity)
    if len(set(indices.values())) > fewest:
        indices = {}
    _place_new(devices, indices, capacity)
    layout: dict[int, list[Device]] = {index: [] for index in sorted(set(indices.values())) or [0]}
    for device in devices:
        layout[indices[device.name]].append(device)
    return {index: tuple(members) for index, members in layout.items()}


def _capacity(devices: Sequence[Device]) -> int:
    advanced = any(device.taints or device.consumes_counters for device in devices)
    return ADVANCED_DEVICES_PER_SLICE if advanced else DEVICES_PER_SLICE


def _kept(devices: Sequence[Device], now: Mapping[str, int], capacity: int) -> dict[str, int]:
    kept: dict[str, int] = {}
    sizes: dict[int, int] = {}
    for device in devices:
        index = now.get(device.name)
        if index is not None and sizes.get(index, 0) < capacity:
            kept[device.name] = index
            sizes[index] = sizes.get(index, 0) + 1
    return kept


def _place_new(devices: Sequence[Device], indices: dict[str, int], capacity: int) -> None:
    sizes: dict[int, int] = {}
    for index in indices.values():
        sizes[index] = sizes.get(index, 0) + 1
    for device in devices:
        if device.name in indices:
            continue
        room = [index for index, size in sizes.items() if size < capacity]
        index = min(room) if room else max(sizes, default=-1) + 1
        indices[device.name] = index
        sizes[index] = sizes.get(index, 0) + 1
