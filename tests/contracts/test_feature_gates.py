"""Gates that are off: which fields vanish without a word, and which requests fail because of it."""

from typing import Any

import pytest
from support.api import MERGE, Api
from support.dra_objects import (
    CLASSES,
    SLICES,
    allocation,
    claim,
    claim_spec,
    claims,
    device,
    request,
    resource_slice,
    result,
)

ALL_OFF = {
    "DRADeviceTaints": False,
    "DRAPartitionableDevices": False,
    "DRADeviceBindingConditions": False,
    "DRAConsumableCapacity": False,
    "DRAPrioritizedList": False,
    "DRAExtendedResource": False,
    "DRAResourceClaimDeviceStatus": False,
    # Builds on the former: a real server refuses to start with only one of them off.
    "DRAResourceClaimGranularStatusAuthorization": False,
}
gates_off = pytest.mark.parametrize("feature_gates", [ALL_OFF], ids=["off"])
gates_alpha = pytest.mark.parametrize("feature_gates", [{"DRAListTypeAttributes": True}], ids=["alpha"])


@gates_off
@pytest.mark.parametrize(
    "fields",
    [
        {"taints": [{"key": "k", "effect": "NoSchedule"}]},
        {"consumesCounters": [{"counterSet": "s", "counters": {"c": {"value": "1"}}}]},
        {"bindsToNode": True, "bindingConditions": ["a"], "bindingFailureConditions": ["b"]},
        {"allowMultipleAllocations": True},
    ],
    ids=["taints", "counters", "binding conditions", "sharing"],
)
async def test_fields_of_devices_vanish(api: Api, unique: str, fields: dict[str, Any]) -> None:
    created = await api.post(SLICES, resource_slice(unique, device(**fields)))
    assert created["spec"]["devices"] == [device()]
    assert api.warnings == []


@gates_off
async def test_a_request_policy_vanishes_with_the_sharing_it_needs(api: Api, unique: str) -> None:
    fields = {"allowMultipleAllocations": True, "capacity": {"m": {"value": "1", "requestPolicy": {"default": "1"}}}}
    created = await api.post(SLICES, resource_slice(unique, device(**fields)))
    assert created["spec"]["devices"] == [device(capacity={"m": {"value": "1"}})]


@gates_off
async def test_shared_counters_vanish(api: Api, unique: str) -> None:
    counters = [{"name": "s", "counters": {"c": {"value": "1"}}}]
    assert "sharedCounters" not in (await api.post(SLICES, resource_slice(unique, sharedCounters=counters)))["spec"]


@gates_off
async def test_a_slice_that_relies_on_nodes_by_device_has_no_node_left(api: Api, unique: str) -> None:
    body = resource_slice(unique, device(nodeName="n"), nodeName=None, perDeviceNodeSelection=True)
    assert ("spec", "FieldValueRequired") in (await api.refused("POST", SLICES, body)).causes


@gates_off
async def test_fields_of_requests_vanish(api: Api, namespace: str) -> None:
    spec = claim_spec(request(tolerations=[{"operator": "Exists"}], capacity={"requests": {"memory": "1Gi"}}))
    created = await api.post(claims(namespace), claim("a", spec))
    (stored,) = created["spec"]["devices"]["requests"]
    # Kubernetes 1.34 keeps tolerations without a gate for them, and fails to drop the attribute of a constraint.
    more = {"tolerations": [{"operator": "Exists"}]} if api.minor < 35 else {}
    assert stored == request(allocationMode="ExactCount", count=1, **more)


@gates_off
async def test_a_list_of_alternatives_leaves_a_request_without_form(api: Api, namespace: str) -> None:
    spec = claim_spec({"name": "a", "firstAvailable": [{"name": "s", "deviceClassName": "x"}]})
    refusal = await api.refused("POST", claims(namespace), claim("a", spec))
    assert ("spec.devices.requests[0]", "FieldValueRequired") in refusal.causes


@gates_off
async def test_a_constraint_on_distinct_values_has_no_attribute_left(api: Api, namespace: str) -> None:
    spec = claim_spec(constraints=[{"distinctAttribute": "x.example/a"}])
    if api.minor < 35:
        assert (await api.post(claims(namespace), claim("a", spec)))["spec"]["devices"]["constraints"]
        return
    refusal = await api.refused("POST", claims(namespace), claim("a", spec))
    assert ("spec.devices.constraints[0].matchAttribute", "FieldValueRequired") in refusal.causes


@gates_off
async def test_device_status_and_shares_vanish(api: Api, namespace: str) -> None:
    await api.post(claims(namespace), claim("a"))
    share = result(shareID="00000000-0000-0000-0000-000000000001", consumedCapacity={"memory": "1Gi"})
    status = {"allocation": allocation(share), "devices": [{"driver": "d", "pool": "p", "device": "x"}]}
    changed = await api.patch(f"{claims(namespace)}/a/status", {"status": status}, MERGE)
    assert changed["status"] == {"allocation": allocation()}


@gates_off
async def test_the_extended_resource_of_a_class_vanishes(api: Api, unique: str) -> None:
    body = {"metadata": {"name": unique}, "spec": {"extendedResourceName": "nvidia.com/gpu"}}
    assert (await api.post(CLASSES, body))["spec"] == {}


LISTS = device(attributes={"a": {"strings": ["x", "y"]}})


async def test_a_list_attribute_without_its_gate_is_an_attribute_without_value(api: Api, unique: str) -> None:
    refusal = await api.refused("POST", SLICES, resource_slice(unique, LISTS))
    reason = "FieldValueInvalid" if api.minor >= 35 else "FieldValueRequired"
    assert ("spec.devices[0].attributes[a]", reason) in refusal.causes


@gates_alpha
async def test_list_attributes_are_stored_with_their_gate(api: Api, unique: str) -> None:
    assert (await api.post(SLICES, resource_slice(unique, LISTS)))["spec"]["devices"] == [LISTS]


@gates_alpha
async def test_list_attributes_make_a_slice_smaller_and_their_values_count(api: Api, unique: str) -> None:
    many = [LISTS, *(device(f"gpu-{number + 1}") for number in range(64))]
    refusal = await api.refused("POST", SLICES, resource_slice(unique, *many))
    assert ("spec.devices", "FieldValueTooMany") in refusal.causes
    long = device(attributes={"a": {"ints": list(range(49))}})
    refusal = await api.refused("POST", SLICES, resource_slice(unique, long))
    assert ("spec.devices[0]", "FieldValueInvalid") in refusal.causes
