"""All of one node in one process: the plugin's services over a simulated host, the publisher and a scheduler."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from support.allocation import device_class, snapshot
from support.claims import NODE, FakeClaims
from support.nodes import Node
from support.prepared import prepare_one, unprepare_one

from dra_driver.allocation.nodes import NodeView
from dra_driver.allocation.search import Allocated, allocate
from dra_driver.allocation.snapshot import PublishedSlice
from dra_driver.api.inventory import NodeInventorySpec
from dra_driver.api.meta import JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import Allocation, ResourceClaim, ResourceSlice
from dra_driver.features import Feature, Gates
from dra_driver.names import GPU_DRIVER, ClaimRef
from dra_driver.slices.describe import described_devices
from dra_driver.slices.diff import CreateSlice, NodeRef, new_object, wanted_pool
from dra_driver.slices.features import ALL_FEATURES, ServerFeatures
from dra_driver.slices.layout import Places, slice_layout
from kubelet_plugin.claims.node_effects import CurrentFootprint, NodeMachine, effects_of
from kubelet_plugin.claims.service import ClaimService, NodeSources
from kubelet_plugin.effects.mps import MpsDaemons
from kubelet_plugin.effects.on_host import OnHost
from kubelet_plugin.facts.container_files import container_files_of
from kubelet_plugin.facts.discovery import Discovery
from kubelet_plugin.facts.fabric_answers import FabricAnswer, answer_of
from kubelet_plugin.facts.hardware import Hardware
from kubelet_plugin.facts.offers import NodeOffers, NodeRules
from kubelet_plugin.hardware.driver_programs import DriverPrograms
from kubelet_plugin.hardware.driver_root import DriverInstallation
from kubelet_plugin.hardware.nvfm import FabricManager
from kubelet_plugin.prepare.cdi_files import CdiFiles
from kubelet_plugin.prepare.claim_reads import ClaimReader
from kubelet_plugin.prepare.execute import Executor
from kubelet_plugin.prepare.store import JournalStore
from kubelet_plugin.reporting.reporter import wanted_spec
from kubelet_plugin.simulation.nvfm import SimulatedFabricLibrary
from kubelet_plugin.simulation.vfio import SimulatedKernel

ANY = device_class("any", f"device.driver == '{GPU_DRIVER}'")
OWN = f"device.attributes['{GPU_DRIVER}']"
POD = {"resource": "pods", "name": "pod", "uid": "uid-of-pod"}


@dataclass
class WholeNode:
    """The service of one node, wired as `kubelet_plugin.main` wires it, with scheduler and publisher."""

    node: Node
    policy: PublishingPolicy
    discovery: Discovery
    claims: ClaimService
    api: FakeClaims
    features: ServerFeatures
    folder: Path
    held: dict[ClaimRef, Allocation] = field(default_factory=dict)

    async def slices(self) -> tuple[JsonObject, ...]:
        """What the publisher makes of the node now."""
        facts = await self.discovery.observe()
        spec = NodeInventorySpec.of(wanted_spec(NODE, facts, {}))
        described = described_devices(spec, self.policy, {}, GPU_DRIVER, self.features)
        pool = wanted_pool(GPU_DRIVER, NodeRef(NODE, "uid"), slice_layout(described.gpus, Places(), self.features))
        return tuple(new_object(pool, CreateSlice(item, 1, len(pool.slices))) for item in pool.slices)

    def allocated(self, slices: Sequence[JsonObject], claim: ResourceClaim) -> Allocation | None:
        """As a scheduler that sees `slices` and what other claims hold."""
        world = snapshot(*(_published(item) for item in slices), classes=[ANY], held=list(self.held.values()))
        result = allocate([claim], NodeView(NODE, {}), world)
        return result.allocations[0] if isinstance(result, Allocated) else None

    async def prepare(self, claim: ResourceClaim, allocation: Allocation) -> ClaimRef:
        body = {**claim.to_wire(), "status": {"allocation": allocation.to_wire(), "reservedFor": [POD]}}
        ref = self.api.put(body)
        self.held[ref] = allocation
        assert await prepare_one(self.claims, ref)
        return ref

    async def unprepare(self, ref: ClaimRef) -> None:
        await unprepare_one(self.claims, ref)
        self.api.remove(ref)
        del self.held[ref]


def _published(obj: JsonObject) -> PublishedSlice:
    name = obj["metadata"]["generateName"]
    return PublishedSlice(ResourceSlice.of({**obj, "metadata": {**obj["metadata"], "name": name}}))


@asynccontextmanager
async def whole_node(
    folder: Path,
    node: Node,
    policy: PublishingPolicy,
    features: ServerFeatures = ALL_FEATURES,
    gates: Gates = Gates.DEFAULT,
    api: FakeClaims | None = None,
) -> AsyncIterator[WholeNode]:
    """A plugin process on `node`, with files in `folder`, where an earlier one of the same API may have left some."""
    driver = DriverInstallation(node.files)
    journal = JournalStore(folder / "state")
    library = SimulatedFabricLibrary(node.host.root)
    fabric = FabricManager(node.files, driver.root, load=lambda _: library)
    answer = partial(answer_of, fabric) if Feature.FABRIC_PARTITIONS in gates else FabricAnswer
    hardware = Hardware(node.files, node.open_nvml, CurrentFootprint(journal, node.files), fabric=answer)
    discovery, api = Discovery(hardware), api or FakeClaims()
    await discovery.observe()
    kernel = SimulatedKernel(node.host.root)
    machine = NodeMachine(node.files, OnHost.simulated(node.files), kernel, kernel)
    programs = DriverPrograms(node.files, driver.root)
    daemons = MpsDaemons(folder / "mps", machine.on_host, programs)
    (folder / "cdi").mkdir(exist_ok=True)
    effects = effects_of(machine, hardware, programs, daemons, nullcontext, fabric)
    offers = NodeOffers(NodeRules(policy), NODE)
    claims = ClaimService(
        ClaimReader(api),
        NodeSources(
            GPU_DRIVER, NODE, discovery, partial(container_files_of, driver), offers, gates, folder / "metadata"
        ),
        Executor(journal, CdiFiles(folder / "cdi", GPU_DRIVER, folder / "metadata"), effects),
    )
    loop = asyncio.get_running_loop()

    def reopened() -> None:
        loop.call_soon_threadsafe(claims.settings_may_be_lost)

    hardware.when_reopened(reopened)
    await claims.start()
    try:
        yield WholeNode(node, policy, discovery, claims, api, features, folder)
    finally:
        await claims.close()
        await journal.close()
