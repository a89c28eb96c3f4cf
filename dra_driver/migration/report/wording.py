"""Words and Markdown that all parts of a report use. Pure."""

from collections.abc import Iterable, Iterator, Sequence

import yaml

from dra_driver.api.meta import JsonObject
from dra_driver.migration.model import Workload, title_of
from dra_driver.phrases import and_more

SHOWN = 6
"""Names in a row; the report for programs has all."""


def counted(number: int, word: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number} {word}{'s' * (number != 1)}"


def named(workload: Workload) -> str:
    """`Deployment search/embedder`, and the role or group where it has several pods."""
    title = title_of(workload.pod.document)
    return f"{title} ({workload.pod.group})" if workload.pod.group else title


def listed(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    return and_more(list(dict.fromkeys(names)), SHOWN)


def file_title(file: str) -> str:
    return "standard input" if file == "-" else file


def at(file: str, line: int) -> str:
    """A place, for people."""
    return f"{file_title(file)}:{line}"


def sentence(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def section(title: str, lines: Iterable[str]) -> list[str]:
    """With its heading; nothing where there are no lines."""
    found = list(lines)
    return ["", f"## {title}", "", *found] if found else []


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"|{'---|' * len(headings)}"
    for row in rows:
        # Also in code: a table takes each bar for the end of a cell.
        yield f"| {' | '.join(escaped(cell).replace('|', '\\|') for cell in row)} |"


def escaped(text: str) -> str:
    """In one line, and nothing of it taken for HTML; in code all is as it is."""
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:
        return "`".join(parts)
    return "`".join(part if index % 2 else part.replace("<", "\\<") for index, part in enumerate(parts))


def yaml_block(data: JsonObject) -> Iterator[str]:
    yield "```yaml"
    yield yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110).rstrip()
    yield "```"
