"""How pods reach GPUs that they did not request: variables, files of the host, privileges. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dra_driver.api.meta import JsonObject
from dra_driver.migration.codes import BYPASS, NO_COUNTERPART, FindingSeverity
from dra_driver.migration.model import ContainerAt, MigrationFinding, Path, PodSpecAt, finding, value_at

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
NONE_VISIBLE = ("none", "void", "")


@dataclass(frozen=True, slots=True)
class Variable:
    """`value` None: it comes from elsewhere."""

    value: str | None
    path: Path


def variables(container: ContainerAt) -> dict[str, Variable]:
    env = container.obj.get("env")
    found = {}
    for index, item in enumerate(env if isinstance(env, list) else ()):
        if isinstance(item, dict) and isinstance(item.get("name"), str):
            value = item.get("value")
            text = None if "valueFrom" in item else "" if value is None else str(value)
            found[item["name"]] = Variable(text, (*container.path, "env", index))
    return found


def sees_all(container: ContainerAt) -> bool:
    """Whether the NVIDIA runtime hands in GPUs that nobody accounts for."""
    variable = variables(container).get(VISIBLE)
    return variable is not None and variable.value not in (None, *NONE_VISIBLE)


def items(value: object) -> list[JsonObject]:
    """Of a list of objects; what is none is empty, so that positions stay."""
    return [item if isinstance(item, dict) else {} for item in value] if isinstance(value, list) else []


def bypasses(pod: PodSpecAt, users: Sequence[ContainerAt] = ()) -> tuple[MigrationFinding, ...]:
    """Of a pod that asks for none: how it reaches GPUs all the same. `users` are those who get a claim even so."""
    findings = [*mounts(pod, users)]
    for container in pod.containers:
        given = variables(container)
        if sees_all(container):
            variable = given[VISIBLE]
            message = f"{container.name} sees GPUs by {VISIBLE}={variable.value}, and asks for none"
            findings.append(finding(BYPASS, pod.document, variable.path, message))
        findings += administration(pod, given)
    return tuple(findings)


def administration(pod: PodSpecAt, given: Mapping[str, Variable]) -> Iterator[MigrationFinding]:
    for name in ("NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"):
        if name in given and given[name].value:
            message = f"{name}: partitioning GPUs is for the driver, which hands out no rights to it"
            yield finding(NO_COUNTERPART, pod.document, given[name].path, message)
    if "NVIDIA_IMEX_CHANNELS" in given:
        message = "NVIDIA_IMEX_CHANNELS: channels are claimed through a ComputeDomain"
        yield finding(NO_COUNTERPART, pod.document, given["NVIDIA_IMEX_CHANNELS"].path, message)


_HOST_GPU = re.compile(
    r"/dev(/nvidia.*)?|/usr/local/nvidia.*|/run/nvidia(?!/mps).*|/home/kubernetes/bin/nvidia.*"
    r"|.*/lib(nvidia-|cuda\.so).*|/proc/driver/nvidia.*"
)


def mounts(pod: PodSpecAt, users: Sequence[ContainerAt]) -> Iterator[MigrationFinding]:
    """Device files and driver libraries of the host, and privileged containers that have GPUs."""
    for index, volume in enumerate(items(pod.spec.get("volumes"))):
        folder = str(value_at(volume, ("hostPath", "path")) or "").rstrip("/")
        if folder and _HOST_GPU.fullmatch(folder):
            message = f"volume {volume.get('name')} is {folder} of the host"
            severity = FindingSeverity.WARNING if folder == "/dev" and not users else None
            yield finding(BYPASS, pod.document, (*pod.path, "volumes", index), message, severity=severity)
    for container in users:
        if value_at(container.obj, ("securityContext", "privileged")) is True:
            path = (*container.path, "securityContext", "privileged")
            message = f"{container.name} is privileged, so it sees all GPUs of its node regardless of its claim"
            yield finding(BYPASS, pod.document, path, message, severity=FindingSeverity.WARNING)
