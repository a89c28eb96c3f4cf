"""Health of the published devices, for kubelet's health stream.

`kubelet_plugin.rpc.server` asks; the answer is what Discovery saw last. A GPU that cannot be read has no name to report
it by: it is left out, and kubelet lets it age to unknown.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from dra_driver.api.inventory import GpuFacts
from dra_driver.errors import NodeNotReady
from kubelet_plugin.discovery import NodeFacts
from kubelet_plugin.rpc.messages import DeviceHealth


class Facts(Protocol):
    """What is needed of `kubelet_plugin.discovery.Discovery`."""

    @property
    def facts(self) -> NodeFacts: ...

    def subscribe(self, listener: Callable[[NodeFacts], None]) -> Callable[[], None]: ...


class NodeHealth:
    """Health of the devices of `pool`; lives in one event loop."""

    def __init__(self, facts: Facts, pool: str, now: Callable[[], float] = time.time) -> None:
        self._facts = facts
        self._pool = pool
        self._now = now
        self._since: dict[str, tuple[bool, int]] = {}
        self._change: asyncio.Future[None] | None = None
        facts.subscribe(lambda _: self._changed())

    def device_health(self) -> Iterable[DeviceHealth]:
        """All published devices; none before the hardware was seen."""
        try:
            gpus = self._facts.facts.gpus
        except NodeNotReady:
            return ()
        return [self._of(gpu) for gpu in gpus]

    def health_changed(self) -> Awaitable[None]:
        """Done at the next change after this call."""
        if self._change is None:
            self._change = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._change)

    def _changed(self) -> None:
        if self._change is not None:
            self._change.set_result(None)
            self._change = None

    def _of(self, gpu: GpuFacts) -> DeviceHealth:
        healthy, since = self._since.get(gpu.uuid, (None, 0))
        if healthy is not gpu.health.healthy:
            since = int(self._now())
            self._since[gpu.uuid] = (gpu.health.healthy, since)
        message = ": ".join(text for text in (gpu.health.reason, gpu.health.message) if text)
        return DeviceHealth(self._pool, gpu.name, gpu.health.healthy, since, message)
