"""Policies with values other than those of `test_rights`, by Google's evaluator of expressions."""

import re
from typing import Any

import pytest
from support.chart_values import Values
from support.helm import NAMESPACE, Object, Release
from support.policies import refusing, user_info
from support.rights import changed, daemons_of, world
from support.rows import slow_but

from controller.classes import wanted_class
from dra_driver.apirules.schema import definitions

pytest.importorskip("cel_expr_python.cel", reason="Google's evaluator is not installed")

PLUGIN, CONTROLLER = (
    f"system:serviceaccount:{NAMESPACE}:gpu-dra-driver-{name}" for name in ("kubelet-plugin", "controller")
)
DRIVER, DOMAINS = "gpu.nvidia.com", "compute-domain.nvidia.com"
SLICE = world()["resourceslices", "node-1"]
GROUPS = {"daemonsets": "apps", "events": "events.k8s.io", "nodeinventories": "dra.gpu"}

type Render = Any


def refused(
    release: Release,
    user: str,
    resource: str,
    obj: Object,
    operation: str = "CREATE",
    node: str = "",
    dry_run: bool = False,
) -> dict[str, str]:
    """What the policies say about an object that is made, or goes."""
    request: dict[str, Any] = {"userInfo": user_info(user, node or None), "operation": operation}
    request |= {"name": obj["metadata"]["name"], "namespace": obj["metadata"].get("namespace", "")}
    old, new = ({}, obj) if operation == "CREATE" else (obj, {})
    group = GROUPS.get(resource, "resource.k8s.io")
    return refusing(release, group, resource, {**request, "dryRun": dry_run}, old, new)


@pytest.mark.parametrize(
    ("values", "user", "driver", "allowed"),
    [
        ({"publisher": "node"}, CONTROLLER, DRIVER, False),
        # The account of another pod on the node.
        ({"publisher": "node"}, "system:serviceaccount:a:a", DRIVER, False),
        ({"publisher": "node"}, PLUGIN, DRIVER, True),
        # Where we keep no domains, another driver may.
        ({"publisher": "node"}, PLUGIN, DOMAINS, False),
        ({"publisher": "node"}, "admin", DOMAINS, True),
        ({"featureGates": {"ComputeDomains": False}}, "admin", DOMAINS, True),
        ({"featureGates": {"ComputeDomains": False}}, CONTROLLER, DRIVER, True),
    ],
)
def test_slices_are_written_by_who_publishes(
    values: Values, user: str, driver: str, allowed: bool, render: Render
) -> None:
    obj = changed(SLICE, {"spec/driver": driver})
    assert bool(refused(render(values), user, "resourceslices", obj, node="node-1")) != allowed


def test_refusals_name_the_node_and_the_reason(render: Render) -> None:
    release, named = render({"publisher": "node"}), world()["nodeinventories", "node-1"]
    refusals = [refused(release, PLUGIN, "nodeinventories", named, node=node)["inventories"] for node in ("node-2", "")]
    assert refusals[0] == 'the plugin of node "node-2" may not write the inventory of another node: node-1'
    assert refusals[1] == "the token names no node; use a token that is bound to the plugin's pod"


def test_the_device_of_a_daemon_is_for_claims_in_the_drivers_namespace(render: Render) -> None:
    release, free = render(), world()["resourceclaims", "default/free"]
    daemon = changed(free, {"spec/devices/requests/0/exactly/deviceClassName": "compute-domain-daemon.nvidia.com"})
    (refusal,) = refused(release, "anyone", "resourceclaims", daemon).values()
    assert f"in namespace {NAMESPACE}, may claim devices of class compute-domain-daemon.nvidia.com" in refusal
    allowed = [
        free,
        changed(free, {"spec/devices": {}}),
        changed(free, {"spec/devices/requests": None}),
        changed(daemon, {"metadata/namespace": NAMESPACE}),
        # The API server restricts admin access to namespaces with a label; it keeps no daemon from the device.
        changed(daemon, {"spec/devices/requests/0/exactly/adminAccess": True}),
    ]
    assert [refused(release, "anyone", "resourceclaims", claim) for claim in allowed] == [{}] * len(allowed)
    host_imex = {"featureGates": {"HostManagedIMEXDaemon": True}}
    assert refused(render(host_imex), "anyone", "resourceclaims", daemon) == {}


def test_an_event_names_a_node_as_long_as_the_field_is(render: Render) -> None:
    long, event = "n" * 200, changed(world()["events", "default/plugins"], {"reportingInstance": "n" * 128})
    assert not refused(render(), PLUGIN, "events", event, node=long)
    assert refused(render(), PLUGIN, "events", event, node="n" * 127)


def test_policies_name_the_accounts_that_are_rendered(render: Render) -> None:
    """With whatever names: NVIDIA's own policy compares with an account that nobody has."""
    release = render({"serviceAccounts": {"kubeletPlugin": "p", "controller": "c"}, "fullnameOverride": "other"})
    users = [f"system:serviceaccount:{NAMESPACE}:{name}" for name in ("p", "c")]
    assert release.object("DaemonSet")["spec"]["template"]["spec"]["serviceAccountName"] == "p"
    assert release.object("Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == "c"
    assert refused(release, users[0], "resourceslices", SLICE, node="node-1")
    assert not refused(release, users[1], "resourceslices", SLICE)
    assert refused(release, users[0], "nodeinventories", world()["nodeinventories", "node-2"], node="node-1")


@pytest.mark.parametrize(
    "values",
    [
        {"imagePullSecrets": [{"name": "a"}, {"name": "b"}]},
        {"driverName": "gpu.example.com", "image": {"repository": "registry.example.com/a", "tag": "b"}},
        *slow_but(
            [
                {"computeDomains": {"priorityClassName": "", "resources": {"requests": None}}},
                {"computeDomains": {"resources": {"limits": {"cpu": 1, "memory": "1Gi"}}}, "logLevel": "debug"},
            ]
        ),
    ],
)
def test_the_controllers_own_daemons_and_classes_pass_whatever_is_set(values: Values, render: Render) -> None:
    release = render(values)
    daemons, _ = daemons_of(release)
    assert not refused(release, CONTROLLER, "daemonsets", daemons)
    assert refused(release, CONTROLLER, "daemonsets", changed(daemons, {"spec/template/spec/hostPID": True}))
    for profile in ("1g.10gb", "1c.2g.20gb+me", "1g.5gb+me.all", "2g.20gb-me"):
        made = wanted_class(profile, values.get("driverName", DRIVER), extended_resource=True)
        assert not refused(release, CONTROLLER, "deviceclasses", made)


HARMLESS = {
    "PodSpec": {
        "automountServiceAccountToken": "the account may only read domains",
        "dnsPolicy": "name servers are refused",
        "enableServiceLinks": "variables with addresses",
        "ephemeralContainers": "no template has any",
        "schedulingGroup": "the pod waits for the others of its group",
        "serviceAccount": "the server sets it to serviceAccountName",
        "terminationGracePeriodSeconds": "the pod ends later",
    },
    "Container": {
        "imagePullPolicy": "of the driver's image",
        "stdin": "of the daemon",
        "stdinOnce": "of the daemon",
        "terminationMessagePath": "in the container",
        "terminationMessagePolicy": "text in the status",
        "tty": "of the daemon",
        "volumeMounts": "volumes are empty folders",
    },
    "PodSecurityContext": {},
    "SecurityContext": {},
}


@pytest.mark.parametrize("kind", HARMLESS)
def test_each_field_of_the_newest_kubernetes_is_restricted_for_daemons_or_known_to_be_harmless(
    kind: str, render: Render
) -> None:
    (policy,) = [
        policy
        for policy in render().all("ValidatingAdmissionPolicy")
        if policy["metadata"]["name"].endswith("-daemons")
    ]
    restricted = set(
        re.findall(r"\w+", " ".join(validation["expression"] for validation in policy["spec"]["validations"]))
    )
    fields = definitions()[f"io.k8s.api.core.v1.{kind}"]["properties"].keys()
    assert fields - restricted == HARMLESS[kind].keys()


def test_where_nodes_run_imex_themselves_the_controller_makes_no_daemon_set(render: Render) -> None:
    """And is held to taking down those of before."""
    release = render({"featureGates": {"HostManagedIMEXDaemon": True}})
    (role,) = [role for role in release.all("Role") if role["metadata"]["name"].endswith("-controller")]
    (rule,) = [rule for rule in role["rules"] if rule["resources"] == ["daemonsets"]]
    assert sorted(rule["verbs"]) == ["delete", "list", "watch"]
    assert refused(release, CONTROLLER, "daemonsets", release.object("DaemonSet"), "DELETE")


@pytest.mark.parametrize("profiles", slow_but([True, False], True))
def test_the_webhook_makes_a_device_class_in_dry_runs(profiles: bool, render: Render) -> None:
    release = render({"webhook": {"install": True}, "featureGates": {"MigProfileClasses": profiles}})
    other = world()["deviceclasses", "gpu.example.com"]
    assert not refused(release, CONTROLLER, "deviceclasses", other, dry_run=True)
    assert refused(release, CONTROLLER, "deviceclasses", other)


@pytest.mark.parametrize(
    ("values", "missing"),
    [
        ({}, set()),
        ({"featureGates": {"MigProfileClasses": False, "MigExtendedResources": False}}, {"classes"}),
        ({"featureGates": {"ComputeDomains": False}}, {"nodes", "daemons", "domains", "templates"}),
    ],
)
def test_a_policy_is_there_where_the_permission_is(values: Values, missing: set[str], render: Render) -> None:
    parts = {"confirmations", "classes", "nodes", "daemons", "domains", "templates", "reports"}
    release = render(values)
    for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
        names = {policy["metadata"]["name"].rpartition("-")[2] for policy in release.all(kind)}
        assert names & parts == parts - missing
    if "daemons" in missing:
        rules = [rule for kind in ("ClusterRole", "Role") for role in release.all(kind) for rule in role["rules"]]
        assert not [rule for rule in rules if "daemonsets" in rule["resources"]]
        assert not [rule for rule in rules if "nodes" in rule["resources"] and "patch" in rule["verbs"]]
