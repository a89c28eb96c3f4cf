"""Work that others choose stays bounded: what nodes, tenants and files send, as large as the API allows it.

Each row is a pure function with an input of a size, half and whole. Twice the input is at most about twice the work,
and the whole input is at most `most` calls; a processor does some millions in a second. Calls are counted, so that the
result is the same on every machine.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from support.calls import calls
from support.inventories import gpu, inventory_spec, mig

from dra_driver.api.inventory import (
    MOST_GPUS,
    ComputeInstanceFacts,
    GpuInstanceFacts,
    HealthCondition,
    HealthFacts,
    MigProfileFacts,
    NodeInventorySpec,
)
from dra_driver.api.policy import MigRule, PublishingPolicy
from dra_driver.cel.device import compile_selector
from dra_driver.devices import packing
from dra_driver.devices.limitations import limitations_of
from dra_driver.devices.offers import MOST_DEVICES, offers
from dra_driver.names import GPU_DRIVER
from dra_driver.slices.describe import Description, described_devices
from dra_driver.slices.features import ALL_FEATURES

DYNAMIC = PublishingPolicy(mig=[MigRule(mode="Dynamic")])


def profiles(count: int) -> list[MigProfileFacts]:
    """As many as the model allows, each with other starts, so that nothing is calculated once for several."""
    return [
        MigProfileFacts(
            name=f"{number}g.10gb",
            id=number,
            slices=1 + number % 7,
            memory_bytes=2**30 + number,
            multiprocessors=16,
            size=1 + number % 60,
            starts=[(start * 4 + number) % 64 for start in range(16)],
            max_instances=16,
        )
        for number in range(count)
    ]


def instances() -> list[GpuInstanceFacts]:
    parts = [ComputeInstanceFacts(id=part, uuid=f"MIG-{part}", profile="x", slices=1, start=part) for part in range(16)]
    return [GpuInstanceFacts(id=start, profile="x", start=64, size=1, compute_instances=parts) for start in range(16)]


def conditions(count: int) -> HealthFacts:
    return HealthFacts(
        conditions=[
            HealthCondition(type="Xid", value=str(value), severity="Warning", message="x" * 1024, since="2026-01-01")
            for value in range(count)
        ]
    )


def node(gpus: int, count: int = 64) -> NodeInventorySpec:
    facts = mig(enabled=False, switchable=True, profiles=profiles(count), instances=instances())
    return inventory_spec("n", [gpu(number, mig=facts, health=conditions(count)) for number in range(gpus)])


def described(inventory: NodeInventorySpec) -> Description:
    return described_devices(inventory, DYNAMIC, {}, GPU_DRIVER, ALL_FEATURES)


class Work(NamedTuple):
    """`made` makes the function with its input, of a size. `sizes` are half and whole."""

    made: Callable[[int], Callable[[], object]]
    sizes: tuple[int, int]
    most: int


def counted(work: Callable[[], object]) -> int:
    """Without what an earlier test left calculated."""
    packing._order.cache_clear()
    compile_selector.cache_clear()
    return calls(work)


def describing(size: int) -> Callable[[], object]:
    inventory = node(1, size)
    return lambda: described(inventory)


def describing_gpus(size: int) -> Callable[[], object]:
    inventory = node(size)
    return lambda: described(inventory)


TABLE = {
    "describe the MIG profiles of a GPU": Work(describing, (32, 64), 1_000_000),
    "describe the GPUs of a node": Work(describing_gpus, (2, MOST_GPUS), 3_000_000),
}


@pytest.mark.parametrize("name", TABLE)
def test_work_is_at_most_proportional_and_bounded(name: str) -> None:
    made, (half, whole), most = TABLE[name]
    few, many = counted(made(half)), counted(made(whole))
    assert many <= 2.3 * few, (few, many)
    assert many <= most


def test_a_node_with_too_many_devices_publishes_those_of_its_first_gpus_and_says_so() -> None:
    inventory = node(MOST_GPUS)
    result = offers(inventory, DYNAMIC, {})
    assert 0 < len(result.offers) <= MOST_DEVICES
    published = {offer.gpu.uuid for offer in result.offers}
    assert published == {facts.uuid for facts in inventory.gpus[: len(published)]}
    (limitation,) = [
        limitation
        for limitation in limitations_of(result.notes, DYNAMIC, GPU_DRIVER, "n")
        if limitation.reason == "TooManyDevices"
    ]
    assert len(limitation.gpus) == MOST_GPUS - len(published)
