"""Functions of values that may be absent. Source: cel-go's optional types, version 2."""

from collections.abc import Mapping

from dra_driver.cel.overloads import Failed, Library, function, method
from dra_driver.cel.types import BOOL, FREE, A, list_of, optional_of
from dra_driver.cel.values import ABSENT, Optional


def _value(optional: Optional) -> object:
    if not optional.present:
        raise Failed("optional.none() has no value")
    return optional.value


def _non_zero(value: object) -> Optional:
    zero = value is None or (isinstance(value, bool | int | float | str | bytes | tuple | Mapping) and not value)
    return ABSENT if zero else Optional(value)


def _first(items: tuple[object, ...]) -> Optional:
    return Optional(items[0]) if items else ABSENT


def _last(items: tuple[object, ...]) -> Optional:
    return Optional(items[-1]) if items else ABSENT


def _present(items: tuple[object, ...]) -> tuple[object, ...]:
    # A list whose items were not known to be optional may hold anything.
    known = [item for item in items if isinstance(item, Optional)]
    if len(known) != len(items):
        raise Failed("no such overload: unwrap needs a list of optional values")
    return tuple(item.value for item in known if item.present)


OPTIONALS: Library = {
    "optional.of": [function(optional_of(A), Optional, A)],
    "optional.none": [function(optional_of(FREE), lambda: ABSENT)],
    "optional.ofNonZeroValue": [function(optional_of(A), _non_zero, A)],
    "hasValue": [method(BOOL, lambda optional: optional.present, optional_of(A))],
    "first": [method(optional_of(A), _first, list_of(A))],
    "last": [method(optional_of(A), _last, list_of(A))],
    "optional.unwrap": [function(list_of(A), _present, list_of(optional_of(A)))],
    "unwrapOpt": [method(list_of(A), _present, list_of(optional_of(A)))],
    "value": [method(A, _value, optional_of(A))],
}
