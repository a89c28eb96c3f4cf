"""Fabric partitions: what Fabric Manager says of them becomes facts of GPUs, or a problem of the node.

`kubelet_plugin.facts.hardware` enters here at each look. While NVSwitches are shared, NVML's answers about NVLink and
the fabric change with each activation, so these facts are left out: facts do not change with each claim.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dra_driver.api.inventory import FABRIC_MANAGER_SUBJECT, FabricPartitionFacts, GpuFacts, Problem
from dra_driver.errors import NodeNotReady
from kubelet_plugin.hardware.nvfm import FabricManager, FabricPartitionNow, FmCode, PartitionMember


@dataclass(frozen=True, slots=True)
class FabricAnswer:
    """What Fabric Manager answered: partitions, sorted by ID; or why there is no answer (`problem`), or why there are
    no partitions (`warning`). Nothing at all on a node without NVSwitches of its own."""

    partitions: tuple[FabricPartitionNow, ...] = ()
    problem: Problem | None = None
    warning: Problem | None = None

    @property
    def active(self) -> frozenset[int]:
        return frozenset(partition.id for partition in self.partitions if partition.active)


def answer_of(manager: FabricManager) -> FabricAnswer:
    """Ask it; blocks for as long as `FabricManager.glance` does. Never raises for the state of the node."""
    if not manager.is_needed():
        return FabricAnswer()
    try:
        return FabricAnswer(manager.glance())
    except NodeNotReady as error:
        code = getattr(error, "code", None)
        if code == FmCode.NOT_SUPPORTED:
            text = "there are no fabric partitions, because Fabric Manager does not run with FABRIC_MODE=1"
            return FabricAnswer(warning=_problem("NotShared", text))
        reason = "NotResponding" if code == FmCode.TIMEOUT else "NotUsable"
        return FabricAnswer(problem=_problem(reason, f"the node's fabric partitions are not known: {error.message}"))


def partitioned(gpus: Sequence[GpuFacts], answer: FabricAnswer) -> tuple[GpuFacts, ...]:
    """The GPUs with their partitions, in the same order."""
    is_member = _matcher(answer)
    return tuple(_partitioned(gpu, answer, is_member) for gpu in gpus)


type _IsMember = Callable[[PartitionMember, GpuFacts], bool]


def _matcher(answer: FabricAnswer) -> _IsMember:
    """By UUID or PCI address. If Fabric Manager says neither of any GPU, as on H100 and later, its numbers are NVML's
    module IDs; on A100 they are not. Source: Fabric Manager User Guide, "Data Structures"."""
    members = [member for partition in answer.partitions for member in partition.members]
    if any(member.uuid or member.pci_bus_id for member in members):
        return lambda member, gpu: gpu.uuid == member.uuid if member.uuid else gpu.pci_bus_id == member.pci_bus_id
    return lambda member, gpu: gpu.module_id == member.physical_id


def _partitioned(gpu: GpuFacts, answer: FabricAnswer, is_member: _IsMember) -> GpuFacts:
    parts = [
        FabricPartitionFacts(id=partition.id, size=len(partition.members))
        for partition in answer.partitions
        if any(is_member(member, gpu) for member in partition.members)
    ]
    if not parts:
        # Of a GPU that is lent, Fabric Manager may know no identity. Then these facts are the earlier ones.
        offered = {(partition.id, len(partition.members)) for partition in answer.partitions}
        parts = [part for part in gpu.fabric_partitions if (part.id, part.size) in offered]
    if not parts:
        return gpu.model_copy(update={"fabric_partitions": []}) if gpu.fabric_partitions else gpu
    ordered = sorted(parts, key=lambda part: (part.size, part.id))
    return gpu.model_copy(update={"fabric_partitions": ordered, "fabric": None, "nvlink": None})


def _problem(reason: str, message: str) -> Problem:
    return Problem(subject=FABRIC_MANAGER_SUBJECT, reason=reason, message=message)
