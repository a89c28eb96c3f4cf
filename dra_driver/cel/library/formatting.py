"""`'…'.format([…])`: clauses like `%s` and `%.2f`, and what each of them can show.

Source: cel-go's ext/strings version 2, and what a Kubernetes API server answers.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from dra_driver.cel.library.texts import quoted
from dra_driver.cel.library.times import duration_text, timestamp_text
from dra_driver.cel.overloads import Failed, Library, method
from dra_driver.cel.types import DYN, INT_MAX, STRING, Duration, Timestamp, TypeValue, list_of, type_name

_CLAUSE = re.compile(r"%(?:\.([0-9]+))?(.?)", re.DOTALL)
_MOST_PRECISION = 10_000_009
"""Source: parser of golang.org/x/text/internal/format, which prints no number for more."""
_WHOLE = frozenset({"int", "uint"})
_DOUBLE = frozenset({"double", "string"})
"""A text may stand for what is not a number: NaN, Infinity, -Infinity."""
_SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")

SHOWN: Mapping[str, frozenset[str]] = {
    "s": frozenset({
        "string", "bool", "bytes", "int", "uint", "double", "map", "list", "null_type", "duration", "timestamp", "type"
    }),
    "d": _WHOLE, "f": _DOUBLE, "e": _DOUBLE, "o": _WHOLE, "b": _WHOLE | {"bool"},
    "x": _WHOLE | {"string", "bytes"}, "X": _WHOLE | {"string", "bytes"},
}  # fmt: skip
"""By clause: the types that it can show."""


def clauses(text: str) -> list[str]:
    """The letters of the clauses that want a value. Raises Failed."""
    return [letter for _, letter, _ in _pieces(text) if letter != "%"]


def _pieces(text: str) -> Iterator[tuple[str, str, int]]:
    """Of each clause: the text before it, its letter, and its precision."""
    position = 0
    for match in _CLAUSE.finditer(text):
        precision, letter = match.groups()
        if not letter:
            raise Failed("unexpected end of string")
        if letter not in SHOWN and letter != "%":
            raise Failed(f"could not parse formatting clause: unrecognized formatting clause {letter!r}")
        if precision and int(precision) > INT_MAX:
            raise Failed(f"could not parse formatting clause: precision {precision} does not fit in 64 bits")
        yield text[position : match.start()], letter, int(precision) if precision else 6
        position = match.end()


def need(letter: str, name: str) -> None:
    """Raises Failed when the clause cannot show the type of this name."""
    if name not in SHOWN[letter]:
        raise Failed(f"`%{letter}` cannot show {name}, only {', '.join(sorted(SHOWN[letter]))}")


def need_count(wanted: int, given: int) -> None:
    if given < wanted:
        raise Failed(f"index {given} out of range: the text wants {wanted} values")
    if given > wanted:
        raise Failed(f"too many arguments supplied to string.format (expected {wanted}, got {given})")


def _format(text: str, values: Sequence[Any]) -> str:
    need_count(len(clauses(text)), len(values))
    rest, shown = iter(values), ""
    for before, letter, precision in _pieces(text):
        shown += before + ("%" if letter == "%" else _clause(letter, precision, next(rest)))
    return shown + text[max((match.end() for match in _CLAUSE.finditer(text)), default=0) :]


def _clause(letter: str, precision: int, value: Any) -> str:
    need(letter, type_name(value))
    if precision > _MOST_PRECISION and letter in "ef":
        return "%!(NOVERB)"
    return _SHOW[letter](value, precision)


def _plain(value: Any, _: int) -> str:
    """Texts and numbers as they are; what is in lists and maps is written like literals."""
    match value:
        case str():
            return value
        case bytes():
            return _text_of(value)
        case float():
            return short_double(value)
        case Duration():
            return duration_text(value)
        case Timestamp():
            return timestamp_text(value)
    return _inner(value)


def _text_of(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Failed("invalid UTF-8 in bytes, cannot convert to string") from None


def _inner(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(int(value))
        case float():
            return f"{value:.6f}" if math.isfinite(value) else f'"{short_double(value)}"'
        case str():
            return quoted(value)
        case bytes():
            return f'b"{_text_of(value)}"'
        case Duration():
            return f'duration("{duration_text(value)}")'
        case Timestamp():
            return f'timestamp("{timestamp_text(value)}")'
        case TypeValue():
            return value.name
        case tuple():
            return f"[{', '.join(map(_inner, value))}]"
        case Mapping():
            return "{" + ", ".join(sorted(f"{_inner(key)}:{_inner(item)}" for key, item in value.items())) + "}"
    raise Failed(f"`%s` cannot show {type_name(value)}")


def short_double(value: float) -> str:
    """The shortest digits that mean this number, with an exponent from a million on."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    decimal = Decimal(repr(value))
    power = decimal.adjusted()
    if -4 <= power < 6:
        return f"{decimal:f}".removesuffix(".0")
    digits = "".join(map(str, decimal.as_tuple().digits)).rstrip("0")
    fraction = f".{digits[1:]}" if digits[1:] else ""
    return f"{'-' if value < 0 else ''}{digits[0]}{fraction}e{power:+03d}"


_NAMED = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _double(value: float | str) -> float:
    """Some texts stand for numbers that have no literal."""
    if isinstance(value, str):
        if value not in _NAMED:
            raise Failed(f"only NaN, Infinity and -Infinity are numbers, not {value!r}")
        return _NAMED[value]
    return value


def _fixed(value: float | str, precision: int) -> str:
    value = _double(value)
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "∞" if value > 0 else "-∞"
    digits, fewest = precision % 2**16, precision % 2**8
    # A server keeps the most digits in 16 bits with a sign, where less than none means the shortest, the fewest in 8.
    text = f"{value:,.{digits}f}" if digits < 2**15 else f"{Decimal(repr(value)):,f}"
    whole, _, fraction = text.partition(".")
    fraction = fraction.rstrip("0").ljust(fewest, "0")
    return f"{whole}.{fraction}" if fraction else whole


def _scientific(value: float | str, precision: int) -> str:
    """Six digits, not what the clause says: an API server takes the precision for the width."""
    value, width = _double(value), precision % 2**16
    if not math.isfinite(value):
        return _fixed(value, 6).rjust(width)
    digits, exponent = f"{value:.6e}".split("e")
    return f"{digits}×10{exponent.removeprefix('+').translate(_SUPERSCRIPT)}".rjust(width)


def _hexadecimal(value: Any, _: int) -> str:
    if isinstance(value, int):
        return f"{int(value):x}"
    return (value.encode() if isinstance(value, str) else value).hex()


_SHOW: Mapping[str, Callable[[Any, int], str]] = {
    "s": _plain, "d": lambda value, _: str(int(value)), "f": _fixed, "e": _scientific, "x": _hexadecimal,
    "X": lambda value, precision: _hexadecimal(value, precision).upper(),
    "o": lambda value, _: f"{int(value):o}", "b": lambda value, _: f"{int(value):b}",
}  # fmt: skip

FORMATTING: Library = {"format": [method(STRING, _format, STRING, list_of(DYN))]}
