"""Everything that an allocation offline and an explanation may look at: one cluster, or some files, as typed values.

`world_of` makes it from objects as the API has them; reading files and clusters is for commands (`dra_driver.cli`).
What could not be read is said in `unread`, so that an answer can say what it does not know. Pure.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from dra_driver.allocation.behaviour import CURRENT, Behaviour
from dra_driver.allocation.extended import extended_resources
from dra_driver.allocation.nodes import NodeView
from dra_driver.allocation.resources import amounts_of
from dra_driver.allocation.snapshot import Catalog, PublishedSlice, Snapshot, Usage
from dra_driver.api.meta import JsonObject, Model
from dra_driver.api.pods import claim_entries, generated_claims, is_done, is_scheduled
from dra_driver.api.resource import (
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimTemplate,
    ResourceSlice,
    Taint,
    Toleration,
)
from dra_driver.cel.device import CelDevice
from dra_driver.errors import InvalidInput
from dra_driver.quantity import Quantity

type Key = tuple[str, str]
"""Namespace and name."""

ANY_NODE = "any-node"
"""Stands for every node where slices are for all nodes and no node is known."""

DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class Unread:
    """A kind of object that could not be read, and why."""

    kind: str
    why: str


@dataclass(frozen=True)
class Pod:
    """A pod as the API has it, with what is asked for most often."""

    obj: JsonObject = field(repr=False)

    @property
    def key(self) -> Key:
        return key_of(self.obj)

    @property
    def namespace(self) -> str:
        return self.key[0]

    @property
    def name(self) -> str:
        return self.key[1]

    @property
    def uid(self) -> str:
        return str(self.obj["metadata"].get("uid") or "")

    @property
    def node(self) -> str | None:
        return str(self.obj["spec"]["nodeName"]) if is_scheduled(self.obj) else None

    @property
    def is_done(self) -> bool:
        return is_done(self.obj)

    @property
    def waits(self) -> bool:
        """Whether a scheduler still has to find a node for it."""
        return not (self.node or self.is_done)

    def on(self, node: str) -> "Pod":
        """The pod once it is bound to the node."""
        return Pod({**self.obj, "spec": {**self.obj["spec"], "nodeName": node}})

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class Quota:
    """A ResourceQuota: hard limits and use, as text, by resource name. Use is empty in files."""

    namespace: str
    name: str
    hard: Mapping[str, str]
    used: Mapping[str, str]


@dataclass(frozen=True)
class World:
    """Immutable; `with_claim` and the like make others.

    `namespaces` are labels by name. `registered` are the drivers that kubelet knows on each node, by node; a node
    that is not in it has not said.
    """

    claims: Mapping[Key, ResourceClaim] = field(default_factory=dict)
    templates: Mapping[Key, ResourceClaimTemplate] = field(default_factory=dict)
    classes: Mapping[str, DeviceClass] = field(default_factory=dict)
    slices: tuple[PublishedSlice, ...] = ()
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    pods: Mapping[Key, Pod] = field(default_factory=dict)
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    taint_rules: tuple[DeviceTaintRule, ...] = ()
    quotas: tuple[Quota, ...] = ()
    registered: Mapping[str, frozenset[str]] = field(default_factory=dict)
    behaviour: Behaviour = CURRENT
    unread: tuple[Unread, ...] = ()
    live: bool = False
    """Whether it is a cluster, in which what is missing is missing; of files one may have left something out."""

    @cached_property
    def catalog(self) -> Catalog:
        return Catalog(self.slices, self.behaviour)

    @cached_property
    def usage(self) -> Usage:
        return Usage.of(one.status.allocation for one in self.claims.values() if one.status.allocation is not None)

    @cached_property
    def snapshot(self) -> Snapshot:
        return Snapshot(self.catalog, self.classes, self.usage, self.taint_rules)

    @cached_property
    def pods_by_node(self) -> Mapping[str, tuple[Pod, ...]]:
        """Pods that run or are about to."""
        found: dict[str, list[Pod]] = defaultdict(list)
        for pod in self.pods.values():
            if pod.node is not None and not pod.is_done:
                found[pod.node].append(pod)
        return {node: tuple(pods) for node, pods in found.items()}

    def with_claim(self, claim: ResourceClaim) -> "World":
        """With this version of the claim."""
        return self._keeping_catalog(claims={**self.claims, claim_key(claim): claim})

    def with_pod(self, pod: Pod) -> "World":
        """With this version of the pod."""
        return self._keeping_catalog(pods={**self.pods, pod.key: pod})

    def without_allocations(self, keys: Iterable[Key]) -> "World":
        """As if these claims held nothing."""
        freed = {key: released(self.claims[key]) for key in keys if key in self.claims}
        return self._keeping_catalog(claims={**self.claims, **freed})

    def _keeping_catalog(self, **changes: Any) -> "World":
        changed = replace(self, **changes)
        # Same slices, so what was found out about pools and selectors holds.
        changed.__dict__["catalog"] = self.catalog
        return changed


def released(claim: ResourceClaim) -> ResourceClaim:
    """The claim without its allocation."""
    status = claim.status.model_copy(update={"allocation": None, "reserved_for": []})
    return claim.model_copy(update={"status": status})


def claim_key(claim: ResourceClaim) -> Key:
    return claim.metadata.namespace or DEFAULT_NAMESPACE, claim.metadata.name


def key_of(obj: JsonObject) -> Key:
    metadata = obj["metadata"]
    return str(metadata.get("namespace") or DEFAULT_NAMESPACE), str(metadata.get("name") or "")


# -- what pods ask for


@dataclass(frozen=True, slots=True)
class PodClaim:
    """What stands behind one entry of a pod. `claim` None is one that cannot be had now, for the reason in `missing`.

    `generated` is true for a claim that would be made from `template` and does not exist yet.
    """

    entry: str
    claim: ResourceClaim | None
    missing: str | None = None
    template: str | None = None
    generated: bool = False


def claims_of(world: World, pod: Pod) -> tuple[PodClaim, ...]:
    """Of the pod's entries, in their order. Entries that need no claim are left out."""
    made = generated_claims(pod.obj)
    found: list[PodClaim] = []
    for entry in claim_entries(pod.obj):
        if entry.claim is not None:
            found.append(_named(world, pod, entry.name, entry.claim, None))
        elif entry.name in made:
            name = made[entry.name]
            if name is not None:
                found.append(_named(world, pod, entry.name, name, entry.template))
        elif entry.template is not None:
            found.append(_generated(world, pod, entry.name, entry.template))
    return tuple(found)


def _named(world: World, pod: Pod, entry: str, name: str, template: str | None) -> PodClaim:
    claim = world.claims.get((pod.namespace, name))
    missing = f"there is no ResourceClaim {pod.namespace}/{name}" if claim is None else None
    return PodClaim(entry, claim, missing, template)


def _generated(world: World, pod: Pod, entry: str, template: str) -> PodClaim:
    known = world.templates.get((pod.namespace, template))
    if known is None:
        return PodClaim(entry, None, f"there is no ResourceClaimTemplate {pod.namespace}/{template}", template)
    metadata = {"name": f"{pod.name}-{entry}", "namespace": pod.namespace, "uid": f"{pod.uid or pod.name}-{entry}"}
    claim = ResourceClaim.model_validate({"metadata": metadata, "spec": known.spec.spec})
    return PodClaim(entry, claim, None, template, generated=True)


# -- from objects


@dataclass(frozen=True, slots=True)
class Loaded:
    """A world and what was wrong with single objects, which are left out of it."""

    world: World
    problems: tuple[InvalidInput, ...]


def world_of(
    objects: Iterable[JsonObject],
    *,
    behaviour: Behaviour = CURRENT,
    unread: Sequence[Unread] = (),
    live: bool = False,
    about: Mapping[int, str] | None = None,
) -> Loaded:
    """Typed, and sorted by kind. Kinds that nothing here looks at are passed over.

    `about` names objects in errors (`file.yaml:12`), by `id()`. Where nodes are not known, those that slices name are
    taken.
    """
    builder = _Builder(about or {}, trusted=live)
    for obj in objects:
        builder.add(obj)
    nodes = builder.nodes
    if not nodes and (not live or any(one.kind == "Node" for one in unread)):
        nodes = {node.name: node for node in _nodes_of(builder.slices)}
    world = World(
        claims=builder.claims,
        templates=builder.templates,
        classes=builder.classes,
        slices=tuple(builder.slices),
        nodes=dict(sorted(nodes.items())),
        pods=builder.pods,
        namespaces=builder.namespaces,
        taint_rules=tuple(builder.taint_rules),
        quotas=tuple(builder.quotas),
        registered=builder.registered,
        behaviour=behaviour,
        unread=tuple(unread),
        live=live,
    )
    return Loaded(world, tuple(builder.problems))


def _nodes_of(slices: Iterable[PublishedSlice]) -> Iterator[NodeView]:
    """Nodes that nobody described, from the slices that are for them."""
    names: set[str] = set()
    everywhere = False
    for one in slices:
        for selection in (one.spec, *(one.spec.devices or ())):
            if selection.node_name is not None:
                names.add(selection.node_name)
            everywhere = everywhere or bool(selection.all_nodes)
    if names:
        yield from map(NodeView, sorted(names))
    elif everywhere:
        yield NodeView(ANY_NODE)


type _Amounts = dict[str, str | int | float] | None


class _Named(Model):
    name: str


class _Metadata(Model):
    name: str
    namespace: str | None = None
    uid: str | None = None
    labels: dict[str, str] | None = None


class _Resources(Model):
    requests: _Amounts = None
    limits: _Amounts = None


class _Container(Model):
    name: str
    resources: _Resources | None = None
    restart_policy: str | None = None


class _Entry(Model):
    name: str
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class _Requirement(Model):
    key: str
    operator: str
    values: list[str] | None = None


class _Term(Model):
    match_expressions: list[_Requirement] | None = None
    match_fields: list[_Requirement] | None = None


class _NodeSelector(Model):
    node_selector_terms: list[_Term] | None = None


class _NodeAffinity(Model):
    required_during_scheduling_ignored_during_execution: _NodeSelector | None = None


class _Affinity(Model):
    node_affinity: _NodeAffinity | None = None


class _PodSpec(Model):
    containers: list[_Container]
    init_containers: list[_Container] | None = None
    resource_claims: list[_Entry] | None = None
    node_name: str | None = None
    node_selector: dict[str, str] | None = None
    affinity: _Affinity | None = None
    tolerations: list[Toleration] | None = None
    scheduling_gates: list[_Named] | None = None
    overhead: _Amounts = None


class _ClaimStatus(Model):
    name: str
    resource_claim_name: str | None = None


class _Condition(Model):
    type: str | None = None
    status: str | None = None
    message: str | None = None


class _PodStatus(Model):
    phase: str | None = None
    conditions: list[_Condition] | None = None
    resource_claim_statuses: list[_ClaimStatus] | None = None


class _PodShape(Model):
    """What pods must look like to be asked about; they travel as they are."""

    metadata: _Metadata
    spec: _PodSpec
    status: _PodStatus | None = None


class _NodeSpec(Model):
    taints: list[Taint] | None = None
    unschedulable: bool | None = None


class _NodeStatus(Model):
    allocatable: _Amounts = None


class _NodeShape(Model):
    metadata: _Metadata
    spec: _NodeSpec | None = None
    status: _NodeStatus | None = None


class _Builder:
    """Objects by kind, while they come in."""

    def __init__(self, about: Mapping[int, str], *, trusted: bool) -> None:
        """`trusted` are objects that an API server has validated."""
        self._about = about
        self._trusted = trusted
        self.claims: dict[Key, ResourceClaim] = {}
        self.templates: dict[Key, ResourceClaimTemplate] = {}
        self.classes: dict[str, DeviceClass] = {}
        self.slices: list[PublishedSlice] = []
        self.nodes: dict[str, NodeView] = {}
        self.pods: dict[Key, Pod] = {}
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self.taint_rules: list[DeviceTaintRule] = []
        self.quotas: list[Quota] = []
        self.registered: dict[str, frozenset[str]] = {}
        self.problems: list[InvalidInput] = []

    def add(self, obj: JsonObject) -> None:
        kind = str(obj.get("kind"))
        adder = getattr(self, f"_add_{kind.lower()}", None)
        if adder is not None:
            self._guarded(adder, obj, kind)
        else:
            for pod in pods_of_workload(obj):
                self._guarded(self._add_pod, pod, kind)

    def _guarded(self, adder: Any, obj: JsonObject, kind: str) -> None:
        metadata = obj.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        about = self._about.get(id(obj)) or f"{kind} {name or 'without a name'}"
        try:
            adder(obj)
        except InvalidInput as error:
            self.problems.append(InvalidInput(str(error), about=about, problems=error.problems))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            self.problems.append(InvalidInput(f"not a valid {kind}: {_what(error)}", about=about))

    def _add_resourceclaim(self, obj: JsonObject) -> None:
        claim = ResourceClaim.of(obj, about="ResourceClaim")
        if claim.metadata.namespace is None:
            metadata = claim.metadata.model_copy(update={"namespace": DEFAULT_NAMESPACE})
            claim = claim.model_copy(update={"metadata": metadata})
        _check_requests(claim.spec)
        self.claims[claim_key(claim)] = claim

    def _add_resourceclaimtemplate(self, obj: JsonObject) -> None:
        template = ResourceClaimTemplate.of(obj, about="ResourceClaimTemplate")
        _check_requests(template.spec.spec)
        self.templates[key_of(obj)] = template

    def _add_deviceclass(self, obj: JsonObject) -> None:
        self.classes[obj["metadata"]["name"]] = DeviceClass.of(obj, about="DeviceClass")

    def _add_resourceslice(self, obj: JsonObject) -> None:
        published = PublishedSlice(ResourceSlice.of(obj, about="ResourceSlice"))
        if not self._trusted:
            _check_amounts(published)
        self.slices.append(published)

    def _add_devicetaintrule(self, obj: JsonObject) -> None:
        self.taint_rules.append(DeviceTaintRule.of(obj, about="DeviceTaintRule"))

    def _add_node(self, obj: JsonObject) -> None:
        _NodeShape.of(obj, about="Node")
        node = NodeView.of(obj)
        for amount in node.allocatable.values():
            Quantity.parse(str(amount))
        self.nodes[node.name] = node

    def _add_pod(self, obj: JsonObject) -> None:
        _PodShape.of(obj, about="Pod")
        # Asked once here, so that whatever cannot be read is found now.
        claim_entries(obj), generated_claims(obj), amounts_of(obj), extended_resources(obj)
        self.pods[key_of(obj)] = Pod(obj)

    def _add_namespace(self, obj: JsonObject) -> None:
        self.namespaces[obj["metadata"]["name"]] = obj["metadata"].get("labels") or {}

    def _add_resourcequota(self, obj: JsonObject) -> None:
        spec, status = obj.get("spec") or {}, obj.get("status") or {}
        self.quotas.append(Quota(*key_of(obj), status.get("hard") or spec.get("hard") or {}, status.get("used") or {}))

    def _add_nodeinventory(self, obj: JsonObject) -> None:
        spec = obj["spec"]
        self.registered[spec["nodeName"]] = frozenset(one["driver"] for one in spec.get("registrations") or ())


def _check_amounts(published: PublishedSlice) -> None:
    """Raises ValueError for a quantity or version that is none."""
    for one in published.spec.devices or ():
        CelDevice(published.spec.driver, one)
        for consumed in one.consumes_counters or ():
            for capacity in consumed.counters.values():
                Quantity.parse(capacity.value)
    for counters in published.spec.shared_counters or ():
        for capacity in counters.counters.values():
            Quantity.parse(capacity.value)


def _check_requests(spec: ResourceClaimSpec) -> None:
    """Raises ValueError for an amount that is no quantity."""
    for request in spec.devices.requests:
        for one in (request.exactly, *(request.first_available or ())):
            for amount in one.capacity.requests.values() if one is not None and one.capacity is not None else ():
                Quantity.parse(amount)


def _what(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def pods_of_workload(obj: JsonObject, *, replicas: int = 1) -> Iterator[JsonObject]:
    """The pods that a Deployment, Job and the like would make, at most `replicas`, called `<name>-0` and so on."""
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        return
    if obj.get("kind") == "CronJob":
        spec = (spec.get("jobTemplate") or {}).get("spec") or {}
    template = spec.get("template")
    if (
        not isinstance(template, dict)
        or not isinstance(template.get("spec"), dict)
        or "containers" not in template["spec"]
    ):
        return
    number = next((spec[key] for key in ("replicas", "parallelism") if isinstance(spec.get(key), int)), 1)
    namespace, name = key_of(obj)
    for index in range(min(number, replicas)):
        metadata = {**(template.get("metadata") or {}), "name": f"{name}-{index}", "namespace": namespace}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
