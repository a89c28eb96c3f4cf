"""Kubelet's messages and our values."""

import pytest

from dra_driver.errors import DeviceInUse, NodeNotReady
from dra_driver.names import ClaimRef
from kubelet_plugin.prepare.lifecycle import PreparedDevice
from kubelet_plugin.rpc.messages import (
    DRA_VERSIONS,
    HEALTH_VERSIONS,
    DeviceHealth,
    DraVersion,
    HealthVersion,
    claims_of,
    health_response,
    prepare_response,
    unprepare_response,
)

ONE, OTHER = ClaimRef("default", "one", "uid-1"), ClaimRef("default", "other", "uid-2")
DEVICE = PreparedDevice(("gpu",), "node-1", "gpu-1", ("k8s.gpu.nvidia.com/claim=uid-1-gpu-1",), "share-1")

every_version = pytest.mark.parametrize("version", DRA_VERSIONS, ids=lambda version: version.service)


@every_version
def test_a_request_becomes_claims_in_its_order(version: DraVersion) -> None:
    request = version.messages.NodePrepareResourcesRequest(
        claims=[version.messages.Claim(namespace="default", uid=claim.uid, name=claim.name) for claim in (OTHER, ONE)]
    )
    assert claims_of(request) == [OTHER, ONE]


@every_version
def test_a_claim_that_is_named_twice_is_answered_once(version: DraVersion) -> None:
    request = version.messages.NodePrepareResourcesRequest(
        claims=2 * [version.messages.Claim(namespace="default", uid=ONE.uid, name=ONE.name)]
    )
    response = prepare_response(version, claims_of(request), {ONE.uid: (DEVICE,)})
    assert len(response.claims[ONE.uid].devices) == 1


@every_version
def test_each_claim_is_answered_on_its_own(version: DraVersion) -> None:
    refusal = DeviceInUse("is held by claim b", about=str(OTHER))
    response = prepare_response(version, [ONE, OTHER], {ONE.uid: (DEVICE,), OTHER.uid: refusal})
    assert set(response.claims) == {ONE.uid, OTHER.uid}
    (device,) = response.claims[ONE.uid].devices
    assert (list(device.request_names), device.pool_name, device.device_name, list(device.cdi_device_ids)) == (
        ["gpu"],
        "node-1",
        "gpu-1",
        ["k8s.gpu.nvidia.com/claim=uid-1-gpu-1"],
    )
    assert response.claims[ONE.uid].error == ""
    assert response.claims[OTHER.uid].error == str(refusal)
    assert not response.claims[OTHER.uid].devices


@every_version
def test_a_claim_that_nobody_answered_gets_an_error_not_an_empty_success(version: DraVersion) -> None:
    assert "defect" in prepare_response(version, [ONE], {}).claims[ONE.uid].error
    assert "defect" in unprepare_response(version, [ONE], {}).claims[ONE.uid].error


@every_version
def test_nobody_gets_an_answer_that_was_not_asked_for(version: DraVersion) -> None:
    """kubelet takes an unknown UID for an error of the whole call."""
    assert set(prepare_response(version, [ONE], {ONE.uid: (), OTHER.uid: ()}).claims) == {ONE.uid}
    assert set(unprepare_response(version, [ONE], {ONE.uid: None, OTHER.uid: None}).claims) == {ONE.uid}


@every_version
def test_a_released_claim_has_an_empty_entry(version: DraVersion) -> None:
    response = unprepare_response(version, [ONE, OTHER], {ONE.uid: None, OTHER.uid: NodeNotReady("disk\n is full")})
    assert response.claims[ONE.uid].error == ""
    assert response.claims[OTHER.uid].error == "disk is full"


def test_the_share_id_is_told_by_v1_only() -> None:
    v1, v1beta1 = (prepare_response(version, [ONE], {ONE.uid: (DEVICE,)}) for version in DRA_VERSIONS)
    assert v1.claims[ONE.uid].devices[0].share_id == "share-1"
    assert "share_id" not in v1beta1.claims[ONE.uid].devices[0].DESCRIPTOR.fields_by_name


def test_a_device_without_share_id_has_none_on_the_wire() -> None:
    plain = PreparedDevice(("gpu",), "node-1", "gpu-1", ())
    response = prepare_response(DRA_VERSIONS[0], [ONE], {ONE.uid: (plain,)})
    assert not response.claims[ONE.uid].devices[0].HasField("share_id")


@pytest.mark.parametrize("version", HEALTH_VERSIONS, ids=lambda version: version.service)
def test_health_lists_every_device_with_its_word(version: HealthVersion) -> None:
    words = {True: "HEALTHY", False: "UNHEALTHY", None: "UNKNOWN"}
    devices = [DeviceHealth("node-1", f"gpu-{health}", health, 1_700_000_000, "why") for health in words]
    response = health_response(version, devices, 30)
    found = {
        device.device.device_name: version.messages.HealthStatus.Name(device.health) for device in response.devices
    }
    assert found == {f"gpu-{health}": word for health, word in words.items()}
    first = response.devices[0]
    assert (first.device.pool_name, first.last_updated_time, first.health_check_timeout_seconds, first.message) == (
        "node-1",
        1_700_000_000,
        30,
        "why",
    )
