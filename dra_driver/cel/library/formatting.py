"""`'…'.format([…])`: clauses such as `%s` and `%.2f`, and what each of them can show.

Source: the behavior of cel-go's ext/strings version 2 in an API server, whose answers are in the tests.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dra_driver.cel.overloads import Failed, Library, bounded, method
from dra_driver.cel.types import DYN, STRING, TypeValue, decimal, list_of, text_of_double, type_name

_CLAUSE = re.compile(r"%(?:%|(?:\.([0-9]+))?(.?))", re.DOTALL)
MOST_DIGITS = 100
"""Behind the point. An API server takes more, and from 256 on drops trailing zeros."""
_DEFAULT_DIGITS = 6
_SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Texts that the clauses of doubles take, because CEL has no literals for these numbers."""

_DOUBLE = frozenset({"double", "string"})
_SHOWN: Mapping[str, frozenset[str]] = {
    "s": frozenset({"string", "bool", "int", "double", "map", "list", "null_type", "type"}),
    "d": frozenset({"int"}), "o": frozenset({"int"}), "b": frozenset({"int", "bool"}),
    "x": frozenset({"int", "string"}), "X": frozenset({"int", "string"}), "f": _DOUBLE, "e": _DOUBLE,
}  # fmt: skip
"""By clause: the types that it can show."""


def clauses(text: str) -> list[tuple[str, int]]:
    """Letter and precision of each clause that takes a value. Raises Failed."""
    return [_clause(match) for match in _CLAUSE.finditer(text) if match.group() != "%%"]


def _clause(match: re.Match[str]) -> tuple[str, int]:
    precision, letter = match.groups()
    if letter not in _SHOWN:
        raise Failed(f"`{match.group()}` is not a formatting clause; a percent sign is written `%%`")
    return letter, decimal(precision) if precision else _DEFAULT_DIGITS


def need(letter: str, name: str) -> None:
    """Raises Failed when the clause cannot show the type of this name."""
    if name not in _SHOWN[letter]:
        raise Failed(f"`%{letter}` cannot show {name}, only {', '.join(sorted(_SHOWN[letter]))}")


def _format(text: str, values: Sequence[object]) -> str:
    wanted = clauses(text)
    if len(wanted) > len(values):
        raise Failed(f"the text has {len(wanted)} clauses, but only {len(values)} values follow")
    if any(precision > MOST_DIGITS for _, precision in wanted):
        raise Failed(f"a clause has more than {MOST_DIGITS} digits")
    shown = (_shown(*clause, value) for clause, value in zip(wanted, values, strict=False))
    return bounded(_CLAUSE.sub(lambda match: "%" if match.group() == "%%" else next(shown), text))


def _shown(letter: str, precision: int, value: object) -> str:
    need(letter, type_name(value))
    return _SHOW[letter](value, precision)


def _plain(value: Any) -> str:
    """A text or number by itself; what is in a list or map is written as a literal."""
    if isinstance(value, str):
        return value
    return text_of_double(value) if isinstance(value, float) else _literal(value)


def _literal(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return f"{value:.6f}" if math.isfinite(value) else f'"{text_of_double(value)}"'
        case str():
            return _quoted(value)
        case TypeValue(name=name):
            return {"quantity": "kubernetes.Quantity", "semver": "kubernetes.Semver"}.get(name, name)
        case tuple():
            return f"[{', '.join(map(_literal, value))}]"
        case Mapping():
            entries = sorted((_literal(key), _literal(item)) for key, item in value.items())
            return "{" + ", ".join(f"{key}:{item}" for key, item in entries) + "}"
    raise Failed(f"`%s` cannot show {type_name(value)}")


_ESCAPES = {ord(sign): f"\\{letter}" for sign, letter in zip('\a\b\f\n\r\t\v"\\', 'abfnrtv"\\', strict=True)}


def _quoted(text: str) -> str:
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(character: str) -> str:
    code = ord(character)
    if code in _ESCAPES:
        return _ESCAPES[code]
    if character.isprintable():
        return character
    width = 2 if code < 0x80 else 4 if code <= 0xFFFF else 8
    return f"\\{ {2: 'x', 4: 'u', 8: 'U'}[width] }{code:0{width}x}"


def _fixed(value: float | str, precision: int) -> str:
    value = _number(value)
    if math.isfinite(value):
        return f"{value:,.{precision}f}"
    return "NaN" if value != value else "∞" if value > 0 else "-∞"


def _scientific(value: float | str, precision: int) -> str:
    """Always six digits: an API server takes the precision of this clause as the width."""
    value = _number(value)
    if not math.isfinite(value):
        return _fixed(value, 0).rjust(precision)
    digits, exponent = f"{value:.6e}".split("e")
    return f"{digits}×10{exponent.removeprefix('+').translate(_SUPERSCRIPT)}".rjust(precision)


def _number(value: float | str) -> float:
    if isinstance(value, float):
        return value + 0.0  # an API server shows -0.0 without a sign
    if value not in _NOT_FINITE:
        raise Failed(f"only NaN, Infinity and -Infinity are numbers, not {value!r}")
    return _NOT_FINITE[value]


def _hexadecimal(value: int | str) -> str:
    return f"{value:x}" if isinstance(value, int) else value.encode().hex()


_SHOW: Mapping[str, Callable[[Any, int], str]] = {
    "s": lambda value, _: _plain(value),
    "d": lambda value, _: str(value),
    "o": lambda value, _: f"{value:o}",
    "b": lambda value, _: f"{value:b}",
    "x": lambda value, _: _hexadecimal(value),
    "X": lambda value, _: _hexadecimal(value).upper(),
    "f": _fixed,
    "e": _scientific,
}

FORMATTING: Library = {"format": [method(STRING, _format, STRING, list_of(DYN))]}
