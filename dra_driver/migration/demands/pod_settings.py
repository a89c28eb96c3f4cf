"""Pod settings about GPUs other than requests: variables of the NVIDIA runtime and of CUDA, mounts of the host, the
runtime class, the scheduler, tolerations. Pure.

Source: the reference on migration sources, section 5; libnvidia-container's variables.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dra_driver.api.untyped import Path, list_in, maps_in, value_at
from dra_driver.checking.codes import Severity
from dra_driver.migration import codes
from dra_driver.migration.demands.resources import PodNotes
from dra_driver.migration.model import (
    ContainerAt,
    MigrationFinding,
    PodSpecAt,
    Put,
    Remove,
    finding,
    shared_group,
)
from dra_driver.migration.understand.labels import quoted

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
NONE_VISIBLE = ("none", "void", "")


@dataclass(frozen=True, slots=True)
class Variable:
    """`value` None: it comes from elsewhere."""

    value: str | None
    path: Path


def variables(container: ContainerAt) -> dict[str, Variable]:
    by_name = {}
    for index, item in enumerate(list_in(container.obj.get("env"))):
        if isinstance(item, dict) and isinstance(item.get("name"), str):
            value = item.get("value")
            text = None if "valueFrom" in item else "" if value is None else str(value)
            by_name[item["name"]] = Variable(text, (*container.path, "env", index))
    return by_name


def sees_all(container: ContainerAt) -> bool:
    """Whether the NVIDIA runtime adds GPUs that the scheduler does not count."""
    variable = variables(container).get(VISIBLE)
    return variable is not None and variable.value not in (None, *NONE_VISIBLE)


def bypasses(pod: PodSpecAt, users: Sequence[ContainerAt] = ()) -> tuple[MigrationFinding, ...]:
    """How a pod that asks for no GPU reaches GPUs. `users` are its containers that get a claim for monitoring."""
    findings = [*mounts(pod, users)]
    for container in pod.containers:
        given = variables(container)
        if sees_all(container):
            variable = given[VISIBLE]
            message = f"{container.name} sees GPUs by {VISIBLE}={variable.value}, and asks for none"
            findings.append(finding(codes.BYPASS, pod.document, variable.path, message))
        findings += administration(pod, given)
    return tuple(findings)


def administration(pod: PodSpecAt, given: Mapping[str, Variable]) -> Iterator[MigrationFinding]:
    for name in ("NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"):
        if name in given and given[name].value:
            message = f"{name}: only the driver partitions GPUs, and it grants no right to do so"
            yield finding(codes.NO_COUNTERPART, pod.document, given[name].path, message)
    if "NVIDIA_IMEX_CHANNELS" in given:
        message = "NVIDIA_IMEX_CHANNELS: channels are claimed through a ComputeDomain"
        yield finding(codes.NO_COUNTERPART, pod.document, given["NVIDIA_IMEX_CHANNELS"].path, message)


_HOST_GPU = re.compile(
    r"/dev(/nvidia.*)?|/usr/local/nvidia.*|/run/nvidia(?!/mps).*|/home/kubernetes/bin/nvidia.*"
    r"|.*/lib(nvidia-|cuda\.so).*|/proc/driver/nvidia.*"
)


def _host_folders(pod: PodSpecAt) -> Iterator[tuple[str, Path, object]]:
    """Folders of the host that are volumes of the pod, with the path and the name of the volume."""
    for index, volume in enumerate(maps_in(pod.spec.get("volumes"))):
        folder = str(value_at(volume, ("hostPath", "path")) or "").rstrip("/")
        yield folder, (*pod.path, "volumes", index), volume.get("name")


def mounts(pod: PodSpecAt, users: Sequence[ContainerAt]) -> Iterator[MigrationFinding]:
    """Device files and driver libraries of the host, and privileged containers that have GPUs."""
    for folder, path, name in _host_folders(pod):
        if _HOST_GPU.fullmatch(folder):
            severity = Severity.WARNING if folder == "/dev" and not users else None
            message = f"volume {name} is {folder} of the host"
            yield finding(codes.BYPASS, pod.document, path, message, severity=severity)
    for container in users:
        if value_at(container.obj, ("securityContext", "privileged")) is True:
            path = (*container.path, "securityContext", "privileged")
            message = f"{container.name} is privileged, so it sees all GPUs of its node regardless of its claim"
            yield finding(codes.BYPASS, pod.document, path, message, severity=Severity.WARNING)


_UUID = re.compile(r"(GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_BEGINNING = re.compile(r"(GPU|MIG)-[0-9a-f][0-9a-f-]*", re.IGNORECASE)
"""Of a UUID: CUDA accepts a unique prefix."""


def settings(notes: PodNotes, users: Sequence[ContainerAt], resources: Collection[str]) -> Mapping[Path, list[str]]:
    """Of a pod that asks for GPUs: `users` are its containers that do, `resources` what they asked by.

    Returns selectors by the path of the container whose devices they are for."""
    pod = notes.pod
    paths = {container.path for container in users}
    selectors: dict[Path, list[str]] = {}
    group = shared_group(pod.document, notes.options)
    if group is not None:
        message = f"all pods of {', '.join(group)} share one ResourceClaim"
        notes.say_with_claims(codes.SHARED_CLAIM, pod.path, message, fixed=False)
    for container in pod.containers:
        given = variables(container)
        if container.path in paths:
            selectors[container.path] = list(_of_user(notes, container, given))
        elif sees_all(container):
            _of_onlooker(notes, container, given[VISIBLE], users[0])
        notes.findings += administration(pod, given)
    _mps(notes, users)
    _runtime_class(notes)
    _scheduler(notes, resources)
    _node_name(notes)
    _tolerations(notes, resources)
    notes.findings += mounts(pod, users)
    return selectors


def scheduler_of(pod: PodSpecAt) -> tuple[str | None, Path]:
    """Other than the default one, and where that is said: in the pod, or in the object that it is made of. Jobs of
    Volcano need not say it."""
    own = (*pod.path, "schedulerName")
    of_volcano = pod.document.api_version.startswith(_OF_VOLCANO)
    for path in (own, *_SCHEDULERS_OF_OBJECTS, *(_SCHEDULERS_OF_VOLCANO if of_volcano else ())):
        name = pod.spec.get("schedulerName") if path is own else value_at(pod.document.obj, path)
        if isinstance(name, str) and name:
            return (None if name == "default-scheduler" else name), path
    return ("volcano", ("spec",)) if of_volcano else (None, own)


# -- variables of a container that asks for GPUs


def _of_user(notes: PodNotes, container: ContainerAt, given: Mapping[str, Variable]) -> Iterator[str]:
    """Yields selectors for its devices."""
    visible, cuda = given.get(VISIBLE), given.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.value is None:
        message = f"{VISIBLE} is set elsewhere; with claims it has no effect"
        notes.say(codes.SETTING_KEPT, visible.path, message)
    elif visible is not None and visible.value not in NONE_VISIBLE:
        yield from _pinned(notes, VISIBLE, visible)
        message = f"{VISIBLE}={visible.value} is removed from {container.name}: its claim decides what it gets"
        notes.say_with_claims(codes.SETTING_REMOVED, visible.path, message)
        notes.edits.append(Remove(visible.path))
        # The driver's CDI edits replace the variable; the device plugin did not.
        message = f"{VISIBLE}={visible.value} has no effect: {container.name} sees only the GPUs that it asks for"
        notes.say_with_extended(codes.SETTING_KEPT, visible.path, message)
    if cuda is not None:
        yield from _pinned(notes, "CUDA_VISIBLE_DEVICES", cuda)


def _pinned(notes: PodNotes, name: str, variable: Variable) -> Iterator[str]:
    uuids = uuids_of(variable.value or "")
    if uuids:
        yield _with_uuid(f"{notes.options.attributes}.uuid", uuids)
        notes.needs_claims.append("it asks for certain GPUs, which extended resources cannot express")
        notes.say_with_claims(codes.PINNED_GPU, variable.path, f"{name} became a selector for these UUIDs")


def _of_onlooker(notes: PodNotes, container: ContainerAt, visible: Variable, user: ContainerAt) -> None:
    """Asks for none, and sees those of its pod's other containers, and all others of the node."""
    if notes.options.share_visible_all:
        message = f"{container.name} shares the GPUs of {user.name}, and no longer sees all of the node"
        notes.say_with_claims(codes.BYPASS, visible.path, message, severity=Severity.INFO)
        notes.edits.append(Remove(visible.path))
        notes.needs_claims.append(f"{container.name} shares GPUs, which extended resources cannot express")
        return
    advice = "If it should share the GPUs of the pod's other containers, decide `shareVisibleAll: true`."
    message = f"{container.name} sees all GPUs of its node by {VISIBLE}={visible.value}, and asks for none"
    notes.say(codes.BYPASS, visible.path, message, advice=advice)


_MPS_FOLDERS = ("/tmp/nvidia-mps", "/run/nvidia/mps", "/var/run/nvidia/mps", "/tmp/nvidia-log")


def _mps(notes: PodNotes, users: Sequence[ContainerAt]) -> None:
    """A daemon of the host that the pod reaches by mounts and variables; or variables alone."""
    given = [(name, variable.path) for user in users for name, variable in variables(user).items()]
    signs = [(folder, path) for folder, path, _ in _host_folders(notes.pod) if folder in _MPS_FOLDERS]
    signs += [(name, path) for name, path in given if name.startswith("CUDA_MPS_PIPE")]
    if signs:
        names = ", ".join(dict.fromkeys(name for name, _ in signs))
        notes.say(codes.HAND_MADE_MPS, signs[0][1], f"it uses an MPS daemon of the host: {names}")
        return
    for name, path in given:
        if name.startswith("CUDA_MPS_"):
            message = f"{name} has an effect only if its devices are shared by MPS"
            notes.say_with_claims(codes.SETTING_KEPT, path, message, fixed=False)


# -- the pod


def _runtime_class(notes: PodNotes) -> None:
    name = notes.pod.spec.get("runtimeClassName")
    path = (*notes.pod.path, "runtimeClassName")
    if not isinstance(name, str) or not name.startswith("nvidia"):
        return
    if notes.options.remove_runtime_class:
        notes.edits.append(Remove(path))
        notes.say_with_claims(codes.SETTING_REMOVED, path, f"runtimeClassName {name}: devices come by CDI")
    else:
        message = f"runtimeClassName {name} is not needed: devices come by CDI"
        notes.say_with_claims(codes.SETTING_KEPT, path, message, fixed=False)


def _scheduler(notes: PodNotes, resources: Collection[str]) -> None:
    """What KAI does with extended resources, `dra_driver.migration.claims.frameworks` says.

    Source: Volcano 1.16, its action `allocate`, which looks for the resource in what the node has left.
    """
    name, path = scheduler_of(notes.pod)
    if name is None:
        return
    if re.search(r"hami|gpushare|gpu-share|gpu-admission|4pd-vgpu", name):
        if "schedulerName" in notes.pod.inherited:
            message = f"schedulerName {name}, which is set elsewhere, does not support claims"
            notes.say_with_claims(codes.OTHER_SCHEDULER, path, message, severity=Severity.ERROR, fixed=False)
            return
        notes.edits.append(Remove(path))
        message = f"schedulerName {name} is removed: it does not support claims, and the default scheduler does"
        notes.say_with_claims(codes.OTHER_SCHEDULER, path, message, severity=Severity.INFO)
        return
    needs = next((words for part, words in _SCHEDULERS.items() if part in name), "check its documentation")
    message = f"schedulerName {name} stays, and must support claims: {needs}"
    notes.say_with_claims(codes.OTHER_SCHEDULER, path, message, fixed=False)
    if "volcano" in name:
        why = "Volcano supports extended resources of device plugins only, not those of a DeviceClass"
        notes.prefers_claims.append(why)
        message = f"schedulerName {name}: Volcano finds no {' or '.join(resources)} on nodes of the driver"
        advice, severity = "Use claims, or the default scheduler.", Severity.ERROR
    elif "kai" in name or "runai" in name:
        return
    else:
        message = f"schedulerName {name} must support extended resources that a DeviceClass answers"
        advice = "Check its documentation; otherwise use claims (`strategy: claims`)."
        severity = Severity.WARNING
    notes.say_with_extended(codes.OTHER_SCHEDULER, path, message, advice=advice, severity=severity)


def _node_name(notes: PodNotes) -> None:
    name = notes.pod.spec.get("nodeName")
    path = (*notes.pod.path, "nodeName")
    if not isinstance(name, str) or not name:
        return
    notes.edits += [Remove(path), Put((*notes.pod.path, "nodeSelector", "kubernetes.io/hostname"), name)]
    message = f"nodeName {name} became a nodeSelector: a pod that bypasses the scheduler gets no devices"
    notes.say_with_claims(codes.PAST_THE_SCHEDULER, path, message, severity=Severity.INFO)
    notes.needs_claims.append("with nodeName the scheduler allocates no devices for it")


def _tolerations(notes: PodNotes, resources: Collection[str]) -> None:
    """Of the taint that is named after the resource, as the admission plugin ExtendedResourceToleration does."""
    if not any(resource in ("nvidia.com/gpu", "nvidia.com/gpu.shared") for resource in resources):
        return
    given = maps_in(notes.pod.spec.get("tolerations"))
    key = "nvidia.com/gpu"
    covering = (item for item in given if item.get("effect") in (None, "", "NoSchedule"))
    if any(item.get("key") == key or (not item.get("key") and item.get("operator") == "Exists") for item in covering):
        return
    added = {"key": key, "operator": "Exists", "effect": "NoSchedule"}
    if "tolerations" in notes.pod.inherited:
        path: Path = (*notes.pod.path, "tolerations")
        notes.edits.append(Put(path, [*given, added]))
        message = f"a toleration of the taint {key} is added to those that it inherits"
        notes.say_with_claims(codes.TOLERATION, path, message)
        return
    path = (*notes.pod.path, "tolerations", len(given))
    notes.edits.append(Put(path, added))
    message = f"a toleration of the taint {key} is added"
    if not given and (others := _TOLERATIONS_OF_OTHERS.get(notes.pod.document.kind)):
        message += f"; {others} no longer count: repeat them here"
        notes.say_with_claims(codes.TOLERATION, path, message, severity=Severity.WARNING, fixed=False)
        return
    notes.say_with_claims(codes.TOLERATION, path, message)


_TOLERATIONS_OF_OTHERS: Mapping[str, str] = {
    **dict.fromkeys(("WorkflowTemplate", "ClusterWorkflowTemplate"), "tolerations of workflows that use the template"),
    **dict.fromkeys(("InferenceService", "LLMInferenceService"), "tolerations of its runtime or configs"),
}
"""Kinds whose pods have the tolerations of other objects, unless they have their own."""
_SCHEDULERS_OF_OBJECTS: Sequence[Path] = (
    ("spec", "batchScheduler"),
    ("spec", "template", "batchScheduler"),
    ("metadata", "labels", "ray.io/scheduler-name"),
)
"""Of Spark and Ray. Source: their operators' integrations of batch schedulers."""
_SCHEDULERS_OF_VOLCANO: Sequence[Path] = (("spec", "schedulerName"), ("spec", "jobTemplate", "spec", "schedulerName"))
_OF_VOLCANO = ("batch.volcano.sh/", "flow.volcano.sh/")
_SCHEDULERS: Mapping[str, str] = {
    "volcano": "Volcano does with `predicate.DynamicResourceAllocationEnable: true`",
    "kai": "KAI does if DRA is on in the cluster",
    "runai": "Run:ai's does if DRA is on in the cluster",
}


def uuids_of(value: str) -> list[str]:
    """Of a list with commas, what are UUIDs of GPUs or MIG devices, or the beginnings of some."""
    return [text.strip() for text in value.split(",") if _BEGINNING.fullmatch(text.strip())]


def _with_uuid(attribute: str, uuids: Sequence[str]) -> str:
    whole = [uuid for uuid in uuids if _UUID.fullmatch(uuid)]
    ways = [f"{attribute} in [{', '.join(map(quoted, whole))}]"] if whole else []
    ways += [f"{attribute}.startsWith({quoted(uuid)})" for uuid in uuids if uuid not in whole]
    any_of = " || ".join(ways)
    return f"has({attribute}) && ({any_of})" if len(ways) > 1 else f"has({attribute}) && {any_of}"
