"""The journal's transitions: kubelet_plugin/prepare/transitions.py. Two claims, of which each may be the last user."""

from dataclasses import replace

import pytest
from support.claims import BOOT, a_held_device, a_ref, an_entry

from dra_driver.errors import NodeNotReady
from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    GpuIdentity,
    GpuInstance,
    Hold,
    HoldRecord,
    HoldState,
    Made,
    MigMode,
)
from kubelet_plugin.prepare.journal import Journal
from kubelet_plugin.prepare.lifecycle import Entry, HeldByOther
from kubelet_plugin.prepare.transitions import (
    Outdated,
    asked_for,
    begun,
    finished,
    forgotten,
    gone,
    intended,
    made,
    releasing,
    to_undo,
    undoing,
)

GPU = GpuIdentity("GPU-0", "0000:10:00.0")
MODE = MigMode(GPU)
INSTANCE = GpuInstance(GPU, "1g.10gb", 5, 0, 1)
PART = ComputeInstance(INSTANCE)
OTHER = GpuInstance(GPU, "1g.10gb", 5, 1, 1)
WAS = Made((("was", "off"),))


def entry(name: str, index: int, *holds: Hold) -> Entry:
    ref = a_ref(name)
    return replace(an_entry(ref, a_held_device(index, ref)), holds=holds)


ONE = entry("one", 0, MODE, INSTANCE)
TWO = entry("two", 1, MODE, OTHER)


def a_journal(*entries: Entry, state: HoldState = HoldState.MADE, boot_id: str = BOOT) -> Journal:
    holds = {hold: HoldRecord(state, boot_id, WAS) for listed in entries for hold in listed.holds}
    return Journal({listed.claim.uid: listed for listed in entries}, holds=holds)


def test_what_is_new_is_intended_with_what_was_before() -> None:
    journal = begun(ONE, {MODE: WAS, INSTANCE: Made()})(Journal({}))

    assert journal.held == {"uid-of-one": ONE}
    assert journal.holds == {
        MODE: HoldRecord(HoldState.INTENT, BOOT, WAS),
        INSTANCE: HoldRecord(HoldState.INTENT, BOOT),
    }


def test_what_another_claim_made_stays_as_it_is() -> None:
    before = a_journal(ONE)

    journal = begun(TWO, {OTHER: Made()})(before)

    assert journal.holds == {**before.holds, OTHER: HoldRecord(HoldState.INTENT, BOOT)}


def test_a_hold_that_went_since_it_was_looked_at_is_looked_at_again() -> None:
    with pytest.raises(Outdated):
        begun(TWO, {OTHER: Made()})(Journal({}))


def test_who_is_refused_leaves_no_intent() -> None:
    with pytest.raises(HeldByOther):
        begun(entry("two", 0, MODE), {})(a_journal(ONE))


@pytest.mark.parametrize(("hold", "made"), [(MODE, WAS), (INSTANCE, Made()), (PART, Made())])
def test_made_again_it_keeps_what_was_before_it_but_not_what_it_was(hold: Hold, made: Made) -> None:
    listed = entry("one", 0, hold)
    for before in (a_journal(listed, boot_id="boot-0"), a_journal(listed, boot_id="boot-0", state=HoldState.INTENT)):
        assert intended(hold, listed)(before).holds[hold] == HoldRecord(HoldState.INTENT, BOOT, made)


def test_an_intent_is_not_written_twice() -> None:
    journal = a_journal(ONE, state=HoldState.INTENT)

    assert intended(MODE, ONE)(journal) is journal


def test_a_hold_that_the_journal_lost_is_not_made() -> None:
    with pytest.raises(NodeNotReady, match="lost from the journal"):
        intended(MODE, ONE)(replace(a_journal(ONE), holds={}))


def test_nothing_is_made_for_a_claim_that_goes() -> None:
    journal = releasing("uid-of-one")(a_journal(ONE))

    with pytest.raises(NodeNotReady, match="released"):
        intended(MODE, ONE)(journal)
    with pytest.raises(NodeNotReady, match="released"):
        finished(ONE)(journal)
    with pytest.raises(NodeNotReady, match="released"):
        finished(ONE)(Journal({}))


def test_a_claim_that_was_released_meanwhile_is_not_answered() -> None:
    with pytest.raises(NodeNotReady):
        asked_for(an_entry(a_ref("one"), a_held_device(0)))(Journal({}))


def test_what_came_of_it_is_added_to_what_was_before() -> None:
    journal = made(MODE, ONE, Made((("pid", "1"),)))(a_journal(ONE, state=HoldState.INTENT))

    assert journal.holds[MODE] == HoldRecord(HoldState.MADE, BOOT, Made((("pid", "1"), ("was", "off"))))


def test_only_what_nobody_else_needs_goes_with_a_claim() -> None:
    journal = releasing("uid-of-one")(a_journal(ONE, TWO))

    assert journal.held["uid-of-one"].releasing
    assert {hold for hold, record in journal.holds.items() if record.state is HoldState.UNDOING} == {INSTANCE}


def test_the_last_of_two_that_go_at_once_takes_what_both_needed() -> None:
    journal = releasing("uid-of-two")(releasing("uid-of-one")(a_journal(ONE, TWO)))
    assert journal.holds[MODE].state is HoldState.MADE

    journal = gone("uid-of-one", {INSTANCE})(journal)
    assert set(journal.held) == {"uid-of-two"}
    assert set(journal.holds) == {MODE, OTHER}

    journal = gone("uid-of-two", {OTHER})(journal)
    assert set(journal.held) == {"uid-of-two"}, "its mode has to be undone first"
    assert journal.holds[MODE].state is HoldState.UNDOING

    assert gone("uid-of-two", {OTHER, MODE})(journal) == Journal({})


def test_what_was_made_again_since_it_was_undone_is_undone_again() -> None:
    journal = releasing("uid-of-one")(a_journal(ONE))
    again = made(INSTANCE, ONE, Made())(journal)

    assert to_undo(again, again.held["uid-of-one"], {MODE, INSTANCE}) == (INSTANCE,)
    assert "uid-of-one" in gone("uid-of-one", {MODE, INSTANCE})(again).held


def test_what_somebody_needs_again_is_not_forgotten() -> None:
    journal = a_journal(ONE)

    assert forgotten([MODE, INSTANCE])(journal) == journal
    assert forgotten([MODE])(replace(journal, held={})).holds.keys() == {INSTANCE}


def test_what_another_claim_needs_is_not_undone() -> None:
    journal = a_journal(ONE)

    assert undoing(MODE, but=None)(journal) == journal
    assert undoing(OTHER, but=None)(journal) == journal
    assert undoing(MODE, but="uid-of-one")(journal).holds[MODE].state is HoldState.UNDOING
