"""Checks of the API server: its version, what it serves, which fields of our slices it keeps; and of permissions: what
the user may not read, and what our service accounts may not do. Pure.
"""

from dataclasses import dataclass

from dra_driver.api.meta import JsonObject
from dra_driver.api.untyped import lacking
from dra_driver.doctor.cluster import ClusterView, permission
from dra_driver.doctor.findings import Judgment, Unread, wrong
from dra_driver.features import Feature
from dra_driver.kubernetes import CURRENT, OLDEST
from dra_driver.phrases import and_more


def server_version(cluster: ClusterView) -> Judgment:
    version, minor = cluster.server.version, cluster.server.minor
    if minor < OLDEST:
        yield wrong("too-old", version=version)
    elif minor > CURRENT:
        yield wrong("too-new", version=version, release=cluster.release)
    return f"Kubernetes {version}"


def dra_api(cluster: ClusterView) -> Judgment:
    versions = cluster.server.groups.get("resource.k8s.io", ())
    if "v1" not in versions:
        yield wrong("not-served", versions=", ".join(versions) or "no version of the group")
    return f"the API server serves resource.k8s.io {', '.join(versions)}"


_DEFINITION_LOSSES = {"nodeinventories.dra.gpu": "nodes cannot report their GPUs"}


def definitions(cluster: ClusterView, shipped: tuple[JsonObject, ...]) -> Judgment:
    """`shipped` are the definitions of this release."""
    existing = {definition.metadata.name: definition for definition in cluster.definitions.items}
    names = [definition["metadata"]["name"] for definition in shipped]
    for name, wanted in zip(names, shipped, strict=True):
        definition = existing.get(name)
        about = f"CustomResourceDefinition {name}"
        if definition is None:
            yield wrong("missing", name=name, loss=_DEFINITION_LOSSES.get(name, "its objects cannot be used"))
        elif (reason := definition.why_not_established) is not None:
            yield wrong("not-established", about, reason=reason, name=name)
        elif paths := sorted(lacking(definition.spec, wanted["spec"])):
            yield wrong("differs", about, release=cluster.release, paths=and_more(paths, 3))
    return f"{', '.join(names)} match this release"


_FIELDS = {
    "DRAPartitionableDevices": (
        "partitionable",
        "counters",
        "MIG devices are not created on demand; only whole GPUs are published",
    ),
    "DRAConsumableCapacity": (
        "consumable",
        "the capacity that several claims may share",
        "each share is published as a separate device, and limited by number only",
    ),
    "DRADeviceTaints": ("taints", "taints", "an unhealthy GPU is removed from the slices instead of tainted"),
    "DRADeviceBindingConditions": (
        "binding",
        "binding conditions",
        "a pod stays on a node that cannot make its MIG device or start its IMEX daemon",
    ),
}
"""By feature gate: the field of `ServerFeatures`, what it means, and what is lost without it."""
_OTHER_LOSSES = {
    "DRAExtendedResource": "pods cannot request nvidia.com/gpu and get it through DRA",
    "DRAAdminAccess": "monitoring pods cannot access GPUs that other pods use (adminAccess)",
    "DRAResourceClaimDeviceStatus": "status.devices of claims stays empty",
    "ResourceHealthStatus": "pod status does not show GPU health",
}
LOSSES = {gate: loss for gate, (_, _, loss) in _FIELDS.items()} | _OTHER_LOSSES
"""What this driver cannot do if a gate is off."""


def features(cluster: ClusterView) -> Judgment:
    gates = dict(cluster.gates.items)
    server = cluster.features.items[0] if cluster.features.items else None
    if server is None and not any(gate in gates for gate in _FIELDS):
        unread = [item for item in (cluster.features.unread, cluster.gates.unread) if item is not None]
        yield from unread or [Unread("the slice fields that the API server keeps", "it did not report them")]
        return ""
    for gate, (name, what, loss) in _FIELDS.items():
        if server is not None and not getattr(server, name):
            yield wrong("fields-dropped", what=what, gate=gate, loss=loss)
        elif server is None and gates.get(gate) is False:
            yield wrong("gate-off", gate=gate, loss=loss)
    for gate, loss in _OTHER_LOSSES.items():
        if gates.get(gate) is False:
            yield wrong("gate-off", gate=gate, loss=loss)
    return f"the API server keeps {server}" if server is not None else "all required feature gates are on"


_DOMAINS = Feature.COMPUTE_DOMAINS


@dataclass(frozen=True, slots=True)
class Need:
    """A permission, and what does not work without it. `lease`: only for the controller's own Lease."""

    verb: str
    group: str
    resource: str
    loss: str
    lease: bool = False
    gate: Feature | None = None
    """Only needed if this feature gate is on."""

    @property
    def permission(self) -> str:
        return permission(self.verb, self.group, self.resource)


OF_WHO_ASKS: tuple[Need, ...] = (
    Need("list", "", "nodes", "most checks have no data"),
    Need("list", "", "pods", "the driver's pods and the pods that use claims are not visible"),
    Need("list", "apps", "daemonsets", "the plugin's DaemonSet and conflicting software are not visible"),
    Need("list", "apps", "deployments", "the controller is not visible"),
    Need("list", "resource.k8s.io", "resourceslices", "published devices are not visible"),
    Need("list", "resource.k8s.io", "resourceclaims", "claims are not visible"),
    Need("list", "resource.k8s.io", "deviceclasses", "DeviceClasses are not compared"),
    Need("list", "dra.gpu", "nodeinventories", "node reports are not visible"),
    Need("list", "dra.gpu", "gpupolicies", "what became of policies is not visible"),
    Need("list", "resource.nvidia.com", "computedomains", "ComputeDomains are not visible"),
    Need(
        "create",
        "resource.k8s.io",
        "resourceslices",
        "the dry run that shows which slice fields the API server keeps is not possible",
    ),
    Need(
        "create",
        "authorization.k8s.io",
        "subjectaccessreviews",
        "the permissions of this driver's service accounts are unknown",
    ),
)


def _needs(verbs: str, group: str, resource: str, loss: str, gate: Feature | None = None) -> list[Need]:
    return [Need(verb, group, resource, loss, gate=gate) for verb in verbs.split()]


OF_THE_PLUGIN: tuple[Need, ...] = (
    Need("get", "resource.k8s.io", "resourceclaims", "no claim is prepared"),
    Need("list", "resource.k8s.io", "resourceclaims", "deleted claims stay prepared"),
    Need("get", "", "nodes", "inventories have no owner"),
    Need("create", "dra.gpu", "nodeinventories", "no GPU is reported"),
    Need("update", "dra.gpu", "nodeinventories", "changes and heartbeats are not reported"),
    *_needs("list watch", "resource.nvidia.com", "computedomains", "no claim of a ComputeDomain is prepared", _DOMAINS),
)
OF_THE_CONTROLLER: tuple[Need, ...] = (
    *_needs("list watch", "dra.gpu", "nodeinventories", "nothing is published"),
    *_needs("list watch create", "resource.k8s.io", "resourceslices", "nothing is published"),
    Need("patch", "resource.k8s.io", "resourceslices", "changes are not published"),
    Need("delete", "resource.k8s.io", "resourceslices", "slices of deleted nodes remain"),
    Need("update", "coordination.k8s.io", "leases", "no replica can become leader", lease=True),
    Need("list", "resource.nvidia.com", "computedomains", "ComputeDomains are not managed", gate=_DOMAINS),
    Need("patch", "resource.nvidia.com", "computedomains", "ComputeDomains cannot be deleted", gate=_DOMAINS),
    Need("patch", "", "nodes", "no node joins a ComputeDomain", gate=_DOMAINS),
    Need("list", "resource.k8s.io", "resourceclaims", "no node joins a ComputeDomain", gate=_DOMAINS),
    Need("create", "resource.k8s.io", "resourceclaimtemplates", "pods of ComputeDomains get no claims", gate=_DOMAINS),
)
"""A test compares these with the roles of the chart."""


def your_permissions(cluster: ClusterView) -> Judgment:
    losses = {need.permission: need.loss for need in OF_WHO_ASKS}
    for access in cluster.own_access.items:
        if not access.allowed:
            verb, _, resource = access.permission.partition(" ")
            loss = losses.get(access.permission, "the checks see less")
            yield wrong("lacking", permission=access.permission, loss=loss, verb=verb, resource=resource)
    return "you may read everything that the checks need"


def account_permissions(cluster: ClusterView) -> Judgment:
    losses = {need.permission: need.loss for need in (*OF_THE_PLUGIN, *OF_THE_CONTROLLER)}
    for access in cluster.account_access.items:
        if not access.allowed:
            about = f"ServiceAccount {(access.who or '').removeprefix('system:serviceaccount:')}"
            loss = losses.get(access.permission, "something does not work")
            yield wrong("account", about, permission=access.permission, loss=loss)
    accounts = len({access.who for access in cluster.account_access.items})
    if not accounts:
        return "no service account of this driver found, nothing to check"
    return f"{accounts} service account(s) of this driver have all permissions that they need"
