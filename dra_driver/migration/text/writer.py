"""Which pieces of a text to replace so that a tree of it has another value. Pure.

Comments stay, also those of removed parts. A value with an anchor, an alias, or a merged map is never changed.
`dra_driver.migration.text.edit` reads the result again.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_driver.api.manifest_nodes import plain_value
from dra_driver.migration.text.edited import EditRefused, Items, same
from dra_driver.migration.text.tree import (
    Splice,
    Tree,
    YamlKind,
    column_of,
    is_merge,
    key_text,
    leaves,
    line_start,
    next_line,
    past_space,
)


@dataclass(frozen=True, slots=True)
class Style:
    """How the text around is written."""

    step: int = 2
    """Spaces for each map in a map."""
    dash: int = 0
    """Spaces that a list's dashes have before them, beyond those of the list's key."""
    quote: str = "'"


def style_of(text: str, roots: Sequence[Tree]) -> Style:
    """The most frequent steps of indentation, dashes and quotes of a text."""
    steps: Counter[int] = Counter()
    dashes: Counter[int] = Counter()
    quotes: Counter[str] = Counter()
    pending: list[Tree] = list(roots)
    while pending:
        tree = pending.pop()
        if tree.kind is YamlKind.SCALAR:
            quotes[tree.style] += 1
        elif tree.kind is not YamlKind.ALIAS:
            pending += tree.children
        for key, value in tree.pairs if tree.kind is YamlKind.MAP and not tree.flow else ():
            if value.kind in (YamlKind.MAP, YamlKind.LIST) and not value.flow:
                step = column_of(text, value.body) - column_of(text, key.start)
                (dashes if value.kind is YamlKind.LIST else steps)[step] += 1
    quote = '"' if quotes['"'] > quotes["'"] else "'"
    return Style(_most(steps, 2, lowest=1), _most(dashes, 0, lowest=0), quote)


def _most(counted: Counter[int], default: int, *, lowest: int) -> int:
    usual = [(times, -number) for number, times in counted.items() if number >= lowest]
    return -max(usual)[1] if usual else default


_PLAIN = re.compile(r"[A-Za-z0-9_./\\(<=+;$^~][^\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff]*")
_MEANT = re.compile(r": |:$| #|\s$")
_OF_FLOW = re.compile(r"[,\[\]{}]")
_PRINTABLE = re.compile(r"[\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]*")


def scalar(value: Any, style: Style, *, flow: bool, quote: str = "") -> str:
    """In one line. `quote` is how the value that stood there before was quoted, and is kept where that can be."""
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if not quote and _is_plain(value, flow):
        return value
    if not quote:
        quote = "'" if '"' in value else style.quote
    if quote == "'" and "\n" not in value and _PRINTABLE.fullmatch(value):
        return "'" + value.replace("'", "''") + "'"
    return _double_quoted(value)


def _double_quoted(value: str) -> str:
    """JSON's escapes are YAML's, too, as long as nothing beyond 16 bits is escaped."""
    escaped = (
        json.dumps(char)[1:-1]
        if char < " " or char in '"\\\x7f\x85\u2028\u2029\ufeff' or "\x80" <= char <= "\x9f"
        else char
        for char in value
    )
    return f'"{"".join(escaped)}"'


def _is_plain(text: str, flow: bool) -> bool:
    """Whether it needs no quotes, because it cannot be read as another type."""
    if not _PLAIN.fullmatch(text) or _MEANT.search(text) or (flow and _OF_FLOW.search(text)):
        return False
    return isinstance(plain_value(text), str) and not _LIKE_A_NUMBER.match(text) and text not in ("---", "...")


_LIKE_A_NUMBER = re.compile(r"[-+.]?[0-9][0-9_:.,xob+-]*[eE]?[-+]?[0-9]*$|[0-9]{4}-[0-9]{2}-[0-9]{2}|[=<~]$|<<$")


def inline(value: Any, style: Style) -> str:
    """In one line, in flow style."""
    if isinstance(value, dict):
        pairs = (f"{scalar(key, style, flow=True)}: {inline(item, style)}" for key, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(inline(item, style) for item in value)}]"
    return scalar(value, style, flow=True)


def pair_lines(key: str, value: Any, style: Style, column: int) -> Iterator[str]:
    """`key: value` in block style, without line ends. The key is in `column`, from 0."""
    first, *more = value_lines(value, style, column)
    yield f"{' ' * column}{scalar(key, style, flow=False)}:{first}"
    yield from more


def value_lines(value: Any, style: Style, column: int) -> Iterator[str]:
    """What follows the colon of a key in `column`: the rest of the line, then the lines below."""
    if isinstance(value, dict) and value:
        yield ""
        for key, item in value.items():
            yield from pair_lines(key, item, style, column + style.step)
    elif isinstance(value, list) and value:
        yield ""
        for item in value:
            yield from item_lines(item, style, column + style.dash)
    else:
        yield f" {inline(value, style) if isinstance(value, dict | list) else scalar(value, style, flow=False)}"


def item_lines(value: Any, style: Style, column: int) -> Iterator[str]:
    """`- value`; the dash is in `column`."""
    dash = f"{' ' * column}- "
    if isinstance(value, dict) and value:
        lines = [line for key, item in value.items() for line in pair_lines(key, item, style, column + 2)]
        yield dash + lines[0][column + 2 :]
        yield from lines[1:]
    elif isinstance(value, list | dict):
        yield dash + inline(value, style)
    else:
        yield dash + scalar(value, style, flow=False)


_SHARED = (
    "it uses a YAML anchor or alias where it would change; expand these first (`yq -i 'explode(.)' FILE`), then migrate"
)
_COMMENT = re.compile(r"(?:(?<=[ \t\n])|\A)#[^\n]*")


@dataclass(slots=True, eq=False)
class _Child:
    """A pair of a map or an item of a list. `begin` is its key, or its dash where the list is a block."""

    begin: int
    end: int
    key: str | None
    value: Tree
    key_node: Tree | None = None


type _Added = Sequence[tuple[str | None, Any]]
"""New children: keys and values of a map; None and values of a list."""


@dataclass(slots=True, eq=False)
class Writer:
    """Collects splices, and changes nothing itself. `text` ends with a line end."""

    text: str
    style: Style
    splices: list[Splice] = field(default_factory=list)

    def rewrite(self, tree: Tree, old: Any, new: Any) -> None:
        if not self._visit(tree, old, new):
            raise EditRefused("the whole document must be replaced for this")

    def _visit(self, tree: Tree, old: Any, new: Any) -> bool:
        """Whether the tree's own text can hold the new value; else the parent replaces it."""
        if same(old, new):
            return True
        if tree.is_shared:
            raise EditRefused(_SHARED)
        if tree.kind is YamlKind.MAP and isinstance(new, dict) and (new or not old):
            self._mapping(tree, old, new)
            return True
        if tree.kind is YamlKind.LIST and isinstance(new, Items) and (new or not old):
            self._sequence(tree, old, new)
            return True
        return False

    # -- maps

    def _mapping(self, tree: Tree, old: dict[str, Any], new: dict[str, Any]) -> None:
        own = {name for name, _, _ in tree.own}
        if len(own) != len(tree.own):
            raise EditRefused("a key is given twice")
        merged = old.keys() - own
        if any(key not in new or not same(old[key], new[key]) for key in merged):
            raise EditRefused(_SHARED)
        children = self._pairs(tree)
        keys = (child.key for child in children)
        # What is merged in has no key, and stays.
        values = [(None, None) if key is None else (old[key], new[key]) if key in new else None for key in keys]
        self._edit(tree, children, values, [(key, value) for key, value in new.items() if key not in old])

    def _pairs(self, tree: Tree) -> list[_Child]:
        children = []
        for key, value in tree.pairs:
            name = None if is_merge(key) else key_text(key)
            if not tree.flow and self.text[key.start : key.start + 1] == "?":
                raise EditRefused("a key is written with `?`")
            children.append(_Child(key.start, max(value.end, self._colon(key) + 1), name, value, key))
        return children

    def _colon(self, key: Tree) -> int:
        position = past_space(self.text, key.end)
        if self.text[position : position + 1] != ":":
            raise EditRefused("a key is written in a way that is not edited")
        return position

    # -- lists

    def _sequence(self, tree: Tree, old: list[Any], new: Items) -> None:
        staying_items = {was: new[index] for index, was in enumerate(new.origin) if was is not None}
        values = [(item, staying_items[index]) if index in staying_items else None for index, item in enumerate(old)]
        added: _Added = [(None, item) for item, was in zip(new, new.origin, strict=True) if was is None]
        self._edit(tree, self._items(tree), values, added)

    def _items(self, tree: Tree) -> list[_Child]:
        if tree.flow:
            return [_Child(item.start, item.end, None, item) for item in tree.children]
        children: list[_Child] = []
        position = tree.body
        for item in tree.children:
            dash = past_space(self.text, position)
            if self.text[dash : dash + 1] != "-":
                raise EditRefused("a list is written in a way that is not edited")
            end = max(item.end, dash + 1)
            children.append(_Child(dash, end, None, item))
            position = _past_comment(self.text, end)
        return children

    # -- another value in the place of one

    def _replace(self, tree: Tree, child: _Child, new: Any) -> None:
        value = child.value
        if value.is_shared:
            raise EditRefused(_SHARED)
        if value.tagged:
            raise EditRefused("a value has a tag that says its type")
        quote = value.style if value.style in ("'", '"') else ""
        if tree.flow:
            is_scalar = not isinstance(new, dict | list)
            text = scalar(new, self.style, flow=True, quote=quote) if is_scalar else inline(new, self.style)
            self.splices.append(Splice(value.start, max(value.end, value.start), text))
            return
        begin = self._colon(child.key_node) + 1 if child.key_node is not None else child.begin + 1
        comments = self._comments(begin, child.end, value)
        self.splices.append(Splice(begin, child.end, self._block(child, new, quote, comments)))

    def _indentation(self, position: int) -> int:
        start = line_start(self.text, position)
        return len(self.text[start:position]) - len(self.text[start:position].lstrip(" "))

    def _block(self, child: _Child, new: Any, quote: str, comments: list[str]) -> str:
        """What follows a colon or a dash."""
        column = column_of(self.text, child.begin)
        if not isinstance(new, dict | list):
            lines = [f" {scalar(new, self.style, flow=False, quote=quote)}"]
        elif child.key_node is not None:
            lines = list(value_lines(new, self.style, column))
        else:
            first, *more = item_lines(new, self.style, column)
            lines = [first[column + 1 :], *more]
        return "\n".join([lines[0], *(f"{' ' * column}{comment}" for comment in comments), *lines[1:]])

    # -- children that go and come

    def _edit(
        self, tree: Tree, children: list[_Child], values: Sequence[tuple[Any, Any] | None], added: _Added
    ) -> None:
        """`values` are the old and the new one of each child; None: it goes."""
        for child, pair in zip(children, values, strict=True):
            if pair is not None and not self._visit(child.value, *pair):
                self._replace(tree, child, pair[1])
        staying = [index for index, pair in enumerate(values) if pair is not None]
        if len(staying) < len(children) or added:
            restock = self._restock_flow if tree.flow else self._restock_block
            restock(tree, children, staying, added)

    def _restock_block(self, _tree: Tree, children: list[_Child], staying: list[int], added: _Added) -> None:
        column = column_of(self.text, children[0].begin)
        lines = [line for key, value in added for line in self._new_child(key, value, column)]
        if not staying:
            self._replace_all(children, lines)
            return
        start = 0
        begin = children[0].begin
        if staying[0] > 0 and self.text[line_start(self.text, begin) : begin].strip():
            # `- first: …` goes; the next one takes its place behind the dash.
            self._cut(begin, children[staying[0]].begin, children[: staying[0]], column, leading=True)
            start = staying[0]
        for index, child in enumerate(children):
            if index >= start and index not in staying:
                start_of_lines, end_of_lines = line_start(self.text, child.begin), next_line(self.text, child.end)
                self._cut(start_of_lines, end_of_lines, [child], column, leading=False)
        if lines:
            position = self._past_own_comments(next_line(self.text, children[staying[-1]].end), column)
            self.splices.append(Splice(position, position, "".join(f"{line}\n" for line in lines)))

    def _new_child(self, key: str | None, value: Any, column: int) -> Iterable[str]:
        if key is not None:
            return pair_lines(key, value, self.style, column)
        return item_lines(value, self.style, column)

    def _replace_all(self, children: list[_Child], lines: list[str]) -> None:
        begin, end = children[0].begin, children[-1].end
        column = column_of(self.text, begin)
        comments = self._comments_of(begin, end, children)
        indent = " " * column
        new = [*(f"{indent}{comment}" for comment in comments), *lines]
        self.splices.append(Splice(begin, end, "\n".join(new)[column:]))

    def _cut(self, start: int, end: int, children: list[_Child], column: int, *, leading: bool) -> None:
        indent = " " * column
        before, after = ("", indent) if leading else (indent, "")
        comments = (f"{before}{comment}\n{after}" for comment in self._comments_of(start, end, children))
        self.splices.append(Splice(start, end, "".join(comments)))

    def _past_own_comments(self, position: int, column: int) -> int:
        """Behind comment lines that are indented deeper than `column`: they are about what stands above."""
        while match := _DEEPER_COMMENT.match(self.text, position):
            if len(match[1]) <= column:
                break
            position = match.end()
        return position

    def _comments_of(self, start: int, end: int, children: Sequence[_Child]) -> list[str]:
        trees = (tree for child in children for tree in (child.key_node, child.value) if tree is not None)
        return self._comments(start, end, *trees)

    def _comments(self, start: int, end: int, *values: Tree) -> list[str]:
        """Between the words and values of a part of the text."""
        results: list[str] = []
        position = start
        for value in values:
            for leaf in leaves(value):
                results += _COMMENT.findall(self.text, position, leaf.start)
                if leaf.style in ("|", ">"):
                    results += _COMMENT.findall(self.text, leaf.body, next_line(self.text, leaf.body) - 1)
                position = leaf.end
        return results + _COMMENT.findall(self.text, position, end)

    # -- flow style

    def _restock_flow(self, tree: Tree, children: list[_Child], staying: list[int], added: _Added) -> None:
        spread_out = bool(children) and "\n" in self.text[tree.body : children[0].begin]
        column = self._indentation(children[0].begin) if spread_out else 0
        entries = [self._new_entry(key, value) for key, value in added]
        between = f",\n{' ' * column}" if spread_out else ", "
        if not staying:
            start, end = (children[0].begin, children[-1].end) if children else (tree.body + 1, tree.end - 1)
            comments = self._comments_of(start, end, children)
            self.splices.append(Splice(start, end, self._noted(comments, column) + between.join(entries)))
            return
        if staying[0] > 0:
            self._cut_flow(children[0].begin, children[staying[0]].begin, children[: staying[0]], column)
        for index in range(staying[0] + 1, len(children)):
            if index not in staying:
                self._cut_flow(children[index - 1].end, children[index].end, [children[index]], column)
        if entries:
            position = children[staying[-1]].end
            self.splices.append(Splice(position, position, "".join(between + entry for entry in entries)))

    def _cut_flow(self, start: int, end: int, children: list[_Child], column: int) -> None:
        comments = self._comments_of(start, end, children)
        self.splices.append(Splice(start, end, self._noted(comments, column)))

    def _noted(self, comments: list[str], column: int) -> str:
        return "".join(f" {comment}\n{' ' * column}" for comment in comments)

    def _new_entry(self, key: str | None, value: Any) -> str:
        written = inline(value, self.style)
        return f"{scalar(key, self.style, flow=True)}: {written}" if key is not None else written


_DEEPER_COMMENT = re.compile(r"([ \t]*)#[^\n]*\n")


def _past_comment(text: str, position: int) -> int:
    """To the end of the line where nothing but a comment is left of it."""
    match = re.compile(r"[ \t]+#[^\n]*").match(text, position)
    return match.end() if match is not None else position
