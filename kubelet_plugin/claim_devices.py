"""`status.devices` of one claim, on the API server: this driver's entries beside those of others.

Written is a merge patch of that list alone, with the resourceVersion of the claim that was read: somebody else's write
meanwhile is a conflict, and the claim is read again. Not server-side apply, although the list is made for it: that
writes the whole object anew with the keys of all opaque parameters sorted, and the API server, which compares bytes,
refuses it as a change of `status.allocation` wherever a claim's parameters came in another order (from any client but
kubectl and Helm, which sort). Parts that a merge patch does not name keep their bytes.
"""

from collections.abc import Collection, Iterable, Sequence

from dra_driver.api.meta import RESOURCE_CLAIMS, JsonObject
from dra_driver.errors import Conflict, NotFound
from dra_driver.kube.client import Kube
from dra_driver.names import ClaimRef

type Entries = tuple[JsonObject, ...]
"""Of one driver, sorted by pool, device and share."""
type Key = tuple[str, str, str]

_ATTEMPTS = 5


def key_of(entry: JsonObject) -> Key:
    """Which device of its driver it is about."""
    return entry["pool"], entry["device"], entry.get("shareID", "")


def in_order(entries: Iterable[JsonObject]) -> Entries:
    return tuple(sorted(entries, key=key_of))


def entries_of(claim: JsonObject, driver: str) -> Entries:
    """Those of a driver that a claim has."""
    return in_order(one for one in _all(claim) if one["driver"] == driver)


def with_entries(claim: JsonObject, driver: str, entries: Entries, said: Collection[Key]) -> list[JsonObject] | None:
    """`status.devices` with these entries in the place of those under `said` keys; None when that is what it is.

    An entry of the driver under another key is of an allocation that followed, and of the node that has it.
    """
    ours = {*said, *map(key_of, entries)}
    there: list[JsonObject] = []
    others: list[JsonObject] = []
    for one in _all(claim):
        (there if one["driver"] == driver and key_of(one) in ours else others).append(one)
    return None if in_order(there) == entries else [*others, *entries]


async def put_entries(kube: Kube, claim: ClaimRef, driver: str, entries: Entries, said: Collection[Key]) -> bool:
    """Make a claim's entries of a driver these; `said` are the keys of those that were written before.

    False when the API server keeps no `status.devices`. Raises NotFound also for another claim of the name, Conflict
    when others wrote it again and again, Rejected, Unreachable.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        there = await kube.get(RESOURCE_CLAIMS, claim.name, claim.namespace)
        if there["metadata"]["uid"] != claim.uid:
            raise NotFound("another claim has its name now", about=str(claim))
        devices = with_entries(there, driver, entries, said)
        if devices is None:
            return True
        try:
            stored = await _patched(kube, there, devices)
        except Conflict:
            if attempt == _ATTEMPTS:
                raise
        else:
            return not entries or bool(entries_of(stored, driver))
    raise AssertionError("the last attempt returns or raises")


async def _patched(kube: Kube, claim: JsonObject, devices: Sequence[JsonObject]) -> JsonObject:
    metadata = claim["metadata"]
    return await kube.merge_patch(
        RESOURCE_CLAIMS,
        metadata["name"],
        {
            "metadata": {"resourceVersion": metadata["resourceVersion"]},
            "status": {"devices": list(devices) or None},
        },
        namespace=metadata["namespace"],
        subresource="status",
    )


def _all(claim: JsonObject) -> Sequence[JsonObject]:
    return (claim.get("status") or {}).get("devices") or ()
