"""What Prometheus may know of publishing: for the controller, and for a node plugin that publishes by itself.

`CountingNarrator` counts what it tells; `PublishedPools` reads the rest from the publisher when somebody scrapes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dra_driver.errors import ClusterError, InvalidInput
from dra_driver.publish.pools import Narrator, PoolPublisher, PoolState
from dra_driver.slices.features import ServerFeatures


class CountingNarrator(Narrator):
    """Counts what it tells."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._writes = Counter("gpu_dra_slice_writes", "Writes of ResourceSlices.", ["verb"], registry=registry)
        self._failures = Counter(
            "gpu_dra_slice_write_failures", "Writes that the API server refused or did not answer.", registry=registry
        )
        self._not_understood = Counter(
            "gpu_dra_inventories_not_understood", "Inventories that made no sense.", registry=registry
        )
        self._lost = Counter(
            "gpu_dra_slices_not_stored_as_sent", "Slices of which the API server dropped fields.", registry=registry
        )
        self._keeps = Gauge(
            "gpu_dra_api_server_keeps", "1 for what the API server keeps of slices.", ["feature"], registry=registry
        )
        self._questions = Counter(
            "gpu_dra_plugins_asked", "Plugins asked whether they live, because slices were missing.", registry=registry
        )

    def wrote(self, pool: str, verb: str, devices: int) -> None:
        super().wrote(pool, verb, devices)
        self._writes.labels(verb).inc()

    def refused(self, pool: str, error: ClusterError, retry_s: float) -> None:
        super().refused(pool, error, retry_s)
        self._failures.inc()

    def not_understood(self, pool: str, error: InvalidInput) -> None:
        super().not_understood(pool, error)
        self._not_understood.inc()

    def lost_fields(self, pool: str, fields: Sequence[str]) -> None:
        super().lost_fields(pool, fields)
        self._lost.inc()

    def server_keeps(self, features: ServerFeatures) -> None:
        super().server_keeps(features)
        for feature, kept in asdict(features).items():
            self._keeps.labels(feature).set(kept)

    def asking(self, pool: str) -> None:
        super().asking(pool)
        self._questions.inc()


class PublishedPools:
    """Gauges of what is published now. `publisher` answers None while this process does not publish."""

    def __init__(self, publisher: Callable[[], PoolPublisher | None]) -> None:
        self._publisher = publisher

    def collect(self) -> Iterator[Metric]:
        publisher = self._publisher()
        yield _gauge("gpu_dra_publishing", "1 while this process publishes.", publisher is not None)
        if publisher is None:
            return
        figures = publisher.figures()
        yield _gauge("gpu_dra_pools", "Pools with slices in the cluster.", figures.pools)
        yield _gauge("gpu_dra_published_devices", "Devices in the slices of the cluster.", figures.devices)
        yield _gauge("gpu_dra_pools_waiting", "Pools whose plugin gives no sign of life.", figures.waiting)
        yield _gauge("gpu_dra_pools_pending", "Pools to be looked at, pauses after failures included.", figures.pending)
        retries = "Times that a pool was put back because it could not be looked at or written."
        yield CounterMetricFamily("gpu_dra_pool_retries", retries, value=figures.retries)
        yield from _pools(publisher.pool_states())


def _pools(pools: Sequence[PoolState]) -> Iterator[Metric]:
    generation = GaugeMetricFamily("gpu_dra_pool_generation", "Generation of a pool's slices.", labels=["pool"])
    published = GaugeMetricFamily(
        "gpu_dra_pool_published_timestamp_seconds",
        "When a pool's slices were last found, or made, as they should be.",
        labels=["pool"],
    )
    failing = GaugeMetricFamily(
        "gpu_dra_pool_failing", "1 while a pool's slices cannot be made as they should be.", labels=["pool"]
    )
    for pool in pools:
        if pool.generation is not None:
            generation.add_metric([pool.name], pool.generation)
        if pool.published_at is not None:
            published.add_metric([pool.name], pool.published_at.timestamp())
        failing.add_metric([pool.name], pool.failing)
    yield from (generation, published, failing)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)
