"""Replicas that wait, and the one that leads: controller/slices.py."""

from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry
from support.background import background
from support.inventories import gpu, inventory_object, inventory_spec
from support.observed_api import ObservedApiServer
from support.plugin import eventually
from support.shipped import create_definitions

from controller.slices import PublishedSlices
from dra_driver.api.meta import NODE_INVENTORIES, NODES, RESOURCE_SLICES
from dra_driver.features import Gates
from dra_driver.kube.client import Kube
from dra_driver.names import GPU_DRIVER
from dra_driver.publish.live import LivePolicies
from dra_driver.publish.metrics import PublishingCounters
from dra_driver.publish.pools import Publication, PublishingListeners

READ = {"list", "watch"}


@pytest.fixture
def slices(kube: Kube) -> PublishedSlices:
    publication = Publication(
        driver=GPU_DRIVER,
        policies=lambda kube, changed: LivePolicies(kube, GPU_DRIVER, Gates.DEFAULT, changed),
    )
    counters = PublishingCounters(CollectorRegistry())
    return PublishedSlices(kube, publication, PublishingListeners(), counters, workers=2)


async def a_node(kube: Kube, name: str) -> None:
    node = await kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    spec = inventory_spec(name, [gpu(0)], registered=datetime.now(UTC).isoformat().replace("+00:00", "Z"))
    await kube.create(NODE_INVENTORIES, inventory_object(spec, node["metadata"]["uid"]))


async def published(kube: Kube) -> set[str]:
    return {item["spec"]["nodeName"] for item in (await kube.list(RESOURCE_SLICES)).items}


async def publishes(kube: Kube, *nodes: str) -> bool:
    return await published(kube) == set(nodes)


def follows(api_server: ObservedApiServer) -> bool:
    """A watch begins after the list; five types are followed."""
    return len({access.resource for access in api_server.accesses if access.verb == "watch"}) == 5


async def test_a_replica_that_waits_writes_nothing_and_reads_nothing_again_when_it_leads(
    api_server: ObservedApiServer, kube: Kube, slices: PublishedSlices
) -> None:
    await create_definitions(kube)
    await a_node(kube, "node-a")
    async with background(slices.follow()):
        await eventually(lambda: follows(api_server))
        assert await published(kube) == set()
        assert slices.publisher is None
        api_server.accesses.clear()
        async with background(slices.run()):
            await eventually(lambda: slices.publisher is not None and slices.publisher.pool_states())
            assert not {access for access in api_server.accesses if access.verb in READ}
            assert await published(kube) == {"node-a"}


async def test_who_leads_again_reads_all_again(
    api_server: ObservedApiServer, kube: Kube, slices: PublishedSlices
) -> None:
    await create_definitions(kube)
    await a_node(kube, "node-a")
    async with background(slices.follow()):
        async with background(slices.run()):
            await eventually(lambda: publishes(kube, "node-a"))
        assert slices.publisher is None
        api_server.accesses.clear()
        await a_node(kube, "node-b")
        await eventually(lambda: follows(api_server))
        async with background(slices.run()):
            await eventually(lambda: publishes(kube, "node-a", "node-b"))
