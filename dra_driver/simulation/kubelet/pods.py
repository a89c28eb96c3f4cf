"""What a pod looks like once kubelet has started it: its containers after CDI, and its status. Pure."""

from collections.abc import Sequence
from typing import Any

from dra_driver.api.meta import JsonObject

COMPLETE_ANNOTATION = "simulation.dra.gpu/complete"
"""Set to `true` on a running pod, it ends as if its program had exited with status 0."""


def containers_of(pod: JsonObject) -> list[JsonObject]:
    """Init containers and containers, in the order in which they start."""
    return [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]


def plain_environment(container: JsonObject) -> tuple[str, ...]:
    """`NAME=value` of the variables that the manifest sets itself."""
    return tuple(f"{one['name']}={one['value']}" for one in container.get("env") or () if "value" in one)


def is_finished(pod: JsonObject) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_running(pod: JsonObject) -> bool:
    return (pod.get("status") or {}).get("phase") == "Running"


def asks_to_complete(pod: JsonObject) -> bool:
    return (pod["metadata"].get("annotations") or {}).get(COMPLETE_ANNOTATION) == "true"


def running_status(pod: JsonObject, health: Sequence[Sequence[JsonObject]], now: str) -> JsonObject:
    """Status of a pod whose containers all run. `health` has `allocatedResourcesStatus` for each container."""
    statuses = [
        _container_status(container, {"running": {"startedAt": now}}, devices, ready=True)
        for container, devices in zip(pod["spec"]["containers"], health, strict=True)
    ]
    return _status(pod, "Running", "True", statuses, now)


def health_patch(pod: JsonObject, health: Sequence[Sequence[JsonObject]]) -> JsonObject | None:
    """The status patch that makes a running pod show this health; None when it does already."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    shown = {status["name"]: status.get("allocatedResourcesStatus") or [] for status in statuses}
    names = [container["name"] for container in pod["spec"]["containers"]]
    wanted = {name: list(devices) for name, devices in zip(names, health, strict=True)}
    if all(shown.get(name) == devices for name, devices in wanted.items()):
        return None
    return {
        "containerStatuses": [
            {**status, "allocatedResourcesStatus": wanted.get(status["name"], [])} for status in statuses
        ]
    }


def finished_status(pod: JsonObject, now: str) -> JsonObject:
    """Status of a pod whose containers have all exited with status 0."""
    ended = {"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": now}}
    statuses = [_container_status(container, ended, (), ready=False) for container in pod["spec"]["containers"]]
    return _status(pod, "Succeeded", "False", statuses, now)


def _status(pod: JsonObject, phase: str, ready: str, statuses: list[JsonObject], now: str) -> JsonObject:
    ours = (("Initialized", "True"), ("Ready", ready), ("ContainersReady", ready))
    others = [
        condition
        for condition in (pod.get("status") or {}).get("conditions") or ()
        if condition["type"] not in dict(ours)
    ]
    conditions = [{"type": kind, "status": value, "lastTransitionTime": now} for kind, value in ours]
    return {"phase": phase, "conditions": [*others, *conditions], "containerStatuses": statuses, "startTime": now}


def _container_status(
    container: JsonObject, state: JsonObject, devices: Sequence[JsonObject], *, ready: bool
) -> JsonObject:
    status: dict[str, Any] = {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "ready": ready,
        "started": ready,
        "restartCount": 0,
        "state": state,
    }
    if devices:
        status["allocatedResourcesStatus"] = list(devices)
    return status
