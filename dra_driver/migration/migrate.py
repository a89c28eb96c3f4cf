"""Entry point of the migration: texts and options to new texts, new objects and findings. Pure.

Every object is planned for itself; then plans that must agree are made to, and each text is edited. What a text does
not allow is taken back as a whole: a pod is converted entirely or not at all.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from dra_driver.api.documents import Document, ReadDocuments, read_documents
from dra_driver.authoring.writing import Noted, written
from dra_driver.checking.codes import Severity
from dra_driver.grouping import grouped
from dra_driver.migration.claims.plans import DocumentPlan, refused, wanted_plans
from dra_driver.migration.claims.publishing import publishing
from dra_driver.migration.codes import NOT_EDITABLE
from dra_driver.migration.counts import quotas
from dra_driver.migration.model import (
    Demand,
    FieldChange,
    FileResult,
    ManifestText,
    Migration,
    MigrationFinding,
    MigrationTarget,
    NewObject,
    ObjectRef,
    Options,
    place_of,
    ref_of,
    title_of,
)
from dra_driver.migration.read.kustomize import overlays
from dra_driver.migration.read.unrendered import delivers, is_refused, is_sealed, problem_finding, template_findings
from dra_driver.migration.text.edit import rewritten
from dra_driver.migration.text.edited import EditRefused, changed, differences
from dra_driver.migration.text.tree import Splice, header_length, spliced
from dra_driver.migration.understand import surroundings


class Output:
    """Collects edits and new objects. If one edit of a text is refused, nothing of the text is edited."""

    def __init__(self, sources: Sequence[ManifestText]) -> None:
        self.plans: list[DocumentPlan] = []
        self.objects: list[NewObject] = []
        self._sources = sources
        self._present: set[tuple[str, ObjectRef]] = set()
        """Objects that a file has, or gets."""
        self._splices: dict[str, list[Splice]] = {source.file: [] for source in sources}
        self._apart: dict[str, list[NewObject]] = {}

    def take(self, plans: Sequence[DocumentPlan]) -> None:
        self._present |= {(plan.document.file, ref_of(plan.document)) for plan in plans}
        for together in grouped(plans, lambda plan: (plan.document.file, plan.document.written.start)).values():
            self._take_text(together)

    @property
    def demands(self) -> Iterator[Demand]:
        """Of what gets claims."""
        for plan in self.plans:
            for workload in plan.workloads:
                if workload.choice.target is MigrationTarget.CLAIMS:
                    yield from workload.reading.demands

    def _take_text(self, plans: list[DocumentPlan]) -> None:
        file = plans[0].document.file
        try:
            edits = {plan.document: plan.all_edits for plan in plans if plan.all_edits}
            splices = rewritten(edits) if edits else ()
            new = [obj for plan in plans for obj in self._new_objects(plan)]
        except EditRefused as error:
            plans = [refused(plan, str(error)) for plan in plans]
            splices, new = (), []
        self.plans += plans
        self.objects += new
        if new and plans[0].document.written.text.lstrip().startswith("{"):
            path = PurePosixPath(file)
            self._apart.setdefault(str(path.with_name(f"{path.stem}-claims.yaml")), []).extend(new)
        elif new:
            self._splices[file].append(_in_front_of(plans[0].document, new))
        self._splices[file] += splices

    def _new_objects(self, plan: DocumentPlan) -> Iterator[NewObject]:
        """Templates that the document's file does not have yet."""
        for claim in plan.claims:
            if (plan.document.file, claim.ref) not in self._present:
                self._present.add((plan.document.file, claim.ref))
                yield NewObject(claim.template, plan.document.file, f"What {title_of(plan.document)} asks for.")

    def files(self) -> tuple[FileResult, ...]:
        return tuple(
            FileResult(source.file, source.text, spliced(source.text, self._splices[source.file]))
            for source in self._sources
        )

    def new_files(self) -> tuple[ManifestText, ...]:
        return tuple(ManifestText(file, _objects_text(objects)) for file, objects in self._apart.items())


def _in_front_of(document: Document, objects: Sequence[NewObject]) -> Splice:
    """New objects in front of the text that needs them, as documents of their own, and below the header of a file."""
    place = document.written
    new = _objects_text(objects)
    text = f"---\n{new}" if place.text.startswith("---") else f"{new}---\n"
    start = place.start + header_length(place.text)
    return Splice(start, start, text)


def _objects_text(objects: Sequence[NewObject]) -> str:
    """YAML documents, each below a comment that says what it is for."""
    return written([Noted(obj.reason, obj.obj) for obj in objects])


def migrate(sources: Sequence[ManifestText], options: Options, side: Sequence[ManifestText] = ()) -> Migration:
    """`side` is read for what it says about the cluster, and never changed."""
    read = [(source, read_documents(source.text, source.file)) for source in sources]
    beside = [(source, read_documents(source.text, source.file)) for source in side]
    documents = [
        document for source, reading in read if not is_refused(source, reading) for document in reading.documents
    ]
    beside_documents = [document for _, reading in beside for document in reading.documents]
    known = [*documents, *beside_documents]
    meaning = surroundings.read(known, options, beside_documents)
    over = overlays(documents, {source.file: source.text for source in sources})
    plans = wanted_plans(documents, over, meaning, options)
    counted = quotas.rewrite(
        [document for document in known if not delivers(document)],
        [workload for plan in plans for workload in plan.workloads],
        meaning,
        options,
        [document for document in documents if not is_sealed(document) and document.file not in over.patches],
    )
    out = Output(sources)
    out.take([replace(plan, edits=(*plan.edits, *counted.edits.get(plan.document, ()))) for plan in plans])
    counting = tuple(_as_it_came(counted, out.plans))
    offered = publishing(meaning, out.demands, options)
    reported = _without_known((finding for plan in out.plans for finding in plan.findings), counting)
    workloads = tuple(workload for plan in out.plans for workload in plan.workloads)
    findings = (*_unread([*read, *beside], over.patches), *meaning.findings, *reported, *counting)
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


def _as_it_came(counted: quotas.QuotaResult, plans: Iterable[DocumentPlan]) -> Iterator[MigrationFinding]:
    """Findings as planned; in documents that could not be edited a person must do it."""
    left = [plan.document for plan in plans if plan.document in counted.edits and not plan.all_edits]
    refused = {(document.file, ref_of(document)) for document in left}
    for finding in counted.findings:
        if finding.fixed and (finding.place.file, finding.object) in refused:
            advice = "This could not be written into the file: do it by hand."
            yield replace(finding, fixed=False, severity=Severity.WARNING, advice=advice)
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
