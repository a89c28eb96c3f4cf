"""What kustomize makes of folders, as far as it decides about GPUs: resources, components, patches. Pure.

Who migrates the parts of a tree must come to what migrating the whole would give; `dra_driver.migration.commuting` asks
that of every folder, and this room builds it. Names stay as they are written: prefixes and suffixes only add names by
which patches find an object.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from dra_driver.api.documents import Document, normalized, read_documents
from dra_driver.api.meta import JsonObject
from dra_driver.migration.kind_table import kind_of
from dra_driver.migration.kustomize import is_kustomization, resolved, target_of
from dra_driver.migration.model import Path, path_text, value_at
from dra_driver.migration.patching import CannotFollow, merged, operated
from dra_driver.migration.replacing import NOT_KNOWN, has_pods, replaced, source_value
from dra_driver.migration.selecting import Built, Key, give, is_chosen, is_named, is_of_one, is_target, rename
from dra_driver.migration.tree import NotATree, trees, value_of
from dra_driver.migration.unrendered import speaks_of_gpus
from dra_driver.migration.unseen import Unseen, brings


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """What a patch is put over, and what comes of it."""

    before: JsonObject
    after: JsonObject


@dataclass(frozen=True, slots=True, eq=False)
class Operated:
    """An object that a JSON patch is for: what it is before each operation, and at last behind all of them."""

    states: tuple[JsonObject, ...]
    parts: tuple[Key, ...]
    """Documents and JSON patches that it was made of until then."""


@dataclass(frozen=True, slots=True, eq=False)
class Copied:
    """What a replacement made of an object."""

    document: Document
    """The kustomization."""
    source: str
    """The path that it copied."""
    value: Any
    paths: tuple[str, ...]
    """Into which."""
    before: JsonObject
    after: JsonObject
    parts: tuple[Key, ...]
    """Of the object, and of the one whose value it was."""


@dataclass(slots=True, eq=False)
class JsonPatch:
    """A list of operations in the files, and all that it is for in the folders."""

    key: Key
    operations: Sequence[Any]
    text: str
    """That holds the list."""
    users: dict[str, tuple[Document, Path]] = field(default_factory=dict)
    """By their files: kustomizations that have it, and the text or the name of its file in there."""
    objects: list[Operated] = field(default_factory=list)
    entries: set[tuple[str, Path]] = field(default_factory=set)
    """Of kustomizations, by their files: where they have it."""
    beyond: bool = False
    """Whether it is for objects, too, of which it is not known what they are."""

    @property
    def file(self) -> str:
        return self.key[0]

    @property
    def inline(self) -> bool:
        """Whether it is written into its kustomization."""
        return self.file in self.users


@dataclass(slots=True, eq=False)
class Entry:
    """Of a kustomization: one of its patches that says what it is for."""

    document: Document
    at: Path
    target: Mapping[str, Any]
    kinds: set[str] = field(default_factory=set)
    """Of all that it is for."""


@dataclass(frozen=True, slots=True, eq=False)
class Unfollowed:
    """What a kustomization does to objects otherwise than by patches, and what is not known."""

    document: Document
    why: str
    parts: set[Key] = field(default_factory=set)
    """Of these objects."""


@dataclass(frozen=True, slots=True, eq=False)
class _Patch:
    where: str
    target: Mapping[str, Any] | None
    entry: Entry | None = None
    document: Document | None = None
    operations: JsonPatch | None = None

    def is_for(self, one: Built) -> bool:
        if self.target is not None:
            return is_chosen(self.target, one)
        return self.document is not None and is_named(self.document, one)

    @property
    def speaks_of_gpus(self) -> bool:
        document = self.document.obj if self.document is not None else None
        return speaks_of_gpus(f"{self.operations.operations if self.operations is not None else document}")


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
        self.entries: dict[tuple[str, Path], Entry] = {}
        self.json_patches: dict[Key, JsonPatch] = {}
        self._unseen = Unseen(texts)
        self._hidden: dict[PurePosixPath, str | None] = {}
        self._schema: str | None = None
        """While a folder is built: the kustomization that brings a schema."""
        self.unfollowed: dict[tuple[str, Path], Unfollowed] = {}
        """By kustomizations, and places in them."""
        self.copied: dict[tuple[str, Path], list[Copied]] = {}
        """By kustomizations, and places in them."""
        self.users: dict[Key, str] = {}
        """Of strategic patches: a kustomization that has it."""
        self.replacing: set[str] = set()
        """Files of replacements."""
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
        self._schema = self._schema_of(folder)
        return self._applied(folder, [], ())

    def _schema_of(self, folder: PurePosixPath) -> str | None:
        """By which kustomization lists are merged in all that is built with the folder; None: as kustomize knows them.

        The one that is built says it, or else the first of those that it includes. Source: Run and accumulateDirectory
        of kustomize, and SetSchema of its openapi.
        """
        document = self._folders.get(folder)
        if document is not None and value_at(document.obj, ("openapi", "version")):
            return None
        through = self._included(folder, ())
        return next((one.file for one in through if value_at(one.obj, ("openapi", "path"))), None)

    def _included(self, folder: PurePosixPath, through: tuple[PurePosixPath, ...]) -> Iterator[Document]:
        """The kustomization of the folder, and all that are built with it."""
        document = self._folders.get(folder)
        if document is None or folder in through:
            return
        yield document
        for name in _strings(document, "resources", "bases", "components"):
            yield from self._included(resolved(folder / name), (*through, folder))

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
            self._patch(found, patch, folder)
        rename(found, document)
        give(found, document)
        for at, where, told in self._replacements(document):
            self._replace([one for one in found if one.obj], document, at, where, told)
        for at, why in self._unseen.changes(document):
            self._cannot_follow(found, document, at, f"{document.file} {path_text(at)} {why}")
        return [one for one in found if one.obj]

    def _cannot_follow(self, found: Sequence[Built], document: Document, at: Path, why: str) -> None:
        for one in found:
            one.unknown = one.unknown or why
            self.unfollowed.setdefault((document.file, at), Unfollowed(document, why)).parts.update(one.parts)

    # -- replacements

    def _replacements(self, document: Document) -> Iterator[tuple[Path, str, JsonObject]]:
        """With where they are: in the kustomization, and for people."""
        listed = document.obj.get("replacements")
        for index, one in enumerate(listed if isinstance(listed, list) else ()):
            at: Path = ("replacements", index)
            path = value_at(one, ("path",))
            if not isinstance(path, str):
                yield at, f"{document.file} {path_text(at)}", one if isinstance(one, dict) else {}
                continue
            file = str(resolved(PurePosixPath(document.file).parent / path))
            self.replacing.add(file)
            for told in _values(self._texts.get(file, "")):
                yield at, file, told

    def _replace(self, found: Sequence[Built], document: Document, at: Path, where: str, told: JsonObject) -> None:
        source = told.get("source")
        source = source if isinstance(source, dict) else {}
        of = [one for one in found if is_chosen(source, one, exactly=True)]
        known = len(of) == 1 and not of[0].unknown
        targets = told.get("targets")
        for target in targets if isinstance(targets, list) else ():
            for one in [one for one in found if is_target(target, one)]:
                try:
                    value = told.get("sourceValue", source_value(of[0].obj, source) if known else NOT_KNOWN)
                    before, one.obj = one.obj, replaced(one.obj, target, value)
                except CannotFollow as error:
                    self._cannot_follow([one], document, at, f"the replacement in {where} cannot be followed: {error}")
                    continue
                one.replaced.add(where)
                if of and has_pods(source):
                    one.sources |= {*of[0].parts, *of[0].sources} - {*one.parts}
                if not one.unknown:
                    paths = tuple(path for path in target.get("fieldPaths") or () if isinstance(path, str))
                    parts = (*one.parts, *one.sources)
                    told_path = f"{source.get('fieldPath') or 'metadata.name'}"
                    made = Copied(document, told_path, value, paths, before, one.obj, parts)
                    self.copied.setdefault((document.file, at), []).append(made)

    # -- patches

    def _patches(self, document: Document) -> Iterator[_Patch]:
        folder = PurePosixPath(document.file).parent
        for field_ in ("patchesStrategicMerge", "patches", "patchesJson6902"):
            listed = document.obj.get(field_)
            for index, one in enumerate(listed if isinstance(listed, list) else ()):
                target = target_of(document, (field_, index))
                entry = Entry(document, (field_, index, "target"), target) if target is not None else None
                if entry is not None:
                    entry = self.entries.setdefault((document.file, entry.at), entry)
                inline = one if isinstance(one, str) and "\n" in one else value_at(one, ("patch",))
                path = one if isinstance(one, str) else value_at(one, ("path",))
                if isinstance(inline, str):
                    at: Path = (field_, index) if inline is one else (field_, index, "patch")
                    documents = read_documents(inline, document.file).documents
                    key = (document.file, "", path_text(at))
                    yield from self._in_text(key, inline, entry, documents, (document, at))
                elif isinstance(path, str):
                    file = str(resolved(folder / path))
                    text, documents = self._texts.get(file, ""), self._documents(file)
                    user = (document, (field_, index) if one is path else (field_, index, "path"))
                    yield from self._in_text((file, "", ""), text, entry, documents, user)

    def _in_text(
        self,
        key: Key,
        text: str,
        entry: Entry | None,
        documents: Sequence[Document],
        user: tuple[Document, Path],
    ) -> Iterator[_Patch]:
        target = entry.target if entry is not None else None
        operations = None if documents else operations_in(text)
        if operations is not None:
            patch = self.json_patches.setdefault(key, JsonPatch(key, operations, text))
            patch.users[user[0].file] = user
            patch.entries.add((user[0].file, user[1]))
            yield _Patch(key[0], target, entry, operations=patch)
        for one in documents:
            self.users.setdefault(key_of(one), user[0].file)
            yield _Patch(key[0], target, entry, one)

    def _patch(self, found: list[Built], patch: _Patch, folder: PurePosixPath) -> None:
        meant = [one for one in found if one.obj and patch.is_for(one)]
        if not meant and patch.document is not None and patch.target is None:
            self.orphans.add(key_of(patch.document))
        if patch.entry is not None:
            patch.entry.kinds |= {kind_of(one.obj)[1] for one in meant}
        for one in meant:
            try:
                self._change(one, patch)
            except CannotFollow as error:
                one.unknown = one.unknown or f"the patch in {patch.where} cannot be followed: {error}"
            if one.unknown and patch.operations is not None:
                patch.operations.beyond = True
            one.unknown = one.unknown or self._not_alone(patch, folder) or ""

    def _not_alone(self, patch: _Patch, folder: PurePosixPath) -> str | None:
        """Why a patch cannot become one of claims: it may be for objects that are not here, too."""
        if patch.entry is None or not patch.speaks_of_gpus or is_of_one(patch.entry.target):
            return None
        if folder not in self._hidden:
            self._hidden[folder] = next(self._brought(folder, ()), None)
        hidden = self._hidden[folder]
        where = f"{patch.entry.document.file} {path_text(patch.entry.at[:-1])}"
        return hidden and f"{where} is for any objects that fit, and what {hidden} brings is not among the files"

    def _brought(self, folder: PurePosixPath, through: tuple[PurePosixPath, ...]) -> Iterator[str]:
        """By what the folder has objects that are not among the files."""
        document = self._folders.get(folder)
        if document is None or folder in through:
            return
        yield from brings(document, lambda one: one in self._texts or PurePosixPath(one) in self._folders)
        for name in _strings(document, "resources", "bases", "components"):
            yield from self._brought(resolved(folder / name), (*through, folder))

    def _change(self, one: Built, patch: _Patch) -> None:
        if patch.operations is not None:
            one.parts.append(patch.operations.key)
            states = tuple(operated(one.obj, patch.operations.operations))
            if not one.unknown:
                patch.operations.objects.append(Operated(states, tuple(one.parts)))
            one.obj = states[-1]
            return
        if patch.document is None:
            return
        key = key_of(patch.document)
        one.parts.append(key)
        before = one.obj
        if self._schema is not None and patch.speaks_of_gpus:
            raise CannotFollow(
                f"{self._schema} gives kustomize a schema of its own (openapi), by which lists are merged"
            )
        one.obj = merged(before, patch.document.obj) or {}
        if one.obj and not one.unknown:
            self.contexts.setdefault(key, Context(before, one.obj))


def key_of(document: Document) -> Key:
    return document.file, document.kind, document.name


def _unchanged(document: Document) -> Built:
    key = key_of(document)
    return Built(document.obj, key, {document.name}, [key])


def operations_in(text: str) -> list[Any] | None:
    """Of a JSON patch; None: it is none."""
    try:
        value = [value_of(one) for one in trees(normalized(text))]
    except NotATree:
        return None
    return value[0] if len(value) == 1 and isinstance(value[0], list) else None


def _values(text: str) -> Iterator[JsonObject]:
    """Maps in a file: documents, or items of a list."""
    try:
        found = [value_of(one) for one in trees(normalized(text))]
    except NotATree:
        return
    for some in found:
        yield from (one for one in (some if isinstance(some, list) else [some]) if isinstance(one, dict))


def _strings(document: Document, *fields: str) -> Iterator[str]:
    for name in fields:
        listed = document.obj.get(name)
        yield from (one for one in (listed if isinstance(listed, list) else ()) if isinstance(one, str))
