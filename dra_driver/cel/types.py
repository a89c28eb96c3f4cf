"""Types of expressions and how they fit.

`DYN` is "known only when evaluated": it fits everything, and what it turns out to be is looked at during evaluation.
`ANY`, which device attributes have, is the same but for two things: it cannot be looped over, and a selector's result
may be ANY where it may not be DYN. Types named by one capital letter are variables of a function's signature.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dra_driver.cel.values import (
    Address,
    Duration,
    Empty,
    NamedFormat,
    Optional,
    Prefix,
    Timestamp,
    TypeValue,
    Uint,
    Url,
)
from dra_driver.quantity import Quantity, Version


@dataclass(frozen=True, slots=True)
class Type:
    name: str
    parameters: tuple["Type", ...] = ()

    def __str__(self) -> str:
        inner = ", ".join(map(str, self.parameters))
        return f"{self.name}({inner})" if inner else self.name

    @property
    def is_variable(self) -> bool:
        return len(self.name) == 1


DYN = Type("dyn")
ANY = Type("any")
FREE = Type("free")
"""Of what is in an empty list or optional: it becomes what others make of it, and is DYN when nobody does."""
BOOL = Type("bool")
INT = Type("int")
UINT = Type("uint")
DOUBLE = Type("double")
STRING = Type("string")
BYTES = Type("bytes")
NULL = Type("null_type")
QUANTITY = Type("quantity")
SEMVER = Type("semver")
DURATION = Type("duration")
TIMESTAMP = Type("timestamp")
TYPE = Type("type")
IP = Type("net.IP")
CIDR = Type("net.CIDR")
URL = Type("kubernetes.URL")
FORMAT = Type("kubernetes.NamedFormat")
EMPTY = Type("google.protobuf.Empty")
A, B = Type("A"), Type("B")

_DYNAMIC = frozenset({"dyn", "any", "free"})
_NULLABLE = frozenset(
    {"quantity", "semver", "optional_type", "duration", "timestamp", "wrapper"}
    | {kind.name for kind in (IP, CIDR, URL, FORMAT, EMPTY)}
)
"""Types whose values may be compared with null: it fits wherever they are expected, and equals none of them."""


def is_dynamic(kind: Type) -> bool:
    """Whether only the evaluation shows what type it is."""
    return kind.name in _DYNAMIC


def list_of(item: Type) -> Type:
    return Type("list", (item,))


def map_of(key: Type, value: Type) -> Type:
    return Type("map", (key, value))


def optional_of(value: Type) -> Type:
    return Type("optional_type", (value,))


def wrapper_of(value: Type) -> Type:
    """Of a message such as `google.protobuf.Int64Value{}`: a value that may be compared with null."""
    return Type("wrapper", (value,))


def unwrapped(kind: Type) -> Type:
    return kind.parameters[0] if kind.name == "wrapper" else kind


_NAMES: Mapping[type, str] = {
    bool: "bool", int: "int", Uint: "uint", float: "double", str: "string", bytes: "bytes", type(None): "null_type",
    tuple: "list", dict: "map", Optional: "optional_type", Quantity: "quantity", Version: "semver",
    Duration: "duration", Timestamp: "timestamp", TypeValue: "type", Address: "net.IP", Prefix: "net.CIDR",
    Url: "kubernetes.URL", NamedFormat: "kubernetes.NamedFormat", Empty: EMPTY.name,
}  # fmt: skip

_FULL_NAMES = {
    "duration": "google.protobuf.Duration", "timestamp": "google.protobuf.Timestamp",
    "quantity": "kubernetes.Quantity", "semver": "kubernetes.Semver",
}  # fmt: skip
_NAMED = (
    "bool", "bytes", "double", "duration", "int", "list", "map", "null_type", "optional_type", "string", "timestamp",
    "type", "uint", "net.IP", "net.CIDR", "google.protobuf.Empty",
)  # fmt: skip
TYPE_NAMES: Mapping[str, TypeValue] = {
    _FULL_NAMES.get(name, name): TypeValue(_FULL_NAMES.get(name, name)) for name in _NAMED
}
"""Types that an expression can name, as in `type(x) == int`."""


def type_name(value: object) -> str:
    """The CEL name of a value's type, without parameters."""
    name = _NAMES.get(type(value))
    if name is None:
        name = "map" if isinstance(value, Mapping) else type(value).__name__
    return name


def type_value(value: object) -> TypeValue:
    """The value's type as a value."""
    name = type_name(value)
    return TypeValue(_FULL_NAMES.get(name, name))


def fits(wanted: Type, given: Type, variables: dict[str, Type]) -> bool:
    """Whether a value of type `given` may stand where `wanted` is declared; binds the variables of `wanted`."""
    if wanted.is_variable:
        bound = variables.get(wanted.name)
        if bound is None or is_dynamic(bound):
            variables[wanted.name] = given
            return True
        return fits(bound, given, variables)
    if is_dynamic(wanted) or is_dynamic(given) or (given == NULL and wanted.name in _NULLABLE):
        return True
    if wanted == NULL and given.name in _NULLABLE:
        return True
    wanted, given = unwrapped(wanted), unwrapped(given)
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
    for one in (right, left):
        if is_dynamic(one):
            return one
    if not fits(left, right, {}):
        return None
    if left.name != right.name or left.name == "wrapper":
        return right if left == NULL else left
    pairs = zip(left.parameters, right.parameters, strict=True)
    return Type(left.name, tuple(joined(own, other) or DYN for own, other in pairs))


def type_of_constant(value: object) -> Type:
    """The type of a literal that is neither list nor map."""
    return Type(type_name(value))
