"""In which order the places of a GPU are offered, so that small MIG devices leave room for large ones.

Schedulers take the first device in the list that fits and never move one. A `1g` that happens to lie at memory slice 0
keeps a `4g` away for as long as it runs; at slice 6 it would have kept away next to nothing. So each profile's places
are listed in the order in which they do the least harm, found from the GPU's own table of placements: take the place
that breaks the fewest places of the largest profiles (then of the next smaller ones), given those already taken.

Pure; a table is a few dozen placements.
"""

from collections.abc import Collection, Sequence

from dra_driver.api.inventory import MigProfileFacts

type Slices = tuple[int, int]
"""Memory slices of a GPU instance: the first, and how many."""


def placement_order(profile: MigProfileFacts, profiles: Sequence[MigProfileFacts]) -> tuple[int, ...]:
    """Every start of `profile`, the one to take first in front. `profiles` are all that the GPU has."""
    order: list[int] = []
    while left := [start for start in profile.starts if start not in order]:
        taken = [(start, profile.size) for start in order]
        order.append(min(left, key=lambda start: (_harm((start, profile.size), taken, profiles), -start)))
    return tuple(order)


def by_size(profiles: Sequence[MigProfileFacts]) -> list[MigProfileFacts]:
    """The smallest first: whoever says no more than "a MIG device" gets no more than that."""
    return sorted(profiles, key=lambda profile: (profile.size, profile.slices, _engines(profile), profile.id))


def overlap(one: Slices, other: Slices) -> bool:
    return one[0] < other[0] + other[1] and other[0] < one[0] + one[1]


def _harm(place: Slices, taken: Collection[Slices], profiles: Sequence[MigProfileFacts]) -> tuple[int, ...]:
    """How many placements `place` breaks that `taken` left whole, for each size of profile, the largest first."""
    harm: dict[tuple[int, int], int] = {}
    seen: set[tuple[int, int, int]] = set()
    for profile in profiles:
        weight = (-profile.slices, -profile.size)
        harm.setdefault(weight, 0)
        for start in profile.starts:
            # Profiles of one shape that differ in engines only (`+me`, `+gfx`) are one way to use the place.
            if (*weight, start) in seen:
                continue
            seen.add((*weight, start))
            there = (start, profile.size)
            harm[weight] += overlap(place, there) and not any(overlap(there, other) for other in taken)
    return tuple(harm[weight] for weight in sorted(harm))


def _engines(profile: MigProfileFacts) -> int:
    """Media engines: of two profiles of one size the one that takes fewer is the one to give to anybody."""
    return profile.decoders + profile.encoders + profile.jpeg_engines + profile.ofa_engines
