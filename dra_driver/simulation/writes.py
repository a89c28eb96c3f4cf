"""What the simulated scheduler, controllers and kubelets write about objects: Events, statuses, deletions."""

import secrets
from datetime import UTC, datetime
from typing import Literal

import structlog

from dra_driver.api.meta import EVENTS, PODS, JsonObject, Resource, wire_time
from dra_driver.errors import ClusterError
from dra_driver.kube.client import Kube

_log = structlog.get_logger(__name__)

_MESSAGE_LENGTH = 1024
"""Characters that the API server accepts."""


async def tell(
    kube: Kube,
    component: str,
    obj: JsonObject,
    kind: Literal["Normal", "Warning"],
    reason: str,
    message: str,
    *,
    host: str | None = None,
) -> None:
    """Write an event about an object: a pod if it has no kind. Failing to do so is logged only: nothing depends on an
    event."""
    metadata, now = obj["metadata"], timestamp()
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{secrets.token_hex(8)}", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": obj.get("apiVersion", "v1"),
            "kind": obj.get("kind", "Pod"),
            **{field: metadata[field] for field in ("name", "namespace", "uid")},
        },
        "type": kind,
        "reason": reason,
        "message": message[:_MESSAGE_LENGTH],
        "source": {"component": component, **({"host": host} if host is not None else {})},
        "reportingComponent": component,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    try:
        await kube.create(EVENTS, event)
    except ClusterError as error:
        _log.debug("no event written", about=metadata["name"], error=str(error))


def timestamp() -> str:
    """Now, as the API writes it."""
    return wire_time(datetime.now(UTC))


async def patch_status(kube: Kube, pod: JsonObject, status: JsonObject) -> None:
    """Merge fields into the status of this very pod. Raises NotFound, and Conflict for another one of its name."""
    metadata = pod["metadata"]
    patch = {"metadata": {"uid": metadata["uid"]}, "status": status}
    await kube.merge_patch(PODS, metadata["name"], patch, namespace=metadata["namespace"], subresource="status")


async def delete(kube: Kube, resource: Resource, obj: JsonObject, *, grace_period_s: int | None = None) -> None:
    """Delete this very object. Raises NotFound, and Conflict for another one of its name."""
    metadata = obj["metadata"]
    name, namespace, uid = metadata["name"], metadata["namespace"], metadata["uid"]
    await kube.delete(resource, name, namespace=namespace, uid=uid, grace_period_s=grace_period_s)
