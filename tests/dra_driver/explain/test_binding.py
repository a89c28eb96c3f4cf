"""What a pod waits for whose node was chosen and must prepare devices first."""

from typing import Any

import pytest
from support.objects import allocation, claim, pod, result

from dra_driver.allocation.loading import world_of
from dra_driver.allocation.world import World
from dra_driver.api.binding import BINDING_FAILED, BINDING_READY
from dra_driver.api.meta import JsonObject
from dra_driver.cli.reading.files import shipped_classes
from dra_driver.explain.explain import Answer, Explanation, explain_claim, explain_pod
from dra_driver.explain.subjects import explain_workload, owned_pods
from dra_driver.explain.wording import headline, sentences

UID = "uid-of-pod"
BINDS = {"bindingConditions": [BINDING_READY], "bindingFailureConditions": [BINDING_FAILED]}


def explained(*conditions: tuple[str, str], reserved: bool = True, **more: Any) -> Explanation:
    """Of a pod without a node, whose claim has these conditions."""
    return explain_pod(waiting_world(*conditions, reserved=reserved, **more), ("default", "pod"))


def waiting_world(
    *conditions: tuple[str, str], reserved: bool = True, template: str | None = None, **more: Any
) -> World:
    device = result("gpu-0-mig-1", pool="node-1", **({**BINDS, **more}))
    waiting = claim()
    own_conditions = [
        {"type": kind, "status": value, "reason": "HardwareError", "message": "in use"} for kind, value in conditions
    ]
    status: JsonObject = {"allocation": allocation(device)}
    if reserved:
        status["reservedFor"] = [{"resource": "pods", "name": "pod", "uid": UID}]
    if conditions:
        identity = {name: device[name] for name in ("driver", "pool", "device")}
        status["devices"] = [{**identity, "conditions": own_conditions}]
    waiting["status"] = status
    user = pod()
    user["metadata"] |= {"uid": UID}
    user["spec"].pop("nodeName", None)
    if template is not None:
        user["metadata"]["ownerReferences"] = [{**JOB, "controller": True}]
        user["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": template}]
        user["status"] = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "gpu"}]}
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": UID, "controller": True}
        waiting["metadata"]["ownerReferences"] = [owner]
    loaded = world_of([*(shipped.obj for shipped in shipped_classes()), waiting, user])
    assert loaded.problems == ()
    return loaded.world


JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "uid-of-job"}


def test_of_a_workload_such_pods_are_not_said_to_fit() -> None:
    world = waiting_world(template="small")
    (workload,) = owned_pods(world)
    assert explain_workload(world, workload).headline == (
        "Job default/train has 1 pod: 1 waits for its node to prepare devices."
    )


def codes(explanation: Explanation) -> dict[str, str]:
    return {finding.code: finding.text for finding in explanation.findings}


def test_the_node_is_named_with_what_it_says() -> None:
    silent = explained()
    assert (silent.answer, silent.node) == (Answer.BINDING, "node-1")
    assert headline(silent) == "Pod default/pod gets node node-1 when the node has prepared its devices."
    assert codes(silent)["node-prepares"] == "prepares gpu-0-mig-1 before the pod is bound"
    failing = explained((BINDING_READY, "False"))
    assert codes(failing)["node-prepares"].endswith("; so far it fails: HardwareError: in use")
    assert "the node gives up" in " ".join(sentences(failing))
    assert failing.to_data()["answer"] == "binding"


def test_a_node_that_gave_up_is_named() -> None:
    failed = explained((BINDING_FAILED, "True"))
    assert failed.answer is Answer.BINDING
    assert codes(failed)["binding-failed"] == "its node gave up: HardwareError: in use"


@pytest.mark.parametrize(
    "explanation",
    [
        explained((BINDING_READY, "True")),
        explained(reserved=False),
        explained(bindingConditions=[], bindingFailureConditions=[]),
    ],
)
def test_a_pod_that_does_not_wait_for_a_node_is_judged_as_any_other(explanation: Explanation) -> None:
    assert explanation.answer is not Answer.BINDING


def test_a_claim_alone_says_it_too() -> None:
    waiting = claim()
    waiting["status"] = {"allocation": allocation(result("gpu-0", **BINDS))}
    loaded = world_of([*(shipped.obj for shipped in shipped_classes()), waiting])
    explanation = explain_claim(loaded.world, ("default", "gpu"))
    assert explanation.answer is Answer.ALLOCATED
    assert "node-prepares" in codes(explanation)
