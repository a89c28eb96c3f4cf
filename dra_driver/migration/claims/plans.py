"""What is planned for each document: its claims, its edits, what is said of it. Pure.

A pod is converted entirely or not at all: where one step of a document cannot be taken, its plan is to leave it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dra_driver.api.documents import Document
from dra_driver.migration.claims.drafting import Draft, agree, drafted, render_first, without_claims
from dra_driver.migration.claims.frameworks import after_claims
from dra_driver.migration.claims.strategy import of_form, of_the_cluster, too_old, why_too_old
from dra_driver.migration.claims.templates import Claims, claims_for
from dra_driver.migration.codes import NOT_EDITABLE
from dra_driver.migration.model import (
    Choice,
    Edit,
    MigrationFinding,
    MigrationTarget,
    Options,
    Path,
    Put,
    Workload,
    finding,
    title_of,
    value_at,
)
from dra_driver.migration.read.overlays import OverlayChange, Overlays
from dra_driver.migration.text.changes import EditRefused, changed, differences
from dra_driver.migration.understand.surroundings import Meaning
from dra_driver.names import ADMIN_ACCESS_LABEL
from dra_driver.phrases import and_more


@dataclass(frozen=True, slots=True, eq=False)
class DocumentPlan:
    """For one document. `edits` are made besides those that the claims need."""

    document: Document
    workloads: tuple[Workload, ...] = ()
    claims: tuple[Claims, ...] = ()
    edits: tuple[Edit, ...] = ()
    findings: tuple[MigrationFinding, ...] = ()

    @property
    def all_edits(self) -> tuple[Edit, ...]:
        return (*(edit for claim in self.claims for edit in claim.edits), *self.edits)

    def with_edits(self, edits: Iterable[Edit]) -> "DocumentPlan":
        return replace(self, edits=(*self.edits, *edits))


def wanted_plans(
    documents: Sequence[Document], over: Overlays, meaning: Meaning, options: Options
) -> list[DocumentPlan]:
    """What is wanted for each document, and for each patch of a kustomization, whose text is never edited."""
    drafts = [drafted(document, meaning, options) for document in documents if document.file not in over.files]
    for draft in drafts:
        if draft.document.file in over.texts:
            without_claims(draft, "a kustomization makes a text in a ConfigMap or Secret of its file", options)
    told: dict[OverlayChange, list[str]] = {}
    for draft in drafts:
        _render_first(draft, over, told, options)
    agree(drafts, over.folders, options)
    patches = [
        drafted(part, meaning, options, render=change.commands) for change in over.changes for part in change.parts
    ]
    plans = [planned(draft, options) for draft in (*drafts, *patches)]
    return [replace(plan, findings=(*plan.findings, *_overlay_findings(plan.document, told))) for plan in plans]


def _render_first(draft: Draft, over: Overlays, told: dict[OverlayChange, list[str]], options: Options) -> None:
    """Takes claims back where a kustomization changes what they would change, and says so in `told`."""
    changes = list(over.of(draft.document))
    if not changes:
        return
    plan = planned(draft, options)
    fields = [path for path, _, _ in differences(draft.document.obj, changed(draft.document.obj, plan.all_edits))]
    met = [(change, field) for change in changes if (field := change.meets(fields)) is not None]
    for change, field in met:
        told.setdefault(change, []).append(f"{field} of {title_of(draft.document)}")
    if met:
        change, field = met[0]
        reason = f"{change.where} is {change.what}, and concerns {field}; render, then migrate"
        without_claims(draft, reason, options)


def _overlay_findings(document: Document, told: Mapping[OverlayChange, Sequence[str]]) -> Iterator[MigrationFinding]:
    """Of a kustomization: what it changes that the migration would change, too."""
    for change, fields in told.items():
        if change.kustomization is document:
            message = f"is {change.what}, and concerns {and_more(fields, 1)}, which was left as it is"
            yield finding(NOT_EDITABLE, document, change.at, message, advice=render_first(change.commands))


def planned(draft: Draft, options: Options) -> DocumentPlan:
    """Claims and edits as the choices of the draft want them."""
    workloads: list[Workload] = []
    claims: list[Claims] = []
    findings = list(draft.findings)
    for asking in draft.asking:
        workload = Workload(asking.pod, asking.reading, asking.choice)
        if asking.choice.target is MigrationTarget.CLAIMS:
            try:
                wanted = claims_for(asking.pod, asking.reading, options)
            except EditRefused as error:
                return _left(draft, str(error))
            reason = why_too_old(wanted.template, options)
            if reason is None:
                claims.append(wanted)
                workload = replace(workload, templates=(wanted.ref,))
                findings += asking.reading.claim_findings
            else:
                workload = replace(workload, choice=Choice(MigrationTarget.LEAVE, reason))
                findings.append(too_old(workload, reason))
        elif asking.choice.target is MigrationTarget.EXTENDED:
            findings += asking.reading.extended_findings
        findings += of_form(workload, options)
        findings += of_the_cluster(workload)
        workloads.append(workload)
    edits, said = after_claims(workloads, options)
    return DocumentPlan(draft.document, tuple(workloads), tuple(claims), edits, (*findings, *said))


def _left(draft: Draft, reason: str) -> DocumentPlan:
    """Nothing of the document is changed, because something of it cannot be."""
    workloads = tuple(
        Workload(asking.pod, asking.reading, Choice(MigrationTarget.LEAVE, reason)) for asking in draft.asking
    )
    said = finding(NOT_EDITABLE, draft.document, (), f"nothing was changed: {reason}")
    return DocumentPlan(draft.document, workloads, findings=(*draft.findings, said))


def labelled(plan: DocumentPlan, workloads: Iterable[Workload]) -> DocumentPlan:
    """Admin access is for namespaces that say so."""
    if plan.document.kind != "Namespace":
        return plan
    path: Path = ("metadata", "labels", ADMIN_ACCESS_LABEL)
    wanted = any(
        workload.choice.target is MigrationTarget.CLAIMS
        and workload.pod.document.namespace == plan.document.name
        and any(demand.all_gpus for demand in workload.reading.demands)
        for workload in workloads
    )
    if not wanted or value_at(plan.document.obj, path) == "true":
        return plan
    return plan.with_edits((Put(path, "true"),))


def refused(plan: DocumentPlan, reason: str) -> DocumentPlan:
    """All that was to be edited stays as it is."""
    workloads = tuple(
        replace(workload, choice=Choice(MigrationTarget.LEAVE, reason), templates=())
        if workload.choice.target is MigrationTarget.CLAIMS
        else workload
        for workload in plan.workloads
    )
    if not plan.all_edits:
        return plan
    findings = tuple(finding for finding in plan.findings if not finding.fixed)
    said = finding(NOT_EDITABLE, plan.document, (), f"nothing was changed: {reason}")
    return DocumentPlan(plan.document, workloads, findings=(*findings, said))
