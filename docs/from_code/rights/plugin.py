"""Rights of the node plugin."""

from collections.abc import Iterator

from docs.from_code.rights.line import (
    ALLOCATION,
    BINDING,
    CLAIM_STATUS,
    CLAIMS,
    CONDITIONS,
    CONSUMER,
    COUNTED,
    DOMAINS,
    DRIVER_ENTRIES,
    EVENTS,
    FINALIZER,
    FOREIGN_ENTRY,
    IGNORED,
    INVENTORIES,
    INVENTORY_STATUS,
    METADATA,
    ONLY_CONTROLLER,
    ONLY_NODE,
    OWN_ENTRY,
    POLICIES,
    RBAC,
    SLICES,
    SPEC_OF_INVENTORY,
    UNALLOCATED,
    VALIDATION,
    Account,
    Changes,
    Line,
    entry,
    event,
    owners,
)

# One line is one statement; the formatter would spread each over many lines.
# fmt: off


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
