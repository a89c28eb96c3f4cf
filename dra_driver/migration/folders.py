"""Which folders kustomize builds together, of all kustomizations at once. Pure.

Trees of people have thousands of files and hundreds of kustomizations: what each builds is worked out once.
"""

from collections.abc import Sequence
from functools import cached_property
from pathlib import PurePosixPath

from dra_driver.migration.kustomize import Kustomization, resolved

type Builds = tuple[int, ...]
"""Numbers of kustomizations, in their order."""


class Folders:
    """All kustomizations by their folders."""

    def __init__(self, kustomized: Sequence[Kustomization]) -> None:
        self.all = tuple(kustomized)
        self._by_folder = {one.folder: one for one in self.all}
        self._applied: dict[PurePosixPath, tuple[PurePosixPath, ...]] = {}
        self._together: dict[Builds, frozenset[str]] = {}

    def at(self, folder: PurePosixPath) -> Kustomization | None:
        return self._by_folder.get(folder)

    def applied(self, folder: PurePosixPath) -> tuple[PurePosixPath, ...]:
        """Itself, and those that it builds on."""
        if folder not in self._applied:
            found: dict[PurePosixPath, None] = {}
            pending = [folder]
            while pending:
                one = pending.pop()
                if one not in found:
                    found[one] = None
                    pending += self._below.get(one, ())
            self._applied[folder] = tuple(found)
        return self._applied[folder]

    def files_with(self, file: str) -> frozenset[str]:
        """Files of which kustomize builds something together with this one; it is one of them."""
        builds = self._builds_of.get(file, ())
        if builds not in self._together:
            self._together[builds] = frozenset().union(*(self._files[number] for number in builds))
        return self._together[builds] | {file} if not builds else self._together[builds]

    def are_moved(self, file: str) -> bool:
        """Whether its objects get another namespace somewhere."""
        return any(self.all[number].document.obj.get("namespace") for number in self._builds_of.get(file, ()))

    def patched_by(self, file: str) -> frozenset[str] | None:
        """Files in which there may be what a patch in this one is for; None: no kustomization has it, so it may be
        anywhere. Patches of a component are for all that it is put together with."""
        found = None
        for number in self._owners.get(file, ()):
            one = self.all[number]
            component = one.document.kind == "Component"
            scope = self.files_with(one.document.file) if component else self._files[number]
            found = scope if found is None else found | scope
        return found

    @cached_property
    def _owners(self) -> dict[str, list[int]]:
        """Kustomizations that have a file's patches."""
        found: dict[str, list[int]] = {}
        for number, one in enumerate(self.all):
            for file in {one.document.file, *one.patches}:
                found.setdefault(file, []).append(number)
        return found

    @cached_property
    def _below(self) -> dict[PurePosixPath, list[PurePosixPath]]:
        """Of each folder those that it names, also where no kustomization is."""
        found: dict[PurePosixPath, list[PurePosixPath]] = {}
        for one in self.all:
            names = (name for field in ("resources", "bases", "components") for name in _names(one, field))
            found[one.folder] = [resolved(one.folder / name) for name in names if ":" not in name]
        return found

    @cached_property
    def _own_files(self) -> dict[PurePosixPath, frozenset[str]]:
        """Of each folder: those that its kustomization has itself."""
        found: dict[PurePosixPath, frozenset[str]] = {}
        for one in self.all:
            listed = (str(resolved(one.folder / name)) for name in _names(one, "resources"))
            own = {one.document.file, one.claims_file, *one.patches, *one.texts, *listed}
            found[one.folder] = found.get(one.folder, frozenset()) | own
        return found

    @cached_property
    def _files(self) -> list[frozenset[str]]:
        """Of each kustomization: all that it builds something of."""
        nothing: frozenset[str] = frozenset()
        return [
            nothing.union(*(self._own_files.get(at, nothing) for at in self.applied(one.folder))) for one in self.all
        ]

    @cached_property
    def _builds_of(self) -> dict[str, Builds]:
        found: dict[str, list[int]] = {}
        for number, files in enumerate(self._files):
            for file in files:
                found.setdefault(file, []).append(number)
        return {file: tuple(numbers) for file, numbers in found.items()}


def _names(one: Kustomization, field: str) -> list[str]:
    listed = one.document.obj.get(field)
    return [name for name in (listed if isinstance(listed, list) else ()) if isinstance(name, str)]
