"""A YAML text as a tree with the position of each node, and pieces of new text at such positions. Pure.

PyYAML's own nodes have no position of aliases, and end a block only after the comments that follow it; so the tree is
built from the parser's events. Positions count characters of the text, whose line ends are `\\n`.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from dra_driver.api.manifest_nodes import normalized, plain_value
from dra_driver.migration.text.edited import EditRefused

_LOADER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
MERGE = "<<"


@dataclass(slots=True, eq=False)
class YamlNode:
    """`start` is where its anchor or tag begins, `body` where it begins itself, `end` where it ends (not included).

    A block ends with the last line that has something of it: comments and empty lines after it are not its own.
    """

    start: int
    body: int
    end: int
    anchor: str | None
    tagged: bool
    """It has a tag that says its type."""


@dataclass(slots=True, eq=False)
class Scalar(YamlNode):
    text: str
    """Without quotes and escapes."""
    style: str
    """`'`, `"`, `|`, `>`, or empty: plain."""

    @property
    def value(self) -> object:
        return self.text if self.style or self.tagged else plain_value(self.text)


@dataclass(slots=True, eq=False)
class ListNode(YamlNode):
    flow: bool
    items: "list[Tree]" = field(default_factory=list)


@dataclass(slots=True, eq=False)
class MapNode(YamlNode):
    flow: bool
    pairs: "list[tuple[Tree, Tree]]" = field(default_factory=list)

    def own(self) -> "Iterator[tuple[str, Tree, Tree]]":
        """Without what is merged in: key, its node, the value's node."""
        for key, value in self.pairs:
            if not is_merge(key):
                yield key_text(key), key, value


@dataclass(slots=True, eq=False)
class Alias:
    start: int
    end: int
    target: "Scalar | ListNode | MapNode"


type Tree = Scalar | ListNode | MapNode | Alias


class NotATree(Exception):
    """The text has something that is never edited. The message says what."""


def is_merge(key: Tree) -> bool:
    return isinstance(key, Scalar) and key.text == MERGE and not key.style


def key_text(key: Tree) -> str:
    """As JSON has it. Raises NotATree for keys that are not scalars."""
    if isinstance(key, Alias):
        key = key.target
    if not isinstance(key, Scalar):
        raise NotATree("a key is not a single value")
    value = key.value
    if isinstance(value, bool):
        return "true" if value else "false"
    return key.text if isinstance(value, str) else str(value)


def value_of(tree: Tree) -> Any:
    """Plain data, with what is merged in."""
    if isinstance(tree, Alias):
        return value_of(tree.target)
    if isinstance(tree, Scalar):
        return tree.value
    if isinstance(tree, ListNode):
        return [value_of(item) for item in tree.items]
    values = {name: value_of(value) for name, _, value in tree.own()}
    for source in merged_into(tree):
        values = {**value_of(source), **values}
    return values


def merged_into(tree: MapNode) -> Iterator[Tree]:
    """The maps behind `<<`, the one that wins first."""
    for key, value in tree.pairs:
        if is_merge(key):
            yield from value.items if isinstance(value, ListNode) else [value]


def leaves(tree: Tree) -> Iterator[Scalar | Alias]:
    """Everything that holds text of its own, in the order of the text."""
    if isinstance(tree, Scalar | Alias):
        yield tree
    elif isinstance(tree, ListNode):
        for item in tree.items:
            yield from leaves(item)
    else:
        for key, value in tree.pairs:
            yield from leaves(key)
            yield from leaves(value)


def trees(text: str) -> list[Tree]:
    """One for each document of the text. Raises NotATree for what cannot be read, or holds itself."""
    try:
        return _Builder(text).built()
    except yaml.YAMLError as error:
        raise NotATree("it is not YAML") from error


def header_length(text: str) -> int:
    """Length of the comments at the beginning that an empty line separates from the first object, such as a license."""
    length = position = 0
    commented = False
    for line in text.splitlines(keepends=True):
        content = line.strip()
        if content and not content.startswith("#"):
            return length
        position += len(line)
        commented = commented or bool(content)
        if not content and commented:
            length = position
    return 0


_PROPERTIES = re.compile(r"(?:[&!][^ \t\n\[\]{},]*[ \t]*)+(?:#[^\n]*)?")
_SPACE = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n)*[ \t]*")


def column_of(text: str, position: int) -> int:
    return position - (text.rfind("\n", 0, position) + 1)


def line_start(text: str, position: int) -> int:
    return text.rfind("\n", 0, position) + 1


def next_line(text: str, position: int) -> int:
    end = text.find("\n", position)
    return end + 1 if end != -1 else len(text)


def past_space(text: str, start: int) -> int:
    """The next character that is neither white space nor in a comment. A comment must not begin at `start`."""
    match = _SPACE.match(text, start)
    return match.end() if match is not None else start


class _Builder:
    def __init__(self, text: str) -> None:
        self._text = text
        self._anchors: dict[str, Scalar | ListNode | MapNode] = {}
        self._open: list[ListNode | MapNode] = []
        self._keys: list[Tree | None] = []
        """Of each open collection: the key whose value is awaited."""
        self._built: list[Tree] = []

    def built(self) -> list[Tree]:
        event: Any
        for event in yaml.parse(self._text, Loader=_LOADER):
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors = {}
            elif isinstance(event, yaml.ScalarEvent):
                self._add(self._scalar(event))
            elif isinstance(event, yaml.AliasEvent):
                self._add(self._alias(event))
            elif isinstance(event, yaml.CollectionStartEvent):
                self._begin(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                self._finish(event)
        return self._built

    def _scalar(self, event: Any) -> Scalar:
        start, end = event.start_mark.index, event.end_mark.index
        tagged = event.tag is not None and event.tag != "!"
        style = event.style if event.style in ("'", '"', "|", ">") else "'" if event.tag == "!" else ""
        node = Scalar(start, self._body(event), end, event.anchor, tagged, event.value, style)
        if style in ("|", ">"):
            node.end = _end_of_block(self._text, node.body, end)
        self._name(node)
        return node

    def _alias(self, event: Any) -> Alias:
        target = self._anchors.get(event.anchor)
        if target is None or target in self._open:
            raise NotATree(f"*{event.anchor} {'contains itself' if target is not None else 'is not defined'}")
        return Alias(event.start_mark.index, event.end_mark.index, target)

    def _begin(self, event: Any) -> None:
        kind = ListNode if isinstance(event, yaml.SequenceStartEvent) else MapNode
        flow = bool(event.flow_style)
        node = kind(event.start_mark.index, self._body(event), 0, event.anchor, event.tag is not None, flow)
        self._name(node)
        self._open.append(node)
        self._keys.append(None)

    def _finish(self, event: Any) -> None:
        node = self._open.pop()
        self._keys.pop()
        inner = node.items if isinstance(node, ListNode) else [value for _, value in node.pairs]
        node.end = event.end_mark.index if node.flow else inner[-1].end if inner else node.body
        self._add(node)

    def _add(self, tree: Tree) -> None:
        if not self._open:
            self._built.append(tree)
            return
        parent = self._open[-1]
        if isinstance(parent, ListNode):
            parent.items.append(tree)
        elif self._keys[-1] is None:
            self._keys[-1] = tree
        else:
            parent.pairs.append((self._keys[-1], tree))
            self._keys[-1] = None

    def _name(self, node: Scalar | ListNode | MapNode) -> None:
        if node.anchor is not None:
            self._anchors[node.anchor] = node

    def _body(self, event: Any) -> int:
        """Behind anchor and tag."""
        start: int = event.start_mark.index
        if event.anchor is None and event.tag is None:
            return start
        match = _PROPERTIES.match(self._text, start)
        if match is None:
            return start
        end: int = event.end_mark.index
        if isinstance(event, yaml.ScalarEvent) and end <= match.end():
            return end
        return past_space(self._text, match.end())


def _end_of_block(text: str, start: int, end: int) -> int:
    """Of a literal or folded text: behind its last line that has something, or behind all of them where they count."""
    header = text[start : text.find("\n", start) if "\n" in text[start:end] else end]
    if "+" in header.partition("#")[0]:
        return end - 1 if text[end - 1 : end] == "\n" else end
    last = len(text[start:end].rstrip()) + start
    line_end = text.find("\n", last, end)
    return line_end if line_end != -1 else end


# -- pieces of new text


@dataclass(frozen=True, slots=True)
class Splice:
    """`text` replaces the text from `start` to `end`."""

    start: int
    end: int
    text: str


def spliced(text: str, splices: Iterable[Splice]) -> str:
    """A file's text after splices in its normalized form. New lines end like the file's own do."""
    body = text.removeprefix("\ufeff")
    mark = text[: len(text) - len(body)]
    if "\r" not in text:
        return mark + joined(normalized(text), splices)
    ends = [match.end() for match in re.finditer(r"\r\n", body)]
    starts = [end - 2 - index for index, end in enumerate(ends)]
    """Of each `\\r\\n`: where its `\\n` is in the normalized text."""
    newline = "\r\n" if ends else "\r" if "\n" not in text else "\n"
    moved = [
        Splice(
            splice.start + bisect_left(starts, splice.start),
            splice.end + bisect_left(starts, splice.end),
            splice.text.replace("\n", newline),
        )
        for splice in splices
    ]
    return mark + joined(body, moved)


def joined(text: str, splices: Iterable[Splice]) -> str:
    parts: list[str] = []
    position = 0
    # What is put in comes before what is taken out in the same place.
    for splice in sorted(splices, key=lambda splice: (splice.start, splice.end != splice.start)):
        if splice.start < position:
            raise EditRefused("two edits overlap")
        parts += (text[position : splice.start], splice.text)
        position = splice.end
    return "".join((*parts, text[position:]))
