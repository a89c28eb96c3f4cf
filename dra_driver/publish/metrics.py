"""What Prometheus reads from publishers at each scrape: for the controller, and for a node plugin that publishes by
itself. Each driver has a publisher: that of GPUs, and that of ComputeDomains. What happens to pools,
`dra_driver.publish.narrator` counts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dra_driver.publish.pools import Figures, PoolPublisher, PoolState


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
