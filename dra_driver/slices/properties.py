"""Attributes of devices, by kind: what the publisher writes into ResourceSlices, and the node plugin into containers.

They have the names of NVIDIA's own driver, and more of the same kind. Selectors fail, and with them the scheduling of a
pod, when a device lacks an attribute that they read; so everything that all devices of a kind can answer is always
there: flags, and counts (0 where the hardware did not say). What identifies or locates something (a clique, a PCIe
root, a serial number) is left out when there is none, for two devices must not match because both have nothing.

A GPU has dozens of partitions that can be made on demand, so they have at most 14 attributes: a map in Go has room for
14 entries or for 28, and with the larger map a node's slices take a third more of kube-apiserver's memory. Measured by
`benchmarks/churn.py`.

Capacities of devices, and what of a shared device one claim gets.

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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from dra_driver.api.inventory import DriverFacts, GpuFacts, NodeInventorySpec
from dra_driver.api.policy import PublishingPolicy, SharingRule
from dra_driver.api.resource import Attribute, Capacity
from dra_driver.devices.counters import engines
from dra_driver.devices.mig import part_multiprocessors
from dra_driver.devices.model import DeviceKind, Offer, Partition
from dra_driver.devices.nvlink import nvlink_domains, state_of
from dra_driver.names import (
    GPU_ATTRIBUTES,
    MIG_ATTRIBUTES,
    NVLINK_PEERS,
    PARTITION_SIZES,
    STANDARD_DOMAIN,
    VFIO_ATTRIBUTES,
)
from dra_driver.quantity import Quantity, padded_version

_VALUE_BYTES = 64
_DESCRIPTIVE = frozenset({"productName", "brand", "architecture"})
"""Strings that may be cut: they describe. A cut identity would be another identity, so those are left out instead."""

_NVIDIA = "0x10de"

_RANKED: Mapping[DeviceKind, Sequence[str]] = {
    DeviceKind.GPU: GPU_ATTRIBUTES,
    DeviceKind.MIG: MIG_ATTRIBUTES,
    DeviceKind.VFIO: VFIO_ATTRIBUTES,
}
_NEEDED: Mapping[DeviceKind, int] = {
    DeviceKind.GPU: GPU_ATTRIBUTES.index("addressingMode") + 1,
    DeviceKind.MIG: len(MIG_ATTRIBUTES),
    DeviceKind.VFIO: len(VFIO_ATTRIBUTES),
}
"""How many of the ranked attributes come before those that an administrator adds."""

type _Plain = dict[str, str | int | bool | None]

MAX_ATTRIBUTES_AND_CAPACITIES = 32
"""Per device. Source: ResourceSlice validation, resource.k8s.io/v1."""
MAX_VALUES = 48
"""Of the attributes of a device; every value of a list counts. Source: as above, since Kubernetes 1.36."""


@dataclass
class DeviceAttributes:
    """Of the devices of one node. `labels` are the node's; only the policy looks at them."""

    inventory: NodeInventorySpec
    policy: PublishingPolicy
    labels: Mapping[str, str]
    driver_name: str
    lists: bool = False
    _extra_of: dict[str, dict[str, Attribute]] = field(default_factory=dict)
    """By GPU UUID: a GPU can have hundreds of partitions."""

    @cached_property
    def _domains(self) -> Mapping[str, str]:
        return nvlink_domains(self.inventory.gpus)

    def of(self, offer: Offer, capacity: Mapping[str, Capacity]) -> tuple[dict[str, Attribute], list[str]]:
        """The attributes that the device is published with, sorted, and the names of those that find no room beside its
        `capacity`."""
        own = device_attributes(offer, self.inventory.driver, self._domains.get(offer.gpu.uuid), lists=self.lists)
        return fitted(offer.kind, own, self._extra(offer.gpu), MAX_ATTRIBUTES_AND_CAPACITIES - len(capacity))

    def _extra(self, gpu: GpuFacts) -> dict[str, Attribute]:
        """`gpu.nvidia.com/rack` is `rack` when that is the driver: a device must not have both."""
        if gpu.uuid not in self._extra_of:
            extra = self.policy.extra_attributes(self.inventory.node_name, self.labels, gpu)
            named = {name.removeprefix(f"{self.driver_name}/"): value for name, value in extra.items()}
            self._extra_of[gpu.uuid] = named
        return self._extra_of[gpu.uuid]


def device_attributes(
    offer: Offer, driver: DriverFacts | None, nvlink_domain: str | None, *, lists: bool = False
) -> dict[str, Attribute]:
    """All that the driver knows of the device, the most needed first. `nvlink_domain` is that of the full GPU. With
    `lists`, what can be several things is a list."""
    if offer.kind is DeviceKind.VFIO:
        plain, versions = _vfio(offer.gpu), {}
    elif offer.partition is not None:
        plain, versions = _mig(offer, offer.partition), _versions_of(offer.gpu, driver)
    else:
        plain, versions = _gpu(offer.gpu, nvlink_domain), _versions_of(offer.gpu, driver)
    sharing = "exclusive" if offer.sharing is None else _STRATEGIES[offer.sharing.strategy]
    plain |= {"type": offer.kind.value, "sharing": sharing, "isolation": _isolation(offer)}
    described = dict(_written(plain)) | dict(_written_versions(versions))
    if lists:
        described |= _lists_of(offer)
    return {name: described[name] for name in _RANKED[offer.kind] if name in described}


def fitted(
    kind: DeviceKind, own: Mapping[str, Attribute], extra: Mapping[str, Attribute], room: int
) -> tuple[dict[str, Attribute], list[str]]:
    """All that fits into `room`, and the names of what does not: our least needed attributes go first.

    What an administrator asks for comes before what NVIDIA's own driver does not have either. The longest lists go if
    the device has more values than the API allows.
    """
    ranked, needed = _RANKED[kind], _NEEDED[kind]
    wanted = [
        *(name for name in ranked[:needed] if name in own),
        *(name for name in sorted(extra) if name not in own),
        *(name for name in ranked[needed:] if name in own),
    ]
    values = {**extra, **own}
    chosen, dropped = wanted[:room], wanted[room:]
    while sum(_count(values[name]) for name in chosen) > MAX_VALUES:
        longest = max(chosen, key=lambda name: _count(values[name]))
        chosen.remove(longest)
        dropped.append(longest)
    return {name: values[name] for name in sorted(chosen)}, dropped


def _count(value: Attribute) -> int:
    return len(value.ints or value.strings or (value,))


_STRATEGIES = {"TimeSlicing": "time-slicing", "MPS": "mps"}


def _isolation(offer: Offer) -> str:
    """What keeps other programs from taking what this device has: `hardware`, `limits` or `none`.

    Compute instances that are parts of one GPU instance share its memory and engines. Shares without a limit of memory
    (`capacity: [cores]`) can leave each other none.
    """
    rule = offer.sharing
    if rule is not None:
        return "limits" if rule.enforced and (rule.capacity is None or "memory" in rule.capacity) else "none"
    part = offer.partition is not None and offer.partition.compute_slices is not None
    return "none" if part else "hardware"


def _gpu(gpu: GpuFacts, nvlink_domain: str | None) -> _Plain:
    fabric, nvlink = gpu.fabric, gpu.nvlink
    clique = fabric.clique if fabric is not None else None
    return {
        **_place(gpu),
        **_product(gpu),
        **_partitions(gpu),
        "uuid": gpu.uuid,
        "nvlinkDomain": nvlink_domain,
        "clique": clique,
        "clusterUUID": fabric.cluster_uuid if fabric is not None and clique is not None else None,
        "cliqueID": fabric.clique_id if fabric is not None and clique is not None else None,
        "fabric": state.value if (state := state_of(gpu)) is not None else "none",
        "migCapable": gpu.mig is not None,
        "migEnabled": gpu.mig is not None and gpu.mig.enabled,
        "multiprocessors": gpu.multiprocessors or 0,
        "eccEnabled": gpu.ecc_enabled or False,
        "nvlinkLinks": nvlink.links if nvlink is not None else 0,
        "powerLimitWatts": gpu.power_limit_watts or 0,
        "pcieGeneration": gpu.pcie_generation or 0,
        "pcieWidth": gpu.pcie_width or 0,
        "serial": gpu.serial,
        "vbiosVersion": gpu.vbios_version,
    }


def _mig(offer: Offer, partition: Partition) -> _Plain:
    return {
        **_place(offer.gpu),
        **_product(offer.gpu),
        "uuid": offer.existing.uuid if offer.existing is not None else None,
        "parentUUID": offer.gpu.uuid,
        "profile": partition.name,
        "addressingMode": offer.gpu.addressing_mode if offer.existing is not None else None,
    }


def _vfio(gpu: GpuFacts) -> _Plain:
    return {
        **_place(gpu),
        **_partitions(gpu),
        "uuid": gpu.uuid,
        "productName": gpu.product_name,
        "vendorID": _NVIDIA,
        "deviceID": gpu.pci_device_id,
        "iommuFDEnabled": gpu.passthrough is not None and gpu.passthrough.iommufd,
        "iommuGroup": gpu.passthrough.iommu_group if gpu.passthrough is not None else None,
    }


def _place(gpu: GpuFacts) -> _Plain:
    return {
        f"{STANDARD_DOMAIN}/pciBusID": gpu.pci_bus_id,
        f"{STANDARD_DOMAIN}/pcieRoot": gpu.pcie_root,
        f"{STANDARD_DOMAIN}/numaNode": gpu.numa_node,
    }


def _lists_of(offer: Offer) -> dict[str, Attribute]:
    """Attributes match (`matchAttribute`) if their lists have a value in common. So a GPU is its own NVLink peer:
    otherwise two GPUs with a link between them, and with no other, would have nothing in common.

    A GPU is below one PCIe root, which matches the lists of other drivers as it is. NVLink does not reach MIG devices.
    Source: KEP-6072 for `numaNode`; attributeAsSet in the scheduler's allocator, 1.36.
    """
    gpu = offer.gpu
    lists: dict[str, Attribute] = {}
    if gpu.numa_node is not None:
        lists[f"{STANDARD_DOMAIN}/numaNode"] = Attribute(ints=[gpu.numa_node])
    if offer.kind is DeviceKind.GPU and gpu.nvlink is not None and gpu.nvlink.peers:
        lists[NVLINK_PEERS] = Attribute(strings=sorted({gpu.uuid, *gpu.nvlink.peers}))
    return lists


def _partitions(gpu: GpuFacts) -> _Plain:
    """IDs of the GPU's fabric partitions by their size, if there is one of that size: `matchAttribute` on one of them
    finds the GPUs of a partition."""
    if not gpu.fabric_partitions:
        return {}
    ids = {size: [part.id for part in gpu.fabric_partitions if part.size == size] for size in PARTITION_SIZES}
    partition_ids: _Plain = {f"partition{size}": of_size[0] for size, of_size in ids.items() if len(of_size) == 1}
    return {**partition_ids, "gpuModuleID": gpu.module_id}


def _product(gpu: GpuFacts) -> _Plain:
    return {
        "productName": gpu.product_name,
        "brand": gpu.brand,
        "architecture": gpu.architecture,
        "addressingMode": gpu.addressing_mode,
    }


def _versions_of(gpu: GpuFacts, driver: DriverFacts | None) -> dict[str, str | None]:
    return {
        "cudaComputeCapability": gpu.cuda_compute_capability,
        "driverVersion": driver.version if driver is not None else None,
        "cudaDriverVersion": driver.cuda_version if driver is not None else None,
        "nvlinkVersion": gpu.nvlink.version if gpu.nvlink is not None else None,
    }


def _written(values: _Plain) -> Iterator[tuple[str, Attribute]]:
    for name, value in values.items():
        if isinstance(value, int) or (value and len(value.encode()) <= _VALUE_BYTES):
            yield name, _attribute(value)
        elif value and name in _DESCRIPTIVE:
            yield name, _attribute(value.encode()[:_VALUE_BYTES].decode(errors="ignore"))


# The devices of a node are mostly alike: what they have in common is made once.
@lru_cache(maxsize=1024, typed=True)
def _attribute(value: bool | int | str) -> Attribute:
    if isinstance(value, bool):
        return Attribute(bool_=value)
    return Attribute(int_=value) if isinstance(value, int) else Attribute(string=value)


def _written_versions(values: Mapping[str, str | None]) -> Iterator[tuple[str, Attribute]]:
    for name, value in values.items():
        version = _version(value) if value is not None else None
        if version is not None:
            yield name, version


@lru_cache(maxsize=64)
def _version(value: str) -> Attribute | None:
    version = padded_version(value)
    return Attribute(version=str(version)) if version is not None and len(str(version)) <= _VALUE_BYTES else None


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
        return {name: plain_capacity(name, amount) for name, amount in amounts.items()}
    if offer.share is not None:
        parts = offer.sharing.replicas or 1
        return {name: plain_capacity(name, amount // parts) for name, amount in amounts.items()}
    return _shared(amounts, offer.sharing)


def _amounts(offer: Offer) -> dict[str, int]:
    if offer.kind is DeviceKind.MIG and offer.partition is not None:
        return _mig_amounts(offer, offer.partition)
    memory = offer.gpu.memory_bytes
    if memory is None:
        return {}
    return {"memory": memory} if offer.kind is DeviceKind.GPU else {"memory": memory, "addressableMemory": memory}


def _mig_amounts(offer: Offer, partition: Partition) -> dict[str, int]:
    amounts: dict[str, int] = {}
    if offer.profile is not None:
        own = partition.compute_slices or offer.profile.slices
        amounts = {
            _NAMES[name]: amount * own // offer.profile.slices for name, amount in engines(offer.profile).items()
        }
        if partition.compute_slices is not None:
            amounts["memory"] = amounts["memory"] // _MEBIBYTE * _MEBIBYTE
            profiles = offer.gpu.mig.profiles if offer.gpu.mig is not None else []
            amounts["multiprocessors"] = part_multiprocessors(offer.profile, own, profiles)
    if offer.existing is None:
        return amounts
    reported = {"memory": offer.existing.memory_bytes, "multiprocessors": offer.existing.multiprocessors}
    if partition.compute_slices is not None:
        # Of such a MIG device NVML reports the memory of the whole GPU instance, which its parts share.
        del reported["memory"]
    amounts |= {name: amount for name, amount in reported.items() if amount is not None}
    slices = range(partition.start, partition.start + partition.size)
    return amounts | {f"memorySlice{number}": 1 for number in slices}


def _shared(amounts: Mapping[str, int], rule: SharingRule) -> dict[str, Capacity]:
    policies: dict[str, dict[str, Any]] = {name: {"default": "0"} for name in amounts}
    memory = amounts.get("memory", 0) // _MEBIBYTE * _MEBIBYTE
    if memory:
        policies["memory"] = _memory_policy(memory, rule)
    shared = {
        name: Capacity(value=_quantity(name, amount), request_policy=policies[name]) for name, amount in amounts.items()
    }
    if rule.replicas is not None:
        replicas = str(rule.replicas)
        shared["shares"] = Capacity(value=replicas, request_policy=_in_steps("1", "1", replicas, "1"))
    if "cores" in (rule.capacity or ()):
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


# As attributes: devices of a node mostly have the same.
@lru_cache(maxsize=1024)
def plain_capacity(name: str, amount: int) -> Capacity:
    """Of a capacity or counter, without a policy for requests; `amount` of memory is in bytes."""
    return Capacity(value=_quantity(name, amount))


def _quantity(name: str, amount: int) -> str:
    return str(Quantity.of_bytes(amount)) if name in ("memory", "addressableMemory") else str(amount)
