"""Validation of ResourceClaims with their status, ResourceClaimTemplates and DeviceClasses."""

import ipaddress
import re
from collections.abc import Callable, Mapping
from functools import partial

from dra_driver.api.meta import JsonObject
from dra_driver.apirules import dra_fields as fields
from dra_driver.apirules.metadata import dns_subdomain, qualified_name
from dra_driver.apirules.status import FieldProblem, forbidden, invalid, not_supported, required, too_long

type RequestNames = Mapping[str, frozenset[str]]
"""Request name to the names of its alternatives (empty for an exact request)."""

type CelCheck = Callable[[str], str | None]
"""Returns what is wrong with a device selector's expression, or None."""

_ONE_FORM = "exactly one of `exactly` or `firstAvailable` is required"
_WRONG_REFERENCE = (
    "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
)
_CEL_LIMIT_BYTES = 10 * 1024
_EXTENDED_RESOURCE = re.compile(r"[^/]+/[^/]+")


def request_names(spec: JsonObject) -> RequestNames:
    """Of a claim's spec."""
    return {
        item.get("name", ""): frozenset(sub.get("name", "") for sub in item.get("firstAvailable") or ())
        for item in (spec.get("devices") or {}).get("requests") or ()
    }


def default_claim_spec(spec: JsonObject, *, zero_is_missing: bool = True) -> None:
    """Fill in what the API server fills in before it looks. To it, a count of 0 is missing; to people it is not."""
    devices = spec.setdefault("devices", {})
    devices.setdefault("requests", None)
    for request in devices["requests"] or ():
        exactly = [request["exactly"]] if isinstance(request.get("exactly"), dict) else []
        for item in [*exactly, *(request.get("firstAvailable") or ())]:
            item.setdefault("allocationMode", "ExactCount")
            missing = not item.get("count") if zero_is_missing else "count" not in item
            if item["allocationMode"] == "ExactCount" and missing:
                item["count"] = 1
            for toleration in item.get("tolerations") or ():
                toleration.setdefault("operator", "Equal")


def problems_of_claim_spec(spec: JsonObject, path: str, cel: CelCheck, *, consumable: bool) -> list[FieldProblem]:
    """`consumable`: the gate DRAConsumableCapacity is on, so a constraint may also be about distinct values."""
    devices, names = spec.get("devices") or {}, request_names(spec)
    where = f"{path}.devices"
    constraint = partial(_constraint, names=names, consumable=consumable)
    problems = fields.unique_list(devices.get("requests"), 32, f"{where}.requests", partial(_request, cel=cel), "name")
    problems += fields.listed(devices.get("constraints"), 32, f"{where}.constraints", constraint)
    return problems + fields.listed(devices.get("config"), 32, f"{where}.config", partial(_config, names=names))


def _request(request: JsonObject, path: str, cel: CelCheck) -> list[FieldProblem]:
    problems = fields.label(request.get("name", ""), f"{path}.name")
    exactly, alternatives = request.get("exactly"), request.get("firstAvailable")
    if exactly is None and not alternatives:
        problems.append(required(path, _ONE_FORM))
    elif exactly is not None and alternatives:
        problems.append(invalid(path, None, f"{_ONE_FORM}, but multiple fields are set"))
    elif exactly is not None:
        problems += _exact(exactly, f"{path}.exactly", cel)
    else:
        alternative = partial(_alternative, cel=cel)
        problems += fields.unique_list(alternatives, 8, f"{path}.firstAvailable", alternative, "name")
    return problems


def _alternative(request: JsonObject, path: str, cel: CelCheck) -> list[FieldProblem]:
    return fields.label(request.get("name", ""), f"{path}.name") + _exact(request, path, cel)


def _exact(request: JsonObject, path: str, cel: CelCheck) -> list[FieldProblem]:
    name = request.get("deviceClassName", "")
    problems = [] if name else [required(f"{path}.deviceClassName")]
    if name and (why := dns_subdomain(name)):
        problems.append(invalid(f"{path}.deviceClassName", name, why))
    problems += _selectors(request.get("selectors"), f"{path}.selectors", cel)
    mode, count = request.get("allocationMode", ""), request.get("count", 0)
    if mode == "All" and count != 0:
        problems.append(invalid(f"{path}.count", count, "must not be specified when allocationMode is 'All'"))
    elif mode == "ExactCount" and count <= 0:
        problems.append(invalid(f"{path}.count", count, "must be greater than zero"))
    elif mode not in ("All", "ExactCount"):
        problems.append(not_supported(f"{path}.allocationMode", mode, ("All", "ExactCount")))
    return problems + fields.listed(request.get("tolerations"), None, f"{path}.tolerations", fields.toleration)


def _selectors(items: list[JsonObject] | None, path: str, cel: CelCheck) -> list[FieldProblem]:
    return fields.listed(items, 32, path, partial(_selector, cel=cel))


def _selector(selector: JsonObject, path: str, cel: CelCheck) -> list[FieldProblem]:
    if selector.get("cel") is None:
        return [required(f"{path}.cel")]
    expression, where = selector["cel"].get("expression", ""), f"{path}.cel.expression"
    if len(expression.encode()) > _CEL_LIMIT_BYTES:
        return [too_long(where, _CEL_LIMIT_BYTES)]
    why = cel(expression)
    return [invalid(where, expression, why)] if why else []


def _constraint(constraint: JsonObject, path: str, names: RequestNames, consumable: bool) -> list[FieldProblem]:
    problems = _references(constraint, path, names)
    match, distinct = constraint.get("matchAttribute"), constraint.get("distinctAttribute")
    if match is not None:
        problems += fields.full_attribute_name(match, f"{path}.matchAttribute")
    elif distinct is not None:
        problems += fields.full_attribute_name(distinct, f"{path}.distinctAttribute")
    elif consumable:
        problems.append(required(path, 'one of "matchAttribute" or "distinctAttribute" is required'))
    else:
        problems.append(required(f"{path}.matchAttribute"))
    return problems


def _config(config: JsonObject, path: str, names: RequestNames) -> list[FieldProblem]:
    return _references(config, path, names) + fields.opaque_config(config, path)


def _references(value: JsonObject, path: str, names: RequestNames) -> list[FieldProblem]:
    reference = partial(_reference, names=names)
    return fields.unique_list(value.get("requests"), 32, f"{path}.requests", reference, lambda item: item)


def _reference(name: str, path: str, names: RequestNames) -> list[FieldProblem]:
    parts = name.split("/")
    if len(parts) > 2:
        return [invalid(path, name, _WRONG_REFERENCE)]
    problems = [problem for part in parts for problem in fields.label(part, path)]
    if parts[0] not in names or (len(parts) == 2 and parts[1] not in names[parts[0]]):
        problems.append(invalid(path, name, _WRONG_REFERENCE))
    return problems


def problems_of_class_spec(spec: JsonObject, cel: CelCheck) -> list[FieldProblem]:
    """DeviceClass."""
    problems = _selectors(spec.get("selectors"), "spec.selectors", cel)
    problems += fields.listed(spec.get("config"), 32, "spec.config", fields.opaque_config)
    name = spec.get("extendedResourceName")
    if name is not None and not is_extended_resource(name):
        problems.append(invalid("spec.extendedResourceName", name, "must be a valid extended resource name"))
    return problems


def is_extended_resource(name: str) -> bool:
    """`vendor/resource` outside Kubernetes' own domain, and usable in a quota."""
    if _EXTENDED_RESOURCE.fullmatch(name) is None or name.startswith("requests."):
        return False
    native = "kubernetes.io/" in name
    return not native and qualified_name(f"requests.{name}") is None


def problems_of_status(status: JsonObject, old: JsonObject, spec: JsonObject, *, deleting: bool) -> list[FieldProblem]:
    """Checks a claim's status against the previous status and the spec."""
    allocation, before = status.get("allocation"), old.get("allocation")
    reserved = status.get("reservedFor") or []
    path = "status.reservedFor"
    problems = fields.unique_list(reserved, 256, path, _consumer, "uid")
    allocated = {_device_key(item) for item in ((allocation or {}).get("devices") or {}).get("results") or ()}
    device_status = partial(_device_status, allocated=allocated)
    problems += fields.unique_list(status.get("devices"), None, "status.devices", device_status, _device_key)
    if reserved and allocation is None:
        problems.append(forbidden(path, "may not be specified when `allocated` is not set"))
    elif deleting and any(item not in (old.get("reservedFor") or ()) for item in reserved):
        why = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
        problems.append(forbidden(path, why))
    if allocation is not None and before is not None:
        if not fields.same(allocation, before):
            problems.append(invalid("status.allocation", "<value omitted>", "field is immutable"))
    elif allocation is not None:
        problems += _allocation(allocation, request_names(spec))
    return problems


def _consumer(value: JsonObject, path: str) -> list[FieldProblem]:
    return [required(f"{path}.{name}") for name in ("resource", "name", "uid") if not value.get(name)]


def _device_key(value: JsonObject) -> tuple[str, str, str, str]:
    return value.get("driver", ""), value.get("pool", ""), value.get("device", ""), value.get("shareID", "")


def _allocation(allocation: JsonObject, names: RequestNames) -> list[FieldProblem]:
    devices, path = allocation.get("devices") or {}, "status.allocation.devices"
    problems = fields.listed(devices.get("results"), 32, f"{path}.results", partial(_result, names=names))
    problems += fields.listed(devices.get("config"), 64, f"{path}.config", partial(_allocated_config, names=names))
    selector = allocation.get("nodeSelector")
    return problems + ([] if selector is None else fields.node_selector(selector, "status.allocation.nodeSelector"))


def _named_device(value: JsonObject, path: str) -> list[FieldProblem]:
    problems = fields.driver_name(value.get("driver", ""), f"{path}.driver")
    problems += fields.pool_name(value.get("pool", ""), f"{path}.pool")
    problems += fields.label(value.get("device", ""), f"{path}.device")
    if "shareID" in value:
        problems += fields.share_id(value["shareID"], f"{path}.shareID")
    return problems


def _result(value: JsonObject, path: str, names: RequestNames) -> list[FieldProblem]:
    problems = _reference(value.get("request", ""), f"{path}.request", names)
    return problems + _named_device(value, path) + fields.binding_conditions(value, path)


def _allocated_config(value: JsonObject, path: str, names: RequestNames) -> list[FieldProblem]:
    source, problems = value.get("source", ""), []
    if not source:
        problems.append(required(f"{path}.source"))
    elif source not in ("FromClaim", "FromClass"):
        problems.append(not_supported(f"{path}.source", source, ("FromClaim", "FromClass")))
    return problems + _config(value, path, names)


def _device_status(value: JsonObject, path: str, allocated: set[tuple[str, str, str, str]]) -> list[FieldProblem]:
    problems = _named_device(value, path)
    if _device_key(value) not in allocated:
        shown = "/".join(part for part in _device_key(value) if part)
        problems.append(invalid(path, shown, "must be an allocated device in the claim"))
    problems += fields.conditions(value.get("conditions") or (), 8, f"{path}.conditions")
    if value.get("data") is not None:
        problems += fields.json_parameters(value["data"], f"{path}.data")
    network, where = value.get("networkData") or {}, f"{path}.networkData"
    for name, limit in (("interfaceName", 256), ("hardwareAddress", 128)):
        if len(network.get(name, "").encode()) > limit:
            problems.append(too_long(f"{where}.{name}", limit))
    return problems + fields.unique_list(network.get("ips"), 16, f"{where}.ips", _address, lambda item: item)


def _address(value: str, path: str) -> list[FieldProblem]:
    try:
        interface = ipaddress.ip_interface(value)
    except ValueError:
        return [invalid(path, value, "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)")]
    if "/" not in value or interface.with_prefixlen != value:
        return [invalid(path, value, f"must be in canonical form ({interface.with_prefixlen!r})")]
    return []
