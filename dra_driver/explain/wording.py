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
    if explanation.undecided:
        tried = f"{nodes - explanation.undecided} of {how_many(nodes, 'node')} do not fit"
        return f"{who} waits: {tried}, {explanation.undecided} not decided."
    if nodes == 1:
        return f"{who} waits: the only node does not fit."
    return f"{who} waits: none of {nodes} nodes fits." if nodes else f"{who} waits: there are no nodes."


def sentences(explanation: Explanation, width: int = 100) -> tuple[str, ...]:
    """Lines, none longer than `width` where words allow it."""
    return tuple(_wrapped(_lines(explanation), width))


def workload_sentences(explained: WorkloadExplanation, width: int = 100) -> tuple[str, ...]:
    """As `sentences`, of a workload: how many of its pods do what, then each kind of pod that does not run."""
    lines: list[_Line] = [(explained.headline, 0), *_findings(explained.findings)]
    alone = explained.parts if len(explained.parts) == 1 and not explained.parts[0].alike else ()
    for part in explained.bad or alone:
        lines += [("", 0), *_lines(part)]
    return tuple(_wrapped(lines, width))


type _Line = tuple[str, int | None]
"""A text, and by how much it is indented where it continues; None: it is not wrapped."""


def _lines(explanation: Explanation) -> Iterator[_Line]:
    yield headline(explanation), 0
    if explanation.alike:
        yield f"The same is true of {and_more(explanation.alike, _MOST_NAMED)}.", 0
    waits = explanation.answer in (Answer.WAITS, Answer.FITS)
    for title, body in (
        ("Claims", _claims(explanation.claims)),
        ("What stops it" if waits else "What is wrong", _findings(explanation.stops)),
        ("Nodes", _nodes(explanation)),
        ("Also noticed", _findings(finding for finding in explanation.findings if not finding.stops)),
        ("What would fit", _suggestions(explanation)),
        ("Devices", _devices(explanation.devices)),
        ("Not known", ((f"  {unread.kind}: {unread.why}", 4) for unread in explanation.unread)),
    ):
        if results := list(body):
            yield from (("", 0), (title, 0), *results)
    if (advice := _next_step(explanation)) is not None:
        yield from (("", 0), (advice, 0))


def _claims(claims: Sequence[ClaimState]) -> Iterator[_Line]:
    for claim in claims:
        entry = f"{claim.entry}: " if claim.entry else ""
        devices = f": {', '.join(claim.devices)}" if claim.devices else ""
        users = f", used by {', '.join(claim.users)}" if claim.users else ""
        yield f"  {entry}{claim.name or '(no claim)'}, {claim.state.replace('-', ' ')}{devices}{users}", 4


def _findings(findings: Iterable[WaitFinding]) -> Iterator[_Line]:
    for finding in findings:
        yield from _with_excerpt(f"  {finding.about}: {finding.text}")
        yield f"    {finding.fix}", 4


def _with_excerpt(text: str) -> Iterator[_Line]:
    """After the first line there may be an expression with marks below it: as it is."""
    first, *rest = text.split("\n")
    yield first, 4
    yield from ((f"      {line}", None) for line in rest)


def _nodes(explanation: Explanation) -> Iterator[_Line]:
    # Errors are findings, with all there is to say of them.
    groups = [item for item in explanation.groups if item.code is not ReasonCode.ERROR]
    if explanation.fitting:
        yield f"  fits: {_these(explanation.fitting)}", 4
    for group in groups[:_MOST_GROUPS]:
        names = f" ({', '.join(group.nodes)})" if len(group.nodes) <= _MOST_NAMED else ""
        yield from _with_excerpt(f"  {how_many(len(group.nodes), 'node')}{names}: {group.text}")
    if left := groups[_MOST_GROUPS:]:
        nodes = sum(len(item.nodes) for item in left)
        yield f"  and {nodes} nodes with {len(left)} other reasons (all with -o json)", None


def _suggestions(explanation: Explanation) -> Iterator[_Line]:
    tried = explanation.groups and not explanation.undecided
    if tried and not (explanation.fitting or explanation.stops or explanation.suggestions):
        yield "  No single change of the request was found that helps.", 4
    for number, suggestion in enumerate(explanation.suggestions, 1):
        yield f"  {number}. {suggestion.text} (on {suggestion.node})", 5
        if suggestion.change:
            yield f"     {suggestion.change}", 7


def _devices(devices: Iterable[tuple[str, DeviceVerdict]]) -> Iterator[_Line]:
    heading = ""
    for node, verdict in devices:
        own = f"  {node}, {verdict.wanted}"
        if own != heading:
            heading = own
            yield heading, 4
        text = f"    {verdict.candidate.id.device}: {verdict.text}"
        if verdict.parts and verdict.selector is not None:
            writer, index = verdict.wanted.writer_of(verdict.selector)
            text += f" [selector {index} of {writer}]"
        yield text, 6


def _next_step(explanation: Explanation) -> str | None:
    if explanation.answer is Answer.FITS and explanation.kind == "Pod":
        return "If it still waits, the scheduler has another reason: read the pod's events (kubectl describe pod)."
    if explanation.answer is Answer.FITS:
        return "Devices are chosen when a pod that uses the claim is scheduled."
    if explanation.answer is Answer.SCHEDULED and not explanation.ready and not explanation.stops:
        return "If it does not start, its node has the reason: see the pod's events and the node plugin's log there."
    return None


def _these(nodes: Sequence[str]) -> str:
    return and_more(nodes, _MOST_NAMED)


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _wrapped(lines: Iterable[_Line], width: int) -> Iterator[str]:
    for text, indent in lines:
        if indent is None:
            yield text
        else:
            hanging = " " * indent
            folded = wrap(text, width, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False)
            yield from folded or [""]
