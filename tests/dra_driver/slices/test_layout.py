"""Devices fit into slices, and stay where they are."""

from hypothesis import given
from hypothesis import strategies as st

from dra_driver.api.resource import Device, Taint
from dra_driver.slices.layout import slice_layout


def devices(*numbers: int, tainted: bool = False) -> list[Device]:
    taints = [Taint(key="k", effect="NoSchedule")] if tainted else None
    return [Device(name=f"d{number:03d}", taints=taints) for number in numbers]


def names(layout: dict[int, tuple[Device, ...]]) -> dict[int, list[str]]:
    return {index: [device.name for device in members] for index, members in layout.items()}


def places(layout: dict[int, tuple[Device, ...]]) -> dict[str, int]:
    return {device.name: index for index, members in layout.items() for device in members}


def test_a_pool_without_devices_has_one_empty_slice() -> None:
    assert slice_layout([], {}) == {0: ()}
    assert slice_layout([], {"d000": 3}) == {0: ()}


def test_devices_keep_their_order() -> None:
    assert names(slice_layout(devices(2, 0, 1), {})) == {0: ["d002", "d000", "d001"]}


def test_a_slice_holds_128_devices_and_64_when_one_is_tainted() -> None:
    assert [len(members) for members in slice_layout(devices(*range(200)), {}).values()] == [128, 72]
    mixed = [*devices(*range(99)), *devices(99, tainted=True)]
    assert [len(members) for members in slice_layout(mixed, {}).values()] == [64, 36]


def test_a_device_that_goes_moves_no_other() -> None:
    before = slice_layout(devices(*range(200)), {})
    after = slice_layout(devices(*range(1, 200)), places(before))
    assert places(after) == {name: index for name, index in places(before).items() if name != "d000"}


def test_a_device_that_comes_takes_the_first_free_place_and_moves_no_other() -> None:
    before = slice_layout(devices(*range(1, 200)), {f"d{number:03d}": int(number > 100) for number in range(1, 200)})
    after = slice_layout(devices(*range(200)), places(before))
    assert places(after) == {**places(before), "d000": 0}


def test_a_wasteful_layout_is_given_up() -> None:
    assert names(slice_layout(devices(0, 1), {"d000": 0, "d001": 7})) == {0: ["d000", "d001"]}


@given(
    st.lists(st.integers(0, 300), unique=True, max_size=300),
    st.dictionaries(st.integers(0, 300).map(lambda number: f"d{number:03d}"), st.integers(0, 5)),
    st.booleans(),
)
def test_every_layout_is_complete_within_limits_and_final(
    numbers: list[int], now: dict[str, int], tainted: bool
) -> None:
    wanted = devices(*numbers, tainted=tainted)
    layout = slice_layout(wanted, now)
    limit = 64 if tainted and wanted else 128
    assert sorted(places(layout)) == sorted(device.name for device in wanted)
    assert all(len(members) <= limit for members in layout.values())
    assert len(layout) == max(1, -(-len(wanted) // limit))
    order = {device.name: position for position, device in enumerate(wanted)}
    for members in layout.values():
        assert [order[device.name] for device in members] == sorted(order[device.name] for device in members)
    assert slice_layout(wanted, places(layout)) == layout
