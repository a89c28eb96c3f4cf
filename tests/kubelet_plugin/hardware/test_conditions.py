"""Conditions over time: they come at once and go when the GPU has been well for a while."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from kubelet_plugin.hardware.health import Conditions, Era, Reading, after_reading, after_xid, bad_reading, without_gpus

GPU, OTHER = "GPU-a", "GPU-b"
ERA = Era("boot-1", "module-1")
T0 = datetime(2026, 1, 1, tzinfo=UTC)
LOST = bad_reading("GpuLost", "Critical", "it does not answer")
WELL, SICK = Reading(no_action=True), Reading((LOST,))


def later(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def types(now: Conditions, gpu: str = GPU) -> list[str]:
    return [condition.type for condition in now.of(gpu)]


def test_a_bad_reading_is_a_condition_at_once_and_of_that_gpu_alone() -> None:
    now = after_reading(Conditions(), {GPU: SICK, OTHER: WELL}, era=ERA, when=T0)
    assert types(now) == ["GpuLost"]
    assert types(now, OTHER) == []


def test_it_ends_only_after_a_minute_of_good_readings() -> None:
    now = after_reading(Conditions(), {GPU: SICK}, era=ERA, when=T0)
    now = after_reading(now, {GPU: WELL}, era=ERA, when=later(10))
    assert types(after_reading(now, {GPU: WELL}, era=ERA, when=later(69))) == ["GpuLost"]
    assert types(after_reading(now, {GPU: WELL}, era=ERA, when=later(70))) == []


def test_a_clock_that_is_set_back_keeps_no_gpu_from_being_well() -> None:
    now = after_reading(Conditions(), {GPU: SICK}, era=ERA, when=later(86400 * 365))
    now = after_reading(now, {GPU: WELL}, era=ERA, when=later(86400 * 365 + 1))
    now = after_reading(now, {GPU: WELL}, era=ERA, when=T0)
    assert types(after_reading(now, {GPU: WELL}, era=ERA, when=later(59))) == ["GpuLost"]
    assert types(after_reading(now, {GPU: WELL}, era=ERA, when=later(60))) == []


def test_a_relapse_begins_the_minute_anew_and_keeps_the_time_of_the_first_failure() -> None:
    now = after_reading(Conditions(), {GPU: SICK}, era=ERA, when=T0)
    now = after_reading(now, {GPU: WELL}, era=ERA, when=later(10))
    now = after_reading(now, {GPU: SICK}, era=ERA, when=later(60))
    now = after_reading(now, {GPU: WELL}, era=ERA, when=later(75))
    now = after_reading(now, {GPU: WELL}, era=ERA, when=later(134))
    assert types(now) == ["GpuLost"]
    assert now.of(GPU)[0].since == "2026-01-01T00:00:00Z"


def test_an_xid_stays_while_the_driver_does_not_say_that_nothing_need_be_done() -> None:
    now = after_xid(Conditions(), GPU, 79, None, era=ERA, when=T0)
    for seconds in (60, 600, 86400):
        now = after_reading(now, {GPU: Reading(no_action=None)}, era=ERA, when=later(seconds))
    assert [(condition.type, condition.value) for condition in now.of(GPU)] == [("Xid", "79")]


def test_an_xid_ends_when_the_driver_says_for_a_minute_that_nothing_need_be_done() -> None:
    now = after_xid(Conditions(), GPU, 95, None, era=ERA, when=T0)
    now = after_reading(now, {GPU: WELL}, era=ERA, when=later(1))
    now = after_reading(now, {GPU: Reading(no_action=False)}, era=ERA, when=later(30))
    now = after_reading(now, {GPU: WELL}, era=ERA, when=later(40))
    assert types(after_reading(now, {GPU: WELL}, era=ERA, when=later(99))) == ["Xid"]
    assert types(after_reading(now, {GPU: WELL}, era=ERA, when=later(100))) == []


def test_another_boot_or_another_loading_of_the_driver_ends_what_was() -> None:
    now = after_xid(Conditions(), GPU, 79, None, era=ERA, when=T0)
    for other in (Era("boot-2", "module-1"), Era("boot-1", "module-2")):
        assert types(after_reading(now, {}, era=other, when=later(1))) == []
    unknown = Era("boot-1", None)
    assert types(after_reading(now, {}, era=unknown, when=later(1))) == ["Xid"]


def test_two_instances_of_one_gpu_have_conditions_of_their_own() -> None:
    now = after_xid(Conditions(), GPU, 94, "MIG-1", era=ERA, when=T0)
    now = after_xid(now, GPU, 94, "MIG-2", era=ERA, when=later(1))
    now = after_xid(now, GPU, 94, "MIG-1", era=ERA, when=later(2))
    assert [(condition.instance, condition.since[-3:]) for condition in now.of(GPU)] == [
        ("MIG-1", "00Z"),
        ("MIG-2", "01Z"),
    ]


def test_a_gpu_that_was_not_looked_at_keeps_its_conditions_and_one_that_is_gone_loses_them() -> None:
    now = after_reading(Conditions(), {GPU: SICK}, era=ERA, when=T0)
    now = after_reading(now, {OTHER: WELL}, era=ERA, when=later(500))
    assert types(now) == ["GpuLost"]
    assert types(without_gpus(now, [OTHER])) == []


@given(st.lists(st.tuples(st.integers(1, 50), st.booleans()), max_size=30))
def test_a_condition_holds_exactly_while_a_failure_is_less_than_a_minute_of_good_readings_ago(
    history: list[tuple[int, bool]],
) -> None:
    now, clock = Conditions(), 0
    bad_at: int | None = None
    first_good: int | None = None
    for pause, sick in history:
        clock += pause
        now = after_reading(now, {GPU: SICK if sick else WELL}, era=ERA, when=later(clock))
        if sick:
            bad_at, first_good = clock, None
        elif first_good is None:
            first_good = clock
        if bad_at is not None and first_good is not None and clock - first_good >= 60:
            bad_at = None
        assert types(now) == (["GpuLost"] if bad_at is not None else [])
