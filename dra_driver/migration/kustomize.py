"""Kustomizations: which files are patches, and where objects go that a patch needs. Pure.

A patch is a part of an object, so what it asks for is migrated like any other; but a new object cannot stand beside it,
since every document of a patch is one. It goes into a file of its own, which the kustomization lists. Prefixes and
suffixes change the names of templates; a file of kustomize's own settings makes it change them in pods, too.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

from dra_driver.api.documents import Document, normalized
from dra_driver.migration.claims import Claims
from dra_driver.migration.codes import NOT_EDITABLE, Severity
from dra_driver.migration.kinds import embedded_in
from dra_driver.migration.model import DocumentEdits, Finding, Path, Put, finding, value_at

_GROUP = "kustomize.config.k8s.io/"
_NAMES = ("kustomization.yaml", "kustomization.yml", "Kustomization")
CLAIMS_FILE = "gpu-claims.yaml"
NAMES_FILE = "gpu-names.yaml"
_INLINE = (("patches", "patch"), ("patchesJson6902", "patch"))


@lru_cache(maxsize=4096)
def _folder_of(file: str) -> PurePosixPath:
    """Kept: each kustomization is compared with each document, and paths are slow to take apart."""
    return PurePosixPath(file).parent


@dataclass(frozen=True, slots=True, eq=False)
class Kustomization:
    document: Document
    patches: Mapping[str, Mapping[str, Any] | None]
    """Files, as the sources name them, and what each is for; None: the object that it names itself."""
    texts: frozenset[str] = frozenset()
    """Files that become values of ConfigMaps and Secrets."""

    @property
    def folder(self) -> PurePosixPath:
        return _folder_of(self.document.file)

    @property
    def claims_file(self) -> str:
        return str(self.folder / CLAIMS_FILE)

    @property
    def names_file(self) -> str:
        return str(self.folder / NAMES_FILE)


def is_kustomization_file(file: str) -> bool:
    return PurePosixPath(file).name in _NAMES


def is_kustomization(document: Document) -> bool:
    named = PurePosixPath(document.file).name in _NAMES
    if not document.kind:
        return named
    ours = document.api_version.startswith(_GROUP) or (named and not document.api_version)
    return document.kind in ("Kustomization", "Component") and ours


def kustomizations(documents: Sequence[Document]) -> tuple[Kustomization, ...]:
    return tuple(
        Kustomization(document, dict(_patch_files(document)), frozenset(_text_files(document)))
        for document in documents
        if is_kustomization(document)
    )


def _patch_files(document: Document) -> Iterator[tuple[str, Mapping[str, Any] | None]]:
    folder = PurePosixPath(document.file).parent
    for name in ("patches", "patchesStrategicMerge", "patchesJson6902"):
        listed = document.obj.get(name)
        for index, one in enumerate(listed if isinstance(listed, list) else ()):
            path = one.get("path") if isinstance(one, dict) else one
            if isinstance(path, str) and "\n" not in path:
                yield str(resolved(folder / path)), target_of(document, (name, index))


def _text_files(document: Document) -> Iterator[str]:
    """An entry is a file, or a key and a file."""
    folder = PurePosixPath(document.file).parent
    for name in ("configMapGenerator", "secretGenerator"):
        listed = document.obj.get(name)
        for one in listed if isinstance(listed, list) else ():
            files = one.get("files") if isinstance(one, dict) else None
            for file in files if isinstance(files, list) else ():
                if isinstance(file, str):
                    yield str(resolved(folder / file.rpartition("=")[2]))


def target_of(document: Document, path: Path) -> Mapping[str, Any] | None:
    """What the entry of a kustomization, at the path or around it, is for."""
    target = value_at(document.obj, (*path[:2], "target")) if len(path) > 1 else None
    return target if isinstance(target, dict) else None


def resolved(path: PurePosixPath) -> PurePosixPath:
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


def lists(one: Kustomization, file: str) -> bool:
    """Whether it has the file among its resources."""
    listed = one.document.obj.get("resources")
    names = listed if isinstance(listed, list) else ()
    return any(isinstance(name, str) and str(resolved(one.folder / name)) == file for name in names)


def renames(one: Kustomization) -> Path | None:
    """The field by which it gives objects other names; None: it does not."""
    return next(((field,) for field in ("namePrefix", "nameSuffix") if value_at(one.document.obj, (field,))), None)


def naming_fields(claims: Claims) -> tuple[str, ...] | None:
    """Where the pod names its template, as kustomize's field specifications have it; None: in a text, such as a patch
    that Argo makes, where kustomize changes no names."""
    found = []
    for edit in claims.edits:
        if isinstance(edit, Put) and claims.ref.name in str(edit.value):
            if not isinstance(edit.value, dict):
                return None
            parts = (part.replace("/", "\\/") for part in edit.path if isinstance(part, str))
            found.append("/".join((*parts, "resourceClaimTemplateName")))
    return tuple(found)


def name_references(fields: Iterable[str], there: str) -> str:
    """What is to be added to the names file so that templates are renamed in these fields, too."""
    known = set(re.findall(r"^  - path: (.+)$", there, re.MULTILINE))
    lines = [f"  - path: {one}\n" for one in sorted(set(fields) - known)]
    return ("" if there or not lines else _NAMES_HEAD) + "".join(lines)


_NAMES_HEAD = """\
# Where pods name their ResourceClaimTemplates, for which kustomize has prefixes and suffixes, too.
nameReference:
- group: resource.k8s.io
  kind: ResourceClaimTemplate
  fieldSpecs:
"""


def is_names_file(file: str, text: str) -> bool:
    """Whether it is a names file that the migration wrote, and nothing else."""
    return PurePosixPath(file).name == NAMES_FILE and normalized(text).startswith(_NAMES_HEAD)


def configured(one: Kustomization) -> DocumentEdits | None:
    """What makes the kustomization heed the names file; None: it does already."""
    listed = one.document.obj.get("configurations")
    there = listed if isinstance(listed, list) else []
    if NAMES_FILE in there:
        return None
    return DocumentEdits(one.document, (Put(("configurations", len(there)), NAMES_FILE),))


def unlisted(one: Kustomization, reason: str) -> Finding:
    """Of a file that the kustomization is to have, and cannot be made to."""
    message = f"{reason}, so what was written beside it is not listed"
    advice = (
        f"Correct it, and list {CLAIMS_FILE} among `resources`, and {NAMES_FILE}, if it is there, in `configurations`."
    )
    return finding(NOT_EDITABLE, one.document, (), message, advice=advice, severity=Severity.ERROR)


def renamed(one: Kustomization, path: Path) -> Finding:
    message = f"{path[0]} renames ResourceClaimTemplates; {NAMES_FILE} tells kustomize where pods name them"
    return finding(NOT_EDITABLE, one.document, path, message, advice="", severity=Severity.INFO, fixed=True)


def not_renamed(one: Kustomization, path: Path) -> Finding:
    """Of names in texts, which kustomize leaves as they are."""
    message = f"{path[0]} renames ResourceClaimTemplates, but not in the texts that name them; their pods would wait"
    advice = "Do without it, or migrate what kustomize renders (kubectl kustomize FOLDER | dractl migrate -)."
    return finding(NOT_EDITABLE, one.document, path, message, advice=advice, severity=Severity.ERROR)


def labels_of_a_patch(one: Kustomization, title: str, labels: Sequence[str]) -> Finding:
    """A patch puts them on the pod, whose claim is in another file."""
    message = f"a patch chooses nodes of {title} by {', '.join(labels)}, which stays with the pod"
    advice = "Keep GPU Feature Discovery running, or choose where the pod is described, so that the claim can say it."
    return finding(NOT_EDITABLE, one.document, (), message, advice=advice)


def lone_patch(document: Document, claims_file: str) -> Finding:
    """A patch whose kustomization is not here."""
    name = PurePosixPath(claims_file).name
    message = f"is a patch, beside which no other object can stand; what it names is in {name}"
    return finding(NOT_EDITABLE, document, (), message, advice=f"List {name} in `resources` of its kustomization.")
