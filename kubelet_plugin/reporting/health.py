"""Health of the published devices, for kubelet's health stream.

`kubelet_plugin.rpc.servers` asks; the answer is what `kubelet_plugin.facts.monitor` knows. A device is as healthy as
its GPU, and as its own MIG device. A GPU that cannot be read and was never seen has no name to report it by: it is left
out, and kubelet lets it age to unknown.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

from dra_driver.api.gpu_settings import HealthPolicy
from dra_driver.api.inventory import HealthCondition
from dra_driver.devices.health import affecting, worst
from dra_driver.devices.model import Offer
from dra_driver.errors import NodeNotReady
from kubelet_plugin.facts.monitor import MonitoredFacts
from kubelet_plugin.facts.offers import NodeOffers
from kubelet_plugin.rpc.messages import DeviceHealth

type InstanceOf = Callable[[Offer], str | None]
"""UUID of the MIG device that an offer stands for: empty while it does not exist, None for what is no MIG device."""


class PublishedHealth:
    """Health of the devices of `pool`; lives in one event loop."""

    def __init__(
        self,
        facts: MonitoredFacts,
        offers: NodeOffers,
        pool: str,
        policy: Callable[[], HealthPolicy],
        instance_of: InstanceOf,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._facts = facts
        self._offers = offers
        self._pool = pool
        self._policy = policy
        self._instance_of = instance_of
        self._now = now
        self._since: dict[str, tuple[bool, int]] = {}
        self._change: asyncio.Future[None] | None = None
        facts.subscribe(lambda _: self._changed())

    def device_health(self) -> Iterable[DeviceHealth]:
        """All devices that the node offers; none before the hardware was seen or the policy can be applied."""
        try:
            offers = self._offers.of(self._facts.facts)
        except NodeNotReady:
            return ()
        return [self._of(name, offer) for name, offer in offers.items()]

    def health_changed(self) -> Awaitable[None]:
        """Done at the next change after this call."""
        if self._change is None:
            self._change = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._change)

    def _changed(self) -> None:
        if self._change is not None:
            self._change.set_result(None)
            self._change = None

    def _of(self, name: str, offer: Offer) -> DeviceHealth:
        bad = worst(affecting(offer.gpu.health.conditions, self._instance_of(offer)), self._policy())
        known, since = self._since.get(name, (None, 0))
        if known is not (bad is None):
            since = int(self._now())
            self._since[name] = (bad is None, since)
        return DeviceHealth(self._pool, name, bad is None, since, _message(bad))


def _message(condition: HealthCondition | None) -> str:
    return "" if condition is None else f"{condition.type}: {condition.message}"
