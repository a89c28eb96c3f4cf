"""What the admission policies say, by Google's evaluator of expressions; test_admission.py asks a real API server."""

from typing import Any

import pytest
from support.chart_values import Values
from support.helm import NAMESPACE, Object
from support.policies import refusals

pytest.importorskip("cel_expr_python.cel", reason="Google's evaluator is not installed")

PLUGIN = f"system:serviceaccount:{NAMESPACE}:gpu-dra-driver-kubelet-plugin"
CONTROLLER = f"system:serviceaccount:{NAMESPACE}:gpu-dra-driver-controller"
DRIVER = "gpu.nvidia.com"
DOMAINS = "compute-domain.nvidia.com"

type Render = Any


def named(name: str) -> Object:
    return {"metadata": {"name": name}}


def resource_slice(node: str | None, driver: str = DRIVER, pool: str | None = None) -> Object:
    place = {"allNodes": True} if node is None else {"nodeName": node}
    return {**named("slice"), "spec": {"driver": driver, "pool": {"name": pool or node or "all"}, **place}}


def claim(node: str, *, devices: list[str] | None = None, allocated: bool = True, **status: Any) -> Object:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    allocation = {"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}}
    found = {**({"allocation": allocation} if allocated else {}), **status}
    if devices is not None:
        found["devices"] = [{"driver": driver} for driver in devices]
    return {**named("claim"), "status": found}


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE", "DELETE"])
def test_inventories_are_their_nodes(operation: str, render: Render) -> None:
    release, objects = render(), {"old" if operation == "DELETE" else "new": named("node-1")}

    def said(user: str, node: str | None) -> list[str]:
        return refusals(release, "-inventories", user, node, operation=operation, **objects)

    assert said(PLUGIN, "node-1") == []
    assert "may not write the inventory of another: node-1" in said(PLUGIN, "node-2")[0]
    assert "names no node" in said(PLUGIN, None)[0]
    assert said(CONTROLLER, None) == said("admin", None) == []


def test_an_inventory_goes_with_its_node(render: Render) -> None:
    """A finalizer of it would keep its definition, and with that the release, from going."""
    release, owner = render(), {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "1"}

    def allowed(new: Object, **old: Object) -> bool:
        operation = "UPDATE" if old else "CREATE"
        return not refusals(release, "-inventories", PLUGIN, "node-1", operation=operation, new=new, **old)

    def inventory(**metadata: Any) -> Object:
        return {"metadata": {"name": "node-1", **metadata}}

    deleting = inventory(finalizers=["foregroundDeletion"])
    assert allowed(inventory(ownerReferences=[owner])) and allowed(inventory(), old=inventory())
    assert allowed(deleting, old=deleting) and not allowed(deleting) and not allowed(deleting, old=inventory())
    for worse in ({"name": "node-2"}, {"kind": "Pod"}, {"blockOwnerDeletion": True}):
        assert not allowed(inventory(ownerReferences=[owner, owner | worse])), worse


CASES: list[tuple[Values, str, str | None, str, Object, bool]] = [
    ({}, CONTROLLER, None, "CREATE", resource_slice("node-1"), True),
    ({}, CONTROLLER, None, "CREATE", resource_slice("node-1", "other"), False),
    ({}, CONTROLLER, None, "DELETE", resource_slice("node-1", "other"), False),
    ({}, PLUGIN, "node-1", "CREATE", resource_slice("node-1"), False),
    ({}, "admin", None, "CREATE", resource_slice("node-1"), False),
    ({}, "admin", None, "CREATE", resource_slice("node-1", "other"), True),
    ({}, "system:node:node-1", None, "DELETE", resource_slice("node-1"), True),
    ({"publisher": "node"}, PLUGIN, "node-1", "CREATE", resource_slice("node-1"), True),
    ({"publisher": "node"}, PLUGIN, "node-1", "DELETE", resource_slice("node-1"), True),
    ({"publisher": "node"}, PLUGIN, "node-1", "CREATE", resource_slice("node-2"), False),
    ({"publisher": "node"}, PLUGIN, "node-1", "DELETE", resource_slice("node-2"), False),
    ({"publisher": "node"}, PLUGIN, "node-1", "CREATE", resource_slice(None), False),
    # Of a newer generation it would make the slices of the other node count for nothing.
    ({"publisher": "node"}, PLUGIN, "node-1", "CREATE", resource_slice("node-1", pool="node-2"), False),
    ({"publisher": "node"}, PLUGIN, "node-1", "DELETE", resource_slice("node-1", pool="node-2"), True),
    ({"publisher": "node"}, PLUGIN, None, "CREATE", resource_slice("node-1"), False),
    # The account of another pod on the node.
    ({"publisher": "node"}, "system:serviceaccount:a:a", "node-1", "CREATE", resource_slice("node-1"), False),
    ({"publisher": "node"}, PLUGIN, "node-1", "CREATE", resource_slice("node-1", "other"), False),
    ({"publisher": "node"}, CONTROLLER, None, "CREATE", resource_slice("node-1"), False),
    ({}, CONTROLLER, None, "CREATE", resource_slice("node-1", DOMAINS), True),
    ({}, "admin", None, "CREATE", resource_slice("node-1", DOMAINS), False),
    # Where we keep no domains, another driver may.
    ({"publisher": "node"}, PLUGIN, "node-1", "CREATE", resource_slice("node-1", DOMAINS), False),
    ({"publisher": "node"}, "admin", None, "CREATE", resource_slice("node-1", DOMAINS), True),
    ({"featureGates": {"ComputeDomains": False}}, "admin", None, "CREATE", resource_slice("node-1", DOMAINS), True),
]


@pytest.mark.parametrize(("values", "user", "node", "operation", "obj", "allowed"), CASES)
def test_slices_are_written_by_who_publishes(
    values: Values, user: str, node: str | None, operation: str, obj: Object, allowed: bool, render: Render
) -> None:
    objects = {"old" if operation == "DELETE" else "new": obj}
    assert (refusals(render(values), "-slices", user, node, operation=operation, **objects) == []) == allowed


def test_a_token_that_names_no_node_is_told_so_when_it_writes_slices(render: Render) -> None:
    (first, *_) = refusals(render({"publisher": "node"}), "-slices", PLUGIN, None, new=resource_slice("node-1"))
    assert first == "the token names no node; the plugin's must be bound to its pod"


def test_the_status_of_claims_is_written_by_the_plugin_of_their_node(render: Render) -> None:
    release = render()

    def allowed(old: Object, new: Object, user: str = PLUGIN, node: str | None = "node-1") -> bool:
        return refusals(release, "-claim-status", user, node, operation="UPDATE", new=new, old=old) == []

    before = claim("node-1")
    assert allowed(before, claim("node-1", devices=[DRIVER]))
    assert allowed(claim("node-1", devices=[DRIVER, "nic"]), claim("node-1", devices=["nic"]))
    assert not allowed(before, claim("node-1", devices=[DRIVER, "nic"]))
    assert not allowed(claim("node-1", devices=["nic"]), before)
    assert not allowed(claim("node-2"), claim("node-2", devices=[DRIVER]))
    assert not allowed(before, claim("node-1", allocated=False))
    assert not allowed(claim("node-1", allocated=False), before)
    assert not allowed(before, claim("node-1", reservedFor=[{"name": "a"}]))
    assert not allowed(before, claim("node-1", devices=[DRIVER]), node=None)
    assert not allowed(named("claim"), claim("node-1", devices=[DRIVER]))
    # The scheduler and everybody else: not our business.
    assert allowed(claim("node-2", allocated=False), claim("node-2"), user="system:kube-scheduler", node=None)


def event(kind: str = "Pod", name: str = "a", instance: str = "node-1", driver: str = DRIVER) -> Object:
    regarding = {"kind": kind, "name": name}
    reporting = {"reportingController": f"{driver}/kubelet-plugin", "reportingInstance": instance}
    return {**named("event"), **reporting, "regarding": regarding}


def test_a_plugin_tells_events_in_its_own_name_and_of_nodes_about_its_own(render: Render) -> None:
    release, long = render(), "n" * 200

    def said(new: Object, node: str | None = "node-1", user: str = PLUGIN, **old: Object) -> list[str]:
        operation = "UPDATE" if old else "CREATE"
        return refusals(release, "-events", user, node, operation=operation, new=new, **old)

    for mine in (event(), event("ResourceClaim"), event("Node", "node-1")):
        assert said(mine) == said(mine, old=mine) == []
    assert said(event(instance=long[:128]), long) == []
    for other in (event(instance="node-2"), event(instance="node"), event(driver="other"), named("event")):
        assert "tells Events in its own name alone" in said(other)[0]
    assert said(event(), None) and said(event(), old=event(instance="node-2"))
    assert said(event("Node", "node-2")) and said(event("Secret"))
    assert said(event(instance="node-2"), None, CONTROLLER) == []


def test_policies_name_the_accounts_that_are_rendered(render: Render) -> None:
    """With whatever names: NVIDIA's own policy compares with an account that nobody has."""
    release = render({"serviceAccounts": {"kubeletPlugin": "p", "controller": "c"}, "fullnameOverride": "other"})
    users = [f"system:serviceaccount:{NAMESPACE}:{name}" for name in ("p", "c")]
    assert release.one("DaemonSet")["spec"]["template"]["spec"]["serviceAccountName"] == "p"
    assert release.one("Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "c"
    assert refusals(release, "-slices", users[0], "node-1", new=resource_slice("node-1"))
    assert not refusals(release, "-slices", users[1], None, new=resource_slice("node-1"))
    assert refusals(release, "-inventories", users[0], "node-1", new=named("node-2"))
