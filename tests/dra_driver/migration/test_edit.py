"""Edits in texts: the object becomes what it is to be, and nothing else changes."""

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.api.documents import read_documents
from dra_driver.api.untyped import Path, value_at
from dra_driver.migration.model import Edit, Put, Remove
from dra_driver.migration.text.edit import rewritten
from dra_driver.migration.text.edited import EditRefused, changed, same
from dra_driver.migration.text.tree import spliced

C: Path = ("spec", "containers")


def edited(text: str, *edits: Edit) -> str:
    """The whole file, which has one document."""
    document = read_documents(text, "f.yaml").raise_problems()[0]
    return spliced(text, rewritten({document: edits}))


# -- by value


POD = """\
# what it is for
apiVersion: v1
kind: Pod
metadata: {name: p}   # short
spec:
  containers:
  # the one that counts
  - name: main
    image: "x"	# a tab
    resources:
      limits:
        # how many
        nvidia.com/gpu: 1  # one
        cpu: '4'

      requests: {cpu: 2, nvidia.com/gpu: 1}   # the same
  - {name: b, resources: {limits: {nvidia.com/gpu: 1}}}
# the end
"""


def test_a_key_goes_and_its_comments_stay() -> None:
    after = edited(POD, Remove((*C, 0, "resources", "limits", "nvidia.com/gpu")))
    assert after == POD.replace("        nvidia.com/gpu: 1  # one\n", "        # one\n")


def test_a_map_that_is_emptied_goes_too_and_what_is_put_there_keeps_its_style() -> None:
    after = edited(
        POD,
        Remove((*C, 1, "resources", "limits", "nvidia.com/gpu")),
        Put((*C, 1, "resources", "claims", 0), {"name": "gpu", "request": "a"}),
    )
    assert after == POD.replace("{limits: {nvidia.com/gpu: 1}}", "{claims: [{name: gpu, request: a}]}")


def test_new_keys_follow_the_last_one() -> None:
    after = edited(POD, Put(("spec", "resourceClaims", 0), {"name": "gpu"}), Put(("metadata", "labels", "a/b"), "1"))
    want = POD.replace("# the end\n", "  resourceClaims:\n  - name: gpu\n# the end\n")
    assert after == want.replace("{name: p}", "{name: p, labels: {a/b: '1'}}")


@pytest.mark.parametrize("end", ["\r\n", "\n", "\r"])
def test_line_ends_and_byte_order_mark_stay(end: str) -> None:
    text = "\ufeff" + POD.replace("\n", end)
    edits = (
        Remove((*C, 0, "resources", "requests", "nvidia.com/gpu")),
        Put((*C, 0, "resources", "claims", 0), {"name": "gpu"}),
        Put((*C, 1, "image"), "y"),
    )
    assert edited(text, *edits) == "\ufeff" + edited(POD, *edits).replace("\n", end)


def test_lines_keep_their_own_ends_where_a_file_has_both() -> None:
    text = "kind: Pod\r\nspec:\n  a: 1\r\n  b: 2\n  c: 3\r\n"
    assert edited(text, Remove(("spec", "b")), Put(("spec", "c"), 4)) == "kind: Pod\r\nspec:\n  a: 1\r\n  c: 4\r\n"


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        ("a: &r {gpu: 1, cpu: 2}\nb: *r\n", Remove(("b", "gpu"))),
        ("a: &r {gpu: 1, cpu: 2}\nb: *r\n", Remove(("a", "gpu"))),
        ("a: &r {gpu: 1}\nb: *r\n", Remove(("a",))),
        ("base: &b {gpu: 1}\nx:\n  <<: *b\n  own: 3\n", Remove(("x", "gpu"))),
        ("base: &b {gpu: 1}\nx:\n  <<: *b\n  own: 3\n  gpu: 3\n", Remove(("x", "gpu"))),
    ],
)
def test_what_an_anchor_shares_is_not_changed_and_the_reason_says_how_to_expand_it(text: str, edit: Edit) -> None:
    with pytest.raises(EditRefused, match="anchor"):
        edited(f"kind: X\n{text}", edit)


def test_what_stands_beside_anchors_is_edited() -> None:
    text = "kind: X\nlabels: &l {app: a}\nmatch: *l\nb:\n  <<: *l\n  gpu: 1\n  cpu: 2\n"
    after = edited(text, Remove(("b", "gpu")), Put(("b", "new"), 1), Remove(("match",)))
    assert after == text.replace("  gpu: 1\n", "").replace("match: *l\n", "") + "  new: 1\n"


def test_the_first_key_behind_a_dash_goes_and_the_next_takes_its_place() -> None:
    text = "kind: X\nitems_:\n- gpu: 1 # one\n  # of two\n  cpu: 2\n- cpu: 3\n"
    assert edited(text, Remove(("items_", 0, "gpu"))) == text.replace("gpu: 1 # one\n  # of", "# one\n  # of")


def test_quotes_stay_and_come_where_they_are_needed() -> None:
    text = "kind: X\na: \"auto\"\nb: 'gpu'\nc: auto\n"
    after = edited(text, *(Put((name,), "8") for name in "abc"))
    assert after == "kind: X\na: \"8\"\nb: '8'\nc: '8'\n"


@pytest.mark.parametrize(
    "edit", [Remove(("b",)), Remove(("a",)), Put(("c",), 1), Put(("b",), {"x": 1}), Remove(("b", 1))]
)
def test_a_last_line_without_end_stays_without(edit: Edit) -> None:
    text = "kind: X\na: 1\nb:\n- 1\n- 2"
    after = edited(text, edit)
    assert not after.endswith("\n")
    assert f"{after}\n" == edited(f"{text}\n", edit)


JSON = """\
{
    "kind": "Pod",
    "spec": {
        "containers": [
            {
                "name": "caf\\u00e9 \\ud83d\\ude00 \\/",
                "resources": {"limits": {"nvidia.com/gpu": "1"}}
            }
        ]
    }
}
"""


def test_json_stays_json() -> None:
    after = edited(
        JSON,
        Remove((*C, 0, "resources", "limits", "nvidia.com/gpu")),
        Put((*C, 0, "resources", "claims", 0), {"name": "gpu"}),
        Put(("spec", "resourceClaims", 0), {"name": "gpu"}),
    )
    wanted = json.loads(JSON)
    wanted["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    wanted["spec"]["resourceClaims"] = [{"name": "gpu"}]
    assert after == json.dumps(wanted, indent=4) + "\n"


def test_items_of_lists_are_edited_each_for_itself() -> None:
    text = "kind: PodList\nitems:\n- metadata: {name: a}\n  spec: {x: 1, z: 2}\n- spec: {x: 1, z: 2}\n"
    first, second = read_documents(text, "").documents
    after = spliced(text, rewritten({first: (Remove(("spec", "x")),), second: (Remove(("spec", "z")),)}))
    assert after == "kind: PodList\nitems:\n- metadata: {name: a}\n  spec: {z: 2}\n- spec: {x: 1}\n"


@pytest.mark.parametrize(
    ("text", "edit"),
    [
        ("? a\n: 1\nb: 2\n", Remove(("a",))),
        ("a: !!str 1\nb: 2\n", Put(("a",), 3)),
        ("a: [1]\n", Put(("a", "key"), 3)),
        ("a: 1\n", Put(("a", "key"), 3)),
    ],
)
def test_what_is_not_edited_is_refused(text: str, edit: Edit) -> None:
    with pytest.raises(EditRefused):
        edited(text, edit)


def test_a_large_file_is_edited_in_one_pass() -> None:
    """Whatever grows faster than the file would be felt here, and would not end with five megabytes."""
    item = "- kind: Pod\n  metadata: {name: p%d, annotations: {a: " + "x" * 400 + "}}\n  spec: {gpu: 1, cpu: 2}\n"
    count = 1_000
    text = "kind: List\nitems:\n" + "".join(item % number for number in range(count))
    documents = read_documents(text, "").documents
    after = spliced(text, rewritten({document: (Remove(("spec", "gpu")),) for document in documents}))
    assert after == text.replace("gpu: 1, ", "")


# -- by law


@dataclass
class Written:
    """A text, what it means, and the comments in it."""

    text: str
    value: Any


KEYS = st.sampled_from(["a", "b", "nvidia.com/gpu", "cpu", "no", "1", "key with blanks", "x: y", "#c", "é", "<"])
SCALARS = st.one_of(
    st.integers(-3, 12),
    st.booleans(),
    st.none(),
    st.sampled_from([0.5, -2.0, 1e21]),
    st.sampled_from(
        (
            "",
            "x",
            "yes",
            "1",
            "1e3",
            "0x1f",
            "a: b",
            "a #b",
            " lead",
            "trail ",
            "it's",
            'say "x"',
            "- x",
            "&a",
            "*b",
            "{{ .Values.x }}",
            "two\nlines",
            "two\nlines\n",
            "\n",
            "tab\there",
            "é\u2028",
            "{a: 1}",
            "!x",
            "%x",
            "@x",
            "very " * 30,
            "|",
            "a\n\n b\n",
            "~",
            "null",
            "2020-01-01",
            "12:30",
            "=",
            "<<",
            "?",
            "-",
            "--- a",
            "'",
            ",",
            "[x",
        )
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)


class Scribe:
    """Writes a value in as many ways as people do, with comments wherever one may stand."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.comments = 0
        self.named = 0
        self.anchors: dict[str, Any] = {}
        self.dash = draw(st.sampled_from([0, 2]))
        self.step = draw(st.sampled_from([2, 4]))

    def chance(self, times: int = 4) -> bool:
        return self.draw(st.integers(0, times)) == 0

    def comment(self) -> str:
        self.comments += 1
        return f"# note {self.comments} {self.draw(st.sampled_from(['', 'a: b', '- x', chr(9) + 'tab']))}".rstrip()

    def lines_before(self, column: int) -> str:
        if not self.chance():
            return ""
        if self.chance(1):
            return "\n"
        return f"{' ' * column}{self.comment()}\n"

    def end(self) -> str:
        return f"  {self.comment()}\n" if self.chance() else "\n"

    def scalar(self, value: Any, flow: bool) -> str:
        from dra_driver.migration.text.writer import Style, scalar

        quote = self.draw(st.sampled_from(["", "'", '"'])) if isinstance(value, str) else ""
        return scalar(value, Style(quote=self.draw(st.sampled_from(["'", '"']))), flow=flow, quote=quote)

    def flow(self, value: Any, column: int) -> str:
        many = self.chance(3)
        gap = f"\n{' ' * (column + 2)}" if many else self.draw(st.sampled_from(["", " "]))
        comma = f",{gap}" if many else ", "
        if isinstance(value, dict):
            inner = comma.join(f"{self.scalar(k, True)}: {self.flow(v, column + 2)}" for k, v in value.items())
            return "{" + (gap + inner + gap if inner else "") + "}"
        if isinstance(value, list):
            inner = comma.join(self.flow(item, column + 2) for item in value)
            return "[" + (gap + inner + gap if inner else "") + "]"
        return self.scalar(value, True)

    def value(self, value: Any, column: int) -> str:
        """What follows a colon whose key is in `column`."""
        for name, known in self.anchors.items():
            if same(known, value) and self.chance(1):
                return f" *{name}{self.end()}"
        anchor = ""
        if isinstance(value, dict | list | str) and self.chance(3):
            self.named += 1
            name = f"n{self.named}"
            anchor = f" &{name}"
        written = self.bare(value, column)
        if anchor:
            self.anchors[name] = value
        return anchor + written

    def bare(self, value: Any, column: int) -> str:
        if isinstance(value, dict) and value and not self.chance(3):
            return self.end() + self.mapping(value, column + self.step)
        if isinstance(value, list) and value and not self.chance(3):
            return self.end() + self.sequence(value, column + self.dash)
        if isinstance(value, str) and re.fullmatch(r"[a-z].*[a-z]\n?", value, re.DOTALL) and "\n" in value:
            chomp = "" if value.endswith("\n") else "-"
            body = "".join(f"{' ' * (column + 3)}{line}".rstrip() + "\n" for line in value.rstrip("\n").split("\n"))
            return f" |{chomp}{self.end()}{body}"
        if isinstance(value, dict | list):
            return f" {self.flow(value, column)}{self.end()}"
        return f" {self.scalar(value, False)}{self.end()}"

    def mapping(self, value: dict[str, Any], column: int) -> str:
        text = ""
        for key, inner in value.items():
            text += self.lines_before(column)
            text += f"{' ' * column}{self.scalar(key, False)}:{self.value(inner, column)}"
        return text

    def sequence(self, value: list[Any], column: int) -> str:
        text = ""
        for entry in value:
            text += self.lines_before(column)
            if isinstance(entry, dict) and entry and not self.chance(3):
                first, rest = next(iter(entry.items())), dict(list(entry.items())[1:])
                text += f"{' ' * column}- {self.scalar(first[0], False)}:{self.value(first[1], column + 2)}"
                text += self.mapping(rest, column + 2)
            elif isinstance(entry, list) and entry and self.chance(1):
                text += f"{' ' * column}-{self.end()}{self.sequence(entry, column + 2)}"
            elif isinstance(entry, dict | list):
                text += f"{' ' * column}- {self.flow(entry, column)}{self.end()}"
            else:
                text += f"{' ' * column}- {self.scalar(entry, False)}{self.end()}"
        return text


@st.composite
def texts(draw: st.DrawFn) -> Written:
    value = draw(st.dictionaries(KEYS, VALUES, min_size=1, max_size=6))
    value = {"kind": "X", **value}
    text = Scribe(draw).mapping(value, 0)
    unended = text.removesuffix("\n")
    # A text in the last line would lose a line end of its own.
    whole = same(read_documents(unended, "").documents[0].obj, value) and draw(st.booleans())
    return Written(unended if whole else text, value)


def all_paths(value: Any, path: Path = ()) -> list[Path]:
    if isinstance(value, dict):
        return [
            inner_path for key, inner in value.items() for inner_path in ((*path, key), *all_paths(inner, (*path, key)))
        ]
    if isinstance(value, list):
        return [
            inner_path
            for key, inner in enumerate(value)
            for inner_path in ((*path, key), *all_paths(inner, (*path, key)))
        ]
    return []


@st.composite
def edits_of(draw: st.DrawFn, value: Any) -> list[Edit]:
    paths = [path for path in all_paths(value) if path != ("kind",)]
    edits: list[Edit] = []
    for _ in range(draw(st.integers(1, 4))):
        path = draw(st.sampled_from(paths)) if paths else ("new",)
        there = value_at(value, path)
        what = draw(st.sampled_from(["remove", "remove", "put", "add"]))
        if what == "remove" and paths:
            edits.append(Remove(path))
        elif what == "add" and isinstance(there, dict):
            edits.append(Put((*path, "new/key"), draw(VALUES)))
        elif what == "add" and isinstance(there, list):
            edits.append(Put((*path, len(there)), draw(VALUES)))
        elif isinstance(there, list) and there:
            edits.append(Put(path, draw(st.lists(st.one_of(st.sampled_from(there), SCALARS), min_size=1, max_size=4))))
        else:
            edits.append(Put(path, draw(VALUES)))
    return edits


@given(st.data())
def test_the_text_means_what_it_is_to_mean_and_keeps_its_comments(data: st.DataObject) -> None:
    written = data.draw(texts())
    reading = read_documents(written.text, "f")
    document = reading.raise_problems()[0]
    assert same(document.obj, written.value)
    edits = data.draw(edits_of(written.value))
    try:
        wanted = changed(written.value, edits)
    except EditRefused:
        return
    try:
        after = spliced(written.text, rewritten({document: edits}))
    except EditRefused:
        assert "&" in written.text
        return
    assert same(read_documents(after, "f").raise_problems()[0].obj, wanted)
    for number in re.findall(r"# note \d+\b", written.text):
        assert number in after
    assert after.endswith("\n") == written.text.endswith("\n")
    # Once more: nothing is left to be done.
    again = read_documents(after, "f").raise_problems()[0]
    assert rewritten({again: ()}) == ()


@given(st.data())
def test_parts_that_no_edit_reaches_stay_as_they_are(data: st.DataObject) -> None:
    written = data.draw(texts())
    document = read_documents(written.text, "f").raise_problems()[0]
    edits = data.draw(edits_of(written.value))
    try:
        changed(written.value, edits)
    except EditRefused:
        return
    if "&" in written.text:
        return
    reached = {edit.path[0] for edit in edits}
    after = spliced(written.text, rewritten({document: edits}))
    for key, part in parts(written.text, list(written.value)).items():
        if key not in reached:
            assert part in after


def parts(text: str, keys: list[str]) -> dict[str, str]:
    """The lines of each key of the outermost map."""
    sections: dict[str, list[str]] = {}
    document = read_documents(text, "f").documents[0]
    lines = text.splitlines(keepends=True)
    begins = [(document.place(key)[0] - 1, key) for key in keys]
    for (start, key), (stop, _) in zip(begins, [*begins[1:], (len(lines), "")], strict=True):
        sections[key] = lines[start:stop]
    return {key: "".join(some) for key, some in sections.items()}
