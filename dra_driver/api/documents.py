"""YAML and JSON as people and tools write it, turned into documents that know where in the file each field stands.

Several documents in one text, `List` objects (expanded), comments, anchors, merge keys, Windows line ends: all of it is
fine. One document that cannot be read does not hide the others: it becomes a `BadDocument` with its place. Scalars mean
what they mean to the API server (Go's YAML 1.1 without dates and base 60), not what they mean to other YAML readers.
Pure: text in, documents out; files are read by `dra_driver.cli.files`.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import yaml

from dra_driver.api.meta import JsonObject
from dra_driver.errors import Help, InvalidInput, Move

type Place = tuple[int, int]
"""Line and column, both from 1; columns count characters."""


class BadDocument(InvalidInput):
    """A document that cannot be read. `line` and `column` count from 1."""

    help = Help(
        Move.USER,
        "A file is not YAML or JSON, or not an object.",
        "The message names file, line and column.",
    )

    def __init__(self, message: str, *, file: str, line: int, column: int) -> None:
        self.file = file
        self.line = line
        self.column = column
        super().__init__(message, about=f"{file}:{line}:{column}")


@dataclass(frozen=True, slots=True)
class Written:
    """The YAML or JSON that holds an object, for those who change it. Line ends are `\\n`."""

    start: int
    """Where `text` begins in the file's text, counted without byte order mark and with `\\n` as line ends."""
    text: str
    """One document, or several that nothing but `...` divides."""
    number: int
    """Which of the documents of `text`, from 0."""
    items: tuple[int, ...]
    """Which item of the list in it: `(3,)` is `items[3]`. Empty: all of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """One object as it was written. `obj` is plain JSON data, not checked at all: `metadata` may be a number.

    `index` counts the objects of the file from 0, items of lists each for themselves. `line` is where it begins.
    What the document does not have is empty: `api_version`, `kind`, `name`; `namespace` is None.
    """

    file: str
    index: int
    line: int
    api_version: str
    kind: str
    namespace: str | None
    name: str
    obj: JsonObject = field(repr=False)
    _text: "_Text" = field(repr=False)
    _number: int = field(repr=False)
    """Which of the YAML documents of `_text` it is in."""
    _prefix: str = field(repr=False)
    """Where in there: `items[3]`; empty for all of it."""

    @property
    def title(self) -> str:
        """For messages: `ResourceClaim team-a/train`."""
        name = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return " ".join(part for part in (self.kind, name) if part) or f"document {self.index + 1}"

    @property
    def written(self) -> Written:
        items = tuple(int(number) for number in re.findall(r"\[([0-9]+)\]", self._prefix))
        return Written(self._text.start, self._text.text, self._number, items)

    def place(self, path: str = "") -> Place:
        """Where a field is written: its name, or the beginning of a list's item; where it is not, its parent.

        `path` is as in our errors: `spec.devices.requests[0].exactly.selectors[1].cel.expression`; keys of maps are
        written like fields or in brackets: `spec.limits[example.com/gpu]`. Empty is the document itself.
        """
        place, _ = self._found(path)
        return place

    def place_in(self, path: str, offset: int) -> Place:
        """Where character `offset` of the string at `path` is written, through quotes, folding and indentation."""
        place, node = self._found(path)
        if not isinstance(node, yaml.ScalarNode):
            return place
        return self._text.place_in(node, offset)

    def _found(self, path: str) -> tuple[Place, yaml.Node | None]:
        nodes = self._text.nodes()
        if self._number >= len(nodes):
            return (self.line, 1), None
        _, root, _ = _walk(nodes[self._number], self._prefix)
        marked, node, rest = _walk(root, path)
        return self._text.place_of(marked), None if rest else node


@dataclass(frozen=True, slots=True)
class Reading:
    """What a text held: the documents in order, and what could not be read."""

    documents: tuple[Document, ...]
    problems: tuple[BadDocument, ...]

    def raise_problems(self) -> tuple[Document, ...]:
        """The documents, for those who can do nothing with half of them. Raises InvalidInput with all problems."""
        if not self.problems:
            return self.documents
        first, *others = self.problems
        if not others:
            raise first
        texts = [str(problem) for problem in self.problems]
        raise InvalidInput("; ".join([first.message, *texts[1:]]), about=first.about, problems=texts)


def read_documents(text: str | bytes, file: str) -> Reading:
    """All documents of a text. `file` is its name in messages (`-` for standard input)."""
    if isinstance(text, bytes):
        try:
            text = _decoded(text, file)
        except BadDocument as problem:
            return Reading((), (problem,))
    documents: list[Document] = []
    problems: list[BadDocument] = []
    for start, first_line, chunk in _chunks(normalized(text)):
        source = _Text(file, chunk, start, first_line)
        try:
            documents += _documents(source, len(documents))
        except BadDocument as problem:
            # A template is one mistake, in however many pieces it is.
            if problem.message != _TEMPLATE or all(one.message != _TEMPLATE for one in problems):
                problems.append(problem)
    return Reading(tuple(documents), tuple(problems))


def normalized(text: str) -> str:
    """Without byte order mark, and with `\\n` as line ends."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def together(readings: Iterable[Reading]) -> Reading:
    """Several texts as one."""
    all_of = tuple(readings)
    return Reading(
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


_SEPARATOR = re.compile(r"^---(?=[ \t\n]|\Z)", re.MULTILINE)
_NOTHING = re.compile(r"(?:[ \t]*(?:#.*)?\n|%.*\n)*[ \t]*(?:#.*|%.*)?")


def _chunks(text: str) -> Iterator[tuple[int, int, str]]:
    """The text cut before each `---` at the beginning of a line, where a document ends whatever it was in the middle
    of; with the numbers of characters and of lines before each. Each is read for itself, so that one error costs one
    document."""
    cuts = [0, *(match.start() for match in _SEPARATOR.finditer(text) if match.start()), len(text)]
    lines = 0
    for start, end in pairwise(cuts):
        chunk = text[start:end]
        if not _NOTHING.fullmatch(chunk):
            yield start, lines, chunk
        lines += chunk.count("\n")


_ESCAPES = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True, slots=True, eq=False)
class _Text:
    """A part of a file. `start` and `lines_before` are how many characters and lines of the file come before it."""

    file: str
    text: str
    start: int
    lines_before: int
    _nodes: list[list[yaml.Node]] = field(default_factory=list)

    def nodes(self) -> list[yaml.Node]:
        """The documents of the text as nodes, empty ones too; none where it is not YAML. Read again when first asked
        for, since most documents have no problems, and nodes take some hundred times the memory of their text."""
        if not self._nodes:
            try:
                self._nodes.append(list(_composed(self)))
            except yaml.YAMLError:
                self._nodes.append([])
        return self._nodes[0]

    def place_of(self, node: yaml.Node) -> Place:
        return (node.start_mark.line + 1 + self.lines_before, node.start_mark.column + 1)

    def bad(self, message: str, mark: Any) -> BadDocument:
        line, column = (mark.line, mark.column) if mark is not None else (0, 0)
        return BadDocument(message, file=self.file, line=line + 1 + self.lines_before, column=column + 1)

    def place_in(self, node: yaml.ScalarNode, offset: int) -> Place:
        """Folding and indentation change only white space, so the n-th other character is the n-th in the file."""
        wanted = sum(not char.isspace() for char in node.value[:offset])
        position = _content_start(self.text, node)
        last = position
        for start, end, char in _characters(self.text, position, node.end_mark.index, node.style):
            if not char.isspace():
                if wanted == 0:
                    last = start
                    break
                wanted -= 1
                last = end
        line = self.text.count("\n", 0, last)
        return (line + 1 + self.lines_before, last - (self.text.rfind("\n", 0, last) + 1) + 1)


def _content_start(text: str, node: yaml.ScalarNode) -> int:
    start: int = node.start_mark.index
    if node.style in ("|", ">"):
        return text.find("\n", start) + 1 or len(text)
    return start + (1 if node.style in ("'", '"') else 0)


def _characters(text: str, start: int, end: int, style: str | None) -> Iterator[tuple[int, int, str]]:
    """The characters that a scalar's text stands for, each with where it begins and ends. White space is not exact."""
    while start < min(end, len(text)):
        length, char = 1, text[start]
        if style == "'" and char == "'":
            length = 2
        elif style == '"' and char == "\\":
            code = text[start + 1 : start + 2]
            length = 2 + _ESCAPES.get(code, 0)
            char = code if code in ('"', "\\", "/") else "?" if code in _ESCAPES else " "
        yield start, start + length, char
        start += length


def _walk(node: yaml.Node, path: str) -> tuple[yaml.Node, yaml.Node, str]:
    """As far down as there is something: what to point at, what is there, and what was left of the path."""
    marked = node
    while path:
        step = _step(node, path)
        if step is None:
            break
        marked, node, path = step
    return marked, node, path


def _step(node: yaml.Node, path: str) -> tuple[yaml.Node, yaml.Node, str] | None:
    """One step down: what to point at, what is there, and the rest of the path. None where there is nothing."""
    if isinstance(node, yaml.SequenceNode):
        match = re.match(r"\[([0-9]{1,9})\]", path)
        if match is None or int(match[1]) >= len(node.value):
            return None
        item = node.value[int(match[1])]
        return item, item, path[match.end() :]
    if not isinstance(node, yaml.MappingNode):
        return None
    # The longest, since keys can hold dots and brackets themselves.
    found: tuple[int, yaml.Node, yaml.Node] | None = None
    for key, value in _pairs(node):
        for written in (str(key.value), f".{key.value}", f"[{key.value}]", f'["{key.value}"]'):
            rest = path[len(written) :]
            if path.startswith(written) and rest[:1] in ("", ".", "[") and (found is None or len(written) > found[0]):
                found = (len(written), key, value)
    return (found[1], found[2], path[found[0] :]) if found is not None else None


def _pairs(node: yaml.MappingNode, depth: int = 0) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """With what is merged in, which comes last."""
    merged: list[yaml.Node] = []
    for key, value in node.value:
        if key.tag == _MERGE:
            merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
        else:
            yield key, value
    for other in merged:
        if isinstance(other, yaml.MappingNode) and depth < _DEEPEST:
            yield from _pairs(other, depth + 1)


_STRING = "tag:yaml.org,2002:str"
_MERGE = "tag:yaml.org,2002:merge"
_PLAIN = "plain"
"""Our tag of a plain scalar, whose type is told from its text only where its value is wanted."""
_DEEPEST = 200
"""No object of Kubernetes is as deep, and Python's stack is not endless."""


class _Resolver:
    """Decides tags; as little as possible, since it is asked for each scalar."""

    def resolve(self, kind: type[yaml.Node], value: str | None, implicit: Any) -> str:
        if kind is yaml.ScalarNode:
            if not implicit[0]:
                return _STRING
            return _MERGE if value == "<<" else _PLAIN
        return "tag:yaml.org,2002:seq" if kind is yaml.SequenceNode else "tag:yaml.org,2002:map"

    def descend_resolver(self, *_: object) -> None:
        """Nothing depends on where a node is."""

    def ascend_resolver(self) -> None:
        """As above."""


if yaml.__with_libyaml__:

    class _Composer(yaml.cyaml.CParser, _Resolver):  # type: ignore[name-defined,misc]
        """Text to nodes, by libyaml: some ten times as fast as PyYAML's own parser."""

else:

    class _Composer(  # type: ignore[no-redef]
        yaml.reader.Reader, yaml.scanner.Scanner, yaml.parser.Parser, yaml.composer.Composer, _Resolver
    ):
        """Text to nodes, where PyYAML was built without libyaml."""

        def __init__(self, text: str) -> None:
            yaml.reader.Reader.__init__(self, text)
            yaml.scanner.Scanner.__init__(self)
            yaml.parser.Parser.__init__(self)
            yaml.composer.Composer.__init__(self)


def _documents(source: _Text, first: int) -> list[Document]:
    """The objects of a text, numbered from `first`; its documents that are empty are passed over."""
    try:
        nodes = list(_composed(source))
    except yaml.YAMLError as error:
        data = _as_json(source.text)
        if data is None:
            raise _syntax_error(source, error) from error
        return list(_expanded(_Where(source, 0, "", None), data, first))
    documents: list[Document] = []
    for number, node in enumerate(nodes):
        value = _Values(source).value(node)
        if value is None:
            continue
        if not isinstance(value, dict):
            what = "a list" if isinstance(value, list) else "a single value"
            raise source.bad(f"is {what}, not an object with apiVersion and kind", node.start_mark)
        documents += _expanded(_Where(source, number, "", node), value, first + len(documents))
    return documents


def _composed(source: _Text) -> Iterator[yaml.Node]:
    _refuse_abysses(source)
    composer = _Composer(source.text)
    while composer.check_node():
        yield composer.get_node()


def _refuse_abysses(source: _Text) -> None:
    """libyaml composes by recursion and crashes where brackets or dashes open by the ten thousand; its parser does
    not. What has that many is looked at by the parser first."""
    suspicious = source.text.count("[") + source.text.count("{") > _MANY_BRACKETS or _MANY_DASHES.search(source.text)
    if not suspicious:
        return
    depth = 0
    parser = _Composer(source.text)
    while parser.check_event():
        event = parser.get_event()
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _DEEPEST:
            raise source.bad(_TOO_DEEP, event.start_mark)


_MANY_BRACKETS = 2000
_MANY_DASHES = re.compile(rf"^[ \t]*(?:[-?][ \t]+){{{_DEEPEST}}}", re.MULTILINE)
_TOO_DEEP = f"is nested deeper than {_DEEPEST} levels"


def _as_json(text: str) -> JsonObject | None:
    """JSON has escapes that YAML lacks (surrogate pairs). Such a document is read without the places of its fields."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _syntax_error(source: _Text, error: yaml.YAMLError) -> BadDocument:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    context = getattr(error, "context", None)
    line = _line_at(source.text, mark)
    if "{{" in line or re.search(r"^[ \t]*\{\{", source.text, re.MULTILINE):
        problem = _TEMPLATE
    elif "\t" in line[: len(line) - len(line.lstrip())] or (mark is not None and line[mark.column :][:1] == "\t"):
        problem = "has a tab where YAML wants spaces"
    else:
        problem = f"is not YAML: {context + ': ' if context else ''}{problem}"
    return source.bad(problem, mark)


_TEMPLATE = "is a template, not YAML yet; check what it is rendered to: `helm template … | dractl check -`"


def _line_at(text: str, mark: Any) -> str:
    if mark is None:
        return ""
    lines = text.split("\n")
    return lines[mark.line] if mark.line < len(lines) else ""


class _Values:
    """Nodes to plain data, for one document."""

    def __init__(self, source: _Text) -> None:
        self._source = source
        self._done: dict[int, tuple[object, int]] = {}
        self._open: set[int] = set()

    def value(self, node: yaml.Node) -> object:
        value, _ = self._of(node)
        return value

    def _of(self, node: yaml.Node) -> tuple[object, int]:
        """With how many values there are in it, anchors counted wherever they are used."""
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node), 1
        done = self._done.get(id(node))
        if done is not None:
            return done
        if id(node) in self._open:
            raise self._source.bad("contains itself through an anchor", node.start_mark)
        if len(self._open) >= _DEEPEST:
            raise self._source.bad(_TOO_DEEP, node.start_mark)
        self._open.add(id(node))
        done = self._sequence(node) if isinstance(node, yaml.SequenceNode) else self._mapping(node)
        self._open.discard(id(node))
        if done[1] > _MOST_VALUES:
            raise self._source.bad("grows beyond all measure through its anchors", node.start_mark)
        self._done[id(node)] = done
        return done

    def _sequence(self, node: yaml.SequenceNode) -> tuple[list[object], int]:
        values, size = [], 1
        for item in node.value:
            value, inner = self._of(item)
            values.append(value)
            size += inner
        return values, size

    def _mapping(self, node: yaml.Node) -> tuple[dict[str, object], int]:
        values: dict[str, object] = {}
        merged: list[yaml.Node] = []
        size = 1
        for key, written in node.value:
            if key.tag == _MERGE:
                merged += written.value if isinstance(written, yaml.SequenceNode) else [written]
                continue
            name = self._key(key)
            if name in values:
                raise self._source.bad(f"`{name}` is given twice", key.start_mark)
            values[name], inner = self._of(written)
            size += inner
        for other in merged:
            value, inner = self._of(other)
            if not isinstance(value, dict):
                raise self._source.bad("`<<` can take over maps only", other.start_mark)
            values = {**value, **values}
            size += inner
        return values, size

    def _key(self, node: yaml.Node) -> str:
        """JSON has only strings as keys; numbers and truth values become their text."""
        value = self._scalar(node) if isinstance(node, yaml.ScalarNode) else None
        if isinstance(value, str):
            return value
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int | float):
            return str(value)
        template = "{{" in _line_at(self._source.text, node.start_mark)
        raise self._source.bad(_TEMPLATE if template else "a key must be a string", node.start_mark)

    def _scalar(self, node: yaml.ScalarNode) -> object:
        if node.tag == _PLAIN or node.tag == _MERGE:
            return plain_value(node.value)
        if node.tag == _STRING:
            return node.value
        typed = plain_value(node.value)
        wanted = _TAGS.get(node.tag)
        if wanted is None:
            raise self._source.bad(f"the tag `{node.tag}` is not known to Kubernetes", node.start_mark)
        if not isinstance(typed, wanted):
            raise self._source.bad(f"{node.value!r} is not what its tag says", node.start_mark)
        return node.value if wanted is object else typed


_MOST_VALUES = 5_000_000
_TAGS: dict[str, Any] = {
    "tag:yaml.org,2002:bool": bool,
    "tag:yaml.org,2002:int": int,
    "tag:yaml.org,2002:float": (int, float),
    "tag:yaml.org,2002:null": type(None),
    "tag:yaml.org,2002:timestamp": object,
    "tag:yaml.org,2002:binary": object,
}
_WORDS: dict[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_INTEGER = re.compile(r"[-+]?(?:0b[01_]+|0o?[0-7_]+|0x[0-9a-fA-F_]+|[1-9][0-9_]*|0)")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_LONGEST_NUMBER = 400


def plain_value(text: str) -> object:
    """What a scalar without quotes is. Source: go-yaml v2, the reader of sigs.k8s.io/yaml; dates stay strings."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "0123456789+-." or len(text) > _LONGEST_NUMBER:
        return text
    digits = text if text[0] == "." else text.replace("_", "")
    whole = _integer(digits) if _INTEGER.fullmatch(text) else None
    if whole is not None:
        return whole
    number = float(digits) if _FLOAT.fullmatch(digits) else math.inf
    return number if math.isfinite(number) else text


def _integer(text: str) -> int | None:
    """None for what has more than 64 bits."""
    digits = text.lstrip("+-")
    sign = -1 if text.startswith("-") else 1
    base: Literal[2, 8, 10, 16] = 10
    if digits[:2] in ("0b", "0o", "0x"):
        base, digits = {"0b": 2, "0o": 8, "0x": 16}[digits[:2]], digits[2:]  # type: ignore[assignment]
    elif len(digits) > 1 and digits[0] == "0":
        base = 8
    if not digits:
        return None
    value = sign * int(digits, base)
    return value if -(2**63) <= value < 2**64 else None


@dataclass(frozen=True, slots=True)
class _Where:
    """Where an object stands. `node` is None in JSON that is not YAML."""

    source: _Text
    number: int
    prefix: str
    node: yaml.Node | None

    def item(self, index: int) -> "_Where":
        path = f"items[{index}]"
        node = _walk(self.node, path)[1] if self.node is not None else None
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
        source.place_of(where.node)[0] if where.node is not None else source.lines_before + 1,
        _text(obj.get("apiVersion")),
        _text(obj.get("kind")),
        _text(named.get("namespace")) or None,
        _text(named.get("name")),
        obj,
        source,
        where.number,
        where.prefix,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
