"""Checks of permissions: what the user may not read, and what our service accounts may not do. Pure."""

from dataclasses import dataclass

from dra_driver.doctor.cluster import ClusterView, permission
from dra_driver.doctor.findings import Judgment, wrong
from dra_driver.features import Feature

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
OF_THE_PLUGIN: tuple[Need, ...] = (
    Need("get", "resource.k8s.io", "resourceclaims", "no claim is prepared"),
    Need("list", "resource.k8s.io", "resourceclaims", "deleted claims stay prepared"),
    Need("get", "", "nodes", "inventories have no owner"),
    Need("create", "dra.gpu", "nodeinventories", "no GPU is reported"),
    Need("update", "dra.gpu", "nodeinventories", "changes and heartbeats are not reported"),
    *(
        Need(verb, "resource.nvidia.com", "computedomains", "no claim of a ComputeDomain is prepared", gate=_DOMAINS)
        for verb in ("list", "watch")
    ),
)
OF_THE_CONTROLLER: tuple[Need, ...] = (
    Need("list", "dra.gpu", "nodeinventories", "nothing is published"),
    Need("watch", "dra.gpu", "nodeinventories", "nothing is published"),
    Need("list", "resource.k8s.io", "resourceslices", "nothing is published"),
    Need("watch", "resource.k8s.io", "resourceslices", "nothing is published"),
    Need("create", "resource.k8s.io", "resourceslices", "nothing is published"),
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
            yield wrong(
                "lacking",
                permission=access.permission,
                loss=losses.get(access.permission, "the checks see less"),
                verb=access.verb,
                resource=f"{access.resource}{f'.{access.group}' if access.group else ''}",
            )
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
