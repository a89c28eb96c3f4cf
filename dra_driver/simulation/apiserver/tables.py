"""The form in which a client wants objects: as they are, as tables, or only their metadata (the Accept header).

`kubectl get` asks for tables. Columns of built-in types are in `printers.py`; those of custom types are JSONPaths of
fields, and of the item of a list that has a field with a value: `.status.conditions[?(@.type=='Ready')].status`.
"""

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import chain, repeat
from typing import Any

from dra_driver.api.meta import JsonObject
from dra_driver.simulation.apiserver import protobuf
from dra_driver.simulation.apiserver.lists import Page, list_document, list_metadata
from dra_driver.simulation.apiserver.printers import Cell, age, printed
from dra_driver.simulation.apiserver.requests import RequestTarget
from dra_driver.simulation.apiserver.resource_types import Column
from dra_driver.simulation.apiserver.store import StoredVersion, encode

_API_VERSION = "meta.k8s.io/v1"
_AGE = Column("Age", "date", ".metadata.creationTimestamp")


class Representation:
    """One client's wish for one type. `include` is the object of each row of a table: `Metadata`, `Object` or `None`;
    `now` is for the ages in tables."""

    def __init__(self, target: RequestTarget, accept: str, include: str, now: Callable[[], datetime]) -> None:
        self._target = target
        self._kind = target.kind
        self._accept = accept
        self._include = include or "Metadata"
        self._now = now
        self._form = _wanted_form(accept)

    def object(self, entry: StoredVersion, *, header: bool = True) -> bytes:
        """One object."""
        if self._form == "Table":
            return self._table([entry], {"resourceVersion": entry.obj["metadata"]["resourceVersion"]}, header=header)
        if self._form.startswith("PartialObjectMetadata"):
            return encode(_partial_metadata(entry.obj))
        return entry.encoded(self._kind.resource.api_version)

    def protobuf(self, entry: StoredVersion) -> bytes | None:
        """One object for a client that prefers it so; None when it does not, or there is no such form of the type."""
        if not self._accept.startswith(protobuf.CONTENT_TYPE):
            return None
        return protobuf.encode(entry.served_as(self._kind.resource.api_version))

    def page(self, page: Page) -> bytes:
        """A list or a page of one."""
        metadata = list_metadata(page)
        if self._form == "Table":
            return self._table(page.entries, metadata)
        if self._form.startswith("PartialObjectMetadata"):
            items = [_partial_metadata(entry.obj) for entry in page.entries]
            head = {"kind": "PartialObjectMetadataList", "apiVersion": _API_VERSION}
            return encode({**head, "metadata": metadata, "items": items})
        return list_document(self._target, page)

    def watch_encoder(self) -> Callable[[StoredVersion], bytes]:
        """For the events of one stream: of tables, only the first has a header."""
        headers = chain([True], repeat(False))
        return lambda entry: self.object(entry, header=next(headers))

    def _table(self, entries: Sequence[StoredVersion], metadata: JsonObject, *, header: bool = True) -> bytes:
        return encode(
            {
                "kind": "Table",
                "apiVersion": _API_VERSION,
                "metadata": metadata,
                "columnDefinitions": self._header() if header else None,
                "rows": [self._row(entry, self._now()) for entry in entries],
            }
        )

    def _header(self) -> list[JsonObject]:
        if self._kind.custom:
            columns = [Column("Name", "string", "", format="name"), *(self._kind.columns or (_AGE,))]
        else:
            parts = [name.partition(":") for name in printed(self._kind.key)[0].split(",")]
            columns = [
                Column(
                    name.rstrip("*"), kind or "string", "", int("*" in name), format="name" if name == "Name" else ""
                )
                for name, _, kind in parts
            ]
        return [
            {name: getattr(column, name) for name in ("name", "type", "format", "description", "priority")}
            for column in columns
        ]

    def _row(self, entry: StoredVersion, now: datetime) -> JsonObject:
        obj = entry.served_as(self._kind.resource.api_version)
        if self._kind.custom:
            columns = self._kind.columns or (_AGE,)
            cells = [obj["metadata"]["name"], *(_custom_cell(column, obj, now) for column in columns)]
        else:
            cells = printed(self._kind.key)[1](obj, now)
        shown = {"None": None, "Object": obj}.get(self._include, _partial_metadata(obj))
        return {"cells": cells, "object": shown}


def _wanted_form(accept: str) -> str:
    """The first acceptable entry of an Accept header that names a form we have; empty for plain objects."""
    for entry in accept.split(","):
        media, *parameters = (part.strip() for part in entry.split(";"))
        values = dict(part.split("=", 1) for part in parameters if "=" in part)
        if media not in ("application/json", "application/*", "*/*"):
            continue
        if "as" not in values:
            return ""
        if values.get("g") == "meta.k8s.io" and values.get("v") == "v1":
            return values["as"]
    return ""


def _partial_metadata(obj: JsonObject) -> JsonObject:
    return {"kind": "PartialObjectMetadata", "apiVersion": _API_VERSION, "metadata": obj["metadata"]}


_TYPES: dict[str, tuple[type, ...]] = {"integer": (int, float), "number": (int, float), "boolean": (bool,)}


def _custom_cell(column: Column, obj: JsonObject, now: datetime) -> Cell:
    """None for a value of another type than the column's, and where the path leads nowhere."""
    value = find(column.json_path, obj)
    if value is None:
        return None
    if column.type == "date":
        try:
            return age(str(value), now)
        except ValueError:
            return "<invalid>"
    if column.type in _TYPES:
        fits = isinstance(value, _TYPES[column.type]) and isinstance(value, bool) == (column.type == "boolean")
        return None if not fits else int(value) if column.type == "integer" else value
    if isinstance(value, list):
        return "[" + ",".join(f'"{item}"' if isinstance(item, str) else str(item) for item in value) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)


_TOKEN = re.compile(
    r"""\.(?P<name>(?:\\.|[^.\[\]\\])+)
      | \[\?\(@\.(?P<key>\w+)\s*==\s*(?P<quote>['"])(?P<value>.*?)(?P=quote)\)\]""",
    re.VERBOSE,
)


def find(path: str, obj: object) -> Any:
    """The value at `path`. None where there is none, and for a path of another form."""
    value, position = obj, 0
    while position < len(path):
        token = _TOKEN.match(path, position)
        if token is None:
            return None
        if token["name"] is not None:
            name = re.sub(r"\\(.)", r"\1", token["name"])
            value = value.get(name) if isinstance(value, dict) else None
        else:
            items = [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
            value = next((item for item in items if item.get(token["key"]) == token["value"]), None)
        position = token.end()
    return value
