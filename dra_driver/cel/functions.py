"""The functions and operators that expressions can use: signatures, what they do, and which server knows them.

One table serves the check (which types fit) and the evaluation (which Python function runs), so the two cannot
disagree. Here are the operators and the standard functions; `library` has the others. Kubernetes declares functions
of authorizers too, but gives selectors no authorizer to call them on: they are absent on purpose.

Source: CEL language definition, standard definitions; k8s.io/apiserver environment.
"""

import math
import operator
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra_driver import kubernetes
from dra_driver.cel.library.formatting import FORMATTING
from dra_driver.cel.library.lists import INCLUDES, LISTS, OPTIONALS, SETS
from dra_driver.cel.library.network import NETWORK
from dra_driver.cel.library.quantities import QUANTITIES, VERSIONS
from dra_driver.cel.library.texts import REGEXES, STRINGS
from dra_driver.cel.overloads import Failed, Library, Overload, bounded, function, method
from dra_driver.cel.types import (
    ABSENT,
    BOOL,
    DOUBLE,
    DYN,
    INT,
    INT_MAX,
    INT_MIN,
    STRING,
    WRAPPERS,
    A,
    B,
    Optional,
    Type,
    TypeValue,
    decimal,
    equality,
    find,
    list_of,
    map_of,
    optional_of,
    text_of_double,
    type_name,
    type_of,
)

INCLUDES_SINCE = 37
"""The version whose functions are the first with `includes`."""


@dataclass(frozen=True, slots=True)
class Server:
    """`minor` is the version 1.`minor`."""

    minor: int = kubernetes.CURRENT
    consumable_capacity: bool = True
    """DRAConsumableCapacity."""
    list_attributes: bool = False
    """DRAListTypeAttributes: attributes may be lists, so they can be looped over."""
    stored: bool = True
    """Whether expressions are stored already, or read by the scheduler; False for what a user is about to create."""

    @classmethod
    def of(cls, minor: int, *, stored: bool = True, list_attributes: bool = False) -> "Server":
        """Kubernetes 1.`minor` with its default gates."""
        gates = kubernetes.FeatureGates(minor)
        return cls(minor, gates.enabled("DRAConsumableCapacity"), list_attributes, stored)

    @property
    def multiple_allocations(self) -> bool:
        """Whether `device.allowMultipleAllocations` exists."""
        return self.consumable_capacity or (self.stored and self.minor >= 34)

    @property
    def includes(self) -> bool:
        """Whether values have the function `includes`."""
        return self.list_attributes or (self.stored and self.minor >= 36) or self.known >= INCLUDES_SINCE

    @property
    def list_values(self) -> bool:
        """Whether lists that devices have can be read; from 1.37 on the gate only says whether they can be stored."""
        return self.list_attributes or self.minor >= 37

    @property
    def known(self) -> int:
        """The version whose functions can be used."""
        return self.minor if self.stored else self.minor - 1


CURRENT = Server()


def equals(left: object, right: object) -> bool:
    result = equality(left, right)
    if result is None:
        raise Failed(f"no such overload: {type_name(left)} == {type_name(right)}")
    return result


def _whole(value: int) -> int:
    if not INT_MIN <= value <= INT_MAX:
        raise Failed("integer overflow")
    return value


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


_INFINITY = re.compile(r"[+-]?inf(inity)?", re.IGNORECASE)
_MAY_BE_DOUBLE = re.compile(r"[+-]?[0-9._e+-]+|nan|[+-]?inf(inity)?", re.IGNORECASE)
_DIGITS = "[0-9a-f](_?[0-9a-f])*"
_HEXADECIMAL = re.compile(rf"[+-]?0x(_?{_DIGITS}\.?({_DIGITS})?|\.{_DIGITS})p[+-]?[0-9](_?[0-9])*", re.IGNORECASE)
"""As Go's ParseFloat reads it: the exponent is not optional."""


def _int_of_text(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise Failed(f"not an integer: {text!r}")
    return _whole(decimal(text))


def _double_of_text(text: str) -> float:
    """Not all that is a number for Python: blanks, other digits, `+nan`, numbers that are too large."""
    try:
        if _HEXADECIMAL.fullmatch(text):
            number = float.fromhex(text.replace("_", ""))
        else:
            number = float(text) if _MAY_BE_DOUBLE.fullmatch(text) else math.inf
    except (ValueError, OverflowError):
        number = math.inf
    if math.isinf(number) and not _INFINITY.fullmatch(text):
        raise Failed(f"not a number: {text!r}")
    return number


def _bool_of_text(text: str) -> bool:
    if text in ("true", "True", "TRUE", "t", "T", "1"):
        return True
    if text in ("false", "False", "FALSE", "f", "F", "0"):
        return False
    raise Failed(f"not a bool: {text!r}")


def _contains(key: object, entries: Mapping[object, object]) -> bool:
    return not isinstance(key, Mapping) and key in entries


def element(container: object, index: object) -> Optional:
    """What `[?…]` finds. A list takes any number that is whole, a map any key, and nothing else has elements."""
    if isinstance(container, Mapping):
        return find(container, index)
    if not isinstance(container, tuple):
        return ABSENT
    if not isinstance(index, int | float) or isinstance(index, bool):
        raise Failed(f"no such overload: {type_name(container)}[{type_name(index)}]")
    if index != math.trunc(index) if math.isfinite(index) else True:
        raise Failed(f"not an index: {index}")
    return Optional(container[int(index)]) if 0 <= index < len(container) else ABSENT


def _element(container: object, index: object) -> object:
    if not isinstance(container, Mapping | tuple):
        raise Failed(f"no such overload: {type_name(container)}[{type_name(index)}]")
    optional = element(container, index)
    if not optional.present:
        raise Failed(f"{'no such key' if isinstance(container, Mapping) else 'index out of bounds'}: {index}")
    return optional.value


_NUMERIC = (INT, DOUBLE)
_ORDERED = tuple((left, right) for left in _NUMERIC for right in _NUMERIC) + tuple(
    (kind, kind) for kind in (STRING, BOOL)
)


def _comparison(run: Callable[[Any, Any], bool]) -> list[Overload]:
    def of_doubles(left: Any, right: Any) -> bool:
        """Beside a double every number is one, even where 64 bits have digits that a double lacks."""
        a, b = float(left), float(right)
        if math.isnan(a) or math.isnan(b):
            raise Failed("NaN values cannot be ordered")
        return run(a, b)

    return [function(BOOL, of_doubles if DOUBLE in (left, right) else run, left, right) for left, right in _ORDERED]


_OPERATORS: Library = {
    "==": [function(BOOL, equals, A, A)],
    "!=": [function(BOOL, lambda a, b: equality(a, b) is not True, A, A)],
    "<": _comparison(operator.lt),
    "<=": _comparison(operator.le),
    ">": _comparison(operator.gt),
    ">=": _comparison(operator.ge),
    "in": [
        function(BOOL, lambda item, items: any(equality(item, own) for own in items), A, list_of(A)),
        function(BOOL, _contains, A, map_of(A, B)),
    ],
    "+": [
        function(INT, lambda a, b: _whole(a + b), INT, INT),
        function(DOUBLE, lambda a, b: a + b, DOUBLE, DOUBLE),
        function(STRING, lambda a, b: bounded(a + b), STRING, STRING),
        function(list_of(A), lambda a, b: bounded(a + b), list_of(A), list_of(A)),
    ],
    "-": [
        function(INT, lambda a, b: _whole(a - b), INT, INT),
        function(DOUBLE, lambda a, b: a - b, DOUBLE, DOUBLE),
    ],
    "*": [
        function(INT, lambda a, b: _whole(a * b), INT, INT),
        function(DOUBLE, lambda a, b: a * b, DOUBLE, DOUBLE),
    ],
    "/": [
        function(INT, lambda a, b: _whole(_quotient(a, b)), INT, INT),
        function(DOUBLE, _float_quotient, DOUBLE, DOUBLE),
    ],
    "%": [
        function(INT, _remainder, INT, INT),
    ],
    "-_": [function(INT, lambda a: _whole(-a), INT), function(DOUBLE, lambda a: -a, DOUBLE)],
    "!_": [function(BOOL, lambda a: not a, BOOL)],
    "[]": [
        function(A, _element, list_of(A), INT),
        function(B, _element, map_of(A, B), A),
    ],
    "[?]": [
        function(optional_of(A), element, list_of(A), INT),
        function(optional_of(B), element, map_of(A, B), A),
    ],
}

_STANDARD: Library = {
    "size": [
        overload
        for kind in (STRING, list_of(A), map_of(A, B))
        for overload in (function(INT, len, kind), method(INT, len, kind))
    ],
    "startsWith": [method(BOOL, str.startswith, STRING, STRING)],
    "endsWith": [method(BOOL, str.endswith, STRING, STRING)],
    "contains": [method(BOOL, lambda text, part: part in text, STRING, STRING)],
    "int": [
        function(INT, lambda value: value, INT),
        function(INT, _int_of_double, DOUBLE),
        function(INT, _int_of_text, STRING),
    ],
    "double": [
        *(function(DOUBLE, float, kind) for kind in _NUMERIC),
        function(DOUBLE, _double_of_text, STRING),
    ],
    "bool": [function(BOOL, lambda value: value, BOOL), function(BOOL, _bool_of_text, STRING)],
    "string": [
        function(STRING, lambda value: value, STRING),
        function(STRING, lambda value: "true" if value else "false", BOOL),
        function(STRING, lambda value: str(int(value)), INT),
        function(STRING, text_of_double, DOUBLE),
    ],
    "dyn": [function(DYN, lambda value: value, A)],
    "type": [function(type_of(A), lambda value: TypeValue(type_name(value)), A)],
}


def _int32(value: int) -> int:
    if not -(2**31) <= value < 2**31:
        raise Failed("integer overflow: the number does not fit in 32 bits")
    return value


def _single(value: float) -> float:
    """As a float of 32 bits."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


_NARROWED: Mapping[str, Callable[[Any], object]] = {
    "google.protobuf.Int32Value": _int32,
    "google.protobuf.FloatValue": _single,
}
_ZEROS = {BOOL: False, INT: 0, DOUBLE: 0.0, STRING: ""}


def _wrapper(name: str, kind: Type) -> list[Overload]:
    """Null stands beside the literal, but not in it."""
    zero, value = _ZEROS[kind], Type(kind.name)
    return [function(kind, lambda: zero), function(kind, _NARROWED.get(name, lambda given: given), value)]


_MESSAGES: Library = {name: _wrapper(name, kind) for name, kind in WRAPPERS.items()}


def _merged(*libraries: Mapping[str, Sequence[Overload]]) -> dict[str, tuple[Overload, ...]]:
    merged: dict[str, tuple[Overload, ...]] = {}
    for library in libraries:
        for name, overloads in library.items():
            merged[name] = (*merged.get(name, ()), *overloads)
    return merged


_ALWAYS = _merged(
    *(_OPERATORS, _STANDARD, _MESSAGES, REGEXES, LISTS, OPTIONALS),
    *(QUANTITIES, STRINGS, FORMATTING, SETS, NETWORK, VERSIONS),
)
"""What every server has that serves resource.k8s.io/v1."""
_WITH_INCLUDES = _merged(_ALWAYS, INCLUDES)


def functions_of(server: Server) -> Mapping[str, tuple[Overload, ...]]:
    """By name; operators by their sign, prefix operators with a trailing `_`."""
    return _WITH_INCLUDES if server.includes else _ALWAYS


FUNCTIONS = functions_of(CURRENT)

NOT_KNOWN = frozenset(
    {
        *("url", "isURL", "validate", "duration", "timestamp", "uint", "bytes", "quote"),
        *("sort", "sortBy", "isSorted", "reverse", "distinct", "slice", "flatten", "range", "unwrap", "unwrapOpt"),
        *("transformList", "transformMap", "transformMapEntry", "optFlatMap"),
    }
)
"""Functions and macros that an API server has and no selector of devices needs: times, unsigned numbers, bytes,
URLs, named formats (`format.dns1123Label()`), new lists and maps of others."""

LAZY_METHODS = frozenset({"or", "orValue"})
"""Methods of optionals whose argument is evaluated only when it is needed; the evaluation knows them."""
