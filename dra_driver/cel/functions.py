"""The functions and operators that expressions can use: signatures and what they do.

One table serves the check (which types fit) and the evaluation (which Python function runs), so the two cannot
disagree. An implementation gets values of exactly the declared types and raises `Failed` for a run-time error.

Sources: CEL language definition, standard definitions; cel-go's ext/strings; Kubernetes' quantity and semver libraries.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dra_driver.cel import patterns
from dra_driver.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DYN,
    INT,
    QUANTITY,
    SEMVER,
    STRING,
    UINT,
    A,
    B,
    Type,
    list_of,
    map_of,
    optional_of,
    type_name,
)
from dra_driver.cel.values import ABSENT, INT_MAX, INT_MIN, UINT_MAX, Optional, Uint, equality, find
from dra_driver.quantity import Quantity, Version


class Failed(Exception):
    """A run-time error of a function; the evaluation adds where it happened."""


@dataclass(frozen=True, slots=True)
class Overload:
    """One signature. For a method the first parameter is what it is called on."""

    parameters: tuple[Type, ...]
    result: Type
    run: Callable[..., object]
    is_method: bool = False


def equals(left: object, right: object) -> bool:
    result = equality(left, right)
    if result is None:
        raise Failed(f"no such overload: {type_name(left)} == {type_name(right)}")
    return result


def _whole(value: int) -> int:
    if not INT_MIN <= value <= INT_MAX:
        raise Failed("integer overflow")
    return value


def _unsigned(value: int) -> Uint:
    if not 0 <= value <= UINT_MAX:
        raise Failed("unsigned integer overflow")
    return Uint(value)


def _quotient(left: int, right: int) -> int:
    if right == 0:
        raise Failed("division by zero")
    magnitude = abs(left) // abs(right)
    return magnitude if (left < 0) == (right < 0) else -magnitude


def _remainder(left: int, right: int) -> int:
    if right == 0:
        raise Failed("modulus by zero")
    return left - right * _quotient(left, right)


def _float_quotient(left: float, right: float) -> float:
    if right != 0:
        return left / right
    if left == 0 or math.isnan(left):
        return math.nan
    return math.copysign(math.inf, left) * math.copysign(1, right)


def _int_of_double(value: float) -> int:
    if not INT_MIN < value < INT_MAX:
        raise Failed("not a number that fits in 64 bits")
    return math.trunc(value)


def _uint_of_double(value: float) -> Uint:
    if not 0 <= value < UINT_MAX:
        raise Failed("not a number that fits in 64 bits without a sign")
    return Uint(value)


def _int_of_text(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise Failed(f"not an integer: {text!r}")
    return _whole(int(text))


def _uint_of_text(text: str) -> Uint:
    if not re.fullmatch(r"[0-9]+", text):
        raise Failed(f"not an unsigned integer: {text!r}")
    return _unsigned(int(text))


def _double_of_text(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise Failed(f"not a number: {text!r}") from None


def _text_of_double(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 1e21 else repr(value)


def _text_of_bytes(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Failed("the bytes are not UTF-8") from None


def _bool_of_text(text: str) -> bool:
    if text in ("true", "True", "TRUE", "t", "1"):
        return True
    if text in ("false", "False", "FALSE", "f", "0"):
        return False
    raise Failed(f"not a bool: {text!r}")


def _matches(text: str, pattern: str) -> bool:
    try:
        return patterns.compiled(pattern).search(text) is not None
    except patterns.Unsupported as error:
        raise Failed(str(error)) from None


def _character(text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise Failed(f"index {index} is out of range")
    return text[index : index + 1]


def _substring(text: str, start: int, end: int | None = None) -> str:
    last = len(text) if end is None else end
    if not 0 <= start <= last <= len(text):
        raise Failed(f"range {start} to {last} is outside of a text of {len(text)} characters")
    return text[start:last]


def _parts(text: str, separator: str, limit: int = -1) -> tuple[str, ...]:
    if limit == 0:
        return ()
    if separator == "":
        count = len(text) if limit < 0 else min(len(text), limit)
        return (*text[: count - 1], text[count - 1 :]) if text else ()
    return tuple(text.split(separator, limit - 1 if limit > 0 else -1))


def _replaced(text: str, old: str, new: str, limit: int = -1) -> str:
    return text.replace(old, new, limit)


def _joined(texts: Sequence[object], separator: str = "") -> str:
    # A list whose items were not known to be texts may hold anything.
    known = [text for text in texts if isinstance(text, str)]
    if len(known) != len(texts):
        raise Failed("join needs a list of strings")
    return separator.join(known)


def _ascii(text: str, change: Callable[[str], str]) -> str:
    return "".join(change(character) if character.isascii() else character for character in text)


def element(container: object, index: object) -> Optional:
    """What indexing finds. A list takes any number that is whole, a map any key."""
    if isinstance(container, Mapping):
        return find(container, index)
    if isinstance(container, tuple) and isinstance(index, int | float) and not isinstance(index, bool):
        if index != math.trunc(index) if math.isfinite(index) else True:
            raise Failed(f"not an index: {index}")
        return Optional(container[int(index)]) if 0 <= index < len(container) else ABSENT
    raise Failed(f"no such overload: {type_name(container)}[{type_name(index)}]")


def _element(container: object, index: object) -> object:
    found = element(container, index)
    if not found.present:
        raise Failed(f"{'no such key' if isinstance(container, Mapping) else 'index out of bounds'}: {index}")
    return found.value


@lru_cache(maxsize=1024)
def _quantity(text: str) -> Quantity:
    try:
        return Quantity.parse(text)
    except ValueError as error:
        raise Failed(str(error)) from None


def _is(parse: Callable[[str], object]) -> Callable[[str], bool]:
    def accepted(text: str) -> bool:
        try:
            parse(text)
        except (ValueError, Failed):
            return False
        return True

    return accepted


def _is_integer(quantity: Quantity) -> bool:
    return quantity.value.denominator == 1 and INT_MIN <= quantity.value <= INT_MAX


def _as_integer(quantity: Quantity) -> int:
    if not _is_integer(quantity):
        raise Failed("cannot convert the quantity to an integer")
    return int(quantity.value)


def _plus(quantity: Quantity, other: Fraction | int) -> Quantity:
    return Quantity(quantity.value + other, quantity.format)


@lru_cache(maxsize=1024)
def _version(text: str) -> Version:
    try:
        return Version.parse(text)
    except ValueError as error:
        raise Failed(str(error)) from None


def _normalized_version(text: str, normalize: bool) -> Version:
    """With `normalize`: a leading v goes, missing numbers become 0, leading zeros go. Source: Kubernetes semver v1."""
    return _version(_normalized(text) if normalize else text)


def _normalized(text: str) -> str:
    numbers, separator, rest = text.removeprefix("v"), "", ""
    if match := re.search(r"[-+]", numbers):
        numbers, separator, rest = numbers[: match.start()], match.group(), numbers[match.end() :]
    parts = [part.lstrip("0") or "0" if part.isdigit() else part for part in numbers.split(".")]
    return ".".join([*parts, "0", "0"][: max(3, len(parts))]) + separator + rest


def _order(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


def _value(optional: Optional) -> object:
    if not optional.present:
        raise Failed("optional.none() has no value")
    return optional.value


def _non_zero(value: object) -> Optional:
    zero = value is None or (isinstance(value, bool | int | float | str | bytes | tuple | dict) and not value)
    return ABSENT if zero else Optional(value)


def _function(result: Type, run: Callable[..., object], *parameters: Type) -> Overload:
    return Overload(parameters, result, run)


def _method(result: Type, run: Callable[..., object], *parameters: Type) -> Overload:
    return Overload(parameters, result, run, is_method=True)


_NUMERIC = (INT, UINT, DOUBLE)
_ORDERED = tuple((left, right) for left in _NUMERIC for right in _NUMERIC) + tuple(
    (kind, kind) for kind in (STRING, BYTES, BOOL)
)


def _comparison(run: Callable[[Any, Any], bool]) -> list[Overload]:
    return [_function(BOOL, run, left, right) for left, right in _ORDERED]


def _versioned(kind: Type) -> dict[str, list[Overload]]:
    """What quantities and versions share."""
    return {
        "compareTo": [_method(INT, _order, kind, kind)],
        "isLessThan": [_method(BOOL, lambda a, b: a < b, kind, kind)],
        "isGreaterThan": [_method(BOOL, lambda a, b: a > b, kind, kind)],
    }


_TEXTS = list_of(STRING)

_OPERATORS: dict[str, list[Overload]] = {
    "==": [_function(BOOL, equals, A, A)],
    "!=": [_function(BOOL, lambda a, b: equality(a, b) is not True, A, A)],
    "<": _comparison(lambda a, b: a < b),
    "<=": _comparison(lambda a, b: a <= b),
    ">": _comparison(lambda a, b: a > b),
    ">=": _comparison(lambda a, b: a >= b),
    "in": [
        _function(BOOL, lambda item, items: any(equality(item, own) for own in items), A, list_of(A)),
        _function(BOOL, lambda key, entries: find(entries, key).present, A, map_of(A, B)),
    ],
    "+": [
        _function(INT, lambda a, b: _whole(a + b), INT, INT),
        _function(UINT, lambda a, b: _unsigned(a + b), UINT, UINT),
        _function(DOUBLE, lambda a, b: a + b, DOUBLE, DOUBLE),
        _function(STRING, lambda a, b: a + b, STRING, STRING),
        _function(BYTES, lambda a, b: a + b, BYTES, BYTES),
        _function(list_of(A), lambda a, b: a + b, list_of(A), list_of(A)),
    ],
    "-": [
        _function(INT, lambda a, b: _whole(a - b), INT, INT),
        _function(UINT, lambda a, b: _unsigned(a - b), UINT, UINT),
        _function(DOUBLE, lambda a, b: a - b, DOUBLE, DOUBLE),
    ],
    "*": [
        _function(INT, lambda a, b: _whole(a * b), INT, INT),
        _function(UINT, lambda a, b: _unsigned(a * b), UINT, UINT),
        _function(DOUBLE, lambda a, b: a * b, DOUBLE, DOUBLE),
    ],
    "/": [
        _function(INT, lambda a, b: _whole(_quotient(a, b)), INT, INT),
        _function(UINT, lambda a, b: Uint(_quotient(a, b)), UINT, UINT),
        _function(DOUBLE, _float_quotient, DOUBLE, DOUBLE),
    ],
    "%": [
        _function(INT, _remainder, INT, INT),
        _function(UINT, lambda a, b: Uint(_remainder(a, b)), UINT, UINT),
    ],
    "-_": [_function(INT, lambda a: _whole(-a), INT), _function(DOUBLE, lambda a: -a, DOUBLE)],
    "!_": [_function(BOOL, lambda a: not a, BOOL)],
    "[]": [
        _function(A, _element, list_of(A), INT),
        _function(B, _element, map_of(A, B), A),
    ],
    "[?]": [
        _function(optional_of(A), element, list_of(A), INT),
        _function(optional_of(B), element, map_of(A, B), A),
    ],
}

_STANDARD: dict[str, list[Overload]] = {
    "size": [
        overload
        for kind in (STRING, BYTES, list_of(A), map_of(A, B))
        for overload in (_function(INT, len, kind), _method(INT, len, kind))
    ],
    "startsWith": [_method(BOOL, str.startswith, STRING, STRING)],
    "endsWith": [_method(BOOL, str.endswith, STRING, STRING)],
    "contains": [_method(BOOL, lambda text, part: part in text, STRING, STRING)],
    "matches": [_method(BOOL, _matches, STRING, STRING), _function(BOOL, _matches, STRING, STRING)],
    "int": [
        _function(INT, lambda value: value, INT),
        _function(INT, lambda value: _whole(int(value)), UINT),
        _function(INT, _int_of_double, DOUBLE),
        _function(INT, _int_of_text, STRING),
    ],
    "uint": [
        _function(UINT, lambda value: value, UINT),
        _function(UINT, _unsigned, INT),
        _function(UINT, _uint_of_double, DOUBLE),
        _function(UINT, _uint_of_text, STRING),
    ],
    "double": [
        *(_function(DOUBLE, float, kind) for kind in _NUMERIC),
        _function(DOUBLE, _double_of_text, STRING),
    ],
    "bool": [_function(BOOL, lambda value: value, BOOL), _function(BOOL, _bool_of_text, STRING)],
    "string": [
        _function(STRING, lambda value: value, STRING),
        _function(STRING, lambda value: "true" if value else "false", BOOL),
        _function(STRING, lambda value: str(int(value)), INT),
        _function(STRING, lambda value: str(int(value)), UINT),
        _function(STRING, _text_of_double, DOUBLE),
        _function(STRING, _text_of_bytes, BYTES),
    ],
    "bytes": [_function(BYTES, lambda value: value, BYTES), _function(BYTES, str.encode, STRING)],
    "dyn": [_function(DYN, lambda value: value, A)],
}

_STRINGS: dict[str, list[Overload]] = {
    "lowerAscii": [_method(STRING, lambda text: _ascii(text, str.lower), STRING)],
    "upperAscii": [_method(STRING, lambda text: _ascii(text, str.upper), STRING)],
    "trim": [_method(STRING, str.strip, STRING)],
    "charAt": [_method(STRING, _character, STRING, INT)],
    "substring": [_method(STRING, _substring, STRING, INT), _method(STRING, _substring, STRING, INT, INT)],
    "indexOf": [_method(INT, str.find, STRING, STRING)],
    "lastIndexOf": [_method(INT, str.rfind, STRING, STRING)],
    "replace": [
        _method(STRING, _replaced, STRING, STRING, STRING),
        _method(STRING, _replaced, STRING, STRING, STRING, INT),
    ],
    "split": [_method(_TEXTS, _parts, STRING, STRING), _method(_TEXTS, _parts, STRING, STRING, INT)],
    "join": [
        _method(STRING, _joined, _TEXTS),
        _method(STRING, _joined, _TEXTS, STRING),
    ],
}

_OPTIONALS: dict[str, list[Overload]] = {
    "optional.of": [_function(optional_of(A), Optional, A)],
    "optional.none": [_function(optional_of(DYN), lambda: ABSENT)],
    "optional.ofNonZeroValue": [_function(optional_of(A), _non_zero, A)],
    "hasValue": [_method(BOOL, lambda optional: optional.present, optional_of(A))],
    "value": [_method(A, _value, optional_of(A))],
}

_KUBERNETES: dict[str, list[Overload]] = {
    "quantity": [_function(QUANTITY, _quantity, STRING)],
    "isQuantity": [_function(BOOL, _is(Quantity.parse), STRING)],
    "sign": [_method(INT, lambda quantity: _order(quantity.value, 0), QUANTITY)],
    "isInteger": [_method(BOOL, _is_integer, QUANTITY)],
    "asInteger": [_method(INT, _as_integer, QUANTITY)],
    "asApproximateFloat": [_method(DOUBLE, lambda quantity: float(quantity.value), QUANTITY)],
    "add": [
        _method(QUANTITY, lambda a, b: _plus(a, b.value), QUANTITY, QUANTITY),
        _method(QUANTITY, _plus, QUANTITY, INT),
    ],
    "sub": [
        _method(QUANTITY, lambda a, b: _plus(a, -b.value), QUANTITY, QUANTITY),
        _method(QUANTITY, lambda a, b: _plus(a, -b), QUANTITY, INT),
    ],
    "semver": [_function(SEMVER, _version, STRING), _function(SEMVER, _normalized_version, STRING, BOOL)],
    "isSemver": [
        _function(BOOL, _is(Version.parse), STRING),
        _function(BOOL, lambda text, normalize: _is(lambda t: _normalized_version(t, normalize))(text), STRING, BOOL),
    ],
    "major": [_method(INT, lambda version: version.major, SEMVER)],
    "minor": [_method(INT, lambda version: version.minor, SEMVER)],
    "patch": [_method(INT, lambda version: version.patch, SEMVER)],
}


def _merged(*libraries: Mapping[str, list[Overload]]) -> dict[str, tuple[Overload, ...]]:
    merged: dict[str, tuple[Overload, ...]] = {}
    for library in libraries:
        for name, overloads in library.items():
            merged[name] = (*merged.get(name, ()), *overloads)
    return merged


FUNCTIONS: Mapping[str, tuple[Overload, ...]] = _merged(
    _OPERATORS, _STANDARD, _STRINGS, _OPTIONALS, _KUBERNETES, _versioned(QUANTITY), _versioned(SEMVER)
)
"""By name; operators by their sign, prefix operators with a trailing `_`."""

LAZY_METHODS = frozenset({"or", "orValue"})
"""Methods of optionals whose argument is evaluated only when it is needed; the evaluation knows them."""
