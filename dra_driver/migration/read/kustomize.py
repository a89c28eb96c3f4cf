"""Kustomizations: which files are their patches, and which files each of them builds together. Pure.

Kustomize itself is not emulated: `dra_driver.migration.read.overlays` says which objects must be rendered first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import PurePosixPath

from dra_driver.api.documents import Document

_GROUP = "kustomize.config.k8s.io/"
_NAMES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
PATCH_FIELDS = ("patches", "patchesStrategicMerge", "patchesJson6902")


@lru_cache(maxsize=4096)
def _folder_of(file: str) -> PurePosixPath:
    """Cached because each kustomization is compared with each document, and splitting paths is slow."""
    return PurePosixPath(file).parent


@dataclass(frozen=True, slots=True, eq=False)
class Kustomization:
    document: Document
    patches: frozenset[str]
    """Files with patches or replacements, as the sources name them."""
    texts: frozenset[str] = frozenset()
    """Files that become values of ConfigMaps and Secrets."""

    @property
    def folder(self) -> PurePosixPath:
        return _folder_of(self.document.file)

    def file(self, name: str) -> str:
        """A file that it names, as the sources name it."""
        return str(resolved(self.folder / name))


def is_kustomization_file(file: str) -> bool:
    return PurePosixPath(file).name in _NAMES


def is_kustomization(document: Document) -> bool:
    named = is_kustomization_file(document.file)
    if not document.kind:
        return named
    ours = document.api_version.startswith(_GROUP) or (named and not document.api_version)
    return document.kind in ("Kustomization", "Component") and ours


def kustomizations(documents: Sequence[Document]) -> tuple[Kustomization, ...]:
    return tuple(
        Kustomization(document, frozenset(_patch_files(document)), frozenset(_text_files(document)))
        for document in documents
        if is_kustomization(document)
    )


def entries(document: Document, field: str) -> list[object]:
    """Of a field that holds a list; empty where it holds something else."""
    listed = document.obj.get(field)
    return listed if isinstance(listed, list) else []


def _patch_files(document: Document) -> Iterator[str]:
    for field in (*PATCH_FIELDS, "replacements"):
        for entry in entries(document, field):
            path = entry.get("path") if isinstance(entry, dict) else entry
            if isinstance(path, str) and "\n" not in path:
                yield str(resolved(_folder_of(document.file) / path))


def _text_files(document: Document) -> Iterator[str]:
    """An entry is a file, or a key and a file."""
    for field in ("configMapGenerator", "secretGenerator"):
        for entry in entries(document, field):
            files = entry.get("files") if isinstance(entry, dict) else None
            for file in files if isinstance(files, list) else ():
                if isinstance(file, str):
                    yield str(resolved(_folder_of(document.file) / file.rpartition("=")[2]))


def resolved(path: PurePosixPath) -> PurePosixPath:
    """Without `..`."""
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts and parts[-1] not in ("..", "/"):
            parts.pop()
        elif part != ".":
            parts.append(part)
    return PurePosixPath(*parts)


# -- what is built together

type Builds = tuple[int, ...]
"""Numbers of kustomizations, in their order."""


class Folders:
    """All kustomizations by their folders. What each builds is worked out once, because trees can have hundreds."""

    def __init__(self, kustomized: Sequence[Kustomization]) -> None:
        self.all = tuple(kustomized)
        self._by_folder = {kustomization.folder: kustomization for kustomization in self.all}
        self._applied: dict[PurePosixPath, tuple[PurePosixPath, ...]] = {}

    def at(self, folder: PurePosixPath) -> Kustomization | None:
        return self._by_folder.get(folder)

    def applied(self, folder: PurePosixPath) -> tuple[PurePosixPath, ...]:
        """The folder itself, and those that it builds on."""
        if folder not in self._applied:
            found: dict[PurePosixPath, None] = {}
            pending = [folder]
            while pending:
                item = pending.pop()
                if item not in found:
                    found[item] = None
                    pending += self._below.get(item, ())
            self._applied[folder] = tuple(found)
        return self._applied[folder]

    def built_with(self, file: str) -> list[frozenset[str]]:
        """For each folder that is applied by itself: the files of which it builds something together with this one."""
        return [self._files[self.all.index(top)] for top in self.tops(file)]

    def builders(self, file: str) -> Iterator[Kustomization]:
        """Kustomizations that build something of the file."""
        yield from (self.all[number] for number in self._builds_of.get(file, ()))

    def scope(self, kustomization: Kustomization) -> frozenset[str]:
        """Files of which there may be objects that it changes. A component changes all that it is built with."""
        if kustomization.document.kind == "Component":
            return frozenset().union(*(self._files[number] for number in self._builds_of[kustomization.document.file]))
        return self._files[self.all.index(kustomization)]

    def tops(self, file: str) -> list[Kustomization]:
        """Those that build something of the file and that no other builds on."""
        users = [builder for builder in self.builders(file) if builder.document.kind != "Component"]
        return [user for user in users if user.folder not in self._built_on] or users

    @cached_property
    def _built_on(self) -> frozenset[PurePosixPath]:
        return frozenset(folder for folders in self._below.values() for folder in folders)

    @cached_property
    def _below(self) -> dict[PurePosixPath, list[PurePosixPath]]:
        """Of each folder those that it names, also where no kustomization is."""
        below: dict[PurePosixPath, list[PurePosixPath]] = {}
        for kustomization in self.all:
            names = (
                name
                for field in ("resources", "bases", "components")
                for name in entries(kustomization.document, field)
            )
            paths = [name for name in names if isinstance(name, str) and ":" not in name]
            below[kustomization.folder] = [resolved(kustomization.folder / path) for path in paths]
        return below

    @cached_property
    def _files(self) -> list[frozenset[str]]:
        """Of each kustomization: all that it builds something of."""
        own: dict[PurePosixPath, frozenset[str]] = {}
        for kustomization in self.all:
            listed = (
                kustomization.file(name)
                for name in entries(kustomization.document, "resources")
                if isinstance(name, str)
            )
            files = {kustomization.document.file, *kustomization.patches, *kustomization.texts, *listed}
            own[kustomization.folder] = own.get(kustomization.folder, frozenset()) | files
        nothing: frozenset[str] = frozenset()
        return [nothing.union(*(own.get(at, nothing) for at in self.applied(item.folder))) for item in self.all]

    @cached_property
    def _builds_of(self) -> dict[str, Builds]:
        found: dict[str, list[int]] = {}
        for number, files in enumerate(self._files):
            for file in files:
                found.setdefault(file, []).append(number)
        return {file: tuple(numbers) for file, numbers in found.items()}
