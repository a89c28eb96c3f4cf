"""What excludes what: which uses of one GPU can be side by side, and what a GPU cannot do at all. One table, as data.

The publisher asks here what it may offer, prepare before it holds anything, the check of configs before a user waits
for a pod; `docs/sharing.md` shows the same rows. Counters keep the scheduler from most of these conflicts; this table
keeps the hardware from all of them.

Two uses conflict or not by where they lie on the GPU first (a GPU, the MIG devices cut out of it, and the GPU as a
function for virtual machines are one piece of hardware), and only on the same device by how they share it. Admin
access is no use: it holds nothing and nothing holds it off, so callers leave it out.
Sources: CUDA MPS documentation, NVIDIA MIG user guide, and for the limits the device plugin's and NVIDIA's DRA driver's
own checks.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from dra_driver.api.config import SharingStrategy
from dra_driver.api.inventory import GpuFacts
from dra_driver.devices.model import DeviceKind, Partition

VOLTA = (7, 0)
MPS_CLIENTS = 48
"""Of one MPS server on Volta and newer; 60 from CUDA 13.1 on, which is not counted on. Fewer on a small MIG device."""
MPS_CLIENTS_BEFORE_VOLTA = 16


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What one claim does with one GPU, or with a part of it."""

    gpu_uuid: str
    kind: DeviceKind
    partition: Partition | None = None
    """Of a MIG device; None for the others."""
    strategy: SharingStrategy | None = None
    """How programs share the device, be they of one claim or of several."""
    shared: bool = False
    """Whether other claims may have shares of the same device meanwhile: by policy only, and then with a strategy."""
    share: int | None = None
    """Number of the share, where shares are devices of their own, which are for one claim each."""
    settings: Hashable = None
    """What all sharers of the device must agree on, such as the time slice; not the amounts that each one has."""

    def __post_init__(self) -> None:
        if (self.kind is DeviceKind.MIG) != (self.partition is not None):
            raise ValueError("a MIG device is a partition, and nothing else is")
        if self.shared and self.strategy is None:
            raise ValueError("what several claims share has a strategy")


@dataclass(frozen=True, slots=True)
class PairRow:
    """Two uses of one GPU, in either order. `applies` is asked for the first row on, and the first answer decides."""

    first: str
    second: str
    allowed: bool
    reason: str
    applies: Callable[[GpuUse, GpuUse], bool]


def _overlap(first: GpuUse, second: GpuUse) -> bool:
    """Of two different partitions; equal ones are the same device."""
    if first.partition is None or second.partition is None or first.partition == second.partition:
        return False
    return first.partition.overlaps(second.partition)


PAIRS: tuple[PairRow, ...] = (
    PairRow(
        "the GPU, passed to a virtual machine",
        "anything else on this GPU",
        False,
        "a GPU of a virtual machine is unavailable to everything else on the node",
        lambda first, second: DeviceKind.VFIO in (first.kind, second.kind),
    ),
    PairRow(
        "the full GPU, or a share of it",
        "a MIG device of this GPU",
        False,
        "a partitioned GPU cannot be used as a whole",
        lambda first, second: first.kind is not second.kind,
    ),
    PairRow(
        "a MIG device",
        "a MIG device that overlaps it",
        False,
        "both MIG devices need the same slices of the GPU",
        _overlap,
    ),
    PairRow(
        "a MIG device, shared or not",
        "a MIG device beside it, shared or not",
        True,
        "each has its own slices, so each can be time-sliced, shared by MPS, or not shared",
        lambda first, second: first.partition != second.partition,
    ),
    PairRow(
        "a GPU or MIG device for one claim",
        "the same device for another claim",
        False,
        "the device is exclusive to one claim",
        lambda first, second: not (first.shared and second.shared),
    ),
    PairRow(
        "a share that is a device of its own",
        "the same share for another claim",
        False,
        "each share is for one claim",
        lambda first, second: first.share is not None and first.share == second.share,
    ),
    PairRow(
        "a time-sliced share",
        "an MPS share of the same device",
        False,
        "time-slicing and MPS exclude each other on one device: under MPS only the MPS server may open it",
        lambda first, second: first.strategy != second.strategy,
    ),
    PairRow(
        "a share",
        "a share of the same device with other settings",
        False,
        "the device has one time slice and one MPS daemon, so all its shares have the same settings",
        lambda first, second: first.settings != second.settings,
    ),
    PairRow(
        "a time-sliced share",
        "another time-sliced share of the same device",
        True,
        "programs take turns; their memory is not limited, and a fault of one can end all",
        lambda first, second: first.strategy == "TimeSlicing",
    ),
    PairRow(
        "an MPS share",
        "another MPS share of the same device",
        True,
        "programs run at the same time as clients of one MPS daemon, each with its limits",
        lambda first, second: first.strategy == "MPS",
    ),
)


def deciding_row(first: GpuUse, second: GpuUse) -> PairRow:
    """The row for two uses of one GPU; there is one for every two, and the order of the two does not matter."""
    return next(row for row in PAIRS if row.applies(first, second))


def conflict(held: GpuUse, wanted: GpuUse) -> str | None:
    """Why a claim cannot have `wanted` while another has `held`, as part of a sentence; None when it can."""
    if held.gpu_uuid != wanted.gpu_uuid:
        return None
    row = deciding_row(held, wanted)
    return None if row.allowed else row.reason


@dataclass(frozen=True, slots=True)
class PlannedUse:
    """What a claim will do with a device of a kind, before the claim is known."""

    kind: DeviceKind
    strategy: SharingStrategy | None = None
    multi_user: bool = False
    limits: bool = False
    """MPS with a thread percentage or memory limits."""
    sets_interval: bool = True
    """Time-slicing that sets the time slice, which a policy without `interval` leaves alone."""
    clients: int = 1
    """How many share the device at most, a policy's `replicas`."""


@dataclass(frozen=True, slots=True)
class LimitRow:
    """Something that some GPUs cannot do. Where it is not `refused`, it is accepted and has no effect."""

    wish: str
    where: str
    refused: bool
    reason: str
    applies: Callable[[GpuFacts, PlannedUse], bool]


def compute_capability(gpu: GpuFacts) -> tuple[int, int]:
    """Major and minor. (0, 0) when the driver did not say anything that we understand: then nothing is promised."""
    major, dot, minor = gpu.cuda_compute_capability.partition(".")
    if not (dot and major.isdecimal() and minor.isdecimal()):
        return (0, 0)
    return (int(major), int(minor))


def _before_volta(gpu: GpuFacts) -> bool:
    return compute_capability(gpu) < VOLTA


def _sets_time_slice(wish: PlannedUse) -> bool:
    return wish.strategy == "TimeSlicing" and wish.sets_interval


LIMITS: tuple[LimitRow, ...] = (
    LimitRow(
        "a MIG device",
        "GPUs that cannot be partitioned",
        True,
        "this GPU has no MIG mode",
        lambda gpu, wish: wish.kind is DeviceKind.MIG and gpu.mig is None,
    ),
    LimitRow(
        "the full GPU",
        "GPUs that an administrator put into MIG mode",
        True,
        "the GPU is in MIG mode, where only its MIG devices can be used",
        lambda gpu, wish: wish.kind is DeviceKind.GPU and gpu.mig is not None and gpu.mig.enabled,
    ),
    LimitRow(
        "the GPU for a virtual machine",
        "GPUs without an IOMMU group of their own",
        True,
        "the node has no IOMMU, or it is off, or the GPU is not alone in its IOMMU group",
        lambda gpu, wish: wish.kind is DeviceKind.VFIO and gpu.passthrough is None,
    ),
    LimitRow(
        "the GPU for a virtual machine",
        "virtual GPUs, and GPUs that are hosts of virtual GPUs",
        True,
        "the GPU is virtual, or a host of virtual GPUs, and cannot be passed through as a whole",
        lambda gpu, wish: wish.kind is DeviceKind.VFIO and gpu.virtualization in ("VGPUGuest", "HostVGPU", "HostVSGA"),
    ),
    LimitRow(
        "the GPU for a virtual machine",
        "GPUs in MIG mode",
        True,
        "an administrator has enabled MIG mode, and only an administrator disables it",
        lambda gpu, wish: wish.kind is DeviceKind.VFIO and gpu.mig is not None and gpu.mig.enabled,
    ),
    LimitRow(
        "time-slicing or MPS",
        "GPUs for virtual machines",
        True,
        "the GPU is exclusive to a virtual machine, which can share it internally",
        lambda gpu, wish: wish.kind is DeviceKind.VFIO and wish.strategy is not None,
    ),
    LimitRow(
        "a time slice (`interval`)",
        "MIG devices",
        False,
        "the time slice of MIG devices cannot be set; programs take turns with the driver's default",
        lambda gpu, wish: wish.kind is DeviceKind.MIG and _sets_time_slice(wish),
    ),
    LimitRow(
        "a time slice (`interval`)",
        "GPUs below compute capability 7.0",
        True,
        "time slices can be set on compute capability 7.0 (Volta) and newer;"
        " without a sharing strategy, programs take turns on this GPU too",
        lambda gpu, wish: _sets_time_slice(wish) and _before_volta(gpu),
    ),
    LimitRow(
        "a time slice (`interval`)",
        "virtual GPUs",
        True,
        "only the host can set the time slice of a virtual GPU",
        lambda gpu, wish: _sets_time_slice(wish) and gpu.virtualization == "VGPUGuest",
    ),
    LimitRow(
        "MPS for programs of several users (`multiUser`)",
        "GPUs below compute capability 7.0",
        True,
        "MPS serves several users at once on compute capability 7.0 (Volta) and newer",
        lambda gpu, wish: wish.strategy == "MPS" and wish.multi_user and _before_volta(gpu),
    ),
    LimitRow(
        "MPS with limits of threads or memory",
        "GPUs below compute capability 7.0",
        True,
        "MPS limits need compute capability 7.0 (Volta) or newer",
        lambda gpu, wish: wish.strategy == "MPS" and wish.limits and _before_volta(gpu),
    ),
    LimitRow(
        f"MPS with more than {MPS_CLIENTS_BEFORE_VOLTA} clients",
        "GPUs below compute capability 7.0",
        True,
        f"MPS has at most {MPS_CLIENTS_BEFORE_VOLTA} clients on this GPU",
        lambda gpu, wish: wish.strategy == "MPS" and wish.clients > MPS_CLIENTS_BEFORE_VOLTA and _before_volta(gpu),
    ),
    LimitRow(
        f"MPS with more than {MPS_CLIENTS} clients",
        "all GPUs",
        True,
        f"MPS has at most {MPS_CLIENTS} clients on one device",
        lambda gpu, wish: wish.strategy == "MPS" and wish.clients > MPS_CLIENTS,
    ),
)


def unsupported(gpu: GpuFacts, wish: PlannedUse) -> str | None:
    """Why this GPU, or a device on it, cannot be used like this, as part of a sentence; None if it can."""
    limit_row = next((row for row in LIMITS if row.refused and row.applies(gpu, wish)), None)
    if limit_row is None:
        return None
    return f"{limit_row.reason} ({gpu.product_name}, compute capability {gpu.cuda_compute_capability})"


def without_effect(gpu: GpuFacts, wish: PlannedUse) -> str | None:
    """What is accepted here and changes nothing, as part of a sentence for a warning; None when all has an effect."""
    return next((row.reason for row in LIMITS if not row.refused and row.applies(gpu, wish)), None)
