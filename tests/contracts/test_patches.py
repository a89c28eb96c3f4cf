"""The patch types that do not track owners."""

import pytest
from support.api import MERGE, STRATEGIC, Api
from support.dra_objects import claim, claims, crd


def config_maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


async def test_a_merge_patch_sets_and_null_deletes(api: Api, namespace: str) -> None:
    await api.post(config_maps(namespace), {"metadata": {"name": "a"}, "data": {"x": "1", "y": "1"}})
    patched = await api.patch(f"{config_maps(namespace)}/a", {"data": {"x": None, "z": "2"}}, MERGE)
    assert patched["data"] == {"y": "1", "z": "2"}


async def test_a_merge_patch_replaces_lists(api: Api, namespace: str) -> None:
    await api.post(claims(namespace), claim("a", finalizers=["x.example/a", "x.example/b"]))
    patched = await api.patch(f"{claims(namespace)}/a", {"metadata": {"finalizers": ["x.example/c"]}}, MERGE)
    assert patched["metadata"]["finalizers"] == ["x.example/c"]


@pytest.mark.parametrize("kind", [MERGE, STRATEGIC])
async def test_a_version_in_a_patch_guards_it(api: Api, namespace: str, kind: str) -> None:
    path = f"{claims(namespace)}/a"
    created = await api.post(claims(namespace), claim("a"))
    version = created["metadata"]["resourceVersion"]
    first = {"metadata": {"labels": {"a": "1"}, "resourceVersion": version}}
    await api.patch(path, first, kind)
    refusal = await api.refused("PATCH", path, {"metadata": {**first["metadata"], "labels": {"a": "2"}}}, kind)
    assert (refusal.status, refusal.reason) == (409, "Conflict")


async def test_another_uid_in_a_patch_is_invalid(api: Api, namespace: str) -> None:
    await api.post(claims(namespace), claim("a"))
    refusal = await api.refused("PATCH", f"{claims(namespace)}/a", {"metadata": {"uid": "other"}}, MERGE)
    assert refusal.status == 422
    assert refusal.causes == {("metadata.uid", "FieldValueInvalid")}


async def test_another_name_in_a_patch_is_a_bad_request(api: Api, namespace: str) -> None:
    await api.post(claims(namespace), claim("a"))
    refusal = await api.refused("PATCH", f"{claims(namespace)}/a", {"metadata": {"name": "b"}}, MERGE)
    assert (refusal.status, refusal.reason) == (400, "BadRequest")


async def test_a_strategic_patch_merges_finalizers_and_owners_and_deletes_by_directive(
    api: Api, namespace: str
) -> None:
    path = f"{claims(namespace)}/a"
    owner, other = [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": created["metadata"]["uid"]}
        for name in ("m", "n")
        for created in [await api.post(config_maps(namespace), {"metadata": {"name": name}})]
    ]
    await api.post(claims(namespace), claim("a", finalizers=["x.example/a"], ownerReferences=[owner]))
    added = {"metadata": {"finalizers": ["x.example/b"], "ownerReferences": [other]}}
    patched = (await api.patch(path, added, STRATEGIC))["metadata"]
    assert patched["finalizers"] == ["x.example/b", "x.example/a"]
    assert [reference["uid"] for reference in patched["ownerReferences"]] == [other["uid"], owner["uid"]]
    removed = {
        "metadata": {
            "$deleteFromPrimitiveList/finalizers": ["x.example/a"],
            "ownerReferences": [{"$patch": "delete", "uid": owner["uid"]}],
        }
    }
    patched = (await api.patch(path, removed, STRATEGIC))["metadata"]
    assert patched["finalizers"] == ["x.example/b"]
    assert [reference["uid"] for reference in patched["ownerReferences"]] == [other["uid"]]


async def test_a_strategic_patch_merges_containers_and_conditions_by_their_key(api: Api, namespace: str) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    labels = {"matchLabels": {"a": "b"}}
    pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i", "args": ["x"]}]}}
    await api.post(path, {"metadata": {"name": "d"}, "spec": {"selector": labels, "template": pod}})
    patch = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "j"}, {"name": "e", "image": "k"}]}}}}
    patched = await api.patch(f"{path}/d", patch, STRATEGIC)
    containers = {container["name"]: container for container in patched["spec"]["template"]["spec"]["containers"]}
    assert containers["c"]["image"] == "j" and containers["c"]["args"] == ["x"] and "e" in containers


async def test_a_strategic_patch_replaces_atomic_lists(api: Api, namespace: str) -> None:
    body = claim("a")
    await api.post(claims(namespace), body)
    refusal = await api.refused(
        "PATCH", f"{claims(namespace)}/a", {"spec": {"devices": {"requests": [{"name": "b"}]}}}, STRATEGIC
    )
    assert ("spec", "FieldValueInvalid") in refusal.causes


async def test_plain_json_is_no_patch_type(api: Api, namespace: str) -> None:
    await api.post(config_maps(namespace), {"metadata": {"name": "a"}})
    refusal = await api.refused("PATCH", f"{config_maps(namespace)}/a", {}, "application/json")
    assert (refusal.status, refusal.reason) == (415, "UnsupportedMediaType")


async def test_custom_types_have_no_strategic_patch(api: Api, unique: str) -> None:
    plural = f"{unique}s"
    await api.define(crd(plural))
    path = f"/apis/contract.dra.gpu/v1/{plural}"
    await api.post(path, {"apiVersion": "contract.dra.gpu/v1", "kind": unique.capitalize(), "metadata": {"name": "a"}})
    assert (await api.refused("PATCH", f"{path}/a", {"spec": {}}, STRATEGIC)).status == 415
