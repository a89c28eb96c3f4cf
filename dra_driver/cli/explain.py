"""`dractl explain`: why something waits and what would fit, or what is wrong with it; of a cluster, or of files."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from dra_driver.allocation.search import MOST_STEPS, Limit
from dra_driver.allocation.world import World, claim_key, claims_of
from dra_driver.api.core import Key
from dra_driver.cli.offline import (
    CURRENT_VERSION,
    LONGEST_S,
    FilesOption,
    KubernetesOption,
    ModelsOption,
    SlicesOption,
    StepsOption,
    TimeoutOption,
    deadline,
    limit_of,
    world_in,
)
from dra_driver.cli.session import ContextOption, KubeconfigOption
from dra_driver.errors import InvalidInput
from dra_driver.explain.explain import Answer, Explanation, explain_claim, explain_pod
from dra_driver.explain.hardware import explain_gpu, explain_node
from dra_driver.explain.wording import sentences, workload_sentences
from dra_driver.explain.workloads import Workload, WorkloadExplanation, explain_workload, owned_pods
from dra_driver.terminal import Format, OutputOption, Status, print_data


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
_SAY_WHAT = "say what to explain: pod, claim, node, gpu, deployment, job or jobset NAME (pod/NAME), or files with -f"


@dataclass(frozen=True, slots=True)
class Subject:
    """What to explain. `workload` is the kind of a workload."""

    kind: ExplainedKind
    name: str
    workload: str = ""


type Explained = Explanation | WorkloadExplanation


_MOST_REPLICAS = 1000
_LONGEST_S = 5.0
"""To look for what would fit; the reasons are there at once."""
_WIDEST = 120
_WIDTH_OF_FILES = 100

NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Of the pod or claim; default: default.", show_default=False)
]
DevicesOption = Annotated[bool, typer.Option("--devices", help="Every device of every node, with what it lacks.")]
NodeOption = Annotated[list[str], typer.Option("--node", help="Every device of this node; may be repeated.")]


def explain(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="What to explain: pod, claim, node, gpu, deployment, job, …; or with the name, as pod/NAME.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[str | None, typer.Argument(help="Its name.", show_default=False)] = None,
    namespace: NamespaceOption = None,
    files: FilesOption = [],  # noqa: B006 - typer reads it and copies
    slices: SlicesOption = [],  # noqa: B006 - as above
    models: ModelsOption = None,
    devices: DevicesOption = False,
    node: NodeOption = [],  # noqa: B006 - as above
    output: OutputOption = Format.TABLE,
    kubernetes: KubernetesOption = CURRENT_VERSION,
    steps: StepsOption = MOST_STEPS,
    timeout_s: TimeoutOption = LONGEST_S,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Why a pod, claim or workload waits: per node the first reason, then what would fit. What is wrong with a pod that
    runs, with a node or a GPU, and what to do.

    `dractl explain pod NAME` asks the cluster. With -f everything comes from files: all pods and claims in them that
    wait are explained, or the named one. Exit status 1 when something waits and nothing fits, or is unhealthy.
    """
    subject = _subject(kind, name) if kind is not None else None
    workloads: tuple[Workload, ...] = ()
    if subject is None and not files:
        raise InvalidInput(_SAY_WHAT, about="dractl explain")
    if files:
        world = world_in([*files, *slices], kubernetes, replicas=_MOST_REPLICAS, models=models)
        workloads = owned_pods(world)
    elif models is not None:
        raise InvalidInput("is for files: give some with -f", about="--nodes")
    else:
        from dra_driver.cli import live  # files need no HTTP client

        where = (kubeconfig, context, namespace or "default")
        if subject is not None and subject.workload:
            resource = next(item for item in live.WORKLOADS if item.kind == subject.workload)
            world, workload = live.ask_workload(*where, resource, subject.name)
            workloads = (workload,)
        else:
            world = live.ask_world(*where)
    explained = _explained(
        world, workloads, subject, namespace, None if devices else tuple(node), limit_of(steps, timeout_s)
    )
    _print(explained, output)
    parts = [part for item in explained for part in _parts(item)]
    if any(part.answer is Answer.WAITS or part.stops for part in parts):
        raise SystemExit(Status.NO)


def _parts(explained: Explained) -> tuple[Explanation, ...]:
    return explained.parts if isinstance(explained, WorkloadExplanation) else (explained,)


def _subject(kind: str, name: str | None) -> Subject:
    """Of `pod NAME`, or of `pod/NAME` as kubectl has it. Raises InvalidInput for anything else."""
    word, slash, rest = kind.partition("/")
    workload = _WORKLOADS.get(word.lower(), "")
    explained = ExplainedKind.WORKLOAD if workload else _WORDS.get(word.lower())
    if explained is None:
        raise InvalidInput(f"cannot explain {word!r}; {_SAY_WHAT}", about="dractl explain")
    if slash and rest and name is not None:
        raise InvalidInput(f"one at a time: {kind} or {name}", about="dractl explain")
    named = rest if slash else name
    if not named:
        raise InvalidInput(_SAY_WHAT, about="dractl explain")
    return Subject(explained, named, workload)


def _explained(
    world: World,
    workloads: Sequence[Workload],
    subject: Subject | None,
    namespace: str | None,
    nodes: Sequence[str] | None,
    limit: Limit,
) -> list[Explained]:
    unknown = [node for node in nodes or () if node not in world.nodes]
    if unknown:
        raise InvalidInput(f"there is no node {unknown[0]}", about="--node")
    if subject is not None and subject.kind is ExplainedKind.GPU:
        return [*explain_gpu(world, subject.name)]
    if subject is not None and subject.kind is ExplainedKind.NODE:
        return [explain_node(world, subject.name)]
    enough = deadline(_LONGEST_S)
    key = (namespace or "default", subject.name if subject is not None else "")
    how: dict[str, Any] = {"devices_of": nodes, "enough": enough, "limit": limit}
    match subject:
        case Subject(ExplainedKind.POD):
            return [explain_pod(world, key, **how)]
        case Subject(ExplainedKind.CLAIM):
            return [explain_claim(world, key, **how)]
        case Subject(workload=kind):
            chosen = [workload for workload in workloads if (workload.kind, workload.key) == (kind, key)]
            if not chosen:
                raise InvalidInput("there is none in the files", about=f"{kind} {'/'.join(key)}")
            return [explain_workload(world, chosen[0], **how)]
    explained = _all_that_waits(world, workloads, namespace, how)
    if not explained:
        raise InvalidInput("there is no pod and no claim that waits", about="the files")
    return explained


def _all_that_waits(
    world: World, workloads: Sequence[Workload], namespace: str | None, how: dict[str, Any]
) -> list[Explained]:
    """Pods of workloads together, other pods, and claims that no pod uses."""
    together = {key: workload for workload in workloads for key in workload.pods if len(workload.pods) > 1}
    explained: dict[Key | Workload, Explained] = {}
    used: set[Key] = set()
    for pod in world.pods.values():
        used |= {claim_key(entry.claim) for entry in claims_of(world, pod) if entry.claim is not None}
        if not pod.waits or namespace not in (None, pod.namespace):
            continue
        workload = together.get(pod.key)
        if workload is None:
            explained[pod.key] = explain_pod(world, pod.key, **how)
        elif workload not in explained:
            explained[workload] = explain_workload(world, workload, **how)
    alone = [
        key
        for key, claim in world.claims.items()
        if claim.status.allocation is None and key not in used and namespace in (None, key[0])
    ]
    return [*explained.values(), *(explain_claim(world, key, **how) for key in alone)]


def _print(explained: Sequence[Explained], output: Format) -> None:
    if output is not Format.TABLE:
        print_data([part.to_data() for item in explained for part in _parts(item)], output)
        return
    width = min(shutil.get_terminal_size((_WIDTH_OF_FILES, 0)).columns, _WIDEST)
    texts = [
        workload_sentences(item, width) if isinstance(item, WorkloadExplanation) else sentences(item, width)
        for item in explained
    ]
    typer.echo("\n\n".join("\n".join(lines) for lines in texts))
