"""What goes with its owner, and what goes with its namespace. The work of controllers on a real cluster."""

from typing import Any

import pytest
from support.api import Api
from support.dra_objects import SLICES, claim, claims, device, pod, resource_slice


@pytest.fixture(autouse=True)
def controllers(api: Api) -> None:
    api.needs_controllers()


def config_maps(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/configmaps"


def owned_by(owner: dict[str, Any], **fields: Any) -> dict[str, Any]:
    metadata = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        **fields,
    }


async def create(api: Api, namespace: str, name: str, *owners: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"metadata": {"name": name, **metadata}}
    if owners:
        body["metadata"]["ownerReferences"] = list(owners)
    return await api.post(config_maps(namespace), body)


async def gone(api: Api, path: str) -> None:
    async def is_gone() -> bool:
        return await api.is_gone(path)

    await api.eventually(is_gone)


async def test_dependents_go_after_their_owner(api: Api, namespace: str) -> None:
    owner = await create(api, namespace, "owner")
    await create(api, namespace, "child", owned_by(owner))
    await api.post(claims(namespace), claim("claim", ownerReferences=[owned_by(owner)]))
    await api.delete(f"{config_maps(namespace)}/owner")
    await gone(api, f"{config_maps(namespace)}/child")
    await gone(api, f"{claims(namespace)}/claim")


async def test_the_slices_of_a_node_go_with_it(api: Api, unique: str) -> None:
    node = await api.post("/api/v1/nodes", {"metadata": {"name": unique}})
    body = resource_slice(unique, device(), nodeName=unique)
    body["metadata"]["ownerReferences"] = [owned_by(node, controller=True)]
    await api.post(SLICES, body)
    await api.delete(f"/api/v1/nodes/{unique}")
    await gone(api, f"{SLICES}/{unique}")


async def test_a_dependent_stays_while_it_has_another_owner(api: Api, namespace: str) -> None:
    first, second = await create(api, namespace, "first"), await create(api, namespace, "second")
    await create(api, namespace, "child", owned_by(first), owned_by(second))
    path = f"{config_maps(namespace)}/child"
    await api.delete(f"{config_maps(namespace)}/first")

    async def left_one() -> bool:
        references = (await api.get(path))["metadata"].get("ownerReferences", [])
        return [reference["name"] for reference in references] == ["second"]

    await api.eventually(left_one)
    await api.delete(f"{config_maps(namespace)}/second")
    await gone(api, path)


async def test_an_owner_of_the_same_name_with_another_uid_is_none(api: Api, namespace: str) -> None:
    owner = await create(api, namespace, "owner")
    wrong = {**owned_by(owner), "uid": "00000000-0000-0000-0000-000000000000"}
    await create(api, namespace, "child", wrong)
    await gone(api, f"{config_maps(namespace)}/child")
    assert await api.get(f"{config_maps(namespace)}/owner")


async def test_a_namespace_takes_its_content_with_it(api: Api, namespace: str) -> None:
    await create(api, namespace, "a")
    await api.post(claims(namespace), claim("held", finalizers=["x.example/hold"]))
    deleting = await api.delete(f"/api/v1/namespaces/{namespace}")
    assert deleting["status"]["phase"] == "Terminating"
    await gone(api, f"{config_maps(namespace)}/a")
    refusal = await api.refused("POST", config_maps(namespace), {"metadata": {"name": "late"}})
    assert (refusal.status, refusal.reason) == (403, "Forbidden")
    assert ("metadata.namespace", "NamespaceTerminating") in refusal.causes
    assert not await api.is_gone(f"/api/v1/namespaces/{namespace}")
    await api.patch(f"{claims(namespace)}/held", {"metadata": {"finalizers": None}})
    await gone(api, f"/api/v1/namespaces/{namespace}")


async def test_a_new_namespace_is_active_and_labelled_with_its_name(api: Api, namespace: str) -> None:
    obj = await api.get(f"/api/v1/namespaces/{namespace}")
    assert obj["status"] == {"phase": "Active"}
    assert obj["spec"] == {"finalizers": ["kubernetes"]}
    assert obj["metadata"]["labels"] == {"kubernetes.io/metadata.name": namespace}


async def test_a_claim_made_for_a_pod_goes_with_it(api: Api, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    owner = await api.post(pods, pod("a"))
    await api.post(claims(namespace), claim("a-gpu", ownerReferences=[owned_by(owner, controller=True)]))
    await api.delete(f"{pods}/a")
    await gone(api, f"{claims(namespace)}/a-gpu")
