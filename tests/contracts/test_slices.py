"""ResourceSlices and DeviceClasses: limits, immutable fields, what the server fills in and how it spells amounts."""

from typing import Any

import pytest
from support.api import MERGE, Api
from support.dra_objects import CLASSES, SLICES, device, opaque, resource_slice

DEVICE = "spec.devices[0]"


def pool(**fields: Any) -> dict[str, Any]:
    return {"name": "node-1", "generation": 1, "resourceSliceCount": 1, **fields}


def counters(count: int = 1) -> dict[str, Any]:
    return {f"c{number}": {"value": "1"} for number in range(count)}


def capacity(policy: dict[str, Any], *, shared: bool = True) -> dict[str, Any]:
    return device(allowMultipleAllocations=shared, capacity={"memory": {"value": "8Gi", "requestPolicy": policy}})


def named(spec: dict[str, Any]) -> Any:
    """A builder: the name comes with the test."""
    devices = spec.pop("devices", [])
    return lambda name: resource_slice(name, *devices, **spec)


SINCE_1_35 = (
    "64 tainted devices", "16 taints", "counter sets apart from devices", "devices that use counters",
    "65 devices, one of them tainted", "65 devices that use counters", "devices and counters in one slice",
    "9 counter sets", "33 counters in a set", "3 counter sets used by a device",
)  # fmt: skip


def skip_where_another_form_holds(api: Api, case: str) -> None:
    if api.minor < 35 and case in SINCE_1_35:
        pytest.skip("Kubernetes 1.34 has counters and taints of another form: see the tests of 1.34")


VALID: dict[str, dict[str, Any]] = {
    "no devices": {},
    "128 plain devices": {"devices": [device(f"gpu-{n}") for n in range(128)]},
    "64 tainted devices": {"devices": [device(f"gpu-{n}", taints=[{"key": "k", "effect": "None"}]) for n in range(64)]},
    "32 attributes and capacities": {
        "devices": [
            device(
                attributes={f"a{n}": {"int": n} for n in range(16)},
                capacity={f"c{n}": {"value": "1"} for n in range(16)},
            )
        ]
    },
    "16 taints": {"devices": [device(taints=[{"key": f"k{n}", "effect": "NoExecute"} for n in range(16)])]},
    "attributes of every kind": {
        "devices": [
            device(
                attributes={
                    "s": {"string": "x" * 64},
                    "i": {"int": 2**62},
                    "b": {"bool": False},
                    "v": {"version": "1.2.3-rc.1+build"},
                    "x.example/s": {"string": ""},
                }
            )
        ]
    },
    "a pool name of several parts": {"pool": pool(name="a.example/b")},
    "all nodes": {"nodeName": None, "allNodes": True},
    "a node selector": {
        "nodeName": None,
        "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "Exists"}]}]},
    },
    "nodes by device": {
        "nodeName": None,
        "perDeviceNodeSelection": True,
        "devices": [device(nodeName="n"), device("gpu-1", allNodes=True)],
    },
    "counter sets apart from devices": {
        "sharedCounters": [{"name": f"s{n}", "counters": counters(32)} for n in range(8)]
    },
    "devices that use counters": {
        "devices": [device(consumesCounters=[{"counterSet": f"s{n}", "counters": counters(32)} for n in range(2)])]
    },
    "binding conditions": {
        "devices": [device(bindsToNode=True, bindingConditions=["a", "b"], bindingFailureConditions=["c"])]
    },
    "valid values": {"devices": [capacity({"default": "1Gi", "validValues": ["1Gi", "2Gi"]})]},
    "a valid range": {
        "devices": [capacity({"default": "1Gi", "validRange": {"min": "1Gi", "max": "4Gi", "step": "1Gi"}})]
    },
    "a policy that is only a default": {"devices": [capacity({"default": "1Gi"})]},
}


@pytest.mark.parametrize("case", VALID)
async def test_what_is_within_the_limits_is_accepted(api: Api, unique: str, case: str) -> None:
    skip_where_another_form_holds(api, case)
    body = named(dict(VALID[case]))(unique)
    created = await api.post(SLICES, body)
    assert len(created["spec"].get("devices") or []) == len(body["spec"].get("devices", []))


INVALID: dict[str, tuple[dict[str, Any], set[tuple[str, str]]]] = {
    "no driver": ({"driver": ""}, {("spec.driver", "FieldValueRequired")}),
    "a long driver name": ({"driver": "x" * 64}, {("spec.driver", "FieldValueTooLong")}),
    "a driver that is no domain": ({"driver": "a_b"}, {("spec.driver", "FieldValueInvalid")}),
    "an empty pool": (
        {"pool": {"name": "", "generation": -1, "resourceSliceCount": 0}},
        {
            ("spec.pool.name", "FieldValueRequired"),
            ("spec.pool.generation", "FieldValueInvalid"),
            ("spec.pool.resourceSliceCount", "FieldValueInvalid"),
        },
    ),
    "a pool that is no domain": ({"pool": pool(name="a/b_c")}, {("spec.pool.name", "FieldValueInvalid")}),
    "a long pool name": ({"pool": pool(name="a" * 254)}, {("spec.pool.name", "FieldValueTooLong")}),
    "no node": ({"nodeName": None}, {("spec", "FieldValueRequired")}),
    "an empty node name": (
        {"nodeName": ""},
        {("spec.nodeName", "FieldValueInvalid"), ("spec", "FieldValueRequired")},
    ),
    "two kinds of nodes": ({"allNodes": True}, {("spec", "FieldValueInvalid")}),
    "not all nodes": ({"nodeName": None, "allNodes": False}, {("spec.allNodes", "FieldValueInvalid")}),
    "two terms in the node selector": (
        {"nodeName": None, "nodeSelector": {"nodeSelectorTerms": [{}, {}]}},
        {("spec.nodeSelector.nodeSelectorTerms", "FieldValueInvalid")},
    ),
    "a node on a device of a slice with a node": (
        {"devices": [device(nodeName="n")]},
        {(DEVICE, "FieldValueInvalid")},
    ),
    "a device without node where devices name theirs": (
        {"nodeName": None, "perDeviceNodeSelection": True, "devices": [device()]},
        {(DEVICE, "FieldValueRequired")},
    ),
    "129 devices": (
        {"devices": [device(f"gpu-{n}") for n in range(129)]},
        {("spec.devices", "FieldValueTooMany")},
    ),
    "65 devices, one of them tainted": (
        {
            "devices": [
                device("gpu-x", taints=[{"key": "k", "effect": "None"}]),
                *(device(f"gpu-{n}") for n in range(64)),
            ]
        },
        {("spec.devices", "FieldValueTooMany")},
    ),
    "65 devices that use counters": (
        {
            "devices": [
                device(f"gpu-{n}", consumesCounters=[{"counterSet": "s", "counters": counters()}]) for n in range(65)
            ]
        },
        {("spec.devices", "FieldValueTooMany")},
    ),
    "two devices of one name": (
        {"devices": [device(), device()]},
        {("spec.devices[1]", "FieldValueDuplicate")},
    ),
    "a device name that is no label": ({"devices": [device("Gpu_0")]}, {(f"{DEVICE}.name", "FieldValueInvalid")}),
    "33 attributes": (
        {"devices": [device(attributes={f"a{n}": {"int": n} for n in range(33)})]},
        {(DEVICE, "FieldValueInvalid")},
    ),
    "an attribute name that is no identifier": (
        {"devices": [device(attributes={"1a": {"int": 1}})]},
        {(f"{DEVICE}.attributes", "FieldValueInvalid")},
    ),
    "a long attribute name": (
        {"devices": [device(attributes={"x" * 33: {"int": 1}})]},
        {(f"{DEVICE}.attributes", "FieldValueTooLong")},
    ),
    "an attribute without value": (
        {"devices": [device(attributes={"a": {}})]},
        {(f"{DEVICE}.attributes[a]", "FieldValueInvalid")},
    ),
    "an attribute with two values": (
        {"devices": [device(attributes={"a": {"int": 1, "bool": True}})]},
        {(f"{DEVICE}.attributes[a]", "FieldValueInvalid")},
    ),
    "a string of 65 bytes": (
        {"devices": [device(attributes={"a": {"string": "x" * 65}})]},
        {(f"{DEVICE}.attributes[a].string", "FieldValueTooLong")},
    ),
    "a version that is not semantic": (
        {"devices": [device(attributes={"a": {"version": "580.95.05"}})]},
        {(f"{DEVICE}.attributes[a].version", "FieldValueInvalid")},
    ),
    "17 taints": (
        {"devices": [device(taints=[{"key": f"k{n}", "effect": "None"} for n in range(17)])]},
        {(f"{DEVICE}.taints", "FieldValueTooMany")},
    ),
    "a taint without key, of unknown effect": (
        {"devices": [device(taints=[{"key": "", "effect": "X", "value": "a b"}])]},
        {
            (f"{DEVICE}.taints[0].key", "FieldValueInvalid"),
            (f"{DEVICE}.taints[0].effect", "FieldValueNotSupported"),
            (f"{DEVICE}.taints[0].value", "FieldValueInvalid"),
        },
    ),
    "a taint without effect": (
        {"devices": [device(taints=[{"key": "k"}])]},
        {(f"{DEVICE}.taints[0].effect", "FieldValueRequired")},
    ),
    "devices and counters in one slice": (
        {"devices": [device()], "sharedCounters": [{"name": "s", "counters": counters()}]},
        {("spec", "FieldValueInvalid")},
    ),
    "9 counter sets": (
        {"sharedCounters": [{"name": f"s{n}", "counters": counters()} for n in range(9)]},
        {("spec.sharedCounters", "FieldValueTooMany")},
    ),
    "33 counters in a set": (
        {"sharedCounters": [{"name": "s", "counters": counters(33)}]},
        {("spec.sharedCounters[0].counters", "FieldValueTooMany")},
    ),
    "a counter set without name and counters": (
        {"sharedCounters": [{"name": "", "counters": {}}]},
        {
            ("spec.sharedCounters[0].name", "FieldValueRequired"),
            ("spec.sharedCounters[0].counters", "FieldValueRequired"),
        },
    ),
    "3 counter sets used by a device": (
        {"devices": [device(consumesCounters=[{"counterSet": f"s{n}", "counters": counters()} for n in range(3)])]},
        {(f"{DEVICE}.consumesCounters", "FieldValueTooMany")},
    ),
    "5 binding conditions": (
        {"devices": [device(bindingConditions=list("abcde"), bindingFailureConditions=["f"])]},
        {(f"{DEVICE}.bindingConditions", "FieldValueTooMany")},
    ),
    "binding conditions that cannot fail": (
        {"devices": [device(bindingConditions=["a"])]},
        {(f"{DEVICE}.bindingFailureConditions", "FieldValueInvalid")},
    ),
    "a policy for a device that is not shared": (
        {"devices": [capacity({"default": "1Gi"}, shared=False)]},
        {(f"{DEVICE}.capacity[memory].requestPolicy", "FieldValueForbidden")},
    ),
    "valid values without default": (
        {"devices": [capacity({"validValues": ["1Gi"]})]},
        {(f"{DEVICE}.capacity[memory].requestPolicy.default", "FieldValueRequired")},
    ),
    "valid values and a range": (
        {"devices": [capacity({"default": "1Gi", "validValues": ["1Gi"], "validRange": {"min": "1Gi"}})]},
        {(f"{DEVICE}.capacity[memory].requestPolicy", "FieldValueForbidden")},
    ),
    "a default that is no valid value": (
        {"devices": [capacity({"default": "3Gi", "validValues": ["1Gi", "2Gi"]})]},
        {(f"{DEVICE}.capacity[memory].requestPolicy.validValues", "FieldValueInvalid")},
    ),
    "a value above the capacity": (
        {"devices": [capacity({"default": "1Gi", "validValues": ["1Gi", "9Gi"]})]},
        {(f"{DEVICE}.capacity[memory].requestPolicy.validValues[1]", "FieldValueInvalid")},
    ),
    "11 valid values": (
        {"devices": [capacity({"default": "1", "validValues": [str(n) for n in range(1, 12)]})]},
        {(f"{DEVICE}.capacity[memory].requestPolicy.validValues", "FieldValueTooMany")},
    ),
    "a range without minimum": (
        {"devices": [capacity({"default": "1Gi", "validRange": {"max": "2Gi"}})]},
        {(f"{DEVICE}.capacity[memory].requestPolicy.validRange.min", "FieldValueRequired")},
    ),
    "a default between the steps": (
        {"devices": [capacity({"default": "1536Mi", "validRange": {"min": "1Gi", "step": "1Gi"}})]},
        {(f"{DEVICE}.capacity[memory].requestPolicy.validRange.step", "FieldValueInvalid")},
    ),
}


OLDER: dict[str, tuple[int, set[tuple[str, str]]]] = {
    "two devices of one name": (35, {("spec.devices[1].name", "FieldValueDuplicate")}),
    "an attribute name that is no identifier": (36, {(f"{DEVICE}.attributes[1a]", "FieldValueInvalid")}),
    "a long attribute name": (36, {(f"{DEVICE}.attributes[{'x' * 33}]", "FieldValueTooLong")}),
    "an attribute without value": (35, {(f"{DEVICE}.attributes[a]", "FieldValueRequired")}),
}
"""How servers older than this minor version report it."""


@pytest.mark.parametrize("case", INVALID)
async def test_what_is_outside_the_rules_is_refused_with_its_field(api: Api, unique: str, case: str) -> None:
    skip_where_another_form_holds(api, case)
    spec, causes = INVALID[case]
    since, older = OLDER.get(case, (0, causes))
    causes = older if api.minor < since else causes
    refusal = await api.refused("POST", SLICES, named(dict(spec))(unique))
    assert (refusal.status, refusal.reason) == (422, "Invalid")
    assert refusal.body["details"]["kind"] == "ResourceSlice"
    assert causes <= refusal.causes


async def test_a_driver_name_in_upper_case_is_only_warned_about(api: Api, unique: str) -> None:
    await api.post(SLICES, resource_slice(unique, driver="GPU.example.com"))
    assert ["lowercase" in text for text in api.warnings] == [True] * (api.minor >= 35)


def with_sets(*sets: dict[str, Any], devices: list[dict[str, Any]]) -> Any:
    return named({"sharedCounters": list(sets), "devices": devices})


def uses(name: str, **amounts: str) -> dict[str, Any]:
    return {"counterSet": name, "counters": {counter: {"value": amount} for counter, amount in amounts.items()}}


OF_1_34: dict[str, tuple[Any, set[tuple[str, str]]]] = {
    "a set that is not in the slice": (
        with_sets(devices=[device(consumesCounters=[uses("s", c0="1")])]),
        {(f"{DEVICE}.consumesCounters[0].counterSet", "FieldValueInvalid")},
    ),
    "a counter that is not in the set": (
        with_sets({"name": "s", "counters": counters()}, devices=[device(consumesCounters=[uses("s", x="1")])]),
        {(f"{DEVICE}.consumesCounters[0].counters", "FieldValueInvalid")},
    ),
    "33 counters in two sets": (
        with_sets({"name": "s", "counters": counters(32)}, {"name": "t", "counters": counters(1)}, devices=[]),
        {("spec.sharedCounters", "FieldValueInvalid")},
    ),
    "5 taints": (
        named({"devices": [device(taints=[{"key": f"k{n}", "effect": "NoExecute"} for n in range(5)])]}),
        {(f"{DEVICE}.taints", "FieldValueTooMany")},
    ),
    "a taint without effect on anything": (
        named({"devices": [device(taints=[{"key": "k", "effect": "None"}])]}),
        {(f"{DEVICE}.taints[0].effect", "FieldValueNotSupported")},
    ),
}


@pytest.mark.parametrize("case", OF_1_34)
@pytest.mark.parametrize("kubernetes", ["v1.34.9"])
async def test_what_1_34_refuses(api: Api, unique: str, case: str) -> None:
    build, causes = OF_1_34[case]
    assert causes <= (await api.refused("POST", SLICES, build(unique))).causes


@pytest.mark.parametrize("kubernetes", ["v1.34.9"])
async def test_in_1_34_counter_sets_lie_beside_their_devices(api: Api, unique: str) -> None:
    sets = [{"name": f"s{number}", "counters": counters(3)} for number in range(10)]
    used = [uses(f"s{number}", c0="1", c1="1", c2="1") for number in range(10)]
    devices = [device(f"gpu-{number}", consumesCounters=used) for number in range(34)]
    created = await api.post(SLICES, with_sets(*sets, devices=devices)(unique))
    assert created["spec"]["devices"] == devices


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        ({"driver": "other.example.com"}, "spec.driver"),
        ({"pool": {"name": "other"}}, "spec.pool.name"),
        ({"nodeName": "other"}, "spec.nodeName"),
        ({"nodeName": None, "allNodes": True}, "spec.nodeName"),
    ],
)
async def test_driver_pool_and_node_never_change(api: Api, unique: str, patch: dict[str, Any], field: str) -> None:
    await api.post(SLICES, resource_slice(unique, device()))
    refusal = await api.refused("PATCH", f"{SLICES}/{unique}", {"spec": patch}, MERGE)
    assert (field, "FieldValueInvalid") in refusal.causes


async def test_generation_count_and_devices_of_a_pool_change(api: Api, unique: str) -> None:
    created = await api.post(SLICES, resource_slice(unique, device()))
    created["spec"]["pool"].update(generation=2, resourceSliceCount=2)
    created["spec"]["devices"] = [device("gpu-1")]
    changed = await api.put(f"{SLICES}/{unique}", created)
    assert changed["spec"] == created["spec"]


async def test_taints_get_their_time_and_keep_it(api: Api, unique: str) -> None:
    taint = {"key": "k", "effect": "NoSchedule"}
    created = await api.post(SLICES, resource_slice(unique, device(taints=[taint])))
    (stored,) = created["spec"]["devices"][0]["taints"]
    assert stored["timeAdded"].endswith("Z") and "." not in stored["timeAdded"]
    assert await api.put(f"{SLICES}/{unique}", created) == created


async def test_the_time_of_a_taint_is_cut_to_seconds(api: Api, unique: str) -> None:
    taint = {"key": "k", "effect": "NoSchedule", "timeAdded": "2026-01-01T01:00:00.5+01:00"}
    created = await api.post(SLICES, resource_slice(unique, device(taints=[taint])))
    assert created["spec"]["devices"][0]["taints"][0]["timeAdded"] == "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("1024Mi", "1Gi"),
        ("85899345920", "85899345920"),
        ("0.5", "500m"),
        ("1.5Gi", "1536Mi"),
        ("0.1Gi", "107374182400m"),
        ("1000", "1k"),
        ("100000", "100k"),
        ("1e3", "1e3"),
        ("0", "0"),
        ("-1", "-1"),
        ("512Ki", "512Ki"),
        ("0.5Ki", "512"),
        (12, "12"),
    ],
)
async def test_amounts_have_one_spelling(api: Api, unique: str, written: str, stored: str) -> None:
    body = resource_slice(unique, device(capacity={"memory": {"value": written}}))
    assert (await api.post(SLICES, body))["spec"]["devices"][0]["capacity"]["memory"]["value"] == stored


async def test_what_is_no_amount_is_a_bad_request(api: Api, unique: str) -> None:
    body = resource_slice(unique, device(capacity={"memory": {"value": "lots"}}))
    assert (await api.refused("POST", SLICES, body)).status == 400


async def test_an_attribute_name_with_two_slashes_passes(api: Api, unique: str) -> None:
    """The reference says otherwise; publishers must check it themselves."""
    await api.post(SLICES, resource_slice(unique, device(attributes={"a/b/c": {"int": 1}})))


async def test_classes_take_selectors_configs_and_an_extended_resource(api: Api, unique: str) -> None:
    spec = {
        "selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}],
        "config": [opaque({"k": "v"})],
        "extendedResourceName": "nvidia.com/gpu",
    }
    created = await api.post(CLASSES, {"metadata": {"name": unique}, "spec": spec})
    assert (created["spec"], created["metadata"]["generation"]) == (spec, 1)
    changed = await api.patch(f"{CLASSES}/{unique}", {"spec": {"selectors": None}})
    assert changed["metadata"]["generation"] == 2


BAD_CLASSES: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "33 selectors": (
        {"selectors": [{"cel": {"expression": "true"}}] * 33},
        ("spec.selectors", "FieldValueTooMany"),
    ),
    "an empty selector": ({"selectors": [{}]}, ("spec.selectors[0].cel", "FieldValueRequired")),
    "33 configs": ({"config": [opaque({})] * 33}, ("spec.config", "FieldValueTooMany")),
    "an empty config": ({"config": [{}]}, ("spec.config[0].opaque", "FieldValueRequired")),
    "a resource without domain": (
        {"extendedResourceName": "gpu"},
        ("spec.extendedResourceName", "FieldValueInvalid"),
    ),
    "a resource of Kubernetes' own": (
        {"extendedResourceName": "kubernetes.io/gpu"},
        ("spec.extendedResourceName", "FieldValueInvalid"),
    ),
    "a resource with the prefix of quotas": (
        {"extendedResourceName": "requests.nvidia.com/gpu"},
        ("spec.extendedResourceName", "FieldValueInvalid"),
    ),
}


@pytest.mark.parametrize(("spec", "cause"), BAD_CLASSES.values(), ids=BAD_CLASSES.keys())
async def test_a_wrong_class_is_refused(api: Api, unique: str, spec: dict[str, Any], cause: tuple[str, str]) -> None:
    refusal = await api.refused("POST", CLASSES, {"metadata": {"name": unique}, "spec": spec})
    assert cause in refusal.causes
