"""Switches MIG mode by resets where the policy lets the driver do that: see, journal, reset, look, journal.

The publisher decides which GPU should have which mode, keeps new claims away from it, and allows the change when no
claim uses it (`dra_driver.publish.decisions`). `kubelet_plugin.prepare.mode_steps` decides what to do next. From
the journaled intent until the result, no claim gets the GPU, and a process that is killed in between leaves an intent
that the next one continues or takes back. One GPU at a time, because each reset closes all NVML sessions of the plugin.

What is in the way is reported with the facts of the GPU. Then the publisher lets claims have the GPU as it is, rather
than keep it idle for a program that may never end; until the plugin sees that the way is free.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from dra_driver.api.inventory import GpuFacts, ModeObstacle
from dra_driver.errors import DeviceInUse, DriverError, HardwareError
from dra_driver.kube.watch import Backoff
from dra_driver.runtime.tasks import until
from kubelet_plugin.effects.mode_reset import ModeResets
from kubelet_plugin.facts.hardware import RELEASED
from kubelet_plugin.facts.monitor import MonitoredFacts
from kubelet_plugin.facts.offers import NodeRules
from kubelet_plugin.hardware.mig import Mode
from kubelet_plugin.prepare.execute import Executor
from kubelet_plugin.prepare.holds import GpuIdentity, HoldState, SwitchedMode
from kubelet_plugin.prepare.mode_steps import ModeStep, in_use, next_step, refused
from kubelet_plugin.prepare.transitions import claims_on, mode_change_begun, mode_change_ended, mode_changes

_log = structlog.get_logger(__name__)

type Report = Callable[[Mapping[str, ModeObstacle]], None]
"""Takes what is in the way, by the UUID of the GPU, which the next look adds to the facts."""


@dataclass(frozen=True, slots=True)
class ModePatience:
    """In seconds."""

    settle_s: float = 5.0
    """How long the publisher must have allowed a change: a scheduler may not have seen the taint yet."""
    tick_s: float = 2.0
    """Between looks while there is something to do; otherwise the rules change first."""
    first_retry_s: float = 10.0
    longest_retry_s: float = 300.0


@dataclass
class _Blocked:
    """`users` are the programs that were in the way; `due` is when it is looked at again."""

    obstacle: ModeObstacle
    users: frozenset[str]
    due: float


class _InTheWay(Exception):
    def __init__(self, obstacle: ModeObstacle, users: frozenset[str] = frozenset()) -> None:
        super().__init__(obstacle.message)
        self.obstacle = obstacle
        self.users = users


class ModeChanges:
    """Lives in one event loop; `run` until cancelled."""

    def __init__(
        self,
        node: str,
        executor: Executor,
        resets: ModeResets,
        rules: NodeRules,
        facts: MonitoredFacts,
        report: Report,
        tell: Callable[[str, bool], None],
        patience: ModePatience = ModePatience(),
        *,
        allowed: bool,
    ) -> None:
        """`tell` hears of each reset that switched a mode: the published name of the GPU, and whether it is on now. Not
        `allowed`, as by the feature gate: nothing is switched on, and what was switched on is switched off."""
        self._node = node
        self._executor = executor
        self._journal = executor.journal
        self._resets = resets
        self._rules = rules
        self._facts = facts
        self._report = report
        self._tell = tell
        self._patience = patience
        self._allowed = allowed
        self._asked: dict[str, tuple[bool, float]] = {}
        """By UUID of a GPU: the mode that the publisher lets us switch to, and since when."""
        self._blocked: dict[str, _Blocked] = {}
        self._backoffs: dict[str, Backoff] = {}
        self._wake = asyncio.Event()
        rules.subscribe(self._wake.set)
        # They differ, too, when healing takes a switched mode from the log of holds, which the journal had lost.
        facts.subscribe(lambda _: self._wake.set())

    async def run(self) -> None:
        await self._facts.observe()
        while True:
            busy = True
            try:
                await self.settle()
                busy = self._is_busy()
            except DriverError as error:
                _log.warning("changes of MIG mode cannot continue now", error=str(error))
            await until(self._wake, self._patience.tick_s if busy else None)
            self._wake.clear()

    def _is_busy(self) -> bool:
        switched = any(isinstance(hold, SwitchedMode) for hold in self._journal.current.holds)
        return switched or bool(self._rules.modes or self._blocked)

    async def settle(self) -> None:
        """Do what is due now. Raises NodeNotReady while the node is not known, or the disk refuses."""
        facts = self._facts.facts
        if self._rules.rules is None or any(problem.reason == RELEASED for problem in facts.problems):
            return
        for gpu in facts.gpus:
            mig = gpu.mig
            if mig is None or mig.switchable or gpu.virtualization is not None:
                continue
            if await self._settle_gpu(gpu, Mode(mig.enabled, mig.pending)):
                self._report({uuid: blocked.obstacle for uuid, blocked in self._blocked.items()})
                await self._facts.observe()

    async def _settle_gpu(self, gpu: GpuFacts, mode: Mode) -> bool:
        """Whether the facts of the GPU may be others now."""
        hold = SwitchedMode(GpuIdentity.of(gpu))
        if (blocked := self._blocked.get(gpu.uuid)) is not None:
            if time.monotonic() < blocked.due:
                return False
            if await self._is_still_blocked(blocked, gpu, hold.gpu):
                blocked.due = time.monotonic() + self._backoff(gpu.uuid).next_s()
                return False
            del self._blocked[gpu.uuid]
            return True
        asked = self._rules.modes.get(gpu.uuid)
        if asked and not self._allowed:
            asked = None
        record = self._journal.current.holds.get(hold)
        state = record.state if record is not None else None
        step = next_step(state, asked, mode)
        if step is ModeStep.NOTHING or not self._is_time(gpu.uuid, asked, state):
            return False
        try:
            async with self._executor.turn_of(hold):
                await self._do(step, gpu, hold)
        except _InTheWay as stop:
            self._block(gpu, stop.obstacle, stop.users)
        except DriverError as error:
            obstacle = refused(gpu, self._node, error.message, graphics=False)
            if hold in mode_changes(self._journal.current):
                obstacle = obstacle.model_copy(update={"reason": "Stuck"})
            self._block(gpu, obstacle)
        else:
            self._backoffs.pop(gpu.uuid, None)
            _log.info("MIG mode", gpu=str(hold.gpu), done=step.value)
        return True

    def _block(self, gpu: GpuFacts, obstacle: ModeObstacle, users: frozenset[str] = frozenset()) -> None:
        _log.warning("MIG mode is not switched", gpu=gpu.name, reason=obstacle.reason, error=obstacle.message)
        due = time.monotonic() + self._backoff(gpu.uuid).next_s()
        self._blocked[gpu.uuid] = _Blocked(obstacle, users, due)
        self._asked.pop(gpu.uuid, None)  # the taint goes meanwhile

    def _backoff(self, uuid: str) -> Backoff:
        new = Backoff(first_s=self._patience.first_retry_s, longest_s=self._patience.longest_retry_s)
        return self._backoffs.setdefault(uuid, new)

    def _is_time(self, uuid: str, asked: bool | None, record: HoldState | None) -> bool:
        """A change that was begun is continued at once: no claim gets the GPU."""
        if asked is None or record not in (None, HoldState.MADE):
            self._asked.pop(uuid, None)
            return True
        now = time.monotonic()
        since = self._asked.get(uuid)
        if since is None or since[0] != asked:
            since = self._asked[uuid] = asked, now
        return now >= since[1] + self._patience.settle_s

    async def _is_still_blocked(self, blocked: _Blocked, gpu: GpuFacts, identity: GpuIdentity) -> bool:
        """A reset that failed is tried again; that the machine can do none stays so as long as this process.

        Meanwhile claims may have the GPU, whose programs have it open, too: then it matters whether the programs of
        before still do.
        """
        if blocked.obstacle.reason == "NotPossible":
            return True
        if blocked.obstacle.reason in ("Failed", "Stuck"):
            return False
        users = frozenset(await asyncio.to_thread(self._resets.users, identity))
        if blocked.users:
            return not blocked.users.isdisjoint(users)
        return await self._obstacle(gpu, identity, users) is not None

    async def _obstacle(self, gpu: GpuFacts, identity: GpuIdentity, users: frozenset[str]) -> ModeObstacle | None:
        claims = claims_on(self._journal.current, identity)
        instances = () if claims or users else await asyncio.to_thread(self._resets.instances, identity)
        return in_use(gpu, self._node, claims, users, instances)

    async def _do(self, step: ModeStep, gpu: GpuFacts, hold: SwitchedMode) -> None:
        """Raises _InTheWay; then the mode is as it was, or the journal still has the intent."""
        if step is ModeStep.SETTLE:
            await self._write_what_is(hold)
            return
        on = step is ModeStep.SWITCH_ON
        users = frozenset(await asyncio.to_thread(self._resets.users, hold.gpu))
        if (obstacle := await self._obstacle(gpu, hold.gpu, users)) is not None:
            raise _InTheWay(obstacle, users)
        intent = HoldState.INTENT if on else HoldState.UNDOING
        try:
            await self._journal.commit(mode_change_begun(hold, intent, self._facts.facts.boot_id))
        except DeviceInUse as error:
            raise _InTheWay(ModeObstacle(reason="InUse", message=error.message, fix="wait until that ends")) from error
        try:
            await asyncio.to_thread(self._resets.switch, hold.gpu, on=on)
        except HardwareError as error:
            await self._write_what_is(hold)
            obstacle = refused(gpu, self._node, error.message, graphics=self._resets.graphics)
            raise _InTheWay(obstacle, frozenset(await asyncio.to_thread(self._resets.users, hold.gpu))) from error
        await self._journal.commit(mode_change_ended(hold, on=on))
        self._tell(gpu.name, on)

    async def _write_what_is(self, hold: SwitchedMode) -> None:
        """No change is pending afterwards. Raises HardwareError; then the intent stays, and no claim gets the GPU."""
        on = await asyncio.to_thread(self._resets.cancel, hold.gpu)
        await self._journal.commit(mode_change_ended(hold, on=on))
