"""Findings: their places in documents, and their forms for programs.

Forms are plain data, SARIF 2.1.0 (code scanning), and the annotations of GitHub Actions.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from urllib.parse import quote

from dra_driver.api.documents import Document
from dra_driver.api.manifest_nodes import BadDocument
from dra_driver.api.meta import JsonObject
from dra_driver.checking.codes import CODES, UNKNOWN_FIELD, UNREADABLE, Code, Severity


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """The fields are keys of `-o json`. `line` and `column` count from 1. `field` is empty where it is about a whole
    document. `fix` is what to write instead, as a sentence; None where only the author can know."""

    file: str
    line: int
    column: int
    field: str
    severity: Severity
    code: str
    message: str
    fix: str | None = None


def unreadable(problem: BadDocument) -> Finding:
    return Finding(
        problem.file, problem.line, problem.column, "", UNREADABLE.severity, UNREADABLE.name, problem.message
    )


class CheckReport:
    """Collects what is found in one document. Of one field, each code is kept once."""

    def __init__(self, document: Document, written: Callable[[str], str]) -> None:
        """`written` turns a path as the checks have it into one as the document has it."""
        self.document = document
        self._written = written
        self._findings: dict[tuple[str, str, str], Finding] = {}

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(self._findings.values())

    def find(
        self,
        code: Code,
        path: str,
        message: str,
        *,
        fix: str | None = None,
        offset: int | None = None,
        severity: Severity | None = None,
    ) -> None:
        """`offset` is the character of the string at `path` that is meant."""
        path = self._written(path)
        line, column = self.document.place(path) if offset is None else self.document.place_in(path, offset)
        finding = Finding(
            self.document.file, line, column, path, severity or code.severity, code.name, message, fix or None
        )
        self._findings.setdefault((path, code.name, message), finding)

    def has_unknown_below(self, path: str) -> bool:
        """Whether one of the field's own fields is unknown."""
        parent = f"{self._written(path)}."
        return any(field.startswith(parent) and name == UNKNOWN_FIELD.name for field, name, _ in self._findings)

    def has(self, path: str) -> bool:
        """Whether something was found at the field already."""
        path = self._written(path)
        return any(reported == path for reported, _, _ in self._findings)


_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def as_data(findings: Iterable[Finding]) -> list[JsonObject]:
    """For `-o json` and `-o yaml`: these keys stay as they are."""
    return [{**asdict(finding), "severity": str(finding.severity)} for finding in findings]


def as_sarif(findings: Sequence[Finding], version: str) -> JsonObject:
    """`version` is that of dractl. Rules are all codes, so that an empty report says what was looked for."""
    places = {code.name: index for index, code in enumerate(CODES)}
    rules = [
        {
            "id": code.name,
            "shortDescription": {"text": code.means},
            "defaultConfiguration": {"level": code.severity.noun},
        }
        for code in CODES
    ]
    driver = {"name": "dractl check", "semanticVersion": version, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_sarif_result(finding, places[finding.code]) for finding in findings],
    }
    return {"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def _sarif_result(finding: Finding, rule: int) -> JsonObject:
    return {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": finding.severity.noun,
        "message": {"text": sentence(finding)},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": quote(finding.file)},
                    "region": {"startLine": finding.line, "startColumn": finding.column},
                },
                "logicalLocations": [{"fullyQualifiedName": finding.field}] if finding.field else [],
            }
        ],
    }


def as_github(findings: Iterable[Finding]) -> list[str]:
    """Workflow commands, one a line. Source: GitHub Actions, workflow commands (`::error file=…::`)."""
    return [
        f"::{_COMMANDS[finding.severity]} file={_property(finding.file)},line={finding.line},col={finding.column},"
        f"title={_property(finding.code)}::{_data(sentence(finding))}"
        for finding in findings
    ]


def sentence(finding: Finding) -> str:
    """Field, message and fix in one; a fix that the message suggests in so many words is not said again."""
    text = f"{finding.field}: {finding.message}" if finding.field else finding.message
    return f"{text} ({finding.fix})" if finding.fix and "did you mean" not in finding.message else text


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
