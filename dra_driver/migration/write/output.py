"""What is written: texts with their edits, new objects, and the files of both. Pure.

Templates stand in front of the object that names them. Beside JSON they have a file of their own.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from dra_driver.api.documents import Document
from dra_driver.authoring.writing import Noted, written
from dra_driver.migration.claims.plans import DocumentPlan, refused
from dra_driver.migration.model import (
    Demand,
    FileResult,
    ManifestText,
    MigrationTarget,
    NewObject,
    ObjectRef,
    ref_of,
    title_of,
)
from dra_driver.migration.read.kustomize import Folders
from dra_driver.migration.text.changes import EditRefused
from dra_driver.migration.text.edit import rewritten
from dra_driver.migration.text.tree import Splice, header_length, spliced


class Output:
    """Collects what is to be written. Nothing of a text is edited when something of it cannot be."""

    def __init__(self, sources: Sequence[ManifestText], folders: Folders) -> None:
        self.plans: list[DocumentPlan] = []
        self.objects: list[NewObject] = []
        self._sources = sources

        self._folders = folders
        self._where: dict[ObjectRef, set[str]] = defaultdict(set)
        """Files that have the object, or get it."""
        self._splices: dict[str, list[Splice]] = {source.file: [] for source in sources}
        self._apart: dict[str, list[NewObject]] = {}

    def take(self, plans: Sequence[DocumentPlan]) -> None:
        for plan in plans:
            self._where[ref_of(plan.document)].add(plan.document.file)
        by_text: dict[tuple[str, int], list[DocumentPlan]] = defaultdict(list)
        for plan in plans:
            by_text[plan.document.file, plan.document.written.start].append(plan)
        # Bases first: an overlay can name a template that its base has, and kustomize takes none twice.
        for together in sorted(by_text.values(), key=lambda some: self._above(some[0].document.file)):
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
            if not self._is_brought(claim.ref, plan.document.file):
                self._where[claim.ref].add(plan.document.file)
                yield NewObject(claim.template, plan.document.file, f"What {title_of(plan.document)} asks for.")

    def _is_brought(self, ref: ObjectRef, file: str) -> bool:
        """By the file, or by one that is applied with it. Raises EditRefused where that differs between folders, since
        one would have the object twice, or the other would not have it."""
        if file in self._where[ref]:
            return True
        brought = [not self._where[ref].isdisjoint(files) for files in self._folders.built_with(file)]
        if any(brought) and not all(brought):
            raise EditRefused(f"only some of the folders that use it have {ref} already; render, then migrate")
        return any(brought)

    def _above(self, file: str) -> int:
        """How many folders kustomize builds with the one that the file is in."""
        folder = PurePosixPath(file).parent
        return len(self._folders.applied(folder)) if self._folders.at(folder) is not None else 0

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
