"""In which order the places of a GPU are offered, so that small MIG devices leave room for large ones.

Schedulers take the first device in the list that fits and never move one. A `1g` that happens to lie at memory slice 0
keeps a `4g` away for as long as it runs; at slice 6 it would have kept away next to nothing. So each profile's places
are listed in the order in which they do the least harm, found from the GPU's own table of placements: take the place
that breaks the fewest places of the largest profiles (then of the next smaller ones), given those already taken.

Pure; a table is a few dozen placements, and the inventory's model bounds it.
"""

from collections.abc import Sequence
from functools import lru_cache

from dra_driver.api.inventory import MigProfileFacts

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
    """The smallest first: whoever says no more than "a MIG device" gets no more than that."""
    return sorted(profiles, key=lambda profile: (profile.size, profile.slices, _engines(profile), profile.id))


def overlap(one: Slices, other: Slices) -> bool:
    return one[0] < other[0] + other[1] and other[0] < one[0] + one[1]


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
    """Media engines: of two profiles of one size the one that takes fewer is the one to give to anybody."""
    return profile.decoders + profile.encoders + profile.jpeg_engines + profile.ofa_engines
