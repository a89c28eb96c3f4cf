"""The one way in: texts and options to new texts, new objects and findings. Pure.

Every object is planned for itself; then plans that must agree are made to, and each text is edited. What a text does
not allow is taken back as a whole: a pod is converted entirely or not at all.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from dra_driver.api.documents import Document, Reading, read_documents
from dra_driver.migration.claims.plans import Plan, labelled, wanted_plans
from dra_driver.migration.claims.publishing import publishing
from dra_driver.migration.codes import NOT_EDITABLE, Severity
from dra_driver.migration.counts import quotas
from dra_driver.migration.model import Change, Finding, Migration, Options, Source, ref_of
from dra_driver.migration.read.kustomize import kustomizations
from dra_driver.migration.read.overlays import Overlays, overlays
from dra_driver.migration.read.unrendered import delivers, is_refused, is_sealed, problem_finding, template_findings
from dra_driver.migration.understand import surroundings
from dra_driver.migration.understand.surroundings import Meaning
from dra_driver.migration.write.output import Output
from dra_driver.migration.write.undo import changes


def migrate(sources: Sequence[Source], options: Options, side: Sequence[Source] = ()) -> Migration:
    """`side` is read for what it says about the cluster, and never changed."""
    read = [(source, read_documents(source.text, source.file)) for source in sources]
    beside = [(source, read_documents(source.text, source.file)) for source in side]
    documents = [document for source, one in read if not is_refused(source, one) for document in one.documents]
    told = [document for _, one in beside for document in one.documents]
    known = [*documents, *told]
    meaning = surroundings.read(known, options, told)
    over = overlays(kustomizations(documents), {source.file: source.text for source in sources})
    plans = wanted_plans(documents, over, meaning, options)
    counted = _counted(documents, over, known, plans, meaning, options)
    out = Output(sources, over.folders)
    out.take(_with_counted(plans, counted), options)
    counting = tuple(_as_it_came(counted, out.plans))
    offered = publishing(meaning, out.demands, options)
    said = _unsaid((one for plan in out.plans for one in plan.all_findings), counting)
    workloads = tuple(workload for plan in out.plans for workload in plan.all_workloads)
    findings = (
        *_unread([*read, *beside], over.files),
        *meaning.findings,
        *said,
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
        tuple(one for plan in out.plans for one in _changes(plan)),
    )


def _changes(plan: Plan) -> Iterator[Change]:
    for part in plan.with_inner:
        yield from changes(part.document, part.all_edits)


def _counted(
    documents: Iterable[Document],
    over: Overlays,
    known: Iterable[Document],
    plans: Iterable[Plan],
    meaning: Meaning,
    options: Options,
) -> quotas.QuotaResult:
    """What quotas and queues are to say once these plans are carried out."""
    workloads = [workload for plan in plans for workload in plan.all_workloads]
    deciding = [one for one in known if not delivers(one)]
    changeable = frozenset(one for one in documents if not is_sealed(one) and one.file not in over.files)
    return quotas.rewrite(deciding, workloads, meaning, options, changeable)


def _with_counted(plans: Sequence[Plan], counted: quotas.QuotaResult) -> list[Plan]:
    workloads = [workload for plan in plans for workload in plan.all_workloads]
    more = {some.document: some.edits for some in counted.edits}
    return [labelled(plan, workloads).with_edits(more.get(plan.document, ())) for plan in plans]


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


def _unsaid(said: Iterable[Finding], others: Iterable[Finding]) -> Iterator[Finding]:
    """Without texts that are known only to speak of GPUs where others know what they are."""
    known = {one.place for one in others}
    return (one for one in said if one.code is not NOT_EDITABLE or one.place not in known)


def _unread(read: Iterable[tuple[Source, Reading]], patches: frozenset[str]) -> Iterator[Finding]:
    for source, one in read:
        if is_refused(source, one):
            yield from template_findings(source)
        else:
            for problem in one.problems if source.file not in patches else ():
                said = problem_finding(problem, source.text)
                if said is not None:
                    yield said
