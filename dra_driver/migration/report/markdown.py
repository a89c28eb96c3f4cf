"""The report of a migration as Markdown; `dra_driver.migration.report.data` has the same for programs. Pure.

The summary and the next steps come first, then findings, the worst first. Each thing is said once: the meaning of a
code above its findings, a reason above its workloads. A section without content has no heading.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import yaml

from dra_driver.api.meta import JsonObject
from dra_driver.checking.codes import Severity
from dra_driver.grouping import grouped
from dra_driver.migration.claims.publishing import final_values, gpu_policies, policy_objects
from dra_driver.migration.codes import FindingCode
from dra_driver.migration.cutover.commands import CutoverPlan, Stage
from dra_driver.migration.decisions import FILE, proposal, wanted_decisions
from dra_driver.migration.model import MigratedWorkload, Migration, MigrationFinding, MigrationTarget, title_of
from dra_driver.migration.report.outcome import (
    MigrationReport,
    UnreadInput,
    count,
    next_steps,
    not_understood,
    targets_of,
)
from dra_driver.migration.verify.trial import TrialResult, TrialVerdict, Verification
from dra_driver.phrases import and_more, how_many

_HEADINGS = {
    Severity.ERROR: "Errors: the workload would behave differently",
    Severity.WARNING: "Warnings: the workload may behave differently, or something must be done by hand",
    Severity.INFO: "Notes",
}


def markdown(report: MigrationReport) -> str:
    """The whole report."""
    migration = report.migration
    findings = {
        severity: section(_HEADINGS[severity], findings_of(migration.findings, severity)) for severity in Severity
    }
    parts = [
        ["# From the device plugin to DRA", "", *summary(migration)],
        section("What to do next", _next(report)),
        section("What you can decide", _decisions(report)),
        section("Not read", _unread(report.unread)),
        findings[Severity.ERROR],
        findings[Severity.WARNING],
        section("Workloads", workloads_of(migration.workloads)),
        findings[Severity.INFO],
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
    files = how_many(len(migration.files), "file")
    if not pods:
        counts = ", but something that counts them has changed" if migration.changed else ""
        strange = not_understood(migration)
        what = "nothing that is understood asks" if strange else "nothing asks"
        yield f"{files}: {what} for GPUs in a way that must change{counts}."
    else:
        does = "asks" if pods == 1 else "ask"
        becomes = [
            (targets.count(MigrationTarget.CLAIMS), "with claims now"),
            (targets.count(MigrationTarget.EXTENDED), "left as it is and answered by a DeviceClass"),
            (targets.count(MigrationTarget.LEAVE), "left alone"),
        ]
        parts = ", ".join(f"{number} {what}" for number, what in becomes if number)
        yield f"{files}, {how_many(pods, 'pod specification')} that {does} for GPUs: {parts}."
    numbers = [how_many(count(migration, severity), severity.noun) for severity in Severity]
    yield f"{numbers[0]}, {numbers[1]}, {numbers[2]}."
    if not migration.changed and pods:
        yield "No file is changed."


def _next(report: MigrationReport) -> Iterator[str]:
    for number, step in enumerate(next_steps(report), 1):
        yield f"{number}. {step.what}"
        if step.command is not None:
            yield from _shell([step.command])


def _unread(unread: Sequence[UnreadInput]) -> Iterator[str]:
    if unread:
        yield "This report does not include what could not be read."
        yield ""
        yield from (f"- {escaped(item.what)}: {sentence(escaped(item.why))}" for item in unread)


# -- what was written


def _written(migration: Migration) -> Iterator[str]:
    if migration.objects:
        rows = [(str(obj.ref), obj.beside, obj.reason) for obj in migration.objects]
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
    if policies := gpu_policies(migration):
        yield "The configuration that was found, as GpuPolicies. Apply them with kubectl, or install the chart with the"
        yield "value `policy` of the written values, of which its controller makes the same:"
        yield ""
        yield from yaml_block(*policies)
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


# -- findings

_FEW = 3
"""So many places of one sentence have a line each, with the object; more have a line together."""
_NO_ADVICE = ("", "Nothing to do.")


def findings_of(findings: Sequence[MigrationFinding], severity: Severity) -> Iterator[str]:
    """Those of one severity, in the order of codes."""
    by_code = grouped((item for item in findings if item.severity is severity), lambda item: item.code)
    for index, code in enumerate(sorted(by_code, key=lambda code: code.name)):
        if index:
            yield ""
        yield from _of_code(code, by_code[code])


def _of_code(code: FindingCode, findings: Sequence[MigrationFinding]) -> Iterator[str]:
    yield f"### {code.name} {code.title}"
    yield ""
    yield code.means
    yield ""
    common = {item.advice for item in findings}
    together = len(common) == 1
    ordered = sorted(findings, key=lambda item: (item.place.file, item.place.line, item.message))
    for some in grouped(ordered, lambda item: (item.message, item.advice, item.fixed, item.paste)).values():
        if len(some) > _FEW:
            yield _in_all_places(some, together)
        else:
            yield from (_in_one_place(item, together) for item in some)
        yield from _to_paste(some[0].paste)
    undone = any(not item.fixed for item in findings)
    if together and (advice := common.pop()) not in _NO_ADVICE and (undone or advice != code.advice):
        yield ""
        yield escaped(advice)


def _to_paste(text: str) -> Iterator[str]:
    """Below the line of a list that it belongs to."""
    if text:
        yield from ("", "  ```yaml", *(f"  {line}" for line in text.splitlines()), "  ```")


def _in_one_place(finding: MigrationFinding, together: bool) -> str:
    path = f" `{finding.place.path}`" if finding.place.path else ""
    named = finding.object if finding.object.name else finding.object.kind
    about = f", {named}" if finding.object.kind else ""
    advice = "" if together else _own_advice(finding)
    return f"- {at(finding.place.file, finding.place.line)}{about}{path}: {_message(finding)}{advice}"


def _in_all_places(alike: Sequence[MigrationFinding], together: bool) -> str:
    """One sentence, and the lines of each file."""
    lines = grouped(dict.fromkeys((item.place.file, item.place.line) for item in alike), lambda place: place[0])
    of_files = (f"{file_title(file)}:{','.join(str(line) for _, line in places)}" for file, places in lines.items())
    advice = "" if together else _own_advice(alike[0])
    return f"- {_message(alike[0])}{advice} In {len(alike)} places: {'; '.join(of_files)}"


def _message(finding: MigrationFinding) -> str:
    return sentence(escaped(finding.message)) + (" Done." if finding.fixed else "")


def _own_advice(finding: MigrationFinding) -> str:
    return "" if finding.advice in _NO_ADVICE else f" {escaped(finding.advice)}"


# -- workloads

_TARGETS = {
    MigrationTarget.LEAVE: "Left alone",
    MigrationTarget.CLAIMS: "Claims",
    MigrationTarget.EXTENDED: "Stay as they are, answered by a DeviceClass",
}
"""In this order: first those that a person must check."""
_IN_GENERAL = (
    "What stays cannot choose GPUs by attributes, share one between containers, or carry settings of the driver; "
    "claims can (`strategy: claims`)."
)


def workloads_of(workloads: Sequence[MigratedWorkload]) -> Iterator[str]:
    """A table for each way and reason; the reason stands once."""
    by_reason = grouped(workloads, lambda workload: (workload.choice.target, workload.choice.reason))
    order = list(_TARGETS)
    for index, (target, reason) in enumerate(sorted(by_reason, key=lambda key: (order.index(key[0]), key[1]))):
        some = by_reason[target, reason]
        if index:
            yield ""
        yield f"### {_TARGETS[target]}: {escaped(reason)} ({len(some)})"
        yield ""
        rows = ((named(item), at(item.document.file, item.document.line)) for item in sorted(some, key=_key))
        yield from table(("Workload", "File"), rows)
    yield from _cannot(workloads)


def _key(workload: MigratedWorkload) -> tuple[str, str, int]:
    document = workload.document
    return document.namespace or "", document.file, document.line


def _cannot(workloads: Sequence[MigratedWorkload]) -> Iterator[str]:
    if not any(item.choice.target is MigrationTarget.EXTENDED for item in workloads):
        return
    yield ""
    yield _IN_GENERAL
    cannot: dict[str, list[str]] = defaultdict(list)
    for workload in workloads:
        for limit in workload.choice.cannot:
            cannot[limit].append(named(workload))
    if cannot:
        yield "What that means here:"
        yield ""
        yield from (f"- {escaped(sentence(limit))} ({listed(names)})" for limit, names in cannot.items())


# -- tried

_VERDICTS = {
    TrialVerdict.DIFFERS: "**differs**",
    TrialVerdict.NOWHERE: "**fits nowhere**",
    TrialVerdict.UNKNOWN: "not tried",
    TrialVerdict.SAME: "as before",
}
"""Worst first."""


def tried(verification: Verification | None) -> Iterator[str]:
    if verification is None or not verification.checked:
        return
    yield f"Each workload alone, with nothing else in use, on {verification.title}."
    yield ""
    yield from table(("Devices", "On", "Workload", "Gets"), _results(verification))
    needing = grouped((item for item in verification.checked if item.needs is not None), lambda item: str(item.needs))
    for alike in needing.values():
        names = [named(item.workload) for item in alike]
        yield ""
        if not alike[0].needs:
            yield (
                "Only on GPUs for which the policy above has no rule does the driver offer what is asked for by"
                f" {listed(names)}: limit its rules with `nodes` or `gpus`."
            )
            continue
        yield f"Only with GpuPolicies like these does the driver offer what is asked for by {listed(names)}:"
        yield ""
        yield from yaml_block(*policy_objects(alike[0].needs or {}, "needed"))


def _results(verification: Verification) -> Iterator[tuple[str, ...]]:
    """Workloads with which it went alike have one row."""
    order = list(_VERDICTS)
    ordered = sorted(verification.checked, key=lambda item: order.index(item.verdict))
    for (verdict, node, gets), alike in grouped(ordered, lambda item: (item.verdict, item.node, _gets(item))).items():
        names = [named(item.workload) for item in alike]
        word = _VERDICTS[verdict]
        if verdict is TrialVerdict.NOWHERE and not verification.certain:
            word = "on none of these"
        # All names, because a person must check these.
        yield word, node, listed(names) if verdict is TrialVerdict.SAME else ", ".join(names), gets


def _gets(checked: TrialResult) -> str:
    got = "; ".join(f"{item.container}: {', '.join(_shortened(item.devices))}" for item in checked.got)
    return "; ".join(filter(None, ("; ".join(checked.why), got)))


def _shortened(devices: Sequence[str]) -> list[str]:
    return [*devices[:2], f"and {len(devices) - 2} more"] if len(devices) > 3 else list(devices)


# -- the cut-over

_NEEDED = ("Node", "Pod", "DaemonSet", "ResourceSlice", "CustomResourceDefinition", "ClusterPolicy", "GPUCluster")
"""Kinds without which a plan may be wrong."""


def way(plan: CutoverPlan | None, unread: Sequence[UnreadInput]) -> Iterator[str]:
    hidden = [item.what for item in unread if item.what in _NEEDED]
    if hidden:
        yield (
            f"**You may not list {', '.join(dict.fromkeys(hidden))}, so the plan may be wrong: objects that hold or "
            "offer GPUs may be missing. Use an account that may list them before you start.**"
        )
        yield ""
    if plan is None and hidden:
        return
    if plan is None:
        yield (
            "The nodes are not known. With `--cluster`, or with the output of `kubectl get "
            "nodes,pods,daemonsets,resourceslices -A -o yaml` passed by `--with`, this section has the "
            "plan for each of them."
        )
        return
    if plan.refusal:
        yield f"**There is none.** {plan.refusal}"
        return
    if plan.empty:
        yield "No node that was read has resources of a device plugin: there is nothing to move."
        return
    if plan.has_only_its_end:
        yield (
            "An earlier plan moved every node that was read; only its end is left. The way back is in "
            "the report of that plan."
        )
        yield from _stages(plan.forward)
        return
    if plan.conflicts:
        yield f"**On {', '.join(plan.conflicts)} both offer the same GPUs. Start now.**"
        yield ""
    yield (
        "The label `dra.gpu/offered-by` of a node defines what may offer its GPUs; it has one value, so never both. "
        "Wait until each command succeeds. If one does not, stop, and take the way back."
    )
    yield ""
    yield "The driver is installed with these values until the end (`values-cutover.yaml`):"
    yield ""
    yield from yaml_block(plan.values)
    yield from _stages(plan.forward)


def way_back(plan: CutoverPlan | None) -> Iterator[str]:
    if plan is None or not plan.back:
        return
    yield (
        "From any step, for the nodes that you started with. Nothing else must be undone: templates and "
        "classes that no pod names do no harm."
    )
    yield from _stages(plan.back)


def _stages(stages: Sequence[Stage]) -> Iterator[str]:
    for stage in stages:
        yield ""
        yield f"### {stage.title}"
        yield ""
        for index, step in enumerate(stage.steps, 1):
            note = f" {step.note}" if step.note else ""
            yield f"{index}. {step.what}{note}"
            if step.commands:
                yield from _shell(step.commands)


# -- text

_SHOWN = 6
"""Names in a row; the report for programs has all."""


def _shell(commands: Sequence[str]) -> Iterator[str]:
    """A block below an item of a list."""
    yield from ("", "    ```sh", *(f"    {command}" for command in commands), "    ```", "")


def named(workload: MigratedWorkload) -> str:
    """`Deployment search/embedder`, and the role or group where it has several pods."""
    title = title_of(workload.document)
    return f"{title} ({workload.pod.group})" if workload.pod.group else title


def listed(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    return and_more(list(dict.fromkeys(names)), _SHOWN)


def file_title(file: str) -> str:
    return "standard input" if file == "-" else file


def at(file: str, line: int) -> str:
    """A place, for people."""
    return f"{file_title(file)}:{line}"


def sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def section(title: str, lines: Iterable[str]) -> list[str]:
    """With its heading; nothing where there are no lines."""
    results = list(lines)
    return ["", f"## {title}", "", *results] if results else []


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"|{'---|' * len(headings)}"
    for row in rows:
        # Also in code: a table takes each bar for the end of a cell.
        yield f"| {' | '.join(escaped(cell).replace('|', '\\|') for cell in row)} |"


def escaped(text: str) -> str:
    """In one line, and nothing of it taken for HTML; in code all is as it is."""
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:
        return "`".join(parts)
    return "`".join(part if index % 2 else part.replace("<", "\\<") for index, part in enumerate(parts))


def yaml_block(*documents: JsonObject) -> Iterator[str]:
    yield "```yaml"
    yield yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=110).rstrip()
    yield "```"
