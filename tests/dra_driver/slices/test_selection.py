"""Whatever the cluster can express, no piece of hardware is offered twice, and what is offered is found on the node."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.inventories import compute_instance, gpu, gpu_instance, inventory_spec, mig, policy
from support.mig import MODELS, gpu_of

from dra_driver.api.inventory import GpuFacts, PassthroughFacts
from dra_driver.api.policy import PublishingPolicy
from dra_driver.devices.exclusion import GpuUse, conflict
from dra_driver.devices.model import Offer
from dra_driver.devices.offers import by_name, offers
from dra_driver.names import GPU_DRIVER, is_dns_label
from dra_driver.quantity import Quantity
from dra_driver.slices.describe import described_devices, publishable
from dra_driver.slices.features import ALL_FEATURES, ServerFeatures

NONE = ServerFeatures()
NO_SHARES = replace(ALL_FEATURES, consumable=False)
NO_COUNTERS = replace(ALL_FEATURES, partitionable=False)
EVERY = [ServerFeatures(*flags) for flags in product([False, True], repeat=4)]
REPLICAS = [{"strategy": "TimeSlicing", "replicas": 2}]
DYNAMIC = [{"mode": "Dynamic"}]
IOMMU = PassthroughFacts(iommu_group=1)
GPU = "gpu-00000000"


def selected(facts: GpuFacts, features: ServerFeatures, **rules: Any) -> dict[str, Offer]:
    chosen, _ = publishable(offers(inventory_spec("node-a", [facts]), policy(**rules), {}).offers, features)
    return {offer.name: offer for offer in chosen}


def notes_of(facts: GpuFacts, features: ServerFeatures, **rules: Any) -> tuple[str, ...]:
    """What users are told of that is not published."""
    _, notes = publishable(offers(inventory_spec("node-a", [facts]), policy(**rules), {}).offers, features)
    return tuple(map(str, notes))


def test_with_consumable_capacity_a_shared_device_is_one_device() -> None:
    selection = selected(gpu(0), ALL_FEATURES, sharing=REPLICAS)
    assert list(selection) == [GPU]
    assert selection[GPU].sharing is not None


def test_without_it_shares_are_devices_and_counters_keep_the_whole_one_apart() -> None:
    selection = selected(gpu(0), NO_SHARES, sharing=REPLICAS)
    assert list(selection) == [f"{GPU}-share-0", f"{GPU}-share-1", GPU]
    assert selection[GPU].sharing is None
    assert notes_of(gpu(0), NO_SHARES, sharing=REPLICAS) == ()


def test_without_counters_there_are_the_shares_only() -> None:
    assert list(selected(gpu(0), NONE, sharing=REPLICAS)) == [f"{GPU}-share-0", f"{GPU}-share-1"]


@pytest.mark.parametrize("rule", [{"capacity": ["memory"]}, {"unlimited": True}])
def test_what_cannot_be_cut_into_devices_is_for_one_claim_where_the_cluster_cannot_share(rule: dict[str, Any]) -> None:
    facts, rules = gpu(0), {"sharing": [{"strategy": "MPS", **rule}]}
    assert selected(facts, NO_SHARES, **rules)[GPU].sharing is None
    assert "one claim at a time" in notes_of(facts, NO_SHARES, **rules)[0]


def test_without_counters_a_gpu_is_offered_without_its_partitions() -> None:
    assert list(selected(gpu(0, mig=mig()), NO_COUNTERS, mig=DYNAMIC)) == [GPU]
    assert list(selected(gpu(0, mig=mig(enabled=True)), NO_COUNTERS, mig=DYNAMIC)) == []


def test_without_counters_partitions_that_all_fit_are_offered() -> None:
    rule = {"mode": "Dynamic", "profiles": ["1g.10gb"], "wholeGpu": False}
    selection = selected(gpu_of("h100-80"), NO_COUNTERS, mig=[rule])
    assert len(selection) == 7
    assert notes_of(gpu_of("h100-80"), NO_COUNTERS, mig=[rule]) == ()
    assert list(selected(gpu_of("h100-80"), NO_COUNTERS, mig=[{**rule, "profiles": ["1g.10gb", "7g.80gb"]}])) == []


def test_without_counters_a_gpu_is_not_offered_to_virtual_machines_too() -> None:
    facts = gpu(0, passthrough=IOMMU)
    assert list(selected(facts, ALL_FEATURES, passthrough=[{}])) == [GPU, f"{GPU}-vfio"]
    assert list(selected(facts, NO_COUNTERS, passthrough=[{}])) == [GPU]
    (note,) = notes_of(facts, NO_COUNTERS, passthrough=[{}])
    assert "not offered to virtual machines" in note
    assert notes_of(facts, NO_COUNTERS) == ()


STATIC = [
    gpu_instance("3g.40gb", 4, 4, compute_instance("1c.3g.40gb", 1), compute_instance("2c.3g.40gb", 2, start=1)),
    gpu_instance("1g.10gb", 0, 1, compute_instance("1g.10gb", 1)),
]

sharing_rules = st.lists(
    st.fixed_dictionaries(
        {"strategy": st.sampled_from(["TimeSlicing", "MPS"]), "devices": st.sampled_from(["gpu", "mig"])}
    ).flatmap(
        lambda rule: st.sampled_from(
            [
                {"replicas": 2},
                {"replicas": 7},
                {"capacity": ["memory", "cores"]},
                {"capacity": ["cores"]},
                {"unlimited": True},
            ]
        ).map(lambda way: {**rule, **way})
    ),
    max_size=3,
)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[GpuFacts], PublishingPolicy]:
    facts = []
    for number in range(draw(st.integers(1, 3))):
        enabled = draw(st.booleans())
        facts.append(
            draw(
                st.sampled_from(
                    [
                        gpu(number, passthrough=draw(st.sampled_from([None, IOMMU]))),
                        gpu_of(draw(st.sampled_from(MODELS)), number, passthrough=IOMMU),
                        gpu(number, mig=mig(enabled=enabled, instances=STATIC if enabled else [])),
                        gpu(number, mig=mig(enabled=enabled, switchable=False)),
                    ]
                )
            )
        )
    parts = draw(st.sampled_from([[], ["1c.3g.40gb", "2c.3g.40gb"], ["1c.2g.48gb"]]))
    dynamic = {"mode": "Dynamic", "computeInstances": parts}
    few = {**dynamic, "profiles": ["1g.*gb"], "wholeGpu": draw(st.booleans())}
    rules = {
        "mig": draw(st.sampled_from([[], [dynamic], [few]])),
        "sharing": draw(sharing_rules),
        "passthrough": draw(st.sampled_from([[], [{}]])),
    }
    return facts, policy(**rules)


@given(worlds(), st.sampled_from(EVERY))
def test_devices_are_named_found_on_the_node_and_within_the_limits(
    world: tuple[list[GpuFacts], PublishingPolicy], features: ServerFeatures
) -> None:
    facts, rules = world
    inventory = inventory_spec("node-a", facts)
    known = by_name(offers(inventory, rules, {}))
    described = described_devices(inventory, rules, {}, GPU_DRIVER, features)
    names = [device.name for device in described.devices]
    assert len(set(names)) == len(names)
    assert set(names) <= known.keys()
    sets = {gpu.counters.name: gpu.counters for gpu in described.gpus if gpu.counters is not None}
    assert features.partitionable or not sets
    for device in described.devices:
        assert is_dns_label(device.name)
        assert len(device.attributes) + len(device.capacity) <= 32
        assert features.consumable or not device.allow_multiple_allocations
        assert len(device.consumes_counters or []) <= 1
        for consumed in device.consumes_counters or []:
            assert consumed.counters and consumed.counters.keys() <= sets[consumed.counter_set].counters.keys()
        for capacity in device.capacity.values():
            assert capacity.request_policy is None or device.allow_multiple_allocations
    assert all(0 < len(counters.counters) <= 32 for counters in sets.values())


@given(worlds(), st.sampled_from(EVERY), st.data())
def test_two_devices_that_collide_are_kept_apart_by_a_counter(
    world: tuple[list[GpuFacts], PublishingPolicy], features: ServerFeatures, data: st.DataObject
) -> None:
    facts, rules = world
    inventory = inventory_spec("node-a", facts)
    known = by_name(offers(inventory, rules, {}))
    described = described_devices(inventory, rules, {}, GPU_DRIVER, features)
    if len(described.devices) < 2:
        return
    pairs = st.lists(st.sampled_from(described.devices), min_size=2, max_size=2, unique_by=lambda device: device.name)
    for _ in range(10):
        left, other = data.draw(pairs)
        if conflict(_use(known[left.name]), _use(known[other.name])) is None:
            continue
        (first,), (second,) = left.consumes_counters or [None], other.consumes_counters or [None]
        assert first is not None and second is not None and first.counter_set == second.counter_set
        totals = next(
            gpu.counters.counters for gpu in described.gpus if gpu.counters and gpu.counters.name == first.counter_set
        )
        assert any(
            _amount(first.counters, name) + _amount(second.counters, name) > Quantity.parse(total.value).value
            for name, total in totals.items()
        )


def _amount(counters: dict[str, Any], name: str) -> Any:
    return Quantity.parse(counters[name].value).value if name in counters else 0


def _use(offer: Offer) -> GpuUse:
    strategy = offer.sharing.strategy if offer.sharing is not None and offer.share is not None else None
    return GpuUse(offer.gpu.uuid, offer.kind, offer.partition, strategy, offer.share is not None, offer.share)
