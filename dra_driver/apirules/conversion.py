"""Objects of resource.k8s.io/v1beta1 in the form of v1: fields of devices and of exact requests lie elsewhere there."""

from dra_driver.api.meta import JsonObject

_EXACT_FIELDS = (
    "deviceClassName",
    "selectors",
    "allocationMode",
    "count",
    "adminAccess",
    "tolerations",
    "capacity",
)


def as_v1(obj: JsonObject) -> JsonObject:
    """The object as it is if it is no object of v1beta1. May share parts with `obj`; version and kind stay."""
    if obj.get("apiVersion") != "resource.k8s.io/v1beta1" or not isinstance(spec := obj.get("spec"), dict):
        return obj
    if obj.get("kind") == "ResourceSlice" and spec.get("devices"):
        return {**obj, "spec": {**spec, "devices": [_device(item) for item in spec["devices"]]}}
    if obj.get("kind") == "ResourceClaim":
        return {**obj, "spec": _claim_spec(spec)}
    if obj.get("kind") == "ResourceClaimTemplate" and isinstance(spec.get("spec"), dict):
        return {**obj, "spec": {**spec, "spec": _claim_spec(spec["spec"])}}
    return obj


def _claim_spec(spec: JsonObject) -> JsonObject:
    devices = spec.get("devices") or {}
    if not devices.get("requests"):
        return spec
    return {**spec, "devices": {**devices, "requests": [_request(request) for request in devices["requests"]]}}


def _device(device: JsonObject) -> JsonObject:
    return {"name": device.get("name", ""), **(device.get("basic") or {})}


def _request(request: JsonObject) -> JsonObject:
    """Empty fields of an exact request belong to a request of alternatives."""
    exact = {name: request[name] for name in _EXACT_FIELDS if request.get(name)}
    rest = {name: value for name, value in request.items() if name not in _EXACT_FIELDS}
    return {**rest, "exactly": exact} if exact else rest
