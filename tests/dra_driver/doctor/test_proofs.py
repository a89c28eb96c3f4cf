"""What a proof's pods ask for, and how what came of them is judged."""

import json
from dataclasses import replace
from typing import Any

from support.rows import rows

from dra_driver.api.core import Pod
from dra_driver.api.meta import JsonObject
from dra_driver.api.resource import Device, ResourceClaim, ResourceSlice
from dra_driver.doctor.proofs import (
    SHAPES,
    Proof,
    ProofChange,
    ProofDevice,
    ProofOutcome,
    ProofRequest,
    claim_of,
    judged,
    lines,
    pod_of,
    reported_uuids,
    request_for,
)
from dra_driver.doctor.proofs import ProofResult as Verdict
from dra_driver.names import GPU_DRIVER

UUID = "69a54c71-b1f2-5842-8e4e-bc13abbc6d3c"
ROOT, USER = SHAPES[0], SHAPES[1]


def device(kind: str, *, sharing: str = "exclusive", uuid: str | None = f"GPU-{UUID}") -> Device:
    attributes: dict[str, Any] = {"type": {"string": kind}, "sharing": {"string": sharing}}
    attributes |= {"uuid": {"string": uuid}} if uuid is not None else {}
    return Device.of({"name": "gpu-69a54c71", "attributes": attributes})


def asked(
    what: Any, *devices: Device, also: tuple[ProofChange, ...] = (), why: str | None = None
) -> ProofRequest | Proof:
    return request_for(what, [ProofDevice(name, why) for name in devices], also, GPU_DRIVER)


def test_what_was_not_tried_is_shown_with_all_of_its_reason_if_there_is_a_fix() -> None:
    why = "the node has no pod of the plugin, whose image the pods would have"
    fixed = Proof("pod-gpu", Verdict.NOT_TRIED, why, "name one with --image IMAGE")
    shown = [*lines([fixed], 60)]
    assert " ".join(" ".join(shown).split()) == f"not tried pod-gpu {why} fix: name one with --image IMAGE"
    (line,) = lines([replace(fixed, fix="")], 60)
    assert line.endswith("…")


def test_each_shape_asks_for_what_the_node_has() -> None:
    gpu, mig, made = device("gpu"), device("mig", uuid=f"MIG-{UUID}"), device("mig", uuid=None)
    share = device("gpu", sharing="time-slicing")
    requests = [
        asked("gpu", gpu),
        asked("mig", mig),
        asked("mig", made, also=(ProofChange.MIG,)),
        asked("shared", share),
    ]
    assert [request.device_class for request in requests if isinstance(request, ProofRequest)] == [
        *("gpu.nvidia.com", "mig.nvidia.com", "mig.nvidia.com", "shared.gpu.nvidia.com"),
    ]
    with_daemon = asked("shared", gpu)
    assert isinstance(with_daemon, ProofRequest) and with_daemon.sharing == "MPS", (
        "no share is published: an MPS daemon"
    )


@rows(
    "what, devices, why, says",
    [
        ("gpu", [], None, "publishes no GPU"),
        ("gpu", [device("gpu", sharing="mps")], None, "publishes no GPU"),
        ("gpu", [device("gpu")], "in use", "no GPU of the node is free: in use"),
        ("mig", [device("gpu")], None, "publishes no MIG device"),
        ("mig", [device("mig", uuid=None)], None, "--also mig"),
        ("shared", [device("gpu", sharing="mps")], "full", "no share of the node is free"),
    ],
)
def test_nothing_is_asked_for_that_is_not_there(what: str, devices: list[Device], why: str | None, says: str) -> None:
    proof = asked(what, *devices, why=why)
    assert isinstance(proof, Proof) and proof.outcome is Verdict.NOT_TRIED and says in proof.reason


def test_a_pod_ends_by_itself_and_its_claim_goes_with_it() -> None:
    request = ProofRequest("gpu.nvidia.com", "true")
    pod = pod_of("proof-1", USER, request, node="gpu-1", image="image", secrets=["pull"])
    spec = pod["spec"]
    assert (spec["restartPolicy"], spec["activeDeadlineSeconds"], spec["automountServiceAccountToken"]) == (
        *("Never", 120, False),
    )
    assert spec["imagePullSecrets"] == [{"name": "pull"}]
    context = spec["containers"][0]["securityContext"]
    assert context["runAsNonRoot"] and context["capabilities"] == {"drop": ["ALL"]}
    pod["metadata"]["uid"] = "u-1"
    claim = claim_of("proof-1", ProofRequest("gpu.nvidia.com", "true", sharing="MPS"), Pod.of(pod))
    assert claim["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Pod", "name": "proof-1", "uid": "u-1"}
    ]
    assert claim["spec"]["devices"]["config"][0]["opaque"]["parameters"]["sharing"] == {"strategy": "MPS"}


# -- judging

SLICE = ResourceSlice.of(
    {
        "metadata": {"name": "s"},
        "spec": {
            "driver": GPU_DRIVER,
            "nodeName": "gpu-1",
            "pool": {"name": "gpu-1", "generation": 1, "resourceSliceCount": 1},
            "devices": [device("gpu").to_wire(), {"name": "made", "attributes": {"type": {"string": "mig"}}}],
        },
    }
)


def claim(name: str = "gpu-69a54c71", **data: str) -> JsonObject:
    result = {"request": "gpu", "driver": GPU_DRIVER, "pool": "gpu-1", "device": name}
    status: JsonObject = {"allocation": {"devices": {"results": [result]}}}
    if data:
        status["devices"] = [{"driver": GPU_DRIVER, "pool": "gpu-1", "device": name, "data": data}]
    return {"metadata": {"name": "c", "namespace": "default"}, "spec": {}, "status": status}


def ended(message: str, code: int = 0) -> JsonObject:
    state = {"terminated": {"exitCode": code, "message": message, "reason": "Error" if code else "Completed"}}
    return {"status": {"containerStatuses": [{"name": "check", "state": state}]}}


def report(*uuids: str, user: int = 0, **more: str) -> str:
    return json.dumps({"user": user, "devices": [{"uuid": uuid, "name": "H100"} for uuid in uuids], **more})


def verdict(pod: JsonObject, of: JsonObject | None = None, *, shape: Any = ROOT, events: tuple[str, ...] = ()) -> Proof:
    of = of or claim()
    typed = Pod.of({"metadata": {"name": "p"}, "spec": {"containers": []}, **pod})
    outcome = ProofOutcome(typed, ResourceClaim.of(of), reported_uuids(of, GPU_DRIVER), events, 90.0)
    return judged(shape, outcome, [SLICE], GPU_DRIVER)


def test_exactly_the_claims_gpu_passes() -> None:
    proof = verdict(ended(report(UUID)))
    assert (proof.outcome, proof.reason) == (Verdict.PASS, "CUDA works on H100 as user 0")
    assert verdict(ended(report(UUID, user=65532)), shape=USER).outcome is Verdict.PASS


def test_a_mig_device_that_was_made_is_known_by_what_the_plugin_told() -> None:
    mig = "5002fc67-c07a-508a-8001-a1feb4ec3189"
    with_data = claim("made", uuid=f"GPU-{UUID}", migUUID=f"MIG-{mig}")
    assert verdict(ended(report(mig)), with_data).outcome is Verdict.PASS
    assert verdict(ended(report(UUID)), with_data).outcome is Verdict.FAIL
    assert verdict(ended(report(mig)), claim("made")).outcome is Verdict.NOT_TRIED, "nobody says which it is"


CONDITION = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}


@rows(
    "pod, says",
    [
        (ended(report("00000000-0000-0000-0000-000000000000")), f"and the claim has GPU-{UUID}"),
        (ended(report(UUID, UUID[::-1])), "CUDA lists"),
        (ended(report()), "CUDA lists nothing"),
        (ended(report(step="load", error="libcuda.so.1: cannot open"), 1), "libcuda.so.1: cannot open"),
        (ended(report(step="cuInit", error="CUDA_ERROR_NO_DEVICE (100)"), 1), "cuInit: CUDA_ERROR_NO_DEVICE"),
        (ended(report(UUID, user=65532)), "ran as user 65532"),
        (ended("exec: gpu-dra-cuda-check: not found", 128), "without a report: exec: gpu-dra-cuda-check"),
        ({"status": {"conditions": [CONDITION]}}, "not scheduled within 90 s: 0/3 nodes"),
    ],
)
def test_whatever_else_comes_of_it_fails(pod: JsonObject, says: str) -> None:
    proof = verdict(pod)
    assert proof.outcome is Verdict.FAIL and proof.fix
    assert says in proof.reason


def test_a_pod_that_waits_says_what_kubelet_says() -> None:
    waiting = {"waiting": {"reason": "ContainerCreating"}}
    pod = {
        "status": {
            "conditions": [{**CONDITION, "status": "True"}],
            "containerStatuses": [{"name": "check", "state": waiting}],
        },
    }
    assert "ContainerCreating" in verdict(pod).reason
    assert "unresolvable CDI devices" in verdict(pod, events=("unresolvable CDI devices gpu",)).reason
