"""The port through which prepare sees the node; `kubelet_plugin.claims.service` implements it over Discovery."""

from typing import Protocol

from kubelet_plugin.prepare.node import ContainerFiles, Node


class NodeView(Protocol):
    """The node as it is now."""

    def node(self) -> Node:
        """The table of devices as it was last seen. Raises NodeNotReady before the hardware was ever seen."""

    def boot_id(self) -> str:
        """Of the present boot. Raises NodeNotReady before the hardware was ever seen."""

    async def look_again(self) -> Node:
        """The table of devices, read from the hardware now. Raises NodeNotReady."""

    async def files(self) -> ContainerFiles:
        """The driver's files and device nodes. Raises NodeNotReady that says what is missing; nothing bad is kept."""
