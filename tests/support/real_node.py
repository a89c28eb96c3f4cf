"""A node as it is in a cluster: plugin processes, a simulated kubelet, and what runs beside them in the cluster."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.machine import QUICK, Machine
from support.objects import node
from support.observed_api import ObservedApiServer
from support.plugin import eventually
from support.plugin_process import NodeUnderTest, Plugin, PluginForks, plugin_on
from support.publishing import fixed
from support.shipped import create_classes

from dra_driver import bundled
from dra_driver.api.meta import CRDS, NODE_INVENTORIES, NODES, RESOURCE_SLICES, JsonObject
from dra_driver.errors import NotFound
from dra_driver.kube.client import Kube
from dra_driver.kube.watch import Watches
from dra_driver.names import GPU_DRIVER
from dra_driver.publish.pools import PoolPublisher, Publication
from dra_driver.simulation.controllers import SimulatedClaimController
from dra_driver.simulation.kubelet.registry import Times
from dra_driver.simulation.scheduler import SimulatedScheduler
from kubelet_plugin.simulation.host import create_host


@asynccontextmanager
async def _background(*work: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class RealNode:
    """Node `node-1` with simulated T4s, or another profile."""

    server: ObservedApiServer
    kube: Kube
    forks: PluginForks
    folder: Path
    profile: str = "t4"
    times: Times = QUICK
    options: tuple[str, ...] = ()
    machine: Machine = field(init=False)
    node: NodeUnderTest = field(init=False)

    def __post_init__(self) -> None:
        kubeconfig = self.server.kubeconfig(self.folder / "kubeconfig")
        host = create_host(self.folder / "host", self.profile)
        self.node = NodeUnderTest(self.folder, kubeconfig, host, options=self.options)
        self.machine = Machine(self.kube, self.folder, self.times)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["RealNode"]:
        """The cluster has what an administrator installs, and kubelet runs."""
        for path in sorted(bundled.CRDS_FOLDER.glob("*.yaml")):
            await self.kube.create(CRDS, bundled.read_yaml(path.read_text()))
        await create_classes(self.kube)
        await self.kube.create(NODES, node())
        await eventually(self._inventories_served)
        async with self.machine.running():
            yield self

    def plugin(self, pod_uid: str | None = None, *, ready: bool = True) -> AbstractAsyncContextManager[Plugin]:
        return plugin_on(self.forks, self.node, pod_uid=pod_uid, ready=ready)

    @asynccontextmanager
    async def publishing(self) -> AsyncIterator[None]:
        """The controller's publisher, for all nodes."""
        async with _background(
            PoolPublisher(Watches(self.kube), Publication(driver=GPU_DRIVER, policies=fixed())).run()
        ):
            yield

    @asynccontextmanager
    async def scheduling(self) -> AsyncIterator[None]:
        """The scheduler, and the controller that makes claims and takes reservations back."""
        async with _background(SimulatedScheduler(self.kube).run(), SimulatedClaimController(self.kube).run()):
            yield

    async def registered(self, instances: int = 1) -> None:
        """Until kubelet is connected with as many instances of the driver."""
        registry = self.machine.kubelet.registry
        await eventually(lambda: sum(plugin.connected for plugin in registry.plugins()) == instances)

    async def slices(self, node_name: str = "node-1") -> list[JsonObject]:
        items = (await self.kube.list(RESOURCE_SLICES)).items
        return [item for item in items if item["spec"].get("nodeName") == node_name]

    async def versions(self) -> dict[str, str]:
        """Resource versions of the node's slices by UID: equal means untouched."""
        return {item["metadata"]["uid"]: item["metadata"]["resourceVersion"] for item in await self.slices()}

    async def published(self, devices: Sequence[str] | None = None) -> list[JsonObject]:
        """Until the node's devices are in slices; answers them."""
        expected = sorted(devices if devices is not None else self.node.devices)

        async def complete() -> bool:
            return (
                sorted(device["name"] for slice_ in await self.slices() for device in slice_["spec"]["devices"])
                == expected
            )

        await eventually(complete)
        return await self.slices()

    async def wiped(self) -> None:
        async def empty() -> bool:
            return not await self.slices()

        await eventually(empty)

    async def inventory(self) -> JsonObject:
        return await self.kube.get(NODE_INVENTORIES, "node-1")

    async def signs_of_life(self) -> list[JsonObject]:
        """The registrations that the inventory tells of."""
        registrations: list[JsonObject] = (await self.inventory())["spec"].get("registrations") or []
        return registrations

    async def _inventories_served(self) -> bool:
        try:
            await self.kube.list(NODE_INVENTORIES)
        except NotFound:
            return False
        return True
