"""KServe's services: the groups of pods that they mean, and the claim templates that KServe writes for them. Pure.

Models, images and arguments come from ServingRuntimes and LLMInferenceServiceConfigs, which are not read: what decides
about nodes and devices is nearly always in the service itself. Source: KServe's controllers at aaac4e294 (after 0.20).
"""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from dra_driver.api.core import DEFAULT_NAMESPACE
from dra_driver.api.meta import RESOURCE_CLAIM_TEMPLATES, JsonObject
from dra_driver.api.untyped import list_in, map_in

SERVING_GROUP = "serving.kserve.io"
SERVING_MODE = f"{SERVING_GROUP}/deploymentMode"
_STANDARD = ("Standard", "RawDeployment")
_POD_FIELDS = (
    *("affinity", "containers", "imagePullSecrets", "initContainers", "nodeSelector", "priorityClassName"),
    *("resourceClaims", "runtimeClassName", "schedulerName", "securityContext", "serviceAccountName"),
    *("tolerations", "topologySpreadConstraints", "volumes"),
)
_FRAMEWORKS = (
    *("model", "huggingface", "lightgbm", "onnx", "paddle", "pmml", "pytorch", "sklearn", "tensorflow", "triton"),
    *("xgboost", "art"),
)
"""Fields of a predictor or an explainer that are a container but for its name."""
_CONTAINER_FIELDS = ("args", "command", "env", "image", "ports", "resources", "securityContext", "volumeMounts")

_MANAGED = f"{SERVING_GROUP}/exp-dra-"
_MANAGED_CLAIM = "managed-device"


@dataclass(frozen=True, slots=True)
class ServingPods:
    """Pods of one template. `suffix` comes after the service's name in theirs. With `workers`, each of the `replicas`
    is a leader with `size - 1` workers of that template."""

    suffix: str
    template: JsonObject
    replicas: int
    workers: JsonObject | None = None
    size: int = 1


def serving_pods(service: JsonObject) -> Iterator[ServingPods]:
    """Of an InferenceService or an LLMInferenceService; nothing of other objects."""
    if service.get("kind") == "InferenceService":
        yield from _inference(service)
    elif service.get("kind") == "LLMInferenceService":
        yield from _language_model(service)


def managed_template(service: JsonObject) -> JsonObject | None:
    """The ResourceClaimTemplate that KServe writes for the annotations `exp-dra-…` of an LLMInferenceService."""
    class_name = _managed(service, "device-class")
    if service.get("kind") != "LLMInferenceService" or not class_name:
        return None
    request: JsonObject = {"deviceClassName": class_name}
    namespace = map_in(service.get("metadata")).get("namespace") or DEFAULT_NAMESPACE
    count = _managed(service, "device-count")
    if count.isdecimal() and int(count) > 1:
        request["count"] = int(count)
    if lines := [line.strip() for line in _managed(service, "cel-selector").splitlines() if line.strip()]:
        request["selectors"] = [{"cel": {"expression": line}} for line in lines]
    return {
        "apiVersion": RESOURCE_CLAIM_TEMPLATES.api_version,
        "kind": RESOURCE_CLAIM_TEMPLATES.kind,
        "metadata": {"name": _managed_name(service), "namespace": namespace},
        "spec": {"spec": {"devices": {"requests": [{"name": "device", "exactly": request}]}}},
    }


def mode_without_claims(service: JsonObject) -> str | None:
    """The mode in which an InferenceService runs, if its pods keep no claims in it; empty: KServe's default, which is
    Knative unless the installation says otherwise."""
    mode = str(_annotations(service).get(SERVING_MODE) or "")
    return None if service.get("kind") != "InferenceService" or mode in _STANDARD else mode


# -- InferenceService


def _inference(service: JsonObject) -> Iterator[ServingPods]:
    keeps_claims = mode_without_claims(service) is None
    for component in ("predictor", "transformer", "explainer"):
        spec = map_in(map_in(service.get("spec")).get(component))
        if not spec:
            continue
        pod = _pod_of_component(spec, "kserve-container")
        replicas = _number(spec.get("minReplicas"), 1)
        workers = map_in(spec.get("workerSpec"))
        size = _number(workers.get("pipelineParallelSize"), 1)
        worker_pod = _pod_of_component(workers, "worker-container") if workers else None
        for made in (pod, worker_pod):
            if made is not None and workers:
                _want_gpus(made, _number(workers.get("tensorParallelSize"), 1))
            if made is not None and not keeps_claims:
                _without_claims(made)
        about = {"labels": {**map_in(spec.get("labels")), "component": component}}
        template = {"metadata": about, "spec": pod}
        worker_template = {"metadata": about, "spec": worker_pod} if worker_pod is not None and size > 1 else None
        yield ServingPods(f"-{component}", template, replicas, worker_template, size if worker_template else 1)


def _pod_of_component(spec: JsonObject, name: str) -> JsonObject:
    """Its fields are those of a pod, beside fields of KServe, one of which can stand for the container `name`."""
    pod: JsonObject = {field: deepcopy(spec[field]) for field in _POD_FIELDS if field in spec}
    containers = _maps(pod.get("containers"))
    model = next((spec[field] for field in _FRAMEWORKS if isinstance(spec.get(field), dict)), None)
    if model is not None or not containers:
        own = {field: deepcopy(model[field]) for field in _CONTAINER_FIELDS if field in model} if model else {}
        containers = [{"name": name, **own}, *containers]
    for container in containers:
        container.setdefault("name", name)
        container.setdefault("image", "kserve/runtime")
    pod["containers"] = containers
    return pod


def _want_gpus(pod: JsonObject, count: int) -> None:
    """With workers, a container without GPUs gets as many as tensors are split over."""
    container = pod["containers"][0]
    resources = map_in(container.get("resources"))
    limits = map_in(resources.get("limits"))
    if not resources.get("claims") and not any("gpu" in str(name) for name in limits):
        container["resources"] = {**resources, "limits": {**limits, "nvidia.com/gpu": count}}


def _without_claims(pod: JsonObject) -> None:
    """Knative's Services, which are KServe's default, have limits and requests of containers, and no claims."""
    pod.pop("resourceClaims", None)
    for container in pod["containers"]:
        map_in(container.get("resources")).pop("claims", None)


# -- LLMInferenceService


def _language_model(service: JsonObject) -> Iterator[ServingPods]:
    spec = map_in(service.get("spec"))
    for suffix, part in (("", spec), ("-prefill", map_in(spec.get("prefill")))):
        if not part and suffix:
            continue
        workers = map_in(part.get("worker"))
        yield ServingPods(
            f"-kserve{'-mn' if workers else ''}{suffix}",
            _template_of_model(service, map_in(part.get("template"))),
            _number(part.get("replicas"), 1),
            _template_of_model(service, workers) if workers else None,
            _group_size(map_in(part.get("parallelism"))) if workers else 1,
        )


def _template_of_model(service: JsonObject, spec: JsonObject) -> JsonObject:
    pod = deepcopy(spec)
    pod["containers"] = _maps(pod.get("containers")) or [{"name": "main"}]
    for container in pod["containers"]:
        container.setdefault("image", "ghcr.io/llm-d/llm-d-cuda")
    if _managed(service, "device-class"):
        _add_managed_claim(service, pod)
    return {"spec": pod}


def _add_managed_claim(service: JsonObject, pod: JsonObject) -> None:
    """For the container that the annotation names, else for the first."""
    name, containers = _managed(service, "container-name"), pod["containers"]
    target = next((item for item in containers if item.get("name") == name), containers[0])
    claim = {"name": _MANAGED_CLAIM, "resourceClaimTemplateName": _managed_name(service)}
    resources = map_in(target.get("resources"))
    pod["resourceClaims"] = [*_maps(pod.get("resourceClaims")), claim]
    target["resources"] = {**resources, "claims": [*_maps(resources.get("claims")), {"name": _MANAGED_CLAIM}]}


def _managed(service: JsonObject, name: str) -> str:
    return str(_annotations(service).get(f"{_MANAGED}{name}") or "").strip()


def _managed_name(service: JsonObject) -> str:
    return f"{map_in(service.get('metadata')).get('name')}-managed-dra"


def _group_size(parallelism: JsonObject) -> int:
    """How many pods are one replica: by data, else by pipeline."""
    data, local = _number(parallelism.get("data"), 0), _number(parallelism.get("dataLocal"), 0)
    if data or local:
        return max(max(data, 1) // max(local, 1), 1)
    return max(_number(parallelism.get("pipeline"), 1), 1)


def _annotations(service: JsonObject) -> JsonObject:
    return map_in(map_in(service.get("metadata")).get("annotations"))


def _number(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else default


def _maps(value: Any) -> list[JsonObject]:
    return [item for item in list_in(value) if isinstance(item, dict)]
