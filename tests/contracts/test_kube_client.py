"""Our own client against both servers: what comes back, and which of our errors each refusal becomes."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.api import Api
from support.dra_objects import (
    allocation,
    claim,
    claim_spec,
    consumer,
    crd,
    device,
    opaque,
    request,
    resource_slice,
    result,
)

from dra_driver.api.meta import CONFIG_MAPS, LEASES, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dra_driver.errors import AlreadyExists, Conflict, Gone, NotFound, Rejected, Unreachable
from dra_driver.kube.client import Endpoint, Kube, endpoint_from
from dra_driver.kube.envelope import enveloped
from dra_driver.simulation.apiserver import protobuf


@pytest_asyncio.fixture
async def kube(api: Api) -> AsyncIterator[Kube]:
    """A client of the server under contract."""
    header = f"Bearer {api.token}" if api.token else None
    async with Kube(Endpoint(api.url, api.ssl, lambda: header), field_manager="contract") as client:
        yield client


async def test_create_read_replace_patch_delete(kube: Kube, namespace: str) -> None:
    created = await kube.create(RESOURCE_CLAIMS, claim("a", namespace=namespace))
    assert await kube.get(RESOURCE_CLAIMS, "a", namespace) == created
    created["metadata"]["labels"] = {"a": "b"}
    replaced = await kube.replace(RESOURCE_CLAIMS, created)
    status = {"allocation": allocation(), "reservedFor": [consumer()]}
    patched = await kube.merge_patch(
        RESOURCE_CLAIMS, "a", {"status": status}, namespace=namespace, subresource="status"
    )
    assert (patched["status"], patched["metadata"]["labels"]) == (status, {"a": "b"})
    assert int(patched["metadata"]["resourceVersion"]) > int(replaced["metadata"]["resourceVersion"])
    await kube.delete(RESOURCE_CLAIMS, "a", namespace=namespace, uid=created["metadata"]["uid"])
    with pytest.raises(NotFound):
        await kube.get(RESOURCE_CLAIMS, "a", namespace)


async def test_refusals_become_our_errors(kube: Kube, namespace: str) -> None:
    created = await kube.create(RESOURCE_CLAIMS, claim("a", namespace=namespace))
    with pytest.raises(AlreadyExists):
        await kube.create(RESOURCE_CLAIMS, claim("a", namespace=namespace))
    await kube.merge_patch(RESOURCE_CLAIMS, "a", {"metadata": {"labels": {"a": "b"}}}, namespace=namespace)
    with pytest.raises(Conflict) as stale:
        await kube.replace(RESOURCE_CLAIMS, {**created, "status": {}})
    assert not isinstance(stale.value, AlreadyExists)
    with pytest.raises(Conflict):
        await kube.delete(RESOURCE_CLAIMS, "a", namespace=namespace, uid="00000000-0000-0000-0000-000000000000")
    with pytest.raises(Rejected, match="field is immutable"):
        await kube.merge_patch(RESOURCE_CLAIMS, "a", {"spec": {"devices": {"requests": []}}}, namespace=namespace)
    with pytest.raises(NotFound):
        await kube.delete(RESOURCE_CLAIMS, "none", namespace=namespace)


async def test_a_message_that_was_read_is_written_unless_somebody_else_wrote(kube: Kube, namespace: str) -> None:
    await kube.create(RESOURCE_CLAIMS, claim("a", namespace=namespace))
    message = await kube.get_message(RESOURCE_CLAIMS, "a", namespace)
    status = {"allocation": allocation()}
    await kube.merge_patch(RESOURCE_CLAIMS, "a", {"status": status}, namespace=namespace, subresource="status")
    with pytest.raises(Conflict, match="modified"):
        await kube.replace_message(RESOURCE_CLAIMS, "a", message, namespace=namespace, subresource="status")
    message = await kube.get_message(RESOURCE_CLAIMS, "a", namespace)
    stored = await kube.replace_message(RESOURCE_CLAIMS, "a", message, namespace=namespace, subresource="status")
    assert stored["status"] == status
    with pytest.raises(NotFound, match='"b" not found'):
        await kube.get_message(RESOURCE_CLAIMS, "b", namespace)


async def test_a_claim_says_the_same_in_protobuf_as_in_json(kube: Kube, namespace: str) -> None:
    toleration = {"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute", "tolerationSeconds": 5}
    more = {"selectors": [{"cel": {"expression": "true"}}], "tolerations": [toleration]}
    exact = request("gpu", capacity={"requests": {"memory": "1Gi"}}, **more)
    alternative = {"name": "any", "firstAvailable": [{"name": "a", "deviceClassName": "c", "count": 2, **more}]}
    config = {"requests": ["gpu"], **opaque({"b": 1, "a": [None, "x"]})}
    spec = claim_spec(
        exact, alternative, constraints=[{"requests": [], "matchAttribute": "x.example/a"}], config=[config]
    )
    lives = await kube.create(CONFIG_MAPS, {"metadata": {"name": "owner", "namespace": namespace}})
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": lives["metadata"]["uid"]}
    owner |= {"controller": True, "blockOwnerDeletion": True}
    metadata = {
        "labels": {"a": "b"},
        "annotations": {"c": "d"},
        "ownerReferences": [owner],
        "finalizers": ["x.example/f"],
    }
    created = await kube.create(RESOURCE_CLAIMS, claim("a", spec, namespace=namespace, **metadata))
    fields = {"key": "metadata.name", "operator": "In", "values": ["n"]}
    given = allocation(
        result(tolerations=[toleration], bindingConditions=["R"], bindingFailureConditions=["F"]),
        nodeSelector={"nodeSelectorTerms": [{"matchFields": [fields]}]},
    )
    given["devices"]["config"] = [{"source": "FromClaim", **config}]
    status = {"allocation": given, "reservedFor": [consumer()]}
    await kube.replace(RESOURCE_CLAIMS, {**created, "status": status}, subresource="status")
    now = "2026-01-01T00:00:00Z"
    ready = {"type": "Ready", "status": "True", "reason": "R", "message": "", "lastTransitionTime": now}
    network = {"interfaceName": "e", "ips": ["10.0.0.1/24"], "hardwareAddress": "aa"}
    entry = {**result(), "conditions": [ready], "data": {"a": "1"}, "networkData": network}
    del entry["request"]
    patch = {"status": {"devices": [entry]}}
    in_json = await kube.merge_patch(RESOURCE_CLAIMS, "a", patch, namespace=namespace, subresource="status")
    in_json["metadata"].pop("managedFields", None)  # no reader of the message needs them
    message = await kube.get_message(RESOURCE_CLAIMS, "a", namespace)
    assert protobuf.decode(enveloped(RESOURCE_CLAIMS, message)) == in_json
    # Take the finalizer away, that the namespace can go.
    await kube.merge_patch(RESOURCE_CLAIMS, "a", {"metadata": {"finalizers": None}}, namespace=namespace)


async def test_a_listing_has_all_pages_and_a_position_to_watch_from(kube: Kube, api: Api, namespace: str) -> None:
    for number in range(3):
        await kube.create(RESOURCE_CLAIMS, claim(f"c{number}", namespace=namespace))
    listing = await kube.list(RESOURCE_CLAIMS, namespace=namespace)
    assert [claim["metadata"]["name"] for claim in listing.items] == ["c0", "c1", "c2"]
    events = kube.watch(RESOURCE_CLAIMS, namespace=namespace, resource_version=listing.resource_version)
    await kube.delete(RESOURCE_CLAIMS, "c1", namespace=namespace)
    async for event in events:
        if event.type != "BOOKMARK":
            break
    await events.aclose()
    assert (event.type, event.object["metadata"]["name"]) == ("DELETED", "c1")


async def test_a_watch_from_before_the_history_raises_gone(kube: Kube, api: Api, unique: str) -> None:
    await api.define(crd(f"{unique}s"))
    if api.simulated is not None:
        api.simulated.store.compact()
    things = Resource("contract.dra.gpu", "v1", f"{unique}s", unique.capitalize(), False)
    with pytest.raises(Gone):
        async for _ in kube.watch(things, resource_version="1"):
            pass


async def test_collections_are_deleted_by_field(kube: Kube, unique: str) -> None:
    driver = f"{unique}.example.com"
    await kube.create(RESOURCE_SLICES, resource_slice(unique, device(), driver=driver))
    await kube.delete_collection(RESOURCE_SLICES, field_selector=f"spec.driver={driver}")
    assert (await kube.list(RESOURCE_SLICES, field_selector=f"spec.driver={driver}")).items == []


async def test_a_lease_is_taken_over_only_by_one(kube: Kube, namespace: str) -> None:
    lease = {"metadata": {"name": "a", "namespace": namespace}, "spec": {"holderIdentity": ""}}
    created = await kube.create(LEASES, lease)
    created["spec"]["holderIdentity"] = "one"
    await kube.replace(LEASES, created)
    created["spec"]["holderIdentity"] = "two"
    with pytest.raises(Conflict):
        await kube.replace(LEASES, created)


async def test_the_version_is_known(kube: Kube) -> None:
    major, minor = await kube.server_version()
    assert major == 1 and minor >= 34


async def test_a_server_that_is_away_is_unreachable(unique: str) -> None:
    async with Kube(Endpoint("http://127.0.0.1:1")) as nobody:
        with pytest.raises(Unreachable):
            await nobody.get(CONFIG_MAPS, "a", unique)


async def test_a_user_of_a_kubeconfig_that_impersonates_another_has_that_identity(api: Api, tmp_path: Path) -> None:
    if api.simulated is not None:
        pytest.skip("the simulated API server knows no users")
    extra = {"example.com/why % and é": ["a", "b"]}
    user = {"token": api.token, "as": "jané", "as-groups": ["devs", "ops"], "as-uid": "7", "as-user-extra": extra}
    config = {
        "clusters": [{"name": "c", "cluster": {"server": api.url, "certificate-authority": str(api.ca_file)}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    (tmp_path / "config").write_text(json.dumps(config))
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    async with Kube(endpoint_from(tmp_path / "config")) as kube:
        answer = await kube.raw("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    groups = ["devs", "ops", "system:authenticated"]
    assert answer["status"]["userInfo"] == {"username": "jané", "uid": "7", "groups": groups, "extra": extra}
