"""Types of expressions and how they fit.

`DYN` is "known only when evaluated": device attributes have it. It fits everything, and what it turns out to be is
looked at during evaluation. Types named by one capital letter are variables of a function's signature.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from dra_driver.cel.values import Duration, Optional, Timestamp, Uint
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
A, B = Type("A"), Type("B")

_NULLABLE = frozenset({"quantity", "semver", "optional_type", "duration", "timestamp"})
"""Types whose values may be compared with null: it fits wherever they are expected, and equals none of them."""


def list_of(item: Type) -> Type:
    return Type("list", (item,))


def map_of(key: Type, value: Type) -> Type:
    return Type("map", (key, value))


def optional_of(value: Type) -> Type:
    return Type("optional_type", (value,))


_NAMES: Mapping[type, str] = {
    bool: "bool", int: "int", Uint: "uint", float: "double", str: "string", bytes: "bytes", type(None): "null_type",
    tuple: "list", dict: "map", Optional: "optional_type", Quantity: "quantity", Version: "semver",
    Duration: "duration", Timestamp: "timestamp",
}  # fmt: skip


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
        if bound is None or bound == DYN:
            variables[wanted.name] = given
            return True
        return fits(bound, given, variables)
    if DYN in (wanted, given) or (given == NULL and wanted.name in _NULLABLE):
        return True
    if wanted == NULL and given.name in _NULLABLE:
        return True
    if wanted.name != given.name or len(wanted.parameters) != len(given.parameters):
        return False
    return all(fits(own, other, variables) for own, other in zip(wanted.parameters, given.parameters, strict=True))


def filled(signature: Type, variables: Mapping[str, Type]) -> Type:
    """The type with its variables replaced by what they were bound to; unbound ones are DYN."""
    if signature.is_variable:
        return variables.get(signature.name, DYN)
    if not signature.parameters:
        return signature
    return Type(signature.name, tuple(filled(parameter, variables) for parameter in signature.parameters))


def joined(left: Type, right: Type) -> Type | None:
    """One type for values of both, DYN where one of them is; None when there is none."""
    if DYN in (left, right):
        return DYN
    if not fits(left, right, {}):
        return None
    if left.name != right.name:
        return right if left == NULL else left
    pairs = zip(left.parameters, right.parameters, strict=True)
    return Type(left.name, tuple(joined(own, other) or DYN for own, other in pairs))


def type_of_constant(value: object) -> Type:
    """The type of a literal that is neither list nor map."""
    return Type(type_name(value))
