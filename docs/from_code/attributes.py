"""For attributes.md: every attribute and capacity that the driver publishes, with an example, and every taint.

Names and types are those of the code; examples are from the simulated GPU models, published in every way that a policy
allows. This module documents each name; a name without a meaning, or a meaning without a name, is an error.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product

from docs.from_code.tables import check_names, table
from dra_driver.api.inventory import ComputeInstanceFacts, GpuFacts, GpuInstanceFacts, ImexFacts
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import Attribute, Device
from dra_driver.checking import knowledge
from dra_driver.devices import health
from dra_driver.domains.names import DOMAIN_LABEL
from dra_driver.grouping import grouped
from dra_driver.names import (
    COMPUTE_DOMAIN_DRIVER,
    GPU_ATTRIBUTES,
    GPU_DRIVER,
    MIG_ATTRIBUTES,
    NVLINK_PEERS,
    PARTITION_SIZES,
    STANDARD_DOMAIN,
    VFIO_ATTRIBUTES,
)
from dra_driver.phrases import how_many
from dra_driver.slices import domains
from dra_driver.slices.describe import described_devices
from dra_driver.slices.features import ALL_FEATURES

KINDS: Mapping[str, Sequence[str]] = {"gpu": GPU_ATTRIBUTES, "mig": MIG_ATTRIBUTES, "vfio": VFIO_ATTRIBUTES}

MEANINGS = {
    "type": "`gpu`, `mig` or `vfio`.",
    "uuid": "UUID of the GPU, or of an existing MIG device.",
    "sharing": "`exclusive`, `time-slicing` or `mps`: how several claims share the device.",
    "isolation": "`hardware`, `limits` or `none`: what protects the device's resources from other claims.",
    "productName": "Product name from NVML.",
    "brand": "Brand from NVML.",
    "architecture": "Architecture of the GPU.",
    "cudaComputeCapability": "CUDA compute capability of the GPU.",
    "driverVersion": "Version of the node's NVIDIA driver.",
    "cudaDriverVersion": "Newest CUDA version that the NVIDIA driver supports.",
    f"{STANDARD_DOMAIN}/pciBusID": "PCI address of the GPU on its node.",
    f"{STANDARD_DOMAIN}/pcieRoot": "PCIe root of the GPU, for `matchAttribute` with network devices.",
    f"{STANDARD_DOMAIN}/numaNode": "NUMA node of the GPU; absent if the machine has none.",
    **{
        f"partition{size}": f"Fabric partition of {how_many(size, 'GPU')} that contains this GPU, for `matchAttribute`;"
        " only where NVSwitches are shared."
        for size in PARTITION_SIZES
    },
    "gpuModuleID": "Place of the GPU on its base board, as NVML reports it; only where NVSwitches are shared.",
    "addressingMode": "`HMM`, `ATS` or `None`: how the GPU accesses host memory. MIG devices on demand do not have it.",
    "nvlinkDomain": "Equal for GPUs that reach each other over NVLink, for `matchAttribute`.",
    NVLINK_PEERS: "UUIDs of the GPUs of its node that it reaches over NVLink, and its own; only with the feature gate.",
    "clique": "Partition of a multi-node NVLink fabric: cluster UUID and clique ID.",
    "clusterUUID": "UUID of the multi-node NVLink fabric.",
    "cliqueID": "ID of the partition in the fabric.",
    "fabric": "`complete`, or the fault: `not-registered`, `refused`, `unhealthy`; `none` without NVLink fabric.",
    "migCapable": "Whether the GPU supports MIG.",
    "migEnabled": "Whether an administrator has enabled MIG mode.",
    "multiprocessors": "Number of multiprocessors; 0 if unknown.",
    "eccEnabled": "Whether ECC is enabled.",
    "nvlinkLinks": "Number of active NVLink links.",
    "nvlinkVersion": "NVLink version of these links.",
    "powerLimitWatts": "Enforced power limit; 0 if unknown.",
    "pcieGeneration": "Highest PCIe generation of GPU and slot; 0 if unknown.",
    "pcieWidth": "PCIe lanes; 0 if unknown.",
    "serial": "Serial number of the board.",
    "vbiosVersion": "Version of the GPU's firmware.",
    "parentUUID": "UUID of the GPU that contains the MIG device.",
    "profile": "Profile of the MIG device.",
    "vendorID": "PCI vendor ID.",
    "deviceID": "PCI device ID.",
    "iommuFDEnabled": "Whether the node has IOMMUFD.",
    "iommuGroup": "IOMMU group of the GPU.",
}
"""The meaning of each attribute, in Markdown."""

DOMAIN_MEANINGS = {
    "type": "`daemon` or `channel`.",
    "id": "Number of the channel; pods of one domain on the same node have different numbers.",
    "clique": "Partition of the node's NVLink fabric, as for its GPUs.",
    "clusterUUID": "UUID of the NVLink fabric, as for its GPUs.",
    "cliqueID": "ID of the partition, as for its GPUs.",
    "domain": "UID of the node's ComputeDomain; absent if the node is in none.",
}
"""The meaning of the attributes of ComputeDomains' devices."""

CAPACITIES = {
    "memory": "Device memory in bytes.",
    "addressableMemory": "Memory that a virtual machine can use.",
    "multiprocessors": "Multiprocessors of the MIG device.",
    "copyEngines": "Copy engines of the MIG device.",
    "decoders": "Decoders of the MIG device.",
    "encoders": "Encoders of the MIG device.",
    "jpegEngines": "JPEG engines of the MIG device.",
    "ofaEngines": "Optical flow engines of the MIG device.",
    "memorySliceN": "1 for each memory slice of an existing MIG device.",
    "shares": "For a device with `replicas`: the number of shares, and of shares per claim.",
    "cores": "For a device with `capacity: [cores]`: percent of its compute.",
}


_POLICIES = (
    {},
    {"mig": [{"mode": "Dynamic", "computeInstances": ["1c.3g.40gb"]}], "passthrough": [{}]},
    {"sharing": [{"strategy": "TimeSlicing", "replicas": 4}]},
    {"sharing": [{"strategy": "MPS", "capacity": ["memory", "cores"]}]},
)
"""Settings of a policy that change the description of a device."""


_LISTS = replace(ALL_FEATURES, list_attributes=True)


@cache
def _published() -> tuple[Device, ...]:
    """Devices of the first GPU of every model, under each policy."""
    devices: list[Device] = []
    for model in knowledge.model_names():
        whole = knowledge.inventory_of_model(model)
        first = whole.gpus[:1]
        shared = knowledge.with_shared_switches(whole) or whole
        for gpus in (first, [_partitioned(gpu) for gpu in first], shared.gpus[:1]):
            inventory = whole.model_copy(update={"gpus": gpus})
            for policy, features in product(map(PublishingPolicy.of, _POLICIES), (ALL_FEATURES, _LISTS)):
                devices += described_devices(inventory, policy, {}, GPU_DRIVER, features).devices
    return tuple(devices)


def _partitioned(gpu: GpuFacts) -> GpuFacts:
    """With a MIG device that an administrator created."""
    if gpu.mig is None or not gpu.mig.profiles:
        return gpu
    profile = gpu.mig.profiles[-1]
    uuid = f"MIG-{gpu.uuid.removeprefix('GPU-')}"
    part = ComputeInstanceFacts(id=0, uuid=uuid, profile=profile.name, slices=profile.slices, start=0)
    instance = GpuInstanceFacts(
        id=1, profile=profile.name, start=profile.starts[0], size=profile.size, compute_instances=[part]
    )
    return gpu.model_copy(update={"mig": gpu.mig.model_copy(update={"enabled": True, "instances": [instance]})})


def _kind(device: Device) -> str:
    return str(device.attributes["type"].string)


def _type_of(value: Attribute) -> str:
    (name,) = value.to_wire()
    return name


def _shown(value: Attribute) -> str:
    (value_of_type,) = value.to_wire().values()
    if isinstance(value_of_type, list):
        return str(value_of_type[0])
    return str(value_of_type).lower() if isinstance(value_of_type, bool) else str(value_of_type)


def attributes() -> str:
    return table(("Attribute", "Type", "Devices", "Present", "Example", "Meaning"), _attribute_rows())


def capacities() -> str:
    return table(("Capacity", "Devices", "Example", "Meaning"), _capacity_rows())


def domain_attributes() -> str:
    return table(("Attribute", "Type", "Present", "Example", "Meaning"), _domain_rows())


def condition_taints() -> str:
    rows = ((f"`{name}`", f"`{GPU_DRIVER}/{key}`") for name, key in health._TAINT_KEYS.items())
    return table(("Condition", "Taint"), rows)


def xids() -> str:
    faults = ", ".join(map(str, sorted(health._APPLICATION)))
    return table(("Xid", "Severity", "Means"), [*_xid_rows(), (faults, "ignored", "A fault of an application.")])


def _attribute_rows() -> Iterator[tuple[str, ...]]:
    check_names((name for names in KINDS.values() for name in names), MEANINGS, "attribute")
    for name, meaning in MEANINGS.items():
        kinds = [kind for kind, names in KINDS.items() if name in names]
        having = [device for device in _published() if name in device.attributes]
        if not having:
            raise LookupError(f"no simulated GPU model publishes the attribute {name}")
        everywhere = all(name in device.attributes for device in _published() if _kind(device) in kinds)
        kind = " or ".join(sorted({_type_of(device.attributes[name]) for device in having}))
        example = _example([_shown(device.attributes[name]) for device in having])
        yield f"`{name}`", kind, ", ".join(kinds), "always" if everywhere else "", f"`{example}`", meaning


def _domain_rows() -> Iterator[tuple[str, ...]]:
    """Devices of a node that is in a domain."""
    imex = ImexFacts(channels=2048, program=True)
    tray = knowledge.inventory_of_model("gb200").model_copy(update={"imex": imex})
    devices = [
        device
        for labels in ({}, {DOMAIN_LABEL: "6a1f7c2e-0d5b-4d0e-9b1a-3f5c2d7e8a90"})
        for device in domains.domain_devices(
            tray, PublishingPolicy.EVERYTHING, labels, COMPUTE_DOMAIN_DRIVER, ALL_FEATURES
        ).devices
    ]
    check_names((name for device in devices for name in device.attributes), DOMAIN_MEANINGS, "attribute")
    check_names(domains.CHANNEL_ATTRIBUTES, DOMAIN_MEANINGS, "attribute")
    for name, meaning in DOMAIN_MEANINGS.items():
        values = [device.attributes[name] for device in devices if name in device.attributes]
        always = "always" if name in ("type", "id") else ""
        yield f"`{name}`", _type_of(values[0]), always, f"`{_example([_shown(value) for value in values])}`", meaning


def _capacity_rows() -> Iterator[tuple[str, ...]]:
    values_by_name: dict[str, tuple[set[str], list[str]]] = {}
    for device in _published():
        for name, capacity in device.capacity.items():
            general = "memorySliceN" if name.startswith("memorySlice") else name
            kinds, values = values_by_name.setdefault(general, (set(), []))
            kinds.add(_kind(device))
            values.append(str(capacity.value))
    check_names(values_by_name, CAPACITIES, "capacity")
    for name, meaning in CAPACITIES.items():
        kinds, values = values_by_name[name]
        yield f"`{name}`", ", ".join(kind for kind in KINDS if kind in kinds), f"`{_example(values)}`", meaning


def _example(values: Sequence[str]) -> str:
    """A typical value, always the same."""
    return next((value for value in values if value not in ("0", "false", "None", "none")), values[0])


def _xid_rows() -> Iterator[tuple[str, ...]]:
    meanings = grouped(health._XIDS, lambda number: health._XIDS[number])
    for (severity, meaning), numbers in sorted(meanings.items(), key=lambda entry: entry[1]):
        yield ", ".join(map(str, numbers)), severity, f"{meaning[:1].upper()}{meaning[1:]}."
