"""Kustomizations: which files are patches, and where objects go that a patch needs. Pure.

A patch is a part of an object, so what it asks for is migrated like any other; but a new object cannot stand beside it,
since every document of a patch is one. It goes into a file of its own, which the kustomization lists.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from dra_driver.api.documents import Document
from dra_driver.migration.codes import NOT_EDITABLE, Severity
from dra_driver.migration.kinds import embedded_in
from dra_driver.migration.model import DocumentEdits, Finding, Path, Put, finding, value_at

_GROUP = "kustomize.config.k8s.io/"
_NAMES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
CLAIMS_FILE = "gpu-claims.yaml"
_INLINE = (("patches", "patch"), ("patchesJson6902", "patch"))


@dataclass(frozen=True, slots=True, eq=False)
class Kustomization:
    document: Document
    patches: Mapping[str, Mapping[str, Any] | None]
    """Files, as the sources name them, and what each is for; None: the object that it names itself."""

    @property
    def folder(self) -> PurePosixPath:
        return PurePosixPath(self.document.file).parent

    @property
    def claims_file(self) -> str:
        return str(self.folder / CLAIMS_FILE)


def is_kustomization(document: Document) -> bool:
    named = PurePosixPath(document.file).name in _NAMES
    if not document.kind:
        return named
    return document.kind in ("Kustomization", "Component") and (named or document.api_version.startswith(_GROUP))


def kustomizations(documents: Sequence[Document]) -> tuple[Kustomization, ...]:
    return tuple(
        Kustomization(document, dict(_patch_files(document))) for document in documents if is_kustomization(document)
    )


def _patch_files(document: Document) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    folder = PurePosixPath(document.file).parent
    for name in ("patches", "patchesStrategicMerge", "patchesJson6902"):
        listed = document.obj.get(name)
        for index, one in enumerate(listed if isinstance(listed, list) else ()):
            path = one.get("path") if isinstance(one, dict) else one
            if isinstance(path, str) and "\n" not in path:
                yield str(_resolved(folder / path)), target_of(document, (name, index))


def target_of(document: Document, path: Path) -> Mapping[str, Any] | None:
    """What the entry of a kustomization, at the path or around it, is for."""
    target = value_at(document.obj, (*path[:2], "target")) if len(path) > 1 else None
    return target if isinstance(target, dict) else None


def _resolved(path: PurePosixPath) -> PurePosixPath:
    """Without `..`."""
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and parts and parts[-1] not in ("..", "/"):
            parts.pop()
        elif part != ".":
            parts.append(part)
    return PurePosixPath(*parts)


def texts_in(document: Document) -> Iterator[tuple[Path, str]]:
    """Manifests and patches that an object holds as strings, and that are edited there."""
    yield from embedded_in(document)
    if is_kustomization(document):
        yield from _inline_patches(document)


def _inline_patches(document: Document) -> Iterator[tuple[Path, str]]:
    """Strategic patches that are written into the kustomization itself."""
    for name, field in _INLINE:
        listed = document.obj.get(name)
        for index, one in enumerate(listed if isinstance(listed, list) else ()):
            text = one.get(field) if isinstance(one, dict) else None
            if isinstance(text, str):
                yield (name, index, field), text
    listed = document.obj.get("patchesStrategicMerge")
    for index, one in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(one, str) and "\n" in one:
            yield ("patchesStrategicMerge", index), one


def listing(one: Kustomization) -> DocumentEdits | None:
    """What makes the kustomization apply the claims file; None: it does already."""
    resources = one.document.obj.get("resources")
    there = resources if isinstance(resources, list) else []
    if CLAIMS_FILE in there:
        return None
    reason = f"{CLAIMS_FILE} has the templates that patches name"
    return DocumentEdits(one.document, (Put(("resources", len(there)), CLAIMS_FILE),), reason)


def applied_folders(one: Kustomization, others: Sequence[Kustomization]) -> tuple[PurePosixPath, ...]:
    """Its own, and those that it builds on, through all of `others`."""
    by_folder = {other.folder: other for other in others}
    found: dict[PurePosixPath, None] = {}
    pending = [one.folder]
    while pending:
        folder = pending.pop()
        if folder in found:
            continue
        found[folder] = None
        below = by_folder.get(folder)
        for field in ("resources", "bases", "components"):
            listed = below.document.obj.get(field) if below is not None else None
            pending += [_resolved(folder / name) for name in listed or () if isinstance(name, str) and ":" not in name]
    return tuple(found)


def renaming(one: Kustomization) -> Iterator[Finding]:
    """Prefixes and suffixes change names of templates, and not where pods name them."""
    for field in ("namePrefix", "nameSuffix"):
        if value_at(one.document.obj, (field,)):
            message = f"{field} renames ResourceClaimTemplates, but not in the pods that name them, which would wait"
            advice = (
                "Add a configuration of kind NameReference for kind ResourceClaimTemplate with the path "
                "spec/template/spec/resourceClaims/resourceClaimTemplateName (configurations:), or do without it."
            )
            yield finding(NOT_EDITABLE, one.document, (field,), message, advice=advice, severity=Severity.ERROR)


def lone_patch(document: Document, claims_file: str) -> Finding:
    """A patch whose kustomization is not here."""
    name = PurePosixPath(claims_file).name
    message = f"is a patch, beside which no other object can stand; what it names is in {name}"
    return finding(NOT_EDITABLE, document, (), message, advice=f"List {name} in `resources` of its kustomization.")
