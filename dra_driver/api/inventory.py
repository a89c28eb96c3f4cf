"""NodeInventory (`dra.gpu/v1alpha1`, cluster-scoped): the facts that one node reports about its GPUs.

Written by the node plugin of that node and by nothing else, named after the node and owned by it; read by the
publisher, which turns it and the cluster's policy into ResourceSlices. Facts only: nothing in it is a decision of
policy. Like ResourceSlice and CSINode it has no status: all of it is observed, in `spec`.

An optional field is None when the hardware has no such thing or did not say (NVML's NOT_SUPPORTED, sysfs' -1).
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from dra_driver.api.meta import Model, ObjectMeta
from dra_driver.names import INVENTORY_GROUP


class DriverFacts(Model):
    """The NVIDIA driver of the node. `root` is the host's folder below which its files live."""

    version: str
    cuda_version: str
    """Major and minor, as `13.0`."""
    nvml_version: str | None = None
    root: str


class FabricFacts(Model):
    """NVLink fabric registration of one GPU. Source: nvmlDeviceGetGpuFabricInfoV."""

    state: Literal["NotStarted", "InProgress", "Completed"]
    status: int = 0
    """NVML return code of the registration; 0 is success. Meaningful when `state` is Completed."""
    cluster_uuid: str | None = Field(default=None, alias="clusterUUID")
    """None when NVLink stays inside this machine (all zero)."""
    clique_id: int | None = Field(default=None, alias="cliqueID")
    health: Literal["Healthy", "Unhealthy", "LimitedCapacity"] | None = None

    @property
    def clique(self) -> str | None:
        """`<cluster UUID>.<clique id>` of a GPU registered with a multi-node fabric, else None."""
        if self.state != "Completed" or self.status != 0 or self.cluster_uuid is None or self.clique_id is None:
            return None
        return f"{self.cluster_uuid}.{self.clique_id}"


class NvlinkFacts(Model):
    """Active NVLinks. `peers` are the UUIDs of GPUs of this node that are reachable over NVLink, sorted."""

    links: int
    version: str | None = None
    """`4.0`; None when the driver does not say."""
    switched: bool = False
    """True when the links go to NVSwitches rather than straight to the peers."""
    peers: list[str] = Field(default_factory=list)


class MigFacts(Model):
    """MIG mode now, and after the next reset. A GPU that is not MIG-capable has no MigFacts."""

    enabled: bool
    pending: bool


class HealthFacts(Model):
    """`reason` is a CamelCase word and `message` a sentence, both None for a healthy GPU."""

    healthy: bool = True
    reason: str | None = None
    message: str | None = None


class GpuFacts(Model):
    """One physical GPU. Identity is `uuid` (and `pci_bus_id`); `minor` may change at a reboot.

    Numbers carry their unit in their name. Source of each: NVML or sysfs call of the same meaning.
    """

    uuid: str
    name: str
    """The device's published name, made from the UUID by `names.gpu_device_names`; stable across reboots."""
    minor: int
    """N of /dev/nvidiaN."""
    pci_bus_id: str = Field(alias="pciBusID")
    """sysfs spelling: `0000:1b:00.0`."""
    product_name: str
    brand: str
    architecture: str
    cuda_compute_capability: str
    """Major and minor, as `9.0`."""
    memory_bytes: int | None = None
    addressing_mode: str | None = None
    """`None` (the word), `HMM` or `ATS`; the field is absent where the driver does not know the question."""
    virtualization: Literal["Passthrough", "VGPUGuest", "HostVGPU", "HostVSGA"] | None = None
    """How this machine sees the GPU; absent on bare metal. A vGPU guest cannot change MIG."""
    numa_node: int | None = None
    pcie_root: str | None = None
    """`pci0000:15`; standard attribute resource.kubernetes.io/pcieRoot."""
    fabric: FabricFacts | None = None
    nvlink: NvlinkFacts | None = None
    mig: MigFacts | None = None
    ecc_enabled: bool | None = None
    multiprocessors: int | None = None
    power_limit_watts: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    pci_device_id: str | None = Field(default=None, alias="pciDeviceID")
    """`0x2330`."""
    module_id: int | None = Field(default=None, alias="moduleID")
    serial: str | None = None
    vbios_version: str | None = None
    health: HealthFacts = Field(default_factory=HealthFacts)


class Problem(Model):
    """Something on the node that keeps a GPU, or all of them, from being offered."""

    subject: str
    """What it is about: `GPU at index 3`, `GPU 0000:1b:00.0`, `driver`."""
    reason: str
    """CamelCase, for machines: `GpuIsLost`, `DriverNotLoaded`, `DisplayOnly`."""
    message: str


class Registration(Model):
    """The sign of life of one driver on this node, bumped at every registration with kubelet and on request.

    Slices that kubelet wiped are restored on a sign of life that came after they were gone. `confirmation_annotation`
    is how a publisher asks for one.
    """

    driver: str
    time: str
    """RFC 3339 with microseconds, UTC."""


class Summary(Model):
    """What `kubectl get nodeinventories` shows; derived from the rest."""

    gpus: int
    healthy: str
    """`8/8`."""
    product: str
    driver: str
    clique: str


class NodeInventorySpec(Model):
    node_name: str
    boot_id: str = Field(alias="bootID")
    driver: DriverFacts | None = None
    """None while NVML cannot be used; `problems` says why."""
    gpus: list[GpuFacts] = Field(default_factory=list)
    """Sorted by PCI address."""
    problems: list[Problem] = Field(default_factory=list)
    registrations: list[Registration] = Field(default_factory=list)
    summary: Summary


class NodeInventory(Model):
    metadata: ObjectMeta
    spec: NodeInventorySpec


def confirmation_annotation(driver: str) -> str:
    """The annotation by which a publisher asks the plugin whether it still lives.

    Its value is the registration time that is in doubt. A plugin that is registered, and whose current time that is,
    answers by bumping the time; nobody needs to take the annotation away, and a plugin that is gone answers nothing.
    """
    return f"confirm.{INVENTORY_GROUP}/{driver}"


def summary_of(driver: DriverFacts | None, gpus: Sequence[GpuFacts], problems: Sequence[Problem]) -> Summary:
    """The printer columns. A GPU that could not be read counts as a GPU that is not healthy."""
    unreadable = sum(1 for problem in problems if problem.subject.startswith("GPU "))
    total = len(gpus) + unreadable
    products = sorted({gpu.product_name for gpu in gpus})
    cliques = sorted({gpu.fabric.clique for gpu in gpus if gpu.fabric is not None and gpu.fabric.clique is not None})
    return Summary(
        gpus=total,
        healthy=f"{sum(gpu.health.healthy for gpu in gpus)}/{total}",
        product=", ".join(products) or "-",
        driver=driver.version if driver is not None else "-",
        clique=", ".join(cliques) or "-",
    )
