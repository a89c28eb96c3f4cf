"""What Prometheus reads of the node plugin."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, generate_latest
from support.claims import a_ref, an_entry, node_facts
from support.plugin import ScriptedClaims

from dra_driver.api.inventory import Problem
from dra_driver.errors import DeviceInUse, NodeNotReady
from kubelet_plugin.discovery import NodeFacts
from kubelet_plugin.metrics import MeasuredClaims, NodeCollector
from kubelet_plugin.prepare.lifecycle import Held


def lines(registry: CollectorRegistry, *names: str) -> Sequence[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if line.startswith(names)]


async def test_calls_are_passed_on_counted_and_timed() -> None:
    registry = CollectorRegistry()
    claims = ScriptedClaims()
    claims.failures["unprepare"] = [DeviceInUse("busy")]
    measured = MeasuredClaims(claims, registry)
    refs = [a_ref("one"), a_ref("two")]
    assert await measured.prepare(refs) == {ref.uid: () for ref in refs}
    await measured.unprepare(refs[:1])
    assert lines(registry, "gpu_dra_claims_total") == [
        'gpu_dra_claims_total{call="prepare",outcome="ok"} 2.0',
        'gpu_dra_claims_total{call="unprepare",outcome="DeviceInUse"} 1.0',
    ]
    assert lines(registry, "gpu_dra_call_seconds_count") == [
        'gpu_dra_call_seconds_count{call="prepare"} 1.0',
        'gpu_dra_call_seconds_count{call="unprepare"} 1.0',
    ]


class Node:
    """Discovery and the claim service, as far as metrics look."""

    def __init__(self, facts: NodeFacts | None, held: Held) -> None:
        self._facts = facts
        self.held = held

    @property
    def facts(self) -> NodeFacts:
        if self._facts is None:
            raise NodeNotReady("not looked at yet")
        return self._facts


def test_gpus_problems_and_held_claims_are_gauges() -> None:
    problem = Problem(subject="GPU at index 3", reason="GpuIsLost", message="gone")
    node = Node(node_facts(7, problems=[problem]), {"uid": an_entry()})
    registry = CollectorRegistry()
    registry.register(NodeCollector(node, node))
    assert lines(registry, "gpu_dra_") == [
        'gpu_dra_gpus{health="healthy"} 7.0',
        'gpu_dra_gpus{health="unhealthy"} 0.0',
        "gpu_dra_problems 1.0",
        "gpu_dra_claims_held 1.0",
    ]


def test_before_the_hardware_was_seen_there_are_no_gauges_rather_than_zeros() -> None:
    node = Node(None, {})
    registry = CollectorRegistry()
    registry.register(NodeCollector(node, node))
    assert lines(registry, "gpu_dra_") == []
