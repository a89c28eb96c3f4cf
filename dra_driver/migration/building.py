"""What kustomize makes of folders, as far as it decides about GPUs: resources, components, patches. Pure.

Who migrates the parts of a tree must come to what migrating the whole would give; `dra_driver.migration.commuting` asks
that of every folder, and this room builds it. Names stay as they are written: prefixes and suffixes only add names by
which patches find an object.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from dra_driver.api.documents import Document, read_documents
from dra_driver.api.meta import JsonObject
from dra_driver.migration.kinds import kind_of
from dra_driver.migration.kustomize import is_kustomization, resolved, target_of
from dra_driver.migration.model import value_at
from dra_driver.migration.patching import CannotFollow, merged, operated
from dra_driver.migration.tree import NotATree, trees, value_of
from dra_driver.migration.unrendered import speaks_of_gpus

type Key = tuple[str, str, str]
"""Of a document: its file, kind and name. Patches that are written into a kustomization are of its file."""

_UNSEEN = ("replacements", "vars", "transformers", "generators", "helmCharts")
"""Fields that can write anything anywhere."""


@dataclass(slots=True, eq=False)
class Built:
    """An object, after the patches so far."""

    obj: JsonObject
    key: Key
    names: set[str]
    """All that it has had."""
    parts: list[Key] = field(default_factory=list)
    """Documents that it is made of: its own first, then patches."""
    unknown: str = ""
    """Why it is not known what it is; empty: it is."""


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """What a patch is put over, and what comes of it."""

    before: JsonObject
    after: JsonObject


@dataclass(frozen=True, slots=True, eq=False)
class _Patch:
    where: str
    target: Mapping[str, Any] | None
    document: Document | None = None
    operations: Sequence[Any] = ()


class Tree:
    """The files of a migration by their names. Files that were not read yet are read when a folder needs them."""

    def __init__(self, texts: Mapping[str, str], read: Mapping[str, tuple[Document, ...]]) -> None:
        self._texts = texts
        self._read = dict(read)
        self._folders = {
            PurePosixPath(file).parent: documents[0]
            for file in texts
            if PurePosixPath(file).stem.lower() == "kustomization"
            and (documents := self._documents(file))
            and is_kustomization(documents[0])
        }
        self.contexts: dict[Key, Context] = {}
        """Of strategic patches: the first object that each is for."""
        self.orphans: set[Key] = set()
        """Strategic patches of objects that are not here, in one of the folders at least."""
        for folder in self.folders:
            self.built(folder)

    @property
    def folders(self) -> tuple[PurePosixPath, ...]:
        """Those that can be built for themselves."""
        return tuple(folder for folder, one in self._folders.items() if one.kind != "Component")

    def after(self, texts: Mapping[str, str]) -> "Tree":
        """The same files with other texts."""
        return Tree(texts, {file: one for file, one in self._read.items() if texts.get(file) == self._texts.get(file)})

    def _documents(self, file: str) -> tuple[Document, ...]:
        if file not in self._read:
            self._read[file] = read_documents(self._texts.get(file, ""), file).documents
        return self._read[file]

    def built(self, folder: PurePosixPath) -> list[Built]:
        return self._applied(folder, [], ())

    def _applied(self, folder: PurePosixPath, found: list[Built], through: tuple[PurePosixPath, ...]) -> list[Built]:
        """Adds what the kustomization of the folder brings, and makes its changes on all of it."""
        document = self._folders.get(folder)
        if document is None or folder in through:
            return found
        through = (*through, folder)
        for name in _strings(document, "resources", "bases"):
            path = resolved(folder / name)
            if path in self._folders:
                found = [*found, *self._applied(path, [], through)]
            else:
                found = [*found, *(_unchanged(one) for one in self._documents(str(path)))]
        for name in _strings(document, "components"):
            found = self._applied(resolved(folder / name), found, through)
        for patch in self._patches(document):
            self._patch(found, patch)
        _rename(found, document)
        if any(speaks_of_gpus(repr(document.obj.get(field))) for field in _UNSEEN):
            for one in found:
                one.unknown = one.unknown or f"{document.file} changes GPUs in other ways than by patches"
        return [one for one in found if one.obj]

    # -- patches

    def _patches(self, document: Document) -> Iterator[_Patch]:
        folder = PurePosixPath(document.file).parent
        for field_ in ("patchesStrategicMerge", "patches", "patchesJson6902"):
            listed = document.obj.get(field_)
            for index, one in enumerate(listed if isinstance(listed, list) else ()):
                target = target_of(document, (field_, index))
                inline = one if isinstance(one, str) and "\n" in one else value_at(one, ("patch",))
                path = one if isinstance(one, str) else value_at(one, ("path",))
                if isinstance(inline, str):
                    yield from _in_text(document.file, inline, target, read_documents(inline, document.file).documents)
                elif isinstance(path, str):
                    file = str(resolved(folder / path))
                    yield from _in_text(file, self._texts.get(file, ""), target, self._documents(file))

    def _patch(self, found: list[Built], patch: _Patch) -> None:
        meant = [one for one in found if one.obj and _is_for(patch, one)]
        if not meant and patch.document is not None and patch.target is None:
            self.orphans.add(key_of(patch.document))
        for one in meant:
            try:
                self._change(one, patch)
            except CannotFollow as error:
                one.unknown = one.unknown or f"the patch in {patch.where} cannot be followed: {error}"

    def _change(self, one: Built, patch: _Patch) -> None:
        if patch.document is None:
            one.obj = operated(one.obj, patch.operations)
            one.parts.append((patch.where, "", ""))
            return
        key = key_of(patch.document)
        one.parts.append(key)
        before = one.obj
        one.obj = merged(before, patch.document.obj) or {}
        if one.obj and not one.unknown:
            self.contexts.setdefault(key, Context(before, one.obj))


def key_of(document: Document) -> Key:
    return document.file, document.kind, document.name


def _unchanged(document: Document) -> Built:
    key = key_of(document)
    return Built(document.obj, key, {document.name}, [key])


def _in_text(file: str, text: str, target: Mapping[str, Any] | None, documents: Sequence[Document]) -> Iterator[_Patch]:
    operations = None if documents else _operations(text)
    if operations is not None:
        yield _Patch(file, target, operations=operations)
    yield from (_Patch(file, target, one) for one in documents)


def _operations(text: str) -> list[Any] | None:
    try:
        value = [value_of(one) for one in trees(text)]
    except NotATree:
        return None
    return value[0] if len(value) == 1 and isinstance(value[0], list) else None


# -- what a patch is for


def _is_for(patch: _Patch, one: Built) -> bool:
    if patch.target is None:
        document = patch.document
        return document is not None and kind_of(document.obj) == kind_of(one.obj) and document.name in one.names
    group, kind = kind_of(one.obj)
    told = patch.target
    return (
        _fits(told.get("group"), group)
        and _fits(told.get("kind"), kind)
        and any(_fits(told.get("name"), name) for name in one.names)
        and _selected(told.get("labelSelector"), one, "labels")
        and _selected(told.get("annotationSelector"), one, "annotations")
    )


def _fits(pattern: object, text: str) -> bool:
    """An expression for all of it; what is not said fits."""
    if not isinstance(pattern, str) or not pattern:
        return True
    try:
        return re.fullmatch(pattern, text) is not None
    except re.error:
        return pattern == text


_TERM = re.compile(r"\s*(!?)([^\s=!,()]+)\s*(?:(==?|!=)\s*([^\s=!,()]*))?\s*")


def _selected(selector: object, one: Built, field_: str) -> bool:
    if not isinstance(selector, str) or not selector.strip():
        return True
    there = value_at(one.obj, ("metadata", field_))
    there = there if isinstance(there, dict) else {}
    terms = [
        re.fullmatch(r"\s*(!?)([^\s=!,()]+)\s*(?:(==?|!=)\s*([^\s=!,()]*))?\s*", term) for term in selector.split(",")
    ]
    if None in terms:
        one.unknown = one.unknown or f"the selector {selector!r} of a patch is not followed"
        return False
    return all(_holds(there, *term.groups()) for term in terms if term is not None)


def _holds(there: Mapping[str, Any], absent: str, key: str, operator: str | None, value: str | None) -> bool:
    if operator is None:
        return (key in there) != bool(absent)
    return (there.get(key) == value) == (operator != "!=")


def _rename(found: Sequence[Built], document: Document) -> None:
    prefix, suffix = (value_at(document.obj, (name,)) or "" for name in ("namePrefix", "nameSuffix"))
    if prefix or suffix:
        for one in found:
            one.names |= {f"{prefix}{name}{suffix}" for name in one.names}


def _strings(document: Document, *fields: str) -> Iterator[str]:
    for name in fields:
        listed = document.obj.get(name)
        yield from (one for one in (listed if isinstance(listed, list) else ()) if isinstance(one, str))
