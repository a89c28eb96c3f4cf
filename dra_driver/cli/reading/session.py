"""The connection of a command to the cluster of the kubeconfig: its options, and what a user may list there."""

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dra_driver.api.meta import JsonObject, Resource
from dra_driver.errors import ClusterError, NotFound, UnreadableFile

if TYPE_CHECKING:
    from dra_driver.kube.client import Kube


KubeconfigOption = Annotated[
    Path | None,
    typer.Option("--kubeconfig", help="Kubeconfig of the cluster; default: $KUBECONFIG, then ~/.kube/config."),
]
ContextOption = Annotated[
    str | None, typer.Option("--context", help="Context of the kubeconfig; default: the current context.")
]


FORBIDDEN = (401, 403)


def ask[T](kubeconfig: Path | None, context: str | None, question: Callable[["Kube"], Awaitable[T]]) -> T:
    """Run `question` against the cluster. Raises UnreadableFile without a kubeconfig, and ClusterError or InvalidInput
    as the client does."""
    # What a question reads stays until the command ends. Collections of garbage would look at all of it again and
    # again, which is half of the time in a cluster with 1,000 nodes. Commands that stay switch them on again.
    gc.disable()
    # The HTTP client takes longer to import than files take to explain.
    from dra_driver.kube.client import Kube
    from dra_driver.kube.endpoint import endpoint_from

    files = _files(kubeconfig)
    if not any(file.exists() for file in files):
        raise UnreadableFile(_NO_KUBECONFIG, about=f"kubeconfig {os.pathsep.join(map(str, files))}")

    async def connected() -> T:
        async with Kube(endpoint_from(files, context)) as kube:
            return await question(kube)

    return asyncio.run(connected())


def default_namespace(kubeconfig: Path | None, context: str | None) -> str:
    """Where kubectl looks for an object if no namespace is given."""
    from dra_driver.kube.endpoint import namespace_of

    return namespace_of(_files(kubeconfig), context)


def _files(kubeconfig: Path | None) -> tuple[Path, ...]:
    from dra_driver.kube.endpoint import default_kubeconfigs

    return (kubeconfig,) if kubeconfig is not None else default_kubeconfigs()


def ask_all(
    kubeconfig: Path | None, context: str | None, kinds: Sequence[Resource], *, required: bool = True
) -> tuple[int, dict[Resource, list[JsonObject]]]:
    """The server's minor version, and all objects of these kinds. If not all of them are `required`, those that the
    user may not list are left out. Raises as `ask`."""

    async def everything(kube: "Kube") -> tuple[int, dict[Resource, list[JsonObject]]]:
        _, minor = await kube.server_version()
        answers = {kind: await listed(kube, kind) for kind in kinds}
        errors = [answer for answer in answers.values() if isinstance(answer, ClusterError)]
        for error in errors:
            if required or isinstance(error, NotFound) or len(errors) == len(kinds):
                raise error
        return minor, {kind: answer for kind, answer in answers.items() if isinstance(answer, list)}

    return ask(kubeconfig, context, everything)


_NO_KUBECONFIG = (
    "does not exist; name another file with --kubeconfig or in KUBECONFIG, or start a simulated cluster with"
    " dractl cluster, which prints the line to use"
)


async def listed(
    kube: "Kube", resource: Resource, namespace: str | None = None, labels: str | None = None
) -> list[JsonObject] | ClusterError:
    """All objects, or those that the labels select, with their kind, which items of a list do not have. The error if
    the cluster does not have the kind (NotFound) or the user may not list it. Raises ClusterError for anything else."""
    try:
        results = (await kube.list(resource, namespace=namespace, label_selector=labels)).items
    except ClusterError as error:
        if error.status in FORBIDDEN or isinstance(error, NotFound):
            return error
        raise
    return [{**item, "apiVersion": resource.api_version, "kind": resource.kind} for item in results]
