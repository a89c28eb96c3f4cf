"""A request body becomes an object of its type: types checked, unknown fields dropped, static defaults filled in.

The result is a new object that shares nothing with the body. For built-in types this does what decoding into typed
structs does on a real server; for custom types it is pruning and defaulting, and types are checked later.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from dra_driver.api.meta import JsonObject, wire_time
from dra_driver.apirules.schema import Schema, metadata_schema
from dra_driver.apirules.status import bad_request
from dra_driver.quantity import canonical_quantity

_EMBEDDED = ("apiVersion", "kind", "metadata")


@dataclass
class Decoder:
    """`strict_types` refuses wrong JSON types with 400 (built-in types). `unknown` collects paths of dropped fields."""

    kind: str
    strict_types: bool
    as_written: bool = False
    """Keep empty values and add no defaults: for configurations that are applied."""
    unknown: list[str] = field(default_factory=list)

    def decode(self, value: JsonObject, schema: Schema) -> JsonObject:
        """The whole object."""
        return self._object(value, schema, "")

    def _value(self, value: object, schema: Schema, path: str) -> object:
        if value is None:
            return None
        if schema.opaque:
            return self._copied(value, schema, path)
        if isinstance(value, dict) and schema.type == "object":
            return self._object(value, schema, path)
        if isinstance(value, list) and schema.type == "array":
            items = schema.items
            if items is None:
                return copy_json(value)
            return [self._item(item, items, f"{path}[{index}]") for index, item in enumerate(value)]
        return self._scalar(value, schema, path)

    def _item(self, value: object, schema: Schema, path: str) -> object:
        """Typed structs take null for the zero value."""
        if value is None and self.strict_types and not self.as_written:
            return self._object({}, schema, path) if schema.properties else _ZEROS.get(schema.type)
        return self._value(value, schema, path)

    def _copied(self, value: object, schema: Schema, path: str) -> object:
        """Free content. A custom type's object without fields keeps none unless it says so."""
        if (
            self.strict_types
            or schema.preserves_unknown
            or schema.type == ""
            or schema.definition is not None
            or not isinstance(value, dict)
        ):
            return copy_json(value)
        known = {name: copy_json(value[name]) for name in _EMBEDDED if schema.embedded and name in value}
        self.unknown.extend(f"{path}.{name}" for name in value if name not in known)
        return known

    def _object(self, value: JsonObject, schema: Schema, path: str) -> JsonObject:
        if schema.definition is not None and not self.strict_types:
            # Metadata of custom objects is typed like everybody's.
            inner = Decoder(self.kind, True, self.as_written, self.unknown)
            return inner._object(value, schema, path)
        result: JsonObject = {}
        for name, item in value.items():
            where = f"{path}.{name}" if path else name
            child = schema.child(name)
            if child is None and schema.embedded and name in _EMBEDDED:
                child = metadata_schema() if name == "metadata" else Schema({"type": "string"})
            if child is None:
                if schema.preserves_unknown:
                    result[name] = copy_json(item)
                else:
                    self.unknown.append(where)
                continue
            self._keep(result, name, item, child, where, optional=name not in schema.raw.get("required", ()))
        if not self.as_written:
            self._fill_defaults(result, schema)
        return result

    def _keep(self, result: JsonObject, name: str, item: object, child: Schema, path: str, *, optional: bool) -> None:
        if item is None:
            if not self.strict_types and child.raw.get("nullable"):
                result[name] = None
            return
        decoded = self._value(item, child, path)
        # Typed structs leave out empty lists and maps of optional fields.
        container = child.type == "array" or child.additional is not None
        if self.strict_types and not self.as_written and optional and container and decoded in ([], {}):
            return
        result[name] = decoded

    def _fill_defaults(self, result: JsonObject, schema: Schema) -> None:
        for name, child in schema.properties.items():
            if name in result or "default" not in child.raw:
                continue
            default = copy_json(child.raw["default"])
            if isinstance(default, dict) and child.type == "object":
                default = self._object(default, child, "")
            result[name] = default

    def _scalar(self, value: object, schema: Schema, path: str) -> object:
        if schema.definition is not None and (canonical := _CANONICAL.get(schema.definition)) is not None:
            return self._canonical(value, canonical, path)
        if not self.strict_types or schema.type in _FITS.get(json_type(value), ()):
            return copy_json(value)
        if schema.type == "integer" and isinstance(value, float) and value.is_integer():
            return int(value)
        raise bad_request(
            f"{self.kind} in version cannot be handled as a {self.kind}: json: cannot unmarshal {_go_type(value)} "
            f"into Go struct field {path} of type {_GO_TYPES.get(schema.type, schema.type)}"
        )

    def _canonical(self, value: object, canonical: Callable[[str], str], path: str) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise bad_request(f"{self.kind} cannot be handled: {path} must be a string, not {_go_type(value)}")
        try:
            return canonical(str(value))
        except ValueError as error:
            raise bad_request(f"{self.kind} cannot be handled as a {self.kind}: {path}: {error}") from error


def _time(text: str) -> str:
    return wire_time(_moment(text))


def _micro_time(text: str) -> str:
    if _MICRO_TIME.fullmatch(text) is None:
        raise ValueError(f'parsing time "{text}": exactly six digits of a second are required')
    return _moment(text).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if "T" not in text or moment.tzinfo is None:
        raise ValueError(f'parsing time "{text}": not in the form of RFC 3339')
    return moment.astimezone(UTC)


_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
_META = "io.k8s.apimachinery.pkg.apis.meta.v1"
_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_CANONICAL: dict[str, Callable[[str], str]] = {
    _QUANTITY: canonical_quantity,
    f"{_META}.Time": _time,
    f"{_META}.MicroTime": _micro_time,
}

_ZEROS: dict[str, object] = {"string": "", "integer": 0, "boolean": False}
_GO_TYPES = {"integer": "int64", "boolean": "bool", "number": "float64", "array": "list", "object": "map"}
_GO_VALUES = {"boolean": "bool", "integer": "number"}
"""What Go calls a value of JSON, where it is another word."""
_FITS = {
    "boolean": ("boolean",),
    "integer": ("integer", "number", ""),
    "number": ("number", ""),
    "string": ("string", ""),
}
"""Types of fields that a value of a type fits in."""


def json_type(value: object) -> str:
    """In the words of JSON Schema."""
    names = {bool: "boolean", dict: "object", list: "array", str: "string", int: "integer", float: "number"}
    return names.get(type(value), "null")


def _go_type(value: object) -> str:
    return _GO_VALUES.get(json_type(value), json_type(value))


def copy_json(value: Any) -> Any:
    """A deep copy of plain JSON data; several times faster than copy.deepcopy."""
    if isinstance(value, dict):
        return {key: copy_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copy_json(item) for item in value]
    return value
