"""Types that are served in several shapes and stored in one: resource.k8s.io/v1beta1, and the two kinds of events.

`inward` converts a client's object to the stored form, `outward` a stored object to the form that a client requests.
Callers set version and kind.
"""

from collections.abc import Callable, Iterator, Mapping

from dra_driver.api.meta import JsonObject

type _Change = Callable[[JsonObject], JsonObject]

_BETA = "resource.k8s.io/v1beta1"
_EVENTS = "events.k8s.io/v1"
_EXACT_FIELDS = (
    "deviceClassName",
    "selectors",
    "allocationMode",
    "count",
    "adminAccess",
    "tolerations",
    "capacity",
)
_EVENT_NAMES: Mapping[str, str] = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}


def inward(obj: JsonObject, api_version: str) -> JsonObject:
    """From a served shape to the stored one. The result may share parts with `obj`."""
    if api_version == _EVENTS:
        return {_EVENT_NAMES.get(name, name): value for name, value in obj.items()}
    return _at_spec(obj, _fold_device, _fold_request) if api_version == _BETA else obj


def outward(obj: JsonObject, api_version: str) -> JsonObject:
    """From the stored shape to a served one. `obj` is not changed."""
    if api_version == _EVENTS:
        names = {stored: served for served, stored in _EVENT_NAMES.items()}
        return {names.get(name, name): value for name, value in obj.items()}
    return _at_spec(obj, _unfold_device, _unfold_request) if api_version == _BETA else obj


def _at_spec(obj: JsonObject, device: _Change, request: _Change) -> JsonObject:
    if not isinstance(spec := obj.get("spec"), dict):
        return obj
    if obj.get("kind") == "ResourceSlice" and spec.get("devices"):
        return {**obj, "spec": {**spec, "devices": [device(item) for item in spec["devices"]]}}
    if obj.get("kind") == "ResourceClaim":
        return {**obj, "spec": _in_claim(spec, request)}
    if obj.get("kind") == "ResourceClaimTemplate" and isinstance(spec.get("spec"), dict):
        return {**obj, "spec": {**spec, "spec": _in_claim(spec["spec"], request)}}
    return obj


def _in_claim(spec: JsonObject, request: _Change) -> JsonObject:
    devices = spec.get("devices") or {}
    if not devices.get("requests"):
        return spec
    return {**spec, "devices": {**devices, "requests": [request(device) for device in devices["requests"]]}}


def _fold_device(device: JsonObject) -> JsonObject:
    return {"name": device.get("name", ""), **(device.get("basic") or {})}


def _unfold_device(device: JsonObject) -> JsonObject:
    return {"name": device.get("name", ""), "basic": {key: value for key, value in device.items() if key != "name"}}


def _fold_request(request: JsonObject) -> JsonObject:
    exact = dict(_pick(request))
    rest = {name: value for name, value in request.items() if name not in _EXACT_FIELDS}
    return {**rest, "exactly": exact} if exact else rest


def _unfold_request(request: JsonObject) -> JsonObject:
    rest = {name: value for name, value in request.items() if name != "exactly"}
    return {**rest, **(request.get("exactly") or {"deviceClassName": ""})}


def _pick(request: JsonObject) -> Iterator[tuple[str, object]]:
    """The fields of an exact request; empty ones belong to a request of alternatives."""
    for name in _EXACT_FIELDS:
        if request.get(name):
            yield name, request[name]
