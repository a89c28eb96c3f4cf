"""Carries out plans: journal and staging at once, then the file, then the answer; everything back when a part fails.

The service enters here, one claim at a time for each claim. The order of things, and why a crash between any two of
them leaves nothing wrong (the states are those of `kubelet_plugin.prepare.lifecycle`):

    prepare    1  entry into the journal, durable   ‖  CDI file staged under a hidden name, durable
               2  CDI file takes its place, folder flushed
               3  answer
    unprepare  1  CDI file removed
               2  entry out of the journal, durable
               3  answer

* Killed during prepare 1: there is no entry, or one without its file. No entry: a hidden file at most, removed at
  start; kubelet got no answer and asks again. An entry without file is UNFINISHED: finished or undone at start.
* The file never appears before its entry is durable, so a file without entry is always ORPHANED: it belongs to a claim
  that is being released. Another instance of the plugin may therefore remove it without asking.
* Killed after prepare 2: PREPARED; asked again, the answer is the same.
* Killed after unprepare 1: UNFINISHED; kubelet asks again, or start-up undoes or finishes it by the claim's standing.
* The removal is not flushed before the journal is: should a power cut bring the file back, it is ORPHANED.

So one claim costs a journal write and a file write side by side, its release one journal write, and many claims of one
moment share the journal's.
"""

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

import structlog

from dra_driver.errors import DriverError
from dra_driver.runtime.files import StagedFile
from kubelet_plugin.prepare.checkpoint import Journal
from kubelet_plugin.prepare.lifecycle import Entry, admitted, released
from kubelet_plugin.prepare.plan import Plan, undo_of
from kubelet_plugin.prepare.steps import digest_of
from kubelet_plugin.prepare.store import JournalStore

_log = structlog.get_logger(__name__)

_FILE_THREADS = 8
"""Files of different claims are flushed side by side; more than a file system can merge gains nothing."""


class CdiFolder(Protocol):
    """The claims' CDI files; blocking. Every method raises NodeNotReady, with the file, when the disk refuses."""

    def stage(self, claim_uid: str, content: bytes) -> StagedFile:
        """Put the content on the disk under a name that no container runtime reads."""

    def publish(self, staged: Collection[StagedFile]) -> None:
        """Let staged files take their places, durably."""

    def read(self, claim_uid: str) -> bytes | None:
        """The file as it is; None when there is none."""

    def remove(self, claim_uid: str) -> None:
        """Remove the file if there is one; not necessarily durable."""

    def claims(self) -> Collection[str]:
        """UIDs of all claims that have a file."""

    def remove_leftovers(self) -> Collection[Path]:
        """Remove staged files of a process that was killed; answers which."""


class Executor:
    """Runs plans of different claims at once; the caller sees to it that each claim has one at a time."""

    def __init__(self, journal: JournalStore, cdi: CdiFolder) -> None:
        self._journal = journal
        self._cdi = cdi
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """A lock lives as long as somebody has or awaits it."""
        self._threads = ThreadPoolExecutor(_FILE_THREADS, thread_name_prefix="cdi")

    async def carry_out(self, plan: Plan) -> None:
        """Raises HeldByOther or NodeNotReady; then everything is as it was before."""
        uid = plan.entry.claim.uid
        before = self._journal.current.held.get(uid)
        staging = asyncio.ensure_future(self._in_thread(self._stage, plan))
        try:
            await self._journal.commit(_with(plan.entry))
        except BaseException:
            await self._drop(staging)
            raise
        try:
            await self._in_thread(self._cdi.publish, await staging)
        except DriverError:
            await self._take_back(plan, before)
            raise

    async def undo(self, entry: Entry) -> None:
        """Release a claim. Raises NodeNotReady; then its entry is still there and it can be tried again."""
        steps = undo_of(entry)

        def take_back() -> None:
            for step in steps:
                self._cdi.remove(step.claim_uid)

        await self._journal.commit(_without(entry.claim.uid), before=take_back)

    def turn(self, claim_uid: str) -> asyncio.Lock:
        """Held by whoever does something about this claim; other claims are not affected."""
        return self._turns.setdefault(claim_uid, asyncio.Lock())

    async def file_digest(self, claim_uid: str) -> str | None:
        """Of the claim's CDI file as it is; None when there is none. Raises NodeNotReady."""
        content = await self._in_thread(self._cdi.read, claim_uid)
        return None if content is None else digest_of(content)

    async def claims_with_file(self) -> frozenset[str]:
        """UIDs of all claims that have a CDI file. Raises NodeNotReady."""
        return frozenset(await self._in_thread(self._cdi.claims))

    async def remove_leftovers(self) -> None:
        """Remove what killed processes staged. Raises NodeNotReady."""
        await self._in_thread(self._cdi.remove_leftovers)

    async def remove_orphan(self, claim_uid: str) -> None:
        """Remove the file of a claim that has no entry, if there is one. Raises NodeNotReady."""
        await self._in_thread(self._cdi.remove, claim_uid)

    async def close(self) -> None:
        await self._journal.close()
        self._threads.shutdown()

    def _stage(self, plan: Plan) -> list[StagedFile]:
        return [self._cdi.stage(step.claim_uid, step.content) for step in plan.steps]

    async def _drop(self, staging: asyncio.Future[list[StagedFile]]) -> None:
        try:
            for staged in await staging:
                staged.discard()
        except DriverError as error:
            _log.info("staging failed as well", error=str(error))

    async def _take_back(self, plan: Plan, before: Entry | None) -> None:
        """After a failed file: the old entry again, or none.

        If even that fails, or the file is there and only its flush failed, the claim is UNFINISHED, not lost.
        """
        uid = plan.entry.claim.uid
        try:
            if before is None:
                for step in plan.undo:
                    await self._in_thread(self._cdi.remove, step.claim_uid)
            await self._journal.commit(_without(uid) if before is None else _with(before))
        except DriverError as error:
            _log.warning("a claim stays unfinished until it is tried again", claim=uid, error=str(error))

    async def _in_thread[**P, R](self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: function(*args, **kwargs))


def _with(entry: Entry) -> Callable[[Journal], Journal]:
    return lambda journal: replace(journal, held=admitted(journal.held, entry))


def _without(claim_uid: str) -> Callable[[Journal], Journal]:
    return lambda journal: replace(journal, held=released(journal.held, claim_uid))
