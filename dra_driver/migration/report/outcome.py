"""The results of one run of a migration, in numbers, and what to do next. Pure."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dra_driver.checking.codes import Severity
from dra_driver.migration.codes import DOUBLE_ALLOCATION, UNKNOWN_RESOURCE
from dra_driver.migration.cutover.commands import CutoverPlan
from dra_driver.migration.cutover.cutover_plan import FINAL_VALUES_FILE
from dra_driver.migration.decisions import Decisions
from dra_driver.migration.model import Migration, MigrationTarget
from dra_driver.migration.verify.trial import TrialVerdict, Verification


@dataclass(frozen=True, slots=True)
class UnreadInput:
    """Input that could not be read: the result leaves it out."""

    what: str
    """A file, or a kind of the cluster."""
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class MigrationReport:
    migration: Migration
    verification: Verification | None = None
    """None: not tried."""
    plan: CutoverPlan | None = None
    """None: the nodes are not known."""
    command: str = "dractl migrate PATHS"
    """What a person typed, without the options that say where results go."""
    written: str | None = None
    """The folder that results were written to, or `.` where they are over the files; None: nowhere."""
    unread: tuple[UnreadInput, ...] = ()
    decided: Decisions | None = None
    """What a person decided; None: nothing."""

    @property
    def unlike(self) -> int:
        """Workloads whose devices are not what was meant, or that fit none of the nodes there are."""
        if self.verification is None:
            return 0
        bad = (TrialVerdict.DIFFERS, TrialVerdict.NOWHERE) if self.verification.certain else (TrialVerdict.DIFFERS,)
        return sum(checked.verdict in bad for checked in self.verification.checked)

    @property
    def failed(self) -> bool:
        """Whether something would not mean the same, or is left to be done by hand: exit status 1."""
        left = MigrationTarget.LEAVE in targets_of(self.migration) or not_understood(self.migration) > 0
        return left or self.unlike > 0 or bool(count(self.migration, Severity.ERROR))


def count(migration: Migration, severity: Severity) -> int:
    return sum(finding.severity is severity for finding in migration.findings)


def not_understood(migration: Migration) -> int:
    """Resources that pods ask for, which may be of GPUs; no class answers to them when the device plugin is gone."""
    return sum(finding.code is UNKNOWN_RESOURCE for finding in migration.findings)


def targets_of(migration: Migration) -> Sequence[MigrationTarget]:
    return [workload.choice.target for workload in migration.workloads]


@dataclass(frozen=True, slots=True)
class NextStep:
    what: str
    """A sentence."""
    command: str | None = None
    """For a shell; None: there is none."""


def next_steps(report: MigrationReport) -> tuple[NextStep, ...]:
    """Empty where there is nothing to do."""
    migration = report.migration
    if not migration.workloads and not migration.findings and not migration.changed:
        return ()
    return (*_first(report), *_files(report), *_cluster(report))


def _first(report: MigrationReport) -> Iterator[NextStep]:
    """What prevents everything else."""
    errors = [item for item in report.migration.findings if item.severity is Severity.ERROR]
    # A device plugin is what the plan removes, node by node; no change of a manifest takes this error away.
    fixable = sum(item.code is not DOUBLE_ALLOCATION for item in errors)
    if report.unread:
        yield NextStep("Check what could not be read (`Not read`, below).")
    if fixable:
        these = "the error" if fixable == 1 else f"the {fixable} errors"
        yield NextStep(f"Fix {these} below, then run this again; do not apply these objects.")
    if fixable < len(errors):
        yield NextStep("Keep the device plugin (M001, below) until the plan, node by node, says how to remove it.")
    if report.unlike:
        yield NextStep(f"Check why {report.unlike} of the workloads would not get the same devices (`Tried`, below).")


def _files(report: MigrationReport) -> Iterator[NextStep]:
    migration = report.migration
    if report.written is not None:
        if migration.changed:
            where = "." if report.written == "." else f"{report.written}/manifests"
            yield NextStep("Check what was written.", f"dractl check {shlex.quote(where)}")
    elif migration.changed:
        yield NextStep("Review every change.", f"{report.command} --diff")
        yield NextStep("Write the results and the reports into a folder.", f"{report.command} --to new/")
    elif MigrationTarget.EXTENDED in targets_of(migration):
        yield NextStep(
            f"No manifest changes: get the values for the driver's chart (`{FINAL_VALUES_FILE}`).",
            f"{report.command} --to new/",
        )


def _cluster(report: MigrationReport) -> Iterator[NextStep]:
    if not report.migration.workloads:
        return
    if report.plan is None and any(unread.what == "Node" for unread in report.unread):
        yield NextStep(
            "Run this with an account that may list nodes, pods, DaemonSets and slices; then the plan, node "
            "by node, is in the report.",
            f"{report.command} --report md",
        )
        return
    if report.plan is None:
        yield NextStep(
            "Read the cluster, too; then the report has the plan, node by node.",
            f"{report.command} --cluster --report md",
        )
        return
    yield NextStep("Check the cluster: versions, feature gates, nodes and what else offers GPUs.", "dractl doctor")
    if report.plan.has_only_its_end:
        yield NextStep("Every node is moved: run the last steps of the plan, below.")
    elif not report.plan.empty:
        yield NextStep("Move the cluster node by node, as below, and apply each manifest when its nodes are moved.")
