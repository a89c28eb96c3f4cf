"""YAML and JSON as people and tools write it, parsed into documents that know the position of each field in the file.

Several documents in one text, `List` objects (expanded), comments, anchors, merge keys, Windows line ends are all
supported. An unreadable document does not hide the others: it becomes a `BadDocument` with its position. Scalars have
the types that the API server gives them (Go's YAML 1.1 without dates and base 60), which differ from other YAML
parsers. Pure: from text to documents; `dra_driver.cli.reading.files` reads files.
"""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from typing import Any

import yaml
from pydantic_core import from_json, to_json

from dra_driver.api.alike_items import read_items
from dra_driver.api.manifest_nodes import (
    TEMPLATE,
    BadDocument,
    Text,
    TextPlace,
    Values,
    composed,
    normalized,
    plain_value,
    syntax_error,
    walked,
)
from dra_driver.api.meta import JsonObject
from dra_driver.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class SourceText:
    """The YAML or JSON that holds an object, for those who change it. Line ends are `\\n`."""

    start: int
    """Offset of `text` in the file's text, without byte order mark and with `\\n` as line ends."""
    text: str
    """One document, or several that nothing but `...` divides."""
    number: int
    """Which of the documents of `text`, from 0."""
    items: tuple[int, ...]
    """Index in its list: `(3,)` is `items[3]`. Empty: the whole document."""


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """One object as written. `obj` is plain, unchecked JSON data: `metadata` may be a number. It may share parts with
    other objects (anchors of YAML, items of a list that are alike): do not change it.

    `index` counts the objects of the file from 0, items of lists each for themselves.
    What the document does not have is empty: `api_version`, `kind`, `name`; `namespace` is None.
    """

    file: str
    index: int
    api_version: str
    kind: str
    namespace: str | None
    name: str
    obj: JsonObject = field(repr=False)
    _text: "Text" = field(repr=False)
    _number: int = field(repr=False)
    """Which of the YAML documents of `_text` it is in."""
    _prefix: str = field(repr=False)
    """Path in it: `items[3]`; empty for the whole document."""
    _line: int | None = field(repr=False)
    """None if the text was not read as YAML."""

    @property
    def line(self) -> int:
        """Where it begins."""
        return self._line or self.place()[0]

    @property
    def title(self) -> str:
        """For messages: `ResourceClaim team-a/train`."""
        name = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return " ".join(part for part in (self.kind, name) if part) or f"document {self.index + 1}"

    @property
    def written(self) -> SourceText:
        items = tuple(int(number) for number in re.findall(r"\[([0-9]+)\]", self._prefix))
        return SourceText(self._text.start, self._text.text, self._number, items)

    @property
    def is_part(self) -> bool:
        """Whether it was made of a part of a larger document, or is an item of a list."""
        return bool(self._prefix)

    def part(self, path: str, obj: JsonObject) -> "Document":
        """An object made from the part of this one at `path`; its fields are at the positions below that path."""
        metadata = obj.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        return replace(
            self,
            _line=self.place(path)[0],
            api_version=str(obj.get("apiVersion", "")),
            kind=str(obj.get("kind", "")),
            name=name if isinstance(name, str) else "",
            obj=obj,
            _prefix=f"{self._prefix}.{path}" if self._prefix else path,
        )

    def place(self, path: str = "") -> TextPlace:
        """Where a field is written: its name, or the beginning of a list's item; where it is not, its parent.

        `path` is as in our errors: `spec.devices.requests[0].exactly.selectors[1].cel.expression`; keys of maps are
        written like fields or in brackets: `spec.limits[example.com/gpu]`. Empty is the document itself.
        """
        place, _ = self._located(path)
        return place

    def place_in(self, path: str, offset: int) -> TextPlace:
        """Where character `offset` of the string at `path` is written, through quotes, folding and indentation."""
        place, node = self._located(path)
        if not isinstance(node, yaml.ScalarNode):
            return place
        return self._text.place_in(node, offset)

    def _located(self, path: str) -> tuple[TextPlace, yaml.Node | None]:
        nodes = self._text.nodes
        if self._number >= len(nodes):
            return (self._line or self._text.lines_before + 1, 1), None
        _, root, _ = walked(nodes[self._number], self._prefix)
        marked, node, rest = walked(root, path)
        return self._text.place_of(marked), None if rest else node


@dataclass(frozen=True, slots=True)
class ReadDocuments:
    """The content of a text: the documents in order, and what could not be read."""

    documents: tuple[Document, ...]
    problems: tuple[BadDocument, ...]

    def raise_problems(self) -> tuple[Document, ...]:
        """The documents, for callers that need all of them. Raises InvalidInput with all problems."""
        if not self.problems:
            return self.documents
        first, *others = self.problems
        if not others:
            raise first
        texts = [str(problem) for problem in self.problems]
        raise InvalidInput("; ".join([first.message, *texts[1:]]), about=first.about, problems=texts)


def read_documents(text: str | bytes, file: str) -> ReadDocuments:
    """All documents of a text. `file` is its name in messages (`-` for standard input)."""
    if isinstance(text, bytes):
        in_json = _json_documents(Text(file, text, 0, 0), 0)
        if in_json is not None:
            return ReadDocuments(tuple(in_json), ())
        try:
            text = _decoded(text, file)
        except BadDocument as problem:
            return ReadDocuments((), (problem,))
    documents: list[Document] = []
    problems: list[BadDocument] = []
    for start, first_line, chunk in _chunks(normalized(text)):
        source = Text(file, chunk, start, first_line)
        try:
            documents += _documents(source, len(documents))
        except BadDocument as problem:
            # A template is one mistake, even if it has several parts.
            if problem.message != TEMPLATE or all(bad_document.message != TEMPLATE for bad_document in problems):
                problems.append(problem)
    return ReadDocuments(tuple(documents), tuple(problems))


def together(readings: Iterable[ReadDocuments]) -> ReadDocuments:
    """Several texts as one."""
    all_of = tuple(readings)
    return ReadDocuments(
        tuple(document for reading in all_of for document in reading.documents),
        tuple(problem for reading in all_of for problem in reading.problems),
    )


_WIDE_MARKS = (b"\xff\xfe", b"\xfe\xff")


def _decoded(data: bytes, file: str) -> str:
    if data.startswith(_WIDE_MARKS):
        raise BadDocument("is UTF-16; save it as UTF-8", file=file, line=1, column=1)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start]
        start = before.rfind(b"\n") + 1
        raise BadDocument(
            f"byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8",
            file=file,
            line=before.count(b"\n") + 1,
            column=len(before[start:].decode(errors="replace")) + 1,
        ) from error


_SEPARATOR = re.compile(r"\n---(?=[ \t\n]|\Z)")
_NOTHING = re.compile(r"(?:[ \t]*(?:#.*)?\n|%.*\n)*[ \t]*(?:#.*|%.*)?")


def _chunks(text: str) -> Iterator[tuple[int, int, str]]:
    """The text split before each `---` at the beginning of a line, where a document always ends; with the numbers of
    characters and lines before each part. Each part is parsed separately, so that one error affects one document."""
    cuts = [0, *(match.start() + 1 for match in _SEPARATOR.finditer(text)), len(text)]
    lines = 0
    for start, end in pairwise(cuts):
        chunk = text[start:end]
        if not _NOTHING.fullmatch(chunk):
            yield start, lines, chunk
        lines += chunk.count("\n")


def _documents(source: Text, first: int) -> list[Document]:
    """The objects of a text, numbered from `first`; empty documents are skipped."""
    in_json = _json_documents(source, first)
    if in_json is not None:
        return in_json
    try:
        nodes = list(composed(source))
    except yaml.YAMLError as error:
        raise syntax_error(source, error) from error
    documents: list[Document] = []
    for number, node in enumerate(nodes):
        value = Values(source).value(node)
        if value is None:
            continue
        if not isinstance(value, dict):
            kind = "a list" if isinstance(value, list) else "a single value"
            raise source.bad(f"is {kind}, not an object with apiVersion and kind", node.start_mark)
        documents += _expanded(_Where(source, number, "", node), value, first + len(documents))
    return documents


def _json_documents(source: Text, first: int) -> list[Document] | None:
    """None for what must be read as YAML, by which also what is wrong with an item of a list has a place."""
    data = _as_json(source.raw)
    with suppress(BadDocument):
        return None if data is None else list(_expanded(_Where(source, 0, "", None), data, first))
    return None


def _as_json(text: str | bytes) -> JsonObject | None:
    """The object that a JSON text is, with the values that it has as YAML. None for what only YAML describes well: no
    JSON, a key that is given twice, half of a surrogate pair, and what is nested too deep.

    Slices of 5,000 nodes are 50 MB of JSON, which takes libyaml half a minute and this a quarter of a second. JSON also
    has escapes that YAML lacks (surrogate pairs); such a document has no places of its fields.
    """
    try:
        encoded = text.encode() if isinstance(text, str) else text
        if not encoded.lstrip().startswith(b"{"):
            return None
        read = read_items(encoded, _parsed)
    except UnicodeError:
        return None
    if read is None:
        return _parsed(encoded)
    items, without = read
    data = _parsed(without)
    return None if data is None else {**data, "items": items}


def _parsed(encoded: bytes) -> JsonObject | None:
    try:
        data: JsonObject = from_json(encoded, allow_inf_nan=False)
        # Of a key that is given twice only the last value is read, so the first key is not written again.
        quotes = to_json(data).count(b'"')
    except ValueError:
        return None
    if quotes != encoded.count(b'"') + encoded.count(b"\\u0022"):
        return None
    if not _short_numbers().fullmatch(encoded):
        data = json.loads(encoded, parse_int=plain_value, parse_float=plain_value)
    return data


@cache
def _short_numbers() -> Any:
    """JSON whose numbers have the same value in YAML for certain: integers have less than 64 bits, others are finite.
    RE2 looks through all of it in less time than Python needs to look at each value."""
    # Manifests are mostly YAML.
    import re2

    number = rb"(?:0|-?[1-9][0-9]{0,17})(?:\.[0-9]{1,99})?(?:[eE][-+]?[0-9]{1,2})?[\s,\]}]"
    return re2.compile(rb'(?:[^"0-9.+-]|"(?:[^"\\]|\\.)*"|' + number + rb")*")


@dataclass(frozen=True, slots=True)
class _Where:
    """The position of an object. `node` is None in JSON, which is read as YAML only when a place is asked for."""

    source: Text
    number: int
    prefix: str
    node: yaml.Node | None

    def item(self, index: int) -> "_Where":
        path = f"items[{index}]"
        node = walked(self.node, path)[1] if self.node is not None else None
        return _Where(self.source, self.number, f"{self.prefix}.{path}" if self.prefix else path, node)


def _expanded(where: _Where, obj: JsonObject, first: int) -> Iterator[Document]:
    """The object itself, or the items of a list of objects."""
    kind, items = obj.get("kind"), obj.get("items")
    if not (isinstance(kind, str) and kind.endswith("List") and isinstance(items, list)):
        yield _document(where, obj, first)
        return
    item_kind = kind.removesuffix("List")
    own = {"apiVersion": obj.get("apiVersion"), "kind": item_kind} if item_kind else {}
    for index, item in enumerate(items):
        inner = where.item(index)
        if not isinstance(item, dict):
            raise where.source.bad(f"items[{index}] is not an object", inner.node.start_mark if inner.node else None)
        for document in _expanded(inner, {**own, **item}, first):
            yield document
            first += 1


def _document(where: _Where, obj: JsonObject, index: int) -> Document:
    metadata = obj.get("metadata")
    named = metadata if isinstance(metadata, dict) else {}
    source = where.source
    return Document(
        source.file,
        index,
        _text(obj.get("apiVersion")),
        _text(obj.get("kind")),
        _text(named.get("namespace")) or None,
        _text(named.get("name")),
        obj,
        source,
        where.number,
        where.prefix,
        None if where.node is None else source.place_of(where.node)[0],
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
