"""What simulated controllers and the scheduler read of pods and write to their claims, as the API has them. Pure."""

from collections.abc import Iterator
from copy import deepcopy

from dra_driver.api.core import CLAIM_FINALIZER, PodResourceClaim
from dra_driver.api.meta import JsonObject


def claim_entries(pod: JsonObject) -> tuple[PodResourceClaim, ...]:
    return tuple(map(PodResourceClaim.of, pod["spec"].get("resourceClaims") or ()))


def generated_claims(pod: JsonObject) -> dict[str, str | None]:
    """The claim created for each entry, None if none was needed; unprocessed entries are absent."""
    statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    return {status["name"]: status.get("resourceClaimName") for status in statuses}


def claims_of_entries(pod: JsonObject) -> Iterator[tuple[PodResourceClaim, str | None]]:
    """Each entry with the name of its claim, None if that was not created yet; without entries that need no claim."""
    made = generated_claims(pod)
    for entry in claim_entries(pod):
        name = entry.resource_claim_name or made.get(entry.name)
        if name or entry.name not in made:
            yield entry, name


def is_done(pod: JsonObject) -> bool:
    """Whether all its containers have ended permanently."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_being_deleted(obj: JsonObject) -> bool:
    return obj["metadata"].get("deletionTimestamp") is not None


def is_scheduled(pod: JsonObject) -> bool:
    return bool(pod["spec"].get("nodeName"))


def is_owned_by(obj: JsonObject, owner: JsonObject) -> bool:
    """Whether `owner` is the controller of `obj`."""
    references = obj["metadata"].get("ownerReferences") or ()
    return any(reference["uid"] == owner["metadata"]["uid"] and reference.get("controller") for reference in references)


def released(claim: JsonObject) -> JsonObject:
    """A copy without reservations and devices."""
    freed = deepcopy(claim)
    for field in ("reservedFor", "allocation", "devices"):
        freed.setdefault("status", {}).pop(field, None)
    return freed


def has_finalizer(claim: JsonObject) -> bool:
    """Whether the finalizer keeps the claim, because pods use it."""
    return CLAIM_FINALIZER in (claim["metadata"].get("finalizers") or ())


def without_finalizer(claim: JsonObject) -> JsonObject:
    freed = deepcopy(claim)
    freed["metadata"]["finalizers"].remove(CLAIM_FINALIZER)
    return freed
