"""The node's facts with health: what Discovery saw, what the GPUs reported, what other services know, remembered.

The users of the facts (reporter, health stream, prepare) ask here instead of Discovery, by the same port. A
GPU that got lost stays in the facts as it was last seen, with a condition that says so: its device is tainted rather
than withdrawn, and no other GPU is touched.

`HealthFile` keeps this across restarts: one JSON file beside the journal, read once at start and replaced when
something changed. It is a memory, not a promise: a file that cannot be read is ignored, because events that matter
leave other traces, and no GPU is offered or withheld because of this file alone for longer than until the next look.

Deciding is for `kubelet_plugin.hardware.health` and `kubelet_plugin.facts.validation`; here are the clock, the
file and the news.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Protocol

import structlog
from pydantic import TypeAdapter

from dra_driver.api.gpu_settings import HealthPolicy
from dra_driver.api.inventory import MOST_CONDITIONS, GpuFacts, HealthCondition, HealthFacts, Problem
from dra_driver.api.meta import wire_time
from dra_driver.devices.health import Severity, judged, worst, xid_condition
from dra_driver.errors import NodeNotReady
from dra_driver.runtime.files import read_if_present, write_durably
from dra_driver.runtime.tasks import to_next, until
from kubelet_plugin.facts.hardware import DRIVER_INCOMPLETE, RELEASED, NodeFacts
from kubelet_plugin.facts.validation import Command, fault_of
from kubelet_plugin.facts.watcher import Coverage, GpuEvent
from kubelet_plugin.hardware.health import (
    Conditions,
    Era,
    HealthReading,
    Reading,
    Tracked,
    after_reading,
    after_xid,
    bad_reading,
    key_of,
    reading_of,
    without_gpus,
)

_log = structlog.get_logger(__name__)

HEALTH_FILE = "health.json"


@dataclass(frozen=True, slots=True)
class Memory:
    """`gpus` are the last facts of every GPU that was seen; `checked` says in which era each passed its check."""

    conditions: Conditions = field(default_factory=Conditions)
    gpus: tuple[GpuFacts, ...] = ()
    checked: Mapping[str, Era] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Content:
    """The file: conditions that hold, each with the UUID of its GPU; and the rest of the memory."""

    version: Literal[2]
    conditions: list[tuple[str, Tracked]]
    gpus: list[GpuFacts]
    checked: dict[str, Era]


_CONTENT = TypeAdapter(_Content)


class HealthFile:
    """The file in `folder`; blocking."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / HEALTH_FILE

    def read(self) -> Memory:
        """What was remembered; nothing if there is no file or it is invalid. Never raises."""
        try:
            content = read_if_present(self._path)
            return Memory() if content is None else _decoded(content)
        except (NodeNotReady, ValueError) as error:
            _log.warning("discarding saved health that cannot be read", file=str(self._path), error=str(error))
            return Memory()

    def write(self, memory: Memory) -> None:
        """Raises NodeNotReady when the disk refuses."""
        write_durably(self._path, _encoded(memory), mode=0o600)


def _encoded(memory: Memory) -> bytes:
    """The same memory gives the same bytes."""
    tracked = memory.conditions.tracked
    conditions = [(key.gpu, tracked[key]) for key in sorted(tracked)]
    content = _Content(2, conditions, list(memory.gpus), dict(sorted(memory.checked.items())))
    return _CONTENT.dump_json(content, by_alias=True, exclude_none=True) + b"\n"


def _decoded(text: bytes) -> Memory:
    """Raises ValueError when it is not what `_encoded` writes."""
    content = _CONTENT.validate_json(text)
    tracked = {key_of(gpu, known.condition): known for gpu, known in content.conditions}
    return Memory(Conditions(tracked), tuple(content.gpus), content.checked)


TICK_S = 10.0
"""How often conditions are looked at while nothing happens: so exact is a minute of good readings."""

CHECK_AGAIN_S = 60.0
"""A GPU that did not pass its check is checked again after as long."""

CHECK_UNDER_WAY = "its check is under way"
"""The message of NotValidated while nothing is known to be wrong."""

WITHHELD = frozenset({RELEASED, DRIVER_INCOMPLETE})
"""Reasons of problems of the node that are conditions of each GPU: it may work, and no new claim can have it."""

type InstanceUuid = Callable[[str, int, int], str | None]
"""GPU UUID, GPU instance id and compute instance id to the MIG device's UUID; None when it is not known."""

type MoreProblems = Callable[[], Sequence[Problem]]
"""Problems of the node that another service sees to."""

type MoreConditions = Callable[[], Mapping[str, Sequence[HealthCondition]]]
"""Conditions by GPU UUID that another service sees to: of MPS daemons, for instance."""


class SeenFacts(Protocol):
    """The last look at the node: what most need of `HealthMonitor`."""

    @property
    def facts(self) -> NodeFacts: ...


class MonitoredFacts(SeenFacts, Protocol):
    """With notice of each look: what is needed of `kubelet_plugin.facts.discovery.Discovery`, and what `HealthMonitor`
    is itself."""

    def subscribe(self, listener: Callable[[NodeFacts], None]) -> Callable[[], None]: ...

    async def observe(self) -> NodeFacts: ...


class HealthMonitor:
    """Facts with health; lives in one event loop. `run` runs until cancelled."""

    def __init__(
        self,
        source: MonitoredFacts,
        file: HealthFile,
        policy: Callable[[], HealthPolicy],
        *,
        driver_era: Callable[[], str | None] = lambda: None,
        instance_uuid: InstanceUuid = lambda gpu, gi, ci: None,
        more: Sequence[MoreConditions] = (),
        more_problems: MoreProblems = tuple,
        command: Command | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._source = source
        self._file = file
        self._policy = policy
        self._driver_era = driver_era
        self._instance_uuid = instance_uuid
        self._more = tuple(more)
        self._more_problems = more_problems
        self._command = command
        self._now = now
        self._memory = file.read()
        self._saved = self._memory
        self._coverage = Coverage()
        self._faults: dict[str, str] = {}
        self._since: dict[tuple[str, str], str] = {}
        self._check_due: dict[str, float] = {}
        self._facts: NodeFacts | None = None
        self._listeners: list[Callable[[NodeFacts], None]] = []
        self._news = asyncio.Event()
        source.subscribe(lambda _: self._update())

    @property
    def facts(self) -> NodeFacts:
        """The last facts, with health. Raises NodeNotReady before the first look."""
        if self._facts is None:
            self._update()
        if self._facts is None:
            return self._source.facts  # raises
        return self._facts

    def subscribe(self, listener: Callable[[NodeFacts], None]) -> Callable[[], None]:
        """Call `listener` in the event loop whenever the facts differ from the last; returns what ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def observe(self) -> NodeFacts:
        """Look at the hardware now. Raises NodeNotReady when the kernel does not tell its boot id."""
        await self._source.observe()
        self._update()
        return self.facts

    async def run(self) -> None:
        """Let conditions end in time, check GPUs that need it, keep the file."""
        while True:
            self._update()
            await self._check_gpus()
            await self._save()
            if await until(self._news, to_next(TICK_S)):
                self._news.clear()

    def heard(self, event: GpuEvent) -> None:
        """An event of `kubelet_plugin.facts.watcher`. A look shows whether the GPU is lost, or has another layout."""
        if event.xid is not None and event.gpu is not None and self._matters(event.xid):
            _log.warning("xid", gpu=event.gpu, number=event.xid, gpu_instance=event.gpu_instance)
            conditions = after_xid(
                self._memory.conditions,
                event.gpu,
                event.xid,
                self._instance_of(event),
                era=self._era(),
                when=self._now(),
            )
            self._memory = replace(self._memory, conditions=conditions)
            self._update()
        self._news.set()

    def covered(self, coverage: Coverage) -> None:
        """Which GPUs tell their events."""
        self._coverage = coverage
        self._update()

    def more_changed(self) -> None:
        """A source of further conditions or problems says something else now."""
        self._update()

    def _matters(self, xid: int) -> bool:
        """An application's own fault is not worth a place in the inventory, unless the policy makes something of it."""
        return judged(xid_condition(xid, since=""), self._policy()) in ("Critical", "Warning")

    def _instance_of(self, event: GpuEvent) -> str | None:
        if event.gpu is None or event.gpu_instance is None:
            return None
        return self._instance_uuid(event.gpu, event.gpu_instance, event.compute_instance or 0)

    def _era(self) -> Era:
        return Era(self._source.facts.boot_id, self._driver_era())

    def _update(self) -> None:
        """Make new facts from the last look and everything that is known; notify listeners when they differ."""
        try:
            seen = self._source.facts
        except NodeNotReady:
            return
        lost = _lost(seen, self._memory.gpus)
        answering = {gpu.uuid: _with_lost_peers(gpu, [other for other, _ in lost]) for gpu in seen.gpus}
        present = answering | {gpu.uuid: gpu for gpu, _ in lost}
        by_address = tuple(sorted(present.values(), key=lambda gpu: gpu.pci_bus_id))
        released = _released(seen)
        readings = self._readings(seen)
        for gpu, problem in lost:
            readings[gpu.uuid] = Reading((bad_reading("GpuLost", "Critical", problem.message, problem.reason),))
        conditions = after_reading(
            self._memory.conditions,
            readings if seen.driver is not None and released is None else {},
            era=self._era(),
            when=self._now(),
        )
        if seen.driver is not None:
            conditions = without_gpus(conditions, present)
            checked = {uuid: era for uuid, era in self._memory.checked.items() if uuid in answering}
            self._memory = Memory(conditions, by_address, checked)
        more = [source() for source in self._more]
        withheld = {problem.reason: problem.message for problem in seen.problems if problem.reason in WITHHELD}
        for reason, message in withheld.items():
            more.append({uuid: (self._standing(gpu, reason, "Critical", message),) for uuid, gpu in present.items()})
        ended = WITHHELD - withheld.keys()
        self._since = {key: since for key, since in self._since.items() if key[1] not in ended}
        of_gpus = [(gpu, self._conditions_of(gpu, conditions, more)) for gpu in by_address]
        gpus = tuple(self._with_health(gpu, holding) for gpu, holding in of_gpus)
        problems = tuple(item for item in seen.problems if item not in [problem for _, problem in lost])
        crowded = (_left_out(gpu, holding) for gpu, holding in of_gpus)
        self._publish(replace(seen, gpus=gpus, problems=(*problems, *filter(None, crowded), *self._more_problems())))

    def _readings(self, seen: NodeFacts) -> dict[str, Reading]:
        readings = {gpu.uuid: reading_of(gpu, seen.health.get(gpu.uuid, HealthReading())) for gpu in seen.gpus}
        for lost in seen.lost:
            reading = readings.get(lost.gpu_uuid, Reading())
            trouble = bad_reading("InstanceLost", "Critical", lost.message, instance=lost.mig_uuid)
            readings[lost.gpu_uuid] = replace(reading, troubles=(*reading.troubles, trouble))
        return readings

    def _conditions_of(
        self, gpu: GpuFacts, conditions: Conditions, more: Sequence[Mapping[str, Sequence[HealthCondition]]]
    ) -> list[HealthCondition]:
        """The most severe first, by the policy; of those the oldest."""
        holding = [*gpu.health.conditions, *conditions.of(gpu.uuid), *self._own_conditions(gpu)]
        for source in more:
            holding += source.get(gpu.uuid, ())
        return sorted(holding, key=lambda each: (_SEVERITIES.index(judged(each, self._policy())), each.since))

    def _with_health(self, gpu: GpuFacts, holding: Sequence[HealthCondition]) -> GpuFacts:
        bad = worst([each for each in holding if each.instance is None], self._policy())
        health = HealthFacts(
            healthy=bad is None,
            reason=None if bad is None else bad.type,
            message=None if bad is None else bad.message,
            conditions=sorted(
                holding[:MOST_CONDITIONS], key=lambda each: (each.type, each.value or "", each.instance or "")
            ),
        )
        return gpu.model_copy(update={"health": health})

    def _own_conditions(self, gpu: GpuFacts) -> list[HealthCondition]:
        """What follows from no reading: events that cannot be received, and a check that is due or was not passed."""
        own_conditions = []
        reason = dict(self._coverage.unmonitored).get(gpu.uuid)
        if reason is not None:
            own_conditions.append(
                self._standing(gpu, "Unmonitored", "Warning", f"its events cannot be received: {reason}")
            )
        if self._needs_check(gpu.uuid):
            fault = self._faults.get(gpu.uuid)
            message = CHECK_UNDER_WAY if fault is None else f"it did not pass its check: {fault}"
            own_conditions.append(self._standing(gpu, "NotValidated", "Critical", message))
        return own_conditions

    def _standing(self, gpu: GpuFacts, type_: str, severity: Severity, message: str) -> HealthCondition:
        since = self._since.setdefault((gpu.uuid, type_), wire_time(self._now()))
        return HealthCondition(type=type_, severity=severity, message=message, since=since)

    def _needs_check(self, uuid: str) -> bool:
        if not self._policy().validate_gpus:
            return False
        era = self._memory.checked.get(uuid)
        return era is None or era.is_over(self._era())

    async def _check_gpus(self) -> None:
        """Check every GPU whose check is due, one after the other: a check may use the GPU."""
        try:
            seen = self._source.facts
        except NodeNotReady:
            return
        for gpu in seen.gpus if _released(seen) is None else ():
            if not self._needs_check(gpu.uuid) or self._check_due.get(gpu.uuid, 0.0) > time.monotonic():
                continue
            fault = await self._fault_of(gpu, [other for other in seen.gpus if other.uuid != gpu.uuid], seen)
            if fault is None:
                _log.info("a GPU passed its check", gpu=gpu.uuid)
                self._memory = replace(self._memory, checked={**self._memory.checked, gpu.uuid: self._era()})
                self._faults.pop(gpu.uuid, None)
            else:
                _log.warning("a GPU did not pass its check", gpu=gpu.uuid, fault=fault)
                self._faults[gpu.uuid] = fault
                self._check_due[gpu.uuid] = time.monotonic() + CHECK_AGAIN_S
            self._update()

    async def _fault_of(self, gpu: GpuFacts, others: Sequence[GpuFacts], seen: NodeFacts) -> str | None:
        reading = seen.health.get(gpu.uuid, HealthReading())
        fault = fault_of(gpu, others, reading.max_clock_mhz)
        if fault is not None or self._command is None:
            return fault
        return await self._command.fault_of(gpu)

    async def _save(self) -> None:
        if self._memory == self._saved:
            return
        memory = self._memory
        try:
            await asyncio.to_thread(self._file.write, memory)
        except NodeNotReady as error:
            _log.warning("health cannot be saved", error=str(error))
        else:
            self._saved = memory

    def _publish(self, facts: NodeFacts) -> None:
        if facts == self._facts:
            return
        self._facts = facts
        self._news.set()
        for listener in list(self._listeners):
            listener(facts)


_SEVERITIES: tuple[Severity | None, ...] = ("Critical", "Warning", "Info", None)


def _left_out(gpu: GpuFacts, holding: Sequence[HealthCondition]) -> Problem | None:
    if len(holding) <= MOST_CONDITIONS:
        return None
    names = ", ".join(" ".join(filter(None, (each.type, each.value))) for each in holding[MOST_CONDITIONS:])
    message = (
        f"{len(holding) - MOST_CONDITIONS} of {len(holding)} conditions are not reported, the least severe: {names}"
    )
    return Problem(subject=f"health of GPU {gpu.pci_bus_id}", reason="TooManyConditions", message=message)


def _lost(seen: NodeFacts, known: Sequence[GpuFacts]) -> list[tuple[GpuFacts, Problem]]:
    """GPUs that were seen before and cannot be read now, each with the problem that says so."""
    problems = {problem.subject: problem for problem in seen.problems}
    present = {gpu.uuid for gpu in seen.gpus}
    addresses = {gpu.pci_bus_id for gpu in seen.gpus}
    return [
        (gpu, problems[f"GPU {gpu.pci_bus_id}"])
        for gpu in known
        if gpu.uuid not in present and gpu.pci_bus_id not in addresses and f"GPU {gpu.pci_bus_id}" in problems
    ]


def _with_lost_peers(gpu: GpuFacts, lost: Sequence[GpuFacts]) -> GpuFacts:
    """NVML does not name a lost GPU as a peer. Without it, the others would be no full mesh, and in no NVLink domain.

    What a claim's hold keeps of the GPU must name it, too: it may answer again while the GPU is in MIG mode.
    """
    if gpu.nvlink is None or not lost:
        return gpu
    missing = {other.uuid for other in lost if other.nvlink is not None and gpu.uuid in other.nvlink.peers}
    peers = sorted(missing.union(gpu.nvlink.peers))
    return gpu.model_copy(update={"nvlink": gpu.nvlink.model_copy(update={"peers": peers})})


def _released(seen: NodeFacts) -> str | None:
    """Why nothing is asked of the GPUs: what is seen is from before."""
    return next((problem.message for problem in seen.problems if problem.reason == RELEASED), None)
