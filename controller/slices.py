"""Inventories and policy to published slices: hosts `dra_driver.publish` for the whole cluster, and counts its work.

Entered by `main`, once for every time that this process becomes the leader.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily, Metric

from controller.classes import ProfileClasses
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import Device
from dra_driver.errors import ClusterError, InvalidInput
from dra_driver.kube.client import Kube
from dra_driver.publish import Narrator, PoolPublisher
from dra_driver.runtime import memory
from dra_driver.slices.features import ServerFeatures


class PublishedSlices:
    """The slices of `driver` in the whole cluster, while this process leads."""

    def __init__(
        self,
        kube: Kube,
        driver: str,
        policy: PublishingPolicy,
        *,
        workers: int,
        registry: CollectorRegistry,
        classes: ProfileClasses | None = None,
    ) -> None:
        """`classes` are kept, too, while this process leads; None: nobody keeps classes of MIG profiles."""
        self._kube = kube
        self._driver = driver
        self._policy = policy
        self._workers = workers
        self._classes = classes
        self._narrator = CountingNarrator(registry, classes)
        self._publisher: PoolPublisher | None = None
        registry.register(_Pools(self))

    @property
    def publisher(self) -> PoolPublisher | None:
        """None while this process does not lead."""
        return self._publisher

    async def run(self) -> None:
        """Publish until cancelled; everything is read anew, for others may have led meanwhile."""
        self._publisher = PoolPublisher(
            self._kube, self._driver, policy=self._policy, narrator=self._narrator, workers=self._workers
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._publisher.run())
                if self._classes is not None:
                    group.create_task(self._classes.run())
                # The first look at a large cluster leaves holes in memory that nobody fills again.
                await self._publisher.first_pass.wait()
                memory.settle()
        finally:
            self._publisher = None

    def problem(self) -> str | None:
        """Why the slices cannot be kept true at the moment, or None; for the readiness probe."""
        if self._publisher is None:
            return None
        failures = [str(mirror.failure) for mirror in self._publisher.mirrors if mirror.failure is not None]
        if failures:
            return "; ".join(failures)
        return None if self._publisher.ready else "the cluster has not been read yet"


class CountingNarrator(Narrator):
    """Counts what it tells, and passes on to `classes` what is published."""

    def __init__(self, registry: CollectorRegistry, classes: ProfileClasses | None) -> None:
        self._classes = classes
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

    def describes(self, pool: str, devices: Sequence[Device]) -> None:
        if self._classes is not None:
            self._classes.published(pool, devices)

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


class _Pools:
    """Gauges of what is published now, counted when somebody asks."""

    def __init__(self, slices: PublishedSlices) -> None:
        self._slices = slices

    def collect(self) -> Iterator[Metric]:
        publisher = self._slices.publisher
        leading = GaugeMetricFamily("gpu_dra_publishing", "1 while this process publishes.")
        leading.add_metric([], publisher is not None)
        yield leading
        if publisher is not None:
            figures = publisher.figures()
            for name, text, value in (
                ("gpu_dra_pools", "Pools with slices in the cluster.", figures.pools),
                ("gpu_dra_published_devices", "Devices in the slices of the cluster.", figures.devices),
                ("gpu_dra_pools_waiting", "Pools whose plugin gives no sign of life.", figures.waiting),
                ("gpu_dra_pools_pending", "Pools to be looked at, pauses after failures included.", figures.pending),
            ):
                gauge = GaugeMetricFamily(name, text)
                gauge.add_metric([], value)
                yield gauge
