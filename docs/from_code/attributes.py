"""attributes.md: every attribute and capacity that the driver publishes, with an example, and every taint.

Names and types are those of the code; examples are of the simulated GPU models, published in every way that a policy
can ask for. What each means is said here, and a name without a meaning, or a meaning without a name, is an error.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

from docs.from_code.tables import WRITTEN, page, table
from dra_driver.api.inventory import ComputeInstanceFacts, GpuFacts, GpuInstanceFacts, ImexFacts
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import Attribute, Device
from dra_driver.checking import knowledge
from dra_driver.devices import health
from dra_driver.domains.names import DOMAIN_LABEL
from dra_driver.names import (
    COMPUTE_DOMAIN_DRIVER,
    GPU_ATTRIBUTES,
    GPU_DRIVER,
    MIG_ATTRIBUTES,
    STANDARD_DOMAIN,
    VFIO_ATTRIBUTES,
)
from dra_driver.slices import domains
from dra_driver.slices.describe import described_devices
from dra_driver.slices.features import ALL_FEATURES

KINDS: Mapping[str, Sequence[str]] = {"gpu": GPU_ATTRIBUTES, "mig": MIG_ATTRIBUTES, "vfio": VFIO_ATTRIBUTES}

MEANINGS = {
    "type": "`gpu`, `mig` or `vfio`.",
    "uuid": "Of the GPU; of a MIG device that exists already, its own.",
    "sharing": "`exclusive`, `time-slicing` or `mps`: how several claims hold the device at once.",
    "isolation": "`hardware`, `limits` or `none`: what keeps others from taking what the device has.",
    "productName": "As NVML has it.",
    "brand": "As NVML has it.",
    "architecture": "Of the GPU.",
    "cudaComputeCapability": "Of the GPU.",
    "driverVersion": "Of the NVIDIA driver on the node.",
    "cudaDriverVersion": "The newest CUDA that the NVIDIA driver serves.",
    f"{STANDARD_DOMAIN}/pciBusID": "Address of the GPU on its node.",
    f"{STANDARD_DOMAIN}/pcieRoot": "The PCIe root that it hangs on; for `matchAttribute` with network devices.",
    f"{STANDARD_DOMAIN}/numaNode": "Of the machine; absent where the machine has none.",
    "addressingMode": "`HMM`, `ATS` or `None`: whether the GPU reaches memory of the host by its pages.",
    "nvlinkDomain": "The same for GPUs that reach each other over NVLink; for `matchAttribute`.",
    "clique": "Partition of a multi-node NVLink fabric, cluster UUID and clique together.",
    "clusterUUID": "The multi-node NVLink fabric.",
    "cliqueID": "Its partition.",
    "fabric": "`complete`, or what is wrong: `not-registered`, `refused`, `unhealthy`; `none` without NVLink fabric.",
    "migCapable": "Whether the GPU can be partitioned.",
    "migEnabled": "Whether an administrator has put it into MIG mode.",
    "multiprocessors": "0 when nobody knows.",
    "eccEnabled": "Whether memory is checked.",
    "nvlinkLinks": "How many links are up.",
    "nvlinkVersion": "Of these.",
    "powerLimitWatts": "That is enforced; 0 when nobody knows.",
    "pcieGeneration": "The highest of the GPU and its place; 0 when nobody knows.",
    "pcieWidth": "Lanes; 0 when nobody knows.",
    "serial": "Of the board.",
    "vbiosVersion": "Of the GPU's firmware.",
    "parentUUID": "Of the GPU that the MIG device is a part of.",
    "profile": "Of the MIG device.",
    "memorySlices": "How many of the GPU's memory slices it has.",
    "placementStart": "The first of them.",
    "packingRank": "Of a MIG device that is made on demand: 0 is the place to take first.",
    "vendorID": "PCI vendor.",
    "deviceID": "PCI device.",
    "iommuFDEnabled": "Whether the node has IOMMUFD.",
    "iommuGroup": "Of the GPU.",
}
"""What each attribute means, as a sentence of Markdown."""

DOMAIN_MEANINGS = {
    "type": "`daemon` or `channel`.",
    "id": "Number of the channel; pods of one domain that share a node have different ones.",
    "clique": "Partition of the NVLink fabric that the node is in, as on its GPUs.",
    "clusterUUID": "The NVLink fabric, as on its GPUs.",
    "cliqueID": "Its partition, as on its GPUs.",
    "domain": "UID of the ComputeDomain that the node is in; absent where it is in none.",
}
"""What the attributes of devices of ComputeDomains mean."""

CAPACITIES = {
    "memory": "Device memory in bytes.",
    "addressableMemory": "Memory that a virtual machine sees.",
    "multiprocessors": "Of the MIG device.",
    "copyEngines": "Of the MIG device.",
    "decoders": "Of the MIG device.",
    "encoders": "Of the MIG device.",
    "jpegEngines": "Of the MIG device.",
    "ofaEngines": "Of the MIG device; optical flow.",
    "memorySliceN": "1 for each memory slice of a MIG device that exists already.",
    "shares": "Of a device that is offered as `replicas`: how many, and how many of them a claim gets.",
    "cores": "Of a device that is offered by `capacity: [cores]`: percent of its compute.",
}


_POLICIES = (
    {},
    {"mig": [{"mode": "Dynamic", "computeInstances": ["1c.3g.40gb"]}], "passthrough": [{}]},
    {"sharing": [{"strategy": "TimeSlicing", "replicas": 4}]},
    {"sharing": [{"strategy": "MPS", "capacity": ["memory", "cores"]}]},
)
"""Every way in which a device can be described differs from the others in one of these."""


@cache
def _published() -> tuple[Device, ...]:
    """Devices of the first GPU of every model, under each policy."""
    found: list[Device] = []
    for model in knowledge.model_names():
        whole = knowledge._inventory(model)
        for gpus in (whole.gpus[:1], [_partitioned(gpu) for gpu in whole.gpus[:1]]):
            inventory = whole.model_copy(update={"gpus": gpus})
            for policy in map(PublishingPolicy.of, _POLICIES):
                found += described_devices(inventory, policy, {}, GPU_DRIVER, ALL_FEATURES).devices
    return tuple(found)


def _partitioned(gpu: GpuFacts) -> GpuFacts:
    """With a MIG device that an administrator made."""
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
    (found,) = value.to_wire().values()
    return str(found).lower() if isinstance(found, bool) else str(found)


def attributes_page() -> str:
    """The whole of attributes.md."""
    return page(
        "# Attributes, capacities and taints of devices",
        WRITTEN,
        "What selectors, constraints and requests can ask of a device of this driver. Bare"
        " names are in the domain of the"
        " driver, `device.attributes['gpu.nvidia.com'].productName`;"
        " `resource.kubernetes.io/…` is a domain of its own,"
        " `device.attributes['resource.kubernetes.io'].pcieRoot`. What the hardware does not"
        " have is absent, and a selector"
        " that reads what is absent stops the whole pod: on mixed clusters ask with `has()`"
        " first. *Always* there are those"
        " that every simulated GPU model has; examples are of these models.",
        "## Attributes",
        table(("Attribute", "Type", "Of", "There", "Example", ""), _attribute_rows()),
        "An administrator's [policy](policy.md) can add attributes of its own to devices. A"
        " device has at most 32 attributes and"
        " capacities; where they do not fit, the last of each kind's go first.",
        "## Capacities",
        table(("Capacity", "Of", "Example", ""), _capacity_rows()),
        "On a device that several claims share, every capacity says what a claim consumes"
        " that does not ask for it; see"
        " [sharing.md](sharing.md).",
        "## Devices of ComputeDomains",
        f"They are of another driver, `{COMPUTE_DOMAIN_DRIVER}`: one daemon for each node with IMEX, and as many"
        " channels as the policy says. Where the NVLink fabric is not complete they have the taint"
        f" `{COMPUTE_DOMAIN_DRIVER}/{domains.FABRIC_TAINT}`.",
        table(("Attribute", "Type", "There", "Example", ""), _domain_rows()),
        "## Conditions and taints",
        "What is wrong with a GPU is a condition in its node's inventory. A *critical* one"
        " taints the devices that feel it with"
        " `NoSchedule`, or `NoExecute` where the policy says `health: {evict: true}`; a"
        " *warning* is a taint without effect, which"
        " can be seen and keeps nobody away.",
        table(
            ("Condition", "Taint"),
            ((f"`{name}`", f"`{GPU_DRIVER}/{key}`") for name, key in health._TAINT_KEYS.items()),
        ),
        "## Xids",
        f"Faults of the program that ran ({', '.join(map(str, sorted(health._APPLICATION)))}) are"
        f" ignored unless the policy"
        " escalates them. An Xid that is in neither list is a warning.",
        table(("Xid", "Severity", "Means"), _xid_rows()),
    )


def _attribute_rows() -> Iterator[tuple[str, ...]]:
    check_names((name for names in KINDS.values() for name in names), MEANINGS, "attribute")
    for name, meaning in MEANINGS.items():
        kinds = [kind for kind, names in KINDS.items() if name in names]
        having = [device for device in _published() if name in device.attributes]
        if not having:
            raise LookupError(f"no simulated GPU model publishes the attribute {name}")
        everywhere = all(name in device.attributes for device in _published() if _kind(device) in kinds)
        (kind,) = {_type_of(device.attributes[name]) for device in having}
        example = _example([_shown(device.attributes[name]) for device in having])
        yield f"`{name}`", kind, ", ".join(kinds), "always" if everywhere else "", f"`{example}`", meaning


def _domain_rows() -> Iterator[tuple[str, ...]]:
    """Of a node of a rack that is in a domain."""
    imex = ImexFacts(channels=2048, program=True)
    tray = knowledge._inventory("gb200").model_copy(update={"imex": imex})
    found = [
        device
        for labels in ({}, {DOMAIN_LABEL: "6a1f7c2e-0d5b-4d0e-9b1a-3f5c2d7e8a90"})
        for device in domains.domain_devices(
            tray, PublishingPolicy.EVERYTHING, labels, COMPUTE_DOMAIN_DRIVER, ALL_FEATURES
        ).devices
    ]
    check_names((name for device in found for name in device.attributes), DOMAIN_MEANINGS, "attribute")
    check_names(domains.CHANNEL_ATTRIBUTES, DOMAIN_MEANINGS, "attribute")
    for name, meaning in DOMAIN_MEANINGS.items():
        values = [device.attributes[name] for device in found if name in device.attributes]
        always = "always" if name in ("type", "id") else ""
        yield f"`{name}`", _type_of(values[0]), always, f"`{_example([_shown(one) for one in values])}`", meaning


def _capacity_rows() -> Iterator[tuple[str, ...]]:
    found: dict[str, tuple[set[str], list[str]]] = {}
    for device in _published():
        for name, capacity in device.capacity.items():
            general = "memorySliceN" if name.startswith("memorySlice") else name
            kinds, values = found.setdefault(general, (set(), []))
            kinds.add(_kind(device))
            values.append(str(capacity.value))
    check_names(found, CAPACITIES, "capacity")
    for name, meaning in CAPACITIES.items():
        kinds, values = found[name]
        yield f"`{name}`", ", ".join(kind for kind in KINDS if kind in kinds), f"`{_example(values)}`", meaning


def _example(values: Sequence[str]) -> str:
    """One that says something, always the same."""
    return next((value for value in values if value not in ("0", "false", "None", "none")), values[0])


def check_names(there: Iterable[str], explained: Iterable[str], what: str) -> None:
    """Raises LookupError unless both are the same names."""
    there, explained = set(there), set(explained)
    if there - explained:
        raise LookupError(f"{what} {', '.join(sorted(there - explained))} is not explained in docs/from_code")
    if explained - there:
        raise LookupError(
            f"{what} {', '.join(sorted(explained - there))} is explained in docs/from_code, and not there"
        )


def _xid_rows() -> Iterator[tuple[str, ...]]:
    meanings: dict[tuple[str, str], list[int]] = {}
    for number, told in health._XIDS.items():
        meanings.setdefault(told, []).append(number)
    for (severity, meaning), numbers in sorted(meanings.items(), key=lambda one: one[1]):
        yield ", ".join(map(str, numbers)), severity, f"{meaning[:1].upper()}{meaning[1:]}."
