"""A connection for one command: the cluster that the user's kubeconfig names."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from dra_driver.kube.client import Kube
from dra_driver.kube.endpoint import default_kubeconfigs, endpoint_from


def ask[T](kubeconfig: Path | None, context: str | None, question: Callable[[Kube], Awaitable[T]]) -> T:
    """Run `question` against the cluster. Raises ClusterError or InvalidInput as the client does."""

    async def connected() -> T:
        async with Kube(endpoint_from(kubeconfig or default_kubeconfigs(), context)) as kube:
            return await question(kube)

    return asyncio.run(connected())
