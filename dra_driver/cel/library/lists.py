"""Functions of lists, of lists as sets, and of values that may be absent.

Sources: Kubernetes' list library; cel-go's ext/sets and optional types version 2; `includes` of
k8s.io/dynamic-resource-allocation.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from dra_driver.cel.overloads import Failed, Library, Overload, function, method
from dra_driver.cel.types import (
    ABSENT,
    BOOL,
    DOUBLE,
    DYN,
    FREE,
    INT,
    INT_MAX,
    INT_MIN,
    STRING,
    A,
    Optional,
    equality,
    list_of,
    optional_of,
    type_name,
)


def _value(optional: Optional) -> object:
    if not optional.present:
        raise Failed("optional.none() has no value")
    return optional.value


def _non_zero(value: object) -> Optional:
    zero = value is None or (isinstance(value, bool | int | float | str | tuple | Mapping) and not value)
    return ABSENT if zero else Optional(value)


OPTIONALS: Library = {
    "optional.of": [function(optional_of(A), Optional, A)],
    "optional.none": [function(optional_of(FREE), lambda: ABSENT)],
    "optional.ofNonZeroValue": [function(optional_of(A), _non_zero, A)],
    "hasValue": [method(BOOL, lambda optional: optional.present, optional_of(A))],
    "first": [method(optional_of(A), lambda items: Optional(items[0]) if items else ABSENT, list_of(A))],
    "last": [method(optional_of(A), lambda items: Optional(items[-1]) if items else ABSENT, list_of(A))],
    "value": [method(A, _value, optional_of(A))],
}


type Items = tuple[Any, ...]

COMPARABLE = (INT, DOUBLE, BOOL, STRING)
"""Types whose values have an order."""

_NUMBERS = frozenset({"int", "double"})
_COMPARABLE_NAMES = frozenset(kind.name for kind in COMPARABLE)


def _need_order(items: Sequence[object]) -> None:
    names = {type_name(item) for item in items} - _COMPARABLE_NAMES
    if names:
        raise Failed(f"no such overload: {names.pop()} has no order")


def _exceeds(left: Any, right: Any) -> bool:
    """False also for values that cannot be compared, of which Kubernetes takes no notice here."""
    numbers = type_name(left) in _NUMBERS and type_name(right) in _NUMBERS
    return bool((numbers or type(left) is type(right)) and left > right)


def _extreme(name: str, items: Items) -> object:
    if not items:
        raise Failed(f"{name} called on empty list")
    _need_order(items)
    extreme, *others = items
    for item in others:
        if _exceeds(item, extreme) if name == "max" else _exceeds(extreme, item):
            extreme = item
    return extreme


def _sum(items: Items) -> Any:
    names = {type_name(item) for item in items}
    if len(names) > 1 or not names <= _NUMBERS:
        raise Failed(f"no such overload: sum of {' and '.join(sorted(names))}")
    if names == {"double"}:
        return sum(items, 0.0)
    total = sum(items)
    if not INT_MIN <= total <= INT_MAX:
        raise Failed("integer overflow")
    return total


def _places(items: Items, wanted: object) -> list[int]:
    return [index for index, item in enumerate(items) if equality(item, wanted)]


def _contains(items: Items, wanted: Items) -> bool:
    return all(any(equality(item, element) for item in items) for element in wanted)


_MOST_INCLUDED = 48
"""Values of an attribute; `includes` fails for longer lists."""


def _includes(target: object, wanted: object) -> bool:
    """A list includes its items, everything else itself."""
    if not isinstance(target, tuple):
        return equality(target, wanted) is True
    for item in target[:_MOST_INCLUDED]:
        if equality(item, wanted):
            return True
    if len(target) > _MOST_INCLUDED:
        raise Failed(f"`includes` cannot be applied to lists longer than {_MOST_INCLUDED} values")
    return False


def _extremes(name: str) -> list[Overload]:
    return [method(kind, partial(_extreme, name), list_of(kind)) for kind in COMPARABLE]


_LIST = list_of(A)

LISTS: Library = {
    "min": _extremes("min"),
    "max": _extremes("max"),
    "sum": [
        method(INT, _sum, list_of(INT)),
        method(DOUBLE, lambda items: _sum(items) if items else 0.0, list_of(DOUBLE)),
    ],
    "indexOf": [method(INT, lambda items, wanted: min(_places(items, wanted), default=-1), _LIST, A)],
    "lastIndexOf": [method(INT, lambda items, wanted: max(_places(items, wanted), default=-1), _LIST, A)],
}

SETS: Library = {
    "sets.contains": [function(BOOL, _contains, _LIST, _LIST)],
    "sets.equivalent": [function(BOOL, lambda a, b: _contains(a, b) and _contains(b, a), _LIST, _LIST)],
    "sets.intersects": [function(BOOL, lambda a, b: any(_contains(b, (item,)) for item in a), _LIST, _LIST)],
}

INCLUDES: Library = {"includes": [method(BOOL, _includes, DYN, DYN)]}
"""For attributes, which may be one value or a list of them."""
