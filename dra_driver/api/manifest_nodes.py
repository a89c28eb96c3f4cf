"""A part of a manifest as YAML nodes with their positions in the file, and the nodes as plain JSON data, as the API
server reads them: Go's YAML 1.1 without dates and base 60. Pure.

`dra_driver.api.documents` calls this for each part between `---`. libyaml parses the text; text that would crash it is
refused first. Source: go-yaml v2, the reader of sigs.k8s.io/yaml.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import yaml

from dra_driver.errors import Help, InvalidInput, Move

type TextPlace = tuple[int, int]
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


def normalized(text: str) -> str:
    """Without byte order mark, and with `\\n` as line ends."""
    text = text.removeprefix("\ufeff")
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


_ESCAPES = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True, eq=False)
class Text:
    """A file, or a part of it. `start` and `lines_before` are the numbers of characters and lines before it."""

    file: str
    raw: str | bytes
    """Bytes are those of a file, in UTF-8."""
    start: int
    lines_before: int

    @cached_property
    def text(self) -> str:
        """Bytes become text at first use: of a large file in JSON, only places need it."""
        return normalized(self.raw.decode()) if isinstance(self.raw, bytes) else self.raw

    @cached_property
    def nodes(self) -> list[yaml.Node]:
        """The documents of the text as nodes, including empty ones; none if it is not YAML. Parsed again at first use,
        because most documents have no problems, and nodes take some hundred times the memory of their text."""
        try:
            return list(composed(self))
        except yaml.YAMLError:
            return []

    def place_of(self, node: yaml.Node) -> TextPlace:
        return (node.start_mark.line + 1 + self.lines_before, node.start_mark.column + 1)

    def bad(self, message: str, mark: Any) -> BadDocument:
        line, column = (mark.line, mark.column) if mark is not None else (0, 0)
        return BadDocument(message, file=self.file, line=line + 1 + self.lines_before, column=column + 1)

    def place_in(self, node: yaml.ScalarNode, offset: int) -> TextPlace:
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
    """The characters of a scalar's value, each with its start and end in the text. Whitespace is not exact."""
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


def walked(node: yaml.Node, path: str) -> tuple[yaml.Node, yaml.Node, str]:
    """Follows the path as far as it exists: the node to point at, the node there, and the rest of the path."""
    marked = node
    while path:
        step = _step(node, path)
        if step is None:
            break
        marked, node, path = step
    return marked, node, path


def _step(node: yaml.Node, path: str) -> tuple[yaml.Node, yaml.Node, str] | None:
    """One step along the path: the node to point at, the node there, and the rest of the path. None if there is
    nothing."""
    if isinstance(node, yaml.SequenceNode):
        match = re.match(r"\[([0-9]{1,9})\]", path)
        if match is None or int(match[1]) >= len(node.value):
            return None
        item = node.value[int(match[1])]
        return item, item, path[match.end() :]
    if not isinstance(node, yaml.MappingNode):
        return None
    # The longest, because keys can contain dots and brackets.
    longest: tuple[int, yaml.Node, yaml.Node] | None = None
    for key, value in _pairs(node):
        for written in (str(key.value), f".{key.value}", f"[{key.value}]", f'["{key.value}"]'):
            rest = path[len(written) :]
            if (
                path.startswith(written)
                and rest[:1] in ("", ".", "[")
                and (longest is None or len(written) > longest[0])
            ):
                longest = (len(written), key, value)
    return (longest[1], longest[2], path[longest[0] :]) if longest is not None else None


def _pairs(node: yaml.MappingNode, depth: int = 0) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """With merged-in entries, which come last."""
    merged: list[yaml.Node] = []
    for key, value in node.value:
        if key.tag == MERGE:
            merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
        else:
            yield key, value
    for other in merged:
        if isinstance(other, yaml.MappingNode) and depth < DEEPEST:
            yield from _pairs(other, depth + 1)


STRING = "tag:yaml.org,2002:str"
MERGE = "tag:yaml.org,2002:merge"
PLAIN = "plain"
"""Tag of a plain scalar; its type is derived from its text only when its value is needed."""
DEEPEST = 200
"""No Kubernetes object is nested this deep, and Python's stack is limited."""


class _Resolver:
    """Resolves tags; does as little as possible, because it is called for each scalar."""

    def resolve(self, kind: type[yaml.Node], value: str | None, implicit: Any) -> str:
        if kind is yaml.ScalarNode:
            if not implicit[0]:
                return STRING
            return MERGE if value == "<<" else PLAIN
        return "tag:yaml.org,2002:seq" if kind is yaml.SequenceNode else "tag:yaml.org,2002:map"

    def descend_resolver(self, *_: object) -> None:
        """Nothing depends on a node's parents."""

    def ascend_resolver(self) -> None:
        """As above."""


if yaml.__with_libyaml__:

    class _Composer(yaml.cyaml.CParser, _Resolver):  # type: ignore[name-defined,misc] # untyped
        """Text to nodes, by libyaml: some ten times as fast as PyYAML's own parser."""

else:

    class _Composer(  # type: ignore[no-redef]
        yaml.reader.Reader, yaml.scanner.Scanner, yaml.parser.Parser, yaml.composer.Composer, _Resolver
    ):
        """Text to nodes if PyYAML was built without libyaml."""

        def __init__(self, text: str) -> None:
            yaml.reader.Reader.__init__(self, text)
            yaml.scanner.Scanner.__init__(self)
            yaml.parser.Parser.__init__(self)
            yaml.composer.Composer.__init__(self)


def composed(source: Text) -> Iterator[yaml.Node]:
    """Its documents. Raises yaml.YAMLError, and BadDocument for what is nested too deep."""
    _refuse_abysses(source)
    composer = _Composer(source.text)
    while composer.check_node():
        yield composer.get_node()


def _refuse_abysses(source: Text) -> None:
    """libyaml's composer is recursive and crashes on tens of thousands of open brackets or dashes; its parser does not.
    The parser checks such texts first."""
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
        if depth > DEEPEST:
            raise source.bad(TOO_DEEP, event.start_mark)


_MANY_BRACKETS = 2000
_MANY_DASHES = re.compile(rf"^[ \t]*(?:[-?][ \t]+){{{DEEPEST}}}", re.MULTILINE)
TOO_DEEP = f"is nested deeper than {DEEPEST} levels"


def syntax_error(source: Text, error: yaml.YAMLError) -> BadDocument:
    """The parser's error in words for the author of the text."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    context = getattr(error, "context", None)
    line = line_at(source.text, mark)
    if "{{" in line or re.search(r"^[ \t]*\{\{", source.text, re.MULTILINE):
        problem = TEMPLATE
    elif "\t" in line[: len(line) - len(line.lstrip())] or (mark is not None and line[mark.column :][:1] == "\t"):
        problem = "has a tab where YAML requires spaces"
    else:
        problem = f"is not YAML: {context + ': ' if context else ''}{problem}"
    return source.bad(problem, mark)


TEMPLATE = "is a template, not YAML yet; check what it is rendered to: `helm template … | dractl check -`"


def line_at(text: str, mark: Any) -> str:
    """Empty if there is none."""
    if mark is None:
        return ""
    lines = text.split("\n")
    return lines[mark.line] if mark.line < len(lines) else ""


class Values:
    """Nodes to plain data, for one document."""

    def __init__(self, source: Text) -> None:
        self._source = source
        self._done: dict[int, tuple[object, int]] = {}
        self._open: set[int] = set()

    def value(self, node: yaml.Node) -> object:
        value, _ = self._of(node)
        return value

    def _of(self, node: yaml.Node) -> tuple[object, int]:
        """With the number of values in it; anchors count at each use."""
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node), 1
        done = self._done.get(id(node))
        if done is not None:
            return done
        if id(node) in self._open:
            raise self._source.bad("contains itself through an anchor", node.start_mark)
        if len(self._open) >= DEEPEST:
            raise self._source.bad(TOO_DEEP, node.start_mark)
        self._open.add(id(node))
        done = self._sequence(node) if isinstance(node, yaml.SequenceNode) else self._mapping(node)
        self._open.discard(id(node))
        if done[1] > _MOST_VALUES:
            raise self._source.bad("has too many values through its anchors", node.start_mark)
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
            if key.tag == MERGE:
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
                raise self._source.bad("`<<` can merge only maps", other.start_mark)
            values = {**value, **values}
            size += inner
        return values, size

    def _key(self, node: yaml.Node) -> str:
        """JSON keys are strings; numbers and booleans become their text."""
        value = self._scalar(node) if isinstance(node, yaml.ScalarNode) else None
        if isinstance(value, str):
            return value
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int | float):
            return str(value)
        template = "{{" in line_at(self._source.text, node.start_mark)
        raise self._source.bad(TEMPLATE if template else "a key must be a string", node.start_mark)

    def _scalar(self, node: yaml.ScalarNode) -> object:
        if node.tag == PLAIN or node.tag == MERGE:
            return plain_value(node.value)
        if node.tag == STRING:
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
    """The value of a scalar without quotes. Source: go-yaml v2, the reader of sigs.k8s.io/yaml; dates stay strings."""
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


_BASES: Mapping[str, Literal[2, 8, 16]] = {"0b": 2, "0o": 8, "0x": 16}


def _integer(text: str) -> int | None:
    """None for what has more than 64 bits."""
    digits = text.lstrip("+-")
    sign = -1 if text.startswith("-") else 1
    base: Literal[2, 8, 10, 16] = 10
    if digits[:2] in _BASES:
        base, digits = _BASES[digits[:2]], digits[2:]
    elif len(digits) > 1 and digits[0] == "0":
        base = 8
    if not digits:
        return None
    value = sign * int(digits, base)
    return value if -(2**63) <= value < 2**64 else None
