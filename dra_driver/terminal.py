"""How commands speak: data to standard output as a table, JSON or YAML; messages to standard error; exit statuses.

Every command goes through here, so that `-o json` has the same shape everywhere and a user's mistake never ends in a
stack trace.
"""

import errno
import json
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dra_driver.errors import DriverError, InvalidInput

messages = Console(stderr=True, highlight=False, emoji=False)
"""Progress, hints and errors."""


class Status(IntEnum):
    """Exit statuses of every command."""

    DONE = 0
    NO = 1
    USAGE = 2
    UNREACHABLE = 3


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


class WideFormat(StrEnum):
    """For commands that know more than fits beside each other."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"


# Options are plain assignments: typer does not look through a `type` statement.
OutputOption = Annotated[Format, typer.Option("--output", "-o", help="How to print the data.")]
WideOutputOption = Annotated[
    WideFormat, typer.Option("--output", "-o", help="How to print the data; wide has more columns.")
]
HostRootOption = Annotated[
    Path,
    typer.Option(
        "--host-root",
        envvar="GPU_DRA_HOST_ROOT",
        show_envvar=False,
        help="Where the root of this machine is mounted; the plugin's pod sets GPU_DRA_HOST_ROOT to it.",
    ),
]


@dataclass(frozen=True, slots=True)
class Shown:
    """A value that people read in another form than programs."""

    text: str | Text
    data: object


type Cell = str | int | tuple[str, ...] | Shown | None
"""In a table None and an empty tuple are `-`, several values are joined; in JSON and YAML they are null and lists."""


type Row = Mapping[str, Cell]
"""By heading; all rows of a sheet have the same, in the same order."""


@dataclass(frozen=True, slots=True)
class Sheet:
    rows: Sequence[Row]
    empty: str
    """What to say, to standard error, when there are no rows."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Names of columns in JSON and YAML, by heading; others have their heading in camelCase."""
    wide: Collection[str] = ()
    """Headings of columns that a table has only when it may be wide."""


def show(sheet: Sheet, output: Format | WideFormat) -> None:
    """Print a sheet. An empty table prints nothing to standard output."""
    if output in (Format.JSON, Format.YAML):
        data = [{sheet.keys.get(name) or _camel(name): _plain(row[name]) for name in row} for row in sheet.rows]
        print_data(data, output)
    elif not sheet.rows:
        messages.print(sheet.empty)
    else:
        shown = [heading for heading in sheet.rows[0] if output == "wide" or heading not in sheet.wide]
        print_table(shown, [[_text(row[heading]) for heading in shown] for row in sheet.rows])


def _camel(heading: str) -> str:
    first, *rest = heading.lower().split()
    return first + "".join(map(str.capitalize, rest))


def _text(cell: Cell) -> str | Text:
    if isinstance(cell, Shown):
        return cell.text
    return (", ".join(cell) if isinstance(cell, tuple) else "" if cell is None else str(cell)) or "-"


def _plain(cell: Cell) -> object:
    if isinstance(cell, Shown):
        return cell.data
    return list(cell) if isinstance(cell, tuple) else cell


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> None:
    """Columns as wide as they need. A terminal folds what does not fit; a pipe or file gets one line a row."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else _natural_width(headings, rows)
    Console(highlight=False, markup=False, emoji=False, width=width).print(table)


def _natural_width(headings: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> int:
    columns = zip(headings, *rows, strict=True)
    return sum(max(map(len, column)) + 2 for column in columns)


def print_data(data: object, output: Format | WideFormat) -> None:
    """Print plain data as JSON or YAML."""
    if output == Format.JSON:
        typer.echo(json.dumps(data, indent=2))
    else:
        typer.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)


def stop(message: str, status: Status) -> NoReturn:
    """End the command with a message to standard error."""
    messages.print(f"error: {message}", markup=False, soft_wrap=True)
    raise SystemExit(status)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn our errors into a line and an exit status; anything else is a defect and keeps its stack trace."""
    try:
        yield
    except InvalidInput as error:
        stop(str(error), Status.USAGE)
    except DriverError as error:
        stop(str(error), Status.UNREACHABLE)
    except OSError as error:
        if error.errno not in _NO_ROOM or error.filename is not None:
            raise
        # What is left in its buffer would be tried once more at the end, and fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        stop(f"standard output: cannot be written: {error.strerror}", Status.UNREACHABLE)


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Files that are written by name have errors of their own, so these are of what is printed."""


def duration(seconds: float) -> str:
    """An age as kubectl writes it: `45s`, `12m`, `3h`, `8d`."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"


def gibibytes(size_bytes: int | None) -> str:
    """`79.6 GiB`, or `-` where the size is not known."""
    return "-" if size_bytes is None else f"{size_bytes / 2**30:.1f} GiB"


def memory_cell(size_bytes: int | None) -> Cell:
    return Shown(gibibytes(size_bytes), size_bytes)


def age_cell(created: str | None, now: datetime) -> Cell:
    """Of a `creationTimestamp`; programs get that itself."""
    return Shown(duration((now - datetime.fromisoformat(created)).total_seconds()) if created else "-", created)
