"""What `dractl get` was asked, and what it answers, before either is typed in or printed. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from dra_driver.cli.top.board import Known
from dra_driver.terminal import Sheet


@dataclass(frozen=True, slots=True)
class Asked:
    """`names` empty: all. `minor` is the server's version, `labels` a selector of nodes or of the objects themselves.

    `node`, `free` and `every` are for devices; the first of `drivers` is that of the GPUs.
    """

    now: datetime
    minor: int
    drivers: Sequence[str]
    names: Collection[str] = ()
    labels: str | None = None
    node: str | None = None
    free: bool = False
    every: bool = False

    def wants(self, *parts: str, also: str | None = None) -> bool:
        """Whether an object is asked for: by its last part, by all parts with slashes between, or by `also`."""
        return not self.names or not {parts[-1], "/".join(parts), also}.isdisjoint(self.names)


@dataclass(frozen=True, slots=True)
class Answer:
    """`summary` comes before the table, `more` tables after it, `notes` last; programs get the sheet only. `map` is for
    a page; None if there are no GPUs to draw."""

    sheet: Sheet
    more: Sequence[Sheet] = field(default=())
    summary: str | None = None
    notes: Sequence[str] = ()
    map: Known | None = None
