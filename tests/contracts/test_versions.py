"""Objects that are served in several shapes: the beta versions of resource.k8s.io, and the two kinds of events."""

from typing import Any

import pytest
from support.api import MERGE, Api
from support.dra_objects import DRA, SLICES, allocation, claim, claims, device, request, resource_slice

BETA1, BETA2 = "/apis/resource.k8s.io/v1beta1", "/apis/resource.k8s.io/v1beta2"
beta = pytest.mark.parametrize("beta_apis", [True], ids=["beta"])
taint_rules = pytest.mark.parametrize("feature_gates", [{"DRADeviceTaintRules": True}], ids=["rules"])


async def test_beta_versions_are_off_by_default(api: Api) -> None:
    for path in (BETA1, BETA2):
        assert (await api.refused("GET", f"{path}/resourceslices")).status == 404


@beta
async def test_discovery_prefers_v1(api: Api) -> None:
    group = await api.get("/apis/resource.k8s.io")
    assert [one["version"] for one in group["versions"]] == ["v1", "v1beta2", "v1beta1"]
    assert group["preferredVersion"]["version"] == "v1"


@beta
async def test_requests_are_flat_in_v1beta1(api: Api, namespace: str) -> None:
    path = f"{BETA1}/namespaces/{namespace}/resourceclaims"
    flat = {"name": "gpu", "deviceClassName": "gpu.nvidia.com"}
    created = await api.post(path, {"metadata": {"name": "a"}, "spec": {"devices": {"requests": [flat]}}})
    assert created["apiVersion"] == "resource.k8s.io/v1beta1"
    assert created["spec"]["devices"]["requests"] == [{**flat, "allocationMode": "ExactCount", "count": 1}]
    stored = await api.get(f"{claims(namespace)}/a")
    assert stored["spec"]["devices"]["requests"] == [request(allocationMode="ExactCount", count=1)]
    assert stored["metadata"]["uid"] == created["metadata"]["uid"]


@beta
async def test_alternatives_look_the_same_in_every_version(api: Api, namespace: str) -> None:
    spec = {"devices": {"requests": [{"name": "a", "firstAvailable": [{"name": "s", "deviceClassName": "x"}]}]}}
    await api.post(claims(namespace), claim("a", spec))
    for path in (BETA1, BETA2, DRA):
        read = await api.get(f"{path}/namespaces/{namespace}/resourceclaims/a")
        (alternative,) = read["spec"]["devices"]["requests"][0]["firstAvailable"]
        assert (alternative["name"], alternative["count"]) == ("s", 1)


@beta
async def test_devices_have_a_basic_part_in_v1beta1(api: Api, unique: str) -> None:
    await api.post(SLICES, resource_slice(unique, device(attributes={"a": {"int": 1}})))
    path = f"{BETA1}/resourceslices/{unique}"
    assert (await api.get(path))["spec"]["devices"] == [{"name": "gpu-0", "basic": {"attributes": {"a": {"int": 1}}}}]
    changed = {"spec": {"devices": [{"name": "gpu-0", "basic": {"attributes": {"a": {"int": 2}}}}]}}
    await api.patch(path, changed, MERGE)
    stored = await api.get(f"{SLICES}/{unique}")
    assert stored["spec"]["devices"] == [device(attributes={"a": {"int": 2}})]
    assert stored["metadata"]["generation"] == 2


@beta
async def test_a_status_written_in_a_beta_version_is_seen_in_v1(api: Api, namespace: str) -> None:
    await api.post(claims(namespace), claim("a"))
    patch = {"status": {"allocation": allocation()}}
    await api.patch(f"{BETA1}/namespaces/{namespace}/resourceclaims/a/status", patch)
    stored = await api.get(f"{claims(namespace)}/a")
    assert stored["status"] == patch["status"]
    assert stored["spec"]["devices"]["requests"][0]["exactly"]["count"] == 1


@beta
async def test_beta_versions_warn_that_they_will_go(api: Api, unique: str) -> None:
    await api.get(f"{BETA1}/resourceslices")
    deprecated = ["resource.k8s.io/v1beta1 ResourceSlice is deprecated" in text for text in api.warnings]
    assert deprecated == [True] * (api.minor >= 35)


@beta
async def test_a_watch_of_a_beta_version_shows_its_shape(api: Api, unique: str) -> None:
    path = f"{BETA1}/resourceslices"
    position = (await api.get(path))["metadata"]["resourceVersion"]
    async with api.watch(path, resourceVersion=position, fieldSelector=f"metadata.name={unique}") as watch:
        await api.post(SLICES, resource_slice(unique, device(attributes={"a": {"int": 1}})))
        event, obj = await watch.next()
    assert (event, obj["apiVersion"]) == ("ADDED", "resource.k8s.io/v1beta1")
    assert "basic" in obj["spec"]["devices"][0]


RULES = f"{BETA2}/devicetaintrules"


@pytest.fixture
def rules(api: Api) -> str:
    """The path of DeviceTaintRules."""
    if api.minor < 36:
        pytest.skip("Kubernetes before 1.36 serves DeviceTaintRules in v1alpha3 only")
    return RULES


@beta
@taint_rules
async def test_a_new_effect_of_a_taint_rule_starts_a_new_time(api: Api, rules: str, unique: str) -> None:
    taint = {"key": "k", "effect": "NoSchedule", "timeAdded": "2026-01-01T00:00:00Z"}
    spec = {"deviceSelector": {"driver": "gpu.nvidia.com"}, "taint": taint}
    created = await api.post(rules, {"metadata": {"name": unique}, "spec": spec})
    assert (created["spec"], created["metadata"]["generation"]) == (spec, 1)
    labelled = await api.patch(f"{rules}/{unique}", {"metadata": {"labels": {"a": "b"}}})
    assert labelled["spec"]["taint"]["timeAdded"] == taint["timeAdded"]
    changed = await api.patch(f"{rules}/{unique}", {"spec": {"taint": {"effect": "NoExecute"}}})
    assert changed["spec"]["taint"]["timeAdded"] > taint["timeAdded"]
    assert changed["metadata"]["generation"] == 2


@beta
@taint_rules
async def test_wrong_taint_rules_are_refused(api: Api, rules: str, unique: str) -> None:
    spec = {"deviceSelector": {"driver": "", "pool": "A_", "device": "A_"}, "taint": {"key": "", "effect": "X"}}
    refusal = await api.refused("POST", rules, {"metadata": {"name": unique}, "spec": spec})
    assert refusal.causes == {
        ("spec.deviceSelector.driver", "FieldValueRequired"),
        ("spec.deviceSelector.pool", "FieldValueInvalid"),
        ("spec.deviceSelector.device", "FieldValueInvalid"),
        ("spec.taint.key", "FieldValueInvalid"),
        ("spec.taint.effect", "FieldValueNotSupported"),
    }


@beta
@taint_rules
async def test_the_status_of_a_taint_rule_says_how_eviction_goes(api: Api, rules: str, unique: str) -> None:
    await api.post(rules, {"metadata": {"name": unique}, "spec": {"taint": {"key": "k", "effect": "None"}}})
    condition = {
        "type": "EvictionInProgress",
        "status": "True",
        "reason": "R",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    changed = await api.patch(f"{rules}/{unique}/status", {"status": {"conditions": [condition]}})
    assert changed["status"] == {"conditions": [condition]}


async def test_an_event_is_the_same_object_in_both_groups(api: Api, namespace: str) -> None:
    path = f"namespaces/{namespace}/events"
    about = {"kind": "Pod", "name": "p", "namespace": namespace}
    new: dict[str, Any] = {
        "metadata": {"name": "a"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "x.example/y",
        "reportingInstance": "i",
        "action": "Prepare",
        "reason": "Failed",
        "regarding": about,
        "note": "text",
        "type": "Warning",
    }
    created = await api.post(f"/apis/events.k8s.io/v1/{path}", new)
    old = await api.get(f"/api/v1/{path}/a")
    assert old["metadata"]["uid"] == created["metadata"]["uid"]
    assert (old["involvedObject"], old["message"], old["reportingComponent"]) == (about, "text", "x.example/y")
    listed = await api.get(f"/api/v1/{path}", fieldSelector="involvedObject.name=p,type=Warning")
    assert [one["metadata"]["name"] for one in listed["items"]] == ["a"]


async def test_an_event_lives_in_the_namespace_of_what_it_is_about(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/events"
    body = {"metadata": {"name": "a"}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "other"}}
    assert ("involvedObject.namespace", "FieldValueInvalid") in (await api.refused("POST", path, body)).causes
