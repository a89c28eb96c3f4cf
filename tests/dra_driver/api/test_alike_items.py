"""A list whose items are alike is read as if each item were parsed."""

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.alike import slice_of
from support.rows import examples

from dra_driver.api.alike_items import read_items
from dra_driver.api.documents import read_documents
from dra_driver.api.meta import JsonObject


def parsed(data: bytes) -> JsonObject | None:
    """As the standard library does, without what is invalid or ambiguous."""
    try:
        obj = json.loads(data, object_pairs_hook=_without_twice, parse_constant=_refused)
    except (ValueError, RecursionError):
        return None
    return obj if isinstance(obj, dict) else None


def _without_twice(pairs: list[tuple[str, object]]) -> JsonObject:
    obj = dict(pairs)
    if len(obj) < len(pairs):
        raise ValueError("a key is given twice")
    return obj


def _refused(text: str) -> object:
    raise ValueError(text)


class Parser:
    """Counts how many texts it parsed."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, data: bytes) -> JsonObject | None:
        self.calls += 1
        return parsed(data)


LEAVES: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(["a", "", "ä", "€𝄞", 'quo"te', "back\\slash", "tab\t", "\x00", "\x7f", "{", "}]", ": "]),
    st.sampled_from([0, 1, -1, 10**17, 10**18, 2**64, 0.5, 1.0, -0.0, 1e300, True, False, None]),
)
KEYS = st.sampled_from(["a", "b", "-1", 'k"', "ä"])
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)


@st.composite
def varied(draw: st.DrawFn, value: Any) -> Any:
    """With other values at its leaves, most of the same type."""
    if isinstance(value, dict):
        return {key: draw(varied(inner)) for key, inner in value.items()}
    if isinstance(value, list):
        return [draw(varied(inner)) for inner in value]
    if draw(st.integers(0, 20)) == 13:
        return draw(LEAVES)
    return draw(st.sampled_from(["x", "y", "zö"]) if isinstance(value, str) else st.integers(0, 30) | st.just(value))


@st.composite
def texts(draw: st.DrawFn) -> str:
    """Lists of objects that are nearly alike, written in one of the usual ways, some damaged at a place."""
    kinds = draw(st.lists(st.dictionaries(KEYS, VALUES, min_size=1, max_size=3), min_size=1, max_size=2))
    items = [draw(varied(draw(st.sampled_from(kinds)))) for _ in range(draw(st.integers(3, 12)))]
    before: JsonObject = draw(
        st.sampled_from([{}, {"kind": "List"}, {"metadata": {}}, {"metadata": {"a": "b", "c": 1}}])
    )
    after: JsonObject = draw(st.sampled_from([{}, {"kind": "List"}, {"metadata": {"a": "b"}}]))
    style: dict[str, Any] = draw(
        st.sampled_from([{}, {"indent": 4}, {"separators": (",", ":")}, {"ensure_ascii": False}])
    )
    text = json.dumps({**before, "items": items, **after}, **style)
    if draw(st.integers(0, 3)) == 2:
        place = draw(st.integers(0, len(text)))
        text = (
            text[:place] + draw(st.sampled_from(list('",:{}[]\\01 ax\f\n'))) + text[place + draw(st.integers(0, 2)) :]
        )
    return text


@settings(max_examples=examples(400), deadline=None)
@given(texts())
def test_items_that_are_read_together_are_what_each_is_alone(text: str) -> None:
    expected = parsed(text.encode())
    read = read_items(text.encode(), parsed)
    if read is None:
        return
    items, without = read
    rest = parsed(without)
    together = None if rest is None else {**rest, "items": items}
    assert json.dumps(together) == json.dumps(expected)


def a_list(items: list[JsonObject], **style: Any) -> bytes:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, **style).encode()


@pytest.mark.parametrize("style", [{}, {"indent": 4}, {"indent": 4, "sort_keys": True}])
def test_of_many_nodes_few_slices_are_parsed(style: dict[str, Any]) -> None:
    slices = [slice_of(number) for number in range(200)]
    for number, slice_ in enumerate(slices):
        slice_["metadata"]["generation"] = number
    parser = Parser()
    read = read_items(a_list(slices, **style), parser)
    assert read is not None and read[0] == slices
    assert parser.calls <= 5


def test_items_of_an_unusual_layout_do_not_end_the_search_for_others() -> None:
    unlike = [{"kind": "Node", "data": ["x"] * number} for number in range(100)]
    alike = [{"kind": "ResourceSlice", "name": f"slice-{number}"} for number in range(100)]
    parser = Parser()
    read = read_items(a_list(unlike + alike), parser)
    assert read is not None and read[0] == unlike + alike
    assert parser.calls < 110


def test_an_item_that_is_made_from_another_one_can_be_changed_at_its_top() -> None:
    read = read_items(a_list([{"name": "a", "spec": {}} for _ in range(4)]), parsed)
    assert read is not None
    read[0][3]["name"] = "b"
    assert [item["name"] for item in read[0]] == ["a", "a", "a", "b"]


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace('"node-7"', '"node-7', 1),
        lambda text: text.replace('"node-7"', '"node-7\\ud800"', 1),
        lambda text: text.replace('"node-7"', '"node-7\x01"', 1),
        lambda text: text.replace('"node-7"', "node-7", 1),
        lambda text: text.replace('"node-7"', '"node-7", "nodeName": "x"', 1),
        lambda text: text.replace('"generation": 7', '"generation": 07', 1),
        lambda text: text.replace('"generation": 7', '"generation": -', 1),
        lambda text: text.replace('"generation": 7', '"generation": 7, "items": []', 1),
        lambda text: text.replace('"items"', '"items": [], "items"', 1),
        lambda text: text[:-2] + ",]}",
        lambda text: text[:-2] + ', "a"]}',
        lambda text: text.replace("}, {", "},\f{", 1),
        lambda text: text[:-1],
        lambda text: text + "}",
    ],
)
def test_a_mistake_in_one_of_many_has_the_message_that_it_has_alone(change: Any) -> None:
    """A comment before the text makes it one that is read as YAML, item by item."""
    slices = [slice_of(number) for number in range(12)]
    for number, slice_ in enumerate(slices):
        slice_["metadata"]["generation"] = number
    text = change(a_list(slices).decode())
    read, as_yaml = read_documents("\n" + text, "f"), read_documents("#\n" + text, "f")
    assert list(map(str, read.problems)) == list(map(str, as_yaml.problems))
    assert [document.obj for document in read.documents] == [document.obj for document in as_yaml.documents]


def test_a_list_that_is_deep_is_read_as_a_whole() -> None:
    deep: JsonObject = {}
    for _ in range(60):
        deep = {"a": [deep]}
    text = a_list([deepcopy(deep) for _ in range(4)])
    assert read_items(text, parsed) is None
    assert [document.obj for document in read_documents(text, "f").raise_problems()] == [deep] * 4
