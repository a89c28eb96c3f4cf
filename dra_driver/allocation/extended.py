"""Extended resources that DeviceClasses stand for: an unchanged `nvidia.com/gpu: 1` becomes a claim. Pure.

Source: kube-scheduler's dynamicresources plugin, Kubernetes 1.36; KEP-5004.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dra_driver import kubernetes
from dra_driver.api.meta import RESOURCE_CLAIMS, JsonObject
from dra_driver.api.pods import EXTENDED_CLAIM_ANNOTATION, owner_reference
from dra_driver.api.resource import DeviceClass, DeviceRequest, ExactRequest
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
    found: dict[str, DeviceClass] = {}
    result: dict[str, str] = {}
    for one in classes:
        result[IMPLICIT_PREFIX + one.metadata.name] = one.metadata.name
        name = one.spec.extended_resource_name
        if name is None:
            continue
        other = found.get(name)
        if other is None or _is_newer(one, other):
            found[name] = one
    return result | {name: one.metadata.name for name, one in found.items()}


def _is_newer(one: DeviceClass, other: DeviceClass) -> bool:
    mine, theirs = one.metadata.creation_timestamp or "", other.metadata.creation_timestamp or ""
    return mine > theirs or (mine == theirs and one.metadata.name < other.metadata.name)


def extended_resources(pod: JsonObject) -> dict[str, int]:
    """Resource name to what the pod needs at any time, for names with a domain that is not Kubernetes' own.

    Containers that run together add up; an init container that ends needs its amount only while it runs.
    """
    total: dict[str, int] = {}
    together = [one for one in _containers(pod) if not one.ends]
    for container in together:
        for name, amount in container.amounts.items():
            total[name] = total.get(name, 0) + amount
    for container in _containers(pod):
        for name, amount in container.amounts.items() if container.ends else ():
            beside = sum(one.amounts.get(name, 0) for one in together if one.index < container.index)
            total[name] = max(total.get(name, 0), beside + amount)
    return {name: amount for name, amount in total.items() if amount}


@dataclass(frozen=True, slots=True)
class _Container:
    """`index` counts init containers first; `ends` is true for init containers that are no sidecars."""

    index: int
    name: str
    ends: bool
    requests: Mapping[str, str]

    @property
    def amounts(self) -> dict[str, int]:
        return {
            name: int(Quantity.parse(str(amount)).value) for name, amount in self.requests.items() if _is_extended(name)
        }


def _containers(pod: JsonObject) -> list[_Container]:
    found: list[_Container] = []
    for is_init, key in ((True, "initContainers"), (False, "containers")):
        for one in pod["spec"].get(key) or ():
            resources = one.get("resources") or {}
            ends = is_init and one.get("restartPolicy") != "Always"
            # The API server fills in requests from limits; both are looked at for manifests that never met one.
            requests = (resources.get("limits") or {}) | (resources.get("requests") or {})
            found.append(_Container(len(found), one["name"], ends, requests))
    return found


def _is_extended(name: str) -> bool:
    """A name with a domain outside kubernetes.io, or the implicit name of a class."""
    domain, slash, _ = name.partition("/")
    if name.startswith(IMPLICIT_PREFIX):
        return True
    own = domain == "kubernetes.io" or domain.endswith(".kubernetes.io") or domain.startswith("requests.")
    return bool(slash) and not own


def extended_requests(pod: JsonObject, classes: Mapping[str, str], *, reuse: bool = True) -> ExtendedRequests:
    """The requests and mappings for the resources in `classes` (resource name to class name).

    An init container that ends may use what later containers ask for, and of all init containers that need more, one
    request of the largest amount serves all. Without `reuse` each has devices of its own.
    """
    requests: list[DeviceRequest] = []
    mappings: list[RequestMapping] = []
    for resource, class_name in sorted(classes.items()):
        lasting = {one.index: (one, one.amounts[resource]) for one in _containers(pod) if _lasts(one, resource, reuse)}
        brief = [one for one in _containers(pod) if one.amounts.get(resource) and one.index not in lasting]
        for container, amount in lasting.values():
            requests.append(_request(container, resource, class_name, amount))
            mappings.append(RequestMapping(container.name, resource, _request_name(container, resource)))
        more = {one.index: _beyond(one, resource, lasting) for one in brief}
        largest = max((one for one in brief if more[one.index] > 0), key=lambda one: more[one.index], default=None)
        if largest is not None:
            requests.append(_request(largest, resource, class_name, more[largest.index]))
        for one in brief:
            mappings += _brief_mappings(one, resource, lasting, more[one.index], largest)
    return ExtendedRequests(tuple(sorted(requests, key=lambda one: one.name)), tuple(mappings))


type _Lasting = Mapping[int, tuple[_Container, int]]


def _lasts(container: _Container, resource: str, reuse: bool) -> bool:
    return not (container.ends and reuse) and container.amounts.get(resource, 0) > 0


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


def extended_claim(
    pod: JsonObject, requests: Sequence[DeviceRequest], *, minor: int = kubernetes.CURRENT
) -> JsonObject:
    """The claim that the scheduler of Kubernetes 1.`minor` makes for a pod's extended resources."""
    return {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": RESOURCE_CLAIMS.kind,
        "metadata": {
            "generateName": f"{pod['metadata']['name']}-extended-resources-"[:_NAME_LENGTH],
            "namespace": pod["metadata"]["namespace"],
            "annotations": {EXTENDED_CLAIM_ANNOTATION: "true"},
            "ownerReferences": [owner_reference(pod, minor=minor)],
        },
        "spec": {"devices": {"requests": [one.to_wire() for one in requests]}},
    }
