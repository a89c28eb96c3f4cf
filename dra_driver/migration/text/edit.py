"""Edits in a text: everything that they do not change stays as it is, byte for byte, and comments stay. Pure.

`rewritten` compares each object before and after its edits, and replaces text only where they differ. JSON is written
again as a whole. The result is read again: if it is not exactly what was wanted, EditRefused is raised.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dra_driver.api.documents import Document, SourceText, read_documents
from dra_driver.api.meta import JsonObject
from dra_driver.grouping import grouped
from dra_driver.migration.model import Edit
from dra_driver.migration.text.edited import EditRefused, Items, changed, plain, same
from dra_driver.migration.text.tree import NotATree, Splice, joined, trees, value_of
from dra_driver.migration.text.writer import Writer, style_of


def rewritten(edits: Mapping[Document, Sequence[Edit]]) -> tuple[Splice, ...]:
    """Replacements in the normalized text of a file, for edits in objects of one text (all have the same
    `Document.written.start`).

    Raises EditRefused if the text does not allow one of the edits; then none of them is made.
    """
    written = next(iter(edits)).written
    wanted = {document.written: changed(document.obj, some) for document, some in edits.items()}
    try:
        splices = _of_json(written.text, wanted) or _of_yaml(written.text, wanted)
    except NotATree as error:
        raise EditRefused(f"the text cannot be edited: {error}") from error
    _check(written.text, joined(written.text, splices), wanted)
    start = written.start
    return tuple(Splice(start + splice.start, start + splice.end, splice.text) for splice in splices)


def _of_json(text: str, wanted: Mapping[SourceText, JsonObject]) -> list[Splice]:
    """Empty: it is no JSON. There are no comments in JSON, so all of it is written again, as it is indented."""
    try:
        old = json.loads(text) if text.lstrip().startswith("{") else None
    except (ValueError, RecursionError):
        return []
    if old is None:
        return []
    step = re.search(r"\{[ \t]*\n( +)", text)
    compact = (",", ":") if '": ' not in text else None
    new = plain(_with_objects(old, {where.items: obj for where, obj in wanted.items()}))
    written = json.dumps(new, indent=len(step[1]) if step else None, ensure_ascii=text.isascii(), separators=compact)
    start = len(text) - len(text.lstrip())
    return [Splice(start, len(text.rstrip()), written)]


def _of_yaml(text: str, wanted: Mapping[SourceText, JsonObject]) -> list[Splice]:
    roots = trees(text)
    whole = text if text.endswith("\n") else f"{text}\n"
    writer = Writer(whole, style_of(whole, roots))
    for number, places in grouped(wanted, lambda where: where.number).items():
        root = roots[number]
        old = value_of(root)
        writer.rewrite(root, old, _with_objects(old, {where.items: wanted[where] for where in places}))
    return writer.splices if text.endswith("\n") else _unended(writer.splices, text)


def _unended(splices: Sequence[Splice], text: str) -> list[Splice]:
    """Of a text whose last line has no end. It was given one, and has none afterwards."""
    if not splices:
        return []
    new = joined(f"{text}\n", splices).removesuffix("\n")
    start = next((place for place, pair in enumerate(zip(text, new, strict=False)) if len(set(pair)) > 1), len(new))
    start = min(start, len(text), len(new))
    return [Splice(start, len(text), new[start:])]


def _with_objects(old: Any, objects: Mapping[tuple[int, ...], JsonObject]) -> Any:
    """The document with its objects in their places: itself, or items of lists."""
    if () in objects:
        return objects[()]
    items = list(old["items"])
    for index, places in grouped(objects, lambda place: place[0]).items():
        was = items[index]
        now = _with_objects(was, {place[1:]: objects[place] for place in places})
        if (index,) in objects:
            # Without what an item has from its list: `PodList` says what its items are.
            now = {key: value for key, value in now.items() if key in was or key not in ("apiVersion", "kind")}
        items[index] = now
    return {**old, "items": Items(items, range(len(items)))}


def _check(before: str, after: str, wanted: Mapping[SourceText, JsonObject]) -> None:
    """Raises EditRefused unless the new text has exactly the objects that it is to have."""
    new = read_documents(after, "")
    objects = {(where.number, where.items): obj for where, obj in wanted.items()}
    if len(new.documents) != len(objects):
        old = read_documents(before, "").documents
        objects = {(was.written.number, was.written.items): was.obj for was in old} | objects
    if new.problems or len(new.documents) != len(objects):
        raise EditRefused("the edited text could not be read again; if it has YAML anchors, expand them first")
    for now in new.documents:
        where = now.written
        if not same(now.obj, objects.get((where.number, where.items))):
            raise EditRefused("the edited text would mean something else; if it has YAML anchors, expand them first")
