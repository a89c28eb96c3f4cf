"""What a check is, what it can find, and what it found. Pure; knows nothing of clusters or nodes.

`checks.yaml` beside the checks has a row for everything that can be wrong: its code, severity, sentence and fix. A
check judges what was observed and names rows. The page of all checks is made from the same table.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from dra_driver.api.meta import JsonObject
from dra_driver.bundled import read_yaml
from dra_driver.phrases import and_more, folded


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """Works, but not fully, or may soon fail."""
    PROBLEM = "problem"
    """Something does not work now, or can go wrong at any time."""
    UNKNOWN = "unknown"
    """Could not be checked."""
    SKIPPED = "skipped"
    """Not checked; no permission is missing that a user should have."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`about` names the object (`Node gpu-1`) and may be empty. `trouble` is the code of what is wrong, empty if
    nothing is. `fix` is a command or advice, empty if there is nothing to do."""

    check: str
    verdict: Verdict
    sentence: str
    about: str = ""
    fix: str = ""
    trouble: str = ""

    def to_data(self) -> JsonObject:
        return {name: str(value) or None for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class Trouble:
    """A row of the table: one thing that can be wrong. `sentence` and `fix` have fields in braces."""

    code: str
    verdict: Verdict
    sentence: str
    fix: str


@dataclass(frozen=True, slots=True)
class Wrong:
    """`code` is a row of the check, `facts` fill the fields of its texts."""

    code: str
    about: str
    facts: Mapping[str, object]


def wrong(code: str, about: str = "", /, **facts: object) -> Wrong:
    return Wrong(code, about, facts)


@dataclass(frozen=True, slots=True)
class Unread:
    """Something that could not be read. `permission` is what is missing (`list nodes`); None if the cause is not a
    missing permission."""

    what: str
    why: str
    permission: str | None = None

    @property
    def sentence(self) -> str:
        if self.permission is not None:
            return f"you may not {self.permission}"
        return f"{self.what} could not be read: {self.why}"


type Judgment = Generator[Wrong | Unread, None, str]
"""Yields what is wrong or could not be read, and returns the sentence for the case that nothing is."""


@dataclass(frozen=True, slots=True)
class SeenKind[T]:
    """What was read of one kind. If it has `unread`, `items` are incomplete and often empty."""

    items: tuple[T, ...] = ()
    unread: Unread | None = None


class Observed(Protocol):
    """What checks judge."""

    def unread(self, field: str) -> Unread | None:
        """Why the part of this name could not be read; None if it was read."""


@dataclass(frozen=True, slots=True)
class Check[T: Observed]:
    """One question. `asks` completes the words "Looks at"; `reads` are the parts of what is observed that it needs.
    `moot` returns why there is nothing to check, or None."""

    name: str
    asks: str
    judge: Callable[[T], Judgment]
    troubles: tuple[Trouble, ...]
    reads: tuple[str, ...]
    moot: Callable[[T], str | None] | None

    def findings(self, observed: T) -> tuple[Diagnosis, ...]:
        why = self.moot(observed) if self.moot is not None else None
        if why is not None:
            return (Diagnosis(self.name, Verdict.SKIPPED, why),)
        unread = [item for part in self.reads if (item := observed.unread(part)) is not None]
        if unread:
            return (self._unknown(unread),)
        results, sentence = _outcome(self.judge(observed))
        unread = [item for item in results if isinstance(item, Unread)]
        findings = [self._diagnosis(item) for item in results if isinstance(item, Wrong)]
        findings += [self._unknown(unread)] if unread else []
        assert findings or sentence, f"check {self.name} has no result"
        return tuple(findings) or (Diagnosis(self.name, Verdict.OK, sentence),)

    def _diagnosis(self, item: Wrong) -> Diagnosis:
        row = next(trouble for trouble in self.troubles if trouble.code == item.code)
        sentence, fix = row.sentence.format_map(item.facts), row.fix.format_map(item.facts)
        return Diagnosis(self.name, row.verdict, sentence, item.about, fix, row.code)

    def _unknown(self, unread: Iterable[Unread]) -> Diagnosis:
        permissions = ", ".join(sorted({item.permission for item in unread if item.permission is not None}))
        failures = sorted({item.sentence for item in unread if item.permission is None})
        sentences, fixes = list(failures), ["run the command again"] if failures else []
        if permissions:
            sentences.insert(0, f"you may not {permissions}")
            ask = f"use an account with more permissions, or ask an administrator to allow you to {permissions}"
            fixes.insert(0, ask)
        return Diagnosis(self.name, Verdict.UNKNOWN, "; ".join(sentences), fix="; ".join(fixes))


def _outcome[T](generator: Generator[T, None, str]) -> tuple[list[T], str]:
    """What a generator yields, and what it returns."""
    returned = ""

    def items() -> Generator[T]:
        nonlocal returned
        returned = yield from generator

    return list(items()), returned


def checks_of[T: Observed](
    table: str, judges: Mapping[str, Callable[[T], Judgment]], moot: Callable[[T], str | None] | None = None
) -> tuple[Check[T], ...]:
    """The checks of a table in YAML, in its order. `moot` is for checks without `always`. Each map in a check is a
    trouble, under its code."""
    rows: dict[str, dict[str, Any]] = read_yaml(table)
    return tuple(
        Check(
            name,
            row["looks at"],
            judges[name],
            tuple(_trouble(code, texts) for code, texts in row.items() if isinstance(texts, dict)),
            tuple(row.get("reads", ())),
            None if row.get("always") else moot,
        )
        for name, row in rows.items()
    )


def _trouble(code: str, texts: Mapping[str, str]) -> Trouble:
    (verdict,) = texts.keys() - {"fix"}
    return Trouble(code, Verdict(verdict), texts[verdict], texts["fix"])


def examined[T: Observed](checks: Iterable[Check[T]], observed: T) -> tuple[Diagnosis, ...]:
    """The findings of all checks, in their order."""
    return tuple(finding for check in checks for finding in check.findings(observed))


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """All findings; `notes` say what the report leaves out, or how old it is."""

    findings: tuple[Diagnosis, ...]
    notes: tuple[str, ...] = field(default=())

    def count(self, verdict: Verdict) -> int:
        return sum(finding.verdict is verdict for finding in self.findings)

    def to_data(self) -> JsonObject:
        return {
            "counts": {verdict.value: self.count(verdict) for verdict in Verdict},
            "findings": [finding.to_data() for finding in self.findings],
            "notes": list(self.notes),
        }


# -- for people

_ALIKE = 5
"""So many of one trouble are shown; -o json has all."""


def summary(report: DoctorReport) -> str:
    """`32 checks: 1 problem, 2 warnings`"""
    checks = len({finding.check for finding in report.findings})
    parts = [
        f"{count} {verdict}{'s' if count > 1 and verdict in (Verdict.PROBLEM, Verdict.WARNING) else ''}"
        for verdict in _WORST_FIRST
        if verdict is not Verdict.OK and (count := report.count(verdict))
    ]
    return f"{checks} checks: {', '.join(parts) or 'no problems found'}"


_WORST_FIRST = (Verdict.PROBLEM, Verdict.WARNING, Verdict.UNKNOWN, Verdict.SKIPPED, Verdict.OK)
_QUIET = (Verdict.SKIPPED, Verdict.OK)


def rendered(report: DoctorReport, width: int, *, verbose: bool) -> Iterator[str]:
    """A line for each finding, the worst first, and one for its fix, folded to `width`. Only if `verbose`: what is ok,
    and what is skipped, in a line for each reason at the end."""
    ranked = sorted(report.findings, key=lambda item: _WORST_FIRST.index(item.verdict))
    findings = [item for item in ranked if verbose or item.verdict not in _QUIET]
    moot = [item for item in findings if item.verdict is Verdict.SKIPPED and not item.trouble]
    shown: Counter[tuple[str, str]] = Counter()
    margin = 10 + max((len(item.check) for item in findings), default=0) + 2
    for finding in findings:
        if finding in moot:
            continue
        kind = (finding.check, finding.trouble)
        shown[kind] += 1
        if finding.trouble and shown[kind] > _ALIKE:
            if shown[kind] == _ALIKE + 1:
                more = [item.about for item in findings if (item.check, item.trouble) == kind][_ALIKE:]
                about = and_more([*dict.fromkeys(filter(None, more))], _ALIKE)
                sentence = f"and {len(more)} more like this{f': {about}' if about else ''} (-o json has all)"
                yield from folded(" " * margin, sentence, width)
            continue
        head = f"{finding.verdict.value:8}  {finding.check}"
        sentence = f"{finding.about}: {finding.sentence}" if finding.about else finding.sentence
        yield from folded(f"{head:{margin}}", sentence, width)
        if finding.fix:
            yield from folded(f"{'':{margin}}fix: ", finding.fix, width)
    for why in dict.fromkeys(item.sentence for item in moot):
        names = [item.check for item in moot if item.sentence == why]
        head = f"{Verdict.SKIPPED.value:8}  {len(names)} checks"
        yield from folded(f"{head:{margin}}", f"{why}: {', '.join(names)}", width)
