"""Where pods are in an object of each kind, and what in it stands for containers. Pure.

Kinds are known by their table, `dra_driver.migration.read.kind_table`. An object of a kind that is not known is looked
through for what has the shape of a pod's spec.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dra_driver.api.documents import Document
from dra_driver.api.meta import JsonObject
from dra_driver.api.untyped import Path, list_in, map_in, value_at
from dra_driver.migration.model import ClaimForm, ContainerAt, Options, PodSpecAt, Role
from dra_driver.migration.read.kind_table import (
    ARGO,
    DYNAMO,
    EXTENDED_ONLY,
    KSERVE,
    NESTED,
    NIM,
    PODS,
    RESOURCES_ONLY,
    SPARK,
    is_known,
    kind_of,
)
from dra_driver.migration.read.unrendered import speaks_of_gpus


def pods_of(document: Document, options: Options) -> tuple[PodSpecAt, ...]:
    """The pods that an object describes, in its order."""
    return tuple(_Described(document, document.obj, (), options).pods())


_WHOLE_GROUPS = ("", "apps", "batch")


def is_part_of_an_object(document: Document) -> bool:
    """Whether it can only be a patch: the API server takes no container of these kinds without an image."""
    if kind_of(document.obj) not in PODS or kind_of(document.obj)[0] not in _WHOLE_GROUPS:
        return False
    containers = [container for pod in pods_of(document, Options()) for container in pod.containers]
    return bool(containers) and all("image" not in container.obj for container in containers)


@dataclass(frozen=True, slots=True)
class _Described:
    """What an object says of pods: that of a document, or one that it holds at `base`."""

    document: Document
    obj: JsonObject
    base: Path
    options: Options

    def pods(self) -> Iterator[PodSpecAt]:
        key = kind_of(self.obj)
        for pattern in PODS.get(key, ()):
            yield from self._ordinary(pattern)
        patterns, why = EXTENDED_ONLY.get(key, ((), ""))
        for pattern in patterns:
            yield from self._ordinary(pattern, why)
        if key in RESOURCES_ONLY:
            yield from self._resources_only(*RESOURCES_ONLY[key])
        if key in NIM:
            for path, spec, group in self._maps(NIM[key]):
                only = _container(spec, path, name="")
                yield _pod(self.document, spec, path, (), group, (only,), form=ClaimForm.NIM)
        if key in ARGO:
            yield from self._argo(ARGO[key])
        if key in NESTED:
            for path, inner, _ in self._maps(NESTED[key]):
                for pod in _Described(self.document, inner, path, self.options).pods():
                    yield replace(pod, obj=inner) if pod.obj is self.document.obj else pod
        if key == KSERVE:
            yield from self._kserve()
        if key == DYNAMO:
            yield from self._dynamo()
        if key in SPARK:
            yield from self._spark(tuple(SPARK[key].split(".")))
        if not is_known(self.obj) and self.options.unknown_kinds:
            yield from _by_shape(self.document, self.obj, self.base)

    def _maps(self, pattern: str) -> Iterator[tuple[Path, JsonObject, str]]:
        """The maps at a path where `[]` is every item and `*` every value: path in the document, map, and group."""
        for path, value in _matching(self.obj, pattern):
            yield (*self.base, *path), value, _group(self.obj, path)

    def _ordinary(self, pattern: str, why: str = "") -> Iterator[PodSpecAt]:
        for path, spec, group in self._maps(pattern):
            # Beside the spec; of a spec without a template around it, that of the object.
            beside = path[:-1] if path[-1] == "spec" else self.base
            yield _pod(self.document, spec, path, (*beside, "metadata"), group, why=why)

    def _resources_only(self, pattern: str, why: str) -> Iterator[PodSpecAt]:
        for path, resources, group in self._maps(pattern):
            only = ContainerAt("", path[:-1], self.obj, resources_path=path, resources=resources)
            yield _pod(self.document, {}, path[:-1], (), group, (only,), why=why)

    def _argo(self, where: str) -> Iterator[PodSpecAt]:
        workflow = value_at(self.obj, tuple(where.split("."))) or {}
        for pattern in (f"{where}.templates[]", f"{where}.templateDefaults"):
            for path, template, _ in self._maps(pattern):
                if containers := tuple(_argo_containers(template, path)):
                    more = _inherited(workflow, template) if "templates" in path else {}
                    why = _why_no_claims_of_argo(workflow, template, self.options)
                    if "templateDefaults" in path:
                        why = "templateDefaults are for all templates; ask for GPUs in the templates that need them"
                    spec, group = {**template, **more}, _text(template.get("name"))
                    metadata = (*path, "metadata")
                    pod = _pod(self.document, spec, path, metadata, group, containers, form=ClaimForm.ARGO, why=why)
                    yield replace(pod, inherited=frozenset(more))

    def _kserve(self) -> Iterator[PodSpecAt]:
        mode = value_at(self.obj, ("metadata", "annotations", _MODE_ANNOTATION))
        raw = mode in _RAW_MODES or (mode is None and self.options.kserve_standard)
        why = "" if raw else _why_not_raw(mode)
        for pattern in ("predictor", "transformer", "explainer", "canary[].predictor"):
            for field in (pattern, f"{pattern}.workerSpec"):
                for path, spec, _ in self._maps(f"spec.{field}"):
                    group = "-".join(str(item) for item in path[len(self.base) + 1 :])
                    containers = (*_containers(spec, path), *_kserve_models(spec, path))
                    yield _pod(self.document, spec, path, (*self.base, "metadata"), group, containers, why=why)

    def _dynamo(self) -> Iterator[PodSpecAt]:
        """Services of v1alpha1, which count GPUs and have no pod."""
        why = "a service of a DynamoGraphDeployment counts GPUs; components of v1beta1 have pods with claims"
        for path, service, _ in self._maps("spec.services.*"):
            limits = value_at(service, ("resources", "limits"))
            if isinstance(limits, dict) and (asked := _dynamo_resources(limits)):
                only = ContainerAt(
                    "main", path, service, resources_path=(*path, "resources"), resources={"limits": asked}
                )
                spec = map_in(service.get("extraPodSpec"))
                yield _pod(self.document, spec, (*path, "extraPodSpec"), (), str(path[-1]), (only,), why=why)

    def _spark(self, spec_path: Path) -> Iterator[PodSpecAt]:
        spec = value_at(self.obj, spec_path)
        for role in ("driver", "executor"):
            gpu = value_at(spec, (role, "gpu"))
            if isinstance(gpu, dict) and isinstance(gpu.get("name"), str):
                yield self._spark_pod((*spec_path, role, "gpu"), role, {gpu["name"]: gpu.get("quantity", 1)})
        conf = map_in(value_at(spec, ("sparkConf",)))
        for name, amount in conf.items():
            match = _SPARK_AMOUNT.fullmatch(name)
            if match is not None:
                vendor = conf.get(name.replace(".amount", ".vendor"), "nvidia.com")
                yield self._spark_pod((*spec_path, "sparkConf", name), match[1], {f"{vendor}/gpu": amount})

    def _spark_pod(self, at: Path, role: str, limits: JsonObject) -> PodSpecAt:
        path = (*self.base, *at)
        only = ContainerAt(role, path, {}, resources_path=path, resources={"limits": limits})
        why = "Spark creates the extended resource from vendor and amount"
        return _pod(self.document, {}, path, (), role, (only,), why=why)


def _pod(
    document: Document,
    spec: JsonObject,
    path: Path,
    metadata_path: Path,
    group: str = "",
    containers: tuple[ContainerAt, ...] | None = None,
    *,
    form: ClaimForm = ClaimForm.POD,
    why: str = "",
) -> PodSpecAt:
    """`containers` None: those of the spec. `why` it can have no claims; empty: it can."""
    return PodSpecAt(
        document,
        path,
        spec,
        metadata_path,
        map_in(value_at(document.obj, metadata_path)),
        tuple(_containers(spec, path)) if containers is None else containers,
        ClaimForm.NONE if why else form,
        why,
        group,
        obj=document.obj,
    )


def _containers(spec: JsonObject, path: Path) -> Iterator[ContainerAt]:
    yield from _listed(spec, path, "containers", Role.APP)
    yield from _listed(spec, path, "initContainers", Role.INIT)
    yield from _listed(spec, path, "ephemeralContainers", Role.EPHEMERAL)


def _listed(holder: JsonObject, path: Path, field: str, role: Role) -> Iterator[ContainerAt]:
    for index, container in enumerate(list_in(holder.get(field))):
        if isinstance(container, dict):
            yield _container(container, (*path, field, index), role)


def _container(obj: JsonObject, path: Path, role: Role = Role.APP, name: str | None = None) -> ContainerAt:
    if role is Role.INIT and obj.get("restartPolicy") == "Always":
        role = Role.SIDECAR
    given_name = _text(obj.get("name")) if name is None else name
    return ContainerAt(given_name, path, obj, role, (*path, "resources"), map_in(obj.get("resources")))


# -- frameworks


def _why_no_claims_of_argo(workflow: JsonObject, template: JsonObject, options: Options) -> str:
    patches = (workflow.get("podSpecPatch"), _defaults(workflow).get("podSpecPatch"), template.get("podSpecPatch"))
    if any(isinstance(patch, str) and speaks_of_gpus(patch) for patch in patches):
        return "a podSpecPatch of its workflow is about GPUs, too, and is not read"
    if options.argo_resource_claims or "resourceClaims" in template:
        return ""
    return "older releases of Argo Workflows keep no claims (if yours does: `argoResourceClaims: true`)"


def _inherited(workflow: JsonObject, template: JsonObject) -> JsonObject:
    """Fields of a template's pod that it has from the workflow or its defaults. A template with its own list of
    tolerations has none of theirs. Source: Argo Workflows, addSchedulingConstraints and mergedTemplateDefaultsInto."""
    defaults = _defaults(workflow)
    inherited = {
        name: value
        for name in ("nodeSelector", "affinity", "schedulerName")
        if not template.get(name) and (value := defaults.get(name) or workflow.get(name))
    }
    if workflow.get("tolerations") and not template.get("tolerations") and not defaults.get("tolerations"):
        inherited["tolerations"] = workflow["tolerations"]
    return inherited


def _defaults(workflow: JsonObject) -> JsonObject:
    return map_in(workflow.get("templateDefaults"))


def _argo_containers(template: JsonObject, path: Path) -> Iterator[ContainerAt]:
    for field in ("container", "script"):
        if isinstance(item := template.get(field), dict):
            yield _container(item, (*path, field), name="main")
    yield from _listed(map_in(template.get("containerSet")), (*path, "containerSet"), "containers", Role.APP)
    yield from _listed(template, path, "sidecars", Role.APP)
    yield from _listed(template, path, "initContainers", Role.INIT)


_RAW_MODES = ("RawDeployment", "Standard")
_MODE_ANNOTATION = "serving.kserve.io/deploymentMode"


def _why_not_raw(mode: object) -> str:
    if mode is None:
        return (
            f"KServe's default mode uses Knative, which keeps no claims (annotation {_MODE_ANNOTATION}: "
            "Standard, or `kserveStandard: true`, says otherwise)"
        )
    return f"KServe's mode {mode} uses Knative, which keeps no claims"


def _kserve_models(spec: JsonObject, path: Path) -> Iterator[ContainerAt]:
    """`model`, or a key of a framework such as `triton`: a container but for its name."""
    for field, item in spec.items():
        if isinstance(item, dict) and isinstance(item.get("resources"), dict) and field != "workerSpec":
            yield _container(item, (*path, field), name=_text(item.get("name")) or "kserve-container")


def _dynamo_resources(limits: JsonObject) -> JsonObject:
    """As its operator writes them into the pod: GPUs of any type, and resources under their own names."""
    asked = dict(map_in(limits.get("custom")))
    if "gpu" in limits:
        asked[_text(limits.get("gpuType")) or "nvidia.com/gpu"] = limits["gpu"]
    return asked


_SPARK_AMOUNT = re.compile(r"spark\.(driver|executor)\.resource\.gpu\.amount")


_DEEPEST = 30


def _by_shape(document: Document, value: object, path: Path) -> Iterator[PodSpecAt]:
    """Any map with a list `containers` whose items have a name, and an image or resources."""
    if len(path) > _DEEPEST:
        return
    if isinstance(value, dict):
        if looks_like_a_pod(value):
            yield _pod(document, value, path, (*path[:-1], "metadata"))
            return
        for key, inner in value.items():
            yield from _by_shape(document, inner, (*path, str(key)))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _by_shape(document, inner, (*path, index))


def looks_like_a_pod(value: Mapping[str, Any]) -> bool:
    containers = value.get("containers")
    return (
        isinstance(containers, list)
        and bool(containers)
        and all(
            isinstance(container, dict) and "name" in container and ("image" in container or "resources" in container)
            for container in containers
        )
    )


def pods_by_shape(document: Document) -> tuple[PodSpecAt, ...]:
    """Of an object of an unknown kind, also if they are not converted."""
    return () if is_known(document.obj) else tuple(_by_shape(document, document.obj, ()))


# -- paths with every item


def _matching(obj: object, pattern: str) -> Iterator[tuple[Path, JsonObject]]:
    """The maps at a path where `[]` is every item and `*` every value."""
    yield from _follow(obj, tuple(pattern.replace("[]", ".[]").split(".")), ())


def _follow(value: object, steps: tuple[str, ...], path: Path) -> Iterator[tuple[Path, JsonObject]]:
    if not steps:
        if isinstance(value, dict):
            yield path, value
        return
    step, *rest = steps
    if step == "[]":
        for index, item in enumerate(list_in(value)):
            yield from _follow(item, tuple(rest), (*path, index))
    elif isinstance(value, dict):
        for key in tuple(value) if step == "*" else (step,):
            if key in value:
                yield from _follow(value[key], tuple(rest), (*path, key))


def _group(obj: JsonObject, path: Path) -> str:
    """The name of the role, group or task that the pod is of: the item's name, or the key in a map."""
    for length in range(len(path), 0, -1):
        part = path[length - 1]
        if isinstance(part, int):
            item = map_in(value_at(obj, path[:length]))
            name = item.get("name", item.get("groupName"))
            return name if isinstance(name, str) else str(part)
        if length > 1 and str(path[length - 2]).endswith("ReplicaSpecs"):
            return part
        if part in ("headGroupSpec", "leaderTemplate", "workerTemplate", "worker", "prefill", "driver", "executor"):
            return part.removesuffix("GroupSpec").removesuffix("Template")
    return ""


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
