"""What Prometheus may know of publishing: for the controller, and for a node plugin that publishes by itself.

`CountingNarrator` counts what it logs; `PublishedPools` reads the rest from the publishers at each scrape. Each
driver has one: that of GPUs, and that of ComputeDomains.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dra_driver.errors import ClusterError, InvalidInput
from dra_driver.publish.pools import Figures, Narrator, PoolPublisher, PoolState
from dra_driver.slices.features import ServerFeatures


class PublishingCounters:
    """What is counted, for all publishers of a process together."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.writes = Counter("gpu_dra_slice_writes", "Writes of ResourceSlices.", ["verb"], registry=registry)
        self.failures = Counter(
            "gpu_dra_slice_write_failures", "Writes that the API server refused or did not answer.", registry=registry
        )
        self.not_understood = Counter(
            "gpu_dra_inventories_not_understood", "Inventories that made no sense.", registry=registry
        )
        self.lost = Counter(
            "gpu_dra_slices_not_stored_as_sent", "Slices of which the API server dropped fields.", registry=registry
        )
        self.keeps = Gauge(
            "gpu_dra_api_server_keeps", "1 for what the API server keeps of slices.", ["feature"], registry=registry
        )
        self.questions = Counter(
            "gpu_dra_plugins_asked", "Plugins asked whether they live, because slices were missing.", registry=registry
        )


class CountingNarrator(Narrator):
    """Counts what it logs."""

    def __init__(self, counters: PublishingCounters) -> None:
        self._counters = counters

    def wrote(self, pool: str, verb: str, devices: int) -> None:
        super().wrote(pool, verb, devices)
        self._counters.writes.labels(verb).inc()

    def refused(self, pool: str, error: ClusterError, retry_s: float) -> None:
        super().refused(pool, error, retry_s)
        self._counters.failures.inc()

    def not_understood(self, pool: str, error: InvalidInput) -> None:
        super().not_understood(pool, error)
        self._counters.not_understood.inc()

    def lost_fields(self, pool: str, fields: Sequence[str]) -> None:
        super().lost_fields(pool, fields)
        self._counters.lost.inc()

    def server_keeps(self, features: ServerFeatures) -> None:
        super().server_keeps(features)
        for feature, is_stored in asdict(features).items():
            self._counters.keeps.labels(feature).set(is_stored)

    def asking(self, pool: str) -> None:
        super().asking(pool)
        self._counters.questions.inc()


class PublishedPools:
    """Gauges of what is published now. `publishers` answers none while this process does not publish."""

    def __init__(self, publishers: Callable[[], Sequence[PoolPublisher]]) -> None:
        self._publishers = publishers

    def collect(self) -> Iterator[Metric]:
        publishers = self._publishers()
        yield GaugeMetricFamily("gpu_dra_publishing", "1 while this process publishes.", value=bool(publishers))
        if publishers:
            yield from _figures({publisher.driver: publisher.figures() for publisher in publishers})
            yield from _pools({publisher.driver: publisher.pool_states() for publisher in publishers})


def _figures(figures: Mapping[str, Figures]) -> Iterator[Metric]:
    pools = _gauge("gpu_dra_pools", "Pools with slices in the cluster.", "driver")
    devices = _gauge("gpu_dra_published_devices", "Devices in the slices of the cluster.", "driver")
    waiting = _gauge("gpu_dra_pools_waiting", "Pools whose plugin did not answer a liveness check.", "driver")
    pending = _gauge("gpu_dra_pools_pending", "Pools waiting to be checked, including pauses after failures.", "driver")
    text = "Times that a pool was queued again because it could not be checked or written."
    retries = CounterMetricFamily("gpu_dra_pool_retries", text, labels=["driver"])
    for driver, figure in figures.items():
        pools.add_metric([driver], figure.pools)
        devices.add_metric([driver], figure.devices)
        waiting.add_metric([driver], figure.waiting)
        pending.add_metric([driver], figure.pending)
        retries.add_metric([driver], figure.retries)
    yield from (pools, devices, waiting, pending, retries)


def _pools(states: Mapping[str, Sequence[PoolState]]) -> Iterator[Metric]:
    generation = _gauge("gpu_dra_pool_generation", "Generation of a pool's slices.", "driver", "pool")
    published = _gauge(
        "gpu_dra_pool_published_timestamp_seconds",
        "When a pool's slices were last found, or made, as they should be.",
        *("driver", "pool"),
    )
    failing = _gauge(
        "gpu_dra_pool_failing", "1 while a pool's slices cannot be made as they should be.", "driver", "pool"
    )
    for driver, pools in states.items():
        for pool in pools:
            labels = [driver, pool.name]
            if pool.generation is not None:
                generation.add_metric(labels, pool.generation)
            if pool.published_at is not None:
                published.add_metric(labels, pool.published_at.timestamp())
            failing.add_metric(labels, pool.failing)
    yield from (generation, published, failing)


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=labels)
