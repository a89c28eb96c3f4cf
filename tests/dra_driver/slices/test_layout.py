"""Devices fit into slices, and stay where they are."""

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from support.inventories import inventory_spec
from support.mig import gpu_of

from dra_driver.api.policy import MigRule, PublishingPolicy
from dra_driver.api.resource import Device, Taint
from dra_driver.names import GPU_DRIVER
from dra_driver.slices.describe import DescribedGpu, described_devices
from dra_driver.slices.features import ALL_FEATURES, ServerFeatures
from dra_driver.slices.layout import COUNTER_SLICES, Places, SliceContents, slice_layout

NONE = ServerFeatures()
TAINTS = ServerFeatures(taints=True)
NOWHERE = Places()


def devices(*numbers: int, tainted: bool = False) -> list[Device]:
    taints = [Taint(key="k", effect="NoSchedule")] if tainted else None
    return [Device(name=f"d{number:03d}", taints=taints) for number in numbers]


def laid_out(
    devices: list[Device], now: Mapping[str, int] | None = None, features: ServerFeatures = NONE
) -> dict[int, list[str]]:
    """Of GPUs that are one device each."""
    layout = slice_layout([DescribedGpu((device,)) for device in devices], Places(now or {}), features)
    return {index: [device.name for device in contents.devices] for index, contents in layout.items()}


def places(layout: Mapping[int, list[str]]) -> dict[str, int]:
    return {name: index for index, names in layout.items() for name in names}


def dynamic(*numbers: int, features: ServerFeatures = ALL_FEATURES) -> tuple[DescribedGpu, ...]:
    """H100s that are partitioned on demand."""
    policy = PublishingPolicy(mig=[MigRule(mode="Dynamic")])
    inventory = inventory_spec("node-a", [gpu_of("h100-80", number) for number in numbers])
    return described_devices(inventory, policy, {}, GPU_DRIVER, features).gpus


def now(layout: Mapping[int, SliceContents]) -> Places:
    devices = {device.name: index for index, contents in layout.items() for device in contents.devices}
    sets = {item.name: index for index, contents in layout.items() for item in contents.counter_sets}
    return Places(devices, sets)


def test_a_pool_without_devices_has_one_empty_slice() -> None:
    assert laid_out([]) == {0: []}
    assert laid_out([], {"d000": 3}) == {0: []}


def test_devices_keep_their_order() -> None:
    assert laid_out(devices(2, 0, 1)) == {0: ["d002", "d000", "d001"]}


def test_a_slice_holds_128_devices_and_64_when_one_is_tainted_or_could_be() -> None:
    assert [len(names) for names in laid_out(devices(*range(200))).values()] == [128, 72]
    mixed = [*devices(*range(99)), *devices(99, tainted=True)]
    assert [len(names) for names in laid_out(mixed).values()] == [64, 36]
    for features in (TAINTS, ServerFeatures(list_attributes=True)):
        assert [len(names) for names in laid_out(devices(*range(100)), features=features).values()] == [64, 36]


def test_a_device_that_goes_moves_no_other() -> None:
    before = laid_out(devices(*range(200)))
    after = laid_out(devices(*range(1, 200)), places(before))
    assert places(after) == {name: index for name, index in places(before).items() if name != "d000"}


def test_a_device_that_comes_takes_the_first_free_place_and_moves_no_other() -> None:
    before = laid_out(devices(*range(1, 200)), {f"d{number:03d}": int(number > 100) for number in range(1, 200)})
    after = laid_out(devices(*range(200)), places(before))
    assert places(after) == {**places(before), "d000": 0}


def test_full_slices_stay_as_they_are() -> None:
    crossed = {f"d{number:03d}": 1 - number % 2 for number in range(256)}
    assert places(laid_out(devices(*range(256)), crossed)) == crossed


def test_a_wasteful_layout_is_given_up() -> None:
    assert laid_out(devices(0, 1), {"d000": 0, "d001": 7}) == {0: ["d000", "d001"]}


def test_eight_partitioned_gpus_are_four_slices_of_devices_and_one_of_counters() -> None:
    layout = slice_layout(dynamic(*range(8)), NOWHERE, ALL_FEATURES)
    assert [len(contents.devices) for contents in layout.values()] == [52, 52, 52, 52, 0]
    assert [len(contents.counter_sets) for contents in layout.values()] == [0, 0, 0, 0, 8]
    assert list(layout) == [0, 1, 2, 3, COUNTER_SLICES]


def test_a_ninth_gpu_moves_no_other() -> None:
    before = slice_layout(dynamic(*range(8)), NOWHERE, ALL_FEATURES)
    after = slice_layout(dynamic(*range(9)), now(before), ALL_FEATURES)
    assert list(after) == [0, 1, 2, 3, 4, COUNTER_SLICES, COUNTER_SLICES + 1]
    assert [index for index, contents in before.items() if after[index] != contents] == []


def test_what_befalls_one_gpu_changes_one_slice() -> None:
    for number in range(8):
        gpus = dynamic(*range(8))
        before = slice_layout(gpus, NOWHERE, ALL_FEATURES)
        taint = Taint(key="k", effect="NoSchedule")
        tainted = [device.model_copy(update={"taints": [taint]}) for device in gpus[number].devices]
        changed = (*gpus[:number], replace(gpus[number], devices=tuple(tainted)), *gpus[number + 1 :])
        after = slice_layout(changed, now(before), ALL_FEATURES)
        assert sum(after[index] != contents for index, contents in before.items()) == 1


def test_a_gpu_with_more_devices_than_a_slice_holds_is_in_several() -> None:
    layout = slice_layout([DescribedGpu(tuple(devices(*range(129))))], NOWHERE, TAINTS)
    assert [len(contents.devices) for contents in layout.values()] == [64, 64, 1]


def test_partitions_that_are_made_by_hand_stay_in_the_slice_of_their_gpu() -> None:
    before = [DescribedGpu(tuple(devices(*range(10 * gpu, 10 * gpu + 7)))) for gpu in range(18)]
    places = now(slice_layout(before, NOWHERE, TAINTS))
    assert {places.devices["d090"], places.devices["d091"]} == {1}
    after = [*before]
    after[9] = DescribedGpu(tuple(devices(91, 98)))
    layout = slice_layout(after, places, TAINTS)
    assert now(layout).devices["d098"] == 1
    assert len(layout) == 2


def test_on_servers_before_1_35_a_gpu_and_its_counters_are_in_one_slice() -> None:
    features = replace(ALL_FEATURES, counters_apart=False)
    gpus = dynamic(0, 1, features=features)
    layout = slice_layout(gpus, NOWHERE, features)
    assert [(len(contents.devices), len(contents.counter_sets)) for contents in layout.values()] == [(26, 1), (26, 1)]
    assert slice_layout(gpus, now(layout), features) == layout


def test_counter_sets_find_their_own_slices_again_when_the_server_becomes_a_newer_one() -> None:
    together = replace(ALL_FEATURES, counters_apart=False)
    before = slice_layout(dynamic(0, features=together), NOWHERE, together)
    after = slice_layout(dynamic(0), now(before), ALL_FEATURES)
    assert list(after) == [0, COUNTER_SLICES]
    assert after[0].counter_sets == ()


@given(
    st.lists(st.integers(0, 300), unique=True, max_size=300),
    st.dictionaries(st.integers(0, 300).map(lambda number: f"d{number:03d}"), st.integers(0, 5)),
    st.booleans(),
)
def test_every_layout_is_complete_within_limits_and_final(
    numbers: list[int], before: dict[str, int], tainted: bool
) -> None:
    wanted = devices(*numbers, tainted=tainted)
    layout = laid_out(wanted, before)
    limit = 64 if tainted and wanted else 128
    assert sorted(places(layout)) == sorted(device.name for device in wanted)
    assert all(len(names) <= limit for names in layout.values())
    assert len(layout) == max(1, -(-len(wanted) // limit))
    order = {device.name: position for position, device in enumerate(wanted)}
    for names in layout.values():
        assert [order[name] for name in names] == sorted(order[name] for name in names)
    assert laid_out(wanted, places(layout)) == layout
