"""`status.devices` of one claim, on the API server: this driver's entries beside those of others.

The claim is read and written back as a protobuf message in which only that list is changed. If another client writes it
meanwhile, the resourceVersion causes a conflict, and the claim is read again. No other way keeps the bytes of the
opaque parameters in `status.allocation`; the API server compares them and refuses any difference as a change of the
allocation. Observed in 1.36: server-side apply and strategic merge patches sort their keys; every write in JSON,
including patches, removes white space and escapes `<`, `>` and `&`. kubectl and Helm send claims with sorted keys and
without white space; many other clients, including the Python one, don't.
"""

import json
from collections.abc import Collection, Iterable
from datetime import datetime

from google.protobuf.message import DecodeError

from dra_driver.api.meta import RESOURCE_CLAIMS, JsonObject
from dra_driver.errors import ClusterError, Conflict, NotFound, Unreachable
from dra_driver.kube.client import Kube
from dra_driver.kube.kubelet_api.generated.claim_v1_pb2 import (
    AllocatedDeviceStatus,
    Condition,
    Json,
    ResourceClaim,
    Time,
)
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
    """Those of a driver that a claim has. Raises Unreachable where the API server would have no such list."""
    devices = (claim.get("status") or {}).get("devices") or ()
    try:
        entries = in_order(entry for entry in devices if entry["driver"] == driver)
        for entry in entries:
            for condition in entry.get("conditions") or ():
                _condition(condition)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise Unreachable(f"the answer is none of an API server: status.devices: {error!r}") from error
    return entries


def with_entries(message: bytes, driver: str, entries: Entries, keys: Collection[Key]) -> bytes | None:
    """A claim with these entries in the place of those under `keys`; None when it has them.

    An entry of the driver under another key is of an allocation that followed, and of the node that has it.
    """
    claim = ResourceClaim.FromString(message)
    ours = {*keys, *map(key_of, entries)}
    there: list[AllocatedDeviceStatus] = []
    others: list[AllocatedDeviceStatus] = []
    for device in claim.status.devices:
        (there if device.driver == driver and _key(device) in ours else others).append(device)
    wanted = [_message(entry) for entry in entries]
    if sorted(there, key=_key) == wanted:
        return None
    devices = [*others, *wanted]
    del claim.status.devices[:]
    claim.status.devices.extend(devices)
    return claim.SerializeToString()


async def put_entries(kube: Kube, claim: ClaimRef, driver: str, entries: Entries, keys: Collection[Key]) -> bool:
    """Make a claim's entries of a driver these; `keys` are the keys of those that were written before.

    False when the API server keeps no `status.devices`. Raises NotFound also for another claim of the name, Conflict
    when others wrote it again and again, Rejected, Unreachable, and ClusterError where the answer is no claim.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        there = await kube.get_message(RESOURCE_CLAIMS, claim.name, claim.namespace)
        try:
            uid, message = ResourceClaim.FromString(there).metadata.uid, with_entries(there, driver, entries, keys)
        except DecodeError as error:
            raise ClusterError(f"the answer is no claim: {error}", about=str(claim)) from error
        if uid != claim.uid:
            raise NotFound("another claim has its name now", about=str(claim))
        if message is None:
            return True
        try:
            stored = await kube.replace_message(
                RESOURCE_CLAIMS, claim.name, message, namespace=claim.namespace, subresource="status"
            )
        except Conflict:
            if attempt == _ATTEMPTS:
                raise
        else:
            return not entries or bool(entries_of(stored, driver))
    raise AssertionError("the last attempt returns or raises")


def _key(entry: AllocatedDeviceStatus) -> Key:
    return entry.pool, entry.device, entry.share_id


def _message(entry: JsonObject) -> AllocatedDeviceStatus:
    message = AllocatedDeviceStatus(
        driver=entry["driver"],
        pool=entry["pool"],
        device=entry["device"],
        share_id=entry.get("shareID"),
        conditions=[_condition(item) for item in entry.get("conditions") or ()],
    )
    if "data" in entry:
        text = json.dumps(entry["data"], separators=(",", ":"), sort_keys=True, ensure_ascii=False)
        message.data.CopyFrom(Json(raw=text.encode()))
    return message


def _condition(condition: JsonObject) -> Condition:
    changed = datetime.fromisoformat(condition["lastTransitionTime"])
    return Condition(
        type=condition["type"],
        status=condition["status"],
        last_transition_time=Time(seconds=int(changed.timestamp())),
        reason=condition["reason"],
        message=condition["message"],
    )
