"""One pod on one node: whether it may run there, and which devices its claims get. Pure.

The part of a scheduler that is about devices; simulated scheduler, offline allocation and explanations ask it alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dra_driver.allocation.behaviour import Behaviour
from dra_driver.allocation.extended import (
    ExtendedRequests,
    class_by_resource,
    extended_claim,
    extended_requests,
    extended_resources,
)
from dra_driver.allocation.nodes import NodeView, provides, selector_matches, unfit_for
from dra_driver.allocation.result import ShareIds, derived_share_id
from dra_driver.allocation.search import Allocated, Limit, allocate
from dra_driver.allocation.snapshot import Snapshot
from dra_driver.api.meta import JsonObject
from dra_driver.api.resource import Allocation, DeviceClass, ResourceClaim
from dra_driver.names import RequestName

_PREFERENCES = 8


@dataclass(frozen=True, slots=True)
class Placement:
    """A node for a pod: an allocation for each claim that has none, in order, and one more for extended resources."""

    node: str
    allocations: tuple[Allocation, ...]
    extended: ExtendedRequests | None
    score: int


def place_on(
    pod: JsonObject,
    claims: Sequence[ResourceClaim],
    node: NodeView,
    snapshot: Snapshot,
    *,
    share_ids: ShareIds = derived_share_id,
    limit: Limit = Limit(),  # noqa: B008 - it is immutable
) -> Placement | str:
    """The placement on one node, or why there is none. Raises what `allocate` raises."""
    if problem := unfit_for(pod, node):
        return problem
    if (elsewhere := allocated_elsewhere(claims, node)) is not None:
        return f"claim {elsewhere.metadata.name} is allocated to devices of another node"
    extended = extended_on(pod, node, snapshot.classes, snapshot.catalog.behaviour)
    if isinstance(extended, str):
        return extended
    wanted = unallocated(claims)
    if extended is not None:
        wanted.append(ResourceClaim.of(extended_claim(pod, extended.requests)))
    result = allocate(wanted, node, snapshot, share_ids=share_ids, limit=limit)
    if not isinstance(result, Allocated):
        return result.reason
    return Placement(node.name, result.allocations, extended, score(wanted, result.allocations))


def unallocated(claims: Sequence[ResourceClaim]) -> list[ResourceClaim]:
    return [claim for claim in claims if claim.status.allocation is None]


def allocated_elsewhere(claims: Sequence[ResourceClaim], node: NodeView) -> ResourceClaim | None:
    """The first claim that has devices which the node cannot use."""
    for claim in claims:
        selector = claim.status.allocation.node_selector if claim.status.allocation is not None else None
        if selector is not None and not selector_matches(selector, node):
            return claim
    return None


def extended_on(
    pod: JsonObject, node: NodeView, classes: Mapping[str, DeviceClass], behaviour: Behaviour
) -> ExtendedRequests | str | None:
    """What DRA must serve on this node; None for nothing, a text for resources that the node has not."""
    by_class = class_by_resource(classes.values())
    served: dict[str, str] = {}
    for resource, amount in extended_resources(pod).items():
        if provides(node, resource) and provides(node, resource) < amount:
            return f"too little {resource}"
        if provides(node, resource):
            continue  # a device plugin's; Kubernetes never mixes the two on one node
        if resource not in by_class:
            return f"no {resource}"
        served[resource] = by_class[resource]
    return extended_requests(pod, served, reuse=behaviour.init_containers_reuse) if served else None


def score(claims: Sequence[ResourceClaim], allocations: Sequence[Allocation]) -> int:
    """Higher when preference lists got what stands earlier in them. Source: kube-scheduler, DRA scoring."""
    total = 0
    for claim, allocation in zip(claims, allocations, strict=True):
        chosen = {RequestName.of(result.request) for result in allocation.devices.results}
        for request in claim.spec.devices.requests:
            for index, one in enumerate(request.first_available or ()):
                if RequestName(request.name, one.name) in chosen:
                    total += _PREFERENCES - index
    return total


def highest_score(claims: Sequence[ResourceClaim]) -> int:
    """That of a placement that no other one can beat."""
    lists = [
        request for claim in unallocated(claims) for request in claim.spec.devices.requests if request.first_available
    ]
    return _PREFERENCES * len(lists)
