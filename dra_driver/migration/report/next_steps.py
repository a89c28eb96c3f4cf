"""What a person does after a run, in order, with the commands to type. Pure."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from dra_driver.migration.codes import Severity
from dra_driver.migration.cutover.plan import FINAL_VALUES_FILE
from dra_driver.migration.model import Target
from dra_driver.migration.report.outcome import Report, count, targets_of
from dra_driver.migration.report.readiness import Answer


@dataclass(frozen=True, slots=True)
class NextStep:
    what: str
    """A sentence."""
    command: str | None = None
    """For a shell; None: there is none."""


def next_steps(report: Report) -> tuple[NextStep, ...]:
    """Empty where there is nothing to do."""
    migration = report.migration
    if not migration.workloads and not migration.findings and not migration.changed:
        return ()
    return (*_first(report), *_files(report), *_cluster(report))


def _first(report: Report) -> Iterator[NextStep]:
    """What stands in the way of all else."""
    errors = count(report.migration, Severity.ERROR)
    if report.unread:
        yield NextStep("See what could not be read (`Not read`, below), and whether it matters.")
    if errors:
        these = "the error" if errors == 1 else f"the {errors} errors"
        yield NextStep(f"Fix {these} below, then run this again; do not apply what they are about.")
    if report.unlike:
        yield NextStep(f"See why {report.unlike} of the workloads would not get what they had (`Tried`, below).")


def _files(report: Report) -> Iterator[NextStep]:
    migration = report.migration
    if report.written is not None:
        if migration.changed:
            where = "." if report.written == "." else f"{report.written}/manifests"
            yield NextStep("Check what was written.", f"dractl check {shlex.quote(where)}")
    elif migration.changed:
        yield NextStep("Look at every change, line by line.", f"{report.command} --diff")
        yield NextStep("Write the results and the reports into a folder.", f"{report.command} -o new/")
    elif Target.EXTENDED in targets_of(migration):
        yield NextStep(
            f"No manifest changes: get the values for the driver's chart (`{FINAL_VALUES_FILE}`).",
            f"{report.command} -o new/",
        )


def _cluster(report: Report) -> Iterator[NextStep]:
    if not report.migration.workloads:
        return
    if report.plan is None and any(one.what == "Node" for one in report.unread):
        yield NextStep(
            "Let somebody run this who may list nodes, pods, DaemonSets and slices of the cluster; then the plan, node "
            "by node, is in the report.",
            f"{report.command} --report md",
        )
        return
    if report.plan is None:
        yield NextStep(
            "Ask the cluster what is around these workloads; then the plan, node by node, is in the report.",
            f"{report.command} --cluster --report md",
        )
        return
    if any(one.answer is Answer.NO for one in report.checks):
        yield NextStep("Make the cluster ready; what it lacks is below. Then look at its nodes.", "dractl doctor")
    if report.plan.has_only_its_end:
        yield NextStep("Every node is over: take the last steps of the plan, below.")
    elif not report.plan.empty:
        yield NextStep("Take the cluster over node by node, as below, and apply each manifest when its nodes are over.")
