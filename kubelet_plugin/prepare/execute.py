"""Carries out plans: the file is staged, then the journal, then the file in its place, then the answer; everything back
when a part fails.

The service enters here, one claim at a time for each claim. The order of things, and why a crash between any two of
them leaves nothing wrong (the states are those of `kubelet_plugin.prepare.lifecycle`):

    prepare    1  CDI file staged under a hidden name
               2  entry into the journal, durable
               3  CDI file takes its place
               4  answer
    unprepare  1  CDI file removed
               2  entry out of the journal, durable
               3  answer

Device metadata is staged, published, compared and removed with the CDI file: below, "CDI file" means all of a claim's
files.

* Killed before prepare 2 is durable: a hidden file at most, removed at start; kubelet got no answer and asks again.
* Killed before prepare 3: an entry without its file is UNFINISHED, and is finished or undone at start.
* The file never appears before its entry is durable, so a file without entry is always ORPHANED: it belongs to a claim
  that is being released. Another instance of the plugin may therefore remove it without asking.
* Killed after prepare 3: PREPARED; asked again, the answer is the same.
* Killed after unprepare 1: UNFINISHED; kubelet asks again, or start-up undoes or finishes it by the claim's standing.
* A power failure is a boot: CDI files are not flushed, because no entry of an earlier boot counts as PREPARED. A file
  that it brings back is ORPHANED.

All of it is done in the journal's thread: another thread costs more than the work, because CDI files lie in memory.
So one claim costs a journal write, its release another, and many claims of one moment share it.

A claim with holds (`kubelet_plugin.prepare.holds`) takes a longer way: hardware cannot be looked up like a file.

    prepare    1  what is there before is asked; entry and intents into the journal, durable
               2  each hold is made, in order, unless it is; what came of it into the journal, durable
               3  the digest of the CDI file into the entry, durable, then the file as above
               4  answer
    unprepare  1  CDI file removed; `releasing` into the entry, UNDOING into holds that no other entry lists, durable
               2  these are undone, last made first
               3  entry and records out of the journal, durable; back to 2 if it turns out to be the last user after all
               4  answer

* Killed anywhere before prepare 3 is durable: an entry that is UNFINISHED, to be finished (a hold that is made already
  is found so) or released. Killed anywhere in unprepare: `releasing` says that it must be continued.
* An entry counts as a user of its holds until it is out of the journal. Of two claims that go at the same time the
  later one finds in step 3 that it is the last user. So what others need is never undone before what needs it.
* Two that need the same hold take turns with it (`kubelet_plugin.prepare.turns`), over all instances of the plugin, and
  with nothing else. The second finds it made.
* A claim that cannot be prepared is released at once, if it had nothing before.
* What cannot be undone because its GPU is lost, or the driver is gone, keeps no claim: its record stays behind, and is
  cleared later. So are holds of entries that were lost: UNDOING first, too.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import TracebackType
from typing import Any
from weakref import WeakValueDictionary

import structlog

from dra_driver.api.inventory import MOST_GPUS
from dra_driver.errors import DriverError, HardwareError, NodeNotReady
from dra_driver.runtime.files import StagedFile
from kubelet_plugin.hardware.calls import NvmlCode
from kubelet_plugin.hardware.nvfm import FM_SILENT
from kubelet_plugin.prepare import transitions
from kubelet_plugin.prepare.cdi_files import CdiFiles
from kubelet_plugin.prepare.holds import (
    Effect,
    Effects,
    GpuIdentity,
    Hold,
    HoldState,
    Made,
    Records,
    described,
    gpus_of,
    in_order,
)
from kubelet_plugin.prepare.lifecycle import Entry, FileDigests, digest_of, left_behind, needed
from kubelet_plugin.prepare.listener import ClaimListener, Timed
from kubelet_plugin.prepare.metadata import metadata_digest
from kubelet_plugin.prepare.plan import Plan, check_releasable
from kubelet_plugin.prepare.repair import RepairReport
from kubelet_plugin.prepare.store import JournalStore
from kubelet_plugin.prepare.turns import Turns

_log = structlog.get_logger(__name__)

_FILE_THREADS = 8
"""Files of different claims are read side by side."""

_OUT_OF_REACH = (
    NvmlCode.NOT_FOUND, NvmlCode.DRIVER_NOT_LOADED, NvmlCode.GPU_IS_LOST, NvmlCode.RESET_REQUIRED,
    NvmlCode.LIB_RM_VERSION_MISMATCH, NvmlCode.TIMEOUT, NvmlCode.LIBRARY_NOT_FOUND, *FM_SILENT,
)  # fmt: skip
"""No program can use the GPU now, or Fabric Manager cannot be asked, so the claim may be released; otherwise its pod
would be stuck until the node boots. What the claim left there is undone when it can be reached again; until then no
other claim gets it."""

_NO_DRIVER = "driver"
"""What an error without a code is about if the node's driver, or a part of it, is not there. A driver container that
drains the node before it installs the driver waits for the pods, and their release must not wait for the driver."""

_THREADS_OF_A_GPU = 4
"""Work on holds of one GPU, side by side. Most of the time it waits: for the driver, or for a daemon to be ready."""

type Finish = Callable[[Entry, Records], Awaitable[Plan]]
"""Plans the file of an entry whose holds are made. Raises DriverError."""


def _is_out_of_reach(error: NodeNotReady) -> bool:
    return error.code in _OUT_OF_REACH if isinstance(error, HardwareError) else error.about == _NO_DRIVER


class _ClaimFiles:
    """A claim's files around the write of the journal: before it under hidden names, after it in place."""

    def __init__(self, cdi: CdiFiles, plan: Plan, *, new: bool = False) -> None:
        """`new`: the claim had no files before."""
        self._cdi = cdi
        self._plan = plan
        self._new = new
        self._staged: list[StagedFile] = []
        self.due = False
        """Whether the journal has the entry, so that a claim without its files is UNFINISHED."""

    def __enter__(self) -> None:
        """The CDI file comes last: what its containers mount is there before it."""
        uid, content = self._plan.entry.claim.uid, self._plan.content
        self._staged = self._cdi.stage_metadata(uid, self._plan.metadata)
        if content is not None:
            try:
                self._staged.append(self._cdi.stage(uid, content))
            except DriverError:
                self._discard()
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._discard()
            return
        self.due = True
        self._cdi.publish(self._staged)
        if not self._new:
            # It may have been allocated again, with devices for other requests.
            self._cdi.drop_metadata(self._plan.entry.claim.uid, but=[file.request for file in self._plan.metadata])

    def _discard(self) -> None:
        for file in self._staged:
            file.discard()


class _Removal:
    """Removes the files of a claim before its entry. Even without a digest: a journal that lost its end may have the
    entry as it was before the file. Raises NodeNotReady when the entry must stay.
    """

    def __init__(self, cdi: CdiFiles, entry: Entry) -> None:
        check_releasable(entry)
        self._cdi = cdi
        self._claim_uid = entry.claim.uid

    def __enter__(self) -> None:
        self._cdi.remove(self._claim_uid)

    def __exit__(self, *_: object) -> None:
        """Nothing is left to do."""


class Executor:
    """Runs plans of different claims at once; the caller sees to it that each claim has one at a time."""

    def __init__(
        self, journal: JournalStore, cdi: CdiFiles, effects: Effects, listener: ClaimListener | None = None
    ) -> None:
        self.journal = self._journal = journal
        self._step_ended = (listener or ClaimListener()).step_ended
        self._cdi = cdi
        self._effects = effects
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """A lock lives as long as a task has or awaits it."""
        self._hold_turns = Turns(journal.folder)
        self._threads = ThreadPoolExecutor(_FILE_THREADS, thread_name_prefix="cdi")
        self._hardware = ThreadPoolExecutor(_THREADS_OF_A_GPU * MOST_GPUS, thread_name_prefix="holds")
        self._gpus: dict[GpuIdentity, asyncio.Semaphore] = {}
        """So that what waits for a slow GPU does not keep the threads from others."""

    async def carry_out(self, plan: Plan, finish: Finish) -> Plan:
        """The plan with the file that was written. Raises HeldByOther, NodeNotReady, or what `finish` raises.

        Then everything is as it was before, or the claim is UNFINISHED: one that had holds before keeps its entry, and
        so does one whose holds cannot be taken back now.
        """
        before = self._journal.current.held.get(plan.entry.claim.uid)
        if plan.entry.holds or (before is not None and before.holds):
            async with self._turn_with_holds(plan.entry):
                return await self._carry_out_with_holds(plan, finish)
        with self._timed("write"):
            await self._write(plan, before)
        return plan

    async def undo(self, entry: Entry, boot_id: str) -> None:
        """Release a claim. Raises NodeNotReady; then its entry is still there and it can be tried again."""
        if entry.holds:
            async with self._turn_with_holds(entry):
                return await self._release(entry.claim.uid, boot_id)
        with self._timed("remove"):
            await self._journal.commit(transitions.released(entry.claim.uid), around=_Removal(self._cdi, entry))
        return None

    async def reassert(self, entry: Entry) -> None:
        """Make what is made already: it may have changed behind the journal's back. Raises NodeNotReady."""
        async with self._turn_with_holds(entry):
            for hold in entry.holds:
                await self._make(hold, entry, again=True)

    async def clear_left_behind(self, boot_id: str) -> RepairReport:
        """Undo the holds that no entry lists; says which, and which not. Raises NodeNotReady when the disk refuses."""
        journal = self._journal.current
        undone: list[Hold] = []
        pending: list[str] = []
        stuck: set[GpuIdentity] = set()
        for hold in reversed(in_order(left_behind(journal.held, journal.holds))):
            if stuck.intersection(gpus_of(hold)):
                continue  # what is still there may need it
            try:
                if await self._take_back(hold, None, boot_id):
                    undone.append(hold)
            except DriverError as error:
                stuck.update(gpus_of(hold))
                pending.append(f"{described(hold)} was left behind, and cannot be taken back now: {error}")
        if undone:
            await self._journal.commit(transitions.forgotten(undone))
        return RepairReport(tuple(f"{described(hold)} was left behind: taken back" for hold in undone), tuple(pending))

    def turn(self, claim_uid: str) -> asyncio.Lock:
        """Held during each operation on this claim; other claims are not affected."""
        return self._turns.setdefault(claim_uid, asyncio.Lock())

    async def file_digests(self, claim_uid: str) -> FileDigests | None:
        """Of the claim's files as they are; None when there is none. Raises NodeNotReady."""
        content, metadata = await self._in_thread(lambda: (self._cdi.read(claim_uid), self._cdi.metadata(claim_uid)))
        digests = FileDigests(None if content is None else digest_of(content), metadata_digest(metadata))
        return None if digests == FileDigests(None) else digests

    async def claims_with_file(self) -> frozenset[str]:
        """UIDs of all claims that have a CDI file or device metadata. Raises NodeNotReady."""
        return frozenset(await self._in_thread(self._cdi.claims))

    async def remove_leftovers(self) -> None:
        """Remove what killed processes staged. Raises NodeNotReady."""
        await self._in_thread(self._cdi.remove_leftovers)

    async def remove_orphan(self, claim_uid: str) -> None:
        """Remove the files of a claim that has no entry, if there are any. Raises NodeNotReady."""
        await self._in_thread(self._cdi.remove, claim_uid)

    async def close(self) -> None:
        """The journal stays open, because the claims of ComputeDomains are in it, too."""
        await self._journal.written()
        self._threads.shutdown()
        self._hardware.shutdown()
        self._hold_turns.close()

    # Entry and file.

    async def _write(self, plan: Plan, before: Entry | None) -> None:
        transitions.admitted_to(self._journal.current, plan.entry)  # before anything is written for it
        files = _ClaimFiles(self._cdi, plan, new=before is None)
        try:
            await self._journal.commit(transitions.with_entry(plan.entry), around=files)
        except DriverError:
            if files.due:
                await self._back_to(plan, before)
            raise

    async def _back_to(self, plan: Plan, before: Entry | None) -> None:
        """After a failed file: the old entry again, or none.

        If even that fails, or the file is there and only its flush failed, the claim is UNFINISHED, not lost.
        """
        uid = plan.entry.claim.uid
        try:
            if before is None:
                await self._in_thread(self._cdi.remove, uid)
            await self._journal.commit(transitions.released(uid) if before is None else transitions.with_entry(before))
        except DriverError as error:
            _log.warning("a claim stays unfinished until it is tried again", claim=uid, error=str(error))

    # Holds.

    async def _carry_out_with_holds(self, plan: Plan, finish: Finish) -> Plan:
        entry = plan.entry
        uid = entry.claim.uid
        before = self._journal.current.held.get(uid)
        if before is not None and (before.releasing or not set(before.holds) <= set(entry.holds)):
            # It is on its way out, or it was allocated again with other devices.
            await self._release(uid, entry.boot_id)
            before = None
        if not entry.holds:
            await self._write(plan, before)
            return plan
        await self._begin(plan)
        try:
            for hold in entry.holds:
                # A claim that was prepared before is repaired: holds that the journal calls made may no longer exist.
                await self._make(hold, entry, again=before is not None)
            done = await finish(entry, self._journal.current.holds)
            with self._timed("write"):
                await self._journal.commit(transitions.finished(done.entry), around=_ClaimFiles(self._cdi, done))
        except DriverError as error:
            if before is None:
                await self._give_up(entry, error)
            raise
        return done

    async def _give_up(self, entry: Entry, reason: DriverError) -> None:
        try:
            await self._release(entry.claim.uid, entry.boot_id)
        except DriverError as error:
            _log.warning("cannot be taken back now", claim=str(entry.claim), error=str(error), after=str(reason))

    async def _begin(self, plan: Plan) -> None:
        """Entry and intents into the journal, with what was before."""
        entry, remembered = plan.entry, dict(plan.remembered)
        while True:
            journal = self._journal.current
            transitions.admitted_to(journal, entry)  # before anything reads the hardware for it
            new = [hold for hold in entry.holds if hold not in journal.holds]
            async with AsyncExitStack() as turns:
                for hold in new:
                    await turns.enter_async_context(self.turn_of(hold))
                facts = await self._on_hardware(new, self._facts_before, new, self._journal.current.holds)
                intents = {hold: remembered.get(hold, Made()).with_facts(fact) for hold, fact in facts.items()}
                try:
                    await self._journal.commit(transitions.begun(entry, intents))
                except transitions.Outdated:
                    continue  # the last claim of a hold was released meanwhile, and the hold with it
            return

    def _facts_before(self, new: Collection[Hold], records: Records) -> dict[Hold, Made]:
        return {hold: self._effect(hold).before(hold, records) for hold in new if hold not in records}

    async def _make(self, hold: Hold, entry: Entry, *, again: bool = False) -> None:
        async with self.turn_of(hold):
            record = self._journal.current.holds.get(hold)
            is_made = record is not None and record.state is HoldState.MADE and record.boot_id == entry.boot_id
            if is_made and not again:
                return
            if not is_made:
                await self._journal.commit(transitions.intended(hold, entry))
            records = self._journal.current.holds
            if record is not None:
                records = {**records, hold: record}
            with self._timed(f"make_{type(hold).__name__}"):
                came_of_it = await self._on_hardware([hold], self._effect(hold).make, hold, records)
            await self._journal.commit(transitions.made(hold, entry, came_of_it))

    async def _release(self, uid: str, boot_id: str) -> None:
        entry = self._journal.current.held.get(uid)
        if entry is None:
            return
        journal = await self._journal.commit(transitions.releasing(uid), around=_Removal(self._cdi, entry))
        undone: set[Hold] = set()
        out_of_reach: set[Hold] = set()
        while uid in journal.held:
            for hold in reversed(in_order(transitions.to_undo(journal, entry, undone | out_of_reach))):
                if any(set(gpus_of(hold)) & set(gpus_of(other)) for other in out_of_reach):
                    out_of_reach.add(hold)  # what is still there may need it
                    continue
                try:
                    if await self._take_back(hold, uid, boot_id):
                        undone.add(hold)
                except NodeNotReady as error:
                    if not _is_out_of_reach(error):
                        raise
                    _log.warning("left behind for now", hold=described(hold), claim=str(entry.claim), error=str(error))
                    out_of_reach.add(hold)
            journal = await self._journal.commit(transitions.gone(uid, frozenset(undone), frozenset(out_of_reach)))

    async def _take_back(self, hold: Hold, claim_uid: str | None, boot_id: str) -> bool:
        """Undo a hold, unless a claim needs it again. Returns whether it was undone. Its record stays."""
        async with self.turn_of(hold):
            journal = self._journal.current
            if hold in journal.holds and journal.holds[hold].state is not HoldState.UNDOING:
                # Of a lost entry. A claim that comes meanwhile and needs the hold makes it again.
                journal = await self._journal.commit(transitions.undoing(hold, but=claim_uid))
            if hold not in journal.holds or needed(journal.held, hold, but=claim_uid):
                return False
            with self._timed(f"undo_{type(hold).__name__}"):
                await self._on_hardware([hold], self._effect(hold).undo, hold, journal.holds, boot_id)
            return True

    def _turn_with_holds(self, entry: Entry) -> AbstractAsyncContextManager[None]:
        """Over all instances of the plugin: what one of them makes, another must not take back meanwhile."""
        return self._hold_turns.of(f"claim {entry.claim.uid}", about=str(entry.claim))

    def turn_of(self, hold: Hold) -> AbstractAsyncContextManager[None]:
        """Over all instances of the plugin; raises NodeNotReady when another one keeps its turn for too long."""
        return self._hold_turns.of(repr(hold), about=described(hold))

    def _timed(self, step: str) -> Timed:
        return Timed(self._step_ended, step)

    def _effect(self, hold: Hold) -> Effect[Any]:
        effect = self._effects.get(type(hold))
        if effect is None:
            raise NodeNotReady(f"{described(hold)} cannot be made or undone by this release of the driver")
        return effect

    async def _in_thread[**P, R](self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(*args, **kwargs))

    async def _on_hardware[**P, R](
        self, holds: Collection[Hold], function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """In a thread, when one is free for each GPU of these holds."""
        async with AsyncExitStack() as threads:
            for gpu in sorted({gpu for hold in holds for gpu in gpus_of(hold)}):
                await threads.enter_async_context(self._gpus.setdefault(gpu, asyncio.Semaphore(_THREADS_OF_A_GPU)))
            return await asyncio.get_running_loop().run_in_executor(self._hardware, lambda: function(*args, **kwargs))
