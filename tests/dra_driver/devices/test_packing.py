"""Small MIG devices are placed where they keep the fewest large ones away, on every GPU model."""

from support.mig import MODELS, table_profiles
from support.rows import rows

from dra_driver.devices.mig import by_size, compute_parts, placement_order


def overlap(slices: tuple[int, int], other: tuple[int, int]) -> bool:
    return slices[0] < other[0] + other[1] and other[0] < slices[0] + slices[1]


def order(model: str, name: str) -> tuple[int, ...]:
    profiles = table_profiles(model)
    return placement_order(next(profile for profile in profiles if profile.name == name), profiles)


def test_on_an_h100_small_ones_gather_where_no_4g_can_be() -> None:
    assert order("h100-80", "1g.10gb")[0] == 6
    assert set(order("h100-80", "1g.10gb")[:3]) == {4, 5, 6}
    assert order("h100-80", "1g.20gb")[:2] == (6, 4)
    assert order("h100-80", "2g.20gb")[0] == 4
    assert order("h100-80", "3g.40gb") == (4, 0)


@rows("model", MODELS)
def test_every_place_is_offered_once(model: str) -> None:
    for profile in table_profiles(model):
        assert sorted(order(model, profile.name)) == profile.starts


@rows("model", MODELS)
def test_one_small_device_leaves_room_for_the_largest_that_can_be_beside_it(model: str) -> None:
    """The largest is the one with most compute slices that fits beside some placement of the small one."""
    profiles = table_profiles(model)
    for small in profiles:
        first = (placement_order(small, profiles)[0], small.size)

        def beside(place: tuple[int, int]) -> int:
            return max(
                (
                    large.slices
                    for large in profiles
                    if any(not overlap(place, (start, large.size)) for start in large.starts)
                ),
                default=0,
            )

        assert beside(first) == max(beside((start, small.size)) for start in small.starts)


def test_on_a_gpu_that_nobody_knows_yet_small_ones_keep_off_the_only_places_of_large_ones() -> None:
    """On all known ones that is to begin at the end."""
    small, *_ = by_size(table_profiles("h100-80"))
    small = small.model_copy(update={"starts": list(range(8))})
    large = small.model_copy(update={"slices": 4, "size": 4, "starts": [4]})
    assert placement_order(small, [small, large]) == (3, 2, 1, 0, 7, 6, 5, 4)
    several = large.model_copy(update={"starts": [0, 2, 4]})
    assert placement_order(small, [small, several]) == (7, 6, 5, 4, 3, 2, 1, 0), "where large ones are broken already"
    elsewhere = large.model_copy(update={"starts": []})
    assert placement_order(small, [small, large, elsewhere]) == (3, 2, 1, 0, 7, 6, 5, 4)


def test_the_smallest_profile_is_offered_first_and_of_two_the_one_with_fewer_engines() -> None:
    names = [profile.name for profile in by_size(table_profiles("rtx-pro-6000"))]
    assert names[0] == "1g.24gb-me"
    assert names[-1].startswith("4g.96gb")
    assert by_size(table_profiles("h100-80"))[0].name == "1g.10gb"


@rows(
    "whole, slices, starts",
    [
        (3, 1, (0, 1, 2)),
        (3, 2, (0,)),
        (4, 2, (0, 2)),
        (4, 3, ()),
        (7, 2, (0, 2, 4)),
        (7, 3, (0, 4)),
        (7, 4, (0,)),
        (7, 7, ()),
        (1, 1, ()),
        (2, 0, ()),
    ],
)
def test_compute_instances_lie_where_they_can(whole: int, slices: int, starts: tuple[int, ...]) -> None:
    assert compute_parts(whole, slices) == starts
