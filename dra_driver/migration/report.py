"""What a person reads after a migration, as Markdown; `report_data` has the same for programs. Pure.

Worst first, and each thing once: what a code means stands above its findings, what moving changes in general stands at
the top, and where nothing is to be said there is no heading.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import yaml

from dra_driver.api.meta import JsonObject
from dra_driver.migration.codes import Code, Severity
from dra_driver.migration.cutover import Plan, Stage, final_values
from dra_driver.migration.model import Finding, Migration, ObjectRef, Target, Workload
from dra_driver.migration.readiness import Answer, Check
from dra_driver.migration.verify import Checked, Verdict, Verification

DIFFERENCES: tuple[str, ...] = (
    "The device plugin's resources are numbers that each container is charged with. A claim is an object that "
    "containers name: two containers that name one request share its devices, so containers that had a GPU each have "
    "a request each.",
    "Extended resources are whole numbers with requests equal to limits. What became a claim is in neither map any "
    "more; cpu and memory stay as they were.",
    "The spec of a claim cannot be changed, nor can the claims of a pod that exists: pods are made anew. Deployments, "
    "StatefulSets and DaemonSets roll by themselves, Jobs must be deleted and created again, CronJobs change with "
    "their next run.",
    "A ResourceClaimTemplate is of one namespace, and must be in each that uses it. DeviceClasses are of the whole "
    "cluster and belong to its administrators.",
    "A pod with `spec.nodeName` goes past the scheduler, and nobody allocates devices for it. Static pods cannot have "
    "claims.",
    "A pod of higher priority is not given devices by evicting one of lower priority, as it was with extended "
    "resources; priority still orders the queue.",
    "The admission plugin ExtendedResourceToleration adds a toleration for extended resources only. Claims have it "
    "written out.",
    "A claim has at most 32 devices.",
)
"""Source: reference on migration sources, section 1."""


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    migration: Migration
    verification: Verification | None = None
    """None: not tried."""
    checks: tuple[Check, ...] = ()
    plan: Plan | None = None
    """None: the nodes are not known."""


_TARGETS = {
    Target.EXTENDED: "stays, a DeviceClass answers",
    Target.CLAIMS: "claims",
    Target.LEAVE: "left alone",
}
_HEADINGS = {
    Severity.ERROR: "Errors: the workload would not mean the same",
    Severity.WARNING: "Warnings: it may not mean the same, or something is to be done by hand",
    Severity.INFO: "Notes",
}
_WORDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def markdown(report: Report) -> str:
    """The whole report."""
    migration = report.migration
    parts = [
        ["# From the device plugin to DRA", "", *summary(migration)],
        _section("Workloads", _workloads(migration.workloads)),
        *(_section(_HEADINGS[one], _findings(migration.findings, one)) for one in Severity),
        _section("What was written", _written(migration)),
        _section("Policy and chart values", _settings(migration)),
        _section("Tried by the allocator", _verification(report.verification)),
        _section("Is the cluster ready?", _checks(report.checks)),
        _section("The way to the driver, node by node", _way(report.plan)),
        _section("The way back", _way_back(report.plan)),
        _section("What is different with claims", [f"{i}. {one}" for i, one in enumerate(DIFFERENCES, 1)]),
    ]
    return "\n".join("\n".join(part) for part in parts if part).rstrip() + "\n"


def _section(title: str, lines: Iterable[str]) -> list[str]:
    found = list(lines)
    return ["", f"## {title}", "", *found] if found else []


# -- at the top


def summary(migration: Migration) -> Iterator[str]:
    """What it comes to, in a few lines."""
    targets = [one.choice.target for one in migration.workloads]
    pods = len(targets)
    files = counted(len(migration.files), "file")
    if not pods:
        yield f"{files}: nothing asks for GPUs in a way that has to change."
    else:
        does = "asks" if pods == 1 else "ask"
        becomes = [
            (targets.count(Target.CLAIMS), "with claims now"),
            (targets.count(Target.EXTENDED), "left as it is and answered by a DeviceClass"),
            (targets.count(Target.LEAVE), "left alone"),
        ]
        parts = ", ".join(f"{number} {what}" for number, what in becomes if number)
        yield f"{files}, {counted(pods, 'pod specification')} that {does} for GPUs: {parts}."
    numbers = [
        counted(sum(one.severity is severity for one in migration.findings), _WORDS[severity]) for severity in Severity
    ]
    yield f"{numbers[0]}, {numbers[1]}, {numbers[2]}."
    changed = [one.file for one in migration.files if one.before != one.after]
    if not changed and not migration.new_files and pods:
        yield "No file is changed."


def counted(number: int, word: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {word}{'s' * (number != 1)}"


def _workloads(workloads: Sequence[Workload]) -> Iterator[str]:
    if not workloads:
        return
    yield from _table(
        ("Workload", "File", "Becomes", "Why"),
        (
            (
                named(one),
                at(one.pod.document.file, one.pod.document.line),
                _TARGETS[one.choice.target],
                one.choice.reason,
            )
            for one in workloads
        ),
    )
    cannot: dict[str, list[str]] = defaultdict(list)
    for one in workloads:
        for sentence in one.choice.cannot:
            cannot[sentence].append(named(one))
    if cannot:
        yield ""
        yield "What this way cannot express:"
        yield ""
        for sentence, names in cannot.items():
            yield f"- {escaped(sentence)} ({listed(names)})"


def named(workload: Workload) -> str:
    """`Deployment search/embedder`, and the role or group where it has several pods."""
    document = workload.pod.document
    name = document.name or str((document.obj.get("metadata") or {}).get("generateName") or "without a name")
    ref = ObjectRef(document.kind, document.namespace, name)
    return f"{ref} ({workload.pod.group})" if workload.pod.group else str(ref)


_SHOWN = 6


def listed(names: Sequence[str]) -> str:
    names = list(dict.fromkeys(names))
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


# -- findings


def _findings(findings: Sequence[Finding], severity: Severity) -> Iterator[str]:
    by_code: dict[str, list[Finding]] = defaultdict(list)
    codes: dict[str, Code] = {}
    for one in findings:
        if one.severity is severity:
            by_code[one.code.name].append(one)
            codes[one.code.name] = one.code
    for index, name in enumerate(sorted(by_code)):
        if index:
            yield ""
        yield from _of_code(codes[name], by_code[name])


def _of_code(code: Code, findings: Sequence[Finding]) -> Iterator[str]:
    yield f"### {code.name} {code.title}"
    yield ""
    yield code.means
    yield ""
    common = {one.advice for one in findings}
    together = len(common) == 1
    for one in sorted(findings, key=lambda one: (one.place.file, one.place.line, one.message)):
        done = " Done." if one.fixed else ""
        own = "" if together or one.advice in _NO_ADVICE else f" {escaped(one.advice)}"
        path = f" `{one.place.path}`" if one.place.path else ""
        about = (f", {one.object}" if one.object.name else f", {one.object.kind}") if one.object.kind else ""
        where = at(one.place.file, one.place.line)
        yield f"- {where}{about}{path}: {_sentence(escaped(one.message))}{done}{own}"
    undone = any(not one.fixed for one in findings)
    if together and (advice := common.pop()) not in _NO_ADVICE and (undone or advice != code.advice):
        yield ""
        yield escaped(advice)


_NO_ADVICE = ("", "Nothing to do.")


def _sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def at(file: str, line: int) -> str:
    """A place, for people."""
    return f"{'standard input' if file == '-' else file}:{line}"


# -- what was written


def _written(migration: Migration) -> Iterator[str]:
    if migration.objects:
        rows = [(str(_ref(one.obj)), one.beside or "for the whole cluster", one.reason) for one in migration.objects]
        yield from _table(("New object", "With", "For"), rows)
    changed = [one.file for one in migration.files if one.before != one.after]
    if changed:
        if migration.objects:
            yield ""
        names = ", ".join(f"`{'standard input' if one == '-' else one}`" for one in changed)
        yield f"Changed: {names}."
    if migration.new_files:
        yield f"New: {', '.join(f'`{one.file}`' for one in migration.new_files)}."


def _ref(obj: JsonObject) -> ObjectRef:
    metadata = obj.get("metadata") or {}
    return ObjectRef(str(obj.get("kind")), metadata.get("namespace"), str(metadata.get("name")))


def _settings(migration: Migration) -> Iterator[str]:
    if migration.policy is not None:
        yield "The configuration that was found, as a PublishingPolicy (`policy:` of the chart, or `--policy FILE`):"
        yield ""
        yield from _yaml(migration.policy)
        yield ""
        for reason in migration.reasons:
            yield f"- {_sentence(escaped(reason))}"
        if migration.reasons:
            yield ""
    values = {key: value for key, value in final_values(migration).items() if key != "policy"}
    if values:
        yield "Values for the driver's chart, beside `policy`:"
        yield ""
        yield from _yaml(values)


def _yaml(data: JsonObject) -> Iterator[str]:
    yield "```yaml"
    yield yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110).rstrip()
    yield "```"


# -- tried


_VERDICTS = {
    Verdict.SAME: "as before",
    Verdict.DIFFERS: "**differs**",
    Verdict.NOWHERE: "**fits nowhere**",
    Verdict.UNKNOWN: "not tried",
}


def _verification(verification: Verification | None) -> Iterator[str]:
    if verification is None or not verification.checked:
        return
    yield f"Each workload alone, with nothing else in use, on {verification.title}."
    yield ""
    certain = verification.certain
    yield from _table(("Workload", "Devices", "On", "Gets"), (_tried(one, certain) for one in verification.checked))
    needs: dict[str, tuple[JsonObject, list[str]]] = {}
    for one in verification.checked:
        if one.needs is not None:
            needs.setdefault(str(one.needs), (one.needs, []))[1].append(named(one.workload))
    for rules, names in needs.values():
        yield ""
        yield f"Only with rules like these in its policy does the driver offer what is asked for by {listed(names)}:"
        yield ""
        yield from _yaml(rules)
    yield from _matching(verification.checked)


def _tried(checked: Checked, certain: bool) -> tuple[str, ...]:
    verdict = _VERDICTS[checked.verdict]
    if checked.verdict is Verdict.NOWHERE and not certain:
        verdict = "on none of these"
    got = "; ".join(f"{one.container}: {', '.join(_shortened(one.devices))}" for one in checked.got)
    says = "; ".join(checked.why)
    return named(checked.workload), verdict, checked.node, "; ".join(filter(None, (says, got)))


def _shortened(devices: Sequence[str]) -> list[str]:
    return [*devices[:2], f"and {len(devices) - 2} more"] if len(devices) > 3 else list(devices)


def _matching(checked: Sequence[Checked]) -> Iterator[str]:
    rows: dict[tuple[str, ...], None] = {}
    for one in checked:
        for match in one.matching:
            where = ", ".join(f"{count} on {node}" for node, count in match.by_node[:_SHOWN])
            more = f" and {len(match.by_node) - _SHOWN} more" if len(match.by_node) > _SHOWN else ""
            rows.setdefault((named(one.workload), match.request, where + more or "none"))
    if rows:
        yield ""
        yield "Devices that satisfy each request:"
        yield ""
        yield from _table(("Workload", "Request", "Devices"), rows)


# -- the cluster


_ANSWERS = {Answer.YES: "yes", Answer.NO: "**no**", Answer.UNKNOWN: "not known"}


def _checks(checks: Sequence[Check]) -> Iterator[str]:
    if not checks:
        return
    rows = [(one.question, _ANSWERS[one.answer], f"{one.why} {one.advice}".strip()) for one in checks]
    yield from _table(("Needed", "There", ""), rows)
    yield ""
    yield "`dractl doctor` looks at nodes, runtime and driver themselves."


def _way(plan: Plan | None) -> Iterator[str]:
    if plan is None:
        yield (
            "The nodes are not known. With `--cluster`, or with what `kubectl get nodes,pods,daemonsets,resourceslices "
            "-A -o yaml` prints among the files of `--with`, the plan for each of them stands here."
        )
        return
    if plan.empty:
        yield "No device plugin has anything to give on any node that was read: there is nothing to move."
        return
    if plan.conflicts:
        yield f"**On {', '.join(plan.conflicts)} both offer the same GPUs now. Begin at once.**"
        yield ""
    yield (
        "The label `dra.gpu/offered-by` of a node says who may offer its GPUs; it has one value, so never both. Wait "
        "for each command to end well before the next one. If one does not, go no further, and take the way back."
    )
    yield ""
    yield "The driver is installed with these values until the end (`values-cutover.yaml`):"
    yield ""
    yield from _yaml(plan.values)
    yield from _stages(plan.forward)


def _way_back(plan: Plan | None) -> Iterator[str]:
    if plan is None or plan.empty:
        return
    yield (
        "From wherever you are, for the nodes that you have begun with. Nothing else has to be undone: templates and "
        "classes that nobody names do no harm."
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
                yield ""
                yield "    ```sh"
                yield from (f"    {command}" for command in step.commands)
                yield "    ```"
                yield ""


# -- Markdown


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
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
