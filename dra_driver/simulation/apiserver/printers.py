"""What `kubectl get` shows of built-in types: columns with their cells, read off the object.

Types that no part of the simulated cluster works on (Deployments, Services, roles and others) have a name and an age.
Names and order of the columns are those that a kube-apiserver 1.36 sends; `*` marks a wide column, of which only those
of pods are here.
"""

from collections.abc import Callable
from datetime import UTC, datetime

from dra_driver.api.meta import JsonObject

type Cell = str | int | float | bool | None
type Printer = Callable[[JsonObject, datetime], list[Cell]]
type Printed = tuple[str, Printer]
"""Column names, comma-separated (`*` after a name: wide; `:type` after it: not a string), and what fills them."""


def age(moment: str | None, now: datetime) -> str:
    """`5m`, `3d4h`: time since an RFC 3339 moment, as coarse as kubectl shows it."""
    if not moment:
        return "<unknown>"
    seconds = int((now - datetime.fromisoformat(moment).astimezone(UTC)).total_seconds())
    return duration(seconds) if seconds >= -1 else "<invalid>"


def duration(seconds: int) -> str:
    """In one unit, of which there are at least two."""
    units = ((86400, "d"), (3600, "h"), (60, "m"))
    return next((f"{seconds // size}{unit}" for size, unit in units if seconds >= 2 * size), f"{max(seconds, 0)}s")


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
        one["type"] == "PodScheduled" and one.get("reason") == "SchedulingGated" for one in status.get("conditions", ())
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
