"""NodeInventory (`dra.gpu/v1alpha1`, cluster-scoped): the facts that one node reports about its GPUs.

It has the node's name, and the node owns it. Only that node's plugin writes the `spec`, which contains facts and no
policy decisions. The publisher combines it with the cluster's policy into ResourceSlices, and reports in the `status`
what holds for the node's GPUs, and which rules of the policy the node cannot follow.

An optional field is None if the hardware lacks the feature or does not report it (NVML's NOT_SUPPORTED, -1 in sysfs).

Every list, text and number has a bound, well above what hardware has, in the model and in the
CustomResourceDefinition. Therefore the publisher's work for one inventory is bounded, even if a malicious client wrote
it. A plugin writes at most `MOST_BYTES`, and a publisher reads at most `MOST_READ_BYTES`; an API server accepts that
size, including the status.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from dra_driver.api.gpu_settings import NodePolicy
from dra_driver.api.meta import Condition, Model, ObjectMeta, Text, Word
from dra_driver.names import INVENTORY_GROUP

MOST_GPUS = 64
MOST_PROBLEMS = 128
MOST_WARNINGS = 16
MOST_CONDITIONS = 64
"""Per GPU."""
MOST_BINDING_CLAIMS = 256
"""The others are named when some of these are prepared."""
MOST_BYTES = 768 * 1024
"""Of the spec as JSON. etcd takes 1.5 MiB for an object (--max-request-bytes), the status and metadata included."""
MOST_READ_BYTES = 1024 * 1024


type Slices = Annotated[int, Field(ge=0, le=64)]
"""Places of a MIG layout, and how many of them; no GPU has more than 16."""
type Number = Annotated[int, Field(ge=-(2**31), le=2**32 - 1)]
type Bytes = Annotated[int, Field(ge=0, le=2**53 - 1)]
"""An API server rejects bounds that a float cannot represent, and would then refuse every inventory."""


class DriverFacts(Model):
    """The NVIDIA driver of the node. `root` is the folder on the host that contains its files."""

    version: Word
    cuda_version: Word
    """Major and minor version: `13.0`."""
    nvml_version: Word | None = None
    root: Text


class FabricFacts(Model):
    """NVLink fabric registration of one GPU. Source: nvmlDeviceGetGpuFabricInfoV."""

    state: Literal["NotStarted", "InProgress", "Completed"]
    status: Number = 0
    """NVML return code of the registration; 0 is success. Meaningful when `state` is Completed."""
    cluster_uuid: Word | None = Field(default=None, alias="clusterUUID")
    """None if NVLink does not leave this machine (all zero)."""
    clique_id: Number | None = Field(default=None, alias="cliqueID")
    health: Literal["Healthy", "Unhealthy", "LimitedCapacity"] | None = None

    @property
    def clique(self) -> str | None:
        """`<cluster UUID>.<clique id>` of a GPU registered with a multi-node fabric, else None."""
        if self.state != "Completed" or self.status != 0 or self.cluster_uuid is None or self.clique_id is None:
            return None
        return f"{self.cluster_uuid}.{self.clique_id}"


IMEX_READY = "READY"
"""The state that a working IMEX daemon reports. Source: nvidia-imex-ctl -q."""

IMEX_SUBJECT = "IMEX"
"""Subject of the problem that keeps IMEX daemons of ComputeDomains from starting on a node."""


DOMAIN_SUBJECT = "ComputeDomain"
"""Subject of the problem that no channel of a node could be prepared for a pod that waited. For a while the node is
not offered to ComputeDomains."""


class ImexFacts(Model):
    """The node's support for sharing memory with other machines over NVLink."""

    channels: Number
    """Number of IMEX channels that the NVIDIA driver supports (its parameter `ImexChannelCount`). Channels isolate
    users from each other."""
    program: bool = False
    """Whether nvidia-imex is among the driver's files."""
    state: Word | None = None
    """The state of an IMEX daemon that the node runs itself, such as `READY`; None if the plugin does not query it."""

    @property
    def usable(self) -> bool:
        """Whether the node can be in a ComputeDomain. Every recent driver knows channels; few nodes can use them."""
        return self.channels > 0 and self.program


class NvlinkFacts(Model):
    """Active NVLinks. `peers` are the UUIDs of GPUs of this node that are reachable over NVLink, sorted."""

    links: Number
    version: Word | None = None
    """`4.0`; None if the NVIDIA driver does not report it."""
    switched: bool = False
    """True if the links lead to NVSwitches rather than directly to the peers."""
    peers: list[Word] = Field(default_factory=list, max_length=MOST_GPUS)


class FabricPartitionFacts(Model):
    """A fabric partition that contains this GPU: GPUs that NVSwitches connect with each other and with no other GPU, as
    long as the partition is active. Source: fmGetSupportedFabricPartitions."""

    id: Number
    """Unique on the node; 0 is an ID like any other."""
    size: Slices
    """Number of GPUs."""


FABRIC_MANAGER_SUBJECT = "Fabric Manager"
"""Subject of the problem that keeps fabric partitions of a node from being used, and of the warning that it has none.
"""


class MigProfileFacts(Model):
    """One kind of GPU instance that this GPU can have, and where. Source: nvmlDeviceGetGpuInstanceProfileInfo and
    nvmlDeviceGetGpuInstancePossiblePlacements."""

    name: Word
    """`1g.10gb+me`; derived from slices and memory as in NVIDIA's tools."""
    id: Number
    """The profile ID that NVML uses for placements and creation, not the enumeration number."""
    slices: Slices
    """Compute slices, the number before `g`."""
    memory_bytes: Bytes
    multiprocessors: Number
    copy_engines: Number = 0
    decoders: Number = 0
    encoders: Number = 0
    jpeg_engines: Number = 0
    ofa_engines: Number = 0
    size: Slices
    """Memory slices that one instance takes."""
    starts: list[Slices] = Field(max_length=16)
    """Possible first memory slices of an instance, ascending, whether free or not."""
    max_instances: Number


class ComputeInstanceFacts(Model):
    """A MIG device: what a program uses. `profile` is that of its GPU instance, or `1c.3g.40gb` if it is only a part of
    one."""

    id: Number
    uuid: Word
    """`MIG-5c89...`; changes each time the instance is created."""
    profile: Word
    slices: Slices
    """Compute slices of this compute instance."""
    start: Slices = 0
    """First compute slice inside the GPU instance."""
    multiprocessors: Number | None = None
    memory_bytes: Bytes | None = None


class GpuInstanceFacts(Model):
    """A GPU instance that exists and was not made for a claim by this driver. Without compute instances it cannot be
    used, but it still occupies its memory slices."""

    id: Number
    profile: Word
    start: Slices
    size: Slices
    compute_instances: list[ComputeInstanceFacts] = Field(default_factory=list, max_length=16)


class ModeObstacle(Model):
    """Why the node's plugin does not switch the MIG mode of a GPU, although the policy lets it."""

    reason: Literal["InUse", "NotPossible", "Failed", "Stuck"]
    """InUse: a claim or program has the GPU. NotPossible: no reset works on this machine. Failed: one was tried. Stuck:
    a change was begun, and can neither be completed nor taken back now, so no claim can be prepared on the GPU."""
    message: Text
    fix: Text


class MigFacts(Model):
    """MIG mode now, and after the next reset. A GPU that is not MIG-capable has no MigFacts.

    It excludes what this driver did for claims: the mode that it enabled and the instances that it created. Therefore
    facts, and the ResourceSlices made from them, do not change with each claim.
    """

    enabled: bool
    pending: bool
    switchable: bool = False
    """Whether the mode can be changed without a reset of the GPU (Hopper and newer)."""
    switched: bool = False
    """Whether this driver switched it on by a reset, because the policy lets it; it switches it off again when the
    policy no longer asks for it."""
    obstacle: ModeObstacle | None = None
    """Why the mode is not switched, although the policy asks for that. None: nothing is in the way."""
    profiles: list[MigProfileFacts] = Field(default_factory=list, max_length=64)
    """Sorted by ID. Empty if the NVIDIA driver does not report them, as in a vGPU guest."""
    profiles_of: Word | None = None
    """The UUID of a GPU of the node, listed before, that has the same profiles. Then `profiles` is empty. Set on the
    wire only, where the profiles of eight equal GPUs would be half of the inventory."""
    instances: list[GpuInstanceFacts] = Field(default_factory=list, max_length=16)
    """Sorted by start."""


class HealthCondition(Model):
    """One thing that is wrong with a GPU, or with one instance of it. The policy decides what to do about it."""

    type: Word
    """`Xid`, `GpuLost`, `Ecc`, `RowRemap`, `Repair`, `NvLink`, `RecoveryAction`, `Unmonitored`, `MpsDaemon`,
    `NotValidated`, `InstanceLost`, `Released`, `PrepareFailed`, `DriverIncomplete`."""
    value: Word | None = None
    """The number of an Xid, the name of a recovery action."""
    severity: Literal["Info", "Warning", "Critical"]
    message: Text
    since: Word
    """RFC 3339, UTC, seconds."""
    instance: Word | None = None
    """UUID of the MIG device, if it alone is affected; None if the whole GPU is."""


class HealthFacts(Model):
    """`healthy` is false if any condition is critical; `reason` and `message` are then those of the worst condition."""

    healthy: bool = True
    reason: Word | None = None
    message: Text | None = None
    conditions: list[HealthCondition] = Field(default_factory=list, max_length=MOST_CONDITIONS)
    """Sorted by type, value and instance."""


class PassthroughFacts(Model):
    """What VFIO needs to know about a GPU. None if the GPU cannot be passed through: without an IOMMU, or if the GPU
    shares its IOMMU group. If another program bound a GPU to a VFIO driver, its UUID cannot be read, so it is a Problem
    rather than GpuFacts.
    """

    iommu_group: Number
    iommufd: bool = False
    """Whether /dev/iommu exists."""


class GpuFacts(Model):
    """One physical GPU. Identity is `uuid` (and `pci_bus_id`); `minor` may change at a reboot.

    Names of numeric fields contain the unit. Source of each: NVML or sysfs call of the same meaning.
    """

    uuid: Word
    name: Word
    """The published device name, derived from the UUID by `names.gpu_device_names`; stable across reboots."""
    minor: Number
    """N of /dev/nvidiaN."""
    pci_bus_id: Word = Field(alias="pciBusID")
    """sysfs spelling: `0000:1b:00.0`."""
    product_name: Word
    brand: Word
    architecture: Word
    cuda_compute_capability: Word
    """Major and minor, as `9.0`."""
    memory_bytes: Bytes | None = None
    addressing_mode: Word | None = None
    """`None` (the string), `HMM` or `ATS`; the field is absent if the NVIDIA driver cannot report it."""
    virtualization: Literal["Passthrough", "VGPUGuest", "HostVGPU", "HostVSGA"] | None = None
    """How a virtual machine sees the GPU; absent on bare metal. A vGPU guest cannot change MIG."""
    numa_node: Number | None = None
    pcie_root: Word | None = None
    """`pci0000:15`; standard attribute resource.kubernetes.io/pcieRoot."""
    fabric: FabricFacts | None = None
    nvlink: NvlinkFacts | None = None
    fabric_partitions: list[FabricPartitionFacts] = Field(default_factory=list, max_length=64)
    """Sorted by size and ID; empty unless the NVSwitches of the node are shared. Then `fabric` and `nvlink` are absent,
    because what the GPU reaches depends on the active partition."""
    mig: MigFacts | None = None
    ecc_enabled: bool | None = None
    multiprocessors: Number | None = None
    power_limit_watts: Number | None = None
    pcie_generation: Number | None = None
    pcie_width: Number | None = None
    pci_device_id: Word | None = Field(default=None, alias="pciDeviceID")
    """`0x2330`."""
    module_id: Number | None = Field(default=None, alias="moduleID")
    serial: Word | None = None
    vbios_version: Word | None = None
    passthrough: PassthroughFacts | None = None
    health: HealthFacts = Field(default_factory=HealthFacts)

    @property
    def mig_devices(self) -> tuple[ComputeInstanceFacts, ...]:
        """Those that exist on it."""
        instances = self.mig.instances if self.mig is not None else []
        return tuple(device for instance in instances for device in instance.compute_instances)

    def with_profiles(self, profiles: list[MigProfileFacts], *, of: str | None = None) -> Self:
        """A copy with other MIG profiles. Only for a GPU that has MigFacts."""
        assert self.mig is not None, f"{self.name} has no MIG"
        return self.model_copy(update={"mig": self.mig.model_copy(update={"profiles": profiles, "profiles_of": of})})


class Problem(Model):
    """Why the node does not offer a GPU, or any GPU; or, as a warning, what containers lack."""

    subject: Word
    """The affected object: `GPU at index 3`, `GPU 0000:1b:00.0`, `driver`; `hook program`, `container runtime`."""
    reason: Word
    """CamelCase, for machines: `GpuIsLost`, `DriverNotLoaded`, `DisplayOnly`; `NoHookProgram`, `OldCdi`."""
    message: Text


NO_HOOK_PROGRAM = "NoHookProgram"
"""Reason of a warning: no hook program completes containers, and the settings do not say `none`."""


class Registration(Model):
    """The heartbeat of one driver on this node, updated at every registration with the kubelet and on request. After
    the kubelet has deleted the node's slices, the publisher restores them when it sees a newer heartbeat. A publisher
    requests one with `confirmation_annotation`.
    """

    driver: Word
    time: Word
    """RFC 3339 with microseconds, UTC."""


class Summary(Model):
    """What `kubectl get nodeinventories` shows; derived from the rest."""

    gpus: Number
    healthy: Word
    """`8/8`."""
    product: Text
    driver: Word
    clique: Text


class NodeInventorySpec(Model):
    """On the wire, profiles of equal GPUs are listed once (`MigFacts.profiles_of`); in memory, each GPU has its own."""

    node_name: Word
    boot_id: Word = Field(alias="bootID")
    driver: DriverFacts | None = None
    """None while NVML cannot be used; `problems` says why."""
    gpus: list[GpuFacts] = Field(default_factory=list, max_length=MOST_GPUS)
    """Sorted by PCI address."""
    imex: ImexFacts | None = None
    """None if the NVIDIA driver does not support IMEX channels."""
    problems: list[Problem] = Field(default_factory=list, max_length=MOST_PROBLEMS)
    warnings: list[Problem] = Field(default_factory=list, max_length=MOST_WARNINGS)
    """What containers lack on this node although its GPUs are offered. Sorted by subject."""
    registrations: list[Registration] = Field(default_factory=list, max_length=16)
    prepares_for_binding: bool | None = None
    """Whether the plugin prepares the claims of `status.bindingClaims`. None: it does not, as an older release; then
    no device may have binding conditions."""
    summary: Summary

    @model_validator(mode="after")
    def _with_profiles_of_each(self) -> Self:
        listed: dict[str, list[MigProfileFacts]] = {}
        for number, gpu in enumerate(self.gpus):
            if gpu.mig is None:
                continue
            of = gpu.mig.profiles_of
            profiles = gpu.mig.profiles if of is None else listed.get(of)
            if profiles is None:
                raise ValueError(f"profilesOf of {gpu.name}: no GPU listed before it has UUID {of}")
            if of is not None:
                self.gpus[number] = gpu.with_profiles(profiles)
            listed[gpu.uuid] = profiles
        return self

    @model_serializer(mode="wrap")
    def _with_profiles_once(self, serialize: SerializerFunctionWrapHandler) -> Any:
        return serialize(self.model_copy(update={"gpus": _profiles_once(self.gpus)}))


def _profiles_once(gpus: Sequence[GpuFacts]) -> list[GpuFacts]:
    listed: list[tuple[list[MigProfileFacts], str]] = []
    result = []
    for gpu in gpus:
        profiles = gpu.mig.profiles if gpu.mig is not None else []
        same = next((uuid for known, uuid in listed if known == profiles), None)
        if same is not None:
            gpu = gpu.with_profiles([], of=same)
        elif profiles:
            listed.append((profiles, gpu.uuid))
        result.append(gpu)
    return result


POLICY_FOLLOWED = "PolicyFollowed"
"""Condition type: whether the node offers what the rules of the policy ask for; if not, see `limitations`."""


def named_rule(rule: str) -> str:
    """A rule of a file is `mig[0]`; that of a GpuPolicy names it."""
    return f"{rule} of the policy" if rule and " of " not in rule else rule


class Limitation(Model):
    """Something that the node does not offer although a rule of the policy requests it or the hardware supports it."""

    driver: Word
    """The driver whose devices are missing: `gpu.nvidia.com`."""
    rule: Word | None = None
    """The rule of the policy that cannot be followed: `mig[0]`; None if no rule requests it."""
    reason: Word
    """CamelCase, for machines: `ResetNeeded`, `NoIommu`."""
    gpus: list[Word] = Field(default_factory=list, max_length=MOST_GPUS)
    """Published names of the GPUs; empty if it is about the node."""
    message: Text
    fix: Text
    """The commands or the change that resolve it."""

    @property
    def subject(self) -> str:
        """`GPU gpu-5a7b8d0e`, `8 GPUs`, or empty."""
        return "" if not self.gpus else f"GPU {self.gpus[0]}" if len(self.gpus) == 1 else f"{len(self.gpus)} GPUs"

    @property
    def rule_field(self) -> str:
        """`mig`, `sharing`, ...; empty without a rule."""
        return (self.rule or "").partition(" ")[0].partition("[")[0]

    @property
    def rule_named(self) -> str:
        """`mig of GpuPolicy ml`, `mig[0] of the policy`, or empty."""
        return named_rule(self.rule or "")

    def __str__(self) -> str:
        """`mig[0]: 8 GPUs: MIG mode is off, ...`"""
        return ": ".join(part for part in (self.rule, self.subject, self.message) if part)


class BindingClaim(Model):
    """A claim with devices of the node, and with a pod that waits until the node has prepared them (KEP-5007)."""

    driver: Word
    """The driver of these devices."""
    namespace: Word
    name: Word
    uid: Word


class NodeInventoryStatus(Model):
    conditions: list[Condition] = Field(default_factory=list, max_length=16)
    """Sorted by type."""
    limitations: list[Limitation] = Field(default_factory=list, max_length=MOST_PROBLEMS)
    """Sorted by driver, rule and reason."""
    policy: NodePolicy | None = None
    """What holds for the node's GPUs; None until a publisher has looked at the node."""
    binding_claims: list[BindingClaim] = Field(default_factory=list, max_length=MOST_BINDING_CLAIMS)
    """Sorted by driver, namespace and name. The controller names here what the plugin must prepare before the kubelet
    asks, because a plugin may not watch the claims of the cluster."""


class NodeInventory(Model):
    metadata: ObjectMeta
    spec: NodeInventorySpec
    status: NodeInventoryStatus = Field(default_factory=NodeInventoryStatus)


def confirmation_annotation(driver: str) -> str:
    """The annotation with which a publisher asks the plugin for a heartbeat.

    Its value is the registration time that the publisher doubts. A registered plugin with that registration time
    answers by updating the time, so the annotation need not be removed.
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
