"""What can be explained, how people name it, and which explanation it gets; and the explanation of a node or GPU: who
uses it, what is wrong with it, and what to do. Pure.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from dra_driver.allocation.offline import place_pod
from dra_driver.allocation.world import PodClaim, World, claim_key, claims_of
from dra_driver.api.core import Key, ObjectCondition, Pod
from dra_driver.api.inventory import GpuFacts
from dra_driver.api.meta import NODE_INVENTORIES, NODES, PODS, RESOURCE_CLAIMS
from dra_driver.api.resource import ResourceClaim
from dra_driver.errors import InvalidInput, NoSuchObject
from dra_driver.explain.driver_findings import limitation_findings, waiting_findings
from dra_driver.explain.explain import (
    BRIEF,
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
from dra_driver.explain.verdicts import NodeVerdict, ReasonCode, Sentence
from dra_driver.grouping import grouped
from dra_driver.names import DeviceId
from dra_driver.phrases import and_more, how_many, meant

_BAD_IF_TRUE = ("ReplicaFailure", "Failed", "FailureTarget", "Suspended")


@dataclass(frozen=True, slots=True)
class Workload:
    """`pods` exist, or would be made; in any order. `conditions` are of its status."""

    kind: str
    key: Key
    pods: tuple[Key, ...]
    conditions: tuple[ObjectCondition, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind} {'/'.join(self.key)}"


@dataclass(frozen=True)
class WorkloadExplanation:
    """`parts` are its pods; pods of which the same is true are one part (`Explanation.alike`)."""

    workload: Workload
    parts: tuple[Explanation, ...]
    findings: tuple[WaitFinding, ...]
    """About the workload itself."""

    @property
    def bad(self) -> tuple[Explanation, ...]:
        return tuple(part for part in self.parts if part.answer is Answer.WAITS or part.stops)

    @property
    def headline(self) -> str:
        """`Deployment team-a/llm: 3 of 4 pods run, 1 waits.`"""
        counts: Counter[str] = Counter()
        for part in self.parts:
            counts[_standing(part)] += 1 + len(part.alike)
        if not counts:
            return f"{self.workload} has no pods."
        pods = sum(counts.values())
        texts = [f"{count} {word[count > 1]}" for state, word in _STATES.items() if (count := counts[state])]
        return f"{self.workload} has {how_many(pods, 'pod')}: {', '.join(texts)}."


_SHORT = {
    "Deployment": "deploy", "StatefulSet": "sts", "DaemonSet": "ds", "ReplicaSet": "rs", "Job": "job", "CronJob": "cj",
    "JobSet": "jobset",
}  # fmt: skip
"""Kinds of workloads, and what kubectl takes for them."""
GPU = "GPU"
_KINDS = {
    **dict.fromkeys(("pod", "po", "pods"), PODS.kind),
    **dict.fromkeys(("claim", "claims", "resourceclaim", "resourceclaims"), RESOURCE_CLAIMS.kind),
    **dict.fromkeys(("node", "no", "nodes"), NODES.kind),
    **dict.fromkeys(("gpu", "gpus"), GPU),
    **{word: kind for kind, short in _SHORT.items() for word in (short, kind.lower(), f"{kind.lower()}s")},
}
"""By word: what kubectl takes for the kind, and our own words."""
WORDS = ["pod", "claim", "node", "gpu", *map(str.lower, _SHORT)]
"""The kinds, each by one word."""
SAY_WHAT = "say what to explain: pod, claim, node, gpu, deployment, job or jobset NAME (pod/NAME), or files with -f"


class Subject(NamedTuple):
    """What to explain: a kind of the API, or GPU, and a name."""

    kind: str
    name: str

    @property
    def is_workload(self) -> bool:
        return self.kind in _SHORT


type Explained = Explanation | WorkloadExplanation


def parts_of(explained: Explained) -> tuple[Explanation, ...]:
    """Of a workload, those of its pods."""
    return explained.parts if isinstance(explained, WorkloadExplanation) else (explained,)


def subject_of(kind: str, name: str | None = None) -> Subject:
    """Of `pod` and `NAME`, or of `pod/NAME` as kubectl has it. Raises InvalidInput for anything else."""
    word, slash, rest = kind.partition("/")
    if word.lower() not in _KINDS:
        raise InvalidInput(f"cannot explain {word!r}; {SAY_WHAT}", about="dractl explain")
    if slash and rest and name is not None:
        raise InvalidInput(f"one at a time: {kind} or {name}", about="dractl explain")
    named = rest if slash else name
    if not named:
        raise InvalidInput(SAY_WHAT, about="dractl explain")
    return Subject(_KINDS[word.lower()], named)


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
    if subject is None:
        return _all_that_waits(world, workloads, namespace, scope)
    key = (namespace or "default", subject.name)
    match subject.kind:
        case "GPU":
            return [*explain_gpu(world, subject.name)]
        case "Node":
            return [explain_node(world, subject.name)]
        case "Pod":
            return [explain_pod(world, key, scope)]
        case "ResourceClaim":
            return [explain_claim(world, key, scope)]
    chosen = next((workload for workload in workloads if (workload.kind, workload.key) == (subject.kind, key)), None)
    if chosen is None:
        raise NoSuchObject("there is none in the files", about=f"{subject.kind} {'/'.join(key)}")
    return [explain_workload(world, chosen, scope)]


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
    return _explanation(
        world, NODES.kind, name, name, _summary(world, name, len(unhealthy), devices), devices, findings
    )


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
    return _explanation(world, GPU, gpu.name, node, f"{what} is {how}, and {use}.", devices, findings)


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


# -- workloads

_STATES = {
    "bad": ("has a problem", "have a problem"),
    "failed": ("has failed", "have failed"),
    "waits": ("waits", "wait"),
    "binding": ("waits for its node to prepare devices", "wait for their nodes to prepare devices"),
    "fits": ("fits now", "fit now"),
    "starts": ("is starting", "are starting"),
    "runs": ("runs", "run"),
    "done": ("has ended", "have ended"),
}
"""Of one pod and of several, the worst first."""


def _standing(explanation: Explanation) -> str:
    match explanation.answer:
        case Answer.SCHEDULED if explanation.stops:
            return "bad"
        case Answer.SCHEDULED:
            return "runs" if explanation.ready else "starts"
        case Answer.WAITS:
            return "waits"
        case Answer.BINDING:
            return "binding"
        case Answer.DONE:
            return "failed" if explanation.stops else "done"
    return "fits"


def explain_workload(world: World, workload: Workload, scope: Scope = BRIEF) -> WorkloadExplanation:
    """As `explain_pod`, which is asked at most twice for each kind of pod that waits."""
    pods = [world.pods[key] for key in sorted(workload.pods, key=_natural)]
    undecided = {pod.key: pod for pod in pods if pod.waits and not _has_own_devices(world, pod)}
    explanations = [explain_pod(world, pod.key, scope) for pod in pods if pod.key not in undecided]
    kinds = grouped(undecided.values(), lambda pod: pod.spec.model_dump_json())
    for waiting in kinds.values():
        first = explain_pod(world, waiting[0].key, scope)
        while waiting and first.answer is not Answer.WAITS:
            placed, world = place_pod(world, waiting[0], scope.limit)
            if placed.node is None:
                first = explain_pod(world, waiting[0].key, scope)
                break
            explanations.append(_placed(world, waiting.pop(0), placed.node))
        explanations += [replace(first, name=pod.name) for pod in waiting]
    return WorkloadExplanation(workload, tuple(_joined(explanations, str(workload))), tuple(_conditions(workload)))


def _has_own_devices(world: World, pod: Pod) -> bool:
    """Whether the scheduler has chosen a node for it: each of the claims from its templates has devices."""
    claims = [entry.claim for entry in claims_of(world, pod) if entry.template is not None]
    return bool(claims) and all(claim is not None and claim.status.allocation is not None for claim in claims)


def owned_pods(world: World) -> tuple[Workload, ...]:
    """By what made them, of pods that wait and name it."""
    owned: dict[tuple[str, Key], list[Key]] = {}
    for pod in world.pods.values():
        owner = next((owner for owner in pod.metadata.owner_references if owner.controller), None)
        if owner is not None and pod.waits:
            owned.setdefault((owner.kind, (pod.namespace, owner.name)), []).append(pod.key)
    return tuple(Workload(kind, key, tuple(pods)) for (kind, key), pods in owned.items())


def _natural(key: Key) -> tuple[object, ...]:
    """`train-2` before `train-10`."""
    stem, _, number = key[1].rpartition("-")
    return (key[0], stem, int(number), "") if number.isdecimal() else (key[0], key[1], -1, number)


def _placed(world: World, pod: Pod, node: str) -> Explanation:
    fits = NodeVerdict(node, ReasonCode.FITS, Sentence(""))
    states = tuple(claim_state(world, entry) for entry in claims_of(world, pod))
    return Explanation("Pod", *pod.key, Answer.FITS, None, states, (fits,), (), (), ())


def _joined(explanations: list[Explanation], workload: str) -> Iterator[Explanation]:
    """Each with the names of others of which the same is true."""
    kinds = grouped(explanations, lambda item: (_standing(item), item.groups, item.findings))
    for first, *others in kinds.values():
        yield replace(first, workload=workload, alike=tuple(other.name for other in others))


def _conditions(workload: Workload) -> Iterator[WaitFinding]:
    for condition in workload.conditions:
        failed = condition.type in _BAD_IF_TRUE and condition.status == "True"
        if failed or (condition.type, condition.status) == ("Progressing", "False"):
            text = f"{condition.type} is {condition.status}: {condition.message or condition.reason}"
            fix = f"Its controller makes no pods, or no more of them: kubectl describe {workload.kind.lower()}."
            yield WaitFinding("workload-condition", str(workload), text, fix)
