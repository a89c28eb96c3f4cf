"""What counters allow the hardware accepts, and what the hardware would refuse they do not allow."""

from collections.abc import Iterable
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.inventories import compute_instance, gpu, gpu_instance, inventory_spec, mig
from support.mig import MODELS, gpu_of, table_mig, table_profiles
from support.rows import rows

from dra_driver.api.inventory import GpuFacts, PassthroughFacts
from dra_driver.api.policy import PublishingPolicy
from dra_driver.devices.counters import GpuCounters, gpu_counters, memory_slices
from dra_driver.devices.model import DeviceKind, Offer, Partition
from dra_driver.devices.offers import offers
from kubelet_plugin.simulation.profiles import load_mig_table

COMPUTE_INSTANCES = {
    "a30": ["1c.2g.12gb"],
    "rtx-pro-6000": ["1c.2g.48gb"],
    "h100-80": ["1c.3g.40gb", "2c.3g.40gb"],
    "a100-40": ["1c.7g.40gb", "2c.7g.40gb", "3c.7g.40gb", "4c.7g.40gb"],
    "a100-80": ["1c.4g.40gb", "2c.4g.40gb"],
    "b200": ["1c.2g.45gb"],
}


def counted(facts: GpuFacts, **rules: object) -> tuple[GpuCounters | None, tuple[Offer, ...]]:
    policy = PublishingPolicy.of({"apiVersion": "dra.gpu/v1alpha1", "kind": "PublishingPolicy", **rules}, about="test")
    offered = offers(inventory_spec("node-a", [facts]), policy, {}).offers
    return gpu_counters(facts, offered), offered


@cache
def of_model(model: str, parts: bool, shares: int = 0) -> tuple[GpuCounters, tuple[Offer, ...]]:
    rule = {"mode": "Dynamic", **({"computeInstances": COMPUTE_INSTANCES[model]} if parts else {})}
    sharing = [{"strategy": "TimeSlicing", "replicas": shares}] if shares else []
    counters, offered = counted(gpu_of(model), mig=[rule], sharing=sharing)
    assert counters is not None
    return counters, offered


def fits(counters: GpuCounters, names: Iterable[str]) -> bool:
    """What a scheduler computes."""
    used: dict[str, int] = {}
    for name in names:
        for counter, amount in counters.consumption[name].items():
            used[counter] = used.get(counter, 0) + amount
    return all(amount <= counters.totals.get(counter, 0) for counter, amount in used.items())


def refusal(model: str, devices: list[Offer]) -> str | None:
    """Why a GPU could not be all of `devices` at once."""
    table = load_mig_table(model)
    if any(offer.kind is DeviceKind.GPU for offer in devices):
        shares = {offer.share for offer in devices}
        alone = len(devices) == 1 or (None not in shares and len(shares) == len(devices))
        return None if alone else "the GPU is used as a whole"
    places = [offer.partition for offer in devices if offer.partition is not None]
    for number, place in enumerate(places):
        if any(place.overlaps(other) for other in places[:number]):
            return "places overlap"
    instances = {(place.profile, place.start) for place in places}
    rows = [table.named(profile) for profile, _ in instances]
    for row in rows:
        if rows.count(row) > row.max_instances:
            return f"{row.name} is there too often"
    needed = [sum(amounts) for amounts in zip(*(row.amounts for row in rows), strict=True)]
    if any(amount > total for amount, total in zip(needed, table.totals.amounts, strict=True)):
        return "engines are used up"
    return None


@given(st.data())
def test_counters_allow_what_the_hardware_accepts_and_nothing_else(data: st.DataObject) -> None:
    model = data.draw(st.sampled_from(MODELS))
    parts = data.draw(st.booleans()) if model in COMPUTE_INSTANCES else False
    counters, offered = of_model(model, parts, shares=data.draw(st.sampled_from([0, 2, 3])))
    taken: list[Offer] = []
    for offer in data.draw(st.lists(st.sampled_from(offered), unique_by=lambda offer: offer.name, max_size=40)):
        allowed = fits(counters, [item.name for item in (*taken, offer)])
        reason = refusal(model, [*taken, offer])
        assert allowed == (reason is None), (model, [item.name for item in taken], offer.name, reason)
        if allowed:
            taken.append(offer)


@rows("model", MODELS)
def test_the_gpu_takes_the_whole_set(model: str) -> None:
    counters, offered = of_model(model, parts=False)
    assert counters.consumption[gpu_of(model).name] == counters.totals
    profiles = table_profiles(model)
    assert counters.totals["memory"] == max(profile.memory_bytes for profile in profiles)
    assert counters.totals["multiprocessors"] == max(profile.multiprocessors for profile in profiles)
    slices = [counters.totals[f"memory-slice-{number}"] for number in range(memory_slices(profiles))]
    assert slices == [1] * load_mig_table(model).memory_slices
    assert len(counters.consumption) == len(offered)


@rows("model", MODELS)
def test_counters_stay_within_the_limits_of_the_api(model: str) -> None:
    for parts in {False, model in COMPUTE_INSTANCES}:
        counters, _ = of_model(model, parts)
        assert len(counters.totals) <= 32
        for amounts in counters.consumption.values():
            assert amounts and amounts.keys() <= counters.totals.keys()


NAMED = {
    "a100-40": ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "1g.5gb+me"),
    "h100-80": ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "1g.10gb+me"),
    "h200": ("1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "1g.18gb+me"),
}


@pytest.mark.parametrize("model", NAMED)
def test_the_combinations_that_a_right_table_has(model: str) -> None:
    """Source: the sum checks of the MIG reference."""
    single, double, two, three, four, media = NAMED[model]
    counters, offered = of_model(model, parts=False)
    names = {(offer.partition.profile, offer.partition.start): offer.name for offer in offered if offer.partition}

    def together(*places: tuple[str, int]) -> bool:
        return fits(counters, [names[place] for place in places])

    assert together(*((single, start) for start in range(7)))
    assert together((three, 4), (four, 0))
    assert together((three, 0), (three, 4))
    assert together(*((double, start) for start in (0, 2, 4, 6)))
    assert together((two, 0), (two, 2), (two, 4), (single, 6))
    assert not together((media, 0), (media, 3))
    assert not together((four, 0), (two, 0))


def test_the_instances_of_somebody_else_are_not_in_the_totals() -> None:
    foreign = gpu_instance("3g.40gb", 4, 4)
    facts = gpu_of("h100-80", mig=table_mig("h100-80", enabled=True, instances=[foreign]))
    counters, offered = counted(facts, mig=[{"mode": "Dynamic"}])
    assert counters is not None
    assert counters.totals["multiprocessors"] == 132 - 60
    assert not any(f"memory-slice-{number}" in counters.totals for number in (4, 5, 6, 7))
    assert all(amounts.keys() <= counters.totals.keys() for amounts in counters.consumption.values())
    media = gpu_instance("1g.10gb+me", 6, 1)
    _, offered = counted(
        gpu_of("h100-80", mig=table_mig("h100-80", enabled=True, instances=[media])), mig=[{"mode": "Dynamic"}]
    )
    assert not any(offer.partition is not None and offer.partition.profile == "1g.10gb+me" for offer in offered)


def test_devices_that_cannot_get_in_each_others_way_have_no_counters() -> None:
    assert counted(gpu(0))[0] is None
    instances = [gpu_instance("1g.10gb", start, 1, compute_instance("1g.10gb", 1)) for start in (0, 1)]
    assert counted(gpu(0, mig=mig(enabled=True, instances=instances)))[0] is None


@given(st.data())
def test_partitions_have_counters_if_and_only_if_the_hardware_refuses_all_of_them_at_once(data: st.DataObject) -> None:
    model = data.draw(st.sampled_from(MODELS))
    names = [profile.name for profile in table_profiles(model)]
    offered = data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    rule = {"mode": "Dynamic", "profiles": offered, "wholeGpu": False}
    counters, partitions = counted(gpu_of(model), mig=[rule])
    assert partitions
    assert (counters is None) is (refusal(model, list(partitions)) is None)


def test_partitions_of_one_profile_fit_beside_each_other_and_not_beside_the_whole_gpu() -> None:
    rule = {"mode": "Dynamic", "profiles": ["1g.10gb"]}
    counters, offered = counted(gpu_of("h100-80"), mig=[rule])
    assert counters is not None
    assert [offer.kind for offer in offered].count(DeviceKind.GPU) == 1
    counters, offered = counted(gpu_of("h100-80"), mig=[{**rule, "wholeGpu": False}])
    assert counters is None
    assert [offer.kind for offer in offered] == [DeviceKind.MIG] * 7


def test_a_gpu_its_shares_and_its_twin_for_virtual_machines_share_one_counter() -> None:
    facts = gpu(0, passthrough=PassthroughFacts(iommu_group=1))
    counters, _ = counted(facts, sharing=[{"strategy": "MPS", "replicas": 2}], passthrough=[{}])
    assert counters is not None
    assert counters.totals == {"shares": 2}
    name = facts.name
    assert counters.consumption == {
        name: {"shares": 2},
        f"{name}-vfio": {"shares": 2},
        f"{name}-share-0": {"shares": 1},
        f"{name}-share-1": {"shares": 1},
    }


def test_each_shared_mig_device_has_a_counter_of_its_own() -> None:
    instances = [gpu_instance("1g.10gb", start, 1, compute_instance("1g.10gb", 1)) for start in (0, 1)]
    facts = gpu(0, mig=mig(enabled=True, instances=instances))
    counters, _ = counted(facts, sharing=[{"devices": "mig", "strategy": "TimeSlicing", "replicas": 2}])
    assert counters is not None
    assert counters.totals == {"mig-1g10gb-0-shares": 2, "mig-1g10gb-1-shares": 2}
    assert counters.consumption[f"{facts.name}-mig-1g10gb-1-share-0"] == {"mig-1g10gb-1-shares": 1}


def test_parts_of_one_gpu_instance_lie_side_by_side_and_nothing_else_beside_them() -> None:
    counters, offered = of_model("h100-80", parts=True)
    parts = {
        (item.partition.start, item.partition.compute_slices, item.partition.compute_start): item.name
        for item in offered
        if isinstance(item.partition, Partition) and item.partition.compute_slices
    }
    assert fits(counters, [parts[0, 1, 0], parts[0, 1, 1], parts[0, 1, 2], parts[4, 2, 0], parts[4, 1, 2]])
    assert not fits(counters, [parts[0, 2, 0], parts[0, 1, 1]])
    whole = next(item.name for item in offered if item.partition == Partition("2g.20gb", 2, 2))
    assert not fits(counters, [parts[0, 1, 2], whole])
