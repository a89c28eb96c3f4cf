"""A claim service over real files, with an API server, hardware facts and a CDI folder that can be told to fail."""

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from support.claims import NODE, FakeClaims, FakeFacts, a_gpu, node_facts
from support.fake_effects import FakeHardware
from support.inventories import mig

from dra_driver.api.inventory import GpuFacts
from dra_driver.api.policy import PublishingPolicy
from dra_driver.cdi.edits import DriverFile, DriverFiles, Link
from dra_driver.cdi.model import DeviceNode
from dra_driver.errors import DriverError, NodeNotReady
from dra_driver.features import Gates
from dra_driver.names import GPU_DRIVER, ClaimRef
from dra_driver.runtime.files import StagedFile, names
from kubelet_plugin.claims.service import ClaimService, NodeSources, ServicePatience
from kubelet_plugin.facts.hardware import NodeFacts
from kubelet_plugin.facts.offers import NodeOffers, NodeRules
from kubelet_plugin.prepare.cdi_files import METADATA_FOLDER, CdiFiles
from kubelet_plugin.prepare.claim_reads import ClaimReader
from kubelet_plugin.prepare.execute import Executor
from kubelet_plugin.prepare.holds import Effects
from kubelet_plugin.prepare.journal import Journal
from kubelet_plugin.prepare.known_node import ContainerFiles, GpuNodes
from kubelet_plugin.prepare.lifecycle import PreparedDevice
from kubelet_plugin.prepare.store import JournalFile, JournalStore

DRIVER_FILES = DriverFiles(
    version="580.105.08",
    machine="x86_64",
    libraries=(DriverFile("/usr/lib64/libcuda.so.580.105.08", "/usr/lib64/libcuda.so.580.105.08"),),
    links=(Link("/usr/lib64/libcuda.so.1", "libcuda.so.580.105.08"),),
    library_folders=("/usr/lib64",),
    cuda_folders=("/usr/lib64",),
    files=(),
    sockets=(),
    control_nodes=(DeviceNode("/dev/nvidiactl", type="c", major=195, minor=255),),
)


MADE_ON_DEMAND = {"mig": [{"mode": "Dynamic"}]}


def given_nodes(nodes: Mapping[str, tuple[DeviceNode, ...]], why: str = "has no device node now") -> GpuNodes:
    """Those of GPUs by UUID; any other GPU's are missing."""

    def gpu_nodes(uuid: str) -> tuple[DeviceNode, ...]:
        if uuid not in nodes:
            raise NodeNotReady(why, about=f"GPU {uuid}")
        return nodes[uuid]

    return gpu_nodes


def no_mig_nodes(gpu_uuid: str, minor: int, gpu_instance: int, compute_instance: int) -> tuple[DeviceNode, ...]:
    raise NodeNotReady("there are no device nodes for MIG devices on this node", about=f"GPU {gpu_uuid}")


def mig_nodes(gpu_uuid: str, minor: int, gpu_instance: int, compute_instance: int) -> tuple[DeviceNode, ...]:
    return (DeviceNode(f"/dev/nvidia-caps/nvidia-cap{gpu_instance}", type="c", major=236, minor=gpu_instance),)


def no_host_node(path: str) -> DeviceNode | None:
    return None


class FailingCdiFiles(CdiFiles):
    """The real files. `fail` maps a method's name to what its calls raise."""

    def __init__(self, folder: Path, metadata: Path) -> None:
        super().__init__(folder, GPU_DRIVER, metadata)
        self.fail: dict[str, DriverError] = {}

    def stage(self, claim_uid: str, content: bytes) -> StagedFile:
        self._check("stage")
        return super().stage(claim_uid, content)

    def publish(self, staged: Collection[StagedFile]) -> None:
        try:
            self._check("publish")
        except DriverError:
            for file in staged:
                file.discard()
            raise
        super().publish(staged)

    def remove(self, claim_uid: str) -> None:
        self._check("remove")
        super().remove(claim_uid)

    def _check(self, method: str) -> None:
        if method in self.fail:
            raise self.fail[method]


@dataclass
class Bench:
    """One node's folders and surroundings; `plugin()` is one process on it."""

    root: Path
    api: FakeClaims = field(default_factory=FakeClaims)
    facts: FakeFacts = field(default_factory=FakeFacts)
    not_ready: DriverError | None = None
    """Why the driver's files cannot be used now."""
    driver_files: DriverFiles = DRIVER_FILES
    without_node: Collection[str] = ()
    """UUIDs of the GPUs whose device node is missing."""
    policy: PublishingPolicy | None = PublishingPolicy.EVERYTHING
    effects: Effects = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.root / "cdi").mkdir(parents=True, exist_ok=True)
        self.cdi = FailingCdiFiles(self.root / "cdi", self.metadata)

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def metadata(self) -> Path:
        return self.state / METADATA_FOLDER

    def container_files(self, facts: NodeFacts) -> ContainerFiles:
        if self.not_ready is not None:
            raise self.not_ready
        nodes = {
            gpu.uuid: (DeviceNode(f"/dev/nvidia{gpu.minor}", type="c", major=195, minor=gpu.minor),)
            for gpu in facts.gpus
            if gpu.uuid not in self.without_node
        }
        return ContainerFiles(self.driver_files, given_nodes(nodes), no_mig_nodes, no_host_node)

    def service(self, **changes: Any) -> ClaimService:
        """`changes` are parts of it, and times of `ServicePatience`, by their names."""
        values: dict[str, Any] = {
            "journal": JournalStore(self.state),
            "cdi": self.cdi,
            "effects": self.effects,
            "driver": GPU_DRIVER,
            "listener": None,
            "pods": None,
            "gates": Gates.DEFAULT,
            "holder_s": 0.0,
            "api_s": 0.0,
            **changes,
        }
        pods, listener = values["pods"], values["listener"]
        offers = NodeOffers(NodeRules(self.policy), NODE)
        return ClaimService(
            ClaimReader(self.api, saw=None if pods is None else pods.saw),
            NodeSources(
                values["driver"], NODE, self.facts, self.container_files, offers, values["gates"], self.metadata
            ),
            Executor(values["journal"], values["cdi"], values["effects"], listener),
            listener,
            ServicePatience(**{name: value for name, value in values.items() if name.endswith("_s")}),
        )

    @asynccontextmanager
    async def plugin(self, **changes: Any) -> AsyncIterator[ClaimService]:
        """A started service, closed at the end."""
        service = self.service(**changes)
        await service.start()
        try:
            yield service
        finally:
            await service.close()

    @property
    def claims_with_file(self) -> Collection[str]:
        return self.cdi.claims()

    @property
    def files(self) -> list[str]:
        """Everything in the CDI folder and in that of device metadata, temporary files too."""
        return sorted(name for folder in (self.cdi.folder, self.metadata) for name in names(folder))


class DividedBench(Bench):
    """GPU 0 in parts that are made on demand, beside `others`. `rules` are those of the node's policy."""

    def __init__(self, root: Path, *others: GpuFacts, rules: Any = MADE_ON_DEMAND) -> None:
        self.hardware = FakeHardware()
        super().__init__(
            root,
            facts=FakeFacts(node_facts([a_gpu(0, mig=mig()), *others])),
            policy=PublishingPolicy.of(rules),
            effects=self.hardware.effects,
        )

    def container_files(self, facts: NodeFacts) -> ContainerFiles:
        return replace(super().container_files(facts), mig_nodes=mig_nodes)

    @property
    def journal(self) -> Journal:
        return JournalFile(self.state).current()

    @property
    def is_clean(self) -> bool:
        return (self.journal.held, self.journal.holds, self.files) == ({}, {}, [])


async def prepare_one(service: ClaimService, ref: ClaimRef) -> Sequence[PreparedDevice]:
    """The devices of one claim; raises its error."""
    answer = (await service.prepare([ref]))[ref.uid]
    if isinstance(answer, DriverError):
        raise answer
    return answer


async def unprepare_one(service: ClaimService, ref: ClaimRef) -> None:
    """Raises the claim's error."""
    error = (await service.unprepare([ref]))[ref.uid]
    if error is not None:
        raise error
