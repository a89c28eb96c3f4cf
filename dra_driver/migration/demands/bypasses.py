"""How pods reach GPUs that nobody counts: variables of the NVIDIA runtime, files of the host, privileges. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence

from dra_driver.migration.codes import BYPASS, NO_COUNTERPART, Severity
from dra_driver.migration.model import ContainerAt, Finding, PodSpecAt, finding, value_at
from dra_driver.migration.read.variables import VISIBLE, Variable, items, sees_all, variables


def bypasses(pod: PodSpecAt, users: Sequence[ContainerAt] = ()) -> tuple[Finding, ...]:
    """Of a pod that asks for none: how it reaches GPUs all the same. `users` are those who get a claim even so."""
    found = [*mounts(pod, users)]
    for container in pod.containers:
        given = variables(container)
        if sees_all(container):
            variable = given[VISIBLE]
            message = f"{container.name} sees GPUs by {VISIBLE}={variable.value}, and asks for none"
            found.append(finding(BYPASS, pod.document, variable.path, message))
        found += administration(pod, given)
    return tuple(found)


def administration(pod: PodSpecAt, given: Mapping[str, Variable]) -> Iterator[Finding]:
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


def mounts(pod: PodSpecAt, users: Sequence[ContainerAt]) -> Iterator[Finding]:
    """Device files and driver libraries of the host, and privileged containers that have GPUs."""
    for index, volume in enumerate(items(pod.spec.get("volumes"))):
        folder = str(value_at(volume, ("hostPath", "path")) or "").rstrip("/")
        if folder and _HOST_GPU.fullmatch(folder):
            message = f"volume {volume.get('name')} is {folder} of the host"
            severity = Severity.WARNING if folder == "/dev" and not users else None
            yield finding(BYPASS, pod.document, (*pod.path, "volumes", index), message, severity=severity)
    for container in users:
        if value_at(container.obj, ("securityContext", "privileged")) is True:
            path = (*container.path, "securityContext", "privileged")
            message = f"{container.name} is privileged, and so sees all GPUs of its node whatever its claim says"
            yield finding(BYPASS, pod.document, path, message, severity=Severity.WARNING)
