"""Pods as far as claims, kubelet and scheduler are concerned: claims in the spec, binding, status."""

from typing import Any

import pytest
from support.api import MERGE, STRATEGIC, Api
from support.dra_objects import pod


def pods(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def with_claims(name: str, uses: list[dict[str, str]], claims: list[dict[str, str]]) -> dict[str, Any]:
    body = pod(name, resourceClaims=claims)
    body["spec"]["containers"][0]["resources"] = {"claims": uses}
    return body


GPU = {"name": "gpu", "resourceClaimTemplateName": "one-gpu"}


async def test_a_new_pod_is_pending_and_has_its_defaults(api: Api, namespace: str) -> None:
    created = await api.post(pods(namespace), {**with_claims("a", [{"name": "gpu"}], [GPU]), "status": {"phase": "X"}})
    assert created["status"]["phase"] == "Pending"
    spec = created["spec"]
    assert (spec["restartPolicy"], spec["schedulerName"]) == ("Always", "default-scheduler")
    assert spec["resourceClaims"] == [GPU]
    assert spec["containers"][0]["resources"] == {"claims": [{"name": "gpu"}]}
    assert created["metadata"]["generation"] == 1


@pytest.mark.parametrize(
    "uses",
    [[{"name": "gpu"}], [{"name": "gpu", "request": "a"}, {"name": "gpu", "request": "b"}], []],
    ids=["whole claim", "two requests of it", "none"],
)
async def test_containers_use_claims_or_requests_of_them(api: Api, namespace: str, uses: list[dict[str, str]]) -> None:
    await api.post(pods(namespace), with_claims("a", uses, [GPU]))


CLAIM = "spec.resourceClaims[0]"
USE = "spec.containers[0].resources.claims"
WRONG: dict[str, tuple[list[dict[str, str]], list[dict[str, str]], tuple[str, str]]] = {
    "a claim by name and by template": ([], [{**GPU, "resourceClaimName": "x"}], (CLAIM, "FieldValueInvalid")),
    "a claim by neither": ([], [{"name": "gpu"}], (CLAIM, "FieldValueInvalid")),
    "two claims of one name": ([], [GPU, GPU], ("spec.resourceClaims[1].name", "FieldValueDuplicate")),
    "a use of no claim": ([{"name": "gpu"}], [], (f"{USE}[0]", "FieldValueNotFound")),
    "a claim used twice": ([{"name": "gpu"}, {"name": "gpu"}], [GPU], (f"{USE}[1]", "FieldValueDuplicate")),
    "a claim and a request of it": (
        [{"name": "gpu"}, {"name": "gpu", "request": "a"}],
        [GPU],
        (f"{USE}[1]", "FieldValueDuplicate"),
    ),
}


@pytest.mark.parametrize(("uses", "claims", "cause"), WRONG.values(), ids=WRONG.keys())
async def test_wrong_uses_of_claims_are_refused(
    api: Api, namespace: str, uses: list[dict[str, str]], claims: list[dict[str, str]], cause: tuple[str, str]
) -> None:
    refusal = await api.refused("POST", pods(namespace), with_claims("a", uses, claims))
    assert cause in refusal.causes


async def test_the_claims_of_a_pod_never_change(api: Api, namespace: str) -> None:
    await api.post(pods(namespace), with_claims("a", [], [GPU]))
    patch = {"spec": {"resourceClaims": [{"name": "other", "resourceClaimName": "x"}]}}
    refusal = await api.refused("PATCH", f"{pods(namespace)}/a", patch, STRATEGIC)
    assert ("spec", "FieldValueForbidden") in refusal.causes


async def test_images_may_change_and_nodes_may_not(api: Api, namespace: str) -> None:
    path = f"{pods(namespace)}/a"
    await api.post(pods(namespace), pod("a"))
    patch = {"spec": {"containers": [{"name": "main", "image": "other"}]}}
    assert (await api.patch(path, patch, STRATEGIC))["metadata"]["generation"] == 2
    refusal = await api.refused("PATCH", path, {"spec": {"nodeName": "n"}}, MERGE)
    assert ("spec", "FieldValueForbidden") in refusal.causes


async def test_a_binding_puts_a_pod_on_a_node_once(api: Api, namespace: str) -> None:
    path = f"{pods(namespace)}/a"
    await api.post(pods(namespace), pod("a"))
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "a", "namespace": namespace},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "node-1"},
    }
    answer = await api.post(f"{path}/binding", binding)
    assert (answer["kind"], answer["status"]) == ("Status", "Success")
    bound = await api.get(path)
    assert bound["spec"]["nodeName"] == "node-1"
    conditions = {condition["type"]: condition["status"] for condition in bound["status"]["conditions"]}
    assert conditions == {"PodScheduled": "True"}
    refusal = await api.refused("POST", f"{path}/binding", binding)
    assert (refusal.status, refusal.reason) == (409, "Conflict")


async def test_a_kubelet_reports_status_by_strategic_patches(api: Api, namespace: str) -> None:
    path = f"{pods(namespace)}/a/status"
    await api.post(pods(namespace), pod("a", nodeName="node-1"))
    ready = {"type": "Ready", "status": "False"}
    await api.patch(path, {"status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [ready]}}, STRATEGIC)
    changed = await api.patch(path, {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, STRATEGIC)
    assert [(condition["type"], condition["status"]) for condition in changed["status"]["conditions"]] == [
        ("Ready", "True")
    ]
    assert changed["status"]["podIPs"] == [{"ip": "10.0.0.1"}]
    assert changed["status"]["phase"] == "Running"


async def test_generated_claims_are_named_in_the_status(api: Api, namespace: str) -> None:
    path = f"{pods(namespace)}/a/status"
    await api.post(pods(namespace), with_claims("a", [], [GPU]))
    statuses = [{"name": "gpu", "resourceClaimName": "a-gpu-x"}]
    changed = await api.patch(path, {"status": {"resourceClaimStatuses": statuses}}, STRATEGIC)
    assert changed["status"]["resourceClaimStatuses"] == statuses
    wrong = {"status": {"resourceClaimStatuses": [{"name": "other", "resourceClaimName": "x"}]}}
    refusal = await api.refused("PATCH", path, wrong, MERGE)
    assert ("status.resourceClaimStatuses[0].name", "FieldValueInvalid") in refusal.causes


async def test_a_status_write_does_not_touch_the_spec(api: Api, namespace: str) -> None:
    created = await api.post(pods(namespace), pod("a"))
    changed = await api.patch(f"{pods(namespace)}/a/status", {"spec": {"nodeName": "n"}, "status": {"phase": "Failed"}})
    assert changed["spec"] == created["spec"]
    assert changed["status"]["phase"] == "Failed"


async def test_an_extended_resource_is_requested_by_its_limit(api: Api, namespace: str) -> None:
    body = pod("a")
    body["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    created = await api.post(pods(namespace), body)
    resources = created["spec"]["containers"][0]["resources"]
    assert resources == {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}


async def test_pods_of_a_stateful_set_may_mount_the_volumes_that_it_will_give_them(api: Api, namespace: str) -> None:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": pod("a")["spec"]}
    template["spec"]["containers"][0]["volumeMounts"] = [{"name": "work", "mountPath": "/work"}]
    volume = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    claims = [{"metadata": {"name": "work"}, "spec": volume}]
    selector = {"matchLabels": {"app": "a"}}
    spec = {
        "serviceName": "a",
        "replicas": 0,
        "selector": selector,
        "template": template,
        "volumeClaimTemplates": claims,
    }
    body = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "a"}, "spec": spec}
    created = await api.post(f"/apis/apps/v1/namespaces/{namespace}/statefulsets", body)
    assert created["spec"]["volumeClaimTemplates"][0]["metadata"]["name"] == "work"


async def test_the_scheduler_records_the_claim_of_extended_resources(api: Api, namespace: str) -> None:
    body = pod("a")
    body["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    await api.post(pods(namespace), body)
    mapping = {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-0"}
    status = {"extendedResourceClaimStatus": {"resourceClaimName": "a-extended", "requestMappings": [mapping]}}
    changed = await api.patch(f"{pods(namespace)}/a/status", {"status": status})
    assert changed["status"]["extendedResourceClaimStatus"] == status["extendedResourceClaimStatus"]
    status["extendedResourceClaimStatus"]["requestMappings"][0]["resourceName"] = "other.example/gpu"
    refusal = await api.refused("PATCH", f"{pods(namespace)}/a/status", {"status": status}, MERGE)
    assert {field.rpartition(".")[2] for field, _ in refusal.causes} == {"resourceName"}


@pytest.mark.parametrize(("name", "accepted"), [("claim:gpu/a", True), ("claim:gpu", False), ("claim:other", False)])
async def test_health_is_of_what_the_container_asks_for(api: Api, namespace: str, name: str, accepted: bool) -> None:
    body = pod("a")
    body["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "gpu"}]
    body["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu", "request": "a"}]}
    await api.post(pods(namespace), body)
    shown = {"name": "main", "image": "x", "imageID": "", "ready": True, "restartCount": 0}
    health = {"name": name, "resources": [{"resourceID": "x", "health": "Healthy"}]}
    status = {"containerStatuses": [{**shown, "allocatedResourcesStatus": [health]}]}
    if accepted:
        changed = await api.patch(f"{pods(namespace)}/a/status", {"status": status}, MERGE)
        assert changed["status"]["containerStatuses"][0]["allocatedResourcesStatus"] == [health]
        return
    refusal = await api.refused("PATCH", f"{pods(namespace)}/a/status", {"status": status}, MERGE)
    path = "status.containerStatuses[0].allocatedResourcesStatus[0].name"
    assert (path, "FieldValueInvalid") in refusal.causes
