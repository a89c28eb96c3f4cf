"""What a node offers: every published device with the piece of hardware that it stands for.

Two sides ask here and must get the same answer: the publisher, which describes the devices (`dra_driver.slices`), and
the node plugin, which finds the hardware of a device that a claim was allocated. Names are made here from identities
and are never parsed.

Hardware is one GPU, a place on it where a MIG device is or can be made, or the GPU as a PCI function for a virtual
machine. A device is a piece of hardware, or one of several shares of it.
"""

from dataclasses import dataclass
from enum import Enum

from dra_driver.api.inventory import ComputeInstanceFacts, GpuFacts, MigProfileFacts
from dra_driver.api.policy import SharingRule


class DeviceKind(Enum):
    """Attribute `type` of the device."""

    GPU = "gpu"
    MIG = "mig"
    VFIO = "vfio"


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """A place for a MIG device on a GPU: where, and of what profile. Identity of hardware, with the GPU's UUID.

    `start` and `size` are in memory slices. A compute instance that fills its GPU instance has `compute_slices` None;
    one that is a part has its own number of compute slices, and `compute_start` counts from the GPU instance's first.
    """

    profile: str
    """Of the GPU instance: `3g.40gb`, also for a compute instance that is a part of it."""
    start: int
    size: int
    compute_slices: int | None = None
    compute_start: int = 0

    @property
    def name(self) -> str:
        """The profile as users write it: `3g.40gb`, `1c.3g.40gb`."""
        return self.profile if self.compute_slices is None else f"{self.compute_slices}c.{self.profile}"

    def overlaps(self, other: "Partition") -> bool:
        """Whether both cannot exist at once: they share memory slices, and are not parts of one GPU instance."""
        if self.start >= other.start + other.size or other.start >= self.start + self.size:
            return False
        same_instance = (self.profile, self.start, self.size) == (other.profile, other.start, other.size)
        if not same_instance or self.compute_slices is None or other.compute_slices is None:
            return True
        return (
            self.compute_start < other.compute_start + other.compute_slices
            and other.compute_start < self.compute_start + self.compute_slices
        )


@dataclass(frozen=True, slots=True)
class Offer:
    """One device that can be published. `gpu` is the physical GPU that it is, or is a part of."""

    name: str
    kind: DeviceKind
    gpu: GpuFacts
    partition: Partition | None = None
    """For MIG devices."""
    profile: MigProfileFacts | None = None
    """Of the partition's GPU instance, if the driver reports it."""
    existing: ComputeInstanceFacts | None = None
    """The MIG device, where an administrator made it (static); None for one that is made on demand (dynamic)."""
    sharing: SharingRule | None = None
    """None: for one claim at a time."""
    share: int | None = None
    """Number of this share, where shares are separate devices: on clusters without consumable capacity."""

    @property
    def memory_bytes(self) -> int | None:
        """Of the whole device, also if this is a share of it; None if the driver does not report it."""
        if self.partition is None:
            return self.gpu.memory_bytes
        if self.existing is not None and self.existing.memory_bytes is not None:
            return self.existing.memory_bytes
        return self.profile.memory_bytes if self.profile is not None else None
