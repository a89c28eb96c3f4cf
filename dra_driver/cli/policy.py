"""`dractl policy preview|convert`: what GpuPolicies would change before they are applied, and GpuPolicies of a file."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from dra_driver.api.gpupolicy import GpuPolicy, policies_among
from dra_driver.api.inventory import NodeInventory, NodeInventorySpec
from dra_driver.api.meta import GPU_POLICIES, NODE_INVENTORIES, NODES, RESOURCE_CLAIMS, JsonObject
from dra_driver.api.resource import ResourceClaim
from dra_driver.checking.manifests import with_chart_values
from dra_driver.cli.reading.files import ModelsOption, read_files
from dra_driver.cli.reading.session import ContextOption, KubeconfigOption, ask_all
from dra_driver.errors import InvalidInput, NoSuchObject, NotFound
from dra_driver.grouping import grouped
from dra_driver.kubernetes import CURRENT
from dra_driver.phrases import and_more, folded, how_many
from dra_driver.publish.preview import NodePreview, counted, preview, users_by_node
from dra_driver.slices.features import default_features
from dra_driver.terminal import (
    Format,
    LabelOption,
    OutputOption,
    echo,
    labels_of,
    print_data,
    print_message,
    print_table,
    terminal_width,
)

_HELP = """Preview GpuPolicies before you apply them, or convert a file to them.

\b
Examples:
  dractl policy preview -f policy.yaml
  dractl policy convert policy.yaml | kubectl apply -f -"""

app = typer.Typer(help=_HELP, no_args_is_help=True)

_MOST_LINES = 20
_MOST_NODES = 2
_WIDTH = 100


@app.command("preview")
def preview_policies(
    files: Annotated[
        list[str], typer.Option("--file", "-f", help="GpuPolicies or a PublishingPolicy: a file, a folder, or -.")
    ] = [],
    delete: Annotated[
        list[str],
        typer.Option("--delete", metavar="NAME", help="Preview the deletion of this GpuPolicy of the cluster."),
    ] = [],
    models: ModelsOption = None,
    label: LabelOption = [],
    output: OutputOption = Format.TABLE,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """What would change if policies were applied or deleted: devices, and GPUs that would wait for claims.

    Of the cluster: the files' policies replace those of the same name. With --nodes: of simulated nodes without other
    policies. Nothing is changed.

    \b
    Examples:
      dractl policy preview -f policy.yaml
      dractl policy preview -f policy.yaml --nodes dgx-h100 --label pool=inference
    """
    if not files and not delete:
        raise InvalidInput("name policies with --file, or with --delete", about="dractl policy preview")
    if delete and models is not None:
        raise InvalidInput("simulated nodes have no policies to delete", about="--delete")
    policies = _policies(files) if files else []
    if models is not None:
        previews = _of_models(policies, models, label)
    elif label:
        raise InvalidInput("is for simulated nodes: give some with --nodes", about="--label")
    else:
        previews = _of_cluster(policies, delete, kubeconfig, context)
    if output is Format.TABLE:
        advice = "compare its nodes and gpus with the labels of the nodes and the products of the GPUs"
        if models is not None:
            advice += "; simulated nodes have only the labels of --label"
        _print(previews, [policy.name for policy in policies], advice)
    else:
        print_data([_data(item) for item in previews], output)


def _policies(files: Sequence[str], *names: str) -> list[GpuPolicy]:
    documents = with_chart_values(read_files(files)).raise_problems()
    policies = policies_among((document.obj for document in documents), *names)
    if not policies:
        raise InvalidInput("there is no GpuPolicy and no PublishingPolicy", about=", ".join(files))
    return policies


def _of_models(policies: Sequence[GpuPolicy], models: str, label: Sequence[str]) -> list[NodePreview]:
    # The simulated cluster behind these names takes longer to import than a cluster takes to answer.
    from dra_driver.simulation.cluster import inventory_of_model, parse_nodes

    labels, nodes = labels_of(label), parse_nodes(models)
    specs = {profile: inventory_of_model(f"{profile}:0") for profile in dict.fromkeys(node.profile for node in nodes)}
    inventories = (NodeInventorySpec.of({**specs[node.profile], "nodeName": node.name}) for node in nodes)
    features = default_features(CURRENT)
    return [preview(inventory, None, labels, (), policies, {}, features) for inventory in inventories]


def _of_cluster(
    policies: Sequence[GpuPolicy], deleted: Sequence[str], kubeconfig: Path | None, context: str | None
) -> list[NodePreview]:
    try:
        minor, objects = ask_all(kubeconfig, context, (NODE_INVENTORIES, NODES, GPU_POLICIES, RESOURCE_CLAIMS))
    except NotFound as error:
        message = "the cluster has none; install the driver, or preview the policies on simulated nodes with --nodes"
        raise InvalidInput(message, about="NodeInventories") from error
    labels: dict[str, dict[str, str]] = {
        node["metadata"]["name"]: node["metadata"].get("labels") or {} for node in objects[NODES]
    }
    before = {policy.name: policy for policy in map(GpuPolicy.read, objects[GPU_POLICIES])}
    if unknown := set(deleted) - set(before):
        raise NoSuchObject(f"the cluster has no GpuPolicy {min(unknown)}: kubectl get gpupolicies", about="--delete")
    remaining = {name: policy for name, policy in before.items() if name not in deleted}
    after = {**remaining, **{policy.name: policy for policy in policies}}
    users = users_by_node(map(ResourceClaim.of, objects[RESOURCE_CLAIMS]))
    features = default_features(minor)

    def of_node(inventory: NodeInventory) -> NodePreview:
        spec, name = inventory.spec, inventory.spec.node_name
        policies = before.values(), after.values()
        return preview(spec, inventory.status.policy, labels.get(name, {}), *policies, users.get(name, {}), features)

    return sorted(map(of_node, map(NodeInventory.of, objects[NODE_INVENTORIES])), key=lambda item: item.node)


def _print(previews: Sequence[NodePreview], names: Sequence[str], advice: str) -> None:
    """Nodes that change in the same way are one row. `names` are those of the policies in the files, and `advice` is
    for those that select nothing."""
    groups = grouped((item for item in previews if item.changes or item.waiting), _cells)
    if groups:
        rows = [(and_more([item.node for item in items], _MOST_NODES), *cells) for cells, items in groups.items()]
        print_table(("NODES", "APPEAR", "VANISH", "CHANGE", "WAIT"), rows)
    elif not previews:
        print_message("No node has reported GPUs; dractl doctor says why.")
    else:
        typer.echo(f"Nothing changes: the devices of {how_many(len(previews), 'node')} stay as they are.")
    selecting = frozenset[str]().union(*(item.policies for item in previews))
    nodes = "the node" if len(previews) == 1 else f"the {len(previews)} nodes"
    lines = [
        f"GpuPolicy {name} selects no GPU of {nodes}: {advice}" for name in names if previews and name not in selecting
    ]
    lines += [f"{item.node}: {gpu}" for item in previews for gpu in item.waiting if gpu.claims]
    lines += _resets(previews)
    problems = grouped(
        ((item.node, limit) for item in previews for limit in item.not_followed),
        lambda pair: (pair[1].rule_named, pair[1].message),
    )
    for (rule, why), limits in problems.items():
        (first, limit), *others = limits
        example = f" (for {first})" if others else ""
        nodes = and_more([node for node, _ in limits], _MOST_NODES)
        lines.append(f"{nodes}: {rule} cannot be followed: {why}. Fix{example}: {limit.fix}")
    width = min(terminal_width() or _WIDTH, _WIDTH)
    for line in lines[:_MOST_LINES]:
        echo("\n".join(folded("", line, width)))
    if len(lines) > _MOST_LINES:
        print_message(f"{len(lines) - _MOST_LINES} more: -o json lists all")


def _cells(item: NodePreview) -> tuple[str, ...]:
    cells = [counted(devices.values()) for devices in (item.appear, item.vanish, item.change)]
    waits = [gpu.gpu for gpu in item.waiting]
    return *(cell or "-" for cell in cells), f"{len(waits)} GPUs" if len(waits) > 1 else "".join(waits) or "-"


def _resets(previews: Sequence[NodePreview]) -> list[str]:
    """GPUs that no claim uses, and that are reset first. Those of one policy are one line."""
    reset = [
        (item.node, gpu) for item in previews for gpu in item.waiting if not gpu.claims and gpu.mig_mode is not None
    ]
    lines = []
    for (policies, mode), gpus in grouped(reset, lambda pair: (", ".join(pair[1].policies), pair[1].mig_mode)).items():
        nodes = and_more(list(dict.fromkeys(node for node, _ in gpus)), _MOST_NODES)
        because = f" because of GpuPolicy {policies}" if policies else ""
        lines.append(f"{nodes}: {len(gpus)} GPUs are reset first, to switch MIG mode {str(mode).lower()}{because}")
    return lines


def _data(item: NodePreview) -> JsonObject:
    def devices(kinds: Any) -> list[JsonObject]:
        return [{"name": name, "kind": kind} for name, kind in kinds.items()]

    return {
        "node": item.node,
        "appear": devices(item.appear),
        "vanish": devices(item.vanish),
        "change": devices(item.change),
        "waiting": [gpu.to_wire() for gpu in item.waiting],
        "notFollowed": [limitation.to_wire() for limitation in item.not_followed],
    }


@app.command("convert")
def convert(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILES", help="Files with a PublishingPolicy, or values of the chart with `policy`."),
    ],
    prefix: Annotated[
        str | None, typer.Option("--prefix", help="Prefix of the policies' names; default: the name of the first file.")
    ] = None,
) -> None:
    """Print the GpuPolicies that say what a PublishingPolicy says, for `kubectl apply -f -`.

    \b
    Examples:
      dractl policy convert publishing-policy.yaml | kubectl apply -f -
    """
    names = prefix or re.sub("[^a-z0-9]+", "-", Path(files[0]).stem.lower()).strip("-") or "policy"
    made = [policy.to_object() for policy in _policies(files, names)]
    typer.echo(yaml.safe_dump_all(made, sort_keys=False), nl=False)
