"""Documents that together make one pod, and must ask for GPUs in one way. Pure.

Kustomize puts patches over an object, KServe an InferenceService over a ServingRuntime, Kubeflow's trainer a TrainJob
over a runtime. Where one of them goes on asking for the extended resource, claims of another would add to it: the pod
would hold both. And where patches are of other containers than the object, or take GPUs away, each document's claims
would speak of a part of the pod only, and the last would replace those before it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra_driver.api.documents import Document
from dra_driver.migration.kind_table import kind_of
from dra_driver.migration.kserve import may_be_chosen
from dra_driver.migration.model import value_at


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What one document has of pods."""

    document: Document
    where: str
    """For people: the file."""
    asks: frozenset[str] = frozenset()
    """Containers that ask for GPUs."""
    touches: frozenset[str] = frozenset()
    """Containers where it speaks of GPUs, also to take them away."""
    patch: bool = False
    target: Mapping[str, Any] | None = None
    """Of a patch: the `target` of its kustomization. None: the object of its own kind and name."""
    scope: frozenset[str] | None = None
    """Of a patch: files in which there may be what it is for; None: any."""
    moved: bool = False
    """A kustomization says its namespace."""

    @property
    def namespace(self) -> str | None:
        """None: not known."""
        return None if self.moved else self.document.namespace


def reasons_against_claims(parts: Sequence[Part], given: Mapping[int, str]) -> dict[int, str]:
    """By the index of parts that ask for GPUs: why claims would change the meaning, as a sentence.

    `given` are reasons that others have found already.
    """
    found = dict(given)
    together = patched_together(parts)
    for members in together:
        reason = _uneven([parts[index] for index in members])
        if reason is not None:
            found |= {index: reason for index in members if parts[index].asks and index not in found}
    for index, reason in _added_to(parts):
        found.setdefault(index, reason)
    # What is not to have claims is so with everything that the same patches are for.
    spread = True
    while spread:
        spread = False
        for members in together:
            known = next((found[index] for index in members if index in found), None)
            for index in members:
                if known is not None and parts[index].asks and index not in found:
                    found[index] = known
                    spread = True
    return found


def patched_together(parts: Sequence[Part]) -> list[list[int]]:
    """Indexes of what makes one object: it, and the patches of it. Without what has no patch."""
    patches = [index for index, part in enumerate(parts) if part.patch]
    if not patches:
        return []
    groups = [
        [index, *(other for other in patches if other != index and _is_for(parts[other], part))]
        for index, part in enumerate(parts)
    ]
    return [members for members in groups if len(members) > 1 or parts[members[0]].patch]


def _is_for(patch: Part, part: Part) -> bool:
    document = part.document
    if patch.scope is not None and document.file not in patch.scope:
        return False
    if patch.target is None:
        return (patch.document.kind, patch.document.name) == (document.kind, document.name)
    kind, name = patch.target.get("kind"), patch.target.get("name")
    return _fits(kind, document.kind) and _fits(name, document.name)


def _fits(pattern: object, text: str) -> bool:
    """As Kustomize compares: an expression for all of it; what is not said fits."""
    if not isinstance(pattern, str) or not pattern:
        return True
    try:
        return re.fullmatch(pattern, text) is not None
    except re.error:
        return pattern == text


def _uneven(members: Iterable[Part]) -> str | None:
    """Whether claims of one would not fit those of another."""
    touching = [part for part in members if part.touches]
    if all(part.touches == part.asks == touching[0].asks for part in touching):
        return None
    files = ", ".join(sorted({part.where for part in touching if part.patch}))
    return (
        f"patches ({files}) speak of GPUs of some of its containers only, or take them away, and claims would not "
        "follow them; migrate what kustomize renders instead (kubectl kustomize FOLDER | dractl migrate -)"
    )


# -- what frameworks put together


def _added_to(parts: Sequence[Part]) -> Iterator[tuple[int, str]]:
    by_name: dict[tuple[str, str], list[int]] = {}
    for index, part in enumerate(parts):
        if part.asks:
            by_name.setdefault((part.document.kind, part.document.name), []).append(index)
    for index, part in enumerate(parts):
        group, kind = kind_of(part.document.obj)
        if not part.asks:
            continue
        if (group, kind) == ("trainer.kubeflow.org", "TrainJob"):
            runtime = value_at(part.document.obj, ("spec", "runtimeRef"))
            runtime = runtime if isinstance(runtime, dict) else {}
            key = (str(runtime.get("kind") or "ClusterTrainingRuntime"), str(runtime.get("name")))
            for other in (one for one in by_name.get(key, ()) if _serves(parts[one], part)):
                yield other, f"TrainJob {part.document.name} asks for GPUs itself, which would be added to its claims"
        elif (group, kind) == ("serving.kserve.io", "InferenceService"):
            for other in (one for one in _runtimes(part.document, by_name, parts) if _serves(parts[one], part)):
                title = parts[other].document.title
                if value_at(part.document.obj, ("spec", "predictor", "model", "runtime")) is None:
                    advice = "name the runtime that it is to have"
                    yield index, f"KServe may take {title} for it, whose GPUs would be added to its claims; {advice}"
                else:
                    yield index, f"{title} asks for GPUs, too, and cannot have claims; the pod is made of both"


def _serves(runtime: Part, user: Part) -> bool:
    """Whether it can be for this one: it is of the cluster, or of the same namespace, as far as both say theirs."""
    spaces = {runtime.namespace, user.namespace}
    return runtime.document.kind.startswith("Cluster") or None in spaces or len(spaces) == 1


_RUNTIMES = ("ServingRuntime", "ClusterServingRuntime")


def _runtimes(service: Document, by_name: Mapping[tuple[str, str], list[int]], parts: Sequence[Part]) -> Iterator[int]:
    """Those that it names, or all that KServe may choose by the format of the model."""
    model = value_at(service.obj, ("spec", "predictor", "model"))
    if not isinstance(model, dict):
        return
    named = model.get("runtime")
    for (kind, name), indexes in by_name.items():
        if kind in _RUNTIMES and named is None:
            yield from (one for one in indexes if may_be_chosen(parts[one].document.obj, model))
        elif kind in _RUNTIMES and named == name:
            yield from indexes
