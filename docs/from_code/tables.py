"""Markdown tables, and whether the names in them are those of the code."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are Markdown; a `|` in them is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def check_names(there: Iterable[str], explained: Iterable[str], what: str) -> None:
    """Raises LookupError if the names differ."""
    there, explained = set(there), set(explained)
    for names, problem in (
        (there - explained, "is not explained"),
        (explained - there, "is explained, but is not in the code"),
    ):
        if names:
            raise LookupError(f"docs/from_code: {what} {', '.join(sorted(names))} {problem}")
