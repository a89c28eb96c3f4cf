"""What is wrong with a pod that has its node, with a node and with a GPU; and all pods of a workload together."""

from dataclasses import replace
from typing import Any

import pytest
from support.inventories import gpu, inventory_object, inventory_spec
from support.objects import allocation, claim, node, pod, result
from support.rows import rows

from dra_driver.allocation.loading import pods_of_workload, world_of
from dra_driver.allocation.world import PodClaim, UnreadKind, World
from dra_driver.api.inventory import GpuFacts, HealthCondition, HealthFacts
from dra_driver.api.meta import JsonObject
from dra_driver.api.policy import PublishingPolicy
from dra_driver.cli.reading.files import shipped_classes
from dra_driver.devices.health import xid_condition
from dra_driver.errors import InvalidInput
from dra_driver.explain.explain import Answer, Explanation, explain_claim, explain_pod
from dra_driver.explain.running import running_findings
from dra_driver.explain.subjects import explain_gpu, explain_node, explain_workload, owned_pods
from dra_driver.explain.wording import headline, sentences, workload_sentences
from dra_driver.slices.offline import published_offline

SINCE = "2026-01-01T00:00:00Z"
HELD = ("default", "gpu")


def faulty(*xids: int, number: int = 0, **facts: Any) -> GpuFacts:
    health = HealthFacts(conditions=[xid_condition(xid, since=SINCE) for xid in xids])
    return gpu(number, health=health, **facts)


def cluster(*gpus: GpuFacts, evict: bool = False, inventory: bool = True, **changes: Any) -> World:
    """A node of these GPUs; the pod `train` has the first by claim `gpu`. `changes` are fields of pod and claim."""
    spec = inventory_spec("node-1", gpus, registered=SINCE)
    slices = [slice_ for pool in published_offline(spec, PublishingPolicy.EVERYTHING, {}, "") for slice_ in pool.slices]
    user = pod("train") | {"status": changes.get("pod", {"conditions": [{"type": "Ready", "status": "True"}]})}
    user["metadata"] |= changes.get("metadata", {})
    held = claim() | {"status": {"allocation": allocation(result(gpus[0].name)), **changes.get("claim", {})}}
    report = inventory_object(spec, "") | {"status": {"policy": {"health": {"evict": evict}}}}
    classes = [shipped.obj for shipped in shipped_classes()]
    objects = [*classes, *slices, changes.get("node", node()), user, held, *([report] if inventory else [])]
    loaded = world_of(objects, live=True, unread=() if inventory else [UnreadKind("NodeInventory", "you may not")])
    assert not loaded.problems
    return loaded.world


def codes_of(explanation: Explanation) -> list[tuple[str, bool]]:
    return [(finding.code, finding.stops) for finding in explanation.findings]


def test_a_dead_gpu_of_a_running_pod_is_named_with_what_follows_and_what_to_do() -> None:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "1", "controller": True}
    world = cluster(faulty(79), metadata={"ownerReferences": [owner]})
    explanation = explain_pod(world, ("default", "train"))
    name = gpu(0).name
    assert (explanation.answer, codes_of(explanation)) == (Answer.SCHEDULED, [("device-unhealthy", True)])
    assert headline(explanation) == (
        f"Pod default/train is on node node-1, but device {name} of node node-1: Xid 79: the GPU fell off the bus; the"
        " machine must be restarted."
    )
    (finding,) = explanation.findings
    assert finding.fix == (
        f"Since {SINCE}. The pod keeps it and is not evicted. To move to another device, delete the pod; ReplicaSet web"
        " makes another. To repair it: drain and reboot node-1; if the GPU is lost again, reseat or replace it."
    )
    evicted = explain_pod(cluster(faulty(79), evict=True), ("default", "train"))
    assert "The pod is being evicted." in evicted.findings[0].fix
    assert "create it again" in evicted.findings[0].fix
    assert codes_of(explain_claim(world, HELD)) == [("device-unhealthy", True)]


def test_the_reason_comes_before_what_the_driver_asks_for() -> None:
    asks = HealthCondition(
        type="RecoveryAction", value="NodeReboot", severity="Critical", message="reboot", since=SINCE
    )
    health = HealthFacts(conditions=[asks, xid_condition(79, since=SINCE)])
    explanation = explain_pod(cluster(gpu(0, health=health)), ("default", "train"))
    assert [finding.text.partition(":")[0] for finding in explanation.findings] == ["Xid 79", "reboot"]


def test_the_claim_of_an_extended_resource_is_looked_at_too() -> None:
    world = cluster(faulty(79), pod={"extendedResourceClaimStatus": {"resourceClaimName": "gpu"}})
    user = world.pods["default", "train"].with_spec(resource_claims=[])
    assert codes_of(explain_pod(world.with_pod(user), user.key)) == [("device-unhealthy", True)]


def test_a_fault_of_a_program_is_none_and_a_warning_does_not_stop_it() -> None:
    assert codes_of(explain_pod(cluster(faulty(31)), ("default", "train"))) == []
    degraded = explain_pod(cluster(faulty(94)), ("default", "train"))
    assert codes_of(degraded) == [("device-degraded", False)]
    assert headline(degraded) == "Pod default/train runs on node node-1, with all its devices."


def test_a_fault_of_another_gpu_or_mig_device_does_not_concern_the_pod() -> None:
    assert codes_of(explain_pod(cluster(gpu(0), faulty(79, number=1)), ("default", "train"))) == []
    condition = xid_condition(48, since=SINCE, instance="MIG-other")
    other = gpu(0, health=HealthFacts(conditions=[condition]))
    assert codes_of(explain_pod(cluster(other), ("default", "train"))) == [("device-unhealthy", True)], (
        "it has the whole GPU"
    )


def reported(**condition: str) -> JsonObject:
    item = {"status": "False", "reason": "Xid", "message": "Xid 48: bad", "lastTransitionTime": SINCE, **condition}
    device = {"driver": "gpu.nvidia.com", "pool": "node-1", "device": gpu(0).name}
    return {"devices": [7, {"driver": "x"}, {**device, "data": {"pciBusID": "0000:10:00.0"}, "conditions": [item]}]}


def test_who_may_not_read_inventories_gets_what_the_claim_says() -> None:
    world = cluster(gpu(0), inventory=False, claim=reported(type="Healthy"))
    (finding,) = explain_pod(world, ("default", "train")).findings
    assert (finding.code, finding.text) == ("device-unhealthy", "Xid 48: bad")
    assert "nvidia-smi --gpu-reset -i 0000:10:00.0" in finding.fix


@pytest.mark.parametrize(("reason", "stops"), [("Failed", True), ("Preparing", False)])
def test_a_claim_that_is_not_prepared_is_why_a_pod_does_not_start(reason: str, stops: bool) -> None:
    state = {"phase": "Pending"}
    world = cluster(gpu(0), pod=state, claim=reported(type="Ready", reason=reason, message="the GPU is in use"))
    explanation = explain_pod(world, ("default", "train"))
    assert codes_of(explanation) == [("not-prepared", stops)]
    assert (headline(explanation) == "Pod default/train is on node node-1, with all its devices.") is not stops


@rows(
    "template, advice",
    [
        ("small", "Correct ResourceClaimTemplate small, or the DeviceClass that has the config; then delete the pod"),
        (None, "Claims cannot be changed: correct the claim, or the DeviceClass that has the config, delete the claim"),
    ],
)
def test_a_config_that_is_wrong_stays_wrong_and_the_advice_says_where_to_correct_it(
    template: str | None, advice: str
) -> None:
    refused = reported(type="Ready", reason="InvalidConfig", message="sharing.strategy: is 'TimeSlice'")
    world = cluster(gpu(0), pod={"phase": "Pending"}, claim=refused)
    (held,) = world.claims.values()
    (finding,) = running_findings(world, world.pods["default", "train"], [PodClaim("gpu", held, template=template)])
    assert finding.fix.startswith("Trying again does not help. ") and advice in finding.fix
    assert codes_of(explain_claim(world, HELD)) == [("not-prepared", True)]


@pytest.mark.parametrize(
    ("waiting", "last", "advice"),
    [
        ("ImagePullBackOff", None, "Check the name of the image"),
        ("CrashLoopBackOff", {"terminated": {"exitCode": 139}}, "ended 3 times, the last time with status 139"),
        ("CreateContainerError", None, "kubectl describe pod -n default train"),
        ("ContainerCreating", None, None),
    ],
)
def test_a_container_that_does_not_run_is_named(waiting: str, last: Any, advice: str | None) -> None:
    status = {"name": "main", "restartCount": 3, "state": {"waiting": {"reason": waiting}}, "lastState": last or {}}
    explanation = explain_pod(cluster(gpu(0), pod={"containerStatuses": [status]}), ("default", "train"))
    assert codes_of(explanation) == ([("container-waits", True)] if advice else [])
    assert advice is None or advice in explanation.findings[0].fix


def test_a_pod_that_failed_says_which_container_and_one_that_ends_what_it_waits_for() -> None:
    ended = {"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    failed = explain_pod(cluster(gpu(0), pod={"phase": "Failed", "containerStatuses": [ended]}), ("default", "train"))
    assert (failed.answer, codes_of(failed)) == (Answer.DONE, [("container-failed", True)])
    assert headline(failed) == (
        "Pod default/train has failed: container main of pod default/train ended with status 137 (OOMKilled)."
    )
    done = explain_pod(cluster(gpu(0), pod={"phase": "Succeeded"}), ("default", "train"))
    assert headline(done) == "Pod default/train has ended; it waits for nothing."
    without = replace(cluster(gpu(0), pod={"phase": "Succeeded"}), claims={})
    assert explain_pod(without, ("default", "train")).claims == ()
    ends = explain_pod(cluster(gpu(0), metadata={"deletionTimestamp": SINCE}), ("default", "train"))
    assert codes_of(ends) == [("pod-ends", False)]


def test_a_node_that_is_down_comes_first() -> None:
    down = node() | {"status": {"conditions": [{"type": "Ready", "status": "Unknown", "message": "no heartbeat"}]}}
    explanation = explain_pod(cluster(faulty(79), node=down), ("default", "train"))
    assert [code for code, _ in codes_of(explanation)] == ["node-not-ready", "device-unhealthy"]


def test_a_node_says_who_has_its_gpus_and_which_are_unhealthy() -> None:
    down = node() | {"spec": {"unschedulable": True}}
    explanation = explain_node(cluster(gpu(0), faulty(79, 94, number=1), node=down), "node-1")
    assert explanation.answer is Answer.UNHEALTHY
    assert headline(explanation) == "Node node-1 has 2 GPUs (NVIDIA H100 80GB HBM3): 1 used, 1 unhealthy."
    assert [code for code, _ in codes_of(explanation)] == ["device-unhealthy", "device-degraded", "cordoned"]
    assert "Pods that have it keep it." in explanation.findings[0].fix
    assert sentences(explanation)[3].startswith("  default/gpu, allocated: node-1/gpu-")
    assert explain_node(cluster(gpu(0)), "node-1").answer is Answer.HEALTHY
    with pytest.raises(InvalidInput, match="did you mean `node-1`"):
        explain_node(cluster(gpu(0)), "node-2")


@pytest.mark.parametrize("name", [gpu(1).name, f"node-1/{gpu(1).name}", gpu(1).uuid, gpu(1).pci_bus_id])
def test_a_gpu_is_found_by_name_uuid_and_address(name: str) -> None:
    (explanation,) = explain_gpu(cluster(gpu(0), faulty(79, number=1)), name)
    assert headline(explanation).endswith("of node node-1 is unhealthy, and not used by a claim.")
    (used,) = explain_gpu(cluster(gpu(0), faulty(79, number=1)), gpu(0).name)
    assert headline(used).endswith("is healthy, and used by 1 claim.")
    assert [state.name for state in used.claims] == ["default/gpu"]


@pytest.mark.parametrize(("name", "why"), [("gpu-1", "dractl get devices lists"), (f"node-2/{gpu(0).name}", "did you")])
def test_a_gpu_that_there_is_not_is_refused(name: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        explain_gpu(cluster(gpu(0)), name)


# -- workloads


def job(pods: int, count: int = 1) -> list[JsonObject]:
    """A Job whose pods want `count` GPUs each, on a node with three, of which a pod has one."""
    template = {"kind": "ResourceClaimTemplate", "metadata": {"name": "g"}, "spec": {"spec": claim()["spec"]}}
    template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["count"] = count
    spec = pod(claims=[])["spec"] | {"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "g"}]}
    del spec["nodeName"]
    made = {"parallelism": pods, "template": {"spec": spec}}
    return [template, {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": made}]


@pytest.mark.parametrize(("count", "fit"), [(1, 2), (2, 1), (3, 0)])
def test_of_a_workload_as_many_pods_fit_as_there_is_room_for_at_once(count: int, fit: int) -> None:
    template, workload = job(12, count)
    known = cluster(gpu(0), gpu(1), gpu(2))
    extra = world_of([template, *pods_of_workload(workload, replicas=100)]).world
    world = World(**{**known.__dict__, "templates": extra.templates, "pods": {**known.pods, **extra.pods}})
    (owned,) = owned_pods(world)
    explained = explain_workload(world, owned)
    waits = 12 - fit
    fits = [f"{fit} {'fits' if fit == 1 else 'fit'} now"][: fit > 0]
    assert explained.headline == f"Job default/train has 12 pods: {', '.join([f'{waits} wait', *fits])}."
    (bad,) = explained.bad
    assert (bad.name, len(bad.alike)) == (f"train-{fit}", waits - 1)
    text = workload_sentences(explained)
    assert any(line.startswith("The same is true of train-") for line in text)
    assert all(part.workload == "Job default/train" for part in explained.parts)
    names = [name for part in explained.parts for name in (part.name, *part.alike)]
    assert sorted(names) == sorted(f"train-{index}" for index in range(12))
