"""Edits in a text: what they do not mean stays as it is, byte for byte; comments stay even then. Pure.

`rewritten` compares what each object is with what it is to be, and cuts and pastes only where they differ. An anchor's
other users never change with it: an alias whose map is to differ becomes a copy of its own. Whatever comes out is read
again, and when it is not exactly what was wanted, EditRefused is raised and nothing is changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra_driver.api.documents import Document, Written, read_documents
from dra_driver.api.meta import JsonObject
from dra_driver.migration.model import Edit
from dra_driver.migration.text.changes import EditRefused, Items, changed, same
from dra_driver.migration.text.splices import Splice, joined, order
from dra_driver.migration.text.tree import (
    NotATree,
    Tree,
    trees,
    value_of,
)
from dra_driver.migration.text.writer import Writer


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
    _check(written.text, joined(written.text, splices), wanted)
    start = written.start
    return Rewriting(
        tuple(Splice(start + one.start, start + one.end, one.text) for one in splices),
        tuple(start + one for one in sorted(copied)),
    )


def _splices(text: str, roots: list[Tree], wanted: Mapping[Written, JsonObject]) -> tuple[list[Splice], list[int]]:
    writer = Writer(text if text.endswith("\n") else f"{text}\n", roots)
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
    ordered = sorted(splices, key=order)
    first = next((index for index, one in enumerate(ordered) if one.end >= len(text)), len(ordered))
    if first == len(ordered):
        return ordered
    start = min(ordered[first].start, len(text))
    while first and ordered[first - 1].end >= start:
        first -= 1
        start = ordered[first].start
    rest = [Splice(one.start - start, one.end - start, one.text) for one in ordered[first:]]
    tail = joined(f"{text}\n"[start:], rest).removesuffix("\n")
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
