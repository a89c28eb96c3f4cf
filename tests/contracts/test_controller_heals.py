"""Two replicas of the controller and a real API server, and what can happen to them while nodes change: afterwards the
slices are those of the nodes that are there, and nobody writes any more.

The servers are killed and stopped here, so they are this module's own.
"""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest_asyncio
from support import real_api_server
from support.background import background
from support.inventories import gpu, inventory_object, inventory_spec
from support.mig import gpu_of
from support.publishing import now
from support.real_api_server import RealApiServer
from support.shipped import create_definitions

from dra_driver.api.inventory import GpuFacts, confirmation_annotation
from dra_driver.api.meta import (
    COMPUTE_DOMAINS,
    GPU_POLICIES,
    LEASES,
    NODE_INVENTORIES,
    NODES,
    RESOURCE_SLICES,
    JsonObject,
    Resource,
)
from dra_driver.api.policy import PublishingPolicy
from dra_driver.errors import ClusterError, NotFound
from dra_driver.kube.client import Kube
from dra_driver.kube.endpoint import endpoint_from
from dra_driver.kube.watch import Change, Mirror
from dra_driver.names import GPU_DRIVER
from dra_driver.slices.diff import contents_digest
from dra_driver.slices.offline import published_offline

PATIENCE_S = 60.0
LEASE = ("--lease-duration=3", "--renew-deadline=2", "--retry-period=0.5")
NODES_AT_FIRST = 6


class Cluster:
    def __init__(self, server: RealApiServer, kube: Kube, folder: Path) -> None:
        self.server = server
        self.kube = kube
        self.replicas: dict[str, subprocess.Popen[bytes]] = {}
        """By the identity in the Lease."""
        self._folder = folder
        self._numbers = count()
        self._gpus: dict[str, list[GpuFacts]] = {}
        self._uids: dict[str, str] = {}
        self._rules: JsonObject = {}
        self._answers: set[asyncio.Task[None]] = set()

    def start_replica(self) -> None:
        name = f"replica-{next(self._numbers)}"
        command = [sys.executable, "-m", "controller.main", "--kubeconfig", str(self._folder / "kubeconfig")]
        with (self._folder / "controller.log").open("ab") as log:
            self.replicas[name] = subprocess.Popen([*command, "--identity", name, *LEASE], stdout=log, stderr=log)

    async def leader(self) -> str:
        leases = await self.answered(lambda: self.kube.list(LEASES, namespace="default"))
        return str(leases.items[0]["spec"]["holderIdentity"])

    async def kill_leader(self) -> None:
        """Another replica starts in its place."""
        process = self.replicas.pop(await self.leader())
        process.kill()
        process.wait()
        self.start_replica()

    async def join(self, *numbers: int) -> None:
        for number in numbers:
            name, gpus = f"node-{number}", [gpu_of("h100-80"), gpu(1, node=number)]
            node = await self.answered(
                lambda name=name: self.kube.create(
                    NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
                )
            )
            self._gpus[name], self._uids[name] = gpus, node["metadata"]["uid"]
            obj = inventory_object(inventory_spec(name, gpus, registered=now()), self._uids[name])
            await self.answered(lambda obj=obj: self.kube.create(NODE_INVENTORIES, obj))

    async def leave(self, *numbers: int) -> None:
        for name in (f"node-{number}" for number in numbers):
            for resource in (NODE_INVENTORIES, NODES):
                await self.answered(lambda resource=resource, name=name: self.kube.delete(resource, name))
            del self._gpus[name]

    async def change(self, *numbers: int) -> None:
        for name in (f"node-{number}" for number in numbers):
            gpus = [item.model_copy(update={"power_limit_watts": 321}) for item in self._gpus[name]]
            patch = {"spec": {"gpus": [item.to_wire() for item in gpus]}}
            await self.answered(lambda name=name, patch=patch: self.kube.merge_patch(NODE_INVENTORIES, name, patch))
            self._gpus[name] = gpus

    async def offer_partitions(self) -> None:
        self._rules = {"mig": [{"mode": "Dynamic"}]}
        kind = {"apiVersion": GPU_POLICIES.api_version, "kind": GPU_POLICIES.kind}
        policy = {**kind, "metadata": {"name": "mig"}, "spec": {"mig": {"mode": "Dynamic"}}}
        await self.answered(lambda: self.kube.create(GPU_POLICIES, policy))

    async def spoil_slices(self) -> None:
        """Others delete one and edit two."""
        names = sorted(item["metadata"]["name"] for item in await self.slices())
        await self.kube.delete(RESOURCE_SLICES, names[0])
        for name in names[1:3]:
            await self.kube.merge_patch(RESOURCE_SLICES, name, {"spec": {"devices": [{"name": "not-ours"}]}})

    async def slices(self) -> list[JsonObject]:
        return (await self.answered(lambda: self.kube.list(RESOURCE_SLICES))).items

    async def answered[T](self, call: Callable[[], Awaitable[T]]) -> T:
        """As soon as the API server is there. It may have done at the first time what it then refuses."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return await call()
                except ClusterError as error:
                    if error.retry_after_s is None:
                        raise
                    await asyncio.sleep(0.2)

    def wanted(self) -> dict[str, list[str]]:
        """Digests of the slices by node."""
        policy = PublishingPolicy.model_validate(self._rules)
        return {
            name: sorted(
                contents_digest(slice_)
                for pool in published_offline(inventory_spec(name, gpus), policy, {}, self._uids[name])
                for slice_ in pool.slices
            )
            for name, gpus in self._gpus.items()
        }

    async def heals(self) -> None:
        """Each node has its slices, of one generation, all of them; and then nothing is written."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                slices = await self.slices()
                if _are_right(slices, self.wanted()):
                    break
                await asyncio.sleep(0.1)
        await asyncio.sleep(2.0)
        assert _versions(await self.slices()) == _versions(slices)

    def plugin_answers(self, change: Change) -> None:
        """Each node's plugin registers again when the controller asks whether it lives."""
        obj = change.after or {"metadata": {}, "spec": {}}
        asked = (obj["metadata"].get("annotations") or {}).get(confirmation_annotation(GPU_DRIVER))
        if asked is None or asked not in {entry["time"] for entry in obj["spec"].get("registrations") or ()}:
            return
        patch = {"spec": {"registrations": [{"driver": GPU_DRIVER, "time": now()}]}}
        task = asyncio.create_task(self._register(change.key[1], patch))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _register(self, node: str, patch: JsonObject) -> None:
        with suppress(ClusterError):  # the node has left
            await self.answered(lambda: self.kube.merge_patch(NODE_INVENTORIES, node, patch))


def _are_right(slices: list[JsonObject], wanted: dict[str, list[str]]) -> bool:
    of_nodes: dict[str, list[JsonObject]] = {}
    for item in slices:
        of_nodes.setdefault(item["spec"]["nodeName"], []).append(item)
    for items in of_nodes.values():
        pools = {(item["spec"]["pool"]["generation"], item["spec"]["pool"]["resourceSliceCount"]) for item in items}
        if len(pools) != 1 or next(iter(pools))[1] != len(items):
            return False
    return {node: sorted(map(contents_digest, items)) for node, items in of_nodes.items()} == wanted


def _versions(slices: list[JsonObject]) -> dict[str, str]:
    return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in slices}


async def _until_served(kube: Kube, resource: Resource) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(NotFound):
                await kube.list(resource)
                return
            await asyncio.sleep(0.1)


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    server = await asyncio.to_thread(real_api_server.start, real_api_server.assets_folder(), tmp_path / "server")
    try:
        real_api_server.write_kubeconfig(server, tmp_path / "kubeconfig")
        async with Kube(endpoint_from(tmp_path / "kubeconfig")) as kube:
            await create_definitions(kube)
            for resource in (NODE_INVENTORIES, GPU_POLICIES, COMPUTE_DOMAINS):
                await _until_served(kube, resource)
            it = Cluster(server, kube, tmp_path)
            inventories = Mirror(kube, NODE_INVENTORIES, on_change=it.plugin_answers)
            try:
                async with background(inventories.run()):
                    it.start_replica()
                    it.start_replica()
                    await it.join(*range(NODES_AT_FIRST))
                    await it.heals()
                    yield it
            finally:
                for process in it.replicas.values():
                    process.kill()
                    process.wait()
    finally:
        await asyncio.to_thread(server.stop)


async def test_a_leader_is_killed_while_a_policy_changes_all_nodes(cluster: Cluster) -> None:
    await cluster.offer_partitions()
    await cluster.kill_leader()
    await cluster.change(0, 1)
    await cluster.heals()


async def test_the_api_server_is_killed_while_nodes_join_and_leave(cluster: Cluster) -> None:
    await cluster.offer_partitions()
    await cluster.join(6, 7)
    cluster.server.api_server.kill()
    cluster.server.api_server.wait()
    await asyncio.sleep(1.0)
    cluster.server.start_api_server()
    await cluster.leave(0, 1)
    await cluster.join(8)
    await cluster.heals()


async def test_the_api_server_stands_still_for_longer_than_the_lease(cluster: Cluster) -> None:
    await cluster.offer_partitions()
    cluster.server.api_server.send_signal(signal.SIGSTOP)
    await asyncio.sleep(5.0)
    cluster.server.api_server.send_signal(signal.SIGCONT)
    await cluster.change(2, 3)
    await cluster.heals()


async def test_the_leader_stands_still_and_continues_when_another_one_leads(cluster: Cluster) -> None:
    """It writes nothing any more, whatever it hears first."""
    before = await cluster.leader()
    cluster.replicas[before].send_signal(signal.SIGSTOP)
    await cluster.offer_partitions()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if await cluster.leader() != before:
                break
            await asyncio.sleep(0.1)
    await cluster.heals()
    slices = await cluster.slices()
    cluster.replicas[before].send_signal(signal.SIGCONT)
    await asyncio.sleep(3.0)
    assert _versions(await cluster.slices()) == _versions(slices)


async def test_slices_are_edited_and_deleted_while_no_controller_runs(cluster: Cluster) -> None:
    for process in cluster.replicas.values():
        process.kill()
        process.wait()
    cluster.replicas.clear()
    await cluster.spoil_slices()
    await cluster.leave(5)
    await cluster.join(9)
    cluster.start_replica()
    await cluster.heals()
    await cluster.spoil_slices()
    await cluster.heals()
