"""Queues of Volcano, KAI and Run:ai: which keys count claims, and what no key says."""

from typing import Any

import pytest
import yaml
from support.counting import CLAIMS, EXTENDED, MIG, done, workload
from support.migration import GPU, codes

from dra_driver.api.meta import JsonObject
from dra_driver.migration.model import Target, Workload


def volcano() -> JsonObject:
    spec = {"capability": {"cpu": "4", GPU: "16"}, "deserved": {GPU: "8"}, "guarantee": {"resource": {GPU: "4"}}}
    return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "q"}, "spec": spec}


def keys(obj: JsonObject, *targets: Target | Workload) -> list[Any]:
    """What is to be added, to each of the maps. The queue stays as it is."""
    after, result = done(obj, *targets)
    assert after == obj
    assert codes(result.findings) == ["M014"]
    specs = [yaml.safe_load(one.paste)["spec"] for one in result.findings if one.paste]
    return [one.get("capability") or one.get("deserved") or one["guarantee"]["resource"] for one in specs]


def test_queues_of_volcano_count_by_class() -> None:
    added = [{"deviceclass/gpu.nvidia.com": number} for number in ("16", "8", "4")]
    assert keys(volcano(), CLAIMS) == keys(volcano(), CLAIMS, EXTENDED) == added
    assert keys(volcano(), EXTENDED) == []


def test_shares_are_counted_by_what_they_take() -> None:
    amounts = {"volcano.sh/vgpu-number": "32", "volcano.sh/vgpu-memory": "102400", "volcano.sh/vgpu-cores": "800"}
    asking = workload(
        CLAIMS, {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 3000, "volcano.sh/vgpu-cores": 30}
    )
    assert keys(volcano() | {"spec": {"capability": amounts}}, asking) == [
        {
            "deviceclass/shared.gpu.nvidia.com": "32",
            "memory.deviceclass/shared.gpu.nvidia.com": "102400Mi",
            "cores.deviceclass/shared.gpu.nvidia.com": "800",
        }
    ]


def test_profiles_of_a_class_are_added_up() -> None:
    other = "nvidia.com/mig-2g.10gb"
    obj = volcano() | {"spec": {"capability": {MIG: "14", other: "3"}}}
    asking = [workload(CLAIMS, {MIG: 1}), workload(CLAIMS, {other: 1})]
    assert keys(obj, *asking) == [{"deviceclass/mig.nvidia.com": "17"}]


def test_what_no_key_says_is_told() -> None:
    obj = volcano() | {"spec": {"capability": {GPU: "many", "volcano.sh/vgpu-memory-percentage": "50"}}}
    assert keys(obj, CLAIMS) == []
    assert len(done(obj, CLAIMS)[1].findings) == 2


def kai() -> JsonObject:
    gpu = {"quota": 8, "limit": 16, "overQuotaWeight": 1}
    return {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "q"},
            "spec": {"resources": {"gpu": gpu}}}  # fmt: skip


def test_queues_of_kai_stay_and_say_what_they_do_not_count() -> None:
    after, result = done(kai(), CLAIMS)
    assert (after, [one.severity for one in result.findings]) == (kai(), ["info"])
    _, result = done(kai(), workload(CLAIMS, {MIG: 1}))
    assert ["claims of class mig.nvidia.com" in one.message for one in result.findings] == [False, True]
    _, result = done(kai(), workload(CLAIMS, annotations={"gpu-memory": "2000"}, amounts={"cpu": 1}))
    assert ["a share counts as one GPU" in one.message for one in result.findings] == [False, True]


def test_projects_of_run_ai_stay_and_are_told() -> None:
    project = {"apiVersion": "run.ai/v2", "kind": "Project", "metadata": {"name": "p"}, "spec": {"deservedGpus": 8}}
    after, result = done(project, CLAIMS)
    assert (after, codes(result.findings)) == (project, ["M014"])


@pytest.mark.parametrize("group", ["scheduling.volcano.sh/v1beta1", "scheduling.x-k8s.io/v1alpha1"])
@pytest.mark.parametrize(
    ("targets", "severity"),
    [([CLAIMS], "warning"), ([CLAIMS, EXTENDED], "warning"), ([EXTENDED], "info"), ([], "warning")],
)
def test_groups_wait_for_what_nodes_of_the_driver_do_not_have(group: str, targets: list[Target], severity: str) -> None:
    metadata = {"name": "g", "namespace": "team"}
    spec = {"minMember": 2, "minResources": {"cpu": "4", GPU: "2"}}
    before = {"apiVersion": group, "kind": "PodGroup", "metadata": metadata, "spec": spec}
    after, result = done(before, *targets)
    assert after == before
    assert [(one.code.name, one.severity) for one in result.findings] == [("M014", severity)]


def elastic(api: str, kind: str = "ElasticQuota", **more: object) -> JsonObject:
    metadata = {"name": "q", "namespace": "team"}
    spec = {"min": {"cpu": 2, GPU: 2}, "max": {"cpu": 10, GPU: 4}, **more}
    return {"apiVersion": f"{api}/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("api", ["scheduling.x-k8s.io", "scheduling.sigs.k8s.io", "nos.nebuly.com"])
def test_elastic_quotas_count_no_claims_and_say_so(api: str) -> None:
    after, result = done(elastic(api), CLAIMS)
    assert after == elastic(api)
    assert [(one.code.name, one.severity) for one in result.findings] == [("M014", "warning")] * 2
    assert "Kueue" in result.findings[0].advice
    _, kept = done(elastic(api), EXTENDED)
    assert {(one.severity, "goes on counting" in one.message) for one in kept.findings} == {("info", True)}
    _, other = done(elastic(api), workload(CLAIMS, namespace="other"), workload(EXTENDED))
    assert {one.severity for one in other.findings} == {"info"}


def test_quotas_of_nos_count_memory_for_several_namespaces() -> None:
    amounts = {"nos.nebuly.com/gpu-memory": "16", "memory": "8Gi"}
    obj = elastic("nos.nebuly.com", "CompositeElasticQuota", min=amounts, max={}, namespaces=["a", "b"])
    for targets, severity in (
        ([workload(EXTENDED, namespace="a"), workload(CLAIMS, {MIG: 1}, namespace="b")], "warning"),
        ([workload(EXTENDED, namespace="a"), workload(CLAIMS, namespace="c")], "info"),
    ):
        _, result = done(obj, *targets)
        assert [(one.severity, one.place.path) for one in result.findings] == [
            (severity, "spec.min[nos.nebuly.com/gpu-memory]")
        ]
