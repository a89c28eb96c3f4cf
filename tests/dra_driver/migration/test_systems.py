"""Queues, autoscalers and limits of others: none is edited but LimitRanges, and the finding has the text to add."""

from typing import Any

import pytest
import yaml
from support.counting import CLAIMS, EXTENDED, MIG, PLAIN, done, workload
from support.migration import GPU, codes

from dra_driver.api.meta import JsonObject
from dra_driver.migration.codes import NODE_ONLY_LABEL, NOT_EDITABLE
from dra_driver.migration.counts.quotas import rewrite
from dra_driver.migration.model import Options


def obj(api_version: str, kind: str, spec: JsonObject, **metadata: Any) -> JsonObject:
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": "x", "namespace": "team", **metadata},
        "spec": spec,
    }


def cluster_queue(*resources: str, **amounts: Any) -> JsonObject:
    quotas = [{"name": name, "nominalQuota": 32, **amounts} for name in resources]
    flavors = [{"name": "h100", "resources": [{"name": "cpu", "nominalQuota": 4}, *quotas]}]
    groups = [{"coveredResources": ["cpu", *resources], "flavors": flavors}]
    return obj("kueue.x-k8s.io/v1beta1", "ClusterQueue", {"resourceGroups": groups})


def test_kueue_counts_a_class_by_a_name_that_its_configuration_maps() -> None:
    queue = cluster_queue(GPU, borrowingLimit=8)
    after, result = done(queue, CLAIMS)
    assert after == queue
    (finding,) = result.findings
    assert yaml.safe_load(finding.paste)["resources"]["deviceClassMappings"] == [
        {"name": "dra.gpu/gpu", "deviceClassNames": ["gpu.nvidia.com"]}
    ]


@pytest.mark.parametrize("resources", [None, 1.5, "nvidia.com/gpu", {"a": "b"}])
def test_a_queue_that_covers_no_list_is_left_alone(resources: object) -> None:
    queue = cluster_queue(GPU)
    queue["spec"]["resourceGroups"][0]["coveredResources"] = resources
    assert done(queue, CLAIMS)[0] == queue


def test_a_queue_that_counts_the_class_and_one_of_workloads_that_stay_have_nothing_to_add() -> None:
    assert done(cluster_queue(GPU, "dra.gpu/gpu"), CLAIMS)[1].findings == ()
    _, result = done(cluster_queue(GPU), EXTENDED)
    assert [(finding.severity, finding.paste) for finding in result.findings] == [("info", "")]


def test_kueue_admits_claims_of_mapped_classes_only() -> None:
    waiting = workload(CLAIMS)
    waiting.pod.document.obj["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    (finding,) = rewrite([], [waiting], PLAIN, Options(), []).findings
    assert "gpu.nvidia.com" in finding.message
    assert yaml.safe_load(finding.paste)["resources"]["deviceClassMappings"]


def test_volcano_counts_by_class() -> None:
    queue = obj("scheduling.volcano.sh/v1beta1", "Queue", {"capability": {MIG: "14", "cpu": "4"}})
    after, result = done(queue, workload(CLAIMS, {MIG: 1}))
    assert after == queue
    (finding,) = result.findings
    assert "deviceclass/" in finding.message
    assert [finding.severity for finding in done(queue, workload(EXTENDED, {MIG: 1}))[1].findings] == ["info"]


KARPENTER = {
    "template": {"spec": {"requirements": [{"key": "karpenter.k8s.aws/instance-gpu-count", "operator": "Exists"}]}}
}
MACHINES = {"annotations": {"capacity.cluster-autoscaler.kubernetes.io/gpu-type": GPU}}
AUTOSCALER = {"template": {"spec": {"containers": [{"name": "a", "image": "r/cluster-autoscaler:v1.34.1"}]}}}


@pytest.mark.parametrize(
    ("given", "claims", "extended"),
    [
        (obj("karpenter.sh/v1", "NodePool", KARPENTER), ["M021", "M021"], ["M021"]),
        (obj("karpenter.sh/v1alpha1", "NodeOverlay", {"capacity": {GPU: "4"}}), ["M021"], []),
        (obj("karpenter.k8s.aws/v1", "EC2NodeClass", {"amiFamily": "Bottlerocket"}), ["M001"], []),
        (obj("cluster.x-k8s.io/v1beta1", "MachineDeployment", {}, **MACHINES), ["M021"], []),
        (obj("apps/v1", "Deployment", AUTOSCALER), ["M021"], []),
        (obj("scheduling.x-k8s.io/v1alpha1", "PodGroup", {"minResources": {GPU: "8"}}), ["M014"], ["M014"]),
        (obj("nos.nebuly.com/v1alpha1", "ElasticQuota", {"max": {GPU: "8"}}), ["M014"], ["M014"]),
        (obj("scheduling.run.ai/v2", "Queue", {"resources": {"gpu": {"quota": 8}}}), ["M014"], ["M014"]),
        (obj("run.ai/v2", "Project", {"deservedGpus": 4}), ["M014"], ["M014"]),
        (obj("karpenter.sh/v1", "NodePool", {"template": {"spec": {"requirements": []}}}), [], []),
    ],
)  # fmt: skip
def test_what_others_count_or_make_is_reported_and_stays(
    given: JsonObject, claims: list[str], extended: list[str]
) -> None:
    for target, wanted in ((CLAIMS, claims), (EXTENDED, extended)):
        after, result = done(given, target)
        assert after == given
        assert [finding.code.name for finding in result.findings] == wanted
        assert all(finding.advice or finding.severity == "info" for finding in result.findings)


# -- LimitRange


def limit_range(**parts: Any) -> JsonObject:
    return obj("v1", "LimitRange", {"limits": [{"type": "Container", **parts}]})


def test_no_line_of_a_limit_range_is_left_that_pods_with_claims_would_meet() -> None:
    given = limit_range(default={"cpu": "1", GPU: "0"}, max={GPU: "4"}, min={GPU: "1"}, maxLimitRequestRatio={GPU: "1"})
    after, result = done(given, CLAIMS, EXTENDED)
    assert after["spec"]["limits"] == [{"type": "Container", "default": {"cpu": "1"}}]
    assert sorted((finding.severity, finding.fixed) for finding in result.findings) == [
        ("info", True), ("info", True), ("warning", False), ("warning", False),
    ]  # fmt: skip
    assert all("ResourceQuota" in finding.advice for finding in result.findings if not finding.fixed)


def test_a_limit_range_stays_where_the_workloads_of_its_namespace_stay() -> None:
    given = limit_range(max={GPU: "4"})
    after, result = done(given, EXTENDED, workload(CLAIMS, namespace="other"))
    assert (after, codes(result.findings)) == (given, ["M014"])


def test_a_runtime_class_adds_node_labels_to_pods() -> None:
    scheduling = {"nodeSelector": {"nvidia.com/gpu.present": "true", "zone": "a"}}
    obj = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"}
    _, result = done({**obj, "scheduling": scheduling}, CLAIMS)
    (finding,) = result.findings
    assert finding.code is NODE_ONLY_LABEL
    assert finding.place.path == "scheduling.nodeSelector[nvidia.com/gpu.present]"


def test_resources_of_an_unknown_kind_ask_by_fields_of_their_own_too() -> None:
    """As in VLLMRuntime of vLLM's production stack."""
    resources = {"cpu": "10", "gpu": "1", "gpuType": "nvidia.com/gpu"}
    spec = {"deploymentConfig": {"resources": resources}}
    obj = {"apiVersion": "production-stack.vllm.ai/v1alpha1", "kind": "VLLMRuntime", "metadata": {"name": "v"}}
    _, result = done({**obj, "spec": spec}, CLAIMS)
    (finding,) = result.findings
    assert finding.code is NOT_EDITABLE
    assert "makes pods from this that ask for the extended resource" in finding.message
