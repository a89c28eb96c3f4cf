"""`dractl migrate PATHS`: moves manifests from the device plugin to DRA.

Reads files or a cluster, decides by `dra_driver.migration`, and shows or writes. A cluster is only ever read.
"""

import json
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import typer
import yaml

from dra_driver.api.documents import read_documents
from dra_driver.api.inventory import NodeInventorySpec
from dra_driver.api.meta import CONFIG_MAPS, NODES, PODS, RESOURCE_SLICES, WORKLOADS, JsonObject
from dra_driver.api.resource import DeviceClass
from dra_driver.checking.codes import Severity
from dra_driver.cli.migration.migrate_cluster import ClusterRead, read_cluster, relevant
from dra_driver.cli.migration.migrate_files import (
    BEFORE,
    diff,
    places_below,
    read_sources,
    together,
    write_beside,
    write_extra,
    write_in_place,
)
from dra_driver.cli.reading.files import STDIN, deadline, read_bytes, shipped_classes
from dra_driver.cli.reading.session import ContextOption, KubeconfigOption
from dra_driver.errors import InvalidInput
from dra_driver.grouping import grouped
from dra_driver.kubernetes import CURRENT, named_minor
from dra_driver.migration.claims.publishing import final_values, gpu_policies
from dra_driver.migration.cutover.commands import Results
from dra_driver.migration.cutover.cutover_plan import FINAL_VALUES_FILE, VALUES_FILE, cutover
from dra_driver.migration.decisions import FILE as DECISIONS_FILE
from dra_driver.migration.decisions import Decisions, is_decisions, proposal, wanted_decisions
from dra_driver.migration.migrate import migrate as migrated
from dra_driver.migration.model import (
    ManifestText,
    MigratedWorkload,
    Migration,
    MigrationFinding,
    MigrationTarget,
    ObjectRef,
    Options,
    StrategyOption,
    is_named,
)
from dra_driver.migration.report.data import as_data
from dra_driver.migration.report.markdown import at, markdown, named, summary
from dra_driver.migration.report.outcome import MigrationReport, UnreadInput
from dra_driver.migration.understand.offering import offering_of
from dra_driver.migration.understand.surroundings import says_nothing
from dra_driver.migration.verify.ground import Ground, ground_of_cluster, ground_of_models
from dra_driver.migration.verify.trial import TrialVerdict, verify
from dra_driver.names import names_record
from dra_driver.phrases import and_more
from dra_driver.terminal import Status, option, print_exactly, print_message, print_table


@dataclass(frozen=True, slots=True)
class Gathered:
    """All that was read. `read` None: no cluster was asked."""

    sources: tuple[ManifestText, ...]
    side: tuple[ManifestText, ...]
    unreadable: tuple[UnreadInput, ...]
    unused: tuple[str, ...]
    """Files of `--with` that say nothing about GPUs."""
    read: ClusterRead | None
    from_files: bool
    """Whether the workloads are a person's files."""

    @property
    def unread(self) -> tuple[UnreadInput, ...]:
        return (*self.unreadable, *(self.read.unread if self.read is not None else ()))

    @property
    def objects(self) -> tuple[JsonObject, ...]:
        """Of the cluster, or of files that describe it."""
        if self.read is not None:
            return self.read.objects
        return tuple(
            document.obj
            for source in (*self.sources, *self.side)
            for document in read_documents(source.text, source.file).documents
        )


def _decided(file: Path | None, strategy: StrategyOption | None) -> Decisions:
    """Raises InvalidInput, and UnreadableFile."""
    decisions = Decisions.read(read_bytes(str(file)), str(file)) if file is not None else Decisions()
    if file is not None and decisions == Decisions():
        print_message(f"note: {file} decides nothing; remove the # in front of the lines that you want")
    return decisions if strategy is None else decisions.model_copy(update={"strategy": strategy})


_STDOUT = "-"


def migrate(
    ctx: typer.Context,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATHS]",
            help="YAML or JSON files, folders with them (also kustomize folders), or - for standard input.",
        ),
    ] = None,
    cluster: Annotated[
        bool,
        option(
            "Without PATHS: migrate the workloads of a cluster. With PATHS: read their surroundings from it.",
            "--cluster",
        ),
    ] = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    namespace: Annotated[
        str | None, option("With --cluster and no PATHS: only workloads of this namespace.", "--namespace", "-n")
    ] = None,
    around: Annotated[
        list[str] | None,
        option(
            "Files to read but never change: the device plugin's configuration, ClusterPolicy, mig-parted "
            "configuration, nodes, slices; can be repeated.",
            "--with",
            metavar="PATH",
        ),
    ] = None,
    nodes: Annotated[
        str | None,
        option(
            "Nodes to try the result on: GPU models by the names of simulated nodes (dgx-h100,t4), or files of "
            "`dractl record`. Default: all known models; with --cluster, its nodes.",
            "--nodes",
            metavar="MODEL,…",
        ),
    ] = None,
    try_seconds: Annotated[
        float,
        typer.Option(
            "--try-seconds", min=0.0, help="Time limit for trying the result; the rest is reported as not tried."
        ),
    ] = 60.0,
    diff_only: Annotated[bool, option("Print what would change.", "--diff")] = False,
    in_place: Annotated[bool, option("Overwrite the files with the results.", "--in-place")] = False,
    target: Annotated[
        str | None,
        option("Write results and reports into this folder; - prints the manifests instead.", "--to", metavar="DIR"),
    ] = None,
    report: Annotated[Literal["md", "json"] | None, option("Print the whole report.", "--report")] = None,
    kubernetes: Annotated[
        str | None, option("Kubernetes version of the cluster; default: 1.36.", "--kubernetes", metavar="1.36")
    ] = None,
    decisions: Annotated[
        Path | None,
        option(
            "YAML file with your decisions, which the report proposes: see docs/migration.md.",
            "--decisions",
            metavar="FILE",
        ),
    ] = None,
    strategy: Annotated[
        StrategyOption | None, option("The decision `strategy`; overrides the file of --decisions.", "--strategy")
    ] = None,
) -> None:
    """Move manifests from the device plugin and its relatives to DRA; without --in-place and --to nothing is written.

    Exit status 0 when all is done or only notes and warnings are left; 1 when there are errors, workloads are left to
    be done by hand, the devices would not be the same, or fewer pods have room; 2 for wrong usage; 3 when a file or the
    cluster cannot be read.

    \b
    Examples:
      dractl migrate manifests/
      dractl migrate manifests/ --to new/
      dractl migrate --cluster --report md
      dractl migrate pod.yaml --strategy claims --diff
    """
    _refuse_several(diff_only, in_place, target, report)
    if target == "":
        raise InvalidInput("the name of the folder is empty; write . for the current folder", about="--to")
    if namespace is not None and (paths or not cluster):
        raise InvalidInput("is for --cluster without PATHS", about="--namespace")
    read = read_cluster(kubeconfig, context, namespace) if cluster else None
    decided = _decided(decisions, strategy)
    minor = read.minor if read is not None else None
    options = decided.options(named_minor(kubernetes) if kubernetes is not None else minor)
    work = _gathered(paths or [], around or [], read)
    result = migrated(work.sources, options, work.side)
    _refuse_unmatched(result, options)
    results = _results(result, work, in_place=in_place, target=target, command=_typed(ctx))
    written = "." if in_place else None if target == _STDOUT else target
    models = tuple(dict.fromkeys(model.strip() for model in (nodes or "").split(",") if model.strip()))
    outcome = replace(
        reported(result, options, work, models, try_seconds, results),
        command=_typed(ctx),
        written=written,
        unread=work.unread,
        decided=decided,
    )
    _write(outcome, work, in_place=in_place, target=target, diff_only=diff_only)
    if report is not None:
        print_exactly(markdown(outcome) if report == "md" else json_text(outcome))
    elif not diff_only and target != _STDOUT:
        show(outcome)
    _end(outcome, work)


_OF_RESULTS = frozenset(("diff_only", "in_place", "target", "report"))


def _typed(ctx: typer.Context) -> str:
    """What a person typed, without where results go: for the commands of the report."""
    words = [ctx.command_path or "dractl migrate"]
    for param in ctx.command.params:
        name = param.name or ""
        source = ctx.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE" or name in _OF_RESULTS:
            continue
        value = ctx.params[name]
        values = value if isinstance(value, list | tuple) else [value]
        if param.param_type_name == "argument":
            words += [shlex.quote(str(each)) for each in values]
        elif isinstance(value, bool):
            words.append(param.opts[0] if value else (param.secondary_opts or param.opts)[0])
        else:
            words += [f"{param.opts[0]} {shlex.quote(str(each))}" for each in values]
    return " ".join(words)


def _refuse_unmatched(result: Migration, options: Options) -> None:
    """A misspelled name must not look like a workload that stays."""
    named_ones = [("workloads", name) for name, _ in options.strategy_of]
    named_ones += [("sharedClaims", name) for names in options.shared_claims for name in names]
    for decision, name in named_ones:
        if not any(is_named(workload.document, name) for workload in result.workloads):
            raise InvalidInput(f"no workload that asks for GPUs is called {name!r}", about=decision)
    for names in options.shared_claims:
        members = [
            workload for workload in result.workloads if any(is_named(workload.document, name) for name in names)
        ]
        _refuse_apart(members, names)


def _refuse_apart(members: Sequence[MigratedWorkload], names: Sequence[str]) -> None:
    """One claim for all of them, or nothing is done."""
    about = f"sharedClaims: [{', '.join(names)}]"
    for member in members:
        if member.choice.target is not MigrationTarget.CLAIMS:
            raise InvalidInput(f"{named(member)} cannot have a claim: {member.choice.reason}", about=about)
    refs: dict[ObjectRef, str] = {ref: named(workload) for workload in members for ref in workload.templates}
    if len(refs) > 1:
        who = ", ".join(refs.values())
        raise InvalidInput(f"{who} are of different namespaces, or do not ask for the same devices", about=about)


def _write(report: MigrationReport, work: Gathered, *, in_place: bool, target: str | None, diff_only: bool) -> None:
    """Where it was asked for. A person's files belong together, also those that are not changed."""
    result = report.migration
    if diff_only:
        print_exactly("".join(diff(result)))
    elif in_place:
        for done in write_in_place(result):
            print_message(done)
    elif target == _STDOUT:
        print_exactly(together(result))
    elif target is not None:
        if others := write_beside(result, Path(target), from_files=work.from_files):
            warning = f"warning: this run did not write {and_more(others, 3)}; remove what you do not want to apply"
            print_message(warning)
        write_reports(report, Path(target))


_LATER = "new"
"""Where the plan supposes results that were not written yet; `next_steps` advises to write them there."""


def _results(result: Migration, work: Gathered, *, in_place: bool, target: str | None, command: str) -> Results:
    if in_place:
        return Results(values_written=False, originals_exist=False)
    written = target is not None and target != _STDOUT
    folder = Path(target) if target is not None and written else Path(_LATER)
    before = places_below(result, BEFORE)
    return Results(
        new={file: str(folder / place) for file, place in places_below(result).items()},
        old={file: str(folder / place) for file, place in before.items() if not work.from_files or file == STDIN},
        folder=f"{folder}/",
        write=None if written else f"{command} --to {_LATER}/",
    )


def _refuse_several(diff_only: bool, in_place: bool, target: str | None, report: str | None) -> None:
    ways = [
        name for name, given in (("--diff", diff_only), ("--in-place", in_place), ("--to", target is not None)) if given
    ]
    if len(ways) > 1:
        raise InvalidInput("choose one of them", about=" and ".join(ways))
    if report is not None and (diff_only or target == _STDOUT):
        raise InvalidInput("both print to standard output; choose one", about=f"--report and {ways[0]}")


def _gathered(paths: Sequence[str], around: Sequence[str], read: ClusterRead | None) -> Gathered:
    if not paths and read is None:
        raise InvalidInput("name files or folders, - for standard input, or --cluster", about="PATHS")
    given, unreadable = read_sources(paths)
    beside, more = read_sources(around)
    sources = given if paths or read is None else relevant(read.workloads)
    side = (*beside, *((read.around,) if read is not None else ()))
    return Gathered(sources, side, (*unreadable, *more), tuple(_unused(beside, read)), read, bool(paths))


_EXPLAINED_BY_NODES = frozenset(kind.kind for kind in (PODS, *WORKLOADS))
"""They say who uses the GPUs of nodes."""


def _unused(beside: Sequence[ManifestText], read: ClusterRead | None) -> Iterator[str]:
    """Files that say nothing about GPUs. Raises InvalidInput for a file of decisions."""
    documents = {source.file: read_documents(source.text, source.file) for source in beside}
    nodes_known = read is not None or any(
        document.kind == NODES.kind for reading in documents.values() for document in reading.documents
    )
    silent = {"", CONFIG_MAPS.kind} | (set() if nodes_known else _EXPLAINED_BY_NODES)
    for file, reading in documents.items():
        unused = [document for document in reading.documents if document.kind in silent and says_nothing(document)]
        if any(not document.kind and is_decisions(document.obj) for document in unused):
            raise InvalidInput(f"{file} has decisions; pass it with --decisions", about="--with")
        if len(unused) == len(reading.documents) and not reading.problems:
            yield file


def _end(report: MigrationReport, work: Gathered) -> None:
    """What was not read or not used, and the exit status."""
    for file in work.unused:
        print_message(f"note: {file}: {_NOT_USED}")
    for kind in work.read.unread if work.read is not None else ():
        print_message(f"note: {kind.what}: {kind.why}; the result leaves them out")
    for unread in work.unreadable:
        print_message(f"error: {unread.what}: {unread.why}")
    if work.unreadable:
        raise SystemExit(Status.UNREACHABLE)
    if report.failed:
        raise SystemExit(Status.NO)


_NOT_USED = (
    "says nothing about the cluster's GPUs, so it is not used; --with is for the device plugin's configuration, its"
    " Helm values, a ClusterPolicy, mig-parted layouts, nodes and slices"
)


# -- the report: what was found out besides the result


def reported(
    migration: Migration, options: Options, work: Gathered, models: Sequence[str], try_seconds: float, results: Results
) -> MigrationReport:
    """With the result tried, the cluster looked at as far as it is known, and the way there. `models` are of GPUs, on
    which the result is tried; none: on the nodes of the cluster, else on all models."""
    objects = work.objects
    plan = tried = None
    if any(obj.get("kind") == "Node" for obj in objects):
        offering = offering_of(objects, options.driver, options.other_resources)
        plan = cutover(offering, migration, options.driver, results)
    if migration.workloads:
        ground = _ground(migration, options, objects, models)
        tried = verify(migration, ground, _classes(objects, work.read), deadline(try_seconds))
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
        print_message(line)
    rows = list(_rows(report))
    if rows:
        print_table(("WORKLOAD", "BECOMES", "DEVICES", "WHY"), rows)
    shown = [finding for finding in report.migration.findings if finding.severity is not Severity.INFO]
    findings = sorted(shown, key=lambda finding: (finding.severity is not Severity.ERROR, finding.place))
    if findings:
        if rows:
            print()  # noqa: T201 - between two tables
        print_table(("PLACE", "SEVERITY", "CODE", "WHAT"), list(_cells(findings)))
    print_message("`--report md` has the notes and the plan to move the cluster.")


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
