"""ResourceClaims, their status, and ResourceClaimTemplates: defaults, limits, what never changes, admin access."""

from typing import Any

import pytest
from support.api import MERGE, STRATEGIC, Api
from support.dra_objects import (
    allocation,
    claim,
    claim_spec,
    claims,
    consumer,
    opaque,
    request,
    result,
    templates,
)

SPEC = "spec.devices"
EXACT = f"{SPEC}.requests[0].exactly"


async def test_requests_get_their_defaults(api: Api, namespace: str) -> None:
    alternatives = [{"name": "a", "deviceClassName": "x"}, {"name": "b", "deviceClassName": "x", "count": 2}]
    spec = claim_spec(request(), {"name": "list", "firstAvailable": alternatives}, request("all", allocationMode="All"))
    created = await api.post(claims(namespace), claim("a", spec))
    exact, listed, everything = created["spec"]["devices"]["requests"]
    assert (exact["exactly"]["allocationMode"], exact["exactly"]["count"]) == ("ExactCount", 1)
    assert [(alternative["allocationMode"], alternative["count"]) for alternative in listed["firstAvailable"]] == [
        ("ExactCount", 1),
        ("ExactCount", 2),
    ]
    assert "count" not in everything["exactly"]


async def test_tolerations_default_to_equal(api: Api, namespace: str) -> None:
    created = await api.post(claims(namespace), claim("a", claim_spec(request(tolerations=[{"key": "k"}]))))
    assert created["spec"]["devices"]["requests"][0]["exactly"]["tolerations"] == [{"key": "k", "operator": "Equal"}]


async def test_a_new_claim_has_an_empty_status_whatever_was_sent(api: Api, namespace: str) -> None:
    created = await api.post(claims(namespace), {**claim("a"), "status": {"allocation": allocation()}})
    assert created["status"] == {}


async def test_a_claim_without_requests_is_accepted(api: Api, namespace: str) -> None:
    created = await api.post(claims(namespace), claim("a", {}))
    assert created["spec"] == {"devices": {"requests": None}}


def alternatives(count: int) -> dict[str, Any]:
    return {"name": "a", "firstAvailable": [{"name": f"s{n}", "deviceClassName": "x"} for n in range(count)]}


VALID = {
    "32 requests": claim_spec(*(request(f"r{n}") for n in range(32))),
    "8 alternatives": claim_spec(alternatives(8)),
    "32 selectors": claim_spec(request(selectors=[{"cel": {"expression": "true"}}] * 32)),
    "32 constraints": claim_spec(constraints=[{"matchAttribute": "x.example/a"}] * 32),
    "32 configs": claim_spec(config=[opaque({})] * 32),
    "parameters of 10 KiB": claim_spec(config=[opaque({"k": "x" * 10232})]),
    "more than 16 tolerations": claim_spec(request(tolerations=[{"operator": "Exists"}] * 20)),
    "a constraint on a request and an alternative": claim_spec(
        alternatives(2), constraints=[{"requests": ["a", "a/s1"], "matchAttribute": "x.example/a"}]
    ),
    "both kinds of constraint in one": claim_spec(
        constraints=[{"matchAttribute": "x.example/a", "distinctAttribute": "x.example/a"}]
    ),
    "capacity": claim_spec(request(capacity={"requests": {"memory": "1Gi"}})),
    "an expression": claim_spec(
        request(selectors=[{"cel": {"expression": "device.attributes['gpu.nvidia.com'].type == 'gpu'"}}])
    ),
}


@pytest.mark.parametrize("spec", VALID.values(), ids=VALID.keys())
async def test_what_is_within_the_limits_is_accepted(api: Api, namespace: str, spec: dict[str, Any]) -> None:
    await api.post(claims(namespace), claim("a", spec))


def cel(expression: str) -> dict[str, Any]:
    return claim_spec(request(selectors=[{"cel": {"expression": expression}}]))


INVALID: dict[str, tuple[dict[str, Any], set[tuple[str, str]]]] = {
    "33 requests": (
        claim_spec(*(request(f"r{n}") for n in range(33))),
        {(f"{SPEC}.requests", "FieldValueTooMany")},
    ),
    "two requests of one name": (
        claim_spec(request(), request()),
        {(f"{SPEC}.requests[1]", "FieldValueDuplicate")},
    ),
    "a request without form": (claim_spec({"name": "a"}), {(f"{SPEC}.requests[0]", "FieldValueRequired")}),
    "a request of both forms": (
        claim_spec({**request(), **alternatives(1), "name": "a"}),
        {(f"{SPEC}.requests[0]", "FieldValueInvalid")},
    ),
    "names that are no labels": (
        claim_spec({"name": "A_", "exactly": {"deviceClassName": "A_"}}),
        {(f"{SPEC}.requests[0].name", "FieldValueInvalid"), (f"{EXACT}.deviceClassName", "FieldValueInvalid")},
    ),
    "no class": (
        claim_spec({"name": "a", "exactly": {}}),
        {(f"{EXACT}.deviceClassName", "FieldValueRequired")},
    ),
    "9 alternatives": (
        claim_spec(alternatives(9)),
        {(f"{SPEC}.requests[0].firstAvailable", "FieldValueTooMany")},
    ),
    "a negative count": (claim_spec(request(count=-1)), {(f"{EXACT}.count", "FieldValueInvalid")}),
    "all, and a count": (
        claim_spec(request(allocationMode="All", count=1)),
        {(f"{EXACT}.count", "FieldValueInvalid")},
    ),
    "an unknown mode": (
        claim_spec(request(allocationMode="Some")),
        {(f"{EXACT}.allocationMode", "FieldValueNotSupported")},
    ),
    "33 selectors": (
        claim_spec(request(selectors=[{"cel": {"expression": "true"}}] * 33)),
        {(f"{EXACT}.selectors", "FieldValueTooMany")},
    ),
    "a selector without expression": (
        claim_spec(request(selectors=[{}])),
        {(f"{EXACT}.selectors[0].cel", "FieldValueRequired")},
    ),
    "an expression that is too long": (
        cel("true || " + "x" * 10240),
        {(f"{EXACT}.selectors[0].cel.expression", "FieldValueTooLong")},
    ),
    "an expression that is none": (
        cel("device.driver =="),
        {(f"{EXACT}.selectors[0].cel.expression", "FieldValueInvalid")},
    ),
    "an expression about a field that devices do not have": (
        cel("device.nonsense == 1"),
        {(f"{EXACT}.selectors[0].cel.expression", "FieldValueInvalid")},
    ),
    "an expression that is no bool": (
        cel("device.driver"),
        {(f"{EXACT}.selectors[0].cel.expression", "FieldValueInvalid")},
    ),
    "a toleration of everything with a value": (
        claim_spec(request(tolerations=[{"operator": "Exists", "value": "x"}])),
        {(f"{EXACT}.tolerations[0].value", "FieldValueInvalid")},
    ),
    "a toleration of unknown effect and operator": (
        claim_spec(request(tolerations=[{"operator": "X", "effect": "Y"}])),
        {
            (f"{EXACT}.tolerations[0].operator", "FieldValueNotSupported"),
            (f"{EXACT}.tolerations[0].effect", "FieldValueNotSupported"),
        },
    ),
    "a constraint without attribute": (
        claim_spec(constraints=[{}]),
        {(f"{SPEC}.constraints[0]", "FieldValueRequired")},
    ),
    "an attribute without domain": (
        claim_spec(constraints=[{"matchAttribute": "a"}]),
        {(f"{SPEC}.constraints[0].matchAttribute", "FieldValueInvalid")},
    ),
    "a constraint on a request that is not there": (
        claim_spec(constraints=[{"requests": ["none"], "matchAttribute": "x.example/a"}]),
        {(f"{SPEC}.constraints[0].requests[0]", "FieldValueInvalid")},
    ),
    "33 constraints": (
        claim_spec(constraints=[{"matchAttribute": "x.example/a"}] * 33),
        {(f"{SPEC}.constraints", "FieldValueTooMany")},
    ),
    "a config of no kind": (claim_spec(config=[{}]), {(f"{SPEC}.config[0].opaque", "FieldValueRequired")}),
    "a config without driver": (
        claim_spec(config=[opaque({}, "")]),
        {(f"{SPEC}.config[0].opaque.driver", "FieldValueRequired")},
    ),
    "a config without parameters": (
        claim_spec(config=[{"opaque": {"driver": "x.example"}}]),
        {(f"{SPEC}.config[0].opaque.parameters", "FieldValueRequired")},
    ),
    "parameters that are no object": (
        claim_spec(config=[opaque([1])]),
        {(f"{SPEC}.config[0].opaque.parameters", "FieldValueInvalid")},
    ),
    "parameters above 10 KiB": (
        claim_spec(config=[opaque({"k": "x" * 10233})]),
        {(f"{SPEC}.config[0].opaque.parameters", "FieldValueTooLong")},
    ),
    "a config for a request that is not there": (
        claim_spec(config=[{"requests": ["none"], **opaque({})}]),
        {(f"{SPEC}.config[0].requests[0]", "FieldValueInvalid")},
    ),
    "33 configs": (claim_spec(config=[opaque({})] * 33), {(f"{SPEC}.config", "FieldValueTooMany")}),
}


def one_of_items(api: Api, field: str, reason: str, *, key: str) -> tuple[str, str]:
    """Servers before 1.35 report the field that is there twice instead of the item."""
    old = api.minor < 35 and reason == "FieldValueDuplicate" and field.endswith("]")
    return (f"{field}.{key}" if old else field), reason


@pytest.mark.parametrize(("spec", "causes"), INVALID.values(), ids=INVALID.keys())
async def test_what_is_outside_the_rules_is_refused_with_its_field(
    api: Api, namespace: str, spec: dict[str, Any], causes: set[tuple[str, str]]
) -> None:
    refusal = await api.refused("POST", claims(namespace), claim("a", spec))
    assert (refusal.status, refusal.reason) == (422, "Invalid")
    assert refusal.message.startswith('ResourceClaim.resource.k8s.io "a" is invalid: ')
    assert {one_of_items(api, *cause, key="name") for cause in causes} <= refusal.causes


async def test_all_problems_are_reported_together(api: Api, namespace: str) -> None:
    spec = claim_spec(request(count=-1), constraints=[{}], config=[{}])
    refusal = await api.refused("POST", claims(namespace), claim("a", spec))
    assert {field for field, _ in refusal.causes} == {
        f"{EXACT}.count",
        f"{SPEC}.constraints[0]",
        f"{SPEC}.config[0].opaque",
    }


async def test_the_spec_never_changes(api: Api, namespace: str) -> None:
    await api.post(claims(namespace), claim("a"))
    patch = {"spec": claim_spec(request("other"))}
    refusal = await api.refused("PATCH", f"{claims(namespace)}/a", patch, MERGE)
    assert refusal.causes == {("spec", "FieldValueInvalid")}


async def test_admin_access_needs_a_labelled_namespace(api: Api, namespace: str) -> None:
    spec = claim_spec(request(adminAccess=True))
    refusal = await api.refused("POST", claims(namespace), claim("a", spec))
    assert (f"{SPEC}.requests[0].adminAccess", "FieldValueForbidden") in refusal.causes
    template = {"metadata": {"name": "a"}, "spec": {"spec": spec}}
    assert (await api.refused("POST", templates(namespace), template)).status == 422
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    await api.patch(f"/api/v1/namespaces/{namespace}", label)
    created = await api.post(claims(namespace), claim("a", spec))
    assert created["spec"]["devices"]["requests"][0]["exactly"]["adminAccess"] is True
    await api.post(templates(namespace), template)


async def status_patch(api: Api, namespace: str, status: dict[str, Any], kind: str = MERGE) -> dict[str, Any]:
    return await api.patch(f"{claims(namespace)}/a/status", {"status": status}, kind)


async def test_a_status_write_changes_nothing_else(api: Api, namespace: str) -> None:
    created = await api.post(claims(namespace), claim("a"))
    patch = {
        "metadata": {"labels": {"a": "b"}, "finalizers": ["x.example/a"]},
        "spec": claim_spec(request("other")),
        "status": {"allocation": allocation(), "reservedFor": [consumer()]},
    }
    changed = await api.patch(f"{claims(namespace)}/a/status", patch)
    assert changed["spec"] == created["spec"]
    assert not {"labels", "finalizers"} & set(changed["metadata"])
    assert changed["status"] == {"allocation": allocation(), "reservedFor": [consumer()]}


async def test_a_write_of_the_claim_does_not_touch_its_status(api: Api, namespace: str) -> None:
    await api.post(claims(namespace), claim("a"))
    allocated = await status_patch(api, namespace, {"allocation": allocation()})
    changed = await api.put(f"{claims(namespace)}/a", {**allocated, "status": {}})
    assert changed["status"] == {"allocation": allocation()}
    assert changed["metadata"]["resourceVersion"] == allocated["metadata"]["resourceVersion"]


async def test_an_allocation_is_set_once_and_then_only_cleared(api: Api, namespace: str) -> None:
    await api.post(claims(namespace), claim("a"))
    await status_patch(api, namespace, {"allocation": allocation()})
    other = {"status": {"allocation": allocation(result("gpu-1"))}}
    refusal = await api.refused("PATCH", f"{claims(namespace)}/a/status", other, MERGE)
    assert ("status.allocation", "FieldValueInvalid") in refusal.causes
    assert (await status_patch(api, namespace, {"allocation": None}))["status"] == {}
    await status_patch(api, namespace, {"allocation": allocation(result("gpu-1"))})


async def test_reservations_need_an_allocation(api: Api, namespace: str) -> None:
    await api.post(claims(namespace), claim("a"))
    path = f"{claims(namespace)}/a/status"
    refusal = await api.refused("PATCH", path, {"status": {"reservedFor": [consumer()]}}, MERGE)
    assert refusal.causes == {("status.reservedFor", "FieldValueForbidden")}
    await status_patch(api, namespace, {"allocation": allocation(), "reservedFor": [consumer()]})
    refusal = await api.refused("PATCH", path, {"status": {"allocation": None}}, MERGE)
    assert refusal.causes == {("status.reservedFor", "FieldValueForbidden")}


async def test_256_consumers_fit(api: Api, namespace: str) -> None:
    await api.post(claims(namespace), claim("a"))
    await status_patch(
        api, namespace, {"allocation": allocation(), "reservedFor": [consumer(number) for number in range(256)]}
    )
    more = {"status": {"reservedFor": [consumer(number) for number in range(257)]}}
    refusal = await api.refused("PATCH", f"{claims(namespace)}/a/status", more, MERGE)
    assert refusal.causes == {("status.reservedFor", "FieldValueTooMany")}


async def test_consumers_are_keyed_by_uid(api: Api, namespace: str) -> None:
    await api.post(claims(namespace), claim("a"))
    await status_patch(api, namespace, {"allocation": allocation(), "reservedFor": [consumer(0)]})
    twice = {"status": {"reservedFor": [consumer(0), {**consumer(1), "uid": "uid-0"}]}}
    refusal = await api.refused("PATCH", f"{claims(namespace)}/a/status", twice, MERGE)
    assert refusal.causes == {one_of_items(api, "status.reservedFor[1]", "FieldValueDuplicate", key="uid")}
    changed = await status_patch(api, namespace, {"reservedFor": [consumer(1)]}, STRATEGIC)
    assert {reference["uid"] for reference in changed["status"]["reservedFor"]} == {"uid-0", "uid-1"}
    removal = {"reservedFor": [{"$patch": "delete", "uid": "uid-0"}]}
    changed = await status_patch(api, namespace, removal, STRATEGIC)
    assert changed["status"]["reservedFor"] == [consumer(1)]


async def test_no_consumer_is_added_to_a_claim_that_is_being_deleted(api: Api, namespace: str) -> None:
    await api.post(claims(namespace), claim("a", finalizers=["resource.kubernetes.io/delete-protection"]))
    await status_patch(api, namespace, {"allocation": allocation(), "reservedFor": [consumer(0)]})
    await api.delete(f"{claims(namespace)}/a")
    more = {"status": {"reservedFor": [consumer(0), consumer(1)]}}
    refusal = await api.refused("PATCH", f"{claims(namespace)}/a/status", more, MERGE)
    assert refusal.causes == {("status.reservedFor", "FieldValueForbidden")}
    await status_patch(api, namespace, {"reservedFor": None})


BAD_ALLOCATIONS: dict[str, tuple[dict[str, Any], set[tuple[str, str]]]] = {
    "33 results": (
        allocation(*(result(f"gpu-{n}") for n in range(33))),
        {("status.allocation.devices.results", "FieldValueTooMany")},
    ),
    "65 configs": (
        {"devices": {"results": [result()], "config": [{"source": "FromClass", **opaque({})}] * 65}},
        {("status.allocation.devices.config", "FieldValueTooMany")},
    ),
    "a request that is not there": (
        allocation(result(request="none")),
        {("status.allocation.devices.results[0].request", "FieldValueInvalid")},
    ),
    "no names": (
        allocation(result("", driver="", pool="")),
        {
            ("status.allocation.devices.results[0].driver", "FieldValueRequired"),
            ("status.allocation.devices.results[0].pool", "FieldValueRequired"),
            ("status.allocation.devices.results[0].device", "FieldValueInvalid"),
        },
    ),
    "a share that is no UUID": (
        allocation(result(shareID="X")),
        {("status.allocation.devices.results[0].shareID", "FieldValueInvalid")},
    ),
    "a config of unknown source": (
        {"devices": {"results": [result()], "config": [{"source": "X", **opaque({})}]}},
        {("status.allocation.devices.config[0].source", "FieldValueNotSupported")},
    ),
    "an empty node selector": (
        allocation(nodeSelector={"nodeSelectorTerms": []}),
        {("status.allocation.nodeSelector.nodeSelectorTerms", "FieldValueRequired")},
    ),
    "admin access in a namespace without the label": (
        allocation(result(adminAccess=True)),
        {("status.allocation.devices.results[0].adminAccess", "FieldValueForbidden")},
    ),
}


@pytest.mark.parametrize(("wrong", "causes"), BAD_ALLOCATIONS.values(), ids=BAD_ALLOCATIONS.keys())
async def test_a_wrong_allocation_is_refused(
    api: Api, namespace: str, wrong: dict[str, Any], causes: set[tuple[str, str]]
) -> None:
    await api.post(claims(namespace), claim("a"))
    refusal = await api.refused("PATCH", f"{claims(namespace)}/a/status", {"status": {"allocation": wrong}}, MERGE)
    assert refusal.status == 422
    assert causes <= refusal.causes


def device_status(device: str = "gpu-0", **fields: Any) -> dict[str, Any]:
    return {"driver": "gpu.nvidia.com", "pool": "node-1", "device": device, **fields}


def condition(kind: str = "Ready") -> dict[str, str]:
    moment = "2026-01-01T00:00:00Z"
    return {"type": kind, "status": "True", "reason": "R", "message": "", "lastTransitionTime": moment}


async def allocated(api: Api, namespace: str) -> None:
    await api.post(claims(namespace), claim("a"))
    await status_patch(api, namespace, {"allocation": allocation(result("gpu-0"), result("gpu-1"))})


async def test_device_status_is_kept_while_its_device_is_allocated(api: Api, namespace: str) -> None:
    await allocated(api, namespace)
    network = {"interfaceName": "eth0", "ips": ["10.0.0.1/24", "2001:db8::1/64"], "hardwareAddress": "aa:bb"}
    wanted = device_status(conditions=[condition()], data={"k": [1]}, networkData=network)
    changed = await status_patch(api, namespace, {"devices": [wanted]})
    assert changed["status"]["devices"] == [wanted]
    assert (await status_patch(api, namespace, {"allocation": None}))["status"] == {}


BAD_DEVICES: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "a device that is not allocated": (device_status("gpu-9"), ("status.devices[0]", "FieldValueInvalid")),
    "9 conditions": (
        device_status(conditions=[condition(f"C{n}") for n in range(9)]),
        ("status.devices[0].conditions", "FieldValueTooMany"),
    ),
    "a condition without reason": (
        device_status(conditions=[{**condition(), "reason": ""}]),
        ("status.devices[0].conditions[0].reason", "FieldValueRequired"),
    ),
    "data above 10 KiB": (
        device_status(data={"k": "x" * 10233}),
        ("status.devices[0].data", "FieldValueTooLong"),
    ),
    "an address without prefix": (
        device_status(networkData={"ips": ["10.0.0.1"]}),
        ("status.devices[0].networkData.ips[0]", "FieldValueInvalid"),
    ),
    "an address in another form": (
        device_status(networkData={"ips": ["2001:DB8:0::1/64"]}),
        ("status.devices[0].networkData.ips[0]", "FieldValueInvalid"),
    ),
    "17 addresses": (
        device_status(networkData={"ips": [f"10.0.0.{n}/24" for n in range(17)]}),
        ("status.devices[0].networkData.ips", "FieldValueTooMany"),
    ),
    "a long interface name": (
        device_status(networkData={"interfaceName": "x" * 257}),
        ("status.devices[0].networkData.interfaceName", "FieldValueTooLong"),
    ),
}


@pytest.mark.parametrize(("wrong", "cause"), BAD_DEVICES.values(), ids=BAD_DEVICES.keys())
async def test_a_wrong_device_status_is_refused(
    api: Api, namespace: str, wrong: dict[str, Any], cause: tuple[str, str]
) -> None:
    await allocated(api, namespace)
    refusal = await api.refused("PATCH", f"{claims(namespace)}/a/status", {"status": {"devices": [wrong]}}, MERGE)
    assert cause in refusal.causes


async def test_a_template_carries_labels_annotations_and_a_claim_spec(api: Api, namespace: str) -> None:
    template = {"metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}}, "spec": claim_spec()}
    created = await api.post(templates(namespace), {"metadata": {"name": "a"}, "spec": template})
    assert created["spec"]["metadata"] == template["metadata"]
    assert created["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] == 1
    patch = {"spec": {"metadata": {"labels": {"a": "c"}}}}
    refusal = await api.refused("PATCH", f"{templates(namespace)}/a", patch, MERGE)
    assert ("spec", "FieldValueInvalid") in refusal.causes


async def test_the_claim_spec_of_a_template_is_validated(api: Api, namespace: str) -> None:
    template = {"metadata": {"labels": {"a b": "c"}}, "spec": claim_spec({"name": "x"})}
    refusal = await api.refused("POST", templates(namespace), {"metadata": {"name": "a"}, "spec": template})
    assert refusal.causes >= {
        ("spec.metadata.labels", "FieldValueInvalid"),
        ("spec.spec.devices.requests[0]", "FieldValueRequired"),
    }
