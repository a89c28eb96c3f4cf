"""Quantities and semantic versions. Source: Kubernetes' quantity and semver libraries."""

import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dra_driver.cel.overloads import Failed, Library, accepts, function, method
from dra_driver.cel.types import BOOL, DOUBLE, INT, INT_MAX, INT_MIN, QUANTITY, SEMVER, STRING, Type
from dra_driver.quantity import Quantity, Version


def _quantity(text: str) -> Quantity:
    try:
        return Quantity.parse(text)
    except ValueError as error:
        raise Failed(str(error)) from None


def _as_integer(quantity: Quantity) -> int:
    if not _is_integer(quantity):
        raise Failed("cannot convert the quantity to an integer")
    return int(quantity.value)


def _is_integer(quantity: Quantity) -> bool:
    return quantity.is_int64 and quantity.value.denominator == 1 and INT_MIN <= quantity.value <= INT_MAX


def _plus(quantity: Quantity, other: Quantity, sign: int = 1) -> Quantity:
    total = quantity.value + sign * other.value
    # Nothing takes the form of what is added to it, and adds nothing to the form of what it is added to.
    parts = [other] if quantity.value == 0 else [quantity] if other.value == 0 else [quantity, other]
    is_int64 = all(part.is_int64 for part in parts) and INT_MIN <= total <= INT_MAX
    return Quantity(total, quantity.format, is_int64, is_computed=True)


def _whole(number: int) -> Quantity:
    return Quantity(Fraction(number))


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


def _compared(kind: Type, order: Callable[[Any, Any], int]) -> Library:
    """What quantities and versions share."""
    return {
        "compareTo": [method(INT, order, kind, kind)],
        "isLessThan": [method(BOOL, lambda a, b: order(a, b) < 0, kind, kind)],
        "isGreaterThan": [method(BOOL, lambda a, b: order(a, b) > 0, kind, kind)],
    }


def _order_of_quantities(left: Quantity, right: Quantity) -> int:
    """By cross-multiplication, several times faster than comparing fractions: nearly every selector does it."""
    a, b = left.value, right.value
    difference = a.numerator * b.denominator - b.numerator * a.denominator
    return (difference > 0) - (difference < 0)


QUANTITIES: Library = {
    "quantity": [function(QUANTITY, _quantity, STRING)],
    "isQuantity": [function(BOOL, accepts(Quantity.parse), STRING)],
    "sign": [function(INT, lambda quantity: _order(quantity.value, 0), QUANTITY)],
    "isInteger": [method(BOOL, _is_integer, QUANTITY)],
    "asInteger": [method(INT, _as_integer, QUANTITY)],
    "asApproximateFloat": [method(DOUBLE, lambda quantity: float(quantity.value), QUANTITY)],
    "add": [
        method(QUANTITY, _plus, QUANTITY, QUANTITY),
        method(QUANTITY, lambda a, b: _plus(a, _whole(b)), QUANTITY, INT),
    ],
    "sub": [
        method(QUANTITY, lambda a, b: _plus(a, b, -1), QUANTITY, QUANTITY),
        method(QUANTITY, lambda a, b: _plus(a, _whole(b), -1), QUANTITY, INT),
    ],
    **_compared(QUANTITY, _order_of_quantities),
}

VERSIONS: Library = {
    "semver": [function(SEMVER, _version, STRING), function(SEMVER, _normalized_version, STRING, BOOL)],
    "isSemver": [
        function(BOOL, accepts(Version.parse), STRING),
        function(BOOL, accepts(_normalized_version), STRING, BOOL),
    ],
    "major": [method(INT, lambda version: version.major, SEMVER)],
    "minor": [method(INT, lambda version: version.minor, SEMVER)],
    "patch": [method(INT, lambda version: version.patch, SEMVER)],
    **_compared(SEMVER, _order),
}
