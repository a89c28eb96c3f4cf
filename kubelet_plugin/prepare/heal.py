"""Repairs what crashes, reboots and people leave behind: finds, asks `kubelet_plugin.prepare.repair`, does.

The service enters here at start, from time to time while it runs, when the journal is incomplete, and when a claim is
refused because of another one that may be stale. Every claim is repaired on its own and in its turn, so a repair and
kubelet's calls do not meet. What cannot be done now is tried again; nothing here keeps the plugin from serving.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog

from dra_driver.api.resource import ResourceClaim
from dra_driver.errors import ClusterError, DeviceInUse, DriverError, NodeNotReady
from dra_driver.names import ClaimRef
from kubelet_plugin.prepare.claim_reads import ClaimReader
from kubelet_plugin.prepare.execute import Executor
from kubelet_plugin.prepare.holds import ComputeMode, FabricPartition, Records, TimeSlice
from kubelet_plugin.prepare.journal import Journal
from kubelet_plugin.prepare.known_node import ContainerFiles, CurrentNode, KnownNode
from kubelet_plugin.prepare.lifecycle import BindingStage, ClaimStanding, Entry, Held, is_made, mig_uuids, standing_of
from kubelet_plugin.prepare.plan import Plan, finished_plan, plan_for
from kubelet_plugin.prepare.repair import Action, ClaimFinding, Remedy, RepairReport, remedy_for
from kubelet_plugin.prepare.store import JournalStore
from kubelet_plugin.prepare.wanted import WantedClaim, wanted_of

_log = structlog.get_logger(__name__)

_READS_AT_ONCE = 8
_HOLDER_POLL_S = 0.05
type _Materials = tuple[KnownNode, ContainerFiles] | NodeNotReady
"""What plans are made of, or why there is none now."""

_FORGOTTEN = (FabricPartition, ComputeMode, TimeSlice)
"""What the driver or Fabric Manager may forget without a reboot."""


class Healer:
    """`stale_after_s`: how long a claim must have lost its right to its devices before they are taken from it.

    That is kubelet's move: it unprepares a claim when the containers have stopped, and of a force-deleted pod they may
    still run when the claim is gone (kubernetes issue 141471). A kubelet that forgot the claim never comes; it looks
    for claims to unprepare every 60 s. The time counts from when this process noticed: a plugin that starts does not
    know whether the containers have stopped.
    """

    def __init__(
        self, journal: JournalStore, executor: Executor, claims: ClaimReader, view: CurrentNode, *, stale_after_s: float
    ) -> None:
        self._journal = journal
        self._executor = executor
        self._claims = claims
        self._view = view
        self._stale_after_s = stale_after_s
        self._stale_since: dict[str, float] = {}
        self._lacking: set[str] = set()
        """UIDs of claims whose holds must be made again, and were not yet: the next repair tries."""
        self._completing = asyncio.Lock()

    async def start(self) -> RepairReport:
        """The first repair of a process: damage is put aside, and stale claims of an earlier boot are released.

        What claims need of the hardware is made again, even if it exists, because no plugin watched it meanwhile.
        """
        return await self._reported(self._put_aside_damage) + await self._reported(self._repair_at_start)

    async def sweep(self) -> RepairReport:
        """The same while serving.

        Temporary files are removed here, too: an instance that is killed during a rolling update leaves them when its
        successor has already started.
        """
        report = await self._reported(self._remove_leftovers)
        return report + await self._reported(self._repair)

    async def reassert_settings(self) -> RepairReport:
        """Make fabric partitions, time slices and compute modes of claims once more, with what else these hold. Never
        raises."""
        return await self._reported(self._reassert_settings)

    async def complete(self) -> RepairReport:
        """After damage: find the claims that the journal lost, and forget those that it has and that were released.
        Nothing to do otherwise.

        Raises NodeNotReady while that cannot be known, or containers of a lost claim that no longer exists may still
        run; until then nothing may be prepared.
        """
        if not self._journal.current.incomplete:
            return RepairReport()
        async with self._completing:
            if not self._journal.current.incomplete:
                return RepairReport()
            try:
                return await self._complete()
            except ClusterError as error:
                raise NodeNotReady(
                    f"was damaged, and the claims of this node cannot be read from the API server ({error.message});"
                    " nothing is prepared until they can",
                    about="the journal of prepared claims",
                ) from error

    async def make_way(self, holder: Entry, *, patience_s: float) -> bool:
        """Whether `holder`, which has hardware that another claim was allocated, is out of the way now.

        A claim that still stands is not, at once. A stale one gets `patience_s` for kubelet to unprepare it, and is
        released when it has been stale for long.
        """
        uid = holder.claim.uid
        standing = await self._standing(holder)
        if not standing.is_stale and not holder.releasing:
            return False
        deadline = time.monotonic() + patience_s
        while self._journal.current.held.get(uid) == holder:
            # Two claims that wait for each other's turn would wait for ever: no claim waits for a turn that is taken.
            if not self._executor.turn(uid).locked() and self._is_long_stale(holder, standing):
                remedy = Remedy(Action.RELEASE, f"{holder.claim} (UID {uid}) {standing.value}")
                report = await self._act(ClaimFinding(uid, holder, None, standing), remedy)
                _log.warning("released for another claim", report=[*report.done, *report.pending])
                return not report.pending and self._journal.current.held.get(uid) != holder
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(_HOLDER_POLL_S)
        return True

    async def clear_left_behind(self) -> RepairReport:
        """Undo holds of lost entries that no claim needs. Does nothing while some of these entries may come back."""
        if self._journal.current.incomplete:
            return RepairReport()
        try:
            return await self._executor.clear_left_behind(self._view.boot_id())
        except DriverError as error:
            return RepairReport(pending=(str(error),))
        except Exception as error:  # noqa: BLE001 - nor may it keep the plugin from serving
            return _failed("what claims left behind", error)

    async def release_given_up(self) -> RepairReport:
        """Release what was prepared ahead for claims that the scheduler has given up since. The kubelet never comes for
        them. Never raises."""
        report = RepairReport()
        for uid, entry in self._journal.current.held.items():
            if entry.binding is BindingStage.AHEAD and (standing := await self._standing(entry)).is_stale:
                case = ClaimFinding(uid, entry, None, standing)
                remedy = Remedy(Action.RELEASE, f"{entry.claim} (UID {uid}) {standing.value} before it was bound")
                report += await self._put_right(case, remedy, reassert=False)
        return report

    async def finish(self, entry: Entry, records: Records) -> Plan:
        """With the CDI file of a claim whose holds are made, of the driver's files as they are. Raises NodeNotReady."""
        return finished_plan(entry, records, self._view.node(), await self._view.files())

    async def _remove_leftovers(self) -> RepairReport:
        await self._journal.remove_leftovers()
        await self._executor.remove_leftovers()
        return RepairReport()

    async def _put_aside_damage(self) -> RepairReport:
        if not self._journal.exists and await self._executor.claims_with_file():
            # An administrator removed the journal, but not the CDI files of its claims. That must be known although the
            # disk may be full: what belongs to no claim is removed.
            self._journal.presume_lost()
        damage = await self._journal.put_aside_damage()
        await self._executor.remove_leftovers()
        if not self._journal.exists and self._journal.current.incomplete:
            return RepairReport(("the journal is missing although claims are prepared: it is made again",))
        return RepairReport(tuple(f"damage in the journal was put aside: {item.reason}" for item in damage))

    async def _repair_at_start(self) -> RepairReport:
        await self._view.look_again()
        return await self._repair(reassert=True)

    async def _reassert_settings(self) -> RepairReport:
        report = RepairReport()
        for entry in list(self._journal.current.held.values()):
            if not entry.releasing and any(isinstance(hold, _FORGOTTEN) for hold in entry.holds):
                report += await self._put_right(
                    ClaimFinding(entry.claim.uid, entry, None),
                    Remedy(Action.KEEP, "its settings may be lost"),
                    reassert=True,
                )
        return report

    async def _reported(self, repair: Callable[[], Awaitable[RepairReport]]) -> RepairReport:
        try:
            return await repair()
        except DriverError as error:
            return RepairReport(pending=(str(error),))

    async def _repair(self, *, reassert: bool = False) -> RepairReport:
        report = await self._reported(self.complete)
        journal = self._journal.current
        cases = await self._findings(journal)
        if not journal.incomplete:
            self._stale_since = {uid: since for uid, since in self._stale_since.items() if uid in journal.held}
        self._lacking &= journal.held.keys()
        boot_id = self._view.boot_id()
        slow = []
        for case in cases:
            remedy, entry = remedy_for(case, boot_id, incomplete=journal.incomplete), case.entry
            if remedy.action is Action.RELEASE and entry is not None and self._has_time(entry, case.standing):
                remedy = Remedy(Action.WAIT, f"{remedy.why}; the kubelet is given time to unprepare it")
            work = self._put_right(case, remedy, reassert=reassert)
            if entry is not None and entry.holds:
                slow.append(work)
            else:
                report += await work
        # Most hardware calls can run concurrently.
        for repair_report in await asyncio.gather(*slow):
            report += repair_report
        return report + await self.clear_left_behind()

    async def _put_right(self, case: ClaimFinding, remedy: Remedy, *, reassert: bool) -> RepairReport:
        try:
            report = await self._act(case, remedy)
            again = reassert or case.uid in self._lacking
            if again and remedy.action is Action.KEEP and case.entry is not None and case.entry.holds:
                report += await self._reassert(case.entry)
        except Exception as error:  # noqa: BLE001 - a defect met with one claim must not keep the others from repair
            return _failed(f"claim UID {case.uid}", error)
        return report

    def _has_time(self, entry: Entry, standing: ClaimStanding) -> bool:
        """Whether the kubelet may still unprepare a claim that is due for release."""
        return not entry.releasing and not self._is_long_stale(entry, standing)

    async def _reassert(self, entry: Entry) -> RepairReport:
        uid = entry.claim.uid
        self._lacking.add(uid)
        async with self._executor.turn(uid):
            if self._journal.current.held.get(uid) != entry:
                return RepairReport()  # kubelet was faster
            try:
                await self._executor.reassert(entry)
                self._lacking.discard(uid)
                plan = await self.finish(entry, self._journal.current.holds)
                if plan.entry.cdi_digest == entry.cdi_digest:
                    return RepairReport()
                await self._executor.carry_out(Plan(replace(entry, cdi_digest=None), None), self.finish)
            except DriverError as error:
                return RepairReport(pending=(f"{entry.claim} (UID {uid}) may lack what it needs: {error}",))
        return RepairReport((f"{entry.claim} (UID {uid}) was incomplete on the hardware: made and written again",))

    async def _findings(self, journal: Journal) -> list[ClaimFinding]:
        try:
            materials: _Materials = self._view.node(), await self._view.files()
        except NodeNotReady as error:
            materials = error
        entries = list(journal.held.values())
        gate = asyncio.Semaphore(_READS_AT_ONCE)

        async def standing(entry: Entry) -> ClaimStanding:
            async with gate:
                return await self._standing(entry)

        standings = await asyncio.gather(*(standing(entry) for entry in entries))
        cases = [
            await self._case(entry, known, materials, journal.holds)
            for entry, known in zip(entries, standings, strict=True)
        ]
        files = await self._executor.claims_with_file()
        for uid in sorted(set(files) - journal.held.keys()):
            cases.append(ClaimFinding(uid, None, await self._executor.file_digests(uid)))
        return cases

    async def _case(
        self, entry: Entry, standing: ClaimStanding, materials: "_Materials", records: Records
    ) -> ClaimFinding:
        uid = entry.claim.uid
        finding = ClaimFinding(uid, entry, await self._executor.file_digests(uid), standing, records=records)
        wanted = WantedClaim(entry.devices, entry.holds, metadata=entry.metadata, binding=entry.binding)
        try:
            if isinstance(materials, NodeNotReady):
                raise materials
            node, files = materials
            finding = replace(finding, lost=mig_uuids(entry, records) & node.lost)
            plan = plan_for(entry.claim, wanted, node, files)
            known = plan.entry.cdi_digest
            if entry.holds and entry.boot_id == node.boot_id and is_made(entry, records):
                known = finished_plan(entry, records, node, files).entry.cdi_digest
        except NodeNotReady as error:
            return replace(finding, obstacle=str(error))
        return replace(finding, planned=known, plan=plan)

    async def _standing(self, entry: Entry) -> ClaimStanding:
        node = self._view.node()
        try:
            claim = await self._claims.read(entry.claim)
        except DriverError as error:
            _log.info("a claim cannot be read", claim=str(entry.claim), error=str(error))
            return ClaimStanding.UNKNOWN
        standing = standing_of(entry, claim, node.driver, node.boot_id)
        if standing is ClaimStanding.STANDS:
            self._stale_since.pop(entry.claim.uid, None)
        return standing

    def _is_long_stale(self, entry: Entry, standing: ClaimStanding) -> bool:
        if not standing.is_stale:
            return False
        if entry.binding is BindingStage.AHEAD or entry.boot_id != self._view.boot_id():
            return True  # no container has it
        return self._is_overdue(entry.claim.uid)

    def _is_overdue(self, uid: str) -> bool:
        """Whether the kubelet had its time to unprepare a stale claim."""
        since = self._stale_since.setdefault(uid, time.monotonic())
        return time.monotonic() - since >= self._stale_after_s

    async def _act(self, case: ClaimFinding, remedy: Remedy) -> RepairReport:
        if remedy.action is Action.KEEP:
            return RepairReport()
        if remedy.action is Action.WAIT:
            return RepairReport(pending=(remedy.why,))
        uid = case.uid
        async with self._executor.turn(uid):
            if self._journal.current.held.get(uid) != case.entry:
                return RepairReport()  # kubelet was faster
            try:
                return RepairReport((f"{remedy.why}: {await self._do(case, remedy.action)}",))
            except DriverError as error:
                return RepairReport(pending=(f"{remedy.why}, but {error}",))

    async def _do(self, case: ClaimFinding, action: Action) -> str:
        if action is Action.RELEASE and case.entry is not None:
            # Asked again in the claim's turn: meanwhile it may have been allocated as before, and prepared.
            if not case.entry.releasing and not (await self._standing(case.entry)).is_stale:
                return "kept, its claim stands again"
            await self._executor.undo(case.entry, self._view.boot_id())
            return "released"
        if action is Action.REWRITE and case.plan is not None:
            await self._executor.carry_out(case.plan, self.finish)
            return "written again"
        await self._executor.remove_orphan(case.uid)
        return "removed"

    async def _complete(self) -> RepairReport:
        node, files = self._view.node(), await self._view.files()
        with_file = set(await self._executor.claims_with_file())
        before = self._journal.current.held
        allocated = {claim.ref: claim for claim in await self._claims.allocated(node.driver, node.pool)}
        known = with_file.union(ref.uid for ref in allocated)
        report = await self._forget({uid: entry for uid, entry in before.items() if uid not in known})
        for ref, claim in allocated.items():
            if ref.uid in with_file and ref.uid not in self._journal.current.held:
                report += RepairReport((await self._enter_again(claim, ref, node, files),))
        gone = with_file - before.keys() - {ref.uid for ref in allocated}
        if waiting := sorted(uid for uid in gone if not self._is_overdue(uid)):
            raise NodeNotReady(
                f"lost claims that no longer exist, and whose containers may still run (UID {', '.join(waiting)});"
                f" nothing is prepared until the kubelet has unprepared them, for at most {self._stale_after_s:g} s",
                about="the journal of prepared claims",
            )
        await self._journal.commit(lambda journal: replace(journal, incomplete=False))
        return report + RepairReport(("the journal is complete again",))

    async def _forget(self, entries: Held) -> RepairReport:
        """A journal that lost its end has claims that were released since: without a file, and no longer allocated.
        What they held may be another claim's by now, so nothing is undone for them. Holds of no claim are cleared
        later."""

        outdated = {uid: entry for uid, entry in entries.items() if not self._executor.turn(uid).locked()}
        if outdated:
            await self._journal.commit(lambda journal: replace(journal, held=_without(journal.held, outdated)))
        return RepairReport(
            tuple(
                f"{entry.claim} (UID {uid}) was released before the journal was damaged"
                for uid, entry in outdated.items()
            )
        )

    async def _enter_again(self, claim: ResourceClaim, ref: ClaimRef, node: KnownNode, files: ContainerFiles) -> str:
        """The outcome for a claim that the journal lost. Raises NodeNotReady when the disk refuses.

        A claim that no longer has a plan, or whose GPU another claim has, must not keep the node from preparing others.
        """
        who = f"{ref} (UID {ref.uid}) was lost from the journal"
        try:
            plan = plan_for(ref, wanted_of(claim, ref, node), node, files)
        except DriverError as error:
            return f"{who} and cannot be entered again: {error}"
        try:
            async with self._executor.turn(ref.uid):
                if await self._executor.file_digests(ref.uid) is None:
                    return f"{who} and was released meanwhile"  # the kubelet does not come for it again
                await self._executor.carry_out(plan, self.finish)
        except DeviceInUse as error:
            return f"{who} and cannot be entered again: {error}"
        return f"{who}: entered again"


def _without(held: Held, outdated: Held) -> Held:
    return {uid: entry for uid, entry in held.items() if outdated.get(uid) != entry}


def _failed(subject: str, error: Exception) -> RepairReport:
    _log.error("failed unexpectedly", subject=subject, exc_info=error)
    return RepairReport(pending=(f"{subject}: internal error, see the log of the node plugin: {error!r}",))
