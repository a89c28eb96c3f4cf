"""Collects what is to be written: texts with their splices, new objects, and the files these get. Pure.

Templates stand in front of what names them. Where they cannot (a patch, a kustomization, JSON) they have a file of
their own, which the kustomization beside it then lists.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from dra_driver.api.documents import Document, normalized
from dra_driver.migration.changes import EditRefused
from dra_driver.migration.claims import OWNER, Claims
from dra_driver.migration.codes import WRITTEN_OUT
from dra_driver.migration.edit import Rewriting
from dra_driver.migration.folders import Folders
from dra_driver.migration.kinds import is_part_of_an_object
from dra_driver.migration.kustomize import (
    Kustomization,
    configured,
    listing,
    lists,
    lone_patch,
    name_references,
    naming_fields,
    not_renamed,
    renamed,
    renames,
    unlisted,
)
from dra_driver.migration.model import (
    Demand,
    FileResult,
    Finding,
    NewObject,
    ObjectRef,
    Options,
    Place,
    Source,
    Target,
    ref_of,
    title_of,
)
from dra_driver.migration.planned_texts import edited, in_front_of, objects_text
from dra_driver.migration.plans import Plan, refused
from dra_driver.migration.splices import Splice, spliced


class Output:
    """Collects what is to be written. Nothing of a text is edited when something of it cannot be."""

    def __init__(self, sources: Sequence[Source], kustomized: Sequence[Kustomization]) -> None:
        self.plans: list[Plan] = []
        self.objects: list[NewObject] = []
        self.findings: list[Finding] = []
        self._sources = sources
        self._kustomized = kustomized
        self._known: set[tuple[str, str, str | None, str]] = set()
        self._folders = Folders(kustomized)
        self._where: dict[ObjectRef, set[str]] = defaultdict(set)
        """Files that have the object, or get it."""
        self._splices: dict[str, list[Splice]] = {source.file: [] for source in sources}
        self._apart: dict[str, list[NewObject]] = {}
        self._names: list[Source] = []

    def take(self, plans: Sequence[Plan], options: Options) -> None:
        for plan in plans:
            self._known.add(_key(plan.document.file, ref_of(plan.document)))
            self._where[ref_of(plan.document)].add(plan.document.file)
        by_text: dict[tuple[str, int], list[Plan]] = defaultdict(list)
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

    def _take_text(self, plans: list[Plan], options: Options) -> None:
        file = plans[0].document.file
        try:
            change = edited(plans, options)
            told = [one for plan in plans for one in plan.relisted if one.beside is None and not one.patch.inline]
            lists = {one.patch.file: one.splices for one in told}
        except EditRefused as error:
            plans = [refused(plan, str(error)) for plan in plans]
            change, lists = Rewriting((), ()), {}
        self.plans += plans
        self.findings += [self._written_out(plans[0].document, position) for position in change.written_out]
        new = [one for plan in plans for one in self._new_objects(plan)]
        self.objects += new
        apart = self._file_apart(file, plans[0].document) if new else None
        if apart is not None:
            self._apart.setdefault(apart, []).extend(new)
        elif new:
            self._splices[file].append(in_front_of(plans[0].document, new))
        self._splices[file] += change.splices
        for listed, splices in lists.items():
            # Several kustomizations can have one file.
            self._splices[listed] = self._splices[listed] or list(splices)

    def _written_out(self, document: Document, position: int) -> Finding:
        text = next(source.text for source in self._sources if source.file == document.file)
        line = normalized(text).count("\n", 0, position) + 1
        message = "the alias is written out, so that other users of its anchor keep what they have"
        place = Place(document.file, line)
        return Finding(WRITTEN_OUT, WRITTEN_OUT.severity, ref_of(document), place, message, "", fixed=True)

    def _new_objects(self, plan: Plan) -> Iterator[NewObject]:
        """What stands beside the document and is not in its folder yet, and templates that its file does not bring."""
        for new in plan.objects:
            metadata = new.obj["metadata"]
            key = _key(plan.document.file, ObjectRef(new.obj["kind"], metadata.get("namespace"), metadata["name"]))
            if key not in self._known:
                self._known.add(key)
                yield new
        for one in plan.all_claims:
            if not self._is_brought(one.ref, plan.document.file):
                self._where[one.ref].add(plan.document.file)
                yield NewObject(one.template, plan.document.file, f"What {_asking(plan, one)} asks for.")

    def _is_brought(self, ref: ObjectRef, file: str) -> bool:
        """By the file, or by one that is only ever applied with it: files of a folder may be alternatives."""
        return not self._where[ref].isdisjoint(self._folders.files_with(file))

    def _above(self, file: str) -> int:
        """How many folders kustomize builds with the one that the file is in."""
        folder = PurePosixPath(file).parent
        return len(self._folders.applied(folder)) if self._folders.at(folder) is not None else 0

    def _file_apart(self, file: str, document: Document) -> str | None:
        """Where objects go that cannot stand in the file itself; None: they can."""
        for one in self._kustomized:
            if file in one.patches or file in one.texts or file == one.document.file:
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
            try:
                splices = edited([plan.with_edits(wanted)], options).splices
            except EditRefused as error:
                self.findings.append(unlisted(one, str(error)))
                continue
            self.plans[index] = plan.with_edits(wanted)
            self._splices[one.document.file] = [
                *(splice for splice in self._splices[one.document.file] if not _within(splice, one.document)),
                *splices,
            ]

    def _named(self, one: Kustomization) -> bool:
        """Whether kustomize has to be told where names of templates stand, which is done then."""
        field = renames(one)
        if field is None:
            return False
        there = next((source.text for source in self._sources if source.file == one.names_file), "")
        folders = tuple(_folder(folder) for folder in self._folders.applied(one.folder))
        below = [plan for plan in self.plans if plan.document.file.startswith(folders)]
        claims = [claim for plan in below for claim in plan.all_claims]
        fields = [naming_fields(claim) for plan in below for claim in plan.renamable_claims]
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
        return (*(Source(file, objects_text(objects)) for file, objects in self._apart.items()), *self._names)


def _asking(plan: Plan, claims: Claims) -> str:
    """Whose claims they are: of a JSON patch, what it is for."""
    titles = (title for some in plan.relisted if claims in some.claims for title in some.titles)
    return ", ".join(dict.fromkeys(titles)) or title_of(plan.document)


def _folder(folder: PurePosixPath) -> str:
    return "" if str(folder) == "." else f"{folder}/"


def _within(splice: Splice, document: Document) -> bool:
    text = document.written
    return text.start <= splice.start <= text.start + len(text.text)


def _key(file: str, ref: ObjectRef) -> tuple[str, str, str | None, str]:
    """Files of one folder are applied together; other folders are other environments."""
    return str(PurePosixPath(file).parent), ref.kind, ref.namespace, ref.name
