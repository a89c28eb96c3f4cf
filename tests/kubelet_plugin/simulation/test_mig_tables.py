"""The tables of GPU instances add up as those of real GPUs do. Source of the sums: NVML listings of each model."""

import pytest
from support.rows import rows

from dra_driver.devices.mig import gpu_instance_profile_name
from dra_driver.errors import InvalidInput
from kubelet_plugin.simulation.profiles import (
    MigProfile,
    MigTable,
    load_mig_table,
    load_profile,
    mig_table_names,
    profile_names,
)

MODELS = {
    table: profile.gpu.memory_mib
    for profile in (load_profile(name) for name in profile_names())
    if (table := profile.gpu.mig) is not None
}
EIGHT_SLICES = tuple(name for name in mig_table_names() if load_mig_table(name).memory_slices == 8)
FOUR_SLICES = tuple(name for name in mig_table_names() if load_mig_table(name).memory_slices == 4)
SUFFIXES = {7: "+me", 8: "+me", 10: "+gfx", 11: "+gfx", 12: "+gfx", 13: "-me", 14: "-me", 15: "+me.all", 16: "+me.all"}
SLICES = {0: 1, 1: 2, 2: 3, 3: 4, 4: 7, 7: 1, 8: 2, 9: 1, 10: 1, 11: 2, 12: 4, 13: 1, 14: 2, 15: 1, 16: 2}

ONE, ONE_WITH_MEDIA, ONE_WITH_DOUBLE_MEMORY, TWO, THREE, FOUR, SEVEN = 0, 7, 9, 1, 2, 3, 4


def of_kind(table: MigTable, kind: int) -> MigProfile:
    return next(profile for profile in table.profiles if profile.kind == kind)


def amounts(table: MigTable, kinds: list[int]) -> list[int]:
    return [sum(column) for column in zip(*(of_kind(table, kind).amounts for kind in kinds), strict=True)]


def fits(table: MigTable, kinds: list[int]) -> bool:
    return all(used <= there for used, there in zip(amounts(table, kinds), table.totals.amounts, strict=True))


class TestEveryTable:
    def test_there_is_one_for_each_model_that_can_be_divided_and_a_node_that_has_it(self) -> None:
        assert set(mig_table_names()) == set(MODELS) == {
            "a30", "a100-40", "a100-80", "h100-80", "h100-94", "h100-96", "h200", "b200", "b300", "gb200", "gb300",
            "rtx-pro-6000",
        }  # fmt: skip

    @rows("name", mig_table_names())
    def test_names_follow_from_memory(self, name: str) -> None:
        total = MODELS[name]
        assert total is not None
        for profile in load_mig_table(name).profiles:
            computed = gpu_instance_profile_name(
                profile.slices, profile.memory_mib << 20, total << 20, SUFFIXES.get(profile.kind, "")
            )
            assert profile.name == computed
            assert profile.slices == SLICES[profile.kind]

    @rows("name", mig_table_names())
    def test_ids_and_kinds_are_distinct(self, name: str) -> None:
        profiles = load_mig_table(name).profiles
        assert len({profile.id for profile in profiles}) == len({profile.kind for profile in profiles}) == len(profiles)

    @rows("name", mig_table_names())
    def test_placements_are_distinct_and_lie_on_the_gpu(self, name: str) -> None:
        table = load_mig_table(name)
        for profile in table.profiles:
            assert list(profile.starts) == sorted(set(profile.starts))
            assert profile.starts[-1] + profile.size <= table.memory_slices

    @rows("name", mig_table_names())
    def test_what_there_is_to_share_out_is_what_the_largest_profile_has(self, name: str) -> None:
        table = load_mig_table(name)
        largest = [max(column) for column in zip(*(profile.amounts for profile in table.profiles), strict=True)]
        assert largest == list(table.totals.amounts)

    @rows("name", mig_table_names())
    def test_as_many_instances_fit_as_the_driver_says_and_not_one_more(self, name: str) -> None:
        table = load_mig_table(name)
        for profile in table.profiles:
            most_placed = sum(
                1 for start in profile.starts if start % profile.size == 0
            )  # placements of one profile overlap only where it can lie at every slice
            most_shared = min(
                there // used for used, there in zip(profile.amounts, table.totals.amounts, strict=True) if used
            )
            assert profile.max_instances == min(most_placed, most_shared)

    def test_an_unknown_table_or_profile_is_answered_with_those_there_are(self) -> None:
        with pytest.raises(InvalidInput, match="h100-80"):
            load_mig_table("h100")
        with pytest.raises(InvalidInput, match=r"1g\.10gb\+me"):
            load_mig_table("h100-80").named("1g.12gb")


class TestCombinations:
    """What is known to fit on an eight-slice GPU together, and what is not."""

    @rows("name", EIGHT_SLICES)
    @rows("kinds",
        [[ONE] * 7, [THREE, FOUR], [THREE] * 2, [ONE_WITH_DOUBLE_MEMORY] * 4, [TWO, TWO, TWO, ONE], [SEVEN],
         [ONE_WITH_MEDIA] + [ONE] * 6, [TWO, TWO, THREE]],
    )  # fmt: skip
    def test_fit(self, name: str, kinds: list[int]) -> None:
        assert fits(load_mig_table(name), kinds)

    @rows("name", EIGHT_SLICES)
    @rows("kinds", [[ONE_WITH_MEDIA] * 2, [SEVEN, ONE], [FOUR, FOUR]])
    def test_do_not_fit(self, name: str, kinds: list[int]) -> None:
        assert not fits(load_mig_table(name), kinds)

    @pytest.mark.parametrize("name", FOUR_SLICES)
    def test_four_slices_are_shared_by_four_by_two_and_by_three(self, name: str) -> None:
        table = load_mig_table(name)
        assert all(fits(table, kinds) for kinds in ([ONE] * 4, [TWO] * 2, [TWO, ONE, ONE]))
        assert not fits(table, [ONE_WITH_MEDIA] * 2)

    @rows(
        "name, kinds, memory_mib, multiprocessors",
        [
            ("a100-40", [ONE] * 7, 34048, 98),
            ("a100-40", [THREE, FOUR], 39936, 98),
            ("a100-40", [ONE_WITH_DOUBLE_MEMORY] * 4, 39424, 56),
            ("h100-80", [ONE] * 7, 69888, 112),
            ("h100-80", [THREE, FOUR], 80896, 124),
            ("h100-80", [ONE_WITH_DOUBLE_MEMORY] * 4, 80384, 104),
            ("h100-80", [TWO, TWO, TWO, ONE], 70272, 112),
            ("h200", [ONE] * 7, 114688, 112),
            ("h200", [THREE] * 2, 142848, 120),
            ("h200", [TWO, TWO, TWO, ONE], 116224, 112),
        ],
    )
    def test_sums(self, name: str, kinds: list[int], memory_mib: int, multiprocessors: int) -> None:
        assert amounts(load_mig_table(name), kinds)[:2] == [memory_mib, multiprocessors]
