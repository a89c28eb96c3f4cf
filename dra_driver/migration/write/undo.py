"""The way back: what an object was before is kept in an annotation, and put back from there. Pure.

The annotation holds one entry for each run that changed the object, and each entry what every changed place was and is.
A place that is not any more what the migration made of it was changed by somebody since; then the whole object is left
as it is, and that is said. Templates that the migration wrote and nobody names any more go as well.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dra_driver.api.documents import Document, normalized, read_documents
from dra_driver.api.meta import JsonObject
from dra_driver.migration.claims.templates import MANAGED_BY, OWNER
from dra_driver.migration.codes import NOT_EDITABLE
from dra_driver.migration.model import (
    Edit,
    FieldChange,
    FileResult,
    ManifestText,
    Migration,
    MigrationFinding,
    Path,
    Put,
    Remove,
    finding,
    path_text,
    place_of,
    ref_of,
    value_at,
)
from dra_driver.migration.read.kinds import embedded_in
from dra_driver.migration.read.unrendered import manifests_in
from dra_driver.migration.text.changes import ABSENT, ANNOTATION, EditRefused, Items, changed, differences, plain, same
from dra_driver.migration.text.edit import rewritten
from dra_driver.migration.text.tree import Splice, header_length, spliced

_WHERE: Path = ("metadata", "annotations", ANNOTATION)


def remembered(obj: JsonObject, edits: Sequence[Edit]) -> Edit:
    """The edit that keeps, beside `edits`, what they change."""
    entry = [_entry(path, was, now) for path, was, now in differences(obj, changed(obj, edits))]
    entry += _emptied(obj)
    runs = _runs(obj)
    return Put(_WHERE, json.dumps([*(runs or ()), entry], separators=(",", ":"), ensure_ascii=False))


def changes(document: Document, edits: Sequence[Edit]) -> Iterator[FieldChange]:
    """What `edits` make of the document, field by field."""
    for path, was, now in differences(document.obj, changed(document.obj, edits)):
        entry = _entry(path, was, now)
        yield FieldChange(ref_of(document), place_of(document, path), entry.get("was"), entry.get("is"))


def undo(sources: Sequence[ManifestText]) -> Migration:
    """The texts as they were, as far as what they mean goes. A result without text is a file to be deleted."""
    findings: list[MigrationFinding] = []
    read = [(source, read_documents(source.text, source.file).documents) for source in sources]
    splices: dict[str, list[Splice]] = {source.file: [] for source in sources}
    named: set[tuple[str | None, str]] = set()
    for source, documents in read:
        back = {document: tuple(_back(document, findings)) for document in documents}
        splices[source.file] += _carried_out(back, findings)
        named |= {name for document in documents for name in _named_after(document, back[document])}
    for source, documents in read:
        splices[source.file] += _unused_templates(source, documents, named)
    files = tuple(
        FileResult(source.file, source.text, spliced(source.text, splices[source.file])) for source in sources
    )
    return Migration(files, (), (), (), tuple(findings))


# -- what is kept


def _emptied(obj: JsonObject) -> Iterator[JsonObject]:
    """What was there without anything in it, and goes when the annotation does."""
    for path in (_WHERE[:1], _WHERE[:2]):
        parent = value_at(obj, path[:-1])
        if isinstance(parent, dict) and path[-1] in parent and not parent[str(path[-1])]:
            yield _entry(path, parent[str(path[-1])], ABSENT)
            return


def _entry(path: Path, was: Any, now: Any) -> JsonObject:
    entry: JsonObject = {"at": list(path)}
    if was is not ABSENT:
        entry["was"] = was
    if now is not ABSENT:
        entry["is"] = now
    return entry


def _runs(obj: JsonObject) -> list[list[JsonObject]] | None:
    """None where there is no annotation that can be read."""
    text = value_at(obj, _WHERE)
    if not isinstance(text, str):
        return None
    try:
        runs = json.loads(text)
    except ValueError:
        return None
    whole = isinstance(runs, list) and all(isinstance(run, list) and all(map(_is_entry, run)) for run in runs)
    return runs if whole else None


def _is_entry(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("at"), list) and bool({"was", "is"} & value.keys())


# -- how it is put back


def _back(document: Document, findings: list[MigrationFinding]) -> Iterator[Edit]:
    """Edits in the object as it is now."""
    for path, text in (*embedded_in(document), *manifests_in(document)):
        inner = undo([ManifestText(document.file, text)])
        findings += inner.findings
        if inner.changed:
            yield Put(path, inner.files[0].after)
    if value_at(document.obj, _WHERE) is None:
        return
    runs = _runs(document.obj)
    if runs is None:
        findings.append(finding(NOT_EDITABLE, document, _WHERE, f"{ANNOTATION} is not what the migration wrote"))
        return
    old: Any = changed(document.obj, [Remove(_WHERE)])
    for run in reversed(runs):
        changed_since = next((entry for entry in run if not _still(old, entry)), None)
        if changed_since is not None:
            path = tuple(changed_since["at"])
            message = f"{path_text(path)} was changed after the migration, so that nothing of the object is put back"
            findings.append(finding(NOT_EDITABLE, document, path, message))
            return
        old = changed(old, [_restored(entry) for entry in run])
    yield from _edits_to(document.obj, old, ())


def _still(obj: Any, entry: JsonObject) -> bool:
    path = tuple(entry["at"])
    parent = value_at(obj, path[:-1])
    last = path[-1]
    there = last in parent if isinstance(parent, dict) else isinstance(parent, list) and last < len(parent)
    return same(value_at(obj, path), entry["is"]) if "is" in entry else not there


def _restored(entry: JsonObject) -> Edit:
    path = tuple(entry["at"])
    return Put(path, entry["was"]) if "was" in entry else Remove(path)


def _edits_to(now: Any, old: Any, path: Path) -> Iterator[Edit]:
    """What makes `old` of the object as it is now."""
    if same(now, old):
        return
    if old and isinstance(now, dict) and isinstance(old, dict):
        for key in {**now, **old}:
            if key not in old:
                yield Remove((*path, key))
            elif key not in now:
                yield Put((*path, key), plain(old[key]))
            else:
                yield from _edits_to(now[key], old[key], (*path, key))
    elif old and isinstance(now, list) and isinstance(old, Items) and None not in old.origin:
        for index in range(len(now)):
            if index not in old.origin:
                yield Remove((*path, index))
        for index, was in enumerate(old.origin):
            if was is not None:
                yield from _edits_to(now[was], old[index], (*path, was))
    elif isinstance(now, list) and isinstance(old, list) and len(now) == len(old):
        for index, (item, other) in enumerate(zip(now, old, strict=True)):
            yield from _edits_to(item, other, (*path, index))
    else:
        yield Put(path, plain(old))


def _carried_out(back: dict[Document, tuple[Edit, ...]], findings: list[MigrationFinding]) -> Iterator[Splice]:
    by_text: dict[int, dict[Document, tuple[Edit, ...]]] = {}
    for document, edits in back.items():
        if edits:
            by_text.setdefault(document.written.start, {})[document] = edits
    for some in by_text.values():
        try:
            yield from rewritten(some)
        except EditRefused as error:
            for document in some:
                findings.append(finding(NOT_EDITABLE, document, (), f"nothing was put back: {error}"))
                back[document] = ()


# -- templates that are not needed any more


def _named_after(document: Document, edits: Sequence[Edit]) -> Iterator[tuple[str | None, str]]:
    for name in _template_names(changed(document.obj, edits)):
        yield document.namespace, name


def _template_names(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name in (value.get("resourceClaimTemplateName"), value.get("resourceClaimName")):
            if isinstance(name, str):
                yield name
        for item in value.values():
            yield from _template_names(item)
    elif isinstance(value, list):
        for item in value:
            yield from _template_names(item)
    elif isinstance(value, str) and ("resourceClaimTemplateName" in value or "resourceClaimName" in value):
        for document in read_documents(value, "").documents:
            yield from _template_names(document.obj)


def _unused_templates(
    source: ManifestText, documents: Iterable[Document], named: set[tuple[str | None, str]]
) -> Iterator[Splice]:
    """Templates that stand one after the other were put there together, with the lines that divide them."""
    by_text: dict[int, list[Document]] = {}
    for document in documents:
        by_text.setdefault(document.written.start, []).append(document)
    plain = normalized(source.text)
    open_until = -1
    for start, together in by_text.items():
        document = together[0]
        unused = _is_ours(document) and (document.namespace, document.name) not in named
        if len(together) > 1 or document.written.items or not unused:
            continue
        text = document.written.text
        end = start + len(text)
        follows = open_until > start
        begins = not text.startswith("---") or follows
        past = end + 4 if begins and plain.startswith("---\n", end) else end
        yield Splice(open_until if follows else start + header_length(text), past, "")
        open_until = past if begins else -1


def _is_ours(document: Document) -> bool:
    labels = value_at(document.obj, ("metadata", "labels"))
    return document.kind in _WRITTEN and isinstance(labels, dict) and labels.get(MANAGED_BY) == OWNER


_WRITTEN = ("ResourceClaimTemplate", "ResourceClaim")
"""Kinds of objects that the migration writes beside others."""
