"""What a check is, what it can find, and what it found. Pure; knows nothing of clusters or nodes.

Everything that can be wrong is a `Trouble` of its check, with its sentence and its fix as templates: so the page of all
checks is made from the same values as the answers, and a test sees that each of them can happen.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from dra_driver.api.meta import JsonObject
from dra_driver.phrases import and_more


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """Works, but not as it could, or not for long."""
    PROBLEM = "problem"
    """Something does not work now, or can go wrong at any time."""
    UNKNOWN = "unknown"
    """Could not be looked at."""
    SKIPPED = "skipped"
    """Not looked at, for want of a permission or an answer that nobody needs to have for this."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`about` names the object (`Node gpu-1`), or is empty where the sentence needs none; `trouble` is the code of what
    is wrong, empty when nothing is; `fix` is a command or what to do, empty when there is nothing to do."""

    check: str
    verdict: Verdict
    sentence: str
    about: str = ""
    fix: str = ""
    trouble: str = ""

    def to_data(self) -> JsonObject:
        return {
            "check": self.check,
            "verdict": self.verdict.value,
            "about": self.about or None,
            "sentence": self.sentence,
            "fix": self.fix or None,
            "trouble": self.trouble or None,
        }


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that can be wrong. `sentence` and `fix` have fields in braces, which `at` fills."""

    code: str
    verdict: Verdict
    sentence: str
    fix: str

    def at(self, about: str = "", **facts: object) -> Diagnosis:
        """It is wrong, with `about`. Raises KeyError for a field that is not given: a defect of the check."""
        return Diagnosis(
            "", self.verdict, self.sentence.format_map(facts), about, self.fix.format_map(facts), trouble=self.code
        )


def ok(sentence: str) -> Diagnosis:
    return Diagnosis("", Verdict.OK, sentence)


def skipped(why: str) -> Diagnosis:
    """There is nothing to be looked at."""
    return Diagnosis("", Verdict.SKIPPED, why)


@dataclass(frozen=True, slots=True)
class Unread:
    """Something that could not be read. `permission` is what would have been needed (`list nodes`); None when it was
    not for want of a permission."""

    what: str
    why: str
    permission: str | None = None

    @property
    def sentence(self) -> str:
        if self.permission is not None:
            return f"you may not {self.permission}"
        return f"{self.what} could not be read: {self.why}"


def unknown(unread: Iterable[Unread]) -> Diagnosis:
    """What is not known for want of all this, which is one at least."""
    parts = sorted(set(unread), key=lambda item: (item.permission is None, item.sentence))
    permissions = sorted({part.permission for part in parts if part.permission is not None})
    failures = [part.sentence for part in parts if part.permission is None]
    refused = [f"you may not {', '.join(permissions)}"] if permissions else []
    fixes = (
        [f"use an account with more permissions, or ask an administrator to allow you to {', '.join(permissions)}"]
        if permissions
        else []
    )
    return Diagnosis(
        "",
        Verdict.UNKNOWN,
        "; ".join([*refused, *failures]),
        fix="; ".join([*fixes, *(["run the command again"] if failures else [])]),
    )


@dataclass(frozen=True, slots=True)
class SeenKind[T]:
    """What was read of one kind. With `unread`, `items` are those that could be read all the same, often none."""

    items: tuple[T, ...] = ()
    unread: Unread | None = None


class Observed(Protocol):
    """What checks judge."""

    def unread(self, field: str) -> Unread | None:
        """Why the part of this name could not be read; None when it was."""


@dataclass(frozen=True, slots=True)
class Check[T: Observed]:
    """One question. `asks` completes the words "Looks at"; `reads` are the parts of what is observed without which it
    has no answer. `judge` answers at least one finding. `moot` says why there is nothing to ask; None: there is."""

    name: str
    asks: str
    judge: Callable[[T], Iterable[Diagnosis]]
    troubles: tuple[Trouble, ...]
    reads: tuple[str, ...] = ()
    moot: Callable[[T], str | None] | None = None

    def findings(self, observed: T) -> tuple[Diagnosis, ...]:
        why = self.moot(observed) if self.moot is not None else None
        if why is not None:
            return (replace(skipped(why), check=self.name),)
        unread = [item for part in self.reads if (item := observed.unread(part)) is not None]
        results = [unknown(unread)] if unread else list(self.judge(observed))
        assert results, f"check {self.name} says nothing"
        return tuple(replace(finding, check=self.name) for finding in results)


def examined[T: Observed](checks: Iterable[Check[T]], observed: T) -> tuple[Diagnosis, ...]:
    """What all checks say, in their order."""
    return tuple(finding for check in checks for finding in check.findings(observed))


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """All that was found; `notes` say what the answer leaves out, or of when it is."""

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


def listed(names: Sequence[str], most: int = 5) -> str:
    """`a, b and 3 more`."""
    return and_more(names, most)
