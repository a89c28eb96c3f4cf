"""The way back: what an object was before is kept in an annotation, and put back from there. Pure.

The annotation holds one entry for each run that changed the object, and each entry what every changed place was and is.
A place that is not any more what the migration made of it was changed by somebody since; then the whole object is left
as it is, and that is said. Templates that the migration wrote and nobody names any more go as well.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from dra_driver.api.documents import Document, normalized, read_documents
from dra_driver.api.meta import JsonObject
from dra_driver.migration.building import operations_in
from dra_driver.migration.changes import ANNOTATION, EditRefused, Items, changed, plain, same
from dra_driver.migration.claims import MANAGED_BY, OWNER
from dra_driver.migration.codes import NOT_EDITABLE
from dra_driver.migration.edit import rewritten
from dra_driver.migration.embedded import manifests_in
from dra_driver.migration.kustomize import is_kustomization, is_names_file, kustomizations, texts_in
from dra_driver.migration.model import (
    Change,
    Edit,
    FileResult,
    Finding,
    Migration,
    Path,
    Put,
    Remove,
    Source,
    finding,
    path_text,
    place_of,
    ref_of,
    value_at,
)
from dra_driver.migration.relisting import names_in_operations, put_back
from dra_driver.migration.splices import Splice, spliced
from dra_driver.migration.tree import header_length

_WHERE: Path = ("metadata", "annotations", ANNOTATION)


def remembered(obj: JsonObject, edits: Sequence[Edit]) -> Edit:
    """The edit that keeps, beside `edits`, what they change."""
    entry = [_entry(path, was, now) for path, was, now in _differences(obj, changed(obj, edits), ())]
    entry += _emptied(obj)
    runs = _runs(obj)
    return Put(_WHERE, json.dumps([*(runs or ()), entry], separators=(",", ":"), ensure_ascii=False))


def remembered_lists(document: Document, entries: Sequence[JsonObject]) -> Edit:
    """Of a kustomization: the edit that keeps what its JSON patches were."""
    return Put(_WHERE, json.dumps([*(_runs(document.obj) or ()), entries], separators=(",", ":"), ensure_ascii=False))


def changes(document: Document, edits: Sequence[Edit]) -> Iterator[Change]:
    """What `edits` make of the document, field by field."""
    for path, was, now in _differences(document.obj, changed(document.obj, edits), ()):
        entry = _entry(path, was, now)
        yield Change(ref_of(document), place_of(document, path), entry.get("was"), entry.get("is"))


def undo(sources: Sequence[Source]) -> Migration:
    """The texts as they were, as far as what they mean goes. A result without text is a file to be deleted."""
    findings: list[Finding] = []
    read = [(source, read_documents(source.text, source.file).documents) for source in sources]
    splices: dict[str, list[Splice]] = {source.file: [] for source in sources}
    lists = _Lists({source.file: source.text for source in sources}, findings)
    named: set[tuple[str | None, str]] = set()
    for source, documents in read:
        back = {document: (*_back(document, findings), *lists.edits(document)) for document in documents}
        splices[source.file] += _carried_out(back, findings)
        named |= {name for document in documents for name in _named_after(document, back[document])}
    for file, text in lists.files.items():
        splices[file] = [Splice(0, len(normalized(text.was)), text.now)]
    named |= {(None, name) for name in lists.names()}
    for source, documents in read:
        splices[source.file] += _unused_templates(source, documents, named)
        if is_names_file(source.file, source.text) and not _named_still(read, named):
            splices[source.file].append(Splice(0, len(normalized(source.text)), ""))
    after = {source.file: spliced(source.text, splices[source.file]) for source in sources}
    for source, documents in read:
        if edits := tuple(_unlisted(documents, after)):
            splices[source.file] += rewritten({documents[0]: edits}).splices
    files = tuple(
        FileResult(source.file, source.text, spliced(source.text, splices[source.file])) for source in sources
    )
    return Migration(files, (), (), (), tuple(findings))


def _unlisted(documents: Sequence[Document], after: Mapping[str, str]) -> Iterator[Edit]:
    """Of a kustomization without other changes: files that are empty now."""
    for one in kustomizations(documents[:1]):
        for listing, file in (("resources", one.claims_file), ("configurations", one.names_file)):
            listed = one.document.obj.get(listing)
            for index, name in enumerate(listed if isinstance(listed, list) else ()):
                if name == PurePosixPath(file).name and after.get(file) == "":
                    yield Remove((listing, index))


# -- what is kept


def _emptied(obj: JsonObject) -> Iterator[JsonObject]:
    """What was there without anything in it, and goes when the annotation does."""
    for path in (_WHERE[:1], _WHERE[:2]):
        parent = value_at(obj, path[:-1])
        if isinstance(parent, dict) and path[-1] in parent and not parent[str(path[-1])]:
            yield _entry(path, parent[str(path[-1])], _ABSENT)
            return


class _Absent:
    """Instead of a value where there is none."""


_ABSENT = _Absent()


def _entry(path: Path, was: Any, now: Any) -> JsonObject:
    entry: JsonObject = {"at": list(path)}
    if was is not _ABSENT:
        entry["was"] = was
    if now is not _ABSENT:
        entry["is"] = now
    return entry


def _differences(was: Any, now: Any, path: Path) -> Iterator[tuple[Path, Any, Any]]:
    """The places that differ, in the new object's paths. A list that lost an item differs as a whole."""
    if same(was, now):
        return
    if was and isinstance(was, dict) and isinstance(now, dict):
        for key in {**was, **now}:
            yield from _differences(was.get(key, _ABSENT), now.get(key, _ABSENT), (*path, key))
    elif was and isinstance(was, list) and isinstance(now, Items) and _kept_all(was, now):
        for index, value in enumerate(now):
            yield from _differences(was[index] if index < len(was) else _ABSENT, value, (*path, index))
    else:
        yield path, was, now


def _kept_all(was: list[Any], now: Items) -> bool:
    return now.origin[: len(was)] == tuple(range(len(was)))


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


# -- lists of operations, which kustomizations remember


@dataclass(frozen=True, slots=True)
class _ListFile:
    was: str
    now: str


@dataclass(frozen=True, slots=True)
class _Lists:
    """JSON patches that are put back: those in kustomizations as edits, those in files of their own in `files`."""

    texts: Mapping[str, str]
    findings: list[Finding]
    files: dict[str, _ListFile] = field(default_factory=dict)

    def edits(self, document: Document) -> Iterator[Edit]:
        if not is_kustomization(document) or (runs := _runs(document.obj)) is None:
            return
        found = put_back(document, runs, self.texts, self.findings)
        if found is None:
            return
        yield Remove(_WHERE)
        for one in found:
            if one.file:
                self.files[one.file] = _ListFile(self.texts[one.file], one.value)
            else:
                yield Put(one.at, one.value) if one.value is not None else Remove(one.at)

    def names(self) -> Iterator[str]:
        """Of templates, in lists of files."""
        for file, text in self.texts.items():
            now = self.files[file].now if file in self.files else text
            if "resourceClaim" in now:
                yield from names_in_operations(operations_in(now) or ())


# -- how it is put back


def _back(document: Document, findings: list[Finding]) -> Iterator[Edit]:
    """Edits in the object as it is now."""
    for path, text in (*texts_in(document), *manifests_in(document)):
        inner = undo([Source(document.file, text)])
        findings += inner.findings
        if inner.changed:
            yield Put(path, inner.files[0].after)
    if value_at(document.obj, _WHERE) is None or is_kustomization(document):
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
        for index, (one, other) in enumerate(zip(now, old, strict=True)):
            yield from _edits_to(one, other, (*path, index))
    else:
        yield Put(path, plain(old))


def _carried_out(back: dict[Document, tuple[Edit, ...]], findings: list[Finding]) -> Iterator[Splice]:
    by_text: dict[int, dict[Document, tuple[Edit, ...]]] = {}
    for document, edits in back.items():
        if edits:
            by_text.setdefault(document.written.start, {})[document] = edits
    for some in by_text.values():
        try:
            yield from rewritten(some).splices
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
        for one in value.values():
            yield from _template_names(one)
    elif isinstance(value, list):
        for one in value:
            yield from _template_names(one)
    elif isinstance(value, str) and ("resourceClaimTemplateName" in value or "resourceClaimName" in value):
        for document in read_documents(value, "").documents:
            yield from _template_names(document.obj)
        yield from names_in_operations(operations_in(value) or ())


def _unused_templates(
    source: Source, documents: Iterable[Document], named: set[tuple[str | None, str]]
) -> Iterator[Splice]:
    """Templates that stand one after the other were put there together, with the lines that divide them."""
    by_text: dict[int, list[Document]] = {}
    for document in documents:
        by_text.setdefault(document.written.start, []).append(document)
    plain = normalized(source.text)
    open_until = -1
    for start, together in by_text.items():
        document = together[0]
        # Operations name templates without their namespace.
        used = {(document.namespace, document.name), (None, document.name)} & named
        unused = _is_ours(document) and not used
        if len(together) > 1 or document.written.items or not unused:
            continue
        text = document.written.text
        end = start + len(text)
        follows = open_until > start
        begins = not text.startswith("---") or follows
        past = end + 4 if begins and plain.startswith("---\n", end) else end
        yield Splice(open_until if follows else start + header_length(text), past, "")
        open_until = past if begins else -1


def _named_still(read: Iterable[tuple[Source, Iterable[Document]]], named: set[tuple[str | None, str]]) -> bool:
    """Whether pods go on naming templates that the migration wrote."""
    return any((one.namespace, one.name) in named for _, documents in read for one in documents if _is_ours(one))


def _is_ours(document: Document) -> bool:
    labels = value_at(document.obj, ("metadata", "labels"))
    return document.kind in _WRITTEN and isinstance(labels, dict) and labels.get(MANAGED_BY) == OWNER


_WRITTEN = ("ResourceClaimTemplate", "ResourceClaim", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
"""Kinds of objects that the migration writes beside others."""
