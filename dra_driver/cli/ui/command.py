"""`dractl ui`: serves the pages to this user's browser, or as a pod to users of its cluster."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer

from dra_driver.api.meta import EVENTS
from dra_driver.cli.reading.live import EXPLAINED_BY
from dra_driver.cli.reading.session import ContextOption, KubeconfigOption, ask
from dra_driver.cli.tables.seen import TAINT_RULES
from dra_driver.cli.ui.ui_server import Listening, UiServer
from dra_driver.cli.ui.viewers import OwnKey, TokenReviews, Viewers
from dra_driver.cli.ui.watched import WatchedCluster
from dra_driver.errors import InvalidInput
from dra_driver.kube.client import Endpoint, Kube, endpoint_from
from dra_driver.names import GPU_DRIVER
from dra_driver.runtime.tasks import signal_to_stop
from dra_driver.terminal import print_message

SHOWN = (*(kind for kind in EXPLAINED_BY if kind != TAINT_RULES[1]), EVENTS)
"""What the pages show something of, also by an explanation. The chart's ClusterRole for viewers has the same."""


def ui(
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port on 127.0.0.1; 0: any free port.")] = 8080,
    driver: Annotated[str, typer.Option("--driver", help="The driver of the GPUs.")] = GPU_DRIVER,
    shared: Annotated[
        bool, typer.Option("--shared", help="Run in a pod for all users of the cluster, who sign in with their tokens.")
    ] = False,
    certificates: Annotated[
        Path | None,
        typer.Option(
            "--certificates",
            metavar="FOLDER",
            help="With --shared: serve HTTPS on all addresses, with tls.crt and tls.key of this folder; default: HTTP"
            " on 127.0.0.1, for kubectl port-forward.",
        ),
    ] = None,
    role: Annotated[
        str, typer.Option("--viewer-role", help="With --shared: the ClusterRole to name when a user is refused.")
    ] = "gpu-dra-gpu-dra-driver-ui-viewer",
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Show the cluster's GPUs in a browser, live: a map of all nodes, pages of nodes and GPUs, pods that wait and why,
    and ComputeDomains as racks.

    Prints the address to open. It has a key, so that other users of this machine see nothing; the server answers on
    127.0.0.1 only, changes nothing, and shows what your kubeconfig may read. While no page is open, it does not follow
    the cluster. Ctrl-C ends it. `dractl get nodes -o html` writes the map as one file.

    \b
    Examples:
      dractl ui
      dractl ui --port 0 --context production
    """
    if certificates is not None and not shared:
        raise InvalidInput("is for --shared; without it nothing leaves this machine", about="--certificates")
    with suppress(KeyboardInterrupt):
        if not shared:
            ask(kubeconfig, context, lambda kube: _serve_owner(kube, driver, port))
            return
        listening = Listening("127.0.0.1", port)
        if certificates is not None:
            listening = Listening("", port, hosts=None, tls=certificate_of(certificates))
        asyncio.run(_serve_shared(endpoint_from(kubeconfig, context), driver, listening, role, certificates))


async def _serve_owner(kube: Kube, driver: str, port: int) -> None:
    await kube.server_version()  # a mistake in the kubeconfig is reported now
    viewers = OwnKey()
    async with _served(kube, driver, viewers, Listening("127.0.0.1", port)) as chosen:
        print_message("Open this address in a browser of this machine. Ctrl-C ends the server.")
        typer.echo(f"http://127.0.0.1:{chosen}/enter?key={viewers.key}")
        await signal_to_stop()


async def _serve_shared(
    endpoint: Endpoint, driver: str, listening: Listening, role: str, certificates: Path | None
) -> None:
    async with (
        Kube(endpoint, user_agent="gpu-dra-ui") as kube,
        _served(kube, driver, TokenReviews(kube, SHOWN, role), listening),
        asyncio.TaskGroup() as tasks,
    ):
        followed = None
        if listening.tls is not None and certificates is not None:
            followed = tasks.create_task(follow_certificate(listening.tls, certificates))
        await signal_to_stop()
        if followed is not None:
            followed.cancel()


@asynccontextmanager
async def _served(kube: Kube, driver: str, viewers: Viewers, listening: Listening) -> AsyncIterator[int]:
    watched = WatchedCluster(kube, driver)
    try:
        async with UiServer(watched, viewers, listening).serving() as port:
            yield port
    finally:
        await watched.close()


def certificate_of(folder: Path) -> ssl.SSLContext:
    """A server's context with tls.crt and tls.key. Raises InvalidInput."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load(context, folder)
    return context


def _load(context: ssl.SSLContext, folder: Path) -> None:
    try:
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(f"tls.crt and tls.key cannot be used: {error}", about=f"folder {folder}") from error


async def follow_certificate(context: ssl.SSLContext, folder: Path, every_s: float = 60.0) -> None:
    """New connections get the newest pair that can be used: kubelet replaces the files when their Secret changes."""
    problem = ""
    while True:
        await asyncio.sleep(every_s)
        try:
            # A pair that does not fit would leave `context` without a key.
            certificate_of(folder)
            _load(context, folder)
            problem = ""
        except InvalidInput as error:
            if str(error) != problem:
                problem = str(error)
                print_message(f"{problem}; the server keeps the certificate that it has")
