"""Findings of a report, by code: what the code means and what to do stand once, then all its places. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from dra_driver.migration.codes import Code, Severity
from dra_driver.migration.model import Finding
from dra_driver.migration.report.wording import at, escaped, file_title, sentence

_FEW = 3
"""So many places of one sentence have a line each, with the object; more have a line together."""
_NO_ADVICE = ("", "Nothing to do.")


def findings_of(findings: Sequence[Finding], severity: Severity) -> Iterator[str]:
    """Those of one severity, in the order of codes."""
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
    alike: dict[tuple[str, str, bool, str], list[Finding]] = {}
    for one in sorted(findings, key=lambda one: (one.place.file, one.place.line, one.message)):
        alike.setdefault((one.message, one.advice, one.fixed, one.paste), []).append(one)
    for some in alike.values():
        if len(some) > _FEW:
            yield _in_all_places(some, together)
        else:
            yield from (_in_one_place(one, together) for one in some)
        yield from _to_paste(some[0].paste)
    undone = any(not one.fixed for one in findings)
    if together and (advice := common.pop()) not in _NO_ADVICE and (undone or advice != code.advice):
        yield ""
        yield escaped(advice)


def _to_paste(text: str) -> Iterator[str]:
    """Below the line of a list that it belongs to."""
    if text:
        yield from ("", "  ```yaml", *(f"  {line}" for line in text.splitlines()), "  ```")


def _in_one_place(one: Finding, together: bool) -> str:
    path = f" `{one.place.path}`" if one.place.path else ""
    about = (f", {one.object}" if one.object.name else f", {one.object.kind}") if one.object.kind else ""
    return f"- {at(one.place.file, one.place.line)}{about}{path}: {_said(one)}{'' if together else _own_advice(one)}"


def _in_all_places(alike: Sequence[Finding], together: bool) -> str:
    """One sentence, and the lines of each file."""
    lines: dict[str, dict[int, None]] = defaultdict(dict)
    for one in alike:
        lines[one.place.file].setdefault(one.place.line)
    places = "; ".join(f"{file_title(file)}:{','.join(map(str, numbers))}" for file, numbers in lines.items())
    advice = "" if together else _own_advice(alike[0])
    return f"- {_said(alike[0])}{advice} In {len(alike)} places: {places}"


def _said(one: Finding) -> str:
    return sentence(escaped(one.message)) + (" Done." if one.fixed else "")


def _own_advice(one: Finding) -> str:
    return "" if one.advice in _NO_ADVICE else f" {escaped(one.advice)}"
