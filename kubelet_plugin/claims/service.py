"""Prepares and unprepares claims: the kubelet's calls enter here through `kubelet_plugin.rpc`.

For each claim: observe (its object, the node, what it holds already), decide (`kubelet_plugin.prepare.wanted`,
`kubelet_plugin.prepare.plan`), do (`kubelet_plugin.prepare.execute`), answer. Every claim of a call gets its own
answer. Different claims run in parallel; calls for the same claim run one after another.

* A claim's object is read for every prepare, even a repeated one. Otherwise, a claim that was created again under the
  same name, or allocated again with other devices, would get a wrong answer. If the API server cannot be reached, a
  prepared claim is answered from the journal, so that a restarted kubelet does not need the API server twice; but not
  one that was prepared ahead, because the scheduler may have chosen other devices meanwhile.
* A repeated prepare writes nothing; it looks whether the CDI file is still as it was left.
* Unprepare never asks the API server: the object may be gone.
* The API server is asked before a claim's turn, once for all calls that wait for the same claim, so that an unprepare
  waits for none of them. After a release it is asked again, in the turn.
* When kubelet gives up a call, an operation that only waits is dropped. What was begun on the node is finished in the
  background, and kubelet's retry finds the result.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog

from dra_driver.api.resource import ResourceClaim
from dra_driver.devices.model import Offer
from dra_driver.errors import ClusterError, DriverError, NodeNotReady, UnknownDevice
from dra_driver.features import Gates
from dra_driver.names import ClaimRef
from dra_driver.runtime.tasks import until
from kubelet_plugin.claims.operations import ClaimNotes, Operations
from kubelet_plugin.facts.hardware import RELEASED, NodeFacts
from kubelet_plugin.facts.monitor import MonitoredFacts
from kubelet_plugin.facts.offers import NodeOffers
from kubelet_plugin.prepare.claim_reads import ClaimRead, ClaimReader, ClaimReads, explained
from kubelet_plugin.prepare.execute import Executor
from kubelet_plugin.prepare.heal import Healer
from kubelet_plugin.prepare.holds import Hold
from kubelet_plugin.prepare.known_node import ContainerFiles, KnownNode, MetadataSource
from kubelet_plugin.prepare.lifecycle import (
    BindingStage,
    ClaimStanding,
    Entry,
    Held,
    HeldByOther,
    JournalState,
    LeftBehind,
    PreparedDevice,
    left_behind,
    standing_of,
    state_of,
)
from kubelet_plugin.prepare.listener import AllocatedTo, ClaimListener, Timed
from kubelet_plugin.prepare.metadata import answer_of
from kubelet_plugin.prepare.plan import Plan, plan_for
from kubelet_plugin.prepare.repair import RepairReport
from kubelet_plugin.prepare.transitions import asked_for
from kubelet_plugin.prepare.wanted import WantedClaim, checked, wanted_of, well_formed

_log = structlog.get_logger(__name__)

_LOST_S = 5.0
"""How soon a claim is looked at whose MIG device is gone."""

_FIRST_RETRY_S = 5.0
_LONGEST_RETRY_S = 60.0

_TOGETHER_S = 0.02
"""How long claims of one call wait for each other's reads, which end within a few milliseconds."""

_LOOK_AGAIN_S = 15.0
"""A hung NVML must not use up kubelet's deadline."""


type ContainerFilesOf = Callable[[NodeFacts], ContainerFiles]
"""Looks at the driver root and the device nodes; blocking. Raises NodeNotReady that says what is missing."""


@dataclass(frozen=True, slots=True)
class ServicePatience:
    """How long to wait, in seconds."""

    start_s: float = 10.0
    """The repair at the start: one claim's daemon or virtual machine must not keep kubelet from the others."""
    api_s: float = 20.0
    """A busy API server, by a prepare. kubelet's deadline is 45 s, its next attempt comes after 90 s."""
    holder_s: float = 10.0
    """Kubelet, to unprepare a stale claim that has the GPU; 2 s were seen (issue 141471)."""
    stale_s: float = 120.0
    """A claim that lost its right to its devices, see `Healer`: twice the interval at which kubelet looks for such."""
    sweep_s: float = 600.0
    """Between two looks for claims that kubelet will never unprepare; each reads every held claim from the API."""


@dataclass(frozen=True, slots=True)
class NodeSources:
    """The node as one driver has it now, from Discovery's facts."""

    driver: str
    node_name: str
    facts: MonitoredFacts
    container_files: ContainerFilesOf
    offers: NodeOffers
    gates: Gates = Gates.DEFAULT
    metadata_folder: Path | None = None
    """Of device metadata, the same on the host and here; None: claims have none."""
    known_files: Callable[[NodeFacts], ContainerFiles | None] = lambda _: None
    """What `container_files` would return, if that is known without blocking."""

    def node(self) -> KnownNode:
        return self._known(self.facts.facts)

    def boot_id(self) -> str:
        return self.facts.facts.boot_id

    def check_not_released(self) -> None:
        """Raises NodeNotReady while the GPUs are released to another tool: see `kubelet_plugin.facts.release`."""
        for problem in self.facts.facts.problems:
            if problem.reason == RELEASED:
                raise NodeNotReady(problem.message, about=f"node {self.node_name}")

    def lost(self) -> frozenset[str]:
        try:
            return _lost(self.facts.facts)
        except NodeNotReady:
            return frozenset()

    async def look_again(self) -> KnownNode:
        try:
            async with asyncio.timeout(_LOOK_AGAIN_S):
                _, facts = await asyncio.gather(self.offers.refresh(), self.facts.observe())
                return self._known(facts)
        except TimeoutError:
            return self.node()

    def files(self) -> asyncio.Future[ContainerFiles]:
        """Of the node as it is known now. A thread costs more than to look at what has not changed."""
        facts, loop = self.facts.facts, asyncio.get_running_loop()
        known = None
        with suppress(NodeNotReady):  # `container_files` raises it, too
            known = self.known_files(facts)
        if known is not None:
            future = loop.create_future()
            future.set_result(known)
            return future
        looking = loop.run_in_executor(None, self.container_files, facts)
        # In case no caller awaits it: asyncio would complain.
        looking.add_done_callback(lambda done: done.cancelled() or done.exception())
        return looking

    def _offers(self, facts: NodeFacts) -> Mapping[str, Offer] | NodeNotReady:
        try:
            return self.offers.of(facts)
        except NodeNotReady as error:
            return error

    def _known(self, facts: NodeFacts) -> KnownNode:
        gpus = {gpu.uuid: gpu for gpu in facts.gpus}
        return KnownNode(
            self.driver,
            self.node_name,
            facts.boot_id,
            self._offers(facts),
            gpus,
            facts.problems,
            _lost(facts),
            self.offers.undecided(facts),
            self.gates,
            self._metadata(facts),
        )

    def _metadata(self, facts: NodeFacts) -> MetadataSource | None:
        if self.metadata_folder is None:
            return None
        return MetadataSource(str(self.metadata_folder), self.offers.attributes(facts, self.driver))


class ClaimService:
    """Prepare and unprepare claims of one driver on this node. `start`, then serve, with `run` beside; then `close`.

    `executor` makes what claims need, in the node's journal, CDI folder and hardware; `listener` is its, too.
    """

    def __init__(
        self,
        claims: ClaimReader,
        node: NodeSources,
        executor: Executor,
        listener: ClaimListener | None = None,
        patience: ServicePatience = ServicePatience(),
    ) -> None:
        self._journal = executor.journal
        self._driver = node.driver
        self._listener = listener or ClaimListener()
        self._executor = executor
        self._claims = claims
        self._view = node
        self._healer = Healer(self._journal, executor, claims, self._view, stale_after_s=patience.stale_s)
        self._patience = patience
        self._pending = False
        self._swept: frozenset[str] = frozenset()
        """The lost MIG devices that the last sweep knew of."""
        self._left = asyncio.Event()
        """Set when a claim was released but left something behind, which must be cleared as soon as possible."""
        self._settings_lost = asyncio.Event()
        self._operations = Operations(node.driver, self._listener)
        self._reads = ClaimReads(self._claims)

    @property
    def held(self) -> Held:
        """The claims that hold devices of this node, by UID. Raises NodeNotReady or CorruptState."""
        return self._journal.current.held

    async def start(self) -> RepairReport:
        """Repair what an earlier run left behind. Called once, before the DRA socket is served; never raises.

        Slow repairs, as of hardware, continue while other claims are served: each claim is repaired in its turn.
        """
        repair = self._operations.begin(self._healer.start()).task
        done, _ = await asyncio.wait({repair}, timeout=self._patience.start_s)
        if done:
            return self._note_report(repair.result())
        repair.add_done_callback(lambda late: None if late.exception() else self._note_report(late.result()))
        return self._note_report(
            RepairReport(pending=("the plugin still repairs what earlier claims left on the hardware",))
        )

    async def run(self) -> None:
        """Sweep until cancelled: soon again while something is pending, else at the interval."""
        retry_s = _FIRST_RETRY_S
        while True:
            if self._settings_lost.is_set():
                self._settings_lost.clear()
                self._note_report(await self._healer.reassert_settings())
            if self._pending:
                if await until(self._settings_lost, retry_s):
                    continue
                retry_s = min(2 * retry_s, _LONGEST_RETRY_S)
            else:
                retry_s = _FIRST_RETRY_S
                await self._idle()
                if self._left.is_set():
                    self._left.clear()
                    self._pending = True
                    continue
            await self.sweep()

    async def _idle(self) -> None:
        """Until it is time for a sweep, or something of a claim was left behind, or got lost."""
        due = time.monotonic() + self._patience.sweep_s
        while (rest := due - time.monotonic()) > 0 and self._view.lost() == self._swept:
            if await until(self._left, min(rest, _LOST_S)):
                return

    async def sweep(self) -> RepairReport:
        """Release claims that kubelet will never unprepare, and heal what was damaged meanwhile. Never raises."""
        self._swept = self._view.lost()
        return self._note_report(await self._healer.sweep())

    def settings_may_be_lost(self) -> None:
        """Called in the event loop when no program may have had the GPUs open: the driver forgot what claims set."""
        self._settings_lost.set()
        self._left.set()

    async def reassert_hold(self, hold: Hold) -> None:
        """Make a hold again, with all that its first claim holds, because it is no longer as the journal says.

        Does nothing when no claim has it. Raises NodeNotReady.
        """
        held = self._journal.current.held
        entry = next((entry for entry in held.values() if hold in entry.holds and not entry.releasing), None)
        if entry is None:
            return
        async with self._executor.turn(entry.claim.uid):
            if self._journal.current.held.get(entry.claim.uid) == entry:
                await self._executor.reassert(entry)

    async def close(self) -> None:
        """Finish what was begun. Called after the last call was accepted."""
        await self._operations.close()
        await self._executor.close()

    async def prepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, tuple[PreparedDevice, ...] | DriverError]:
        """The devices of each claim, or why not, by claim UID. A repeated call gives the same answer."""
        files, reads = _Once(self._view.files), _Reads(len({claim.uid for claim in claims}))
        return await self._operations.each("prepare", claims, partial(self._prepare, files=files, reads=reads))

    async def prepare_ahead(self, claim: ClaimRef) -> DriverError | None:
        """See `PreparesAhead` in `kubelet_plugin.reporting.binding`."""
        act = partial(self._prepare, files=_Once(self._view.files), reads=_Reads(1))
        return await self._operations.ahead(claim, act)

    async def release_given_up(self) -> bool:
        """See `PreparesAhead` in `kubelet_plugin.reporting.binding`."""
        try:
            if all(entry.binding is not BindingStage.AHEAD for entry in self._journal.current.held.values()):
                return False
            for sentence in (await self._healer.release_given_up()).done:
                _log.warning("repaired", what=sentence)
        except DriverError as error:
            _log.warning("claims whose pods wait for this node could not be checked", error=str(error))
        return True

    async def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, DriverError | None]:
        """None for each released claim, or why not, by claim UID. A claim that is not held is released already."""
        return await self._operations.each("unprepare", claims, self._unprepare)

    async def _prepare(
        self, ref: ClaimRef, notes: ClaimNotes, files: "_Once[ContainerFiles]", reads: "_Reads"
    ) -> tuple[PreparedDevice, ...]:
        well_formed(ref)
        for sentence in (await self._healer.complete()).done:
            _log.warning("repaired", what=sentence)
            self._left.set()
        before = self._journal.current
        held = before.held.get(ref.uid)
        prepared = held is not None and await self._is_prepared(held, self._view.node())
        patience_s = 0.0 if held is not None and prepared and _is_final(held) else self._patience.api_s
        answer = await notes.while_wanted(ref, lambda: self._asked(ref, patience_s, files if held is None else None))
        await reads.ended()
        async with self._executor.turn(ref.uid):
            notes.wanted(ref)
            node = self._view.node()
            now = self._journal.current
            entry = now.held.get(ref.uid)
            if now is not before:
                prepared = entry is not None and await self._is_prepared(entry, node)
            # Kubelet, or a sweep, released it since the API server was asked.
            released = answer.outdated or (held is not None and entry is None)
            try:
                claim = await self._claims.read(ref) if released else answer.claim()
            except ClusterError as error:
                if prepared and entry is not None and _is_final(entry):
                    _log.warning("answered from the journal", claim=str(ref), error=str(error))
                    notes.devices = _devices(entry)
                    return await self._repeated(entry, notes)
                raise explained(error, ref) from error
            claim = checked(claim, ref)
            notes.read(claim, self._driver)
            stands = entry is not None and standing_of(entry, claim, node.driver, node.boot_id) is ClaimStanding.STANDS
            if prepared and entry is not None and stands:
                return await self._repeated(entry, notes)
            with Timed(self._listener.step_ended, "look_at_node"):
                plan = await self._plan(ref, claim, node, files, ahead=notes.ahead)
            self._view.check_not_released()
            return answer_of((await self._carry_out(plan)).entry, self._driver)

    async def _asked(self, ref: ClaimRef, patience_s: float, files: "_Once[ContainerFiles] | None") -> ClaimRead:
        """`files`: what to begin while the API server is asked, which takes longer."""
        with suppress(DriverError), Timed(self._listener.step_ended, "read_claim"):
            answer = self._reads.begin(ref, patience_s=patience_s)
            if files is not None:
                with suppress(NodeNotReady):  # a claim that needs them gets the reason
                    files.begin()
            await answer.ended()
            answer.claim()  # what it raises is the step's outcome, and the claim's in its turn
        return answer

    async def _repeated(self, entry: Entry, notes: ClaimNotes) -> tuple[PreparedDevice, ...]:
        """The answer about a claim that is prepared. From now on the kubelet releases it."""
        notes.repeated = True
        if entry.binding is BindingStage.AHEAD and not notes.ahead:
            await self._journal.commit(asked_for(entry))
        return answer_of(entry, self._driver)

    async def _plan(
        self, ref: ClaimRef, claim: ResourceClaim, node: KnownNode, files: "_Once[ContainerFiles]", *, ahead: bool
    ) -> Plan:
        try:
            wanted = _wanted(claim, ref, node, ahead=ahead)
            for warning in wanted.warnings:
                _log.warning("a setting has no effect", claim=str(ref), what=warning)
            return plan_for(ref, wanted, node, await files.begin())
        except (UnknownDevice, NodeNotReady):
            # What is missing may have come since the last look.
            node = await self._view.look_again()
            return plan_for(ref, _wanted(claim, ref, node, ahead=ahead), node, await self._view.files())

    async def _is_prepared(self, entry: Entry, node: KnownNode) -> bool:
        if entry.boot_id != node.boot_id:
            return False
        files = await self._executor.file_digests(entry.claim.uid)
        return state_of(entry, files, self._journal.current.holds) is JournalState.PREPARED

    async def _carry_out(self, plan: Plan) -> Plan:
        """Raises HeldByOther when another claim has the hardware and keeps it."""
        deadline = time.monotonic() + self._patience.holder_s
        while True:
            try:
                return await self._executor.carry_out(plan, self._healer.finish)
            except HeldByOther as refusal:
                if not await self._healer.make_way(refusal.holder, patience_s=deadline - time.monotonic()):
                    raise
            except LeftBehind:
                if not (await self._healer.clear_left_behind()).done:
                    raise

    async def _unprepare(self, ref: ClaimRef, notes: ClaimNotes) -> None:
        async with self._executor.turn(ref.uid):
            # Else an instance that is replaced would release what kubelet has asked its successor to prepare.
            notes.wanted(ref)
            self._reads.released(ref.uid)
            entry = self._journal.current.held.get(ref.uid)
            if entry is None:
                notes.repeated = True
                await self._executor.remove_orphan(ref.uid)
                if left_behind(self._journal.current.held, self._journal.current.holds):
                    self._left.set()
            else:
                notes.devices = _devices(entry)
                # A claim without holds can be released on a node that knows nothing of itself.
                await self._executor.undo(entry, self._view.boot_id() if entry.holds else entry.boot_id)
                if entry.holds and left_behind(self._journal.current.held, self._journal.current.holds):
                    self._left.set()

    def _note_report(self, report: RepairReport) -> RepairReport:
        self._pending = bool(report.pending)
        for sentence in report.done:
            _log.warning("repaired", what=sentence)
        for sentence in report.pending:
            _log.warning("not right yet", what=sentence)
        return report


class _Once[T]:
    """Work for several waiters. It begins when the first of them needs it, or earlier with `begin`."""

    def __init__(self, work: Callable[[], asyncio.Future[T]]) -> None:
        self._work = work
        self._future: asyncio.Future[T] | None = None

    def begin(self) -> asyncio.Future[T]:
        if self._future is None:
            self._future = self._work()
        return self._future


class _Reads:
    """Those of the claims of one call. Their ends are waited for, so that the claims share one write of the journal:
    while its thread writes for some of them, the others get the interpreter more slowly."""

    def __init__(self, claims: int) -> None:
        self._missing = claims
        self._complete = asyncio.Event()

    async def ended(self) -> None:
        """One of them ended. Returns when all have, or after a moment."""
        self._missing -= 1
        if self._missing > 0:
            await until(self._complete, _TOGETHER_S)
        else:
            self._complete.set()


def _lost(facts: NodeFacts) -> frozenset[str]:
    return frozenset(lost.mig_uuid for lost in facts.lost)


def _is_final(entry: Entry) -> bool:
    """Whether the claim's allocation stays as it is. Until its pod is bound, the scheduler may choose other devices."""
    return entry.binding is not BindingStage.AHEAD


def _wanted(claim: ResourceClaim, ref: ClaimRef, node: KnownNode, *, ahead: bool) -> WantedClaim:
    wanted = wanted_of(claim, ref, node)
    return replace(wanted, binding=BindingStage.AHEAD) if ahead and wanted.binding is BindingStage.ASKED else wanted


def _devices(entry: Entry) -> tuple[AllocatedTo, ...]:
    return tuple(AllocatedTo(device.pool, device.device, device.share_id) for device in entry.devices)
