"""What one document asks for and what becomes of it, before other documents count. Pure.

Documents that make one pod together must ask for GPUs in one way, or the pod would have both. What mentions GPUs and
cannot be converted is a finding.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dra_driver.api.documents import Document
from dra_driver.migration.claims.strategy import choose, virtual_machines
from dra_driver.migration.codes import NOT_EDITABLE, UNKNOWN_RESOURCE, FindingSeverity
from dra_driver.migration.demands import reading
from dra_driver.migration.demands.amounts import strange_resources
from dra_driver.migration.model import (
    Choice,
    ClaimForm,
    MigrationFinding,
    MigrationTarget,
    Options,
    Path,
    PodReading,
    PodSpecAt,
    finding,
    value_at,
)
from dra_driver.migration.read.bases import configs_of, may_be_chosen
from dra_driver.migration.read.definitions import kept
from dra_driver.migration.read.kind_table import is_known, kind_of
from dra_driver.migration.read.kinds import (
    choosing_patches_in,
    is_part_of_an_object,
    pods_by_shape,
    pods_of,
    with_written_places,
)
from dra_driver.migration.read.kustomize import Folders, is_kustomization
from dra_driver.migration.read.unrendered import (
    delivers,
    delivery_findings,
    gpu_keys,
    gpu_texts,
    is_sealed,
    sealed_findings,
    values_findings,
)
from dra_driver.migration.understand.operator_parts import is_operand
from dra_driver.migration.understand.surroundings import Meaning


@dataclass(frozen=True, slots=True, eq=False)
class Asking:
    """A pod that asks for GPUs, and what is to become of it."""

    pod: PodSpecAt
    reading: PodReading
    choice: Choice


@dataclass(slots=True, eq=False)
class Draft:
    """What a document asks for; `asking` changes while documents are made to agree."""

    document: Document
    asking: list[Asking] = field(default_factory=list)
    findings: list[MigrationFinding] = field(default_factory=list)


def drafted(document: Document, meaning: Meaning, options: Options, *, render: str | None = None) -> Draft:
    """`render`: the document is a patch, and these are the commands that migrate what is made with it."""
    draft = Draft(document)
    if is_sealed(document) or delivers(document):
        draft.findings += sealed_findings(document) if is_sealed(document) else delivery_findings(document)
        return draft
    if is_kustomization(document):
        return draft
    draft.findings += values_findings(document)
    owner = _owner(document)
    if render is None and is_part_of_an_object(document):
        render = "`kubectl kustomize FOLDER | dractl migrate -`"
    for pod in pods_of(document, options, patch=render is not None):
        pod = meaning.bases.completed(pod)
        read = with_written_places(reading.demands(pod, meaning, options), pod)
        pod, read = kept(pod, read, meaning.definitions, options)
        if owner is None and is_operand(document, pod.spec):
            draft.findings += [_of_the_operator(document)] if read.demands or read.findings else []
            break
        if owner is not None and read.demands:
            message = f"is made by {owner}, which is what to migrate; it is left as it is"
            draft.findings.append(
                finding(NOT_EDITABLE, document, (), message, advice="", severity=FindingSeverity.INFO)
            )
            break
        draft.findings += read.findings
        if read.demands:
            draft.asking.append(Asking(pod, read, choose(pod, read, options)))
    if render is not None:
        _left_to_render(draft, render, options)
    draft.findings += virtual_machines(document)
    if not options.unknown_kinds:
        draft.findings += _of_unknown_kind(document, meaning, options)
    if is_known(document.obj):
        draft.findings += _outside_of_pods(document, [pod.path for pod in pods_of(document, options)])
    for path in choosing_patches_in(document):
        message = "is a text that chooses GPUs and was left as it is"
        draft.findings.append(finding(NOT_EDITABLE, document, path, message, advice=_ABOUT_CHOOSING))
    draft.findings += [_left_text(document, path) for path in gpu_texts(document.obj)]
    return draft


def _left_to_render(draft: Draft, render: str, options: Options) -> None:
    """A patch is never edited: what asks by it for more than extended resources is migrated once it is rendered."""
    if any(asking.choice.target is MigrationTarget.CLAIMS for asking in draft.asking):
        message = "is a patch that asks for GPUs in a way that needs claims, and was left as it is"
        draft.findings.append(finding(NOT_EDITABLE, draft.document, (), message, advice=render_first(render)))
    without_claims(draft, "it is a patch; render, then migrate", options)


def render_first(commands: str) -> str:
    return f"Render, then migrate: {commands}."


def _of_the_operator(document: Document) -> MigrationFinding:
    message = "is a part of the GPU Operator, which makes it by its ClusterPolicy; it is left as it is"
    advice = "Nothing to do: what runs of it beside the driver is said by the ClusterPolicy (docs/gpu-operator.md)."
    return finding(NOT_EDITABLE, document, (), message, advice=advice, severity=FindingSeverity.INFO)


def _left_text(document: Document, path: Path) -> MigrationFinding:
    message = "is a text that speaks of GPUs and was left as it is"
    return finding(NOT_EDITABLE, document, path, message, advice=_ABOUT_TEXTS)


_ABOUT_TEXTS = (
    "Where it asks for whole devices of a resource that a DeviceClass answers to, it can stay. Else migrate the "
    "manifest that is made of it, on its own (… | dractl migrate -), and write what changed into the text by hand."
)


_ABOUT_CHOOSING = (
    "Labels in it stay node conditions, so nodes must keep them; NVIDIA_VISIBLE_DEVICES gives "
    "nothing to containers with claims, and all GPUs to others. Say it in the templates themselves instead."
)


def _owner(document: Document) -> str | None:
    """The object whose controller makes this one."""
    owners = value_at(document.obj, ("metadata", "ownerReferences"))
    for owner in owners if isinstance(owners, list) else ():
        if isinstance(owner, dict) and owner.get("controller") is True:
            return f"{owner.get('kind')} {owner.get('name')}"
    return None


def _outside_of_pods(document: Document, pods: Sequence[Path]) -> Iterator[MigrationFinding]:
    """Of a kind that is known, in a shape that is not, such as that of an old version: nothing is passed over."""
    for path in gpu_keys(document.obj):
        if path[-2:-1] in (("limits",), ("requests",)) and not any(path[: len(pod)] == pod for pod in pods):
            message = f"asks for GPUs where no pod of a {document.kind} is known to be; it was left as it is"
            yield finding(NOT_EDITABLE, document, path, message, advice="See whether its version is still served.")


def _of_unknown_kind(document: Document, meaning: Meaning, options: Options) -> Iterator[MigrationFinding]:
    for pod in pods_by_shape(document):
        if any(True for _ in gpu_keys(pod.spec)):
            message = f"{document.kind} is not a kind that is known; this has the shape of a pod that asks for GPUs"
            advice = (
                "See whether its controller passes claims on to pods, then decide to convert it (`unknownKinds: true`)."
            )
            yield finding(NOT_EDITABLE, document, pod.path, message, advice=advice)
        for container in pod.containers:
            for resource, path in dict(strange_resources(container, meaning, options)).items():
                message = f"{resource}: it is not known what it stands for, nor what a {document.kind} makes of it"
                yield finding(UNKNOWN_RESOURCE, document, path, message)


def without_claims(draft: Draft, reason: str, options: Options) -> None:
    draft.asking = [_unclaimed(asking, reason, options) for asking in draft.asking]


def _unclaimed(asking: Asking, reason: str, options: Options) -> Asking:
    if asking.pod.form is ClaimForm.NONE:
        return asking
    pod = replace(asking.pod, form=ClaimForm.NONE, why_no_claims=reason)
    return replace(asking, pod=pod, choice=choose(pod, asking.reading, options))


def agree(drafts: Sequence[Draft], folders: Folders, options: Options) -> None:
    """Takes claims back where what makes one pod would ask twice."""
    asking = [draft for draft in drafts if draft.asking]
    reasons: dict[int, str] = {}
    for draft, reason in (*_of_configs(asking), *_added_to(asking, folders)):
        reasons.setdefault(id(draft), reason)
    for draft in asking:
        if id(draft) in reasons:
            without_claims(draft, reasons[id(draft)], options)


def _of_configs(asking: Sequence[Draft]) -> Iterator[tuple[Draft, str]]:
    """LLMInferenceServices that name a config which asks for GPUs, too."""
    documents = [draft.document for draft in asking]
    for draft in asking:
        config = next(configs_of(draft.document, documents), None)
        if config is not None:
            yield draft, f"{config.title} asks for GPUs, too, and cannot have claims; the pod is made of both"


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
    spaces = {_namespace(document, folders) for document in (runtime, user)}
    return runtime.kind.startswith("Cluster") or None in spaces or len(spaces) == 1


def _namespace(document: Document, folders: Folders) -> str | None:
    """None: not known, or a kustomization sets it."""
    moved = any(builder.document.obj.get("namespace") for builder in folders.builders(document.file))
    return None if moved else document.namespace


def _runtimes(service: Document, by_name: Mapping[tuple[str, str], list[Draft]]) -> Iterator[Draft]:
    """Those that it names, or all that KServe may choose by the format of the model."""
    model = value_at(service.obj, ("spec", "predictor", "model"))
    if not isinstance(model, dict):
        return
    named = model.get("runtime")
    for (kind, name), drafts in by_name.items():
        if kind in _RUNTIMES and named is None:
            yield from (draft for draft in drafts if may_be_chosen(draft.document.obj, model))
        elif kind in _RUNTIMES and named == name:
            yield from drafts
