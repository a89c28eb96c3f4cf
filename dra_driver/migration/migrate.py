"""The one way in: texts and options to new texts, new objects and findings. Pure.

Every object is planned for itself; then plans that must agree are made to (a patch and what it patches), each text is
edited, and what a text does not allow is taken back as a whole: a pod is converted entirely or not at all.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from dra_driver.api.documents import Document, Reading, normalized, read_documents
from dra_driver.api.meta import JsonObject
from dra_driver.authoring.writing import Noted, written
from dra_driver.migration import quotas, reading, surroundings
from dra_driver.migration.agreement import ALL_CONTAINERS, Part, patched_together, reasons_against_claims
from dra_driver.migration.building import Context, Key, Tree, key_of
from dra_driver.migration.changes import EditRefused, changed
from dra_driver.migration.claims import OWNER, Claims, claims_for
from dra_driver.migration.codes import NOT_EDITABLE, WRITTEN_OUT, Severity
from dra_driver.migration.commuting import Strayed, as_part, strayed
from dra_driver.migration.definitions import kept
from dra_driver.migration.edit import Rewriting, Splice, rewritten, spliced
from dra_driver.migration.frameworks import after_claims
from dra_driver.migration.kinds import is_known, is_part_of_an_object, pods_by_shape, pods_of, with_written_places
from dra_driver.migration.kserve import managed
from dra_driver.migration.kueue_configuration import holds_configuration
from dra_driver.migration.kustomize import (
    Kustomization,
    applied_folders,
    configured,
    files_with,
    is_kustomization,
    kustomizations,
    labels_of_a_patch,
    listing,
    lists,
    lone_patch,
    name_references,
    naming_fields,
    not_renamed,
    renamed,
    renames,
    target_of,
    texts_in,
)
from dra_driver.migration.limits import of_form, of_the_cluster, too_old, virtual_machines, why_too_old
from dra_driver.migration.model import (
    Choice,
    ContainerAt,
    Demand,
    Edit,
    FileResult,
    Finding,
    Form,
    Migration,
    NewObject,
    ObjectRef,
    Options,
    Path,
    Place,
    PodReading,
    PodSpecAt,
    Put,
    Source,
    StrategyOption,
    Target,
    Workload,
    finding,
    path_text,
    ref_of,
    title_of,
    value_at,
)
from dra_driver.migration.publishing import publishing
from dra_driver.migration.strategy import choose
from dra_driver.migration.surroundings import Meaning
from dra_driver.migration.tree import header_length
from dra_driver.migration.undo import changes, remembered
from dra_driver.migration.unrendered import (
    asks_for_gpus,
    delivers,
    delivery_findings,
    gpu_keys,
    gpu_texts,
    is_refused,
    is_sealed,
    problem_finding,
    sealed_findings,
    speaks_of_gpus,
    template_findings,
    values_findings,
)
from dra_driver.names import ADMIN_ACCESS_LABEL


def migrate(sources: Sequence[Source], options: Options, side: Sequence[Source] = ()) -> Migration:
    """`side` is read for what it says about the cluster, and never changed."""
    read = [(source, read_documents(source.text, source.file)) for source in sources]
    beside = [(source, read_documents(source.text, source.file)) for source in side]
    documents = [document for source, one in read if not is_refused(source, one) for document in one.documents]
    known = [*documents, *(document for _, one in beside for document in one.documents)]
    meaning = surroundings.read(known, options)
    findings = [*_unread([*read, *beside]), *meaning.findings]
    kustomized = kustomizations(documents)
    followed = [(source, one) for source, one in read if kustomized and not is_refused(source, one)]
    tree = Tree(
        {source.file: source.text for source, _ in followed}, {source.file: one.documents for source, one in followed}
    )
    json_patches = tuple(_json_patches(kustomized, read))
    apart = dict.fromkeys(tree.orphans, _NOT_HERE)
    while True:
        plans = _plans(documents, kustomized, json_patches, tree, apart, meaning, options)
        lost = _lost(sources, plans, kustomized, tree, meaning, options)
        if lost.reasons.keys() <= apart.keys():
            break
        apart = {**lost.reasons, **apart}
    findings += [labels_of_a_patch(one, *rest) for one in kustomized for rest in _of_folder(lost, one)]
    workloads = [workload for plan in plans for workload in plan.all_workloads]
    deciding = [one for one in known if not delivers(one) or holds_configuration(one)]
    changeable = frozenset(one for one in documents if not is_sealed(one))
    counted = quotas.rewrite(deciding, workloads, meaning, options, changeable)
    more = {some.document: some.edits for some in counted.edits}
    plans = [_labelled(plan, workloads).with_edits(more.get(plan.document, ())) for plan in plans]
    plans = [replace(plan, objects=counted.beside.get(plan.document, ())) for plan in plans]
    out = _Output(sources, kustomized)
    out.take(plans, options)
    counting = tuple(_as_it_came(counted.findings, out.plans, more.keys()))
    for new in counted.objects:
        out.add(new)
    offered = publishing(meaning, out.demands, options)
    said = [one for plan in out.plans for one in plan.all_findings]
    return Migration(
        out.files(),
        out.new_files(),
        tuple(out.objects),
        tuple(workload for plan in out.plans for workload in plan.all_workloads),
        tuple(dict.fromkeys((*findings, *_unsaid(said, counting), *counting, *out.findings))),
        offered.policy,
        offered.values,
        offered.reasons,
        counted.settings,
        tuple(one for plan in out.plans for part in plan.with_inner for one in changes(part.document, part.all_edits)),
    )


def _as_it_came(said: Iterable[Finding], plans: Iterable["_Plan"], edited: Collection[Document]) -> Iterator[Finding]:
    """What was to be done in documents that turned out not to be editable is for a person to do."""
    left = [plan.document for plan in plans if plan.document in edited and not plan.all_edits]
    refused = {(document.file, ref_of(document)) for document in left}
    for one in said:
        if one.fixed and (one.place.file, one.object) in refused:
            advice = "This could not be written into the file: do it by hand."
            yield replace(one, fixed=False, severity=Severity.WARNING, advice=advice)
        else:
            yield one


_NOT_HERE = (
    "it is a patch, and what it patches is not among the files that were given; migrate what kustomize renders instead "
    "(kubectl kustomize FOLDER | dractl migrate -)"
)


def _lost(
    sources: Sequence[Source],
    plans: Sequence["_Plan"],
    kustomized: Sequence[Kustomization],
    tree: Tree,
    meaning: Meaning,
    options: Options,
) -> Strayed:
    """Where claims make something else of what kustomize builds."""
    converted = {key_of(plan.document) for one in plans for plan in one.with_inner if plan.claims}
    if not tree.folders or not converted:
        return Strayed()
    out = _Output(sources, kustomized)
    out.take(plans, options)
    after = {one.file: one.after for one in out.files()} | {one.file: one.text for one in out.new_files()}
    wanted = replace(options, strategy=StrategyOption.CLAIMS)

    def alone(obj: JsonObject) -> tuple[JsonObject, Sequence[JsonObject]]:
        (document,) = read_documents(json.dumps(obj), "").documents
        plan = _planned(_draft(document, meaning, wanted, patch=False), wanted)
        return changed(obj, plan.all_edits), [one.template for one in plan.all_claims]

    return strayed(tree, tree.after(after), converted, alone)


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


# -- plans


@dataclass(frozen=True, slots=True, eq=False)
class _Embedded:
    """Text in a text: what is planned for the documents in it."""

    path: Path
    lines: int
    """How many line ends were put in front of it, so that its lines have the numbers of the file."""
    text: str
    plans: "tuple[_Plan, ...]"


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """For one document. `edits` are made besides those that the claims need."""

    document: Document
    workloads: tuple[Workload, ...] = ()
    claims: tuple[Claims, ...] = ()
    edits: tuple[Edit, ...] = ()
    findings: tuple[Finding, ...] = ()
    embedded: tuple[_Embedded, ...] = ()
    objects: tuple[NewObject, ...] = ()
    """That stand beside it, besides templates."""

    @property
    def all_edits(self) -> tuple[Edit, ...]:
        return (*(edit for one in self.claims for edit in one.edits), *self.edits)

    @property
    def _inner(self) -> "tuple[_Plan, ...]":
        return tuple(plan for one in self.embedded for plan in one.plans)

    @property
    def with_inner(self) -> "tuple[_Plan, ...]":
        return (self, *(one for plan in self._inner for one in plan.with_inner))

    @property
    def all_claims(self) -> tuple[Claims, ...]:
        return (*self.claims, *(one for plan in self._inner for one in plan.all_claims))

    @property
    def all_workloads(self) -> tuple[Workload, ...]:
        return (*self.workloads, *(one for plan in self._inner for one in plan.all_workloads))

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        return (*self.findings, *(one for plan in self._inner for one in plan.all_findings))

    def with_edits(self, edits: Iterable[Edit]) -> "_Plan":
        return replace(self, edits=(*self.edits, *edits))


@dataclass(frozen=True, slots=True, eq=False)
class _Asking:
    """A pod that asks for GPUs, and what is to become of it."""

    pod: PodSpecAt
    reading: PodReading
    choice: Choice


@dataclass(slots=True, eq=False)
class _Draft:
    document: Document
    asking: list[_Asking] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    containers: list[ContainerAt] = field(default_factory=list)
    """Of all its pods, also those that ask for nothing."""
    patch: bool = False
    target: Mapping[str, Any] | None = None
    """Of a patch, where its kustomization says what it is for."""
    inner: list[tuple[Path, int, str, "list[_Draft]"]] = field(default_factory=list)


def _plans(
    documents: Sequence[Document],
    kustomized: Sequence[Kustomization],
    json_patches: Iterable[Part],
    tree: Tree,
    apart: Mapping[Key, str],
    meaning: Meaning,
    options: Options,
) -> list[_Plan]:
    """`apart` are documents that are not to have claims, and why."""
    targets = {file: target for one in kustomized for file, target in one.patches.items()}
    drafts = [_draft(document, meaning, options, patch=document.file in targets) for document in documents]
    for draft in drafts:
        draft.target = targets.get(draft.document.file)
    for draft in _with_inner(drafts):
        context = tree.contexts.get(key_of(draft.document)) if draft.patch else None
        if context is not None:
            draft.asking = [_in_context(one, context, meaning, options) for one in draft.asking]
    _agreed(list(_with_inner(drafts)), json_patches, apart, options)
    return [_planned(draft, options) for draft in drafts]


def _json_patches(kustomized: Iterable[Kustomization], read: Iterable[tuple[Source, Reading]]) -> Iterator[Part]:
    """Lists of operations, in files or in the kustomization itself, of which one is on GPUs."""
    lists = {
        source.file: source.text
        for source, one in read
        if any(problem.message.startswith("is a list") for problem in one.problems)
    }
    for one in kustomized:
        texts = [(file, target, lists.get(file, "")) for file, target in one.patches.items()]
        texts += [
            (one.document.file, target_of(one.document, path), text)
            for path, text in texts_in(one.document)
            if text.lstrip().startswith(("-", "["))
        ]
        for where, target, text in texts:
            if asks_for_gpus(text):
                yield Part(one.document, where, touches=frozenset({ALL_CONTAINERS}), patch=True, target=target)


def _draft(document: Document, meaning: Meaning, options: Options, *, patch: bool) -> _Draft:
    draft = _Draft(document, patch=patch)
    if is_sealed(document) or delivers(document):
        draft.findings += sealed_findings(document) if is_sealed(document) else delivery_findings(document)
        return draft
    draft.findings += values_findings(document) if not is_kustomization(document) else ()
    owner = _owner(document)
    draft.patch = patch or is_part_of_an_object(document)
    for pod in pods_of(document, options, patch=draft.patch):
        draft.containers += pod.containers
        read = with_written_places(reading.demands(pod, meaning, options), pod)
        pod, read = kept(pod, read, meaning.definitions, options)
        if owner is not None and read.demands:
            message = f"is made by {owner}, which is what to migrate; it is left as it is"
            draft.findings.append(finding(NOT_EDITABLE, document, (), message, advice="", severity=Severity.INFO))
            break
        draft.findings += read.findings
        if read.demands:
            draft.asking.append(_Asking(pod, read, choose(pod, read, options)))
    draft.findings += virtual_machines(document)
    if not options.unknown_kinds:
        draft.findings += _of_unknown_kind(document)
    if is_known(document.obj):
        draft.findings += _outside_of_pods(document, [pod.path for pod in pods_of(document, options)])
    texts = dict(texts_in(document))
    for path, text in texts.items():
        _draft_text(draft, path, text, meaning, options)
    for path in gpu_texts(document.obj):
        if path not in texts:
            draft.findings.append(_left_text(document, path))
    return draft


def _left_text(document: Document, path: Path) -> Finding:
    return finding(NOT_EDITABLE, document, path, "is a text that speaks of GPUs and was left as it is")


def _owner(document: Document) -> str | None:
    """The object whose controller makes this one."""
    owners = value_at(document.obj, ("metadata", "ownerReferences"))
    for one in owners if isinstance(owners, list) else ():
        if isinstance(one, dict) and one.get("controller") is True:
            return f"{one.get('kind')} {one.get('name')}"
    return None


def _outside_of_pods(document: Document, pods: Sequence[Path]) -> Iterator[Finding]:
    """Of a kind that is known, in a shape that is not, such as that of an old version: nothing is passed over."""
    for path in gpu_keys(document.obj):
        if path[-2:-1] in (("limits",), ("requests",)) and not any(path[: len(pod)] == pod for pod in pods):
            message = f"asks for GPUs where no pod of a {document.kind} is known to be; it was left as it is"
            yield finding(NOT_EDITABLE, document, path, message, advice="See whether its version is still served.")


def _of_unknown_kind(document: Document) -> Iterator[Finding]:
    for pod in pods_by_shape(document):
        if any(True for _ in gpu_keys(pod.spec)):
            message = f"{document.kind} is not a kind that is known; this has the shape of a pod that asks for GPUs"
            advice = "See whether its controller passes claims on to pods, then migrate it with `--unknown-kinds`."
            yield finding(NOT_EDITABLE, document, pod.path, message, advice=advice)


def _draft_text(draft: _Draft, path: Path, text: str, meaning: Meaning, options: Options) -> None:
    if not speaks_of_gpus(text):
        return
    lines = draft.document.place_in(path_text(path), 0)[0] - 1
    padded = "\n" * lines + text
    read = read_documents(padded, draft.document.file)
    if read.problems or not read.documents or any(not one.kind for one in read.documents):
        draft.findings.append(_left_text(draft.document, path))
        return
    patch = is_kustomization(draft.document)
    # Whoever makes objects of texts, such as Argo, makes them in its own namespace.
    owner = draft.document.namespace
    documents = [replace(one, namespace=one.namespace or owner) for one in read.documents]
    inner = [_draft(document, meaning, options, patch=patch) for document in documents]
    for one in inner:
        one.target = target_of(draft.document, path) if patch else None
    draft.inner.append((path, lines, padded, inner))


def _in_context(one: _Asking, context: Context, meaning: Meaning, options: Options) -> _Asking:
    """With what the object that it patches says of the devices."""
    document = replace(one.pod.document, obj=context.after)
    whole = next((pod for pod in pods_of(document, options) if pod.path == one.pod.path), None)
    if whole is None:
        return one
    alone = not any(True for _ in gpu_keys(value_at(context.before, one.pod.path)))
    read = as_part(one.pod, one.reading, whole, reading.demands(whole, meaning, options), alone=alone)
    return replace(one, reading=read, choice=choose(one.pod, read, options))


def _agreed(drafts: Sequence[_Draft], json_patches: Iterable[Part], apart: Mapping[Key, str], options: Options) -> None:
    """What makes one pod asks in one way, or the pod would ask twice or lose what it asked for."""
    parts = [*map(_part, drafts), *json_patches]
    known = {index: apart[key] for index, one in enumerate(drafts) if (key := key_of(one.document)) in apart}
    for index, reason in reasons_against_claims(parts, known).items():
        draft = drafts[index]
        draft.asking = [
            one if one.pod.form is Form.NONE else _without_claims(one, reason, options) for one in draft.asking
        ]
    for members in patched_together(parts):
        some = [drafts[index] for index in members if index < len(drafts)]
        targets = {one.choice.target for draft in some for one in draft.asking}
        if len(targets) < 2:
            continue
        if Target.LEAVE in targets:
            choice = Choice(Target.LEAVE, "a patch of it, or what it patches, cannot be migrated")
        else:
            asking = (one for draft in some for one in draft.asking)
            reason = next(one.choice.reason for one in asking if one.choice.target is Target.CLAIMS)
            choice = Choice(Target.CLAIMS, f"a patch of it, or what it patches, needs claims: {reason}")
        for draft in some:
            draft.asking = [
                one if one.choice.target is choice.target else replace(one, choice=choice) for one in draft.asking
            ]


def _without_claims(one: _Asking, reason: str, options: Options) -> _Asking:
    pod = replace(one.pod, form=Form.NONE, why_no_claims=reason)
    return replace(one, pod=pod, choice=choose(pod, one.reading, options))


def _part(draft: _Draft) -> Part:
    asks = {container.name for one in draft.asking for demand in one.reading.demands for container in demand.containers}
    touches = set(asks)
    if draft.patch:
        touches |= {one.name for one in draft.containers if any(True for _ in gpu_keys(one.resources))}
    document = draft.document
    return Part(document, document.file, frozenset(asks), frozenset(touches), draft.patch, draft.target)


def _with_inner(drafts: Iterable[_Draft]) -> Iterator[_Draft]:
    for draft in drafts:
        yield draft
        for *_, inner in draft.inner:
            yield from _with_inner(inner)


def _planned(draft: _Draft, options: Options) -> _Plan:
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
        _Embedded(path, lines, text, tuple(_planned(one, options) for one in inner))
        for path, lines, text, inner in draft.inner
    )
    return _Plan(draft.document, tuple(workloads), tuple(claims), edits, (*findings, *said, *own.findings), embedded)


def _left(draft: _Draft, reason: str) -> _Plan:
    """Nothing of the document is changed, because something of it cannot be."""
    workloads = tuple(Workload(one.pod, one.reading, Choice(Target.LEAVE, reason)) for one in draft.asking)
    said = finding(NOT_EDITABLE, draft.document, (), f"nothing was changed: {reason}")
    return _Plan(draft.document, workloads, findings=(*draft.findings, said))


def _labelled(plan: _Plan, workloads: Iterable[Workload]) -> _Plan:
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


# -- what comes out


class _Output:
    """Collects what is to be written. Nothing of a text is edited when something of it cannot be."""

    def __init__(self, sources: Sequence[Source], kustomized: Sequence[Kustomization]) -> None:
        self.plans: list[_Plan] = []
        self.objects: list[NewObject] = []
        self.findings: list[Finding] = []
        self._sources = sources
        self._kustomized = kustomized
        self._known: set[tuple[str, str, str | None, str]] = set()
        self._there: dict[str, set[ObjectRef]] = defaultdict(set)
        """By file: its objects, also those that it gets."""
        self._splices: dict[str, list[Splice]] = {source.file: [] for source in sources}
        self._apart: dict[str, list[NewObject]] = {}
        self._names: list[Source] = []

    def take(self, plans: Sequence[_Plan], options: Options) -> None:
        for plan in plans:
            self._known.add(_key(plan.document.file, ref_of(plan.document)))
            self._there[plan.document.file].add(ref_of(plan.document))
        by_text: dict[tuple[str, int], list[_Plan]] = defaultdict(list)
        for plan in plans:
            by_text[plan.document.file, plan.document.written.start].append(plan)
        # Bases first: an overlay can name a template that its base has, and kustomize takes none twice.
        for together in sorted(by_text.values(), key=lambda some: self._above(some[0].document.file)):
            self._take_text(together, options)
        self._list_claims_files(options)

    def add(self, new: NewObject) -> None:
        """Of the whole cluster, or of a file that cannot have it itself."""
        self.objects.append(new)
        folder = PurePosixPath(new.beside).parent if new.beside else PurePosixPath(".")
        self._apart.setdefault(str(folder / "gpu-cluster.yaml"), []).append(new)

    @property
    def demands(self) -> Iterator[Demand]:
        """Of what gets claims."""
        for plan in self.plans:
            for workload in plan.all_workloads:
                if workload.choice.target is Target.CLAIMS:
                    yield from workload.reading.demands

    def _take_text(self, plans: list[_Plan], options: Options) -> None:
        file = plans[0].document.file
        try:
            change = _edited(plans, options)
        except EditRefused as error:
            plans = [_refused(plan, str(error)) for plan in plans]
            change = Rewriting((), ())
        self.plans += plans
        self.findings += [self._written_out(plans[0].document, position) for position in change.written_out]
        new = [one for plan in plans for one in self._new_objects(plan)]
        self.objects += new
        apart = self._file_apart(file, plans[0].document) if new else None
        if apart is not None:
            self._apart.setdefault(apart, []).extend(new)
        elif new:
            self._splices[file].append(_before(plans[0].document, new))
        self._splices[file] += change.splices

    def _written_out(self, document: Document, position: int) -> Finding:
        text = next(source.text for source in self._sources if source.file == document.file)
        line = normalized(text).count("\n", 0, position) + 1
        message = "the alias is written out, so that other users of its anchor keep what they have"
        place = Place(document.file, line)
        return Finding(WRITTEN_OUT, WRITTEN_OUT.severity, ref_of(document), place, message, "", fixed=True)

    def _new_objects(self, plan: _Plan) -> Iterator[NewObject]:
        """What stands beside the document and is not in its folder yet, and templates that its file does not bring."""
        for new in plan.objects:
            metadata = new.obj["metadata"]
            key = _key(plan.document.file, ObjectRef(new.obj["kind"], metadata.get("namespace"), metadata["name"]))
            if key not in self._known:
                self._known.add(key)
                yield new
        for one in plan.all_claims:
            if one.ref not in self._brought(plan.document.file):
                self._there[plan.document.file].add(one.ref)
                yield NewObject(one.template, plan.document.file, f"What {title_of(plan.document)} asks for.")

    def _brought(self, file: str) -> set[ObjectRef]:
        """Objects of a file and of those that are only ever applied with it: files of a folder may be alternatives."""
        return set().union(*(self._there[one] for one in files_with(file, self._kustomized)))

    def _above(self, file: str) -> int:
        """How many folders kustomize builds with the one that the file is in."""
        folder = PurePosixPath(file).parent
        ours = next((one for one in self._kustomized if one.folder == folder), None)
        return len(applied_folders(ours, self._kustomized)) if ours is not None else 0

    def _file_apart(self, file: str, document: Document) -> str | None:
        """Where objects go that cannot stand in the file itself; None: they can."""
        for one in self._kustomized:
            if file in one.patches or file == one.document.file:
                return one.claims_file
        path = PurePosixPath(file)
        claims_file = str(path.with_name(f"{path.stem}-claims.yaml"))
        if document.written.text.lstrip().startswith("{"):
            # Who lists the one file would not list another.
            listing_it = (one for one in self._kustomized if lists(one, file))
            return next((one.claims_file for one in listing_it), claims_file)
        if is_part_of_an_object(document):
            self.findings.append(lone_patch(document, claims_file))
            return claims_file
        return None

    def _list_claims_files(self, options: Options) -> None:
        ours = {source.file for source in self._sources if OWNER in source.text}
        for one in self._kustomized:
            # The file may be there already, written by a run that was interrupted before it could be listed.
            listed = listing(one) if one.claims_file in self._apart or one.claims_file in ours else None
            named = configured(one) if self._named(one) else None
            wanted = [edit for some in (listed, named) if some is not None for edit in some.edits]
            if not wanted:
                continue
            index, plan = next((at, plan) for at, plan in enumerate(self.plans) if plan.document is one.document)
            self.plans[index] = plan.with_edits(wanted)
            self._splices[one.document.file] = [
                *(splice for splice in self._splices[one.document.file] if not _within(splice, one.document)),
                *_edited([plan.with_edits(wanted)], options).splices,
            ]

    def _named(self, one: Kustomization) -> bool:
        """Whether kustomize has to be told where names of templates stand, which is done then."""
        field = renames(one)
        there = next((source.text for source in self._sources if source.file == one.names_file), "")
        if field is None:
            return False
        folders = tuple(_folder(folder) for folder in applied_folders(one, self._kustomized))
        below = [plan for plan in self.plans if plan.document.file.startswith(folders)]
        claims = [claim for plan in below for claim in plan.all_claims]
        fields = [naming_fields(claim) for plan in below for claim in plan.claims]
        if len(fields) < len(claims) or None in fields:
            self.findings.append(not_renamed(one, field))
        added = name_references((path for some in fields for path in some or ()), there)
        if added:
            self.findings.append(renamed(one, field))
            if there:
                self._splices[one.names_file].append(Splice(len(there), len(there), added))
            else:
                self._names.append(Source(one.names_file, added))
        return bool(added or there)

    def files(self) -> tuple[FileResult, ...]:
        return tuple(
            FileResult(source.file, source.text, spliced(source.text, self._splices[source.file]))
            for source in self._sources
        )

    def new_files(self) -> tuple[Source, ...]:
        return (*(Source(file, _yaml(objects)) for file, objects in self._apart.items()), *self._names)


def _folder(folder: PurePosixPath) -> str:
    return "" if str(folder) == "." else f"{folder}/"


def _within(splice: Splice, document: Document) -> bool:
    text = document.written
    return text.start <= splice.start <= text.start + len(text.text)


def _key(file: str, ref: ObjectRef) -> tuple[str, str, str | None, str]:
    """Files of one folder are applied together; other folders are other environments."""
    return str(PurePosixPath(file).parent), ref.kind, ref.namespace, ref.name


def _edited(plans: Iterable[_Plan], options: Options) -> Rewriting:
    """Raises EditRefused."""
    edits: dict[Document, tuple[Edit, ...]] = {}
    for plan in plans:
        wanted = plan.all_edits
        if wanted and options.keep_undo and not _is_undone_by_names(plan.document):
            wanted = (*wanted, remembered(plan.document.obj, wanted))
        for one in plan.embedded:
            inner = [splice for some in _by_text(one.plans) for splice in _edited(some, options).splices]
            text = spliced(one.text, inner)[one.lines :]
            if text != one.text[one.lines :]:
                wanted = (*wanted, Put(one.path, text))
        if wanted:
            edits[plan.document] = wanted
    return rewritten(edits) if edits else Rewriting((), ())


def _is_undone_by_names(document: Document) -> bool:
    """What has no annotations of its own."""
    return is_kustomization(document) or holds_configuration(document)


def _by_text(plans: Iterable[_Plan]) -> list[list[_Plan]]:
    together: Mapping[int, list[_Plan]] = defaultdict(list)
    for plan in plans:
        together[plan.document.written.start].append(plan)
    return list(together.values())


def _refused(plan: _Plan, reason: str) -> _Plan:
    """All that was to be edited stays as it is."""
    workloads = tuple(
        replace(one, choice=Choice(Target.LEAVE, reason), templates=()) if one.choice.target is Target.CLAIMS else one
        for one in plan.all_workloads
    )
    if not plan.all_edits and not any(inner.all_edits for one in plan.embedded for inner in one.plans):
        return plan
    findings = tuple(one for one in plan.all_findings if not one.fixed)
    said = finding(NOT_EDITABLE, plan.document, (), f"nothing was changed: {reason}")
    return _Plan(plan.document, workloads, findings=(*findings, said))


def _before(document: Document, objects: Sequence[NewObject]) -> Splice:
    """New objects in front of the text that needs them, as documents of their own, and below the header of a file."""
    place = document.written
    new = _yaml(objects)
    text = f"---\n{new}" if place.text.startswith("---") else f"{new}---\n"
    start = place.start + header_length(place.text)
    return Splice(start, start, text)


def _yaml(objects: Sequence[NewObject]) -> str:
    return written([Noted(one.reason, one.obj) for one in objects])
