"""Capacities of devices, and what of a shared device one claim gets.

MIG devices have the capacities of NVIDIA's own driver, full GPUs their memory. On a device that several claims share,
every capacity says what a claim consumes that does not ask for it; by default that is nothing, or the first claim would
consume all:

| rule          | capacity | without a request                 | a request              |
|---------------|----------|-----------------------------------|------------------------|
| replicas      | `shares` | 1                                 | several shares         |
|               | `memory` | MPS: an equal part; else nothing  | in steps of 1 MiB      |
| memory        | `memory` | all: who does not ask is alone    | in steps of 1 MiB      |
| cores         | `cores`  | all: who does not ask is alone    | percent of the compute |

Pure.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from dra_driver.api.inventory import GpuFacts
from dra_driver.api.policy import SharingRule
from dra_driver.api.resource import Capacity
from dra_driver.devices.counters import engines
from dra_driver.devices.mig import part_multiprocessors
from dra_driver.devices.model import Kind, Offer, Partition
from dra_driver.quantity import Quantity

_MEBIBYTE = 1 << 20
_CORES = 100
"""Percent; one unit of `cores` is one percent of the device's multiprocessors."""

_NAMES = {
    "memory": "memory",
    "multiprocessors": "multiprocessors",
    "copy-engines": "copyEngines",
    "decoders": "decoders",
    "encoders": "encoders",
    "jpeg-engines": "jpegEngines",
    "ofa-engines": "ofaEngines",
}
"""Capacity by the name of the counter of the same thing."""


def device_capacity(offer: Offer) -> dict[str, Capacity]:
    """What the device has. A separate share has its part of it, which is an amount to select by; see `isolation`."""
    amounts = _amounts(offer)
    if offer.sharing is None:
        return {name: Capacity(value=_quantity(name, amount)) for name, amount in amounts.items()}
    if offer.share is not None:
        parts = offer.sharing.replicas or 1
        return {name: Capacity(value=_quantity(name, amount // parts)) for name, amount in amounts.items()}
    return _shared(amounts, offer.sharing)


def _amounts(offer: Offer) -> dict[str, int]:
    if offer.kind is Kind.MIG and offer.partition is not None:
        return _mig_amounts(offer, offer.partition)
    memory = offer.gpu.memory_bytes
    if memory is None:
        return {}
    return {"memory": memory} if offer.kind is Kind.GPU else {"memory": memory, "addressableMemory": memory}


def _mig_amounts(offer: Offer, partition: Partition) -> dict[str, int]:
    amounts: dict[str, int] = {}
    if offer.profile is not None:
        own = partition.compute_slices or offer.profile.slices
        amounts = {
            _NAMES[name]: amount * own // offer.profile.slices for name, amount in engines(offer.profile).items()
        }
        if partition.compute_slices is not None:
            amounts["memory"] = amounts["memory"] // _MEBIBYTE * _MEBIBYTE
            amounts["multiprocessors"] = part_multiprocessors(offer.profile, own, _profiles(offer.gpu))
    if offer.existing is None:
        return amounts
    told = {"memory": offer.existing.memory_bytes, "multiprocessors": offer.existing.multiprocessors}
    if partition.compute_slices is not None:
        # Of such a MIG device NVML tells the memory of the whole GPU instance, which its parts share.
        del told["memory"]
    amounts |= {name: amount for name, amount in told.items() if amount is not None}
    slices = range(partition.start, partition.start + partition.size)
    return amounts | {f"memorySlice{number}": 1 for number in slices}


def _shared(amounts: Mapping[str, int], rule: SharingRule) -> dict[str, Capacity]:
    shared = {
        name: Capacity(value=_quantity(name, amount), request_policy=_by_default("0"))
        for name, amount in amounts.items()
    }
    memory = amounts.get("memory", 0) // _MEBIBYTE * _MEBIBYTE
    capacity = rule.capacity or ()
    if memory:
        shared["memory"] = Capacity(
            value=_quantity("memory", amounts["memory"]), request_policy=_memory_policy(memory, rule)
        )
    if rule.replicas is not None:
        shared["shares"] = Capacity(
            value=str(rule.replicas), request_policy=_in_steps("1", "1", str(rule.replicas), "1")
        )
    if "cores" in capacity:
        shared["cores"] = Capacity(value=str(_CORES), request_policy=_in_steps(str(_CORES), "1", str(_CORES), "1"))
    return shared


def _memory_policy(memory: int, rule: SharingRule) -> dict[str, Any]:
    """`memory` is a whole number of MiB: bounds and default must be so many steps from each other."""
    default, least = 0, 0
    if rule.capacity is not None and "memory" in rule.capacity:
        default, least = memory, _MEBIBYTE
    elif rule.replicas is not None and rule.strategy == "MPS":
        default, least = memory // rule.replicas // _MEBIBYTE * _MEBIBYTE, _MEBIBYTE
    return _in_steps(*(str(Quantity.of_bytes(amount)) for amount in (default, least, memory, _MEBIBYTE)))


def _in_steps(default: str, least: str, most: str, step: str) -> dict[str, Any]:
    return {"default": default, "validRange": {"min": least, "max": most, "step": step}}


def _by_default(amount: str) -> dict[str, Any]:
    return {"default": amount}


# As attributes: devices of a node mostly have the same.
@lru_cache(maxsize=1024)
def _quantity(name: str, amount: int) -> str:
    return str(Quantity.of_bytes(amount)) if name in ("memory", "addressableMemory") else str(amount)


def _profiles(gpu: GpuFacts) -> list[Any]:
    return gpu.mig.profiles if gpu.mig is not None else []
