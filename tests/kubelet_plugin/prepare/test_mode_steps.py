"""What to do next about a MIG mode: kubelet_plugin/prepare/mode_steps.py and the journal's part of it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.claims import BOOT, a_held_device, a_ref, an_entry
from support.inventories import gpu

from dra_driver.errors import DeviceInUse, NodeNotReady
from kubelet_plugin.hardware.mig import Mode
from kubelet_plugin.prepare.holds import GpuIdentity, HoldRecord, HoldState, MigMode, SwitchedMode
from kubelet_plugin.prepare.journal import Journal, decode, encode
from kubelet_plugin.prepare.lifecycle import ModeChanging, left_behind
from kubelet_plugin.prepare.mode_steps import ModeStep, in_use, next_step, refused
from kubelet_plugin.prepare.transitions import (
    claims_on,
    mode_change_begun,
    mode_change_ended,
    mode_changes,
    with_entry,
)

INTENT, MADE, UNDOING = HoldState.INTENT, HoldState.MADE, HoldState.UNDOING
ON, OFF, GOING_ON, GOING_OFF = (
    Mode(True, True),
    Mode(False, False),
    Mode(False, True),
    Mode(True, False),
)

DEVICE = a_held_device(0)
GPU = GpuIdentity(DEVICE.gpu_uuid, DEVICE.pci_bus_id)
HOLD = SwitchedMode(GPU)

records = st.none() | st.sampled_from([INTENT, MADE, UNDOING])
modes = st.sampled_from([ON, OFF, GOING_ON, GOING_OFF])


@pytest.mark.parametrize(
    ("record", "asked", "mode", "step"),
    [
        (None, True, OFF, ModeStep.SWITCH_ON),
        (None, True, GOING_ON, ModeStep.SWITCH_ON),
        (None, True, ON, ModeStep.NOTHING),
        (None, False, ON, ModeStep.NOTHING),
        (None, None, GOING_OFF, ModeStep.NOTHING),
        (INTENT, True, GOING_ON, ModeStep.SWITCH_ON),
        (INTENT, True, ON, ModeStep.SETTLE),
        (INTENT, None, GOING_ON, ModeStep.SETTLE),
        (INTENT, None, OFF, ModeStep.SETTLE),
        (INTENT, False, ON, ModeStep.SWITCH_OFF),
        (MADE, None, ON, ModeStep.NOTHING),
        (MADE, None, GOING_OFF, ModeStep.NOTHING),
        (MADE, None, OFF, ModeStep.SETTLE),
        (MADE, False, ON, ModeStep.SWITCH_OFF),
        (MADE, True, OFF, ModeStep.SWITCH_ON),
        (UNDOING, False, GOING_OFF, ModeStep.SWITCH_OFF),
        (UNDOING, False, OFF, ModeStep.SETTLE),
        (UNDOING, None, GOING_OFF, ModeStep.SETTLE),
    ],
)
def test_the_next_step(record: HoldState | None, asked: bool | None, mode: Mode, step: ModeStep) -> None:
    assert next_step(record, asked, mode) is step


@given(record=records, asked=st.none() | st.booleans(), mode=modes)
def test_nothing_is_switched_that_was_not_asked_for_and_no_intent_stays(
    record: HoldState | None, asked: bool | None, mode: Mode
) -> None:
    step = next_step(record, asked, mode)
    if step in (ModeStep.SWITCH_ON, ModeStep.SWITCH_OFF):
        assert asked is (step is ModeStep.SWITCH_ON)
    if record is None:
        assert step in (ModeStep.NOTHING, ModeStep.SWITCH_ON)
    if record in (INTENT, UNDOING):
        assert step is not ModeStep.NOTHING


@given(record=records, asked=st.none() | st.booleans(), mode=modes)
def test_done_step_after_step_it_comes_to_rest(record: HoldState | None, asked: bool | None, mode: Mode) -> None:
    for _ in range(4):
        step = next_step(record, asked, mode)
        if step is ModeStep.NOTHING:
            return
        on = mode.on if step is ModeStep.SETTLE else step is ModeStep.SWITCH_ON
        mode, record = Mode(on, on), MADE if on else None
    raise AssertionError("it goes round and round")


# -- the journal


@pytest.mark.parametrize("state", [INTENT, UNDOING])
@pytest.mark.parametrize("admin", [True, False])
def test_from_the_intent_to_the_result_no_claim_gets_the_gpu(state: HoldState, admin: bool) -> None:
    entry = an_entry(a_ref("one"), replace(DEVICE, admin_access=admin))
    other = an_entry(a_ref("two"), a_held_device(1))
    begun = mode_change_begun(HOLD, state, BOOT)(Journal({}))
    assert mode_changes(begun) == (HOLD,)
    with pytest.raises(ModeChanging, match="tries again"):
        with_entry(entry)(begun)
    assert with_entry(other)(begun).held
    for on in (True, False):
        ended = mode_change_ended(HOLD, on=on)(begun)
        assert ended.holds == ({HOLD: HoldRecord(MADE, BOOT)} if on else {})
        assert with_entry(entry)(ended).held


@pytest.mark.parametrize("admin", [True, False])
def test_a_change_does_not_begin_while_a_claim_has_the_gpu(admin: bool) -> None:
    entries = [an_entry(a_ref(name), replace(DEVICE, admin_access=admin)) for name in ("two", "one")]
    journal = Journal({entry.claim.uid: entry for entry in entries})
    assert claims_on(journal, GPU) == ("team-a/one", "team-a/two")
    with pytest.raises(DeviceInUse, match="team-a/one"):
        mode_change_begun(HOLD, INTENT, BOOT)(journal)


def test_a_change_does_not_begin_while_something_was_left_on_the_gpu() -> None:
    journal = Journal({}, holds={MigMode(GPU): HoldRecord(MADE, BOOT)})
    with pytest.raises(DeviceInUse, match="MIG mode of GPU"):
        mode_change_begun(HOLD, INTENT, BOOT)(journal)


def test_what_is_on_another_gpu_is_not_in_the_way() -> None:
    other = a_held_device(1)
    holds = {MigMode(GpuIdentity(other.gpu_uuid, other.pci_bus_id)): HoldRecord(MADE, BOOT)}
    assert HOLD in mode_change_begun(HOLD, INTENT, BOOT)(Journal({}, holds=holds)).holds


def test_a_change_does_not_begin_while_claims_may_be_missing() -> None:
    with pytest.raises(NodeNotReady, match="may lack claims"):
        mode_change_begun(HOLD, INTENT, BOOT)(Journal({}, incomplete=True))


def test_the_record_is_not_taken_for_something_that_a_claim_left() -> None:
    journal = mode_change_begun(HOLD, INTENT, BOOT)(Journal({}))
    assert left_behind(journal.held, journal.holds) == ()
    assert decode(encode(journal)) == journal


# -- what is in the way


def test_what_is_in_the_way_is_named_and_who_must_act() -> None:
    chosen = gpu()
    assert in_use(chosen, "n", [], [], []) is None
    claims = in_use(chosen, "n", ["team/b", "team/a"], ["python3 (7)"], [])
    programs = in_use(chosen, "n", [], ["python3 (7)", "dcgm (8)"], [])
    instances = in_use(chosen, "n", [], [], ["GPU instance 2", "GPU instance 1"])
    assert claims is not None and "team/a, team/b" in claims.message and "delete them" in claims.fix
    assert programs is not None and "dcgm (8), python3 (7)" in programs.message and "label node n" in programs.fix
    assert instances is not None and "GPU instance 1, GPU instance 2" in instances.message and "-dgi" in instances.fix


@pytest.mark.parametrize(
    ("error", "graphics", "reason", "fix"),
    [
        ("Resetting GPU 00000000:00:04.0 is not supported.", False, "NotPossible", "then reboot it"),
        ("NVML: Not Supported (3)", False, "Failed", "if it fails again"),
        ("GPU 0000:17:00.0: In use by another client", True, "InUse", "rmmod nvidia_drm"),
        ("GPU 0000:17:00.0: In use by another client", False, "Failed", "--gpu-reset"),
        ("Unknown Error", True, "Failed", "--gpu-reset"),
    ],
)
def test_a_reset_that_failed_says_what_to_do(error: str, graphics: bool, reason: str, fix: str) -> None:
    obstacle = refused(gpu(), "n", error, graphics=graphics)
    assert (obstacle.reason, obstacle.message) == (reason, error) and fix in obstacle.fix
    assert len(refused(gpu(), "n", "x" * 5000, graphics=graphics).message) < 1000
