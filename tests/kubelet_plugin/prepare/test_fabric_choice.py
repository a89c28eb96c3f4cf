"""Which fabric partition a claim's GPUs are."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.claims import NODE as NAME
from support.claims import a_ref
from support.inventories import gpu

from dra_driver.api.inventory import FabricPartitionFacts, GpuFacts, Problem
from dra_driver.errors import InvalidInput, NodeNotReady
from dra_driver.features import Gates
from dra_driver.names import GPU_DRIVER
from kubelet_plugin.prepare.holds import FabricPartition, excludes
from kubelet_plugin.prepare.known_node import KnownNode
from kubelet_plugin.prepare.wanted import partition_of

GATES = Gates.parse("FabricManagerPartitioning=true")
OFF = KnownNode(GPU_DRIVER, NAME, "boot", {}, {})
NODE = replace(OFF, gates=GATES)
SETS = ((1, 2, 3, 4), (1, 3), (2, 4), (1,), (2,), (3,), (4,))
"""By the ID of the partition."""
DOWN = Problem(subject="Fabric Manager", reason="NotUsable", message="it does not run")


def facts(number: int, sets: tuple[tuple[int, ...], ...] = SETS) -> GpuFacts:
    parts = [FabricPartitionFacts(id=id_, size=len(members)) for id_, members in enumerate(sets) if number in members]
    return gpu(number).model_copy(update={"fabric_partitions": parts})


GPUS = {number: facts(number) for number in range(1, 5)}


def hold_of(*numbers: int, node: KnownNode = NODE) -> FabricPartition | None:
    return partition_of(a_ref(), [GPUS[number] for number in numbers], node, field="results")


@pytest.mark.parametrize("numbers", [chosen for size in range(1, 5) for chosen in combinations(GPUS, size)])
def test_gpus_are_the_partition_that_has_these_and_no_others(numbers: tuple[int, ...]) -> None:
    if numbers in SETS:
        hold = hold_of(*numbers)
        assert hold is not None and hold.partition == SETS.index(numbers)
        assert [gpu_identity.uuid for gpu_identity in hold.gpus] == sorted(GPUS[number].uuid for number in numbers)
        assert hold_of(*reversed(numbers), *numbers) == hold
    else:
        with pytest.raises(InvalidInput, match="are not a fabric partition"):
            hold_of(*numbers)


@given(
    sets=st.lists(st.frozensets(st.integers(1, 6), min_size=1).map(lambda ids: tuple(sorted(ids))), unique=True),
    wanted=st.frozensets(st.integers(1, 6), min_size=1),
)
def test_whatever_the_partitions_are(sets: list[tuple[int, ...]], wanted: frozenset[int]) -> None:
    """A partition file of an administrator may have any sets."""
    gpus = [facts(number, tuple(sets)) for number in sorted(wanted)]
    exact = [id_ for id_, members in enumerate(sets) if set(members) == wanted]
    try:
        hold = partition_of(a_ref(), gpus, NODE, field="results")
    except InvalidInput:
        assert not exact
    else:
        concerned = any(number in members for number in wanted for members in sets)
        assert (hold.partition in exact) if hold is not None else not concerned


def test_no_gpus_and_no_gate_need_no_partition() -> None:
    assert hold_of() is None
    assert hold_of(1, 2, node=OFF) is None


def test_gpus_that_are_in_no_partition_need_none_unless_that_is_not_known() -> None:
    plain = [gpu(1), gpu(2)]
    assert partition_of(a_ref(), plain, NODE, field="results") is None
    with pytest.raises(NodeNotReady, match="may need a fabric partition, and it does not run"):
        partition_of(a_ref(), plain, replace(NODE, problems=(DOWN,)), field="results")
    assert partition_of(a_ref(), plain, replace(OFF, problems=(DOWN,)), field="results") is None


def test_a_gpu_outside_of_all_partitions_cannot_be_with_one_inside() -> None:
    with pytest.raises(InvalidInput, match="are not a fabric partition"):
        partition_of(a_ref(), [GPUS[1], gpu(2)], NODE, field="results")


EIGHT = ((1, 2, 3, 4, 5, 6, 7, 8), (1,), (2,), (3,))
THREE = ((1, 2, 3), (2, 3, 4))


@pytest.mark.parametrize(
    ("numbers", "sets", "advice"),
    [
        ((1, 2), SETS, "add the constraint `matchAttribute: gpu.nvidia.com/partition2` to the claim"),
        ((3, 2, 1), EIGHT, "request as many GPUs as a partition of this node has (1, 8)"),
        ((1, 2, 4), THREE, "request as many GPUs as a partition of this node has (3)"),
        ((1,), ((1, 2),), "request as many GPUs as a partition of this node has (2)"),
    ],
)
def test_who_requests_other_gpus_learns_which_there_are(
    numbers: tuple[int, ...], sets: tuple[tuple[int, ...], ...], advice: str
) -> None:
    gpus = [facts(number, sets) for number in numbers]
    with pytest.raises(InvalidInput) as refused:
        partition_of(a_ref(), gpus, NODE, field="results")
    names = ", ".join(sorted(gpu.name for gpu in gpus))
    assert f"{names} are not a fabric partition" in refused.value.message
    assert advice in refused.value.message


def test_of_several_partitions_with_the_same_gpus_it_is_always_the_first() -> None:
    hold = partition_of(a_ref(), [facts(1, ((2,),) * 3 + ((1,),) * 20)], NODE, field="results")
    assert hold is not None and hold.partition == 3


def test_two_partitions_with_a_gpu_in_common_exclude_each_other() -> None:
    holds = [hold_of(*members) for members in SETS]
    for index, other_index in combinations(range(len(SETS)), 2):
        first, second = holds[index], holds[other_index]
        assert first is not None and second is not None
        assert excludes(first, second) == excludes(second, first) == bool(set(SETS[index]) & set(SETS[other_index]))
        assert not excludes(first, first)
