"""What an act that fails halfway leaves, and what is told of it: kubelet_plugin/prepare/execute.py on real files."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.claims import BOOT, a_held_device, a_ref, an_entry, uuid_of
from support.fake_effects import FakeHardware

from dra_driver.errors import HardwareError, NodeNotReady
from dra_driver.runtime.files import StagedFile
from kubelet_plugin.prepare.cdi_files import CdiFiles
from kubelet_plugin.prepare.execute import Executor
from kubelet_plugin.prepare.holds import (
    ComputeMode,
    Effect,
    GpuIdentity,
    Hold,
    HoldRecord,
    HoldState,
    Made,
    MpsDaemon,
    Records,
    TimeSlice,
    UnknownHold,
    gpus_of,
    subject_of,
)
from kubelet_plugin.prepare.lifecycle import Entry, HeldByOther, digest_of
from kubelet_plugin.prepare.plan import Plan
from kubelet_plugin.prepare.store import Change, JournalFile, JournalStore
from kubelet_plugin.prepare.transitions import releasing, with_entry

GPUS = [GpuIdentity(uuid_of(index), f"0000:{index + 16:02x}:00.0") for index in range(2)]
LONG, SHORT = TimeSlice(GPUS[0], "Long"), TimeSlice(GPUS[0], "Short")


class Folder(CdiFiles):
    """Fails where it is told to, with what it is told to."""

    staging: NodeNotReady | None = None
    publishing: NodeNotReady | None = None
    """Raised when the files have their names."""
    removing: NodeNotReady | None = None

    def stage(self, claim_uid: str, content: bytes) -> StagedFile:
        if self.staging is not None:
            raise self.staging
        return super().stage(claim_uid, content)

    def publish(self, staged: Collection[StagedFile]) -> None:
        super().publish(staged)
        if self.publishing is not None:
            raise self.publishing

    def remove(self, claim_uid: str) -> None:
        if self.removing is not None:
            raise self.removing
        super().remove(claim_uid)


class Watched:
    """An effect that tells when it is asked to look, and what it is told to make."""

    def __init__(self, effect: Effect[Any]) -> None:
        self._effect = effect
        self.looks: Callable[[], object] = lambda: None
        self.made: list[HoldRecord] = []

    def before(self, hold: Hold, records: Records) -> Made:
        self.looks()
        return self._effect.before(hold, records)

    def make(self, hold: Hold, records: Records) -> Made:
        self.made.append(records[hold])
        return self._effect.make(hold, records)

    def undo(self, hold: Hold, records: Records, boot_id: str) -> None:
        self._effect.undo(hold, records, boot_id)


class Bench:
    def __init__(self, root: Path) -> None:
        self.journal = JournalStore(root / "state")
        self.cdi = Folder(root, "gpu.nvidia.com")
        self.hardware = FakeHardware()
        self.effect = Watched(self.hardware.effects[TimeSlice])
        effects: dict[type[Hold], Effect[Any]] = dict.fromkeys(self.hardware.effects, self.effect)
        self.executor = Executor(self.journal, self.cdi, effects)

    def plan(self, name: str, *holds: Hold, content: str = "{}", gpu: int = 0, boot_id: str = BOOT) -> Plan:
        ref = a_ref(name)
        entry = an_entry(ref, a_held_device(gpu, ref), boot_id=boot_id)
        entry = replace(entry, cdi_digest=digest_of(content.encode()), holds=holds)
        return Plan(replace(entry, cdi_digest=None), None) if holds else Plan(entry, content.encode())

    async def finish(self, entry: Entry, records: Records) -> Plan:
        return Plan(replace(entry, cdi_digest=digest_of(b"{}")), b"{}")

    async def carry_out(self, plan: Plan) -> Plan:
        return await self.executor.carry_out(plan, self.finish)

    @property
    def claims(self) -> tuple[set[str], set[str]]:
        """In the journal, and with a file; no temporary file is left."""
        assert list(self.cdi.folder.glob(".*")) == []
        return set(self.journal.current.held), set(self.cdi.claims())


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    await bench.executor.close()


async def test_a_new_claim_whose_file_cannot_be_flushed_leaves_nothing(bench: Bench) -> None:
    bench.cdi.publishing = NodeNotReady("the disk failed")

    with pytest.raises(NodeNotReady, match="the disk failed"):
        await bench.carry_out(bench.plan("train"))

    assert bench.claims == (set(), set())


async def test_a_claim_that_the_journal_refuses_leaves_no_file(bench: Bench) -> None:
    first, second = await asyncio.gather(
        bench.carry_out(bench.plan("one")), bench.carry_out(bench.plan("two")), return_exceptions=True
    )

    assert isinstance(first, Plan)
    assert isinstance(second, HeldByOther)
    assert bench.claims == ({"uid-of-one"}, {"uid-of-one"})


async def test_what_the_journal_refuses_needs_no_way_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way back would be another write: a disk that failed would be said to keep the claim unfinished."""
    plans = bench.plan("one"), bench.plan("two")
    written: list[Change] = []
    commit = bench.journal.commit

    async def counted(change: Change, **more: Any) -> Any:
        written.append(change)
        return await commit(change, **more)

    monkeypatch.setattr(bench.journal, "commit", counted)
    results = await asyncio.gather(*map(bench.carry_out, plans), return_exceptions=True)

    assert isinstance(results[1], HeldByOther)
    assert len(written) == 2


async def test_a_claim_with_a_hold_of_a_newer_release_keeps_its_entry_and_its_file(bench: Bench) -> None:
    plan = await bench.carry_out(bench.plan("train"))
    newer = replace(plan.entry, holds=(UnknownHold("power-cap", '{"kind":"power-cap"}'),))
    await bench.journal.commit(with_entry(newer))

    with pytest.raises(NodeNotReady, match="run that release again"):
        await bench.executor.undo(newer, BOOT)

    assert bench.journal.current.held["uid-of-train"] == newer
    assert bench.claims == ({"uid-of-train"}, {"uid-of-train"})


async def test_a_claim_that_a_damaged_journal_calls_unfinished_leaves_no_file(bench: Bench) -> None:
    """The journal lost its last change, and with it the digest of the file that is there."""
    plan = bench.plan("train", LONG)
    await bench.carry_out(plan)
    await bench.journal.commit(with_entry(plan.entry))
    assert bench.claims == ({"uid-of-train"}, {"uid-of-train"})

    await bench.executor.undo(plan.entry, BOOT)

    assert bench.claims == (set(), set())


async def test_a_claim_that_was_prepared_keeps_its_file_when_a_new_one_fails(bench: Bench) -> None:
    plan = await bench.carry_out(bench.plan("train"))
    bench.cdi.publishing = NodeNotReady("the disk failed")

    with pytest.raises(NodeNotReady, match="the disk failed"):
        await bench.carry_out(bench.plan("train", content="{ }"))

    assert bench.claims == ({"uid-of-train"}, {"uid-of-train"})
    assert bench.journal.current.held["uid-of-train"] == plan.entry


async def test_the_first_failure_is_told_although_the_way_back_fails_too(bench: Bench) -> None:
    bench.cdi.publishing, bench.cdi.removing = NodeNotReady("the disk failed"), NodeNotReady("it failed again")

    with pytest.raises(NodeNotReady, match="the disk failed"):
        await bench.carry_out(bench.plan("train"))

    assert bench.claims == ({"uid-of-train"}, {"uid-of-train"})


async def test_who_holds_the_gpu_is_told_although_the_file_cannot_be_written_either(bench: Bench) -> None:
    await bench.carry_out(bench.plan("one"))
    bench.cdi.staging = NodeNotReady("the disk is full")

    with pytest.raises(HeldByOther):
        await bench.carry_out(bench.plan("two"))


async def test_the_hardware_is_not_asked_for_a_claim_that_is_refused(bench: Bench) -> None:
    await bench.carry_out(bench.plan("one", LONG))

    with pytest.raises(HeldByOther):
        await bench.carry_out(bench.plan("two", SHORT))


async def test_what_a_claim_needs_no_more_is_taken_back_before_it_is_prepared_again(bench: Bench) -> None:
    await bench.carry_out(bench.plan("train", LONG))
    await bench.carry_out(bench.plan("train"))

    assert bench.hardware.holds == set()
    assert bench.journal.current.holds == {}
    assert bench.claims == ({"uid-of-train"}, {"uid-of-train"})


async def test_prepared_again_a_claim_has_its_hold_again_whatever_the_journal_says(bench: Bench) -> None:
    await bench.carry_out(bench.plan("train", LONG))
    bench.hardware.vanish(LONG)

    await bench.carry_out(bench.plan("train", LONG))

    assert bench.hardware.holds == {LONG}


async def test_a_hold_of_an_earlier_boot_is_intended_before_it_is_made_again(bench: Bench) -> None:
    await bench.carry_out(bench.plan("train", LONG, boot_id="boot-0"))
    bench.hardware.reboot()
    written: list[HoldRecord] = []
    bench.hardware.on_act = lambda hold: written.append(JournalFile(bench.journal.folder).current().holds[hold])

    await bench.carry_out(bench.plan("train", LONG))

    assert [(record.state, record.boot_id) for record in written] == [(HoldState.INTENT, BOOT)]
    assert [(record.state, record.boot_id) for record in bench.effect.made] == [
        (HoldState.INTENT, "boot-0"),
        (HoldState.MADE, "boot-0"),
    ], "the effect is told what the hold was before"


async def test_a_hold_whose_last_claim_goes_meanwhile_is_begun_anew(bench: Bench) -> None:
    mode = ComputeMode(GPUS[1], 2)
    await bench.carry_out(bench.plan("one", LONG))

    def goes() -> None:
        bench.effect.looks = lambda: None
        bench.hardware.vanish(LONG)
        JournalFile(bench.journal.folder).transact([lambda journal: replace(journal, held={}, holds={})])

    bench.effect.looks = goes
    await bench.carry_out(bench.plan("two", LONG, mode, gpu=1))

    assert bench.hardware.holds == {LONG, mode}
    assert {record.state for record in bench.journal.current.holds.values()} == {HoldState.MADE}


async def test_what_is_made_for_one_claim_is_not_made_again_for_another_and_goes_with_the_last(bench: Bench) -> None:
    first = await bench.carry_out(bench.plan("one", LONG))
    second = await bench.carry_out(bench.plan("two", LONG, gpu=1))
    assert len(bench.effect.made) == 1

    for plan in (first, first, second):
        await bench.executor.undo(plan.entry, BOOT)
        assert bench.hardware.holds == ({LONG} if plan is first else set())


async def test_what_another_claim_needs_meanwhile_is_not_taken_back(bench: Bench) -> None:
    other = TimeSlice(GPUS[1], "Long")
    plan = await bench.carry_out(bench.plan("one", LONG, other))
    needed: list[Hold] = []

    def comes(hold: Hold) -> None:
        if not needed:
            needed.append(other if hold == LONG else LONG)
            entry = bench.plan("two", *needed, gpu=1).entry
            two = {entry.claim.uid: entry}
            change: Change = lambda journal: replace(journal, held={**journal.held, **two})  # noqa: E731
            JournalFile(bench.journal.folder).transact([change])

    bench.hardware.on_act = comes
    await bench.executor.undo(plan.entry, BOOT)

    assert bench.hardware.holds == set(needed) == set(bench.journal.current.holds)
    assert set(bench.journal.current.held) == {"uid-of-two"}


async def test_why_a_hold_could_not_be_made_is_told_although_another_cannot_be_taken_back(bench: Bench) -> None:
    failures = iter([None, HardwareError("cannot be made"), HardwareError("cannot be taken back")])

    def act(hold: Hold) -> None:
        if (failure := next(failures)) is not None:
            raise failure

    bench.hardware.on_act = act

    with pytest.raises(HardwareError, match="cannot be made"):
        await bench.carry_out(bench.plan("train", LONG, TimeSlice(GPUS[1], "Long")))

    assert bench.journal.current.held["uid-of-train"].releasing


async def test_a_claim_that_is_released_while_it_is_finished_gets_no_file(bench: Bench) -> None:
    async def released_meanwhile(entry: Entry, records: Records) -> Plan:
        await bench.journal.commit(releasing(entry.claim.uid))
        return await bench.finish(entry, records)

    with pytest.raises(NodeNotReady, match="was released while it was prepared"):
        await bench.executor.carry_out(bench.plan("train", LONG), released_meanwhile)

    assert bench.claims == (set(), set())
    assert bench.hardware.holds == set()


async def test_a_gpu_that_cannot_be_cleared_is_tried_once_and_keeps_no_other_from_it(bench: Bench) -> None:
    holds = [TimeSlice(GPUS[1], "Long"), LONG, ComputeMode(GPUS[0], 2)]
    records = {hold: HoldRecord(HoldState.MADE, BOOT) for hold in holds}
    await bench.journal.commit(lambda journal: replace(journal, holds=records))
    bench.hardware.there = {subject_of(hold): (hold, 1) for hold in holds}
    tried: list[Hold] = []

    def act(hold: Hold) -> None:
        tried.append(hold)
        if GPUS[0] in gpus_of(hold):
            raise HardwareError("it hangs")

    bench.hardware.on_act = act
    report = await bench.executor.clear_left_behind(BOOT)

    assert len(tried) == 2
    assert [GPUS[1].uuid in sentence for sentence in report.done] == [True]
    assert ["it hangs" in sentence for sentence in report.pending] == [True]
    assert set(bench.journal.current.holds) == {LONG, ComputeMode(GPUS[0], 2)}


async def test_a_claim_that_comes_while_what_it_needs_is_cleared_gets_it_made_again(bench: Bench) -> None:
    await bench.journal.commit(lambda journal: replace(journal, holds={LONG: HoldRecord(HoldState.MADE, BOOT)}))
    bench.hardware.there = {subject_of(LONG): (LONG, 1)}
    loop, plan = asyncio.get_running_loop(), bench.plan("train", LONG)
    prepared: list[Future[Plan]] = []

    def act(hold: Hold) -> None:
        if not prepared:
            prepared.append(asyncio.run_coroutine_threadsafe(bench.carry_out(plan), loop))
            while not bench.journal.current.held:
                time.sleep(0.001)

    bench.hardware.on_act = act
    await bench.executor.clear_left_behind(BOOT)
    await asyncio.wrap_future(prepared[0])

    assert bench.hardware.holds == {LONG}
    assert bench.journal.current.holds[LONG].state is HoldState.MADE


async def test_turns_at_gpus_are_taken_in_one_order(bench: Bench) -> None:
    """Two claims of several GPUs would wait for each other otherwise."""
    turns: list[GpuIdentity] = []

    class Noting(dict[GpuIdentity, asyncio.Semaphore]):
        def setdefault(self, gpu: GpuIdentity, turn: Any) -> Any:
            turns.append(gpu)
            return super().setdefault(gpu, turn)

    bench.executor._gpus = Noting()
    gpus = [GpuIdentity(f"GPU-{number}", f"0000:{number:02x}:00.0") for number in range(12)]
    await bench.executor._on_hardware([MpsDaemon("a", tuple(gpus[6:])), MpsDaemon("b", tuple(gpus[:6]))], lambda: None)
    assert turns == sorted(gpus)


async def test_the_journal_outlives_an_executor(bench: Bench) -> None:
    """The claims of ComputeDomains are in it, too, and their calls may end later."""
    plan = await bench.carry_out(bench.plan("train"))
    await bench.executor.close()

    await bench.journal.commit(with_entry(replace(plan.entry, releasing=True)))
    assert bench.journal.current.held["uid-of-train"].releasing
    await bench.journal.close()
