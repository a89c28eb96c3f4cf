"""What was observed of a cluster at one time, and what follows from it at once. Pure; checks judge it.

A kind that could not be read is `SeenKind` with the reason, so that each check says for itself that it does not know.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dra_driver.allocation.nodes import NodeView, unfit_for
from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.inventory import NodeInventory, Registration
from dra_driver.api.policy import PublishingPolicy, decode_policy
from dra_driver.api.resource import DeviceClass, ResourceClaim
from dra_driver.doctor.findings import SeenKind, Unread
from dra_driver.doctor.objects import (
    CONTROLLER,
    KUBELET_PLUGIN,
    AdmissionPolicy,
    ConfigMap,
    CustomResource,
    EventSeen,
    Lease,
    NamespaceSeen,
    NodeObject,
    OperatorResource,
    PodObject,
    PodSpec,
    PolicyBinding,
    SliceSeen,
    WebhookConfiguration,
    WorkloadObject,
)
from dra_driver.errors import InvalidInput
from dra_driver.kubernetes import minor_of
from dra_driver.names import GPU_DRIVER
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
"""By which nodes with GPUs are known: those of the chart's `kubeletPlugin.affinity` that say nothing but that."""


def gpu_label(node: NodeObject) -> str | None:
    """The label that tells that it has GPUs; None: none does."""
    labels = node.metadata.labels
    return next((name for name in sorted(GPU_LABELS & labels.keys()) if labels[name] not in ("false", "")), None)


@dataclass(frozen=True, slots=True)
class ServerSeen:
    """`groups` are the served versions by API group, empty when they could not be asked for."""

    version: str
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def serves(self, group: str, version: str) -> bool:
        """True where that is not known."""
        return not group or not self.groups or version in self.groups.get(group, ())

    @property
    def minor(self) -> int:
        """36 of `v1.36.2-gke.1`; 0 when it says nothing like it."""
        return minor_of(self.version)


@dataclass(frozen=True, slots=True)
class AccessCheck:
    """Whether somebody may do something. `who` is a service account as RBAC names it; None: who asks."""

    verb: str
    group: str
    resource: str
    allowed: bool
    who: str | None = None
    namespace: str | None = None
    name: str | None = None
    """Of the object; None: of all."""

    @property
    def permission(self) -> str:
        return permission(self.verb, self.group, self.resource)


def permission(verb: str, group: str, resource: str) -> str:
    """`list resourceslices.resource.k8s.io`"""
    return f"{verb} {resource}{f'.{group}' if group else ''}"


@dataclass(frozen=True, slots=True)
class WebhookAnswer:
    """What the API server made of a claim that a webhook of ours must refuse, created in a dry run."""

    refused: bool
    message: str


@dataclass(frozen=True, slots=True)
class KubeletSeen:
    """The feature gates that the kubelet of a node was given; what it was not given is as by default."""

    node: str
    gates: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class ReleaseSeen:
    """The release that a program of ours says it is of; empty when it does not say."""

    program: str
    release: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """One look at a cluster. `release` is that of the dractl that looked; `driver_given` is what its user named."""

    time: datetime
    release: str
    server: ServerSeen
    driver_given: str | None = None
    features: SeenKind[ServerFeatures] = NOTHING
    """One, when the probe was answered."""
    gates: SeenKind[tuple[str, bool]] = NOTHING
    """Feature gates of the API server by its own metrics."""
    nodes: SeenKind[NodeObject] = NOTHING
    inventories: SeenKind[NodeInventory] = NOTHING
    slices: SeenKind[SliceSeen] = NOTHING
    claims: SeenKind[ResourceClaim] = NOTHING
    domains: SeenKind[ComputeDomain] = NOTHING
    classes: SeenKind[DeviceClass] = NOTHING
    definitions: SeenKind[CustomResource] = NOTHING
    pods: SeenKind[PodObject] = NOTHING
    """Ours, and those that have claims."""
    daemon_sets: SeenKind[WorkloadObject] = NOTHING
    """Ours, and those of software that may be in our way."""
    deployments: SeenKind[WorkloadObject] = NOTHING
    """Ours."""
    namespaces: SeenKind[NamespaceSeen] = NOTHING
    """Those that ours are in."""
    config_maps: SeenKind[ConfigMap] = NOTHING
    """Those with our policy."""
    leases: SeenKind[Lease] = NOTHING
    """Those of our controllers."""
    webhooks: SeenKind[WebhookConfiguration] = NOTHING
    admission_policies: SeenKind[AdmissionPolicy] = NOTHING
    policy_bindings: SeenKind[PolicyBinding] = NOTHING
    operators: SeenKind[OperatorResource] = NOTHING
    events: SeenKind[EventSeen] = NOTHING
    """Told by us."""
    own_access: SeenKind[AccessCheck] = NOTHING
    account_access: SeenKind[AccessCheck] = NOTHING
    webhook_answer: SeenKind[WebhookAnswer] = NOTHING
    kubelets: SeenKind[KubeletSeen] = NOTHING
    """Of nodes with GPUs."""
    releases: SeenKind[ReleaseSeen] = NOTHING
    """Of programs whose image does not tell."""

    def unread(self, field: str) -> Unread | None:
        seen: SeenKind[object] = getattr(self, field)
        return seen.unread

    # -- what is ours

    @property
    def plugins(self) -> tuple[WorkloadObject, ...]:
        """The DaemonSets of the node plugin; one of them as a rule, none where plugins run by other means."""
        return tuple(daemon_set for daemon_set in self.daemon_sets.items if daemon_set.program == KUBELET_PLUGIN)

    @property
    def controllers(self) -> tuple[WorkloadObject, ...]:
        return tuple(deployment for deployment in self.deployments.items if deployment.program == CONTROLLER)

    @property
    def namespace(self) -> str:
        """For commands of a fix: where ours run; a placeholder where nothing of them is seen."""
        places = [controller.metadata.namespace for controller in (*self.controllers, *self.plugins)]
        places += [pod.metadata.namespace for pod in self.pods.items if pod.program is not None]
        return next((place for place in places if place), "NAMESPACE")

    @property
    def driver(self) -> str:
        return self.driver_given or self.plugin_setting("--driver-name") or GPU_DRIVER

    def plugin_setting(self, flag: str) -> str | None:
        given = [plugin.ours.setting(flag) for plugin in self.plugins if plugin.ours is not None]
        return next((value for value in given if value is not None), None)

    def our_pods(self, program: str) -> tuple[PodObject, ...]:
        return tuple(pod for pod in self.pods.items if pod.program == program)

    def registration(self, inventory: NodeInventory) -> Registration | None:
        return next((item for item in inventory.spec.registrations if item.driver == self.driver), None)

    # -- nodes

    @property
    def node_names(self) -> frozenset[str]:
        return frozenset(node.name for node in self.nodes.items)

    @property
    def gpu_nodes(self) -> tuple[NodeObject, ...]:
        """Nodes that have a plugin or should: selected by a DaemonSet of ours, or with an inventory; before there is
        anything of these, those whose labels tell of GPUs."""
        if not self.plugins and not self.inventories.items:
            return tuple(node for node in self.nodes.items if gpu_label(node) is not None)
        reported = {inventory.spec.node_name for inventory in self.inventories.items}
        return tuple(node for node in self.nodes.items if node.name in reported or self.selected_by(node.view))

    def selected_by(self, node: NodeView) -> WorkloadObject | None:
        """The DaemonSet that has a pod on the node or should have one. Cordoned nodes keep theirs."""
        awake = NodeView(node.name, node.labels, node.taints, False, node.allocatable)
        return next(
            (plugin for plugin in self.plugins if unfit_for({"spec": plugin.spec.template.spec}, awake) is None), None
        )

    # -- the policy

    def policy_maps(self) -> Iterator[tuple[str, str]]:
        """Namespace and name of the ConfigMaps from which ours read their policy."""
        results = set()
        for workload in (*self.plugins, *self.controllers):
            for name in policy_volumes(workload.spec.template.pod):
                results.add((workload.metadata.namespace or "default", name))
        yield from sorted(results)

    def policy_text(self, namespace: str, name: str) -> str | None:
        """None when there is no such ConfigMap, or no policy in it."""
        for config_map in self.config_maps.items:
            if (config_map.metadata.namespace, config_map.metadata.name) == (namespace, name):
                return config_map.data.get(POLICY_FILE)
        return None

    @property
    def policy(self) -> PublishingPolicy | None:
        """What is published; None when that is not known. Without a ConfigMap of ours it is everything."""
        maps = list(self.policy_maps())
        if not maps:
            return PublishingPolicy.EVERYTHING if not self.plugins else None
        text = self.policy_text(*maps[0])
        try:
            return decode_policy(text, about="policy") if text is not None else None
        except InvalidInput:
            return None


def policy_volumes(pod: PodSpec) -> Iterator[str]:
    """Names of the ConfigMaps that hold a policy: those that a container of ours mounts by its `--policy`."""
    if pod.ours is None or pod.ours.setting("--policy") is None:
        return
    yield from (
        volume.config_map.name for volume in pod.volumes if volume.config_map is not None and volume.config_map.name
    )
