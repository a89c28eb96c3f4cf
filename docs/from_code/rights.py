"""For security.md: what each account may do, for each field. One table for readers and for the tests of each line.

`tests/charts/test_rights.py` evaluates the chart's roles and admission policies for each line, and sends each line to a
real API server if one is available. A right of the chart without a line fails a test.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from docs.from_code.tables import table
from dra_driver.grouping import grouped
from dra_driver.phrases import listed


class Account(StrEnum):
    """The caller. The driver's pods run on node-1."""

    PLUGIN = "plugin"
    UNBOUND = "plugin, with a token that names no node"
    CONTROLLER = "controller"
    DAEMON = "IMEX daemon"
    REMOVAL = "removal"
    UI = "web page"
    KUBELET = "kubelet"
    ADMIN = "administrator"
    EDITOR = "user with the role edit"
    VIEWER = "user with the role view"
    NOBODY = "user without a role"


class Setup(StrEnum):
    """How the chart is installed."""

    CONTROLLER = "publisher: controller"
    NODE = "publisher: node"
    WEBHOOK = "webhook.install: true"
    REMOVAL = "while the release is removed"
    UI = "ui.enabled: true"


OURS = (Account.PLUGIN, Account.CONTROLLER, Account.DAEMON, Account.REMOVAL, Account.UI)

RBAC, VALIDATION, NODE_AUTHORIZER, IGNORED = "RBAC", "validation", "the node authorizer", "ignored"
"""Who refuses, other than admission policies, which have their own names; IGNORED: the field keeps its value."""

CLAIMS, CLAIM_STATUS = "resourceclaims.resource.k8s.io", "resourceclaims/status.resource.k8s.io"
DRIVER_ENTRIES = "resourceclaims/driver.resource.k8s.io"
BINDING = "resourceclaims/binding.resource.k8s.io"
SLICES, CLASSES = "resourceslices.resource.k8s.io", "deviceclasses.resource.k8s.io"
TEMPLATES = "resourceclaimtemplates.resource.k8s.io"
INVENTORIES, INVENTORY_STATUS = "nodeinventories.dra.gpu", "nodeinventories/status.dra.gpu"
POLICIES, POLICY_STATUS = "gpupolicies.dra.gpu", "gpupolicies/status.dra.gpu"
DOMAINS, DOMAIN_STATUS = "computedomains.resource.nvidia.com", "computedomains/status.resource.nvidia.com"
EVENTS, LEASES, DAEMON_SETS = "events.events.k8s.io", "leases.coordination.k8s.io", "daemonsets.apps"
WEBHOOKS = "validatingwebhookconfigurations.admissionregistration.k8s.io"

DOMAIN_LABEL = "resource.nvidia.com~1computeDomain"

type Changes = Mapping[str, Any]
"""Fields of the object and their new values. A field is a path of names with `/` between them, as in a JSON
pointer; None removes it."""


@dataclass(frozen=True)
class Line:
    """One attempt for each verb and each of the changes; all have the same result."""

    account: Account
    verbs: str
    """RBAC verbs. Verbs that are not requests are tested with a SubjectAccessReview."""
    resource: str
    what: str
    """Which objects and fields; for readers."""
    reason: str = ""
    """Why it is allowed."""
    by: str = ""
    """Who refuses it; empty: it is allowed."""
    on: str = ""
    """Namespace and name of the object; `namespace/` for all objects in it."""
    changes: Changes | tuple[Changes, ...] = MappingProxyType({})
    """Each is tried separately."""
    setups: tuple[Setup, ...] = ()
    granular: bool = False
    """Kubernetes 1.36 refuses it, too: its granular authorization of the status of claims."""
    stored: bool = False
    """Not a dry run."""
    gate: str = ""
    """A gate of the API server; if it is off, the field does not exist."""
    named: bool = False
    """Lists and watches name the object; otherwise all objects."""
    by_quantity: bool = False
    """The policy compares quantities, which only an API server can."""

    def where(self) -> tuple[Setup, ...]:
        return self.setups or _SETUPS.get(self.account, (Setup.CONTROLLER,))

    @property
    def alternatives(self) -> tuple[Changes, ...]:
        return self.changes if isinstance(self.changes, tuple) else (self.changes,)

    @property
    def allowed(self) -> bool:
        return self.by in ("", IGNORED)

    @property
    def by_policy(self) -> bool:
        return self.by not in ("", RBAC, VALIDATION, NODE_AUTHORIZER, IGNORED)


_SETUPS = {
    Account.PLUGIN: (Setup.CONTROLLER, Setup.NODE),
    Account.UNBOUND: (Setup.CONTROLLER, Setup.NODE),
    Account.REMOVAL: (Setup.REMOVAL,),
    Account.UI: (Setup.UI,),
}


ONLY_NODE, ONLY_WEBHOOK, ONLY_CONTROLLER = (Setup.NODE,), (Setup.WEBHOOK,), (Setup.CONTROLLER,)


def owners(**changed: Any) -> Changes:
    return {"metadata/ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "1"} | changed]}


FINALIZER: Changes = {"metadata/finalizers": ["a.example/b"]}
METADATA = ({"metadata/labels/a": "b"}, {"metadata/annotations/a": "b"}, FINALIZER, owners())
SPEC_OF_INVENTORY = ({"spec/bootID": "1"}, {"spec/summary/gpus": 8})
CONDITIONS: Changes = {"status/conditions": []}
COUNTED: Changes = {"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}}
UNALLOCATED: Changes = {"status/allocation": None, "status/reservedFor": None, "status/devices": None}
CONSUMER = {"resource": "pods", "name": "b", "uid": "2"}
ALLOCATION = {
    "devices": {"results": [{"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-1"}]},
    "nodeSelector": {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}]
    },
}


def entry(driver: str, device: str) -> Mapping[str, Any]:
    return {"driver": driver, "pool": "node-1", "device": device, "data": {"a": 2}}


OWN_ENTRY = ({"status/devices/0/data": {"a": 2}}, {"status/devices/0": None})
FOREIGN_ENTRY = (
    {"status/devices/1/data": {"a": 2}},
    {"status/devices/1": None},
    {"status/devices/2": entry("nic.example.com", "nic-2")},
)


def event(kind: str, name: str = "a", **more: Any) -> Changes:
    return {"regarding": {"kind": kind, "name": name, "namespace": "default"}, **more}


# One line is one statement; the formatter would spread each over many lines.
# fmt: off


# -- the node plugin


def plugin() -> Iterator[Line]:
    me = Account.PLUGIN
    yield Line(me, "get", CLAIMS, "of all namespaces", "the claim that the kubelet wants prepared", on="default/there")
    yield Line(me, "list", CLAIMS, "of all namespaces", "which claims still exist")
    yield Line(me, "get list watch", "nodes", "all", on="node-2",
        reason="the node owns its inventory; a label or annotation [releases its GPUs](reset.md). RBAC cannot limit"
        " this to one node")
    yield Line(me, "get list watch", INVENTORIES, "all", "its own inventory; RBAC cannot limit this to one",
        on="node-2")
    yield Line(me, "create update", INVENTORIES, "of its own node", "the node's hardware", on="node-1",
        changes=(*SPEC_OF_INVENTORY, {"metadata/labels/a": "b"}, {"metadata/annotations/a": "b"}, owners()))
    yield Line(me, "create update", INVENTORIES, "of another node", by="inventories", on="node-2",
        changes=(*SPEC_OF_INVENTORY, {"metadata/annotations/a": "b"}))
    yield Line(me, "create update", INVENTORIES, "of its own node", by="inventories", on="node-1", changes=(FINALIZER,
        owners(name="node-2"), owners(kind="Pod"), owners(blockOwnerDeletion=True)))
    yield from _plugin_claims()
    yield from _plugin_events()
    yield Line(me, "list watch", DOMAINS, "of all namespaces", "whether the domain of a claim is ready on the node",
        setups=ONLY_CONTROLLER)


def _plugin_claims() -> Iterator[Line]:
    me, write = Account.PLUGIN, "update"
    yield Line(me, write, CLAIM_STATUS, "allocated to its own node: entries of its own driver", on="default/here",
        reason="`status.devices` reports the state of a device, with the gate `DeviceStatus`", changes=OWN_ENTRY)
    yield Line(me, write, CLAIM_STATUS, "allocated to its own node: entries of ComputeDomains", on="default/here",
        reason="the same for channels and daemons", setups=ONLY_CONTROLLER,
        changes={"status/devices/2": entry("compute-domain.nvidia.com", "channel-0")})
    for driver in ("gpu.nvidia.com", "compute-domain.nvidia.com"):
        yield Line(me, "associated-node:update", DRIVER_ENTRIES, f"of `{driver}`", on=driver,
            reason="the same: Kubernetes 1.36 also requires this right",
            setups=() if driver == "gpu.nvidia.com" else ONLY_CONTROLLER)
    yield Line(me, "associated-node:update", DRIVER_ENTRIES, "of other drivers", by=RBAC, on="nic.example.com")
    yield Line(me, "arbitrary-node:update", DRIVER_ENTRIES, "of any driver", by=RBAC, on="gpu.nvidia.com")
    yield Line(me, "update patch", BINDING, "any", by=RBAC)
    yield Line(me, write, CLAIM_STATUS, "allocated to its own node: entries of other drivers", by="claim-status",
        on="default/here", changes=FOREIGN_ENTRY, granular=True)
    yield Line(me, write, CLAIM_STATUS, "allocated to its own node: its allocation and users",
        by="claim-status", on="default/here", granular=True, changes=(UNALLOCATED, {"status/reservedFor/1": CONSUMER},
        {"status/reservedFor": None}))
    yield Line(me, write, CLAIM_STATUS, "allocated to another node, or not to one node", by="claim-status",
        granular=True, on="default/there", changes=OWN_ENTRY)
    yield Line(me, write, CLAIM_STATUS, "allocated to another node, or not to one node", by="claim-status",
        granular=True, on="default/anywhere", changes=OWN_ENTRY)
    yield Line(me, write, CLAIM_STATUS, "not allocated", by="claim-status", granular=True, on="default/free",
        changes={"status/allocation": ALLOCATION})
    yield Line(me, write, CLAIM_STATUS, "allocated to its own node: all but the status", by=IGNORED, on="default/here",
        changes=(*METADATA, {"spec/devices/requests/0/exactly/deviceClassName": "other"}))


def _plugin_events() -> Iterator[Line]:
    me = Account.PLUGIN
    yield Line(me, "create", EVENTS, "in its own name: about pods, claims and its own node", on="default/plugins",
        reason="reports to users and administrators. A policy cannot look up a pod's node, so the Event names the"
        " node whose plugin wrote it", changes=(event("Pod"), event("ResourceClaim"), event("Node", "node-1")))
    yield Line(me, "patch", EVENTS, "in its own name: about pods, claims and its own node", on="default/plugins",
        reason="counts up an Event that is still true", changes=COUNTED)
    yield Line(me, "create", EVENTS, "about other nodes or other kinds", by="events", on="default/plugins",
        changes=(event("Node", "node-2"), event("Secret"), event("ComputeDomain")))
    yield Line(me, "create", EVENTS, "in the name of others", by="events", on="default/plugins",
        changes=({"reportingInstance": "node-2"}, {"reportingInstance": "node"},
        {"reportingController": "gpu.nvidia.com/controller"}))
    yield Line(me, "create", EVENTS, "with finalizers", by="events", on="default/plugins", changes=FINALIZER)
    yield Line(me, "patch", EVENTS, "of other nodes' plugins", by="events", on="default/others",
        changes=({"metadata/labels/a": "b"}, COUNTED))
    yield Line(me, "patch", EVENTS, "its own: finalizers", by="events", on="default/plugins", changes=FINALIZER)


def unbound() -> Iterator[Line]:
    me, what = Account.UNBOUND, "any"
    yield Line(me, "create update", INVENTORIES, what, by="inventories", on="node-1", changes=SPEC_OF_INVENTORY)
    yield Line(me, "update", CLAIM_STATUS, what, by="claim-status", on="default/here", changes=OWN_ENTRY,
        granular=True)
    yield Line(me, "create", EVENTS, what, by="events", on="default/plugins")
    yield Line(me, "create delete", SLICES, what, by="slices", on="node-1", setups=ONLY_NODE)


def node_publisher() -> Iterator[Line]:
    me = Account.PLUGIN
    yield Line(me, "patch", INVENTORIES, "of its own node", "a heartbeat", on="node-1", setups=ONLY_NODE,
        changes={"metadata/annotations/confirm.dra.gpu~1gpu.nvidia.com": "2026-01-01T00:00:00Z"})
    yield Line(me, "patch", INVENTORY_STATUS, "of its own node",
        "what holds for the node, and which rules it cannot follow", on="node-1", changes=CONDITIONS, setups=ONLY_NODE)
    yield Line(me, "patch", INVENTORY_STATUS, "of another node", by="inventories", on="node-2", changes=CONDITIONS,
        setups=ONLY_NODE)
    yield Line(me, "patch", INVENTORY_STATUS, "of its own node: all but the status", by=IGNORED, on="node-1",
        setups=ONLY_NODE, changes=(*SPEC_OF_INVENTORY, FINALIZER, {"metadata/labels/a": "b"}))
    yield Line(me, "list watch", POLICIES, "all", "what administrators decided", setups=ONLY_NODE)
    yield Line(me, "list watch", SLICES, "all", "its own slices; RBAC cannot limit this to one node", setups=ONLY_NODE)
    yield Line(me, "create patch delete", SLICES, "of this driver, for its own node", "the devices of the node",
        on="node-1", changes={"spec/devices": []}, setups=ONLY_NODE)
    yield Line(me, "create patch", SLICES, "of this driver, for another node", by="slices", on="node-2",
        changes={"spec/devices": []}, setups=ONLY_NODE)
    yield Line(me, "delete", SLICES, "of this driver, for another node", by="slices", on="node-2", setups=ONLY_NODE)
    everywhere: Changes = {"spec/nodeName": None, "spec/allNodes": True}
    selected: Changes = {"spec/nodeName": None, "spec/nodeSelector": ALLOCATION["nodeSelector"]}
    yield Line(me, "create", SLICES, "of this driver, for more than its own node, or of another pool", by="slices",
        on="node-1", changes=(everywhere, selected, {"spec/pool/name": "node-2", "spec/pool/generation": 1000}),
        setups=ONLY_NODE)
    yield Line(me, "create", SLICES, "of this driver, for more than its own node, or of another pool", by="slices",
        on="node-1", gate="DRAPartitionableDevices", setups=ONLY_NODE,
        changes={"spec/nodeName": None, "spec/perDeviceNodeSelection": True, "spec/devices/0/allNodes": True})
    yield Line(me, "create patch delete", SLICES, "of other drivers", by="slices", on="other", setups=ONLY_NODE,
        changes={"metadata/labels/a": "b"})
    yield Line(me, "patch", SLICES, "of other drivers: the driver's name", by=VALIDATION, on="other", setups=ONLY_NODE,
        changes={"spec/driver": "gpu.nvidia.com"})
    yield Line(me, "create patch", SLICES, "with finalizers", by="slices", on="node-1", changes=FINALIZER,
        setups=ONLY_NODE)
    yield Line(Account.ADMIN, "create", SLICES, "of this driver", by="slices", on="node-1", setups=ONLY_NODE)


# -- the controller and IMEX daemons


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


# -- DaemonSets, which the controller creates for ComputeDomains


_POD = "spec/template/spec"
_CONTAINER = f"{_POD}/containers/0"


def _of(path: str, values: Mapping[str, Any]) -> tuple[Changes, ...]:
    return tuple({f"{path}/{name}": value} for name, value in values.items())


def daemon_sets() -> Iterator[Line]:
    me, daemons = Account.CONTROLLER, "gpu-dra/daemons"
    yield Line(me, "list watch", DAEMON_SETS, "in the driver's namespace", "daemons of ComputeDomains", on="gpu-dra/")
    yield Line(me, "create delete", DAEMON_SETS, "of ComputeDomains, as created", "daemons of ComputeDomains",
        on=daemons, changes=({}, {f"{_CONTAINER}/resources/limits": None},
        {f"{_CONTAINER}/args/3": "--log-level=debug"}))
    yield Line(me, "create delete", DAEMON_SETS, "of others, including the plugin's", by="daemons", on="gpu-dra/plugin")
    yield Line(me, "create list delete", DAEMON_SETS, "in other namespaces", by=RBAC, on="default/theirs")
    yield Line(me, "create", DAEMON_SETS, "of ComputeDomains, with anything else in their pods", by="daemons",
        on=daemons, changes=(*_WORSE_SETS, *_of(_POD, _WORSE_PODS), *_WORSE_CONTEXTS, *_WORSE_CONTAINERS))
    yield Line(me, "create", DAEMON_SETS, "of ComputeDomains, with more resources", by="daemons", on=daemons,
        by_quantity=True, changes=({f"{_CONTAINER}/resources/requests/cpu": "64"},
        {f"{_CONTAINER}/resources/limits/memory": "64Gi"}))


_WORSE_SETS: tuple[Changes, ...] = (
    FINALIZER,
    {"metadata/name": "miner"},
    {"spec/template/metadata/annotations": {"cdi.k8s.io/a": "nvidia.com/gpu=all"}},
    {"spec/template/metadata/labels/app.kubernetes.io~1name": "other"},
)
_EXPRESSION = {"key": "a", "operator": "Exists"}
_AFFINITY = {
    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [_EXPRESSION]}]}
}
_SPREAD = {"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}
_WORSE_PODS: Mapping[str, Any] = {
    "serviceAccountName": "gpu-dra-driver-kubelet-plugin",
    "hostNetwork": True,
    "hostPID": True,
    "hostIPC": True,
    "hostUsers": False,
    "shareProcessNamespace": True,
    "volumes/3": {"name": "host", "hostPath": {"path": "/"}},
    "volumes/4": {"name": "secret", "secret": {"secretName": "a"}},
    "volumes/0/emptyDir/medium": "Memory",
    "volumes/0/emptyDir/sizeLimit": None,
    "initContainers": [{"name": "a", "image": "a"}],
    "containers/1": {"name": "b", "image": "b"},
    "runtimeClassName": "nvidia",
    "resourceClaims/0/resourceClaimTemplateName": "gpus",
    "priorityClassName": "system-cluster-critical",
    "tolerations/0/key": "a",
    "nodeSelector": None,
    "nodeSelector/zone": "a",
    "nodeName": "node-1",
    "affinity": {"nodeAffinity": _AFFINITY},
    "topologySpreadConstraints": [_SPREAD],
    "schedulerName": "other",
    "imagePullSecrets": [{"name": "others"}],
    "resources": {"requests": {"cpu": "64"}},
    "dnsConfig": {"nameservers": ["10.0.0.1"]},
    "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}],
    "hostname": "a",
    "subdomain": "a",
    "setHostnameAsFQDN": True,
    "preemptionPolicy": "Never",
    "readinessGates": [{"conditionType": "a"}],
    "schedulingGates": [{"name": "a"}],
    "os": {"name": "linux"},
    "overhead": {"cpu": "1"},
    "priority": 1000,
    "resourceClaims/0": {"name": "daemon", "resourceClaimName": "of-somebody"},
    "tolerations/0/effect": "NoSchedule",
}
_WORSE_CONTEXTS: tuple[Changes, ...] = (
    {f"{_CONTAINER}/securityContext/procMount": "Unmasked", f"{_POD}/hostUsers": False},
    {f"{_CONTAINER}/securityContext/privileged": True, f"{_CONTAINER}/securityContext/allowPrivilegeEscalation": None},
    *_of(
        f"{_POD}/securityContext",
        {
            "runAsUser": 0, "runAsGroup": 0, "fsGroup": 0, "supplementalGroups": [0],
            "seLinuxOptions": {"type": "spc_t"}, "seccompProfile": {"type": "Unconfined"},
            "appArmorProfile": {"type": "Unconfined"}, "sysctls": [{"name": "kernel.msgmax", "value": "1"}],
            "fsGroupChangePolicy": "Always", "supplementalGroupsPolicy": "Merge", "runAsNonRoot": False,
            "windowsOptions": {"runAsUserName": "a"},
        },
    ),
    *_of(
        f"{_CONTAINER}/securityContext",
        {
            "allowPrivilegeEscalation": True, "capabilities/add/1": "SYS_ADMIN",
            "capabilities/drop": ["KILL"], "readOnlyRootFilesystem": False, "runAsGroup": 0,
            "runAsNonRoot": False, "windowsOptions": {"runAsUserName": "a"},
            "seLinuxOptions": {"type": "spc_t"}, "seccompProfile": {"type": "Unconfined"},
            "appArmorProfile": {"type": "Unconfined"},
        },
    ),
)
_REFERENCE = {"name": "others", "key": "password"}
_SHELL = {"exec": {"command": ["sh"]}}
_WORSE_CONTAINERS = _of(
    _CONTAINER,
    {
        "image": "other",
        "securityContext": None,
        "command": ["/bin/sh"],
        "args/5": "--log-file=/x",
        "env/2": {"name": "KEY", "valueFrom": {"secretKeyRef": _REFERENCE}},
        "env/3": {"name": "KEY", "valueFrom": {"configMapKeyRef": _REFERENCE}},
        # NVIDIA's runtime, if it is the node's default, gives such a container all GPUs.
        "env/4": {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        "envFrom": [{"secretRef": {"name": "others"}}],
        "ports": [{"containerPort": 80, "hostPort": 80}],
        "lifecycle": {"postStart": _SHELL},
        "workingDir": "/",
        "livenessProbe/exec/command": ["sh"],
        "startupProbe/exec/command": ["sh"],
        "startupProbe": {"httpGet": {"host": "10.0.0.1", "port": 80}},
        "livenessProbe": {"tcpSocket": {"port": 80}},
        "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
        "readinessProbe": {"httpGet": {"host": "10.0.0.1", "port": 80}},
        "resources/limits/nvidia.com~1gpu": "8",
        "resources/requests/ephemeral-storage": "1Gi",
    },
)


# -- accounts without rights from the chart, the removal, and what no account of the driver may do


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
    daemon = {"deviceClassName": "compute-domain-daemon.nvidia.com"}
    alternatives = [{"name": "a", "deviceClassName": "gpu.nvidia.com"}, {"name": "b", **daemon}]
    yield Line(Account.EDITOR, "create", CLAIMS, "for the device of ComputeDomains' daemons", by="claims",
        on="default/free", setups=ONLY_CONTROLLER, changes=(
            {"spec/devices/requests/0/exactly": daemon},
            {"spec/devices/requests/1": {"name": "b", "exactly": daemon}},
            {"spec/devices/requests/0": {"name": "gpu", "firstAvailable": alternatives}},
        ))
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


def refused_escalations() -> Iterator[Line]:
    for account in OURS:
        for verbs, resource, on in ESCALATIONS:
            yield Line(account, verbs, resource, "any", by=RBAC, on=on)


# fmt: on
# -- the whole table

_OBJECTS = {
    CLAIMS: "default/here", CLAIM_STATUS: "default/here", CLASSES: "profile", DAEMON_SETS: "gpu-dra/plugin",
    DOMAINS: "default/train", DOMAIN_STATUS: "default/train", EVENTS: "default/plugins", INVENTORIES: "node-1",
    INVENTORY_STATUS: "node-1", LEASES: "gpu-dra/gpu-dra-driver-controller", POLICIES: "ml", POLICY_STATUS: "ml",
    SLICES: "node-1", TEMPLATES: "default/theirs", "nodes": "node-1", "nodes/status": "node-1",
    "pods": "default/victim", "pods/status": "default/victim",
}  # fmt: skip
"""One of each resource that an account has something to do with."""


def lines() -> tuple[Line, ...]:
    """The whole table."""
    parts = (plugin, unbound, node_publisher, controller, domains, daemon_sets, webhook, others, web_page, removal)
    known = [line for part in parts for line in part()]
    return (*known, *_all_else(known), *refused_escalations())


def _all_else(known: Sequence[Line]) -> Iterator[Line]:
    """For each account of the driver, the verbs of which no line says that RBAC allows them."""
    for account in OURS:
        for setup in Line(account, "", "", "").where():
            own = [line for line in known if line.account is account and setup in line.where() and line.by != RBAC]
            for resource, on in _OBJECTS.items():
                allowed = {verb for line in own if line.resource == resource for verb in line.verbs.split()}
                refused = [verb for verb in _verbs_of(resource) if verb not in allowed]
                yield Line(account, " ".join(refused), resource, "any", by=RBAC, on=on, setups=(setup,))


def _verbs_of(resource: str) -> tuple[str, ...]:
    if "/" in resource:
        return "get", "update", "patch"
    return "get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"


# -- for readers

_LEVEL = {Setup.NODE: "`publisher: node`", Setup.WEBHOOK: "`webhook.install`", Setup.UI: "`ui.enabled`"}


def rights() -> str:
    """What is allowed."""
    return table(("Account", "With", "Resource", "Verbs", "Of", "Why"), map(_allowed, _merged(allowed=True)))


def refusals() -> str:
    """What admission policies refuse."""
    return table(
        ("Account", "With", "Resource", "Verbs", "Of", "Fields tried", "Policy", "Without it: 1.34, 1.35", "1.36"),
        map(_refused, _merged(allowed=False)),
    )


def escalations() -> str:
    rows = ((f"`{resource}`", verbs.replace(" ", ", ")) for verbs, resource, _ in ESCALATIONS)
    return table(("Resource", "Verbs"), rows)


def _merged(*, allowed: bool) -> Collection[list[Line]]:
    """Groups of lines that differ only in verbs and changes, in the order of their accounts."""
    in_order = sorted(lines(), key=lambda line: list(Account).index(line.account))
    return grouped(
        (line for line in in_order if (line.by == "" if allowed else line.by_policy)),
        lambda line: (line.account, line.resource, line.what, line.reason, line.by, line.where()),
    ).values()


def _allowed(group: list[Line]) -> tuple[str, ...]:
    return (*_start(group), group[0].reason)


def _refused(group: list[Line]) -> tuple[str, ...]:
    line = group[0]
    paths = [path for line in group for changes in line.alternatives for path in changes]
    fields = listed(dict.fromkeys(map(_field, paths)))
    return (*_start(group), fields, line.by, "allowed", "refused" if line.granular else "allowed")


def _start(group: list[Line]) -> tuple[str, ...]:
    line = group[0]
    verbs = dict.fromkeys(verb for entry in group for verb in entry.verbs.split())
    level = "" if len(line.where()) > 1 else _LEVEL.get(line.where()[0], "")
    if line.where() == (Setup.CONTROLLER,) and line.account == "plugin":
        level = "`publisher: controller`"
    return line.account, level, f"`{line.resource}`", ", ".join(verbs), line.what


def _field(path: str) -> str:
    """`spec.volumes.emptyDir` of `spec/template/spec/volumes/0/emptyDir`: of pods, their own fields."""
    path = re.sub(r"/\d+\b", "", path.removeprefix("spec/template/spec/"))
    return path.replace("/", ".").replace("~1", "/")
