"""The one way in: texts and options to new texts, new objects and findings. Pure.

Every object is planned for itself; then plans that must agree are made to (a patch and what it patches), each text is
edited, and what a text does not allow is taken back as a whole: a pod is converted entirely or not at all.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dra_driver.api.documents import Document, Reading, read_documents
from dra_driver.migration import quotas, surroundings
from dra_driver.migration.building import Tree, key_of
from dra_driver.migration.by_hand import findings_by_hand
from dra_driver.migration.codes import NOT_EDITABLE, Severity
from dra_driver.migration.commuting import Strayed, strayed
from dra_driver.migration.json_patches import Whole, patched, too_wide, with_patches
from dra_driver.migration.kserve import for_other_namespaces
from dra_driver.migration.kustomize import Kustomization, kustomizations, labels_of_a_patch
from dra_driver.migration.model import Change, Finding, Migration, Options, Path, Source, ref_of
from dra_driver.migration.output import Output
from dra_driver.migration.plans import Plan, labelled, wanted_plans
from dra_driver.migration.publishing import publishing
from dra_driver.migration.queues import names_in_kueue
from dra_driver.migration.selecting import Key
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
    given = _Given(sources, documents, kustomized, _tree(kustomized, read), meaning, options)
    plans, lost, of_json = _settled(given)
    of_patches = [labels_of_a_patch(one, *rest) for one in kustomized for rest in _of_folder(lost, one)]
    counted = _counted(given, known, plans)
    out = Output(sources, kustomized)
    out.take(_with_counted(plans, counted), options)
    counting = tuple(_as_it_came(counted, out.plans))
    offered = publishing(meaning, out.demands, options)
    said = _unsaid((one for plan in out.plans for one in plan.all_findings), counting)
    workloads = tuple(workload for plan in out.plans for workload in plan.all_workloads)
    findings = (
        *_unread([*read, *beside], given.tree),
        *of_json,
        *meaning.findings,
        *of_patches,
        *said,
        *for_other_namespaces(workloads, known),
        *counting,
        *out.findings,
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


def _tree(kustomized: Sequence[Kustomization], read: Iterable[tuple[Source, Reading]]) -> Tree:
    """Empty where nothing is for kustomize."""
    followed = [(source, one) for source, one in read if kustomized and not is_refused(source, one)]
    return Tree(
        {source.file: source.text for source, _ in followed}, {source.file: one.documents for source, one in followed}
    )


def _settled(given: _Given) -> tuple[list[Plan], Strayed, tuple[Finding, ...]]:
    """Plans that make of every folder what they make of its parts; what would stray has no claims."""
    apart = dict.fromkeys(given.tree.orphans, _NOT_HERE)
    needed: dict[Key, str] = {}
    wide: set[tuple[str, Path]] = set()
    kept: dict[Key, str] = {}
    whole = Whole(given.meaning, given.options)
    while True:
        plans = wanted_plans(given.documents, given.kustomized, given.tree, apart, needed, given.meaning, given.options)
        of_json = patched(given.tree, plans, apart, whole)
        # What is apart is not looked at again.
        of_json.kept |= kept
        kept = of_json.kept
        if not of_json.wanted.keys() <= needed.keys():
            needed = {**of_json.wanted, **needed}
            continue
        plans = with_patches(plans, of_json, given.tree, wide)
        converted = {key_of(plan.document) for one in plans for plan in one.with_inner if plan.claims}
        converted |= of_json.converted
        if not given.tree.folders or not converted:
            return plans, Strayed(), tuple(findings_by_hand(given.tree, plans, of_json, apart, whole))
        after = _after(given, plans)
        if not (more := too_wide(given.tree, after)) <= wide:
            wide |= more
            continue
        lost = strayed(given.tree, after, converted, of_json.kept, whole.alone)
        if lost.reasons.keys() <= apart.keys():
            return plans, lost, tuple(findings_by_hand(given.tree, plans, of_json, apart, whole))
        apart = {**lost.reasons, **apart}


def _after(given: _Given, plans: Sequence[Plan]) -> Tree:
    """The files as these plans make them."""
    out = Output(given.sources, given.kustomized)
    out.take(plans, given.options)
    texts = {one.file: one.after for one in out.files()} | {one.file: one.text for one in out.new_files()}
    return given.tree.after(texts)


def _changes(plan: Plan) -> Iterator[Change]:
    for part in plan.with_inner:
        yield from changes(part.document, part.all_edits)
        yield from (one.change(part.document) for one in part.relisted)


def _counted(given: _Given, known: Iterable[Document], plans: Iterable[Plan]) -> quotas.QuotaResult:
    """What quotas and queues are to say once these plans are carried out."""
    workloads = [workload for plan in plans for workload in plan.all_workloads]
    deciding = [one for one in known if not delivers(one)]
    changeable = frozenset(one for one in given.documents if not is_sealed(one))
    return quotas.rewrite(deciding, workloads, given.meaning, given.options, changeable, names_in_kueue(known))


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


def _unread(read: Iterable[tuple[Source, Reading]], tree: Tree) -> Iterator[Finding]:
    known = {one.file for one in tree.json_patches.values()} | tree.replacing
    for source, one in read:
        if is_refused(source, one):
            yield from template_findings(source)
        else:
            for problem in one.problems if source.file not in known else ():
                said = problem_finding(problem, source.text)
                if said is not None:
                    yield said
