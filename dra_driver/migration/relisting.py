"""Lists of operations as they are written: in files and in kustomizations; told anew, remembered and put back. Pure.

A list has no room for an annotation. Its kustomization has, where kustomize reads none: it keeps which of its patches
were changed, and what they were.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from dra_driver.api.documents import Document, normalized
from dra_driver.api.meta import JsonObject
from dra_driver.migration.building import JsonPatch, operations_in
from dra_driver.migration.changes import Items, same
from dra_driver.migration.claims import Claims
from dra_driver.migration.codes import NOT_EDITABLE
from dra_driver.migration.edit import relisted
from dra_driver.migration.kustomize import resolved
from dra_driver.migration.model import Change, Finding, Path, Workload, finding, path_text, place_of, ref_of, value_at
from dra_driver.migration.operating import Told
from dra_driver.migration.splices import Splice, spliced


@dataclass(frozen=True, slots=True, eq=False)
class Relisted:
    """A JSON patch that is told anew, in one of the kustomizations that have it."""

    patch: JsonPatch
    told: tuple[Told, ...]
    claims: tuple[Claims, ...] = ()
    """That its operations name."""
    titles: tuple[str, ...] = ()
    """Of the objects that ask for these."""
    workloads: tuple[Workload, ...] = ()
    """What its objects ask for, where no other kustomization says it."""
    beside: JsonObject | None = None
    """Of a patch that is divided: the target of one more patch, behind all others; None: it is told where it is."""
    index: int = 0
    """Of that patch, among those of the kustomization."""

    def at(self, document: Document) -> Path:
        """Of the list itself, or of the name of its file, in the kustomization."""
        return self.patch.users[document.file][1] if self.beside is None else ("patches", self.index)

    def patch_beside(self, document: Document) -> JsonObject:
        """As the kustomization is to have it, with whatever is said of the patch besides."""
        old = value_at(document.obj, self.patch.users[document.file][1][:-1])
        more = {key: one for key, one in old.items() if key not in ("path", "patch", "target")}
        return {"target": self.beside, "patch": self.text, **more}

    @property
    def splices(self) -> tuple[Splice, ...]:
        """Of the text that has the list. Raises EditRefused."""
        return relisted(self.patch.text, Items([one.operation for one in self.told], [one.origin for one in self.told]))

    @property
    def text(self) -> str:
        """All of it, with the list as it is to be."""
        return spliced(self.patch.text, self.splices)

    @property
    def operations(self) -> list[Any]:
        return [one.operation for one in self.told]

    def change(self, document: Document) -> Change:
        place = place_of(document, self.at(document))
        return Change(ref_of(document), place, list(self.patch.operations), self.operations)

    def entry(self, document: Document) -> JsonObject:
        """What is remembered of it in the kustomization."""
        if self.beside is not None:
            return {"at": list(self.at(document)), "is": self.patch_beside(document)}
        return {"at": list(self.at(document)), "was": normalized(self.patch.text), "is": normalized(self.text)}


@dataclass(frozen=True, slots=True, eq=False)
class Narrowed:
    """The target of a patch that would be for more than it is to be for: for templates, too, or for the objects of
    another part of the patch."""

    at: Path
    was: JsonObject
    more: JsonObject
    """Fields that it is to have, or to have otherwise."""

    @property
    def entry(self) -> JsonObject:
        return {"at": list(self.at), "was": self.was, "is": {**self.was, **self.more}}


@dataclass(frozen=True, slots=True, eq=False)
class PutBack:
    """What stands in a kustomization, or in a file that it names, and is as it was again; a value of None: nothing."""

    at: Path
    file: str
    """Empty: in the kustomization."""
    value: Any
    """A text, or the target of a patch."""


def put_back(
    document: Document, runs: Sequence[Sequence[JsonObject]], texts: Mapping[str, str], findings: list[Finding]
) -> list[PutBack] | None:
    """Of a kustomization that remembers; None: something was changed since, which is said, and all of it stays."""
    there: dict[Path, tuple[str, Any]] = {}
    now: dict[Path, Any] = {}
    for run in reversed(runs):
        for entry in run:
            at = tuple(entry["at"])
            if at not in now:
                there[at] = _there(document, at, texts)
                now[at] = there[at][1]
            # Another kustomization that has the file may have put it back already.
            if not _alike(now[at], entry["is"]) and not _alike(now[at], entry.get("was")):
                message = f"{path_text(at)} was changed after the migration, so that no patch of it is put back"
                findings.append(finding(NOT_EDITABLE, document, at, message))
                return None
            now[at] = _before(now[at], entry)
    return [PutBack(at, file, now[at]) for at, (file, value) in there.items() if not same(value, now[at])]


def _alike(one: Any, other: Any) -> bool:
    """Texts are, where their lists are the same."""
    if isinstance(one, str) and isinstance(other, str) and one != other:
        lists = operations_in(one), operations_in(other)
        return None not in lists and same(*lists)
    return same(one, other)


def _before(now: Any, entry: JsonObject) -> Any:
    """What it was, with comments that somebody has written since."""
    if now == entry["is"] or not isinstance(now, str):
        return entry.get("was")
    return spliced(now, _leading_back(now, operations_in(now) or [], operations_in(entry["was"]) or []))


def _leading_back(text: str, there: Sequence[Any], was: Sequence[Any]) -> tuple[Splice, ...]:
    """In the places where they are, as far as there are any: only what is at the end can come."""
    places = [index if index < len(there) else None for index in range(len(was))]
    if len(was) < len(there):
        kept = iter(_matched(there, was))
        places = [next(kept) for _ in was]
    return relisted(text, Items(was, places))


def _matched(there: Sequence[Any], was: Sequence[Any]) -> Iterator[int]:
    """Places for fewer operations than there are, in their order: those that are alike have their own."""
    start = 0
    for index, one in enumerate(was):
        last = len(there) - (len(was) - index)
        alike = (at for at in range(start, last + 1) if same(there[at], one))
        found = next(alike, start)
        yield found
        start = found + 1


def _there(document: Document, at: Path, texts: Mapping[str, str]) -> tuple[str, Any]:
    """Its file, empty for the kustomization itself; and a text, or the target of a patch."""
    value = value_at(document.obj, at)
    if not isinstance(value, str) or "\n" in value or at[-1:] == ("patch",):
        return "", value
    file = str(resolved(PurePosixPath(document.file).parent / value))
    return file, normalized(texts.get(file, ""))


def names_in_operations(operations: Sequence[Any]) -> Iterator[str]:
    """Of claims and their templates."""
    for one in operations:
        yield from _names_in(one, str(one.get("path"))) if isinstance(one, dict) else ()


def _names_in(value: Any, key: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _names_in(one, key if name == "value" else name)
    elif isinstance(value, list):
        for one in value:
            yield from _names_in(one, "")
    elif isinstance(value, str) and key.endswith(("resourceClaimTemplateName", "resourceClaimName")):
        yield value
