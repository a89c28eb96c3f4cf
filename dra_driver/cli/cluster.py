"""`dractl cluster`: the demo's cluster, kept running for kubectl, Helm and your own manifests."""

import asyncio
import signal
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Annotated

import typer

from dra_driver.api.policy import PublishingPolicy
from dra_driver.cli.demo import (
    SEEN_VERSIONS,
    NodesOption,
    Publisher,
    PublisherOption,
    VersionOption,
    scenarios_in,
    wanted_nodes,
)
from dra_driver.cli.plan import policy_of
from dra_driver.errors import InvalidInput
from dra_driver.kubernetes import SEEN, named_minor
from dra_driver.publish.policy_file import read_policy
from dra_driver.runtime.telemetry import configure_logging
from dra_driver.simulation.cluster import SimulatedCluster, SimulatedNode
from dra_driver.terminal import messages

_HINTS = """kubectl get nodeinventories,resourceslices
dractl get devices
"""


def cluster(
    nodes: NodesOption = None,
    publisher: PublisherOption = Publisher.CONTROLLER,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="Where its files lie; default: a temporary folder.", show_default=False),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option("--policy", help="A PublishingPolicy; default: what the examples need.", show_default=False),
    ] = None,
    port: Annotated[
        int,
        typer.Option("--port", min=0, max=65535, help="Port of the API server on 127.0.0.1; 0 takes a free one."),
    ] = 0,
    kubernetes: VersionOption = SEEN_VERSIONS[-1],
) -> None:
    """Start a simulated cluster with GPUs and keep it running until Ctrl-C.

    Prints the kubeconfig to use. Pods do not really run: what their containers would get is written to
    nodes/NODE/kubelet/pods/UID/containers.json. A node plugin or controller that is killed is started again.
    """
    version = SEEN[named_minor(kubernetes, SEEN)]
    wanted = wanted_nodes(nodes, None)
    allowed = read_policy(policy) if policy is not None else _policy_of_examples()
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"this folder cannot be made: {error.strerror}", about=str(folder)) from error
        asyncio.run(_keep(folder.resolve(), wanted, allowed, publisher, version, port))
        return
    with tempfile.TemporaryDirectory(prefix="dractl-") as place:
        asyncio.run(_keep(Path(place), wanted, allowed, publisher, version, port))


def _policy_of_examples() -> PublishingPolicy:
    return policy_of(document for scenario in scenarios_in(None) for document in scenario.policies)


async def _keep(
    folder: Path, nodes: Sequence[SimulatedNode], policy: PublishingPolicy, publisher: str, version: str, port: int
) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        (folder / "logs").mkdir(exist_ok=True)
        log = stack.enter_context((folder / "logs" / "simulation.log").open("a"))
        configure_logging("info", "console", log)
        with messages.status("starting a simulated cluster") as status:
            cluster = await stack.enter_async_context(
                SimulatedCluster.running(
                    folder,
                    nodes,
                    publisher=publisher,
                    policy=policy,
                    version=version,
                    port=port,
                    progress=status.update,
                )
            )
        messages.print(f"A cluster with {len(nodes)} node(s) is running. In another terminal:\n")
        typer.echo(f"export KUBECONFIG={cluster.kubeconfig}")
        messages.print(f"{_HINTS}\nLogs are in {folder / 'logs'}. Ctrl-C ends it.", markup=False)
        restarts = cluster.restarts(lambda what: messages.print(what, markup=False))
        while not stop.is_set():
            await restarts.look()
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), 1.0)
