"""How commands speak: data to standard output as a table, JSON or YAML; messages to standard error; exit statuses.

Every command goes through here, so that `-o json` has the same shape everywhere and a user's mistake never ends in a
stack trace.
"""

import errno
import json
import os
import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
import yaml
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Span, Text

from dra_driver.errors import DriverError, InvalidInput, NoSuchObject, UnreadableFile
from dra_driver.phrases import duration

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters but tab and line feed, and those that change the direction of text."""


def shown_safely(text: str) -> str:
    """What a terminal would obey instead of showing is written as an escape: `\\x1b[2J` clears the screen. Names and
    messages of a cluster, and selectors of other users' claims, may contain such characters."""
    return _OBEYED.sub(lambda character: ascii(character[0])[1:-1], text)


class SafeConsole(Console):
    """What is printed is shown safely; styles are those of the caller."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=shown_safely(segment.text))


def echo(text: str) -> None:
    """Print lines of plain text to standard output."""
    typer.echo(shown_safely(text))


def print_exactly(text: str) -> None:
    """Print what programs read, as it is. On a terminal it is shown safely."""
    # Typer would leave out what looks like a color.
    sys.stdout.write(shown_safely(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


messages = SafeConsole(stderr=True, highlight=False, emoji=False)
"""Progress, and what `print_message` prints."""


def print_message(text: str, style: str = "") -> None:
    """Print a hint, a note or an error to standard error. The terminal folds it, and a file or pipe gets one line."""
    messages.print(text, style=style, markup=False, soft_wrap=True)


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


# Options are plain assignments: typer does not look through a `type` statement.
OutputOption = Annotated[Format, typer.Option("--output", "-o", help="How to print the data.")]
HostRootOption = Annotated[
    Path,
    typer.Option(
        "--host-root",
        envvar="GPU_DRA_HOST_ROOT",
        show_envvar=False,
        help="Where the root of this machine is mounted; the plugin's pod sets GPU_DRA_HOST_ROOT to it.",
    ),
]
LabelOption = Annotated[
    list[str],
    typer.Option("--label", metavar="KEY=VALUE", help="A label of this node, or of the simulated ones."),
]


def option(help_text: str, *names: str, metavar: str | None = None) -> Any:
    """An option whose help does not show its default."""
    return typer.Option(*names, help=help_text, metavar=metavar, show_default=False)


def labels_of(texts: Iterable[str]) -> dict[str, str]:
    """Of LabelOption. Raises InvalidInput."""
    labels: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise InvalidInput(f"{text!r} is not KEY=VALUE", about="--label")
        labels[key] = value
    return labels


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
    drop: Sequence[str] = ()
    """Headings of the columns that a narrow terminal does without, the first of them first."""
    named: Sequence[str] = ()
    """Headings of the columns that together name a row; empty if rows have no names."""
    least: Mapping[str, int] = field(default_factory=dict)
    """How wide columns are at least, by heading, so that they stay where they are while rows change."""

    def data(self) -> list[dict[str, object]]:
        """The rows for programs."""
        return [{self.keys.get(name) or _camel(name): _plain(row[name]) for name in row} for row in self.rows]

    def lines(self, width: int | None, *, wide: bool = False) -> list[Text]:
        """A line for the headings and for each row, at most `width` wide; None: as wide as they need."""
        if not self.rows:
            return []
        shown = [name for name in self.rows[0] if wide or name not in self.wide]
        rows: list[list[str | Text]] = [[cell_text(row[name]) for name in shown] for row in self.rows]
        natural = {
            name: max(len(name), self.least.get(name, 0), *(len(row[place]) for row in rows))
            for place, name in enumerate(shown)
        }
        widths = fitting(natural, self.drop, width, self.least)
        columns = [(place, widths[name]) for place, name in enumerate(shown) if name in widths]
        headings: list[str | Text] = [Text(name, style="bold") for name in shown]
        return [_line([(row[place], size) for place, size in columns]) for row in [headings, *rows]]


_SHORTEST = 16
"""Longer cells may be shortened to this, before a column is left out."""
_GAP = 2
_NO_WIDTHS: Mapping[str, int] = {}


def fitting(
    natural: Mapping[str, int], drop: Sequence[str], width: int | None, least: Mapping[str, int] = _NO_WIDTHS
) -> dict[str, int]:
    """The columns that a table of `width` has, and how wide each is. `natural` is the width that each needs.

    Long columns give way first, the longest the most, as long as none has less than 16, or less than its `least`; then
    the columns of `drop` go, one after the other. What is too wide even then has its longest columns cut.
    """
    widths = dict(natural)
    if width is None:
        return widths
    floors: dict[str, int] = {}
    for heading in (*drop, None):
        floors = {name: max(min(size, max(_SHORTEST, len(name))), least.get(name, 0)) for name, size in widths.items()}
        if heading is None or sum(floors.values()) + _GAP * (len(floors) - 1) <= width:
            break
        widths.pop(heading, None)
    excess = sum(widths.values()) + _GAP * (len(widths) - 1) - width
    for floor in (floors, dict.fromkeys(widths, 1)):
        while excess > 0 and (longer := [name for name, size in widths.items() if size > floor[name]]):
            widths[max(longer, key=lambda name: widths[name])] -= 1
            excess -= 1
    return widths


def shortened(text: str, width: int) -> str:
    """A name loses its middle, because names often differ at the end; a sentence loses its end."""
    if len(text) <= width:
        return text
    end = 0 if " " in text else (width - 1) // 2
    return f"{text[: max(width - 1 - end, 0)]}…{text[len(text) - end :]}"


def _line(cells: Sequence[tuple[str | Text, int]]) -> Text:
    """Cells with the widths of their columns. Made at once: Rich's own ways to join texts take ten times as long, and a
    large cluster has thousands of lines."""
    words: list[str] = []
    spans: list[Span] = []
    start = 0
    for cell, width in cells:
        word = shortened(str(cell), width)
        words.append(f"{word:<{width}}")
        if isinstance(cell, Text):
            spans.append(Span(start, start + len(word), cell.style))
            spans += [Span(start + span.start, start + min(span.end, width), span.style) for span in cell.spans]
        start += width + _GAP
    return Text((" " * _GAP).join(words).rstrip(), no_wrap=True, spans=spans)


def print_lines(lines: Sequence[Text], *, paged: bool = True) -> None:
    """Print what may be longer than the screen: through a pager on a terminal, `$PAGER` or less, if it is `paged`."""
    if not sys.stdout.isatty():
        echo("\n".join(line.plain.rstrip() for line in lines))
        return
    console = SafeConsole(highlight=False, emoji=False)
    text = Text("\n").join(lines)
    if not paged or len(lines) < console.height:
        console.print(text, soft_wrap=True)
    else:
        # less leaves what it showed on the screen, shows colors and does not fold.
        os.environ.setdefault("LESS", "RXS")
        with console.pager(styles=not console.no_color):
            console.print(text, soft_wrap=True)


def print_rows(sheet: Sheet, *, wide: bool = False, paged: bool = True) -> None:
    """Print a table that fits the terminal. An empty one prints nothing to standard output."""
    if sheet.rows:
        print_lines(sheet.lines(terminal_width(), wide=wide), paged=paged)
    else:
        print_message(sheet.empty)


def terminal_width() -> int | None:
    """Columns of the terminal; None for a pipe or file."""
    return Console().width if sys.stdout.isatty() else None


def _camel(heading: str) -> str:
    first, *rest = heading.lower().split()
    return first + "".join(map(str.capitalize, rest))


def cell_text(cell: Cell) -> str | Text:
    """What a person reads."""
    if isinstance(cell, Shown):
        return cell.text
    return shown_safely(", ".join(cell) if isinstance(cell, tuple) else "" if cell is None else str(cell)) or "-"


def _plain(cell: Cell) -> object:
    if isinstance(cell, Shown):
        return cell.data
    return list(cell) if isinstance(cell, tuple) else cell


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> None:
    """Columns as wide as they need; a pipe or file gets one line a row. A terminal folds what does not fit: in its
    column, or, if the last column has sentences and little room, in lines of its own below the others.
    """
    rows = [[cell if isinstance(cell, Text) else shown_safely(cell) for cell in row] for row in rows]
    widths = [max(cell_len(str(cell)) for cell in column) for column in zip(headings, *rows, strict=True)]
    natural = sum(width + _GAP for width in widths)
    if not sys.stdout.isatty():
        console = SafeConsole(highlight=False, markup=False, emoji=False, width=natural)
        with console.capture() as printed:
            console.print(_table(headings, rows))
        echo("\n".join(line.rstrip() for line in printed.get().splitlines()))
        return
    console = SafeConsole(highlight=False, markup=False, emoji=False)
    left = console.width - (natural - widths[-1] - _GAP)
    if left < _READABLE < widths[-1]:
        others_fit = left >= -_GAP
        _print_stacked(console, [headings, *rows], widths if others_fit else [0] * len(widths))
    else:
        console.print(_table(headings, rows))


_READABLE = 40
"""A column of sentences needs so many characters."""


def _table(headings: Sequence[str], rows: Sequence[Sequence[str | Text]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _print_stacked(console: Console, rows: Sequence[Sequence[str | Text]], widths: Sequence[int]) -> None:
    """Each row's last cell below the others, indented. The first row has the headings."""
    indent = " " * 4
    width = max(console.width - len(indent), 1)
    for number, row in enumerate(rows):
        style = "bold" if number == 0 else ""
        *first, last = map(str, row)
        padded = (cell + " " * (size - cell_len(cell)) for cell, size in zip(first, widths, strict=False))
        line = (" " * _GAP).join(padded).rstrip()
        console.print(line, style=style, soft_wrap=True)
        folded = textwrap.wrap(last, width, break_long_words=False, break_on_hyphens=False)
        console.print("\n".join(indent + part for part in folded), style=style, soft_wrap=True)


def print_data(data: object, output: Format) -> None:
    """Print plain data as JSON or YAML."""
    if output == Format.JSON:
        typer.echo(json.dumps(data, indent=2))
    else:
        typer.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)


def stop(message: str, status: Status) -> NoReturn:
    """End the command with a message to standard error."""
    print_message(f"error: {message}")
    raise SystemExit(status)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn our errors into a line and an exit status; anything else is a defect and keeps its stack trace."""
    try:
        yield
    except NoSuchObject as error:
        stop(str(error), Status.NO)
    except UnreadableFile as error:
        stop(str(error), Status.UNREACHABLE)
    except InvalidInput as error:
        stop(str(error), Status.USAGE)
    except DriverError as error:
        stop(str(error), Status.UNREACHABLE)
    except OSError as error:
        if error.errno == errno.ENOENT and error.filename is None:
            stop("the current folder no longer exists: change to another one", Status.UNREACHABLE)
        if error.errno not in _NO_ROOM or error.filename is not None:
            raise
        # What is left in its buffer would be tried once more at the end, and fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        stop(f"standard output: cannot be written: {error.strerror}", Status.UNREACHABLE)


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Files that are written by name have errors of their own, so these are of what is printed."""


def gibibytes(size_bytes: int | None) -> str:
    """`79.6 GiB`, or `-` where the size is not known."""
    return "-" if size_bytes is None else f"{size_bytes / 2**30:.1f} GiB"


def memory_cell(size_bytes: int | None) -> Cell:
    return Shown(gibibytes(size_bytes), size_bytes)


def age_cell(created: str | None, now: datetime) -> Cell:
    """Of a `creationTimestamp`; programs get that itself."""
    return Shown(duration((now - datetime.fromisoformat(created)).total_seconds()) if created else "-", created)
