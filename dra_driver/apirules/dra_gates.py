"""Fields whose feature gate is off: the server drops them silently, unless the stored object already has them.

Source: DRA's per-feature rules for disabled fields (kubernetes-dra.md, "What happens when a gate is off").
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from itertools import chain, product
from typing import Any

from dra_driver.api.meta import JsonObject
from dra_driver.kubernetes import FeatureGates

type _GatedFields = Mapping[str, Mapping[str, str]]
"""By gate, or several that must all be on: the fields that it covers, by the path of the parts that have them. `[]` is
each item of a list, `{}` each value of a map."""

_EXACT, _ALTERNATIVES = "devices.requests[].exactly", "devices.requests[].firstAvailable[]"

_OF_SLICES: _GatedFields = {
    "DRADeviceTaints": {"spec.devices[]": "taints"},
    "DRAPartitionableDevices": {
        "spec": "sharedCounters perDeviceNodeSelection",
        "spec.devices[]": "consumesCounters nodeName nodeSelector allNodes",
    },
    "DRADeviceBindingConditions DRAResourceClaimDeviceStatus": {
        "spec.devices[]": "bindsToNode bindingConditions bindingFailureConditions"
    },
    "DRAConsumableCapacity": {
        "spec.devices[]": "allowMultipleAllocations",
        "spec.devices[].capacity{}": "requestPolicy",
    },
    "DRANodeAllocatableResources": {"spec.devices[]": "nodeAllocatableResourceMappings"},
    "DRAListTypeAttributes": {"spec.devices[].attributes{}": "bools ints strings versions"},
}
_OF_CLAIM_SPECS_34: _GatedFields = {
    "DRAPrioritizedList": {"devices.requests[]": "firstAvailable"},
    "DRAAdminAccess": {_EXACT: "adminAccess", _ALTERNATIVES: "adminAccess"},
    "DRAConsumableCapacity": {_EXACT: "capacity", _ALTERNATIVES: "capacity"},
}
"""Kubernetes 1.34 keeps tolerations and `distinctAttribute` with any gates."""
_OF_CLAIM_SPECS: _GatedFields = {
    **_OF_CLAIM_SPECS_34,
    "DRADeviceTaints": {_EXACT: "tolerations", _ALTERNATIVES: "tolerations"},
    "DRAConsumableCapacity": {
        **_OF_CLAIM_SPECS_34["DRAConsumableCapacity"],
        "devices.constraints[]": "distinctAttribute",
    },
}
_OF_CLAIM_STATUSES: _GatedFields = {
    "DRAResourceClaimDeviceStatus": {"": "devices"},
    "DRAAdminAccess": {"allocation.devices.results[]": "adminAccess"},
    "DRAConsumableCapacity": {"allocation.devices.results[]": "shareID consumedCapacity", "devices[]": "shareID"},
    "DRADeviceBindingConditions": {"allocation.devices.results[]": "bindingConditions bindingFailureConditions"},
}
_OF_POD_STATUSES: _GatedFields = {
    "DRAExtendedResource": {"": "extendedResourceClaimStatus"},
    "ResourceHealthStatus": {
        "containerStatuses[]": "allocatedResourcesStatus",
        "initContainerStatuses[]": "allocatedResourcesStatus",
        "ephemeralContainerStatuses[]": "allocatedResourcesStatus",
    },
}
_OF_CLASSES: _GatedFields = {"DRAExtendedResource": {"": "extendedResourceName"}}


def drop_from_slice(obj: JsonObject, old: JsonObject | None, gates: FeatureGates) -> None:
    """ResourceSlice."""
    _drop(_OF_SLICES, obj, old, gates)


def drop_from_claim_spec(spec: JsonObject, old: JsonObject | None, gates: FeatureGates) -> None:
    """The spec of a claim or of a template's claim."""
    _drop(_OF_CLAIM_SPECS if gates.minor >= 35 else _OF_CLAIM_SPECS_34, spec, old, gates)


def drop_from_status(status: JsonObject, old: JsonObject, gates: FeatureGates) -> None:
    """The status of a claim."""
    _drop(_OF_CLAIM_STATUSES, status, old, gates)


def drop_from_pod_status(status: JsonObject, old: JsonObject, gates: FeatureGates) -> None:
    """The status of a pod."""
    _drop(_OF_POD_STATUSES, status, old, gates)


def drop_from_class(spec: JsonObject, old: JsonObject | None, gates: FeatureGates) -> None:
    """DeviceClass."""
    _drop(_OF_CLASSES, spec, old, gates)


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


def _drop(table: _GatedFields, obj: JsonObject, old: JsonObject | None, gates: FeatureGates) -> None:
    for names, covered in table.items():
        if all(map(gates.enabled, names.split())) or (old is not None and _in_use(covered, old)):
            continue
        for part, name in _places(covered, obj):
            part.pop(name, None)


def _in_use(covered: Mapping[str, str], obj: JsonObject) -> bool:
    return any(part.get(name) not in (None, []) for part, name in _places(covered, obj))


def _places(covered: Mapping[str, str], obj: JsonObject) -> Iterator[tuple[JsonObject, str]]:
    for path, fields in covered.items():
        yield from product(_parts(obj, path), fields.split())


def _parts(obj: JsonObject, path: str) -> list[JsonObject]:
    parts = [obj]
    for step in path.split(".") if path else ():
        name = step.rstrip("[]{}")
        inner = [part[name] for part in parts if part.get(name)]
        if step.endswith("{}"):
            inner = [value.values() for value in inner]
        parts = inner if step == name else list(chain.from_iterable(inner))
    return parts
