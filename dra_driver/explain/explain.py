"""Why a pod or claim waits: every node's first reason, grouped; findings; and the nearest changes that would help.

`explain` answers values, `dra_driver.explain.wording` makes text of them, `Explanation.to_data` what `-o json`
prints (documented in docs/explain.md, stable). Pure.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum

from dra_driver.allocation.search import Limit
from dra_driver.allocation.selection import OutOfTime
from dra_driver.allocation.world import PodClaim, UnreadKind, World, claim_key, claims_of
from dra_driver.api.core import Key, Pod
from dra_driver.api.meta import PODS, RESOURCE_CLAIMS, JsonObject, Resource
from dra_driver.api.resource import ResourceClaim
from dra_driver.errors import InvalidInput, NoSuchObject, Rejected
from dra_driver.explain.driver_findings import (
    binding_findings,
    domain_findings,
    offering_findings,
    policy_findings,
    waiting_findings,
)
from dra_driver.explain.findings import WaitFinding, findings_of
from dra_driver.explain.judge import NodeJudge
from dra_driver.explain.running import (
    failed_findings,
    fault_findings,
    faults_of_claim,
    preparation_findings,
    running_findings,
)
from dra_driver.explain.suggest import Suggestion, suggestions
from dra_driver.explain.verdicts import DeviceVerdict, NodeVerdict, ReasonCode, holder_of
from dra_driver.grouping import grouped


class Answer(StrEnum):
    """How the pod or claim stands."""

    WAITS = "waits"
    FITS = "fits"
    """A node has room for it now; the scheduler has not decided yet, or another part of it refuses."""
    BINDING = "binding"
    """A node was chosen, and must prepare devices before the pod is bound to it."""
    ALLOCATED = "allocated"
    SCHEDULED = "scheduled"
    """A pod has its node; `ready` and findings say how it does there."""
    DONE = "done"
    HEALTHY = "healthy"
    """Of nodes and GPUs."""
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes with one reason. `claim` and `request` say what it is about, where it is about devices."""

    code: ReasonCode
    text: str
    nodes: tuple[str, ...]
    claim: str | None = None
    request: str | None = None


@dataclass(frozen=True, slots=True)
class ClaimState:
    """One claim of the subject. `state` is missing, to-be-made, pending, allocated or deleting."""

    entry: str | None
    name: str | None
    state: str
    devices: tuple[str, ...] = ()
    users: tuple[str, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """`nodes` are in order of name, `groups` the largest first. `devices` are those that were asked for."""

    kind: str
    namespace: str
    name: str
    answer: Answer
    node: str | None
    claims: tuple[ClaimState, ...]
    nodes: tuple[NodeVerdict, ...]
    groups: tuple[Group, ...]
    findings: tuple[WaitFinding, ...]
    suggestions: tuple[Suggestion, ...]
    devices: tuple[tuple[str, DeviceVerdict], ...] = ()
    """Node, and what one of its devices is to one request."""
    unread: tuple[UnreadKind, ...] = ()
    ready: bool | None = None
    """Of a pod that has its node: whether it runs and is ready."""
    summary: str = ""
    """Of a node or GPU, in a sentence."""
    alike: tuple[str, ...] = ()
    """Other pods of the same workload of which the same is true."""
    workload: str | None = None
    """What made the pod: `Deployment team-a/llm`."""

    @property
    def fitting(self) -> tuple[str, ...]:
        return tuple(node.node for node in self.nodes if node.fits)

    @property
    def undecided(self) -> int:
        """Nodes on which the search, or its time, came to an end first."""
        return sum(node.code is ReasonCode.NOT_DECIDED for node in self.nodes)

    @property
    def stops(self) -> tuple[WaitFinding, ...]:
        """What keeps it from every node."""
        return tuple(finding for finding in self.findings if finding.stops)

    def to_data(self) -> JsonObject:
        """As docs/explain.md has it."""
        return {
            "kind": self.kind,
            "namespace": self.namespace,
            "name": self.name,
            "answer": self.answer.value,
            "node": self.node,
            "ready": self.ready,
            "summary": self.summary or None,
            "workload": self.workload,
            "alike": list(self.alike),
            "claims": [asdict(claim) for claim in self.claims],
            "fittingNodes": list(self.fitting),
            "groups": [
                {
                    "code": group.code.value,
                    "reason": group.text,
                    "count": len(group.nodes),
                    "nodes": list(group.nodes),
                    "claim": group.claim,
                    "request": group.request,
                }
                for group in self.groups
            ],
            "findings": [asdict(finding) for finding in self.findings],
            "suggestions": [
                asdict(suggestion) | {"distance": round(suggestion.distance, 3)} for suggestion in self.suggestions
            ],
            "devices": [_device_data(node, device_verdict) for node, device_verdict in self.devices],
            "notRead": [{"kind": unread.kind, "why": unread.why} for unread in self.unread],
        }


def _device_data(node: str, verdict: DeviceVerdict) -> JsonObject:
    writer, index = verdict.wanted.writer_of(verdict.selector) if verdict.selector is not None else (None, None)
    return {
        "node": node,
        "driver": verdict.candidate.id.driver,
        "pool": verdict.candidate.id.pool,
        "device": verdict.candidate.id.device,
        "claim": verdict.wanted.claim.metadata.name,
        "request": str(verdict.wanted.name),
        "code": verdict.code.value,
        "reason": verdict.text,
        "selector": {"of": writer, "index": index} if writer is not None else None,
        "failing": [
            {"text": part.text, "start": part.start, "end": part.end, "said": part.explanation}
            for part in verdict.parts
        ],
        "holders": [
            {"claim": str(holder), "pods": list(holder.pods), "gone": list(holder.gone)} for holder in verdict.holders
        ],
    }


@dataclass(frozen=True, slots=True)
class Scope:
    """How far an explanation goes. `devices_of` names the nodes whose devices are listed; None is all nodes. `enough`
    is asked between attempts at finding what would fit, and ends them. `limit` is that of the search on each node."""

    devices_of: Collection[str] | None = ()
    enough: Callable[[], bool] = lambda: False
    limit: Limit = field(default_factory=Limit)


BRIEF = Scope()


def explain_pod(world: World, key: Key, scope: Scope = BRIEF) -> Explanation:
    """Raises NoSuchObject when the world has no such pod, Rejected if that is because pods may not be listed."""
    pod = world.pods.get(key)
    if pod is None:
        refuse_unread(world, PODS, about := f"pod {'/'.join(key)}")
        raise NoSuchObject(f"there is no such pod{_elsewhere(key, world.pods)}", about=about)
    entries = (*claims_of(world, pod), *_extended(world, pod))
    return _explained(world, key, pod, entries, scope)


def _extended(world: World, pod: Pod) -> Iterator[PodClaim]:
    """The claim that the scheduler made for the pod's extended resources when it chose the node."""
    extended = pod.status.extended_resource_claim_status
    claim = world.claims.get((pod.namespace, extended.resource_claim_name)) if extended is not None else None
    if claim is not None and pod.node is not None:
        yield PodClaim("", claim)


def explain_claim(world: World, key: Key, scope: Scope = BRIEF) -> Explanation:
    """As `explain_pod`, of a claim alone: a pod that uses it may have more wishes."""
    claim = world.claims.get(key)
    if claim is None:
        refuse_unread(world, RESOURCE_CLAIMS, about := f"claim {'/'.join(key)}")
        raise NoSuchObject(f"there is no such claim{_elsewhere(key, world.claims)}", about=about)
    return _explained(world, key, None, (PodClaim("", claim),), scope)


def refuse_unread(world: World, kind: Resource, about: str) -> None:
    """Raises Rejected if objects of this kind could not be listed."""
    if world.is_unread(kind):
        raise Rejected(f"cannot be read: you may not list {kind.plural}", about=about)


def _elsewhere(key: Key, known: Iterable[Key]) -> str:
    others = [namespace for namespace, name in known if name == key[1]]
    return f"; there is one in namespace {others[0]}" if others else ""


def _explained(world: World, key: Key, pod: Pod | None, entries: tuple[PodClaim, ...], scope: Scope) -> Explanation:
    claims = tuple({claim_key(entry.claim): entry.claim for entry in entries if entry.claim is not None}.values())
    answer = _answer(world, pod, claims)
    judge = NodeJudge(world, pod, claims, scope.limit)
    verdicts = tuple(judge.node(node) for node in world.nodes.values()) if answer is None else ()
    findings = tuple(_findings(world, pod, entries, claims, answer, verdicts))
    hopeless = any(finding.code in _HOPELESS for finding in findings)
    changes: tuple[Suggestion, ...] = ()
    if answer is None:
        stopped, fits = any(finding.stops for finding in findings), any(verdict.fits for verdict in verdicts)
        answer = Answer.FITS if fits and not stopped else Answer.WAITS
        # Where the devices fit, no other devices help against what stops it, except a selector that fails elsewhere.
        may_help = not fits or any(verdict.code is ReasonCode.ERROR for verdict in verdicts)
        if answer is Answer.WAITS and verdicts and may_help and not hopeless:
            changes = suggestions(world, pod, entries, verdicts, replace(scope.limit, enough=scope.enough))
    return Explanation(
        "Pod" if pod is not None else "ResourceClaim",
        *key,
        answer,
        pod.node if pod is not None and answer is not Answer.BINDING else _node_of(claims),
        # Kubernetes deletes the generated claims of pods that have ended: none of them is missing.
        tuple(claim_state(world, entry) for entry in entries if entry.claim is not None or answer is not Answer.DONE),
        verdicts,
        _groups(verdicts),
        findings,
        changes,
        _devices(world, judge, scope.devices_of) if answer in (Answer.WAITS, Answer.FITS) and not hopeless else (),
        world.unread,
        ready=pod.ready if pod is not None and answer is Answer.SCHEDULED else None,
    )


def _findings(
    world: World,
    pod: Pod | None,
    entries: Sequence[PodClaim],
    claims: Sequence[ResourceClaim],
    answer: Answer | None,
    verdicts: Sequence[NodeVerdict],
) -> Iterator[WaitFinding]:
    if answer is Answer.DONE and pod is not None:
        yield from failed_findings(pod)
        return
    if answer is None:
        yield from findings_of(world, pod, entries, verdicts)
        of_policy = policy_findings(world, pod, entries, verdicts)
        yield from of_policy or offering_findings(entries, verdicts)
        yield from waiting_findings(world, [verdict.node for verdict in verdicts if not verdict.fits])
    elif answer is Answer.SCHEDULED and pod is not None:
        yield from running_findings(world, pod, entries)
    elif answer is Answer.ALLOCATED:
        yield from fault_findings((fault for claim in claims for fault in faults_of_claim(world, claim)), None)
        yield from (finding for entry in entries for finding in preparation_findings(world, entry))
    yield from binding_findings(world, claims)
    yield from domain_findings(world, pod, entries, verdicts)


_HOPELESS = frozenset(("missing-class", "missing-claim", "missing-template", "invalid-claim", "not-readable"))
"""Findings that make it useless to ask the allocator."""


def _answer(world: World, pod: Pod | None, claims: Sequence[ResourceClaim]) -> Answer | None:
    """None when that depends on the nodes."""
    if pod is not None:
        if pod.is_done:
            return Answer.DONE
        if pod.node is not None:
            return Answer.SCHEDULED
        return Answer.BINDING if _is_reserved(pod, claims) and binding_findings(world, claims) else None
    return Answer.ALLOCATED if all(claim.status.allocation is not None for claim in claims) else None


def _is_reserved(pod: Pod, claims: Sequence[ResourceClaim]) -> bool:
    """Whether all its claims are allocated and reserved for it, which the scheduler does when it has chosen a node."""
    return all(pod.metadata.uid in {consumer.uid for consumer in claim.status.reserved_for} for claim in claims)


def _node_of(claims: Sequence[ResourceClaim]) -> str | None:
    results = next((claim.results for claim in claims if claim.results), [])
    return ", ".join(dict.fromkeys(result.pool for result in results)) or None


def claim_state(world: World, entry: PodClaim) -> ClaimState:
    claim = entry.claim
    name = entry.entry or None
    if claim is None:
        return ClaimState(name, None, "missing")
    devices = tuple(f"{result.pool}/{result.device}" for result in claim.results)
    if claim.metadata.deletion_timestamp:
        state = "deleting"
    elif entry.generated:
        state = "to-be-made"
    else:
        state = "allocated" if claim.status.allocation is not None else "pending"
    return ClaimState(name, claim.metadata.name, state, devices, holder_of(claim, world).pods)


def _groups(verdicts: Iterable[NodeVerdict]) -> tuple[Group, ...]:
    """Largest first; those that fit are no group."""
    by_reason = grouped(
        (verdict for verdict in verdicts if not verdict.fits),
        lambda verdict: (verdict.code, verdict.sentence.shape, verdict.claim, verdict.request),
    )
    groups = [
        Group(
            first.code,
            first.sentence.beside(node_verdict.sentence for node_verdict in others).text,
            tuple(item.node for item in (first, *others)),
            first.claim,
            first.request,
        )
        for first, *others in by_reason.values()
    ]
    return tuple(sorted(groups, key=lambda group: (-len(group.nodes), group.text)))


def _devices(
    world: World, judge: NodeJudge, devices_of: Collection[str] | None
) -> tuple[tuple[str, DeviceVerdict], ...]:
    names = [name for name in world.nodes if devices_of is None or name in devices_of]
    try:
        return tuple((name, verdict) for name in names for verdict in judge.devices(world.nodes[name]))
    except (InvalidInput, OutOfTime):
        return ()  # a claim that no node can serve, which is among the findings; or the nodes are not decided
