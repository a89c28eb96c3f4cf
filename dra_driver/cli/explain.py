"""`dractl explain`: why a pod or claim waits, and what would fit; of a cluster, or of files."""

import shutil
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

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
from dra_driver.explain.wording import sentences
from dra_driver.terminal import Format, OutputOption, Status, print_data


class ExplainedKind(StrEnum):
    POD = "pod"
    CLAIM = "claim"


_WORDS = {
    "po": ExplainedKind.POD,
    "pod": ExplainedKind.POD,
    "pods": ExplainedKind.POD,
    "claim": ExplainedKind.CLAIM,
    "claims": ExplainedKind.CLAIM,
    "resourceclaim": ExplainedKind.CLAIM,
    "resourceclaims": ExplainedKind.CLAIM,
}
"""What kubectl takes for the kind, and our own word for claims."""
_SAY_WHAT = "say what to explain: pod NAME or claim NAME (pod/NAME, claim/NAME), or files with -f"


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
        typer.Argument(help="What to explain: pod or claim; or both at once, as pod/NAME.", show_default=False),
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
    """Why a pod or claim waits: per node the first reason, then what would fit.

    `dractl explain pod NAME` asks the cluster. With -f everything comes from files: all pods and claims in them that
    wait are explained, or the named one. Exit status 1 when something waits and nothing fits.
    """
    subject = _subject(kind, name) if kind is not None else None
    if subject is None and not files:
        raise InvalidInput(_SAY_WHAT, about="dractl explain")
    if files:
        world = world_in([*files, *slices], kubernetes, models=models)
    elif models is not None:
        raise InvalidInput("is for files: give some with -f", about="--nodes")
    else:
        from dra_driver.cli.live import ask_world  # files need no HTTP client

        world = ask_world(kubeconfig, context, namespace or "default")
    explanations = _explanations(
        world, subject, namespace, None if devices else tuple(node), limit_of(steps, timeout_s)
    )
    _print(explanations, output)
    if any(explanation.answer is Answer.WAITS for explanation in explanations):
        raise SystemExit(Status.NO)


def _subject(kind: str, name: str | None) -> tuple[ExplainedKind, str]:
    """Of `pod NAME`, or of `pod/NAME` as kubectl has it. Raises InvalidInput for anything else."""
    word, slash, rest = kind.partition("/")
    explained = _WORDS.get(word.lower())
    if explained is None:
        raise InvalidInput(f"{word!r} is neither pod nor claim; {_SAY_WHAT}", about="dractl explain")
    if slash and rest and name is not None:
        raise InvalidInput(f"one at a time: {kind} or {name}", about="dractl explain")
    named = rest if slash else name
    if not named:
        raise InvalidInput(_SAY_WHAT, about="dractl explain")
    return explained, named


def _explanations(
    world: World,
    subject: tuple[ExplainedKind, str] | None,
    namespace: str | None,
    nodes: Sequence[str] | None,
    limit: Limit,
) -> list[Explanation]:
    unknown = [node for node in nodes or () if node not in world.nodes]
    if unknown:
        raise InvalidInput(f"there is no node {unknown[0]}", about="--node")
    subjects = _subjects(world, namespace) if subject is None else [(subject[0], (namespace or "default", subject[1]))]
    if not subjects:
        raise InvalidInput("there is no pod and no claim that waits", about="the files")
    enough = deadline(_LONGEST_S)
    return [
        (explain_pod if kind is ExplainedKind.POD else explain_claim)(
            world, key, devices_of=nodes, enough=enough, limit=limit
        )
        for kind, key in subjects
    ]


def _subjects(world: World, namespace: str | None) -> list[tuple[ExplainedKind, Key]]:
    """Pods that wait, and claims that wait and that no pod uses."""
    waiting = [pod for pod in world.pods.values() if pod.waits]
    used = {
        claim_key(pod_claim.claim)
        for pod in world.pods.values()
        for pod_claim in claims_of(world, pod)
        if pod_claim.claim is not None
    }
    claims = [key for key, claim in world.claims.items() if claim.status.allocation is None and key not in used]
    results = [*((ExplainedKind.POD, pod.key) for pod in waiting), *((ExplainedKind.CLAIM, key) for key in claims)]
    return [(kind, key) for kind, key in results if namespace in (None, key[0])]


def _print(explanations: Sequence[Explanation], output: Format) -> None:
    if output is not Format.TABLE:
        print_data([explanation.to_data() for explanation in explanations], output)
        return
    width = min(shutil.get_terminal_size((_WIDTH_OF_FILES, 0)).columns, _WIDEST)
    typer.echo("\n\n".join("\n".join(sentences(explanation, width)) for explanation in explanations))
