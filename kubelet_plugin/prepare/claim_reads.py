"""Claim objects from the API server, and what a failed answer means. The only module of prepare that asks the API.

Claims are read one by one, by name, when they are needed: a node has a handful, the cluster may have a hundred
thousand, so nothing is watched. A read by name is answered from the newest state, never from a cache.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from contextlib import aclosing
from typing import Protocol
from weakref import WeakValueDictionary

from dra_driver.api.meta import RESOURCE_CLAIMS, JsonObject, Resource
from dra_driver.api.resource import ResourceClaim
from dra_driver.errors import ClusterError, Conflict, Gone, NotFound, Unreachable
from dra_driver.kube.client import Listing
from dra_driver.names import ClaimRef
from dra_driver.runtime.tasks import Begun

_SCHEDULING = "scheduling.k8s.io"
_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 2.0
_REMEMBERED = 2000
"""Of a node's claims, of which all that are held are seen again every ten minutes, those that were seen last."""


class ClaimApi(Protocol):
    """What is needed of `dra_driver.kube.client.Kube`."""

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> JsonObject: ...

    def pages(self, resource: Resource) -> AsyncGenerator[Listing, None]: ...


class PodsOfClaims:
    """Names of the pods for which claims are reserved, as it was when each claim was read last: whenever kubelet asks
    for it, at the start, at every sweep, and every minute where further pods can join. Of a claim of a PodGroup, the
    group's pods on this node."""

    def __init__(self) -> None:
        self._names: dict[str, tuple[str, ...]] = {}
        self._of_groups: dict[str, tuple[str, ...]] = {}
        self._shared: set[str] = set()

    def saw(self, claim: ResourceClaim) -> None:
        uid = claim.metadata.uid
        self._names.pop(uid, None)
        self._names[uid] = tuple(pod.name for pod in claim.pods)
        if any(owner.kind == "Pod" for owner in claim.metadata.owner_references):
            self._shared.discard(uid)
        else:
            self._shared.add(uid)
        if not is_of_group(claim):
            self._of_groups.pop(uid, None)
        if len(self._names) > _REMEMBERED:
            oldest = next(iter(self._names))
            del self._names[oldest]
            self._of_groups.pop(oldest, None)
            self._shared.discard(oldest)

    def joined(self, uid: str, names: Iterable[str]) -> None:
        """These pods have a claim that is reserved for their group."""
        if uid in self._names:
            self._of_groups[uid] = tuple(names)

    def shared(self, uid: str) -> bool:
        """Whether further pods can join a claim, of which kubelet does not tell: it is no pod's own."""
        return uid in self._shared

    def of(self, held: Collection[str]) -> Mapping[str, tuple[str, ...]]:
        """By the UIDs of claims that are held."""
        return {uid: (*self._names.get(uid, ()), *self._of_groups.get(uid, ())) for uid in held}


def is_of_group(claim: ResourceClaim) -> bool:
    """Whether it is reserved for what stands for several pods, as a PodGroup does. Source: KEP-5729."""
    return any(
        consumer.resource == "podgroups" and consumer.api_group == _SCHEDULING for consumer in claim.status.reserved_for
    )


class ClaimReader:
    """Reads claims, and shows each that is there to `saw`. `attempt_s` is how long one answer may take."""

    def __init__(
        self, api: ClaimApi, *, attempt_s: float = 10.0, saw: Callable[[ResourceClaim], None] | None = None
    ) -> None:
        self._api = api
        self._attempt_s = attempt_s
        self._saw = saw

    async def read(self, ref: ClaimRef, *, patience_s: float = 0.0) -> ResourceClaim | None:
        """The object of that namespace and name, with any UID; None when there is none.

        An API server that does not answer, or is too busy, is asked again for `patience_s`. Then raises ClusterError.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        delay = _FIRST_DELAY_S
        while True:
            try:
                return await self._read_once(ref)
            except (Unreachable, Conflict, Gone) as error:
                # Only a server that is too busy says how long to leave it alone.
                wait = max(delay, min(error.retry_after_s or 0.0, _LONGEST_DELAY_S)) if error.status == 429 else delay
                if loop.time() + wait > deadline:
                    raise
            await asyncio.sleep(wait)
            delay = min(2 * delay, _LONGEST_DELAY_S)

    async def allocated(self, driver: str, pool: str) -> list[ResourceClaim]:
        """All claims of the cluster with a device of this driver and pool; reads every claim. Raises ClusterError."""
        resource_claims = []
        async with aclosing(self._api.pages(RESOURCE_CLAIMS)) as pages:
            async for page in pages:
                resource_claims += [ResourceClaim.of(item) for item in page.items if _has_device(item, driver, pool)]
        return resource_claims

    async def _read_once(self, ref: ClaimRef) -> ResourceClaim | None:
        try:
            async with asyncio.timeout(self._attempt_s):
                obj = await self._api.get(RESOURCE_CLAIMS, ref.name, ref.namespace)
        except TimeoutError as error:
            raise Unreachable(f"no answer from the API server in {self._attempt_s:g} s", about=str(ref)) from error
        except NotFound as error:
            # A server that does not serve this API at all says 404 too, and that must not release every claim.
            if f'"{ref.name}" not found' in error.message:
                return None
            raise
        claim = ResourceClaim.of(obj, about=str(ref))
        if self._saw is not None:
            self._saw(claim)
        return claim


class _Releases:
    """How often a claim was released, and the question about it that is under way."""

    def __init__(self) -> None:
        self.count = 0
        self.asked: tuple[ClaimRef, float, ClaimRead] | None = None


class ClaimRead:
    """What the API server answers about one claim."""

    def __init__(self, releases: _Releases, asking: Begun[ResourceClaim | None]) -> None:
        self._releases = releases
        self._released_before = releases.count
        self.asking = asking

    @property
    def outdated(self) -> bool:
        """Whether the claim was released since the API server was asked."""
        return self._releases.count != self._released_before

    async def ended(self) -> "ClaimRead":
        """Returns when there is an answer, or an error. To cancel this does not end the question."""
        await self.asking.ended()
        return self

    def claim(self) -> ResourceClaim | None:
        """None when there is none. Raises what asking raised."""
        return self.asking.task.result()


class ClaimReads:
    """One question for all who wait for the same claim; lives in one event loop."""

    def __init__(self, claims: ClaimReader) -> None:
        self._claims = claims
        self._of_claims: WeakValueDictionary[str, _Releases] = WeakValueDictionary()
        """Each lives as long as a caller has an answer about the claim."""

    def begin(self, ref: ClaimRef, *, patience_s: float) -> ClaimRead:
        """The question, which no answer precedes. It is sent at once if there is a connection."""
        releases = self._of_claims.setdefault(ref.uid, _Releases())
        if releases.asked is not None:
            claim, patient_s, read = releases.asked
            if (claim, patient_s) == (ref, patience_s) and not read.asking.task.done() and not read.outdated:
                return read
        read = ClaimRead(releases, Begun(self._claims.read(ref, patience_s=patience_s)))
        releases.asked = ref, patience_s, read
        return read

    def released(self, claim_uid: str) -> None:
        """What was answered before about this claim may be true no more."""
        if (releases := self._of_claims.get(claim_uid)) is not None:
            releases.count += 1


def _has_device(claim: JsonObject, driver: str, pool: str) -> bool:
    """Raises Unreachable for what is no claim: a proxy may answer nonsense."""
    try:
        allocation = (claim.get("status") or {}).get("allocation") or {}
        results = (allocation.get("devices") or {}).get("results") or []
        return any(result.get("driver") == driver and result.get("pool") == pool for result in results)
    except (AttributeError, TypeError) as error:
        raise Unreachable(f"the API server lists an invalid claim: {error}") from error


def explained(error: ClusterError, ref: ClaimRef) -> ClusterError:
    """The error as kubelet shows it to the user: about the claim, and whose move it is."""
    if isinstance(error, Unreachable | Conflict | Gone):
        advice = "the kubelet tries again"
    else:
        advice = "an administrator must allow the node plugin to get resourceclaims"
    return type(error)(
        f"cannot be read from the API server ({error.message}); {advice}",
        about=str(ref),
        status=error.status,
        retry_after_s=error.retry_after_s,
    )
