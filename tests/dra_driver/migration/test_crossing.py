"""Workloads of several namespaces that shared one GPU."""

from support.migration import GPU, limits, pod, pod_of

from dra_driver.api.meta import JsonObject
from dra_driver.migration.crossing import crossings
from dra_driver.migration.model import Choice, PodReading, Target, Workload

UUID = "GPU-0e9d5d7f-88a5-4e7c-a3fb-1de0a24de37f"


def workload(namespace: str, obj: JsonObject) -> Workload:
    obj["metadata"]["namespace"] = namespace
    return Workload(pod_of(obj), PodReading(), Choice(Target.LEAVE, "it is left."))


def _pinned() -> JsonObject:
    return pod(limits({GPU: 1}, env=[{"name": "CUDA_VISIBLE_DEVICES", "value": f"{UUID},0"}]))


def test_a_gpu_that_is_named_in_two_namespaces_is_said_at_both_places() -> None:
    by_annotation = pod(limits({GPU: 1}), annotations={"nvidia.com/use-gpuuuid": UUID})
    found = crossings([workload("a", _pinned()), workload("b", by_annotation), workload("b", pod(limits({GPU: 1})))])
    assert [(one.code.name, one.object.namespace, one.place.path) for one in found] == [
        ("M022", "a", "spec.containers[0].env[0]"),
        ("M022", "b", "metadata.annotations[nvidia.com/use-gpuuuid]"),
    ]
    assert "a, b" in found[0].message


def test_within_a_namespace_nothing_crosses() -> None:
    assert crossings([workload("a", _pinned()), workload("a", _pinned())]) == ()


def test_groups_of_run_ai_share_a_gpu() -> None:
    grouped = []
    for namespace in ("a", "b"):
        obj = pod(limits({GPU: 1}))
        obj["metadata"]["labels"] = {"runai-gpu-group": "g1"}
        grouped.append(workload(namespace, obj))
    assert [one.place.path for one in crossings(grouped)] == ["metadata.labels.runai-gpu-group"] * 2
