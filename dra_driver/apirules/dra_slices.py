"""Validation of ResourceSlices with their counter sets, and of DeviceTaintRules."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dra_driver.api.meta import JsonObject
from dra_driver.apirules import dra_fields as fields
from dra_driver.apirules.metadata import dns_label, dns_subdomain
from dra_driver.apirules.status import FieldProblem, forbidden, invalid, required, too_long, too_many
from dra_driver.quantity import Quantity

_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-(0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)(\.(0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*))*)?"
    r"(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
)
_SCALARS = ("bool", "int", "string", "version")
_LISTS = ("bools", "ints", "strings", "versions")
_SELECTIONS = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_ONE_SELECTION = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
_ONE_OF_DEVICE = (
    "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true "
    "in the ResourceSlice spec"
)


@dataclass(frozen=True, slots=True)
class SliceLimits:
    """The limits that changed between minor versions; None is no limit."""

    devices: int = 128
    advanced_devices: int = 64
    taints: int = 16
    attribute_values: int | None = 48
    counters_apart: bool = True
    """Whether devices and shared counters exclude each other in one slice; if not, devices use counter sets of their
    slice."""
    effects: tuple[str, ...] = fields.TAINT_EFFECTS

    @classmethod
    def of(cls, minor: int) -> "SliceLimits":
        if minor >= 36:
            return cls()
        if minor == 35:
            return cls(attribute_values=None)
        effects = ("NoExecute", "NoSchedule")
        return cls(advanced_devices=128, taints=4, attribute_values=None, counters_apart=False, effects=effects)


def problems_of_slice(spec: JsonObject, old: JsonObject | None, limits: SliceLimits) -> list[FieldProblem]:
    """`old` is the spec before an update."""
    problems = fields.driver_name(spec.get("driver", ""), "spec.driver") + _pool(spec.get("pool", {}))
    if old is not None:
        problems += _immutable(spec, old)
    problems += _selection(spec)
    devices, counters = spec.get("devices"), spec.get("sharedCounters")
    if limits.counters_apart and devices is not None and counters is not None:
        problems.append(invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed"))
    before = {item["name"]: item for item in (old or {}).get("devices") or ()}
    per_device = spec.get("perDeviceNodeSelection") is True
    most = limits.advanced_devices if _is_advanced(devices or ()) else limits.devices
    device = partial(_device, before=before, per_device=per_device, limits=limits)
    problems += fields.unique_list(devices, most, "spec.devices", device, "name")
    if not limits.counters_apart:
        return problems + problems_beside_devices(devices or [], counters or [])
    problems += fields.unique_list(counters, 8, "spec.sharedCounters", counter_set, "name")
    return problems


def problems_of_taint_rule(spec: JsonObject, old: JsonObject | None) -> list[FieldProblem]:
    """`old` is the spec before an update: an effect of a newer server may stay."""
    selector, problems = spec.get("deviceSelector") or {}, []
    if "driver" in selector:
        problems += fields.driver_name(selector["driver"], "spec.deviceSelector.driver")
    if "pool" in selector:
        problems += fields.pool_name(selector["pool"], "spec.deviceSelector.pool")
    if "device" in selector:
        problems += fields.label(selector["device"], "spec.deviceSelector.device")
    taint = spec.get("taint") or {}
    same_effect = old is not None and (old.get("taint") or {}).get("effect") == taint.get("effect")
    return problems + [
        problem
        for problem in fields.taint(taint, "spec.taint")
        if not (same_effect and problem.field == "spec.taint.effect")
    ]


def _pool(pool: JsonObject) -> list[FieldProblem]:
    problems = fields.pool_name(pool.get("name", ""), "spec.pool.name")
    count, generation = pool.get("resourceSliceCount", 0), pool.get("generation", 0)
    if count <= 0:
        problems.append(invalid("spec.pool.resourceSliceCount", count, "must be greater than zero"))
    if generation < 0:
        problems.append(invalid("spec.pool.generation", generation, "must be greater than or equal to zero"))
    return problems


def _immutable(spec: JsonObject, old: JsonObject) -> list[FieldProblem]:
    pairs = (
        ("spec.pool.name", spec.get("pool", {}).get("name"), old.get("pool", {}).get("name")),
        ("spec.driver", spec.get("driver"), old.get("driver")),
        ("spec.nodeName", spec.get("nodeName"), old.get("nodeName")),
    )
    return [invalid(path, new, "field is immutable") for path, new, before in pairs if new != before]


def _selection(spec: JsonObject) -> list[FieldProblem]:
    problems, given = _node_fields(spec, "spec", _SELECTIONS, "must be either unset or set to a non-empty string")
    selector = spec.get("nodeSelector")
    if selector is not None and len(selector.get("nodeSelectorTerms") or ()) != 1:
        path = "spec.nodeSelector.nodeSelectorTerms"
        problems.append(invalid(path, selector.get("nodeSelectorTerms"), "must have exactly one node selector term"))
    if not given:
        problems.append(required("spec", _ONE_SELECTION))
    elif len(given) > 1:
        problems.append(invalid("spec", f"{{{', '.join(given)}}}", f"{_ONE_SELECTION}, but multiple fields are set"))
    return problems


def _node_fields(
    value: JsonObject, path: str, names: Iterable[str], empty_name: str
) -> tuple[list[FieldProblem], list[str]]:
    """Problems of the single fields, and the fields that are properly set."""
    problems: list[FieldProblem] = []
    given = []
    for name in names:
        item = value.get(name)
        if item is None:
            continue
        if item is False:
            problems.append(invalid(f"{path}.{name}", False, "must be either unset or set to true"))
            continue
        if item == "":
            problems.append(invalid(f"{path}.{name}", "", empty_name))
            continue
        given.append(f"`{name}`")
        if name == "nodeName" and (why := dns_subdomain(item)):
            problems.append(invalid(f"{path}.{name}", item, why))
        if name == "nodeSelector":
            problems += fields.node_selector(item, f"{path}.{name}")
    return problems, given


def _is_advanced(devices: Iterable[JsonObject]) -> bool:
    return any(
        device.get("taints")
        or device.get("consumesCounters")
        or any(name in attribute for attribute in (device.get("attributes") or {}).values() for name in _LISTS)
        for device in devices
    )


def _device(
    device: JsonObject, path: str, before: Mapping[str, JsonObject], per_device: bool, limits: SliceLimits
) -> list[FieldProblem]:
    old = before.get(device["name"])
    problems = fields.label(device["name"], f"{path}.name")
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    if len(attributes) + len(capacity) > 32:
        why = "the total number of attributes and capacities must not exceed 32"
        problems.append(invalid(path, len(attributes) + len(capacity), why))
    values = sum(max(1, sum(len(lists.get(name) or ()) for name in _LISTS)) for lists in attributes.values())
    if limits.attribute_values is not None and values > limits.attribute_values:
        why = f"the total number of attribute values must not exceed {limits.attribute_values}"
        problems.append(invalid(path, values, why))
    for name, attribute in attributes.items():
        problems += fields.key_of_map(name, f"{path}.attributes")
        problems += _attribute(attribute, f"{path}.attributes[{name}]")
    shared = device.get("allowMultipleAllocations") is True
    for name, item in capacity.items():
        problems += fields.key_of_map(name, f"{path}.capacity")
        problems += _capacity(item, f"{path}.capacity[{name}]", shared)
    if old is None or old.get("taints") != device.get("taints"):
        problems += fields.listed(
            device.get("taints"), limits.taints, f"{path}.taints", partial(fields.taint, effects=limits.effects)
        )
    if limits.counters_apart:
        used, where = device.get("consumesCounters"), f"{path}.consumesCounters"
        problems += fields.unique_list(used, 2, where, consumption, "counterSet")
    return problems + _device_selection(device, path, per_device) + fields.binding_conditions(device, path)


def _device_selection(device: JsonObject, path: str, per_device: bool) -> list[FieldProblem]:
    names = ("nodeName", "nodeSelector", "allNodes")
    if not per_device:
        if any(device.get(name) is not None for name in names):
            why = (
                "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true "
                "in the ResourceSlice spec"
            )
            return [invalid(path, None, why)]
        return []
    problems, given = _node_fields(device, path, names, "must not be empty")
    if not given:
        problems.append(required(path, _ONE_OF_DEVICE))
    elif len(given) > 1:
        problems.append(invalid(path, f"{{{', '.join(given)}}}", _ONE_OF_DEVICE))
    return problems


def _attribute(attribute: JsonObject, path: str) -> list[FieldProblem]:
    problems: list[FieldProblem] = []
    if "string" in attribute:
        problems += _string(attribute["string"], f"{path}.string")
    if "version" in attribute:
        problems += _version(attribute["version"], f"{path}.version")
    for index, item in enumerate(attribute.get("strings") or ()):
        problems += _string(item, f"{path}.strings[{index}]")
    for index, item in enumerate(attribute.get("versions") or ()):
        problems += _version(item, f"{path}.versions[{index}]")
    given = [name for name in (*_SCALARS, *_LISTS) if attribute.get(name) is not None]
    if len(given) != 1:
        why = "exactly one value must be specified"
        older = None if given else (35, required(path, why))
        problems.append(replace(invalid(path, attribute if given else "", why), older=older))
    return problems


def _string(value: str, path: str) -> list[FieldProblem]:
    return [too_long(path, 64)] if len(value.encode()) > 64 else []


def _version(value: str, path: str) -> list[FieldProblem]:
    problems = _string(value, path)
    if _SEMVER.fullmatch(value) is None:
        problems.insert(0, invalid(path, value, "must be a string compatible with semver.org spec 2.0.0"))
    return problems


def _capacity(capacity: JsonObject, path: str, shared: bool) -> list[FieldProblem]:
    policy = capacity.get("requestPolicy")
    if policy is None:
        return []
    where = f"{path}.requestPolicy"
    if not shared:
        return [forbidden(where, "allowMultipleAllocations must be true")]
    values, span, default = policy.get("validValues") or [], policy.get("validRange"), policy.get("default")
    if values and span is not None:
        why = 'exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time'
        return [forbidden(where, why)]
    if default is None and (values or span is not None):
        named = "validValues" if values else "validRange"
        return [required(f"{where}.default", f"required when {named} is defined")]
    if values:
        return _valid_values(values, default, capacity["value"], f"{where}.validValues")
    return [] if span is None else _valid_range(span, default, capacity["value"], f"{where}.validRange")


def _valid_values(values: list[str], default: str, whole: str, path: str) -> list[FieldProblem]:
    if len(values) > 10:
        return [too_many(path, len(values), 10)]
    numbers = [Quantity.parse(value) for value in values]
    problems = [
        invalid(f"{path}[{index + 1}]", values[index + 1], "values must be sorted in ascending order")
        for index in range(len(values) - 1)
        if numbers[index] > numbers[index + 1]
    ]
    for index, number in enumerate(numbers):
        if number > Quantity.parse(whole):
            why = f"option is larger than capacity value: {whole}"
            problems.append(invalid(f"{path}[{index}]", values[index], why))
    problems += fields.repeated([quantity.value for quantity in numbers], path)
    if Quantity.parse(default) not in numbers:
        problems.append(invalid(path, default, "default value is not valid according to the requestPolicy"))
    return problems


def _valid_range(span: JsonObject, default: str, whole: str, path: str) -> list[FieldProblem]:
    low, high, step = span.get("min"), span.get("max"), span.get("step")
    if low is None:
        return [required(f"{path}.min", "required when validRange is defined")]
    problems = []

    def order(field: str, small: str, large: str, why: str) -> None:
        if Quantity.parse(small) > Quantity.parse(large):
            problems.append(invalid(f"{path}.{field}", small, f"{why}: {large}"))

    order("min", low, whole, "min is larger than capacity value")
    if Quantity.parse(default) < Quantity.parse(low):
        problems.append(invalid(f"{path}.min", default, f"default is less than min: {low}"))
    if high is not None:
        order("max", low, high, "min is larger than max")
        order("max", high, whole, "max is larger than capacity value")
        order("max", default, high, "default is more than max")
    if step is not None:
        problems += _steps(span, default, whole, path)
    return problems


def _steps(span: JsonObject, default: str, whole: str, path: str) -> list[FieldProblem]:
    low, step = Quantity.parse(span["min"]).value, Quantity.parse(span["step"]).value
    if step <= 0:
        return [invalid(f"{path}.step", span["step"], "must be greater than zero")]
    problems = []
    if low + step > Quantity.parse(whole).value:
        why = f"one step is larger than capacity value: {whole}"
        problems.append(invalid(f"{path}.step", span["step"], why))
    for value in (default, span.get("max")):
        if value is not None and (Quantity.parse(value).value - low) % step != 0:
            why = f"value is not a multiple of a given step ({span['step']}) from ({span['min']})"
            problems.append(invalid(f"{path}.step", value, why))
    return problems


_MOST = 32
"""Of a set or a use of one; before 1.35 of all sets of a slice, and of all uses of a device."""
_MOST_USED_IN_SLICE = 1024


def counter_set(value: JsonObject, path: str, most: int | None = _MOST) -> list[FieldProblem]:
    """An item of `sharedCounters`."""
    problems = fields.required_label(value.get("name", ""), f"{path}.name")
    return problems + _counters(value.get("counters") or {}, f"{path}.counters", most)


def consumption(value: JsonObject, path: str, most: int | None = _MOST) -> list[FieldProblem]:
    """An item of a device's `consumesCounters`."""
    problems = fields.required_label(value.get("counterSet", ""), f"{path}.counterSet")
    return problems + _counters(value.get("counters") or {}, f"{path}.counters", most)


def _counters(counters: JsonObject, path: str, most: int | None) -> list[FieldProblem]:
    if not counters:
        return [required(path)]
    if most is not None and len(counters) > most:
        return [too_many(path, len(counters), most)]
    return [invalid(path, name, why) for name in counters if (why := dns_label(name))]


def problems_beside_devices(devices: Sequence[JsonObject], sets: Sequence[JsonObject]) -> list[FieldProblem]:
    """Kubernetes 1.34: counter sets lie in the slice of the devices that use them, and limits are sums."""
    known = {set_.get("name", ""): set_.get("counters") or {} for set_ in sets}
    problems = []
    for index, device in enumerate(devices):
        problems += _uses(device.get("consumesCounters") or [], f"spec.devices[{index}]", known)
    used = sum(_total(device.get("consumesCounters") or ()) for device in devices)
    if used > _MOST_USED_IN_SLICE:
        why = f"the total number of counters in devices must not exceed {_MOST_USED_IN_SLICE}"
        problems.append(invalid("spec.devices", used, why))
    if (total := _total(sets)) > _MOST:
        why = f"the total number of shared counters must not exceed {_MOST}"
        problems.append(invalid("spec.sharedCounters", total, why))
    check = partial(counter_set, most=None)
    return problems + fields.unique_list(sets, None, "spec.sharedCounters", check, "name")


def _total(sets: Sequence[JsonObject]) -> int:
    return sum(len(set_.get("counters") or ()) for set_ in sets)


def _uses(uses: Sequence[JsonObject], path: str, known: Mapping[str, JsonObject]) -> list[FieldProblem]:
    where = f"{path}.consumesCounters"
    problems = fields.unique_list(uses, None, where, partial(consumption, most=None), "counterSet")
    if (total := _total(uses)) > _MOST:
        problems.append(invalid(path, total, f"the total number of counters must not exceed {_MOST}"))
    for index, use in enumerate(uses):
        name = use.get("counterSet", "")
        if name not in known:
            why = "must reference a counterSet defined in the ResourceSlice sharedCounters"
            problems.append(invalid(f"{where}[{index}].counterSet", name, why))
            continue
        why = "must reference a counter defined in the ResourceSlice sharedCounters"
        unknown = [counter for counter in use.get("counters") or () if counter not in known[name]]
        problems += [invalid(f"{where}[{index}].counters", counter, why) for counter in unknown]
    return problems
