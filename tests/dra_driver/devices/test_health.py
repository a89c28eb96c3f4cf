"""Conditions and what follows from them."""

from support.rows import rows

from dra_driver.api.gpu_settings import HealthPolicy
from dra_driver.api.inventory import HealthCondition
from dra_driver.devices.health import affecting, judged, remedy, taints, worst, xid_condition, xid_severity

DRIVER = "gpu.nvidia.com"
T0, T1 = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"


def a_condition(type_: str, severity: str = "Critical", **fields: str) -> HealthCondition:
    return HealthCondition.model_validate({"type": type_, "severity": severity, "message": "m", "since": T0, **fields})


@rows("number", [13, 31, 43, 45, 68, 109])
def test_a_programs_own_fault_is_nothing_to_the_gpu(number: int) -> None:
    assert xid_severity(number) is None
    assert taints([xid_condition(number, since=T0)], HealthPolicy(), DRIVER) == []


@rows("number", [48, 62, 64, 74, 79, 95, 119, 140, 149])
def test_what_needs_a_reset_keeps_new_claims_away(number: int) -> None:
    (taint,) = taints([xid_condition(number, since=T0)], HealthPolicy(), DRIVER)
    assert (taint.key, taint.value, taint.effect) == ("gpu.nvidia.com/xid", str(number), "NoSchedule")


def test_an_unknown_xid_is_seen_but_keeps_nobody_away() -> None:
    (taint,) = taints([xid_condition(999, since=T0)], HealthPolicy(), DRIVER)
    assert (taint.value, taint.effect) == ("999", "None")


def test_an_administrator_may_ignore_an_xid_and_escalate_a_programs_fault() -> None:
    policy = HealthPolicy(ignore_xids=[79], escalate_xids=[13])
    assert judged(xid_condition(79, since=T0), policy) is None
    assert judged(xid_condition(13, since=T0), policy) == "Critical"


def test_escalating_wins_over_ignoring() -> None:
    policy = HealthPolicy(ignore_xids=[94], escalate_xids=[94])
    assert judged(xid_condition(94, since=T0), policy) == "Critical"


def test_pods_are_evicted_only_where_the_policy_says_so_and_never_for_a_check_that_is_due() -> None:
    conditions = [a_condition("GpuLost"), a_condition("NotValidated")]
    assert [taint.effect for taint in taints(conditions, HealthPolicy(), DRIVER)] == ["NoSchedule", "NoSchedule"]
    effects = {taint.key: taint.effect for taint in taints(conditions, HealthPolicy(evict=True), DRIVER)}
    assert effects == {"gpu.nvidia.com/gpu-lost": "NoExecute", "gpu.nvidia.com/not-validated": "NoSchedule"}


def test_one_key_has_one_taint_with_the_value_of_the_worst() -> None:
    conditions = [xid_condition(94, since=T0), xid_condition(79, since=T1), xid_condition(48, since=T1)]
    (taint,) = taints(conditions, HealthPolicy(), DRIVER)
    assert (taint.value, taint.effect) == ("48", "NoSchedule")


def test_the_oldest_critical_condition_explains_why_a_gpu_is_unhealthy() -> None:
    late, early = xid_condition(79, since=T1), a_condition("RowRemap")
    assert worst([late, early, a_condition("Ecc", "Warning")], HealthPolicy()) == early
    assert worst([a_condition("Ecc", since=T1), early], HealthPolicy()) == early, "the age counts before the type"
    assert worst([a_condition("Ecc", "Warning")], HealthPolicy()) is None


def test_an_instances_condition_is_felt_by_itself_and_by_the_whole_gpu_only() -> None:
    whole, mine, other = a_condition("Ecc"), a_condition("Xid", instance="MIG-a"), a_condition("Xid", instance="MIG-b")
    assert affecting([whole, mine, other], "MIG-a") == (whole, mine)
    assert affecting([whole, mine, other], None) == (whole, mine, other)
    assert affecting([whole, mine, other], "") == (whole,)


def test_that_no_partition_could_be_made_is_felt_by_those_that_do_not_exist_yet() -> None:
    failed = a_condition("PrepareFailed", instance="")
    assert affecting([failed], "") == (failed,)
    assert affecting([failed], None) == affecting([failed], "MIG-a") == ()
    (taint,) = taints([failed], HealthPolicy(evict=True), DRIVER)
    assert (taint.key, taint.effect) == ("gpu.nvidia.com/prepare-failed", "NoSchedule")


def test_what_the_nvidia_driver_asks_for_is_what_the_remedy_says() -> None:
    def says(action: str) -> str:
        return remedy(a_condition("RecoveryAction", value=action), "node-1", "0000:1b:00.0")

    assert says("NodeReboot") == says("SystemReboot") == "drain and reboot node-1"
    for action in ("GpuReset", "DrainAndReset"):
        assert "nvidia-smi --gpu-reset -i 0000:1b:00.0" in says(action)
    assert "`GPU Recovery Action`" in says("DrainP2P")
