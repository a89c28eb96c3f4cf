"""From inventories and policy to published slices: runs `dra_driver.publish` for the whole cluster."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

from controller.binding import BindingClaims
from controller.classes import ProfileClasses
from dra_driver.kube.watch import Watches
from dra_driver.publish.pools import Pace, PoolPublisher, Publication, PublishingListeners
from dra_driver.runtime import memory


class PublishedSlices:
    """The slices of one driver in the whole cluster. It follows them with the watches, and writes only while `run`
    runs."""

    def __init__(
        self,
        watches: Watches,
        publication: Publication,
        listeners: PublishingListeners,
        *,
        workers: int,
        classes: ProfileClasses | None = None,
        binding: BindingClaims | None = None,
    ) -> None:
        """`classes` are maintained as well; None: no classes for MIG profiles. So are the names of the claims that wait
        for their nodes, by `binding`."""
        if classes is not None:
            listeners = replace(listeners, described=classes.published)
        self._publisher = PoolPublisher(watches, publication, listeners, Pace(workers=workers))
        self._classes = classes
        self._binding = binding
        self._leads = False

    @property
    def publisher(self) -> PoolPublisher | None:
        """None while this process does not lead."""
        return self._publisher if self._leads else None

    async def run(self) -> None:
        """Publishes until cancelled; the watches must run."""
        self._leads = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._publisher.publish())
                if self._classes is not None:
                    group.create_task(self._classes.run())
                if self._binding is not None:
                    group.create_task(self._binding.run())
                # The first read of a large cluster leaves free memory that nothing uses again.
                await self._publisher.first_pass.wait()
                memory.settle()
        finally:
            self._leads = False

    def problem(self) -> str | None:
        """Why the slices cannot be updated at the moment, or None; for the readiness probe. Of a replica that waits:
        why it could not lead at once. So an update of the controller stops a leader when its successor is prepared.
        """
        failures = [str(mirror.failure) for mirror in self._publisher.mirrors if mirror.failure is not None]
        if failures:
            return "; ".join(failures)
        prepared = self._publisher.ready if self._leads else self._publisher.follows
        return None if prepared else "the cluster has not been read yet"

    def described(self) -> Iterator[str]:
        """A line for each pool, for the debug page; empty while this process does not lead."""
        for pool in self._publisher.pool_states() if self._leads else ():
            since = "not by this process" if pool.published_at is None else pool.published_at.isoformat()
            failing = ", failing" if pool.failing else ""
            yield f"{pool.name}: generation {pool.generation}, as it should be: {since}{failing}"
