"""Queues of Volcano, KAI and Run:ai: which keys count claims, and what no key says."""

import pytest
from support.counting import CLAIMS, EXTENDED, MIG, done, workload
from support.migration import GPU, codes

from dra_driver.api.meta import JsonObject
from dra_driver.migration.model import Target


def volcano(**capability: str) -> JsonObject:
    amounts = {"cpu": "4", GPU: "16"} if not capability else {k.replace("_", "/"): v for k, v in capability.items()}
    spec = {"capability": amounts, "deserved": {GPU: "8"}, "guarantee": {"resource": {GPU: "4"}}}
    return {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "q"}, "spec": spec}


@pytest.mark.parametrize(
    ("targets", "keys"),
    [
        ([CLAIMS], {"cpu", "deviceclass/gpu.nvidia.com"}),
        ([CLAIMS, EXTENDED], {"cpu", GPU, "deviceclass/gpu.nvidia.com"}),
        ([EXTENDED], {"cpu", GPU}),
    ],
)
def test_queues_of_volcano_count_by_class(targets: list[Target], keys: set[str]) -> None:
    after, result = done(volcano(), *targets)
    assert set(after["spec"]["capability"]) == keys
    assert set(after["spec"]["deserved"]) == keys - {"cpu"}
    assert set(after["spec"]["guarantee"]["resource"]) == keys - {"cpu"}
    assert codes(result.findings) == ["M014"]
    again, _ = done(after, *targets)
    assert again == after


def test_shares_are_counted_by_what_they_take() -> None:
    amounts = {"volcano.sh/vgpu-number": "32", "volcano.sh/vgpu-memory": "100000", "volcano.sh/vgpu-cores": "800"}
    obj = volcano()
    obj["spec"] = {"capability": amounts}
    one = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 3000, "volcano.sh/vgpu-cores": 30}
    after, _ = done(obj, workload(CLAIMS, one))
    assert after["spec"]["capability"] == {
        "deviceclass/shared.gpu.nvidia.com": "32",
        "memory.deviceclass/shared.gpu.nvidia.com": "100000Mi",
        "cores.deviceclass/shared.gpu.nvidia.com": "800",
    }


def test_profiles_of_a_class_are_added_up() -> None:
    other = "nvidia.com/mig-2g.10gb"
    obj = volcano()
    obj["spec"] = {"capability": {MIG: "14", other: "3"}}
    after, _ = done(obj, workload(CLAIMS, {MIG: 1}), workload(CLAIMS, {other: 1}))
    assert after["spec"]["capability"] == {"deviceclass/mig.nvidia.com": "17"}


def test_what_no_key_says_stays_and_is_told() -> None:
    obj = volcano()
    obj["spec"] = {"capability": {GPU: "many", "volcano.sh/vgpu-memory-percentage": "50"}}
    after, result = done(obj, CLAIMS)
    assert after == obj
    assert [one.fixed for one in result.findings] == [False, False]


def kai() -> JsonObject:
    gpu = {"quota": 8, "limit": 16, "overQuotaWeight": 1}
    return {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "q"},
            "spec": {"resources": {"gpu": gpu}}}  # fmt: skip


def test_queues_of_kai_stay_and_say_what_they_do_not_count() -> None:
    after, result = done(kai(), CLAIMS)
    assert (after, [one.severity for one in result.findings]) == (kai(), ["info"])
    _, result = done(kai(), workload(CLAIMS, {MIG: 1}))
    assert ["mig.nvidia.com are not counted" in one.message for one in result.findings] == [False, True]
    _, result = done(kai(), workload(CLAIMS, annotations={"gpu-memory": "2000"}, amounts={"cpu": 1}))
    assert ["a share counts as one GPU" in one.message for one in result.findings] == [False, True]


def test_projects_of_run_ai_stay_and_are_told() -> None:
    project = {"apiVersion": "run.ai/v2", "kind": "Project", "metadata": {"name": "p"}, "spec": {"deservedGpus": 8}}
    after, result = done(project, CLAIMS)
    assert (after, codes(result.findings)) == (project, ["M014"])


@pytest.mark.parametrize("group", ["scheduling.volcano.sh/v1beta1", "scheduling.x-k8s.io/v1alpha1"])
@pytest.mark.parametrize(
    ("targets", "keys", "fixed"),
    [
        ([CLAIMS], {"cpu"}, True),
        ([CLAIMS, EXTENDED], {"cpu", GPU}, False),
        ([EXTENDED], {"cpu", GPU}, False),
        ([], {"cpu", GPU}, False),
    ],
)
def test_groups_do_not_wait_for_what_their_pods_have_by_claims(
    group: str, targets: list[Target], keys: set[str], fixed: bool
) -> None:
    metadata = {"name": "g", "namespace": "team"}
    spec = {"minMember": 2, "minResources": {"cpu": "4", GPU: "2"}}
    before = {"apiVersion": group, "kind": "PodGroup", "metadata": metadata, "spec": spec}
    after, result = done(before, *targets)
    assert set(after["spec"]["minResources"]) == keys
    assert [(one.code.name, one.fixed) for one in result.findings] == [("M014", fixed)]


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
