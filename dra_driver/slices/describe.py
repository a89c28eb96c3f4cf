"""What a node's facts and the cluster's policy make of its GPUs: devices with attributes and capacity.

Attributes have the names of NVIDIA's own driver, and more of the same kind. Selectors fail, and with them the
scheduling of a pod, when a device lacks an attribute that they read; so whatever every GPU has an answer to is always
there: flags, and counts (0 where the hardware did not say). What identifies or locates something (a clique, a PCIe
root, a serial number) is left out when there is none, for two devices must not match because both have nothing.

Pure: same input, same devices, in the order of the inventory, which is the order in which the scheduler tries them.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from dra_driver.api.inventory import DriverFacts, GpuFacts, NodeInventorySpec
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import Attribute, Capacity, Device
from dra_driver.devices.fabric import nvlink_domains
from dra_driver.names import GPU_ATTRIBUTES, STANDARD_DOMAIN, is_dns_label
from dra_driver.quantity import Quantity, padded_version

MAX_ATTRIBUTES_AND_CAPACITIES = 32
"""Per device. Source: ResourceSlice validation, resource.k8s.io/v1."""

_VALUE_BYTES = 64
_DESCRIPTIVE = frozenset({"productName", "brand", "architecture"})
"""Strings that may be cut: they describe. A cut identity would be another identity, so those are left out instead."""


@dataclass(frozen=True, slots=True)
class Description:
    """The devices of one node's pool. `notes` says what is not published, or not as it is, and why; for people."""

    devices: tuple[Device, ...]
    notes: tuple[str, ...]


def described_devices(
    inventory: NodeInventorySpec, policy: PublishingPolicy, labels: Mapping[str, str], driver_name: str
) -> Description:
    """The devices that `inventory`'s node offers. `labels` are the node's; only the policy looks at them."""
    node = inventory.node_name
    domains = nvlink_domains(inventory.gpus)
    devices: list[Device] = []
    notes: list[str] = []
    for gpu in inventory.gpus:
        if not policy.publishes(node, labels, gpu):
            continue
        if (reason := _not_offered(gpu, taken={device.name for device in devices})) is not None:
            notes.append(f"{gpu.name} is not published: {reason}")
            continue
        capacity = _capacity(gpu)
        attributes = _attributes(gpu, inventory.driver, domains.get(gpu.uuid))
        extra = policy.extra_attributes(node, labels, gpu)
        room = MAX_ATTRIBUTES_AND_CAPACITIES - len(capacity)
        attributes, dropped = _fitted(attributes, _own_domain_removed(extra, driver_name), room)
        notes += [f"{gpu.name} has no room for attribute {name}" for name in dropped]
        devices.append(Device(name=gpu.name, attributes=attributes, capacity=capacity))
    return Description(tuple(devices), tuple(notes))


def _not_offered(gpu: GpuFacts, taken: Set[str]) -> str | None:
    """Why a GPU cannot be given to anybody as a whole; None when it can."""
    if not is_dns_label(gpu.name):
        return "its name is not a DNS label"
    if gpu.name in taken:
        return "another GPU of the node has this name"
    if not gpu.health.healthy:
        return gpu.health.message or gpu.health.reason or "it is not healthy"
    if gpu.mig is not None and gpu.mig.enabled:
        return "it is in MIG mode, where programs can use its partitions only"
    return None


def _capacity(gpu: GpuFacts) -> dict[str, Capacity]:
    if gpu.memory_bytes is None:
        return {}
    return {"memory": Capacity(value=str(Quantity.of_bytes(gpu.memory_bytes)))}


def _attributes(gpu: GpuFacts, driver: DriverFacts | None, nvlink_domain: str | None) -> dict[str, Attribute]:
    fabric, nvlink = gpu.fabric, gpu.nvlink
    clique = fabric.clique if fabric is not None else None
    values: dict[str, str | int | bool | None] = {
        "type": "gpu",
        "uuid": gpu.uuid,
        "productName": gpu.product_name,
        "brand": gpu.brand,
        "architecture": gpu.architecture,
        f"{STANDARD_DOMAIN}/pciBusID": gpu.pci_bus_id,
        f"{STANDARD_DOMAIN}/pcieRoot": gpu.pcie_root,
        f"{STANDARD_DOMAIN}/numaNode": gpu.numa_node,
        "addressingMode": gpu.addressing_mode,
        "nvlinkDomain": nvlink_domain,
        "clique": clique,
        "clusterUUID": fabric.cluster_uuid if fabric is not None and clique is not None else None,
        "cliqueID": fabric.clique_id if fabric is not None and clique is not None else None,
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
    versions = {
        "cudaComputeCapability": gpu.cuda_compute_capability,
        "driverVersion": driver.version if driver is not None else None,
        "cudaDriverVersion": driver.cuda_version if driver is not None else None,
        "nvlinkVersion": nvlink.version if nvlink is not None else None,
    }
    described = dict(_plain(values)) | dict(_versions(versions))
    return {name: described[name] for name in GPU_ATTRIBUTES if name in described}


def _plain(values: Mapping[str, str | int | bool | None]) -> Iterator[tuple[str, Attribute]]:
    for name, value in values.items():
        if isinstance(value, bool):
            yield name, Attribute(bool_=value)
        elif isinstance(value, int):
            yield name, Attribute(int_=value)
        elif value and len(value.encode()) <= _VALUE_BYTES:
            yield name, Attribute(string=value)
        elif value and name in _DESCRIPTIVE:
            yield name, Attribute(string=value.encode()[:_VALUE_BYTES].decode(errors="ignore"))


def _versions(values: Mapping[str, str | None]) -> Iterator[tuple[str, Attribute]]:
    for name, value in values.items():
        version = padded_version(value) if value is not None else None
        if version is not None and len(str(version)) <= _VALUE_BYTES:
            yield name, Attribute(version=str(version))


def _own_domain_removed(extra: Mapping[str, Attribute], driver_name: str) -> dict[str, Attribute]:
    """`gpu.nvidia.com/rack` is `rack` when that is the driver: a device must not have both."""
    return {name.removeprefix(f"{driver_name}/"): value for name, value in extra.items()}


def _fitted(
    own: Mapping[str, Attribute], extra: Mapping[str, Attribute], room: int
) -> tuple[dict[str, Attribute], list[str]]:
    """All that fits into `room`, and the names of what does not: our least needed attributes go first.

    What an administrator asks for comes before what NVIDIA's own driver does not have either.
    """
    expendable_from = GPU_ATTRIBUTES.index("addressingMode") + 1
    needed = [name for name in GPU_ATTRIBUTES[:expendable_from] if name in own]
    wished = [name for name in sorted(extra) if name not in own]
    expendable = [name for name in GPU_ATTRIBUTES[expendable_from:] if name in own]
    ranked = needed + wished + expendable
    kept, dropped = ranked[:room], ranked[room:]
    values = {**extra, **own}
    return {name: values[name] for name in sorted(kept)}, dropped
