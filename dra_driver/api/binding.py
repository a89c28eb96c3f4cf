"""Binding conditions (KEP-5007): devices that a node prepares before a pod is bound to it. Pure.

A published device names the conditions. The scheduler copies them into the allocation, reserves the claim, and holds
the pod until the claim's `status.devices` says that `BINDING_READY` is True for each such device. If `BINDING_FAILED`
is True, or after 600 s (its `bindingTimeout`), it takes the allocation back and looks for other devices.

The publisher offers such devices, the controller finds the claims that wait, the node plugin answers, and the simulated
scheduler and `dractl explain` read the answer: all by this module.
"""

from collections.abc import Iterator
from typing import Final

from dra_driver.api.meta import JsonObject

BINDING_READY: Final = "BindingReady"
"""Condition type: the node has prepared the claim, or no node could, so that the pod may be bound."""
BINDING_FAILED: Final = "BindingFailed"
"""Condition type: the node gave up; the pod should get other devices."""


def has_binding_conditions(claim: JsonObject) -> bool:
    """Whether a device of its allocation has any."""
    return any(True for _ in _binding_results(claim))


def waiting_results(claim: JsonObject) -> tuple[JsonObject, ...]:
    """The entries of `status.allocation.devices.results` whose devices are not ready for binding; empty if binding
    failed, because the scheduler then takes the allocation back. `claim` is of an API server."""
    if binding_failure(claim) is not None:
        return ()
    return tuple(result for result in _binding_results(claim) if not _is_ready(claim, result))


def binding_failure(claim: JsonObject) -> str | None:
    """Why binding failed, as reason and message; None if it did not, or if the scheduler does not see that yet, because
    it stops at the first result that is not ready.

    Source: isClaimReadyForBinding of kube-scheduler 1.36, which compares driver, pool and device, and no share.
    """
    for result in _binding_results(claim):
        for condition in _true_conditions(claim, result):
            if condition["type"] in (result.get("bindingFailureConditions") or ()):
                return f"{condition['reason']}: {condition['message']}"
        if not _is_ready(claim, result):
            return None
    return None


def _is_ready(claim: JsonObject, result: JsonObject) -> bool:
    return {*result["bindingConditions"]} <= {condition["type"] for condition in _true_conditions(claim, result)}


def _binding_results(claim: JsonObject) -> Iterator[JsonObject]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    return (result for result in results if result.get("bindingConditions"))


def _true_conditions(claim: JsonObject, result: JsonObject) -> Iterator[JsonObject]:
    identity = [result[name] for name in ("driver", "pool", "device")]
    statuses = (claim.get("status") or {}).get("devices") or ()
    known = (item for item in statuses if [item[name] for name in ("driver", "pool", "device")] == identity)
    empty: JsonObject = {}
    conditions = next(known, empty).get("conditions") or ()
    return (condition for condition in conditions if condition["status"] == "True")
