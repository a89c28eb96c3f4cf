"""The form in which a client wants objects: as they are, as tables, or only their metadata (the Accept header).

`kubectl get` asks for tables. Columns of custom types are JSONPaths of fields, and of the item of a list that has a
field with a value: `.status.conditions[?(@.type=='Ready')].status`. Names and order of the columns of built-in types
are those that a kube-apiserver 1.36 sends; `*` marks a wide column, of which only those of pods are here. Types that no
part of the simulated cluster works on (Services, roles and others) have a name and an age.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import chain, repeat
from typing import Any

from dra_driver.api.meta import JsonObject
from dra_driver.errors import InvalidInput
from dra_driver.jsonpath import Path, read_path
from dra_driver.phrases import duration
from dra_driver.simulation.apiserver import protobuf
from dra_driver.simulation.apiserver.lists import Page, list_document, list_metadata
from dra_driver.simulation.apiserver.requests import RequestTarget
from dra_driver.simulation.apiserver.resource_types import Column
from dra_driver.simulation.apiserver.store import StoredVersion, encode

type Cell = str | int | float | bool | None
type Printer = Callable[[JsonObject, datetime], list[Cell]]
type Printed = tuple[str, Printer]
"""Column names, comma-separated (`*` after a name: wide; `:type` after it: not a string), and what fills them."""


def age(moment: str | None, now: datetime) -> str:
    """`5m`, `3d4h`: time since an RFC 3339 moment, as coarse as kubectl shows it."""
    if not moment:
        return "<unknown>"
    seconds = int((now - datetime.fromisoformat(moment).astimezone(UTC)).total_seconds())
    return duration(max(seconds, 0)) if seconds >= -1 else "<invalid>"


def _created(obj: JsonObject, now: datetime) -> str:
    return age(obj["metadata"].get("creationTimestamp"), now)


def _name(obj: JsonObject) -> str:
    return str(obj["metadata"]["name"])


def _spec(obj: JsonObject) -> JsonObject:
    return obj.get("spec") or {}


def _status(obj: JsonObject) -> JsonObject:
    return obj.get("status") or {}


def _node(obj: JsonObject, now: datetime) -> list[Cell]:
    status = _status(obj)
    conditions = {item["type"]: item["status"] for item in status.get("conditions", ())}
    ready = {"True": "Ready", "False": "NotReady"}.get(conditions.get("Ready", ""), "NotReady")
    state = ready if "Ready" in conditions else "Unknown"
    if _spec(obj).get("unschedulable"):
        state += ",SchedulingDisabled"
    version = status.get("nodeInfo", {}).get("kubeletVersion", "")
    return [_name(obj), state, "<none>", _created(obj, now), version]


def _pod(obj: JsonObject, now: datetime) -> list[Cell]:
    spec, status = _spec(obj), _status(obj)
    statuses = status.get("containerStatuses", ())
    ready = sum(bool(item.get("ready")) for item in statuses)
    restarts = sum(item.get("restartCount", 0) for item in statuses)
    return [
        _name(obj), f"{ready}/{len(spec.get('containers', ()))}", _pod_state(obj), str(restarts), _created(obj, now),
        status.get("podIP") or "<none>", spec.get("nodeName") or "<none>",
    ]  # fmt: skip


def _pod_state(obj: JsonObject) -> str:
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


def _claim(obj: JsonObject, now: datetime) -> list[Cell]:
    status = _status(obj)
    states = ["deleted"] if obj["metadata"].get("deletionTimestamp") else []
    if status.get("allocation"):
        states.append("allocated")
        states.extend(["reserved"] if status.get("reservedFor") else [])
    elif not states:
        states.append("pending")
    return [_name(obj), ",".join(states), _created(obj, now)]


def _slice(obj: JsonObject, now: datetime) -> list[Cell]:
    spec = _spec(obj)
    return [_name(obj), spec.get("nodeName", ""), spec.get("driver", ""), spec["pool"]["name"], _created(obj, now)]


def _event(obj: JsonObject, now: datetime) -> list[Cell]:
    about: JsonObject = obj.get("involvedObject") or obj.get("regarding") or {}
    first = obj.get("firstTimestamp") or obj.get("eventTime")
    last = obj.get("lastTimestamp") or (obj.get("series") or {}).get("lastObservedTime") or first
    return [
        age(last, now), obj.get("type", ""), obj.get("reason", ""),
        f"{about.get('kind', '').lower()}/{about.get('name', '')}",
        str(obj.get("message", obj.get("note", ""))).strip(),
    ]  # fmt: skip


def _daemon_set(obj: JsonObject, now: datetime) -> list[Cell]:
    status, pod = _status(obj), _spec(obj).get("template", {}).get("spec", {})
    fields = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady", "updatedNumberScheduled")
    counts: list[Cell] = [status.get(name, 0) for name in (*fields, "numberAvailable")]
    selector = ",".join(f"{key}={value}" for key, value in sorted((pod.get("nodeSelector") or {}).items()))
    return [_name(obj), *counts, selector or "<none>", _created(obj, now)]


def _count(obj: JsonObject, name: str) -> int:
    count: int = _status(obj).get(name) or 0
    return count


def _deployment(obj: JsonObject, now: datetime) -> list[Cell]:
    ready = f"{_count(obj, 'readyReplicas')}/{_spec(obj).get('replicas', 1)}"
    updated, available = _count(obj, "updatedReplicas"), _count(obj, "availableReplicas")
    return [_name(obj), ready, str(updated), str(available), _created(obj, now)]


def _replica_set(obj: JsonObject, now: datetime) -> list[Cell]:
    wanted = _spec(obj).get("replicas", 1)
    return [_name(obj), wanted, _count(obj, "replicas"), _count(obj, "readyReplicas"), _created(obj, now)]


def _stateful_set(obj: JsonObject, now: datetime) -> list[Cell]:
    return [_name(obj), f"{_count(obj, 'readyReplicas')}/{_spec(obj).get('replicas', 1)}", _created(obj, now)]


def _job(obj: JsonObject, now: datetime) -> list[Cell]:
    spec, status = _spec(obj), _status(obj)
    conditions = {item["type"] for item in status.get("conditions") or () if item["status"] == "True"}
    state = next((name for name in ("Complete", "Failed", "Suspended") if name in conditions), "Running")
    completions, parallelism = spec.get("completions"), spec.get("parallelism") or 0
    of = str(completions) if completions is not None else f"1 of {parallelism}" if parallelism > 1 else "1"
    started, ended = status.get("startTime"), status.get("completionTime")
    took = age(started, datetime.fromisoformat(ended) if ended else now) if started else ""
    return [_name(obj), state, f"{_count(obj, 'succeeded')}/{of}", took, _created(obj, now)]


def _cron_job(obj: JsonObject, now: datetime) -> list[Cell]:
    spec, status = _spec(obj), _status(obj)
    last = status.get("lastScheduleTime")
    return [
        _name(obj), spec.get("schedule", ""), spec.get("timeZone") or "<none>", str(bool(spec.get("suspend"))),
        len(status.get("active") or ()), age(last, now) if last else "<none>", _created(obj, now),
    ]  # fmt: skip


def _named(obj: JsonObject, now: datetime) -> list[Cell]:
    return [_name(obj), _created(obj, now)]


def _dated(obj: JsonObject, _now: datetime) -> list[Cell]:
    return [_name(obj), obj["metadata"]["creationTimestamp"]]


_EVENT_COLUMNS = "Last Seen,Type,Reason,Object,Message"

PRINTERS: dict[tuple[str, str], Printed] = {
    ("", "configmaps"): (
        "Name,Data,Age",
        lambda obj, now: [_name(obj), len(obj.get("data", ())) + len(obj.get("binaryData", ())), _created(obj, now)],
    ),
    ("", "events"): (_EVENT_COLUMNS, _event),
    ("", "namespaces"): (
        "Name,Status,Age",
        lambda obj, now: [_name(obj), _status(obj).get("phase", ""), _created(obj, now)],
    ),
    ("", "nodes"): (
        "Name,Status,Roles,Age,Version",
        _node,
    ),
    ("", "pods"): ("Name,Ready,Status,Restarts,Age,IP*,Node*", _pod),
    ("", "secrets"): (
        "Name,Type,Data,Age",
        lambda obj, now: [_name(obj), obj.get("type", "Opaque"), len(obj.get("data", ())), _created(obj, now)],
    ),
    ("apiextensions.k8s.io", "customresourcedefinitions"): ("Name,Created At:date", _dated),
    ("apps", "daemonsets"): (
        "Name,Desired:integer,Current:integer,Ready:integer,Up-to-date:integer,Available:integer,Node Selector,Age",
        _daemon_set,
    ),
    ("apps", "deployments"): ("Name,Ready,Up-to-date,Available,Age", _deployment),
    ("apps", "replicasets"): ("Name,Desired:integer,Current:integer,Ready:integer,Age", _replica_set),
    ("apps", "statefulsets"): ("Name,Ready,Age", _stateful_set),
    ("batch", "cronjobs"): ("Name,Schedule,Timezone,Suspend,Active:integer,Last Schedule,Age", _cron_job),
    ("batch", "jobs"): ("Name,Status,Completions,Duration,Age", _job),
    ("coordination.k8s.io", "leases"): (
        "Name,Holder,Age",
        lambda obj, now: [_name(obj), _spec(obj).get("holderIdentity", ""), _created(obj, now)],
    ),
    ("events.k8s.io", "events"): (_EVENT_COLUMNS, _event),
    ("resource.k8s.io", "resourceclaims"): ("Name,State,Age", _claim),
    ("resource.k8s.io", "resourceslices"): ("Name,Node,Driver,Pool,Age", _slice),
}  # fmt: skip

BY_NAME: Printed = ("Name,Age", _named)
"""For types that show nothing else."""


def printed(key: tuple[str, str]) -> Printed:
    """How a built-in type is shown."""
    return PRINTERS.get(key, BY_NAME)


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
            cells = [obj["metadata"]["name"], *(custom_cell(column, obj, now) for column in columns)]
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


def custom_cell(column: Column, obj: JsonObject, now: datetime) -> Cell:
    """None for a value of another type than the column's, and where the path leads nowhere."""
    path = _path(column.json_path)
    value: Any = next(iter(path.values(obj)), None) if path is not None else None
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


@cache
def _path(path: str) -> Path | None:
    """None for one of another form."""
    try:
        return read_path(path, path)
    except InvalidInput:
        return None
