"""`dractl explain`: why something waits and what would fit, or what is wrong with it; of a cluster, or of files."""

import shutil
from collections.abc import Sequence
from typing import Annotated

import typer

from dra_driver.allocation.search import MOST_STEPS
from dra_driver.api.meta import NODES, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from dra_driver.cli.completion import names_of
from dra_driver.cli.reading.files import (
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
from dra_driver.cli.reading.session import ContextOption, KubeconfigOption, ask, default_namespace
from dra_driver.errors import InvalidInput
from dra_driver.explain.explain import Answer, Scope
from dra_driver.explain.subjects import (
    GPU,
    SAY_WHAT,
    WORDS,
    Explained,
    Workload,
    WorkloadExplanation,
    explained,
    owned_pods,
    parts_of,
    subject_of,
)
from dra_driver.explain.wording import sentences, workload_sentences
from dra_driver.terminal import Format, OutputOption, Status, echo, print_data

_LONGEST_S = 5.0
"""To look for what would fit; the reasons are there at once."""
_WIDEST = 120
_WIDTH_OF_FILES = 100

NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        help="Namespace of the pod or claim; default: that of the kubeconfig's context, otherwise default.",
        show_default=False,
    ),
]
DevicesOption = Annotated[
    bool, typer.Option("--devices", help="Show every device of every node, and why it does not fit.")
]
NodeOption = Annotated[list[str], typer.Option("--node", help="Show every device of this node; can be repeated.")]


def _names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Of the chosen kind, for the shell."""
    try:
        subject = subject_of(str(ctx.params.get("kind")), "any")
    except InvalidInput:
        return []
    resource = RESOURCE_SLICES if subject.kind == GPU else _resource(subject.kind)
    return names_of(resource, incomplete, ctx.params.get("kubeconfig"), ctx.params.get("context"))


def _resource(kind: str) -> Resource:
    from dra_driver.cli.reading.live import WORKLOADS  # files need no HTTP client

    return next(item for item in (PODS, RESOURCE_CLAIMS, NODES, *WORKLOADS) if item.kind == kind)


def explain(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="What to explain: pod, claim, node, gpu, deployment, job, …; or kind and name, as pod/NAME.",
            show_default=False,
            autocompletion=lambda: WORDS,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Argument(help="Name of the object.", show_default=False, autocompletion=_names)
    ] = None,
    namespace: NamespaceOption = None,
    files: FilesOption = [],
    slices: SlicesOption = [],
    models: ModelsOption = None,
    devices: DevicesOption = False,
    node: NodeOption = [],
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

    \b
    Examples:
      dractl explain pod train-0
      dractl explain claim shared -n team-a
      dractl explain deploy llm
      dractl explain gpu gpu-5a7b8d0e
      dractl explain -f pod.yaml --nodes dgx-h100:2
      dractl explain pod/train-0 --node gpu-node-1
    """
    subject = subject_of(kind, name) if kind is not None else None
    workloads: tuple[Workload, ...] = ()
    if subject is None and not files:
        raise InvalidInput(SAY_WHAT, about="dractl explain")
    if files:
        world = world_in([*files, *slices], kubernetes, models)
        workloads = owned_pods(world)
    elif models is not None:
        raise InvalidInput("is for files: give some with -f", about="--nodes")
    else:
        from dra_driver.cli.reading import live

        where = namespace = namespace or default_namespace(kubeconfig, context)
        if subject is not None and subject.is_workload:
            kind_of, key = _resource(subject.kind), (where, subject.name)
            world, workload = ask(kubeconfig, context, lambda kube: live.live_workload(kube, kind_of, key))
            workloads = (workload,)
        else:
            world = ask(kubeconfig, context, lambda kube: live.live_world(kube, where))
    scope = Scope(None if devices else tuple(node), deadline(_LONGEST_S), limit_of(steps, timeout_s))
    answers = explained(world, workloads, subject, namespace, scope)
    if not answers:
        raise InvalidInput("there is no pod and no claim that waits", about="the files")
    _print(answers, output)
    parts = [part for item in answers for part in parts_of(item)]
    if any(part.answer is Answer.WAITS or part.stops for part in parts):
        raise SystemExit(Status.NO)


def _print(answers: Sequence[Explained], output: Format) -> None:
    if output is not Format.TABLE:
        print_data([part.to_data() for item in answers for part in parts_of(item)], output)
        return
    width = min(shutil.get_terminal_size((_WIDTH_OF_FILES, 0)).columns, _WIDEST)
    texts = [
        workload_sentences(item, width) if isinstance(item, WorkloadExplanation) else sentences(item, width)
        for item in answers
    ]
    echo("\n\n".join("\n".join(lines) for lines in texts))
