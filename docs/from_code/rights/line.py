"""The type of a line in the table of rights, and values that many lines share."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any


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
