"""An explanation as text for people: the answer first, then why, then what to do. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap

from dra_driver.explain.explain import Answer, ClaimState, Explanation
from dra_driver.explain.findings import WaitFinding
from dra_driver.explain.subjects import WorkloadExplanation
from dra_driver.explain.verdicts import DeviceVerdict, ReasonCode
from dra_driver.phrases import and_more, how_many

_MOST_NAMED = 4
_MOST_GROUPS = 12


def summary(explanation: Explanation) -> str:
    """One line: the answer, and the reasons of all groups of nodes."""
    stops = [f"{stop.about}: {_first_line(stop.text)}" for stop in explanation.stops]
    groups = [
        f"{how_many(len(group.nodes), 'node')}: {_first_line(group.text)}"
        for group in explanation.groups
        if group.code is not ReasonCode.ERROR
    ]
    return "; ".join([*stops, *groups]) or headline(explanation)


def headline(explanation: Explanation) -> str:
    """What there is to know when there is time for one sentence."""
    if explanation.summary:
        return explanation.summary
    who = f"{'Pod' if explanation.kind == 'Pod' else 'Claim'} {explanation.namespace}/{explanation.name}"
    match explanation.answer:
        case Answer.DONE if explanation.stops:
            return f"{who} has failed: {explanation.stops[0].about} {explanation.stops[0].text}."
        case Answer.DONE:
            return f"{who} has ended; it waits for nothing."
        case Answer.SCHEDULED if explanation.stops:
            first = explanation.stops[0]
            return f"{who} is on node {explanation.node}, but {first.about}: {_first_line(first.text)}."
        case Answer.SCHEDULED:
            has = ", with all its devices" if explanation.claims else "; it has no claims"
            return f"{who} {'runs' if explanation.ready else 'is'} on node {explanation.node}{has}."
        case Answer.BINDING:
            return f"{who} gets node {explanation.node} when the node has prepared its devices."
        case Answer.ALLOCATED:
            return f"{who} has its devices: {', '.join(d for claim in explanation.claims for d in claim.devices)}."
        case Answer.FITS:
            return f"{who} fits on {_these(explanation.fitting)} of {how_many(len(explanation.nodes), 'node')} now."
    nodes = len(explanation.nodes)
    if explanation.stops:
        first = explanation.stops[0]
        return f"{who} waits: {first.about}: {_first_line(first.text).rstrip('.?')}."
    if nodes == 1:
        return f"{who} waits: the only node does not fit."
    return f"{who} waits: none of {nodes} nodes fits." if nodes else f"{who} waits: there are no nodes."


def sentences(explanation: Explanation, width: int = 100) -> tuple[str, ...]:
    """Lines, none longer than `width` where words allow it."""
    lines: list[str] = [*_wrapped(headline(explanation), width)]
    if explanation.alike:
        lines += _wrapped(f"The same is true of {and_more(explanation.alike, _MOST_NAMED)}.", width)
    waits = explanation.answer in (Answer.WAITS, Answer.FITS)
    for title, body in (
        ("Claims", _claims(explanation.claims, width)),
        ("What stops it" if waits else "What is wrong", _findings(explanation.stops, width)),
        ("Nodes", _nodes(explanation, width)),
        ("Also noticed", _findings([finding for finding in explanation.findings if not finding.stops], width)),
        ("What would fit", _suggestions(explanation, width)),
        ("Devices", _devices(explanation.devices, width)),
        ("Not known", _unread(explanation, width)),
    ):
        results = list(body)
        if results:
            lines += ["", title, *results]
    lines += _next_step(explanation, width)
    return tuple(lines)


def workload_sentences(explained: WorkloadExplanation, width: int = 100) -> tuple[str, ...]:
    """As `sentences`, of a workload: how many of its pods do what, then each kind of pod that does not run."""
    lines = [*_wrapped(explained.headline, width), *_findings(explained.findings, width)]
    for part in explained.bad or (
        explained.parts if len(explained.parts) == 1 and not explained.parts[0].alike else ()
    ):
        lines += ["", *sentences(part, width)]
    return tuple(lines)


def _claims(claims: Sequence[ClaimState], width: int) -> Iterator[str]:
    for claim in claims:
        name = claim.name or "(no claim)"
        entry = f"{claim.entry}: " if claim.entry else ""
        devices = f": {', '.join(claim.devices)}" if claim.devices else ""
        users = f", used by {', '.join(claim.users)}" if claim.users else ""
        yield from _wrapped(f"  {entry}{name}, {claim.state.replace('-', ' ')}{devices}{users}", width, "    ")


def _findings(findings: Iterable[WaitFinding], width: int) -> Iterator[str]:
    for finding in findings:
        first, *rest = f"{finding.about}: {finding.text}".split("\n")
        yield from _wrapped(f"  {first}", width, "    ")
        # An expression with marks below it: as it is.
        yield from (f"      {line}" for line in rest)
        yield from _wrapped(f"    {finding.fix}", width, "    ")


def _nodes(explanation: Explanation, width: int) -> Iterator[str]:
    # Errors are findings, with all there is to say of them.
    groups = [item for item in explanation.groups if item.code is not ReasonCode.ERROR]
    shown = groups[:_MOST_GROUPS]
    if explanation.fitting:
        yield from _wrapped(f"  fits: {_these(explanation.fitting)}", width, "    ")
    for group in shown:
        names = f" ({', '.join(group.nodes)})" if len(group.nodes) <= _MOST_NAMED else ""
        first, *rest = group.text.split("\n")
        yield from _wrapped(f"  {how_many(len(group.nodes), 'node')}{names}: {first}", width, "    ")
        yield from (f"      {line}" for line in rest)
    left = groups[_MOST_GROUPS:]
    if left:
        yield f"  and {sum(len(item.nodes) for item in left)} nodes with {len(left)} other reasons (all with -o json)"


def _suggestions(explanation: Explanation, width: int) -> Iterator[str]:
    if explanation.groups and not (explanation.fitting or explanation.stops or explanation.suggestions):
        yield from _wrapped("  No single change of the request was found that helps.", width, "    ")
    for number, suggestion in enumerate(explanation.suggestions, 1):
        yield from _wrapped(f"  {number}. {suggestion.text} (on {suggestion.node})", width, "     ")
        if suggestion.change:
            yield from _wrapped(f"     {suggestion.change}", width, "       ")


def _devices(devices: Iterable[tuple[str, DeviceVerdict]], width: int) -> Iterator[str]:
    heading: tuple[str, str] | None = None
    for node, verdict in devices:
        own = (node, f"{node}, {verdict.wanted}")
        if own != heading:
            heading = own
            yield from _wrapped(f"  {own[1]}", width, "    ")
        text = f"    {verdict.candidate.id.device}: {verdict.text}"
        if verdict.parts and verdict.selector is not None:
            writer, index = verdict.wanted.writer_of(verdict.selector)
            text += f" [selector {index} of {writer}]"
        yield from _wrapped(text, width, "      ")


def _unread(explanation: Explanation, width: int) -> Iterator[str]:
    for unread in explanation.unread:
        yield from _wrapped(f"  {unread.kind}: {unread.why}", width, "    ")


def _next_step(explanation: Explanation, width: int) -> Iterator[str]:
    if explanation.answer is Answer.FITS:
        yield ""
        text = (
            "If it still waits, the scheduler has another reason: read the pod's events (kubectl describe pod)."
            if explanation.kind == "Pod"
            else "Devices are chosen when a pod that uses the claim is scheduled."
        )
        yield from _wrapped(text, width)
    elif explanation.answer is Answer.SCHEDULED and not explanation.ready and not explanation.stops:
        yield ""
        text = "If it does not start, its node has the reason: see the pod's events and the node plugin's log there."
        yield from _wrapped(text, width)


def _these(nodes: Sequence[str]) -> str:
    return and_more(nodes, _MOST_NAMED)


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    return wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [""]
