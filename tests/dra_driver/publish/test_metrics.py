"""What Prometheus reads of publishing, in the controller and in a node plugin that publishes by itself."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import yaml
from prometheus_client import CollectorRegistry, generate_latest
from support.inventories import gpu, inventory_object, inventory_spec

from dra_driver.api.crd import FILE
from dra_driver.api.meta import CRDS, NODE_INVENTORIES, NODES, RESOURCE_SLICES, JsonObject, Resource
from dra_driver.errors import Unreachable
from dra_driver.kube.client import Endpoint, Kube
from dra_driver.kube.metrics import ApiCalls
from dra_driver.kube.watch import Backoff
from dra_driver.names import GPU_DRIVER
from dra_driver.publish import PoolPublisher
from dra_driver.publish.metrics import CountingNarrator, PublishedPools
from dra_driver.simulation.apiserver import SimulatedApiServer


class Refusing(Kube):
    """Refuses writes of slices while `refuses`, but answers what is only tried."""

    refuses = False

    async def create(self, resource: Resource, obj: JsonObject, *, dry_run: bool = False, **more: Any) -> JsonObject:
        if resource is RESOURCE_SLICES and self.refuses and not dry_run:
            raise Unreachable("too busy", status=429)
        return await super().create(resource, obj, dry_run=dry_run, **more)


async def until(registry: CollectorRegistry, true: Callable[[list[str]], bool]) -> list[str]:
    async with asyncio.timeout(20):
        while True:
            lines = generate_latest(registry).decode().splitlines()
            if true(lines):
                return lines
            await asyncio.sleep(0.02)


async def test_pools_tell_their_generation_and_publication_and_that_they_fail(
    api_server: SimulatedApiServer, kube: Kube
) -> None:
    await kube.create(CRDS, yaml.safe_load(FILE.read_text()))
    uid = (await kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}))["metadata"]["uid"]
    spec = inventory_spec(
        "a", [gpu(0)], registered=datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    )
    await kube.create(NODE_INVENTORIES, inventory_object(spec, uid))
    registry = CollectorRegistry()
    async with Refusing(Endpoint(server=api_server.url), answered=ApiCalls(registry).answered) as client:
        client.refuses = True
        publisher = PoolPublisher(
            client,
            GPU_DRIVER,
            narrator=CountingNarrator(registry),
            ask_after_s=0.0,
            retry=lambda: Backoff(first_s=0.01, longest_s=0.1),
        )
        registry.register(PublishedPools(lambda: publisher))
        task = asyncio.create_task(publisher.run())
        try:
            failing = await until(registry, lambda lines: 'gpu_dra_pool_failing{pool="a"} 1.0' in lines)
            assert not any(line.startswith("gpu_dra_pool_generation{") for line in failing)
            client.refuses = False
            lines = await until(registry, lambda lines: 'gpu_dra_pool_generation{pool="a"} 1.0' in lines)
            lines = await until(registry, lambda lines: 'gpu_dra_pool_failing{pool="a"} 0.0' in lines)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(found['gpu_dra_pool_published_timestamp_seconds{pool="a"}']) > 1.7e9
    assert float(found["gpu_dra_pool_retries_total"]) >= 1
    assert float(found["gpu_dra_slice_write_failures_total"]) >= 1
    assert float(found['gpu_dra_api_requests_total{code="201",resource="resourceslices",verb="create"}']) >= 1
    assert float(found['gpu_dra_api_requests_total{code="200",resource="nodeinventories",verb="watch"}']) >= 1
    assert not any(name.startswith("gpu_dra_api_errors_total{") for name in found)


def test_without_leading_only_that_is_told() -> None:
    registry = CollectorRegistry()
    registry.register(PublishedPools(lambda: None))
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    assert lines == ["gpu_dra_publishing 0.0"]
