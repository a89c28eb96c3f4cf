"""Validation of the counters in ResourceSlices, in the form of Kubernetes 1.35 and newer and in that of 1.34."""

from collections.abc import Mapping, Sequence
from functools import partial

from dra_driver.api.meta import JsonObject
from dra_driver.apirules import dra_fields as fields
from dra_driver.apirules.metadata import dns_label
from dra_driver.apirules.status import Problem, invalid, required, too_many

_MOST = 32
"""Of a set or a use of one; before 1.35 of all sets of a slice, and of all uses of a device."""
_MOST_USED_IN_SLICE = 1024


def counter_set(value: JsonObject, path: str, most: int | None = _MOST) -> list[Problem]:
    """An item of `sharedCounters`."""
    problems = fields.required_label(value.get("name", ""), f"{path}.name")
    return problems + _counters(value.get("counters") or {}, f"{path}.counters", most)


def consumption(value: JsonObject, path: str, most: int | None = _MOST) -> list[Problem]:
    """An item of a device's `consumesCounters`."""
    problems = fields.required_label(value.get("counterSet", ""), f"{path}.counterSet")
    return problems + _counters(value.get("counters") or {}, f"{path}.counters", most)


def _counters(counters: JsonObject, path: str, most: int | None) -> list[Problem]:
    if not counters:
        return [required(path)]
    if most is not None and len(counters) > most:
        return [too_many(path, len(counters), most)]
    return [invalid(path, name, why) for name in counters if (why := dns_label(name))]


def problems_beside_devices(devices: Sequence[JsonObject], sets: Sequence[JsonObject]) -> list[Problem]:
    """Kubernetes 1.34: counter sets lie in the slice of the devices that use them, and limits are sums."""
    known = {one.get("name", ""): one.get("counters") or {} for one in sets}
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
    return sum(len(one.get("counters") or ()) for one in sets)


def _uses(uses: Sequence[JsonObject], path: str, known: Mapping[str, JsonObject]) -> list[Problem]:
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
