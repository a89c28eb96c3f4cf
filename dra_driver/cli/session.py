"""A connection for one command: the cluster that the user's kubeconfig names."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

import typer

from dra_driver.kube.client import Kube
from dra_driver.kube.endpoint import default_kubeconfig, endpoint_from

KubeconfigOption = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig", help="Which cluster to ask; default: $KUBECONFIG, then ~/.kube/config.", show_default=False
    ),
]
ContextOption = Annotated[
    str | None,
    typer.Option("--context", help="Context of the kubeconfig; default: its current one.", show_default=False),
]


def ask[T](kubeconfig: Path | None, context: str | None, question: Callable[[Kube], Awaitable[T]]) -> T:
    """Run `question` against the cluster. Raises ClusterError or InvalidInput as the client does."""

    async def connected() -> T:
        async with Kube(endpoint_from(kubeconfig or default_kubeconfig(), context)) as kube:
            return await question(kube)

    return asyncio.run(connected())
