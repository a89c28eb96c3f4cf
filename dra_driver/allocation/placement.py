"""One pod on one node: whether it may run there, which devices its claims get, and what its extended resources ask for.

The part of a scheduler that is about devices; the simulated scheduler, offline allocation and explanations use it.
Extended resources that DeviceClasses answer to become a claim: an unchanged `nvidia.com/gpu: 1`. Pure.
Source: kube-scheduler's dynamicresources plugin, Kubernetes 1.36; KEP-5004.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dra_driver import kubernetes
from dra_driver.allocation.behavior import Behavior
from dra_driver.allocation.nodes import NodeView, most_at_a_time, provides, selector_matches, unfit_for
from dra_driver.allocation.result import ShareIds, derived_share_id
from dra_driver.allocation.search import Allocated, Limit, allocate
from dra_driver.allocation.snapshot import Snapshot
from dra_driver.api.core import EXTENDED_CLAIM_ANNOTATION, Amounts, Pod, PodSpec
from dra_driver.api.meta import RESOURCE_CLAIMS, JsonObject
from dra_driver.api.resource import Allocation, DeviceClass, DeviceRequest, ExactRequest, ResourceClaim
from dra_driver.names import RequestName
from dra_driver.quantity import Quantity

IMPLICIT_PREFIX = "deviceclass.resource.kubernetes.io/"
"""With a class's name: a resource that every class answers to without saying so."""

_NAME_LENGTH = 57


@dataclass(frozen=True, slots=True)
class RequestMapping:
    """Which request of the claim serves which container's resource."""

    container: str
    resource: str
    request: str

    def to_wire(self) -> JsonObject:
        return {"containerName": self.container, "resourceName": self.resource, "requestName": self.request}


@dataclass(frozen=True, slots=True)
class ExtendedRequests:
    """What a pod's extended resources ask for on one node."""

    requests: tuple[DeviceRequest, ...]
    mappings: tuple[RequestMapping, ...]


def class_by_resource(classes: Iterable[DeviceClass]) -> dict[str, str]:
    """Resource name to class name. Of several classes for one name the newest wins, then the smaller name."""
    by_name = sorted(classes, key=lambda class_: class_.metadata.name, reverse=True)
    oldest_first = sorted(by_name, key=lambda class_: class_.metadata.creation_timestamp or "")
    named = {class_.spec.extended_resource_name: class_.metadata.name for class_ in oldest_first}
    implicit = {IMPLICIT_PREFIX + class_.metadata.name: class_.metadata.name for class_ in oldest_first}
    return implicit | {resource: name for resource, name in named.items() if resource is not None}


def extended_resources(pod: PodSpec) -> dict[str, int]:
    """Resource name to what the pod needs at any time, for names with a domain that is not Kubernetes' own."""
    return {name: int(amount) for name, amount in most_at_a_time(pod, _is_extended).items() if amount}


@dataclass(frozen=True, slots=True)
class _Container:
    """`index` counts init containers first; `ends` is true for init containers that are no sidecars."""

    index: int
    name: str
    ends: bool
    requests: Amounts

    @property
    def amounts(self) -> dict[str, int]:
        return {
            name: int(Quantity.parse(str(amount)).value) for name, amount in self.requests.items() if _is_extended(name)
        }


def _containers(pod: PodSpec) -> list[_Container]:
    ending = [(item, item.restart_policy != "Always") for item in pod.init_containers]
    every = [*ending, *((item, False) for item in pod.containers)]
    return [_Container(index, item.name, ends, item.resources.wanted) for index, (item, ends) in enumerate(every)]


def _is_extended(name: str) -> bool:
    """A name with a domain outside kubernetes.io, or the implicit name of a class."""
    domain, slash, _ = name.partition("/")
    if name.startswith(IMPLICIT_PREFIX):
        return True
    own = domain == "kubernetes.io" or domain.endswith(".kubernetes.io") or domain.startswith("requests.")
    return bool(slash) and not own


def extended_requests(pod: PodSpec, classes: Mapping[str, str], *, reuse: bool = True) -> ExtendedRequests:
    """The requests and mappings for the resources in `classes` (resource name to class name).

    An init container that ends may use what later containers ask for, and of all init containers that need more, one
    request of the largest amount serves all. Without `reuse` each has devices of its own.
    """
    requests: list[DeviceRequest] = []
    mappings: list[RequestMapping] = []
    for resource, class_name in sorted(classes.items()):
        using = [container for container in _containers(pod) if container.amounts.get(resource)]
        lasting = {used.index: (used, used.amounts[resource]) for used in using if not (used.ends and reuse)}
        brief = [used for used in using if used.index not in lasting]
        for container, amount in lasting.values():
            requests.append(_request(container, resource, class_name, amount))
            mappings.append(RequestMapping(container.name, resource, _request_name(container, resource)))
        more = {used.index: _beyond(used, resource, lasting) for used in brief}
        largest = max((used for used in brief if more[used.index] > 0), key=lambda used: more[used.index], default=None)
        if largest is not None:
            requests.append(_request(largest, resource, class_name, more[largest.index]))
        for item in brief:
            mappings += _brief_mappings(item, resource, lasting, more[item.index], largest)
    return ExtendedRequests(tuple(sorted(requests, key=lambda request: request.name)), tuple(mappings))


type _Lasting = Mapping[int, tuple[_Container, int]]


def _beyond(container: _Container, resource: str, lasting: _Lasting) -> int:
    """How many devices an init container needs beyond those of the containers after it."""
    later = sum(amount for index, (_, amount) in lasting.items() if index > container.index)
    return max(0, container.amounts[resource] - later)


def _brief_mappings(
    container: _Container, resource: str, lasting: _Lasting, more: int, largest: _Container | None
) -> list[RequestMapping]:
    needed = container.amounts[resource]
    mappings: list[RequestMapping] = []
    for index, (other, amount) in lasting.items():
        if index > container.index and needed > 0:
            mappings.append(RequestMapping(container.name, resource, _request_name(other, resource)))
            needed -= amount
    if more and largest is not None:
        mappings.append(RequestMapping(container.name, resource, _request_name(largest, resource)))
    return mappings


def _request_name(container: _Container, resource: str) -> str:
    return f"container-{container.index}-request-{sorted(container.requests).index(resource)}"


def _request(container: _Container, resource: str, class_name: str, count: int) -> DeviceRequest:
    exactly = ExactRequest(device_class_name=class_name, allocation_mode="ExactCount", count=count)
    return DeviceRequest(name=_request_name(container, resource), exactly=exactly)


def extended_claim(pod: Pod, requests: Sequence[DeviceRequest], *, minor: int = kubernetes.CURRENT) -> JsonObject:
    """The claim that the scheduler of Kubernetes 1.`minor` makes for a pod's extended resources."""
    return {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": RESOURCE_CLAIMS.kind,
        "metadata": {
            "generateName": f"{pod.name}-extended-resources-"[:_NAME_LENGTH],
            "namespace": pod.namespace,
            "annotations": {EXTENDED_CLAIM_ANNOTATION: "true"},
            "ownerReferences": [pod.owner_reference(minor)],
        },
        "spec": {"devices": {"requests": [request.to_wire() for request in requests]}},
    }


_PREFERENCES = 8


@dataclass(frozen=True, slots=True)
class Placement:
    """A node for a pod: an allocation for each claim that has none, in order, and one more for extended resources."""

    node: str
    allocations: tuple[Allocation, ...]
    extended: ExtendedRequests | None
    score: int


def place_on(
    pod: Pod,
    claims: Sequence[ResourceClaim],
    node: NodeView,
    snapshot: Snapshot,
    *,
    share_ids: ShareIds = derived_share_id,
    limit: Limit = Limit(),  # noqa: B008 - it is immutable
) -> Placement | str:
    """The placement on one node, or why there is none. Raises what `allocate` raises."""
    if unfit := unfit_for(pod.spec, node):
        return unfit.reason
    if (elsewhere := allocated_elsewhere(claims, node)) is not None:
        return f"claim {elsewhere.metadata.name} is allocated to devices of another node"
    extended = extended_on(pod.spec, node, snapshot.classes, snapshot.catalog.behavior)
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
    placed = ((claim, claim.node_selector) for claim in claims)
    return next((claim for claim, nodes in placed if nodes is not None and not selector_matches(nodes, node)), None)


def extended_on(
    pod: PodSpec, node: NodeView, classes: Mapping[str, DeviceClass], behavior: Behavior
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
    return extended_requests(pod, served, reuse=behavior.init_containers_reuse) if served else None


def score(claims: Sequence[ResourceClaim], allocations: Sequence[Allocation]) -> int:
    """Higher when preference lists got what stands earlier in them. Source: kube-scheduler, DRA scoring."""
    total = 0
    for claim, allocation in zip(claims, allocations, strict=True):
        chosen = {RequestName.of(result.request) for result in allocation.devices.results}
        for request in claim.spec.devices.requests:
            for index, sub_request in enumerate(request.first_available or ()):
                if RequestName(request.name, sub_request.name) in chosen:
                    total += _PREFERENCES - index
    return total


def highest_score(claims: Sequence[ResourceClaim]) -> int:
    """That of a placement that no other one can beat."""
    lists = [
        request for claim in unallocated(claims) for request in claim.spec.devices.requests if request.first_available
    ]
    return _PREFERENCES * len(lists)
