"""The one way in: texts and options to new texts, new objects and findings. Pure.

Every object is planned for itself; then plans that must agree are made to (a patch and what it patches), each text is
edited, and what a text does not allow is taken back as a whole: a pod is converted entirely or not at all.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dra_driver.api.documents import Document, Reading, read_documents
from dra_driver.api.meta import JsonObject
from dra_driver.migration import quotas, surroundings
from dra_driver.migration.agreed_drafts import patches_of_gpus
from dra_driver.migration.agreement import Part
from dra_driver.migration.building import Tree, key_of
from dra_driver.migration.changes import changed
from dra_driver.migration.codes import NOT_EDITABLE, Severity
from dra_driver.migration.commuting import Strayed, strayed
from dra_driver.migration.drafting import drafted
from dra_driver.migration.kserve import for_other_namespaces
from dra_driver.migration.kueue_configuration import holds_configuration
from dra_driver.migration.kustomize import Kustomization, kustomizations, labels_of_a_patch
from dra_driver.migration.model import Finding, Migration, Options, Source, StrategyOption, ref_of
from dra_driver.migration.output import Output
from dra_driver.migration.plans import Plan, labelled, planned, wanted_plans
from dra_driver.migration.publishing import publishing
from dra_driver.migration.surroundings import Meaning
from dra_driver.migration.undo import changes
from dra_driver.migration.unrendered import delivers, is_refused, is_sealed, problem_finding, template_findings

_NOT_HERE = (
    "it is a patch, and what it patches is not among the files that were given; migrate what kustomize renders instead "
    "(kubectl kustomize FOLDER | dractl migrate -)"
)


@dataclass(frozen=True, slots=True, eq=False)
class _Given:
    """All that plans are made of."""

    sources: Sequence[Source]
    documents: Sequence[Document]
    kustomized: Sequence[Kustomization]
    json_patches: Sequence[Part]
    tree: Tree
    meaning: Meaning
    options: Options


def migrate(sources: Sequence[Source], options: Options, side: Sequence[Source] = ()) -> Migration:
    """`side` is read for what it says about the cluster, and never changed."""
    read = [(source, read_documents(source.text, source.file)) for source in sources]
    beside = [(source, read_documents(source.text, source.file)) for source in side]
    documents = [document for source, one in read if not is_refused(source, one) for document in one.documents]
    told = [document for _, one in beside for document in one.documents]
    known = [*documents, *told]
    meaning = surroundings.read(known, options, told)
    kustomized = kustomizations(documents)
    json_patches = tuple(patches_of_gpus(kustomized, read))
    given = _Given(sources, documents, kustomized, json_patches, _tree(kustomized, read), meaning, options)
    plans, lost = _settled(given)
    of_patches = [labels_of_a_patch(one, *rest) for one in kustomized for rest in _of_folder(lost, one)]
    counted = _counted(given, known, plans)
    out = Output(sources, kustomized)
    out.take(_with_counted(plans, counted), options)
    counting = tuple(_as_it_came(counted, out.plans))
    for new in counted.objects:
        out.add(new)
    offered = publishing(meaning, out.demands, options)
    said = _unsaid((one for plan in out.plans for one in plan.all_findings), counting)
    workloads = tuple(workload for plan in out.plans for workload in plan.all_workloads)
    elsewhere = for_other_namespaces(workloads, known)
    findings = (*_unread([*read, *beside]), *meaning.findings, *of_patches, *said, *elsewhere, *counting, *out.findings)
    return Migration(
        out.files(),
        out.new_files(),
        tuple(out.objects),
        workloads,
        tuple(dict.fromkeys(findings)),
        offered.policy,
        offered.values,
        offered.reasons,
        counted.settings,
        tuple(one for plan in out.plans for part in plan.with_inner for one in changes(part.document, part.all_edits)),
    )


def _tree(kustomized: Sequence[Kustomization], read: Iterable[tuple[Source, Reading]]) -> Tree:
    """Empty where nothing is for kustomize."""
    followed = [(source, one) for source, one in read if kustomized and not is_refused(source, one)]
    return Tree(
        {source.file: source.text for source, _ in followed}, {source.file: one.documents for source, one in followed}
    )


def _settled(given: _Given) -> tuple[list[Plan], Strayed]:
    """Plans that make of every folder what they make of its parts; what would stray has no claims."""
    apart = dict.fromkeys(given.tree.orphans, _NOT_HERE)
    while True:
        plans = wanted_plans(
            given.documents, given.kustomized, given.json_patches, given.tree, apart, given.meaning, given.options
        )
        lost = _lost(given, plans)
        if lost.reasons.keys() <= apart.keys():
            return plans, lost
        apart = {**lost.reasons, **apart}


def _lost(given: _Given, plans: Sequence[Plan]) -> Strayed:
    """Where claims make something else of what kustomize builds."""
    converted = {key_of(plan.document) for one in plans for plan in one.with_inner if plan.claims}
    if not given.tree.folders or not converted:
        return Strayed()
    out = Output(given.sources, given.kustomized)
    out.take(plans, given.options)
    after = {one.file: one.after for one in out.files()} | {one.file: one.text for one in out.new_files()}
    wanted = replace(given.options, strategy=StrategyOption.CLAIMS)

    def alone(obj: JsonObject) -> tuple[JsonObject, Sequence[JsonObject]]:
        (document,) = read_documents(json.dumps(obj), "").documents
        plan = planned(drafted(document, given.meaning, wanted, patch=False), wanted)
        return changed(obj, plan.all_edits), [one.template for one in plan.all_claims]

    return strayed(given.tree, given.tree.after(after), converted, alone)


def _counted(given: _Given, known: Iterable[Document], plans: Iterable[Plan]) -> quotas.QuotaResult:
    """What quotas and queues are to say once these plans are carried out."""
    workloads = [workload for plan in plans for workload in plan.all_workloads]
    deciding = [one for one in known if not delivers(one) or holds_configuration(one)]
    changeable = frozenset(one for one in given.documents if not is_sealed(one))
    return quotas.rewrite(deciding, workloads, given.meaning, given.options, changeable)


def _with_counted(plans: Sequence[Plan], counted: quotas.QuotaResult) -> list[Plan]:
    workloads = [workload for plan in plans for workload in plan.all_workloads]
    more = {some.document: some.edits for some in counted.edits}
    plans = [labelled(plan, workloads).with_edits(more.get(plan.document, ())) for plan in plans]
    return [replace(plan, objects=counted.beside.get(plan.document, ())) for plan in plans]


def _as_it_came(counted: quotas.QuotaResult, plans: Iterable[Plan]) -> Iterator[Finding]:
    """What was to be done in documents that turned out not to be editable is for a person to do."""
    wanted = {some.document for some in counted.edits}
    left = [plan.document for plan in plans if plan.document in wanted and not plan.all_edits]
    refused = {(document.file, ref_of(document)) for document in left}
    for one in counted.findings:
        if one.fixed and (one.place.file, one.object) in refused:
            advice = "This could not be written into the file: do it by hand."
            yield replace(one, fixed=False, severity=Severity.WARNING, advice=advice)
        else:
            yield one


def _of_folder(lost: Strayed, one: Kustomization) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield from ((title, labels) for (folder, title), labels in lost.labels.items() if folder == one.folder)


def _unsaid(said: Iterable[Finding], others: Iterable[Finding]) -> Iterator[Finding]:
    """Without texts that are known only to speak of GPUs where others know what they are."""
    known = {one.place for one in others}
    return (one for one in said if one.code is not NOT_EDITABLE or one.place not in known)


def _unread(read: Iterable[tuple[Source, Reading]]) -> Iterator[Finding]:
    for source, one in read:
        if is_refused(source, one):
            yield from template_findings(source)
        else:
            for problem in one.problems:
                said = problem_finding(problem, source.text)
                if said is not None:
                    yield said
