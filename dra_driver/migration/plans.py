"""What is planned for each document: its claims, its edits, what is said of it. Pure.

A pod is converted entirely or not at all: where one step of a document cannot be taken, its plan is to leave it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from dra_driver.api.documents import Document
from dra_driver.migration.agreed_drafts import agree, hinder, in_context
from dra_driver.migration.building import Tree, key_of
from dra_driver.migration.changes import EditRefused
from dra_driver.migration.claims import Claims, claims_for
from dra_driver.migration.codes import NOT_EDITABLE
from dra_driver.migration.drafting import Draft, drafted, keep_extended, with_inner
from dra_driver.migration.frameworks import after_claims
from dra_driver.migration.kserve import managed
from dra_driver.migration.kustomize import Kustomization, is_kustomization
from dra_driver.migration.limits import of_form, of_the_cluster, too_old, why_too_old
from dra_driver.migration.model import (
    Choice,
    Edit,
    Finding,
    NewObject,
    Options,
    Path,
    Put,
    Target,
    Workload,
    finding,
    value_at,
)
from dra_driver.migration.relisting import Narrowed, Relisted
from dra_driver.migration.selecting import Key
from dra_driver.migration.surroundings import Meaning
from dra_driver.names import ADMIN_ACCESS_LABEL


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """Text in a text: what is planned for the documents in it."""

    path: Path
    lines: int
    """How many line ends were put in front of it, so that its lines have the numbers of the file."""
    text: str
    plans: "tuple[Plan, ...]"


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """For one document. `edits` are made besides those that the claims need."""

    document: Document
    workloads: tuple[Workload, ...] = ()
    claims: tuple[Claims, ...] = ()
    edits: tuple[Edit, ...] = ()
    findings: tuple[Finding, ...] = ()
    embedded: tuple[Embedded, ...] = ()
    relisted: tuple[Relisted, ...] = ()
    """Of a kustomization: JSON patches of it that are told anew."""
    narrowed: tuple[Narrowed, ...] = ()
    """Of a kustomization: targets of patches that would be for templates, too."""
    objects: tuple[NewObject, ...] = ()
    """That stand beside it, besides templates."""

    @property
    def all_edits(self) -> tuple[Edit, ...]:
        return (*(edit for one in self.claims for edit in one.edits), *self.edits)

    @property
    def _inner(self) -> "tuple[Plan, ...]":
        return tuple(plan for one in self.embedded for plan in one.plans)

    @property
    def with_inner(self) -> "tuple[Plan, ...]":
        return (self, *(one for plan in self._inner for one in plan.with_inner))

    @property
    def all_claims(self) -> tuple[Claims, ...]:
        own = (*self.claims, *(one for some in self.relisted for one in some.claims))
        return (*own, *(one for plan in self._inner for one in plan.all_claims))

    @property
    def renamable_claims(self) -> tuple[Claims, ...]:
        """Those that objects name in fields, once kustomize has put its patches over them."""
        patches = self._inner if is_kustomization(self.document) else ()
        of_patches = [one for plan in patches for one in plan.renamable_claims]
        return (*self.claims, *(one for some in self.relisted for one in some.claims), *of_patches)

    @property
    def all_workloads(self) -> tuple[Workload, ...]:
        own = (*self.workloads, *(one for some in self.relisted for one in some.workloads))
        return (*own, *(one for plan in self._inner for one in plan.all_workloads))

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        return (*self.findings, *(one for plan in self._inner for one in plan.all_findings))

    def with_edits(self, edits: Iterable[Edit]) -> "Plan":
        return replace(self, edits=(*self.edits, *edits))


def wanted_plans(
    documents: Sequence[Document],
    kustomized: Sequence[Kustomization],
    tree: Tree,
    apart: Mapping[Key, str],
    needed: Mapping[Key, str],
    meaning: Meaning,
    options: Options,
) -> list[Plan]:
    """`apart` are documents that are not to have claims, `needed` those that are to have some, and why."""
    targets = {file: target for one in kustomized for file, target in one.patches.items()}
    texts = frozenset(file for one in kustomized for file in one.texts)
    drafts = [drafted(document, meaning, options, patch=document.file in targets) for document in documents]
    for draft in drafts:
        draft.target = targets.get(draft.document.file)
        if draft.document.file in texts:
            keep_extended(draft, "a kustomization makes a text in a ConfigMap or Secret of its file", options)
    for draft in with_inner(drafts):
        context = tree.contexts.get(key_of(draft.document)) if draft.patch else None
        if context is not None:
            draft.asking = [in_context(one, context, meaning, options) for one in draft.asking]
    hinder(with_inner(drafts), tree, meaning, options)
    agree(list(with_inner(drafts)), kustomized, apart, needed, options)
    return [planned(draft, options) for draft in drafts]


def planned(draft: Draft, options: Options) -> Plan:
    """Claims and edits as the choices of the draft want them."""
    workloads: list[Workload] = []
    claims: list[Claims] = []
    findings = list(draft.findings)
    for one in draft.asking:
        workload = Workload(one.pod, one.reading, one.choice)
        if one.choice.target is Target.CLAIMS:
            try:
                wanted = claims_for(one.pod, one.reading, options)
            except EditRefused as error:
                return _left(draft, str(error))
            reason = why_too_old(wanted.template, options)
            if reason is None:
                claims.append(wanted)
                workload = replace(workload, templates=(wanted.ref,))
                findings += one.reading.claim_findings
            else:
                workload = replace(workload, choice=Choice(Target.LEAVE, reason))
                findings.append(too_old(workload, reason))
        elif one.choice.target is Target.EXTENDED:
            findings += one.reading.extended_findings
        findings += of_form(workload, options)
        findings += of_the_cluster(workload)
        workloads.append(workload)
    edits, said = after_claims(workloads, options)
    own = managed(workloads, claims, options)
    if own.edits is not None:
        workloads = [replace(one, templates=()) for one in workloads]
        claims, edits = [], (*edits, *own.edits)
    embedded = tuple(
        Embedded(path, lines, text, tuple(planned(one, options) for one in inner))
        for path, lines, text, inner in draft.inner
    )
    return Plan(draft.document, tuple(workloads), tuple(claims), edits, (*findings, *said, *own.findings), embedded)


def _left(draft: Draft, reason: str) -> Plan:
    """Nothing of the document is changed, because something of it cannot be."""
    workloads = tuple(Workload(one.pod, one.reading, Choice(Target.LEAVE, reason)) for one in draft.asking)
    said = finding(NOT_EDITABLE, draft.document, (), f"nothing was changed: {reason}")
    return Plan(draft.document, workloads, findings=(*draft.findings, said))


def labelled(plan: Plan, workloads: Iterable[Workload]) -> Plan:
    """Admin access is for namespaces that say so."""
    if plan.document.kind != "Namespace":
        return plan
    path: Path = ("metadata", "labels", ADMIN_ACCESS_LABEL)
    wanted = any(
        workload.choice.target is Target.CLAIMS
        and workload.pod.document.namespace == plan.document.name
        and any(demand.all_gpus for demand in workload.reading.demands)
        for workload in workloads
    )
    if not wanted or value_at(plan.document.obj, path) == "true":
        return plan
    return plan.with_edits((Put(path, "true"),))


def refused(plan: Plan, reason: str) -> Plan:
    """All that was to be edited stays as it is."""
    workloads = tuple(
        replace(one, choice=Choice(Target.LEAVE, reason), templates=()) if one.choice.target is Target.CLAIMS else one
        for one in plan.all_workloads
    )
    if (
        not plan.all_edits
        and not (plan.relisted or plan.narrowed)
        and not any(inner.all_edits for one in plan.embedded for inner in one.plans)
    ):
        return plan
    findings = tuple(one for one in plan.all_findings if not one.fixed)
    said = finding(NOT_EDITABLE, plan.document, (), f"nothing was changed: {reason}")
    return Plan(plan.document, workloads, findings=(*findings, said))
