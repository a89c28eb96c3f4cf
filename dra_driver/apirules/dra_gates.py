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

_REQUESTS = ("requests[].exactly", "requests[].firstAvailable[]")


def _of_claims(devices: str) -> _GatedFields:
    """Of what has claims' requests and constraints at the path `devices`."""

    def of_requests(name: str) -> dict[str, str]:
        return {f"{devices}.{request}": name for request in _REQUESTS}

    return {
        "DRAPrioritizedList": {f"{devices}.requests[]": "firstAvailable"},
        "DRAAdminAccess": of_requests("adminAccess"),
        "DRAConsumableCapacity": of_requests("capacity") | {f"{devices}.constraints[]": "distinctAttribute"},
        "DRADeviceTaints": of_requests("tolerations"),
    }


_KEPT_BEFORE_35 = ("distinctAttribute", "tolerations")
"""Of claims: Kubernetes 1.34 keeps these with any gates."""

_SPECS: Mapping[str, _GatedFields] = {
    "ResourceSlice": {
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
    },
    "ResourceClaim": _of_claims("spec.devices"),
    "ResourceClaimTemplate": _of_claims("spec.spec.devices"),
    "DeviceClass": {"DRAExtendedResource": {"spec": "extendedResourceName"}},
}
_RESULTS = "status.allocation.devices.results[]"
_STATUSES: Mapping[str, _GatedFields] = {
    "ResourceClaim": {
        "DRAResourceClaimDeviceStatus": {"status": "devices"},
        "DRAAdminAccess": {_RESULTS: "adminAccess"},
        "DRAConsumableCapacity": {_RESULTS: "shareID consumedCapacity", "status.devices[]": "shareID"},
        "DRADeviceBindingConditions": {_RESULTS: "bindingConditions bindingFailureConditions"},
    },
    "Pod": {
        "DRAExtendedResource": {"status": "extendedResourceClaimStatus"},
        "ResourceHealthStatus": {
            "status.containerStatuses[]": "allocatedResourcesStatus",
            "status.initContainerStatuses[]": "allocatedResourcesStatus",
            "status.ephemeralContainerStatuses[]": "allocatedResourcesStatus",
        },
    },
}


def drop_disabled(obj: JsonObject, old: JsonObject | None, gates: FeatureGates, *, status: bool = False) -> None:
    """From the spec of a slice, claim, template or class; with `status`, from the status of a claim or pod."""
    for names, covered in (_STATUSES if status else _SPECS).get(obj.get("kind", ""), {}).items():
        if all(map(gates.enabled, names.split())) or (old is not None and _in_use(covered, old)):
            continue
        for part, name in _places(covered, obj):
            if gates.minor >= 35 or name not in _KEPT_BEFORE_35:
                part.pop(name, None)


def as_kept(obj: JsonObject, minor: int) -> JsonObject:
    """The parts of a new claim, template, class or slice that a server 1.`minor` with its default gates keeps."""
    parts = deepcopy(obj)
    drop_disabled(parts, None, FeatureGates(minor))
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
