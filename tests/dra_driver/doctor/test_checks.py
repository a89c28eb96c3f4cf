"""Every check is quiet about a healthy installation, and says what is wrong with one that is not."""

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from support.installation import NAMESPACE, NODES, NOW, REGISTERED, Installation, Obj, account
from support.inventories import gpu_instance, mig
from support.rows import rows

from controller.webhook.certificates import Lifetimes, new_certificate
from dra_driver.cli.doctor import shipped_checks
from dra_driver.doctor.cluster import AccessCheck, KubeletSeen, ReleaseSeen, ServerSeen, WebhookAnswer
from dra_driver.doctor.findings import Diagnosis, SeenKind, Unread, Verdict, examined
from dra_driver.slices.features import ServerFeatures
from kubelet_plugin.reporting.events import Reason

CHECKS = shipped_checks()
TROUBLES = {f"{check.name}/{trouble.code}": trouble for check in CHECKS for trouble in check.troubles}


def troubles(installation: Installation) -> list[Diagnosis]:
    return [finding for finding in examined(CHECKS, installation.cluster) if finding.verdict is not Verdict.OK]


def codes(installation: Installation) -> set[str]:
    return {f"{finding.check}/{finding.trouble}" for finding in troubles(installation)}


@dataclass(frozen=True)
class Case:
    """What is done to a healthy installation, and the troubles that are found then, these and no others."""

    expected: frozenset[str]
    break_it: Callable[[Installation], object]


CASES: list[Case] = []
DOMAINS = "compute-domain-kubelet-plugin"
"""A program of NVIDIA's own driver."""


def finds(*names: str) -> Callable[[Callable[[Installation], object]], Callable[[Installation], object]]:
    def remember(break_it: Callable[[Installation], object]) -> Callable[[Installation], object]:
        CASES.append(Case(frozenset(names), break_it))
        return break_it

    return remember


# -- the API server


@finds("server-version/too-old", "kubelets/newer-than-server")
def old_server(it: Installation) -> None:
    it.know(server=replace(it.facts.server, version="v1.33.1"))


@finds("server-version/too-new")
def new_server(it: Installation) -> None:
    it.know(server=replace(it.facts.server, version="v1.38.0-alpha.1"))


@finds("features/")
def nothing_known_of_gates(it: Installation) -> None:
    probe = Unread("slices", "forbidden", "create resourceslices.resource.k8s.io")
    it.know(features=SeenKind((), probe), gates=SeenKind((), Unread("feature gates", "404 page not found")))


@finds("crds/differs")
def old_definition(it: Installation) -> None:
    version = it.objects["customresourcedefinitions"]["nodeinventories.dra.gpu"]["spec"]["versions"][0]
    version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"].pop("summary")


# -- permissions


@finds("account-permissions/account")
def plugin_may_not_report(it: Installation) -> None:
    it.know(account_access=SeenKind((AccessCheck("create", "dra.gpu", "nodeinventories", False, account("plugin")),)))


# -- nodes


@finds("plugin-nodes/not-installed")
def no_plugins_and_no_reports(it: Installation) -> None:
    for plural in ("daemonsets", "nodeinventories", "resourceslices", "resourceclaims"):
        it.objects[plural] = {}
    for node in NODES:
        it.drop("pods", f"plugin-{node}")


@finds("installation/no-plugins")
def no_plugins(it: Installation) -> None:
    it.objects["daemonsets"] = {}
    for node in NODES:
        it.drop("pods", f"plugin-{node}")


ASKED_BEFORE = {
    "server-version",
    "dra-api",
    "features",
    "your-permissions",
    "installation",
    "kubelets",
    "kubelet-gates",
    "container-runtime",
    "device-plugin",
    "claims",
    "claim-deletions",
}
"""Checks that have an answer before anything of the driver is there."""
_MOOT = [f"{check.name}/" for check in CHECKS if check.name not in ASKED_BEFORE]


@finds("installation/not-installed", *_MOOT)
def no_trace_of_the_driver(it: Installation) -> None:
    for plural in it.objects.keys() - {"nodes"}:
        it.objects[plural] = {}


@finds("installation/left-over", *_MOOT)
def only_definitions_and_inventories_are_left(it: Installation) -> None:
    for plural in it.objects.keys() - {"nodes", "customresourcedefinitions", "nodeinventories"}:
        it.objects[plural] = {}


@finds("plugin-nodes/no-node", "slices-alive/plugin-gone")
def no_node_selected(it: Installation) -> None:
    for node in NODES:
        del it.node(node)["metadata"]["labels"]["nvidia.com/gpu.present"]
        it.drop("nodeinventories", node)


@finds("plugin-nodes/not-selected")
def a_node_by_another_label(it: Installation) -> None:
    it.node("plain")["metadata"]["labels"]["cloud.google.com/gke-accelerator"] = "nvidia-l4"


@finds("kubelets/too-old")
def old_kubelet(it: Installation) -> None:
    it.node()["status"]["nodeInfo"]["kubeletVersion"] = "v1.33.4"


@finds("container-runtime/no-cdi")
def runtime_without_cdi(it: Installation) -> None:
    it.node()["status"]["nodeInfo"]["containerRuntimeVersion"] = "containerd://1.6.36"


@finds("plugin-pods/not-ready")
def crashing_pod(it: Installation) -> None:
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}
    status = {"name": "plugin", "ready": False, "restartCount": 9, "state": {"waiting": waiting}}
    it.pod()["status"] = {"phase": "Running", "conditions": [], "containerStatuses": [status]}


@finds("plugin-pods/pod-security")
def restricted_namespace(it: Installation) -> None:
    it.objects["namespaces"][NAMESPACE]["metadata"]["labels"] = {"pod-security.kubernetes.io/enforce": "baseline"}


@finds("plugin-registered/before-boot")
def booted_since(it: Installation) -> None:
    it.node()["status"]["nodeInfo"]["bootID"] = "c0ffee00-0000-4000-8000-000000000000"
    it.node()["status"]["conditions"][0]["lastTransitionTime"] = "2026-03-01T11:30:00Z"


@finds("inventories/node-gone")
def inventory_of_no_node(it: Installation) -> None:
    it.inventory("gpu-2")["metadata"]["name"] = it.inventory("gpu-2")["spec"]["nodeName"] = "gone"
    it.drop("nodes", "gpu-2")
    it.drop("resourceslices", "slice-gpu-2")
    it.inventory("gpu-2")["spec"]["gpus"] = []


# -- GPUs


@finds("nvidia-driver/no-driver")
def no_driver(it: Installation) -> None:
    problem = {"subject": "driver", "reason": "DriverNotLoaded", "message": "nvidia is not loaded"}
    it.inventory()["spec"] |= {"driver": None, "problems": [problem]}


def condition(kind: str, severity: str, **fields: Any) -> Obj:
    return {"type": kind, "severity": severity, "message": "it says so", "since": "2026-03-01T10:00:00Z", **fields}


def sick(it: Installation, health_condition: Obj) -> None:
    it.inventory()["spec"]["gpus"][0]["health"] = {"healthy": False, "conditions": [health_condition]}


@finds("leftovers/mig-unused")
def unused_instance(it: Installation) -> None:
    facts = mig(enabled=True, instances=[gpu_instance("3g.40gb", 0, 4)])
    it.inventory()["spec"]["gpus"][0]["mig"] = facts.to_wire()


def limited(it: Installation, **fields: Any) -> None:
    fields = {"driver": "gpu.nvidia.com", "message": "it says so", "fix": "do this", "gpus": ["gpu-1"], **fields}
    it.inventory()["status"] = {"limitations": [fields]}


SINCE = {"lastTransitionTime": "2026-01-01T00:00:00Z"}


def gpu_policy(it: Installation, condition: str = "True", **status: Any) -> None:
    reason = {"type": "Accepted", "status": condition, "reason": "R", "message": "spec.mig.mode: wrong", **SINCE}
    metadata = {"name": "ml", "uid": "uid-ml"}
    it.add("gpupolicies", {"metadata": metadata, "spec": {}, "status": {"conditions": [reason], "gpus": 8, **status}})


@finds("gpu-policies/gate-off")
def policy_whose_gate_is_off(it: Installation) -> None:
    problem = {"rule": "mig of GpuPolicy ml", "nodes": 1, "message": "is ignored", "fix": "do this"}
    gpu_policy(it, problems=[{**problem, "reason": "FeatureGateOff"}, {**problem, "reason": "NoMig"}])


# -- the controller


@finds("controller/none")
def no_controller(it: Installation) -> None:
    it.objects["deployments"] = {}


@finds("controller/down")
def controller_down(it: Installation) -> None:
    it.objects["deployments"]["controller"]["status"] = {}
    waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
    for number in range(2):
        status = {"name": "controller", "ready": False, "state": {"waiting": waiting}}
        it.pod(f"controller-{number}")["status"] = {"phase": "Pending", "containerStatuses": [status]}


BY_DIGEST = "registry.example/gpu-dra-driver@sha256:0123"


@finds("versions/no-tag")
def image_by_digest(it: Installation) -> None:
    it.container("deployments")["image"] = BY_DIGEST


@finds("versions/skew")
def image_by_digest_of_another_release(it: Installation) -> None:
    it.container("deployments")["image"] = BY_DIGEST
    it.know(releases=SeenKind((ReleaseSeen("gpu-dra-controller", "0.0.9"),)))


@pytest.mark.parametrize("image", [BY_DIGEST, *(f"registry.example:5000/driver:{tag}" for tag in ("main", "4f2c1e0"))])
def test_an_image_whose_name_does_not_tell_is_of_the_release_that_its_pod_tells(image: str) -> None:
    it = Installation()
    it.container("deployments")["image"] = image
    it.know(releases=SeenKind((ReleaseSeen("gpu-dra-controller", it.facts.release),)))
    assert troubles(it) == []


def test_why_no_pod_could_be_asked_for_its_release_is_told() -> None:
    it = Installation()
    it.container("deployments")["image"] = BY_DIGEST
    it.know(releases=SeenKind((), Unread("metrics of pods", "forbidden", "get pods/proxy")))
    (finding,) = troubles(it)
    assert "no pod answered a request for its metrics: you may not get pods/proxy" in finding.sentence


def gates_of_kubelet(it: Installation, **gates: bool) -> None:
    it.know(kubelets=SeenKind((KubeletSeen(NODES[0], gates),)))


@finds("kubelet-gates/gate-off")
def an_older_kubelet_that_was_not_told(it: Installation) -> None:
    """Of ResourceHealthStatus: by default on in the server's release, and off in the kubelet's."""
    it.node(NODES[0])["status"]["nodeInfo"]["kubeletVersion"] = "v1.35.0"
    gates_of_kubelet(it, DRAExtendedResource=True)


def test_a_gate_that_is_off_on_both_sides_is_told_of_the_server_alone() -> None:
    it = Installation()
    it.know(gates=SeenKind((("ResourceHealthStatus", False),)))
    gates_of_kubelet(it, ResourceHealthStatus=False)
    assert codes(it) == {"features/gate-off"}


@rows(
    "version, gates, off",
    [
        ("v1.36.0", {"AllBeta": False}, {"DRAExtendedResource", "ResourceHealthStatus"}),
        ("v1.36.0", {"AllBeta": False, "DRAExtendedResource": True}, {"ResourceHealthStatus"}),
        ("v1.36.0", {"AllAlpha": False}, set()),
        ("v1.37.0", {"AllBeta": False}, {"ResourceHealthStatus"}),
        ("v1.35.0", {"AllAlpha": True}, set()),
        ("v1.35.0", {"AllAlpha": True, "ResourceHealthStatus": False}, {"ResourceHealthStatus"}),
        ("v1.35.0", {"AllBeta": True}, {"DRAExtendedResource", "ResourceHealthStatus"}),
    ],
)
def test_all_gates_of_a_stage_can_be_told_at_once(version: str, gates: Mapping[str, bool], off: set[str]) -> None:
    """The gate's own setting goes first, and AllBeta says nothing of what is stable or still alpha."""
    it = Installation()
    it.node(NODES[0])["status"]["nodeInfo"]["kubeletVersion"] = version
    gates_of_kubelet(it, **gates)
    sentences = [finding.sentence for finding in examined(CHECKS, it.cluster) if finding.check == "kubelet-gates"]
    assert {word for sentence in sentences for word in sentence.split() if word in GATES_OF_KUBELETS} == off


GATES_OF_KUBELETS = ("DRAExtendedResource", "KubeletPodResourcesDynamicResources", "ResourceHealthStatus")


@finds("kubelet-gates/not-looked-at")
def who_may_not_ask_kubelets(it: Installation) -> None:
    it.know(kubelets=SeenKind((), Unread("configurations of kubelets", "forbidden", "get nodes/proxy")))


def test_who_may_not_ask_kubelets_is_not_told_to_get_that_permission() -> None:
    it = Installation()
    who_may_not_ask_kubelets(it)
    (finding,) = [each for each in examined(CHECKS, it.cluster) if each.check == "kubelet-gates"]
    assert finding.verdict is Verdict.SKIPPED and finding.sentence.endswith("not checked: you may not get nodes/proxy")
    assert "Do not grant get nodes/proxy" in finding.fix


# -- slices


def another_slice(it: Installation, **pool: int) -> None:
    old = {**it.slice(), "metadata": {**it.slice()["metadata"], "name": "slice-other"}}
    it.add("resourceslices", {**old, "spec": {**old["spec"], "pool": {**old["spec"]["pool"], **pool}}})


@finds("slices-complete/device-twice")
def device_twice(it: Installation) -> None:
    it.slice()["spec"]["pool"]["resourceSliceCount"] = 2
    another_slice(it)


# -- configuration


def webhook(it: Installation, *, bundle: str = "Q0E=", answer: SeenKind[WebhookAnswer]) -> None:
    service = {"namespace": NAMESPACE, "name": "gpu-dra-webhook"}
    hook = {"name": "refuse.dra.gpu", "clientConfig": {"service": service, "caBundle": bundle}}
    configuration = {"metadata": {"name": "gpu-dra-webhook", "uid": "uid-webhook"}, "webhooks": [hook]}
    it.add("validatingwebhookconfigurations", configuration)
    it.know(webhook_answer=answer)


_REFUSED = SeenKind((WebhookAnswer(True, 'admission webhook "refuse.dra.gpu" denied the request'),))


@finds("webhook/asks-nothing")
def webhook_that_asks_nothing(it: Installation) -> None:
    webhook(it, answer=SeenKind((WebhookAnswer(False, ""),)))
    it.objects["validatingwebhookconfigurations"]["gpu-dra-webhook"]["webhooks"] = []


def bundle_until(*left: timedelta) -> str:
    """As the controller writes it, of authorities that expire so long from now."""
    made = [new_certificate(["x"], NOW, Lifetimes(lifetime, lifetime)) for lifetime in left]
    return b64encode("".join(pem for certificate in made for pem in certificate.authority).encode()).decode()


@finds("webhook/unreachable")
def webhook_unreachable(it: Installation) -> None:
    webhook(it, answer=SeenKind((WebhookAnswer(False, 'failed calling webhook "refuse.dra.gpu": no route'),)))


@finds("webhook/")
def webhook_that_may_not_be_asked(it: Installation) -> None:
    webhook(it, answer=SeenKind((), Unread("the webhook", "no", "create resourceclaims.resource.k8s.io")))


@finds("admission-policies/type-errors")
def policy_with_mistakes(it: Installation) -> None:
    warning = {"fieldRef": "spec.validations[0].expression", "warning": "undefined field"}
    it.objects["validatingadmissionpolicies"]["gpu-dra-keep-0"]["status"] = {
        "typeChecking": {"expressionWarnings": [warning]}
    }


# -- others


@finds("device-classes/wrong")
def class_with_a_config_that_makes_no_sense(it: Installation) -> None:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": {"strategy": "Both"}}
    spec = {"config": [{"opaque": {"driver": "gpu.nvidia.com", "parameters": parameters}}]}
    it.add("deviceclasses", {"metadata": {"name": "big"}, "spec": spec})


@finds("device-classes/wrong")
def class_with_an_attribute_of_another_type(it: Installation) -> None:
    expression = "device.driver == 'gpu.nvidia.com' && device.drivr"
    it.add("deviceclasses", {"metadata": {"name": "big"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}})


@finds()
def class_of_another_driver(it: Installation) -> None:
    expression = "device.driver == 'fpga.example.com' && device.drivr"
    it.add("deviceclasses", {"metadata": {"name": "b"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}})


@finds("other-software/nvidia-dra-driver")
def nvidias_driver(it: Installation) -> None:
    it.daemon_set(NVIDIAS, NVIDIAS_IMAGE)


@finds()
def nvidias_driver_of_domains_alone(it: Installation) -> None:
    it.daemon_set(NVIDIAS, NVIDIAS_IMAGE, args=[DOMAINS])
    (controller,) = it.objects["deployments"].values()
    (container,) = controller["spec"]["template"]["spec"]["containers"]
    container["args"] = [*container.get("args", ()), "--feature-gates=ComputeDomains=false"]


@finds("other-software/mig-manager")
def mig_manager(it: Installation) -> None:
    it.daemon_set("nvidia-mig-manager", "nvcr.io/nvidia/cloud-native/k8s-mig-manager:v0.12.0")
    it.policy(mig=[{"mode": "Dynamic"}])


@finds("gpu-operator/device-plugin")
def operator(it: Installation) -> None:
    it.add("clusterpolicies", {"metadata": {"name": "cluster-policy"}, "spec": {"devicePlugin": {}}})


@finds("counter-sets/slow")
def many_nodes_with_partitions(it: Installation) -> None:
    it.grow(28)
    for published in it.objects["resourceslices"].values():
        published["spec"]["sharedCounters"] = [{"name": "counters"}]


@finds()
def some_nodes_with_partitions(it: Installation) -> None:
    many_nodes_with_partitions(it)
    del it.slice()["spec"]["sharedCounters"]


@finds("server-version/too-new")
def many_nodes_with_partitions_of_a_server_whose_scheduler_is_fast(it: Installation) -> None:
    many_nodes_with_partitions(it)
    new_server(it)


# -- claims


@finds("claims/not-prepared")
def a_claim_that_its_node_does_not_prepare(it: Installation) -> None:
    metadata = it.claim["metadata"]
    named = {"driver": "gpu.nvidia.com", "namespace": metadata["namespace"], "name": "train", "uid": metadata["uid"]}
    it.inventory()["status"]["bindingClaims"] = [named]
    it.claim["status"]["allocation"]["allocationTimestamp"] = "2026-03-01T11:55:00Z"


@finds()
def a_claim_that_its_node_has_begun_to_prepare(it: Installation) -> None:
    a_claim_that_its_node_does_not_prepare(it)
    it.claim["status"]["allocation"]["allocationTimestamp"] = "2026-03-01T11:59:00Z"


@finds("claim-deletions/stuck")
def stuck_claim(it: Installation) -> None:
    it.claim["metadata"] |= {
        "deletionTimestamp": "2026-03-01T11:00:00Z",
        "finalizers": ["resource.kubernetes.io/delete-protection"],
    }


@finds("events/told")
def bad_news_after_good_news(it: Installation) -> None:
    event(it, "ResourceClaim", Reason.PREPARED, "11:40")
    event(it, "ResourceClaim", Reason.PREPARE_FAILED, "11:50")


@finds("events/told", "gpu-health/unhealthy")
def bad_news_of_a_gpu_that_is_still_ill(it: Installation) -> None:
    gpu = it.inventory()["spec"]["gpus"][0]
    sick = {"type": "Xid", "value": "79", "severity": "Critical", "message": "gone", "since": "2026-03-01T11:40:00Z"}
    gpu["health"] = {"healthy": False, "reason": "Xid", "message": "gone", "conditions": [sick]}
    event(it, "Node", Reason.GPU_UNHEALTHY, "11:40", f"GPU {gpu['name']} ({gpu['uuid']}): Xid: gone.")


@pytest.mark.parametrize(
    ("kind", "bad", "good"),
    [
        ("ResourceClaim", Reason.PREPARE_FAILED, Reason.PREPARED),
        ("Pod", Reason.POD_GPU_UNHEALTHY, Reason.POD_GPU_HEALTHY),
        ("Pod", Reason.POD_GPU_DEGRADED, Reason.POD_GPU_HEALTHY),
        ("Pod", Reason.POD_IMEX_DAEMON_NOT_READY, Reason.POD_IMEX_DAEMON_READY),
    ],
)
def test_what_was_told_is_over_when_that_was_told_later_of_the_same_object(
    kind: str, bad: Reason, good: Reason
) -> None:
    it = Installation()
    event(it, kind, bad, "11:50")
    assert codes(it) == {"events/told"}
    event(it, kind, good, "11:55", name="another")
    assert codes(it) == {"events/told"}
    event(it, kind, good, "11:55")
    assert codes(it) == set()


@pytest.mark.parametrize(
    ("kind", "reason", "command"),
    [
        ("Pod", Reason.POD_PREPARE_FAILED, "dractl explain pod train -n team-a"),
        ("ResourceClaim", Reason.PREPARE_FAILED, "dractl explain claim train -n team-a"),
        ("Node", Reason.GPU_UNHEALTHY, "dractl explain node train"),
    ],
)
def test_an_event_comes_with_the_command_that_explains_its_object(kind: str, reason: Reason, command: str) -> None:
    it = Installation()
    event(it, kind, reason, "11:50")
    (finding,) = troubles(it)
    assert finding.fix == f"run {command}; docs/events.md describes {reason.word}"


@pytest.mark.parametrize("reason", [Reason.POD_PREPARE_FAILED, Reason.POD_PREPARE_WAITS])
def test_a_claim_that_cannot_be_prepared_is_named_once(reason: Reason) -> None:
    it = Installation()
    event(it, "ResourceClaim", Reason.PREPARE_FAILED, "11:51", "no room", name="gpu")
    event(it, "Pod", reason, "11:50", "Claim gpu: cannot be prepared: no room", name="train")
    assert [finding.about for finding in troubles(it)] == ["ResourceClaim team-a/gpu"]
    event(it, "Pod", reason, "11:50", "Claim other: cannot be prepared: no room", name="train")
    assert [finding.about for finding in troubles(it)] == ["ResourceClaim team-a/gpu", "Pod team-a/train"]
    event(it, "ResourceClaim", Reason.PREPARED, "11:55", name="gpu")
    assert [finding.about for finding in troubles(it)] == ["Pod team-a/train"]


@pytest.mark.parametrize("reason", [Reason.GPU_UNHEALTHY, Reason.GPU_VALIDATION_FAILED])
def test_what_was_told_of_a_gpu_is_over_when_it_is_well(reason: Reason) -> None:
    """Also where nobody told of that: a plugin that has restarted does not."""
    it = Installation()
    gpu = it.inventory()["spec"]["gpus"][0]
    event(it, "Node", reason, "11:50", f"GPU {gpu['name']} ({gpu['uuid']}): it did not pass its check.")
    assert codes(it) == set()


def event(it: Installation, kind: str, reason: Reason, time: str, note: str = "", name: str = "train") -> None:
    fields = {
        "metadata": {"name": f"{name}.{reason.word}", "namespace": "team-a", "uid": f"uid-{name}-{reason.word}"},
        "type": reason.type,
        "reason": reason.word,
        "message": note,
        "reportingComponent": "gpu.nvidia.com/kubelet-plugin",
        "eventTime": f"2026-03-01T{time}:00.000000Z",
        "involvedObject": {"kind": kind, "namespace": "team-a", "name": name},
    }
    it.add("events", fields)


# -- ComputeDomains


@finds("compute-domains/nobody")
def domains_switched_off(it: Installation) -> None:
    it.domain()
    it.container("deployments")["args"].append("--feature-gates=ComputeDomains=false")


@finds("compute-domains/nobody")
def domains_of_nodes_that_publish_for_themselves(it: Installation) -> None:
    it.domain()
    it.objects["deployments"] = {}
    it.container("daemonsets")["args"].append("--publisher=node")


@finds("compute-domains/not-looked-at")
def domain_without_status(it: Installation) -> None:
    del it.domain()["status"]


@finds("compute-domain-nodes/domain-gone")
def label_of_no_domain(it: Installation) -> None:
    it.domain()
    it.node("gpu-1")["metadata"]["labels"]["resource.nvidia.com/computeDomain"] = "uid-domain"
    it.node("gpu-2")["metadata"]["labels"]["resource.nvidia.com/computeDomain"] = "uid-before"


def by(change: Callable[..., object], *args: Any, **named: Any) -> Callable[[Installation], object]:
    return lambda it: change(it, *args, **named)


def put(it: Installation, where: str, path: str | tuple[str, ...], value: object) -> None:
    """`where` is plural and name; `path` leads to a field, with indexes of lists."""
    plural, name = where.split()
    *parents, field = path.split(".") if isinstance(path, str) else path
    obj: Any = it.objects[plural][name]
    for part in parents:
        obj = obj[int(part)] if part.isdecimal() else obj.setdefault(part, {})
    obj[field] = value


def noticed(it: Installation, field: str, subject: str, reason: str, message: str) -> None:
    it.inventory()["spec"][field] = [{"subject": subject, "reason": reason, "message": message}]


NAME_TAKEN = {"type": "NamesAccepted", "status": "False", "message": '"ninv" is already in use'}
RUNTIME = "status.nodeInfo.containerRuntimeVersion"
WAITING = {"node": "gpu-1", "gpu": "gpu-1"}
NVIDIAS, NVIDIAS_IMAGE = "nvidia-dra-driver-gpu-kubelet-plugin", "nvcr.io/nvidia/k8s-dra-driver-gpu:v25.8.0"
SIMPLE = (
    ("dra-api/not-served", by(Installation.know, server=ServerSeen("v1.36.2", {"resource.k8s.io": ("v1beta1",)}))),
    (
        "features/fields-dropped",
        by(Installation.know, features=SeenKind((ServerFeatures(partitionable=True, consumable=True),))),
    ),
    ("features/gate-off", by(Installation.know, gates=SeenKind((("DRAExtendedResource", False),)))),
    ("features/gate-off", by(Installation.know, features=SeenKind(), gates=SeenKind((("DRADeviceTaints", False),)))),
    ("crds/missing", by(Installation.drop, "customresourcedefinitions", "nodeinventories.dra.gpu")),
    (
        "crds/not-established",
        by(put, "customresourcedefinitions nodeinventories.dra.gpu", "status.conditions", [NAME_TAKEN]),
    ),
    (
        "your-permissions/lacking",
        by(Installation.know, own_access=SeenKind((AccessCheck("list", "", "nodes", False),))),
    ),
    ("kubelets/newer-than-server", by(put, "nodes gpu-1", "status.nodeInfo.kubeletVersion", "v1.37.0")),
    ("container-runtime/no-cdi", by(put, "nodes gpu-1", RUNTIME, "cri-o://1.22.5")),
    ("", by(put, "nodes gpu-1", RUNTIME, "cri-o://1.23.0")),
    ("container-runtime/cdi-off-by-default", by(put, "nodes gpu-1", RUNTIME, "containerd://1.7.28-2")),
    ("container-runtime/unknown-runtime", by(put, "nodes gpu-1", RUNTIME, "docker://27.0.1")),
    ("plugin-pods/missing", by(Installation.drop, "pods", "plugin-gpu-1")),
    ("plugin-pods/restarts", by(put, "pods plugin-gpu-1", "status.containerStatuses.0.restartCount", 3)),
    (
        "plugin-registered/not-registered slices-alive/plugin-gone",
        by(put, "nodeinventories gpu-1", "spec.registrations", []),
    ),
    (
        "plugin-registered/silent",
        by(put, "nodeinventories gpu-1", "metadata.annotations", {"confirm.dra.gpu/gpu.nvidia.com": REGISTERED}),
    ),
    (
        "plugin-registered/clock",
        by(put, "nodeinventories gpu-1", "spec.registrations.0.time", (NOW + timedelta(minutes=5)).isoformat()),
    ),
    ("inventories/missing slices-alive/plugin-gone", by(Installation.drop, "nodeinventories", "gpu-1")),
    ("inventories/not-owned", by(put, "nodeinventories gpu-1", "metadata.ownerReferences.0.uid", "uid-before")),
    ("gpu-health/unhealthy", by(sick, condition("Xid", "Critical", value="79"))),
    ("gpu-health/noticed", by(sick, condition("NvLink", "Warning"))),
    ("gpu-health/not-offered", by(noticed, "problems", "GPU 0000:1b:00.0", "GpuIsLost", "it fell off the bus")),
    ("containers/no-hook", by(noticed, "warnings", "hook program", "NoHookProgram", "the host has none")),
    ("containers/lacking", by(noticed, "warnings", "container runtime", "OldCdi", "it is old")),
    ("leftovers/mps-daemon", by(sick, condition("MpsDaemon", "Warning"))),
    ("leftovers/mig-lost", by(sick, condition("InstanceLost", "Critical"))),
    ("leftovers/mig-pending", by(put, "nodeinventories gpu-1", "spec.gpus.0.mig.pending", True)),
    ("policy-followed/policy-not-followed", by(limited, rule="mig[0]", reason="ResetNeeded")),
    ("policy-followed/not-published", by(limited, reason="NoMigDevices")),
    ("gpu-policies/refused", by(gpu_policy, "False")),
    ("gpu-policies/selects-nothing", by(gpu_policy, gpus=0)),
    ("gpu-policies/waits", by(gpu_policy, waitingGPUs=40, waiting=[{**WAITING, "claims": ["team/a"]}])),
    ("gpu-policies/switches", by(gpu_policy, waitingGPUs=1, waiting=[{**WAITING, "claims": [], "migMode": "On"}])),
    ("controller/fewer", by(put, "deployments controller", "status.readyReplicas", 1)),
    ("leader/no-lease", by(Installation.drop, "leases", "controller")),
    ("leader/nobody", by(put, "leases controller", "spec.holderIdentity", "")),
    ("leader/expired", by(put, "leases controller", "spec.renewTime", "2026-03-01T11:55:00.000000Z")),
    ("versions/skew", by(Installation.know, release="0.2.0")),
    (
        "versions/mixed",
        by(put, "pods plugin-gpu-1", "spec.containers.0.image", "registry.example/gpu-dra-driver:0.0.9"),
    ),
    ("kubelet-gates/dra-off", by(gates_of_kubelet, DynamicResourceAllocation=False)),
    ("kubelet-gates/gate-off", by(gates_of_kubelet, DRAExtendedResource=False)),
    ("kubelet-gates/gate-off", by(gates_of_kubelet, AllBeta=False)),
    ("slices-published/not-published claims/device-gone", by(Installation.drop, "resourceslices", "slice-gpu-1")),
    ("slices-complete/incomplete", by(put, "resourceslices slice-gpu-1", "spec.pool.resourceSliceCount", 2)),
    ("slices-alive/node-gone inventories/node-gone", by(Installation.drop, "nodes", "gpu-2")),
    ("slices-alive/plugin-gone inventories/missing", by(Installation.drop, "nodeinventories", "gpu-2")),
    ("slices-ours/foreign", by(put, "resourceslices slice-gpu-1", "metadata.labels", {})),
    ("device-classes/missing", by(Installation.drop, "deviceclasses", "gpu.nvidia.com")),
    ("device-classes/differs", by(put, "deviceclasses gpu.nvidia.com", "spec.selectors", [])),
    ("policy/missing", by(Installation.drop, "configmaps", "policy")),
    ("webhook/no-ca", by(webhook, bundle="", answer=_REFUSED)),
    ("webhook/certificate-expires", by(webhook, bundle=bundle_until(timedelta(days=3)), answer=_REFUSED)),
    ("webhook/not-asked", by(webhook, answer=SeenKind((WebhookAnswer(False, ""),)))),
    ("admission-policies/missing", by(Installation.drop, "validatingadmissionpolicies", "gpu-dra-keep-2")),
    ("admission-policies/missing", by(Installation.drop, "validatingadmissionpolicies", "gpu-dra-keep-3")),
    ("admission-policies/not-bound", by(Installation.drop, "validatingadmissionpolicybindings", "gpu-dra-keep-4")),
    (
        "admission-policies/not-bound",
        by(put, "validatingadmissionpolicybindings gpu-dra-keep-0", "spec.validationActions", ["Audit"]),
    ),
    ("device-plugin/both", by(put, "nodes gpu-1", ("status", "allocatable", "nvidia.com/gpu"), "8")),
    (
        "other-software/nvidia-dra-driver",
        by(
            Installation.daemon_set,
            "gpus",
            "mirror.example/a:1",
            command=["bash", "-c"],
            args=["gpu-kubelet-plugin -v 4"],
        ),
    ),
    ("other-software/nvidia-domains", by(Installation.daemon_set, NVIDIAS, NVIDIAS_IMAGE, args=[DOMAINS])),
    (
        "other-software/ours-twice admission-policies/missing versions/skew",
        by(
            Installation.daemon_set,
            "second",
            "a:0.0.1",
            command=["gpu-dra-kubelet-plugin"],
            args=["--driver-name=gpu.example.com"],
        ),
    ),
    (
        "other-software/device-plugin",
        by(Installation.daemon_set, "plugin-of-somebody", "nvcr.io/nvidia/k8s-device-plugin:v0.17.0"),
    ),
    ("gpu-operator/dra-driver", by(Installation.add, "gpuclusters", {"metadata": {"name": "gpu-cluster"}, "spec": {}})),
    ("slices-complete/old-generation", by(another_slice, generation=2)),
    ("policy/invalid", by(Installation.policy, publihs=[])),
    ("claims/node-gone", by(put, "resourceclaims train", "status.allocation.devices.results.0.pool", "gone")),
    ("claims/users-gone", by(Installation.drop, "pods", "train")),
    ("events/told", by(event, "ResourceClaim", Reason.PREPARE_FAILED, "11:50")),
    # of a GPU that no node has any longer
    ("events/told", by(event, "Node", Reason.GPU_UNHEALTHY, "11:40", "GPU gpu-1 (GPU-00000000): Xid: gone.")),
    ("compute-domains/not-ready", by(Installation.domain, ready="False", reason="FabricIncomplete")),
    ("claims/device-gone", by(put, "resourceslices slice-gpu-1", "spec.devices.0.name", "gpu-another")),
)
"""What is found, and the one change that is needed for it; the cases that need more are functions above."""
CASES += [Case(frozenset(names.split()), break_it) for names, break_it in SIMPLE]


# -- what is true of all of them


def test_a_healthy_installation_is_well_by_every_check() -> None:
    judged = examined(CHECKS, Installation().cluster)
    assert [finding for finding in judged if finding.verdict is not Verdict.OK] == []
    assert [finding.check for finding in judged] == [check.name for check in CHECKS]


@rows("case", CASES)
def test_what_is_wrong_is_found_and_nothing_else(case: Case) -> None:
    installation = Installation()
    case.break_it(installation)
    reported = troubles(installation)
    assert {f"{each.check}/{each.trouble}" for each in reported} == case.expected
    for finding in reported:
        assert finding.sentence, finding
        assert finding.fix or finding.sentence in ("not installed", "no program of this driver runs"), finding
        assert "{" not in finding.sentence, finding
        assert "NAMESPACE" not in finding.fix, "the namespace that the installation is in is known"


def test_without_a_deployment_of_the_controller_its_pods_tell_the_namespace() -> None:
    installation = Installation()
    webhook_that_asks_nothing(installation)
    installation.objects["deployments"] = installation.objects["daemonsets"] = {}
    assert f"kubectl -n {NAMESPACE} logs of the controller pods" in " ".join(
        finding.fix for finding in troubles(installation)
    )


def test_every_trouble_is_provoked_by_a_case() -> None:
    provoked = {code for case in CASES for code in case.expected if not code.endswith("/")}
    assert provoked == set(TROUBLES)


def test_all_that_may_not_be_read_is_told_in_one_sentence() -> None:
    lacking = {part: SeenKind((), Unread(part, "forbidden", f"list {part}")) for part in ("claims", "pods", "nodes")}
    cluster = replace(Installation().cluster, **lacking)
    (finding,) = [each for each in examined(CHECKS, cluster) if each.check == "claims"]
    assert finding.sentence == "you may not list claims, list nodes, list pods"


@pytest.mark.parametrize(
    ("check", "part"),
    [pytest.param(check, part, id=f"{check.name}-{part}") for check in CHECKS for part in check.reads],
)
def test_what_may_not_be_read_is_unknown_with_the_permission_that_is_missing(check: Any, part: str) -> None:
    unread = Unread(part, "forbidden", f"list {part}")
    cluster = replace(Installation().cluster, **{part: SeenKind((), unread)})
    (finding,) = check.findings(cluster)
    assert (finding.verdict, finding.check) == (Verdict.UNKNOWN, check.name)
    assert f"list {part}" in finding.sentence
    assert f"list {part}" in finding.fix


def test_what_could_not_be_read_for_another_reason_says_which() -> None:
    cluster = replace(Installation().cluster, classes=SeenKind((), Unread("deviceclasses", "no answer in time")))
    (finding,) = [each for each in examined(CHECKS, cluster) if each.check == "device-classes"]
    assert (finding.verdict, finding.sentence) == (
        Verdict.UNKNOWN,
        "deviceclasses could not be read: no answer in time",
    )


# -- where the driver is not installed


def bare() -> Installation:
    installation = Installation()
    no_trace_of_the_driver(installation)
    return installation


def test_where_nothing_of_the_driver_is_there_it_is_said_once_and_how_to_install_it() -> None:
    (problem,) = [finding for finding in troubles(bare()) if finding.verdict is not Verdict.SKIPPED]
    assert (problem.check, problem.verdict) == ("installation", Verdict.PROBLEM)
    assert "the driver is not installed" in problem.sentence
    assert "2 of 3 nodes have a GPU label" in problem.sentence
    assert problem.fix.startswith("helm install gpu-dra-driver charts/gpu-dra-driver --namespace gpu-dra")


def test_what_can_be_asked_before_the_driver_is_installed_is() -> None:
    installation = bare()
    old_kubelet(installation)
    runtime_without_cdi(installation)
    old_server(installation)
    names = {
        f"{finding.check}/{finding.trouble}"
        for finding in troubles(installation)
        if finding.verdict is not Verdict.SKIPPED
    }
    assert {"installation/not-installed", "server-version/too-old", "container-runtime/no-cdi"} <= names
    assert any(name.startswith("kubelets/") for name in names)


KINDS = sorted(Installation().objects.keys() - {"nodes", "resourceclaims", "configmaps", "leases", "namespaces"})


RUNNING = ("daemonsets", "deployments", "pods")


@pytest.mark.parametrize("plural", RUNNING)
def test_whatever_runs_of_an_installation_is_judged_as_one(plural: str) -> None:
    installation = bare()
    installation.objects[plural] = Installation().objects[plural]
    reported = codes(installation)
    assert "installation/not-installed" not in reported
    assert reported.isdisjoint(_MOOT)
    assert any(finding.verdict is Verdict.PROBLEM for finding in troubles(installation))


LEFT = {
    "customresourcedefinitions": "kubectl delete crd gpupolicies.dra.gpu nodeinventories.dra.gpu",
    "deviceclasses": "kubectl delete deviceclass isolated.gpu.nvidia.com shared.gpu.nvidia.com",
    "nodeinventories": "delete the objects: ",
    "resourceslices": "kubectl delete resourceslice --field-selector spec.driver=gpu.nvidia.com",
    "validatingadmissionpolicies": "kubectl delete validatingadmissionpolicy gpu-dra-keep-",
}


@pytest.mark.parametrize("plural", sorted(set(KINDS) - {*RUNNING, "validatingadmissionpolicybindings"}))
def test_what_is_left_of_an_installation_of_which_nothing_runs_is_one_problem(plural: str) -> None:
    installation = bare()
    installation.objects[plural] = Installation().objects[plural]
    (problem,) = [finding for finding in troubles(installation) if finding.verdict is not Verdict.SKIPPED]
    assert (problem.check, problem.trouble, problem.verdict) == ("installation", "left-over", Verdict.PROBLEM)
    assert LEFT[plural] in problem.fix


def test_a_release_that_was_removed_half_way_is_one_problem() -> None:
    """Its programs went first; the rest is as the chart made it."""
    installation = Installation()
    for plural in (*RUNNING, "resourceclaims"):
        installation.objects[plural] = {}
    assert {finding.verdict for finding in troubles(installation)} == set(), "programs can run by other means"
    for definition in installation.objects["customresourcedefinitions"].values():
        definition["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "Helm"}
    (problem,) = [finding for finding in troubles(installation) if finding.verdict is not Verdict.SKIPPED]
    assert problem.trouble == "left-over" and "kubectl delete deviceclass " in problem.fix


def test_who_may_not_see_pods_is_not_told_that_nothing_runs() -> None:
    installation = bare()
    installation.objects["deviceclasses"] = Installation().objects["deviceclasses"]
    hidden = replace(installation.cluster, pods=SeenKind((), Unread("pods", "forbidden", "list pods")))
    by_check = {finding.check: finding for finding in examined(CHECKS, hidden)}
    assert by_check["installation"].verdict is Verdict.OK and by_check["plugin-nodes"].verdict is not Verdict.SKIPPED


def test_what_nvidias_own_driver_shares_with_ours_does_not_make_an_installation() -> None:
    installation = bare()
    nvidias_driver(installation)
    there = Installation().objects
    name = "computedomains.resource.nvidia.com"
    installation.add("customresourcedefinitions", there["customresourcedefinitions"][name])
    installation.add("deviceclasses", there["deviceclasses"]["gpu.nvidia.com"])
    slices = there["resourceslices"]["slice-gpu-1"]
    slices["metadata"]["labels"] = {}
    installation.add("resourceslices", slices)
    assert {finding.check for finding in troubles(installation) if finding.verdict is not Verdict.SKIPPED} == {
        "installation"
    }


def test_without_the_nodes_it_is_known_all_the_same_that_nothing_is_installed() -> None:
    cluster = replace(bare().cluster, nodes=SeenKind((), Unread("nodes", "forbidden", "list nodes")))
    by_check = {finding.check: finding for finding in examined(CHECKS, cluster)}
    assert by_check["installation"].verdict is Verdict.PROBLEM
    assert "label" not in by_check["installation"].sentence
    assert (by_check["crds"].verdict, by_check["crds"].sentence) == (Verdict.SKIPPED, "not installed")


def test_who_may_not_see_what_is_installed_is_not_told_that_nothing_is() -> None:
    cluster = bare().cluster
    refused = Unread("customresourcedefinitions", "forbidden", "list customresourcedefinitions.apiextensions.k8s.io")
    hidden = replace(cluster, definitions=SeenKind((), refused))
    unknown = {finding.check: finding for finding in examined(CHECKS, replace(hidden, server=ServerSeen("v1.36.2")))}
    assert unknown["installation"].verdict is Verdict.UNKNOWN
    assert unknown["plugin-nodes"].verdict is Verdict.PROBLEM
    # The groups that the server serves are for everybody to see.
    assert {finding.check: finding for finding in examined(CHECKS, hidden)}["installation"].verdict is Verdict.PROBLEM


# -- what is quiet on purpose


def without_classes_of_domains(it: Installation) -> None:
    for name in [name for name in it.objects["deviceclasses"] if name.startswith("compute-domain-")]:
        it.drop("deviceclasses", name)


def domains_switched_off_without_their_classes(it: Installation) -> None:
    for plural in ("daemonsets", "deployments"):
        it.container(plural)["args"].append("--feature-gates=ComputeDomains=false")
    without_classes_of_domains(it)


def nodes_that_publish_for_themselves(it: Installation) -> None:
    it.objects["deployments"] = {}
    it.container("daemonsets")["args"].append("--publisher=node")
    without_classes_of_domains(it)


def a_node_withheld(it: Installation) -> None:
    it.policy(withhold=[{"nodes": {"names": ["gpu-2"]}}])
    it.drop("resourceslices", "slice-gpu-2")


def operator_policy(*, enabled: bool) -> Obj:
    return {"metadata": {"name": "cluster-policy"}, "spec": {"devicePlugin": {"enabled": enabled}}}


def an_operator_kept_away(it: Installation) -> None:
    it.add("clusterpolicies", operator_policy(enabled=True))
    for node in NODES:
        it.node(node)["metadata"]["labels"]["nvidia.com/gpu.deploy.device-plugin"] = "false"


def a_domain_just_made(it: Installation) -> None:
    domain = it.domain()
    del domain["status"]
    domain["metadata"]["creationTimestamp"] = "2026-03-01T11:59:00Z"


def another_driver_name(it: Installation) -> None:
    for device_class in it.objects["deviceclasses"].values():
        for selector in device_class["spec"]["selectors"]:
            expression = selector["cel"]["expression"].replace("'gpu.nvidia.com'", "'gpu.example.com'")
            selector["cel"]["expression"] = expression
    it.container("daemonsets")["args"].append("--driver-name=gpu.example.com")
    for node in NODES:
        it.inventory(node)["spec"]["registrations"][0]["driver"] = "gpu.example.com"
        it.slice(node)["spec"]["driver"] = "gpu.example.com"


def a_rolling_update(it: Installation) -> None:
    second = {**it.pod(), "metadata": {**it.pod()["metadata"], "name": "plugin-new"}}
    it.add("pods", {**second, "status": {"phase": "Pending"}})


LONG_SINCE = "2026-03-01T10:00:00Z"
HALF_OF_A_DRIVER = {"metadata": {"name": "gpu-cluster"}, "spec": {"draDriver": {"gpus": {"enabled": False}}}}
QUIET: dict[str, Callable[[Installation], object]] = {
    "classes of domains are not missed with the gate off": domains_switched_off_without_their_classes,
    "nodes that publish for themselves need no controller and no classes of domains": nodes_that_publish_for_themselves,
    "GPUs that the policy withholds need no slices": a_node_withheld,
    "a cordoned node keeps its plugin": by(put, "nodes gpu-1", "spec.unschedulable", True),
    "a device plugin elsewhere is none of our business": by(
        put, "nodes plain", ("status", "allocatable", "nvidia.com/gpu"), "8"
    ),
    "feature discovery has the image of the device plugin and offers nothing": by(
        Installation.daemon_set,
        "gpu-feature-discovery",
        "nvcr.io/nvidia/k8s-device-plugin:v0.20.0",
        command=["/usr/bin/gpu-feature-discovery"],
    ),
    "a MIG manager may stay where the driver makes no partitions": by(
        Installation.daemon_set, "nvidia-mig-manager", "k8s-mig-manager:v0.12.0"
    ),
    "the device plugin of an operator is off": by(Installation.add, "clusterpolicies", operator_policy(enabled=False)),
    "the device plugin of an operator is kept away": an_operator_kept_away,
    "an operator runs only the other half of its driver": by(Installation.add, "gpuclusters", HALF_OF_A_DRIVER),
    "a webhook refuses what it must": by(webhook, answer=_REFUSED),
    "a certificate expires, and the next one is trusted already": by(
        webhook, bundle=bundle_until(timedelta(days=3), timedelta(days=40)), answer=_REFUSED
    ),
    "a domain is ready": by(Installation.domain, ready="True", reason="AllNodesReady", since=LONG_SINCE),
    "a domain is young": by(Installation.domain, ready="False", reason="NodesJoining", since="2026-03-01T11:55:00Z"),
    "a domain is wanted by nobody": by(Installation.domain, ready="False", reason="NoNodes", since=LONG_SINCE),
    "a domain that was just made needs no status": a_domain_just_made,
    "a class of another driver name is compared under that name": another_driver_name,
    "a claim that is just being deleted is not stuck": lambda it: it.claim["metadata"].update(
        deletionTimestamp="2026-03-01T11:58:00Z"
    ),
    "two pods of a rolling update are fine when one serves": a_rolling_update,
    "a simulated host has a boot of its own": by(
        put, "nodes gpu-1", "status.nodeInfo.bootID", "c0ffee00-0000-4000-8000-000000000000"
    ),
    "Events of an hour ago are old news": by(event, "ResourceClaim", Reason.PREPARE_FAILED, "10:50"),
}


@rows("why, change", QUIET.items())
def test_what_is_fine_is_not_reported(why: str, change: Callable[[Installation], object]) -> None:
    installation = Installation()
    change(installation)
    assert codes(installation) == set(), why
