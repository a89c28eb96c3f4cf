"""Pods and claims of a world to nodes and devices, one after the other, each taking what it got. Pure.

What a cluster's scheduler would do with them, alone and in this order; other plugins of it (scores, spreading) may
prefer another node that fits as well.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from dra_driver.allocation.domains import domain_uid
from dra_driver.allocation.nodes import NodeView, shortage_on
from dra_driver.allocation.placement import Placement, highest_score, place_on, unallocated
from dra_driver.allocation.search import Limit
from dra_driver.allocation.world import World, claim_key, claims_of
from dra_driver.api.core import Key, Pod
from dra_driver.api.resource import Allocation, Consumer, ResourceClaim
from dra_driver.errors import InvalidInput, NodeNotReady
from dra_driver.names import COMPUTE_DOMAIN_DRIVER

EXTENDED = "extended resources"
"""Stands where a claim's name is for what a pod's extended resources got."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A pod, or a claim of no pod, and what it got. `node` None is one that fits nowhere, for the `reasons` of nodes.

    `allocations` are by the claim's name, new ones only.
    """

    kind: str
    namespace: str
    name: str
    node: str | None
    allocations: Mapping[str, Allocation] = MappingProxyType({})
    reasons: Mapping[str, int] = MappingProxyType({})
    """Sentence to the number of nodes that it is true of; 0 for what keeps it from every node."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def allocate_all(world: World, limit: Limit = Limit()) -> tuple[Placed, ...]:  # noqa: B008 - it is immutable
    """Waiting pods in the order in which they are in the world, then claims that no pod uses and that have nothing.

    `limit` is that of each search: one for each pod or claim and node.
    """
    return tuple(_placed(world, limit))


def _placed(world: World, limit: Limit) -> Iterator[Placed]:
    used: set[Key] = set()
    for pod in world.pods.values():
        claims = claims_of(world, pod)
        used |= {claim_key(pod_claim.claim) for pod_claim in claims if pod_claim.claim is not None}
        if not pod.waits:
            continue
        placed, world = place_pod(world, pod, limit)
        yield placed
    for key, claim in list(world.claims.items()):
        if key not in used and claim.status.allocation is None:
            placed, world = _place(world, None, [claim], limit)
            yield placed


def place_pod(world: World, pod: Pod, limit: Limit) -> tuple[Placed, World]:
    """With the world in which the pod has what it got."""
    claims = claims_of(world, pod)
    missing = [pod_claim.missing for pod_claim in claims if pod_claim.missing is not None]
    if missing:
        return Placed("Pod", *pod.key, None, reasons=dict.fromkeys(missing, 0)), world
    # A pod can name a claim twice.
    resource_claims = {claim_key(item.claim): item.claim for item in claims if item.claim is not None}
    return _place(world, pod, list(resource_claims.values()), limit)


def _place(world: World, pod: Pod | None, claims: Sequence[ResourceClaim], limit: Limit) -> tuple[Placed, World]:
    """With the world in which it was placed."""
    kind, key = ("Pod", pod.key) if pod is not None else ("ResourceClaim", claim_key(claims[0]))
    try:
        best, reasons = _best(world, pod, claims, limit)
    except (InvalidInput, NodeNotReady) as error:
        return Placed(kind, *key, None, reasons={str(error): 0}), world
    if best is None:
        return Placed(kind, *key, None, reasons=reasons or {"there are no nodes": 0}), world
    wanted = unallocated(claims)
    names = [claim.metadata.name for claim in wanted] + ([EXTENDED] if best.extended is not None else [])
    allocations = dict(zip(names, best.allocations, strict=True))
    for claim, allocation in zip(wanted, best.allocations, strict=False):
        world = world.with_claim(_allocated(claim, allocation, pod))
    if best.extended is not None and pod is not None:
        metadata = {"name": f"{pod.name}-extended-resources", "namespace": pod.namespace}
        holder = ResourceClaim.model_validate({"metadata": metadata})
        world = world.with_claim(_allocated(holder, best.allocations[-1], pod))
    if pod is not None:
        world = world.with_pod(pod.on(best.node))
    return Placed(kind, *key, best.node, allocations), world


def _allocated(claim: ResourceClaim, allocation: Allocation, pod: Pod | None) -> ResourceClaim:
    users = [Consumer(resource="pods", name=pod.name, uid=pod.uid)] if pod is not None else []
    status = claim.status.model_copy(update={"allocation": allocation, "reserved_for": users})
    return claim.model_copy(update={"status": status})


def _best(
    world: World, pod: Pod | None, claims: Sequence[ResourceClaim], limit: Limit
) -> tuple[Placement | None, dict[str, int]]:
    """The best node, by preference lists, then by name; and why the others are none."""
    best: Placement | None = None
    reasons: dict[str, int] = {}
    for node in world.nodes.values():
        placement = placement_of(world, pod, claims, node, limit)
        if isinstance(placement, str):
            reasons[placement] = reasons.get(placement, 0) + 1
        elif best is None or placement.score > best.score:
            best = placement
        if best is not None and best.score == highest_score(claims):
            break
    return best, reasons


NO_POD = Pod.of({"metadata": {}, "spec": {"containers": [], "tolerations": [{"operator": "Exists"}]}})
"""Stands for the pod of a claim that none uses: it may run anywhere."""


def placement_of(
    world: World,
    pod: Pod | None,
    claims: Sequence[ResourceClaim],
    node: NodeView,
    limit: Limit = Limit(),  # noqa: B008 - it is immutable
) -> Placement | str:
    """The placement on one node, or why there is none. Raises what `allocate` raises."""
    if pod is not None:
        others = (item.spec for item in world.pods_by_node.get(node.name, ()))
        shortage = shortage_on(node, pod.spec, others)
        if shortage is not None:
            return f"too little {shortage}"
    if _is_in_another_domain(world, claims, node):
        return "in another ComputeDomain"
    return place_on(pod if pod is not None else NO_POD, claims, node, world.snapshot, limit=limit)


def _is_in_another_domain(world: World, claims: Sequence[ResourceClaim], node: NodeView) -> bool:
    """Whether the node would be in two ComputeDomains, if one pod got these claims there."""
    wanted = {uid for claim in claims if (uid := domain_uid(claim)) is not None}
    if not wanted:
        return False  # and all claims of the cluster need not be read, which takes long
    pools = [pool.name for pool in world.catalog.pools(node) if pool.driver == COMPUTE_DOMAIN_DRIVER]
    return len(wanted | {world.domains_of_pools[pool] for pool in pools if pool in world.domains_of_pools}) > 1
