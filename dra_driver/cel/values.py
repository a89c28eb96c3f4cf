"""CEL values as Python values, and what is equal.

bool, str, bytes and None are themselves; int is `int` within 64 bits, uint is `Uint`, double is `float`; a list is a
tuple, a map is a dict; quantities and versions are `Quantity` and `Version`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

INT_MIN, INT_MAX, UINT_MAX = -(2**63), 2**63 - 1, 2**64 - 1


class Uint(int):
    """An unsigned integer of 64 bits; a type of its own in CEL."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{int(self)}u"


@dataclass(frozen=True, slots=True)
class Optional:
    """A value that may be absent, as `map.?key` gives it."""

    value: object = None
    present: bool = True


ABSENT = Optional(present=False)

_NUMBERS = (int, Uint, float)


def equal(left: object, right: object) -> bool:
    """CEL's `==` on any two values: numbers by value across their types, else values of different types differ."""
    kind = type(left)
    if kind is not type(right):
        if kind in _NUMBERS and type(right) in _NUMBERS:
            return left == right
        return isinstance(left, Mapping) and isinstance(right, Mapping) and _equal_maps(left, right)
    if kind is tuple:
        assert isinstance(left, tuple) and isinstance(right, tuple)
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, Mapping):
        assert isinstance(right, Mapping)
        return _equal_maps(left, right)
    if isinstance(left, Optional):
        assert isinstance(right, Optional)
        return left.present == right.present and equal(left.value, right.value)
    return left == right


def _equal_maps(left: Mapping[object, object], right: Mapping[object, object]) -> bool:
    if len(left) != len(right):
        return False
    return all((found := find(right, key)).present and equal(value, found.value) for key, value in left.items())


def find(entries: Mapping[object, object], key: object) -> Optional:
    """The entry of a map; `1`, `1u` and `1.0` are one key, and `true` is not the key 1 that Python takes it for."""
    if isinstance(key, str):
        return Optional(entries[key]) if key in entries else ABSENT
    for own, value in entries.items():
        if equal(own, key):
            return Optional(value)
    return ABSENT
