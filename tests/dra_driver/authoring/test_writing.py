"""YAML with notes says the same as without them."""

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rows import examples, rows

from dra_driver.authoring.writing import Noted, plain, written

WORDS = st.text("aZ0 .:-#'\"{}[]&*!|>%@,?=~\\é", max_size=12)
NAMES = st.from_regex(r"[a-z][a-zA-Z./-]{0,12}", fullmatch=True)
SCALARS = st.one_of(
    WORDS, st.integers(), st.booleans(), st.sampled_from(["50", "yes", "1e3", "null", "~", "- a", "# b"])
)
VALUES = st.recursive(
    st.one_of(SCALARS, st.lists(WORDS, max_size=3)),
    lambda inner: st.one_of(
        st.dictionaries(NAMES, st.one_of(inner, st.builds(Noted, WORDS, inner)), min_size=1, max_size=3),
        st.lists(
            st.dictionaries(NAMES, st.one_of(inner, st.builds(Noted, WORDS, inner)), min_size=1, max_size=3),
            min_size=1,
            max_size=3,
        ),
    ),
    max_leaves=6,
)
OBJECTS = st.dictionaries(NAMES, VALUES, min_size=1, max_size=4)


@given(st.lists(OBJECTS, min_size=1, max_size=2))
@settings(max_examples=examples(60))
def test_what_is_written_reads_back_as_the_objects_without_their_notes(objects: list[dict[str, object]]) -> None:
    assert list(yaml.safe_load_all(written(objects))) == [plain(obj) for obj in objects]


def test_notes_stand_above_what_they_are_about_and_are_said_once() -> None:
    obj = Noted("top", {"a": Noted("why a", 1), "list": [Noted("item", {"b": "x"}), Noted("item", {"b": "y"})]})
    assert written([obj]) == "# top\n# why a\na: 1\nlist:\n# item\n- b: x\n- b: y\n"


def test_a_note_of_an_item_s_first_field_stands_above_the_dash() -> None:
    assert written([{"list": [{"a": Noted("first", 1), "b": Noted("second", 2)}]}]) == (
        "list:\n# first\n- a: 1\n  # second\n  b: 2\n"
    )


@rows("items", [["a", {"b": 1}], [{"b": 1}, {}], [{}], [[1]], [None, 7], [Noted("n", {"b": 1}), "x"]])
def test_lists_of_something_else_than_objects_with_fields_are_written_in_one_line(items: list[object]) -> None:
    text = written([{"list": items}])
    assert (text.count("\n"), yaml.safe_load(text)) == (1, {"list": plain(items)})


def test_a_long_expression_is_written_part_by_part() -> None:
    long = " && ".join(f'device.attributes["gpu.nvidia.com"].name{number} == "value"' for number in range(3))
    text = written([{"expression": long}])
    assert [line.strip() for line in text.splitlines()] == [
        "expression: >-",
        *(f"{'&& ' if index else ''}{part}" for index, part in enumerate(long.split(" && "))),
    ]
    assert yaml.safe_load(text) == {"expression": long}
