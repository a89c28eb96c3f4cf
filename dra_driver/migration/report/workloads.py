"""What became of each workload, by the way that was taken and why; and what the allocator says of it. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from dra_driver.api.meta import JsonObject
from dra_driver.migration.model import Target, Workload
from dra_driver.migration.report.wording import at, escaped, listed, named, sentence, table, yaml_block
from dra_driver.migration.verify.trial import Checked, Verdict, Verification

_TARGETS = {
    Target.LEAVE: "Left alone",
    Target.CLAIMS: "Claims",
    Target.EXTENDED: "Stay as they are, answered by a DeviceClass",
}
"""In this order: first those that a person has to look at."""
_IN_GENERAL = (
    "What stays cannot choose GPUs by attributes, share one between containers, or carry settings of the driver; "
    "claims can (`strategy: claims`)."
)


def workloads_of(workloads: Sequence[Workload]) -> Iterator[str]:
    """A table for each way and reason; the reason stands once."""
    by_reason: dict[tuple[Target, str], list[Workload]] = defaultdict(list)
    for one in workloads:
        by_reason[one.choice.target, one.choice.reason].append(one)
    order = list(_TARGETS)
    for index, (target, reason) in enumerate(sorted(by_reason, key=lambda key: (order.index(key[0]), key[1]))):
        some = by_reason[target, reason]
        if index:
            yield ""
        yield f"### {_TARGETS[target]}: {escaped(reason)} ({len(some)})"
        yield ""
        yield from table(("Workload", "File"), (_row(one) for one in sorted(some, key=_key)))
    yield from _cannot(workloads)


def _key(workload: Workload) -> tuple[str, str, int]:
    document = workload.pod.document
    return document.namespace or "", document.file, document.line


def _row(workload: Workload) -> tuple[str, str]:
    document = workload.pod.document
    return named(workload), at(document.file, document.line)


def _cannot(workloads: Sequence[Workload]) -> Iterator[str]:
    if not any(one.choice.target is Target.EXTENDED for one in workloads):
        return
    yield ""
    yield _IN_GENERAL
    cannot: dict[str, list[str]] = defaultdict(list)
    for one in workloads:
        for said in one.choice.cannot:
            cannot[said].append(named(one))
    if cannot:
        yield "What that means here:"
        yield ""
        yield from (f"- {escaped(sentence(said))} ({listed(names)})" for said, names in cannot.items())


# -- tried

_VERDICTS = {
    Verdict.DIFFERS: "**differs**",
    Verdict.NOWHERE: "**fits nowhere**",
    Verdict.UNKNOWN: "not tried",
    Verdict.SAME: "as before",
}
"""Worst first."""


def tried(verification: Verification | None) -> Iterator[str]:
    if verification is None or not verification.checked:
        return
    yield f"Each workload alone, with nothing else in use, on {verification.title}."
    yield ""
    yield from table(("Devices", "On", "Workload", "Gets"), _results(verification))
    needs: dict[str, tuple[JsonObject, list[str]]] = {}
    for one in verification.checked:
        if one.needs is not None:
            needs.setdefault(str(one.needs), (one.needs, []))[1].append(named(one.workload))
    for rules, names in needs.values():
        yield ""
        yield f"Only with rules like these in its policy does the driver offer what is asked for by {listed(names)}:"
        yield ""
        yield from yaml_block(rules)


def _results(verification: Verification) -> Iterator[tuple[str, ...]]:
    """Workloads with which it went alike have one row."""
    order = list(_VERDICTS)
    alike: dict[tuple[Verdict, str, str], list[str]] = {}
    for one in sorted(verification.checked, key=lambda one: order.index(one.verdict)):
        alike.setdefault((one.verdict, one.node, _gets(one)), []).append(named(one.workload))
    for (verdict, node, gets), names in alike.items():
        word = _VERDICTS[verdict]
        if verdict is Verdict.NOWHERE and not verification.certain:
            word = "on none of these"
        # Whoever has to look at something wants all names.
        yield word, node, listed(names) if verdict is Verdict.SAME else ", ".join(names), gets


def _gets(checked: Checked) -> str:
    got = "; ".join(f"{one.container}: {', '.join(_shortened(one.devices))}" for one in checked.got)
    return "; ".join(filter(None, ("; ".join(checked.why), got)))


def _shortened(devices: Sequence[str]) -> list[str]:
    return [*devices[:2], f"and {len(devices) - 2} more"] if len(devices) > 3 else list(devices)
