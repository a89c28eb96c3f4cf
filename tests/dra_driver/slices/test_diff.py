"""Slices in the cluster become what is wanted, with few writes, and no reader is ever told something wrong."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.rows import examples, rows
from support.slices import StoredSlices, contents

from dra_driver.api.meta import JsonObject
from dra_driver.api.resource import Attribute, Capacity, CounterSet, Device
from dra_driver.slices.diff import (
    MANAGED_BY,
    MANAGER,
    CreateSlice,
    DeleteSlice,
    NodeRef,
    UpdateSlice,
    WantedPool,
    WantedSlice,
    contents_digest,
    is_complete,
    is_stored_as_sent,
    lost_fields,
    new_object,
    observed_slice,
    places,
    removals,
    slice_writes,
    update_patch,
    wanted_pool,
)
from dra_driver.slices.layout import Places, SliceContents

DRIVER = "gpu.nvidia.com"
NODE = NodeRef("node-a", "node-uid")


def device(name: str, color: str = "green") -> Device:
    return Device(name=name, attributes={"color": Attribute(string=color)}, capacity={"memory": Capacity(value="80Gi")})


def pool(*slices: Sequence[Device], counter_sets: Sequence[CounterSet] = ()) -> WantedPool:
    """With counter sets, the last slice is theirs."""
    layout = {index: SliceContents(devices=tuple(devices)) for index, devices in enumerate(slices)}
    if counter_sets:
        layout[len(slices)] = SliceContents(counter_sets=tuple(counter_sets))
    return wanted_pool(DRIVER, NODE, layout)


def contents_of(item: Device) -> SliceContents:
    return SliceContents(devices=(item,))


def counter_set(name: str, color: str = "green") -> CounterSet:
    return CounterSet(name=f"{name}-counters", counters={color: Capacity(value="1")})


def stored(
    index: int,
    *devices: Device,
    generation: int = 1,
    count: int = 1,
    node: str = "node-a",
    serial: int = 0,
    name: str | None = None,
    ours: bool = True,
) -> JsonObject:
    """A slice as the server has it."""
    contents = {"devices": [item.to_wire() for item in devices]} if devices else {}
    obj = new_object(pool(devices), CreateSlice(WantedSlice(index, contents, ""), 1, 1))
    obj["metadata"].pop("generateName")
    obj["metadata"]["name"] = name or f"{index:05x}-{DRIVER}-{node}-x{serial:04d}"
    obj["metadata"].update(uid=f"uid-{index}-{serial}-{name}", resourceVersion="7")
    obj["spec"]["pool"].update(generation=generation, resourceSliceCount=count)
    obj["spec"]["nodeName"] = node
    if not ours:
        del obj["metadata"]["labels"]
    return obj


def writes_for(wanted: WantedPool, *objects: JsonObject) -> list[tuple[str, int]]:
    """Kind and generation of each write."""
    return [
        (type(write).__name__, 0 if isinstance(write, DeleteSlice) else write.generation)
        for write in slice_writes(wanted, [observed_slice(obj) for obj in objects])
    ]


A, B, C = device("gpu-a"), device("gpu-b"), device("gpu-c")
RED_A, RED_B = device("gpu-a", "red"), device("gpu-b", "red")


def test_a_new_pool_starts_with_generation_1() -> None:
    assert writes_for(pool([A], [B])) == [("CreateSlice", 1), ("CreateSlice", 1)]


def test_what_is_equal_is_not_written() -> None:
    assert writes_for(pool([A], [B]), stored(0, A, count=2, generation=4), stored(1, B, count=2, generation=4)) == []


def test_a_pool_without_devices_has_one_slice() -> None:
    assert writes_for(pool([])) == [("CreateSlice", 1)]
    assert writes_for(pool([]), stored(0)) == []


def test_one_changed_slice_is_one_update_in_the_same_generation() -> None:
    assert writes_for(pool([RED_A], [B]), stored(0, A, count=2, generation=3), stored(1, B, count=2, generation=3)) == [
        ("UpdateSlice", 3)
    ]


def test_two_changed_slices_need_the_next_generation() -> None:
    assert writes_for(pool([RED_A], [RED_B]), stored(0, A, count=2), stored(1, B, count=2)) == [
        ("UpdateSlice", 2),
        ("UpdateSlice", 2),
    ]


def test_another_slice_needs_the_next_generation_and_is_written_last() -> None:
    assert writes_for(pool([A], [B]), stored(0, A)) == [("UpdateSlice", 2), ("CreateSlice", 2)]


def test_a_slice_less_needs_the_next_generation_and_is_deleted_last() -> None:
    assert writes_for(pool([A]), stored(0, A, count=2), stored(1, B, count=2)) == [
        ("UpdateSlice", 2),
        ("DeleteSlice", 0),
    ]


def test_a_slice_that_somebody_deleted_is_put_back_with_one_write() -> None:
    assert writes_for(pool([A], [B]), stored(1, B, count=2, generation=5)) == [("CreateSlice", 5)]


def test_a_write_that_was_never_begun_is_made_up_for_with_one_write() -> None:
    """The publisher ended between the two slices of generation 5; what is left of the one before is not it."""
    left = stored(1, RED_B, count=2, generation=4)
    assert writes_for(pool([A], [B]), stored(0, A, count=2, generation=5), left) == [("UpdateSlice", 5)]


def test_a_duplicate_is_deleted_and_nothing_else_is_written() -> None:
    assert writes_for(pool([A]), stored(0, A), stored(0, A, serial=1)) == [("DeleteSlice", 0)]


def test_two_publishers_delete_the_same_duplicate() -> None:
    ours, other = observed_slice(stored(0, A, serial=1)), observed_slice(stored(0, A, serial=2))
    first = slice_writes(pool([A]), [ours, other])
    second = slice_writes(pool([A]), [other, ours])
    assert first == second == (DeleteSlice(other),)


def test_slices_of_an_older_generation_are_only_deleted() -> None:
    assert writes_for(pool([A]), stored(0, A, generation=4), stored(0, B, generation=3, serial=1)) == [
        ("DeleteSlice", 0)
    ]


def test_slices_of_another_driver_version_are_replaced() -> None:
    """Names that we did not generate say nothing about the place in the pool."""
    assert writes_for(pool([A]), stored(0, A, name="node-a-gpu.nvidia.com-x7k2p", ours=False)) == [
        ("CreateSlice", 2),
        ("DeleteSlice", 0),
    ]


def test_a_slice_of_another_node_in_the_pool_is_replaced_because_its_node_cannot_be_changed() -> None:
    assert writes_for(pool([A]), stored(0, A, node="node-b")) == [("CreateSlice", 2), ("DeleteSlice", 0)]


def test_after_the_last_possible_generation_the_pool_starts_anew() -> None:
    last = stored(0, A, generation=2**63 - 1, count=9)
    assert writes_for(pool([A]), last) == [("DeleteSlice", 0)]


def test_a_new_owner_is_written() -> None:
    """The node was deleted and came back: with the old owner the slice would be collected."""
    wanted = wanted_pool(DRIVER, NodeRef("node-a", "another-uid"), {0: contents_of(A)})
    assert writes_for(wanted, stored(0, A)) == [("UpdateSlice", 1)]


@pytest.mark.parametrize(
    "alter",
    [
        lambda spec: spec["devices"][0]["capacity"]["memory"].update(value="81920Mi"),
        lambda spec: spec["devices"][0].update(taints=[], consumesCounters=None),
        lambda spec: spec.update(sharedCounters=None, perDeviceNodeSelection=None),
    ],
)
def test_other_spellings_of_the_same_are_equal(alter: Any) -> None:
    obj = stored(0, A)
    alter(obj["spec"])
    assert writes_for(pool([A]), obj) == []


@pytest.mark.parametrize(
    ("same", "alter"),
    [
        (True, lambda obj: None),
        (True, lambda obj: obj["metadata"].update(labels={MANAGED_BY: MANAGER, "other": "x"}, annotations={})),
        (False, lambda obj: obj["spec"]["devices"][0]["attributes"].pop("color")),
        (False, lambda obj: obj["spec"]["devices"][0]["capacity"]["memory"].update(value="81920Mi")),
        (False, lambda obj: obj["spec"].update(sharedCounters=[])),
        (False, lambda obj: obj["spec"].update(nodeName="node-b")),
        (False, lambda obj: obj["spec"].update(driver="other")),
        (False, lambda obj: obj.pop("spec")),
        (False, lambda obj: obj["metadata"].pop("labels")),
        (False, lambda obj: obj["metadata"]["labels"].update({MANAGED_BY: "other"})),
        (False, lambda obj: obj["metadata"]["ownerReferences"][0].update(uid="other")),
        (False, lambda obj: obj["metadata"].pop("ownerReferences")),
    ],
)
def test_an_answer_that_is_what_was_sent_needs_no_digest(same: bool, alter: Any) -> None:
    wanted = pool([A])
    for write in (
        CreateSlice(wanted.slices[0], 1, 1),
        UpdateSlice(observed_slice(stored(0, B)), wanted.slices[0], 1, 1),
    ):
        sent = new_object(wanted, write) if isinstance(write, CreateSlice) else update_patch(wanted, write)
        answer = stored(0, A)
        alter(answer)
        assert is_stored_as_sent(wanted, sent, answer) is same
        if same:
            assert contents_digest(answer) == wanted.slices[0].digest


@rows(
    "alter",
    [
        lambda spec: spec["devices"][0]["capacity"]["memory"].update(value="80G"),
        lambda spec: spec["devices"][0]["attributes"]["color"].update(string="blue"),
        lambda spec: spec["devices"][0].update(taints=[{"key": "a", "effect": "NoSchedule"}]),
        lambda spec: spec.update(sharedCounters=[{"name": "set", "counters": {"c": {"value": "1"}}}]),
        lambda spec: spec["devices"].append({"name": "gpu-z"}),
        lambda spec: spec["pool"].update(resourceSliceCount=2),
        lambda spec: spec["devices"][0]["attributes"].update(timeAdded={"string": "now"}),
    ],
)
def test_every_difference_that_means_something_is_repaired(alter: Any) -> None:
    obj = stored(0, A)
    alter(obj["spec"])
    cluster = StoredSlices([obj])
    for write in slice_writes(pool([A]), cluster.observed()):
        cluster.do(pool([A]), write)
    assert slice_writes(pool([A]), cluster.observed()) == ()
    (after,) = cluster.objects.values()
    assert after["spec"] == {**stored(0, A)["spec"], "pool": after["spec"]["pool"]}


def test_the_order_of_devices_counts() -> None:
    """It is the order in which the scheduler tries them."""
    assert writes_for(pool([B, A]), stored(0, A, B)) == [("UpdateSlice", 1)]


def test_an_update_keeps_the_time_since_when_a_taint_is_there() -> None:
    tainted = {"name": "gpu-a", "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}
    obj = stored(0, A)
    obj["spec"]["devices"] = [
        {**tainted, "taints": [{"key": "k", "value": "v", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}]}
    ]
    have = observed_slice(obj)
    assert contents_digest(obj) == contents_digest({**obj, "spec": {**obj["spec"], "devices": [tainted]}})
    other = {"name": "gpu-b", "taints": [{"key": "k", "effect": "NoSchedule"}]}
    patch = update_patch(pool([A]), UpdateSlice(have, WantedSlice(0, {"devices": [tainted, other]}, ""), 1, 1))
    assert patch["spec"]["devices"][0]["taints"][0]["timeAdded"] == "2026-01-01T00:00:00Z"
    assert "timeAdded" not in patch["spec"]["devices"][1]["taints"][0]


def test_what_the_server_makes_of_it_can_be_accepted() -> None:
    have = observed_slice(stored(0, A))
    (item,) = pool([RED_A]).slices
    accepted = WantedPool(DRIVER, NODE, (WantedSlice(0, item.contents, item.digest, accepted=have.digest),))
    assert slice_writes(pool([RED_A]), [have]) != ()
    assert slice_writes(accepted, [have]) == ()


def test_lost_fields_name_the_gate() -> None:
    sent = {"spec": {"devices": [{"name": "a", "taints": [{"key": "k", "effect": "NoSchedule"}]}], "driver": DRIVER}}
    assert lost_fields(sent, {"spec": {"devices": [{"name": "a"}], "driver": DRIVER}}) == (
        "taints (DRADeviceTaints is off?)",
    )
    assert lost_fields(sent, sent) == ()
    assert lost_fields({"spec": {"devices": []}}, {"spec": {}}) == ()


def test_a_created_slice_is_what_conformance_expects() -> None:
    obj = new_object(pool([A]), CreateSlice(pool([A]).slices[0], 1, 1))
    assert obj["metadata"] == {
        "generateName": "00000-gpu.nvidia.com-node-a-",
        "labels": {MANAGED_BY: MANAGER},
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "node-uid", "controller": True}
        ],
    }
    assert obj["spec"]["nodeName"] == obj["spec"]["pool"]["name"] == "node-a"


def test_generated_names_sort_like_the_slices_and_are_recognized_when_they_were_cut() -> None:
    long = NodeRef("n" * 60 + ".example.com", "uid")
    wanted = wanted_pool(DRIVER, long, {0: contents_of(A), 1: contents_of(B), 300: contents_of(C)})
    cluster = StoredSlices()
    for write in slice_writes(wanted, ()):
        cluster.do(wanted, write)
    names = sorted(cluster.objects)
    assert [observed_slice(cluster.objects[name]).index for name in names] == [0, 1, 300]
    assert max(map(len, names)) == 63
    assert slice_writes(wanted, cluster.observed()) == ()


def test_places_are_those_of_the_newest_generation() -> None:
    observed = [stored(0, A, B, generation=1), stored(1, A, generation=2, count=1)]
    assert places([observed_slice(obj) for obj in observed]) == Places({"gpu-a": 1})


def test_counter_sets_are_written_found_and_repaired_like_devices() -> None:
    wanted = pool([A], counter_sets=[counter_set("gpu-a")])
    cluster = StoredSlices()
    for write in slice_writes(wanted, ()):
        cluster.do(wanted, write)
    assert places(cluster.observed()) == Places({"gpu-a": 0}, {"gpu-a-counters": 1})
    assert slice_writes(wanted, cluster.observed()) == ()
    (with_counters,) = [obj for obj in cluster.objects.values() if "sharedCounters" in obj["spec"]]
    assert "devices" not in with_counters["spec"]
    with_counters["spec"]["sharedCounters"][0]["counters"]["green"]["value"] = "2"
    (write,) = slice_writes(wanted, cluster.observed())
    cluster.do(wanted, write)
    assert slice_writes(wanted, cluster.observed()) == ()


def test_a_slice_of_devices_that_becomes_one_of_counter_sets_has_no_devices_left() -> None:
    cluster = StoredSlices([stored(0, A)])
    wanted = pool(counter_sets=[counter_set("gpu-a")])
    for write in slice_writes(wanted, cluster.observed()):
        cluster.do(wanted, write)
    (obj,) = cluster.objects.values()
    assert set(obj["spec"]) == {"driver", "nodeName", "pool", "sharedCounters"}


def test_only_our_slices_are_removed_with_their_inventory_and_the_oldest_first() -> None:
    observed = [
        observed_slice(obj)
        for obj in (stored(0, A, generation=2), stored(0, B, generation=1, serial=1), stored(1, C, ours=False))
    ]
    assert [write.observed.generation for write in removals(observed)] == [1, 2]
    assert all(write.observed.ours for write in removals(observed))


# Laws ---------------------------------------------------------------------------------------------------------------

names = st.sampled_from(["gpu-a", "gpu-b", "gpu-c", "gpu-d", "gpu-e"])
colors = st.sampled_from(["green", "red"])
device_lists = st.lists(st.builds(device, names, colors), max_size=3, unique_by=lambda item: item.name)


@st.composite
def wanted_pools(draw: st.DrawFn) -> WantedPool:
    devices = draw(st.lists(st.builds(device, names, colors), max_size=5, unique_by=lambda item: item.name))
    indices = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4, unique=True))
    layout: dict[int, list[Device]] = {index: [] for index in indices}
    for item in devices:
        layout[draw(st.sampled_from(indices))].append(item)
    contents = {index: SliceContents(devices=tuple(members)) for index, members in layout.items()}
    if draw(st.booleans()):
        sets = draw(st.lists(st.builds(counter_set, names, colors), min_size=1, unique_by=lambda item: item.name))
        contents[9] = SliceContents(counter_sets=tuple(sets))
    return wanted_pool(DRIVER, NODE, contents)


@st.composite
def garbage(draw: st.DrawFn, wanted: WantedPool) -> list[JsonObject]:
    """Slices of any kind: wrong, missing, duplicate, foreign, of any generation and count."""
    return [
        stored(
            draw(st.integers(0, 4)),
            *draw(device_lists),
            generation=draw(st.integers(1, 3)),
            count=draw(st.sampled_from([len(wanted.slices), 1, 2, 3])),
            node=draw(st.sampled_from(["node-a"] * 4 + ["node-b"])),
            serial=serial,
            name=draw(st.sampled_from([None] * 4 + [f"foreign-{serial}"])),
            ours=draw(st.booleans()),
        )
        for serial in range(draw(st.integers(0, 5)))
    ]


@st.composite
def damaged(draw: st.DrawFn, wanted: WantedPool) -> list[JsonObject]:
    """The wanted pool, or what is left of it: few things are wrong, which is what happens and what is most delicate."""
    count = len(wanted.slices)
    objects: list[JsonObject] = []
    for serial, item in enumerate(wanted.slices * 2):
        damage = ["none"] * 5 + ["wrong"] * 4 + ["older", "count", "node", "name", "missing"]
        kind = draw(st.sampled_from(damage if serial < count else ["missing"] * 4 + ["none", "wrong"]))
        if kind == "missing":
            continue
        node = "node-b" if kind == "node" else "node-a"
        obj = stored(item.index, generation=2, count=count, serial=serial, node=node)
        obj["spec"] |= item.contents
        if kind == "wrong":
            obj["spec"]["devices"] = [{"name": "gpu-wrong", "attributes": {"color": {"string": str(serial)}}}]
        elif kind == "older":
            obj["spec"]["pool"]["generation"] = 1
        elif kind == "count":
            obj["spec"]["pool"]["resourceSliceCount"] = count + 1
        elif kind == "name":
            obj["metadata"]["name"] = f"foreign-{serial}"
        objects.append(obj)
    return objects


@st.composite
def scenes(draw: st.DrawFn) -> tuple[WantedPool, list[JsonObject]]:
    wanted = draw(wanted_pools())
    return wanted, draw(st.one_of(garbage(wanted), damaged(wanted)))


def wanted_contents(wanted: WantedPool) -> Any:
    return contents(item.contents for item in wanted.slices)


@given(scenes())
@settings(max_examples=examples(400), deadline=None)
def test_from_any_state_one_pass_reaches_the_wanted_one_and_a_second_writes_nothing(
    scene: tuple[WantedPool, list[JsonObject]],
) -> None:
    wanted, objects = scene
    cluster = StoredSlices(objects)
    for write in slice_writes(wanted, cluster.observed()):
        cluster.do(wanted, write)
    assert cluster.seen_by_readers(NODE.name) == {wanted_contents(wanted)}
    assert is_complete(cluster.observed())
    assert slice_writes(wanted, cluster.observed()) == ()


@given(scenes(), st.data())
@settings(max_examples=examples(400), deadline=None)
def test_a_reader_never_sees_a_complete_pool_with_wrong_contents(
    scene: tuple[WantedPool, list[JsonObject]], data: st.DataObject
) -> None:
    """Stopped after each single write, and now and then starting over from there.

    What readers could believe before the first write they may go on believing until it is replaced.
    """
    wanted, objects = scene
    cluster = StoredSlices(objects)
    allowed = cluster.seen_by_readers(NODE.name) | {wanted_contents(wanted)}
    for _ in range(200):
        todo = slice_writes(wanted, cluster.observed())
        if not todo:
            break
        for write in todo[: data.draw(st.integers(1, len(todo)))]:
            cluster.do(wanted, write)
            assert cluster.seen_by_readers(NODE.name) <= allowed
    assert cluster.seen_by_readers(NODE.name) == {wanted_contents(wanted)}


@given(scenes(), st.data())
@settings(max_examples=examples(200), deadline=None)
def test_once_the_wanted_pool_was_seen_it_stays_seen(
    scene: tuple[WantedPool, list[JsonObject]], data: st.DataObject
) -> None:
    wanted, objects = scene
    cluster = StoredSlices(objects)
    for _ in range(200):
        todo = slice_writes(wanted, cluster.observed())
        for write in todo[: data.draw(st.integers(1, len(todo)))] if todo else ():
            before = cluster.seen_by_readers(NODE.name)
            cluster.do(wanted, write)
            if before == {wanted_contents(wanted)}:
                assert cluster.seen_by_readers(NODE.name) in (before, set())
        if not todo:
            break


@given(wanted_pools(), wanted_pools())
@settings(max_examples=examples(200), deadline=None)
def test_a_change_of_one_slice_costs_one_write(before: WantedPool, after: WantedPool) -> None:
    """And a change of nothing costs none; anything else at most one write for each slice."""
    cluster = StoredSlices()
    for write in slice_writes(before, ()):
        cluster.do(before, write)
    writes = slice_writes(after, cluster.observed())
    have, want = ({item.index: item.digest for item in each.slices} for each in (before, after))
    changed = {index for index in have | want if have.get(index) != want.get(index)}
    assert len(writes) <= len(have | want)
    if not changed:
        assert writes == ()
    if len(changed) == 1 and have.keys() == want.keys():
        assert len(writes) == 1
    assume(len(changed) > 1)
    assert len(writes) >= len(changed)
