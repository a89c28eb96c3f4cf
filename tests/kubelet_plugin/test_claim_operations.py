"""Each operation on a claim leaves one line in the log, and listeners hear of it and of its steps."""

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import pytest
import structlog
from prometheus_client import CollectorRegistry, generate_latest
from support.claims import a_claim, a_ref, a_result, device_name, node_facts
from support.prepared import Bench, prepare_one, unprepare_one

from dra_driver.errors import InvalidInput, NodeNotReady, Unreachable
from kubelet_plugin.prepare.listener import ClaimListener, Listeners, Operation
from kubelet_plugin.reporting.metrics import ClaimTimes


class Heard(ClaimListener):
    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []
        self.operations: list[Operation] = []

    def step_ended(self, step: str, outcome: str, seconds: float) -> None:
        assert seconds >= 0
        self.steps.append((step, outcome))

    def ended(self, operation: Operation) -> None:
        self.operations.append(operation)


@pytest.fixture
def log() -> Iterator[Sequence[MutableMapping[str, Any]]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


def of_claims(log: Sequence[MutableMapping[str, Any]]) -> list[MutableMapping[str, Any]]:
    return [line for line in log if line["event"] in ("prepare", "unprepare")]


async def test_a_claim_that_comes_and_goes_is_one_line_each(
    bench: Bench, log: Sequence[MutableMapping[str, Any]]
) -> None:
    ref = bench.api.put(a_claim(a_ref(), a_result(3)))
    async with bench.plugin() as service:
        await prepare_one(service, ref)
        await prepare_one(service, ref)
        await unprepare_one(service, ref)
    first, again, gone = of_claims(log)
    assert first["duration_ms"] > 0
    assert {key: first[key] for key in ("event", "log_level", "claim", "uid", "pods", "devices", "outcome")} == {
        "event": "prepare",
        "log_level": "info",
        "claim": "team-a/train",
        "uid": ref.uid,
        "pods": ["pod"],
        "devices": [device_name(3)],
        "outcome": "ok",
    }
    assert (first["repeated"], again["repeated"], gone["repeated"]) == (False, True, False)
    assert (gone["event"], gone["devices"]) == ("unprepare", [device_name(3)])


async def test_a_refusal_is_one_line_with_the_reason(bench: Bench, log: Sequence[MutableMapping[str, Any]]) -> None:
    bench.facts.facts = node_facts(1)
    ref = bench.api.put(a_claim(a_ref(), a_result(3)))
    async with bench.plugin() as service:
        answer = (await service.prepare([ref]))[ref.uid]
    (line,) = of_claims(log)
    assert (line["log_level"], line["outcome"], line["error"]) == ("warning", type(answer).__name__, str(answer))
    assert (line["pods"], line["devices"]) == (["pod"], [device_name(3)])


async def test_steps_and_operations_are_told_with_their_outcome(bench: Bench) -> None:
    heard = Heard()
    ref = bench.api.put(a_claim(a_ref(), a_result(0)))
    async with bench.plugin(listener=Listeners([ClaimListener(), heard])) as service:
        bench.api.away = Unreachable("away")
        await service.prepare([ref])
        bench.api.away = None
        bench.cdi.fail["stage"] = NodeNotReady("full")
        await service.prepare([ref])
        bench.cdi.fail.clear()
        await prepare_one(service, ref)
        await unprepare_one(service, ref)
    assert heard.steps == [
        ("read_claim", "Unreachable"),
        ("read_claim", "ok"),
        ("look_at_node", "ok"),
        ("write", "NodeNotReady"),
        ("read_claim", "ok"),
        ("look_at_node", "ok"),
        ("write", "ok"),
        ("remove", "ok"),
    ]
    assert [operation.outcome for operation in heard.operations] == ["Unreachable", "NodeNotReady", "ok", "ok"]


async def test_durations_are_told_by_outcome_and_step() -> None:
    registry = CollectorRegistry()
    times = ClaimTimes(registry)
    times.step_ended("make_MpsDaemon", "HardwareError", 3.0)
    times.ended(Operation(call="prepare", claim=a_ref(), seconds=0.004))
    times.ended(Operation(call="prepare", claim=a_ref(), seconds=0.3, error=InvalidInput("no")))
    lines = generate_latest(registry).decode().splitlines()
    for expected in (
        'gpu_dra_step_seconds_sum{outcome="HardwareError",step="make_MpsDaemon"} 3.0',
        'gpu_dra_claim_seconds_bucket{call="prepare",driver="gpu.nvidia.com",le="0.005",outcome="ok"} 1.0',
        'gpu_dra_claim_seconds_sum{call="prepare",driver="gpu.nvidia.com",outcome="InvalidInput"} 0.3',
    ):
        assert expected in lines
