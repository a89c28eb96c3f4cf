"""Rights of all others: accounts without rights from the chart, the removal, and what no account of the driver may
do."""

from collections.abc import Iterator

from docs.from_code.rights.line import (
    BINDING,
    CLAIM_STATUS,
    CLAIMS,
    CLASSES,
    DAEMON_SETS,
    DOMAIN_LABEL,
    DOMAIN_STATUS,
    DOMAINS,
    FOREIGN_ENTRY,
    INVENTORIES,
    LEASES,
    NODE_AUTHORIZER,
    OURS,
    OWN_ENTRY,
    RBAC,
    SLICES,
    TEMPLATES,
    UNALLOCATED,
    WEBHOOKS,
    Account,
    Line,
)

# One line is one statement; the formatter would spread each over many lines.
# fmt: off


def others() -> Iterator[Line]:
    """Accounts without rights from the chart, and what its policies refuse them."""
    kubelet = Account.KUBELET
    yield Line(kubelet, "create", SLICES, "of this driver", by="slices", on="node-1")
    yield Line(kubelet, "delete", SLICES, "of its own node",
        "Kubernetes: the kubelet deletes slices of a driver that is gone", on="node-1")
    yield Line(kubelet, "delete", SLICES, "of another node", by=NODE_AUTHORIZER, on="node-2")
    yield Line(kubelet, "update patch", CLAIM_STATUS, "any", by=NODE_AUTHORIZER, on="default/here", changes=OWN_ENTRY)
    yield Line(kubelet, "get create update", INVENTORIES, "any", by=RBAC, on="node-1")
    admin = Account.ADMIN
    yield Line(admin, "create patch", SLICES, "of this driver", by="slices", on="node-1", changes=({"spec/devices": []},
        ))
    yield Line(admin, "create", SLICES, "of ComputeDomains' driver", by="slices", on="node-1",
        changes={"spec/driver": "compute-domain.nvidia.com"})
    yield Line(admin, "delete", SLICES, "of this driver", "Kubernetes: all rights", on="node-1")
    yield Line(admin, "update", CLAIM_STATUS, "any", "Kubernetes: all rights", on="default/there", changes=(*OWN_ENTRY,
        *FOREIGN_ENTRY, UNALLOCATED))
    yield Line(admin, "create patch delete", SLICES, "of other drivers", "Kubernetes: all rights", on="other")
    yield Line(admin, "patch", "nodes", "any", "Kubernetes: all rights", on="node-2",
        changes={"spec/unschedulable": True})
    for user in (Account.EDITOR, Account.VIEWER):
        yield Line(user, "get list watch", CLAIMS, "in the namespace of the role", "Kubernetes' role",
            on="default/here")
        yield Line(user, "get list watch", TEMPLATES, "in the namespace of the role", "Kubernetes' role",
            on="default/theirs")
    yield Line(Account.EDITOR, "create patch delete", CLAIMS, "in the namespace of the role", "Kubernetes' role",
        on="default/free")
    yield Line(Account.VIEWER, "create update patch delete", CLAIMS, "any", by=RBAC, on="default/free")
    for user in (Account.EDITOR, Account.VIEWER, Account.NOBODY):
        for verbs, resource, on in (
            ("update patch", CLAIM_STATUS, "default/here"),
            ("update", BINDING, ""),
            ("list create patch delete", SLICES, "node-1"),
            ("list create patch delete", CLASSES, "gpu.nvidia.com"),
            ("get list create update patch delete", INVENTORIES, "node-1"),
            ("get list create update patch delete", DOMAINS, "default/train"),
            ("update patch", DOMAIN_STATUS, "default/train"),
            ("get list patch", "nodes", "node-1"),
        ):
            yield Line(user, verbs, resource, "any", by=RBAC, on=on)
    yield Line(Account.NOBODY, "get list watch create update patch delete", CLAIMS, "any", by=RBAC, on="default/free")


def web_page() -> Iterator[Line]:
    me = Account.UI
    shown = (SLICES, CLAIMS, TEMPLATES, CLASSES, "devicetaintrules.resource.k8s.io", INVENTORIES, DOMAINS, "nodes",
        "pods", "namespaces", "resourcequotas", "events")
    for resource in shown:
        yield Line(me, "list watch", resource, "of the whole cluster", "the pages show them")
    yield Line(me, "get", INVENTORIES, "any", "the faults of a node", on="node-1")
    yield Line(me, "get", "namespaces", "any", "their labels, to explain why a pod waits", on="default")
    yield Line(me, "create", "tokenreviews.authentication.k8s.io", "any", "whose token a viewer has",
        changes={"spec": {"token": "a"}})
    yield Line(me, "create", "subjectaccessreviews.authorization.k8s.io", "any", "what a viewer may read",
        changes={"spec": {"user": "a", "resourceAttributes": {"verb": "list", "resource": "pods"}}})


def removal() -> Iterator[Line]:
    """Helm has deleted the policies by then."""
    me = Account.REMOVAL
    yield Line(me, "list delete", SLICES, "of all drivers", "slices of this driver; RBAC cannot limit this to a driver",
        on="node-2")
    yield Line(me, "list delete", CLASSES, "all", "classes of MIG profiles that the controller created", on="profile")
    yield Line(me, "list patch", DOMAINS, "of all namespaces",
        "the finalizer, so that domains can be deleted with their definition", on="default/train",
        changes={"metadata/finalizers": None})
    yield Line(me, "list patch", "nodes", "all", "the label that assigns a node to a domain", on="node-2",
        changes={f"metadata/labels/{DOMAIN_LABEL}": None})
    yield Line(me, "list delete", DAEMON_SETS, "in the driver's namespace", "daemons of ComputeDomains",
        on="gpu-dra/daemons")
    yield Line(me, "list delete", TEMPLATES, "in the driver's namespace", "templates of these daemons",
        on="gpu-dra/daemons")
    yield Line(me, "delete", LEASES, "the controller's", "who led", on="gpu-dra/gpu-dra-driver-controller")
    yield Line(me, "delete", "pods", "the pod of `helm test`", "the pod of a failed test",
        on="gpu-dra/gpu-dra-driver-test")
    for name in ("gpu-dra-driver-webhook-certificate", "gpu-dra-driver-webhook-authority"):
        yield Line(me, "delete", "secrets", "of the webhook's certificates", "what cert-manager leaves behind",
            on=f"gpu-dra/{name}")
    for verbs, resource, on in (
        ("list delete", DAEMON_SETS, "default/theirs"),
        ("list delete", TEMPLATES, "default/theirs"),
        ("get update patch", LEASES, "gpu-dra/gpu-dra-driver-controller"),
        ("list delete", LEASES, "gpu-dra/other"),
        ("list delete", "pods", "default/victim"),
    ):
        yield Line(me, verbs, resource, "any", by=RBAC, on=on)


ESCALATIONS = (
    ("get list watch", "secrets", "default/secret"),
    ("get list create", "configmaps", "gpu-dra/config"),
    ("create", "pods", "gpu-dra/plugin-node-1"),
    ("get create", "pods/exec", "gpu-dra/plugin-node-1"),
    ("patch", "pods/ephemeralcontainers", "gpu-dra/plugin-node-1"),
    ("create", "pods/eviction", "default/victim"),
    ("create", "pods/binding", "default/victim"),
    ("get", "nodes/proxy", "node-2"),
    ("create", "serviceaccounts", "gpu-dra/gpu-dra-driver-kubelet-plugin"),
    ("create", "serviceaccounts/token", "gpu-dra/gpu-dra-driver-kubelet-plugin"),
    ("impersonate", "serviceaccounts", "gpu-dra/gpu-dra-driver-kubelet-plugin"),
    ("impersonate", "users", "admin"),
    ("impersonate", "groups", "system:masters"),
    ("create update patch bind escalate", "clusterroles.rbac.authorization.k8s.io", "cluster-admin"),
    ("create update patch", "clusterrolebindings.rbac.authorization.k8s.io", "cluster-admin"),
    ("create update patch bind escalate", "roles.rbac.authorization.k8s.io", "gpu-dra/gpu-dra-driver-controller"),
    ("create update patch", "rolebindings.rbac.authorization.k8s.io", "gpu-dra/gpu-dra-driver-controller"),
    (
        "create patch delete",
        "validatingadmissionpolicies.admissionregistration.k8s.io",
        "gpu-dra-gpu-dra-driver-slices",
    ),
    ("patch delete", "validatingadmissionpolicybindings.admissionregistration.k8s.io", "gpu-dra-gpu-dra-driver-slices"),
    ("create patch delete", WEBHOOKS, "theirs"),
    ("create patch", "mutatingwebhookconfigurations.admissionregistration.k8s.io", "theirs"),
    ("create patch delete", "customresourcedefinitions.apiextensions.k8s.io", "nodeinventories.dra.gpu"),
    ("create", "certificatesigningrequests.certificates.k8s.io", "a"),
    ("update", "certificatesigningrequests/approval.certificates.k8s.io", "a"),
    ("create patch", "deployments.apps", "gpu-dra/gpu-dra-driver-controller"),
    ("patch", "namespaces", "default"),
    ("create patch", "events", "default/plugins"),
)
"""Rights that would lead to more rights: verbs, resource, object. No account of the driver has them."""


def escalations() -> Iterator[Line]:
    for account in OURS:
        for verbs, resource, on in ESCALATIONS:
            yield Line(account, verbs, resource, "any", by=RBAC, on=on)
