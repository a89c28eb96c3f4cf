"""All pods of a Deployment, Job, JobSet or the like, explained together. Pure.

Pods that wait are placed one after the other, each taking what it got, as `dra_driver.allocation.offline` does; so it
shows how many of them fit at once, and why the next does not.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dra_driver.allocation.offline import place_pod
from dra_driver.allocation.world import World, claims_of
from dra_driver.api.core import Key, ObjectCondition, Pod
from dra_driver.explain.explain import BRIEF, Answer, Explanation, Scope, claim_state, explain_pod
from dra_driver.explain.findings import WaitFinding
from dra_driver.explain.verdicts import NodeVerdict, ReasonCode, Sentence
from dra_driver.grouping import grouped
from dra_driver.phrases import how_many

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
            counts[_state(part)] += 1 + len(part.alike)
        if not counts:
            return f"{self.workload} has no pods."
        pods = sum(counts.values())
        texts = [f"{count} {word[count > 1]}" for state, word in _WORDS.items() if (count := counts[state])]
        return f"{self.workload} has {how_many(pods, 'pod')}: {', '.join(texts)}."


_WORDS = {
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


def _state(explanation: Explanation) -> str:
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
    kinds = grouped(explanations, lambda item: (_state(item), item.groups, item.findings))
    for first, *others in kinds.values():
        yield replace(first, workload=workload, alike=tuple(other.name for other in others))


def _conditions(workload: Workload) -> Iterator[WaitFinding]:
    for condition in workload.conditions:
        failed = condition.type in _BAD_IF_TRUE and condition.status == "True"
        if failed or (condition.type, condition.status) == ("Progressing", "False"):
            text = f"{condition.type} is {condition.status}: {condition.message or condition.reason}"
            fix = f"Its controller makes no pods, or no more of them: kubectl describe {workload.kind.lower()}."
            yield WaitFinding("workload-condition", str(workload), text, fix)
