"""A GPU as a bar: a cell for each of its memory slices, with a letter and a color for the claim that holds it. Pure.

`[AAAA··BB]` is a GPU of eight slices, of which A holds half and B a quarter. Colors only add to the letters.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from string import ascii_lowercase, ascii_uppercase

from rich.text import Text

DEFAULT_CELLS = 8
_LETTERS = ascii_uppercase + ascii_lowercase
_COLORS = ("green", "yellow", "blue", "magenta", "cyan", "bright_green", "bright_blue", "bright_magenta", "bright_cyan")
"""Without red, which is for what is unhealthy."""


class Mark(StrEnum):
    """A cell that no single claim holds."""

    FREE = "·"
    CLOSED = "-"
    """Free, but no remaining device can use it, because of what others hold of the GPU."""
    TAINTED = "!"
    SEVERAL = "+"
    """More holders than cells."""


MEANINGS: Mapping[Mark, str] = {
    Mark.FREE: "free",
    Mark.CLOSED: "cannot be given beside what is in use",
    Mark.TAINTED: "tainted",
    Mark.SEVERAL: "several claims",
}

type GpuCell = str | Mark
"""A claim, or what stands instead of one."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one claim has of a GPU: cells from `start` on. `part` is how much of them, for shares: 0 to 1."""

    claim: str
    start: int
    size: int
    part: float = 1.0


def bar(cells: int, holdings: Sequence[Holding], rest: Sequence[Mark]) -> tuple[GpuCell, ...]:
    """The cells. `rest` has the mark of each cell that no claim holds.

    Holdings in the same cells divide these among them by their parts, in order; each has at least one cell as long as
    there are enough of them.
    """
    results: list[GpuCell] = list(rest)
    places = dict.fromkeys((holding.start, min(holding.size, cells - holding.start)) for holding in holdings)
    for start, size in places:
        sharers = [holding for holding in holdings if holding.start == start]
        for index, cell in enumerate(_divided(size, sharers)):
            if cell is not None:
                results[start + index] = cell if results[start + index] is rest[start + index] else Mark.SEVERAL
    return tuple(results)


def _divided(size: int, sharers: Sequence[Holding]) -> list[GpuCell | None]:
    if len(sharers) > size:
        return [Mark.SEVERAL] * size
    widths = [1] * len(sharers)
    # A free cell goes to the claim that is furthest below its part, and no claim gets more than its part.
    while sum(widths) < size:
        short, who = max((sharer.part * size - widths[index], -index) for index, sharer in enumerate(sharers))
        if short < 0.5:
            break
        widths[-who] += 1
    cells: list[GpuCell | None] = [
        sharer.claim for sharer, width in zip(sharers, widths, strict=True) for _ in range(width)
    ]
    return cells + [None] * (size - len(cells))


def letters(claims: Iterable[str]) -> dict[str, str]:
    """A letter for each claim, in order of first appearance; after 52 they repeat."""
    return {claim: _LETTERS[index % len(_LETTERS)] for index, claim in enumerate(dict.fromkeys(claims))}


def drawn(cells: Sequence[GpuCell], letter_of: Mapping[str, str], *, colored: bool = True) -> Text:
    """`[AAAA··BB]`; claims in color, if they are `colored` and the terminal has colors."""
    text = Text("[", no_wrap=True)
    for cell, run in groupby(cells):
        width = len(list(run))
        if isinstance(cell, Mark):
            text.append(cell.value * width, style="red" if cell is Mark.TAINTED else "dim")
        else:
            text.append(letter_of[cell] * width, style=f"bold {color(cell, letter_of)}" if colored else "bold")
    return text.append("]")


def small(cells: Sequence[GpuCell], width: int, *, unhealthy: bool) -> Text:
    """`██▄·`: how much of the GPU is held, in `width` characters, for lines with many GPUs. Red if it is unhealthy."""
    count = len(cells)
    parts = [cells[number * count // width : max(-(-(number + 1) * count // width), 1)] for number in range(width)]
    style = "bold red" if unhealthy else ""
    return Text("".join(_level(part, free="!" if unhealthy else Mark.FREE) for part in parts), style=style)


_LEVELS = "▁▂▃▄▅▆▇█"


def _level(cells: Sequence[GpuCell], free: str) -> str:
    held = sum(not isinstance(cell, Mark) or cell is Mark.SEVERAL for cell in cells)
    if held:
        return _LEVELS[-(-held * len(_LEVELS) // len(cells)) - 1]
    if Mark.FREE in cells:
        return free
    return Mark.TAINTED.value if Mark.TAINTED in cells else Mark.CLOSED.value


def color(claim: str, letter_of: Mapping[str, str]) -> str:
    """The same for the same claim in one output; claims with letters side by side differ."""
    return _COLORS[_LETTERS.index(letter_of[claim]) % len(_COLORS)]
