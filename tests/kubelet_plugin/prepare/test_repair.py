"""Every cell of the table of kubelet_plugin/prepare/repair.py."""

from dataclasses import replace

import pytest
from support.claims import BOOT, DIGEST, an_entry
from support.rows import rows

from kubelet_plugin.prepare.holds import GpuIdentity, HoldRecord, HoldState, TimeSlice
from kubelet_plugin.prepare.lifecycle import ClaimMetadata, ClaimStanding, Entry, FileDigests
from kubelet_plugin.prepare.repair import Action, ClaimFinding, RepairReport, remedy_for

STALE = [standing for standing in ClaimStanding if standing.is_stale]


def action(
    entry: Entry | None = None,
    file: str | None = DIGEST,
    standing: ClaimStanding = ClaimStanding.STANDS,
    planned: str | None = DIGEST,
    *,
    incomplete: bool = False,
) -> Action:
    files = None if file is None else FileDigests(file)
    return remedy_for(ClaimFinding("uid", entry, files, standing, planned), BOOT, incomplete=incomplete).action


@pytest.mark.parametrize("standing", [ClaimStanding.STANDS, ClaimStanding.UNKNOWN])
def test_a_prepared_claim_is_kept(standing: ClaimStanding) -> None:
    assert action(an_entry(), standing=standing) is Action.KEEP


@pytest.mark.parametrize("standing", [ClaimStanding.STANDS, ClaimStanding.UNKNOWN])
@pytest.mark.parametrize("file", [None, "e" * 64])
def test_a_missing_or_altered_file_is_written_again(file: str | None, standing: ClaimStanding) -> None:
    assert action(an_entry(), file, standing) is Action.REWRITE


@rows(
    "cdi, metadata, reason",
    [
        (DIGEST, DIGEST, None),
        (DIGEST, "e" * 64, "had device metadata that was altered"),
        (DIGEST, "", "had no device metadata"),
        ("e" * 64, "", "had a CDI file that was altered"),
        (None, DIGEST, "had no CDI file"),
    ],
)
def test_device_metadata_that_is_not_as_it_was_left_is_written_again(
    cdi: str | None, metadata: str, reason: str | None
) -> None:
    entry = replace(an_entry(), metadata=ClaimMetadata("gpu", DIGEST))
    finding = ClaimFinding("uid", entry, FileDigests(cdi, metadata), ClaimStanding.STANDS, DIGEST)
    remedy = remedy_for(finding, BOOT, incomplete=False)
    assert remedy.action is (Action.KEEP if reason is None else Action.REWRITE)
    assert reason is None or remedy.why.endswith(reason)


def test_a_claim_without_device_metadata_gets_rid_of_what_another_release_left() -> None:
    finding = ClaimFinding("uid", an_entry(), FileDigests(DIGEST, DIGEST), ClaimStanding.STANDS, DIGEST)
    remedy = remedy_for(finding, BOOT, incomplete=False)
    assert remedy.action is Action.REWRITE
    assert remedy.why.endswith("had device metadata that is not its own")


def test_device_metadata_of_no_claim_is_removed() -> None:
    finding = ClaimFinding("uid", None, FileDigests(None, DIGEST))
    assert remedy_for(finding, BOOT, incomplete=False).action is Action.REMOVE_FILE


def test_a_file_for_other_driver_files_is_written_again() -> None:
    assert action(an_entry(), planned="f" * 64) is Action.REWRITE


def test_a_good_file_is_kept_while_nobody_can_say_what_a_new_one_would_be() -> None:
    assert action(an_entry(), planned=None) is Action.KEEP


def test_a_missing_file_waits_for_what_is_needed_to_write_it() -> None:
    remedy = remedy_for(
        ClaimFinding("uid", an_entry(), None, ClaimStanding.STANDS, obstacle="the driver root has no libcuda"),
        BOOT,
        incomplete=False,
    )

    assert remedy.action is Action.WAIT
    assert "claim team-a/train" in remedy.why
    assert "no libcuda" in remedy.why


def test_after_a_boot_a_claim_that_stands_is_written_again_even_if_its_file_survived() -> None:
    assert action(an_entry(boot_id="boot-0"), None) is Action.REWRITE
    assert action(an_entry(boot_id="boot-0"), DIGEST) is Action.REWRITE


def test_after_a_boot_nothing_is_decided_without_the_api() -> None:
    assert action(an_entry(boot_id="boot-0"), None, ClaimStanding.UNKNOWN) is Action.WAIT


@rows("standing", STALE)
@rows("file", [None, DIGEST, "e" * 64])
@rows("boot_id", [BOOT, "boot-0"])
@rows("planned", [None, DIGEST])
def test_a_stale_claim_is_released_whatever_else_is_wrong(
    standing: ClaimStanding, file: str | None, boot_id: str, planned: str | None
) -> None:
    assert action(an_entry(boot_id=boot_id), file, standing, planned) is Action.RELEASE


def test_an_orphaned_file_is_removed() -> None:
    assert action(None, DIGEST, ClaimStanding.UNKNOWN, None) is Action.REMOVE_FILE


def test_no_file_is_removed_while_the_journal_may_have_lost_its_entry() -> None:
    assert action(None, DIGEST, ClaimStanding.UNKNOWN, None, incomplete=True) is Action.WAIT


def test_where_nothing_is_nothing_is_done() -> None:
    assert action(None, None, ClaimStanding.UNKNOWN, None) is Action.KEEP


def test_reports_add_up() -> None:
    assert RepairReport(("a",), ("b",)) + RepairReport(("c",), ("d",)) == RepairReport(("a", "c"), ("b", "d"))


SLICE = TimeSlice(GpuIdentity("GPU-0", "0000:10:00.0"), "Long")


def action_with_hold(
    state: HoldState | None,
    standing: ClaimStanding = ClaimStanding.STANDS,
    *,
    releasing: bool = False,
    obstacle: str = "",
) -> Action:
    entry = replace(an_entry(), holds=(SLICE,), releasing=releasing)
    records = {} if state is None else {SLICE: HoldRecord(state, BOOT)}
    finding = ClaimFinding("uid", entry, FileDigests(DIGEST), standing, DIGEST, obstacle, records)
    return remedy_for(finding, BOOT, incomplete=False).action


def test_a_claim_whose_holds_are_not_made_is_finished() -> None:
    assert action_with_hold(HoldState.MADE) is Action.KEEP
    assert [action_with_hold(state) for state in (HoldState.INTENT, HoldState.UNDOING, None)] == [Action.REWRITE] * 3
    assert action_with_hold(HoldState.INTENT, obstacle="the GPU does not answer") is Action.WAIT
    assert action_with_hold(HoldState.INTENT, ClaimStanding.GONE) is Action.RELEASE


@rows("standing", ClaimStanding)
def test_what_is_on_its_way_out_goes_whatever_the_api_says(standing: ClaimStanding) -> None:
    assert action_with_hold(HoldState.UNDOING, standing, releasing=True) is Action.RELEASE


def test_no_container_may_start_with_what_is_in_the_place_of_a_lost_part() -> None:
    lost = frozenset(f"MIG-{n}" for n in range(9))
    finding = ClaimFinding("uid", an_entry(), FileDigests(DIGEST), ClaimStanding.STANDS, DIGEST, lost=lost)
    remedy = remedy_for(finding, BOOT, incomplete=False)
    assert remedy.action is Action.REMOVE_FILE
    assert f"lost {', '.join(f'MIG-{n}' for n in range(9))}, so" in remedy.why
    without_file = replace(finding, files=None, obstacle="it was destroyed")
    assert remedy_for(without_file, BOOT, incomplete=False).action is Action.WAIT
