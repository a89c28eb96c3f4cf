"""Makes drafts that are of one pod agree: a patch and what it patches ask in one way. Pure.

`dra_driver.migration.agreement` says which documents belong together and why claims would change what they mean; this
room takes the choices of drafts back accordingly.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from dra_driver.api.documents import read_documents
from dra_driver.migration import reading
from dra_driver.migration.agreement import Part, patched_together, reasons_against_claims
from dra_driver.migration.building import Context, Tree, key_of
from dra_driver.migration.codes import ALREADY_DRA, Severity
from dra_driver.migration.commuting import as_part
from dra_driver.migration.drafting import Asking, Draft
from dra_driver.migration.folders import Folders
from dra_driver.migration.kinds import pods_of
from dra_driver.migration.kserve import configs_of
from dra_driver.migration.kustomize import Kustomization
from dra_driver.migration.model import (
    Choice,
    Edit,
    Form,
    Held,
    Options,
    Path,
    PodReading,
    PodSpecAt,
    Put,
    Target,
    value_at,
)
from dra_driver.migration.purposes import hindrances, why_left
from dra_driver.migration.selecting import Built, Key
from dra_driver.migration.strategy import choose
from dra_driver.migration.surroundings import Meaning
from dra_driver.migration.unrendered import gpu_keys


def in_context(one: Asking, context: Context, meaning: Meaning, options: Options) -> Asking:
    """With what the object that it patches says of the devices."""
    document = replace(one.pod.document, obj=context.after)
    whole = next((pod for pod in pods_of(document, options) if pod.path == one.pod.path), None)
    if whole is None:
        return one
    alone = not any(True for _ in gpu_keys(value_at(context.before, one.pod.path)))
    whole_read = reading.demands(whole, meaning, options)
    read = as_part(one.pod, one.reading, whole, whole_read, alone=alone)
    read = replace(_beside_claims(one.pod, read, whole), held=whole_read.held)
    return replace(one, reading=read, choice=choose(one.pod, read, options))


def _beside_claims(pod: PodSpecAt, read: PodReading, whole: PodSpecAt) -> PodReading:
    """With the claims that the object has: Kustomize takes a patch's list instead of the object's."""
    edits: list[Edit] = []
    if "resourceClaims" not in pod.spec:
        edits += _copied(whole.spec.get("resourceClaims"), (*pod.path, "resourceClaims"))
    there = {one.name: one.resources.get("claims") for one in whole.containers}
    users = {one.path: one for demand in read.demands for one in demand.containers}
    for one in users.values():
        if "claims" not in one.resources:
            edits += _copied(there.get(one.name), (*one.resources_path, "claims"))
    return replace(read, edits=(*read.edits, *edits))


def _copied(listed: object, where: Path) -> Iterator[Edit]:
    for index, one in enumerate(listed if isinstance(listed, list) else ()):
        yield Put((*where, index), one)


def hinder(drafts: Iterable[Draft], tree: Tree, meaning: Meaning, options: Options) -> None:
    """What asks for GPUs in the old way in one file, and has claims of GPUs by another, was migrated by half."""
    by_key: dict[Key, list[Draft]] = {}
    for draft in drafts:
        by_key.setdefault(key_of(draft.document), []).append(draft)
    for built in (one for folder in tree.folders for one in tree.built(folder) if len(one.parts) > 1):
        parts = [draft for key in built.parts for one in _written(key, tree) for draft in by_key.get(one, ())]
        held = _hindering(built, meaning, options) if parts and not built.unknown else ()
        for one in held:
            for draft in parts:
                draft.hindered = draft.hindered or why_left(one)
        if held and not any(
            said.code is ALREADY_DRA and said.severity is Severity.ERROR for draft in parts for said in draft.findings
        ):
            files = ", ".join(dict.fromkeys(file for file, *_ in built.parts))
            said = hindrances(held, parts[-1].document)
            parts[-1].findings += (replace(one, message=f"{one.message} ({files} together)") for one in said)


def _written(key: Key, tree: Tree) -> tuple[Key, ...]:
    """Documents that have it: itself, or of a JSON patch the kustomizations."""
    patch = tree.json_patches.get(key)
    return (key,) if patch is None else tuple(key_of(document) for document, _ in patch.users.values())


def _hindering(built: Built, meaning: Meaning, options: Options) -> tuple[Held, ...]:
    if not any(True for _ in gpu_keys(built.obj)):
        return ()
    (document,) = read_documents(json.dumps(built.obj), "").documents
    found = [reading.demands(pod, meaning, options) for pod in pods_of(document, options)]
    return tuple(one for read in found if read.demands for one in read.held if why_left(one) is not None)


def agree(
    drafts: Sequence[Draft],
    kustomized: Sequence[Kustomization],
    apart: Mapping[Key, str],
    needed: Mapping[Key, str],
    options: Options,
) -> None:
    """What makes one pod asks in one way, or the pod would ask twice or lose what it asked for.

    `apart` are documents that cannot have claims, `needed` those that a JSON patch makes need some, and why.
    """
    folders = Folders(kustomized)
    scopes = {file: folders.patched_by(file) for file in {one.document.file for one in drafts if one.patch}}
    parts = [_part(one, scopes.get(one.document.file), folders.are_moved(one.document.file)) for one in drafts]
    for draft in drafts:
        if (reason := needed.get(key_of(draft.document))) is not None:
            choice = Choice(Target.CLAIMS, f"a patch of it needs claims: {reason}")
            draft.asking = [
                replace(one, choice=choice)
                if one.choice.target is Target.EXTENDED and one.pod.form is not Form.NONE
                else one
                for one in draft.asking
            ]
    known = {index: apart[key] for index, one in enumerate(drafts) if (key := key_of(one.document)) in apart}
    composed = list(_composed(drafts))
    for members in composed:
        if _differ([drafts[index] for index in members]):
            known |= {index: known.get(index, _OTHER_DEVICES) for index in members}
    for index, reason in reasons_against_claims(parts, known).items():
        draft = drafts[index]
        draft.asking = [
            one if one.pod.form is Form.NONE else _without_claims(one, reason, options) for one in draft.asking
        ]
    for draft in drafts:
        if draft.hindered is not None:
            choice = Choice(Target.LEAVE, draft.hindered)
            draft.asking = [replace(one, choice=choice) for one in draft.asking]
    for members in patched_together(parts):
        _one_way([drafts[index] for index in members], "a patch of it, or what it patches,")
    for members in composed:
        _one_way([drafts[index] for index in members], "a config of it, or a service that names it,")


def _one_way(drafts: Sequence[Draft], others: str) -> None:
    """`others` are those of them that are not the one of which it is said, as the subject of a sentence."""
    targets = {one.choice.target for draft in drafts for one in draft.asking}
    if len(targets) < 2:
        return
    if Target.LEAVE in targets:
        choice = Choice(Target.LEAVE, f"{others} cannot be migrated")
    else:
        asking = (one for draft in drafts for one in draft.asking)
        reason = next(one.choice.reason for one in asking if one.choice.target is Target.CLAIMS)
        choice = Choice(Target.CLAIMS, f"{others} needs claims: {reason}")
    for draft in drafts:
        draft.asking = [
            one if one.choice.target is choice.target else replace(one, choice=choice) for one in draft.asking
        ]


_OTHER_DEVICES = (
    "an LLMInferenceService and a config that it names do not ask for the same GPUs, for the same containers, of one "
    "pod, and the claim of one would take the place of the other's"
)


def _composed(drafts: Sequence[Draft]) -> Iterator[list[int]]:
    """Indexes of services of KServe and of configs that they name, where both ask for GPUs."""
    asking = {id(draft.document): index for index, draft in enumerate(drafts) if draft.asking}
    documents = [draft.document for draft in drafts]
    for draft in drafts:
        if id(draft.document) in asking:
            others = [asking[id(one)] for one in configs_of(draft.document, documents) if id(one) in asking]
            if others:
                yield [asking[id(draft.document)], *others]


def _differ(drafts: Sequence[Draft]) -> bool:
    """Whether of one pod they do not all ask for the same."""
    asked: dict[Path, list[object]] = {}
    for draft in drafts:
        for one in draft.asking:
            demands = one.reading.demands
            wanted = [([user.name for user in each.containers], each.want, each.alternatives) for each in demands]
            asked.setdefault(one.pod.path, []).append(wanted)
    return any(one != each[0] for each in asked.values() for one in each)


def _without_claims(one: Asking, reason: str, options: Options) -> Asking:
    pod = replace(one.pod, form=Form.NONE, why_no_claims=reason)
    return replace(one, pod=pod, choice=choose(pod, one.reading, options))


def _part(draft: Draft, scope: frozenset[str] | None, moved: bool) -> Part:
    asks = {container.name for one in draft.asking for demand in one.reading.demands for container in demand.containers}
    touches = set(asks)
    if draft.patch:
        touches |= {one.name for one in draft.containers if any(True for _ in gpu_keys(one.resources))}
    document = draft.document
    return Part(document, document.file, frozenset(asks), frozenset(touches), draft.patch, draft.target, scope, moved)
