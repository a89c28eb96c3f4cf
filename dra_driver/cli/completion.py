"""`dractl completion SHELL`, and the names of objects that a shell proposes."""

import asyncio
from pathlib import Path
from typing import Annotated, Literal

import typer

from dra_driver.api.meta import Resource

_PATIENCE_S = 2.0
"""A person waits with a finger on the key."""


def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="Shell to write the script for.")],
) -> None:
    """Print a script that completes commands, options, and names from the cluster.

    \b
    Examples:
      source <(dractl completion bash)
      dractl completion zsh > "${fpath[1]}/_dractl"
      dractl completion fish > ~/.config/fish/completions/dractl.fish
    """
    from typer._completion_shared import get_completion_script

    typer.echo(get_completion_script(prog_name="dractl", complete_var="_DRACTL_COMPLETE", shell=shell))


def names_of(resource: Resource, incomplete: str, kubeconfig: Path | None, context: str | None) -> list[str]:
    """Names of objects that begin like that; of slices, names of whole GPUs. Empty if the cluster does not answer."""
    from dra_driver.cli.reading.session import ask
    from dra_driver.errors import DriverError
    from dra_driver.kube.client import Kube

    async def question(kube: Kube) -> list[str]:
        async with asyncio.timeout(_PATIENCE_S):
            items = (await kube.list(resource)).items
        if resource.kind != "ResourceSlice":
            return [item["metadata"]["name"] for item in items]
        devices = [device for item in items for device in item["spec"].get("devices") or ()]
        return [
            device["name"]
            for device in devices
            if (device.get("attributes") or {}).get("type", {}).get("string") == "gpu"
        ]

    try:
        names = ask(kubeconfig, context, question)
    except (DriverError, TimeoutError):
        return []
    return sorted({name for name in names if name.startswith(incomplete)})
