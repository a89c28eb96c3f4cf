"""A YAML text as a tree with the position of each node, and pieces of new text at such positions. Pure.

PyYAML's own nodes have no position of aliases, and end a block only after the comments that follow it; so the tree is
built from the parser's events. Positions count characters of the text, whose line ends are `\\n`.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import yaml

from dra_driver.api.manifest_nodes import normalized, plain_value
from dra_driver.migration.text.edited import EditRefused

_LOADER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


class YamlKind(Enum):
    SCALAR = auto()
    LIST = auto()
    MAP = auto()
    ALIAS = auto()


@dataclass(slots=True, eq=False)
class Tree:
    """`start` is where its anchor or tag begins, `body` where it begins itself, `end` where it ends (not included).

    A block ends with the last line that has something of it: comments and empty lines after it are not its own.
    """

    kind: YamlKind
    start: int
    body: int
    end: int
    anchor: str | None = None
    tagged: bool = False
    """It has a tag that says its type."""
    text: str = ""
    """Of a scalar, without quotes and escapes."""
    style: str = ""
    """Of a scalar: `'`, `"`, `|`, `>`, or empty: plain."""
    flow: bool = False
    children: "list[Tree]" = field(default_factory=list)
    """Items of a list; keys and values of a map, in turn; what an alias stands for."""

    @property
    def pairs(self) -> "list[tuple[Tree, Tree]]":
        return list(zip(self.children[::2], self.children[1::2], strict=True))

    @property
    def own(self) -> "list[tuple[str, Tree, Tree]]":
        """Of a map, without what is merged in: key, its node, the value's node."""
        return [(key_text(key), key, value) for key, value in self.pairs if not is_merge(key)]

    @property
    def is_shared(self) -> bool:
        """Whether other places have the same value."""
        return self.kind is YamlKind.ALIAS or self.anchor is not None


class NotATree(Exception):
    """The text has something that is never edited. The message says what."""


def is_merge(key: Tree) -> bool:
    return key.kind is YamlKind.SCALAR and key.text == "<<" and not key.style


def key_text(key: Tree) -> str:
    """As JSON has it. Raises NotATree for keys that are not scalars."""
    if key.kind in (YamlKind.LIST, YamlKind.MAP):
        raise NotATree("a key is not a single value")
    value = value_of(key)
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


def value_of(tree: Tree) -> Any:
    """Plain data, with what is merged in; of several maps behind `<<` the first wins."""
    if tree.kind is YamlKind.ALIAS:
        return value_of(tree.children[0])
    if tree.kind is YamlKind.SCALAR:
        return tree.text if tree.style or tree.tagged else plain_value(tree.text)
    if tree.kind is YamlKind.LIST:
        return [value_of(item) for item in tree.children]
    values = {name: value_of(value) for name, _, value in tree.own}
    for source in (value for key, value in tree.pairs if is_merge(key)):
        for merged in source.children if source.kind is YamlKind.LIST else [source]:
            values = {**value_of(merged), **values}
    return values


def leaves(tree: Tree) -> Iterator[Tree]:
    """Scalars and aliases: everything that holds text of its own, in the order of the text."""
    if tree.kind in (YamlKind.SCALAR, YamlKind.ALIAS):
        yield tree
    else:
        for child in tree.children:
            yield from leaves(child)


def trees(text: str) -> Sequence[Tree]:
    """One for each document of the text. Raises NotATree for what cannot be read, or holds itself."""
    top = Tree(YamlKind.LIST, 0, 0, len(text))
    anchors: dict[str, Tree] = {}
    inside = [top]
    event: Any
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            if isinstance(event, yaml.DocumentStartEvent):
                anchors = {}
            elif isinstance(event, yaml.CollectionEndEvent):
                node = inside.pop()
                behind: Any = event.end_mark
                last = node.children[-1].end if node.children else node.body
                node.end = behind.index if node.flow else last
            elif isinstance(event, yaml.NodeEvent):
                node = _alias(event, anchors, inside) if isinstance(event, yaml.AliasEvent) else _node(text, event)
                inside[-1].children.append(node)
                if isinstance(event, yaml.CollectionStartEvent):
                    inside.append(node)
                if node.anchor is not None:
                    anchors[node.anchor] = node
    except yaml.YAMLError as error:
        raise NotATree("it is not YAML") from error
    return top.children


def _alias(event: Any, anchors: dict[str, Tree], inside: Sequence[Tree]) -> Tree:
    target = anchors.get(event.anchor)
    if target is None or target in inside:
        raise NotATree(f"*{event.anchor} {'contains itself' if target is not None else 'is not defined'}")
    start = event.start_mark.index
    return Tree(YamlKind.ALIAS, start, start, event.end_mark.index, children=[target])


def _node(text: str, event: Any) -> Tree:
    """A scalar; or a list or map, whose end is not known yet."""
    start, end, body = event.start_mark.index, event.end_mark.index, _body(text, event)
    if not isinstance(event, yaml.ScalarEvent):
        kind = YamlKind.LIST if isinstance(event, yaml.SequenceStartEvent) else YamlKind.MAP
        return Tree(kind, start, body, 0, event.anchor, event.tag is not None, flow=bool(event.flow_style))
    tagged = event.tag is not None and event.tag != "!"
    style = event.style if event.style in ("'", '"', "|", ">") else "'" if event.tag == "!" else ""
    if style in ("|", ">"):
        end = _end_of_block(text, body, end)
    return Tree(YamlKind.SCALAR, start, body, end, event.anchor, tagged, event.value, style)


def _body(text: str, event: Any) -> int:
    """Behind anchor and tag."""
    start: int = event.start_mark.index
    match = _PROPERTIES.match(text, start) if event.anchor is not None or event.tag is not None else None
    if match is None:
        return start
    end: int = event.end_mark.index
    return end if isinstance(event, yaml.ScalarEvent) and end <= match.end() else past_space(text, match.end())


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
