"""What `kubectl get` shows of built-in types: columns with their cells, read off the object.

Names, order and priorities of the columns are those that a kube-apiserver 1.36 sends; `*` marks a wide column.
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
    """The two leading units while that is informative, one after."""
    seconds = max(seconds, 0)
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return f"{minutes}m" + (f"{seconds % 60}s" if seconds % 60 else "")
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h" + (f"{minutes % 60}m" if minutes % 60 else "")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return f"{days}d" + (f"{hours % 24}h" if hours % 24 else "")
    if days < 365 * 2:
        return f"{days}d"
    years = days // 365
    if days < 365 * 8:
        return f"{years}y" + (f"{days % 365}d" if days % 365 else "")
    return f"{years}y"


def _created(obj: JsonObject, now: datetime) -> str:
    return age(obj["metadata"].get("creationTimestamp"), now)


def _name(obj: JsonObject) -> str:
    return str(obj["metadata"]["name"])


def _spec(obj: JsonObject) -> JsonObject:
    return obj.get("spec") or {}


def _status(obj: JsonObject) -> JsonObject:
    return obj.get("status") or {}


def _joined(labels: JsonObject | None) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted((labels or {}).items())) or "<none>"


def _selector(obj: JsonObject) -> str:
    return _joined((_spec(obj).get("selector") or {}).get("matchLabels"))


def _containers(obj: JsonObject) -> list[Cell]:
    containers = _spec(obj).get("template", {}).get("spec", {}).get("containers", [])
    names = ",".join(one["name"] for one in containers)
    return [names, ",".join(one.get("image", "") for one in containers)]


def _node(obj: JsonObject, now: datetime) -> list[Cell]:
    status = _status(obj)
    conditions = {one["type"]: one["status"] for one in status.get("conditions", ())}
    ready = {"True": "Ready", "False": "NotReady"}.get(conditions.get("Ready", ""), "NotReady")
    state = ready if "Ready" in conditions else "Unknown"
    if _spec(obj).get("unschedulable"):
        state += ",SchedulingDisabled"
    info = status.get("nodeInfo", {})
    addresses = {one["type"]: one["address"] for one in status.get("addresses", ())}
    roles = _roles(obj["metadata"].get("labels") or {})
    return [
        _name(obj), state, roles, _created(obj, now), info.get("kubeletVersion", ""),
        addresses.get("InternalIP", "<none>"), addresses.get("ExternalIP", "<none>"),
        info.get("osImage") or "<unknown>", info.get("kernelVersion") or "<unknown>",
        info.get("containerRuntimeVersion") or "<unknown>",
    ]  # fmt: skip


def _roles(labels: JsonObject) -> str:
    prefix = "node-role.kubernetes.io/"
    roles = {key.removeprefix(prefix) for key in labels if key.startswith(prefix) and key != prefix}
    if labels.get("kubernetes.io/role"):
        roles.add(labels["kubernetes.io/role"])
    return ",".join(sorted(roles)) or "<none>"


def _pod(obj: JsonObject, now: datetime) -> list[Cell]:
    spec, status = _spec(obj), _status(obj)
    statuses = status.get("containerStatuses", ())
    ready = sum(bool(one.get("ready")) for one in statuses)
    restarts = sum(one.get("restartCount", 0) for one in statuses)
    gates = spec.get("readinessGates", ())
    true = {one["type"] for one in status.get("conditions", ()) if one["status"] == "True"}
    shown_gates = f"{sum(one['conditionType'] in true for one in gates)}/{len(gates)}" if gates else "<none>"
    return [
        _name(obj), f"{ready}/{len(spec.get('containers', ()))}", _pod_state(obj), str(restarts), _created(obj, now),
        status.get("podIP") or "<none>", spec.get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>", shown_gates,
    ]  # fmt: skip


def _pod_state(obj: JsonObject) -> str:
    status = _status(obj)
    state = status.get("reason") or status.get("phase", "")
    gated = any(
        one["type"] == "PodScheduled" and one.get("reason") == "SchedulingGated" for one in status.get("conditions", ())
    )
    if gated:
        state = "SchedulingGated"
    for one in reversed(status.get("containerStatuses", ())):
        described = one.get("state", {})
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
    source = obj.get("source") or {}
    first = obj.get("firstTimestamp") or obj.get("eventTime")
    last = obj.get("lastTimestamp") or (obj.get("series") or {}).get("lastObservedTime") or first
    origin = source.get("component") or obj.get("reportingComponent", "")
    host = source.get("host") or obj.get("reportingInstance", "")
    return [
        age(last, now), obj.get("type", ""), obj.get("reason", ""),
        f"{about.get('kind', '').lower()}/{about.get('name', '')}", about.get("fieldPath", ""),
        f"{origin}, {host}" if host else origin, str(obj.get("message", obj.get("note", ""))).strip(),
        age(first, now), obj.get("count", 1), _name(obj),
    ]  # fmt: skip


def _service(obj: JsonObject, now: datetime) -> list[Cell]:
    spec = _spec(obj)
    ports = [
        f"{one['port']}" + (f":{one['nodePort']}" if one.get("nodePort") else "") + f"/{one.get('protocol', 'TCP')}"
        for one in spec.get("ports", ())
    ]
    external = "<pending>" if spec.get("type") == "LoadBalancer" else ",".join(spec.get("externalIPs", ()))
    return [
        _name(obj), spec.get("type", "ClusterIP"), spec.get("clusterIP") or "<none>", external or "<none>",
        ",".join(ports) or "<none>", _created(obj, now), _joined(spec.get("selector")),
    ]  # fmt: skip


def _daemon_set(obj: JsonObject, now: datetime) -> list[Cell]:
    status, pod = _status(obj), _spec(obj).get("template", {}).get("spec", {})
    fields = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady", "updatedNumberScheduled")
    counts: list[Cell] = [status.get(name, 0) for name in (*fields, "numberAvailable")]
    columns = [_joined(pod.get("nodeSelector")), _created(obj, now), *_containers(obj), _selector(obj)]
    return [_name(obj), *counts, *columns]


def _deployment(obj: JsonObject, now: datetime) -> list[Cell]:
    status = _status(obj)
    ready = f"{status.get('readyReplicas', 0)}/{_spec(obj).get('replicas', 1)}"
    return [
        _name(obj), ready, status.get("updatedReplicas", 0), status.get("availableReplicas", 0), _created(obj, now),
        *_containers(obj), _selector(obj),
    ]  # fmt: skip


def _replica_set(obj: JsonObject, now: datetime) -> list[Cell]:
    status = _status(obj)
    counts = [_spec(obj).get("replicas", 1), status.get("replicas", 0), status.get("readyReplicas", 0)]
    return [_name(obj), *counts, _created(obj, now), *_containers(obj), _selector(obj)]


def _stateful_set(obj: JsonObject, now: datetime) -> list[Cell]:
    ready = f"{_status(obj).get('readyReplicas', 0)}/{_spec(obj).get('replicas', 1)}"
    return [_name(obj), ready, _created(obj, now), *_containers(obj)]


def _job(obj: JsonObject, now: datetime) -> list[Cell]:
    spec, status = _spec(obj), _status(obj)
    conditions = {one["type"] for one in status.get("conditions", ()) if one["status"] == "True"}
    state = next((one for one in ("Complete", "Failed", "Suspended") if one in conditions), "Running")
    wanted = spec.get("completions", spec.get("parallelism", 1))
    lasted = age(status["startTime"], now) if status.get("startTime") else ""
    done = f"{status.get('succeeded', 0)}/{wanted}"
    return [_name(obj), state, done, lasted, _created(obj, now), *_containers(obj), _selector(obj)]


def _binding(obj: JsonObject, now: datetime) -> list[Cell]:
    role, subjects = obj.get("roleRef", {}), obj.get("subjects", ())
    users = ", ".join(one["name"] for one in subjects if one["kind"] == "User")
    groups = ", ".join(one["name"] for one in subjects if one["kind"] == "Group")
    accounts = ", ".join(
        f"{one.get('namespace', '')}/{one['name']}" for one in subjects if one["kind"] == "ServiceAccount"
    )
    return [_name(obj), f"{role.get('kind')}/{role.get('name')}", _created(obj, now), users, groups, accounts]


def _named(obj: JsonObject, now: datetime) -> list[Cell]:
    return [_name(obj), _created(obj, now)]


def _dated(obj: JsonObject, _now: datetime) -> list[Cell]:
    return [_name(obj), obj["metadata"]["creationTimestamp"]]


def _counted(field: str) -> Printer:
    return lambda obj, now: [_name(obj), len(obj.get(field) or ()), _created(obj, now)]


_EVENT_COLUMNS = "Last Seen,Type,Reason,Object,Subobject*,Source*,Message,First Seen*,Count*,Name*"
_BINDING_COLUMNS = "Name,Role,Age,Users*,Groups*,ServiceAccounts*"
_SET_COLUMNS = "Name,Desired:integer,Current:integer,Ready:integer,Age,Containers*,Images*,Selector*"

PRINTERS: dict[tuple[str, str], Printed] = {
    ("", "configmaps"): (
        "Name,Data,Age",
        lambda obj, now: [_name(obj), len(obj.get("data", ())) + len(obj.get("binaryData", ())), _created(obj, now)],
    ),
    ("", "events"): (_EVENT_COLUMNS, _event),
    ("", "limitranges"): ("Name,Created At:date", _dated),
    ("", "namespaces"): (
        "Name,Status,Age",
        lambda obj, now: [_name(obj), _status(obj).get("phase", ""), _created(obj, now)],
    ),
    ("", "nodes"): (
        "Name,Status,Roles,Age,Version,Internal-IP*,External-IP*,OS-Image*,Kernel-Version*,Container-Runtime*",
        _node,
    ),
    ("", "pods"): ("Name,Ready,Status,Restarts,Age,IP*,Node*,Nominated Node*,Readiness Gates*", _pod),
    ("", "secrets"): (
        "Name,Type,Data,Age",
        lambda obj, now: [_name(obj), obj.get("type", "Opaque"), len(obj.get("data", ())), _created(obj, now)],
    ),
    ("", "services"): ("Name,Type,Cluster-IP,External-IP,Port(s),Age,Selector*", _service),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"): (
        "Name,Webhooks:integer,Age",
        _counted("webhooks"),
    ),
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"): (
        "Name,Webhooks:integer,Age",
        _counted("webhooks"),
    ),
    ("apiextensions.k8s.io", "customresourcedefinitions"): ("Name,Created At:date", _dated),
    ("apps", "daemonsets"): (
        "Name,Desired:integer,Current:integer,Ready:integer,Up-to-date:integer,Available:integer,Node Selector,Age,"
        "Containers*,Images*,Selector*",
        _daemon_set,
    ),
    ("apps", "deployments"): ("Name,Ready,Up-to-date,Available,Age,Containers*,Images*,Selector*", _deployment),
    ("apps", "replicasets"): (_SET_COLUMNS, _replica_set),
    ("apps", "statefulsets"): ("Name,Ready,Age,Containers*,Images*", _stateful_set),
    ("batch", "jobs"): ("Name,Status,Completions,Duration,Age,Containers*,Images*,Selector*", _job),
    ("coordination.k8s.io", "leases"): (
        "Name,Holder,Age",
        lambda obj, now: [_name(obj), _spec(obj).get("holderIdentity", ""), _created(obj, now)],
    ),
    ("events.k8s.io", "events"): (_EVENT_COLUMNS, _event),
    ("rbac.authorization.k8s.io", "clusterrolebindings"): (_BINDING_COLUMNS, _binding),
    ("rbac.authorization.k8s.io", "clusterroles"): ("Name,Created At:date", _dated),
    ("rbac.authorization.k8s.io", "rolebindings"): (_BINDING_COLUMNS, _binding),
    ("rbac.authorization.k8s.io", "roles"): ("Name,Created At:date", _dated),
    ("resource.k8s.io", "resourceclaims"): ("Name,State,Age", _claim),
    ("resource.k8s.io", "resourceslices"): ("Name,Node,Driver,Pool,Age", _slice),
    ("scheduling.k8s.io", "priorityclasses"): (
        "Name,Value:integer,Global-Default:boolean,Age,PreemptionPolicy",
        lambda obj, now: [
            _name(obj), obj.get("value", 0), obj.get("globalDefault", False), _created(obj, now),
            obj.get("preemptionPolicy", "PreemptLowerPriority"),
        ],
    ),
}  # fmt: skip

BY_NAME: Printed = ("Name,Age", _named)
"""For types that show nothing else."""


def _service_account(obj: JsonObject, now: datetime) -> list[Cell]:
    return [_name(obj), len(obj.get("secrets") or ()), _created(obj, now)]


_BEFORE_1_35: Printed = ("Name,Secrets,Age", _service_account)


def printed(key: tuple[str, str], minor: int) -> Printed:
    """How a server 1.`minor` shows a built-in type."""
    if minor < 35 and key == ("", "serviceaccounts"):
        return _BEFORE_1_35
    return PRINTERS.get(key, BY_NAME)
