"""Random slices of nodes that are nearly alike, as JSON, for tests of what is shared between them."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from hypothesis import strategies as st
from support.allocation import DRIVER

from dra_driver.api.meta import JsonObject

type Change = Callable[[JsonObject], object]
"""Of a slice."""

TAINT = {"key": "example.com/broken", "effect": "NoSchedule"}


def _device(index: int, **attributes: JsonObject) -> Change:
    return lambda obj: obj["spec"]["devices"][index]["attributes"].update(deepcopy(attributes))


def _field(index: int, **fields: Any) -> Change:
    return lambda obj: obj["spec"]["devices"][index].update(deepcopy(fields))


def _spec(**fields: Any) -> Change:
    return lambda obj: obj["spec"].update(deepcopy(fields))


def _pool(**fields: Any) -> Change:
    return lambda obj: obj["spec"]["pool"].update(fields)


def _for_nodes(obj: JsonObject) -> None:
    """Each device is for another node."""
    del obj["spec"]["nodeName"]
    obj["spec"]["perDeviceNodeSelection"] = True
    for number, device in enumerate(obj["spec"]["devices"]):
        device["nodeName"] = f"node-{number}"


def _with_counters(obj: JsonObject) -> None:
    """As of Kubernetes 1.34, where devices and their counters are in one slice. There is room for one of them."""
    obj["spec"]["sharedCounters"] = [{"name": "set", "counters": {"memory": {"value": "100Gi"}}}]
    for device in obj["spec"]["devices"]:
        device["consumesCounters"] = [{"counterSet": "set", "counters": {"memory": {"value": "60Gi"}}}]


VALID: tuple[Change, ...] = (
    _device(0, product={"string": "B"}),
    _device(2, product={"string": "B"}),
    _device(1, uuid={"string": "same"}),
    _device(1, numa={"int": 1}),
    _device(1, numa={"int": True}),
    _device(1, ready={"bool": False}),
    _device(0, uuid={"version": "1.2.3"}),
    _device(0, added={"string": "x"}),
    _device(0, **{f"{DRIVER}/product": {"string": "C"}}),
    lambda obj: obj["spec"]["devices"][0].update(
        attributes={f"{DRIVER}/product": {"string": "C"}, **obj["spec"]["devices"][0]["attributes"]}
    ),
    lambda obj: obj["spec"]["devices"][1]["attributes"].pop("product"),
    _field(0, taints=[TAINT]),
    _field(0, taints=[{**TAINT, "value": "badly"}]),
    _field(1, capacity={"memory": {"value": "40Gi"}}),
    _field(1, allowMultipleAllocations=True),
    _field(
        0,
        allowMultipleAllocations=True,
        capacity={"memory": {"value": "80Gi", "requestPolicy": {"default": "10Gi", "validValues": ["10Gi", "40Gi"]}}},
    ),
    _field(2, bindingConditions=["ready"], bindingFailureConditions=["failed"]),
    _pool(generation=2),
    _pool(resourceSliceCount=2),
    lambda obj: obj["spec"]["devices"].pop(),
    lambda obj: obj["spec"]["devices"].reverse(),
    lambda obj: obj["spec"]["devices"][0].update(name="gpu-same"),
    lambda obj: obj["spec"].pop("nodeName") and obj["spec"].update(allNodes=True),
    lambda obj: obj["spec"].update(node_name=obj["spec"].pop("nodeName", None)),
    _for_nodes,
    _with_counters,
    _with_counters,
)
"""What an API server would store, or what Python finds equal to that."""
INVALID: tuple[Change, ...] = (
    _device(0, uuid={"string": 5}),
    _device(0, uuid={"string": None}),
    _device(0, uuid={}),
    _device(0, uuid={"strings": ["x"]}),
    lambda obj: obj["spec"]["devices"][0]["attributes"].update(uuid=None),
    lambda obj: obj["spec"]["devices"][0]["attributes"].update(
        {"other": None} if obj["spec"]["devices"][0]["attributes"].pop("uuid") else {}
    ),
    lambda obj: obj["spec"]["devices"][0]["attributes"].update(other=obj["spec"]["devices"][0].pop("name", None)),
    lambda obj: obj["spec"]["devices"][0].update(attributes=None),
    lambda obj: obj["spec"]["devices"][0].update(capacity={"memory": {"value": "much"}}),
    lambda obj: obj["spec"]["devices"][0].update(name=3),
    lambda obj: obj["spec"]["devices"].append(None),
    _device(0, driver={"version": "none"}),
    _pool(generation="x"),
    _pool(generation=1.5),
    _pool(name=None),
    _spec(pool=[]),
    _spec(devices=None),
    _spec(devices={}),
    _spec(driver=None),
    _spec(nodeName=7),
    lambda obj: obj.update(spec=None),
    lambda obj: obj.pop("metadata", None),
    lambda obj: obj.update(metadata={"name": 5}),
    lambda obj: obj.update(metadata=None),
)
"""Some of these are valid, too, in a way that no driver writes."""


def slice_of(number: int) -> JsonObject:
    """Of node `node-NUMBER`, with three devices."""
    devices = [
        {
            "name": f"gpu-{number}-{index}",
            "attributes": {
                "type": {"string": "gpu"},
                "product": {"string": "A"},
                "uuid": {"string": f"{number}-{index}"},
                "numa": {"int": 0},
                "ready": {"bool": True},
                "driver": {"version": "1.2.3"},
            },
            "capacity": {"memory": {"value": "80Gi"}},
        }
        for index in range(3)
    ]
    pool = {"name": f"node-{number}", "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"slice-{number}"},
        "spec": {"driver": DRIVER, "nodeName": f"node-{number}", "pool": pool, "devices": devices},
    }


@st.composite
def slices(draw: st.DrawFn, *changes: Change, most: int = 6) -> list[JsonObject]:
    """One for each node. Few kinds of changes occur in one example, so that many nodes are alike."""
    some = draw(st.lists(st.sampled_from(changes), min_size=1, max_size=2))
    objects: list[JsonObject] = []
    for number in range(draw(st.integers(2, most))):
        obj = slice_of(number)
        for change in draw(st.lists(st.sampled_from(some), max_size=2)):
            try:
                change(obj)
            except (AttributeError, KeyError, IndexError, TypeError):
                continue  # another change has removed what this one is about
        objects.append(obj)
    return objects
