"""The node labels that a device would have had, and what a pod's old node conditions say to them. Pure.

Written apart from `labels`, which makes selectors of the same labels: here the old meaning is asked of a device that
was chosen, so that a mistake there is found. What is not known of a node is neither true nor false.

Source: GPU Feature Discovery 0.20; NodeSelector of core/v1.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dra_driver.api.meta import JsonObject
from dra_driver.api.resource import Device
from dra_driver.names import GPU_DRIVER
from dra_driver.quantity import Quantity

type Labels = Mapping[str, frozenset[str]]
"""Each label with the values that it may have had, for some depend on settings of the old system."""

_FAMILIES = {"Ada Lovelace": "ada-lovelace"}
_MEMORY_TOLERANCE = 0.02
"""Between versions of the NVIDIA driver."""


def labels_of(device: Device) -> Labels:
    """Of a node all of whose GPUs are like this one."""
    attributes = {name.removeprefix(f"{GPU_DRIVER}/"): value for name, value in device.attributes.items()}

    def text(name: str) -> str | None:
        value = attributes.get(name)
        return (value.string or value.version) if value is not None else None

    found: dict[str, frozenset[str]] = {"nvidia.com/gpu.present": frozenset(("true",))}

    def put(label: str, *values: str | None) -> None:
        known = frozenset(value for value in values if value is not None)
        if known:
            found[f"nvidia.com/{label}"] = known

    put(
        "gpu.product",
        *products_of(text("productName"), text("profile"), shared=bool(device.allow_multiple_allocations)),
    )
    architecture = text("architecture")
    put("gpu.family", _FAMILIES.get(architecture, architecture.lower()) if architecture else None)
    memory = device.capacity.get("memory") or device.capacity.get(f"{GPU_DRIVER}/memory")
    put("gpu.memory", str(int(Quantity.parse(memory.value).value) // 2**20) if memory is not None else None)
    for label, name in (
        ("gpu.compute", "cudaComputeCapability"),
        ("cuda.driver", "driverVersion"),
        ("cuda.driver-version", "driverVersion"),
        ("cuda.runtime", "cudaDriverVersion"),
        ("cuda.runtime-version", "cudaDriverVersion"),
    ):
        version = text(name)
        if version is not None:
            major, minor, *_ = (*version.split("."), "0")
            put(f"{label}.major", major)
            put(f"{label}.minor", minor, f"0{minor}")
    return found


def products_of(product: str | None, profile: str | None, *, shared: bool) -> Iterable[str]:
    """What the label of the product may have been. `product` is as NVML names it."""
    if product is None:
        return ()
    name = re.sub(r"[^A-Za-z0-9\-_. ]", "", product).strip().replace(" ", "-")
    names = [name, f"{name}-MIG-{profile.replace('+', '.')}"] if profile else [name]
    return [*names, *(f"{one}-SHARED" for one in names)] if shared else names


# -- what a pod asked of its node


def refused_by(spec: JsonObject, labels: Labels) -> str | None:
    """The condition of a pod's spec that a node with these labels does not fulfil, for people; None: none is known."""
    for key, value in (spec.get("nodeSelector") or {}).items():
        if _holds({"key": key, "operator": "In", "values": [str(value)]}, labels) is False:
            return f"{key}={value}"
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = [one for one in required.get("nodeSelectorTerms") or () if isinstance(one, dict)]
    if terms and all(_term(term, labels) is False for term in terms):
        return "its required node affinity"
    return None


def _term(term: JsonObject, labels: Labels) -> bool | None:
    """None: not known."""
    answers = [_holds(one, labels) for one in term.get("matchExpressions") or ()]
    if any(answer is False for answer in answers):
        return False
    return None if None in answers or term.get("matchFields") else True


def _holds(requirement: Mapping[str, Any], labels: Labels) -> bool | None:
    values = labels.get(requirement.get("key", ""))
    if values is None:
        return None
    wanted = [str(one) for one in requirement.get("values") or ()]
    answers = {_compares(str(requirement.get("operator")), value, wanted, requirement["key"]) for value in values}
    return answers.pop() if len(answers) == 1 else None


def _compares(operator: str, value: str, wanted: Sequence[str], key: str) -> bool | None:
    if operator in ("In", "NotIn"):
        among = any(_same(value, one, key) for one in wanted)
        return among if operator == "In" else not among
    if operator in ("Exists", "DoesNotExist"):
        return operator == "Exists"
    if operator in ("Gt", "Lt") and wanted and wanted[0].isdecimal() and value.isdecimal():
        return int(value) > int(wanted[0]) if operator == "Gt" else int(value) < int(wanted[0])
    return None


def _same(value: str, wanted: str, key: str) -> bool:
    if key != "nvidia.com/gpu.memory" or not wanted.isdecimal():
        return value == wanted
    # `In` with an amount of memory became a floor, since drivers differ a little in what they report.
    return int(value) >= int(wanted) * (1 - _MEMORY_TOLERANCE)
