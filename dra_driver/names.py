"""Names that are identities: drivers, API groups, devices, requests, claims.

Every name that two modules need is defined here. Device names are made here from hardware
identity (a GPU's UUID) and are never parsed: `gpu_device_names` maps UUIDs to names.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

GPU_DRIVER = "gpu.nvidia.com"
"""Default driver name; the same as NVIDIA's own driver. It is a setting, so pass the configured name on instead of
using this."""

COMPUTE_DOMAIN_DRIVER = "compute-domain.nvidia.com"

WAITING_TAINT = "policy"
"""The part of a taint's key that follows the driver's name. A GPU has this taint while other rules wait until no claim
uses it, so that this ends."""

CONFIG_GROUP = "resource.nvidia.com"
CONFIG_API_VERSION = "resource.nvidia.com/v1beta1"
"""apiVersion of the opaque configs that users write."""

INVENTORY_GROUP = "dra.gpu"
RELEASE_GPUS = f"{INVENTORY_GROUP}/release-gpus"
"""Label or annotation of a Node that requests its plugin to release the GPUs: `true`, or a time."""
INVENTORY_API_VERSION = "dra.gpu/v1alpha1"

STANDARD_DOMAIN = "resource.kubernetes.io"
"""Domain of the attributes that mean the same for every driver."""

PARTITION_SIZES = (1, 2, 4, 8)
"""Numbers of GPUs of fabric partitions that have an attribute."""

_FABRIC_ATTRIBUTES = (*(f"partition{size}" for size in PARTITION_SIZES), "gpuModuleID")

NVLINK_PEERS = "nvlinkPeers"
"""The one attribute that is always a list."""

GPU_ATTRIBUTES = (
    "type",
    "uuid",
    "sharing",
    "isolation",
    "productName",
    "brand",
    "architecture",
    "cudaComputeCapability",
    "driverVersion",
    "cudaDriverVersion",
    f"{STANDARD_DOMAIN}/pciBusID",
    f"{STANDARD_DOMAIN}/pcieRoot",
    f"{STANDARD_DOMAIN}/numaNode",
    *_FABRIC_ATTRIBUTES,
    "addressingMode",
    "nvlinkDomain",
    NVLINK_PEERS,
    "clique",
    "clusterUUID",
    "cliqueID",
    "fabric",
    "migCapable",
    "migEnabled",
    "multiprocessors",
    "eccEnabled",
    "nvlinkLinks",
    "nvlinkVersion",
    "powerLimitWatts",
    "pcieGeneration",
    "pcieWidth",
    "serial",
    "vbiosVersion",
)
"""Attributes of a full GPU, most important first. Up to `addressingMode` they are those of NVIDIA's own driver, plus
`sharing` and `isolation`, which every device has. Those of fabric partitions take the place of those of NVLink."""

MIG_ATTRIBUTES = (
    "type",
    "uuid",
    "parentUUID",
    "profile",
    "sharing",
    "isolation",
    "productName",
    "brand",
    "architecture",
    "cudaComputeCapability",
    "driverVersion",
    "cudaDriverVersion",
    f"{STANDARD_DOMAIN}/pciBusID",
    f"{STANDARD_DOMAIN}/pcieRoot",
    f"{STANDARD_DOMAIN}/numaNode",
    "addressingMode",
)
"""Attributes of a MIG device, most important first; a large one has so many capacities that the last attributes may not
fit. A partition that is made on demand has at most 14, see `dra_driver.slices.properties`."""

VFIO_ATTRIBUTES = (
    "type",
    "uuid",
    "sharing",
    "isolation",
    "productName",
    "vendorID",
    "deviceID",
    "iommuFDEnabled",
    "iommuGroup",
    f"{STANDARD_DOMAIN}/pciBusID",
    f"{STANDARD_DOMAIN}/pcieRoot",
    f"{STANDARD_DOMAIN}/numaNode",
    *_FABRIC_ATTRIBUTES,
)
"""Attributes of a GPU for virtual machines."""

DEVICE_ATTRIBUTES = frozenset((*GPU_ATTRIBUTES, *MIG_ATTRIBUTES, *VFIO_ATTRIBUTES))
"""Names that the driver itself publishes on devices of every kind."""

ADMIN_ACCESS_LABEL = "resource.kubernetes.io/admin-access"

POD_CLAIM_ANNOTATION = "resource.kubernetes.io/pod-claim-name"
"""What the pod calls a claim that was made from a template (`spec.resourceClaims[].name`). Users who create claims can
set it to anything."""

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_UID = re.compile(r"[A-Za-z0-9][-_.A-Za-z0-9]{0,127}")
_GPU_UUID = re.compile(r"GPU-([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})")

_SHORTEST_ID = 8


def is_dns_label(text: str) -> bool:
    """Whether `text` is a DNS label by Kubernetes' rules (RFC 1123, at most 63 characters)."""
    return _DNS_LABEL.fullmatch(text) is not None


def dns_label_of(text: str) -> str:
    """The letters and digits of `text`, with dashes in place of the rest; at most 60 characters."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].strip("-")


def is_dns_subdomain(text: str, *, longest: int = 253) -> bool:
    """Whether `text` is a DNS subdomain by Kubernetes' rules: names of objects; names of drivers with at most 63
    characters."""
    return len(text) <= longest and _DNS_SUBDOMAIN.fullmatch(text) is not None


def is_uid(text: str) -> bool:
    """Whether `text` can be the UID of an object, and can therefore be part of file names and CDI device names."""
    return _UID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, order=True)
class DeviceId:
    """A device as the scheduler knows it: unique by driver, pool and name."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return f"{self.driver}/{self.pool}/{self.device}"


@dataclass(frozen=True, slots=True, order=True)
class RequestName:
    """The name of a request in a claim, with the chosen alternative if the request is a list of alternatives.

    An allocation result writes it as `request` or `request/alternative`; the kubelet and pods use only the request.
    """

    request: str
    alternative: str | None = None

    @classmethod
    def of(cls, text: str) -> "RequestName":
        """From an allocation result's `request` field."""
        request, _, alternative = text.partition("/")
        return cls(request, alternative or None)

    def covered_by(self, names: Iterable[str]) -> bool:
        """Whether a config or constraint with these `requests` applies; an empty list applies to every request.

        A request's name covers its alternatives. Source: DeviceClaimConfiguration.requests, resource.k8s.io/v1.
        """
        listed = tuple(names)
        return not listed or self.request in listed or (self.alternative is not None and str(self) in listed)

    def __str__(self) -> str:
        return self.request if self.alternative is None else f"{self.request}/{self.alternative}"


@dataclass(frozen=True, slots=True, order=True)
class ClaimRef:
    """A ResourceClaim as the kubelet names it. The UID is its identity; namespace and name locate it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"claim {self.namespace}/{self.name}"


def gpu_device_names(uuids: Iterable[str]) -> dict[str, str]:
    """GPU UUID to device name, for all GPUs of one node: `gpu-` and the first 8 hex digits of the UUID.

    UUIDs that share a prefix get more digits until the names differ; therefore a name depends only on the UUIDs that
    are present. A UUID in another form than NVML's `GPU-<8-4-4-4-12 hex>` raises ValueError.
    """
    digits = {}
    for uuid in uuids:
        match = _GPU_UUID.fullmatch(uuid.lower().replace("gpu-", "GPU-", 1))
        if match is None:
            raise ValueError(f"not a GPU UUID: {uuid!r}")
        digits[uuid] = match.group(1).replace("-", "")
    names = {}
    for uuid, own in digits.items():
        length = _SHORTEST_ID
        while any(other != own and other[:length] == own[:length] for other in digits.values()):
            length += 1
        names[uuid] = f"gpu-{own[:length]}"
    return names


def names_record(model: str) -> bool:
    """Whether the name refers to a record's file: no profile has a dot or a slash in its name."""
    return "/" in model or "." in model


def model_label(model: str) -> str:
    """The prefix of node names for a profile or a record's file: letters, digits and dashes."""
    if not names_record(model):
        return model
    stem = model.rpartition("/")[2].partition(".tar")[0].partition(".tgz")[0].lower()
    return re.sub(r"[^a-z0-9]+", "-", stem).strip("-")[:40].strip("-") or "record"


FORMER_CLASSES: Mapping[str, str] = {
    "imex.nvidia.com": "create a ComputeDomain, and name the ResourceClaimTemplate that it makes",
}
"""DeviceClasses of early releases of NVIDIA's driver, which its demo specs still name; what to do in their place."""
