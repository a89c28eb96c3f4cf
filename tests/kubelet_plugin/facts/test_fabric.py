"""From Fabric Manager's answer to facts of GPUs."""

from support.inventories import gpu

from dra_driver.api.inventory import FabricFacts, FabricPartitionFacts, GpuFacts, NvlinkFacts
from kubelet_plugin.facts.fabric_answers import FabricAnswer, partitioned
from kubelet_plugin.hardware.nvfm import FabricPartitionNow, PartitionMember

GPUS = tuple(
    gpu(number).model_copy(
        update={
            "module_id": number + 1,
            "fabric": FabricFacts(state="InProgress"),
            "nvlink": NvlinkFacts(links=18, switched=True),
        }
    )
    for number in range(4)
)


def answer(*sets: tuple[PartitionMember, ...]) -> FabricAnswer:
    return FabricAnswer(tuple(FabricPartitionNow(id_, False, members) for id_, members in enumerate(sets)))


def numbers(*ids: int) -> tuple[PartitionMember, ...]:
    return tuple(map(PartitionMember, ids))


def parts(gpus: tuple[GpuFacts, ...]) -> list[list[tuple[int, int]]]:
    return [[(part.id, part.size) for part in gpu.fabric_partitions] for gpu in gpus]


def test_without_identities_the_numbers_are_module_ids() -> None:
    gpus = partitioned(GPUS, answer(numbers(1, 2, 3, 4), numbers(1, 3), numbers(1)))
    assert parts(gpus) == [[(2, 1), (1, 2), (0, 4)], [(0, 4)], [(1, 2), (0, 4)], [(0, 4)]]


def test_with_identities_the_numbers_mean_nothing() -> None:
    """As on A100: by UUID, and by PCI address where only that is known."""
    first = PartitionMember(4, uuid=GPUS[0].uuid)
    second = PartitionMember(1, pci_bus_id=GPUS[1].pci_bus_id)
    unknown = PartitionMember(2)
    assert parts(partitioned(GPUS, answer((first, second, unknown)))) == [[(0, 3)], [(0, 3)], [], []]


def test_what_changes_with_each_activation_is_left_out() -> None:
    gpus = partitioned(GPUS, answer(numbers(1, 2)))
    assert [(gpu.fabric, gpu.nvlink) for gpu in gpus[:2]] == [(None, None)] * 2
    assert gpus[2:] == GPUS[2:]


def test_a_lent_gpu_whose_identity_is_not_known_keeps_the_partitions_that_are_still_offered() -> None:
    earlier = [FabricPartitionFacts(id=0, size=2), FabricPartitionFacts(id=7, size=1)]
    lent = GPUS[0].model_copy(update={"fabric_partitions": earlier, "fabric": None, "nvlink": None})
    other = PartitionMember(9, uuid=GPUS[1].uuid)
    gpus = partitioned((lent, *GPUS[1:]), answer((other, PartitionMember(1))))
    assert parts(gpus)[:2] == [[(0, 2)], [(0, 2)]]


def test_without_an_answer_no_gpu_is_in_a_partition() -> None:
    lent = GPUS[0].model_copy(update={"fabric_partitions": [FabricPartitionFacts(id=0, size=2)]})
    assert parts(partitioned((lent, *GPUS[1:]), FabricAnswer())) == [[]] * 4
    assert partitioned(GPUS, FabricAnswer()) == GPUS
