"""What the admission policies leave the controller's account, by Google's evaluator of expressions.

`test_admission` asks a real API server the same with a token.
"""

from typing import Any

import pytest
from support.chart_values import Values
from support.helm import NAMESPACE, Object, Release
from support.policies import refusals

from controller.classes import wanted_class
from controller.settings import read_settings
from dra_driver.api.computedomain import ComputeDomain
from dra_driver.domains.names import FINALIZER
from dra_driver.domains.objects import DaemonSettings, daemon_set, daemon_template, workload_template

pytest.importorskip("cel_expr_python.cel", reason="Google's evaluator is not installed")

CONTROLLER = f"system:serviceaccount:{NAMESPACE}:gpu-dra-driver-controller"
DRIVER = "gpu.nvidia.com"

type Render = Any


DOMAIN_LABEL = "resource.nvidia.com/computeDomain"


def node(*, spec: Object | None = None, **metadata: Any) -> Object:
    return {"metadata": {"name": "node-1", **metadata}, "spec": spec or {}}


def test_of_a_node_the_controller_changes_the_label_of_its_domain(render: Render) -> None:
    release = render()

    def allowed(old: Object, new: Object, user: str = CONTROLLER) -> bool:
        return refusals(release, "-nodes", user, None, operation="UPDATE", new=new, old=old) == []

    there, zone = {DOMAIN_LABEL: "1"}, {"zone": "a"}
    for old, new in (({}, there), (there, {}), (there, {DOMAIN_LABEL: "2"}), (zone, {**zone, **there})):
        assert allowed(node(labels=old), node(labels=new))
    assert allowed(node(), node(labels=there))
    assert not allowed(node(labels=zone), node(labels=there))
    assert not allowed(node(), node(labels=zone))
    assert not allowed(node(labels=zone), node(labels={"zone": "b"}))
    for changed in (
        node(spec={"unschedulable": True}),
        node(annotations={"a": "b"}),
        node(finalizers=["a"]),
        # The garbage collector deletes what belongs to nothing that exists.
        node(ownerReferences=[{"kind": "Pod", "name": "gone", "uid": "1"}]),
    ):
        assert not allowed(node(), changed)
        assert allowed(node(), changed, user="admin")


def settings_of(release: Release) -> DaemonSettings:
    arguments = release.one("Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    return read_settings([*arguments, f"--lease-namespace={NAMESPACE}"], {}).daemons


def a_domain() -> ComputeDomain:
    metadata = {"name": "train", "namespace": "team", "uid": "11111111-2222-4333-8444-555555555555"}
    return ComputeDomain.of({"metadata": metadata, "spec": {"channel": {"resourceClaimTemplate": {"name": "train"}}}})


def a_daemon_set(release: Release) -> Object:
    """As the controller makes it."""
    return daemon_set(a_domain(), settings_of(release))


WORSE: list[Object] = [
    {"serviceAccountName": "gpu-dra-driver-kubelet-plugin"},
    {"hostNetwork": True},
    {"hostPID": True},
    {"hostIPC": True},
    {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]},
    {"initContainers": [{"name": "a", "image": "a"}]},
    # One that gives containers GPUs.
    {"runtimeClassName": "nvidia"},
    {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu-dra-driver-test"}]},
    {"resourceClaims": [{"name": "gpu", "resourceClaimName": "of-somebody"}]},
    {"priorityClassName": "system-cluster-critical"},
    {"priorityClassName": None},
    {"tolerations": [{"key": "a", "operator": "Exists"}]},
    {"nodeSelector": None},
    {"nodeSelector": {"a": "b"}},
    {"nodeName": "node-1"},
    {"affinity": {"nodeAffinity": {}}},
    {"schedulerName": "another"},
    {"hostUsers": False},
    {"shareProcessNamespace": True},
    {"imagePullSecrets": [{"name": "others"}]},
    {"volumes": [{"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}]},
    {"volumes": [{"name": "tmp", "emptyDir": {}}]},
    *(
        {"securityContext": context}
        for context in (
            {"seLinuxOptions": {"type": "spc_t"}},
            {"seccompProfile": {"type": "Unconfined"}},
            {"appArmorProfile": {"type": "Unconfined"}},
            {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]},
            {"supplementalGroups": [0]},
        )
    ),
]
WORSE_CONTAINERS: list[Object] = [
    {"image": "other"},
    {"securityContext": None},
    {"securityContext": {"privileged": True}},
    {"securityContext": {"capabilities": {"drop": ["ALL"]}}},
    {"securityContext": {"allowPrivilegeEscalation": True, "capabilities": {"drop": ["ALL"]}}},
    {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"add": ["SYS_ADMIN"], "drop": ["ALL"]}}},
    {
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"add": ["DAC_OVERRIDE", "SYS_ADMIN"], "drop": ["ALL"]},
        }
    },
    {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["KILL"]}}},
    {"securityContext": {"allowPrivilegeEscalation": False}},
    {"env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "others", "key": "password"}}}]},
    {"env": [{"name": "KEY", "valueFrom": {"configMapKeyRef": {"name": "others", "key": "password"}}}]},
    {"envFrom": [{"secretRef": {"name": "others"}}]},
    {"command": ["/bin/sh"]},
    {"command": None},
    {"args": ["--domain=a/b", "--log-file=/x"]},
    {"ports": [{"containerPort": 80, "hostPort": 80}]},
    {"lifecycle": {"postStart": {"exec": {"command": ["sh"]}}}},
    {"workingDir": "/"},
    {"livenessProbe": {"exec": {"command": ["sh"]}}},
    {"readinessProbe": {"httpGet": {"host": "10.0.0.1", "port": 80}}},
    {"resources": {"limits": {"nvidia.com/gpu": "8"}}},
    {"resources": {"requests": {"ephemeral-storage": "1Gi"}}},
    # NVIDIA's runtime, where it is the node's default, gives such a container all GPUs.
    {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]},
]


WORSE_CONTEXTS: list[Object] = [
    {"seLinuxOptions": {"type": "spc_t"}},
    {"seccompProfile": {"type": "Unconfined"}},
    {"appArmorProfile": {"type": "Unconfined"}},
    {"procMount": "Unmasked"},
    {"readOnlyRootFilesystem": False},
    {"runAsGroup": 0},
]


def test_of_daemon_sets_the_controller_makes_daemons_without_privileges(render: Render) -> None:
    release = render()

    def allowed(new: Object, user: str = CONTROLLER) -> bool:
        return refusals(release, "-daemons", user, None, new=new) == []

    def changed(**pod: Any) -> Object:
        made = a_daemon_set(release)
        wanted = {**made["spec"]["template"]["spec"], **pod}
        made["spec"]["template"]["spec"] = {key: value for key, value in wanted.items() if value is not None}
        return made

    assert allowed(a_daemon_set(release))
    for worse in WORSE:
        assert not allowed(changed(**worse)), worse
        assert allowed(changed(**worse), user="admin")
    (container,) = a_daemon_set(release)["spec"]["template"]["spec"]["containers"]
    for worse in WORSE_CONTAINERS:
        kept = {key: value for key, value in {**container, **worse}.items() if value is not None}
        assert not allowed(changed(containers=[kept])), worse
    for worse in WORSE_CONTEXTS:
        kept = {**container, "securityContext": {**container["securityContext"], **worse}}
        assert not allowed(changed(containers=[kept])), worse
    assert not allowed(changed(containers=[container, {**container, "name": "b"}]))
    assert not allowed(changed(containers=[])), "an API server refuses that by itself, too"
    annotated = a_daemon_set(release)
    annotated["spec"]["template"]["metadata"]["annotations"] = {"cdi.k8s.io/a": "nvidia.com/gpu=all"}
    assert not allowed(annotated)
    other = a_daemon_set(release)
    other["metadata"]["name"] = "miner"
    assert not allowed(other)


@pytest.mark.parametrize(
    "values",
    [
        {"imagePullSecrets": [{"name": "a"}, {"name": "b"}]},
        {"computeDomains": {"priorityClassName": "", "resources": {"requests": None}}},
        {"computeDomains": {"resources": {"limits": {"cpu": 1, "memory": "1Gi"}}}, "logLevel": "debug"},
        {"driverName": "gpu.example.com", "image": {"repository": "registry.example.com/a", "tag": "b"}},
    ],
)
def test_the_controllers_own_daemons_and_classes_pass_whatever_is_set(values: Values, render: Render) -> None:
    release = render(values)
    assert refusals(release, "-daemons", CONTROLLER, None, new=a_daemon_set(release)) == []
    driver = values.get("driverName", DRIVER)
    for profile in ("1g.10gb", "1c.2g.20gb+me", "1g.5gb+me.all", "2g.20gb-me"):
        made = wanted_class(profile, driver, extended_resource=True)
        assert refusals(release, "-classes", CONTROLLER, None, new=made) == []


def test_of_daemon_sets_the_controller_takes_down_those_of_domains(render: Render) -> None:
    """Else it could end every plugin of the cluster."""
    release = render()
    for obj, said in ((a_daemon_set(release), 0), (release.one("DaemonSet"), 1)):
        assert len(refusals(release, "-daemons", CONTROLLER, None, operation="DELETE", old=obj)) == said
    plugin = release.one("DaemonSet")
    assert not refusals(release, "-daemons", "admin", None, operation="DELETE", old=plugin)


def test_where_nodes_run_imex_themselves_the_controller_makes_no_daemon_set(render: Render) -> None:
    """And is held to taking down those of before."""
    release = render({"featureGates": {"HostManagedIMEXDaemon": True}})
    (role,) = [one for one in release.all("Role") if one["metadata"]["name"].endswith("-controller")]
    (rule,) = [one for one in role["rules"] if one["resources"] == ["daemonsets"]]
    assert sorted(rule["verbs"]) == ["delete", "list", "watch"]
    assert refusals(release, "-daemons", CONTROLLER, None, operation="DELETE", old=release.one("DaemonSet"))


def inventory(**metadata: Any) -> Object:
    gpus = metadata.pop("gpus", [])
    return {"metadata": {"name": "node-1", **metadata}, "spec": {"nodeName": "node-1", "gpus": gpus}}


def test_of_an_inventory_the_controller_asks_for_a_sign_of_life(render: Render) -> None:
    release, asked = render(), {f"confirm.dra.gpu/{DRIVER}": "2026-01-01T00:00:00.000000Z"}

    def allowed(old: Object, new: Object, user: str = CONTROLLER) -> bool:
        return refusals(release, "-confirmations", user, None, operation="UPDATE", new=new, old=old) == []

    other = {"note": "a"}
    assert allowed(inventory(), inventory(annotations=asked))
    assert allowed(inventory(annotations=other), inventory(annotations=other | asked))
    for changed in (
        inventory(gpus=[{"uuid": "GPU-1"}]),
        inventory(annotations=asked),
        inventory(annotations={"note": "b"}),
        inventory(annotations=other | {"more": "b"}),
        inventory(annotations=other, labels={"a": "b"}),
        inventory(annotations=other, finalizers=["a"]),
        inventory(annotations=other, ownerReferences=[{"kind": "Node", "name": "node-2", "uid": "2"}]),
    ):
        assert not allowed(inventory(annotations=other), changed), changed
        assert allowed(inventory(annotations=other), changed, user="admin")


def test_of_device_classes_the_controller_writes_those_of_mig_profiles(render: Render) -> None:
    release = render({"featureGates": {"MigExtendedResources": True}})

    def said(new: Object, user: str = CONTROLLER, **more: Any) -> list[str]:
        return refusals(release, "-classes", user, None, new=new, **more)

    mine = wanted_class("1g.10gb", DRIVER, extended_resource=True)
    assert said(mine) == said(mine, operation="UPDATE", old=mine) == []
    unlabelled = {**mine, "metadata": {"name": mine["metadata"]["name"]}}
    theirs = {**mine, "metadata": {**mine["metadata"], "name": "gpu.example.com"}}
    for other in (unlabelled, theirs):
        assert "those of MIG profiles alone" in said(other)[0]
    assert "somebody else has made" in said(mine, operation="UPDATE", old=unlabelled)[0]
    anything = [{"cel": {"expression": "true"}}]
    for spec in (
        {"selectors": anything},
        {},
        *(
            {"selectors": [{"cel": {"expression": expression}}]}
            for expression in (
                f"device.driver == '{DRIVER}' && false || device.driver == 'other'",
                f"{mine['spec']['selectors'][0]['cel']['expression']} || true",
                f"{mine['spec']['selectors'][0]['cel']['expression']}\n|| true",
            )
        ),
        {"selectors": [*mine["spec"]["selectors"], *anything]},
        {**mine["spec"], "extendedResourceName": "nvidia.com/mig-1g.10gb/x"},
        {**mine["spec"], "config": [{"opaque": {"driver": DRIVER, "parameters": {}}}]},
        {**mine["spec"], "extendedResourceName": "nvidia.com/gpu"},
    ):
        assert "configure nothing" in said({**mine, "spec": spec})[0]
        assert not said({**mine, "spec": spec}, user="admin")


@pytest.mark.parametrize("profiles", [True, False])
def test_the_webhook_makes_a_device_class_in_dry_runs(profiles: bool, render: Render) -> None:
    release = render({"webhook": {"install": True}, "featureGates": {"MigProfileClasses": profiles}})
    other = {"metadata": {"name": "probe.example"}, "spec": {}}
    assert not refusals(release, "-classes", CONTROLLER, None, dry_run=True, new=other)
    assert refusals(release, "-classes", CONTROLLER, None, new=other)


def test_of_a_domain_the_controller_changes_its_finalizer(render: Render) -> None:
    release = render()

    def domain(spec: Object | None = None, **metadata: Any) -> Object:
        return {"metadata": {"name": "train", **metadata}, "spec": spec or {"numNodes": 0}}

    def allowed(old: Object, new: Object, user: str = CONTROLLER) -> bool:
        return refusals(release, "-domains", user, None, operation="UPDATE", new=new, old=old) == []

    others = domain(finalizers=["foregroundDeletion"])
    assert allowed(domain(), domain(finalizers=[FINALIZER]))
    assert allowed(domain(finalizers=[FINALIZER]), domain())
    assert allowed(domain(finalizers=["foregroundDeletion", FINALIZER]), others)
    assert not allowed(others, domain())
    for changed in (
        domain({"numNodes": 2}),
        domain(finalizers=["a"]),
        domain(labels={"a": "b"}),
        domain(annotations={"a": "b"}),
        domain(ownerReferences=[{"kind": "Pod", "name": "gone", "uid": "1"}]),
    ):
        assert not allowed(domain(), changed), changed
        assert allowed(domain(), changed, user="admin")


def test_of_claim_templates_the_controller_makes_and_takes_away_those_of_domains(render: Render) -> None:
    release = render()

    def said(user: str = CONTROLLER, operation: str = "CREATE", **objects: Object) -> list[str]:
        return refusals(release, "-templates", user, None, operation=operation, **objects)

    theirs: Object = {"metadata": {"name": "gpus"}, "spec": {"spec": {"devices": {"requests": []}}}}
    mine = [workload_template(a_domain(), several_channels=several) for several in (True, False)]
    for made in (*mine, daemon_template(a_domain(), settings_of(release))):
        assert said(new=made) == said(operation="DELETE", old=made) == []
    assert "those of ComputeDomains alone" in said(operation="DELETE", old=theirs)[0]
    assert said(new=theirs) and not said("admin", "DELETE", old=theirs) and not said("admin", new=theirs)
    exactly = {"deviceClassName": "gpu.nvidia.com"}
    channel = {"deviceClassName": "compute-domain-default-channel.nvidia.com"}
    opaque = {"driver": "gpu.nvidia.com", "parameters": {}}
    for devices in (
        {"requests": [{"name": "gpu", "exactly": exactly}]},
        {"requests": [{"name": "gpu", "firstAvailable": [exactly]}]},
        {"requests": [{"name": "gpu", "exactly": channel | {"adminAccess": True}}]},
        {"requests": [{"name": "gpu", "exactly": channel}], "config": [{"opaque": opaque}]},
    ):
        worse = {**mine[0], "spec": {"spec": {"devices": devices}}}
        assert "for nothing else" in said(new=worse)[0], devices


def test_the_controller_tells_events_in_its_own_name_about_domains(render: Render) -> None:
    release = render()

    def said(new: Object, user: str = CONTROLLER, **old: Object) -> list[str]:
        return refusals(release, "-reports", user, None, operation="UPDATE" if old else "CREATE", new=new, **old)

    def event(kind: str = "ComputeDomain", controller: str = f"{DRIVER}/controller") -> Object:
        return {"metadata": {"name": "e"}, "reportingController": controller, "regarding": {"kind": kind}}

    assert said(event()) == said(event(), old=event()) == []
    theirs = event(controller=f"{DRIVER}/kubelet-plugin")
    for other in (event("Pod"), theirs, {"metadata": {"name": "e"}}):
        assert said(other) and not said(other, "admin")
    assert said(event(), old=theirs)


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
        found = {one["metadata"]["name"].rpartition("-")[2] for one in release.all(kind)}
        assert found & parts == parts - missing
