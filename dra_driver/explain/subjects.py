"""What can be explained, how people name it, and which explanation it gets. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from dra_driver.allocation.world import World, claim_key, claims_of
from dra_driver.api.core import Key
from dra_driver.errors import InvalidInput, NoSuchObject
from dra_driver.explain.explain import Explanation, Scope, explain_claim, explain_pod
from dra_driver.explain.hardware import explain_gpu, explain_node
from dra_driver.explain.workloads import Workload, WorkloadExplanation, explain_workload


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
