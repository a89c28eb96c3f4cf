"""From inventories and policy to published slices: runs `dra_driver.publish` for the whole cluster. It follows the
cluster all the time, and publishes each time this process becomes the leader.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace

from controller.binding import BindingClaims
from controller.classes import ProfileClasses
from dra_driver.api.resource import Device
from dra_driver.kube.client import Kube
from dra_driver.publish.metrics import CountingNarrator, PublishingCounters
from dra_driver.publish.pools import Pace, PoolPublisher, Publication, PublishingListeners
from dra_driver.runtime import memory


class PublishedSlices:
    """The slices of one driver in the whole cluster, while this process leads."""

    def __init__(
        self,
        kube: Kube,
        publication: Publication,
        listeners: PublishingListeners,
        counters: PublishingCounters,
        *,
        workers: int,
        classes: ProfileClasses | None = None,
        binding: BindingClaims | None = None,
    ) -> None:
        """`classes` are maintained while this process leads; None: no classes for MIG profiles. So are the names of the
        claims that wait for their nodes, which `binding` learns from the policies of `publication`."""
        self._kube = kube
        self._publication = publication
        self._observers = replace(listeners, narrator=_Narrator(counters, classes))
        self._workers = workers
        self._classes = classes
        self._binding = binding
        self._publisher: PoolPublisher | None = None
        self._following: PoolPublisher | None = None
        self._standby: asyncio.Queue[PoolPublisher] = asyncio.Queue()
        """At most one, which follows the cluster and has published nothing yet."""
        self._ended = asyncio.Event()

    @property
    def publisher(self) -> PoolPublisher | None:
        """None while this process does not lead."""
        return self._publisher

    async def follow(self) -> None:
        """Reads the cluster until cancelled, also while another replica leads, so that a new leader need not read it
        first. After this process led, all is read again: another leader may do what this one does not expect.
        """
        while True:
            publisher = PoolPublisher(self._kube, self._publication, self._observers, Pace(workers=self._workers))
            async with asyncio.TaskGroup() as group:
                following = group.create_task(publisher.follow())
                self._following = publisher
                self._standby.put_nowait(publisher)
                await self._ended.wait()
                following.cancel()
            self._ended.clear()

    async def run(self) -> None:
        """Publishes until cancelled, while `follow` runs."""
        publisher = self._publisher = await self._standby.get()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(publisher.publish())
                if self._classes is not None:
                    group.create_task(self._classes.run())
                if self._binding is not None:
                    group.create_task(self._name_claims(publisher, self._binding))
                # The first read of a large cluster leaves free memory that nothing uses again.
                await publisher.first_pass.wait()
                memory.settle()
        finally:
            self._publisher = None
            self._ended.set()

    async def _name_claims(self, publisher: PoolPublisher, binding: BindingClaims) -> None:
        await binding.run(await publisher.naming_claims())

    def problem(self) -> str | None:
        """Why the slices cannot be updated at the moment, or None; for the readiness probe. Of a replica that waits:
        why it could not lead at once. So an update of the controller stops a leader when its successor is prepared.
        """
        if self._following is None:
            return "the cluster has not been read yet"
        failures = [str(mirror.failure) for mirror in self._following.mirrors if mirror.failure is not None]
        if failures:
            return "; ".join(failures)
        prepared = self._following.follows if self._publisher is None else self._publisher.ready
        return None if prepared else "the cluster has not been read yet"

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
