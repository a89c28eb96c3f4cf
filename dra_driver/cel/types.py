"""CEL values as Python values, what is equal, and the types of expressions and how they fit.

bool, str and None are themselves; int is `int` within 64 bits, double is `float`; a list is a tuple, a map is a dict;
quantities and versions are `Quantity` and `Version`; IP addresses and networks are those of `ipaddress`.

The type `DYN` is "known only when evaluated": it fits everything, and the evaluation looks at what it turns out to be.
`ANY`, which device attributes have, is the same but for two things: it cannot be looped over, and a selector's result
may be ANY where it may not be DYN. Types named by one capital letter are variables of a function's signature.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from typing import Any

from dra_driver.quantity import Quantity, Version

INT_MIN, INT_MAX = -(2**63), 2**63 - 1
_MOST_DIGITS = 40
_FAR_TOO_LARGE = int(1e40)


def decimal(text: str) -> int:
    """The number of decimal digits with or without a sign. Of one that is far too large only the magnitude counts:
    Python converts no more than 4300 digits."""
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > _MOST_DIGITS:
        return -_FAR_TOO_LARGE if text.startswith("-") else _FAR_TOO_LARGE
    return int(f"{'-' if text.startswith('-') else ''}{digits or '0'}")


def text_of_double(value: float) -> str:
    """The shortest digits that mean this number, with an exponent from a million on."""
    if value != value:
        return "NaN"
    if value in (math.inf, -math.inf):
        return "+Inf" if value > 0 else "-Inf"
    exact = Decimal(repr(value))
    power = exact.adjusted()
    if -4 <= power < 6:
        return f"{exact:f}".removesuffix(".0")
    digits = "".join(map(str, exact.as_tuple().digits)).rstrip("0")
    fraction = f".{digits[1:]}" if digits[1:] else ""
    return f"{'-' if value < 0 else ''}{digits[0]}{fraction}e{power:+03d}"


@dataclass(frozen=True, slots=True)
class Optional:
    """A value that may be absent, as `map.?key` gives it."""

    value: object = None
    present: bool = True


ABSENT = Optional(present=False)


@dataclass(frozen=True, slots=True)
class TypeValue:
    """What `type(x)` gives, and what names such as `int` mean where a value is expected."""

    name: str

    def __str__(self) -> str:
        return self.name


_NUMBERS = (int, float)
_OF_KUBERNETES = (Quantity, Version, IPv4Address, IPv6Address)


def equality(left: object, right: object) -> bool | None:
    """CEL's `==`: numbers by value across their types, else values of different types differ.

    None for a value of one of Kubernetes' own types on the left of something else: for Kubernetes that is an error ("no
    such overload"), while the same two the other way round can be compared. In lists and maps it counts as equal.
    Source: cel-go's Equal of lists, maps and optionals; Equal of Quantity and Semver in k8s.io/apiserver.
    """
    if left is None or right is None:
        return left is right
    kind = type(left)
    if kind in _NUMBERS or type(right) in _NUMBERS:
        return _equal_numbers(left, right) if kind in _NUMBERS and type(right) in _NUMBERS else _unlike(left, right)
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return _equal_maps(left, right)
    if kind is not type(right):
        return _unlike(left, right)
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


def _unlike(left: object, right: object) -> bool | None:
    """Of a value and one of another type."""
    return None if isinstance(left, _OF_KUBERNETES) and type_name(left) != type_name(right) else False


def _equal_maps(left: Mapping[object, object], right: Mapping[object, object]) -> bool:
    if len(left) != len(right):
        return False
    pairs = ((value, find(right, key)) for key, value in left.items())
    return all(other.present and equality(value, other.value) is not False for value, other in pairs)


def find(entries: Mapping[Any, object], key: object) -> Optional:
    """The entry of a map, also one that a map has without containing it, as `device.attributes` has every domain."""
    try:
        return Optional(entries[key])
    except (KeyError, TypeError):
        return ABSENT


@dataclass(frozen=True, slots=True)
class Type:
    name: str
    parameters: tuple["Type", ...] = ()
    is_wrapper: bool = field(default=False, compare=False)
    """Of `google.protobuf.Int64Value{…}`: the type of its value, but null may stand beside it."""

    def __str__(self) -> str:
        inner = ", ".join(map(str, self.parameters))
        text = f"{self.name}({inner})" if inner else self.name
        return f"wrapper({text})" if self.is_wrapper else text

    @property
    def is_variable(self) -> bool:
        return len(self.name) == 1

    @property
    def is_nullable(self) -> bool:
        return self.is_wrapper or self.name in _NULLABLE


DYN = Type("dyn")
ANY = Type("any")
FREE = Type("free")
"""Of what is in an empty list or optional: it becomes what its use makes of it, else DYN."""
BOOL = Type("bool")
INT = Type("int")
DOUBLE = Type("double")
STRING = Type("string")
NULL = Type("null_type")
QUANTITY = Type("quantity")
SEMVER = Type("semver")
IP = Type("net.IP")
CIDR = Type("net.CIDR")
A, B = Type("A"), Type("B")

WRAPPERS: Mapping[str, Type] = {
    f"google.protobuf.{name}Value": Type(kind.name, is_wrapper=True)
    for name, kind in {
        "Bool": BOOL, "Double": DOUBLE, "Float": DOUBLE, "Int32": INT, "Int64": INT, "String": STRING,
    }.items()
}  # fmt: skip
"""Messages whose literals are read, as in `google.protobuf.Int64Value{value: 3}`, and the types of their values."""

_DYNAMIC = frozenset({"dyn", "any", "free"})
_NULLABLE = frozenset({"quantity", "semver", "optional_type", IP.name, CIDR.name})
"""Types whose values may be compared with null: it fits wherever they are expected, and equals none of them."""


def is_dynamic(kind: Type) -> bool:
    """Whether only the evaluation shows what type it is."""
    return kind.name in _DYNAMIC


def list_of(item: Type) -> Type:
    return Type("list", (item,))


def map_of(key: Type, value: Type) -> Type:
    return Type("map", (key, value))


def type_of(value: Type) -> Type:
    """The type of the value that names the type `value`."""
    return Type("type", (value,))


def optional_of(value: Type) -> Type:
    return Type("optional_type", (value,))


_NAMES: Mapping[type, str] = {
    bool: "bool", int: "int", float: "double", str: "string", type(None): "null_type", tuple: "list", dict: "map",
    Optional: "optional_type", Quantity: "quantity", Version: "semver", IPv4Address: "net.IP",
    IPv6Address: "net.IP", IPv4Interface: "net.CIDR", IPv6Interface: "net.CIDR", TypeValue: "type",
}  # fmt: skip
NAMES_OF_TYPES = frozenset({
    "bool", "bytes", "double", "int", "list", "map", "null_type", "optional_type", "string", "type", "uint"
})  # fmt: skip
"""Those that an expression may use as values. An API server has longer ones, too, such as `net.IP`."""


def type_name(value: object) -> str:
    """The CEL name of a value's type, without parameters."""
    name = _NAMES.get(type(value))
    if name is None:
        name = "map" if isinstance(value, Mapping) else type(value).__name__
    return name


def fits(wanted: Type, given: Type, variables: dict[str, Type]) -> bool:
    """Whether a value of type `given` may stand where `wanted` is declared; binds the variables of `wanted`."""
    if wanted.is_variable:
        bound = variables.get(wanted.name)
        if bound is None or is_dynamic(bound):
            variables[wanted.name] = given
            return True
        return fits(bound, given, variables)
    if is_dynamic(wanted) or is_dynamic(given) or (given == NULL and wanted.is_nullable):
        return True
    if wanted == NULL and given.is_nullable:
        return True
    if wanted.name == given.name == "type":
        return True
    if wanted.name != given.name or len(wanted.parameters) != len(given.parameters):
        return False
    return all(fits(own, other, variables) for own, other in zip(wanted.parameters, given.parameters, strict=True))


def filled(signature: Type, variables: Mapping[str, Type]) -> Type:
    """The type with its variables replaced by what they were bound to; unbound ones are FREE."""
    if signature.is_variable:
        return variables.get(signature.name, FREE)
    if not signature.parameters:
        return signature
    return Type(signature.name, tuple(filled(parameter, variables) for parameter in signature.parameters))


def joined(left: Type, right: Type) -> Type | None:
    """One type for values of both, DYN or ANY where one of them is, of the two the later; None when there is none."""
    if FREE in (left, right):
        return right if left == FREE else left
    for type_ in (right, left):
        if is_dynamic(type_):
            return type_
    if not fits(left, right, {}):
        return None
    if left.name == right.name == "type":
        return right
    if left.name != right.name or not left.parameters:
        return left
    pairs = zip(left.parameters, right.parameters, strict=True)
    return Type(left.name, tuple(joined(own, other) or DYN for own, other in pairs))
