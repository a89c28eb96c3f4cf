"""`dractl migrate PATHS`: moves manifests from the device plugin to DRA.

Reads files or a cluster, decides by `dra_driver.migration`, and shows or writes. A cluster is only ever read.
"""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dra_driver.cli.migration.migrate_cluster import ClusterRead, read_cluster, relevant
from dra_driver.cli.migration.migrate_files import (
    BEFORE,
    diff,
    places_below,
    read_sources,
    together,
    write_beside,
    write_in_place,
)
from dra_driver.cli.migration.migrate_report import Gathered, json_text, reported, show, write_reports
from dra_driver.cli.reading.files import STDIN, read_bytes
from dra_driver.cli.reading.session import ContextOption, KubeconfigOption
from dra_driver.errors import InvalidInput
from dra_driver.kubernetes import named_minor
from dra_driver.migration.cutover.applying import Results
from dra_driver.migration.decisions import Decisions
from dra_driver.migration.migrate import migrate as migrated
from dra_driver.migration.model import (
    MigratedWorkload,
    Migration,
    MigrationTarget,
    ObjectRef,
    Options,
    StrategyOption,
    is_named,
)
from dra_driver.migration.report.markdown import markdown, named
from dra_driver.migration.report.outcome import MigrationReport
from dra_driver.terminal import Status, messages, option


class ReportFormat(StrEnum):
    MARKDOWN = "md"
    JSON = "json"


def _decided(file: Path | None, strategy: StrategyOption | None) -> Decisions:
    """Raises InvalidInput, and UnreadableFile."""
    decisions = Decisions.read(read_bytes(str(file)), str(file)) if file is not None else Decisions()
    return decisions if strategy is None else decisions.model_copy(update={"strategy": strategy})


_STDOUT = "-"


def migrate(
    ctx: typer.Context,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATHS]",
            help="YAML or JSON files, folders with such files (kustomize folders, too), or - for standard input.",
        ),
    ] = None,
    cluster: Annotated[
        bool,
        option(
            "Without PATHS: the workloads of a cluster. With PATHS: what is around them is asked of it.", "--cluster"
        ),
    ] = False,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    namespace: Annotated[
        str | None, option("With --cluster and no PATHS: workloads of this namespace only.", "--namespace", "-n")
    ] = None,
    around: Annotated[
        list[str] | None,
        option(
            "More files, read for what they say and never changed: the device plugin's configuration, ClusterPolicy, "
            "mig-parted configuration, nodes, slices; may be repeated.",
            "--with",
            metavar="PATH",
        ),
    ] = None,
    nodes: Annotated[
        str | None,
        option(
            "Nodes on which the result is tried: GPU models by the names of simulated nodes (dgx-h100,t4), or files of "
            "`dractl record`. Default: all models that are known; with --cluster its nodes.",
            "--nodes",
            metavar="MODEL,…",
        ),
    ] = None,
    try_seconds: Annotated[
        float,
        typer.Option(
            "--try-seconds", min=0.0, help="For trying the result; what is not tried by then is reported as not tried."
        ),
    ] = 60.0,
    diff_only: Annotated[bool, option("Print what would change.", "--diff")] = False,
    in_place: Annotated[bool, option("Write results over the files.", "--in-place")] = False,
    target: Annotated[
        str | None,
        option("Write results and reports into this folder; - prints the manifests instead.", "--to", metavar="DIR"),
    ] = None,
    report: Annotated[ReportFormat | None, option("Print the whole report.", "--report")] = None,
    kubernetes: Annotated[
        str | None, option("Version of the cluster; default 1.36.", "--kubernetes", metavar="1.36")
    ] = None,
    decisions: Annotated[
        Path | None,
        option(
            "What you decide, as YAML: see docs/migration.md. The report proposes it.", "--decisions", metavar="FILE"
        ),
    ] = None,
    strategy: Annotated[
        StrategyOption | None, option("The decision `strategy`, which counts instead of the file's.", "--strategy")
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
        typer.echo(markdown(outcome) if report is ReportFormat.MARKDOWN else json_text(outcome), nl=False)
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
        if not any(is_named(workload.pod.document, name) for workload in result.workloads):
            raise InvalidInput(f"no workload that asks for GPUs is called {name!r}", about=decision)
    for names in options.shared_claims:
        members = [
            workload for workload in result.workloads if any(is_named(workload.pod.document, name) for name in names)
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
        for line in diff(result):
            typer.echo(line, nl=False)
    elif in_place:
        for done in write_in_place(result):
            messages.print(done, markup=False, soft_wrap=True)
    elif target == _STDOUT:
        typer.echo(together(result), nl=False)
    elif target is not None:
        write_beside(result, Path(target), from_files=work.from_files)
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


def _refuse_several(diff_only: bool, in_place: bool, target: str | None, report: ReportFormat | None) -> None:
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
    return Gathered(sources, side, (*unreadable, *more), read, bool(paths))


def _end(report: MigrationReport, work: Gathered) -> None:
    """What was not read, and the exit status."""
    for kind in work.read.unread if work.read is not None else ():
        messages.print(f"note: {kind.what}: {kind.why}; the result leaves them out", markup=False, soft_wrap=True)
    for unread in work.unreadable:
        messages.print(f"error: {unread.what}: {unread.why}", markup=False, soft_wrap=True)
    if work.unreadable:
        raise SystemExit(Status.UNREACHABLE)
    if report.failed:
        raise SystemExit(Status.NO)
