"""What our plugin applies to status.devices, against both servers."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from support.api import Api
from support.dra_objects import allocation, claim

from dra_driver.api.meta import RESOURCE_CLAIMS
from dra_driver.errors import NotFound, Rejected
from dra_driver.kube.client import Endpoint, Kube
from dra_driver.names import COMPUTE_DOMAIN_DRIVER, GPU_DRIVER, ClaimRef
from kubelet_plugin.device_status import Condition, DeviceStatus, DeviceStatusWriter, Refusal
from kubelet_plugin.domains.serving import DOMAINS_MANAGER
from kubelet_plugin.prepare.listener import AllocatedTo


class NoClaims:
    """The test says what is wanted."""

    async def held(self) -> Mapping[str, ClaimRef]:
        return {}

    def status(self, uid: str, refusal: Refusal | None) -> tuple[DeviceStatus, ...]:
        return ()


async def test_devices_are_applied_changed_and_taken_away_and_only_of_the_claim_that_is_meant(
    api: Api, namespace: str
) -> None:
    header = f"Bearer {api.token}" if api.token else None
    async with Kube(Endpoint(api.url, api.ssl, lambda: header)) as kube:
        created = await kube.create(RESOURCE_CLAIMS, claim("a", namespace=namespace))
        ref = ClaimRef(namespace, "a", created["metadata"]["uid"])
        given = allocation()
        (only,) = given["devices"]["results"]
        only["driver"] = GPU_DRIVER
        status = {"status": {"allocation": given}}
        await kube.merge_patch(RESOURCE_CLAIMS, "a", status, namespace=namespace, subresource="status")
        writer = DeviceStatusWriter(kube, GPU_DRIVER, NoClaims())
        ready = DeviceStatus(
            AllocatedTo(only["pool"], only["device"]),
            (Condition("Ready", "True", "Prepared", "the claim is prepared"),),
            (("uuid", "GPU-1"),),
        )
        await writer._apply(ref, writer._to_wire([ready], ()))
        first = await kube.get(RESOURCE_CLAIMS, "a", namespace)
        (device,) = first["status"]["devices"]
        assert (device["data"], device["conditions"][0]["reason"]) == ({"uuid": "GPU-1"}, "Prepared")

        await writer._apply(ref, writer._ours(first))
        again = await kube.get(RESOURCE_CLAIMS, "a", namespace)
        assert again["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"], "nothing changed"

        with pytest.raises(Rejected, match="uid"):
            await kube.apply(
                RESOURCE_CLAIMS,
                {
                    "apiVersion": RESOURCE_CLAIMS.api_version,
                    "kind": "ResourceClaim",
                    "metadata": {"name": "a", "namespace": namespace, "uid": "another"},
                    "status": {"devices": [device]},
                },
                subresource="status",
            )
        await writer._apply(ref, ())
        cleared = await kube.get(RESOURCE_CLAIMS, "a", namespace)
        assert "devices" not in cleared["status"]
        with pytest.raises(NotFound):
            await kube.get(RESOURCE_CLAIMS, "b", namespace)
        await writer._apply(replace(ref, name="b"), writer._to_wire([ready], ()))


async def test_a_claim_with_devices_of_both_drivers_has_the_statuses_of_both(api: Api, namespace: str) -> None:
    header = f"Bearer {api.token}" if api.token else None
    async with Kube(Endpoint(api.url, api.ssl, lambda: header)) as kube:
        created = await kube.create(RESOURCE_CLAIMS, claim("a", namespace=namespace))
        ref = ClaimRef(namespace, "a", created["metadata"]["uid"])
        given = allocation()
        (gpu,) = given["devices"]["results"]
        gpu["driver"] = GPU_DRIVER
        channel = {**gpu, "driver": COMPUTE_DOMAIN_DRIVER, "device": "channel-0"}
        given["devices"]["results"].append(channel)
        status = {"status": {"allocation": given}}
        await kube.merge_patch(RESOURCE_CLAIMS, "a", status, namespace=namespace, subresource="status")
        of_gpus = DeviceStatusWriter(kube, GPU_DRIVER, NoClaims())
        of_domains = DeviceStatusWriter(kube, COMPUTE_DOMAIN_DRIVER, NoClaims(), field_manager=DOMAINS_MANAGER)
        for writer, one in ((of_gpus, gpu), (of_domains, channel)):
            ready = DeviceStatus(AllocatedTo(one["pool"], one["device"]), (Condition("Ready", "True", "Prepared", ""),))
            await writer._apply(ref, writer._to_wire([ready], ()))
        both = await kube.get(RESOURCE_CLAIMS, "a", namespace)
        assert {one["driver"] for one in both["status"]["devices"]} == {GPU_DRIVER, COMPUTE_DOMAIN_DRIVER}
        await of_gpus._apply(ref, ())
        left = await kube.get(RESOURCE_CLAIMS, "a", namespace)
        assert [one["driver"] for one in left["status"]["devices"]] == [COMPUTE_DOMAIN_DRIVER]
