"""Server-side apply. The simulated server keeps no record of managers, and sees no conflicts between them."""

from typing import Any

import pytest
from support.api import APPLY, STRATEGIC, Api, Refused
from support.dra_objects import allocation, claim, claims, crd, request, result


def config_maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


def config(data: dict[str, str] | None, **metadata: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", **metadata}}
    return body if data is None else {**body, "data": data}


async def apply(api: Api, path: str, body: Any, manager: str, **query: str) -> dict[str, Any]:
    return await api.patch(path, body, APPLY, fieldManager=manager, **query)


async def test_an_apply_creates_what_it_says(api: Api, namespace: str) -> None:
    created = await apply(api, f"{config_maps(namespace)}/a", config({"x": "1"}, labels={"l": "1"}), "one")
    assert created["data"] == {"x": "1"}


async def test_applying_the_same_again_writes_nothing(api: Api, namespace: str) -> None:
    path = f"{config_maps(namespace)}/a"
    first = await apply(api, path, config({"x": "1"}), "one")
    assert await apply(api, path, config({"x": "1"}), "one") == first


async def test_what_is_no_longer_said_goes(api: Api, namespace: str) -> None:
    path = f"{config_maps(namespace)}/a"
    await apply(api, path, config({"x": "1", "y": "1"}), "one")
    assert (await apply(api, path, config({"y": "1"}), "one"))["data"] == {"y": "1"}
    assert "data" not in await apply(api, path, config(None), "one")


async def test_what_somebody_else_says_too_stays(api: Api, namespace: str) -> None:
    path = f"{config_maps(namespace)}/a"
    await apply(api, path, config({"x": "1", "y": "1"}), "one")
    await apply(api, path, config({"x": "1"}), "two")
    assert (await apply(api, path, config(None), "one"))["data"] == {"x": "1"}


async def test_a_forced_apply_takes_over(api: Api, namespace: str) -> None:
    path = f"{config_maps(namespace)}/a"
    await apply(api, path, config({"x": "1", "y": "1"}), "one")
    taken = await apply(api, path, config({"x": "2"}), "two", force="true")
    assert taken["data"] == {"x": "2", "y": "1"}


@pytest.mark.parametrize(
    ("body", "query", "status"),
    [
        (config({"x": "1"}), {}, 422),
        (config({"x": "1"}, managedFields=[{"manager": "m"}]), {"fieldManager": "one"}, 400),
        ({"metadata": {"name": "a"}}, {"fieldManager": "one"}, 400),
        ({**config({}), "nonsense": 1}, {"fieldManager": "one"}, 500),
        (config({}, resourceVersion="1"), {"fieldManager": "one"}, 409),
    ],
    ids=["no manager", "managed fields", "no kind", "an unknown field", "a stale version"],
)
async def test_an_apply_that_cannot_be_is_refused(
    api: Api, namespace: str, body: dict[str, Any], query: dict[str, str], status: int
) -> None:
    await api.post(config_maps(namespace), config({"w": "1"}))
    refusal = await api.refused("PATCH", f"{config_maps(namespace)}/a", body, APPLY, **query)
    assert refusal.status == status


async def test_a_status_is_not_applied_to_what_is_not_there(api: Api, namespace: str) -> None:
    body = {**claim("a"), "status": {}}
    refusal = await api.refused("PATCH", f"{claims(namespace)}/a/status", body, APPLY, fieldManager="one")
    assert refusal.status == 404


def status(*devices: dict[str, Any], **fields: Any) -> dict[str, Any]:
    base = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "a"}}
    return {**base, "status": {"devices": list(devices), **fields} if devices else fields}


def device(name: str, **fields: Any) -> dict[str, Any]:
    return {"driver": "gpu.nvidia.com", "pool": "node-1", "device": name, **fields}


def condition(kind: str, value: str = "True") -> dict[str, str]:
    moment = "2026-01-01T00:00:00Z"
    return {"type": kind, "status": value, "reason": "R", "message": "m", "lastTransitionTime": moment}


async def allocated(api: Api, namespace: str) -> str:
    await api.post(claims(namespace), claim("a"))
    path = f"{claims(namespace)}/a/status"
    await api.patch(path, {"status": {"allocation": allocation(result("gpu-0"), result("gpu-1"))}})
    return path


async def test_drivers_share_the_device_list_by_its_keys(api: Api, namespace: str) -> None:
    path = await allocated(api, namespace)
    await apply(api, path, status(device("gpu-0", data={"a": 1})), "one")
    both = await apply(api, path, status(device("gpu-1", data={"b": 1})), "two")
    assert [entry["device"] for entry in both["status"]["devices"]] == ["gpu-0", "gpu-1"]
    left = await apply(api, path, status(), "one")
    assert [entry["device"] for entry in left["status"]["devices"]] == ["gpu-1"]


async def test_conditions_are_shared_by_their_type(api: Api, namespace: str) -> None:
    path = await allocated(api, namespace)
    await apply(api, path, status(device("gpu-0", conditions=[condition("Ready")])), "one")
    both = await apply(api, path, status(device("gpu-0", conditions=[condition("Live")])), "two")
    assert [item["type"] for item in both["status"]["devices"][0]["conditions"]] == ["Ready", "Live"]


async def test_consumers_are_shared_by_their_uid(api: Api, namespace: str) -> None:
    path = await allocated(api, namespace)
    for manager in ("one", "two"):
        consumer = {"resource": "pods", "name": manager, "uid": manager}
        changed = await apply(api, path, status(reservedFor=[consumer]), manager)
    assert [reference["uid"] for reference in changed["status"]["reservedFor"]] == ["one", "two"]


async def test_an_apply_of_the_claim_leaves_the_status_alone(api: Api, namespace: str) -> None:
    await allocated(api, namespace)
    body = {**claim("a", labels={"l": "1"}), "status": {"allocation": allocation(result("gpu-1"))}}
    changed = await apply(api, f"{claims(namespace)}/a", body, "one", force="true")
    assert changed["status"]["allocation"] == allocation(result("gpu-0"), result("gpu-1"))


async def test_an_applied_claim_spec_stays_immutable(api: Api, namespace: str) -> None:
    path = f"{claims(namespace)}/a"
    await apply(api, path, claim("a"), "one")
    other = claim("a", {"devices": {"requests": [request("other")]}})
    assert (await api.refused("PATCH", path, other, APPLY, fieldManager="one")).status == 422


async def test_containers_that_are_no_longer_applied_go_with_their_defaults(api: Api, namespace: str) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/a"

    def deployment(*names: str) -> dict[str, Any]:
        pod = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": n, "image": "i"} for n in names]}}
        spec = {"selector": {"matchLabels": {"a": "b"}}, "template": pod}
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": spec}

    await apply(api, path, deployment("c", "d"), "one")
    left = await apply(api, path, deployment("c"), "one")
    assert [container["name"] for container in left["spec"]["template"]["spec"]["containers"]] == ["c"]
    await api.patch(path, {"spec": {"replicas": 3}}, STRATEGIC, fieldManager="scaler")
    assert (await apply(api, path, deployment("c"), "one"))["spec"]["replicas"] == 3


LISTS = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "keyed": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["k"],
                    "items": {
                        "type": "object",
                        "required": ["k"],
                        "properties": {"k": {"type": "string"}, "v": {"type": "string"}},
                    },
                },
                "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "atomic": {"type": "array", "items": {"type": "string"}},
                "map": {"type": "object", "additionalProperties": {"type": "string"}},
            },
        }
    },
}


async def test_custom_lists_merge_as_their_schema_says(api: Api, unique: str) -> None:
    plural = f"{unique}s"
    await api.define(crd(plural, {"schema": {"openAPIV3Schema": LISTS}}))
    path, kind = f"/apis/contract.dra.gpu/v1/{plural}/a", unique.capitalize()

    def thing(**spec: Any) -> dict[str, Any]:
        return {"apiVersion": "contract.dra.gpu/v1", "kind": kind, "metadata": {"name": "a"}, "spec": spec}

    await apply(api, path, thing(keyed=[{"k": "a", "v": "1"}], set=["x"], map={"m": "1"}), "one")
    both = await apply(api, path, thing(keyed=[{"k": "b"}], set=["y"], map={"n": "1"}, atomic=["q"]), "two")
    assert both["spec"] == {
        "keyed": [{"k": "a", "v": "1"}, {"k": "b"}],
        "set": ["x", "y"],
        "map": {"m": "1", "n": "1"},
        "atomic": ["q"],
    }
    left = await apply(api, path, thing(), "one")
    assert left["spec"] == {"keyed": [{"k": "b"}], "set": ["y"], "map": {"n": "1"}, "atomic": ["q"]}


async def test_an_apply_is_validated_like_any_write(api: Api, namespace: str) -> None:
    spec = {"devices": {"requests": [{"name": "a b", "exactly": {"deviceClassName": "x"}}]}}
    wrong = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "a"}, "spec": spec}
    path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/a"
    with pytest.raises(Refused) as refusal:
        await apply(api, path, wrong, "one")
    assert refusal.value.status == 422
    assert await api.is_gone(path)
