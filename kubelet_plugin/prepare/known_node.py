"""What prepare knows of the node it is on: values that `kubelet_plugin.claims.service` fills from Discovery and the
policy."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from dra_driver.api.inventory import GpuFacts, Problem
from dra_driver.api.meta import JsonObject
from dra_driver.cdi.edits import DriverFiles
from dra_driver.cdi.model import DeviceNode
from dra_driver.devices.model import Offer
from dra_driver.errors import NodeNotReady
from dra_driver.features import Gates


@dataclass(frozen=True, slots=True)
class MetadataSource:
    """What device metadata is made of (`kubelet_plugin.prepare.metadata`)."""

    folder: str
    """Where its files are, on the host."""
    attributes: Callable[[Offer], JsonObject]
    """What a device is published with, as in its ResourceSlice."""


@dataclass(frozen=True, slots=True)
class KnownNode:
    """What this node is and has. `offers` is the table from published name to hardware, or why it is not known; what
    claims have already does not need it. `gpus` is by UUID."""

    driver: str
    pool: str
    boot_id: str
    offers: Mapping[str, Offer] | NodeNotReady
    gpus: Mapping[str, GpuFacts]
    problems: tuple[Problem, ...] = ()
    lost: frozenset[str] = frozenset()
    """UUIDs of MIG devices that claims have and that no longer exist; other devices may have their ids now."""
    undecided: tuple[str, ...] = ()
    """GPUs whose devices are not in the table, because the publisher has not decided about them yet."""
    gates: Gates = Gates.DEFAULT
    """What claims may ask for in this cluster."""
    metadata: MetadataSource | None = None
    """None: no claim has device metadata."""

    def table(self) -> Mapping[str, Offer]:
        """`offers`. Raises NodeNotReady."""
        if isinstance(self.offers, NodeNotReady):
            raise self.offers
        return self.offers


type GpuNodes = Callable[[str], tuple[DeviceNode, ...]]
"""The device nodes of a GPU by its UUID. Raises NodeNotReady that says what is missing."""


type MigNodes = Callable[[str, int, int, int], tuple[DeviceNode, ...]]
"""The device nodes of a MIG device, by GPU UUID, the GPU's minor, and the ids of GPU instance and compute instance: the
GPU's own node and the two capabilities. Raises NodeNotReady that says what is missing."""


type HostNode = Callable[[str], DeviceNode | None]
"""Any device node of the host by its path, with its numbers; None when there is none."""


@dataclass(frozen=True, slots=True)
class ContainerFiles:
    """What containers need to use the GPUs: the driver's files, and the device nodes of a GPU, which are looked at when
    they are needed."""

    driver: DriverFiles
    gpu_nodes: GpuNodes
    mig_nodes: MigNodes
    host_node: HostNode
    taken: Mapping[str, str] = field(default_factory=dict)
    """Which claim of another driver has a GPU, by its UUID."""
    readable: str | None = None
    """The highest CDI version that the container runtime reads; None when that is not known."""

    def nodes_there(self, gpu_uuid: str) -> tuple[DeviceNode, ...]:
        """The device nodes of a GPU; none if its own is missing."""
        try:
            return self.gpu_nodes(gpu_uuid)
        except NodeNotReady:
            return ()


class CurrentNode(Protocol):
    """The node as it is now."""

    def node(self) -> KnownNode:
        """The table of devices as it was last seen. Raises NodeNotReady before the hardware was ever seen."""

    def boot_id(self) -> str:
        """Of the present boot. Raises NodeNotReady before the hardware was ever seen."""

    async def look_again(self) -> KnownNode:
        """The table of devices, read from the hardware now. Raises NodeNotReady."""

    def files(self) -> Awaitable[ContainerFiles]:
        """The driver's files and device nodes. Raises NodeNotReady that says what is missing; nothing bad is kept."""
