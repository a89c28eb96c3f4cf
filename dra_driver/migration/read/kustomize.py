"""What kustomizations change in the objects that they build, as far as it decides where an object is migrated. Pure.

Kustomize is not emulated. An object is migrated in its file as long as no kustomization changes a field that the
migration changes, too. Otherwise it stays unchanged, and a finding names the commands: render, then migrate. When in
doubt, an entry of a kustomization counts as changing the field.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

import yaml

from dra_driver.api.documents import Document, read_documents
from dra_driver.api.manifest_nodes import BadDocument, Text, Values, composed, normalized
from dra_driver.api.untyped import Path, list_in, map_in, path_text, value_at
from dra_driver.migration.read.kind_table import kind_of
from dra_driver.migration.read.unrendered import speaks_of_gpus

_GROUP = "kustomize.config.k8s.io/"
_NAMES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
_PATCH_FIELDS = ("patches", "patchesStrategicMerge", "patchesJson6902")

type Pattern = tuple[str, ...]
"""A path whose indexes are `*`, which fits anything. Empty: everything in the object."""

_ANYTHING: tuple[Pattern, ...] = ((),)
_MERGED_LISTS = ("containers", "initContainers", "ephemeralContainers", "env", "volumes", "volumeMounts", "ports")
"""Lists of pods that kustomize merges item by item, in the kinds of Kubernetes itself. It replaces all others."""
_BUILT_IN = ("", "apps", "batch")


def is_kustomization_file(file: str) -> bool:
    return PurePosixPath(file).name in _NAMES


def is_kustomization(document: Document) -> bool:
    named = is_kustomization_file(document.file)
    if not document.kind:
        return named
    of_kustomize = document.api_version.startswith(_GROUP) or (named and not document.api_version)
    return document.kind in ("Kustomization", "Component") and of_kustomize


@dataclass(frozen=True, slots=True, eq=False)
class OverlayChange:
    """One entry of a kustomization that changes objects."""

    kustomization: Document
    at: Path
    what: str
    """What it is, for messages."""
    commands: str
    """That render the result, and migrate it."""
    scope: frozenset[str]
    """Files of which it may change objects."""
    target: Mapping[str, Any]
    """`kind` and `name` of these, as expressions; what is missing fits all."""
    paths: tuple[Pattern, ...]
    """What it changes or reads."""
    merges: bool = False
    """It makes maps that do not exist, and leaves their other keys."""
    about_gpus: bool = False

    @property
    def where(self) -> str:
        return f"{self.kustomization.file} {path_text(self.at)}"

    def is_for(self, document: Document) -> bool:
        return (
            document.file in self.scope
            and _fits(self.target.get("kind"), document.kind)
            and _fits(self.target.get("name"), document.name)
        )

    def meets(self, changed: Iterable[Path]) -> str | None:
        """The first of the changed fields of an object that it touches, too."""
        for path in changed:
            if self.about_gpus or any(self._overlaps(pattern, path) for pattern in self.paths):
                return path_text(path)
        return None

    def _overlaps(self, pattern: Pattern, path: Path) -> bool:
        if self.merges and len(pattern) > len(path):
            return False
        return all(part in ("*", other) or isinstance(other, int) for part, other in zip(pattern, path, strict=False))


@dataclass(frozen=True, slots=True, eq=False)
class Overlays:
    """What all kustomizations change."""

    changes: tuple[OverlayChange, ...] = ()
    patches: frozenset[str] = frozenset()
    """Files with patches or replacements, which are no objects."""

    def of(self, document: Document) -> Iterator[OverlayChange]:
        return (change for change in self.changes if change.is_for(document))


def overlays(documents: Sequence[Document], files: Mapping[str, str]) -> Overlays:
    """`files` are all texts by their names."""
    folders = _Folders([document for document in documents if is_kustomization(document)])
    readers = [_Reader(document, folders, files) for document in folders.all]
    return Overlays(
        tuple(change for reader in readers for change in reader.changes()),
        frozenset(file for document in folders.all for file in _patch_files(document)),
    )


# -- what is built together


def _entries(document: Document, field: str) -> list[object]:
    """Of a field that holds a list; empty if it holds something else."""
    return list_in(document.obj.get(field))


def _file(document: Document, name: str) -> str:
    """A file that the kustomization names, as the sources name it: without `..`."""
    parts: list[str] = []
    for part in (PurePosixPath(document.file).parent / name).parts:
        if part == ".." and parts and parts[-1] not in ("..", "/"):
            parts.pop()
        elif part != ".":
            parts.append(part)
    return str(PurePosixPath(*parts))


def _patch_files(document: Document) -> Iterator[str]:
    for field in (*_PATCH_FIELDS, "replacements"):
        for entry in _entries(document, field):
            path = entry.get("path") if isinstance(entry, dict) else entry
            if isinstance(path, str) and "\n" not in path:
                yield _file(document, path)


def _text_files(document: Document) -> Iterator[tuple[str, str]]:
    """Files that become values of ConfigMaps and Secrets, with the field. An entry is a file, or a key and a file."""
    for field in ("configMapGenerator", "secretGenerator"):
        for entry in _entries(document, field):
            for file in list_in(value_at(entry, ("files",))):
                if isinstance(file, str):
                    yield field, _file(document, file.rpartition("=")[2])


class _Folders:
    """All kustomizations. What each builds is worked out once, because trees can have hundreds."""

    def __init__(self, kustomizations: Sequence[Document]) -> None:
        self.all = kustomizations
        self._folder = {document: str(PurePosixPath(document.file).parent) for document in kustomizations}

    def scope(self, kustomization: Document) -> frozenset[str]:
        """Files of which there may be objects that it changes. A component changes all that it is built with."""
        if kustomization.kind == "Component":
            return frozenset().union(*(files for files in self._files.values() if kustomization.file in files))
        return self._files[kustomization]

    def tops(self, kustomization: Document) -> list[str]:
        """Folders that build it, and that no other folder builds on."""
        users = [
            self._folder[user]
            for user, files in self._files.items()
            if kustomization.file in files and user.kind != "Component"
        ]
        built_on = {folder for folders in self._below.values() for folder in folders}
        return [folder for folder in users if folder not in built_on] or users or [self._folder[kustomization]]

    @cached_property
    def _below(self) -> dict[str, list[str]]:
        """Of each folder what it names: folders and files."""
        return {
            self._folder[document]: [
                _file(document, name)
                for field in ("resources", "bases", "components")
                for name in _entries(document, field)
                if isinstance(name, str) and ":" not in name
            ]
            for document in self.all
        }

    @cached_property
    def _files(self) -> dict[Document, frozenset[str]]:
        """Of each kustomization: all files that it builds something of."""
        own: dict[str, set[str]] = {}
        for document in self.all:
            files = own.setdefault(self._folder[document], set())
            files |= {document.file, *_patch_files(document), *self._below[self._folder[document]]}
            files |= {file for _, file in _text_files(document)}
        result = {}
        for document in self.all:
            folders: dict[str, None] = {}
            pending = [self._folder[document]]
            while pending:
                if (folder := pending.pop()) not in folders:
                    folders[folder] = None
                    pending += self._below.get(folder, ())
            result[document] = frozenset().union(*(own.get(folder, ()) for folder in folders))
        return result


# -- what entries change


@dataclass(frozen=True, slots=True, eq=False)
class _Reader:
    """Of one kustomization."""

    kustomization: Document
    folders: _Folders
    files: Mapping[str, str]

    def changes(self) -> Iterator[OverlayChange]:
        for name in _PATCH_FIELDS:
            for index, entry in enumerate(_entries(self.kustomization, name)):
                yield from self._patch((name, index), entry)
        for index, entry in enumerate(_entries(self.kustomization, "replacements")):
            yield from self._replacement(("replacements", index), entry)
        for index, entry in enumerate(_entries(self.kustomization, "vars")):
            yield self._copy(("vars", index), value_at(entry, ("objref",)))
        yield from self._of_everything()

    def _of_everything(self) -> Iterator[OverlayChange]:
        """What is for all objects, and may change anything."""
        for name, what in _FOR_ALL:
            if self.kustomization.obj.get(name):
                yield self._change((name,), what, {}, _ANYTHING)
        for name in ("helmCharts", "generators"):
            # Their results are not among the files: only what the kustomization itself says of GPUs is known.
            if speaks_of_gpus(f"{self.kustomization.obj.get(name)}"):
                yield self._change((name,), "which brings objects that ask for GPUs", {}, (), about_gpus=True)
        for listed in _entries(self.kustomization, "resources"):
            file = _file(self.kustomization, listed) if isinstance(listed, str) else ""
            if self.files.get(file, "").lstrip().startswith("{"):
                what = f"which lists {file}: a template cannot be in a JSON file"
                yield self._change(("resources",), what, {}, _ANYTHING, scope=frozenset((file,)))
        for field, file in _text_files(self.kustomization):
            what = f"which makes a text in a ConfigMap or Secret of {file}"
            yield self._change((field,), what, {}, _ANYTHING, scope=frozenset((file,)))

    def _change(
        self,
        at: Path,
        what: str,
        target: Mapping[str, Any],
        paths: Iterable[Pattern],
        *,
        scope: frozenset[str] | None = None,
        merges: bool = False,
        about_gpus: bool = False,
    ) -> OverlayChange:
        if _finds_templates(target) and what.startswith("a "):
            what, target, paths = f"{what} whose target also matches ResourceClaimTemplates", {}, _ANYTHING
        commands = (
            f"`kustomize build {folder} > rendered.yaml && dractl migrate rendered.yaml`"
            for folder in self.folders.tops(self.kustomization)[:_MOST_FOLDERS]
        )
        return OverlayChange(
            self.kustomization,
            at,
            what,
            " and ".join(commands),
            self.folders.scope(self.kustomization) if scope is None else scope,
            target,
            tuple(paths),
            merges,
            about_gpus,
        )

    def _patch(self, at: Path, entry: object) -> Iterator[OverlayChange]:
        inline = entry if isinstance(entry, str) and "\n" in entry else value_at(entry, ("patch",))
        path = entry if isinstance(entry, str) else value_at(entry, ("path",))
        if isinstance(inline, str):
            text = inline
        elif isinstance(path, str) and _file(self.kustomization, path) in self.files:
            text = self.files[_file(self.kustomization, path)]
        else:
            yield self._change(at, "a patch that is not among the files", {}, _ANYTHING)
            return
        target = value_at(entry, ("target",))
        if target == {}:
            target = {"kind": ".*"}
        gpus = speaks_of_gpus(text)
        values = _values(text)
        if len(values) == 1 and isinstance(values[0], list):
            paths = [path for operation in values[0] for path in _operated(operation)]
            yield self._change(at, "a JSON patch", map_in(target), paths, about_gpus=gpus)
            return
        read = read_documents(text, self.kustomization.file)
        if read.problems:
            yield self._change(at, "a patch that cannot be read", map_in(target), _ANYTHING, about_gpus=gpus)
        for document in read.documents:
            own = {"kind": re.escape(document.kind), "name": re.escape(document.name)}
            yield self._change(
                at,
                "a patch",
                target if isinstance(target, dict) else own,
                _merged(document.obj, by_key=kind_of(document.obj)[0] in _BUILT_IN),
                merges=True,
                about_gpus=speaks_of_gpus(f"{document.obj}"),
            )

    def _replacement(self, at: Path, entry: object) -> Iterator[OverlayChange]:
        path = value_at(entry, ("path",))
        replacements = [entry]
        if isinstance(path, str):
            text = self.files.get(_file(self.kustomization, path), "")
            replacements = [item for value in _values(text) for item in (value if isinstance(value, list) else [value])]
        if not replacements:
            yield self._change(at, "a replacement that cannot be read", {}, _ANYTHING)
        for item in replacements:
            yield self._copy(at, value_at(item, ("source",)))
            for target in list_in(value_at(item, ("targets",))):
                selected = map_in(value_at(target, ("select",)))
                yield self._change(at, "a replacement", selected, _ANYTHING, about_gpus=speaks_of_gpus(f"{target}"))

    def _copy(self, at: Path, source: object) -> OverlayChange:
        """Of an object of which a field is copied elsewhere."""
        named = {key: re.escape(text) for key in ("kind", "name") if isinstance(text := map_in(source).get(key), str)}
        return self._change(at, "a copy of its field", named, _ANYTHING)


_MOST_FOLDERS = 3
_FOR_ALL = (
    ("namePrefix", "which renames ResourceClaimTemplates, but not where pods name them"),
    ("nameSuffix", "which renames ResourceClaimTemplates, but not where pods name them"),
    ("transformers", "which may change anything"),
    ("openapi", "which decides how patches merge lists"),
)


def _fits(pattern: object, text: str) -> bool:
    """As kustomize compares: an expression for all of it; a missing one fits."""
    if not isinstance(pattern, str) or not pattern:
        return True
    try:
        return re.fullmatch(pattern, text) is not None
    except re.error:
        return True


def _finds_templates(target: Mapping[str, Any]) -> bool:
    """Whether it may be for the templates that the migration writes, whose names begin with those of their objects."""
    name = target.get("name")
    is_one_name = isinstance(name, str) and re.fullmatch(r"[\\\w.-]+", name) is not None
    return bool(target) and not is_one_name and _fits(target.get("kind"), "ResourceClaimTemplate")


def _values(text: str) -> list[Any]:
    source = Text("", normalized(text), 0, 0)
    try:
        return [Values(source).value(node) for node in composed(source)]
    except (yaml.YAMLError, BadDocument):
        return []


def _merged(value: object, path: Pattern = (), *, by_key: bool) -> Iterator[Pattern]:
    """What a strategic merge patch replaces."""
    if isinstance(value, dict) and value and not any(key.startswith("$") for key in value):
        for key, item in value.items():
            yield from _merged(item, (*path, key), by_key=by_key)
    elif by_key and isinstance(value, list) and path[-1:] and path[-1] in _MERGED_LISTS:
        for item in value:
            yield from _merged(item, (*path, "*"), by_key=by_key)
    else:
        yield path


def _operated(operation: object) -> Iterator[Pattern]:
    """What an operation of a JSON patch changes or reads."""
    if not isinstance(operation, dict):
        yield ()
        return
    path = _pointer(operation.get("path"))
    # A new item changes none of those that exist.
    if operation.get("op") != "add" or path[-1:] != ("*",):
        yield path
    if "from" in operation:
        yield _pointer(operation["from"])


def _pointer(text: object) -> Pattern:
    parts = text.split("/")[1:] if isinstance(text, str) else []
    return tuple(
        "*" if part == "-" or part.isdecimal() else part.replace("~1", "/").replace("~0", "~") for part in parts
    )
