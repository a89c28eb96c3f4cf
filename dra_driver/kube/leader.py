"""Leader election with a Lease: one of several replicas works, the others wait. The holder renews the lease every
`retry_s`. Another replica takes it over after it has seen it unchanged for its duration, by its own clock, so clocks
are never compared. A holder that cannot renew for `renew_s`, which is less than the duration, stops its work before
another can start. It counts from before the request that wrote the lease, because others may see the write long before
the answer arrives. Defaults are those of Kubernetes' own components.
"""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import structlog

from dra_driver.api.meta import LEASES, JsonObject, micro_time
from dra_driver.errors import ClusterError, Conflict, NotFound, Unreachable
from dra_driver.kube.client import Kube

_log = structlog.get_logger(__name__)

_ACQUIRE_JITTER = 1.2
_RELEASE_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds. `lease_s`: time before another replica may take over an expired lease; `renew_s`: how long the holder
    tries to renew before it stops; `retry_s`: interval of attempts. lease > renew > retry."""

    lease_s: float = 15.0
    renew_s: float = 10.0
    retry_s: float = 2.0


class LeaderElection:
    """One candidate. `identity` is unique to this process. `clock` is monotonic, `now` the wall clock."""

    def __init__(
        self,
        kube: Kube,
        *,
        namespace: str,
        name: str,
        identity: str,
        times: LeaseTimes | None = None,
        clock: Callable[[], float] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.leading = False
        self.failure: ClusterError | None = None
        """Why the last attempt could not read or write the lease."""
        self._asked = False
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._times = times or LeaseTimes()
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._now = now
        self._sleep = sleep
        self._seen: JsonObject | None = None
        """The lease as last read or written."""
        self._unchanged_since = 0.0
        self._held_since = 0.0
        """Start time of the last request that took or renewed the lease."""

    def problem(self) -> str | None:
        """Why this candidate can neither lead nor follow at the moment, or None; for the readiness probe."""
        if self.failure is not None:
            return str(self.failure)
        return None if self._asked else "the lease has not been read yet"

    def check_term(self) -> None:
        """Raises Unreachable when this candidate's term has ended and its work has not: a process that stood still must
        not write what it decides from an old view, in the moment until it notices that another one leads."""
        if self.leading and self._left_s() <= 0:
            about = f"Lease {self._namespace}/{self._name}"
            raise Unreachable("this replica led, and its term ended without renewal", about=about)

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Runs `work` as soon as this candidate holds the lease; cancels it and returns when the lease is lost. If
        `work` ends or fails by itself, so does this method. If it does not end because the lease was lost, it releases
        the lease, so that another replica takes over without waiting.
        """
        try:
            await self._acquire()
            _log.info("leading", lease=self._name, identity=self._identity)
            await self._work_while_leading(work)
            _log.warning("no longer the leader", lease=self._name, identity=self._identity, reason=self._why_lost())
        finally:
            if self.leading:
                await self._release()

    async def _work_while_leading(self, work: Callable[[], Awaitable[None]]) -> None:
        self.leading = True
        working = asyncio.ensure_future(work())
        renewing = asyncio.ensure_future(self._renew_until_lost())
        try:
            await asyncio.wait((working, renewing), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                raise RuntimeError("the leader's work ended by itself")
            renewing.result()
        finally:
            working.cancel()
            renewing.cancel()
            await asyncio.gather(working, renewing, return_exceptions=True)
        self.leading = False

    async def _acquire(self) -> None:
        while not await self._attempt(self._times.renew_s):
            pause_s = self._times.retry_s * (1 + _ACQUIRE_JITTER * random.random())
            free_s = self._held_until() - self._clock()
            # Who waits does not sleep past the end of the other's lease.
            await self._sleep(min(pause_s, free_s) if free_s > 0 else pause_s)

    async def _renew_until_lost(self) -> None:
        while (left_s := self._left_s()) > 0:
            await self._sleep(min(self._times.retry_s, left_s))
            if (left_s := self._left_s()) > 0 and not await self._attempt(left_s) and self._is_held_by_another():
                return

    def _left_s(self) -> float:
        """Waits until the term ends without renewal."""
        return self._held_since + self._times.renew_s - self._clock()

    async def _attempt(self, limit_s: float) -> bool:
        """Takes or renews the lease; False if another replica holds it, or the server does not answer in time."""
        began = self._clock()
        try:
            async with asyncio.timeout(limit_s):
                held = await self._take_or_renew()
        except TimeoutError:
            about = f"Lease {self._namespace}/{self._name}"
            return self._failed(Unreachable(f"no answer from the API server within {limit_s:.1f} s", about=about))
        except (Conflict, NotFound):
            self._seen, self._asked = None, True
            return False
        except ClusterError as error:
            return self._failed(error)
        self.failure, self._asked = None, True
        if held:
            self._held_since = began
        return held

    def _failed(self, error: ClusterError) -> Literal[False]:
        if self.failure is None:
            _log.warning("cannot read or renew the lease", lease=self._name, error=str(error))
        self.failure = error
        return False

    def _why_lost(self) -> str:
        if self._is_held_by_another():
            return f"{(self._seen or {})['spec']['holderIdentity']} has it"
        return str(self.failure or "the lease could not be renewed in time")

    async def _take_or_renew(self) -> bool:
        if self.leading and self._seen is not None:
            # No other replica writes a lease that is renewed in time, so it need not be read first.
            self._remember(await self._kube.replace(LEASES, self._lease(self._seen)))
            return True
        try:
            lease = await self._kube.get(LEASES, self._name, self._namespace)
        except NotFound:
            self._remember(await self._kube.create(LEASES, self._lease(None), namespace=self._namespace))
            return True
        if self._seen is None or self._seen.get("spec") != lease.get("spec"):
            self._remember(lease)
        if self._is_held_by_another():
            return False
        self._remember(await self._kube.replace(LEASES, self._lease(lease)))
        return True

    def _remember(self, lease: JsonObject) -> None:
        self._seen = lease
        self._unchanged_since = self._clock()

    def _is_held_by_another(self) -> bool:
        spec: JsonObject = (self._seen or {}).get("spec") or {}
        holder = spec.get("holderIdentity")
        return bool(holder) and holder != self._identity and self._clock() < self._held_until()

    def _held_until(self) -> float:
        """When the lease that was seen last ends, if it is not renewed."""
        spec: JsonObject = (self._seen or {}).get("spec") or {}
        return self._unchanged_since + float(spec.get("leaseDurationSeconds") or self._times.lease_s)

    def _lease(self, before: JsonObject | None) -> JsonObject:
        """The lease with this process as its holder; `before` is the replaced object."""
        spec: JsonObject = (before or {}).get("spec") or {}
        now = micro_time(self._now())
        ours = spec.get("holderIdentity") == self._identity
        metadata = before["metadata"] if before is not None else {"name": self._name, "namespace": self._namespace}
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": metadata,
            "spec": {
                **spec,
                "holderIdentity": self._identity,
                # In whole seconds, rounded up: a shorter duration could end before this holder stops.
                "leaseDurationSeconds": max(1, math.ceil(self._times.lease_s)),
                "acquireTime": spec["acquireTime"] if ours and "acquireTime" in spec else now,
                "renewTime": now,
                "leaseTransitions": int(spec.get("leaseTransitions") or 0) + (before is not None and not ours),
            },
        }

    async def _release(self) -> None:
        self.leading = False
        try:
            async with asyncio.timeout(_RELEASE_TIMEOUT_S):
                while not await self._released():
                    # A cancelled renewal may still have reached the server.
                    pass
        except (ClusterError, TimeoutError) as error:
            _log.warning("could not release the lease", lease=self._name, error=str(error))
        else:
            _log.info("released the lease", lease=self._name)

    async def _released(self) -> bool:
        before = await self._kube.get(LEASES, self._name, self._namespace)
        if before["spec"].get("holderIdentity") != self._identity:
            return True
        lease = self._lease(before)
        lease["spec"].update(holderIdentity="", leaseDurationSeconds=1)
        try:
            await self._kube.replace(LEASES, lease)
        except Conflict:
            return False
        return True
