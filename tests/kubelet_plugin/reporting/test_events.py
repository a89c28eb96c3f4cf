"""What of claims and GPUs becomes an Event."""

from typing import Any

from support.claims import NODE, a_gpu, a_ref
from support.rows import rows

from dra_driver.api.inventory import GpuFacts, HealthCondition, HealthFacts
from dra_driver.errors import (
    DeviceInUse,
    DriverError,
    HardwareError,
    InvalidConfig,
    Rejected,
    UnknownDevice,
    Unreachable,
)
from dra_driver.kube.events import News
from kubelet_plugin.facts.monitor import CHECK_UNDER_WAY
from kubelet_plugin.prepare.listener import AllocatedTo, Operation
from kubelet_plugin.reporting.events import ClaimEvents, Known, NodeEvents, claim_news, node_news


def operation(error: DriverError | None = None, **more: Any) -> Operation:
    values: dict[str, Any] = {"call": "prepare", "claim": a_ref(), "seconds": 0.1, "error": error}
    return Operation(**{**values, **more})


@rows(
    "error, move",
    [
        (InvalidConfig("replicas must be a number"), "The author of the claim or its class"),
        (UnknownDevice("no gpu-1"), "delete the pod"),
        (DeviceInUse("gpu-1 is held"), "Another claim must be released"),
        (HardwareError("NVML says no"), "An administrator must check the node"),
        (Rejected("forbidden"), "permissions"),
        (Unreachable("away"), "when the API server answers"),
        (DriverError("internal error"), "defect of the driver"),
    ],
)
def test_a_claim_that_cannot_be_prepared_says_why_and_whose_move_it_is(error: DriverError, move: str) -> None:
    news = claim_news(operation(error), 0)
    assert news is not None
    assert (news.type, news.reason, news.regarding.name) == ("Warning", "PrepareFailed", "train")
    assert news.note.startswith(error.message)
    assert move in news.note


def test_an_event_names_the_field_or_object_that_is_wrong_and_not_its_own_claim_again() -> None:
    ref = a_ref()
    news = claim_news(operation(InvalidConfig("is 500", about=str(ref), field="spec.replicas")), 0)
    assert news is not None and news.note.startswith("spec.replicas: is 500. The author")
    news = claim_news(operation(HardwareError("is lost", about="GPU GPU-1")), 0)
    assert news is not None and news.note.startswith("GPU GPU-1: is lost. An administrator")


def test_success_is_told_after_failures_alone() -> None:
    reported: list[News] = []
    events = ClaimEvents(reported.append)
    events.ended(operation(devices=(AllocatedTo("pool", "gpu-1"),)))
    assert reported == []
    for _ in range(3):
        events.ended(operation(DeviceInUse("held")))
    events.ended(operation(devices=(AllocatedTo("pool", "gpu-1"),)))
    events.ended(operation(call="unprepare"))
    assert [news.reason for news in reported] == ["PrepareFailed"] * 3 + ["Prepared"]
    assert len(set(reported[:3])) == 1, "the same again is a series"
    assert reported[-1].note == "Prepared (gpu-1), after it could not be 3 times."


def test_a_claim_that_cannot_be_released_is_told() -> None:
    news = claim_news(operation(HardwareError("the GPU is busy"), call="unprepare"), 0)
    assert news is not None
    assert news.reason == "UnprepareFailed"


def condition(
    type_: str, severity: str = "Critical", message: str = "m", instance: str | None = None
) -> HealthCondition:
    return HealthCondition(
        type=type_, severity=severity, message=message, since="2026-01-01T00:00:00Z", instance=instance
    )


def gpu(*conditions: HealthCondition) -> GpuFacts:
    bad = next(
        (condition for condition in conditions if condition.severity == "Critical" and condition.instance is None), None
    )
    health = HealthFacts(
        healthy=bad is None,
        reason=bad and bad.type,
        message=bad and bad.message,
        conditions=list(conditions),
    )
    return a_gpu(0, health=health)


def reasons_of(*states: GpuFacts) -> list[list[str]]:
    """The reasons told as a GPU goes through these states."""
    known, reported = Known(), []
    for state in states:
        news, known = node_news(NODE, known, [state])
        assert all(event.regarding.kind == "Node" and state.uuid in event.note for event in news)
        reported.append([event.reason for event in news])
    return reported


def test_a_gpu_that_becomes_ill_and_well_again_is_told_once_each() -> None:
    ill = gpu(condition("Xid", message="Xid 79"))
    worse = gpu(condition("GpuLost"))
    assert reasons_of(gpu(), ill, ill, worse, gpu(), gpu()) == [
        [], ["GpuUnhealthy"], [], ["GpuUnhealthy"], ["GpuHealthy"], [],
    ]  # fmt: skip


def test_what_a_node_is_told_says_since_when_so_that_a_restart_repeats_nothing() -> None:
    ill = gpu(condition("Xid", message="Xid 79"), condition("MpsDaemon", "Warning", "died"))
    first, _ = node_news(NODE, Known(), [ill])
    again, _ = node_news(NODE, Known(), [ill])
    assert first == again and [news.since for news in first] == ["2026-01-01T00:00:00Z"] * 2


def test_a_check_under_way_is_neither_ill_nor_well() -> None:
    check, failed = condition("NotValidated", message=CHECK_UNDER_WAY), condition("NotValidated", message="too slow")
    assert reasons_of(gpu(check), gpu()) == [[], []]
    assert reasons_of(gpu(check), gpu(failed), gpu(check), gpu()) == [[], ["GpuValidationFailed"], [], ["GpuHealthy"]]


def test_what_befalls_running_claims_is_told_whether_or_not_the_gpu_is_ill() -> None:
    restarted = gpu(condition("MpsDaemon", "Warning", "MPS daemon x died; it was started anew"))
    changed = gpu(condition("InstanceLost", "Critical", "MIG device is gone", "MIG-1"))
    assert reasons_of(gpu(), restarted, restarted, changed, gpu()) == [
        [], ["MpsDaemonRestarted"], [], ["MigLayoutChanged"], [],
    ]  # fmt: skip
    assert reasons_of(gpu(condition("MpsDaemon", "Critical", "waits"))) == [["GpuUnhealthy", "MpsDaemonFailed"]]


class Facts:
    def subscribe(self, listener: Any) -> Any:
        self.changed = listener


def test_the_monitor_s_changes_are_told() -> None:
    from support.claims import node_facts

    reported: list[News] = []
    facts = Facts()
    NodeEvents(facts, NODE, reported.append)
    facts.changed(node_facts([gpu(condition("Xid"))]))
    facts.changed(node_facts([gpu(condition("Xid"))]))
    assert [news.reason for news in reported] == ["GpuUnhealthy"]
