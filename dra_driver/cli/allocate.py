"""`dractl allocate -f FILES`: the devices that pods and claims would get on the nodes in the files."""

from collections.abc import Iterator
from typing import Annotated

import typer

from dra_driver.allocation.offline import Placed, allocate_all
from dra_driver.allocation.search import MOST_STEPS
from dra_driver.api.resource import AllocatedDevice
from dra_driver.cli.reading.files import (
    CURRENT_VERSION,
    LONGEST_S,
    FilesOption,
    KubernetesOption,
    ModelsOption,
    SlicesOption,
    StepsOption,
    TimeoutOption,
    limit_of,
    world_in,
)
from dra_driver.errors import InvalidInput
from dra_driver.phrases import how_many
from dra_driver.terminal import Format, OutputOption, Status, print_data, print_message, print_table

QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print nothing; the exit status says whether everything fits.")
]


def allocate(
    files: FilesOption,
    slices: SlicesOption = [],
    models: ModelsOption = None,
    output: OutputOption = Format.TABLE,
    kubernetes: KubernetesOption = CURRENT_VERSION,
    steps: StepsOption = MOST_STEPS,
    timeout_s: TimeoutOption = LONGEST_S,
    quiet: QuietOption = False,
) -> None:
    """The devices that each claim would get, on the nodes and slices in the files; nothing is asked or changed.

    Pods come one after the other in the order of the files, each taking what it got; claims that no pod uses come
    last. A workload (Deployment, Job, …) counts with all its replicas. Exit status 1 when something does not fit.

    \b
    Examples:
      dractl allocate -f job.yaml --nodes gb200:18
      dractl allocate -f claim.yaml --slices cluster.yaml -o json
    """
    world = world_in([*files, *slices], kubernetes, models)
    if not world.slices:
        raise InvalidInput("there is no ResourceSlice; give some with --slices or --nodes", about=", ".join(files))
    placed = allocate_all(world, limit_of(steps, timeout_s))
    if not placed:
        raise InvalidInput("there is no waiting pod and no claim without devices", about=", ".join(files))
    if not quiet:
        _print(placed, output)
    if any(item.node is None for item in placed):
        if not quiet and output is Format.TABLE:
            print_message("dractl explain with the same options says why, and what would fit.")
        raise SystemExit(Status.NO)


def _print(placed: tuple[Placed, ...], output: Format) -> None:
    if output is Format.TABLE:
        print_table(
            ("POD OR CLAIM", "NODE", "CLAIM", "REQUEST", "DEVICE"),
            [[cell or "-" for cell in row] for item in placed for row in _rows(item)],
        )
    else:
        print_data([_data(item) for item in placed], output)


def _rows(placed: Placed) -> Iterator[tuple[str | None, ...]]:
    if placed.node is None:
        for reason, nodes in sorted(placed.reasons.items(), key=lambda item: -item[1]):
            where = f"{how_many(nodes, 'node')}: " if nodes else ""
            yield str(placed), "does not fit", None, None, f"{where}{reason}"
        return
    results = [
        (name, result) for name, allocation in placed.allocations.items() for result in allocation.devices.results
    ]
    if not results:
        yield str(placed), placed.node, None, None, None
    for name, result in results:
        yield str(placed), placed.node, name, result.request, _device(result)


def _device(result: AllocatedDevice) -> str:
    share = ", ".join(f"{name} {amount}" for name, amount in sorted((result.consumed_capacity or {}).items()))
    return f"{result.pool}/{result.device}" + (f" (share: {share})" if share else "")


def _data(placed: Placed) -> dict[str, object]:
    return {
        "kind": placed.kind,
        "namespace": placed.namespace,
        "name": placed.name,
        "fits": placed.node is not None,
        "node": placed.node,
        "claims": [
            {"name": name, "allocation": allocation.to_wire()} for name, allocation in placed.allocations.items()
        ],
        "reasons": [{"reason": reason, "nodes": nodes} for reason, nodes in placed.reasons.items()],
    }
