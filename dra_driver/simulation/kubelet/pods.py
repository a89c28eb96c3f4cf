"""What a pod looks like once kubelet has started it: its containers after CDI, and its status. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dra_driver.api.meta import JsonObject
from dra_driver.simulation.kubelet import shell
from dra_driver.simulation.kubelet.containers import ContainerStanding

COMPLETE_ANNOTATION = "simulation.dra.gpu/complete"
"""Set to `true` on a running pod, it ends as if its program had exited with status 0."""


def containers_of(pod: JsonObject) -> list[JsonObject]:
    """Init containers and containers, in the order in which they start."""
    return [*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]]


def environment(pod: JsonObject, container: JsonObject) -> Iterator[str]:
    """`NAME=value` of the variables that the manifest sets: itself, or from a field of the pod that has a value."""
    for item in container.get("env") or ():
        field = ((item.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath")
        value = item.get("value") if field is None else _field(pod, field)
        if value is not None:
            yield f"{item['name']}={value}"


def _field(pod: JsonObject, path: str) -> str | None:
    """The fields that containers may ask for. Source: ObjectFieldSelector of core/v1."""
    keyed = _KEYED.fullmatch(path)
    if keyed is not None:
        return str((pod["metadata"].get(keyed["map"]) or {}).get(keyed["key"], ""))
    part, _, name = path.partition(".")
    if part == "status" and name.endswith("s"):
        values = (pod.get("status") or {}).get(name)
        return ",".join(item["ip"] for item in values) if values else None
    value = (pod.get(part) or {}).get(name)
    return str(value) if value is not None else None


_KEYED = re.compile(r"metadata\.(?P<map>labels|annotations)\['(?P<key>[^']+)'\]")


def is_running(pod: JsonObject) -> bool:
    return (pod.get("status") or {}).get("phase") == "Running"


def asks_to_complete(pod: JsonObject) -> bool:
    return (pod["metadata"].get("annotations") or {}).get(COMPLETE_ANNOTATION) == "true"


def running_status(
    pod: JsonObject, health: Sequence[Sequence[JsonObject]], now: str, standings: Mapping[str, ContainerStanding]
) -> JsonObject:
    """Status of a pod whose containers all run, or stand as `standings` says of those that really do.

    `health` has `allocatedResourcesStatus` for each container.
    """
    statuses = [
        _container_status(container, now, devices, standings.get(container["name"], _WELL))
        for container, devices in zip(pod["spec"]["containers"], health, strict=True)
    ]
    ready = all(status["ready"] for status in statuses)
    return _status(pod, "Running", "True" if ready else "False", statuses, now)


_WELL = ContainerStanding(ready=True, started=True)


def have_ended(standings: Mapping[str, ContainerStanding]) -> bool:
    """Whether all containers have, and none is started again."""
    return bool(standings) and all(standing.exit_code is not None for standing in standings.values())


def ended_status(pod: JsonObject, now: str, standings: Mapping[str, ContainerStanding]) -> JsonObject:
    """Status of a pod whose containers have all ended."""
    statuses = []
    for container in pod["spec"]["containers"]:
        standing = standings[container["name"]]
        reason = "Error" if standing.exit_code else "Completed"
        ended = {"exitCode": standing.exit_code, "reason": reason, "message": standing.message, "finishedAt": now}
        status = _container_status(container, now, (), standing)
        statuses.append({**status, "state": {"terminated": ended}})
    failed = any(item.exit_code for item in standings.values())
    return _status(pod, "Failed" if failed else "Succeeded", "False", statuses, now)


def standing_patch(
    pod: JsonObject, health: Sequence[Sequence[JsonObject]], standings: Mapping[str, ContainerStanding], now: str
) -> JsonObject | None:
    """The status patch that makes a running pod show how its containers stand; None when it does already. What is as
    before keeps its time."""
    ended = have_ended(standings)
    wanted = ended_status(pod, now, standings) if ended else running_status(pod, health, now, standings)
    del wanted["startTime"]
    before = pod.get("status") or {}
    since = {(item["type"], item["status"]): item for item in before.get("conditions") or ()}
    wanted["conditions"] = [since.get((item["type"], item["status"]), item) for item in wanted["conditions"]]
    running = {
        (item["name"], item["restartCount"]): item["state"]
        for item in before.get("containerStatuses") or ()
        if "running" in item["state"]
    }
    for item in wanted["containerStatuses"]:
        if "running" in item["state"]:
            item["state"] = running.get((item["name"], item["restartCount"]), item["state"])
    shown = ("conditions", "containerStatuses")
    return None if all(before.get(name) == wanted[name] for name in shown) else wanted


def lifetime_s(pod: JsonObject) -> float | None:
    """Seconds until the programs of all containers have ended; None while one does not end by itself, or if kubelet
    would start it again."""
    if pod["spec"].get("restartPolicy", "Always") == "Always":
        return None
    lives = [shell.lifetime_s(shell.command_of(container)) for container in pod["spec"]["containers"]]
    return max(life for life in lives if life is not None) if None not in lives else None


def finished_status(pod: JsonObject, now: str) -> JsonObject:
    """Status of a pod whose programs have all ended: with the status of a script's `exit` or `false`, else with 0."""
    complete = asks_to_complete(pod)
    ended = {
        container["name"]: ContainerStanding(
            exit_code=0 if complete else shell.exit_status(shell.command_of(container))
        )
        for container in pod["spec"]["containers"]
    }
    return ended_status(pod, now, ended)


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
    container: JsonObject, now: str, devices: Sequence[JsonObject], standing: ContainerStanding
) -> JsonObject:
    running = {"running": {"startedAt": now}}
    status: dict[str, Any] = {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "ready": standing.ready,
        "started": standing.started,
        "restartCount": standing.restarts,
        "lastState": {},
        "state": running if standing.waiting is None else {"waiting": {"reason": standing.waiting}},
    }
    if devices:
        status["allocatedResourcesStatus"] = list(devices)
    return status
