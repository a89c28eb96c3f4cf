"""Names and types of fields, by the tables that the simulated API server decodes with.

`clean` reports what is wrong and answers with what is left when that is taken away: an object whose fields have the
types that they should have, so that the other checks need not look again.
"""

from collections.abc import Mapping
from datetime import datetime

from dra_driver.api.meta import JsonObject
from dra_driver.apirules.schema import Schema
from dra_driver.checking import codes
from dra_driver.checking.findings import CheckReport
from dra_driver.checking.selectors import fix_of
from dra_driver.phrases import listed, meant, shown
from dra_driver.quantity import Quantity

_QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
_TIMES = ("io.k8s.apimachinery.pkg.apis.meta.v1.Time", "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime")
_TYPES: Mapping[str, str] = {
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a map",
}
_LIMITS = {"int32": 2**31, "int64": 2**63}
_LATER: Mapping[str, tuple[int, str]] = {
    "derivedAttributes": (37, "DRADerivedAttributes"),
    "partitionTypeAttribute": (37, "DRAPartitionableDevicesType"),
    "skipNodeOperations": (37, "DRAOptionalNodeOperations"),
    "compatibilityGroups": (37, "DRADeviceCompatibilityGroups"),
    "nodeAllocatableResources": (37, "DRANodeAllocatableResources"),
}
"""Fields of resource.k8s.io that are younger than our tables: since when, and by which gate, which is off."""


class Cleaner:
    """For objects that go to a server of version 1.`minor`."""

    def __init__(self, report: CheckReport, minor: int) -> None:
        self._report = report
        self._minor = minor

    def clean(self, obj: JsonObject, schema: Schema) -> JsonObject:
        return self._object(obj, schema, "")

    def _value(self, value: object, schema: Schema, path: str) -> object:
        """None when there is nothing, or it is wrong."""
        if schema.definition == _QUANTITY:
            return self._quantity(value, path)
        if schema.definition == _INT_OR_STRING:
            return self._typed(value, isinstance(value, int | str) and not isinstance(value, bool), path, "a number")
        if schema.opaque and schema.type == "":
            return value
        if schema.type == "object":
            if not isinstance(value, dict):
                return self._typed(value, False, path, _TYPES["object"])
            return value if schema.opaque else self._object(value, schema, path)
        if schema.type == "array":
            return self._list(value, schema, path)
        return self._scalar(value, schema, path)

    def _object(self, value: JsonObject, schema: Schema, path: str) -> JsonObject:
        result: JsonObject = {}
        misspelt: set[str] = set()
        for name, item in value.items():
            where = _below(path, name, is_map=not schema.properties)
            child = schema.child(name)
            if child is None:
                misspelt.add(self._unknown(name, schema, where))
            elif item is not None and (cleaned := self._value(item, child, where)) is not None:
                result[name] = cleaned
        for name in schema.raw.get("required", ()):
            if value.get(name) is None and name not in misspelt:
                self._report.find(codes.MISSING_FIELD, _below(path, name), f"`{name}` is missing")
        return result

    def _unknown(self, name: str, schema: Schema, where: str) -> str:
        """The field that was probably meant; empty when that cannot be guessed."""
        later = _LATER.get(name)
        if later is not None and "resource" in (schema.definition or ""):
            since, gate = later
            if self._minor < since:
                self._report.find(
                    codes.TOO_NEW, where, f"`{name}` came with Kubernetes 1.{since}; this is for 1.{self._minor}"
                )
            else:
                message = f"Kubernetes 1.{self._minor} drops `{name}` unless the gate {gate} is switched on"
                self._report.find(codes.NEEDS_GATE, where, message)
            return ""
        known = tuple(schema.properties)
        guess = meant(name, known) or _elsewhere(name, schema)
        message = f"there is no field `{name}` here"
        message += guess or (f"; there is {listed(known)}" if len(known) <= 12 else "")
        self._report.find(codes.UNKNOWN_FIELD, where, message, fix=fix_of(guess))
        return guess.split("`")[1] if guess else ""

    def _list(self, value: object, schema: Schema, path: str) -> object:
        if not isinstance(value, list):
            return self._typed(value, False, path, "a list, each entry with `- ` before it")
        if schema.items is None:
            return value
        cleaned_items = []
        for index, item in enumerate(value):
            where = f"{path}[{index}]"
            if item is None:
                self._report.find(codes.WRONG_TYPE, where, "is empty")
                continue
            cleaned = self._value(item, schema.items, where)
            # The place of an entry is part of its name, so a wrong one leaves a gap of its type behind.
            cleaned_items.append(cleaned if cleaned is not None else {} if schema.items.type == "object" else "")
        return cleaned_items

    def _scalar(self, value: object, schema: Schema, path: str) -> object:
        fits = {
            "string": isinstance(value, str),
            "integer": isinstance(value, int) and not isinstance(value, bool),
            "number": isinstance(value, int | float) and not isinstance(value, bool),
            "boolean": isinstance(value, bool),
        }.get(schema.type, True)
        if schema.type == "integer" and isinstance(value, float) and value.is_integer():
            value, fits = int(value), True
        if not fits:
            return self._typed(value, False, path, _TYPES[schema.type])
        limit = _LIMITS.get(str(schema.raw.get("format", "")))
        if limit is not None and isinstance(value, int) and not -limit <= value < limit:
            self._report.find(codes.INVALID, path, f"is {value}; that is out of range")
            return None
        if schema.definition in _TIMES and not _is_time(str(value)):
            self._report.find(codes.INVALID, path, f"is {shown(value)}; must be a time like 2026-01-31T12:00:00Z")
            return None
        choices = schema.raw.get("enum")
        if isinstance(choices, list) and value not in choices:
            words = [str(choice) for choice in choices]
            guess = meant(value, words)
            message = f"is {shown(value)}; must be one of {listed(words)}{guess}"
            self._report.find(codes.INVALID, path, message, fix=fix_of(guess))
            return None
        return value

    def _quantity(self, value: object, path: str) -> object:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            return self._typed(value, False, path, "a quantity like 8Gi")
        try:
            Quantity.parse(str(value))
        except ValueError:
            self._report.find(codes.INVALID, path, f"is {shown(value)}; must be a quantity like `2`, `500m` or `8Gi`")
            return None
        return str(value)

    def _typed(self, value: object, fits: bool, path: str, wanted: str) -> object:
        if fits:
            return value
        fix = None
        if wanted == _TYPES["string"] and not isinstance(value, dict | list):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            fix = f'put it in quotes: "{text}"'
        self._report.find(codes.WRONG_TYPE, path, f"is {_kind(value)}; must be {wanted}", fix=fix)
        return None


def _kind(value: object) -> str:
    if isinstance(value, dict):
        return "a map"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return f"the string {shown(value)}"
    return f"the truth value {shown(value)}" if isinstance(value, bool) else f"the number {shown(value)}"


def _elsewhere(name: str, schema: Schema) -> str:
    """Where the field is, when it was written one level too far out."""
    for outer, child in schema.properties.items():
        if name in child.properties and outer not in ("metadata", "status"):
            return f"; did you mean `{outer}.{name}`?"
    return ""


def _below(path: str, name: str, *, is_map: bool = False) -> str:
    if is_map:
        return f"{path}[{name}]"
    return f"{path}.{name}" if path else name


def _is_time(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None and "T" in text
    except ValueError:
        return False
