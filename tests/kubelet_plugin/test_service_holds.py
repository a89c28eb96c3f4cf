"""Claims that change hardware, from kubelet's side: kubelet_plugin/claims/service.py over real files and fake
hardware."""

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from structlog.testing import capture_logs
from support.background import background
from support.claims import BOOT, a_claim, a_config, a_gpu, a_ref, a_result, device_name, node_facts, uuid_of
from support.inventories import mig
from support.plugin import eventually
from support.prepared import DividedBench, prepare_one, unprepare_one

from dra_driver.api.inventory import Problem
from dra_driver.api.policy import PublishingPolicy
from dra_driver.errors import DeviceInUse, HardwareError, NodeNotReady
from dra_driver.names import CONFIG_API_VERSION, ClaimRef
from kubelet_plugin.facts.hardware import RELEASED
from kubelet_plugin.hardware.calls import NvmlCode
from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    GpuIdentity,
    Hold,
    HoldRecord,
    HoldState,
    Made,
    MigMode,
    MpsDaemon,
    TimeSlice,
    subject_of,
)
from kubelet_plugin.prepare.journal import Journal, Unreadable, encode, line_of
from kubelet_plugin.prepare.lifecycle import digest_of
from kubelet_plugin.prepare.ours import Lost
from kubelet_plugin.prepare.repair import RepairReport
from kubelet_plugin.prepare.store import JOURNAL, JournalStore

PART, OTHER_PART = f"{device_name(0)}-mig-1g10gb-0", f"{device_name(0)}-mig-1g10gb-3"
GPU = GpuIdentity(uuid_of(1), a_gpu(1).pci_bus_id)
MODE = MigMode(GpuIdentity(uuid_of(0), a_gpu(0).pci_bus_id))


class HoldBench(DividedBench):
    """GPU 1 is whole, GPU 2 in MPS shares."""

    def __init__(self, root: Path) -> None:
        rules = {
            "mig": [{"gpus": {"names": [device_name(0)]}, "mode": "Dynamic"}],
            "sharing": [{"gpus": {"names": [device_name(2)]}, "strategy": "MPS", "replicas": 2}],
        }
        super().__init__(root, a_gpu(1), a_gpu(2), rules=rules)

    def claim(self, name: str, device: str, *, sharing: Any = None, share: str | None = None) -> ClaimRef:
        extra = {} if share is None else {"shareID": share}
        parameters = {"apiVersion": CONFIG_API_VERSION, "kind": "GpuConfig", "sharing": sharing}
        configs = [] if sharing is None else [a_config(parameters)]
        return self.api.put(a_claim(a_ref(name), a_result(device, **extra), configs=configs))

    def long(self, name: str) -> ClaimRef:
        sharing = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
        return self.claim(name, device_name(1), sharing=sharing)


@pytest.fixture
def bench(tmp_path: Path) -> HoldBench:
    return HoldBench(tmp_path)


async def test_what_is_made_is_told_to_the_container_and_taken_back_in_reverse(bench: HoldBench) -> None:
    ref = bench.claim("train", PART)
    async with bench.plugin() as service:
        await prepare_one(service, ref)
        text = bench.cdi.path(ref.uid).read_text()
        await unprepare_one(service, ref)

    assert "MIG-3" in text
    assert "/dev/nvidia-caps/nvidia-cap3" in text
    made = [act.removeprefix("make ") for act in bench.hardware.acts if act.startswith("make ")]
    undone = [act.removeprefix("undo ") for act in bench.hardware.acts if act.startswith("undo ")]
    assert len(made) == 3
    assert undone == made[::-1]
    assert bench.is_clean


async def test_a_claim_that_asked_for_nothing_changes_nothing(bench: HoldBench) -> None:
    ref = bench.claim("train", device_name(1))
    async with bench.plugin() as service:
        await prepare_one(service, ref)
        await unprepare_one(service, ref)

    assert bench.hardware.acts == []
    assert not (bench.state / "holds.lock").exists()


async def test_two_that_come_and_go_at_once_share_the_mode_and_leave_nothing(bench: HoldBench) -> None:
    refs = [bench.claim("one", PART), bench.claim("two", OTHER_PART)]
    async with bench.plugin() as service:
        answers = await service.prepare(refs)
        assert all(isinstance(answer, tuple) for answer in answers.values())
        assert await service.unprepare(refs) == {ref.uid: None for ref in refs}

    modes = [act for act in bench.hardware.acts if "MIG mode" in act]
    assert [act.split()[0] for act in modes] == ["make", "undo"]
    assert bench.hardware.there == {}
    assert bench.journal.holds == {}


async def test_the_last_share_takes_the_daemon_with_it(bench: HoldBench) -> None:
    refs = [bench.claim(share, device_name(2), share=share) for share in ("a", "b")]
    async with bench.plugin() as service:
        await service.prepare(refs)
        acts = len(bench.hardware.acts)
        await unprepare_one(service, refs[0])
        assert len(bench.hardware.acts) == acts
        await unprepare_one(service, refs[1])

    assert bench.hardware.there == {}


async def test_a_gpu_that_is_shared_no_more_is_for_one_claim_once_its_shares_are_gone(bench: HoldBench) -> None:
    share, late = (bench.claim(name, device_name(2), share=name) for name in ("a", "b"))
    whole = bench.claim("whole", device_name(2))
    async with bench.plugin() as service:
        first = await prepare_one(service, share)
    gpu = {"names": [device_name(2)]}
    rules = [{"gpus": gpu, "strategy": "MPS", "replicas": 2}, {"gpus": gpu, "strategy": "Exclusive"}]
    bench.policy = PublishingPolicy.of({"sharing": rules})
    async with bench.plugin() as service:
        assert await prepare_one(service, share) == first
        for other in (whole, late):
            with pytest.raises(DeviceInUse, match="the device is exclusive to one claim"):
                await prepare_one(service, other)
        await unprepare_one(service, share)
        assert bench.hardware.there == {}
        await prepare_one(service, whole)
        with pytest.raises(DeviceInUse, match="the device is exclusive to one claim"):
            await prepare_one(service, late)


async def test_who_needs_what_is_being_made_waits_for_it_and_nobody_else_does(bench: HoldBench) -> None:
    slow, beside, elsewhere = (
        bench.claim("slow", device_name(2), share="a"),
        bench.claim("beside", device_name(2), share="b"),
        bench.claim("elsewhere", PART),
    )
    ready, begun = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait_for_the_daemon(hold: Hold) -> None:
        if isinstance(hold, MpsDaemon) and not ready.is_set():
            loop.call_soon_threadsafe(begun.set)
            assert ready.wait(10)

    bench.hardware.on_act = wait_for_the_daemon
    async with bench.plugin() as service:
        first = asyncio.ensure_future(prepare_one(service, slow))
        await begun.wait()
        second = asyncio.ensure_future(prepare_one(service, beside))
        other = bench.claim("other", device_name(1))
        await prepare_one(service, other)
        assert not first.done()
        assert not second.done()
        ready.set()
        await asyncio.gather(first, second)
        await prepare_one(service, elsewhere)
        daemons = [act for act in bench.hardware.acts if act.startswith("make MPS")]
        assert len(daemons) == 1


async def test_what_cannot_be_made_leaves_nothing(bench: HoldBench) -> None:
    ref = bench.claim("train", PART)
    refusals = [HardwareError("a client is attached")]

    def refuse_once(hold: Hold) -> None:
        if isinstance(hold, ComputeInstance) and refusals:
            bench.hardware.failures = [refusals.pop()]

    bench.hardware.on_act = refuse_once
    async with bench.plugin() as service:
        with pytest.raises(HardwareError, match="a client is attached"):
            await prepare_one(service, ref)
        assert bench.hardware.there == {}
        assert (bench.journal.held, bench.journal.holds) == ({}, {})

        await prepare_one(service, ref)


async def test_what_cannot_be_taken_back_stays_with_its_claim_until_it_can(bench: HoldBench) -> None:
    ref, heir = bench.claim("train", PART), bench.claim("heir", device_name(0))
    async with bench.plugin() as service:
        await prepare_one(service, ref)
        bench.hardware.failures = [HardwareError("a program runs")] * 2

        with pytest.raises(HardwareError, match="a program runs"):
            await unprepare_one(service, ref)
        assert bench.claims_with_file == set()
        assert service.held[ref.uid].releasing
        bench.hardware.failures = []
        with pytest.raises(DeviceInUse, match="team-a/train"):
            await prepare_one(service, heir)

        await unprepare_one(service, ref)
        await prepare_one(service, heir)
    assert bench.hardware.there == {}


async def test_hardware_of_a_claim_that_is_being_taken_back_is_waited_for(bench: HoldBench) -> None:
    ref, heir = bench.claim("train", PART), bench.claim("heir", device_name(0))
    async with bench.plugin(holder_s=30.0) as service:
        await prepare_one(service, ref)
        bench.hardware.failures = [HardwareError("a program runs")] * 2
        with pytest.raises(HardwareError, match="a program runs"):
            await unprepare_one(service, ref)
        bench.hardware.failures = []

        await asyncio.gather(prepare_one(service, heir), unprepare_one(service, ref))
    assert set(bench.journal.held) == {heir.uid}


@pytest.mark.parametrize(
    "out_of_reach",
    [
        HardwareError("lost", code=NvmlCode.GPU_IS_LOST),
        HardwareError("needs a reset", code=NvmlCode.RESET_REQUIRED),
        HardwareError("not found", code=NvmlCode.NOT_FOUND),
        HardwareError("no module", code=NvmlCode.DRIVER_NOT_LOADED),
        HardwareError("no library", code=NvmlCode.LIBRARY_NOT_FOUND),
        HardwareError("mismatch", code=NvmlCode.LIB_RM_VERSION_MISMATCH),
        NodeNotReady("libnvidia-ml.so.<version> is in no library folder", about="driver"),
    ],
    ids=str,
)
async def test_a_lost_gpu_keeps_no_claim_and_is_put_right_when_it_is_back(
    bench: HoldBench, out_of_reach: NodeNotReady
) -> None:
    ref, other = bench.claim("train", PART), bench.claim("next", OTHER_PART)
    async with bench.plugin() as service:
        await prepare_one(service, ref)
        bench.hardware.failures = [out_of_reach]
        await unprepare_one(service, ref)

        assert (bench.journal.held, bench.files) == ({}, [])
        assert bench.hardware.holds == set(bench.journal.holds)
        assert {record.state for record in bench.journal.holds.values()} == {HoldState.UNDOING}
        bench.hardware.failures = [out_of_reach]
        with pytest.raises(NodeNotReady, match="was left by a claim that no longer exists"):
            await prepare_one(service, other)
        bench.hardware.failures = [out_of_reach]
        assert len((await service.sweep()).pending) == 1
        await service.sweep()

    assert (bench.journal.holds, bench.hardware.there) == ({}, {})


@pytest.mark.parametrize(
    "error",
    [
        HardwareError("in use", code=NvmlCode.IN_USE),
        HardwareError("it hangs", about="driver"),
        NodeNotReady("no modprobe", about="module vfio_pci"),
        NodeNotReady("released to another tool", about="GPUs"),
    ],
    ids=str,
)
async def test_what_may_still_be_in_use_keeps_its_claim(bench: HoldBench, error: NodeNotReady) -> None:
    ref = bench.claim("train", PART)
    async with bench.plugin() as service:
        await prepare_one(service, ref)
        bench.hardware.failures = [error]
        with pytest.raises(NodeNotReady, match=error.message):
            await unprepare_one(service, ref)
        assert bench.journal.held[ref.uid].releasing
        await unprepare_one(service, ref)
    assert (bench.journal.held, bench.journal.holds, bench.hardware.there) == ({}, {}, {})


async def test_what_a_lost_gpu_kept_is_looked_after_before_the_next_sweep(
    bench: HoldBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubelet_plugin.claims.service._FIRST_RETRY_S", 0.01)
    ref = bench.claim("train", PART)

    async def is_clear() -> bool:
        return not bench.hardware.there and not bench.journal.holds

    async with bench.plugin() as service:
        running = asyncio.create_task(service.run())
        await prepare_one(service, ref)
        bench.hardware.failures = [HardwareError("GPU is lost", code=NvmlCode.GPU_IS_LOST)] * 2
        await unprepare_one(service, ref)
        await eventually(is_clear)
        looks = AsyncMock(wraps=service._healer.sweep)
        monkeypatch.setattr(service._healer, "sweep", looks)
        await asyncio.sleep(0.1)
        assert looks.await_count <= 1, "it is looked after once"
        running.cancel()


async def test_what_a_lost_claim_left_is_looked_after_when_the_kubelet_releases_the_claim(
    bench: HoldBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubelet_plugin.claims.service._FIRST_RETRY_S", 0.01)
    ref = bench.long("train")
    async with bench.plugin() as service:
        await prepare_one(service, ref)
        async with background(service.run()):
            await service._journal.commit(lambda journal: replace(journal, held={}))
            await asyncio.sleep(0.05)
            assert bench.hardware.there, "nothing says that there is something to look after"
            await unprepare_one(service, ref)
            await eventually(lambda: not bench.hardware.there and not bench.journal.holds)


async def test_a_hold_that_is_no_longer_as_it_was_is_made_again_for_the_claim_that_has_it(bench: HoldBench) -> None:
    ref, hold = bench.long("train"), TimeSlice(GPU, "Long")
    async with bench.plugin() as service:
        await prepare_one(service, bench.claim("part", PART))
        await prepare_one(service, ref)
        bench.hardware.vanish(hold)
        await service.reassert_hold(TimeSlice(GPU, "Short"))
        assert hold not in bench.hardware.holds
        await service.reassert_hold(hold)
        assert hold in bench.hardware.holds
        bench.hardware.failures = [HardwareError("it hangs")]
        with pytest.raises(HardwareError):
            await unprepare_one(service, ref)
        bench.hardware.vanish(hold)
        await service.reassert_hold(hold)
        assert hold not in bench.hardware.holds, "its claim is being released"


async def test_the_end_waits_for_what_was_begun(bench: HoldBench) -> None:
    ref, begun = bench.long("train"), threading.Event()

    def slow(_: Hold) -> None:
        begun.set()
        time.sleep(0.05)

    bench.hardware.on_act = slow
    async with bench.plugin() as service:
        preparing = asyncio.create_task(service.prepare([ref]))
        await asyncio.to_thread(begun.wait)
        preparing.cancel()
        await asyncio.gather(preparing, return_exceptions=True)
        await service.close()
        assert bench.files and bench.hardware.holds == {TimeSlice(GPU, "Long")}


async def test_what_was_left_behind_keeps_what_it_rests_on_when_the_last_claim_goes(bench: HoldBench) -> None:
    refs = bench.claim("one", PART), bench.claim("two", OTHER_PART)
    async with bench.plugin() as service:
        await service.prepare(refs)
        bench.hardware.failures = [HardwareError("GPU is lost", code=NvmlCode.GPU_IS_LOST)]
        await unprepare_one(service, refs[0])
        await unprepare_one(service, refs[1])

        assert bench.journal.held == {}
        assert MODE in bench.journal.holds
        assert bench.hardware.holds == set(bench.journal.holds)
        await service.sweep()

    assert (bench.journal.holds, bench.hardware.there) == ({}, {})


async def test_a_part_that_somebody_destroyed_is_given_to_no_container_any_more(bench: HoldBench) -> None:
    """The ids of its device nodes may be those of another claim's part by now."""
    ref, facts = bench.claim("train", PART), bench.facts.facts
    async with bench.plugin() as service:
        await prepare_one(service, ref)
        bench.facts.facts = replace(facts, lost=(Lost(uuid_of(0), "MIG-3", "it is gone"),))
        (sentence,) = (await service.sweep()).done
        assert "lost MIG-3" in sentence
        assert (bench.files, list(service.held)) == ([], [ref.uid])
        with pytest.raises(NodeNotReady, match="MIG-3 was deleted while the claim held it; delete the pods"):
            await prepare_one(service, ref)
        await unprepare_one(service, ref)
        assert (bench.journal.holds, bench.hardware.there) == ({}, {})
        bench.facts.facts = facts
        await prepare_one(service, ref)
        assert "MIG-3" not in bench.cdi.path(ref.uid).read_text()


async def test_a_destroyed_part_is_noticed_before_the_next_sweep(
    bench: HoldBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubelet_plugin.claims.service._LOST_S", 0.01)
    monkeypatch.setattr("kubelet_plugin.claims.service._FIRST_RETRY_S", 0.01)
    ref = bench.claim("train", PART)

    async def is_without_file() -> bool:
        return bench.files == []

    async with bench.plugin() as service:
        await prepare_one(service, ref)
        running, reads = asyncio.create_task(service.run()), bench.api.reads
        await asyncio.sleep(0.05)
        assert bench.files
        assert bench.api.reads == reads, "there is nothing to look at"
        bench.facts.facts = replace(bench.facts.facts, lost=(Lost(uuid_of(0), "MIG-3", "it is gone"),))
        await eventually(is_without_file)
        await asyncio.sleep(0.05)
        reads = bench.api.reads
        await asyncio.sleep(0.05)
        assert bench.api.reads == reads, "what is lost is looked at once"
        running.cancel()


async def test_a_claim_that_comes_back_to_a_gpu_that_was_lost_finds_its_part_or_makes_it(bench: HoldBench) -> None:
    async with bench.plugin() as service:
        ref = bench.claim("train", PART)
        await prepare_one(service, ref)
        bench.hardware.failures = [HardwareError("GPU is lost", code=NvmlCode.GPU_IS_LOST)]
        await unprepare_one(service, ref)
        again = bench.claim("again", PART)
        await prepare_one(service, again)
        await unprepare_one(service, again)

    assert (bench.journal.held, bench.journal.holds, bench.hardware.there) == ({}, {}, {})


async def test_a_release_that_was_begun_is_finished_even_if_the_claim_stands(bench: HoldBench) -> None:
    ref = bench.claim("train", PART)
    async with bench.plugin() as service:
        await prepare_one(service, ref)
        bench.hardware.failures = [HardwareError("a program runs")]
        with pytest.raises(HardwareError):
            await unprepare_one(service, ref)

        report = await service.sweep()

    assert any("was being released" in sentence for sentence in report.done)
    assert bench.hardware.there == {}
    assert bench.journal.held == {}


async def test_what_was_left_by_lost_entries_is_taken_back_before_somebody_has_the_gpu(bench: HoldBench) -> None:
    slice_ = TimeSlice(GPU, "Short")
    bench.hardware.there = {subject_of(slice_): (slice_, 1)}
    bench.state.mkdir()
    async with bench.plugin() as service:
        lost = Journal({}, holds={slice_: HoldRecord(HoldState.MADE, BOOT)})
        (bench.state / JOURNAL).write_bytes(encode(lost))
        await prepare_one(service, bench.claim("train", device_name(1)))

    assert bench.hardware.there == {}
    assert bench.journal.holds == {}


async def test_after_a_boot_what_stands_is_made_again_and_what_does_not_is_forgotten(bench: HoldBench) -> None:
    stands, gone = bench.long("stands"), bench.claim("gone", PART)
    async with bench.plugin() as service:
        await service.prepare([stands, gone])
    bench.api.remove(gone)
    bench.hardware.reboot()
    bench.hardware.acts.clear()
    bench.facts.facts = node_facts(bench.facts.facts.gpus, boot_id="boot-2")

    async with bench.plugin() as service:
        assert list(service.held) == [stands.uid]

    assert bench.hardware.acts == [f"make time slice Long of {GPU}"]
    assert {record.boot_id for record in bench.journal.holds.values()} == {"boot-2"}


async def test_one_claim_that_takes_long_after_a_boot_keeps_kubelet_from_no_other(bench: HoldBench) -> None:
    slow, quick = bench.claim("slow", device_name(2), share="a"), bench.long("quick")
    async with bench.plugin() as service:
        await service.prepare([slow, quick])
    bench.hardware.reboot()
    bench.facts.facts = node_facts(bench.facts.facts.gpus, boot_id="boot-2")
    ready = threading.Event()

    def wait_for_the_daemon(hold: Hold) -> None:
        assert not isinstance(hold, MpsDaemon) or ready.wait(10)

    bench.hardware.on_act = wait_for_the_daemon
    async with bench.plugin(start_s=0.2) as service:
        await prepare_one(service, quick)
        await prepare_one(service, bench.claim("other", PART))
        late = asyncio.ensure_future(prepare_one(service, slow))
        await asyncio.sleep(0.05)
        assert not late.done()
        assert service._pending
        with capture_logs() as logs:
            ready.set()
            await late
            await eventually(lambda: not service._pending)
        assert [line["what"] for line in logs if line["event"] == "repaired"]

    assert {record.boot_id for record in bench.journal.holds.values()} == {"boot-2"}


async def test_a_defect_met_with_one_claim_at_start_keeps_no_other_from_being_put_right(bench: HoldBench) -> None:
    defect, other = bench.claim("defect", device_name(2), share="a"), bench.long("other")
    async with bench.plugin() as service:
        await service.prepare([defect, other])
    bench.api.remove(defect)
    bench.api.remove(other)

    def broken(hold: Hold) -> None:
        if isinstance(hold, MpsDaemon):
            raise ZeroDivisionError("a defect")

    bench.hardware.on_act = broken
    async with bench.plugin(start_s=60.0, stale_s=0.0) as service:
        assert list(service.held) == [defect.uid]
        await prepare_one(service, bench.claim("later", PART))


@pytest.mark.parametrize("error", [NodeNotReady("the disk is full"), ZeroDivisionError("a defect")])
async def test_what_cannot_be_cleared_keeps_the_plugin_from_nothing(
    bench: HoldBench, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("kubelet_plugin.prepare.execute.Executor.clear_left_behind", fails)
    async with bench.plugin() as service:
        assert [str(error) in sentence for sentence in (await service.sweep()).pending] == [True]
        await prepare_one(service, bench.long("train"))


@pytest.mark.parametrize("sharing", [None, {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}])
async def test_a_journal_that_is_missing_while_the_disk_is_full_costs_no_claim_what_it_has(
    bench: HoldBench, monkeypatch: pytest.MonkeyPatch, sharing: Any
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise NodeNotReady("the disk is full")

    ref = bench.claim("train", device_name(1), sharing=sharing)
    async with bench.plugin() as service:
        await prepare_one(service, ref)
    before, holds = bench.cdi.path(ref.uid).read_text(), set(bench.hardware.holds)
    (bench.state / JOURNAL).unlink()
    monkeypatch.setattr("kubelet_plugin.prepare.store.write_durably", fails)
    async with bench.plugin() as service:
        await service.sweep()
        assert bench.cdi.path(ref.uid).read_text() == before
        assert set(bench.hardware.holds) == holds
        monkeypatch.undo()
        await prepare_one(service, ref)
        assert [*service.held] == [ref.uid]
        assert not bench.journal.incomplete
    assert set(bench.hardware.holds) == holds


@pytest.mark.parametrize("started", [False, True], ids=["serving", "started again"])
async def test_a_journal_that_lost_its_end_brings_no_released_claim_back_and_costs_none_its_part(
    bench: HoldBench, started: bool
) -> None:
    """The part of a released claim is another claim's by now. Nobody may take it away in the old claim's name."""
    old = bench.claim("old", PART)
    async with bench.plugin() as service:
        await prepare_one(service, old)
        journal = bench.state / JOURNAL
        before = journal.read_bytes()
        await unprepare_one(service, old)
        bench.api.remove(old)
        new = bench.claim("new", PART)
        await prepare_one(service, new)
        file, there = bench.cdi.path(new.uid).read_text(), dict(bench.hardware.there)
        bench.hardware.acts.clear()
        halved = before + journal.read_bytes().removeprefix(before)[:50]
        assert halved != before
        if not started:
            journal.write_bytes(halved)
            await prepare_one(service, bench.claim("other", device_name(1)))
            assert sorted(service.held) == sorted([new.uid, "uid-of-other"])
            await service.sweep()
    if started:
        journal.write_bytes(halved)
        async with bench.plugin() as service:
            assert list(service.held) == [new.uid]
    assert bench.cdi.path(new.uid).read_text() == file
    assert bench.hardware.there == there
    assert not any("undo" in str(act) for act in bench.hardware.acts)


async def test_what_went_while_nobody_watched_is_made_again_at_start(bench: HoldBench) -> None:
    ref = bench.claim("train", device_name(2), share="a")
    async with bench.plugin() as service:
        await prepare_one(service, ref)
    (daemon,) = [hold for hold in bench.hardware.holds if isinstance(hold, MpsDaemon)]
    bench.hardware.vanish(daemon)

    async with bench.plugin():
        assert daemon in bench.hardware.holds


async def test_what_came_back_otherwise_is_told_to_containers_anew(bench: HoldBench) -> None:
    ref = bench.claim("train", PART)
    async with bench.plugin() as service:
        await prepare_one(service, ref)
    before = bench.cdi.path(ref.uid).read_text()
    bench.hardware.there.clear()

    async with bench.plugin() as service:
        after = bench.cdi.path(ref.uid).read_text()
        assert (await service.sweep()).done == ()

    assert "MIG-3" in before
    assert "MIG-6" in after


async def test_a_claim_whose_mig_device_was_only_intended_is_finished_at_the_next_start(bench: HoldBench) -> None:
    """The plugin was killed before the hardware had it."""
    ref = bench.claim("train", PART)
    async with bench.plugin() as service:
        await prepare_one(service, ref)
    intended = {
        hold: replace(record, state=HoldState.INTENT, made=Made()) if isinstance(hold, ComputeInstance) else record
        for hold, record in bench.journal.holds.items()
    }
    (bench.state / JOURNAL).write_bytes(encode(replace(bench.journal, holds=intended)))
    (made,) = [hold for hold in intended if isinstance(hold, ComputeInstance)]
    bench.hardware.vanish(made)

    async with bench.plugin():
        assert made in bench.hardware.holds
        assert bench.journal.holds[made].state is HoldState.MADE
        assert bench.journal.held[ref.uid].cdi_digest == digest_of(bench.cdi.path(ref.uid).read_bytes())


async def test_a_claim_that_was_allocated_again_gives_back_what_it_had(bench: HoldBench) -> None:
    ref = bench.claim("train", PART)
    async with bench.plugin() as service:
        await prepare_one(service, ref)
        bench.long("train")
        await prepare_one(service, ref)

    assert bench.hardware.holds == {TimeSlice(GPU, "Long")}


async def test_two_instances_of_the_plugin_make_one_thing_once(bench: HoldBench) -> None:
    """In a rolling update kubelet's retry may reach the new instance while the old one is at work."""
    ref = bench.claim("train", device_name(2), share="a")
    async with bench.plugin() as old, bench.plugin(journal=JournalStore(bench.state)) as new:
        answers = await asyncio.gather(prepare_one(old, ref), prepare_one(new, ref))
        assert answers[0] == answers[1]
        await asyncio.gather(unprepare_one(old, ref), unprepare_one(new, ref))

    assert bench.hardware.there == {}
    assert bench.journal.holds == {}


async def test_a_kind_of_hold_that_the_node_cannot_make_is_refused(bench: HoldBench) -> None:
    ref = bench.long("train")
    async with bench.plugin(effects={}) as service:
        with pytest.raises(NodeNotReady, match="time slice Long"):
            await prepare_one(service, ref)
        assert service.held == {}


async def test_settings_that_the_driver_may_have_forgotten_are_made_again(bench: HoldBench) -> None:
    """Of claims that set any: the hardware is not touched for others."""
    ref, part = bench.long("train"), bench.claim("part", PART)
    async with bench.plugin() as service:
        await prepare_one(service, ref)
        await prepare_one(service, part)
        running = asyncio.create_task(service.run())
        await asyncio.sleep(0.02)
        bench.hardware.vanish(TimeSlice(GPU, "Long"))
        bench.hardware.acts.clear()
        service.settings_may_be_lost()
        await eventually(lambda: TimeSlice(GPU, "Long") in bench.hardware.holds)
        await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert len(bench.hardware.acts) == 1


async def test_new_device_nodes_reach_a_claim_with_holds(bench: HoldBench) -> None:
    ref = bench.long("train")
    async with bench.plugin() as service:
        await prepare_one(service, ref)
        bench.facts.facts = node_facts([a_gpu(0, mig=mig()), a_gpu(1, minor=5), a_gpu(2)])
        assert len((await service.sweep()).done) == 1
        assert "nvidia5" in bench.cdi.path(ref.uid).read_text()
        assert (await service.sweep()).done == ()


async def test_settings_that_cannot_be_made_again_are_named_with_their_claim(bench: HoldBench) -> None:
    async with bench.plugin() as service:
        await prepare_one(service, bench.long("train"))
        bench.hardware.vanish(TimeSlice(GPU, "Long"))
        bench.hardware.failures = [HardwareError("it hangs")]
        (pending,) = (await service._healer.reassert_settings()).pending
    assert "team-a/train (UID uid-of-train) may lack what it needs: it hangs" in pending


async def test_settings_that_could_not_be_made_again_are_made_by_the_next_sweep(bench: HoldBench) -> None:
    async with bench.plugin() as service:
        await prepare_one(service, bench.long("train"))
        bench.hardware.vanish(TimeSlice(GPU, "Long"))
        bench.hardware.failures = [HardwareError("it hangs")]
        await service._healer.reassert_settings()
        assert await service.sweep() == RepairReport()
        assert TimeSlice(GPU, "Long") in bench.hardware.holds
        bench.hardware.acts.clear()
        await service.sweep()
        assert bench.hardware.acts == []


async def test_what_is_not_right_yet_is_tried_again_soon(bench: HoldBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubelet_plugin.claims.service._FIRST_RETRY_S", 0.01)
    hold = TimeSlice(GPU, "Long")
    async with bench.plugin() as service:
        await prepare_one(service, bench.long("train"))
    bench.hardware.vanish(hold)
    bench.hardware.failures = [HardwareError("it hangs")]
    async with bench.plugin() as service, background(service.run()):
        await eventually(lambda: hold in bench.hardware.holds)


async def test_a_journal_that_cannot_be_read_does_not_end_the_plugin(bench: HoldBench) -> None:
    ref = bench.long("train")
    async with bench.plugin() as service:
        await prepare_one(service, ref)
        content = (bench.state / JOURNAL).read_bytes()
        (bench.state / JOURNAL).write_bytes(line_of({"version": 9, "minReader": 9, "lines": 0}))
        (pending,) = (await service._healer.reassert_settings()).pending
        assert "newer release" in pending
        (answer,) = (await service.prepare([ref])).values()
        assert isinstance(answer, Unreadable)
        assert await service.release_given_up() is True
        (bench.state / JOURNAL).write_bytes(content)


async def test_claims_without_settings_are_left_alone_then(bench: HoldBench) -> None:
    async with bench.plugin() as service:
        await prepare_one(service, bench.claim("other", PART))
        acts = list(bench.hardware.acts)
        assert (await service._healer.reassert_settings()).done == ()
        assert bench.hardware.acts == acts


async def test_settings_of_a_claim_on_its_way_out_are_not_made_again(bench: HoldBench) -> None:
    ref = bench.long("train")
    async with bench.plugin() as service:
        await prepare_one(service, ref)
        bench.hardware.failures = [HardwareError("it hangs")]
        with pytest.raises(HardwareError):
            await unprepare_one(service, ref)
        bench.hardware.vanish(TimeSlice(GPU, "Long"))
        await service._healer.reassert_settings()
        assert bench.hardware.holds == set()


async def test_no_claim_is_prepared_while_the_gpus_are_released_and_prepared_ones_stand(bench: HoldBench) -> None:
    ref, other = bench.long("train"), bench.claim("other", PART)
    async with bench.plugin() as service:
        answer = await prepare_one(service, ref)
        why = Problem(subject="GPUs", reason=RELEASED, message="somebody released the GPUs of this node")
        seen = bench.facts.facts
        bench.facts.facts = replace(seen, problems=(why,))
        assert await prepare_one(service, ref) == answer
        with pytest.raises(NodeNotReady, match="released the GPUs"):
            await prepare_one(service, other)
        assert other.uid not in service.held
        bench.facts.facts = seen
        await prepare_one(service, other)


def _cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def _flip_all(path: Path) -> None:
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))


@pytest.mark.parametrize("wrong", [Path.unlink, _cut, _flip_all, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize("gone", [False, True])
async def test_a_journal_that_is_lost_leaves_nothing_on_the_hardware(
    bench: HoldBench, wrong: Any, *, gone: bool
) -> None:
    """Partitions, time slices, compute modes and MPS daemons: of claims that stand, and of claims that are gone."""
    mps = {"strategy": "MPS"}
    refs = [bench.claim("part", PART), bench.long("slice"), bench.claim("daemon", device_name(2), sharing=mps)]
    async with bench.plugin() as service:
        for ref in refs:
            await prepare_one(service, ref)
    made = bench.hardware.holds
    assert len(made) >= 6
    wrong(bench.state / JOURNAL)
    if gone:
        for ref in refs:
            bench.api.remove(ref)
    async with bench.plugin(stale_s=0.0) as service:
        await service.sweep()
        if not gone:
            assert bench.hardware.holds == made
            for ref in refs:
                await prepare_one(service, ref)
                await unprepare_one(service, ref)
        await service.sweep()
    assert bench.hardware.holds == frozenset()
    assert bench.journal.holds == {}
