"""Markdown tables, and the header of generated pages."""

import textwrap
from collections.abc import Iterable, Sequence

WRITTEN = "<!-- Written by docs/generate.py; change the code instead. -->"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are Markdown; a `|` in them is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def code(words: Iterable[str]) -> str:
    """`a`, `b`."""
    return ", ".join(f"`{word}`" for word in words)


def page(*parts: str) -> str:
    """A whole page: wraps paragraphs, but not headings, tables, lists and blocks."""
    return "\n\n".join(_wrapped(part) for part in parts) + "\n"


def _wrapped(part: str) -> str:
    if part.startswith(("#", "|", "```", "<", "- ")):
        return part
    return textwrap.fill(part, 118, break_long_words=False, break_on_hyphens=False)
