"""Builders for the allocator: devices, slices, classes and claims as the API has them, in few words."""

from collections.abc import Iterable, Sequence
from typing import Any

from dra_driver.allocation.behavior import CURRENT, Behavior
from dra_driver.allocation.nodes import NodeView
from dra_driver.allocation.snapshot import Catalog, PoolUsage, PublishedSlice, Snapshot, Usage
from dra_driver.api.resource import Allocation, DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice

type Obj = dict[str, Any]

DRIVER = "gpu.nvidia.com"
NODE = NodeView("node-1", {"zone": "a"})


def attribute(value: str | int | bool) -> Obj:
    """A version is written `v1.2.3`."""
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    return {"version": value[1:]} if value[:1] == "v" and value[1:2].isdigit() else {"string": value}


def gpu(name: str, *, memory: str | None = None, taints: Sequence[Obj] = (), **attributes: str | int | bool) -> Obj:
    """A device of type `gpu`."""
    device: Obj = {
        "name": name,
        "attributes": {key: attribute(value) for key, value in ({"type": "gpu"} | attributes).items()},
    }
    if memory is not None:
        device["capacity"] = {"memory": {"value": memory}}
    if taints:
        device["taints"] = list(taints)
    return device


def published(
    *devices: Obj,
    name: str = "slice-0",
    node: str | None = "node-1",
    driver: str = DRIVER,
    pool: str | None = None,
    generation: int = 1,
    count: int = 1,
    **spec: Any,
) -> PublishedSlice:
    """A slice. `node` None leaves the node selection to `spec`."""
    selection = {"nodeName": node} if node is not None else {}
    pool_name = pool or node or "shared"
    return PublishedSlice(
        ResourceSlice.of(
            {
                "metadata": {"name": name},
                "spec": {
                    "driver": driver,
                    "pool": {"name": pool_name, "generation": generation, "resourceSliceCount": count},
                    "devices": list(devices),
                    **selection,
                    **spec,
                },
            }
        )
    )


def gpus(*names: str) -> PublishedSlice:
    """A slice of plain devices of node-1."""
    return published(*(gpu(name) for name in names))


def device_class(name: str = "gpu", *expressions: str, config: Sequence[Obj] = (), **spec: Any) -> DeviceClass:
    """A class; without expressions it is every device of type `gpu`."""
    selectors = expressions or (f"device.attributes['{DRIVER}'].type == 'gpu'",)
    return DeviceClass.of(
        {
            "metadata": {"name": name},
            "spec": {"selectors": [cel(expression) for expression in selectors], "config": list(config), **spec},
        }
    )


def cel(expression: str) -> Obj:
    return {"cel": {"expression": expression}}


def with_names(slices: Iterable[PublishedSlice]) -> list[PublishedSlice]:
    """The same, where each device has its name as an attribute, for selectors that it alone matches."""
    results = []
    for slice_ in slices:
        obj = slice_.slice.to_wire()
        for device in obj["spec"].get("devices", ()):
            device["attributes"]["name"] = {"string": device["name"]}
        results.append(PublishedSlice(ResourceSlice.of(obj)))
    return results


def snapshot(
    *slices: PublishedSlice,
    classes: Sequence[DeviceClass] | None = None,
    in_use: Sequence[str] = (),
    held: Sequence[Allocation] = (),
    taint_rules: Sequence[DeviceTaintRule] = (),
    behavior: Behavior = CURRENT,
) -> Snapshot:
    """`in_use` are whole devices of node-1's pool; `held` are allocations."""
    known = classes if classes is not None else [device_class()]
    return Snapshot(
        Catalog(slices, behavior),
        {device_class_.metadata.name: device_class_ for device_class_ in known},
        Usage({(DRIVER, "node-1"): PoolUsage(frozenset(in_use))}).plus(*held),
        taint_rules,
    )


def held(device: str, *, pool: str = "node-1", admin: bool = False, **capacity: str) -> Allocation:
    """What a claim has: a whole device, or, when capacity is given, a share of it."""
    result: Obj = {"request": "gpu", "driver": DRIVER, "pool": pool, "device": device}
    if capacity:
        result |= {"shareID": "a671734a-e8e5-11e4-8fde-42010af09327", "consumedCapacity": capacity}
    if admin:
        result["adminAccess"] = True
    return Allocation.of({"devices": {"results": [result]}})


def exactly(name: str = "gpu", *expressions: str, class_name: str = "gpu", **fields: Any) -> Obj:
    """A request."""
    return {"name": name, "exactly": _wanted(class_name, expressions, fields)}


def first_of(name: str, *alternatives: Obj) -> Obj:
    """A request with alternatives."""
    return {"name": name, "firstAvailable": list(alternatives)}


def alternative(name: str, *expressions: str, class_name: str = "gpu", **fields: Any) -> Obj:
    return {"name": name, **_wanted(class_name, expressions, fields)}


def _wanted(class_name: str, expressions: Sequence[str], fields: Obj) -> Obj:
    return {"deviceClassName": class_name, "selectors": [cel(expression) for expression in expressions], **fields}


def claim(*requests: Obj, name: str = "claim", **devices: Any) -> ResourceClaim:
    return ResourceClaim.of(
        {
            "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
            "spec": {"devices": {"requests": list(requests) or [exactly()], **devices}},
        }
    )
