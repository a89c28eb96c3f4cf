"""Effects on hardware that is a dictionary: for tests of everything that uses the port of
`kubelet_plugin.prepare.holds`. They insist on the order in which real hardware wants things made and undone, can be
told to fail next, and call `on_act` before each change, which may raise as if the process were dead.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from threading import Lock

from dra_driver.errors import DriverError, HardwareError
from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    ComputeMode,
    Effects,
    FabricPartition,
    GpuInstance,
    Hold,
    Made,
    MigMode,
    MpsDaemon,
    Records,
    TimeSlice,
    VfioBinding,
    described,
    gpus_of,
    subject_of,
)

_KINDS = (
    MigMode, GpuInstance, ComputeInstance, FabricPartition, ComputeMode, TimeSlice, MpsDaemon, VfioBinding,
)  # fmt: skip


def _nothing(_: Hold) -> None:
    """The process lives."""


@dataclass
class FakeHardware:
    """`there` is what is on the hardware, by what it is about, with a number that is another one each time."""

    there: dict[Hashable, tuple[Hold, int]] = field(default_factory=dict)
    failures: list[DriverError] = field(default_factory=list)
    """Raised by the next acts, one each, before anything is changed."""
    on_act: Callable[[Hold], None] = _nothing
    acts: list[str] = field(default_factory=list)
    """What was changed, for people."""
    made: int = 0
    turn: Lock = field(default_factory=Lock)

    @property
    def effects(self) -> Effects:
        effect = _FakeEffect(self)
        return dict.fromkeys(_KINDS, effect)

    @property
    def holds(self) -> frozenset[Hold]:
        return frozenset(hold for hold, _ in self.there.values())

    def reboot(self) -> None:
        """Nothing outlives it."""
        self.there.clear()

    def vanish(self, hold: Hold) -> None:
        """Somebody takes it away: a daemon dies, an administrator is at work."""
        self.there.pop(subject_of(hold), None)

    def act(self, word: str, hold: Hold) -> None:
        """In the caller's turn, which others may have while `on_act` waits."""
        self.turn.release()
        try:
            self.on_act(hold)
        finally:
            self.turn.acquire()
        if self.failures:
            raise self.failures.pop(0)
        self.acts.append(f"{word} {described(hold)}")


class _FakeEffect:
    def __init__(self, hardware: FakeHardware) -> None:
        self._hardware = hardware

    def before(self, hold: Hold, records: Records) -> Made:
        if subject_of(hold) in self._hardware.there:
            raise HardwareError(f"{described(hold)} is there already, and nobody knows why")
        return Made((("was", "off"),))

    def make(self, hold: Hold, records: Records) -> Made:
        with self._hardware.turn:
            there = self._hardware.there
            entry = there.get(subject_of(hold))
            if entry is None or entry[0] != hold:
                self._check_room(hold, records)
                self._hardware.act("make", hold)
                self._hardware.made += 1
                there[subject_of(hold)] = entry = hold, self._hardware.made
            return records[hold].made.with_facts(_facts(hold, entry[1]))

    def undo(self, hold: Hold, records: Records, boot_id: str) -> None:
        assert hold in records, f"{described(hold)} is undone and nobody remembers why"
        with self._hardware.turn:
            entry = self._hardware.there.get(subject_of(hold))
            if entry is None or entry[0] != hold:
                return
            for other in self._hardware.holds:
                if hold in _needs(other):
                    raise HardwareError(f"{described(hold)} is needed by {described(other)}")
            self._hardware.act("undo", hold)
            del self._hardware.there[subject_of(hold)]

    def _check_room(self, hold: Hold, records: Records) -> None:
        for needed in _needs(hold):
            if needed not in self._hardware.holds:
                raise HardwareError(f"{described(hold)} needs {described(needed)}")
            assert records[needed].made.facts, f"{described(needed)} is there and nobody remembers it"
        for other in self._hardware.holds:
            if _excludes(hold, other) or _excludes(other, hold):
                raise HardwareError(f"{described(hold)} cannot be beside {described(other)}")


def _facts(hold: Hold, number: int) -> Made:
    match hold:
        case GpuInstance():
            return Made((("gi", str(number)),))
        case ComputeInstance():
            return Made((("ci", "0"), ("gi", str(number)), ("uuid", f"MIG-{number}")))
        case MpsDaemon(key):
            return Made((("pipe", f"/mps/{key}/pipe"), ("shm", f"/mps/{key}/shm")))
        case VfioBinding():
            return Made((("node", f"/dev/vfio/{number}"),))
        case _:
            return Made()


def _needs(hold: Hold) -> tuple[Hold, ...]:
    match hold:
        case GpuInstance(gpu):
            return (MigMode(gpu),)
        case ComputeInstance(parent):
            return (parent,)
        case MpsDaemon(_, _, ComputeInstance() as device):
            return (device,)
        case MpsDaemon(_, gpus, None):
            return tuple(ComputeMode(gpu, 3) for gpu in gpus)
        case _:
            return ()


def _excludes(hold: Hold, other: Hold) -> bool:
    if not set(gpus_of(hold)) & set(gpus_of(other)):
        return False
    match hold, other:
        case FabricPartition(), FabricPartition():
            return True
        case FabricPartition(), _:
            return False
        case VfioBinding(), FabricPartition():
            return False
        case VfioBinding(), _:
            return True
        case MigMode(), ComputeMode() | TimeSlice():
            return True
        case GpuInstance(_, _, _, start, size), GpuInstance(_, _, _, other_start, other_size):
            return start < other_start + other_size and other_start < start + size
        case ComputeMode(_, 3), TimeSlice():
            return True
        case MpsDaemon(_, _, one), MpsDaemon(_, _, another):
            return one == another
        case _:
            return subject_of(hold) == subject_of(other)
