"""What a pod looks like once kubelet has started it: its containers after CDI, and its status. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence

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


_WELL = ContainerStanding(ready=True, started=True)


def status_of(
    pod: JsonObject, health: Sequence[Sequence[JsonObject]], now: str, standings: Mapping[str, ContainerStanding]
) -> JsonObject:
    """Status of a pod that was started: its containers all run, or stand as `standings` says. It has ended when all of
    them have, and none is started again. What is as before keeps its time.

    `health` has `allocatedResourcesStatus` for each container.
    """
    before = pod.get("status") or {}
    known = [standings.get(container["name"], _WELL) for container in pod["spec"]["containers"]]
    running = {
        (item["name"], item["restartCount"]): item["state"]
        for item in before.get("containerStatuses") or ()
        if "running" in item["state"]
    }
    statuses = []
    for container, devices, standing in zip(pod["spec"]["containers"], health, known, strict=True):
        state = running.get((container["name"], standing.restarts), {"running": {"startedAt": now}})
        statuses.append(_container_status(container, now, devices, standing, state))
    ready, phase = "True" if all(standing.ready for standing in known) else "False", "Running"
    if all(standing.exit_code is not None for standing in known):
        phase = "Failed" if any(standing.exit_code for standing in known) else "Succeeded"
    ours = {"Initialized": "True", "Ready": ready, "ContainersReady": ready}
    since = {(item["type"], item["status"]): item for item in before.get("conditions") or ()}
    conditions = [item for (kind, _), item in since.items() if kind not in ours]
    for kind, value in ours.items():
        conditions.append(since.get((kind, value), {"type": kind, "status": value, "lastTransitionTime": now}))
    return {
        "phase": phase,
        "conditions": conditions,
        "containerStatuses": statuses,
        "startTime": before.get("startTime") or now,
    }


def _container_status(
    container: JsonObject, now: str, devices: Sequence[JsonObject], standing: ContainerStanding, running: JsonObject
) -> JsonObject:
    status: JsonObject = {
        "name": container["name"],
        "image": container.get("image", ""),
        "imageID": "",
        "ready": standing.ready,
        "started": standing.started,
        "restartCount": standing.restarts,
        "lastState": {},
        "state": running if standing.waiting is None else {"waiting": {"reason": standing.waiting}},
    }
    if standing.exit_code is not None:
        reason = "Error" if standing.exit_code else "Completed"
        ended = {"exitCode": standing.exit_code, "reason": reason, "message": standing.message, "finishedAt": now}
        return status | {"state": {"terminated": ended}}
    return status | ({"allocatedResourcesStatus": list(devices)} if devices else {})


def looks_like(pod: JsonObject, status: JsonObject) -> bool:
    """Whether the pod shows already what is in this status, as of `status_of`."""
    before = pod.get("status") or {}
    return all(before.get(name) == status[name] for name in ("conditions", "containerStatuses"))


def lifetime_s(pod: JsonObject) -> float | None:
    """Seconds until the programs of all containers have ended; None while one does not end by itself, or if kubelet
    would start it again."""
    if pod["spec"].get("restartPolicy", "Always") == "Always":
        return None
    lives = [shell.lifetime_s(shell.command_of(container)) for container in pod["spec"]["containers"]]
    return max(life for life in lives if life is not None) if None not in lives else None


def finished(pod: JsonObject) -> dict[str, ContainerStanding]:
    """How containers stand whose programs have ended by themselves: with the status of a script's `exit` or `false`,
    else with 0."""
    complete = asks_to_complete(pod)
    return {
        container["name"]: ContainerStanding(
            exit_code=0 if complete else shell.exit_status(shell.command_of(container))
        )
        for container in pod["spec"]["containers"]
    }
