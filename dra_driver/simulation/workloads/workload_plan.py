"""What a controller wants to do about one workload, and the objects that it makes of templates. Pure."""

import json
import math
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

from dra_driver.api.meta import PODS, JsonObject, Resource, wire_time
from dra_driver.simulation.pods import is_being_deleted, is_done

REVISION_HASH = "controller-revision-hash"
_NAME_LENGTH = 58
"""Of generateName, to which the server adds five characters."""


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """Children to create and to delete, merge patches of objects that exist, and the status to show.

    `status` None leaves the status as it is. A null in it removes a field. `again_s`: look again then, even if nothing
    has changed.
    """

    create: tuple[JsonObject, ...] = ()
    delete: tuple[JsonObject, ...] = ()
    patch: tuple[tuple[JsonObject, JsonObject], ...] = ()
    status: JsonObject | None = None
    again_s: float | None = None


def labeled(template: JsonObject, labels: JsonObject, annotations: JsonObject | None = None) -> JsonObject:
    """A template with more labels and annotations, which win."""
    about = template.get("metadata") or {}
    more = (("labels", labels), ("annotations", annotations or {}))
    merged = {key: {**(about.get(key) or {}), **added} for key, added in more}
    return {**template, "metadata": {**about, **merged}}


def pod_of(
    owner: JsonObject,
    template: JsonObject,
    name: str,
    labels: JsonObject,
    *,
    annotations: JsonObject | None = None,
    env: Iterable[tuple[str, str]] = (),
) -> JsonObject:
    """The pod of a template. A `name` that ends with `-` is completed by the server. `env` is added to all containers,
    whose own variables win."""
    template = deepcopy(labeled(template, labels, annotations))
    variables = [{"name": key, "value": value} for key, value in env]
    for container in template["spec"].get("containers") or () if variables else ():
        own = container.get("env") or []
        taken = {item["name"] for item in own}
        container["env"] = [*own, *(item for item in variables if item["name"] not in taken)]
    metadata = {key: template["metadata"][key] for key in ("labels", "annotations")}
    return child_of(owner, PODS, name, metadata, template["spec"])


def child_of(owner: JsonObject, resource: Resource, name: str, metadata: JsonObject, spec: JsonObject) -> JsonObject:
    """An object that `owner` controls, in its namespace."""
    about = owner["metadata"]
    named = {"generateName": name[:_NAME_LENGTH]} if name.endswith("-") else {"name": name}
    reference = {field: owner[field] for field in ("apiVersion", "kind")} | {"name": about["name"], "uid": about["uid"]}
    reference |= {"controller": True, "blockOwnerDeletion": True}
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {**named, "namespace": about["namespace"], **metadata, "ownerReferences": [reference]},
        "spec": spec,
    }


def add_volumes(spec: JsonObject, templates: Iterable[JsonObject], suffix: str) -> None:
    """The volumes of claim templates, in a pod's spec; the claims themselves are not made."""
    names = [item["metadata"]["name"] for item in templates]
    volumes = [{"name": name, "persistentVolumeClaim": {"claimName": f"{name}-{suffix}"}} for name in names]
    if volumes:
        spec["volumes"] = [*(spec.get("volumes") or ()), *volumes]


def template_hash(template: JsonObject) -> str:
    """Of a pod template: ten characters that differ when the template does."""
    return sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


def staying(objects: Iterable[JsonObject]) -> list[JsonObject]:
    """Those that are not being deleted, by age and name."""
    return sorted((obj for obj in objects if not is_being_deleted(obj)), key=age_key)


def active(pods: Iterable[JsonObject]) -> list[JsonObject]:
    """Pods that run or will run, by age and name."""
    return [pod for pod in staying(pods) if not is_done(pod)]


def age_key(obj: JsonObject) -> tuple[str, str]:
    return obj["metadata"].get("creationTimestamp") or "", obj["metadata"]["name"]


def ready_count(pods: Sequence[JsonObject]) -> int:
    return sum(map(is_ready, pods))


def share_of(value: int | str, total: int, *, up: bool) -> int:
    """A number, or a percentage of `total`."""
    if not isinstance(value, str):
        return value
    share = total * int(value.removesuffix("%")) / 100
    return math.ceil(share) if up else math.floor(share)


def conditions_of(
    owner: JsonObject, now: datetime, *wanted: tuple[str, bool, str, str], keep: bool = False
) -> list[JsonObject]:
    """Conditions of type, status, reason and message. Each keeps its time while its status stays. `keep` leaves the
    owner's others."""
    known = {item["type"]: item for item in (owner.get("status") or {}).get("conditions") or ()}
    made = {}
    for kind, holds, reason, message in wanted:
        status, before = "True" if holds else "False", known.get(kind) or {}
        since = before.get("lastTransitionTime") if before.get("status") == status else None
        made[kind] = {"type": kind, "status": status, "reason": reason, "message": message}
        made[kind]["lastTransitionTime"] = since or wire_time(now)
    return [*(item for kind, item in known.items() if keep and kind not in made), *made.values()]


def holds(obj: JsonObject, *conditions: str) -> bool:
    """Whether one of these conditions of the object is True."""
    known = (obj.get("status") or {}).get("conditions") or ()
    return any(item["type"] in conditions and item["status"] == "True" for item in known)


def is_ready(pod: JsonObject) -> bool:
    return holds(pod, "Ready")


def status_of(owner: JsonObject, shown: JsonObject, counts: JsonObject) -> JsonObject:
    """The status as servers show it: `counts` are null, which removes them, while they are 0."""
    known = {name: count or None for name, count in counts.items()}
    return shown | known | {"observedGeneration": owner["metadata"].get("generation", 1)}
