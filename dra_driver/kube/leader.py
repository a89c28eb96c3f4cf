"""One of several replicas works, the others wait: leader election by a Lease.

The holder renews the lease every `retry_s`; the others take it over when they have watched it unchanged for its
duration, by their own clocks, so no two clocks are compared. A holder that cannot renew for `renew_s`, which is less
than the duration, stops its work before another can begin. Defaults are those of Kubernetes' own components.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NoReturn

import structlog

from dra_driver.api.meta import LEASES, JsonObject
from dra_driver.errors import AlreadyExists, ClusterError, Conflict, NotFound
from dra_driver.kube.client import Kube

_log = structlog.get_logger(__name__)

_ACQUIRE_JITTER = 1.2
_RELEASE_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Seconds. `lease_s`: how long others respect a lease that is not renewed; `renew_s`: how long the holder tries to
    renew before it gives up; `retry_s`: between attempts. lease > renew > retry."""

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
        """Why the lease could not be read or written at the last attempt."""
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
        """The lease as it was last read or written."""
        self._unchanged_since = 0.0

    def problem(self) -> str | None:
        """Why this candidate could neither lead nor follow at the moment, or None; for the readiness probe."""
        if self.failure is not None:
            return str(self.failure)
        return None if self._asked else "the lease has not been read yet"

    async def lead(self, work: Callable[[], Awaitable[None]]) -> NoReturn:
        """Run `work` whenever, and only while, this candidate holds the lease; until cancelled.

        `work` is cancelled when the lease is lost. When it ends or fails by itself, so does this. The lease is given
        back at the end, so that another takes over without waiting.
        """
        try:
            while True:
                await self._acquire()
                _log.info("leading", lease=self._name, identity=self._identity)
                await self._work_while_leading(work)
                _log.warning("not leading any more", lease=self._name, identity=self._identity)
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
        while not await self._attempt():
            await self._sleep(self._times.retry_s * (1 + _ACQUIRE_JITTER * random.random()))

    async def _renew_until_lost(self) -> None:
        deadline = self._clock() + self._times.renew_s
        while True:
            await self._sleep(self._times.retry_s)
            try:
                async with asyncio.timeout(max(0.0, deadline - self._clock())):
                    renewed = await self._attempt()
            except TimeoutError:
                renewed = False
            if renewed:
                deadline = self._clock() + self._times.renew_s
            elif self._clock() >= deadline or self._is_held_by_another():
                return

    async def _attempt(self) -> bool:
        """Take or renew the lease; False when somebody else holds it or the server cannot be asked."""
        try:
            held = await self._take_or_renew()
        except (Conflict, NotFound):
            self._seen, self._asked = None, True
            return False
        except ClusterError as error:
            if self.failure is None:
                _log.warning("the lease cannot be read or renewed", lease=self._name, error=str(error))
            self.failure = error
            return False
        self.failure, self._asked = None, True
        return held

    async def _take_or_renew(self) -> bool:
        if self.leading and self._seen is not None:
            # Nobody else writes a lease that is renewed in time, so it need not be read first.
            self._remember(await self._kube.replace(LEASES, self._lease(self._seen)))
            return True
        try:
            lease = await self._kube.get(LEASES, self._name, self._namespace)
        except NotFound:
            try:
                self._remember(await self._kube.create(LEASES, self._lease(None), namespace=self._namespace))
            except AlreadyExists:
                return False
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
        expires = self._unchanged_since + float(spec.get("leaseDurationSeconds") or self._times.lease_s)
        return bool(holder) and holder != self._identity and self._clock() < expires

    def _lease(self, before: JsonObject | None) -> JsonObject:
        """The lease, held by us from now on; `before` is the object that is replaced."""
        spec: JsonObject = (before or {}).get("spec") or {}
        now = self._now().astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        ours = spec.get("holderIdentity") == self._identity
        metadata = before["metadata"] if before is not None else {"name": self._name, "namespace": self._namespace}
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": metadata,
            "spec": {
                **spec,
                "holderIdentity": self._identity,
                "leaseDurationSeconds": max(1, round(self._times.lease_s)),
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
                    # A renewal that was cut short reached the server all the same.
                    pass
        except (ClusterError, TimeoutError) as error:
            _log.warning("the lease was not given back", lease=self._name, error=str(error))
        else:
            _log.info("the lease was given back", lease=self._name)

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
