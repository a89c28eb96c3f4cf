"""Rights of the controller and of IMEX daemons."""

from collections.abc import Iterator

from docs.from_code.rights.line import (
    CLAIMS,
    CLASSES,
    CONDITIONS,
    COUNTED,
    DOMAIN_LABEL,
    DOMAIN_STATUS,
    DOMAINS,
    EVENTS,
    FINALIZER,
    IGNORED,
    INVENTORIES,
    INVENTORY_STATUS,
    LEASES,
    METADATA,
    ONLY_WEBHOOK,
    POLICIES,
    POLICY_STATUS,
    RBAC,
    SLICES,
    SPEC_OF_INVENTORY,
    TEMPLATES,
    VALIDATION,
    WEBHOOKS,
    Account,
    Line,
    event,
)

# One line is one statement; the formatter would spread each over many lines.
# fmt: off


_OF_A_PROFILE = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'" \
    " && device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"


def controller() -> Iterator[Line]:
    me = Account.CONTROLLER
    yield Line(me, "list watch", INVENTORIES, "all", "what nodes have")
    yield Line(me, "patch", INVENTORIES, "the annotation `confirm.dra.gpu/…`", "requests a heartbeat from a plugin",
        on="node-1", changes={"metadata/annotations/confirm.dra.gpu~1gpu.nvidia.com": "2026-01-01T00:00:00Z"})
    yield Line(me, "patch", INVENTORIES, "all other fields", by="confirmations", on="node-1",
        changes=(*SPEC_OF_INVENTORY, *METADATA, {"metadata/annotations/note": None},
        {"metadata/annotations/note": "b"}))
    yield Line(me, "patch", INVENTORY_STATUS, "all",
        "what holds for a node, which rules it cannot follow, and which claims wait for it",
        on="node-1", changes=CONDITIONS)
    yield Line(me, "patch", INVENTORY_STATUS, "all but the status", by=IGNORED, on="node-1",
        changes=(*SPEC_OF_INVENTORY, FINALIZER, {"metadata/labels/a": "b"}))
    yield Line(me, "get list watch", POLICIES, "all", "what administrators decided", on="ml")
    yield Line(me, "create update delete", POLICIES, "all", "those of the chart's value `policy`", on="ml",
        changes={"spec/publish": True})
    yield Line(me, "patch", POLICY_STATUS, "all", "what becomes of each", on="ml", changes={"status/nodes": 1})
    yield Line(me, "list watch", SLICES, "all", "those of this driver; RBAC cannot limit this to a driver")
    yield Line(me, "create patch delete", SLICES, "of this driver, for every node", "the devices of the nodes",
        on="node-2", changes={"spec/devices": []})
    yield Line(me, "create", SLICES, "of this driver, for every node", "the devices of the nodes", on="node-2",
        changes={"spec/driver": "compute-domain.nvidia.com"})
    yield Line(me, "create patch delete", SLICES, "of other drivers", by="slices", on="other",
        changes={"metadata/labels/a": "b"})
    yield Line(me, "patch", SLICES, "of other drivers: the driver's name", by=VALIDATION, on="other",
        changes={"spec/driver": "gpu.nvidia.com"})
    yield Line(me, "create patch", SLICES, "with finalizers", by="slices", on="node-1", changes=FINALIZER)
    yield Line(me, "list watch", "nodes", "all", "labels, if the policy asks for them")
    yield Line(me, "create", EVENTS, "in its own name: about nodes and ComputeDomains", on="default/controllers",
        reason="nodes that cannot follow the policy; the state of users' domains", changes=(event("Node",
        "node-2"), event("ComputeDomain")))
    yield Line(me, "patch", EVENTS, "in its own name: about nodes and ComputeDomains", on="default/controllers",
        reason="counts up an Event that is still true", changes=COUNTED)
    yield Line(me, "create", EVENTS, "about other kinds, in the name of others, or with finalizers", by="reports",
        on="default/controllers", changes=(event("Pod"), event("Secret"),
        {"reportingController": "gpu.nvidia.com/kubelet-plugin"}, FINALIZER))
    yield Line(me, "patch", EVENTS, "of others", by="reports", on="default/plugins",
        changes=({"metadata/labels/a": "b"}, COUNTED))
    yield Line(me, "create", LEASES, "in the driver's namespace",
        "leader election; RBAC cannot limit the names of created objects", on="gpu-dra/other")
    yield Line(me, "get update", LEASES, "its own", "who leads", on="gpu-dra/gpu-dra-driver-controller",
        changes={"spec/holderIdentity": "b"})
    yield Line(me, "get update patch delete", LEASES, "others", by=RBAC, on="gpu-dra/other")
    yield Line(me, "create", LEASES, "in other namespaces", by=RBAC, on="kube-system/scheduler")
    yield Line(me, "list watch", CLASSES, "all", "those of MIG profiles, with the gate `MigProfileClasses`")
    yield Line(me, "create update", CLASSES, "of MIG profiles, as the controller creates them",
        "one for each MIG profile that nodes have", on="profile",
        changes=({}, {"spec/extendedResourceName": "nvidia.com/mig-1g.10gb"}))
    yield Line(me, "create update", CLASSES, "of MIG profiles, with anything else in them", by="classes", on="profile",
        changes=({"spec/selectors": None}, {"spec/selectors/0/cel/expression": "true"},
        {"spec/selectors/0/cel/expression": "device.driver == 'gpu.nvidia.com' && false || device.driver == 'other'"},
        {"spec/selectors/0/cel/expression": f"{_OF_A_PROFILE} || true"},
        {"spec/selectors/0/cel/expression": f"true || {_OF_A_PROFILE}"},
        {"spec/selectors/1": {"cel": {"expression": "true"}}}, {"spec/config": [{"opaque": {"driver": "gpu.nvidia.com",
        "parameters": {"a": "b"}}}]}, {"metadata/labels/app.kubernetes.io~1managed-by": None}, FINALIZER))
    yield Line(me, "create update", CLASSES, "of MIG profiles, with anything else in them", by="classes", on="profile",
        changes={"spec/extendedResourceName": "nvidia.com/gpu"}, gate="DRAExtendedResource")
    yield Line(me, "create update", CLASSES, "of others", by="classes", on="gpu.example.com",
        changes=({"metadata/labels/a": "b"}, {"metadata/labels/app.kubernetes.io~1managed-by": "gpu-dra-controller"}))
    yield Line(me, "update", CLASSES, "of others, with names like those of MIG profiles", by="classes",
        on="theirs.mig.nvidia.com", changes={"metadata/labels/app.kubernetes.io~1managed-by": "gpu-dra-controller"})


def domains() -> Iterator[Line]:
    me = Account.CONTROLLER
    yield Line(me, "patch", "nodes", "the label `resource.nvidia.com/computeDomain`", "which domain a node is in",
        on="node-2", changes={f"metadata/labels/{DOMAIN_LABEL}": "1"})
    taint = {"key": "a", "effect": "NoExecute"}
    yield Line(me, "patch", "nodes", "all other fields", by="nodes", on="node-2", changes=(*METADATA,
        {"metadata/labels/zone": "b"}, {"metadata/labels/zone": None}, {"spec/unschedulable": True},
        {"spec/taints": [taint]}, {"spec/podCIDR": "10.1.0.0/24", "spec/podCIDRs": ["10.1.0.0/24"]}))
    yield Line(me, "list watch", DOMAINS, "of all namespaces",
        "ComputeDomains, with the gate of that name; here and below")
    yield Line(me, "patch", DOMAINS, "its own finalizer", "a domain stays until its daemons are deleted",
        on="default/train", changes={"metadata/finalizers": ["resource.nvidia.com/computeDomain"]})
    yield Line(me, "patch", DOMAINS, "all other fields", by="domains", on="default/train", changes=METADATA)
    yield Line(me, "patch", DOMAINS, "the spec, which is immutable", by=VALIDATION, on="default/train",
        changes={"spec/numNodes": 4})
    yield Line(me, "patch", DOMAIN_STATUS, "of all namespaces", "whether a domain is ready", on="default/train",
        changes={"status/status": "NotReady"})
    yield Line(me, "patch", DOMAIN_STATUS, "all but the status", by=IGNORED, on="default/train", changes=METADATA)
    yield Line(me, "list watch", CLAIMS, "of all namespaces", "which devices are in use: policies wait for them")
    yield Line(me, "get", TEMPLATES, "of all namespaces", "objects of the domains", on="default/theirs")
    yield Line(me, "list watch", TEMPLATES, "of all namespaces", "objects of the domains")
    yield Line(me, "create delete", TEMPLATES, "of ComputeDomains", "templates for the domain's pods and daemons",
        on="default/train")
    request = "spec/spec/devices/requests/0"
    yield Line(me, "create", TEMPLATES, "of ComputeDomains, for other devices or with finalizers", by="templates",
        on="default/train", changes=({f"{request}/exactly/deviceClassName": "gpu.nvidia.com"},
        {f"{request}/exactly": None, f"{request}/firstAvailable": [{"name": "a", "deviceClassName": "gpu.nvidia.com"}]},
        {f"{request}/exactly/adminAccess": True}, {"spec/spec/devices/config/0/opaque/driver": "gpu.nvidia.com"},
        {f"metadata/labels/{DOMAIN_LABEL}": None}, FINALIZER))
    yield Line(me, "create delete", TEMPLATES, "of others", by="templates", on="default/theirs")
    yield Line(me, "list watch", "pods", "in the driver's namespace", "whether daemons are ready", on="gpu-dra/")
    yield Line(me, "list watch", "pods", "in other namespaces", by=RBAC, on="default/")
    yield Line(Account.DAEMON, "list watch", DOMAINS, "of all namespaces", "its peers")


def webhook() -> Iterator[Line]:
    me = Account.CONTROLLER
    mine, secret = "gpu-dra-gpu-dra-driver-webhook", "gpu-dra/gpu-dra-driver-webhook"
    yield Line(me, "list watch patch", WEBHOOKS, "its own", on=mine, setups=ONLY_WEBHOOK, named=True,
        changes=({"webhooks": None}, {"metadata/labels/a": "b"}),
        reason="what the API server sends to the webhook, and whom it trusts; no policy can limit this")
    yield Line(me, "get create delete", WEBHOOKS, "any", by=RBAC, on=mine, setups=ONLY_WEBHOOK)
    yield Line(me, "patch", WEBHOOKS, "of others", by=RBAC, on="theirs", setups=ONLY_WEBHOOK)
    yield Line(me, "list watch update", "secrets", "its own", on=secret, setups=ONLY_WEBHOOK, named=True,
        changes={"data": {"a": "YQ=="}},
        reason="the webhook's certificate; `update` with self-managed certificates")
    yield Line(me, "get create patch delete", "secrets", "any", by=RBAC, on=secret, setups=ONLY_WEBHOOK)
    yield Line(me, "list watch", "secrets", "of others", by=RBAC, on="gpu-dra/", setups=ONLY_WEBHOOK)
    yield Line(me, "create", CLASSES, "in dry runs", "tests whether the webhook is called", on="gpu.example.com",
        setups=ONLY_WEBHOOK)
    yield Line(me, "create", CLASSES, "that are stored, of others", by="classes", on="gpu.example.com",
        setups=ONLY_WEBHOOK, stored=True, changes={"metadata/name": "stored.example.com"})
