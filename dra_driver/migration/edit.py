"""Edits in a text: what they do not mean stays as it is, byte for byte; comments stay even then. Pure.

`rewritten` compares what each object is with what it is to be, and cuts and pastes only where they differ. An anchor's
other users never change with it: an alias whose map is to differ becomes a copy of its own. Whatever comes out is read
again, and when it is not exactly what was wanted, EditRefused is raised and nothing is changed.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_driver.api.documents import Document, Written, normalized, read_documents
from dra_driver.api.meta import JsonObject
from dra_driver.migration.changes import EditRefused, Items, changed, same
from dra_driver.migration.model import Edit
from dra_driver.migration.rendering import (
    Style,
    inline,
    item_lines,
    literal_lines,
    pair_lines,
    scalar,
    spread,
    value_lines,
)
from dra_driver.migration.tree import (
    Alias,
    ListNode,
    MapNode,
    NotATree,
    Scalar,
    Tree,
    is_merge,
    key_text,
    leaves,
    merged_into,
    past_space,
    trees,
    value_of,
)


@dataclass(frozen=True, slots=True)
class Splice:
    """`text` instead of what stands from `start` to `end`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class Rewriting:
    """What to change in a file. All positions are those of its text, normalized."""

    splices: tuple[Splice, ...]
    written_out: tuple[int, ...]
    """Where aliases were that became copies, since others who use their anchor are to stay as they are."""


def rewritten(edits: Mapping[Document, Sequence[Edit]]) -> Rewriting:
    """What to change in a file for edits in objects of one text (all have the same `Document.written.start`).

    Raises EditRefused where the text does not allow one of the edits; then none of them is to be made.
    """
    written = next(iter(edits)).written
    wanted = {document.written: changed(document.obj, some) for document, some in edits.items()}
    try:
        splices, copied = _splices(written.text, trees(written.text), wanted)
    except NotATree as error:
        raise EditRefused(f"the text is not edited: {error}") from error
    _check(written.text, _joined(written.text, splices), wanted)
    start = written.start
    return Rewriting(
        tuple(Splice(start + one.start, start + one.end, one.text) for one in splices),
        tuple(start + one for one in sorted(copied)),
    )


def relisted(text: str, new: Items) -> tuple[Splice, ...]:
    """What to change in a text that is one list. Raises EditRefused."""
    plain = normalized(text)
    try:
        (root,) = trees(plain)
        old = value_of(root)
        writer = _Writer(plain if plain.endswith("\n") else f"{plain}\n", [root])
        writer.rewrite(root, old, new)
        splices = writer.splices if plain.endswith("\n") else _unended(writer.splices, plain)
        (again,) = trees(_joined(plain, splices))
        if not same(value_of(again), list(new)):
            raise EditRefused("the edited text did not mean what it was to mean")
    except (NotATree, ValueError) as error:
        raise EditRefused(f"the text is not edited: {error}") from error
    return tuple(splices)


def _splices(text: str, roots: list[Tree], wanted: Mapping[Written, JsonObject]) -> tuple[list[Splice], list[int]]:
    writer = _Writer(text if text.endswith("\n") else f"{text}\n", roots)
    by_number: dict[int, dict[tuple[int, ...], JsonObject]] = {}
    for where, obj in wanted.items():
        by_number.setdefault(where.number, {})[where.items] = obj
    for number, objects in by_number.items():
        root = roots[number]
        old = value_of(root)
        writer.rewrite(root, old, _with_objects(old, objects))
    splices = writer.splices if text.endswith("\n") else _unended(writer.splices, text)
    return splices, writer.copied


def _unended(splices: Sequence[Splice], text: str) -> list[Splice]:
    """In a text whose last line has no end, which was given one for the time being, and has none afterwards."""
    ordered = sorted(splices, key=_order)
    first = next((index for index, one in enumerate(ordered) if one.end >= len(text)), len(ordered))
    if first == len(ordered):
        return ordered
    start = min(ordered[first].start, len(text))
    while first and ordered[first - 1].end >= start:
        first -= 1
        start = ordered[first].start
    rest = [Splice(one.start - start, one.end - start, one.text) for one in ordered[first:]]
    tail = _joined(f"{text}\n"[start:], rest).removesuffix("\n")
    free = max((one.end for one in ordered[:first]), default=0)
    while not tail and start > free and text[start - 1] == "\n":
        start -= 1
    return [*ordered[:first], Splice(start, len(text), tail)]


def _with_objects(old: Any, objects: Mapping[tuple[int, ...], JsonObject]) -> Any:
    """The document with its objects in their places: itself, or items of lists."""
    if () in objects:
        return objects[()]
    items = list(old["items"])
    inner: dict[int, dict[tuple[int, ...], JsonObject]] = {}
    for (index, *rest), obj in objects.items():
        inner.setdefault(index, {})[tuple(rest)] = obj
    for index, below in inner.items():
        items[index] = _with_objects(items[index], below)
        if () in below:
            items[index] = _as_written(old["items"][index], items[index])
    return {**old, "items": Items(items, range(len(items)))}


def _as_written(old: JsonObject, new: JsonObject) -> JsonObject:
    """Without what an item has from the list that it is in: `PodList` says what its items are."""
    return {key: value for key, value in new.items() if key in old or key not in ("apiVersion", "kind")}


def _check(before: str, after: str, wanted: Mapping[Written, JsonObject]) -> None:
    """Raises EditRefused unless the new text has exactly the objects that it is to have."""
    new = read_documents(after, "")
    objects = {(where.number, where.items): obj for where, obj in wanted.items()}
    if len(new.documents) != len(objects):
        old = read_documents(before, "").documents
        objects = {(was.written.number, was.written.items): was.obj for was in old} | objects
    if new.problems or len(new.documents) != len(objects):
        raise EditRefused("the edited text could not be read again")
    for now in new.documents:
        where = now.written
        if not same(now.obj, objects.get((where.number, where.items))):
            raise EditRefused("the edited text did not mean what it was to mean")


# -- line ends


def spliced(text: str, splices: Iterable[Splice]) -> str:
    """A file's text after splices in its normalized form. New lines end like the file's own do."""
    plain = normalized(text)
    mark = text[: len(text) - len(text.removeprefix("\ufeff"))]
    if "\r" not in text:
        return mark + _joined(plain, splices)
    ends = [match.end() for match in re.finditer(r"\r\n", text.removeprefix("\ufeff"))]
    starts = [end - 2 - index for index, end in enumerate(ends)]
    """Of each `\\r\\n`: where its `\\n` is in the normalized text."""
    newline = "\r\n" if ends else "\r" if "\n" not in text else "\n"
    body = text.removeprefix("\ufeff")
    moved = [
        Splice(
            one.start + bisect_left(starts, one.start),
            one.end + bisect_left(starts, one.end),
            one.text.replace("\n", newline),
        )
        for one in splices
    ]
    return mark + _joined(body, moved)


def _order(splice: Splice) -> tuple[int, bool]:
    """What is put in comes before what is taken out in the same place."""
    return splice.start, splice.end != splice.start


def _joined(text: str, splices: Iterable[Splice]) -> str:
    parts: list[str] = []
    position = 0
    for one in sorted(splices, key=_order):
        if one.start < position:
            raise EditRefused("two edits meet in one place")
        parts += (text[position : one.start], one.text)
        position = one.end
    return "".join((*parts, text[position:]))


# -- the text's own habits


def _style_of(text: str, roots: Sequence[Tree]) -> Style:
    steps: Counter[int] = Counter()
    dashes: Counter[int] = Counter()
    quotes: Counter[str] = Counter()
    pending: list[Tree] = list(roots)
    while pending:
        tree = pending.pop()
        if isinstance(tree, Scalar):
            quotes[tree.style] += 1
        elif isinstance(tree, ListNode):
            pending += tree.items
        elif isinstance(tree, MapNode):
            for key, value in tree.pairs:
                pending += (key, value)
                if not tree.flow and isinstance(value, MapNode | ListNode) and not value.flow:
                    found = _column(text, value.body) - _column(text, key.start)
                    (dashes if isinstance(value, ListNode) else steps)[found] += 1
    is_json = text.lstrip().startswith(("{", "[")) and not quotes[""] - _words(roots)
    if is_json:
        return Style(_json_step(text), 0, '"', json=True)
    return Style(
        _most(steps, 2, lowest=1),
        _most(dashes, 0, lowest=0),
        '"' if quotes['"'] > quotes["'"] else "'",
    )


def _words(roots: Sequence[Tree]) -> int:
    """How many values without quotes are numbers or words that JSON has."""
    return sum(
        isinstance(leaf, Scalar) and not leaf.style and not isinstance(leaf.value, str)
        for root in roots
        for leaf in leaves(root)
    )


def _json_step(text: str) -> int:
    match = re.search(r"\{[ \t]*\n( +)", text)
    return len(match[1]) if match is not None else 2


def _most(counted: Counter[int], default: int, *, lowest: int) -> int:
    usual = [(times, -number) for number, times in counted.items() if number >= lowest]
    return -max(usual)[1] if usual else default


def _column(text: str, position: int) -> int:
    return position - (text.rfind("\n", 0, position) + 1)


def _line_start(text: str, position: int) -> int:
    return text.rfind("\n", 0, position) + 1


def _next_line(text: str, position: int) -> int:
    end = text.find("\n", position)
    return end + 1 if end != -1 else len(text)


_COMMENT = re.compile(r"(?:(?<=[ \t\n])|\A)#[^\n]*")


class _Lost:
    """Instead of an anchor's value where the anchor is gone."""


_LOST = _Lost()


@dataclass(slots=True, eq=False)
class _Child:
    """A pair of a map or an item of a list. `begin` is its key, or its dash where the list is a block."""

    begin: int
    end: int
    key: str | None
    value: Tree
    key_node: Tree | None = None


@dataclass(slots=True, eq=False)
class _Writer:
    text: str
    roots: list[Tree]
    splices: list[Splice] = field(default_factory=list)
    copied: list[int] = field(default_factory=list)
    """Where aliases were that are written out."""
    _final: dict[int, Any] = field(default_factory=dict)
    """By the identity of the node: what becomes of what has an anchor."""
    _style: Style | None = None

    @property
    def style(self) -> Style:
        if self._style is None:
            self._style = _style_of(self.text, self.roots)
        return self._style

    def rewrite(self, tree: Tree, old: Any, new: Any) -> None:
        """Where nothing has an alias, only what differs is looked at."""
        self._everything = any(isinstance(leaf, Alias) for leaf in leaves(tree))
        if not self._visit(tree, old, new):
            raise EditRefused("the whole document would have to be written anew")

    _everything: bool = False

    # Each returns whether the tree's own text can hold the new value; else the parent writes it anew.

    def _visit(self, tree: Tree, old: Any, new: Any) -> bool:
        if old is new and not self._everything:
            return True
        if isinstance(tree, Alias):
            final = self._final.get(id(tree.target), _LOST)
            return final is not _LOST and same(final, new)
        if tree.anchor is not None:
            self._final[id(tree)] = new
        if isinstance(tree, Scalar):
            return same(old, new) or (isinstance(new, str) and self._literal(tree, new))
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
        own = {name: value for name, _, value in tree.own()}
        if len(own) != sum(not is_merge(key) for key, _ in tree.pairs):
            raise EditRefused("a key is given twice")
        removed: list[int] = []
        merges: list[int] = []
        children = self._pairs(tree)
        for index, child in enumerate(children):
            if child.key is None:
                merges.append(index)
                self._visit_merged(child.value)
            elif child.key not in new:
                removed.append(index)
            elif not self._visit(child.value, old.get(child.key), new[child.key]):
                self._replace(tree, child, new[child.key])
        below = self._merged(tree) if merges else {}
        if (
            below is None
            or any(
                key not in own and (key not in new or not same(new[key], value)) and key not in new
                for key, value in below.items()
            )
            or any(key in own and key not in new for key in below)
        ):
            self.copied += [
                one.start for index in merges for one in leaves(children[index].value) if isinstance(one, Alias)
            ]
            removed = sorted([*removed, *merges])
            below = {}
        added = {
            key: value
            for key, value in new.items()
            if key not in own and (key not in below or not same(below[key], value))
        }
        if removed or added:
            self._restock(tree, children, removed, list(added.items()))

    def _visit_merged(self, tree: Tree) -> None:
        """What stands behind `<<` itself never changes; it can hold anchors."""
        if isinstance(tree, ListNode):
            for item in tree.items:
                self._visit_merged(item)
        elif not isinstance(tree, Alias):
            value = value_of(tree)
            self._visit(tree, value, value)

    def _merged(self, tree: MapNode) -> dict[str, Any] | None:
        """What the map gets from others, once they are edited; None: not all of it is there any more."""
        values: dict[str, Any] = {}
        for source in merged_into(tree):
            found = self._final.get(id(source.target), _LOST) if isinstance(source, Alias) else value_of(source)
            if not isinstance(found, dict):
                return None
            values = {**found, **values}
        return values

    def _pairs(self, tree: MapNode) -> list[_Child]:
        found = []
        for key, value in tree.pairs:
            name = None if is_merge(key) else key_text(key)
            if not tree.flow and self.text[key.start : key.start + 1] == "?":
                raise EditRefused("a key is written with `?`")
            found.append(_Child(key.start, max(value.end, self._colon(key) + 1), name, value, key))
        return found

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
        found: list[_Child] = []
        position = tree.body
        for item in tree.items:
            dash = past_space(self.text, position)
            if self.text[dash : dash + 1] != "-":
                raise EditRefused("a list is written in a way that is not edited")
            end = max(item.end, dash + 1)
            found.append(_Child(dash, end, None, item))
            position = _past_comment(self.text, end)
        return found

    # -- another value in the place of one

    def _replace(self, tree: MapNode | ListNode, child: _Child, new: Any) -> None:
        value = child.value
        if isinstance(value, Alias):
            self.copied.append(value.start)
        if not isinstance(value, Alias) and value.tagged:
            raise EditRefused("a value has a tag that says its type")
        if not isinstance(value, Alias) and value.anchor is not None:
            self._final[id(value)] = new
        anchor = f" &{value.anchor}" if not isinstance(value, Alias) and value.anchor is not None else ""
        if tree.flow:
            self.splices.append(
                Splice(value.start, max(value.end, value.start), f"{anchor} ".lstrip() + self._flow(value, new))
            )
            return
        begin = self._colon(child.key_node) + 1 if child.key_node is not None else child.begin + 1
        comments = self._comments(begin, child.end, value)
        quote = value.style if isinstance(value, Scalar) and value.style in ("'", '"') else ""
        self.splices.append(Splice(begin, child.end, anchor + self._block(child, new, quote, comments)))

    def _flow(self, value: Tree, new: Any) -> str:
        quote = value.style if isinstance(value, Scalar) and value.style in ("'", '"') else ""
        if isinstance(new, dict | list):
            if self.style.json and "\n" in self.text:
                return spread(new, self.style, self._indentation(value.start))
            return inline(new, self.style)
        return scalar(new, self.style, flow=True, quote=quote)

    def _indentation(self, position: int) -> int:
        start = _line_start(self.text, position)
        return len(self.text[start:position]) - len(self.text[start:position].lstrip(" "))

    def _block(self, child: _Child, new: Any, quote: str, comments: list[str]) -> str:
        """What follows a colon or a dash."""
        column = _column(self.text, child.begin)
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
        first = _next_line(self.text, tree.body)
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
        column = _column(self.text, children[0].begin)
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
                    _line_start(self.text, child.begin),
                    _next_line(self.text, child.end),
                    [child],
                    column,
                    leading=False,
                )
        if lines:
            position = self._past_own_comments(_next_line(self.text, children[kept[-1]].end), column)
            self.splices.append(Splice(position, position, "".join(f"{line}\n" for line in lines)))

    def _begins_line(self, position: int) -> bool:
        return not self.text[_line_start(self.text, position) : position].strip()

    def _new_child(self, key: str | None, value: Any, column: int) -> Iterable[str]:
        if key is not None:
            return pair_lines(key, value, self.style, column)
        return item_lines(value, self.style, column)

    def _replace_all(self, children: list[_Child], lines: list[str]) -> None:
        begin, end = children[0].begin, children[-1].end
        column = _column(self.text, begin)
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
        found: list[str] = []
        position = start
        for value in values:
            for leaf in leaves(value):
                found += _COMMENT.findall(self.text, position, leaf.start)
                if isinstance(leaf, Scalar) and leaf.style in ("|", ">"):
                    found += _COMMENT.findall(self.text, leaf.body, _next_line(self.text, leaf.body) - 1)
                position = leaf.end
        return found + _COMMENT.findall(self.text, position, end)

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
        entries = [self._new_entry(key, value, column, spread_out) for key, value in added]
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

    def _new_entry(self, key: str | None, value: Any, column: int, spread_out: bool) -> str:
        written = spread(value, self.style, column) if spread_out and self.style.json else inline(value, self.style)
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


def _common(one: list[str], other: list[str]) -> int:
    """How many lines are the same at the beginning."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count
