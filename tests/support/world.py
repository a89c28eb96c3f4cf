"""One simulated machine, the plugins on it, and an API server with claims that are allocated to it."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from support.objects import allocation, claim, result
from support.observed_api import ObservedApiServer
from support.plugin_process import NodeUnderTest

from dra_driver.api.meta import RESOURCE_CLAIMS, JsonObject
from dra_driver.kube.client import Kube
from dra_driver.names import ClaimRef
from kubelet_plugin.simulation.host import create_host

NAMESPACE = "team-a"


@dataclass
class World:
    """One node, and the claims that a test allocates on it."""

    server: ObservedApiServer
    kube: Kube
    folder: Path
    nodes: Iterator[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.kubeconfig = self.server.kubeconfig(self.folder / "kubeconfig")
        self.host = create_host(self.folder / "host", "t4")

    def fresh_node(self) -> NodeUnderTest:
        """The machine as it is, with nothing prepared on it. In the place of the one before: its files name paths."""
        shutil.rmtree(self.folder / "n", ignore_errors=True)
        return NodeUnderTest(self.folder / "n", self.kubeconfig, self.host)

    async def allocated(self, name: str, devices: Sequence[str], *, config: Sequence[JsonObject] = ()) -> ClaimRef:
        """A claim that the scheduler gave these devices of the node."""
        created = await self.kube.create(RESOURCE_CLAIMS, claim(name, NAMESPACE))
        results = [result(device) for device in devices]
        reserved = [{"resource": "pods", "name": f"pod-of-{name}", "uid": f"uid-of-{name}"}]
        await self.kube.merge_patch(
            RESOURCE_CLAIMS,
            name,
            {"status": {"allocation": allocation(*results, config=config), "reservedFor": reserved}},
            namespace=NAMESPACE,
            subresource="status",
        )
        return ClaimRef(NAMESPACE, name, created["metadata"]["uid"])

    async def delete(self, ref: ClaimRef) -> None:
        """As when the last pod is gone: deallocated, then deleted, finalizer or not."""
        patch = {"status": {"allocation": None, "reservedFor": None}}
        await self.kube.merge_patch(RESOURCE_CLAIMS, ref.name, patch, namespace=ref.namespace, subresource="status")
        await self.kube.delete(RESOURCE_CLAIMS, ref.name, namespace=ref.namespace)
