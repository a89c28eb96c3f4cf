"""The controller that evicts pods from tainted devices in a simulated cluster.

A pod whose allocated device gets a taint with effect NoExecute is deleted: at once, or when the time is over for which
its claim tolerates the taint. DeviceTaintRules are ignored. Source: the device taint eviction of Kubernetes 1.36, where
device taints are on by default.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Never

from dra_driver.allocation.behavior import Behavior
from dra_driver.allocation.nodes import tolerates
from dra_driver.api.meta import PODS, RESOURCE_CLAIMS, RESOURCE_SLICES, JsonObject
from dra_driver.api.resource import ResourceClaim, ResourceSlice, Taint, Toleration
from dra_driver.errors import ClusterError, NotFound
from dra_driver.kube.client import Kube
from dra_driver.kube.watch import Mirror, Reflector, follow
from dra_driver.names import DeviceId
from dra_driver.simulation.events import tell
from dra_driver.simulation.pods import is_being_deleted, is_done

NAME = "device-taint-eviction"
_RETRY_S = 1.0


class SimulatedTaintEviction:
    """`run` until cancelled."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._wake = asyncio.Event()
        self._slices = Mirror(kube, RESOURCE_SLICES, keep=taints_of, on_change=lambda _: self._wake.set())
        self._claims = Mirror(kube, RESOURCE_CLAIMS, keep=ResourceClaim.of, on_change=lambda _: self._wake.set())
        self._pods = Reflector(kube, PODS)

    async def run(self) -> Never:
        _, minor = await self._kube.server_version()
        if not Behavior.of(minor).taints:
            await asyncio.Event().wait()
        async with asyncio.TaskGroup() as group:
            await follow((self._slices, self._claims, self._pods), group)
            while True:
                wait_s = await self._look()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), wait_s)
                self._wake.clear()
        raise AssertionError("reflectors run until they are cancelled")

    async def _look(self) -> float | None:
        """Evict whose time has come; answers after how many seconds to look again."""
        now, taints = (
            datetime.now(UTC),
            {key: item for known in self._slices.objects.values() for key, item in known.items()},
        )
        waits = []
        for claim in list(self._claims.objects.values()):
            when = eviction_time(claim, taints, now)
            if when is None:
                continue
            if when > now:
                waits.append((when - now).total_seconds())
                continue
            for consumer in claim.status.reserved_for:
                pod = self._pods.objects.get((claim.metadata.namespace or "", consumer.name))
                if pod is not None and pod["metadata"]["uid"] == consumer.uid:
                    waits += [_RETRY_S] if not await self._evict(pod) else []
        return min(waits, default=None)

    async def _evict(self, pod: JsonObject) -> bool:
        if is_done(pod) or is_being_deleted(pod):
            return True
        metadata = pod["metadata"]
        about = f"{metadata['namespace']}/{metadata['name']}"
        try:
            await tell(
                self._kube, NAME, pod, "Normal", "DeviceTaintManagerEviction", f"Marking for deletion Pod {about}"
            )
            await self._kube.delete(PODS, metadata["name"], namespace=metadata["namespace"], uid=metadata["uid"])
        except NotFound:
            return True
        except ClusterError:
            return False
        return True


def taints_of(obj: JsonObject) -> Mapping[DeviceId, Sequence[Taint]]:
    """The taints of a slice that evict, by device. Pure."""
    spec = ResourceSlice.of(obj).spec
    return {
        DeviceId(spec.driver, spec.pool.name, device.name): evicting
        for device in spec.devices or ()
        if (evicting := [taint for taint in device.taints or () if taint.effect == "NoExecute"])
    }


def eviction_time(claim: ResourceClaim, taints: Mapping[DeviceId, Sequence[Taint]], now: datetime) -> datetime | None:
    """When the pods of a claim must go; None while they may stay. Pure."""
    if claim.status.allocation is None:
        return None
    times = [
        _tolerated_until(taint, result.tolerations or (), now)
        for result in claim.status.allocation.devices.results
        for taint in taints.get(DeviceId(result.driver, result.pool, result.device), ())
    ]
    return min((time for time in times if time is not None), default=None)


def _tolerated_until(taint: Taint, tolerations: Sequence[Toleration], now: datetime) -> datetime | None:
    """None for ever; the longest toleration counts."""
    matching = [toleration for toleration in tolerations if tolerates(toleration, taint)]
    if any(toleration.toleration_seconds is None for toleration in matching):
        return None
    added = datetime.fromisoformat(taint.time_added) if taint.time_added else now
    return max((added + timedelta(seconds=item.toleration_seconds or 0) for item in matching), default=now)
