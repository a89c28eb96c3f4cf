"""How clients learn what is served, and who they are allowed to be."""

from typing import Any

import pytest
from support.api import Api
from support.dra_objects import crd


async def test_the_version_names_major_and_minor(api: Api) -> None:
    version = await api.get("/version")
    assert version["gitVersion"].startswith(f"v{version['major']}.{version['minor']}")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/livez"])
async def test_health_is_ok(api: Api, path: str) -> None:
    assert (await api.get(path))["message"] == "ok"


async def test_groups_and_their_versions(api: Api) -> None:
    assert (await api.get("/api"))["versions"] == ["v1"]
    groups = {group["name"]: group for group in (await api.get("/apis"))["groups"]}
    dra = groups["resource.k8s.io"]
    assert dra["preferredVersion"] == {"groupVersion": "resource.k8s.io/v1", "version": "v1"}
    assert [version["version"] for version in dra["versions"]] == ["v1"]
    assert await api.get("/apis/resource.k8s.io") == {"kind": "APIGroup", "apiVersion": "v1", **dra}
    assert {"apps", "batch", "coordination.k8s.io", "rbac.authorization.k8s.io", "apiextensions.k8s.io"} <= set(groups)


async def test_versions_of_a_group_stand_in_the_order_of_their_priority(api: Api, unique: str) -> None:
    definition, group = crd(f"{unique}s"), f"{unique}.dra.gpu"
    (only,) = definition["spec"]["versions"]
    names = ["v2", "v10", "v1", "v3beta1", "other", "v12alpha1", "v11beta2"]
    definition["metadata"]["name"], definition["spec"]["group"] = f"{unique}s.{group}", group
    definition["spec"]["versions"] = [{**only, "name": name, "storage": name == "v1"} for name in names]
    await api.define(definition)
    versions = [version["version"] for version in (await api.get(f"/apis/{group}"))["versions"]]
    assert versions == ["v10", "v2", "v1", "v11beta2", "v3beta1", "v12alpha1", "other"]


def slim(resource: dict[str, Any]) -> dict[str, Any]:
    """Without what only concerns storage."""
    return {key: value for key, value in resource.items() if key != "storageVersionHash"}


async def test_the_types_of_dra(api: Api) -> None:
    listed = await api.get("/apis/resource.k8s.io/v1")
    resources = {resource["name"]: slim(resource) for resource in listed["resources"]}
    assert set(resources) == {
        "deviceclasses",
        "resourceclaims",
        "resourceclaims/status",
        "resourceclaimtemplates",
        "resourceslices",
    }
    every = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
    assert resources["resourceclaims"] == {
        "name": "resourceclaims",
        "singularName": "resourceclaim",
        "namespaced": True,
        "kind": "ResourceClaim",
        "verbs": every,
    }
    assert resources["resourceclaims/status"]["verbs"] == ["get", "patch", "update"]
    assert resources["resourceslices"]["namespaced"] is False


async def test_short_names_and_categories_of_pods(api: Api) -> None:
    resources = {resource["name"]: resource for resource in (await api.get("/api/v1"))["resources"]}
    assert (resources["pods"]["shortNames"], resources["pods"]["categories"]) == (["po"], ["all"])
    assert resources["pods/binding"]["kind"] == "Binding"
    assert resources["pods/eviction"] | {"verbs": []} == {
        "name": "pods/eviction",
        "singularName": "",
        "namespaced": True,
        "group": "policy",
        "version": "v1",
        "kind": "Eviction",
        "verbs": [],
    }


async def test_custom_types_appear_and_disappear(api: Api, unique: str) -> None:
    plural = f"{unique}s"
    definition = crd(plural, {"subresources": {"status": {}}})
    definition["spec"]["names"].update(shortNames=[unique[:4]], categories=["contracts"])
    await api.define(definition)

    async def resources() -> dict[str, Any]:
        listed = await api.get("/apis/contract.dra.gpu/v1")
        return {resource["name"]: slim(resource) for resource in listed["resources"]}

    async def shown() -> bool:
        return plural in await resources()

    await api.eventually(shown)
    resource = (await resources())[plural]
    assert (resource["kind"], resource["shortNames"], resource["categories"]) == (
        unique.capitalize(),
        [unique[:4]],
        ["contracts"],
    )
    assert f"{plural}/status" in await resources()


async def test_the_openapi_document_of_dra_says_how_lists_merge(api: Api) -> None:
    paths = (await api.get("/openapi/v3"))["paths"]
    address = paths["apis/resource.k8s.io/v1"]["serverRelativeURL"]
    document = await api.get(address)
    schema = document["components"]["schemas"]["io.k8s.api.resource.v1.ResourceClaimStatus"]
    reserved = schema["properties"]["reservedFor"]
    assert (reserved["x-kubernetes-list-type"], reserved["x-kubernetes-list-map-keys"]) == ("map", ["uid"])
    path = document["paths"]["/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"]
    assert "fieldValidation" in {parameter["name"] for parameter in path["patch"]["parameters"]}
    assert path["patch"]["x-kubernetes-group-version-kind"]["kind"] == "ResourceClaim"


async def test_an_administrator_may_do_everything(api: Api) -> None:
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": "create", "group": "resource.k8s.io", "resource": "resourceslices"}},
    }
    review = await api.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    assert review["status"]["allowed"] is True


async def test_methods_that_make_no_sense_are_refused(api: Api) -> None:
    refusal = await api.refused("POST", "/apis/resource.k8s.io/v1/resourceslices/name", {})
    assert (refusal.status, refusal.reason) == (405, "MethodNotAllowed")
