"""Documents know where their fields stand, and one that cannot be read hides no other."""

import json
import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rows import examples, rows

from dra_driver.api.documents import Document, read_documents, together
from dra_driver.api.manifest_nodes import BadDocument
from dra_driver.bundled import FEATURES_FOLDER
from dra_driver.errors import InvalidInput

CLAIM = """\
# A comment first.
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata:
  name: train
  namespace: team-a
  labels:
    example.com/cost.center: "7"
spec:
  devices:
    requests:
      - name: gpu
        exactly:
          deviceClassName: gpu
          selectors:
            - cel: {expression: "true"}
            - cel:
                expression: |
                  device.driver == 'x' &&
                    device.attributes['y'].z == 1
"""


def document_of(text: str) -> Document:
    (document,) = read_documents(text, "f.yaml").raise_problems()
    return document


def problem(text: str | bytes) -> BadDocument:
    (bad,) = read_documents(text, "f.yaml").problems
    return bad


def test_a_document_says_what_it_is() -> None:
    document = document_of(CLAIM)
    assert (document.api_version, document.kind) == ("resource.k8s.io/v1", "ResourceClaim")
    assert (document.namespace, document.name, document.title) == ("team-a", "train", "ResourceClaim team-a/train")
    assert (document.file, document.index, document.line) == ("f.yaml", 0, 2)
    assert document.obj == yaml.safe_load(CLAIM)


@rows(
    "path, place",
    [
        ("", (2, 1)),
        ("kind", (3, 1)),
        ("metadata.name", (5, 3)),
        ("metadata.labels.example.com/cost.center", (8, 5)),
        ("metadata.labels[example.com/cost.center]", (8, 5)),
        ("spec.devices.requests[0]", (12, 9)),
        ("spec.devices.requests[0].exactly.selectors[0].cel.expression", (16, 21)),
        ("spec.devices.requests[0].exactly.selectors[1].cel.expression", (18, 17)),
    ],
)
def test_a_field_has_a_line_and_a_column(path: str, place: tuple[int, int]) -> None:
    assert document_of(CLAIM).place(path) == place


@pytest.mark.parametrize(
    ("path", "parent"),
    [
        ("spec.devices.requests[0].exactly.count", "spec.devices.requests[0].exactly"),
        ("spec.devices.requests[7].name", "spec.devices.requests"),
        ("spec.nothing.at.all", "spec"),
        ("kindness", ""),
        ("kind.of[3]", "kind"),
    ],
)
def test_a_field_that_is_not_there_is_placed_at_its_nearest_parent(path: str, parent: str) -> None:
    assert document_of(CLAIM).place(path) == document_of(CLAIM).place(parent)


@rows(
    "written, place",
    [
        ("a.b == 'c' && d", (1, 18)),
        ("\"a.b == 'c' && d\"", (1, 19)),
        ("'a.b == ''c'' && d'", (1, 21)),
        ('"\\u0061.b == \\x27c\\x27 && d"', (1, 30)),
        ("\"a.b == \\\n  'c' && d\"", (2, 10)),
        ("|\n  a.b == 'c' &&\n  d", (3, 3)),
        (">- # folded\n  a.b ==\n  'c'\n  && d", (4, 6)),
        ("a.b ==\n  'c' && d", (2, 10)),
    ],
)
def test_a_character_of_a_string_is_found_however_the_string_is_written(written: str, place: tuple[int, int]) -> None:
    document = document_of(f"e: {written}\n")
    offset = document.obj["e"].index("d")
    assert document.place_in("e", offset) == place
    lines = f"e: {written}\n".split("\n")
    assert lines[place[0] - 1][place[1] - 1] == "d"


def test_several_documents_with_empty_ones_between_count_on() -> None:
    reading = read_documents("---\n# nothing\n---\na: 1\n---\n---\nb: 2\n...\n---\nc: 3", "f")
    assert [(document.index, document.line, document.obj) for document in reading.documents] == [
        (0, 4, {"a": 1}),
        (1, 7, {"b": 2}),
        (2, 10, {"c": 3}),
    ]
    assert reading.problems == ()


def test_lists_are_expanded_and_their_items_know_their_places() -> None:
    text = (
        "apiVersion: v1\nkind: List\nitems:\n- kind: Pod\n  metadata: {name: a}\n- kind: Pod\n  metadata:\n    name: b"
    )
    first, second = read_documents(text, "f").raise_problems()
    assert (first.title, first.line, second.title, second.line) == ("Pod a", 4, "Pod b", 6)
    assert second.place("metadata.name") == (8, 5)
    assert second.index == 1


def test_items_of_typed_lists_get_their_kind_from_the_list() -> None:
    text = json.dumps({"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "a"}}]}, indent=2)
    document = document_of(text)
    assert (document.api_version, document.kind, document.title) == ("v1", "Pod", "Pod a")
    assert document.obj["kind"] == "Pod"
    assert document.place("metadata.name") == (7, 9)


def test_json_with_what_yaml_cannot_write_is_read_without_places() -> None:
    document = document_of('{"kind": "Pod", "metadata": {"name": "\\ud83d\\ude00"}}')
    assert document.name == "😀"
    assert document.place("metadata.name") == (1, 1)


def test_half_of_a_surrogate_pair_is_refused_in_json_as_in_yaml() -> None:
    with pytest.raises(InvalidInput, match="invalid Unicode character"):
        document_of('{"kind": "Pod", "metadata": {"name": "\\ud800"}}')


def test_anchors_and_merge_keys_mean_what_they_say() -> None:
    document = document_of("base: &b\n  x: 1\n  z: 2\nuse:\n  <<: *b\n  z: 3\n")
    assert document.obj["use"] == {"x": 1, "z": 3}
    assert document.place("use.x") == (2, 3)
    assert document.place("use.z") == (6, 3)


def test_windows_line_ends_and_byte_order_marks_change_nothing() -> None:
    document = document_of("\ufeff" + CLAIM.replace("\n", "\r\n"))
    assert document.obj == document_of(CLAIM).obj
    assert document.place("metadata.name") == (5, 3)


@rows(
    "text, place, says",
    [
        ("a: 1\nb:\n  a: 1\n  a: 2\n", (4, 3), "`a` is given twice"),
        ("a: 1\n\tb: 2\n", (2, 1), "has a tab where YAML requires spaces"),
        ("a: {{ .Values.x }}\n", (1, 5), "is a template"),
        ("{{- if .Values.x }}\na: 1\n", (1, 3), "is a template"),
        ("- a\n- b\n", (1, 1), "is a list, not an object"),
        ("just words\n", (1, 1), "is a single value, not an object"),
        ("a: !python/object:x y\n", (1, 4), "the tag `!python/object:x` is not known"),
        ("a: &x [*x]\n", (1, 4), "contains itself"),
        ("? [1]\n: 2\n", (1, 3), "a key must be a string"),
        ("a: *nobody\n", (1, 4), "undefined alias"),
        ("<<: 7\n", (1, 5), "`<<` can merge only maps"),
        ("kind: List\nitems:\n- 7\n", (3, 3), "items[0] is not an object"),
        (b"a: 1\nb: \xe9\n", (2, 4), "byte 0xe9 is not UTF-8"),
        ("a: 1".encode("utf-16"), (1, 1), "is UTF-16"),
    ],
)
def test_what_cannot_be_read_says_where_and_why(text: str | bytes, place: tuple[int, int], says: str) -> None:
    invalid = problem(text)
    assert (invalid.line, invalid.column) == place
    assert says in invalid.message
    assert str(invalid).startswith(f"f.yaml:{place[0]}:{place[1]}: ")


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 100_000, "- " * 50_000 + "1", "a: " + "[" * 300 + "]" * 300])
def test_abysses_are_refused(text: str) -> None:
    # PyYAML has a limit of its own since 6.0.4.
    assert re.search("nested deeper|maximum nesting depth", problem(text).message)


def test_a_bomb_of_anchors_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert "too many values" in problem("\n".join(lines)).message


def test_a_template_is_one_problem_in_however_many_pieces_it_is() -> None:
    assert "is a template" in problem("{{ if .x }}\na: 1\n---\nb: {{ .y }}\n").message


def test_a_bad_document_does_not_hide_the_others() -> None:
    reading = read_documents("a: 1\n---\nb: [\n---\nc: 1\nc: 2\n---\nd: 4\n", "f")
    assert [document.obj for document in reading.documents] == [{"a": 1}, {"d": 4}]
    assert [bad.line for bad in reading.problems] == [4, 6]
    with pytest.raises(InvalidInput) as caught:
        reading.raise_problems()
    assert len(caught.value.problems) == 2


def test_readings_of_several_files_become_one() -> None:
    both = together([read_documents("a: 1", "x"), read_documents("b: [", "y")])
    assert [document.file for document in both.documents] == ["x"]
    assert [bad.file for bad in both.problems] == ["y"]


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | NAMES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=examples(60), deadline=None)
@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=4))
def test_whatever_is_written_as_json_is_read_back(obj: dict[str, object]) -> None:
    if str(obj.get("kind", "")).endswith("List"):
        return
    assert document_of(json.dumps(obj)).obj == obj
    assert document_of(json.dumps(obj, indent=2, ensure_ascii=False)).obj == obj


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=3), max_size=3), st.sampled_from([None, 1]))
def test_json_is_read_as_the_yaml_that_it_is(items: list[dict[str, object]], indent: int | None) -> None:
    obj = {"kind": "List", "items": items, "numbers": [2**64, -(2**63), 1e300, 0.5]}
    text = json.dumps(obj, indent=indent, ensure_ascii=False)
    as_json, as_yaml = (read_documents(start + text, "f").raise_problems() for start in ("\n", "# YAML\n"))
    assert [document.obj for document in as_json] == [document.obj for document in as_yaml]
    assert [document.line for document in as_json] == [document.line for document in as_yaml]


@rows(
    "text, says",
    [
        ('{"kind": "Pod", "kind": "Job"}', "`kind` is given twice"),
        ('{"kind": "List", "items": [{}, 5]}', "items[1] is not an object"),
        ('{"a": ' * 250 + "1" + "}" * 250, "nested deeper than 200 levels"),
        ('{"kind": "Pod"} rest', "is not YAML"),
    ],
)
def test_json_that_cannot_be_read_has_a_place_as_in_yaml(text: str, says: str) -> None:
    bad = problem(f"\n\n{text}")
    assert says in str(bad) and bad.line == 3


@settings(max_examples=examples(100), deadline=None)
@given(st.text(max_size=200) | st.binary(max_size=200))
def test_reading_never_raises(text: str | bytes) -> None:
    reading = read_documents(text, "f")
    for document in reading.documents:
        assert document.place("a.b[0]")[0] >= 1


def test_a_file_of_a_megabyte_is_read_whole() -> None:
    examples = "\n---\n".join(path.read_text() for path in sorted(FEATURES_FOLDER.rglob("*.yaml")))
    times = 1_000_000 // len(examples)
    repeated, once = (read_documents(text, "f") for text in ("\n---\n".join([examples] * times), examples))
    assert repeated.problems == ()
    assert len(repeated.documents) == times * len(once.documents)


def test_bytes_that_are_no_utf_8_have_a_place_among_objects_that_are_alike() -> None:
    items = b", ".join(b'{"kind": "Pod", "name": "%d"}' % number for number in range(9))
    (problem,) = read_documents(
        b'{"kind": "List",\n"items": [' + items.replace(b'"8"', b'"\xff"') + b"]}", "f"
    ).problems
    assert (problem.line, problem.message) == (2, "byte 0xff is not UTF-8; save the file as UTF-8")


def test_json_with_windows_line_ends_has_the_places_of_its_fields() -> None:
    text = json.dumps({"kind": "Pod", "metadata": {"name": "a"}}, indent=1).replace("\n", "\r\n")
    read, as_text = (read_documents(source, "f").raise_problems()[0] for source in (text.encode(), text))
    assert read.place("metadata.name") == as_text.place("metadata.name") == (4, 3)
    assert read.written == as_text.written
