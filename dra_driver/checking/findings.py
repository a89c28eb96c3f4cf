"""One thing that was found, and the way from a field of an object to its line."""

from collections.abc import Callable
from dataclasses import dataclass

from dra_driver.api.documents import Document
from dra_driver.api.manifest_nodes import BadDocument
from dra_driver.checking.codes import UNREADABLE, Code, Severity


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """`line` and `column` count from 1. `field` is empty where it is about a whole document. `fix` is what to write
    instead, as a sentence; None where only the author can know."""

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


class Report:
    """Collects what is found in one document. Of one field, each code is kept once."""

    def __init__(self, document: Document, written: Callable[[str], str] = lambda path: path) -> None:
        """`written` turns a path as the checks have it into one as the document has it."""
        self.document = document
        self._written = written
        self._found: dict[tuple[str, str, str], Finding] = {}

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(self._found.values())

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
        self._found.setdefault((path, code.name, message), finding)

    def has_below(self, path: str, code: Code) -> bool:
        """Whether such a thing was found in one of the field's own fields."""
        parent = f"{self._written(path)}."
        return any(field.startswith(parent) and name == code.name for field, name, _ in self._found)

    def has(self, path: str) -> bool:
        """Whether something was found at the field already."""
        path = self._written(path)
        return any(found == path for found, _, _ in self._found)
