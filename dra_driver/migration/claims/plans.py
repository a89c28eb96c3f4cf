"""What is planned for each document: its claims, its edits, what is said of it. Pure.

A pod is converted entirely or not at all: where one step of a document cannot be taken, its plan is to leave it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dra_driver.api.documents import Document
from dra_driver.api.untyped import Path, maps_in, value_at
from dra_driver.checking.codes import Severity
from dra_driver.migration import codes
from dra_driver.migration.claims.frameworks import after_claims
from dra_driver.migration.claims.strategy import choose, of_form, of_the_cluster, too_old, virtual_machines, why_too_old
from dra_driver.migration.claims.templates import Claims, claims_for
from dra_driver.migration.demands import reading
from dra_driver.migration.demands.resources import strange_resources
from dra_driver.migration.model import (
    Choice,
    ClaimForm,
    Edit,
    MigratedWorkload,
    MigrationFinding,
    MigrationTarget,
    Options,
    finding,
    title_of,
)
from dra_driver.migration.read.kind_table import KSERVE, Kind, is_known, kind_of
from dra_driver.migration.read.kinds import is_part_of_an_object, pods_by_shape, pods_of
from dra_driver.migration.read.kustomize import OverlayChange, Overlays, is_kustomization
from dra_driver.migration.read.unrendered import (
    delivers,
    delivery_findings,
    gpu_keys,
    gpu_texts,
    is_sealed,
    sealed_findings,
    values_findings,
)
from dra_driver.migration.text.edited import changed, differences
from dra_driver.migration.understand.meaning import Meaning
from dra_driver.phrases import and_more


@dataclass(slots=True, eq=False)
class Draft:
    """What a document asks for; `workloads` change while documents are made to agree."""

    document: Document
    workloads: list[MigratedWorkload] = field(default_factory=list)
    findings: list[MigrationFinding] = field(default_factory=list)


def drafted(document: Document, meaning: Meaning, options: Options) -> Draft:
    draft = Draft(document)
    if is_sealed(document) or delivers(document):
        draft.findings += sealed_findings(document) if is_sealed(document) else delivery_findings(document)
        return draft
    if is_kustomization(document):
        return draft
    draft.findings += values_findings(document)
    if is_part_of_an_object(document):
        draft.findings += _of_a_patch(document)
        return draft
    owner = _owner(document)
    for pod in pods_of(document, options):
        read = reading.demands(pod, meaning, options)
        if owner is not None and read.demands:
            message = f"is created by {owner}, so migrate that; this stays unchanged"
            draft.findings.append(finding(codes.NOT_EDITABLE, document, (), message, advice="", severity=Severity.INFO))
            break
        draft.findings += read.findings
        if read.demands:
            draft.workloads.append(MigratedWorkload(pod, read, choose(pod, read, options)))
    draft.findings += virtual_machines(document)
    if not options.unknown_kinds:
        draft.findings += _of_unknown_kind(document, meaning, options)
    if is_known(document.obj):
        draft.findings += _outside_of_pods(document, [pod.path for pod in pods_of(document, options)])
    for path in gpu_texts(document.obj):
        message = "is a text that mentions GPUs; it stays unchanged"
        draft.findings.append(finding(codes.NOT_EDITABLE, document, path, message, advice=_ABOUT_TEXTS))
    return draft


def _of_a_patch(document: Document) -> Iterator[MigrationFinding]:
    for path in list(gpu_keys(document.obj))[:1]:
        message = "is a part of an object (its containers have no image), so it stays unchanged"
        advice = "Render, then migrate: `kubectl kustomize FOLDER | dractl migrate -`."
        yield finding(codes.NOT_EDITABLE, document, path, message, advice=advice)


_ABOUT_TEXTS = (
    "It can stay if it asks for whole devices of a resource that a DeviceClass answers. Otherwise migrate the manifest "
    "in it alone (… | dractl migrate -), and write the result into the text by hand."
)


def _owner(document: Document) -> str | None:
    """The object whose controller makes this one."""
    for owner in maps_in(value_at(document.obj, ("metadata", "ownerReferences"))):
        if owner.get("controller") is True:
            return f"{owner.get('kind')} {owner.get('name')}"
    return None


def _outside_of_pods(document: Document, pods: Sequence[Path]) -> Iterator[MigrationFinding]:
    """Of a kind that is known, in a shape that is not, such as that of an old version: nothing is passed over."""
    for path in gpu_keys(document.obj):
        if path[-2:-1] in (("limits",), ("requests",)) and not any(path[: len(pod)] == pod for pod in pods):
            message = f"asks for GPUs in a place where no pod of a {document.kind} is known; it stays unchanged"
            advice = "Check that the cluster still serves this version."
            yield finding(codes.NOT_EDITABLE, document, path, message, advice=advice)


def _of_unknown_kind(document: Document, meaning: Meaning, options: Options) -> Iterator[MigrationFinding]:
    for pod in pods_by_shape(document):
        if any(True for _ in gpu_keys(pod.spec)):
            message = f"{document.kind} is an unknown kind; this looks like a pod that asks for GPUs"
            advice = (
                "Check whether its controller passes claims to pods; then decide to convert it (`unknownKinds: true`)."
            )
            yield finding(codes.NOT_EDITABLE, document, pod.path, message, advice=advice)
        for container in pod.containers:
            for resource, path in strange_resources(container, meaning, options).items():
                message = f"{resource}: neither its meaning nor what a {document.kind} does with it is known"
                yield finding(codes.UNKNOWN_RESOURCE, document, path, message)


def without_claims(draft: Draft, reason: str, options: Options) -> None:
    draft.workloads = [_unclaimed(workload, reason, options) for workload in draft.workloads]


def _unclaimed(workload: MigratedWorkload, reason: str, options: Options) -> MigratedWorkload:
    if workload.pod.form is ClaimForm.NONE:
        return workload
    pod = replace(workload.pod, form=ClaimForm.NONE, why_no_claims=reason)
    return replace(workload, pod=pod, choice=choose(pod, workload.reading, options))


_MERGED: tuple[tuple[Kind, str, Path, bool], ...] = (
    (KSERVE, "ServingRuntime", ("spec", "predictor", "model", "runtime"), False),
    (("serving.kserve.io", "LLMInferenceService"), "LLMInferenceServiceConfig", ("spec", "baseRefs"), False),
    (("trainer.kubeflow.org", "TrainJob"), "TrainingRuntime", ("spec", "runtimeRef", "name"), True),
)
"""Kinds whose pods are made of two objects: the kind, the kind that it names, also with `Cluster` before it, the field
with the names, and whether it is the named object that keeps the extended resource."""


def agree(drafts: Sequence[Draft], options: Options) -> None:
    """Takes claims back if two documents that make one pod both ask for GPUs: the pod would have both."""
    asking = [draft for draft in drafts if draft.workloads]
    for user, kind, path, named_keeps in _MERGED:
        for draft in (draft for draft in asking if kind_of(draft.document.obj) == user):
            for other in (other for other in asking if other.document.kind.removeprefix("Cluster") == kind):
                if _may_name(draft.document, path, other.document.name):
                    reason = f"{other.document.title} asks for GPUs, too, and {draft.document.title} is made of both"
                    without_claims(other if named_keeps else draft, reason, options)


def _may_name(document: Document, path: Path, name: str) -> bool:
    """Also if it leaves the choice to its controller."""
    value = value_at(document.obj, path)
    if value is None:
        return isinstance(value_at(document.obj, path[:-1]), dict)
    return value == name or (isinstance(value, list) and any(value_at(item, ("name",)) == name for item in value))


@dataclass(frozen=True, slots=True, eq=False)
class DocumentPlan:
    """For one document. `edits` are made besides those that the claims need."""

    document: Document
    workloads: tuple[MigratedWorkload, ...] = ()
    claims: tuple[Claims, ...] = ()
    edits: tuple[Edit, ...] = ()
    findings: tuple[MigrationFinding, ...] = ()

    @property
    def all_edits(self) -> tuple[Edit, ...]:
        return (*(edit for claim in self.claims for edit in claim.edits), *self.edits)


def wanted_plans(
    documents: Sequence[Document], over: Overlays, meaning: Meaning, options: Options
) -> list[DocumentPlan]:
    """What is wanted for each document; files with patches are none."""
    drafts = [drafted(document, meaning, options) for document in documents if document.file not in over.patches]
    met: dict[OverlayChange, list[str]] = {}
    for draft in drafts:
        _render_first(draft, over, met, options)
    agree(drafts, options)
    plans = [planned(draft, options) for draft in drafts]
    return [replace(plan, findings=(*plan.findings, *_overlay_findings(plan.document, over, met))) for plan in plans]


def _render_first(draft: Draft, over: Overlays, met: dict[OverlayChange, list[str]], options: Options) -> None:
    """Takes claims back if a kustomization changes what they would change, and adds the fields to `met`."""
    changes = list(over.of(draft.document))
    if not changes:
        return
    edits = planned(draft, options).all_edits
    fields = [path for path, _, _ in differences(draft.document.obj, changed(draft.document.obj, edits))]
    common = [(change, field) for change in changes if (field := change.meets(fields)) is not None]
    for change, field in common:
        met.setdefault(change, []).append(f"{field} of {title_of(draft.document)}")
    if common:
        change, field = common[0]
        reason = f"{change.where} is {change.what}, and concerns {field}; render, then migrate"
        without_claims(draft, reason, options)


def _overlay_findings(
    document: Document, over: Overlays, met: Mapping[OverlayChange, Sequence[str]]
) -> Iterator[MigrationFinding]:
    """Of a kustomization: what it changes that the migration would change, too, and what it says of GPUs."""
    for change in over.changes:
        if change.kustomization is not document or not (change in met or change.about_gpus):
            continue
        message = f"is {change.what} that asks for GPUs, and is not read further"
        if change in met:
            message = f"is {change.what}, and concerns {and_more(met[change], 1)}, which stays unchanged"
        advice = f"Render, then migrate: {change.commands}."
        yield finding(codes.NOT_EDITABLE, document, change.at, message, advice=advice)


def planned(draft: Draft, options: Options) -> DocumentPlan:
    """Claims and edits as the choices of the draft want them."""
    workloads: list[MigratedWorkload] = []
    claims: list[Claims] = []
    findings = list(draft.findings)
    for workload in draft.workloads:
        if workload.choice.target is MigrationTarget.CLAIMS:
            wanted = claims_for(workload.pod, workload.reading, options)
            reason = why_too_old(wanted.template, options)
            if reason is None:
                claims.append(wanted)
                workload = replace(workload, templates=(wanted.ref,))
                findings += workload.reading.claim_findings
            else:
                workload = replace(workload, choice=Choice(MigrationTarget.LEAVE, reason))
                findings.append(too_old(workload, reason))
        elif workload.choice.target is MigrationTarget.EXTENDED:
            findings += workload.reading.extended_findings
        findings += of_form(workload, options)
        findings += of_the_cluster(workload)
        workloads.append(workload)
    edits, more = after_claims(workloads, options)
    return DocumentPlan(draft.document, tuple(workloads), tuple(claims), edits, (*findings, *more))


def refused(plan: DocumentPlan, reason: str) -> DocumentPlan:
    """Nothing is edited."""
    if not plan.all_edits:
        return plan
    workloads = tuple(
        replace(workload, choice=Choice(MigrationTarget.LEAVE, reason), templates=())
        if workload.choice.target is MigrationTarget.CLAIMS
        else workload
        for workload in plan.workloads
    )
    findings = tuple(finding for finding in plan.findings if not finding.fixed)
    note = finding(codes.NOT_EDITABLE, plan.document, (), f"nothing was changed: {reason}")
    return DocumentPlan(plan.document, workloads, findings=(*findings, note))
