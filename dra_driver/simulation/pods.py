"""What simulated controllers and the scheduler read of pods, which they also write, as the API has them. Pure."""

from dataclasses import dataclass

from dra_driver.api.meta import JsonObject


@dataclass(frozen=True, slots=True)
class ClaimEntry:
    """One entry of `spec.resourceClaims`: the name of a claim, or of a template for a claim."""

    name: str
    claim: str | None
    template: str | None


def claim_entries(pod: JsonObject) -> tuple[ClaimEntry, ...]:
    return tuple(
        ClaimEntry(item["name"], item.get("resourceClaimName"), item.get("resourceClaimTemplateName"))
        for item in pod["spec"].get("resourceClaims") or ()
    )


def generated_claims(pod: JsonObject) -> dict[str, str | None]:
    """The claim created for each entry, None if none was needed; unprocessed entries are absent."""
    statuses = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    return {status["name"]: status.get("resourceClaimName") for status in statuses}


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
