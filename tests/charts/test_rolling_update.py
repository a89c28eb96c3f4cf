"""A rolling update of the node plugin as the chart has it, under load: nobody notices.

The plugins are real processes with the arguments that the chart's DaemonSet gives them; kubelet, scheduler and API
server are simulated. What a DaemonSet's controller would do is done here, by the DaemonSet's own update strategy.
"""

import asyncio
import itertools
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.helm import Release
from support.objects import claim, pod
from support.plugin import eventually, short_folder
from support.plugin_process import NodeUnderTest, Plugin, PluginForks
from support.real_node import RealNode

from dra_driver.api.meta import EVENTS, PODS, RESOURCE_CLAIMS
from dra_driver.errors import NotFound
from dra_driver.kube.client import Kube
from dra_driver.names import GPU_DRIVER
from dra_driver.simulation.apiserver.server import SimulatedApiServer

type Render = Any

VALUES = {"kubeletPlugin": {"simulate": "t4"}}
PLACES = ("--kubelet-root", "--cdi-root", "--host-root", "--policy", "--http-endpoint")
"""What the chart says for a container, and is elsewhere in a test."""


@dataclass
class ChartNode(NodeUnderTest):
    """Starts plugins with what the container of a DaemonSet is told, but for places."""

    words: tuple[str, ...] = ()
    port: int = 0

    def arguments(self, *more: str) -> list[str]:
        (uid,) = (word.removeprefix("--pod-uid=") for word in more)
        words = [word.replace("$(POD_UID)", uid) for word in self.words]
        here = {
            "--kubelet-root": self.kubelet,
            "--cdi-root": self.cdi,
            "--host-root": self.host.root,
            "--policy": self.folder / "policy.yaml",
            "--http-endpoint": f"127.0.0.1:{self.port}",
        }
        assert here.keys() == set(PLACES) <= {word.partition("=")[0] for word in words}
        unchanged = [word for word in words if word.partition("=")[0] not in here]
        return [
            *unchanged,
            *(f"{flag}={place}" for flag, place in here.items()),
            f"--node-name={self.name}",
            f"--kubeconfig={self.kubeconfig}",
        ]

    def take_settings(self, release: Release) -> None:
        """From now on, plugins are those of this release."""
        daemon_set = release.object("DaemonSet")
        (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
        self.words = tuple(container["args"])
        (self.folder / "policy.yaml").write_text(release.object("ConfigMap")["data"]["policy.yaml"])
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]


@dataclass
class Pods:
    """The DaemonSet's pods of the one node."""

    real_node: RealNode
    node: ChartNode
    stack: AsyncExitStack
    plugin: Plugin | None = None

    async def roll_out(self, release: Release) -> None:
        """Source: DaemonSetSpec.updateStrategy: with a surge, the old pod ends when the new one is ready."""
        daemon_set = release.object("DaemonSet")
        strategy = daemon_set["spec"]["updateStrategy"]["rollingUpdate"]
        old = self.plugin
        if old is not None and not strategy["maxSurge"]:
            await old.stop()
        self.node.take_settings(release)
        self.plugin = await self.stack.enter_async_context(self.real_node.plugin(str(uuid.uuid4())))
        (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
        await self._is_ready(container["readinessProbe"]["httpGet"]["path"])
        if old is not None and strategy["maxSurge"]:
            await old.stop()

    async def _is_ready(self, path: str) -> None:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{self.node.port}") as http:

            async def ready() -> bool:
                try:
                    async with http.get(path) as response:
                        return response.status == 200
                except aiohttp.ClientConnectionError:
                    return False

            await eventually(ready)


@dataclass
class Load:
    """Pods that come with a claim, run, and go, one after the other; two at any time."""

    kube: Kube
    rounds: int = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Load"]:
        tasks = [asyncio.create_task(self._work(name)) for name in ("a", "b")]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends

    async def more(self, rounds: int) -> None:
        """Until as many pods more have come and gone."""
        wanted = self.rounds + rounds
        await eventually(lambda: self.rounds >= wanted)

    async def _work(self, who: str) -> None:
        for number in itertools.count():
            name = f"{who}-{number}"
            await self.kube.create(RESOURCE_CLAIMS, claim(name))
            await self.kube.create(PODS, pod(name, [name], node_name=None))
            await eventually(lambda name=name: self._runs(name))
            await self.kube.delete(PODS, name, namespace="default")
            await self.kube.delete(RESOURCE_CLAIMS, name, namespace="default")
            await eventually(lambda name=name: self._is_gone(name))
            self.rounds += 1

    async def _runs(self, name: str) -> bool:
        pod = await self.kube.get(PODS, name, "default")
        return (pod.get("status") or {}).get("phase") == "Running"

    async def _is_gone(self, name: str) -> bool:
        try:
            await self.kube.get(RESOURCE_CLAIMS, name, "default")
        except NotFound:
            return True
        return False


async def trouble(kube: Kube) -> list[str]:
    """What kubelet could not do."""
    events = (await kube.list(EVENTS, namespace="default")).items
    return [event.get("message") or event.get("note") or "" for event in events if "Failed" in event["reason"]]


@pytest.mark.slow
async def test_an_update_under_load_fails_no_claim_and_writes_no_slice(
    api_server: SimulatedApiServer, kube: Kube, forks: PluginForks, render: Render
) -> None:
    first, second = (
        await asyncio.to_thread(render, VALUES),
        await asyncio.to_thread(render, {**VALUES, "logLevel": "debug"}),
    )
    with short_folder() as folder:
        real_node = RealNode(api_server, kube, forks, Path(folder))
        node = real_node.node = ChartNode(real_node.node.folder, real_node.node.kubeconfig, real_node.node.host)
        async with real_node.running(), real_node.publishing(), real_node.scheduling(), AsyncExitStack() as stack:
            pods = Pods(real_node, node, stack)
            await pods.roll_out(first)
            await real_node.published()
            before = await real_node.versions()
            async with Load(kube).running() as load:
                await load.more(4)
                await pods.roll_out(second)
                await load.more(4)
                await pods.roll_out(first)
                await load.more(4)
            assert await trouble(kube) == []
            assert await real_node.versions() == before
            served = {path.name for path in (node.kubelet / "plugins" / GPU_DRIVER).glob("*.sock")}
            assert len(served) == 1, "plugins that went took their sockets with them"
