"""From inventories and policy to published slices: runs `dra_driver.publish` for the whole cluster. `main` starts it
each time this process becomes the leader.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence

from controller.classes import ProfileClasses
from dra_driver.api.policy import PublishingPolicy
from dra_driver.api.resource import Device
from dra_driver.kube.client import Kube
from dra_driver.kube.events import News
from dra_driver.publish import PoolPublisher
from dra_driver.publish.metrics import CountingNarrator, PublishingCounters
from dra_driver.publish.pools import Describe
from dra_driver.runtime import memory
from dra_driver.runtime.tracing import OFF, Tracer
from dra_driver.slices.describe import described_devices


class PublishedSlices:
    """The slices of `driver` in the whole cluster, while this process leads."""

    def __init__(
        self,
        kube: Kube,
        driver: str,
        policy: PublishingPolicy,
        *,
        workers: int,
        counters: PublishingCounters,
        describe: Describe = described_devices,
        labels_matter: bool = False,
        classes: ProfileClasses | None = None,
        tracer: Tracer = OFF,
        tell: Callable[[News], None] | None = None,
        beside: Collection[str] = (),
    ) -> None:
        """`classes` are maintained while this process leads; None: no classes for MIG profiles.

        `describe`, `labels_matter`, `tell` and `beside` as for `PoolPublisher`.
        """
        self._kube = kube
        self._driver = driver
        self._policy = policy
        self._workers = workers
        self._describe = describe
        self._labels_matter = labels_matter
        self._classes = classes
        self._tracer = tracer
        self._tell = tell
        self._beside = beside
        self._narrator = _Narrator(counters, classes)
        self._publisher: PoolPublisher | None = None

    @property
    def publisher(self) -> PoolPublisher | None:
        """None while this process does not lead."""
        return self._publisher

    async def run(self) -> None:
        """Publishes until cancelled; reads everything again, because another replica may have led meanwhile."""
        self._publisher = PoolPublisher(
            self._kube,
            self._driver,
            policy=self._policy,
            describe=self._describe,
            labels_matter=self._labels_matter,
            narrator=self._narrator,
            workers=self._workers,
            tracer=self._tracer,
            tell=self._tell,
            beside=self._beside,
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._publisher.run())
                if self._classes is not None:
                    group.create_task(self._classes.run())
                # The first read of a large cluster leaves free memory that nothing uses again.
                await self._publisher.first_pass.wait()
                memory.settle()
        finally:
            self._publisher = None

    def problem(self) -> str | None:
        """Why the slices cannot be updated at the moment, or None; for the readiness probe."""
        if self._publisher is None:
            return None
        failures = [str(mirror.failure) for mirror in self._publisher.mirrors if mirror.failure is not None]
        if failures:
            return "; ".join(failures)
        return None if self._publisher.ready else "the cluster has not been read yet"

    def described(self) -> Iterator[str]:
        """A line for each pool, for the debug page; empty while this process does not lead."""
        for pool in self._publisher.pool_states() if self._publisher is not None else ():
            since = "not by this process" if pool.published_at is None else pool.published_at.isoformat()
            failing = ", failing" if pool.failing else ""
            yield f"{pool.name}: generation {pool.generation}, as it should be: {since}{failing}"


class _Narrator(CountingNarrator):
    """Also passes published devices on to `classes`."""

    def __init__(self, counters: PublishingCounters, classes: ProfileClasses | None) -> None:
        super().__init__(counters)
        self._classes = classes

    def describes(self, pool: str, devices: Sequence[Device]) -> None:
        if self._classes is not None:
            self._classes.published(pool, devices)
