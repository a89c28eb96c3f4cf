"""How the fields of an opaque config are described, so that decoding, encoding and the JSON schema cannot differ.

A config is a tree of blocks, and a leaf is of one of the types below. `read` turns what a person wrote into a `Tree`
that holds exactly what was written, as typed values; what is wrong is added to `problems`, each with its field path
and, where we can guess, what was meant. Null is as good as left out, as everywhere in Kubernetes. Pure.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction
from typing import Protocol

from dra_driver.api.meta import JsonObject
from dra_driver.errors import InvalidConfig
from dra_driver.names import is_uid
from dra_driver.quantity import Quantity

type Leaf = str | int | bool | tuple[tuple[str, int], ...]
type Tree = dict[str, Leaf | Tree]
"""Written values by wire name, block in block. A block that was written without fields is an empty tree."""

type Problems = list[InvalidConfig]

MEBIBYTE = 2**20
_INT64 = 2**63
_UUID = "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_QUANTITY_SCHEMA: JsonObject = {
    "anyOf": [
        {
            "type": "string",
            "pattern": r"^\+?([0-9]+\.?[0-9]*|\.[0-9]+)(Ki|Mi|Gi|Ti|Pi|Ei|[kMGTPE]|[eE]\+?[0-9]{1,3})?$",
        },
        {"type": "number", "minimum": MEBIBYTE, "exclusiveMaximum": _INT64},
    ]
}


class FieldType(Protocol):
    """What a field may hold."""

    def read(self, value: object, path: str, problems: Problems) -> Leaf | Tree | None:
        """The typed value; None when it is wrong, and `problems` says why. `value` is not None."""

    def write(self, value: Leaf | Tree) -> object:
        """The value as JSON has it."""

    def schema(self) -> JsonObject:
        """JSON schema, draft 2020-12."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some words."""

    values: tuple[str, ...]

    def read(self, value: object, path: str, problems: Problems) -> str | None:
        if isinstance(value, str) and value in self.values:
            return value
        wrong(problems, path, f"is {shown(value)}; must be one of {listed(self.values)}{meant(value, self.values)}")
        return None

    def write(self, value: Leaf | Tree) -> object:
        return value

    def schema(self) -> JsonObject:
        return {"type": "string", "enum": list(self.values)}


@dataclass(frozen=True, slots=True)
class Uid:
    """The UID of an object of the cluster."""

    def read(self, value: object, path: str, problems: Problems) -> str | None:
        if isinstance(value, str) and is_uid(value):
            return value
        wrong(problems, path, f"is {shown(value)}; must be the UID of an object")
        return None

    def write(self, value: Leaf | Tree) -> object:
        return value

    def schema(self) -> JsonObject:
        return {"type": "string", "minLength": 1, "maxLength": 128}


@dataclass(frozen=True, slots=True)
class Integer:
    lowest: int
    highest: int

    def read(self, value: object, path: str, problems: Problems) -> int | None:
        if isinstance(value, int) and not isinstance(value, bool) and self.lowest <= value <= self.highest:
            return value
        quoted = ", without quotes" if isinstance(value, str) and value.isdecimal() else ""
        wrong(problems, path, f"is {shown(value)}; must be a whole number from {self.lowest} to {self.highest}{quoted}")
        return None

    def write(self, value: Leaf | Tree) -> object:
        return value

    def schema(self) -> JsonObject:
        return {"type": "integer", "minimum": self.lowest, "maximum": self.highest}


@dataclass(frozen=True, slots=True)
class Flag:
    def read(self, value: object, path: str, problems: Problems) -> bool | None:
        if isinstance(value, bool):
            return value
        wrong(problems, path, f"is {shown(value)}; must be true or false")
        return None

    def write(self, value: Leaf | Tree) -> object:
        return value

    def schema(self) -> JsonObject:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes, written as a quantity. Rounded down to whole MiB, so that a limit is never more than what was written."""

    def read(self, value: object, path: str, problems: Problems) -> int | None:
        amount = _amount(value)
        if amount is None:
            wrong(problems, path, f"is {shown(value)}; must be a quantity of memory like `8Gi`")
            return None
        if amount < MEBIBYTE:
            wrong(problems, path, f"is {shown(value)}; must be at least `1Mi`{_forgotten_unit(value)}")
            return None
        if amount >= _INT64:
            wrong(problems, path, f"is {shown(value)}; must be less than `8Ei`")
            return None
        return int(amount // MEBIBYTE) * MEBIBYTE

    def write(self, value: Leaf | Tree) -> object:
        assert isinstance(value, int)
        return str(Quantity.of_bytes(value))

    def schema(self) -> JsonObject:
        return _QUANTITY_SCHEMA


def _amount(value: object) -> Fraction | None:
    """The API server takes quantities as numbers, too."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        return Quantity.parse(str(value)).value
    except ValueError:
        return None


def _forgotten_unit(value: object) -> str:
    bare = str(value)
    return f", and a number without a unit is in bytes (`{bare}Gi`?)" if bare.isdecimal() and bare != "0" else ""


@dataclass(frozen=True, slots=True)
class MemoryByDevice:
    """Bytes by device: its index among the devices that the config is for, its UUID, or `*` for all."""

    uuid_prefix: str
    """`GPU` or `MIG`."""

    def read(self, value: object, path: str, problems: Problems) -> tuple[tuple[str, int], ...] | None:
        if not isinstance(value, Mapping):
            wrong(problems, path, f"is {shown(value)}; must be a map from devices to quantities, like `{{'0': 8Gi}}`")
            return None
        found: dict[str, int] = {}
        for written, amount in value.items():
            place = f"{path}[{written}]"
            device = self._device(written, place, problems)
            memory = Memory().read(amount, place, problems)
            if device in found:
                wrong(problems, place, "is given twice")
            if device is not None and memory is not None:
                found[device] = memory
        return tuple(sorted(found.items()))

    def _device(self, written: object, place: str, problems: Problems) -> str | None:
        key = str(written)
        if key == "*" or re.fullmatch(r"0|[1-9][0-9]{0,3}", key, re.ASCII):
            return key
        prefix, _, digits = key.partition("-")
        if prefix == self.uuid_prefix and re.fullmatch(_UUID, digits):
            return f"{self.uuid_prefix}-{digits.lower()}"
        wrong(
            problems, place, f"names no device; must be an index like `0`, a UUID like `{self.uuid_prefix}-…`, or `*`"
        )
        return None

    def write(self, value: Leaf | Tree) -> object:
        assert isinstance(value, tuple)
        return {device: Memory().write(amount) for device, amount in value}

    def schema(self) -> JsonObject:
        names = rf"^(\*|0|[1-9][0-9]{{0,3}}|{self.uuid_prefix}-{_UUID})$"
        return {"type": "object", "propertyNames": {"pattern": names}, "additionalProperties": _QUANTITY_SCHEMA}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a block. `says` is for the schema and the docs: what it does, its unit, and what leaving it out
    means. `only_with` is the value of the block's first field without which it has no meaning."""

    name: str
    type: FieldType
    says: str
    default: str | int | bool | None = None
    only_with: str | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """An object with these fields and no others."""

    fields: tuple[Field, ...]

    def read(self, value: object, path: str, problems: Problems) -> Tree | None:
        if not isinstance(value, Mapping):
            wrong(problems, path, f"is {shown(value)}; must be an object with {listed(self._names)}")
            return None
        tree: Tree = {}
        for field in self.fields:
            written = value.get(field.name)
            read = None if written is None else field.type.read(written, f"{path}.{field.name}", problems)
            if read is not None:
                tree[field.name] = read
        for name in sorted(str(name) for name in value if name not in self._names):
            wrong(problems, f"{path}.{name}", f"unknown field; {self._allowed}{self._meant(name)}")
        return tree

    def write(self, value: Leaf | Tree) -> object:
        assert isinstance(value, dict)
        return {field.name: field.type.write(value[field.name]) for field in self.fields if field.name in value}

    def schema(self) -> JsonObject:
        selector, *_ = self.fields
        properties = {field.name: _described(field) for field in self.fields}
        rules = [
            {
                "if": {"properties": {selector.name: {"const": other}}, "required": [selector.name]},
                "then": {"properties": {field.name: {"type": "null"}}},
            }
            for field in self.fields
            if field.only_with is not None and isinstance(selector.type, Choice)
            for other in selector.type.values
            if other != field.only_with
        ]
        ruled = {"allOf": rules} if rules else {}
        return {"type": "object", "additionalProperties": False, "properties": properties, **ruled}

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.fields)

    @property
    def _allowed(self) -> str:
        return f"{'must be one of' if len(self.fields) > 1 else 'the only one is'} {listed(self._names)}"

    def _meant(self, name: str) -> str:
        return meant(name, self._names) or self._belongs_to(name)

    def _belongs_to(self, name: str) -> str:
        """A field that is right but was written too far out, which indentation does."""
        for field in self.fields:
            place = _place_in(field, name)
            if place is not None:
                return f"; did you mean `{place}`?"
        return ""


def _place_in(field: Field, name: str) -> str | None:
    if not isinstance(field.type, Block):
        return None
    for inner in field.type.fields:
        place = inner.name if inner.name == name else _place_in(inner, name)
        if place is not None:
            return f"{field.name}.{place}"
    return None


def _described(field: Field) -> JsonObject:
    schema = field.type.schema()
    if "type" in schema:
        schema = {**schema, "type": [schema["type"], "null"]}
    if "enum" in schema:
        schema = {**schema, "enum": [*schema["enum"], None]}
    if "anyOf" in schema:
        schema = {"anyOf": [*schema["anyOf"], {"type": "null"}]}
    default = {} if field.default is None else {"default": field.default}
    return {"description": field.says, **schema, **default}


def wrong(problems: Problems, path: str, message: str) -> None:
    problems.append(InvalidConfig(message, field=path))


def together(problems: Problems) -> InvalidConfig:
    """All of them as one error, with the field of the first; `problems` is not empty."""
    first, *others = problems
    return InvalidConfig(
        "; ".join([first.message, *(str(other) for other in others)]),
        field=first.field,
        problems=[text for one in problems for text in (one.problems or (str(one),))],
    )


def listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def shown(value: object) -> str:
    """A user's value in an error of one line: short, and absent is said so."""
    if value is None:
        return "missing"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def meant(value: object, known: Iterable[str]) -> str:
    """`; did you mean ...?` where one of `known` is near to what was written, else nothing."""
    if not isinstance(value, str) or len(value) > 80:
        return ""
    plain = {_plain(name): name for name in known}
    close = get_close_matches(_plain(value), plain, cutoff=0.7)
    # People forget the middle or the end of a word rather than its beginning.
    close.sort(key=lambda name: not name.startswith(_plain(value)[:3]))
    return f"; did you mean `{plain[close[0]]}`?" if close else ""


def _plain(text: str) -> str:
    return re.sub(r"[-_ ]", "", text).lower()
