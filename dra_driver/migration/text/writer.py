"""Which pieces of a text to replace so that a tree of it has another value. Pure.

Comments stay, also those of removed parts. A value with an anchor, an alias, or a merged map is never changed.
`dra_driver.migration.text.edit` reads the result again.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_driver.migration.text.changes import EditRefused, Items, same
from dra_driver.migration.text.rendering import (
    Style,
    inline,
    item_lines,
    literal_lines,
    pair_lines,
    scalar,
    style_of,
    value_lines,
)
from dra_driver.migration.text.tree import (
    Alias,
    ListNode,
    MapNode,
    Scalar,
    Splice,
    Tree,
    column_of,
    is_merge,
    key_text,
    leaves,
    line_start,
    next_line,
    past_space,
)

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


@dataclass(slots=True, eq=False)
class Writer:
    """Collects splices, and changes nothing itself. `text` ends with a line end; `roots` are the trees of it."""

    text: str
    roots: list[Tree]
    splices: list[Splice] = field(default_factory=list)
    _style: Style | None = None

    @property
    def style(self) -> Style:
        if self._style is None:
            self._style = style_of(self.text, self.roots)
        return self._style

    def rewrite(self, tree: Tree, old: Any, new: Any) -> None:
        if not self._visit(tree, old, new):
            raise EditRefused("the whole document must be replaced for this")

    def _visit(self, tree: Tree, old: Any, new: Any) -> bool:
        """Whether the tree's own text can hold the new value; else the parent replaces it."""
        if same(old, new):
            return True
        if isinstance(tree, Alias) or tree.anchor is not None:
            raise EditRefused(_SHARED)
        if isinstance(tree, Scalar):
            return isinstance(new, str) and self._literal(tree, new)
        if isinstance(tree, MapNode) and isinstance(new, dict) and isinstance(old, dict) and (new or not old):
            self._mapping(tree, old, new)
            return True
        if isinstance(tree, ListNode) and isinstance(new, list) and isinstance(old, list) and (new or not old):
            origin = new.origin if isinstance(new, Items) else _origin(old, new)
            if origin is not None:
                self._sequence(tree, old, new, origin)
                return True
        return False

    # -- maps

    def _mapping(self, tree: MapNode, old: dict[str, Any], new: dict[str, Any]) -> None:
        own = {name for name, _, _ in tree.own()}
        if len(own) != sum(not is_merge(key) for key, _ in tree.pairs):
            raise EditRefused("a key is given twice")
        merged = old.keys() - own
        if any(key not in new or not same(old[key], new[key]) for key in merged):
            raise EditRefused(_SHARED)
        children = self._pairs(tree)
        for child in children:
            if child.key in new and not self._visit(child.value, old.get(child.key), new[child.key]):
                self._replace(tree, child, new[child.key])
        removed = [index for index, child in enumerate(children) if child.key is not None and child.key not in new]
        added = [(key, value) for key, value in new.items() if key not in old]
        if removed or added:
            self._restock(tree, children, removed, added)

    def _pairs(self, tree: MapNode) -> list[_Child]:
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

    def _sequence(self, tree: ListNode, old: list[Any], new: list[Any], origin: Sequence[int | None]) -> None:
        kept = {was: new[index] for index, was in enumerate(origin) if was is not None}
        children = self._items(tree)
        for index, child in enumerate(children):
            if index in kept and not self._visit(child.value, old[index], kept[index]):
                self._replace(tree, child, kept[index])
        removed = [index for index in range(len(children)) if index not in kept]
        added: list[tuple[str | None, Any]] = [(None, new[index]) for index, was in enumerate(origin) if was is None]
        if removed or added:
            self._restock(tree, children, removed, added)

    def _items(self, tree: ListNode) -> list[_Child]:
        if tree.flow:
            return [_Child(item.start, item.end, None, item) for item in tree.items]
        children: list[_Child] = []
        position = tree.body
        for item in tree.items:
            dash = past_space(self.text, position)
            if self.text[dash : dash + 1] != "-":
                raise EditRefused("a list is written in a way that is not edited")
            end = max(item.end, dash + 1)
            children.append(_Child(dash, end, None, item))
            position = _past_comment(self.text, end)
        return children

    # -- another value in the place of one

    def _replace(self, tree: MapNode | ListNode, child: _Child, new: Any) -> None:
        value = child.value
        if isinstance(value, Alias) or value.anchor is not None:
            raise EditRefused(_SHARED)
        if value.tagged:
            raise EditRefused("a value has a tag that says its type")
        quote = value.style if isinstance(value, Scalar) and value.style in ("'", '"') else ""
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
        if not isinstance(new, dict | list) and not (isinstance(new, str) and "\n" in new):
            lines = [f" {scalar(new, self.style, flow=False, quote=quote)}"]
        elif child.key_node is not None:
            lines = list(value_lines(new, self.style, column))
        else:
            first, *more = item_lines(new, self.style, column)
            lines = [first[column + 1 :], *more]
        return "\n".join([lines[0], *(f"{' ' * column}{comment}" for comment in comments), *lines[1:]])

    def _literal(self, tree: Scalar, new: str) -> bool:
        """New text in the indentation of the old one; lines that stay are not touched."""
        if tree.style != "|" or tree.tagged or not new.strip():
            return False
        first = next_line(self.text, tree.body)
        raw = self.text[first : tree.end].split("\n")
        old = tree.text.rstrip("\n").split("\n")
        wanted = new.rstrip("\n").split("\n")
        if len(old) != len(raw) or _line_ends(tree.text) != _line_ends(new) or not wanted[0].strip():
            return False
        column = next(len(line) - len(was) for line, was in zip(raw, old, strict=True) if was.strip())
        if wanted[0].startswith(" ") and not re.match(r"\|[-+]?[1-9]", self.text[tree.body : first]):
            return False
        before = _common(old, wanted)
        after = _common(old[before:][::-1], wanted[before:][::-1])
        lines = (
            [
                *raw[:before],
                *literal_lines("\n".join(wanted[before : len(wanted) - after]), column),
                *raw[len(raw) - after :],
            ]
            if before + after < len(wanted)
            else [*raw[:before], *raw[len(raw) - after :]]
        )
        self.splices.append(Splice(first, tree.end, "\n".join(lines)))
        return True

    # -- children that go and come

    def _restock(
        self,
        tree: MapNode | ListNode,
        children: list[_Child],
        removed: list[int],
        added: Sequence[tuple[str | None, Any]],
    ) -> None:
        if tree.flow:
            self._restock_flow(tree, children, removed, added)
        else:
            self._restock_block(tree, children, removed, added)

    def _restock_block(
        self,
        tree: MapNode | ListNode,
        children: list[_Child],
        removed: list[int],
        added: Sequence[tuple[str | None, Any]],
    ) -> None:
        column = column_of(self.text, children[0].begin)
        lines = [line for key, value in added for line in self._new_child(key, value, column)]
        gone = set(removed)
        kept = [index for index in range(len(children)) if index not in gone]
        if not kept:
            self._replace_all(children, lines)
            return
        start = 0
        if kept[0] > 0 and not self._begins_line(children[0].begin):
            # `- first: …` goes; the next one takes its place behind the dash.
            self._cut(children[0].begin, children[kept[0]].begin, children[: kept[0]], column, leading=True)
            start = kept[0]
        for index in removed:
            if index >= start:
                child = children[index]
                self._cut(
                    line_start(self.text, child.begin),
                    next_line(self.text, child.end),
                    [child],
                    column,
                    leading=False,
                )
        if lines:
            position = self._past_own_comments(next_line(self.text, children[kept[-1]].end), column)
            self.splices.append(Splice(position, position, "".join(f"{line}\n" for line in lines)))

    def _begins_line(self, position: int) -> bool:
        return not self.text[line_start(self.text, position) : position].strip()

    def _new_child(self, key: str | None, value: Any, column: int) -> Iterable[str]:
        if key is not None:
            return pair_lines(key, value, self.style, column)
        return item_lines(value, self.style, column)

    def _replace_all(self, children: list[_Child], lines: list[str]) -> None:
        begin, end = children[0].begin, children[-1].end
        column = column_of(self.text, begin)
        comments = self._comments(begin, end, *(value for child in children for value in _of(child)))
        indent = " " * column
        new = [*(f"{indent}{comment}" for comment in comments), *lines]
        self.splices.append(Splice(begin, end, "\n".join(new)[column:]))

    def _cut(self, start: int, end: int, children: list[_Child], column: int, *, leading: bool) -> None:
        comments = self._comments(start, end, *(value for child in children for value in _of(child)))
        indent = " " * column
        if leading:
            kept = "".join(f"{comment}\n{indent}" for comment in comments)
        else:
            kept = "".join(f"{indent}{comment}\n" for comment in comments)
        self.splices.append(Splice(start, end, kept))

    def _past_own_comments(self, position: int, column: int) -> int:
        """Behind comment lines that are indented deeper than `column`: they are about what stands above."""
        while match := _DEEPER_COMMENT.match(self.text, position):
            if len(match[1]) <= column:
                break
            position = match.end()
        return position

    def _comments(self, start: int, end: int, *values: Tree) -> list[str]:
        """Between the words and values of a part of the text."""
        results: list[str] = []
        position = start
        for value in values:
            for leaf in leaves(value):
                results += _COMMENT.findall(self.text, position, leaf.start)
                if isinstance(leaf, Scalar) and leaf.style in ("|", ">"):
                    results += _COMMENT.findall(self.text, leaf.body, next_line(self.text, leaf.body) - 1)
                position = leaf.end
        return results + _COMMENT.findall(self.text, position, end)

    # -- flow style

    def _restock_flow(
        self,
        tree: MapNode | ListNode,
        children: list[_Child],
        removed: list[int],
        added: Sequence[tuple[str | None, Any]],
    ) -> None:
        spread_out = bool(children) and "\n" in self.text[tree.body : children[0].begin]
        column = self._indentation(children[0].begin) if spread_out else 0
        entries = [self._new_entry(key, value) for key, value in added]
        between = f",\n{' ' * column}" if spread_out else ", "
        gone = set(removed)
        kept = [index for index in range(len(children)) if index not in gone]
        if not kept:
            start, end = (children[0].begin, children[-1].end) if children else (tree.body + 1, tree.end - 1)
            comments = self._comments(start, end, *(value for child in children for value in _of(child)))
            self.splices.append(Splice(start, end, self._noted(comments, column) + between.join(entries)))
            return
        if kept[0] > 0:
            self._cut_flow(children[0].begin, children[kept[0]].begin, children[: kept[0]], column)
        for index in removed:
            if index > kept[0]:
                last = children[index - 1]
                self._cut_flow(last.end, children[index].end, [children[index]], column)
        if entries:
            position = children[-1].end if children[-1] is children[kept[-1]] else children[kept[-1]].end
            self.splices.append(Splice(position, position, "".join(between + entry for entry in entries)))

    def _cut_flow(self, start: int, end: int, children: list[_Child], column: int) -> None:
        comments = self._comments(start, end, *(value for child in children for value in _of(child)))
        self.splices.append(Splice(start, end, self._noted(comments, column)))

    def _noted(self, comments: list[str], column: int) -> str:
        return "".join(f" {comment}\n{' ' * column}" for comment in comments)

    def _new_entry(self, key: str | None, value: Any) -> str:
        written = inline(value, self.style)
        return f"{scalar(key, self.style, flow=True)}: {written}" if key is not None else written


_DEEPER_COMMENT = re.compile(r"([ \t]*)#[^\n]*\n")


def _of(child: _Child) -> list[Tree]:
    return [child.key_node, child.value] if child.key_node is not None else [child.value]


def _past_comment(text: str, position: int) -> int:
    """To the end of the line where nothing but a comment is left of it."""
    match = re.compile(r"[ \t]+#[^\n]*").match(text, position)
    return match.end() if match is not None else position


def _origin(old: list[Any], new: list[Any]) -> tuple[int | None, ...] | None:
    """Which item each one was, as in `Items`; None where one is new that does not follow all others."""
    if len(old) == len(new):
        return tuple(range(len(old)))
    origin: list[int | None] = []
    position = 0
    for item in new:
        found = next((index for index in range(position, len(old)) if same(old[index], item)), None)
        if found is not None and origin and origin[-1] is None:
            return None
        origin.append(found)
        position = position if found is None else found + 1
    return tuple(origin)


def _line_ends(text: str) -> int:
    return len(text) - len(text.rstrip("\n"))


def _common(item: list[str], other: list[str]) -> int:
    """How many lines are the same at the beginning."""
    count = 0
    for left, right in zip(item, other, strict=False):
        if left != right:
            break
        count += 1
    return count
