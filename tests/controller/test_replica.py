"""Replicas that wait, and the one that leads: controller/replica.py."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from support.background import background
from support.inventories import gpu, inventory_object, inventory_spec
from support.observed_api import ObservedApiServer
from support.plugin import eventually
from support.shipped import create_definitions

from controller.policies import PolicyKeeper
from controller.replica import Replica, alone
from controller.slices import PublishedSlices
from dra_driver.api.meta import NODE_INVENTORIES, NODES, RESOURCE_SLICES
from dra_driver.features import Gates
from dra_driver.kube.client import Kube
from dra_driver.kube.watch import Watches
from dra_driver.names import GPU_DRIVER
from dra_driver.publish.live import LivePolicies
from dra_driver.publish.pools import Publication, PublishingListeners
from dra_driver.runtime import memory


@dataclass
class Parts:
    watches: Watches
    slices: PublishedSlices
    policies: PolicyKeeper

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.slices.run())
            tasks.create_task(self.policies.run())


class Terms:
    """Leads while it is asked to."""

    def __init__(self) -> None:
        self.begins, self.ends = asyncio.Event(), asyncio.Event()

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        await self.begins.wait()
        self.begins.clear()
        async with background(work()):
            await self.ends.wait()
        self.ends.clear()


@pytest.fixture
async def replica(kube: Kube) -> Replica[Parts]:
    publication = Publication(
        driver=GPU_DRIVER,
        policies=lambda watches, changed: LivePolicies(watches, GPU_DRIVER, Gates.DEFAULT, changed),
    )

    def build() -> Parts:
        watches = Watches(kube)
        slices = PublishedSlices(watches, publication, PublishingListeners(), workers=2)
        return Parts(watches, slices, PolicyKeeper(watches, Gates.DEFAULT))

    return Replica(build)


async def a_node(kube: Kube, name: str) -> None:
    node = await kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    spec = inventory_spec(name, [gpu(0)], registered=datetime.now(UTC).isoformat().replace("+00:00", "Z"))
    await kube.create(NODE_INVENTORIES, inventory_object(spec, node["metadata"]["uid"]))


async def published(kube: Kube) -> set[str]:
    return {item["spec"]["nodeName"] for item in (await kube.list(RESOURCE_SLICES)).items}


async def publishes(kube: Kube, *nodes: str) -> bool:
    return await published(kube) == set(nodes)


def reads(api_server: ObservedApiServer) -> list[str]:
    """The resources that were listed; a watch begins after the list."""
    return sorted(access.resource for access in api_server.accesses if access.verb == "list")


ALL = ["gpupolicies", "nodeinventories", "nodes", "resourceclaims", "resourceslices"]
"""Each is read once, although several parts follow inventories and policies."""


async def test_a_replica_that_waits_writes_nothing_and_reads_nothing_again_when_it_leads(
    api_server: ObservedApiServer, kube: Kube, replica: Replica[Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_definitions(kube)
    await a_node(kube, "node-a")
    terms, settled = Terms(), list[str | None]()
    monkeypatch.setattr(memory, "settle", lambda: settled.append(replica.parts.slices.problem()))
    async with background(replica.run(terms.lead)):
        await eventually(lambda: settled)
        assert settled == [None], "once, when all is read"
        assert reads(api_server) == ALL
        assert await published(kube) == set()
        assert replica.parts.slices.publisher is None
        api_server.accesses.clear()
        terms.begins.set()
        await eventually(lambda: publisher_has_pools(replica))
        assert reads(api_server) == []
        assert await published(kube) == {"node-a"}


async def test_a_replica_that_leads_before_all_is_read_begins_again_after_its_term(replica: Replica[Parts]) -> None:
    """The definitions of policies and inventories are not installed."""
    terms, first = Terms(), replica.parts
    terms.begins.set()
    terms.ends.set()
    async with background(replica.run(terms.lead)):
        await eventually(lambda: replica.parts is not first)


async def test_without_an_election_a_replica_leads(kube: Kube, replica: Replica[Parts]) -> None:
    await create_definitions(kube)
    await a_node(kube, "node-a")
    async with background(replica.run(alone)):
        await eventually(lambda: publishes(kube, "node-a"))


def publisher_has_pools(replica: Replica[Parts]) -> bool:
    publisher = replica.parts.slices.publisher
    return publisher is not None and bool(publisher.pool_states())


async def test_who_leads_again_reads_all_again(
    api_server: ObservedApiServer, kube: Kube, replica: Replica[Parts]
) -> None:
    await create_definitions(kube)
    await a_node(kube, "node-a")
    terms, first = Terms(), replica.parts
    terms.begins.set()
    async with background(replica.run(terms.lead)):
        await eventually(lambda: publishes(kube, "node-a"))
        api_server.accesses.clear()
        terms.ends.set()
        await eventually(lambda: reads(api_server) == ALL)
        assert replica.parts is not first
        assert replica.parts.slices.publisher is None
        await a_node(kube, "node-b")
        terms.begins.set()
        await eventually(lambda: publishes(kube, "node-a", "node-b"))
