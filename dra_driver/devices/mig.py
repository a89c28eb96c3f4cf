"""What is true of MIG on every GPU: how GPU instances divide into compute instances, and what a MIG device has.

Profiles and placements are facts of each GPU (`dra_driver.api.inventory.MigProfileFacts`); here is only what follows
from them. Pure.
"""

from collections.abc import Sequence

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
