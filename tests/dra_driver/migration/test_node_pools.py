"""Objects by which autoscalers make nodes."""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from dra_driver.api.documents import read_documents
from dra_driver.migration.migrate import migrate
from dra_driver.migration.model import Finding, Options, Source, StrategyOption

KNOWN = {"mig_strategy": "none", "replicas": 1, "keep_undo": False}
WAYS = {way: Options(strategy=StrategyOption(way), **KNOWN) for way in ("claims", "extended")}  # type: ignore[arg-type]
POD = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - {name: c, image: i, resources: {limits: {nvidia.com/gpu: 1}}}
---
"""
OFFERED = "nodes that are made during the cut-over have no label dra.gpu/offered-by, so nobody offers their GPUs"


def done(obj: Mapping[str, Any], way: str = "claims", text: str = POD) -> tuple[Any, list[Finding]]:
    """What becomes of the object, and what is said of it, beside workloads that go one way."""
    found = migrate([Source("a.yaml", text + yaml.safe_dump(dict(obj)))], WAYS[way])
    after = read_documents(found.files[0].after, "a.yaml").documents[-1].obj
    return after, [one for one in found.findings if one.object.kind == obj["kind"] and one.object.kind != "Pod"]


def pool(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": "gpus"}, "spec": spec}


def requirement(key: str, *values: str) -> dict[str, Any]:
    return {"spec": {"requirements": [{"key": key, "operator": "In", "values": list(values)}]}}


COUNT = "karpenter.k8s.aws/instance-gpu-count"


@pytest.mark.parametrize(
    ("way", "words"), [("claims", "Karpenter makes no nodes for pods with claims"), ("extended", "stays uninitialized")]
)
def test_karpenter_is_told_for_each_way(way: str, words: str) -> None:
    same, said = done(pool(template=requirement(COUNT, "4")), way)
    assert same == pool(template=requirement(COUNT, "4"))
    assert [one.code.name for one in said] == ["M021", "M021"]
    assert words in said[0].message
    assert said[1].message == OFFERED


def test_a_pool_of_the_drivers_nodes_has_their_label() -> None:
    template = {"metadata": {"labels": {"dra.gpu/offered-by": "driver"}}, **requirement(COUNT, "4")}
    assert len(done(pool(template=template))[1]) == 1


def test_a_pool_without_gpus_is_passed_over() -> None:
    assert done(pool(template=requirement("karpenter.sh/capacity-type", "spot"), limits={"cpu": "100"}))[1] == []


@pytest.mark.parametrize(
    ("counts", "limit", "nodes"),
    [
        (("8",), "64", "8"),
        (("8",), 60, "7"),
        (("1", "4"), "64", None),
        ((), "64", None),
        (("0",), "64", None),
        (("8",), "1k", None),
    ],
)
def test_a_limit_of_gpus_is_as_many_nodes_if_nodes_are_alike(
    counts: tuple[str, ...], limit: Any, nodes: str | None
) -> None:
    _, said = done(pool(template=requirement(COUNT, *counts), limits={"nvidia.com/gpu": limit}))
    assert yaml.safe_load(said[-1].paste) == ({"spec": {"limits": {"nodes": nodes}}} if nodes else None)


def test_a_limit_of_nodes_that_is_there_is_enough() -> None:
    limits = {"nvidia.com/gpu": "64", "nodes": "5"}
    assert done(pool(template=requirement(COUNT, "8"), limits=limits))[1][-1].severity == "info"


def test_provisioners_of_old_have_their_limits_elsewhere() -> None:
    obj = {
        "apiVersion": "karpenter.sh/v1alpha5",
        "kind": "Provisioner",
        "metadata": {"name": "x"},
        "spec": {"limits": {"resources": {"nvidia.com/gpu": 8}}},
    }
    after, (said,) = done(obj)
    assert after == obj
    assert said.place.path == "spec.limits.resources[nvidia.com/gpu]"


def test_an_overlay_describes_no_devices() -> None:
    obj = {
        "apiVersion": "karpenter.sh/v1alpha1",
        "kind": "NodeOverlay",
        "metadata": {"name": "x"},
        "spec": {"capacity": {"nvidia.com/gpu.shared": 4, "example.com/fuse": 1}},
    }
    (said,) = done(obj)[1]
    assert said.place.path == "spec.capacity[nvidia.com/gpu.shared]"


@pytest.mark.parametrize(
    ("spec", "codes"),
    [
        ({"amiSelectorTerms": [{"alias": "bottlerocket@v1.50.0"}]}, ["M001"]),
        ({"amiFamily": "Bottlerocket"}, ["M001"]),
        ({"amiSelectorTerms": [{"alias": "al2023@latest"}]}, []),
        (
            {
                "amiFamily": "Bottlerocket",
                "userData": "[settings.kubernetes]\na = 1\n[settings.kubelet-device-plugins.nvidia]\nenabled = false\n",
            },
            [],
        ),
    ],
)
def test_bottlerocket_brings_a_device_plugin(spec: Mapping[str, Any], codes: list[str]) -> None:
    obj = {"apiVersion": "karpenter.k8s.aws/v1", "kind": "EC2NodeClass", "metadata": {"name": "x"}, "spec": dict(spec)}
    assert [one.code.name for one in done(obj)[1]] == codes


CAPACITY = "capacity.cluster-autoscaler.kubernetes.io"


def machines(**annotations: str) -> dict[str, Any]:
    named = {f"{CAPACITY}/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return {
        "apiVersion": "cluster.x-k8s.io/v1beta1",
        "kind": "MachineDeployment",
        "metadata": {"name": "x", "annotations": named},
        "spec": {},
    }


def test_machines_of_cluster_api_are_to_say_the_driver_instead_of_the_resource() -> None:
    _, (said,) = done(machines(gpu_type="nvidia.com/gpu", gpu_count="8"))
    assert yaml.safe_load(said.paste)["metadata"] == {"annotations": {f"{CAPACITY}/dra-driver": "gpu.nvidia.com"}}


def test_machines_go_on_with_the_resource_where_all_workloads_do() -> None:
    obj = machines(gpu_type="nvidia.com/gpu", gpu_count="8")
    assert done(obj, "extended")[0] == obj
    assert len(done(obj, "extended")[1]) == 1


@pytest.mark.parametrize("obj", [machines(cpu="4"), machines(gpu_type="amd.com/gpu")])
def test_machines_without_gpus_of_nvidia_are_passed_over(obj: Mapping[str, Any]) -> None:
    assert done(obj)[1] == []


def autoscaler(image: str, *words: str) -> dict[str, Any]:
    container = {"name": "cluster-autoscaler", "image": image, "command": ["./cluster-autoscaler", *words]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "cluster-autoscaler"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }


FLAG = "--enable-dynamic-resource-allocation"


@pytest.mark.parametrize(
    ("image", "words", "said"),
    [
        ("cluster-autoscaler:v1.31.2", (), 1),
        ("cluster-autoscaler:v1.33.0", (), 1),
        ("cluster-autoscaler:v1.35.0", (), 0),
        ("cluster-autoscaler:v1.34.0", (f"{FLAG}=true",), 0),
        ("cluster-autoscaler:v1.34.0", (FLAG,), 0),
        ("cluster-autoscaler:v1.34.0", (f"{FLAG}=false",), 1),
        ("some-other:v1.31.0", (), 0),
    ],
)
def test_the_cluster_autoscaler_of_old_releases_is_told(image: str, words: tuple[str, ...], said: int) -> None:
    obj = autoscaler(image, *words)
    after, findings = done(obj)
    assert after == obj
    assert len(findings) == said


def node(name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    capacity = {"cpu": "8", "nvidia.com/gpu": "4"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": dict(labels)},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ({"k8s.amazonaws.com/accelerator": "t4"}, 1),
        ({"cloud.google.com/gke-accelerator": "nvidia-l4"}, 1),
        ({"cloud.google.com/gke-accelerator": "nvidia-l4", "cloud.google.com/gke-gpu-dra-driver": "true"}, 0),
        ({"example.com/rack": "4"}, 0),
    ],
)
def test_labels_by_which_nodes_of_the_driver_are_unready_are_told_once(labels: Mapping[str, str], said: int) -> None:
    nodes = [Source(f"{name}.yaml", yaml.safe_dump(node(name, labels))) for name in ("a", "b")]
    found = migrate([Source("a.yaml", POD)], WAYS["claims"], nodes)
    assert len([one for one in found.findings if one.code.name == "M021"]) == said
