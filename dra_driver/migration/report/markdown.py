"""The report of a migration as Markdown; `dra_driver.migration.report.data` has the same for programs. Pure.

The summary and the next steps come first, then findings, the worst first. Each thing is said once: the meaning of a
code above its findings, a reason above its workloads. A section without content has no heading.
"""

from collections.abc import Iterator, Sequence

from dra_driver.api.meta import JsonObject
from dra_driver.migration.claims.publishing import final_values
from dra_driver.migration.codes import FindingSeverity
from dra_driver.migration.decisions import FILE, proposal, wanted_decisions
from dra_driver.migration.model import Migration, MigrationTarget, ObjectRef
from dra_driver.migration.report.outcome import (
    MigrationReport,
    UnreadInput,
    count,
    next_steps,
    not_understood,
    targets_of,
)
from dra_driver.migration.report.sections import (
    counted,
    escaped,
    file_title,
    findings_of,
    section,
    sentence,
    table,
    tried,
    way,
    way_back,
    workloads_of,
    yaml_block,
)

_HEADINGS = {
    FindingSeverity.ERROR: "Errors: the workload would behave differently",
    FindingSeverity.WARNING: "Warnings: the workload may behave differently, or something must be done by hand",
    FindingSeverity.INFO: "Notes",
}
_WORDS = {FindingSeverity.ERROR: "error", FindingSeverity.WARNING: "warning", FindingSeverity.INFO: "note"}


def markdown(report: MigrationReport) -> str:
    """The whole report."""
    migration = report.migration
    findings = {
        severity: section(_HEADINGS[severity], findings_of(migration.findings, severity))
        for severity in FindingSeverity
    }
    parts = [
        ["# From the device plugin to DRA", "", *summary(migration)],
        section("What to do next", _next(report)),
        section("What you can decide", _decisions(report)),
        section("Not read", _unread(report.unread)),
        findings[FindingSeverity.ERROR],
        findings[FindingSeverity.WARNING],
        section("Workloads", workloads_of(migration.workloads)),
        findings[FindingSeverity.INFO],
        section("What was written", _written(migration)),
        section("Policy and chart values", _settings(migration)),
        section("Tried by the allocator", tried(report.verification)),
        section("The way to the driver, node by node", way(report.plan, report.unread)),
        section("The way back", way_back(report.plan)),
    ]
    return "\n".join("\n".join(part) for part in parts if part).rstrip() + "\n"


# -- at the top


def summary(migration: Migration) -> Iterator[str]:
    """What it comes to, in a few lines."""
    targets = targets_of(migration)
    pods = len(targets)
    files = counted(len(migration.files), "file")
    if not pods:
        counts = ", but something that counts them has changed" if migration.changed else ""
        strange = not_understood(migration)
        what = "nothing that is understood asks" if strange else "nothing asks"
        yield f"{files}: {what} for GPUs in a way that has to change{counts}."
    else:
        does = "asks" if pods == 1 else "ask"
        becomes = [
            (targets.count(MigrationTarget.CLAIMS), "with claims now"),
            (targets.count(MigrationTarget.EXTENDED), "left as it is and answered by a DeviceClass"),
            (targets.count(MigrationTarget.LEAVE), "left alone"),
        ]
        parts = ", ".join(f"{number} {what}" for number, what in becomes if number)
        yield f"{files}, {counted(pods, 'pod specification')} that {does} for GPUs: {parts}."
    numbers = [counted(count(migration, severity), _WORDS[severity]) for severity in FindingSeverity]
    yield f"{numbers[0]}, {numbers[1]}, {numbers[2]}."
    if not migration.changed and pods:
        yield "No file is changed."


def _next(report: MigrationReport) -> Iterator[str]:
    for number, step in enumerate(next_steps(report), 1):
        yield f"{number}. {step.what}"
        if step.command is not None:
            yield ""
            yield "    ```sh"
            yield f"    {step.command}"
            yield "    ```"
            yield ""


def _unread(unread: Sequence[UnreadInput]) -> Iterator[str]:
    if unread:
        yield "This report does not include what could not be read."
        yield ""
        yield from (f"- {escaped(item.what)}: {sentence(escaped(item.why))}" for item in unread)


# -- what was written


def _written(migration: Migration) -> Iterator[str]:
    if migration.objects:
        rows = [(str(obj.ref), obj.beside or "for the whole cluster", obj.reason) for obj in migration.objects]
        yield from table(("New object", "With", "For"), rows)
    changed = [file.file for file in migration.files if file.changed]
    if changed:
        if migration.objects:
            yield ""
        names = ", ".join(f"`{file_title(text)}`" for text in changed)
        yield f"Changed: {names}."
    if migration.new_files:
        yield f"New: {', '.join(f'`{file.file}`' for file in migration.new_files)}."


def _decisions(report: MigrationReport) -> Iterator[str]:
    wanted = wanted_decisions(report.migration)
    if not wanted:
        return
    yield f"Write the lines that apply to you to a file, such as `{FILE}`, and run this with `--decisions {FILE}`."
    yield from ("", "```yaml", proposal(wanted, report.decided).rstrip(), "```")


def _settings(migration: Migration) -> Iterator[str]:
    if migration.policy is not None:
        yield "The configuration that was found, as a PublishingPolicy (`policy:` of the chart, or `--policy FILE`):"
        yield ""
        yield from yaml_block(migration.policy)
        yield ""
        for reason in migration.reasons:
            yield f"- {sentence(escaped(reason))}"
        if migration.reasons:
            yield ""
    values = {key: value for key, value in final_values(migration).items() if key != "policy"}
    if values:
        yield "Values for the driver's chart, beside `policy`:"
        yield ""
        yield from yaml_block(values)
