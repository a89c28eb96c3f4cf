"""Publishes what nodes offer to ComputeDomains, with the publisher of GPUs, under the other driver's name."""

from dra_driver.api.policy import PublishingPolicy
from dra_driver.kube.client import Kube
from dra_driver.names import COMPUTE_DOMAIN_DRIVER
from dra_driver.publish import PoolPublisher
from dra_driver.runtime.tracing import Tracer
from dra_driver.slices.domains import domain_devices


async def publish_domain_devices(kube: Kube, policy: PublishingPolicy, workers: int, tracer: Tracer) -> None:
    """Until cancelled; everything is read anew, for others may have led meanwhile."""
    publisher = PoolPublisher(
        kube,
        COMPUTE_DOMAIN_DRIVER,
        policy=policy,
        describe=domain_devices,
        labels_matter=True,
        workers=workers,
        tracer=tracer,
    )
    await publisher.run()
