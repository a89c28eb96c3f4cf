"""What Prometheus reads of publishing, in the controller and in a node plugin that publishes by itself."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from support.background import background
from support.inventories import gpu, inventory_object, inventory_spec
from support.publishing import fixed
from support.shipped import create_definitions

from docs.from_code.crds import FILE
from dra_driver.api.meta import NODE_INVENTORIES, NODES, RESOURCE_SLICES, JsonObject, Resource
from dra_driver.errors import InvalidInput, Unreachable
from dra_driver.kube.client import Endpoint, Kube
from dra_driver.kube.metrics import ApiCalls
from dra_driver.kube.watch import Backoff, Watches
from dra_driver.names import GPU_DRIVER
from dra_driver.publish.metrics import PublishedPools
from dra_driver.publish.narrator import Narrator
from dra_driver.publish.pools import Figures, Pace, PoolPublisher, PoolState, Publication, PublishingListeners
from dra_driver.simulation.apiserver.server import SimulatedApiServer
from dra_driver.slices.features import ServerFeatures

POOL_A = '{driver="gpu.nvidia.com",pool="a"}'


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
    await create_definitions(kube, FILE)
    uid = (await kube.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}))["metadata"]["uid"]
    spec = inventory_spec(
        "a", [gpu(0)], registered=datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    )
    await kube.create(NODE_INVENTORIES, inventory_object(spec, uid))
    registry = CollectorRegistry()
    async with Refusing(Endpoint(server=api_server.url), answered=ApiCalls(registry).answered) as client:
        client.refuses = True
        publisher = PoolPublisher(
            Watches(client),
            Publication(driver=GPU_DRIVER, policies=fixed()),
            PublishingListeners(narrator=Narrator(registry)),
            Pace(ask_after_s=0.0, retry=lambda: Backoff(first_s=0.01, longest_s=0.1)),
        )
        registry.register(PublishedPools(lambda: [publisher]))
        async with background(publisher.run()):
            failing = await until(registry, lambda lines: f"gpu_dra_pool_failing{POOL_A} 1.0" in lines)
            assert not any(line.startswith("gpu_dra_pool_generation{") for line in failing)
            client.refuses = False
            lines = await until(registry, lambda lines: f"gpu_dra_pool_generation{POOL_A} 1.0" in lines)
            lines = await until(registry, lambda lines: f"gpu_dra_pool_failing{POOL_A} 0.0" in lines)
    samples = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(samples[f"gpu_dra_pool_published_timestamp_seconds{POOL_A}"]) > 1.7e9
    assert float(samples['gpu_dra_pool_retries_total{driver="gpu.nvidia.com"}']) >= 1
    assert float(samples["gpu_dra_slice_write_failures_total"]) >= 1
    assert float(samples['gpu_dra_api_requests_total{code="201",resource="resourceslices",verb="create"}']) >= 1
    assert float(samples['gpu_dra_api_requests_total{code="200",resource="nodeinventories",verb="watch"}']) >= 1
    assert not any(name.startswith("gpu_dra_api_errors_total{") for name in samples)


def test_without_leading_only_that_is_told() -> None:
    registry = CollectorRegistry()
    registry.register(PublishedPools(list))
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    assert lines == ["gpu_dra_publishing 0.0"]


def counted(registry: CollectorRegistry) -> dict[str, float]:
    lines = generate_latest(registry).decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}


def test_what_is_told_is_counted() -> None:
    registry = CollectorRegistry()
    narrator = Narrator(registry)
    for pool in ("a", "b"):
        narrator.not_understood(pool, InvalidInput("nonsense"))
        narrator.lost_fields(pool, ["taints"])
        narrator.asking(pool)
        narrator.wrote(pool, "update", 8)
        narrator.refused(pool, Unreachable("too busy"), 1.0)
        narrator.server_keeps(ServerFeatures(taints=True))
    samples = counted(registry)
    assert samples["gpu_dra_inventories_not_understood_total"] == 2
    assert samples["gpu_dra_slices_not_stored_as_sent_total"] == 2
    assert samples["gpu_dra_plugins_asked_total"] == 2
    assert samples['gpu_dra_slice_writes_total{verb="update"}'] == 2
    assert samples["gpu_dra_slice_write_failures_total"] == 2
    assert samples['gpu_dra_api_server_keeps{feature="taints"}'] == 1
    assert samples['gpu_dra_api_server_keeps{feature="partitionable"}'] == 0


class Still:
    """A publisher of which only figures are asked."""

    def __init__(self, driver: str, figures: Figures) -> None:
        self.driver = driver
        self._figures = figures

    def figures(self) -> Figures:
        return self._figures

    def pool_states(self) -> list[PoolState]:
        return [PoolState("a", 3, None, failing=True)]


def test_each_driver_has_its_own_pools() -> None:
    registry = CollectorRegistry()
    publishers: Any = [
        Still("gpu.nvidia.com", Figures(pools=9, devices=72, waiting=2, pending=3, retries=4)),
        Still("compute-domain.nvidia.com", Figures(pools=1, devices=5, waiting=0, pending=0, retries=0)),
    ]
    registry.register(PublishedPools(lambda: publishers))
    samples = counted(registry)
    assert samples["gpu_dra_publishing"] == 1
    gpus, domains = ('{driver="gpu.nvidia.com"}', '{driver="compute-domain.nvidia.com"}')
    figures = {
        "gpu_dra_pools": (9, 1),
        "gpu_dra_published_devices": (72, 5),
        "gpu_dra_pools_waiting": (2, 0),
        "gpu_dra_pools_pending": (3, 0),
        "gpu_dra_pool_retries_total": (4, 0),
    }
    for name, wanted in figures.items():
        assert (samples[f"{name}{gpus}"], samples[f"{name}{domains}"]) == wanted, name
    assert samples['gpu_dra_pool_failing{driver="compute-domain.nvidia.com",pool="a"}'] == 1
    assert samples['gpu_dra_pool_generation{driver="gpu.nvidia.com",pool="a"}'] == 3
