"""What kustomizations change in the objects that they build, as far as it decides where an object is migrated. Pure.

Kustomize is not emulated. An object is migrated where it is as long as no kustomization changes a field that the
migration changes, too. Otherwise it is left as it is, and a finding names the commands: render, then migrate.
When in doubt, an entry of a kustomization counts as changing the field.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dra_driver.api.documents import Document, normalized, read_documents
from dra_driver.api.meta import JsonObject
from dra_driver.migration.model import Path, path_text, value_at
from dra_driver.migration.read.kind_table import group_of, kind_of
from dra_driver.migration.read.kustomize import PATCH_FIELDS, Folders, Kustomization, entries
from dra_driver.migration.read.unrendered import speaks_of_gpus
from dra_driver.migration.text.tree import NotATree, trees, value_of

type Pattern = tuple[str, ...]
"""A path whose indexes are `*`, which fits anything. Empty: everything in the object."""

_ANYTHING: tuple[Pattern, ...] = ((),)
_MERGED_LISTS = ("containers", "initContainers", "ephemeralContainers", "env", "volumes", "volumeMounts", "ports")
"""Lists of pods that kustomize merges item by item, in the kinds of Kubernetes itself. It replaces all others."""
_BUILT_IN = ("", "apps", "batch")
_PART = re.compile(r"\[([^\]]*)\]|((?:\\.|[^.\\\[])+)")
"""Of a field path of a replacement: `spec.containers.[name=main].env.0`."""


@dataclass(frozen=True, slots=True, eq=False)
class OverlayChange:
    """One entry of a kustomization that changes objects."""

    kustomization: Document
    at: Path
    what: str
    """What it is, for messages."""
    commands: str
    """That render what has it, and migrate the result."""
    scope: frozenset[str]
    """Files of which it may change objects."""
    target: Mapping[str, Any]
    """`kind` and `name` of these, as expressions; what is missing fits all."""
    paths: tuple[Pattern, ...]
    """What it changes or reads."""
    merges: bool = False
    """It makes maps that are not there, and leaves what else is in them."""
    about_gpus: bool = False
    parts: tuple[Document, ...] = ()
    """What a patch says of its objects, as documents at its lines."""

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
    files: frozenset[str] = frozenset()
    """That are patches or replacements, and no objects."""
    texts: frozenset[str] = frozenset()
    """That become values of ConfigMaps and Secrets."""
    folders: Folders = field(default_factory=lambda: Folders(()))

    def of(self, document: Document) -> Iterator[OverlayChange]:
        return (change for change in self.changes if change.is_for(document))


def overlays(kustomized: Sequence[Kustomization], files: Mapping[str, str]) -> Overlays:
    """`files` are all texts by their names."""
    folders = Folders(kustomized)
    return Overlays(
        tuple(change for kustomization in kustomized for change in _Reader(kustomization, folders, files).changes()),
        frozenset().union(*(kustomization.patches for kustomization in kustomized)),
        frozenset().union(*(kustomization.texts for kustomization in kustomized)),
        folders,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Reader:
    """Of one kustomization."""

    one: Kustomization
    folders: Folders
    files: Mapping[str, str]

    def changes(self) -> Iterator[OverlayChange]:
        for name in PATCH_FIELDS:
            for index, entry in enumerate(entries(self.one.document, name)):
                yield from self._patch((name, index), entry)
        for index, entry in enumerate(entries(self.one.document, "replacements")):
            yield from self._replacement(("replacements", index), entry)
        for index, entry in enumerate(entries(self.one.document, "vars")):
            reference = _map(value_at(entry, ("objref",)))
            yield self._copied(("vars", index), reference, value_at(entry, ("fieldref", "fieldpath")))
        yield from self._of_everything()

    def _of_everything(self) -> Iterator[OverlayChange]:
        """What is for all objects, and may change anything."""
        for name, what in (
            ("namePrefix", "which renames ResourceClaimTemplates, but not where pods name them"),
            ("nameSuffix", "which renames ResourceClaimTemplates, but not where pods name them"),
            ("transformers", "which may change anything"),
            ("openapi", "which decides how patches merge lists"),
        ):
            if self.one.document.obj.get(name):
                yield self._change((name,), what, {}, _ANYTHING)
        for name in ("helmCharts", "generators"):
            # What they bring is not among the files: only what is said of GPUs here is known.
            if speaks_of_gpus(f"{self.one.document.obj.get(name)}"):
                yield self._change((name,), "which brings objects that ask for GPUs", {}, (), about_gpus=True)
        for listed in entries(self.one.document, "resources"):
            file = self.one.file(listed) if isinstance(listed, str) else ""
            if self.files.get(file, "").lstrip().startswith("{"):
                scope = frozenset((file,))
                what = f"which lists {file}: a template cannot stand in a JSON file"
                yield self._change(("resources",), what, {}, _ANYTHING, scope=scope)

    def _tops(self) -> Sequence[Kustomization]:
        return self.folders.tops(self.one.document.file) or [self.one]

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
        parts: tuple[Document, ...] = (),
    ) -> OverlayChange:
        if _finds_templates(target) and what.startswith("a "):
            what, target, paths = f"{what} whose target finds ResourceClaimTemplates, too", {}, _ANYTHING
        return OverlayChange(
            self.one.document,
            at,
            what,
            " and ".join(_commands(f"{top.folder}") for top in self._tops()[:_MOST_FOLDERS]),
            self.folders.scope(self.one) if scope is None else scope,
            target,
            tuple(paths),
            merges,
            about_gpus,
            parts,
        )

    # -- patches

    def _patch(self, at: Path, entry: object) -> Iterator[OverlayChange]:
        inline = entry if isinstance(entry, str) and "\n" in entry else value_at(entry, ("patch",))
        path = entry if isinstance(entry, str) else value_at(entry, ("path",))
        if isinstance(inline, str):
            where, file = at if inline is entry else (*at, "patch"), self.one.document.file
            text = "\n" * (self.one.document.place(path_text(where))[0] - 1) + inline
        elif isinstance(path, str) and self.one.file(path) in self.files:
            file = self.one.file(path)
            text = self.files[file]
        else:
            yield self._change(at, "a patch that is not among the files", {}, _ANYTHING)
            return
        target = value_at(entry, ("target",))
        if target == {}:
            target = {"kind": ".*"}
        operations = _operations(text)
        if operations is not None:
            yield self._json_patch(at, _map(target), operations, text, file)
            return
        read = read_documents(text, file)
        if read.problems:
            yield self._change(at, "a patch that cannot be read", _map(target), _ANYTHING)
        for document in read.documents:
            own = {"kind": re.escape(document.kind), "name": re.escape(document.name)}
            yield self._change(
                at,
                "a patch",
                target if isinstance(target, dict) else own,
                _merged(document.obj, by_key=kind_of(document.obj)[0] in _BUILT_IN),
                merges=True,
                about_gpus=speaks_of_gpus(f"{document.obj}"),
                parts=(document,),
            )

    def _json_patch(
        self, at: Path, target: Mapping[str, Any], operations: list[Any], text: str, file: str
    ) -> OverlayChange:
        line = len(text) - len(text.lstrip("\n"))
        parts = [part for operation in operations if (part := _said(operation, target)) is not None]
        documents = (read_documents("\n" * line + json.dumps(part), file).documents for part in parts)
        return self._change(
            at,
            "a JSON patch",
            target,
            [path for operation in operations for path in _operated(operation)],
            about_gpus=speaks_of_gpus(text),
            parts=tuple(document for some in documents for document in some),
        )

    # -- replacements

    def _replacement(self, at: Path, entry: object) -> Iterator[OverlayChange]:
        path = value_at(entry, ("path",))
        if isinstance(path, str):
            told = [one for some in _values(self.files.get(self.one.file(path), "")) for one in _as_list(some)]
            if not told:
                yield self._change(at, "a replacement that cannot be read", {}, _ANYTHING)
        else:
            told = [entry]
        for item in told:
            source = _map(value_at(item, ("source",)))
            yield self._copied(at, source, source.get("fieldPath"))
            for target in _as_list(value_at(item, ("targets",)) or []):
                listed = value_at(target, ("fieldPaths",))
                paths = [_field(path) for path in (listed if isinstance(listed, list) else [])]
                gpus = speaks_of_gpus(f"{target}")
                selected = _map(value_at(target, ("select",)))
                yield self._change(at, "a replacement", selected, paths, about_gpus=gpus)

    def _copied(self, at: Path, source: Mapping[str, Any], path: object) -> OverlayChange:
        """Of the object whose field is copied elsewhere."""
        exactly = {name: re.escape(text) for name in ("kind", "name") if isinstance(text := source.get(name), str)}
        return self._change(at, "a copy of its field", exactly, [_field(path or "metadata.name")])


_MOST_FOLDERS = 3


def _commands(folder: str) -> str:
    return f"`kustomize build {folder} > rendered.yaml && dractl migrate rendered.yaml`"


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _fits(pattern: object, text: str) -> bool:
    """As kustomize compares: an expression for all of it; what is not said fits."""
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
    try:
        return [value_of(tree) for tree in trees(normalized(text))]
    except NotATree:
        return []


def _operations(text: str) -> list[Any] | None:
    """Of a JSON patch; None: it is none."""
    values = _values(text)
    return values[0] if len(values) == 1 and isinstance(values[0], list) else None


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


def _pointer(text: object) -> Pattern:
    parts = text.split("/")[1:] if isinstance(text, str) else []
    return tuple("*" if _is_index(part) else part.replace("~1", "/").replace("~0", "~") for part in parts)


def _is_index(part: str) -> bool:
    return part == "-" or part.isdecimal()


def _operated(operation: object) -> Iterator[Pattern]:
    """What an operation of a JSON patch changes or reads."""
    if not isinstance(operation, dict):
        yield ()
        return
    path = _pointer(operation.get("path"))
    # A new item changes none that is there.
    if operation.get("op") != "add" or path[-1:] != ("*",):
        yield path
    if "from" in operation:
        yield _pointer(operation["from"])


def _said(operation: object, target: Mapping[str, Any]) -> JsonObject | None:
    """What an operation sets, as the part of an object that has nothing else; None: it sets nothing about GPUs."""
    if not isinstance(operation, dict) or operation.get("op") not in ("add", "replace"):
        return None
    value = operation.get("value")
    path = _pointer(operation.get("path"))
    if not speaks_of_gpus(f"{value} {'/'.join(path)}"):
        return None
    for part in reversed(path):
        value = [value] if part == "*" else {part: value}
    kind, name = (text if isinstance(text := target.get(key), str) else "" for key in ("kind", "name"))
    group = group_of(kind)
    version = f"{group}/v1" if group else "v1"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **_map(value)}


def _field(text: object) -> Pattern:
    """Of a path with dots. What is in brackets is a key, unless it chooses items of a list."""
    if not isinstance(text, str):
        return ()
    parts = []
    for bracketed, plain in _PART.findall(text):
        part = bracketed or re.sub(r"\\(.)", r"\1", plain)
        parts.append("*" if "=" in bracketed or _is_index(part) else part)
    return tuple(parts)
