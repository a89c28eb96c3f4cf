"""The form in which a client wants objects: as they are, as tables, or only their metadata (the Accept header).

`kubectl get` asks for tables. A column is filled by the JSONPath of a field, also of the item of a list that has a
field with a value: `.status.conditions[?(@.type=='Ready')].status`; or, in built-in types, by one of the functions
here, which see the object as it is stored. Types that no part of the simulated cluster works on (Services, roles and
others) have a name and an age.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import chain, repeat
from typing import Any

from aiohttp import web

from dra_driver.api.meta import JsonObject
from dra_driver.errors import InvalidInput
from dra_driver.jsonpath import Path, read_path
from dra_driver.phrases import duration
from dra_driver.simulation.apiserver import protobuf
from dra_driver.simulation.apiserver.lists import Page, RequestTarget, list_document, list_metadata
from dra_driver.simulation.apiserver.resource_types import Column
from dra_driver.simulation.apiserver.store import StoredVersion, encode

type Cell = str | int | float | bool | None


def age(moment: str | None, now: datetime) -> str:
    """`5m`, `3d4h`: time since an RFC 3339 moment, as coarse as kubectl shows it."""
    if not moment:
        return "<unknown>"
    seconds = int((now - datetime.fromisoformat(moment).astimezone(UTC)).total_seconds())
    return duration(max(seconds, 0)) if seconds >= -1 else "<invalid>"


def _spec(obj: JsonObject) -> JsonObject:
    return obj.get("spec") or {}


def _status(obj: JsonObject) -> JsonObject:
    return obj.get("status") or {}


def _node_status(obj: JsonObject) -> str:
    conditions = {item["type"]: item["status"] for item in _status(obj).get("conditions", ())}
    ready = "Ready" if conditions.get("Ready") == "True" else "NotReady"
    state = ready if "Ready" in conditions else "Unknown"
    return f"{state},SchedulingDisabled" if _spec(obj).get("unschedulable") else state


def _pod_ready(obj: JsonObject) -> str:
    ready = sum(bool(item.get("ready")) for item in _status(obj).get("containerStatuses", ()))
    return f"{ready}/{len(_spec(obj).get('containers', ()))}"


def _pod_status(obj: JsonObject) -> str:
    status = _status(obj)
    state = status.get("reason") or status.get("phase", "")
    gated = any(
        condition["type"] == "PodScheduled" and condition.get("reason") == "SchedulingGated"
        for condition in status.get("conditions", ())
    )
    if gated:
        state = "SchedulingGated"
    for item in reversed(status.get("containerStatuses", ())):
        described = item.get("state", {})
        waiting, ended = described.get("waiting") or {}, described.get("terminated") or {}
        if waiting.get("reason"):
            state = waiting["reason"]
        elif ended:
            code = f"Signal:{ended['signal']}" if ended.get("signal") else f"ExitCode:{ended.get('exitCode', 0)}"
            state = ended.get("reason") or code
    if obj["metadata"].get("deletionTimestamp"):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return str(state)


def _claim_state(obj: JsonObject) -> str:
    status = _status(obj)
    states = ["deleted"] if obj["metadata"].get("deletionTimestamp") else []
    if status.get("allocation"):
        states.append("allocated")
        states.extend(["reserved"] if status.get("reservedFor") else [])
    return ",".join(states or ["pending"])


def _last_seen(obj: JsonObject, now: datetime) -> str:
    series = obj.get("series") or {}
    times = (obj.get("lastTimestamp"), series.get("lastObservedTime"), obj.get("firstTimestamp"), obj.get("eventTime"))
    return age(next(filter(None, times), None), now)


def _event_object(obj: JsonObject) -> str:
    about: JsonObject = obj.get("involvedObject") or {}
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


def _node_selector(obj: JsonObject) -> str:
    pod = _spec(obj).get("template", {}).get("spec", {})
    return ",".join(f"{key}={value}" for key, value in sorted((pod.get("nodeSelector") or {}).items())) or "<none>"


def _job_status(obj: JsonObject) -> str:
    conditions = {item["type"] for item in _status(obj).get("conditions") or () if item["status"] == "True"}
    return next((name for name in ("Complete", "Failed", "Suspended") if name in conditions), "Running")


def _completions(obj: JsonObject) -> str:
    wanted, parallelism = _spec(obj).get("completions"), _spec(obj).get("parallelism") or 0
    of = str(wanted) if wanted is not None else f"1 of {parallelism}" if parallelism > 1 else "1"
    return f"{_status(obj).get('succeeded') or 0}/{of}"


def _duration(obj: JsonObject, now: datetime) -> str:
    started, ended = _status(obj).get("startTime"), _status(obj).get("completionTime")
    return age(started, datetime.fromisoformat(ended) if ended else now) if started else ""


def _last_schedule(obj: JsonObject, now: datetime) -> str:
    last = _status(obj).get("lastScheduleTime")
    return age(last, now) if last else "<none>"


CELLS: Mapping[str, Callable[[JsonObject, datetime], Cell]] = {
    "active": lambda obj, _: len(_status(obj).get("active") or ()),
    "age": lambda obj, now: age(obj["metadata"].get("creationTimestamp"), now),
    "completions": lambda obj, _: _completions(obj),
    "created": lambda obj, _: str(obj["metadata"]["creationTimestamp"]),
    "duration": _duration,
    "entries": lambda obj, _: len(obj.get("data", ())) + len(obj.get("binaryData", ())),
    "job": lambda obj, _: _job_status(obj),
    "last_schedule": _last_schedule,
    "last_seen": _last_seen,
    "message": lambda obj, _: str(obj.get("message", "")).strip(),
    "name": lambda obj, _: str(obj["metadata"]["name"]),
    "node": lambda obj, _: _node_status(obj),
    "node_selector": lambda obj, _: _node_selector(obj),
    "object": lambda obj, _: _event_object(obj),
    "pod": lambda obj, _: _pod_status(obj),
    "pod_ready": lambda obj, _: _pod_ready(obj),
    "replicas": lambda obj, _: f"{_status(obj).get('readyReplicas') or 0}/{_spec(obj).get('replicas', 1)}",
    "restarts": lambda obj, _: str(sum(it.get("restartCount", 0) for it in _status(obj).get("containerStatuses", ()))),
    "state": lambda obj, _: _claim_state(obj),
    "suspend": lambda obj, _: str(bool(_spec(obj).get("suspend"))),
}
"""What fills columns of built-in types that no path does, by the names of `resource_types.yaml`."""

_API_VERSION = "meta.k8s.io/v1"


class Representation:
    """The wish of the client that sent a request for a type."""

    def __init__(self, request: web.Request, target: RequestTarget) -> None:
        self._target = target
        self._kind = target.kind
        self._accept = request.headers.get("Accept", "")
        self._include = request.query.get("includeObject")
        self._form = _wanted_form(self._accept)

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
        shown = ("name", "type", "format", "description", "priority")
        columns = [{name: getattr(column, name) for name in shown} for column in self._kind.columns]
        return encode(
            {
                "kind": "Table",
                "apiVersion": _API_VERSION,
                "metadata": metadata,
                "columnDefinitions": columns if header else None,
                "rows": [self._row(entry, datetime.now(UTC)) for entry in entries],
            }
        )

    def _row(self, entry: StoredVersion, now: datetime) -> JsonObject:
        shown: JsonObject | None = None
        if self._include == "Object":
            shown = entry.served_as(self._kind.resource.api_version)
        elif self._include != "None":
            shown = _partial_metadata(entry.obj)
        return {"cells": [cell(column, entry.obj, now) for column in self._kind.columns], "object": shown}


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


def cell(column: Column, obj: JsonObject, now: datetime) -> Cell:
    """A custom type's is None for a value of another type than the column's, and where the path leads nowhere."""
    if column.path in CELLS:
        return CELLS[column.path](obj, now)
    path = _path(column.path)
    value: Any = next(iter(path.values(obj)), None) if path is not None else None
    if value is None:
        return int(column.missing) if column.missing and column.type == "integer" else column.missing
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


@cache
def _path(path: str) -> Path | None:
    """None for one of another form."""
    try:
        return read_path(path, path)
    except InvalidInput:
        return None
