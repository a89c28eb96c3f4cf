"""Documents that together make one pod must ask for GPUs in one way. Pure.

KServe puts an InferenceService over a ServingRuntime and an LLMInferenceService over its configs, Kubeflow's trainer a
TrainJob over a runtime. Where one of them keeps the extended resource, claims of another would add to it: the pod would
have both.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dra_driver.api.documents import Document
from dra_driver.migration.claims.drafting import Asking, Draft, without_claims
from dra_driver.migration.model import Choice, Form, Options, Path, Target, value_at
from dra_driver.migration.read.kind_table import kind_of
from dra_driver.migration.read.kserve import configs_of, may_be_chosen
from dra_driver.migration.read.kustomize import Folders

_OTHER_DEVICES = (
    "an LLMInferenceService and a config that it names do not ask for the same GPUs, for the same containers, of one "
    "pod, and the claim of one would take the place of the other's"
)
_EXTENDED_BESIDE = "a config of it, or a service that names it, cannot have claims"


def agree(drafts: Sequence[Draft], folders: Folders, options: Options) -> None:
    """Takes choices back where what makes one pod would ask twice, or lose what it asked for."""
    asking = [draft for draft in drafts if draft.asking]
    composed = list(_composed(asking, [draft.document for draft in drafts]))
    reasons = {id(one): _OTHER_DEVICES for members in composed if _differ(members) for one in members}
    for draft, reason in _added_to(asking, folders):
        reasons.setdefault(id(draft), reason)
    for draft in asking:
        if id(draft) in reasons:
            without_claims(draft, reasons[id(draft)], options)
    for members in composed:
        if any(one.pod.form is Form.NONE for draft in members for one in draft.asking):
            for draft in members:
                without_claims(draft, _EXTENDED_BESIDE, options)
        _one_way(members)


def _one_way(drafts: Sequence[Draft]) -> None:
    asking = [one for draft in drafts for one in draft.asking]
    if len({one.choice.target for one in asking}) < 2:
        return
    if any(one.choice.target is Target.LEAVE for one in asking):
        choice = Choice(Target.LEAVE, "a config of it, or a service that names it, cannot be migrated")
    else:
        reason = next(one.choice.reason for one in asking if one.choice.target is Target.CLAIMS)
        choice = Choice(Target.CLAIMS, f"a config of it, or a service that names it, needs claims: {reason}")
    for draft in drafts:
        draft.asking = [_with(one, choice) for one in draft.asking]


def _with(one: Asking, choice: Choice) -> Asking:
    return one if one.choice.target is choice.target else replace(one, choice=choice)


def _composed(asking: Sequence[Draft], documents: Sequence[Document]) -> Iterator[list[Draft]]:
    """Services of KServe and configs that they name, where both ask for GPUs."""
    by_document = {id(draft.document): draft for draft in asking}
    for draft in asking:
        others = [by_document[id(one)] for one in configs_of(draft.document, documents) if id(one) in by_document]
        if others:
            yield [draft, *others]


def _differ(drafts: Sequence[Draft]) -> bool:
    """Whether of one pod they do not all ask for the same."""
    asked: dict[Path, list[object]] = {}
    for draft in drafts:
        for one in draft.asking:
            demands = one.reading.demands
            wanted = [([user.name for user in each.containers], each.want, each.alternatives) for each in demands]
            asked.setdefault(one.pod.path, []).append(wanted)
    return any(one != each[0] for each in asked.values() for one in each)


# -- runtimes

_RUNTIMES = ("ServingRuntime", "ClusterServingRuntime")


def _added_to(asking: Sequence[Draft], folders: Folders) -> Iterator[tuple[Draft, str]]:
    by_name: dict[tuple[str, str], list[Draft]] = {}
    for draft in asking:
        by_name.setdefault((draft.document.kind, draft.document.name), []).append(draft)
    for draft in asking:
        document = draft.document
        group, kind = kind_of(document.obj)
        if (group, kind) == ("trainer.kubeflow.org", "TrainJob"):
            runtime = value_at(document.obj, ("spec", "runtimeRef"))
            runtime = runtime if isinstance(runtime, dict) else {}
            key = (str(runtime.get("kind") or "ClusterTrainingRuntime"), str(runtime.get("name")))
            for other in by_name.get(key, ()):
                if _serves(other.document, document, folders):
                    yield other, f"TrainJob {document.name} asks for GPUs itself, which would be added to its claims"
        elif (group, kind) == ("serving.kserve.io", "InferenceService"):
            for other in _runtimes(document, by_name):
                if not _serves(other.document, document, folders):
                    continue
                title = other.document.title
                if value_at(document.obj, ("spec", "predictor", "model", "runtime")) is None:
                    advice = "name the runtime that it is to have"
                    yield draft, f"KServe may take {title} for it, whose GPUs would be added to its claims; {advice}"
                else:
                    yield draft, f"{title} asks for GPUs, too, and cannot have claims; the pod is made of both"


def _serves(runtime: Document, user: Document, folders: Folders) -> bool:
    """Whether it can be for this one: it is of the cluster, or of the same namespace, as far as both say theirs."""
    spaces = {_namespace(one, folders) for one in (runtime, user)}
    return runtime.kind.startswith("Cluster") or None in spaces or len(spaces) == 1


def _namespace(document: Document, folders: Folders) -> str | None:
    """None: not known, or a kustomization sets it."""
    moved = any(one.document.obj.get("namespace") for one in folders.builders(document.file))
    return None if moved else document.namespace


def _runtimes(service: Document, by_name: Mapping[tuple[str, str], list[Draft]]) -> Iterator[Draft]:
    """Those that it names, or all that KServe may choose by the format of the model."""
    model = value_at(service.obj, ("spec", "predictor", "model"))
    if not isinstance(model, dict):
        return
    named = model.get("runtime")
    for (kind, name), drafts in by_name.items():
        if kind in _RUNTIMES and named is None:
            yield from (one for one in drafts if may_be_chosen(one.document.obj, model))
        elif kind in _RUNTIMES and named == name:
            yield from drafts
