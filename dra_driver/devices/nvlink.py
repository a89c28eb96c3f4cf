"""NVLink: which GPUs of a node reach each other, and how far.

A GPU is in at most one NVLink domain, and a domain is a set in which every GPU reaches every other over NVLink; so
claims can ask for "all on one NVLink domain" by comparing one string.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dra_driver.api.inventory import GpuFacts


@dataclass(frozen=True, slots=True)
class NodeFabric:
    """How a node stands to its multi-node NVLink. `clique` is empty where NVLink does not leave the machine.

    `problem` says why the fabric cannot be used now, None when it can, or when there is none; `reason` is the same in
    CamelCase.
    """

    clique: str = ""
    reason: str | None = None
    problem: str | None = None


class FabricState(StrEnum):
    """How one GPU stands to the NVLink fabric that it is attached to."""

    COMPLETE = "complete"
    NOT_REGISTERED = "not-registered"
    REFUSED = "refused"
    UNHEALTHY = "unhealthy"


def state_of(gpu: GpuFacts) -> FabricState | None:
    """None for a GPU that is attached to no fabric."""
    fabric = gpu.fabric
    if fabric is None:
        return None
    if fabric.state != "Completed":
        return FabricState.NOT_REGISTERED
    if fabric.status != 0:
        return FabricState.REFUSED
    return FabricState.UNHEALTHY if fabric.health == "Unhealthy" else FabricState.COMPLETE


def fabric_of(gpus: Sequence[GpuFacts]) -> NodeFabric:
    """Of all GPUs of one node. All of them must be registered, with one clique: a program that shares memory with
    other machines may use any of them. Source: nvmlDeviceGetGpuFabricInfoV; the rules are NVIDIA's."""
    for gpu in gpus:
        state, fabric = state_of(gpu), gpu.fabric
        if fabric is not None and state is FabricState.NOT_REGISTERED:
            text = f"{gpu.name} is not registered with its NVLink fabric yet ({fabric.state}); see the fabric manager"
            return NodeFabric("", "FabricNotRegistered", text)
        if fabric is not None and state is FabricState.REFUSED:
            text = f"the NVLink fabric refused {gpu.name} (NVML code {fabric.status}); see the fabric manager"
            return NodeFabric("", "FabricRefused", text)
    cliques = sorted({gpu.fabric.clique or "" for gpu in gpus if gpu.fabric is not None})
    without = [gpu.name for gpu in gpus if gpu.fabric is None]
    if len(cliques) > 1 or (cliques and cliques != [""] and without):
        named = ", ".join(clique or "none" for clique in [*cliques, *([""] if without else [])])
        return NodeFabric("", "MixedCliques", f"the node's GPUs are in several NVLink cliques: {named}")
    ill = [gpu.name for gpu in gpus if state_of(gpu) is FabricState.UNHEALTHY]
    clique = cliques[0] if cliques else ""
    if clique and ill:
        text = f"the NVLink fabric reports these as unhealthy: {', '.join(ill)}"
        return NodeFabric(clique, "FabricUnhealthy", text)
    return NodeFabric(clique)


def nvlink_domains(gpus: Sequence[GpuFacts]) -> dict[str, str]:
    """GPU UUID to the name of its NVLink domain, for the GPUs of one node that are in one.

    The name is the clique, `<cluster UUID>.<clique id>`, where NVLink spans machines, and otherwise the smallest UUID
    of the domain: unique in the cluster. GPUs whose NVLinks do not make a full mesh are in no domain, for "all
    connected" would not be true of them; nor is a GPU in MIG mode, whose partitions cannot use NVLink.
    """
    domains = {gpu.uuid: gpu.fabric.clique for gpu in gpus if gpu.fabric is not None and gpu.fabric.clique is not None}
    reachable = {
        gpu.uuid: frozenset(gpu.nvlink.peers)
        for gpu in gpus
        if gpu.uuid not in domains and gpu.nvlink is not None and _can_use_nvlink(gpu)
    }
    for component in _components(reachable):
        if len(component) > 1 and all(reachable[uuid] >= component - {uuid} for uuid in component):
            domains.update(dict.fromkeys(component, min(component)))
    return {gpu.uuid: domains[gpu.uuid] for gpu in gpus if gpu.uuid in domains and not _in_mig_mode(gpu)}


def _can_use_nvlink(gpu: GpuFacts) -> bool:
    # Behind NVSwitches the links are up before the fabric manager has registered the GPU, but carry nothing.
    registered = gpu.fabric is None or (gpu.fabric.state == "Completed" and gpu.fabric.status == 0)
    return registered and not _in_mig_mode(gpu)


def _in_mig_mode(gpu: GpuFacts) -> bool:
    return gpu.mig is not None and gpu.mig.enabled


def _components(reachable: Mapping[str, frozenset[str]]) -> list[frozenset[str]]:
    """Connected components; a link counts when both ends are known and either end reports it."""
    neighbors = {uuid: set(peers & reachable.keys()) for uuid, peers in reachable.items()}
    for uuid, peers in reachable.items():
        for peer in peers & reachable.keys():
            neighbors[peer].add(uuid)
    components: list[frozenset[str]] = []
    left = set(reachable)
    while left:
        component: set[str] = set()
        border = {min(left)}
        while border:
            component |= border
            border = set().union(*(neighbors[uuid] for uuid in border)) - component
        components.append(frozenset(component))
        left -= component
    return components
