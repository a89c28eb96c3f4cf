"""A slice that is like an earlier one is what it is alone."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.alike import INVALID, TAINT, VALID, slice_of, slices
from support.rows import examples

from dra_driver.allocation.alike import AlikeSlice
from dra_driver.allocation.loading import Loaded, world_of
from dra_driver.api.documents import read_documents
from dra_driver.api.meta import JsonObject


@settings(max_examples=examples(300))
@given(slices(*VALID, *INVALID))
def test_slices_that_are_read_together_are_what_each_is_alone(objects: list[JsonObject]) -> None:
    together, alone = world_of(objects), [world_of([obj]) for obj in objects]
    assert _problems(together) == [problem for loaded in alone for problem in _problems(loaded)]
    expected = [single for loaded in alone for single in loaded.world.slices]
    for slice_, single in zip(together.world.slices, expected, strict=True):
        for answer in (
            *("name", "pool", "generation", "node_name", "slices_of_pool", "has_counters", "names", "size", "draws"),
            *("drawn", "counters", "attached", "slice"),
        ):
            assert getattr(slice_, answer) == getattr(single, answer), answer


@settings(max_examples=examples(200))
@given(slices(*VALID, *INVALID), st.sampled_from([None, 4]))
def test_slices_of_a_file_are_what_they_are_as_objects(objects: list[JsonObject], indent: int | None) -> None:
    """Those whose texts are alike are made from one that was parsed."""
    text = json.dumps({"kind": "List", "items": objects}, indent=indent)
    documents = read_documents(text.encode(), "cluster.json").raise_problems()
    of_file, of_objects = world_of(document.obj for document in documents), world_of(objects)
    assert _problems(of_file) == _problems(of_objects)
    assert [item.slice for item in of_file.world.slices] == [item.slice for item in of_objects.world.slices]


def _problems(loaded: Loaded) -> list[str]:
    return list(map(str, loaded.problems))


def test_of_equal_nodes_only_the_first_is_typed() -> None:
    first, *others = world_of([slice_of(number) for number in range(4)]).world.slices
    assert not isinstance(first, AlikeSlice)
    assert all(isinstance(other, AlikeSlice) and other.model is first for other in others)
    assert len({other.look({"product"}) for other in others}) == 1
    assert len({other.look({"uuid"}) for other in others}) == 3


def _for_devices(obj: JsonObject) -> None:
    obj["spec"]["perDeviceNodeSelection"] = True
    for device in obj["spec"]["devices"]:
        device["nodeName"] = "node-1"


@pytest.mark.parametrize(
    "change",
    [
        lambda first, _: first["taints"].clear(),
        lambda first, _: first["taints"][0].update(effect="NoExecute"),
        lambda _, last: last["capacity"]["memory"].update(value="40Gi"),
        lambda _, last: last["attributes"]["numa"].update(int=1),
        lambda _, last: last["attributes"]["product"].update(string="B"),
        lambda first, _: first["attributes"]["product"].update(string="B"),
        lambda first, _: first["attributes"].update(other=first["attributes"].pop("uuid")),
    ],
)
def test_what_decides_about_devices_makes_a_slice_another_one(change: Callable[..., object]) -> None:
    """`product` is what the claims read."""
    objects = [slice_of(number) for number in range(3)]
    for obj in objects:
        obj["spec"]["devices"][0]["taints"] = [{**TAINT}]
    devices = objects[2]["spec"]["devices"]
    change(devices[0], devices[-1])
    looks = [slice_.look({"product"}) for slice_ in world_of(objects).world.slices]
    assert looks[0] == looks[1] != looks[2]


def test_a_slice_that_names_a_node_and_leaves_its_devices_to_others_is_like_no_other() -> None:
    objects = [slice_of(number) for number in range(2)]
    for obj in objects:
        _for_devices(obj)
    assert not any(isinstance(slice_, AlikeSlice) for slice_ in world_of(objects).world.slices)


def test_where_the_order_of_attributes_counts_a_slice_is_like_no_other() -> None:
    """One attribute, with and without the name of its driver: selectors see the last one."""
    objects = [slice_of(number) for number in range(2)]
    for obj in objects:
        attributes = obj["spec"]["devices"][0]["attributes"]
        obj["spec"]["devices"][0]["attributes"] = {"gpu.nvidia.com/product": {"string": "B"}, **attributes}
    assert not any(isinstance(slice_, AlikeSlice) for slice_ in world_of(objects).world.slices)
