"""The patch forms as functions: RFC 7386's examples, and the directives of strategic merges."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import rows

from dra_driver.apirules.schema import builtin_schema
from dra_driver.apirules.status import ApiError
from dra_driver.simulation.apiserver.patch import merge_patch, strategic_merge

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@rows(
    "target, patch, result",
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_the_examples_of_rfc_7386(target: Any, patch: Any, result: Any) -> None:
    assert merge_patch(target, patch) == result


@given(target=st.dictionaries(st.text(max_size=3), JSON, max_size=4), patch=JSON)
def test_a_merge_patch_applied_twice_is_one_applied_once(target: Any, patch: Any) -> None:
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once


POD = builtin_schema("", "v1", "Pod")


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": list(containers), **spec}}


def names(obj: dict[str, Any]) -> list[str]:
    return [container["name"] for container in obj["spec"]["containers"]]


def test_new_items_come_before_the_old_ones_they_were_not_ordered_with() -> None:
    merged = strategic_merge(pod({"name": "a"}, {"name": "b"}), pod({"name": "c"}), POD)
    assert names(merged) == ["c", "a", "b"]


def test_items_that_were_there_keep_their_order() -> None:
    merged = strategic_merge(pod({"name": "a"}, {"name": "b"}), pod({"name": "b", "image": "i"}), POD)
    assert merged == pod({"name": "a"}, {"name": "b", "image": "i"})


def test_an_order_directive_decides() -> None:
    order = {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}
    merged = strategic_merge(pod({"name": "a"}, {"name": "b"}), {"spec": order}, POD)
    assert names(merged) == ["b", "a"]


def test_a_replace_directive_replaces_the_list() -> None:
    patch = pod({"name": "c"}, {"$patch": "replace"})
    assert names(strategic_merge(pod({"name": "a"}), patch, POD)) == ["c"]


def test_a_replace_directive_replaces_the_object() -> None:
    merged = strategic_merge({"spec": {"nodeName": "n"}}, {"spec": {"$patch": "replace", "hostname": "h"}}, POD)
    assert merged == {"spec": {"hostname": "h"}}


def test_retained_keys_are_all_that_is_left() -> None:
    patch = {"spec": {"$retainKeys": ["hostname"], "hostname": "h"}}
    assert strategic_merge({"spec": {"nodeName": "n"}}, patch, POD) == {"spec": {"hostname": "h"}}


def test_an_item_without_its_key_is_a_bad_request() -> None:
    with pytest.raises(ApiError) as refusal:
        strategic_merge(pod({"name": "a"}), pod({"image": "i"}), POD)
    assert refusal.value.status == 400


def test_the_inputs_stay_as_they_were() -> None:
    target, patch = pod({"name": "a", "env": [{"name": "x"}]}), pod({"name": "a", "env": [{"name": "y"}]})
    strategic_merge(target, patch, POD)
    assert target == pod({"name": "a", "env": [{"name": "x"}]})
    assert patch == pod({"name": "a", "env": [{"name": "y"}]})
