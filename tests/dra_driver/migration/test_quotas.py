"""Quotas, autoscalers and what else speaks of the old resources: what counts claims, and what is only told."""

from typing import Any

import pytest
from support.counting import CLAIMS, EXTENDED, LEAVE, MIG, PLAIN, done, workload
from support.migration import GPU, codes, limits, meaning_of, pod
from support.rows import rows

from dra_driver.api.meta import JsonObject
from dra_driver.migration.counts.quotas import rewrite
from dra_driver.migration.model import MigrationTarget, Options

KEY = "gpu.nvidia.com.deviceclass.resource.k8s.io/devices"


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


@rows(
    "targets, hard",
    [
        ([CLAIMS], {KEY: "16"}),
        ([CLAIMS, EXTENDED], {f"requests.{GPU}": "16", KEY: "16"}),
        ([CLAIMS, LEAVE], {f"requests.{GPU}": "16", KEY: "16"}),
        ([EXTENDED], {f"requests.{GPU}": "16"}),
        ([], {f"requests.{GPU}": "16", KEY: "16"}),
        ([workload(EXTENDED), workload(CLAIMS, namespace="other")], {f"requests.{GPU}": "16"}),
    ],
)
def test_a_quota_counts_claims_where_there_are_some(targets: list[MigrationTarget], hard: JsonObject) -> None:
    after, result = done(quota(GPU="16"), *targets)
    assert after["spec"]["hard"] == hard
    assert codes(result.findings) == ["M014"]


@pytest.mark.parametrize("scope", [{"scopes": ["NotTerminating"]}, {"scopeSelector": {"matchExpressions": [{}]}}])
def test_a_quota_with_scopes_counts_no_claims(scope: JsonObject) -> None:
    obj = quota(GPU=4)
    obj["spec"] |= scope
    after, result = done(obj, CLAIMS)
    assert after == obj
    (finding,) = result.findings
    assert (finding.code.name, finding.severity, "scopes" in finding.message) == ("M014", "warning", True)


def test_a_quota_that_counts_claims_is_let_alone() -> None:
    after, result = done(quota(GPU="16") | {"spec": {"hard": {KEY: "4", f"requests.{GPU}": "16"}}}, CLAIMS, EXTENDED)
    assert after["spec"]["hard"] == {KEY: "4", f"requests.{GPU}": "16"}
    assert result.edits == {}


def test_the_classes_are_those_that_the_claims_name() -> None:
    shared = meaning_of("version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}\n")
    after, _ = done(quota(GPU="16"), workload(CLAIMS, meaning=shared), meaning=shared)
    assert after["spec"]["hard"] == {"shared.gpu.nvidia.com.deviceclass.resource.k8s.io/devices": "16"}
    unseen, _ = done(quota(GPU="16"), meaning=shared)
    assert "shared.gpu.nvidia.com.deviceclass.resource.k8s.io/devices" in unseen["spec"]["hard"]


def test_under_the_strategy_single_whole_gpus_are_limited_too_since_nodes_without_mig_devices_offer_those() -> None:
    single = meaning_of("version: v1\nflags: {migStrategy: single}\n")
    after, _ = done(quota(GPU="4"), meaning=single)
    mig = "mig.nvidia.com.deviceclass.resource.k8s.io/devices"
    assert after["spec"]["hard"] == {f"requests.{GPU}": "4", KEY: "4", mig: "4"}


def test_profiles_are_counted_together_by_their_class() -> None:
    obj = quota(MIG="14")
    obj["spec"]["hard"]["requests.nvidia.com/mig-2g.10gb"] = 3
    targets = [workload(CLAIMS, {MIG: 1}), workload(CLAIMS, {"nvidia.com/mig-2g.10gb": 1})]
    after, result = done(obj, *targets)
    assert after["spec"]["hard"] == {"mig.nvidia.com.deviceclass.resource.k8s.io/devices": "17"}
    assert "added up" in result.findings[0].message
    assert "1g.5gb.mig.nvidia.com" in result.findings[0].advice


def test_numbers_of_shares_are_counted_and_several_of_one_device_are_told() -> None:
    obj = quota() | {"spec": {"hard": {"requests.volcano.sh/vgpu-number": "40"}}}
    share = {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 3000}
    after, _ = done(obj, workload(CLAIMS, share))
    assert after["spec"]["hard"]["shared.gpu.nvidia.com.deviceclass.resource.k8s.io/devices"] == "40"
    shared = meaning_of("version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}\n")
    _, result = done(quota(GPU="16"), workload(CLAIMS, {GPU: 2}, meaning=shared), meaning=shared)
    assert ["several shares" in finding.message for finding in result.findings] == [True, False]


def test_a_quota_of_network_cards_and_of_what_a_person_says_is_no_gpu_is_let_alone() -> None:
    hard = {"requests.nvidia.com/hostdev": "4", "requests.nvidia.com/gpu.license": 2}
    obj = quota() | {"spec": {"hard": hard}}
    after, result = done(obj, CLAIMS, options=Options(other_resources=("nvidia.com/gpu.license",)))
    assert (after, result.findings) == (obj, ())
    _, unsaid = done(obj, CLAIMS)
    assert [finding.message.partition(":")[0] for finding in unsaid.findings] == ["requests.nvidia.com/gpu.license"]


def test_quotas_of_hami_begin_with_limits() -> None:
    hami = meaning_of("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: hami-scheduler-device}\ndata:\n  d.yaml: |\n"
                      "    nvidia: {resourceCountName: nvidia.com/gpu, deviceSplitCount: 10}\n")  # fmt: skip
    assert hami.hami.installed
    obj = quota() | {"spec": {"hard": {f"limits.{GPU}": "8", "limits.nvidia.com/gpumem": "90000"}}}
    after, result = done(obj, workload(CLAIMS, {GPU: 1, "nvidia.com/gpumem": 3000}, meaning=hami), meaning=hami)
    key = "shared.gpu.nvidia.com.deviceclass.resource.k8s.io/devices"
    assert after["spec"]["hard"] == {"limits.nvidia.com/gpumem": "90000", key: "8"}
    assert codes(result.findings) == ["M014"]


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


def test_shares_that_take_all_of_what_they_do_not_name_are_said() -> None:
    memory, both = {"nvidia.com/gpumem": 100}, {"nvidia.com/gpumem": 100, "nvidia.com/gpucores": 5}
    workloads = [workload(CLAIMS, memory), workload(CLAIMS, both), workload(CLAIMS)]
    findings = rewrite([], workloads, PLAIN, Options(), []).findings
    assert [(finding.code.name, finding.place.path) for finding in findings] == [
        ("M049", "spec.containers[0].resources.limits[nvidia.com/gpumem]")
    ]
    assert "cores" in findings[0].message
    assert rewrite([], [workload(CLAIMS, memory), workload(LEAVE, both)], PLAIN, Options(), []).findings == ()


# -- everything else


@rows(
    "api_version, kind, spec, code, path",
    [
        ("kyverno.io/v1", "ClusterPolicy", {"rules": [{"key": f"limits.{GPU}"}]}, "M014", "spec.rules[0].key"),
        ("templates.gatekeeper.sh/v1", "ConstraintTemplate", {"rego": f"x == '{GPU}'"}, "M014", "spec.rego"),
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", {"e": f"'{GPU}' in x"}, "M014", "spec.e"),
        ("kubeflow.org/v1alpha1", "PodDefault", {"tolerations": [{"key": GPU}]}, "M014", "spec.tolerations[0].key"),
        ("autoscaling/v2", "HorizontalPodAutoscaler", {"metric": "DCGM_FI_DEV_GPU_UTIL"}, "M021", "spec.metric"),
        ("keda.sh/v1alpha1", "ScaledObject", {"query": 'x{resource="nvidia_com_gpu"}'}, "M021", "spec.query"),
        ("monitoring.coreos.com/v1", "PrometheusRule", {"expr": "DCGM_FI_DEV_XID"}, "M021", "spec.expr"),
        ("example.com/v1", "Thing", {GPU: 1}, "M014", f"spec[{GPU}]"),
        ("example.com/v1", "Thing", {"resources": {"limits": {GPU: 1}}}, "M020", f"spec.resources.limits[{GPU}]"),
        ("kyverno.io/v1", "Policy", {"resources": {"limits": {GPU: 1}}}, "M014", f"spec.resources.limits[{GPU}]"),
    ],
)
def test_what_speaks_of_the_old_resources_is_told_with_its_place(
    api_version: str, kind: str, spec: JsonObject, code: str, path: str
) -> None:
    obj = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}
    after, result = done(obj, CLAIMS)
    assert after == obj
    assert [(finding.code.name, finding.place.path) for finding in result.findings] == [(code, path)]
    assert result.findings[0].advice


@rows("obj",
    [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}, "status": {"allocatable": {GPU: "8"}}},
        {"apiVersion": "kustomize.config.k8s.io/v1alpha1", "kind": "Component", "patches": [{"patch": GPU}]},
        {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "patches": [{"patch": GPU}]},
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
    assert (after, result.findings, result.edits) == (obj, (), {})
