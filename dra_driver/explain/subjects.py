"""What can be explained, how people name it, and which explanation it gets; and the explanation of a node or GPU: who
uses it, what is wrong with it, and what to do. Pure.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dra_driver.allocation.world import PodClaim, World, claim_key, claims_of
from dra_driver.api.core import Key
from dra_driver.api.inventory import GpuFacts
from dra_driver.api.meta import NODE_INVENTORIES, NODES
from dra_driver.api.resource import ResourceClaim
from dra_driver.errors import InvalidInput, NoSuchObject
from dra_driver.explain.driver_findings import limitation_findings, waiting_findings
from dra_driver.explain.explain import (
    Answer,
    ClaimState,
    Explanation,
    Scope,
    claim_state,
    explain_claim,
    explain_pod,
    refuse_unread,
)
from dra_driver.explain.findings import WaitFinding, plugin_findings, pool_findings
from dra_driver.explain.running import fault_findings, faults_of_gpu, node_findings, uuids_of
from dra_driver.explain.workloads import Workload, WorkloadExplanation, explain_workload
from dra_driver.names import DeviceId
from dra_driver.phrases import and_more, how_many, meant


class ExplainedKind(StrEnum):
    POD = "pod"
    CLAIM = "claim"
    NODE = "node"
    GPU = "gpu"
    WORKLOAD = "workload"


_WORDS = {
    **dict.fromkeys(("po", "pod", "pods"), ExplainedKind.POD),
    **dict.fromkeys(("claim", "claims", "resourceclaim", "resourceclaims"), ExplainedKind.CLAIM),
    **dict.fromkeys(("no", "node", "nodes"), ExplainedKind.NODE),
    **dict.fromkeys(("gpu", "gpus"), ExplainedKind.GPU),
}
"""What kubectl takes for the kind, and our own words."""
_WORKLOADS = {
    word: kind
    for kind, short in (
        ("Deployment", "deploy"),
        ("StatefulSet", "sts"),
        ("DaemonSet", "ds"),
        ("ReplicaSet", "rs"),
        ("Job", "job"),
        ("CronJob", "cj"),
        ("JobSet", "jobset"),
    )
    for word in (short, kind.lower(), f"{kind.lower()}s")
}
WORDS = ["pod", "claim", "node", "gpu", *(word for word, kind in _WORKLOADS.items() if word == kind.lower())]
"""The kinds, each by one word."""
SAY_WHAT = "say what to explain: pod, claim, node, gpu, deployment, job or jobset NAME (pod/NAME), or files with -f"


@dataclass(frozen=True, slots=True)
class Subject:
    """What to explain. `workload` is the kind of a workload."""

    kind: ExplainedKind
    name: str
    workload: str = ""


type Explained = Explanation | WorkloadExplanation


def parts_of(explained: Explained) -> tuple[Explanation, ...]:
    """Of a workload, those of its pods."""
    return explained.parts if isinstance(explained, WorkloadExplanation) else (explained,)


def subject_of(kind: str, name: str | None = None) -> Subject:
    """Of `pod` and `NAME`, or of `pod/NAME` as kubectl has it. Raises InvalidInput for anything else."""
    word, slash, rest = kind.partition("/")
    workload = _WORKLOADS.get(word.lower(), "")
    kind_of = ExplainedKind.WORKLOAD if workload else _WORDS.get(word.lower())
    if kind_of is None:
        raise InvalidInput(f"cannot explain {word!r}; {SAY_WHAT}", about="dractl explain")
    if slash and rest and name is not None:
        raise InvalidInput(f"one at a time: {kind} or {name}", about="dractl explain")
    named = rest if slash else name
    if not named:
        raise InvalidInput(SAY_WHAT, about="dractl explain")
    return Subject(kind_of, named, workload)


def explained(
    world: World,
    workloads: Sequence[Workload],
    subject: Subject | None,
    namespace: str | None,
    scope: Scope,
) -> list[Explained]:
    """The subject, or all that waits. Raises InvalidInput for a subject that does not exist."""
    unknown = [node for node in scope.devices_of or () if node not in world.nodes]
    if unknown:
        raise NoSuchObject(f"there is no node {unknown[0]}", about="--node")
    if subject is not None and subject.kind is ExplainedKind.GPU:
        return [*explain_gpu(world, subject.name)]
    if subject is not None and subject.kind is ExplainedKind.NODE:
        return [explain_node(world, subject.name)]
    key = (namespace or "default", subject.name if subject is not None else "")
    match subject:
        case Subject(ExplainedKind.POD):
            return [explain_pod(world, key, scope)]
        case Subject(ExplainedKind.CLAIM):
            return [explain_claim(world, key, scope)]
        case Subject(workload=kind):
            chosen = [workload for workload in workloads if (workload.kind, workload.key) == (kind, key)]
            if not chosen:
                raise NoSuchObject("there is none in the files", about=f"{kind} {'/'.join(key)}")
            return [explain_workload(world, chosen[0], scope)]
    return _all_that_waits(world, workloads, namespace, scope)


def _all_that_waits(
    world: World, workloads: Sequence[Workload], namespace: str | None, scope: Scope
) -> list[Explained]:
    """Pods of workloads together, other pods, and claims that no pod uses."""
    together = {key: workload for workload in workloads for key in workload.pods if len(workload.pods) > 1}
    answers: dict[Key | Workload, Explained] = {}
    used: set[Key] = set()
    for pod in world.pods.values():
        used |= {claim_key(entry.claim) for entry in claims_of(world, pod) if entry.claim is not None}
        if not pod.waits or namespace not in (None, pod.namespace):
            continue
        workload = together.get(pod.key)
        if workload is None:
            answers[pod.key] = explain_pod(world, pod.key, scope)
        elif workload not in answers:
            answers[workload] = explain_workload(world, workload, scope)
    alone = [
        key
        for key, claim in world.claims.items()
        if claim.status.allocation is None and key not in used and namespace in (None, key[0])
    ]
    return [*answers.values(), *(explain_claim(world, key, scope) for key in alone)]


_MOST_NAMED = 4


def explain_node(world: World, name: str) -> Explanation:
    """Raises NoSuchObject if the world has no such node, Rejected if that is because nodes may not be listed."""
    if name not in world.nodes:
        refuse_unread(world, NODES, f"node {name}")
        raise NoSuchObject(f"there is no such node{meant(name, world.nodes)}", about=f"node {name}")
    gpus, view = world.gpus.get(name, ()), world.nodes[name]
    faults = [fault for gpu in gpus for fault in faults_of_gpu(world, name, gpu)]
    findings = [
        *node_findings(world, name),
        *fault_findings(faults, None),
        *plugin_findings(world, [name]),
        *pool_findings(world, [view]),
        *limitation_findings(world, name),
        *waiting_findings(world, [name]),
    ]
    if view.unschedulable:
        fix = f"If it should get pods again: kubectl uncordon {name}."
        findings.append(WaitFinding("cordoned", f"node {name}", "is cordoned: no new pod comes", fix))
    devices = frozenset(id_ for id_, (node, _) in world.devices.items() if node == name)
    unhealthy = {fault.name for fault in faults if fault.critical}
    return _explanation(world, "Node", name, name, _summary(world, name, len(unhealthy), devices), devices, findings)


def _summary(world: World, node: str, unhealthy: int, devices: Collection[DeviceId]) -> str:
    gpus = world.gpus.get(node)
    if gpus is None:
        return f"Node {node} publishes {len(devices)} devices; its NodeInventory is not known."
    held = sum(bool(_claims_with(world, _devices_of(world, node, gpu))) for gpu in gpus)
    products = and_more(list(dict.fromkeys(gpu.product_name for gpu in gpus)), _MOST_NAMED)
    return f"Node {node} has {len(gpus)} GPUs{f' ({products})' if gpus else ''}: {held} used, {unhealthy} unhealthy."


def explain_gpu(world: World, name: str) -> tuple[Explanation, ...]:
    """Of the GPUs with this name (`gpu-5a7b8d0e`, alone or after `NODE/`), UUID or PCI address; of simulated nodes
    there may be several. Raises NoSuchObject if there is none, Rejected if that is because inventories may not be
    listed."""
    node_name, _, gpu_name = name.rpartition("/")
    matching = [
        (node, gpu)
        for node, gpus in sorted(world.gpus.items())
        for gpu in gpus
        if gpu_name in (gpu.name, gpu.uuid, gpu.pci_bus_id) and node_name in ("", node)
    ]
    if not matching:
        refuse_unread(world, NODE_INVENTORIES, f"GPU {name}")
        known = [gpu.name for gpus in world.gpus.values() for gpu in gpus]
        hint = meant(gpu_name, known) or "; dractl get devices lists them"
        unread = "" if known else "; NodeInventories are not known, or not readable for you"
        raise NoSuchObject(f"there is no such GPU{unread or hint}", about=f"GPU {name}")
    return tuple(_of_gpu(world, node, gpu) for node, gpu in matching)


def _of_gpu(world: World, node: str, gpu: GpuFacts) -> Explanation:
    faults = list(faults_of_gpu(world, node, gpu))
    devices = _devices_of(world, node, gpu)
    used = _claims_with(world, devices)
    bad = any(fault.critical for fault in faults)
    use = f"used by {how_many(len(used), 'claim')}" if used else "not used by a claim"
    how = "unhealthy" if bad else "healthy"
    what = f"GPU {gpu.name} ({gpu.product_name}, {gpu.pci_bus_id}) of node {node}"
    findings = [
        *node_findings(world, node),
        *fault_findings(faults, None),
        *(finding for finding in waiting_findings(world, [node]) if gpu.name in finding.text),
    ]
    return _explanation(world, "GPU", gpu.name, node, f"{what} is {how}, and {use}.", devices, findings)


def _devices_of(world: World, node: str, gpu: GpuFacts) -> frozenset[DeviceId]:
    """What the GPU is published as."""
    return frozenset(id_ for id_, (at, device) in world.devices.items() if at == node and gpu.uuid in uuids_of(device))


def _claims_with(world: World, devices: Collection[DeviceId]) -> list[ResourceClaim]:
    return [claim for claim in world.claims.values() if any(result.id in devices for result in claim.results)]


def _explanation(
    world: World,
    kind: str,
    name: str,
    node: str,
    summary: str,
    devices: Collection[DeviceId],
    findings: list[WaitFinding],
) -> Explanation:
    ordered = tuple(sorted(findings, key=lambda finding: not finding.stops))
    bad = any(finding.stops for finding in ordered)
    claims = tuple(_state(world, claim) for claim in _claims_with(world, devices))
    answer = Answer.UNHEALTHY if bad else Answer.HEALTHY
    return Explanation(kind, "", name, answer, node, claims, (), (), ordered, (), unread=world.unread, summary=summary)


def _state(world: World, claim: ResourceClaim) -> ClaimState:
    """With its namespace, because claims of all of them are listed."""
    state = claim_state(world, PodClaim("", claim))
    return ClaimState(None, "/".join(claim_key(claim)), state.state, state.devices, state.users)
