"""Publishes what nodes offer to ComputeDomains, with the publisher of GPUs, under the other driver's name."""

from dra_driver.api.policy import PublishingPolicy
from dra_driver.kube.client import Kube
from dra_driver.names import COMPUTE_DOMAIN_DRIVER
from dra_driver.publish import PoolPublisher
from dra_driver.publish.metrics import CountingNarrator, PublishingCounters
from dra_driver.runtime.tracing import Tracer
from dra_driver.slices.domains import domain_devices


class PublishedDomainDevices:
    """Channels and daemon devices of the whole cluster, while this process leads."""

    def __init__(
        self, kube: Kube, policy: PublishingPolicy, *, workers: int, counters: PublishingCounters, tracer: Tracer
    ) -> None:
        self._kube = kube
        self._policy = policy
        self._workers = workers
        self._narrator = CountingNarrator(counters)
        self._tracer = tracer
        self._publisher: PoolPublisher | None = None

    @property
    def publisher(self) -> PoolPublisher | None:
        """None while this process does not lead."""
        return self._publisher

    async def run(self) -> None:
        """Until cancelled; everything is read anew, for others may have led meanwhile."""
        self._publisher = PoolPublisher(
            self._kube,
            COMPUTE_DOMAIN_DRIVER,
            policy=self._policy,
            describe=domain_devices,
            labels_matter=True,
            narrator=self._narrator,
            workers=self._workers,
            tracer=self._tracer,
        )
        try:
            await self._publisher.run()
        finally:
            self._publisher = None
