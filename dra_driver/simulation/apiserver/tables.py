"""Lists as tables, the form in which `kubectl get` asks for them; and objects cut down to their metadata."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from dra_driver.api.meta import JsonObject
from dra_driver.simulation.apiserver.jsonpath import InvalidPath, find
from dra_driver.simulation.apiserver.printers import Cell, age, printed
from dra_driver.simulation.apiserver.store import Entry, TypeKey

TABLE_API_VERSION = "meta.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Column:
    """A printer column of a custom type."""

    name: str
    type: str
    json_path: str
    priority: int = 0
    description: str = ""
    format: str = ""


_AGE = Column("Age", "date", ".metadata.creationTimestamp")


def partial_metadata(obj: JsonObject) -> JsonObject:
    """PartialObjectMetadata: the object's metadata under another kind."""
    return {"kind": "PartialObjectMetadata", "apiVersion": TABLE_API_VERSION, "metadata": obj["metadata"]}


@dataclass(frozen=True, slots=True)
class TableForm:
    """How a type is shown. `custom` are the printer columns of a custom type, None for a built-in one.

    `include` is which object each row carries: `Metadata`, `Object` or `None`.
    """

    key: TypeKey
    api_version: str
    custom: Sequence[Column] | None
    include: str

    def definitions(self) -> list[JsonObject]:
        """The header."""
        if self.custom is not None:
            return [_header("Name", "string", 0)] + [
                {
                    "name": one.name,
                    "type": one.type,
                    "format": one.format,
                    "description": one.description,
                    "priority": one.priority,
                }
                for one in self.custom or (_AGE,)
            ]
        headers = []
        for column in printed(self.key)[0].split(","):
            name, _, column_type = column.rstrip("*").partition(":")
            headers.append(_header(name, column_type or "string", int(column.endswith("*"))))
        return headers

    def row(self, entry: Entry, now: datetime) -> JsonObject:
        """One object."""
        obj = entry.served_as(self.api_version)
        shown = None if self.include == "None" else obj if self.include == "Object" else partial_metadata(obj)
        return {"cells": self._cells(obj, now), "object": shown}

    def _cells(self, obj: JsonObject, now: datetime) -> list[Cell]:
        if self.custom is not None:
            return [obj["metadata"]["name"]] + [_custom_cell(one, obj, now) for one in self.custom or (_AGE,)]
        return printed(self.key)[1](obj, now)

    def table(
        self, entries: Sequence[Entry], metadata: JsonObject, now: datetime, *, header: bool = True
    ) -> JsonObject:
        """The Table; without the header in all but the first event of a watch."""
        return {
            "kind": "Table",
            "apiVersion": TABLE_API_VERSION,
            "metadata": metadata,
            "columnDefinitions": self.definitions() if header else None,
            "rows": [self.row(entry, now) for entry in entries],
        }


def _header(name: str, column_type: str, priority: int) -> JsonObject:
    form = "name" if name == "Name" else ""
    return {"name": name, "type": column_type, "format": form, "description": "", "priority": priority}


def _custom_cell(column: Column, obj: JsonObject, now: datetime) -> Cell:
    try:
        values = find(column.json_path, obj)
    except InvalidPath:
        return None
    if not values or values[0] is None:
        return None
    value = values[0]
    if column.type == "date":
        return _since(value, now)
    if column.type == "integer":
        return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    if column.type == "boolean":
        return value if isinstance(value, bool) else None
    if column.type == "number":
        return value if isinstance(value, int | float) else None
    return value if isinstance(value, str) else _as_text(value)


def _since(value: object, now: datetime) -> str:
    try:
        return age(str(value), now)
    except ValueError:
        return "<invalid>"


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ",".join(f'"{item}"' if isinstance(item, str) else str(item) for item in value) + "]"
    return str(value)
