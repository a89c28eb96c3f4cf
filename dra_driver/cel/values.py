"""CEL values as Python values, and what is equal.

bool, str, bytes and None are themselves; int is `int` within 64 bits, uint is `Uint`, double is `float`; a list is a
tuple, a map is a dict of texts or a `TypedMap`; quantities and versions are `Quantity` and `Version`, times are
`Duration` and `Timestamp`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from dra_driver.quantity import Quantity, Version

INT_MIN, INT_MAX, UINT_MAX = -(2**63), 2**63 - 1, 2**64 - 1
_MOST_DIGITS = 40
_FAR_TOO_LARGE = int(1e40)


def decimal(text: str) -> int:
    """The number of decimal digits with or without a sign. Of one that is far too large only the magnitude counts:
    Python converts no more than 4300 digits."""
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > _MOST_DIGITS:
        return -_FAR_TOO_LARGE if text.startswith("-") else _FAR_TOO_LARGE
    return int(f"{'-' if text.startswith('-') else ''}{digits or '0'}")


class Uint(int):
    """An unsigned integer of 64 bits; a type of its own in CEL."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{int(self)}u"


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    nanoseconds: int


@dataclass(frozen=True, slots=True, order=True)
class Timestamp:
    """A moment: nanoseconds since 1970 in UTC. `offset_s` is how far ahead of UTC it was written."""

    nanoseconds: int
    offset_s: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Empty:
    """The message without fields."""


@dataclass(frozen=True, slots=True)
class TypeValue:
    """What `type(x)` gives, and what names like `int` mean where a value is expected."""

    name: str


@dataclass(frozen=True, slots=True)
class Address:
    """`ip('…')`."""

    address: IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Prefix:
    """`cidr('…')`: an address, whose later bits need not be 0, and how many bits count."""

    address: IPv4Address | IPv6Address
    bits: int


@dataclass(frozen=True, slots=True)
class Url:
    """`url('…')`: the parts of an absolute URL or path. `path` is escaped, `host` has the port."""

    scheme: str
    user: str
    host: str
    path: str
    query: str
    fragment: str


@dataclass(frozen=True, slots=True)
class NamedFormat:
    """`format.<name>()`, one of Kubernetes' own formats of texts."""

    name: str


@dataclass(frozen=True, slots=True)
class Optional:
    """A value that may be absent, as `map.?key` gives it."""

    value: object = None
    present: bool = True


ABSENT = Optional(present=False)

_NUMBERS = (int, Uint, float)


class TypedMap(Mapping[object, object]):
    """A map whose keys are of several types: 1, 1u and true, which Python takes for one, are three of them."""

    __slots__ = ("_entries",)

    def __init__(self, pairs: Iterable[tuple[object, object]]) -> None:
        self._entries = {(type(key), key): (key, value) for key, value in pairs}

    def __getitem__(self, key: object) -> object:
        return self._entries[type(key), key][1]

    def __iter__(self) -> Iterator[object]:
        return (key for key, _ in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)


def equality(left: object, right: object) -> bool | None:
    """CEL's `==`: numbers by value across their types, else values of different types differ.

    None for a value of one of Kubernetes' own types on the left of something else, or of a quantity that was added or
    subtracted: for Kubernetes that is an error ("no such overload"), while the same two the other way round can be
    compared. Inside of lists and maps it counts as equal.
    Source: cel-go's Equal of lists, maps and optionals; Equal of Quantity and Semver in k8s.io/apiserver.
    """
    if left is None or right is None:
        return left is right
    kind = type(left)
    if kind in _NUMBERS or type(right) in _NUMBERS:
        return _equal_numbers(left, right) if kind in _NUMBERS and type(right) in _NUMBERS else _unlike(left)
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return _equal_maps(left, right)
    if kind is not type(right):
        return _unlike(left)
    if isinstance(right, Quantity) and right.is_computed:
        return None
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(equality(*pair) is not False for pair in zip(left, right, strict=True))
    if isinstance(left, Optional) and isinstance(right, Optional):
        return left.present == right.present and equality(left.value, right.value)
    return left == right


def _equal_numbers(left: Any, right: Any) -> bool:
    """Beside a double every number is one, even where 64 bits have digits that a double lacks."""
    return float(left) == float(right) if float in (type(left), type(right)) else bool(left == right)


def _unlike(left: object) -> bool | None:
    """Of a value and one of another type."""
    return None if isinstance(left, Quantity | Version | Address | Prefix | Url | NamedFormat) else False


def _equal_maps(left: Mapping[object, object], right: Mapping[object, object]) -> bool:
    if len(left) != len(right):
        return False
    found = ((value, find(right, key)) for key, value in left.items())
    return all(other.present and equality(value, other.value) is not False for value, other in found)


def find(entries: Mapping[object, object], key: object) -> Optional:
    """The entry of a map, also one that a map has without containing it, as `device.attributes` has every domain. Of
    several types of numbers the key's own is the first that is looked for."""
    if isinstance(key, str) or (isinstance(entries, TypedMap) and key in entries):
        try:
            return Optional(entries[key])
        except KeyError:
            return ABSENT
    for own, value in entries.items():
        if equality(own, key):
            return Optional(value)
    return ABSENT
