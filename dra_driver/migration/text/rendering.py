"""Plain data as YAML that fits into an existing text: its indentation, its quotes. Pure."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dra_driver.api.plain_values import plain_value
from dra_driver.migration.text.tree import ListNode, MapNode, Scalar, Tree, column_of


@dataclass(frozen=True, slots=True)
class Style:
    """How the text around is written."""

    step: int = 2
    """Spaces for each map in a map."""
    dash: int = 0
    """Spaces that a list's dashes have before them, beyond those of the list's key."""
    quote: str = "'"


def style_of(text: str, roots: Sequence[Tree]) -> Style:
    """The most frequent steps of indentation, dashes and quotes of a text."""
    steps: Counter[int] = Counter()
    dashes: Counter[int] = Counter()
    quotes: Counter[str] = Counter()
    pending: list[Tree] = list(roots)
    while pending:
        tree = pending.pop()
        if isinstance(tree, Scalar):
            quotes[tree.style] += 1
        elif isinstance(tree, ListNode):
            pending += tree.items
        elif isinstance(tree, MapNode):
            for key, value in tree.pairs:
                pending += (key, value)
                if not tree.flow and isinstance(value, MapNode | ListNode) and not value.flow:
                    step = column_of(text, value.body) - column_of(text, key.start)
                    (dashes if isinstance(value, ListNode) else steps)[step] += 1
    return Style(
        _most(steps, 2, lowest=1),
        _most(dashes, 0, lowest=0),
        '"' if quotes['"'] > quotes["'"] else "'",
    )


def _most(counted: Counter[int], default: int, *, lowest: int) -> int:
    usual = [(times, -number) for number, times in counted.items() if number >= lowest]
    return -max(usual)[1] if usual else default


_PLAIN = re.compile(r"[A-Za-z0-9_./\\(<=+;$^~][^\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff]*")
_MEANT = re.compile(r": |:$| #|\s$")
_OF_FLOW = re.compile(r"[,\[\]{}]")
_PRINTABLE = re.compile(r"[\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]*")


def scalar(value: Any, style: Style, *, flow: bool, quote: str = "") -> str:
    """In one line. `quote` is how the value that stood there before was quoted, and is kept where that can be."""
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if not quote and _is_plain(value, flow):
        return value
    if not quote:
        quote = "'" if '"' in value else style.quote
    if quote == "'" and "\n" not in value and _PRINTABLE.fullmatch(value):
        return "'" + value.replace("'", "''") + "'"
    return _double_quoted(value)


def _double_quoted(value: str) -> str:
    """JSON's escapes are YAML's, too, as long as nothing beyond 16 bits is escaped."""
    return (
        "".join(
            json.dumps(char)[1:-1]
            if char < " " or char in '"\\\x7f\x85\u2028\u2029\ufeff' or "\x80" <= char <= "\x9f"
            else char
            for char in f"\x00{value}\x00"
        ).replace("\\u0000", '"', 1)[: -len("\\u0000")]
        + '"'
    )


def _is_plain(text: str, flow: bool) -> bool:
    """Whether it needs no quotes, because it cannot be read as another type."""
    if not _PLAIN.fullmatch(text) or _MEANT.search(text) or (flow and _OF_FLOW.search(text)):
        return False
    return isinstance(plain_value(text), str) and not _LIKE_A_NUMBER.match(text) and text not in ("---", "...")


_LIKE_A_NUMBER = re.compile(r"[-+.]?[0-9][0-9_:.,xob+-]*[eE]?[-+]?[0-9]*$|[0-9]{4}-[0-9]{2}-[0-9]{2}|[=<~]$|<<$")


def inline(value: Any, style: Style) -> str:
    """In one line, in flow style."""
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{scalar(key, style, flow=True)}: {inline(item, style)}" for key, item in value.items())
            + "}"
        )
    if isinstance(value, list):
        return f"[{', '.join(inline(item, style) for item in value)}]"
    return scalar(value, style, flow=True)


def pair_lines(key: str, value: Any, style: Style, column: int) -> Iterator[str]:
    """`key: value` in block style, without line ends. The key is in `column`, from 0."""
    first, *more = value_lines(value, style, column)
    yield f"{' ' * column}{scalar(key, style, flow=False)}:{first}"
    yield from more


def value_lines(value: Any, style: Style, column: int) -> Iterator[str]:
    """What follows the colon of a key in `column`: the rest of the line, then the lines below."""
    if isinstance(value, dict) and value:
        yield ""
        for key, item in value.items():
            yield from pair_lines(key, item, style, column + style.step)
    elif isinstance(value, list) and value:
        yield ""
        for item in value:
            yield from item_lines(item, style, column + style.dash)
    elif isinstance(value, str) and "\n" in value.rstrip("\n") and _fits_a_literal(value):
        yield f" {literal_header(value)}"
        yield from literal_lines(value, column + style.step)
    else:
        yield f" {inline(value, style) if isinstance(value, dict | list) else scalar(value, style, flow=False)}"


def item_lines(value: Any, style: Style, column: int) -> Iterator[str]:
    """`- value`; the dash is in `column`."""
    dash = f"{' ' * column}- "
    if isinstance(value, dict) and value:
        lines = [line for key, item in value.items() for line in pair_lines(key, item, style, column + 2)]
        yield dash + lines[0][column + 2 :]
        yield from lines[1:]
    elif isinstance(value, list | dict):
        yield dash + inline(value, style)
    else:
        yield dash + scalar(value, style, flow=False)


def _fits_a_literal(value: str) -> bool:
    return not value.startswith((" ", "\n", "\t")) and _PRINTABLE.fullmatch(value) is not None


def literal_header(value: str) -> str:
    """With what becomes of the line ends at the end."""
    ends = len(value) - len(value.rstrip("\n"))
    return "|" if ends == 1 else "|-" if ends == 0 else "|+"


def literal_lines(value: str, column: int) -> Iterator[str]:
    for line in value.removesuffix("\n").split("\n"):
        yield f"{' ' * column}{line}" if line else ""
