"""What our plugin writes to status.devices, against both servers."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from support.api import APPLY, STRATEGIC, Api, Refused
from support.dra_objects import CLASSES, allocation, claim, claim_spec, claims, opaque, result

from dra_driver.api.meta import RESOURCE_CLAIMS, JsonObject, Resource
from dra_driver.errors import NotFound
from dra_driver.kube.client import Endpoint, Kube
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, GPU_DRIVER, ClaimRef
from kubelet_plugin.prepare.listener import AllocatedTo
from kubelet_plugin.reporting.claim_devices import entries_of, key_of, put_entries
from kubelet_plugin.reporting.device_status import DeviceStatus, DeviceStatusWriter, PrepareRefusal, StatusCondition
from kubelet_plugin.reporting.reported import Reported

UNSORTED = {"kind": "GpuConfig", "apiVersion": "resource.nvidia.com/v1beta1", "sharing": {"strategy": "MPS", "a": 1}}
"""In the order in which a person writes it, and a client that does not sort sends it."""
COMPACT = json.dumps(UNSORTED, separators=(",", ":"))
"""What other drivers, that write JSON, can still say something about."""
NIC = "nic.example.com"


class NoClaims:
    """The test says what is wanted."""

    async def held(self) -> Mapping[str, ClaimRef]:
        return {}

    def status(self, uid: str, refusal: PrepareRefusal | None) -> tuple[DeviceStatus, ...]:
        return ()


@pytest_asyncio.fixture
async def kube(api: Api) -> AsyncIterator[Kube]:
    header = f"Bearer {api.token}" if api.token else None
    async with Kube(Endpoint(api.url, api.ssl, lambda: header)) as client:
        yield client


async def allocated(api: Api, namespace: str, *drivers: str, parameters: str = COMPACT) -> ClaimRef:
    """A claim that has `gpu-0` of each driver. Its parameters are as the text says, in the allocation, too: that is
    how they come from the client over the scheduler, which does not look into them."""
    created = await api.post(claims(namespace), _text(claim("a", claim_spec(config=[opaque("?")])), parameters))
    given = allocation(*(result(driver=driver) for driver in drivers))
    given["devices"]["config"] = [{"source": "FromClaim", "requests": [], **opaque("?")}]
    # Not by a patch: what that brings has its keys sorted.
    body = {**created, "spec": claim_spec(config=[opaque("?")]), "status": {"allocation": given}}
    await api.put(f"{claims(namespace)}/a/status", _text(body, parameters))
    return ClaimRef(namespace, "a", created["metadata"]["uid"])


def _text(obj: JsonObject, parameters: str) -> str:
    return json.dumps(obj).replace('"?"', parameters)


async def patched_status(kube: Kube, namespace: str, status: JsonObject) -> JsonObject:
    return await kube.merge_patch(RESOURCE_CLAIMS, "a", {"status": status}, namespace=namespace, subresource="status")


def entry(driver: str, text: str = "x") -> JsonObject:
    moment = "2026-01-01T00:00:00Z"
    ready = {"type": "Ready", "status": "True", "reason": "Prepared", "message": "", "lastTransitionTime": moment}
    return {"driver": driver, "pool": "node-1", "device": "gpu-0", "conditions": [ready], "data": {"said": text}}


async def texts_of(kube: Kube, ref: ClaimRef) -> dict[str, str]:
    """Driver to what its entry says."""
    claim = await kube.get(RESOURCE_CLAIMS, ref.name, ref.namespace)
    return {entry_["driver"]: entry_["data"]["said"] for entry_ in claim["status"].get("devices") or ()}


async def test_devices_are_written_changed_and_taken_away_and_only_of_the_claim_that_is_meant(
    api: Api, kube: Kube, namespace: str, tmp_path: Path
) -> None:
    ref = await allocated(api, namespace, GPU_DRIVER)
    writer = DeviceStatusWriter(kube, GPU_DRIVER, NoClaims(), Reported(tmp_path))
    ready = DeviceStatus(
        AllocatedTo("node-1", "gpu-0"),
        (StatusCondition("Ready", "True", "Prepared", "the claim is prepared"),),
        (("uuid", "GPU-1"),),
    )
    await writer._put(ref, writer._to_wire([ready], ()))
    first = await kube.get(RESOURCE_CLAIMS, "a", namespace)
    (device,) = first["status"]["devices"]
    assert (device["data"], device["conditions"][0]["reason"]) == ({"uuid": "GPU-1"}, "Prepared")

    await writer._put(ref, entries_of(first, GPU_DRIVER))
    again = await kube.get(RESOURCE_CLAIMS, "a", namespace)
    assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"], "nothing changed"

    await writer._put(ref, ())
    cleared = await kube.get(RESOURCE_CLAIMS, "a", namespace)
    assert "devices" not in cleared["status"]
    for other in (replace(ref, uid="another"), replace(ref, name="b")):
        with pytest.raises(NotFound):
            await put_entries(kube, other, GPU_DRIVER, (entry(GPU_DRIVER),), ())
    assert await texts_of(kube, ref) == {}


TEXTS = {
    "unsorted": '{"kind":"GpuConfig","apiVersion":"x/v1"}',
    "as Python's client writes it": json.dumps(UNSORTED),
    "as a person writes it": json.dumps(UNSORTED, indent=2),
    "characters that Go escapes": '{"a":"<b>&"}',
    "characters that Python escapes": '{"a":"\u00e9"}',
    "characters that nobody has to escape": '{"a":"\\u00e9\\/"}',
    "numbers": '{"a":1.0,"b":1e3,"c":12345678901234567890}',
}


@pytest.mark.parametrize("parameters", TEXTS.values(), ids=TEXTS)
async def test_parameters_keep_their_bytes_while_entries_come_and_go(
    api: Api, kube: Kube, namespace: str, parameters: str
) -> None:
    ref = await allocated(api, namespace, GPU_DRIVER, parameters=parameters)
    for entries in ((entry(GPU_DRIVER),), (entry(GPU_DRIVER, "y"),), ()):
        assert await put_entries(kube, ref, GPU_DRIVER, entries, [key_of(entry(GPU_DRIVER))])
        claim = await kube.get(RESOURCE_CLAIMS, "a", namespace)
        assert entries_of(claim, GPU_DRIVER) == entries
        (config,) = claim["status"]["allocation"]["devices"]["config"]
        assert list(config["opaque"]["parameters"].items()) == list(json.loads(parameters).items())
        if api.simulated is None:  # the simulated one keeps no white space
            message = await kube.get_message(RESOURCE_CLAIMS, "a", namespace)
            assert message.count(parameters.encode()) == 2


async def applied(api: Api, ref: ClaimRef, device: JsonObject) -> JsonObject:
    """As the plugin wrote once."""
    body = {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": "ResourceClaim",
        "metadata": {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid},
        "status": {"devices": [device]},
    }
    path = f"{claims(ref.namespace)}/{ref.name}/status"
    return await api.patch(path, body, APPLY, fieldManager="gpu-dra-device-status", force="true")


async def test_server_side_apply_of_the_same_is_refused_as_a_change_of_the_allocation(
    api: Api, kube: Kube, namespace: str
) -> None:
    """Why it is not what the plugin does."""
    ref = await allocated(api, namespace, GPU_DRIVER)
    with pytest.raises(Refused) as refusal:
        await applied(api, ref, entry(GPU_DRIVER))
    assert refusal.value.causes == {("status.allocation", "FieldValueInvalid")}
    assert await texts_of(kube, ref) == {}


@pytest.mark.parametrize("kind", [STRATEGIC, APPLY])
async def test_who_patches_what_is_typed_sorts_parameters_that_it_does_not_name(
    api: Api, namespace: str, kind: str
) -> None:
    """Also of a claim's spec, and of a class, which may change."""
    await allocated(api, namespace, GPU_DRIVER)
    labels = {"metadata": {"name": "a", "labels": {"x": "y"}}}
    named = {"apiVersion": RESOURCE_CLAIMS.api_version, "kind": "ResourceClaim", **labels}
    query = {"fieldManager": "test"} if kind == APPLY else {}
    refusal = await api.refused("PATCH", f"{claims(namespace)}/a", named, kind, **query)
    assert ("spec", "FieldValueInvalid") in refusal.causes
    await api.post(CLASSES, {"metadata": {"name": namespace}, "spec": {"config": [opaque(UNSORTED)]}})
    body = {**named, "kind": "DeviceClass", "metadata": {**labels["metadata"], "name": namespace}}
    changed = await api.patch(f"{CLASSES}/{namespace}", body, kind, **query)
    (config,) = changed["spec"]["config"]
    assert list(config["opaque"]["parameters"]) == sorted(UNSORTED)
    assert list(config["opaque"]["parameters"]["sharing"]) == ["a", "strategy"]


async def test_a_claim_with_devices_of_several_drivers_has_the_statuses_of_all(
    api: Api, kube: Kube, namespace: str
) -> None:
    ref = await allocated(api, namespace, GPU_DRIVER, COMPUTE_DOMAIN_DRIVER, NIC)
    await patched_status(kube, namespace, {"devices": [entry(NIC)]})
    for driver in (GPU_DRIVER, COMPUTE_DOMAIN_DRIVER, GPU_DRIVER):
        assert await put_entries(kube, ref, driver, (entry(driver),), ())
    assert await texts_of(kube, ref) == dict.fromkeys((NIC, GPU_DRIVER, COMPUTE_DOMAIN_DRIVER), "x")
    assert await put_entries(kube, ref, GPU_DRIVER, (), [key_of(entry(GPU_DRIVER))])
    assert await texts_of(kube, ref) == dict.fromkeys((NIC, COMPUTE_DOMAIN_DRIVER), "x")


class Slow(Kube):
    """Somebody else writes between the read and the write of this one."""

    def __init__(self, api: Api, other: Kube, namespace: str, times: int) -> None:
        header = f"Bearer {api.token}" if api.token else None
        super().__init__(Endpoint(api.url, api.ssl, lambda: header))
        self.other, self.namespace, self.times = other, namespace, times

    async def get_message(self, resource: Resource, name: str, namespace: str | None = None) -> bytes:
        message = await super().get_message(resource, name, namespace)
        if self.times:
            self.times -= 1
            claim = await self.other.get(resource, name, namespace)
            others = [status for status in claim["status"].get("devices") or () if status["driver"] != NIC]
            devices = [*others, entry(NIC, f"{self.times} left")]
            await patched_status(self.other, self.namespace, {"devices": devices})
        return message


async def test_what_another_driver_writes_at_the_same_moment_stays(api: Api, kube: Kube, namespace: str) -> None:
    ref = await allocated(api, namespace, GPU_DRIVER, NIC)
    async with Slow(api, kube, namespace, 3) as slow:
        assert await put_entries(slow, ref, GPU_DRIVER, (entry(GPU_DRIVER),), ())
        assert await texts_of(kube, ref) == {NIC: "0 left", GPU_DRIVER: "x"}
        slow.times = 2
        assert await put_entries(slow, ref, GPU_DRIVER, (), [key_of(entry(GPU_DRIVER))])
    assert await texts_of(kube, ref) == {NIC: "0 left"}


async def test_two_writers_at_once_both_have_their_say(api: Api, kube: Kube, namespace: str) -> None:
    drivers = (GPU_DRIVER, COMPUTE_DOMAIN_DRIVER)
    ref = await allocated(api, namespace, *drivers)
    await asyncio.gather(*(put_entries(kube, ref, driver, (entry(driver),), ()) for driver in drivers))
    assert await texts_of(kube, ref) == dict.fromkeys(drivers, "x")


async def test_what_was_applied_once_is_changed_and_taken_away(api: Api, kube: Kube, namespace: str) -> None:
    """The plugin used server-side apply before, and that remembers whose a field is."""
    sorted_claim = claim("a", claim_spec(), namespace=namespace)
    created = await kube.create(RESOURCE_CLAIMS, sorted_claim)
    ref = ClaimRef(namespace, "a", created["metadata"]["uid"])
    await patched_status(kube, namespace, {"allocation": allocation()})
    await applied(api, ref, entry(GPU_DRIVER, "before"))
    assert await put_entries(kube, ref, GPU_DRIVER, (entry(GPU_DRIVER, "after"),), ())
    assert await texts_of(kube, ref) == {GPU_DRIVER: "after"}
    assert await put_entries(kube, ref, GPU_DRIVER, (), [key_of(entry(GPU_DRIVER))])
    assert await texts_of(kube, ref) == {}


GATE_OFF = {
    "DRAResourceClaimDeviceStatus": False,
    # These need it.
    "DRADeviceBindingConditions": False,
    "DRAResourceClaimGranularStatusAuthorization": False,
}


@pytest.mark.parametrize("feature_gates", [GATE_OFF], ids=["off"])
async def test_a_server_with_the_gate_off_keeps_none_and_that_is_known(api: Api, kube: Kube, namespace: str) -> None:
    ref = await allocated(api, namespace, GPU_DRIVER, parameters=TEXTS["as a person writes it"])
    assert not await put_entries(kube, ref, GPU_DRIVER, (entry(GPU_DRIVER),), ())
    assert await texts_of(kube, ref) == {}
