"""Edits made on plain data: what an object becomes, and which places differ. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dra_driver.api.untyped import Path, path_text
from dra_driver.migration.model import Edit, Remove


class EditRefused(Exception):
    """The object or its text does not allow an edit. The message is a sentence for the report."""


class Items(list[Any]):
    """A list that was edited. `origin` says of each item which one it was before; None: it is new."""

    def __init__(self, items: Iterable[Any], origin: Iterable[int | None]) -> None:
        super().__init__(items)
        self.origin = tuple(origin)


@dataclass(slots=True)
class _Node:
    """The edits of one place, and below it."""

    below: "dict[str | int, _Node]" = field(default_factory=dict)
    removed: bool = False
    puts: list[Any] = field(default_factory=list)
    """At most one; a list because any value can be put."""


class _Gone:
    """Instead of a value that was removed."""


_GONE = _Gone()


def changed(obj: Any, edits: Iterable[Edit]) -> Any:
    """The object after the edits; what they do not reach is the same, not a copy. Raises EditRefused.

    A value that is put goes before removals at or above its place. Maps and lists that removals emptied are gone.
    """
    value = _changed(obj, _tree(edits), ())
    return {} if value is _GONE else value


def _tree(edits: Iterable[Edit]) -> _Node:
    root = _Node()
    for edit in edits:
        node = root
        for part in edit.path:
            node = node.below.setdefault(part, _Node())
        if isinstance(edit, Remove):
            node.removed = True
        else:
            node.puts = [edit.value]
    return root


def _puts(node: _Node) -> bool:
    return bool(node.puts) or any(_puts(item) for item in node.below.values())


def _changed(value: Any, node: _Node, path: Path) -> Any:
    if node.puts:
        # What is edited in it besides has nothing to do with the items that stood here.
        return plain(_changed(node.puts[0], _Node(node.below), path))
    if node.removed:
        if not _puts(node):
            return _GONE
        value = None
    if not node.below:
        return value
    if value is None:
        value = [] if all(isinstance(part, int) for part in node.below) else {}
    if isinstance(value, dict) and all(isinstance(part, str) for part in node.below):
        return _changed_map(value, node, path)
    if isinstance(value, list) and all(isinstance(part, int) for part in node.below):
        return _changed_list(value, node, path)
    kind = "a map" if isinstance(value, dict) else "a list" if isinstance(value, list) else "a single value"
    raise EditRefused(f"{path_text(path) or 'the object'} is {kind}, which is not what belongs there")


def _changed_map(value: dict[str, Any], node: _Node, path: Path) -> Any:
    wanted: dict[str, Any] = {}
    for key, old in value.items():
        item = node.below.get(key)
        new = old if item is None else _changed(old, item, (*path, key))
        if new is not _GONE:
            wanted[key] = new
    for part, item in node.below.items():
        if part not in value and _puts(item):
            wanted[str(part)] = _changed(None, item, (*path, part))
    return wanted if wanted or not value else _GONE


def _changed_list(value: list[Any], node: _Node, path: Path) -> Any:
    wanted: list[Any] = []
    origin: list[int | None] = []
    for index, old in enumerate(value):
        node_below = node.below.get(index)
        new = old if node_below is None else _changed(old, node_below, (*path, index))
        if new is not _GONE:
            wanted.append(new)
            origin.append(index)
    for part, node_below in sorted(node.below.items(), key=lambda item: int(item[0])):
        if int(part) >= len(value) and _puts(node_below):
            wanted.append(_changed(None, node_below, (*path, part)))
            origin.append(None)
    return Items(wanted, origin) if wanted or not value else _GONE


def plain(value: Any) -> Any:
    """Without what edits remember of lists."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def same(item: Any, other: Any) -> bool:
    """Equal as JSON: 1, 1.0 and true are three values."""
    if item is other:
        return True
    if isinstance(item, dict) and isinstance(other, dict):
        return item.keys() == other.keys() and all(same(value, other[key]) for key, value in item.items())
    if isinstance(item, list) and isinstance(other, list):
        return len(item) == len(other) and all(same(left, right) for left, right in zip(item, other, strict=True))
    if isinstance(item, bool) or isinstance(other, bool):
        return item is other
    return type(item) is type(other) and bool(item == other or (item != item and other != other))


# -- what they change


def differences(was: Any, now: Any, path: Path = ()) -> Iterator[tuple[Path, Any, Any]]:
    """Places that differ, in the new object's paths, with the old and the new value (None: no value). A list that lost
    an item differs as a whole."""
    if same(was, now):
        return
    if was and isinstance(was, dict) and isinstance(now, dict):
        for key in {**was, **now}:
            yield from differences(was.get(key), now.get(key), (*path, key))
    elif was and isinstance(was, list) and isinstance(now, Items) and now.origin[: len(was)] == tuple(range(len(was))):
        for index, value in enumerate(now):
            yield from differences(was[index] if index < len(was) else None, value, (*path, index))
    else:
        yield path, was, now
