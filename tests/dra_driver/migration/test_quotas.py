"""Quotas, limits, queues and autoscalers: what counts claims afterwards, and what is only told."""

from typing import Any

import pytest
import yaml
from support.migration import GPU, codes, documents_of, limits, meaning_of, pod, pod_of

from dra_driver.api.meta import JsonObject
from dra_driver.migration import reading
from dra_driver.migration.meaning import Meaning
from dra_driver.migration.model import Choice, Options, Put, Remove, Target, Workload, value_at
from dra_driver.migration.quotas import QuotaResult, rewrite

PLAIN = meaning_of("version: v1\nflags: {migStrategy: mixed}\n")
MIG = "nvidia.com/mig-1g.5gb"
KEY = "gpu.nvidia.com.deviceclass.resource.k8s.io/devices"


def workload(
    target: Target, amounts: JsonObject | None = None, namespace: str = "team", meaning: Meaning = PLAIN, **more: Any
) -> Workload:
    obj = pod(limits(amounts or {GPU: 1}), **more)
    obj["metadata"]["namespace"] = namespace
    at = pod_of(obj)
    return Workload(at, reading.demands(at, meaning, Options()), Choice(target, "as the test has it."))


CLAIMS, EXTENDED, LEAVE = Target.CLAIMS, Target.EXTENDED, Target.LEAVE


def done(obj: JsonObject, *targets: Target | Workload, meaning: Meaning = PLAIN) -> tuple[JsonObject, QuotaResult]:
    """The object afterwards, and what was said."""
    workloads = [workload(one) if isinstance(one, Target) else one for one in targets]
    (document,) = documents_of(obj)
    result = rewrite([document], workloads, meaning, Options())
    after = yaml.safe_load(yaml.safe_dump(obj))
    for edits in result.edits:
        assert edits.reason
        for edit in sorted(edits.edits, key=lambda one: isinstance(one, Remove)):
            parent = value_at(after, edit.path[:-1])
            last = edit.path[-1]
            if isinstance(edit, Remove):
                assert last in parent
                del parent[last]
            elif isinstance(parent, list) and last == len(parent):
                parent.append(edit.value)
            elif parent is None:
                value_at(after, edit.path[:-3])[edit.path[-3]] = {edit.path[-2]: [edit.value]}
            else:
                parent[last] = edit.value
    return after, result


def quota(**hard: Any) -> JsonObject:
    keys = {
        key.replace("GPU", f"requests.{GPU}").replace("MIG", f"requests.{MIG}"): value for key, value in hard.items()
    }
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q", "namespace": "team"},
        "spec": {"hard": keys},
    }


# -- ResourceQuota


@pytest.mark.parametrize(
    ("targets", "hard"),
    [
        ([CLAIMS], {KEY: "16"}),
        ([CLAIMS, EXTENDED], {f"requests.{GPU}": "16", KEY: "16"}),
        ([CLAIMS, LEAVE], {f"requests.{GPU}": "16", KEY: "16"}),
        ([EXTENDED], {f"requests.{GPU}": "16"}),
        ([], {f"requests.{GPU}": "16", KEY: "16"}),
        ([workload(EXTENDED), workload(CLAIMS, namespace="other")], {f"requests.{GPU}": "16"}),
    ],
)
def test_a_quota_counts_claims_where_there_are_some(targets: list[Target], hard: JsonObject) -> None:
    after, result = done(quota(GPU="16"), *targets)
    assert after["spec"]["hard"] == hard
    assert codes(result.findings) == ["M014"]


@pytest.mark.parametrize("scope", [{"scopes": ["NotTerminating"]}, {"scopeSelector": {"matchExpressions": [{}]}}])
def test_a_quota_with_scopes_counts_no_claims(scope: JsonObject) -> None:
    obj = quota(GPU=4)
    obj["spec"] |= scope
    after, result = done(obj, CLAIMS)
    assert after == obj
    (said,) = result.findings
    assert (said.code.name, said.severity, "scopes" in said.message) == ("M014", "warning", True)


def test_a_quota_that_counts_claims_is_let_alone() -> None:
    after, result = done(quota(GPU="16") | {"spec": {"hard": {KEY: "4", f"requests.{GPU}": "16"}}}, CLAIMS, EXTENDED)
    assert after["spec"]["hard"] == {KEY: "4", f"requests.{GPU}": "16"}
    assert result.edits == ()


def test_the_classes_are_those_that_the_claims_name() -> None:
    shared = meaning_of("version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}\n")
    after, _ = done(quota(GPU="16"), workload(CLAIMS, meaning=shared), meaning=shared)
    assert after["spec"]["hard"] == {"shared.gpu.nvidia.com.deviceclass.resource.k8s.io/devices": "16"}
    unseen, _ = done(quota(GPU="16"), meaning=shared)
    assert "shared.gpu.nvidia.com.deviceclass.resource.k8s.io/devices" in unseen["spec"]["hard"]


def test_profiles_are_counted_together_by_their_class() -> None:
    obj = quota(MIG="14")
    obj["spec"]["hard"]["requests.nvidia.com/mig-2g.10gb"] = 3
    targets = [workload(CLAIMS, {MIG: 1}), workload(CLAIMS, {"nvidia.com/mig-2g.10gb": 1})]
    after, result = done(obj, *targets)
    assert after["spec"]["hard"] == {"mig.nvidia.com.deviceclass.resource.k8s.io/devices": "17"}
    assert "added up" in result.findings[0].message
    assert "1g.5gb.mig.nvidia.com" in result.findings[0].advice


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("requests.nvidia.com/gpumem", "100", "M014"),
        (f"limits.{GPU}", "1", "M026"),
        (GPU, "1", "M026"),
        (f"requests.{GPU}", "many", "M026"),
        (f"requests.{GPU}", None, "M026"),
    ],
)
def test_what_no_quota_counts_stays_and_is_said(key: str, value: Any, code: str) -> None:
    obj = quota() | {"spec": {"hard": {key: value, "requests.cpu": "1"}}}
    after, result = done(obj, CLAIMS)
    assert (after, codes(result.findings)) == (obj, [code])


# -- LimitRange


def _limit_range() -> JsonObject:
    limit = {"type": "Container", "default": {"cpu": "1", GPU: 0}, "max": {GPU: 4}, "min": {"cpu": "1m"}}
    return {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "l", "namespace": "team"},
        "spec": {"limits": [limit]},
    }


@pytest.mark.parametrize(
    ("targets", "default", "most"),
    [([CLAIMS], False, False), ([CLAIMS, EXTENDED], False, True), ([EXTENDED], True, True), ([], False, True)],
)
def test_defaults_go_where_there_are_claims(targets: list[Target], default: bool, most: bool) -> None:
    after, result = done(_limit_range(), *targets)
    limit = after["spec"]["limits"][0]
    assert (GPU in limit["default"], GPU in limit["max"]) == (default, most)
    assert (limit["default"]["cpu"], limit["min"]) == ("1", {"cpu": "1m"})
    proposed = [one for one in result.findings if "count <= 4" in one.advice]
    assert bool(proposed) == (CLAIMS in targets or not targets)


# -- Kueue


def _cluster_queue(kind: str = "ClusterQueue") -> JsonObject:
    resources = [{"name": "cpu", "nominalQuota": 4}, {"name": GPU, "nominalQuota": 32, "borrowingLimit": 8}]
    group = {"coveredResources": ["cpu", GPU], "flavors": [{"name": "a", "resources": resources}]}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": kind,
        "metadata": {"name": "q"},
        "spec": {"resourceGroups": [group]},
    }


@pytest.mark.parametrize("kind", ["ClusterQueue", "Cohort"])
def test_a_queue_of_claims_alone_counts_them_under_a_name_of_their_own(kind: str) -> None:
    after, result = done(_cluster_queue(kind), CLAIMS)
    group = after["spec"]["resourceGroups"][0]
    assert group["coveredResources"] == ["cpu", "dra.gpu/gpu"]
    assert group["flavors"][0]["resources"][1] == {"name": "dra.gpu/gpu", "nominalQuota": 32, "borrowingLimit": 8}
    advice = [one.advice for one in result.findings if "deviceClassMappings" in one.advice]
    assert advice == [
        "Add to the manager's configuration, under `resources.deviceClassMappings`: "
        "`- {name: dra.gpu/gpu, deviceClassNames: [gpu.nvidia.com]}`."
    ]


@pytest.mark.parametrize("targets", [[CLAIMS, EXTENDED], []])
def test_a_queue_of_both_stays_and_is_explained(targets: list[Target]) -> None:
    after, result = done(_cluster_queue(), *targets)
    assert after == _cluster_queue()
    assert [one.code.name for one in result.findings] == ["M014"]
    assert "dra.gpu/gpu" in result.findings[0].advice


def test_a_queue_of_extended_resources_stays() -> None:
    after, result = done(_cluster_queue(), EXTENDED)
    assert (after, [one.severity for one in result.findings]) == (_cluster_queue(), ["info"])


def test_mig_devices_are_counted_by_sources() -> None:
    obj = yaml.safe_load(yaml.safe_dump(_cluster_queue()).replace(GPU, MIG))
    after, result = done(obj, workload(CLAIMS, {MIG: 1}))
    assert after == obj
    assert "sources" in result.findings[0].message


def test_the_managers_configuration_gets_the_mapping_of_its_queues() -> None:
    configuration = {"apiVersion": "config.kueue.x-k8s.io/v1beta1", "kind": "Configuration",
                     "resources": {"transformations": [{"input": MIG, "outputs": {}}]}}  # fmt: skip
    documents = documents_of(configuration, _cluster_queue())
    result = rewrite(documents, [workload(CLAIMS)], PLAIN, Options())
    mine = next(one for one in result.edits if one.document is documents[0])
    mapping = {"name": "dra.gpu/gpu", "deviceClassNames": ["gpu.nvidia.com"]}
    assert mine.edits == (Put(("resources", "deviceClassMappings", 0), mapping),)
    assert any("transformation" in one.message for one in result.findings)
    assert not any("Add to the manager's configuration" in one.advice for one in result.findings)


def test_a_configuration_in_a_text_is_told_what_to_become() -> None:
    text = "apiVersion: config.kueue.x-k8s.io/v1beta1\nkind: Configuration\n"
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a.yaml": text}}
    result = rewrite(documents_of(config_map, _cluster_queue()), [workload(CLAIMS)], PLAIN, Options())
    told = [one for one in result.findings if one.code.name == "M020"]
    assert [(one.place.path, "dra.gpu/gpu" in one.advice) for one in told] == [("data[a.yaml]", True)]


def test_flavors_keep_their_labels() -> None:
    spec = {"nodeLabels": {"nvidia.com/gpu.product": "x", "zone": "a"}}
    obj = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "ResourceFlavor", "metadata": {"name": "f"}, "spec": spec}
    after, result = done(obj, CLAIMS)
    assert (after, codes(result.findings)) == (obj, ["M009"])


def test_claims_that_kueue_does_not_take_are_said() -> None:
    terms = [
        {
            "weight": 1,
            "preference": {
                "matchExpressions": [{"key": "nvidia.com/gpu.family", "operator": "In", "values": ["ampere"]}]
            },
        }
    ]
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}
    one = workload(CLAIMS, affinity=affinity)
    one.pod.document.obj["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    assert codes(rewrite([], [one], PLAIN, Options()).findings) == ["M010"]
    assert rewrite([], [workload(CLAIMS, affinity=affinity)], PLAIN, Options()).findings == ()


def test_shares_that_take_all_of_what_they_do_not_name_are_said() -> None:
    memory, both = {"nvidia.com/gpumem": 100}, {"nvidia.com/gpumem": 100, "nvidia.com/gpucores": 5}
    workloads = [workload(CLAIMS, memory), workload(CLAIMS, both), workload(CLAIMS)]
    found = rewrite([], workloads, PLAIN, Options()).findings
    assert [(one.code.name, one.place.path) for one in found] == [
        ("M049", "spec.containers[0].resources.limits[nvidia.com/gpumem]")
    ]
    assert "cores" in found[0].message
    assert rewrite([], [workload(CLAIMS, memory), workload(LEAVE, both)], PLAIN, Options()).findings == ()


# -- other queues, autoscalers


def _volcano() -> JsonObject:
    spec = {"capability": {"cpu": "4", GPU: "16"}, "guarantee": {"resource": {GPU: "4"}}}
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
    after, result = done(_volcano(), *targets)
    assert set(after["spec"]["capability"]) == keys
    assert set(after["spec"]["guarantee"]["resource"]) == keys - {"cpu"}
    assert codes(result.findings) == ["M014"]
    again, second = done(after, *targets)
    assert again == after
    assert second.edits == () or EXTENDED not in targets


def test_queues_of_kai_and_pools_of_karpenter_stay() -> None:
    kai = {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": "q"},
           "spec": {"resources": {"gpu": {"quota": 8}}}}  # fmt: skip
    karpenter = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": "n"},
        "spec": {"limits": {GPU: 8}},
    }
    assert [(done(obj, CLAIMS)[0], codes(done(obj, CLAIMS)[1].findings)) for obj in (kai, karpenter)] == [
        (kai, ["M014"]),
        (karpenter, ["M021"]),
    ]


# -- everything else


@pytest.mark.parametrize(
    ("api_version", "kind", "spec", "code", "path"),
    [
        ("kyverno.io/v1", "ClusterPolicy", {"rules": [{"key": f"limits.{GPU}"}]}, "M014", "spec.rules[0].key"),
        ("templates.gatekeeper.sh/v1", "ConstraintTemplate", {"rego": f"x == '{GPU}'"}, "M014", "spec.rego"),
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", {"e": f"'{GPU}' in x"}, "M014", "spec.e"),
        ("kubeflow.org/v1alpha1", "PodDefault", {"tolerations": [{"key": GPU}]}, "M014", "spec.tolerations[0].key"),
        ("autoscaling/v2", "HorizontalPodAutoscaler", {"metric": "DCGM_FI_DEV_GPU_UTIL"}, "M021", "spec.metric"),
        ("keda.sh/v1alpha1", "ScaledObject", {"query": 'x{resource="nvidia_com_gpu"}'}, "M021", "spec.query"),
        ("monitoring.coreos.com/v1", "PrometheusRule", {"expr": "DCGM_FI_DEV_XID"}, "M021", "spec.expr"),
        ("example.com/v1", "Thing", {GPU: 1}, "M014", f"spec[{GPU}]"),
    ],
)
def test_what_speaks_of_the_old_resources_is_told_with_its_place(
    api_version: str, kind: str, spec: JsonObject, code: str, path: str
) -> None:
    obj = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}
    after, result = done(obj, CLAIMS)
    assert after == obj
    assert [(one.code.name, one.place.path) for one in result.findings] == [(code, path)]
    assert result.findings[0].advice


@pytest.mark.parametrize(
    "obj",
    [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {GPU: "8"}}},
        {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "c"}, "spec": {"a": GPU}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": GPU}},
        {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "c"},
         "spec": {"extendedResourceName": GPU}},
        pod(limits({GPU: 1})),
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"ports": []}},
    ],
)  # fmt: skip
def test_what_is_read_elsewhere_is_not_told_twice(obj: JsonObject) -> None:
    after, result = done(obj, CLAIMS)
    assert (after, result.findings, result.edits) == (obj, (), ())
