"""KServe's services: the pods and the claim templates that they mean."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rows import examples

from dra_driver.allocation.loading import objects_of_workload, world_of
from dra_driver.allocation.serving import managed_template, serving_pods

GPU = {"limits": {"nvidia.com/gpu": "1"}}
CLAIM = {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}
USE = {"claims": [{"name": "gpu"}]}
STANDARD = {"serving.kserve.io/deploymentMode": "Standard"}
MANAGED = {
    "serving.kserve.io/exp-dra-device-class": "gpu.nvidia.com",
    "serving.kserve.io/exp-dra-device-count": "2",
    "serving.kserve.io/exp-dra-container-name": "main",
    "serving.kserve.io/exp-dra-cel-selector": "device.driver == 'gpu.nvidia.com'\n\n  true\n",
}


def inference(annotations: dict[str, str] | None = None, **predictor: Any) -> dict[str, Any]:
    metadata = {"name": "a", "annotations": annotations or {}}
    kind = {"apiVersion": "serving.kserve.io/v1beta1", "kind": "InferenceService"}
    return {**kind, "metadata": metadata, "spec": {"predictor": predictor}}


def language_model(annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"name": "a", "namespace": "team-a", "annotations": annotations or {}}
    return {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": metadata,
        "spec": {"model": {"uri": "hf://m"}, **spec},
    }


@pytest.mark.parametrize("field", ["model", "triton", "pytorch"])
def test_a_model_is_the_container_of_a_predictor(field: str) -> None:
    (pods,) = serving_pods(inference(minReplicas=3, tolerations=[{"key": "gpu"}], **{field: {"resources": GPU}}))
    assert (pods.suffix, pods.replicas, pods.workers, pods.size) == ("-predictor", 3, None, 1)
    (container,) = pods.template["spec"]["containers"]
    assert (container["name"], container["resources"]) == ("kserve-container", GPU)
    assert pods.template["spec"]["tolerations"] == [{"key": "gpu"}] and field not in pods.template["spec"]


@pytest.mark.parametrize(
    ("annotations", "keeps"), [(STANDARD, True), ({}, False), ({"serving.kserve.io/deploymentMode": "Knative"}, False)]
)
def test_knative_which_is_the_default_keeps_no_claims(annotations: dict[str, str], keeps: bool) -> None:
    service = inference(annotations, model={"resources": {**GPU, **USE}}, **CLAIM)
    before = deepcopy(service)
    (pods,) = serving_pods(service)
    (container,) = pods.template["spec"]["containers"]
    assert ("resourceClaims" in pods.template["spec"], "claims" in container["resources"]) == (keeps, keeps)
    assert container["resources"]["limits"] == GPU["limits"]
    assert service == before


def test_workers_get_gpus_for_the_tensors_and_count_with_their_head() -> None:
    workers = {"pipelineParallelSize": 3, "tensorParallelSize": 4}
    (pods,) = serving_pods(inference(STANDARD, model={}, workerSpec=workers))
    assert pods.size == 3 and pods.workers is not None
    for template in (pods.template, pods.workers):
        assert template["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 4}


def test_annotations_of_kserve_become_a_template_and_its_claim_in_every_pod() -> None:
    containers = [{"name": "sidecar", "image": "busybox"}, {"name": "main", "resources": GPU}]
    service = language_model(MANAGED, template={"containers": containers}, prefill={"replicas": 2})
    template = managed_template(service)
    assert template is not None and template["metadata"] == {"name": "a-managed-dra", "namespace": "team-a"}
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == "gpu.nvidia.com" and request["exactly"]["count"] == 2
    expressions = [item["cel"]["expression"] for item in request["exactly"]["selectors"]]
    assert expressions == ["device.driver == 'gpu.nvidia.com'", "true"]
    main, prefill = serving_pods(service)
    assert [(pods.suffix, pods.replicas) for pods in (main, prefill)] == [("-kserve", 1), ("-kserve-prefill", 2)]
    for pods in (main, prefill):
        entries = pods.template["spec"]["resourceClaims"]
        assert entries == [{"name": "managed-device", "resourceClaimTemplateName": "a-managed-dra"}]
    sidecar, container = main.template["spec"]["containers"]
    assert "resources" not in sidecar
    assert container["resources"] == {**GPU, "claims": [{"name": "managed-device"}]}
    assert managed_template(language_model()) is None


@pytest.mark.parametrize(
    ("parallelism", "size"),
    [({"data": 32, "dataLocal": 8, "tensor": 1}, 4), ({"pipeline": 2, "tensor": 8}, 2), ({"tensor": 8}, 1), ({}, 1)],
)
def test_a_group_is_as_large_as_its_parallelism(parallelism: dict[str, int], size: int) -> None:
    (pods,) = serving_pods(language_model(worker={"containers": []}, replicas=2, parallelism=parallelism))
    assert (pods.suffix, pods.size) == ("-kserve-mn", size)
    made = list(objects_of_workload(language_model(worker={}, replicas=2, parallelism=parallelism), replicas=100))
    assert len(made) == 2  # without a template of workers there is no group


def test_files_hold_the_pods_and_the_template_of_a_service() -> None:
    loaded = world_of([language_model(MANAGED, worker={"containers": []}, replicas=2, parallelism={"pipeline": 3})])
    assert loaded.problems == ()
    assert [name for _, name in sorted(loaded.world.pods)] == ["a-kserve-mn-0", "a-kserve-mn-worker-0"]
    assert list(loaded.world.templates) == [("team-a", "a-managed-dra")]


VALUES = st.sampled_from([None, 0, -1, True, "", "x", [], {}, [None], {"a": None}, 3.5])
FIELDS = (
    "model",
    "containers",
    "workerSpec",
    "template",
    "worker",
    "prefill",
    "parallelism",
    "resourceClaims",
    "labels",
)


@given(st.sampled_from((inference, language_model)), st.dictionaries(st.sampled_from(FIELDS), VALUES), VALUES)
@settings(max_examples=examples(100), deadline=None)
def test_whatever_stands_in_a_service_is_read_or_refused(make: Any, fields: dict[str, Any], annotation: Any) -> None:
    service = make({"serving.kserve.io/exp-dra-device-class": annotation}, **fields)
    list(objects_of_workload(service))
    world_of([service])
