"""What KServe merges a service's pods over stays theirs when the service gets claims."""

from typing import Any

import pytest
import yaml

from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import ManifestText, Migration, Options, StrategyOption

DEDICATED = {"key": "dedicated", "operator": "Exists"}
OF_GPUS = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
LABEL = {"nvidia.com/gpu.product": "NVIDIA-L40S"}
L40S = "device.attributes['gpu.nvidia.com'].productName.replace(' ', '-') == 'NVIDIA-L40S'"
ONE = {"limits": {"nvidia.com/gpu": 1}}


def obj(kind: str, name: str, spec: dict[str, Any], version: str = "v1beta1", **metadata: Any) -> dict[str, Any]:
    metadata = {"name": name, **metadata}
    return {"apiVersion": f"serving.kserve.io/{version}", "kind": kind, "metadata": metadata, "spec": spec}


def runtime(kind: str = "ServingRuntime", name: str = "onnx", **more: Any) -> dict[str, Any]:
    containers = [{"name": "kserve-container", "image": "i"}]
    spec = {"tolerations": [DEDICATED], "nodeSelector": LABEL, "containers": containers, **more}
    return obj(kind, name, spec, "v1alpha1")


def service(model: dict[str, Any], **more: Any) -> dict[str, Any]:
    annotations = {"serving.kserve.io/deploymentMode": "Standard"}
    spec = {"predictor": {"model": {"modelFormat": {"name": "onnx"}, **model, "resources": ONE}, **more}}
    return obj("InferenceService", "chat", spec, annotations=annotations)


def migrated(*objects: dict[str, Any]) -> Migration:
    text = "---\n".join(yaml.safe_dump(one, sort_keys=False) for one in objects)
    return migrate([ManifestText("a.yaml", text)], Options(strategy=StrategyOption.CLAIMS))


def after(*objects: dict[str, Any]) -> tuple[Any, Any]:
    """The request, and the service."""
    found = list(yaml.safe_load_all(migrated(*objects).files[0].after))
    request = next(one for one in found if one["kind"] == "ResourceClaimTemplate")["spec"]["spec"]["devices"][
        "requests"
    ]
    return request[0]["exactly"], found[-1]


@pytest.mark.parametrize(
    ("base", "model"),
    [
        (runtime(), {"runtime": "onnx"}),
        (runtime("ClusterServingRuntime"), {"runtime": "onnx"}),
        (runtime(supportedModelFormats=[{"name": "onnx", "autoSelect": True}]), {}),
    ],
    ids=["named", "of-the-cluster", "chosen"],
)
def test_a_service_keeps_tolerations_and_labels_of_its_runtime(base: dict[str, Any], model: dict[str, Any]) -> None:
    """KServe's merge takes a service's list of tolerations instead of the runtime's."""
    request, found = after(base, service(model))
    assert found["spec"]["predictor"]["tolerations"] == [DEDICATED, OF_GPUS]
    assert request["selectors"] == [{"cel": {"expression": L40S}}]
    assert "nodeSelector" not in found["spec"]["predictor"]


def test_what_a_service_says_itself_is_not_taken_from_its_runtime() -> None:
    own = {"tolerations": [{"key": "own"}], "nodeSelector": {"zone": "a"}}
    request, found = after(runtime(), service({"runtime": "onnx"}, **own))
    assert found["spec"]["predictor"]["tolerations"] == [{"key": "own"}, OF_GPUS]
    assert "selectors" not in request


def test_another_runtime_is_not_its_own() -> None:
    for base in (runtime(name="other"), {**runtime(), "metadata": {"name": "onnx", "namespace": "b"}}):
        one = service({"runtime": "onnx"})
        one["metadata"]["namespace"] = "a"
        assert after(base, one)[1]["spec"]["predictor"]["tolerations"] == [OF_GPUS]


def test_a_service_keeps_what_its_configs_say_the_last_one_first() -> None:
    first = obj("LLMInferenceServiceConfig", "z", {"template": {"tolerations": [{"key": "z"}]}}, "v1alpha1")
    last = obj("LLMInferenceServiceConfig", "a", {"template": {"tolerations": [DEDICATED]}}, "v1alpha1")
    containers = [{"name": "main", "image": "i", "resources": ONE}]
    spec = {"baseRefs": [{"name": "z"}, {"name": "a"}], "template": {"containers": containers}}
    _, found = after(first, last, obj("LLMInferenceService", "chat", spec, "v1alpha1"))
    assert found["spec"]["template"]["tolerations"] == [DEDICATED, OF_GPUS]


def test_a_second_run_changes_nothing() -> None:
    done = migrated(runtime(), service({"runtime": "onnx"}))
    again = migrate([ManifestText("a.yaml", done.files[0].after)], Options(strategy=StrategyOption.CLAIMS))
    assert again.files[0].after == done.files[0].after
