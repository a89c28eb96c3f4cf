"""Findings for programs: plain data, SARIF 2.1.0 (code scanning), and the annotations of GitHub Actions."""

from collections.abc import Iterable, Sequence
from urllib.parse import quote

from dra_driver.api.meta import JsonObject
from dra_driver.checking.codes import CODES, Severity
from dra_driver.checking.findings import Finding

_SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def as_data(findings: Iterable[Finding]) -> list[JsonObject]:
    """For `-o json` and `-o yaml`: these keys stay as they are."""
    return [
        {
            "file": one.file,
            "line": one.line,
            "column": one.column,
            "field": one.field,
            "severity": str(one.severity),
            "code": one.code,
            "message": one.message,
            "fix": one.fix,
        }
        for one in findings
    ]


def as_sarif(findings: Sequence[Finding], version: str) -> JsonObject:
    """`version` is ours. Rules are all codes, so that an empty report says what was looked for."""
    places = {code.name: index for index, code in enumerate(CODES)}
    rules = [
        {
            "id": code.name,
            "shortDescription": {"text": code.means},
            "defaultConfiguration": {"level": _LEVELS[code.severity]},
        }
        for code in CODES
    ]
    driver = {"name": "dractl check", "semanticVersion": version, "rules": rules}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_sarif_result(one, places[one.code]) for one in findings],
    }
    return {"$schema": _SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def _sarif_result(finding: Finding, rule: int) -> JsonObject:
    return {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": _LEVELS[finding.severity],
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
        f"::{_COMMANDS[one.severity]} file={_property(one.file)},line={one.line},col={one.column},"
        f"title={_property(one.code)}::{_data(sentence(one))}"
        for one in findings
    ]


def sentence(finding: Finding) -> str:
    """Field, message and fix in one; a fix that the message suggests in so many words is not said again."""
    said = f"{finding.field}: {finding.message}" if finding.field else finding.message
    return f"{said} ({finding.fix})" if finding.fix and "did you mean" not in finding.message else said


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
