"""MIG on every GPU: how GPU instances divide into compute instances, and in which order places are offered.

Profiles and placements are facts of each GPU (`dra_driver.api.inventory.MigProfileFacts`); this follows from them.
Schedulers take the first device in the list that fits and never move one. A `1g` that happens to lie at memory slice 0
keeps a `4g` away for as long as it runs; at slice 6 it would have kept away next to nothing. So each profile's places
are listed in the order in which they do the least harm, found from the GPU's own table of placements: take the place
that breaks the fewest places of the largest profiles (then of the next smaller ones), given those already taken. Pure.
"""

from collections.abc import Sequence
from functools import lru_cache

from dra_driver.api.inventory import MigProfileFacts


def compute_parts(gpu_instance_slices: int, slices: int) -> tuple[int, ...]:
    """Where compute instances of `slices` compute slices lie in a GPU instance, as first compute slices, ascending.

    Empty when there are none of that size that are less than the whole: of a `4g` there is `2c` and `1c`, not `3c`.
    They are aligned to a power of two, like GPU instances: `3c` in a `7g` are at 0 and 4.
    Source: the pairs that NVIDIA's tools have a profile name for; the places are calculated.
    """
    if not 0 < slices < gpu_instance_slices or 2 * slices > gpu_instance_slices + 1:
        return ()
    return tuple(range(0, gpu_instance_slices - slices + 1, 1 << (slices - 1).bit_length()))


def part_multiprocessors(profile: MigProfileFacts, slices: int, profiles: Sequence[MigProfileFacts]) -> int:
    """Multiprocessors of a compute instance of `slices` compute slices in a GPU instance of `profile`.

    A compute slice has as many as the smallest profile has for its one; what a larger GPU instance has beyond that
    (60 in a `3g` of an H100, where a `1g` has 16) only the compute instance that fills it gets.
    """
    single = [item.multiprocessors for item in profiles if item.slices == 1 and item.size == 1]
    each = min(single, default=profile.multiprocessors // profile.slices)
    return min(slices * each, profile.multiprocessors // profile.slices * slices)


def gpu_instance_profile_name(slices: int, memory_bytes: int, total_bytes: int, suffix: str = "") -> str:
    """`1g.10gb+me`: what NVIDIA's tools call a profile of `slices` compute slices and `memory_bytes`.

    The number before `gb` is not the memory that programs get, but so many eighths of the GPU's memory, in whole GiB
    rounded up, halves rounded up. `suffix` is `+me`, `+gfx`, `-me`, `+me.all` or nothing.
    """
    eighths = -(-8 * memory_bytes // total_bytes)
    total_gib = -(-total_bytes // (1 << 30))
    return f"{slices}g.{(eighths * total_gib + 4) // 8}gb{suffix}"


type Slices = tuple[int, int]
"""Memory slices of a GPU instance: the first, and how many."""
type _Shape = tuple[int, int, tuple[int, ...]]
"""Compute slices, memory slices and starts of a profile. Profiles of one shape that differ in engines only (`+me`,
`+gfx`) are one way to use a place."""

_MOST_SHAPES = 16
"""The largest ones, to which harm is done first. No GPU has more than 12."""


def placement_order(profile: MigProfileFacts, profiles: Sequence[MigProfileFacts]) -> tuple[int, ...]:
    """Every start of `profile`, the one to take first in front. `profiles` are all that the GPU has."""
    shapes = {(other.slices, other.size, tuple(other.starts)) for other in profiles}
    return _order(profile.size, tuple(profile.starts), frozenset(shapes))


@lru_cache(maxsize=256)
def _order(size: int, starts: tuple[int, ...], shapes: frozenset[_Shape]) -> tuple[int, ...]:
    # A cluster has few models of GPUs, and asks this for each device of each GPU.
    largest = sorted(shapes, reverse=True)[:_MOST_SHAPES]
    breaks = {start: [_broken((start, size), shape) for shape in largest] for start in starts}
    whole = [(1 << len(shape[2])) - 1 for shape in largest]
    order: list[int] = []
    while left := [start for start in starts if start not in order]:
        order.append(min(left, key=lambda start: (_harm(breaks[start], whole, largest), -start)))
        whole = [places & ~broken for places, broken in zip(whole, breaks[order[-1]], strict=True)]
    return tuple(order)


def by_size(profiles: Sequence[MigProfileFacts]) -> list[MigProfileFacts]:
    """The smallest first: a claim for just "a MIG device" gets no more than that."""
    return sorted(profiles, key=lambda profile: (profile.size, profile.slices, _engines(profile), profile.id))


def _broken(place: Slices, shape: _Shape) -> int:
    """Bit n: whether `place` overlaps the n-th place of the shape."""
    _, size, starts = shape
    end = place[0] + place[1]
    return sum(1 << number for number, start in enumerate(starts) if start < end and place[0] < start + size)


def _harm(broken: Sequence[int], whole: Sequence[int], shapes: Sequence[_Shape]) -> tuple[int, ...]:
    """How many of the `whole` places would be `broken`, for each size of the shapes, the largest first."""
    harm: dict[tuple[int, int], int] = {}
    for (slices, size, _), bits, places in zip(shapes, broken, whole, strict=True):
        harm[slices, size] = max(harm.get((slices, size), 0), (bits & places).bit_count())
    return tuple(harm.values())


def _engines(profile: MigProfileFacts) -> int:
    """Media engines: of two profiles of one size the one that takes fewer is offered first."""
    return profile.decoders + profile.encoders + profile.jpeg_engines + profile.ofa_engines
