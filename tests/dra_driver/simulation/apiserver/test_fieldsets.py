"""Sets of fields: the laws that ownership rests on."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dra_driver.apirules.schema import Schema
from dra_driver.simulation.apiserver.fieldsets import (
    ABSENT,
    Path,
    decode_fields,
    difference,
    encode_fields,
    fields_of,
    merged,
    without,
)

TEXT = {"type": "string"}
SCHEMA = Schema(
    {
        "type": "object",
        "properties": {
            "name": TEXT,
            "labels": {"type": "object", "additionalProperties": TEXT},
            "atomic": {"type": "array", "items": TEXT},
            "set": {"type": "array", "items": TEXT, "x-kubernetes-list-type": "set"},
            "keyed": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["k"],
                "items": {"type": "object", "properties": {"k": TEXT, "v": TEXT}},
            },
        },
    }
)
WORD = st.sampled_from(["a", "b", "c"])
OBJECT = st.fixed_dictionaries(
    {},
    optional={
        "name": WORD,
        "labels": st.dictionaries(WORD, WORD, min_size=1),
        "atomic": st.lists(WORD, min_size=1, max_size=3),
        "set": st.lists(WORD, unique=True, min_size=1),
        "keyed": st.lists(
            st.fixed_dictionaries({"k": WORD}, optional={"v": WORD}), unique_by=lambda one: one["k"], min_size=1
        ),
    },
)
PATHS = st.frozensets(
    st.lists(st.sampled_from(["f:a", "f:b", 'k:{"k":"x"}', 'v:"y"']), min_size=1, max_size=3).map(tuple)
)


@given(paths=PATHS)
def test_fields_survive_their_wire_form(paths: frozenset[Path]) -> None:
    assert set(decode_fields(encode_fields(paths))) == paths


@given(obj=OBJECT)
def test_an_object_does_not_differ_from_itself(obj: dict[str, Any]) -> None:
    found = difference(obj, dict(obj), SCHEMA)
    assert not (found.added or found.removed or found.modified)


@given(old=OBJECT, new=OBJECT)
def test_differences_look_the_other_way_round_from_the_other_side(old: dict[str, Any], new: dict[str, Any]) -> None:
    there, back = difference(old, new, SCHEMA), difference(new, old, SCHEMA)
    assert (there.added, there.removed, there.modified) == (back.removed, back.added, back.modified)


@given(obj=OBJECT)
def test_everything_that_an_object_says_is_new_to_nothing(obj: dict[str, Any]) -> None:
    assert set(fields_of(obj, SCHEMA)) <= difference(ABSENT, obj, SCHEMA).added | {()}


@given(live=OBJECT, config=OBJECT)
def test_a_merge_says_all_that_was_applied_and_loses_nothing(live: dict[str, Any], config: dict[str, Any]) -> None:
    result = merged(live, config, SCHEMA)
    assert not difference(result, merged(result, config, SCHEMA), SCHEMA).modified
    assert set(fields_of(config, SCHEMA)) <= set(fields_of(result, SCHEMA))
    assert set(fields_of(live, SCHEMA)) <= set(fields_of(result, SCHEMA))


@given(live=OBJECT, config=OBJECT)
def test_what_is_given_up_again_leaves_what_others_own(live: dict[str, Any], config: dict[str, Any]) -> None:
    owned = set(fields_of(live, SCHEMA))
    given_up = set(fields_of(config, SCHEMA)) - owned
    left = without(merged(live, config, SCHEMA), SCHEMA, given_up, owned)
    assert set(fields_of(left, SCHEMA)) == owned
