"""The report of `dractl migrate`: what was found out besides the result, shown in short, or written beside it."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from dra_driver.api.documents import read_documents
from dra_driver.api.inventory import NodeInventorySpec
from dra_driver.api.meta import RESOURCE_SLICES, JsonObject
from dra_driver.api.resource import DeviceClass
from dra_driver.cli.migration.migrate_cluster import ClusterRead
from dra_driver.cli.migration.migrate_files import write_extra
from dra_driver.cli.reading.files import shipped_classes
from dra_driver.cli.reading.offline import deadline
from dra_driver.errors import InvalidInput
from dra_driver.grouping import grouped
from dra_driver.kubernetes import CURRENT
from dra_driver.migration.claims.publishing import final_values, gpu_policies
from dra_driver.migration.codes import FindingSeverity
from dra_driver.migration.cutover.applying import Results
from dra_driver.migration.cutover.cutover_plan import FINAL_VALUES_FILE, VALUES_FILE, cutover
from dra_driver.migration.decisions import FILE as DECISIONS_FILE
from dra_driver.migration.decisions import proposal, wanted_decisions
from dra_driver.migration.model import ManifestText, Migration, MigrationFinding, Options
from dra_driver.migration.report.data import as_data
from dra_driver.migration.report.markdown import at, markdown, named, summary
from dra_driver.migration.report.outcome import MigrationReport, UnreadInput
from dra_driver.migration.understand.offering import offering_of
from dra_driver.migration.verify.ground import Ground, ground_of_cluster, ground_of_models
from dra_driver.migration.verify.trial import TrialVerdict, verify
from dra_driver.names import names_record
from dra_driver.phrases import and_more
from dra_driver.terminal import messages, print_table


@dataclass(frozen=True, slots=True)
class Gathered:
    """All that was read. `read` None: no cluster was asked."""

    sources: tuple[ManifestText, ...]
    side: tuple[ManifestText, ...]
    unreadable: tuple[UnreadInput, ...]
    read: ClusterRead | None
    from_files: bool
    """Whether the workloads are a person's files."""

    @property
    def unread(self) -> tuple[UnreadInput, ...]:
        return (*self.unreadable, *(self.read.unread if self.read is not None else ()))

    @property
    def objects(self) -> tuple[JsonObject, ...]:
        """Of the cluster, or of files that tell of one."""
        if self.read is not None:
            return self.read.objects
        return tuple(
            document.obj
            for source in (*self.sources, *self.side)
            for document in read_documents(source.text, source.file).documents
        )


def reported(
    migration: Migration, options: Options, work: Gathered, models: Sequence[str], try_seconds: float, results: Results
) -> MigrationReport:
    """With the result tried, the cluster looked at as far as it is known, and the way there. `models` are of GPUs, on
    which the result is tried; none: on the nodes of the cluster, else on all models."""
    objects = work.objects
    known = any(obj.get("kind") == "Node" for obj in objects)
    offering = offering_of(objects, options.driver, options.other_resources) if known else None
    read = work.read
    plan = cutover(offering, migration, options.driver, results) if offering is not None else None
    if not migration.workloads:
        return MigrationReport(migration, None, plan)
    ground = _ground(migration, options, objects, models)
    classes = _classes(objects, read)
    tried = verify(migration, ground, classes, deadline(try_seconds))
    return MigrationReport(migration, tried, plan)


def _ground(migration: Migration, options: Options, objects: Sequence[JsonObject], models: Sequence[str]) -> Ground:
    """GPU models by name; else the nodes that were given, if they have slices of the driver; else all models."""
    minor = options.kubernetes_minor or CURRENT
    slices = [obj for obj in objects if obj.get("kind") == RESOURCE_SLICES.kind]
    ours = [slice_ for slice_ in slices if (slice_.get("spec") or {}).get("driver") == options.driver]
    nodes = [obj for obj in objects if obj.get("kind") == "Node"]
    if not models and ours:
        return ground_of_cluster(nodes, slices, minor)
    return ground_of_models(models, migration.policy, minor, options.driver, _recorded(models))


def _recorded(models: Iterable[str]) -> dict[str, NodeInventorySpec]:
    """What the nodes have that files of records describe. Raises InvalidInput."""
    files = [name for name in models if names_record(name)]
    if not files:
        return {}
    from dra_driver.simulation.cluster import inventory_of_model  # It is slow to import.

    return {file: NodeInventorySpec.of(inventory_of_model(file)) for file in files}


def _classes(objects: Sequence[JsonObject], read: ClusterRead | None) -> dict[str, DeviceClass]:
    """Those that come with the driver, and those of the cluster or of files."""
    shipped = [shipped_class.obj for shipped_class in shipped_classes()]
    given = read.classes if read is not None else [obj for obj in objects if obj.get("kind") == "DeviceClass"]
    classes: dict[str, DeviceClass] = {}
    for item in (*shipped, *given):
        with suppress(InvalidInput):  # of a file, and its finding says so
            known = DeviceClass.of(item)
            classes[known.metadata.name] = known
    return classes


# -- shown in short

_BECOMES = {"claims": "claims", "extended": "stays", "leave": "left alone"}
_MOST_ROWS = 20
"""A terminal has hardly more lines."""
_MOST_NAMED = 2
_MOST_PLACES = 3


def show(report: MigrationReport) -> None:
    """What it comes to, to standard error; then tables to standard output, without notes, which are many."""
    for line in summary(report.migration):
        messages.print(line, markup=False, soft_wrap=True)
    rows = list(_rows(report))
    if rows:
        print_table(("WORKLOAD", "BECOMES", "DEVICES", "WHY"), rows)
    shown = [finding for finding in report.migration.findings if finding.severity is not FindingSeverity.INFO]
    findings = sorted(shown, key=lambda finding: (finding.severity.rank, finding.place))
    if findings:
        if rows:
            print()  # noqa: T201 - between two tables
        print_table(("PLACE", "SEVERITY", "CODE", "WHAT"), list(_cells(findings)))
    rest = "`--report md` has the notes and the plan to move the cluster."
    messages.print(rest, markup=False, soft_wrap=True)


def _rows(report: MigrationReport) -> Iterator[tuple[str, str, str, str]]:
    """A row for each workload, or, if there are many, for each outcome. Those that a person must look at come first."""
    verification = report.verification.checked if report.verification is not None else ()
    verdicts = {id(item.workload): item.verdict for item in verification}
    workloads = report.migration.workloads
    alike: dict[tuple[tuple[str, str, str], int], list[str]] = {}
    for number, workload in enumerate(workloads):
        verdict = verdicts.get(id(workload), TrialVerdict.UNKNOWN)
        outcome = _BECOMES[workload.choice.target.value], _VERDICTS[verdict], workload.choice.reason
        alike.setdefault((outcome, 0 if len(workloads) > _MOST_ROWS else number), []).append(named(workload))
    bad = {_BECOMES["leave"], _VERDICTS[TrialVerdict.DIFFERS], _VERDICTS[TrialVerdict.NOWHERE]}
    for (outcome, _), names in sorted(alike.items(), key=lambda item: (not bad & set(item[0][0]), -len(item[1]))):
        count = f"{len(names)}: " if len(names) > _MOST_NAMED else ""
        yield f"{count}{and_more(names, _MOST_NAMED)}", *outcome


def _cells(findings: Sequence[MigrationFinding]) -> Iterator[tuple[str, str, str, str]]:
    """What is the same in many places stands once, at the first; the report has all of them."""
    alike = grouped(findings, lambda finding: (finding.severity, finding.code.name, finding.message))
    for (severity, code, message), same in alike.items():
        places = [at(finding.place.file, finding.place.line) for finding in same]
        if len(places) > _MOST_PLACES:
            places = [and_more(places, 1)]
        yield from ((place, severity, code, message) for place in places)


_VERDICTS = {
    TrialVerdict.SAME: "as before",
    TrialVerdict.DIFFERS: "differ",
    TrialVerdict.NOWHERE: "none",
    TrialVerdict.UNKNOWN: "-",
}


# -- written


def json_text(report: MigrationReport) -> str:
    return json.dumps(as_data(report), indent=2) + "\n"


def write_reports(report: MigrationReport, folder: Path) -> None:
    """Beside the manifests. Raises UnreadableFile."""
    write_extra(folder, "report.md", markdown(report))
    write_extra(folder, "report.json", json_text(report))
    migration = report.migration
    if decided := proposal(wanted_decisions(migration), report.decided):
        write_extra(folder, DECISIONS_FILE, decided)
    if policies := gpu_policies(migration):
        write_extra(folder, "gpu-policies.yaml", yaml.safe_dump_all(policies, sort_keys=False, allow_unicode=True))
    if migration.workloads or migration.policy is not None or migration.chart_values:
        write_extra(folder, FINAL_VALUES_FILE, _yaml(final_values(migration)))
    if report.plan is not None and not report.plan.empty:
        write_extra(folder, VALUES_FILE, _yaml(report.plan.values))


def _yaml(data: JsonObject) -> str:
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
