"""Whatever becomes of the journal, no hold is forgotten: kubelet_plugin/prepare/store.py beside the journal."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.claims import BOOT, a_ref, an_entry
from support.rows import slow_but

from dra_driver.errors import NodeNotReady
from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    ComputeMode,
    FabricPartition,
    GpuIdentity,
    GpuInstance,
    Hold,
    HoldRecord,
    HoldState,
    Made,
    MigMode,
    MpsDaemon,
    TimeSlice,
    VfioBinding,
)
from kubelet_plugin.prepare.journal import Journal
from kubelet_plugin.prepare.store import HOLD_LOG, JOURNAL, HoldLog, JournalFile

GPU, OTHER, THIRD = (GpuIdentity(f"GPU-{number}", f"0000:0{number}:00.0") for number in range(3))
PART = GpuInstance(GPU, "1g.10gb", 19, 0, 1)
MADE: dict[Hold, Made] = {
    MigMode(GPU): Made((("was", "off"),)),
    PART: Made((("gi", "3"),)),
    ComputeInstance(PART): Made((("ci", "0"), ("gi", "3"), ("uuid", "MIG-3"))),
    FabricPartition(0, (OTHER, THIRD)): Made((("persistent", ""), ("was", "inactive"))),
    ComputeMode(OTHER, 3): Made((("was", "2"),)),
    MpsDaemon("daemon", (OTHER,)): Made((("pid", "7"),)),
    TimeSlice(OTHER, "Long"): Made(),
    VfioBinding(THIRD, iommufd=False): Made((("override", ""), ("was", "nvidia"))),
}
RECORDS = {hold: HoldRecord(HoldState.MADE, BOOT, facts) for hold, facts in MADE.items()}


def with_holds(folder: Path) -> None:
    """As the plugin comes to have them: an intent first, then what came of it."""
    entry = replace(an_entry(a_ref("train")), holds=tuple(RECORDS))
    intents = {hold: HoldRecord(HoldState.INTENT, BOOT) for hold in RECORDS}
    for holds in (intents, RECORDS):
        JournalFile(folder).transact([lambda _, holds=holds: Journal({entry.claim.uid: entry}, holds=holds)])


CUT_EVERY, FLIPPED_EVERY = (41, 23) if "HYPOTHESIS_PROFILE" in os.environ else (101, 59)
"""Bytes; `make test-all` tries more places."""


def broken(content: bytes) -> Iterator[tuple[str, bytes | None]]:
    yield "deleted", None
    for length in range(0, len(content), CUT_EVERY):
        yield f"cut at {length}", content[:length]
    for number in range(0, len(content), FLIPPED_EVERY):
        byte = content[number] ^ (1 << number % 8)
        yield f"flipped at {number}", content[:number] + bytes([byte]) + content[number + 1 :]


@pytest.mark.parametrize("damaged", slow_but([JOURNAL, HOLD_LOG], JOURNAL))
def test_one_of_the_two_records_is_enough_for_every_hold(tmp_path: Path, damaged: str) -> None:
    with_holds(tmp_path)
    texts = {name: (tmp_path / name).read_bytes() for name in (JOURNAL, HOLD_LOG)}
    for how, content in broken(texts[damaged]):
        for name, text in texts.items():
            (tmp_path / name).write_bytes(text)
        if content is None:
            (tmp_path / damaged).unlink()
        else:
            (tmp_path / damaged).write_bytes(content)
        file = JournalFile(tmp_path)
        damage = file.settle()
        assert dict(file.current().holds) == RECORDS, how
        assert HoldLog(tmp_path).read()[0].keys() == RECORDS.keys(), how
        if damaged == JOURNAL:
            assert damage, how
            assert file.current().held or file.current().incomplete, how
        assert JournalFile(tmp_path).settle() == (), how


def test_without_a_journal_claims_are_missing_if_the_log_has_holds(tmp_path: Path) -> None:
    assert not JournalFile(tmp_path).current().incomplete
    with_holds(tmp_path)
    (tmp_path / JOURNAL).unlink()
    assert JournalFile(tmp_path).current().incomplete


def test_what_is_undone_is_known_as_gone(tmp_path: Path) -> None:
    with_holds(tmp_path)
    JournalFile(tmp_path).transact([lambda journal: replace(journal, held={}, holds={})])
    assert HoldLog(tmp_path).read() == ({}, 0)
    (tmp_path / JOURNAL).unlink()
    assert JournalFile(tmp_path).settle() == ()


def test_a_line_that_was_cut_off_by_a_crash_is_no_damage_and_spoils_no_other(tmp_path: Path) -> None:
    with_holds(tmp_path)
    log = tmp_path / HOLD_LOG
    log.write_bytes(log.read_bytes() + b"0123 {half")
    more = {TimeSlice(THIRD, "Short"): HoldRecord(HoldState.INTENT, BOOT)}
    HoldLog(tmp_path).changed({}, more)
    holds, bad = HoldLog(tmp_path).read()
    assert holds.keys() == RECORDS.keys() | more.keys()
    assert bad == 1
    log.write_bytes(log.read_bytes() + b"0123 {half")
    assert HoldLog(tmp_path).read()[1] == 1
    assert [damage.reason for damage in JournalFile(tmp_path).settle()][-1] == f"1 lines of {HOLD_LOG} cannot be read"
    assert JournalFile(tmp_path).settle() == ()


def test_a_journal_that_is_removed_after_another_instance_wrote_it_loses_no_hold(tmp_path: Path) -> None:
    file = JournalFile(tmp_path)
    file.settle()
    with_holds(tmp_path)
    (tmp_path / JOURNAL).unlink()
    (journal,) = file.transact([lambda journal: journal])
    assert isinstance(journal, Journal)
    assert (dict(journal.holds), journal.incomplete) == (RECORDS, True)


def test_a_hold_that_cannot_be_logged_is_not_begun(tmp_path: Path) -> None:
    (tmp_path / HOLD_LOG).mkdir()
    with pytest.raises(NodeNotReady, match=HOLD_LOG):
        with_holds(tmp_path)
    assert not (tmp_path / JOURNAL).exists()


def test_a_hold_is_in_the_log_before_it_is_in_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object, **__: object) -> None:
        raise NodeNotReady("cannot be written: the file system is full", about="file")

    monkeypatch.setattr("kubelet_plugin.prepare.store.append_durably", refuses)
    with pytest.raises(NodeNotReady, match="full"):
        with_holds(tmp_path)
    assert not (tmp_path / JOURNAL).exists()


def test_a_crash_between_the_two_records_leaves_the_hold_to_be_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    change: Callable[[Journal], Journal] = lambda journal: replace(journal, held={}, holds={})  # noqa: E731
    with_holds(tmp_path)
    monkeypatch.setattr(HoldLog, "gone", dies)
    with pytest.raises(KeyboardInterrupt):
        JournalFile(tmp_path).transact([change])
    monkeypatch.undo()
    file = JournalFile(tmp_path)
    assert not file.current().holds
    assert len(file.settle()) == len(RECORDS)
    assert file.current().holds.keys() == RECORDS.keys()
    assert file.current().incomplete  # as of a journal that lost its end, which is the next test


def test_a_journal_that_lost_whole_changes_at_its_end_has_the_holds_and_misses_claims(tmp_path: Path) -> None:
    JournalFile(tmp_path).transact([lambda journal: replace(journal, held={"uid-of-one": an_entry(a_ref("one"))})])
    before = (tmp_path / JOURNAL).read_bytes()
    with_holds(tmp_path)
    (tmp_path / JOURNAL).write_bytes(before)

    file = JournalFile(tmp_path)
    assert len(file.settle()) == len(RECORDS)
    assert dict(file.current().holds) == RECORDS
    assert file.current().incomplete


def torn(path: Path) -> None:
    """A crash, or a lost end: half of a change."""
    path.write_bytes(path.read_bytes() + b"0123 {half")


def test_a_journal_that_lost_its_end_has_no_hold_that_is_gone(tmp_path: Path) -> None:
    with_holds(tmp_path)
    before = (tmp_path / JOURNAL).read_bytes()
    JournalFile(tmp_path).transact([lambda journal: replace(journal, held={}, holds={})])
    (tmp_path / JOURNAL).write_bytes(before)
    torn(tmp_path / JOURNAL)

    file = JournalFile(tmp_path)
    file.settle()
    assert not file.current().holds
    assert file.current().incomplete


def test_of_two_damaged_records_each_hold_of_either_counts(tmp_path: Path) -> None:
    with_holds(tmp_path)
    torn(tmp_path / JOURNAL)
    log = tmp_path / HOLD_LOG
    known = [line for line in log.read_bytes().splitlines() if b"time-slice" not in line]
    log.write_bytes(b"\n".join([b"0123 {half", *known, b""]))
    assert TimeSlice(OTHER, "Long") not in HoldLog(tmp_path).read()[0]

    file = JournalFile(tmp_path)
    file.settle()
    assert dict(file.current().holds) == RECORDS
    assert HoldLog(tmp_path).read() == (RECORDS, 0)


def test_a_change_adds_what_it_changes_and_nothing_else(tmp_path: Path) -> None:
    with_holds(tmp_path)
    before = (tmp_path / HOLD_LOG).read_bytes()
    undoing = {hold: replace(record, state=HoldState.UNDOING) for hold, record in RECORDS.items()}
    JournalFile(tmp_path).transact([lambda journal: replace(journal, holds=undoing)])
    assert (tmp_path / HOLD_LOG).read_bytes() == before
    more = {TimeSlice(THIRD, "Short"): HoldRecord(HoldState.INTENT, BOOT)}
    JournalFile(tmp_path).transact([lambda journal: replace(journal, holds={**journal.holds, **more})])
    assert (tmp_path / HOLD_LOG).read_bytes().removeprefix(before).count(b"\n") == 1


def test_the_log_stays_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubelet_plugin.prepare.store._LONGEST_BYTES", 2000)
    log = HoldLog(tmp_path)
    for _ in range(50):
        log.changed({}, RECORDS)
        log.gone(RECORDS, {})
    assert (tmp_path / HOLD_LOG).stat().st_size < 8000
