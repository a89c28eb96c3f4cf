"""Each prepare and unprepare of a claim is a span, with its steps and its reads of the API below it."""

import asyncio
from pathlib import Path

import grpc.aio
import pytest
from opentelemetry.trace import StatusCode
from support.claims import a_claim, a_ref, a_result, device_name, node_facts
from support.plugin import ScriptedClaims, ScriptedHealth
from support.prepared import Bench, DividedBench, prepare_one, unprepare_one
from support.spans import Recorder

from dra_driver.errors import HardwareError
from dra_driver.kube import kubelet_api
from dra_driver.kube.kubelet_api.generated import dra_v1_pb2
from dra_driver.names import ClaimRef
from kubelet_plugin.prepare.lifecycle import PreparedDevice
from kubelet_plugin.prepare.listener import Listeners, Operation
from kubelet_plugin.reporting.debug import ClaimSpans
from kubelet_plugin.rpc.servers import DraServer

PART = f"{device_name(0)}-mig-1g10gb-0"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def listening(recorder: Recorder) -> Listeners:
    return Listeners([ClaimSpans(recorder.tracer)])


async def test_a_claim_that_comes_and_goes_is_two_spans_with_their_steps(tmp_path: Path, recorder: Recorder) -> None:
    bench = Bench(tmp_path)
    ref = bench.api.put(a_claim(a_ref(), a_result(3)))
    async with bench.plugin(listener=listening(recorder)) as service:
        await prepare_one(service, ref)
        await unprepare_one(service, ref)
    assert recorder.attributes("prepare") == {
        "gpu_dra.claim.uid": ref.uid,
        "gpu_dra.claim.name": "train",
        "k8s.namespace.name": "team-a",
        "gpu_dra.pods": ("pod",),
        "gpu_dra.devices": (device_name(3),),
        "gpu_dra.repeated": False,
        "gpu_dra.outcome": "ok",
    }
    assert recorder.below(recorder.span("prepare")) == ["read_claim", "look_at_node", "write"]
    assert recorder.below(recorder.span("unprepare")) == ["remove"]
    assert recorder.attributes("unprepare")["gpu_dra.devices"] == (device_name(3),)


async def test_each_hold_that_is_made_and_undone_is_a_step(tmp_path: Path, recorder: Recorder) -> None:
    bench = DividedBench(tmp_path)
    ref = bench.api.put(a_claim(a_ref(), a_result(PART)))
    async with bench.plugin(listener=listening(recorder)) as service:
        await prepare_one(service, ref)
        await unprepare_one(service, ref)
    holds = ["MigMode", "GpuInstance", "ComputeInstance"]
    made = [f"make_{hold}" for hold in holds]
    assert recorder.below(recorder.span("prepare")) == ["read_claim", "look_at_node", *made, "write"]
    assert recorder.below(recorder.span("unprepare")) == [f"undo_{hold}" for hold in reversed(holds)]


async def test_a_step_that_fails_is_an_error_and_so_is_the_claim(tmp_path: Path, recorder: Recorder) -> None:
    bench = DividedBench(tmp_path)
    bench.hardware.failures.append(HardwareError("no room", about="GPU x"))
    ref = bench.api.put(a_claim(a_ref(), a_result(PART)))
    async with bench.plugin(listener=listening(recorder)) as service:
        await service.prepare([ref])
    prepare, step = recorder.span("prepare"), recorder.span("make_MigMode")
    assert (step.status.status_code, recorder.attributes("make_MigMode")["gpu_dra.outcome"]) == (
        StatusCode.ERROR,
        "HardwareError",
    )
    assert prepare.status.description == "GPU x: no room"
    assert recorder.attributes("prepare")["gpu_dra.outcome"] == "HardwareError"


async def test_claims_of_one_call_do_not_get_each_others_steps(tmp_path: Path, recorder: Recorder) -> None:
    bench = Bench(tmp_path)
    bench.facts.facts = node_facts(4)
    refs = [bench.api.put(a_claim(a_ref(f"claim-{n}"), a_result(n))) for n in range(3)]
    async with bench.plugin(listener=listening(recorder)) as service:
        await service.prepare(refs)
    prepares = [span for span in recorder.spans if span.name == "prepare"]
    assert [recorder.below(span) for span in prepares] == [["read_claim", "look_at_node", "write"]] * 3
    assert {dict(span.attributes or {})["gpu_dra.claim.name"] for span in prepares} == {ref.name for ref in refs}


async def test_repairs_are_spans_of_their_own(tmp_path: Path, recorder: Recorder) -> None:
    bench = Bench(tmp_path)
    ref = bench.api.put(a_claim(a_ref(), a_result(0)))
    async with bench.plugin() as service:
        await prepare_one(service, ref)
    bench.api.remove(ref)
    async with bench.plugin(listener=listening(recorder), stale_s=0.0) as service:
        await service.sweep()
    assert recorder.span("remove").parent is None


class Spanned(ScriptedClaims):
    """As `ClaimService` does: the work on each claim in a task of its own."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__([PreparedDevice(("gpu",), "node-1", "gpu-1", ("k8s.gpu.nvidia.com/claim=one",))])
        self.listener = ClaimSpans(recorder.tracer)

    async def _called(self, method: str, claims: object) -> None:
        async def work() -> None:
            ref = ClaimRef("team-a", "train", "u1")
            self.listener.began("prepare", ref)
            self.listener.ended(Operation(call="prepare", claim=ref, seconds=0.0))

        await asyncio.create_task(work())


@pytest.mark.parametrize("parent", [None, PARENT])
async def test_a_call_of_kubelet_with_a_parent_makes_the_claims_part_of_it(
    parent: str | None, folder: Path, recorder: Recorder
) -> None:
    server = DraServer(folder / "dra.sock", Spanned(recorder), ScriptedHealth(), part_of=recorder.tracer.adopt)
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"unix:{folder / 'dra.sock'}") as channel:
            await channel.unary_unary(
                f"/{kubelet_api.DRA_V1}/NodePrepareResources",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=dra_v1_pb2.NodePrepareResourcesResponse.FromString,
            )(
                dra_v1_pb2.NodePrepareResourcesRequest(
                    claims=[dra_v1_pb2.Claim(namespace="team-a", uid="u1", name="train")]
                ),
                metadata=() if parent is None else (("traceparent", parent),),
            )
    finally:
        await server.stop()
    parent_span = recorder.span("prepare").parent
    shown = None if parent_span is None else f"00-{parent_span.trace_id:032x}-{parent_span.span_id:016x}-01"
    assert shown == parent
