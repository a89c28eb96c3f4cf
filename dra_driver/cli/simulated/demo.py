"""`dractl demo` runs every example on a simulated cluster, and `dractl cluster` keeps that cluster running."""

import asyncio
import fcntl
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from dra_driver import bundled
from dra_driver.api.gpupolicy import rules_among
from dra_driver.apirules.dra_gates import as_kept, dropped_fields
from dra_driver.cli.reading.files import objects_of_node, shipped_classes
from dra_driver.cli.simulated import scenario as scenarios
from dra_driver.cli.simulated.scenario import ContainerResult, Scenario
from dra_driver.cli.tables.usage import short_product
from dra_driver.errors import DriverError, InvalidInput, UnreadableFile
from dra_driver.features import Gates
from dra_driver.kubernetes import CURRENT, SEEN, named_minor
from dra_driver.phrases import how_many
from dra_driver.publish.policy_file import read_policies
from dra_driver.runtime.logs import configure_logging
from dra_driver.runtime.tasks import cancel_on_sigterm, until
from dra_driver.simulation.cluster import SimulatedCluster, SimulatedNode, parse_nodes
from dra_driver.slices.features import default_features
from dra_driver.terminal import Format, OutputOption, Status, messages, print_data, print_message, print_table

DEFAULT_NODES = "dgx-h100,t4"
SEEN_VERSIONS = tuple(f"1.{minor}" for minor in SEEN)
_MISFIT = "does not fit on these nodes"

type _Running = Callable[..., AbstractAsyncContextManager[SimulatedCluster]]
"""Starts the cluster that was asked for."""


NodesOption = Annotated[
    str | None,
    typer.Option(
        "--nodes",
        help="Simulated nodes: PROFILE or PROFILE:NUMBER, separated by commas; default: those of the folder's"
        f" {scenarios.CLUSTER_FILE}, otherwise {DEFAULT_NODES}.",
    ),
]
PublisherOption = Annotated[
    Literal["controller", "node"],
    typer.Option("--publisher", help="Who writes ResourceSlices: controller, or node (no controller runs)."),
]
VersionOption = Annotated[
    str,
    typer.Option(
        "--kubernetes", metavar=f"1.{CURRENT}", help=f"Kubernetes version to simulate: {', '.join(SEEN_VERSIONS)}."
    ),
]


@dataclass
class ExampleOutcome:
    """One example's result: its containers, or why it failed, or why it was not run."""

    name: str
    containers: tuple[ContainerResult, ...] = ()
    error: str | None = None
    skipped: str | None = None


def demo(
    folder: Annotated[
        Path | None, typer.Option("--folder", "-f", help="Folder with your own manifests, instead of the examples.")
    ] = None,
    nodes: NodesOption = None,
    output: OutputOption = Format.TABLE,
    publisher: PublisherOption = "controller",
    kubernetes: VersionOption = SEEN_VERSIONS[-1],
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Time limit of each step of each example, in seconds.")
    ] = 30.0,
) -> None:
    """Run the examples on a simulated cluster and show what each container got.

    API server, scheduler and kubelets are simulated; controller and node plugins are the real programs, on simulated
    GPUs. Nothing outside a temporary folder is touched. Exit status 0 only if every example ran and left nothing.
    Bundled examples that do not fit on the nodes of --nodes are left out, and so are those that --kubernetes is too old
    for.

    \b
    Examples:
      dractl demo
      dractl demo --nodes gb200:2
      dractl demo -f my-manifests/
    """
    minor = named_minor(kubernetes, SEEN)
    results = scenarios_in(folder)
    wanted = wanted_nodes(nodes, folder)
    skipped = {scenario.name: why for scenario in results if (why := _why_not(scenario, publisher)) is not None}
    if folder is None and (nodes is not None or minor != CURRENT):
        unfit = _unfit(results, wanted, minor)
        # On the nodes of the plan everything fits, since things are done to their GPUs that are not looked at here.
        skipped = {name: why for name, why in unfit.items() if nodes is not None or why != _MISFIT} | skipped
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dractl-") as place, (Path(place) / "simulation.log").open("w") as log:
        configure_logging("info", "console", log)
        running = partial(SimulatedCluster.running, Path(place), wanted, publisher=publisher, version=SEEN[minor])
        try:
            outcomes = asyncio.run(_run(running, results, skipped, timeout))
        except asyncio.CancelledError:
            raise SystemExit(128 + signal.SIGTERM) from None
    if output is Format.TABLE:
        _show(outcomes, time.monotonic() - started)
    else:
        print_data([_data(outcome) for outcome in outcomes], output)
    # A bundled example may need what is not here; of the user's own manifests, all should have run.
    if any(outcome.error or (outcome.skipped and folder is not None) for outcome in outcomes):
        raise typer.Exit(Status.NO)


def scenarios_in(folder: Path | None) -> list[Scenario]:
    """The bundled examples, or one folder of the user's: itself, or each folder in it.

    Raises InvalidInput, UnreadableFile if there is no such folder.
    """
    top = folder or bundled.FEATURES_FOLDER
    if not top.is_dir():
        reason = "is a file: name the folder that contains it" if top.is_file() else "there is no such folder"
        raise UnreadableFile(reason, about=str(top))
    inner = sorted(path for path in top.iterdir() if path.is_dir() and any(path.glob("*.y*ml")))
    if any(path.name != scenarios.CLUSTER_FILE for path in top.glob("*.y*ml")) or not inner:
        return [scenarios.read_scenario(top)]
    return [scenarios.read_scenario(path) for path in inner]


def wanted_nodes(nodes: str | None, folder: Path | None) -> tuple[SimulatedNode, ...]:
    """Those of the command line; else those that the plan of the folder, or of the one above it, wants."""
    if nodes is not None:
        return parse_nodes(nodes)
    top = (folder or bundled.FEATURES_FOLDER).resolve()
    return scenarios.nodes_of(top) or scenarios.nodes_of(top.parent) or parse_nodes(DEFAULT_NODES)


def _unfit(results: Sequence[Scenario], nodes: Sequence[SimulatedNode], minor: int) -> dict[str, str]:
    """Why examples need newer servers, or other nodes."""
    newest = fitting_examples(results, nodes)
    here = newest if minor == CURRENT else fitting_examples(results, nodes, minor)
    return {
        **dict.fromkeys((scenario.name for scenario in results if scenario.name not in newest), _MISFIT),
        **dict.fromkeys(newest - here, f"Kubernetes 1.{minor} does not offer what it needs by default"),
        **{
            scenario.name: f"Kubernetes 1.{minor} drops a part of it by default"
            for scenario in results
            if any(dropped_fields(document, minor) for document in scenario.documents)
        },
    }


def fitting_examples(
    results: Sequence[Scenario], nodes: Sequence[SimulatedNode], minor: int = CURRENT
) -> frozenset[str]:
    """Names of those whose pods get what they ask for on empty nodes, according to the allocator."""
    from dra_driver.allocation.behavior import Behavior
    from dra_driver.allocation.loading import objects_of_workload, world_of
    from dra_driver.allocation.offline import allocate_all

    policy = rules_among(document for scenario in results for document in scenario.documents)
    shipped = [as_kept(document.obj, minor) for document in shipped_classes()]
    features, behavior = default_features(minor), Behavior.of(minor)
    common = [*shipped, *(obj for node in nodes for obj in objects_of_node(node, policy, features))]
    worlds = {
        scenario.name: world_of(
            [
                *common,
                *(made for document in scenario.documents for made in objects_of_workload(document)),
                *scenario.documents,
            ],
            behavior=behavior,
        ).world
        for scenario in results
    }
    return frozenset(
        name for name, world in worlds.items() if all(placed.node is not None for placed in allocate_all(world))
    )


async def _run(
    running: _Running, results: Sequence[Scenario], skipped: Mapping[str, str], timeout_s: float
) -> list[ExampleOutcome]:
    outcomes = []
    cancel_on_sigterm()
    with messages.status("starting a simulated cluster") as status:
        async with running(progress=status.update) as cluster:
            for scenario in results:
                if scenario.name in skipped:
                    outcomes.append(ExampleOutcome(scenario.name, skipped=skipped[scenario.name]))
                    continue
                status.update(f"running example {scenario.name}")
                outcomes.append(await run_scenario(cluster, scenario, timeout_s))
            status.update("stopping the cluster")
    return outcomes


def _why_not(scenario: Scenario, publisher: str) -> str | None:
    """Why it cannot be run here; None when it can."""
    if scenario.foreign:
        kinds = ", ".join(scenario.foreign)
        return f"the simulated cluster has no {kinds}; leave it out, or install its definition in `dractl cluster`"
    if publisher == "node" and scenario.has_domains:
        return "ComputeDomains need the controller"
    return None


async def run_scenario(cluster: SimulatedCluster, scenario: Scenario, timeout_s: float) -> ExampleOutcome:
    outcome = ExampleOutcome(scenario.name)
    before = cluster.hardware()
    try:
        await scenarios.apply(cluster.kube, scenario)
        pods = await scenarios.wait_running(cluster, scenario, timeout_s)
        outcome.containers = await scenarios.container_results(cluster, pods)
        if not outcome.containers:
            outcome.error = "none of its manifests makes pods"
    except DriverError as error:
        outcome.error = str(error)
    try:
        await scenarios.remove(cluster, scenario, timeout_s, before)
    except DriverError as error:
        outcome.error = "; ".join(filter(None, (outcome.error, str(error))))
    return outcome


def _show(outcomes: Sequence[ExampleOutcome], seconds: float) -> None:
    print_table(
        ("EXAMPLE", "CONTAINER", "NODE", "GPUS", "SEES"), [row for outcome in outcomes for row in _rows(outcome)]
    )
    failed = [outcome for outcome in outcomes if outcome.error]
    for outcome in failed:
        print_message(f"{outcome.name}: {outcome.error}", style="red")
    ran = f"All {len(outcomes)} examples ran" if len(outcomes) > 1 else f"{outcomes[0].name} ran"
    skipped = [outcome for outcome in outcomes if outcome.skipped]
    for why in dict.fromkeys(outcome.skipped for outcome in skipped):
        names = ", ".join(outcome.name for outcome in skipped if outcome.skipped == why)
        print_message(f"not run: {names}: {why}")
    if skipped:
        ran = f"{len(outcomes) - len(skipped)} of {len(outcomes)} examples ran"
    verdict = f"{len(failed)} of {len(outcomes)} examples failed" if failed else ran
    rest = "" if failed else ", all was removed again, and nothing is left on the nodes"
    print_message(f"{verdict} in {seconds:.0f} s{rest}.")


def _rows(outcome: ExampleOutcome) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (
            outcome.name if index == 0 else "",
            container.container,
            container.node,
            _devices(container),
            gpu_files(container.device_nodes),
        )
        for index, container in enumerate(outcome.containers)
    ]
    return rows or [(outcome.name, "-", "-", "-", "not run" if outcome.skipped else "failed")]


def _devices(container: ContainerResult) -> str:
    """A device by its name, several by their number. A pod that has ended has released what it saw."""
    devices = container.devices
    names = [device.attribute("productName") for device in devices]
    kinds = [device.kind if name == "-" else short_product(name) for device, name in zip(devices, names, strict=True)]
    if len(devices) == 1:
        return f"{devices[0].id.device} {kinds[0]}"
    none = "released" if container.device_nodes else "none"
    return ", ".join(f"{count} x {product}" for product, count in Counter(kinds).items()) or none


def gpu_files(paths: Sequence[str]) -> str:
    """`/dev/nvidia0-3,5` of all GPUs' nodes, with `+MIG` for capabilities of MIG devices and `+IMEX` for a channel; or
    the VFIO group."""
    minors = sorted(int(path[11:]) for path in paths if path[:11] == "/dev/nvidia" and path[11:].isdigit())
    runs: list[list[int]] = []
    for minor in minors:
        if runs and minor == runs[-1][-1] + 1:
            runs[-1].append(minor)
        else:
            runs.append([minor])
    spans = ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    mig = " +MIG" if any(path.startswith("/dev/nvidia-caps/") for path in paths) else ""
    imex = " +IMEX" if any(path.startswith("/dev/nvidia-caps-imex-channels/") for path in paths) else ""
    groups = [path for path in paths if path.startswith("/dev/vfio/") and path[10:].isdigit()]
    return f"/dev/nvidia{spans}{mig}{imex}" if runs else " ".join(groups) or f"no GPU{imex}"


def _data(outcome: ExampleOutcome) -> dict[str, object]:
    return {
        "example": outcome.name,
        "error": outcome.error,
        "skipped": outcome.skipped,
        "containers": [
            {
                "pod": container.pod,
                "container": container.container,
                "node": container.node,
                "devices": [str(device.id) for device in container.devices],
                "environment": list(container.environment),
                "deviceNodes": list(container.device_nodes),
                "mounts": container.mounts,
                "hooks": container.hooks,
            }
            for container in outcome.containers
        ],
    }


_HINTS = """kubectl get nodeinventories,resourceslices
dractl get devices
"""


def cluster(
    nodes: NodesOption = None,
    publisher: PublisherOption = "controller",
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Folder for the cluster's files; default: a temporary folder.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option("--policy", help="File with GpuPolicies or a PublishingPolicy for the installation.")
    ] = None,
    gates: Annotated[
        str,
        typer.Option(
            "--feature-gates", metavar="A=true,B=false", help="Feature gates of the driver's controller and plugins."
        ),
    ] = "",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port of the API server on 127.0.0.1; 0: any free port.")
    ] = 0,
    kubernetes: VersionOption = SEEN_VERSIONS[-1],
) -> None:
    """Start a simulated cluster with GPUs and keep it running until Ctrl-C.

    Prints the kubeconfig to use. Deployments, Jobs and other workloads get their pods. Programs of containers do
    not run: kubectl logs and exec show what they would see. A node plugin or controller that is killed is started
    again.

    \b
    Examples:
      dractl cluster --nodes dgx-h100:2,t4
      dractl cluster --nodes gb200:4 --folder cluster/
    """
    running = partial(
        SimulatedCluster.running,
        version=SEEN[named_minor(kubernetes, SEEN)],
        nodes=wanted_nodes(nodes, None),
        installed=read_policies(policy, Gates.parse(gates)),
        publisher=publisher,
        gates=gates,
        port=port,
    )
    if folder is not None:
        try:
            (folder / "logs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UnreadableFile(f"this folder cannot be made: {error.strerror}", about=str(folder)) from error
        asyncio.run(_keep(folder.resolve(), running))
        return
    with tempfile.TemporaryDirectory(prefix="dractl-") as place:
        asyncio.run(_keep(Path(place), running))


async def _keep(folder: Path, running: _Running) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        (folder / "logs").mkdir(exist_ok=True)
        log = stack.enter_context((folder / "logs" / "simulation.log").open("a"))
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            reason = "a simulated cluster is running in this folder; end it, or name another folder with --folder"
            raise InvalidInput(reason, about=str(folder)) from error
        configure_logging("info", "console", log)
        with messages.status("starting a simulated cluster") as status:
            cluster = await stack.enter_async_context(running(folder, progress=status.update))
        if stop.is_set():
            return
        print_message(f"A cluster with {how_many(len(cluster.nodes), 'node')} is running. In another terminal:\n")
        typer.echo(f"export KUBECONFIG={cluster.kubeconfig}")
        print_message(f"{_HINTS}\nLogs are in {folder / 'logs'}. Ctrl-C ends it.")
        restarts = cluster.restarts(print_message)
        while not stop.is_set():
            await restarts.look()
            await until(stop, 1.0)
