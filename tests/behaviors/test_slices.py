"""What Kubernetes' own tests expect of a driver's slices while kubelet and plugins come and go: real plugin processes.

kubelet deletes a node's slices when it starts, and a driver's some time after its last connection has ended. They come
back for a plugin that lives, stay away for one that is gone, and are not even touched while somebody is back in time.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from support.machine import QUICK
from support.objects import node
from support.plugin import eventually
from support.plugin_process import PluginForks
from support.real_node import RealNode
from support.rows import slow_but

from dra_driver.api.inventory import confirmation_annotation
from dra_driver.api.meta import NODES, RESOURCE_SLICES, JsonObject
from dra_driver.kube.client import Kube
from dra_driver.names import GPU_DRIVER
from dra_driver.simulation.apiserver.server import SimulatedApiServer

PATIENT = replace(QUICK, wipe_after_s=30.0)


class Untouched:
    """Slices before something happened; `confirmed` when they are the same after the plugin's next sign of life."""

    def __init__(self, cluster: RealNode, versions: dict[str, str], signs: list[JsonObject]) -> None:
        self._cluster = cluster
        self._versions = versions
        self._signs = signs

    @classmethod
    async def now(cls, cluster: RealNode) -> "Untouched":
        await cluster.published()
        await cluster.registered()
        return cls(cluster, await cluster.versions(), await cluster.signs_of_life())

    async def confirmed(self) -> None:
        """After the plugin's next sign of life, which is what a publisher acts upon."""

        async def another() -> bool:
            return await self._cluster.signs_of_life() != self._signs

        await eventually(another)
        await self.still()

    async def still(self) -> None:
        """For some time."""
        for _ in range(5):
            assert await self._cluster.versions() == self._versions
            await asyncio.sleep(0.05)


@pytest_asyncio.fixture(params=["controller", "node"])
async def cluster(
    request: pytest.FixtureRequest, api_server: SimulatedApiServer, kube: Kube, forks: PluginForks, folder: Path
) -> AsyncIterator[RealNode]:
    """Both ways to publish: by the controller, or by each plugin for its node."""
    node = RealNode(api_server, kube, forks, folder, options=(f"--publisher={request.param}",))
    if request.param == "node":
        yield node
        return
    async with node.publishing():
        yield node


async def test_published_slices_belong_to_the_node(cluster: RealNode) -> None:
    async with cluster.running(), cluster.plugin():
        published = await cluster.published()
        assert published
        for slice_ in published:
            owner_uid = (await cluster.kube.get(NODES, "node-1"))["metadata"]["uid"]
            (owner,) = slice_["metadata"]["ownerReferences"]
            assert owner == {
                "apiVersion": "v1",
                "kind": "Node",
                "name": "node-1",
                "uid": owner_uid,
                "controller": True,
            }
            assert slice_["spec"]["pool"]["name"] == "node-1"
            assert (slice_["spec"]["nodeName"], slice_["spec"]["driver"]) == ("node-1", GPU_DRIVER)


async def test_a_starting_kubelet_wipes_the_slices_of_its_node_only_and_they_come_back(cluster: RealNode) -> None:
    async with cluster.running(), cluster.plugin():
        before = await cluster.published()
        await cluster.kube.create(NODES, node("node-2"))
        neighbour = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": "of-node-2"},
            "spec": {
                "driver": "other.example.com",
                "nodeName": "node-2",
                "pool": {"name": "node-2", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "d"}],
            },
        }
        foreign = await cluster.kube.create(RESOURCE_SLICES, neighbour)
        await cluster.machine.stop()
        await cluster.machine.start()
        old = {slice_["metadata"]["uid"] for slice_ in before}

        async def replaced() -> bool:
            now = {slice_["metadata"]["uid"] for slice_ in await cluster.slices()}
            return bool(now) and not now & old

        await eventually(replaced)
        after = await cluster.published()
        assert [slice_["spec"]["devices"] for slice_ in after] == [slice_["spec"]["devices"] for slice_ in before]
        untouched = await cluster.kube.get(RESOURCE_SLICES, "of-node-2")
        assert untouched["metadata"]["resourceVersion"] == foreign["metadata"]["resourceVersion"]


@pytest.mark.parametrize("end", slow_but(["stop", "kill"], "kill"))
async def test_slices_of_a_plugin_that_is_gone_are_wiped_and_stay_away_until_it_is_back(
    cluster: RealNode, end: str
) -> None:
    async with cluster.running():
        async with cluster.plugin() as plugin:
            await cluster.published()
            await cluster.registered()
            await (plugin.stop() if end == "stop" else plugin.kill())
            await cluster.wiped()
        if cluster.options == ("--publisher=controller",):
            # The publisher asks whether the plugin lives, and gets no answer.
            await eventually(lambda: _asked(cluster))
        assert await cluster.slices() == []
        async with cluster.plugin():
            await cluster.published()


async def _asked(cluster: RealNode) -> bool:
    annotations = (await cluster.inventory())["metadata"].get("annotations") or {}
    return confirmation_annotation(GPU_DRIVER) in annotations


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_slices_are_untouched_when_the_plugin_is_back_in_time(cluster: RealNode, end: str) -> None:
    cluster.machine.times = PATIENT
    async with cluster.running():
        async with cluster.plugin() as plugin:
            slices = await Untouched.now(cluster)
            await (plugin.stop() if end == "stop" else plugin.kill())
            await cluster.registered(0)
        async with cluster.plugin():
            await cluster.registered()
            await slices.confirmed()


async def test_a_rolling_update_keeps_the_slices_and_the_new_instance_serves(cluster: RealNode) -> None:
    async with cluster.running(), cluster.plugin("old") as old:
        slices = await Untouched.now(cluster)
        async with cluster.plugin("new"):
            await cluster.registered(2)
            assert "dra-new" in cluster.machine.kubelet.registry.newest(GPU_DRIVER).endpoint
            assert await old.stop() == 0
            await cluster.registered(1)
            assert "dra-new" in cluster.machine.kubelet.registry.newest(GPU_DRIVER).endpoint
            await slices.confirmed()


async def test_a_failed_rolling_update_keeps_the_slices_and_the_old_instance_serves(cluster: RealNode) -> None:
    async with cluster.running(), cluster.plugin("old"):
        slices = await Untouched.now(cluster)
        async with cluster.plugin("new") as new:
            await cluster.registered(2)
            await new.kill()
        await cluster.registered(1)
        assert "dra-old" in cluster.machine.kubelet.registry.newest(GPU_DRIVER).endpoint
        await slices.still()


async def test_one_instance_after_the_other_keeps_the_slices(cluster: RealNode) -> None:
    cluster.machine.times = PATIENT
    async with cluster.running():
        async with cluster.plugin("old") as old:
            slices = await Untouched.now(cluster)
            assert await old.stop() == 0
        async with cluster.plugin("new"):
            await cluster.registered()
            await slices.confirmed()
