"""Fields whose feature gate is off: the server drops them silently, unless the stored object already has them.

Source: DRA's per-feature rules for disabled fields (kubernetes-dra.md, "What happens when a gate is off").
"""

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from typing import Any

from dra_driver.api.meta import JsonObject
from dra_driver.kubernetes import FeatureGates

type _Places = Callable[[JsonObject], Iterable[tuple[JsonObject, tuple[str, ...]]]]
"""The parts of an object that a gate covers: each with the names of its gated fields."""

_LISTS = ("bools", "ints", "strings", "versions")


def _devices(slice_: JsonObject) -> Iterator[JsonObject]:
    yield from slice_.get("spec", {}).get("devices") or ()


def _requests(spec: JsonObject) -> Iterator[JsonObject]:
    """Exact requests and alternatives."""
    for request in (spec.get("devices") or {}).get("requests") or ():
        if request.get("exactly") is not None:
            yield request["exactly"]
        yield from request.get("firstAvailable") or ()


def _each_device(*names: str) -> _Places:
    return lambda slice_: ((device, names) for device in _devices(slice_))


def _partitionable(slice_: JsonObject) -> Iterator[tuple[JsonObject, tuple[str, ...]]]:
    yield slice_.get("spec", {}), ("sharedCounters", "perDeviceNodeSelection")
    for device in _devices(slice_):
        yield device, ("consumesCounters", "nodeName", "nodeSelector", "allNodes")


def _consumable(slice_: JsonObject) -> Iterator[tuple[JsonObject, tuple[str, ...]]]:
    for device in _devices(slice_):
        yield device, ("allowMultipleAllocations",)
        for capacity in (device.get("capacity") or {}).values():
            yield capacity, ("requestPolicy",)


def _list_attributes(slice_: JsonObject) -> Iterator[tuple[JsonObject, tuple[str, ...]]]:
    for device in _devices(slice_):
        for attribute in (device.get("attributes") or {}).values():
            yield attribute, _LISTS


_SLICE_GATES: tuple[tuple[tuple[str, ...], _Places], ...] = (
    (("DRADeviceTaints",), _each_device("taints")),
    (("DRAPartitionableDevices",), _partitionable),
    (
        ("DRADeviceBindingConditions", "DRAResourceClaimDeviceStatus"),
        _each_device("bindsToNode", "bindingConditions", "bindingFailureConditions"),
    ),
    (("DRAConsumableCapacity",), _consumable),
    (("DRANodeAllocatableResources",), _each_device("nodeAllocatableResourceMappings")),
    (("DRAListTypeAttributes",), _list_attributes),
)


def _prioritized(spec: JsonObject) -> Iterator[tuple[JsonObject, tuple[str, ...]]]:
    for request in (spec.get("devices") or {}).get("requests") or ():
        yield request, ("firstAvailable",)


def _consumable_claim(spec: JsonObject) -> Iterator[tuple[JsonObject, tuple[str, ...]]]:
    for constraint in (spec.get("devices") or {}).get("constraints") or ():
        yield constraint, ("distinctAttribute",)
    for request in _requests(spec):
        yield request, ("capacity",)


def _each_request(*names: str) -> _Places:
    return lambda spec: ((request, names) for request in _requests(spec))


_CLAIM_GATES: tuple[tuple[tuple[str, ...], _Places], ...] = (
    (("DRAPrioritizedList",), _prioritized),
    (("DRAAdminAccess",), _each_request("adminAccess")),
    (("DRADeviceTaints",), _each_request("tolerations")),
    (("DRAConsumableCapacity",), _consumable_claim),
)
_CLAIM_GATES_34: tuple[tuple[tuple[str, ...], _Places], ...] = (
    *_CLAIM_GATES[:2],
    (("DRAConsumableCapacity",), _each_request("capacity")),
)
"""Kubernetes 1.34 keeps tolerations and `distinctAttribute` with any gates."""


def _results(status: JsonObject) -> Iterator[JsonObject]:
    yield from ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()


def _shared_results(status: JsonObject) -> Iterator[tuple[JsonObject, tuple[str, ...]]]:
    for result in _results(status):
        yield result, ("shareID", "consumedCapacity")
    for device in status.get("devices") or ():
        yield device, ("shareID",)


_STATUS_GATES: tuple[tuple[tuple[str, ...], _Places], ...] = (
    (("DRAResourceClaimDeviceStatus",), lambda status: [(status, ("devices",))]),
    (("DRAAdminAccess",), lambda status: ((result, ("adminAccess",)) for result in _results(status))),
    (("DRAConsumableCapacity",), _shared_results),
    (
        ("DRADeviceBindingConditions",),
        lambda status: ((result, ("bindingConditions", "bindingFailureConditions")) for result in _results(status)),
    ),
)


def _container_statuses(status: JsonObject) -> Iterator[JsonObject]:
    for kind in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"):
        yield from status.get(kind) or ()


_POD_STATUS_GATES: tuple[tuple[tuple[str, ...], _Places], ...] = (
    (("DRAExtendedResource",), lambda status: [(status, ("extendedResourceClaimStatus",))]),
    (
        ("ResourceHealthStatus",),
        lambda status: (
            (container_status, ("allocatedResourcesStatus",)) for container_status in _container_statuses(status)
        ),
    ),
)


def drop_from_slice(obj: JsonObject, old: JsonObject | None, gates: FeatureGates) -> None:
    """ResourceSlice."""
    _drop(_SLICE_GATES, obj, old, gates)


def drop_from_claim_spec(spec: JsonObject, old: JsonObject | None, gates: FeatureGates) -> None:
    """The spec of a claim or of a template's claim."""
    _drop(_CLAIM_GATES if gates.minor >= 35 else _CLAIM_GATES_34, spec, old, gates)


def drop_from_status(status: JsonObject, old: JsonObject, gates: FeatureGates) -> None:
    """The status of a claim."""
    _drop(_STATUS_GATES, status, old, gates)


def drop_from_pod_status(status: JsonObject, old: JsonObject, gates: FeatureGates) -> None:
    """The status of a pod."""
    _drop(_POD_STATUS_GATES, status, old, gates)


def drop_from_class(spec: JsonObject, old: JsonObject | None, gates: FeatureGates) -> None:
    """DeviceClass."""
    _drop(
        ((("DRAExtendedResource",), lambda value: [(value, ("extendedResourceName",))]),),
        spec,
        old,
        gates,
    )


def as_kept(obj: JsonObject, minor: int) -> JsonObject:
    """The parts of a new claim, template, class or slice that a server 1.`minor` with its default gates keeps."""
    parts, gates = deepcopy(obj), FeatureGates(minor)
    match obj.get("kind"):
        case "ResourceClaim":
            drop_from_claim_spec(parts["spec"], None, gates)
        case "ResourceClaimTemplate":
            drop_from_claim_spec(parts["spec"]["spec"], None, gates)
        case "DeviceClass":
            drop_from_class(parts["spec"], None, gates)
        case "ResourceSlice":
            drop_from_slice(parts, None, gates)
    return parts


def dropped_fields(obj: JsonObject, minor: int) -> list[str]:
    """Names of the fields that `as_kept` drops, and of those that 1.34 keeps but ignores."""
    return sorted(set(_names(obj)) - set(_names(as_kept(obj, max(minor, 35)))))


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield name
            yield from _names(item)
    elif isinstance(value, list):
        for item in value:
            yield from _names(item)


def _drop(
    table: Iterable[tuple[tuple[str, ...], _Places]], obj: JsonObject, old: JsonObject | None, gates: FeatureGates
) -> None:
    for names, places in table:
        if all(gates.enabled(name) for name in names) or (old is not None and _in_use(places, old)):
            continue
        for value, fields in places(obj):
            for name in fields:
                value.pop(name, None)


def _in_use(places: _Places, obj: JsonObject) -> bool:
    return any(value.get(name) not in (None, []) for value, fields in places(obj) for name in fields)
