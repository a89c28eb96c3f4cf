"""The one way in: texts and options to new texts, new objects and findings. Pure.

Every object is planned for itself; then plans that must agree are made to, and each text is edited. What a text does
not allow is taken back as a whole: a pod is converted entirely or not at all.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from dra_driver.api.documents import Document, ReadDocuments, read_documents
from dra_driver.migration.claims.plans import DocumentPlan, labelled, wanted_plans
from dra_driver.migration.claims.publishing import publishing
from dra_driver.migration.codes import NOT_EDITABLE, FindingSeverity
from dra_driver.migration.counts import quotas
from dra_driver.migration.model import (
    FieldChange,
    ManifestText,
    Migration,
    MigrationFinding,
    Options,
    place_of,
    ref_of,
)
from dra_driver.migration.read.kustomize import kustomizations
from dra_driver.migration.read.overlays import Overlays, overlays
from dra_driver.migration.read.unrendered import delivers, is_refused, is_sealed, problem_finding, template_findings
from dra_driver.migration.text.changes import changed, differences
from dra_driver.migration.understand import surroundings
from dra_driver.migration.understand.surroundings import Meaning
from dra_driver.migration.write.output import Output


def migrate(sources: Sequence[ManifestText], options: Options, side: Sequence[ManifestText] = ()) -> Migration:
    """`side` is read for what it says about the cluster, and never changed."""
    read = [(source, read_documents(source.text, source.file)) for source in sources]
    beside = [(source, read_documents(source.text, source.file)) for source in side]
    documents = [
        document for source, reading in read if not is_refused(source, reading) for document in reading.documents
    ]
    told = [document for _, reading in beside for document in reading.documents]
    known = [*documents, *told]
    meaning = surroundings.read(known, options, told)
    over = overlays(kustomizations(documents), {source.file: source.text for source in sources})
    plans = wanted_plans(documents, over, meaning, options)
    counted = _counted(documents, over, known, plans, meaning, options)
    out = Output(sources, over.folders)
    out.take(_with_counted(plans, counted))
    counting = tuple(_as_it_came(counted, out.plans))
    offered = publishing(meaning, out.demands, options)
    reported = _without_known((finding for plan in out.plans for finding in plan.findings), counting)
    workloads = tuple(workload for plan in out.plans for workload in plan.workloads)
    findings = (
        *_unread([*read, *beside], over.files),
        *meaning.findings,
        *reported,
        *counting,
    )
    return Migration(
        out.files(),
        out.new_files(),
        tuple(out.objects),
        workloads,
        tuple(dict.fromkeys(findings)),
        offered.policy,
        offered.values,
        offered.reasons,
        tuple(change for plan in out.plans for change in _changes(plan)),
    )


def _changes(plan: DocumentPlan) -> Iterator[FieldChange]:
    document = plan.document
    for path, was, now in differences(document.obj, changed(document.obj, plan.all_edits)):
        yield FieldChange(ref_of(document), place_of(document, path), was, now)


def _counted(
    documents: Iterable[Document],
    over: Overlays,
    known: Iterable[Document],
    plans: Iterable[DocumentPlan],
    meaning: Meaning,
    options: Options,
) -> quotas.QuotaResult:
    """What quotas and queues are to say once these plans are carried out."""
    workloads = [workload for plan in plans for workload in plan.workloads]
    deciding = [document for document in known if not delivers(document)]
    changeable = frozenset(
        document for document in documents if not is_sealed(document) and document.file not in over.files
    )
    return quotas.rewrite(deciding, workloads, meaning, options, changeable)


def _with_counted(plans: Sequence[DocumentPlan], counted: quotas.QuotaResult) -> list[DocumentPlan]:
    workloads = [workload for plan in plans for workload in plan.workloads]
    more = {some.document: some.edits for some in counted.edits}
    return [labelled(plan, workloads).with_edits(more.get(plan.document, ())) for plan in plans]


def _as_it_came(counted: quotas.QuotaResult, plans: Iterable[DocumentPlan]) -> Iterator[MigrationFinding]:
    """What was to be done in documents that turned out not to be editable is for a person to do."""
    wanted = {some.document for some in counted.edits}
    left = [plan.document for plan in plans if plan.document in wanted and not plan.all_edits]
    refused = {(document.file, ref_of(document)) for document in left}
    for finding in counted.findings:
        if finding.fixed and (finding.place.file, finding.object) in refused:
            advice = "This could not be written into the file: do it by hand."
            yield replace(finding, fixed=False, severity=FindingSeverity.WARNING, advice=advice)
        else:
            yield finding


def _without_known(
    findings: Iterable[MigrationFinding], others: Iterable[MigrationFinding]
) -> Iterator[MigrationFinding]:
    """Without `NOT_EDITABLE` at places about which the others say more."""
    known = {finding.place for finding in others}
    return (finding for finding in findings if finding.code is not NOT_EDITABLE or finding.place not in known)


def _unread(read: Iterable[tuple[ManifestText, ReadDocuments]], patches: frozenset[str]) -> Iterator[MigrationFinding]:
    for source, reading in read:
        if is_refused(source, reading):
            yield from template_findings(source)
        else:
            for problem in reading.problems if source.file not in patches else ():
                finding = problem_finding(problem, source.text)
                if finding is not None:
                    yield finding
