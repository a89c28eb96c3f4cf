"""Pieces of new text in an old one; what is between them stays byte for byte. Pure."""

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from dra_driver.api.documents import normalized
from dra_driver.migration.text.changes import EditRefused


@dataclass(frozen=True, slots=True)
class Splice:
    """`text` instead of what stands from `start` to `end`."""

    start: int
    end: int
    text: str


def spliced(text: str, splices: Iterable[Splice]) -> str:
    """A file's text after splices in its normalized form. New lines end like the file's own do."""
    plain = normalized(text)
    mark = text[: len(text) - len(text.removeprefix("\ufeff"))]
    if "\r" not in text:
        return mark + joined(plain, splices)
    ends = [match.end() for match in re.finditer(r"\r\n", text.removeprefix("\ufeff"))]
    starts = [end - 2 - index for index, end in enumerate(ends)]
    """Of each `\\r\\n`: where its `\\n` is in the normalized text."""
    newline = "\r\n" if ends else "\r" if "\n" not in text else "\n"
    body = text.removeprefix("\ufeff")
    moved = [
        Splice(
            one.start + bisect_left(starts, one.start),
            one.end + bisect_left(starts, one.end),
            one.text.replace("\n", newline),
        )
        for one in splices
    ]
    return mark + joined(body, moved)


def order(splice: Splice) -> tuple[int, bool]:
    """What is put in comes before what is taken out in the same place."""
    return splice.start, splice.end != splice.start


def joined(text: str, splices: Iterable[Splice]) -> str:
    parts: list[str] = []
    position = 0
    for one in sorted(splices, key=order):
        if one.start < position:
            raise EditRefused("two edits meet in one place")
        parts += (text[position : one.start], one.text)
        position = one.end
    return "".join((*parts, text[position:]))
