"""Creating, reading and replacing objects: names, versions, preconditions, what is refused and how."""

import re

import pytest
from support.api import Api
from support.dra_objects import SLICES, claim, claims, device, resource_slice


def config_maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


async def test_a_created_object_comes_back_with_identity_and_version(api: Api, namespace: str) -> None:
    created = await api.post(config_maps(namespace), {"metadata": {"name": "a"}, "data": {"k": "v"}})
    metadata = created["metadata"]
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", metadata["uid"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", metadata["creationTimestamp"])
    assert metadata["resourceVersion"].isdigit()
    assert (created["apiVersion"], created["kind"], metadata["namespace"]) == ("v1", "ConfigMap", namespace)
    assert await api.get(f"{config_maps(namespace)}/a") == created


async def test_identity_given_by_the_client_is_ignored(api: Api, namespace: str) -> None:
    given = {"name": "a", "uid": "x", "creationTimestamp": "2020-01-01T00:00:00Z"}
    created = (await api.post(config_maps(namespace), {"metadata": given}))["metadata"]
    assert created["uid"] != "x"
    assert not created["creationTimestamp"].startswith("2020")


async def test_versions_grow_across_types(api: Api, namespace: str) -> None:
    first = await api.post(config_maps(namespace), {"metadata": {"name": "a"}})
    second = await api.post(claims(namespace), claim("a"))
    assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])


async def test_a_second_object_of_the_name_is_refused(api: Api, namespace: str) -> None:
    await api.post(claims(namespace), claim("a"))
    refusal = await api.refused("POST", claims(namespace), claim("a"))
    assert (refusal.status, refusal.reason) == (409, "AlreadyExists")
    assert refusal.message == 'resourceclaims.resource.k8s.io "a" already exists'
    assert refusal.body["details"] == {"name": "a", "group": "resource.k8s.io", "kind": "resourceclaims"}


async def test_an_object_that_is_not_there_is_not_found(api: Api, namespace: str) -> None:
    refusal = await api.refused("GET", f"{claims(namespace)}/none")
    assert (refusal.status, refusal.reason) == (404, "NotFound")
    assert refusal.message == 'resourceclaims.resource.k8s.io "none" not found'
    assert (await api.refused("PUT", f"{claims(namespace)}/none", claim("none"))).status == 404
    assert (await api.refused("DELETE", f"{claims(namespace)}/none")).status == 404


async def test_a_type_that_is_not_served_is_not_found(api: Api) -> None:
    refusal = await api.refused("GET", "/apis/resource.k8s.io/v1/nonsense")
    assert (refusal.status, refusal.message) == (404, "the server could not find the requested resource")
    assert (await api.refused("GET", "/apis/nonsense.example/v1/things")).status == 404


async def test_generated_names_have_five_more_characters(api: Api, namespace: str) -> None:
    names = set()
    for _ in range(3):
        created = await api.post(config_maps(namespace), {"metadata": {"generateName": "cm-"}})
        assert created["metadata"]["generateName"] == "cm-"
        names.add(created["metadata"]["name"])
    assert len(names) == 3
    assert all(re.fullmatch(r"cm-[bcdfghjklmnpqrstvwxz2456789]{5}", name) for name in names)


async def test_a_long_base_is_cut_so_that_generated_names_have_63_characters(api: Api, namespace: str) -> None:
    created = await api.post(config_maps(namespace), {"metadata": {"generateName": "a" * 80}})
    assert len(created["metadata"]["name"]) == 63


async def test_a_name_is_required(api: Api, namespace: str) -> None:
    refusal = await api.refused("POST", config_maps(namespace), {"metadata": {}})
    assert (refusal.status, refusal.reason) == (422, "Invalid")
    assert refusal.causes == {("metadata.name", "FieldValueRequired")}


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"name": "Upper"}, "metadata.name"),
        ({"name": "a_b"}, "metadata.name"),
        ({"name": "a" * 254}, "metadata.name"),
        ({"name": "a", "labels": {"a b": "c"}}, "metadata.labels"),
        ({"name": "a", "labels": {"a": "c" * 64}}, "metadata.labels"),
        ({"name": "a", "labels": {"a": "b c"}}, "metadata.labels"),
        ({"name": "a", "annotations": {"a b": "c"}}, "metadata.annotations"),
        ({"name": "a", "finalizers": ["unqualified"]}, "metadata.finalizers[0]"),
        (
            {"name": "a", "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p"}]},
            "metadata.ownerReferences.uid",
        ),
    ],
)
async def test_metadata_is_validated(api: Api, namespace: str, metadata: dict[str, object], field: str) -> None:
    refusal = await api.refused("POST", config_maps(namespace), {"metadata": metadata})
    assert refusal.status == 422
    assert (field, "FieldValueInvalid") in refusal.causes


async def test_an_object_has_at_most_one_controlling_owner(api: Api, namespace: str) -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "controller": True}
    owners = [{**owner, "name": "a", "uid": "1"}, {**owner, "name": "b", "uid": "2"}]
    refusal = await api.refused("POST", config_maps(namespace), {"metadata": {"name": "a", "ownerReferences": owners}})
    assert refusal.causes == {("metadata.ownerReferences", "FieldValueInvalid")}


async def test_annotations_are_limited_in_total(api: Api, namespace: str) -> None:
    refusal = await api.refused(
        "POST", config_maps(namespace), {"metadata": {"name": "a", "annotations": {"a": "x" * 262144}}}
    )
    assert ("metadata.annotations", "FieldValueTooLong") in refusal.causes


async def test_the_namespace_must_exist_and_match(api: Api, namespace: str) -> None:
    missing = await api.refused("POST", config_maps("no-such-namespace"), {"metadata": {"name": "a"}})
    assert (missing.status, missing.message) == (404, 'namespaces "no-such-namespace" not found')
    other = await api.refused("POST", config_maps(namespace), {"metadata": {"name": "a", "namespace": "other"}})
    assert (other.status, other.reason) == (400, "BadRequest")


async def test_a_new_object_has_no_version(api: Api, namespace: str) -> None:
    body = {"metadata": {"name": "a", "resourceVersion": "1"}}
    assert (await api.refused("POST", config_maps(namespace), body)).status == 500


async def test_a_stale_replace_is_a_conflict(api: Api, namespace: str) -> None:
    path = f"{config_maps(namespace)}/a"
    first = await api.post(config_maps(namespace), {"metadata": {"name": "a"}})
    await api.put(path, {**first, "data": {"k": "1"}})
    refusal = await api.refused("PUT", path, {**first, "data": {"k": "2"}})
    assert (refusal.status, refusal.reason) == (409, "Conflict")
    assert "the object has been modified" in refusal.message
    assert (await api.get(path))["data"] == {"k": "1"}


async def test_a_replace_without_version_wins(api: Api, namespace: str) -> None:
    await api.post(config_maps(namespace), {"metadata": {"name": "a"}, "data": {"k": "1"}})
    replaced = await api.put(f"{config_maps(namespace)}/a", {"metadata": {"name": "a"}, "data": {"k": "2"}})
    assert replaced["data"] == {"k": "2"}


async def test_a_lease_is_replaced_only_with_its_version(api: Api, namespace: str) -> None:
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    await api.post(leases, {"metadata": {"name": "a"}, "spec": {"holderIdentity": "x"}})
    refusal = await api.refused("PUT", f"{leases}/a", {"metadata": {"name": "a"}, "spec": {"holderIdentity": "y"}})
    assert refusal.status == 422
    assert refusal.causes == {("metadata.resourceVersion", "FieldValueInvalid")}


async def test_lease_times_have_exactly_six_digits_of_a_second(api: Api, namespace: str) -> None:
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    bad = {"metadata": {"name": "a"}, "spec": {"renewTime": "2026-01-01T00:00:00Z"}}
    assert (await api.refused("POST", leases, bad)).status == 400
    good = {"metadata": {"name": "a"}, "spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}
    assert (await api.post(leases, good))["spec"] == good["spec"]


async def test_a_replace_with_another_uid_is_a_conflict(api: Api, namespace: str) -> None:
    created = await api.post(config_maps(namespace), {"metadata": {"name": "a"}})
    body = {"metadata": {"name": "a", "uid": "00000000-0000-0000-0000-000000000000"}}
    refusal = await api.refused("PUT", f"{config_maps(namespace)}/a", body)
    assert (refusal.status, refusal.reason) == (409, "Conflict")
    assert "UID in precondition" in refusal.message
    assert (await api.get(f"{config_maps(namespace)}/a")) == created


async def test_name_in_path_and_body_must_agree(api: Api, namespace: str) -> None:
    await api.post(config_maps(namespace), {"metadata": {"name": "a"}})
    refusal = await api.refused("PUT", f"{config_maps(namespace)}/a", {"metadata": {"name": "b"}})
    assert (refusal.status, refusal.reason) == (400, "BadRequest")


async def test_a_write_that_changes_nothing_gives_no_new_version(api: Api, namespace: str) -> None:
    created = await api.post(config_maps(namespace), {"metadata": {"name": "a"}, "data": {"k": "v"}})
    path = f"{config_maps(namespace)}/a"
    assert await api.put(path, created) == created
    assert await api.patch(path, {"data": {"k": "v"}}) == created


async def test_generation_counts_changes_of_a_slices_spec_only(api: Api, unique: str) -> None:
    created = await api.post(SLICES, resource_slice(unique, device()))
    assert created["metadata"]["generation"] == 1
    labelled = await api.patch(f"{SLICES}/{unique}", {"metadata": {"labels": {"a": "b"}}})
    assert labelled["metadata"]["generation"] == 1
    changed = await api.patch(f"{SLICES}/{unique}", {"spec": {"devices": [device("gpu-1")]}})
    assert changed["metadata"]["generation"] == 2


async def test_claims_have_no_generation(api: Api, namespace: str) -> None:
    assert "generation" not in (await api.post(claims(namespace), claim("a")))["metadata"]


async def test_a_dry_run_answers_and_stores_nothing(api: Api, namespace: str) -> None:
    answer = await api.post(config_maps(namespace), {"metadata": {"name": "a"}}, dryRun="All")
    assert answer["metadata"]["uid"]
    assert (await api.refused("GET", f"{config_maps(namespace)}/a")).status == 404


async def test_unknown_fields_are_dropped_warned_about_or_refused_as_asked(api: Api, namespace: str) -> None:
    body = {**claim("a"), "nonsense": {"x": 1}}
    strict = await api.refused("POST", claims(namespace), body, fieldValidation="Strict")
    assert (strict.status, strict.reason) == (400, "BadRequest")
    assert 'unknown field "nonsense"' in strict.message
    warned = await api.post(claims(namespace), body)
    assert "nonsense" not in warned
    assert api.warnings and 'unknown field \\"nonsense\\"' in api.warnings[0]
    await api.post(claims(namespace), {**body, "metadata": {"name": "b"}}, fieldValidation="Ignore")
    assert api.warnings == []


async def test_a_value_of_the_wrong_type_is_a_bad_request(api: Api, namespace: str) -> None:
    refusal = await api.refused("POST", config_maps(namespace), {"metadata": {"name": "a"}, "data": {"k": 1}})
    assert (refusal.status, refusal.reason) == (400, "BadRequest")


async def test_another_version_or_kind_in_the_body_is_a_bad_request(api: Api, namespace: str) -> None:
    refusal = await api.refused("POST", claims(namespace), {**claim("a"), "apiVersion": "resource.k8s.io/v2"})
    assert (refusal.status, refusal.reason) == (400, "BadRequest")


async def test_empty_optional_lists_and_maps_are_left_out(api: Api, namespace: str) -> None:
    body = {"metadata": {"name": "a", "labels": {}, "finalizers": []}, "data": {}}
    created = await api.post(config_maps(namespace), body)
    assert "data" not in created
    assert not {"labels", "finalizers"} & set(created["metadata"])


async def test_secrets_take_plain_strings(api: Api, namespace: str) -> None:
    body = {"metadata": {"name": "a"}, "stringData": {"k": "v"}}
    created = await api.post(f"/api/v1/namespaces/{namespace}/secrets", body)
    assert (created["data"], created["type"]) == ({"k": "dg=="}, "Opaque")
    assert "stringData" not in created
