"""The one way in: texts and options to new texts, new objects and findings. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePosixPath

from dra_driver.api.documents import BadDocument, Document, normalized, read_documents
from dra_driver.authoring.writing import Noted, written
from dra_driver.migration import reading, surroundings
from dra_driver.migration.changes import EditRefused
from dra_driver.migration.claims import Claims, claims_for
from dra_driver.migration.codes import NOT_EDITABLE, UNREADABLE
from dra_driver.migration.edit import Splice, rewritten, spliced
from dra_driver.migration.kinds import pods_of
from dra_driver.migration.model import (
    Choice,
    Edit,
    FileResult,
    Finding,
    Migration,
    NewObject,
    ObjectRef,
    Options,
    Place,
    Source,
    Target,
    Workload,
    finding,
    ref_of,
)
from dra_driver.migration.strategy import choose
from dra_driver.migration.surroundings import Meaning


def migrate(sources: Sequence[Source], options: Options, side: Sequence[Source] = ()) -> Migration:
    """`side` is read for what it says about the cluster, and never changed."""
    read = [(source, read_documents(source.text, source.file)) for source in sources]
    beside = [read_documents(source.text, source.file) for source in side]
    documents = [document for _, one in read for document in one.documents]
    meaning = surroundings.read([*documents, *(document for one in beside for document in one.documents)], options)
    findings = [_unreadable(problem) for one in (*(one for _, one in read), *beside) for problem in one.problems]
    findings += meaning.findings
    known = {_key(document) for document in documents}
    files: list[_File] = []
    for source, one in read:
        plans = [_plan(document, meaning, options) for document in one.documents]
        files.append(_file(source, _carried_out(plans), known))
    return Migration(
        tuple(one.result for one in files),
        tuple(new for one in files for new in one.new_files),
        tuple(new for one in files for new in one.objects),
        tuple(workload for one in files for workload in one.workloads),
        (*findings, *(said for one in files for said in one.findings)),
        meaning.policy,
        meaning.chart_values,
    )


def _unreadable(problem: BadDocument) -> Finding:
    place = Place(problem.file, problem.line)
    message = f"column {problem.column}: {problem.message}"
    return Finding(
        UNREADABLE, UNREADABLE.severity, ObjectRef("", None, problem.file), place, message, UNREADABLE.advice
    )


# -- one document


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    document: Document
    workloads: tuple[Workload, ...] = ()
    claims: tuple[Claims, ...] = ()
    edits: tuple[Edit, ...] = ()
    findings: tuple[Finding, ...] = ()


def _plan(document: Document, meaning: Meaning, options: Options) -> _Plan:
    workloads: list[Workload] = []
    claims: list[Claims] = []
    findings: list[Finding] = []
    for pod in pods_of(document, unknown_kinds=options.unknown_kinds):
        read = reading.demands(pod, meaning, options)
        findings += read.findings
        if not read.demands:
            continue
        choice = choose(pod, read, options)
        templates: tuple[ObjectRef, ...] = ()
        if choice.target is Target.CLAIMS:
            wanted = claims_for(pod, read, options)
            claims.append(wanted)
            templates = (wanted.ref,)
            findings += read.claim_findings
        elif choice.target is Target.EXTENDED:
            findings += read.extended_findings
        workloads.append(Workload(pod, read, choice, templates))
    edits = tuple(edit for one in claims for edit in one.edits)
    return _Plan(document, tuple(workloads), tuple(claims), edits, tuple(findings))


# -- one text of one or several documents


@dataclass(frozen=True, slots=True, eq=False)
class _Text:
    """A part of a file, carried out."""

    plans: tuple[_Plan, ...]
    splices: tuple[Splice, ...] = ()


def _carried_out(plans: Iterable[_Plan]) -> Iterator[_Text]:
    for _, some in groupby(plans, key=lambda plan: plan.document.written.start):
        together = tuple(some)
        edits = {plan.document: plan.edits for plan in together if plan.edits}
        if not edits:
            yield _Text(together)
            continue
        try:
            yield _Text(together, rewritten(edits))
        except EditRefused as error:
            yield _Text(tuple(_refused(plan, str(error)) for plan in together))


def _refused(plan: _Plan, reason: str) -> _Plan:
    """All that was to be edited stays as it is."""
    if not plan.edits:
        return plan
    workloads = tuple(
        Workload(one.pod, one.reading, Choice(Target.LEAVE, reason)) if one.choice.target is Target.CLAIMS else one
        for one in plan.workloads
    )
    findings = tuple(workload_finding for workload_finding in plan.findings if not workload_finding.fixed)
    said = finding(NOT_EDITABLE, plan.document, (), f"nothing was changed: {reason}")
    return _Plan(plan.document, workloads, (), (), (*findings, said))


# -- one file


@dataclass(frozen=True, slots=True, eq=False)
class _File:
    result: FileResult
    new_files: tuple[Source, ...]
    objects: tuple[NewObject, ...]
    workloads: tuple[Workload, ...]
    findings: tuple[Finding, ...]


type _Key = tuple[str, str | None, str]


def _key(document: Document) -> _Key:
    return document.kind, document.namespace, document.name


def _file(source: Source, texts: Iterator[_Text], known: set[_Key]) -> _File:
    """`known` are all objects that there are already, and gets those that are added."""
    splices: list[Splice] = []
    objects: list[NewObject] = []
    apart: list[NewObject] = []
    plans: list[_Plan] = []
    is_json = normalized(source.text).lstrip().startswith("{")
    for text in texts:
        plans += text.plans
        new = list(_new_objects(text.plans, known))
        objects += new
        place = text.plans[0].document.written
        if is_json:
            apart += new
        elif new:
            splices.append(_before(place.start, place.text, new))
        splices += text.splices
    after = spliced(source.text, splices)
    return _File(
        FileResult(source.file, source.text, after),
        _apart(source.file, apart),
        tuple(objects),
        tuple(workload for plan in plans for workload in plan.workloads),
        tuple(said for plan in plans for said in plan.findings),
    )


def _new_objects(plans: Iterable[_Plan], known: set[_Key]) -> Iterator[NewObject]:
    for plan in plans:
        for one in plan.claims:
            ref = one.ref
            key = (ref.kind, ref.namespace, ref.name)
            if key not in known:
                known.add(key)
                yield NewObject(one.template, plan.document.file, f"What {ref_of(plan.document)} asks for.")


def _before(start: int, text: str, objects: Sequence[NewObject]) -> Splice:
    """New objects in front of the text that needs them, as documents of their own."""
    new = _yaml(objects)
    if text.startswith("---"):
        return Splice(start, start, f"---\n{new}")
    return Splice(start, start, f"{new}---\n")


def _yaml(objects: Sequence[NewObject]) -> str:
    return written([Noted(one.reason, one.obj) for one in objects])


def _apart(file: str, objects: Sequence[NewObject]) -> tuple[Source, ...]:
    if not objects:
        return ()
    path = PurePosixPath(file)
    return (Source(str(path.with_name(f"{path.stem}-claims.yaml")), _yaml(objects)),)
