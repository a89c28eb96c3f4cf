"""What was observed of a cluster at one time, and what follows from it directly. Pure; checks judge it.

`ClusterFacts` are the answers that are not objects. A bundle has them as JSON beside the objects, so that its reader
sees what its maker saw.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError

from dra_driver.allocation.nodes import NodeView, daemon_unfit_for
from dra_driver.api import core
from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.gpupolicy import SeenPolicy
from dra_driver.api.inventory import NodeInventory, Registration
from dra_driver.api.meta import CoreModel, JsonObject, ObjectMeta
from dra_driver.api.resource import DeviceClass, ResourceClaim
from dra_driver.doctor.findings import SeenKind, Unread
from dra_driver.errors import InvalidInput
from dra_driver.kubernetes import minor_of
from dra_driver.names import GPU_DRIVER
from dra_driver.slices.diff import MANAGED_BY, MANAGER
from dra_driver.slices.features import ServerFeatures

POLICY_FILE = "policy.yaml"
NOTHING: SeenKind[Any] = SeenKind()

SIMULATED_RUNTIME = "simulated"
"""What the nodes of `dractl cluster` have in place of containerd; it reads CDI files as real ones do."""

GPU_LABELS = frozenset(
    (
        "nvidia.com/gpu.present",
        "feature.node.kubernetes.io/pci-10de.present",
        "feature.node.kubernetes.io/pci-0300_10de.present",
        "feature.node.kubernetes.io/pci-0302_10de.present",
        "cloud.google.com/gke-accelerator",
        "k8s.amazonaws.com/accelerator",
        "karpenter.k8s.aws/instance-gpu-manufacturer",
        "eks.amazonaws.com/instance-gpu-manufacturer",
        "kubernetes.azure.com/accelerator",
    )
)
"""Labels of the chart's `kubeletPlugin.affinity` that only nodes with GPUs have."""


def gpu_label(node: core.Node) -> str | None:
    """The label that says that the node has GPUs; None if it has no such label."""
    labels = node.metadata.labels
    return next((name for name in sorted(GPU_LABELS & labels.keys()) if labels[name] not in ("false", "")), None)


# -- answers that are not objects


@dataclass(frozen=True, slots=True)
class ServerSeen:
    """`groups` are the served versions by API group, empty if they are not known."""

    version: str
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def serves(self, group: str, version: str) -> bool:
        """Also true if that is not known."""
        return not group or not self.groups or version in self.groups.get(group, ())

    @property
    def minor(self) -> int:
        """36 of `v1.36.2-gke.1`; 0 if the version has another form."""
        return minor_of(self.version)


@dataclass(frozen=True, slots=True)
class AccessCheck:
    """Whether an account may do something. `who` is a service account as RBAC names it, None for the user. `name` is
    that of an object, None for all objects."""

    verb: str
    group: str
    resource: str
    allowed: bool
    who: str | None = None
    namespace: str | None = None
    name: str | None = None

    @property
    def permission(self) -> str:
        return permission(self.verb, self.group, self.resource)


def permission(verb: str, group: str, resource: str) -> str:
    """`list resourceslices.resource.k8s.io`"""
    return f"{verb} {resource}{f'.{group}' if group else ''}"


@dataclass(frozen=True, slots=True)
class WebhookAnswer:
    """The API server's answer to the creation, in a dry run, of a claim that our webhook must refuse."""

    refused: bool
    message: str


@dataclass(frozen=True, slots=True)
class KubeletSeen:
    """The feature gates in the configuration of a node's kubelet; others have their defaults."""

    node: str
    gates: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class ReleaseSeen:
    """The release that a program of this driver reports; empty if it reports none."""

    program: str
    release: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """`release` is that of the dractl that read the cluster; `driver_given` is the name that its user gave.
    `unread_kinds` are by the fields of `ClusterView`."""

    time: datetime
    release: str
    server: ServerSeen
    driver_given: str | None = None
    features: SeenKind[ServerFeatures] = NOTHING
    """One item, if the probe was answered."""
    gates: SeenKind[tuple[str, bool]] = NOTHING
    """Feature gates of the API server, from its metrics."""
    own_access: SeenKind[AccessCheck] = NOTHING
    account_access: SeenKind[AccessCheck] = NOTHING
    webhook_answer: SeenKind[WebhookAnswer] = NOTHING
    kubelets: SeenKind[KubeletSeen] = NOTHING
    """Of nodes with GPUs."""
    releases: SeenKind[ReleaseSeen] = NOTHING
    """Of programs whose image has no release tag."""
    unread_kinds: dict[str, Unread] = field(default_factory=dict)

    def all_unread(self) -> Iterator[Unread]:
        """Everything without which checks are incomplete."""
        yield from self.unread_kinds.values()
        for item in (self.features, self.gates, self.own_access, self.account_access, self.webhook_answer):
            if item.unread is not None:
                yield item.unread

    def to_wire(self) -> JsonObject:
        wire: JsonObject = TypeAdapter(ClusterFacts).dump_python(self, mode="json")
        return wire


def facts_from(wire: JsonObject) -> ClusterFacts:
    """Raises InvalidInput: not the facts of a bundle, or those of another release."""
    try:
        return TypeAdapter(ClusterFacts).validate_python(wire)
    except ValidationError as error:
        raise InvalidInput(f"cannot be understood: {error.errors()[0]['msg']}", about="cluster/facts.json") from error


# -- objects of which little is needed


@dataclass(frozen=True, slots=True)
class SliceSeen:
    """A ResourceSlice with the names of its devices only, because a large cluster has 100,000 devices."""

    name: str
    driver: str
    pool: str
    generation: int
    count: int
    node_name: str | None
    ours: bool
    """Whether it has the label of this driver's publisher."""
    devices: tuple[str, ...]
    has_counter_sets: bool = False

    @classmethod
    def of(cls, obj: JsonObject) -> "SliceSeen":
        spec, metadata = obj.get("spec") or {}, obj["metadata"]
        pool = spec.get("pool") or {}
        return cls(
            metadata["name"],
            str(spec.get("driver", "")),
            str(pool.get("name", "")),
            int(pool.get("generation", 0)),
            int(pool.get("resourceSliceCount", 0)),
            spec.get("nodeName"),
            (metadata.get("labels") or {}).get(MANAGED_BY) == MANAGER,
            tuple(str(item.get("name")) for item in spec.get("devices") or ()),
            bool(spec.get("sharedCounters")),
        )


class OperatorResource(CoreModel):
    """A ClusterPolicy or GPUCluster of NVIDIA's GPU Operator."""

    kind: str
    metadata: ObjectMeta
    spec: JsonObject = Field(default_factory=dict)

    def enabled(self, part: str) -> bool:
        """Whether it runs this part, which is the default."""
        value = (self.spec.get(part) or {}).get("enabled")
        return value is None or bool(value)


@dataclass(frozen=True, kw_only=True)
class ClusterView(ClusterFacts):
    """The facts, and the objects of each kind. What follows from all objects of a kind is found once: checks ask for it
    with each of thousands of objects."""

    nodes: SeenKind[core.Node] = NOTHING
    inventories: SeenKind[NodeInventory] = NOTHING
    gpu_policies: SeenKind[SeenPolicy] = NOTHING
    slices: SeenKind[SliceSeen] = NOTHING
    claims: SeenKind[ResourceClaim] = NOTHING
    domains: SeenKind[ComputeDomain] = NOTHING
    classes: SeenKind[DeviceClass] = NOTHING
    definitions: SeenKind[core.CustomResource] = NOTHING
    pods: SeenKind[core.Pod] = NOTHING
    """Those of this driver, and those that have claims."""
    daemon_sets: SeenKind[core.AppsWorkload] = NOTHING
    """Those of this driver, and those of software that may conflict with it."""
    deployments: SeenKind[core.AppsWorkload] = NOTHING
    """Those of this driver."""
    namespaces: SeenKind[core.Namespace] = NOTHING
    """Those that this driver runs in."""
    config_maps: SeenKind[core.ConfigMap] = NOTHING
    """Those with our policy."""
    leases: SeenKind[core.Lease] = NOTHING
    """Those of our controllers."""
    webhooks: SeenKind[core.WebhookConfiguration] = NOTHING
    admission_policies: SeenKind[core.AdmissionPolicy] = NOTHING
    policy_bindings: SeenKind[core.PolicyBinding] = NOTHING
    operators: SeenKind[OperatorResource] = NOTHING
    events: SeenKind[core.Event] = NOTHING
    """Those that this driver wrote."""

    def unread(self, field: str) -> Unread | None:
        seen: SeenKind[object] = getattr(self, field)
        return seen.unread

    # -- this driver's parts

    @cached_property
    def plugins(self) -> tuple[core.AppsWorkload, ...]:
        """The DaemonSets of the node plugin: usually one, none if plugins run without a DaemonSet."""
        return tuple(daemon_set for daemon_set in self.daemon_sets.items if daemon_set.program == core.KUBELET_PLUGIN)

    @cached_property
    def controllers(self) -> tuple[core.AppsWorkload, ...]:
        return tuple(deployment for deployment in self.deployments.items if deployment.program == core.CONTROLLER)

    @cached_property
    def program_pods(self) -> tuple[core.Pod, ...]:
        """Those that run a program of this driver, of all pods."""
        return tuple(pod for pod in self.pods.items if pod.program is not None)

    @property
    def namespace(self) -> str:
        """For commands in fixes: where this driver runs; a placeholder if nothing of it is seen."""
        places = [workload.metadata.namespace for workload in (*self.controllers, *self.plugins)]
        places += [pod.metadata.namespace for pod in self.program_pods]
        return next((place for place in places if place), "NAMESPACE")

    @cached_property
    def driver(self) -> str:
        return self.driver_given or self.plugin_setting("--driver-name") or GPU_DRIVER

    def plugin_setting(self, flag: str) -> str | None:
        values = [plugin.ours.setting(flag) for plugin in self.plugins if plugin.ours is not None]
        return next((value for value in values if value is not None), None)

    def our_pods(self, program: str) -> tuple[core.Pod, ...]:
        return tuple(pod for pod in self.program_pods if pod.program == program)

    def registration(self, inventory: NodeInventory) -> Registration | None:
        return next((item for item in inventory.spec.registrations if item.driver == self.driver), None)

    # -- nodes

    @cached_property
    def nodes_by_name(self) -> Mapping[str, core.Node]:
        return {node.name: node for node in self.nodes.items}

    @cached_property
    def gpu_nodes(self) -> tuple[core.Node, ...]:
        """Nodes that have a plugin or should: selected by our DaemonSet, or with an inventory. If neither exists, nodes
        with a GPU label."""
        if not self.plugins and not self.inventories.items:
            return tuple(node for node in self.nodes.items if gpu_label(node) is not None)
        reported = {inventory.spec.node_name for inventory in self.inventories.items}
        return tuple(node for node in self.nodes.items if node.name in reported or self.selected_by(node))

    def selected_by(self, node: core.Node) -> core.AppsWorkload | None:
        """The DaemonSet that has a pod on the node or should have one. Cordoned nodes keep theirs."""
        view = NodeView.of(node)
        return next((plugin for plugin in self.plugins if daemon_unfit_for(plugin.pod, view) is None), None)

    # -- the policy

    def policy_maps(self) -> list[tuple[str, str]]:
        """Namespace and name of the ConfigMaps that our programs mount for their `--policy`."""
        return sorted(
            {
                (workload.metadata.namespace or "default", volume.config_map.name)
                for workload in (*self.plugins, *self.controllers)
                if workload.ours is not None and workload.ours.setting("--policy") is not None
                for volume in workload.pod.volumes
                if volume.config_map is not None and volume.config_map.name
            }
        )

    def policy_text(self, namespace: str, name: str) -> str | None:
        """None if there is no such ConfigMap, or it has no policy."""
        for config_map in self.config_maps.items:
            if (config_map.metadata.namespace, config_map.metadata.name) == (namespace, name):
                return config_map.data.get(POLICY_FILE)
        return None
