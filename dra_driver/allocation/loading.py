"""Objects as the API has them, from files or a cluster, to a world. Pure.

What no API server would store is refused here, object by object, so that nothing can go wrong behind this border.
Reading files and clusters is for commands (`dra_driver.cli`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dra_driver.allocation.alike import AlikeSlices
from dra_driver.allocation.behavior import CURRENT, Behavior
from dra_driver.allocation.domains import templates_to_be, with_uid
from dra_driver.allocation.nodes import NodeView, amounts_of
from dra_driver.allocation.placement import extended_resources
from dra_driver.allocation.serving import SERVING_GROUP, managed_template, serving_pods
from dra_driver.allocation.snapshot import PublishedSlice
from dra_driver.allocation.world import DeviceReport, Quota, UnreadKind, World, claim_key, key_of
from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.core import DEFAULT_NAMESPACE, Key, Node, ObjectCondition, Pod
from dra_driver.api.gpu_settings import HealthPolicy, WaitingGpu
from dra_driver.api.inventory import GpuFacts, Limitation, NodeInventorySpec, NodeInventoryStatus
from dra_driver.api.meta import JsonObject
from dra_driver.api.resource import (
    Capacity,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimTemplate,
    ResourceSlice,
)
from dra_driver.api.untyped import list_in, map_in, maps_in
from dra_driver.errors import InvalidInput
from dra_driver.names import DeviceId
from dra_driver.quantity import Quantity, Version

ANY_NODE = "any-node"
"""Stands for every node where slices are for all nodes and no node is known."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A world and what was wrong with single objects, which are left out of it."""

    world: World
    problems: tuple[InvalidInput, ...]


def world_of(
    objects: Iterable[JsonObject],
    *,
    behavior: Behavior = CURRENT,
    unread: Sequence[UnreadKind] = (),
    live: bool = False,
    about: Mapping[int, str] | None = None,
) -> Loaded:
    """Typed, and sorted by kind. Kinds that nothing here looks at are passed over.

    Of files, ComputeDomains stand for the templates that their controller will make. `about` names objects in errors
    (`file.yaml:12`), by `id()`. Where nodes are not known, those that slices name are taken.
    """
    builder = _Builder(about or {}, trusted=live)
    for obj in objects:
        builder.add(obj)
    nodes = builder.nodes
    if not nodes and (not live or any(item.kind == "Node" for item in unread)):
        nodes = {node.name: node for node in _nodes_of(builder.slices)}
    to_be = {} if live else templates_to_be(builder.domains, builder.slices)
    world = World(
        claims=builder.claims,
        templates={**to_be, **builder.templates},
        domains=builder.domains,
        classes=builder.classes,
        slices=tuple(builder.slices),
        nodes=dict(sorted(nodes.items())),
        pods=builder.pods,
        namespaces=builder.namespaces,
        taint_rules=tuple(builder.taint_rules),
        quotas=tuple(builder.quotas),
        registered=builder.registered,
        limitations=builder.limitations,
        waiting=builder.waiting,
        gpus=builder.gpus,
        health_policies=builder.health_policies,
        reports=builder.reports,
        invalid=builder.invalid,
        behavior=behavior,
        unread=tuple(unread),
        live=live,
    )
    return Loaded(world, tuple(builder.problems))


def _nodes_of(slices: Iterable[PublishedSlice]) -> Iterator[NodeView]:
    """Nodes without an object of their own, from the slices that are for them."""
    names: set[str] = set()
    everywhere = False
    for slice_ in slices:
        if slice_.node_name is not None:
            names.add(slice_.node_name)
        spec = slice_.model.spec
        names.update(device.node_name for device in spec.devices or () if device.node_name is not None)
        everywhere = everywhere or bool(spec.all_nodes) or any(device.all_nodes for device in spec.devices or ())
    if names:
        yield from map(NodeView, sorted(names))
    elif everywhere:
        yield NodeView(ANY_NODE)


class _Builder:
    """Objects by kind, while they come in."""

    def __init__(self, about: Mapping[int, str], *, trusted: bool) -> None:
        """`trusted` are objects that an API server has validated."""
        self._about = about
        self._trusted = trusted
        self._alike = AlikeSlices()
        self.claims: dict[Key, ResourceClaim] = {}
        self.templates: dict[Key, ResourceClaimTemplate] = {}
        self.domains: dict[Key, ComputeDomain] = {}
        self.classes: dict[str, DeviceClass] = {}
        self.slices: list[PublishedSlice] = []
        self.nodes: dict[str, NodeView] = {}
        self.pods: dict[Key, Pod] = {}
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self.taint_rules: list[DeviceTaintRule] = []
        self.quotas: list[Quota] = []
        self.registered: dict[str, frozenset[str]] = {}
        self.limitations: dict[str, tuple[Limitation, ...]] = {}
        self.waiting: dict[str, tuple[WaitingGpu, ...]] = {}
        self.gpus: dict[str, tuple[GpuFacts, ...]] = {}
        self.health_policies: dict[str, HealthPolicy] = {}
        self.reports: dict[tuple[Key, DeviceId], DeviceReport] = {}
        self.problems: list[InvalidInput] = []
        self.invalid: dict[tuple[str, Key], str] = {}

    def add(self, obj: JsonObject) -> None:
        kind = str(obj.get("kind"))
        adder = getattr(self, f"_add_{kind.lower()}", None)
        if adder is not None:
            self._guarded(lambda named: adder(_named(named)), obj, kind)
        else:
            self._guarded(self._add_workload, obj, kind)

    def _guarded(self, adder: Any, obj: JsonObject, kind: str) -> None:
        metadata = obj.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        about = self._about.get(id(obj)) or f"{kind} {name or 'without a name'}"
        try:
            adder(obj)
        except InvalidInput as error:
            self._left_out(obj, kind, InvalidInput(str(error), about=about, problems=error.problems))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            self._left_out(obj, kind, InvalidInput(f"not a valid {kind}: {what}", about=about))

    def _left_out(self, obj: JsonObject, kind: str, problem: InvalidInput) -> None:
        self.problems.append(problem)
        if isinstance(obj.get("metadata"), dict):
            self.invalid[kind, key_of(obj)] = problem.message

    def _add_workload(self, obj: JsonObject) -> None:
        for made in objects_of_workload(obj, replicas=1):
            self._guarded(getattr(self, f"_add_{made['kind'].lower()}"), made, str(obj.get("kind")))

    def _add_resourceclaim(self, obj: JsonObject) -> None:
        claim = ResourceClaim.of(obj, about="ResourceClaim")
        if claim.metadata.namespace is None:
            metadata = claim.metadata.model_copy(update={"namespace": DEFAULT_NAMESPACE})
            claim = claim.model_copy(update={"metadata": metadata})
        _check_requests(claim.spec)
        self.claims[claim_key(claim)] = claim
        self.reports |= {(claim_key(claim), id_): report for id_, report in _reports(obj)}

    def _add_resourceclaimtemplate(self, obj: JsonObject) -> None:
        template = ResourceClaimTemplate.of(obj, about="ResourceClaimTemplate")
        _check_requests(template.spec.spec)
        self.templates[key_of(obj)] = template

    def _add_computedomain(self, obj: JsonObject) -> None:
        self.domains[key_of(obj)] = with_uid(ComputeDomain.of(obj, about="ComputeDomain"))

    def _add_deviceclass(self, obj: JsonObject) -> None:
        self.classes[obj["metadata"]["name"]] = DeviceClass.of(obj, about="DeviceClass")

    def _add_resourceslice(self, obj: JsonObject) -> None:
        published = self._alike.like(obj)
        if published is None:
            published = PublishedSlice(ResourceSlice.of(obj, about="ResourceSlice"))
            if not self._trusted:
                _check_amounts(published)
            self._alike.add(published, obj)
        self.slices.append(published)

    def _add_devicetaintrule(self, obj: JsonObject) -> None:
        self.taint_rules.append(DeviceTaintRule.of(obj, about="DeviceTaintRule"))

    def _add_node(self, obj: JsonObject) -> None:
        node = NodeView.of(Node.of(obj, about="Node"))
        for amount in node.allocatable.values():
            Quantity.parse(amount)
        self.nodes[node.name] = node

    def _add_pod(self, obj: JsonObject) -> None:
        pod = typed_pod(obj)
        self.pods[pod.key] = pod

    def _add_namespace(self, obj: JsonObject) -> None:
        self.namespaces[obj["metadata"]["name"]] = obj["metadata"].get("labels") or {}

    def _add_resourcequota(self, obj: JsonObject) -> None:
        spec, status = obj.get("spec") or {}, obj.get("status") or {}
        self.quotas.append(Quota(*key_of(obj), status.get("hard") or spec.get("hard") or {}, status.get("used") or {}))

    def _add_nodeinventory(self, obj: JsonObject) -> None:
        spec = obj["spec"]
        node, registrations = spec["nodeName"], spec.get("registrations") or ()
        if registrations or self._trusted:  # files of `dractl inventory` have no registrations
            self.registered[node] = frozenset(registration["driver"] for registration in registrations)
        status = NodeInventoryStatus.of(obj.get("status") or {}, about="NodeInventory")
        self.limitations[node] = tuple(status.limitations)
        self.waiting[node] = tuple(status.policy.waiting) if status.policy is not None else ()
        self.health_policies[node] = status.policy.health if status.policy is not None else HealthPolicy()
        # One that is made for a node of --nodes has the name and the limitations alone.
        self.gpus[node] = tuple(NodeInventorySpec.of(spec, about="NodeInventory").gpus) if spec.get("gpus") else ()


def typed_pod(obj: JsonObject) -> Pod:
    """Raises InvalidInput, or ValueError for a quantity."""
    # A claim that is made for it names its owner; a pod that no API server has seen has its name as UID.
    namespace, name = key_of(obj)
    metadata = {"uid": name, **obj["metadata"], "namespace": namespace}
    pod = Pod.of({**obj, "metadata": metadata}, about="Pod")
    # Computed once here, so that invalid quantities are found now.
    amounts_of(pod.spec), extended_resources(pod.spec)
    return pod


def _reports(claim: JsonObject) -> Iterator[tuple[DeviceId, DeviceReport]]:
    """From `status.devices`, which any driver may write; an invalid entry is left out."""
    for item in list_in(map_in(claim.get("status")).get("devices")):
        entry = map_in(item)
        with suppress(InvalidInput, KeyError):
            conditions = tuple(map(ObjectCondition.of, list_in(entry.get("conditions"))))
            id_ = DeviceId(str(entry["driver"]), str(entry["pool"]), str(entry["device"]))
            yield id_, DeviceReport(conditions, map_in(entry.get("data")))


_NAMED = frozenset(("ComputeDomain", "DeviceClass", "Node", "Pod", "ResourceClaim", "ResourceClaimTemplate"))
"""Others refer to these by their names."""


def _named(obj: JsonObject) -> JsonObject:
    """Raises ValueError for an object without the name that it needs, which only a file can have."""
    name = (obj.get("metadata") or {}).get("name")
    if not (isinstance(name, str) and name) and obj["kind"] in _NAMED:
        raise ValueError("metadata.name is missing; add it")
    return obj


def _check_amounts(published: PublishedSlice) -> None:
    """Raises ValueError for a quantity or version that is none."""
    for device in published.spec.devices or ():
        for attribute in device.attributes.values():
            for version in (attribute.version, *(attribute.versions or ())):
                if version is not None:
                    Version.parse(version)
        for consumed in device.consumes_counters or ():
            _check_capacities(consumed.counters)
        _check_capacities(device.capacity)
    for counters in published.spec.shared_counters or ():
        _check_capacities(counters.counters)


def _check_capacities(capacities: Mapping[str, Capacity]) -> None:
    for capacity in capacities.values():
        _check_quantity(capacity.value)


@lru_cache(1 << 12)
def _check_quantity(text: str) -> None:
    """Thousands of devices have the same few amounts."""
    Quantity.parse(text)


def _check_requests(spec: ResourceClaimSpec) -> None:
    """Raises ValueError for an amount that is no quantity, and for a request that asks for nothing."""
    for request in spec.devices.requests:
        if request.exactly is None and not request.first_available:
            raise ValueError(f'request "{request.name}" has neither exactly nor firstAvailable')
        for item in (request.exactly, *(request.first_available or ())):
            for amount in item.capacity.requests.values() if item is not None and item.capacity is not None else ():
                Quantity.parse(amount)


MOST_REPLICAS = 1000


def objects_of_workload(obj: JsonObject, *, replicas: int = MOST_REPLICAS) -> Iterator[JsonObject]:
    """Its pods, as of `pods_of_workload`, and the ResourceClaimTemplate that its controller makes for them."""
    yield from pods_of_workload(obj, replicas=replicas)
    template = managed_template(obj)
    if template is not None:
        yield template


def pods_of_workload(obj: JsonObject, *, replicas: int = MOST_REPLICAS) -> Iterator[JsonObject]:
    """The pods that a Deployment, Job, JobSet and the like would make, at most `replicas` of each kind of pod, called
    `<name>-0` and so on. Raises InvalidInput for one without metadata."""
    if not isinstance(obj.get("spec"), dict):
        return
    for suffix, spec, number in _pod_makers(obj):
        template = spec.get("template")
        if isinstance(template, dict) and isinstance(template.get("spec"), dict) and "containers" in template["spec"]:
            namespace, name = key_of(obj)
            kind, uid = str(obj.get("kind")), map_in(obj["metadata"]).get("uid") or name
            owner = {"apiVersion": str(obj.get("apiVersion")), "kind": kind, "name": name, "uid": uid}
            for index in range(min(number, replicas)):
                metadata = {
                    **map_in(template.get("metadata")),
                    "name": f"{name}{suffix}-{index}",
                    "namespace": namespace,
                    "ownerReferences": [{**owner, "controller": True}],
                }
                yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def _pod_makers(obj: JsonObject) -> Iterator[tuple[str, JsonObject, int]]:
    """What pods of the object are called after its name, the spec that has their template, and their number."""
    spec: JsonObject = obj["spec"]
    if obj.get("kind") == "JobSet":
        for jobs in maps_in(spec.get("replicatedJobs")):
            of_job = map_in(map_in(jobs.get("template")).get("spec"))
            yield f"-{jobs.get('name', 'job')}", of_job, _number(jobs, "replicas") * _number(of_job, "parallelism")
        return
    if obj.get("kind") == "RayCluster":
        yield "-head", map_in(spec.get("headGroupSpec")), 1
        for group in maps_in(spec.get("workerGroupSpecs")):
            number = _number(group, "replicas") * _number(group, "numOfHosts")
            yield f"-{group.get('groupName', 'worker')}", group, number
        return
    if str(obj.get("apiVersion")).startswith(f"{SERVING_GROUP}/"):
        for pods in serving_pods(obj):
            yield pods.suffix, {"template": pods.template}, pods.replicas
            if pods.workers is not None:
                yield f"{pods.suffix}-worker", {"template": pods.workers}, pods.replicas * (pods.size - 1)
        return
    if obj.get("kind") in ("VirtualMachine", "VirtualMachineInstance"):
        yield "", {"template": {"spec": launcher_of(spec)}}, 1
        return
    if obj.get("kind") == "CronJob":
        spec = map_in(map_in(spec.get("jobTemplate")).get("spec"))
    yield "", spec, _number(spec, "replicas" if "replicas" in spec else "parallelism")


def launcher_of(spec: JsonObject) -> JsonObject:
    """The spec of the pod that KubeVirt starts for a VirtualMachine or an instance, as far as it decides on a node.
    Source: KubeVirt's user guide, "Assigning GPUs with Dynamic Resource Allocation"."""
    machine = map_in(map_in(spec.get("template")).get("spec")) or spec
    hardware = map_in(map_in(machine.get("domain")).get("devices"))
    passed = [device for field in ("gpus", "hostDevices") for device in maps_in(hardware.get(field))]
    used = (device for device in passed if "claimName" in device)
    uses = [{"name": device["claimName"], "request": device.get("requestName")} for device in used]
    for_scheduler = ("resourceClaims", "nodeSelector", "affinity", "tolerations", "schedulerName")
    return {
        **{field: machine[field] for field in for_scheduler if field in machine},
        "containers": [{"name": "compute", "image": "quay.io/kubevirt/virt-launcher", "resources": {"claims": uses}}],
    }


def _number(spec: JsonObject, field: str) -> int:
    value = spec.get(field)
    return value if isinstance(value, int) else 1
