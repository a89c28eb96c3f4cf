"""Kubelet's messages and our values."""

import pytest

from dra_driver.errors import DeviceInUse, NodeNotReady
from dra_driver.kube.kubelet_api.generated import dra_v1_pb2
from dra_driver.names import ClaimRef
from kubelet_plugin.prepare.lifecycle import PreparedDevice
from kubelet_plugin.rpc.messages import (
    HEALTH_VERSIONS,
    DeviceHealth,
    HealthVersion,
    claims_of,
    health_response,
    prepare_response,
    unprepare_response,
)

ONE, OTHER = ClaimRef("default", "one", "uid-1"), ClaimRef("default", "other", "uid-2")
DEVICE = PreparedDevice(("gpu",), "node-1", "gpu-1", ("k8s.gpu.nvidia.com/claim=uid-1-gpu-1",), "share-1")


def test_a_request_becomes_claims_in_its_order() -> None:
    request = dra_v1_pb2.NodePrepareResourcesRequest(
        claims=[dra_v1_pb2.Claim(namespace="default", uid=claim.uid, name=claim.name) for claim in (OTHER, ONE)]
    )
    assert claims_of(request) == [OTHER, ONE]


def test_a_claim_that_is_named_twice_is_answered_once() -> None:
    request = dra_v1_pb2.NodePrepareResourcesRequest(
        claims=2 * [dra_v1_pb2.Claim(namespace="default", uid=ONE.uid, name=ONE.name)]
    )
    response = prepare_response(claims_of(request), {ONE.uid: (DEVICE,)})
    assert len(response.claims[ONE.uid].devices) == 1


def test_each_claim_is_answered_on_its_own() -> None:
    refusal = DeviceInUse("is held by claim b", about=str(OTHER))
    response = prepare_response([ONE, OTHER], {ONE.uid: (DEVICE,), OTHER.uid: refusal})
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


def test_a_claim_that_nobody_answered_gets_an_error_not_an_empty_success() -> None:
    assert "defect" in prepare_response([ONE], {}).claims[ONE.uid].error
    assert "defect" in unprepare_response([ONE], {}).claims[ONE.uid].error


def test_nobody_gets_an_answer_that_was_not_asked_for() -> None:
    """kubelet takes an unknown UID for an error of the whole call."""
    assert set(prepare_response([ONE], {ONE.uid: (), OTHER.uid: ()}).claims) == {ONE.uid}
    assert set(unprepare_response([ONE], {ONE.uid: None, OTHER.uid: None}).claims) == {ONE.uid}


def test_a_released_claim_has_an_empty_entry() -> None:
    response = unprepare_response([ONE, OTHER], {ONE.uid: None, OTHER.uid: NodeNotReady("disk\n is full")})
    assert response.claims[ONE.uid].error == ""
    assert response.claims[OTHER.uid].error == "disk is full"


def test_the_share_id_is_answered() -> None:
    response = prepare_response([ONE], {ONE.uid: (DEVICE,)})
    assert response.claims[ONE.uid].devices[0].share_id == "share-1"


def test_a_device_without_share_id_has_none_on_the_wire() -> None:
    plain = PreparedDevice(("gpu",), "node-1", "gpu-1", ())
    response = prepare_response([ONE], {ONE.uid: (plain,)})
    assert not response.claims[ONE.uid].devices[0].HasField("share_id")


@pytest.mark.parametrize("version", HEALTH_VERSIONS, ids=lambda version: version.service)
def test_health_lists_every_device_with_its_word(version: HealthVersion) -> None:
    words = {True: "HEALTHY", False: "UNHEALTHY", None: "UNKNOWN"}
    devices = [DeviceHealth("node-1", f"gpu-{health}", health, 1_700_000_000, "why") for health in words]
    response = health_response(version, devices, 30)
    healths = {
        device.device.device_name: version.messages.HealthStatus.Name(device.health) for device in response.devices
    }
    assert healths == {f"gpu-{health}": word for health, word in words.items()}
    first = response.devices[0]
    assert (first.device.pool_name, first.last_updated_time, first.health_check_timeout_seconds, first.message) == (
        "node-1",
        1_700_000_000,
        30,
        "why",
    )
