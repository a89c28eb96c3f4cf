"""Daemons that die: what is decided, and what a watch over real processes of a simulated node does."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.mps import Client, effect_for, identity, no_daemons_left, record, until

from dra_driver.api.inventory import HealthCondition
from dra_driver.errors import NodeNotReady
from kubelet_plugin.effects import mps_watch
from kubelet_plugin.effects.mps import MpsDaemons, Sight
from kubelet_plugin.effects.mps_watch import _ASKED_EVERY, History, MpsRemedy, MpsWatch, remedy_for
from kubelet_plugin.hardware.host_programs import MarkedProcess
from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    GpuIdentity,
    GpuInstance,
    Hold,
    HoldRecord,
    HoldState,
    Made,
    MpsDaemon,
)
from kubelet_plugin.simulation.host import SimulatedHost, create_host

_PROCESS = MarkedProcess(1, 2, "/x#y")
_DEAD = Sight(answers=False, processes=())
_WELL, _BUSY = (Sight(answers=answers, processes=(_PROCESS,)) for answers in (True, False))
_TIMES = st.lists(st.floats(0, 1000), max_size=8).map(lambda times: tuple(sorted(times)))


@given(_TIMES, st.floats(0, 2000), st.booleans())
def test_a_daemon_that_answers_is_left_as_it_is(starts: tuple[float, ...], now: float, silent: bool) -> None:
    history = History(starts=starts, silent=silent)
    assert remedy_for(Sight(answers=True, processes=(_PROCESS,)), history, now) is MpsRemedy.KEEP


@given(_TIMES, st.floats(0, 2000))
def test_nothing_is_started_while_something_of_the_daemon_runs(starts: tuple[float, ...], now: float) -> None:
    assert remedy_for(Sight(answers=False, processes=(_PROCESS,)), History(starts=starts), now) is MpsRemedy.LEAVE


def test_a_dead_daemon_is_started_at_once_and_then_ever_less_often() -> None:
    starts: list[float] = []
    now = 0.0
    while now < 300:
        if remedy_for(_DEAD, History(starts=tuple(starts)), now) is MpsRemedy.START:
            starts.append(now)
        now += 0.5
    assert starts[:5] == [0.0, 1.0, 6.0, 21.0, 81.0]
    assert all(later - earlier >= 60 for earlier, later in pairwise(starts[4:]))
    assert remedy_for(_DEAD, History(starts=tuple(starts)), starts[-1] + 600) is MpsRemedy.START


def troubles(watch: MpsWatch) -> list[HealthCondition]:
    """One for each GPU of a daemon."""
    return [condition for conditions in watch.conditions().values() for condition in conditions]


class _Node:
    """A simulated node with one daemon, and what the journal says of it."""

    def __init__(self, host: SimulatedHost, daemons: MpsDaemons) -> None:
        self.host = host
        self.daemons = daemons
        self.hold = MpsDaemon("claim-a", (identity(host, 1), identity(host, 2)))
        self.records: dict[Hold, HoldRecord] = {self.hold: record(daemons.make(self.hold, {}))}
        self.now = 0.0
        self.failure: NodeNotReady | None = None
        self.watch = MpsWatch(
            daemons, lambda: self.records, lambda: "boot-1", self._again, clock=lambda: self.now, interval_s=0.01
        )

    @property
    def pid(self) -> int:
        return int(self.records[self.hold].made["pid"])

    async def _again(self, hold: MpsDaemon) -> None:
        if self.failure is not None:
            raise self.failure
        self.records[hold] = record(self.daemons.make(hold, self.records))

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        until(lambda: not self.daemons.stands(self.records[self.hold].made))

    def client(self) -> Client:
        return Client(self.host, self.records[self.hold].made["pipe"])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[_Node]:
    host = create_host(tmp_path / "host", "l40s")
    (tmp_path / "state").mkdir()
    with no_daemons_left(tmp_path / "state"):
        yield _Node(host, effect_for(host, tmp_path / "state" / "mps"))


async def test_a_daemon_that_is_well_is_no_trouble(node: _Node) -> None:
    pid = node.pid
    for _ in range(8):
        await node.watch.look()
    assert (troubles(node.watch), node.pid) == ([], pid)


async def test_all_daemons_of_a_node_are_searched_at_once_and_only_when_they_are_asked(
    node: _Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = replace(node.hold, key="claim-b", gpus=(identity(node.host, 0),))
    node.records[other] = record(node.daemons.make(other, {}))
    searches: list[object] = []
    search = node.daemons.processes
    monkeypatch.setattr(node.daemons, "processes", lambda: searches.append(None) or search())
    for _ in range(_ASKED_EVERY):
        await node.watch.look()
    assert (len(searches), troubles(node.watch)) == (1, [])


async def test_a_daemon_that_died_is_started_anew_and_told_for_a_minute(node: _Node) -> None:
    await node.watch.look()
    pid = node.pid
    node.kill()
    await node.watch.look()
    assert node.pid != pid
    assert node.client().end() == 0
    assert node.watch.conditions().keys() == {gpu.uuid for gpu in node.hold.gpus}
    assert [trouble.severity for trouble in troubles(node.watch)] == ["Warning"] * 2
    assert "died with its clients; it was restarted" in troubles(node.watch)[0].message
    node.now += 61
    await node.watch.look()
    assert troubles(node.watch) == []


async def test_clients_that_compute_without_their_daemon_are_left_alone_and_that_is_told(node: _Node) -> None:
    client = node.client()
    node.kill()
    await node.watch.look()
    assert troubles(node.watch) == [], "once may be a busy machine"
    await node.watch.look()
    (trouble, _) = troubles(node.watch)
    assert trouble.severity == "Critical" and "still runs: programs that compute continue" in trouble.message
    assert client.process.poll() is None and client.end() == 0
    until(lambda: not node.daemons.look(node.hold).processes)
    await node.watch.look()
    assert node.client().end() == 0
    assert [trouble.severity for trouble in troubles(node.watch)] == ["Warning"] * 2


async def test_a_daemon_that_cannot_be_started_is_told_until_it_can(node: _Node) -> None:
    node.kill()
    node.failure = NodeNotReady("the driver is being upgraded", about="driver")
    await node.watch.look()
    assert "cannot be restarted: the driver is being upgraded" in troubles(node.watch)[0].message
    node.now += 0.5
    await node.watch.look()
    assert [trouble.severity for trouble in troubles(node.watch)] == ["Critical"] * 2
    node.failure, node.now = None, 10.0
    await node.watch.look()
    assert [trouble.severity for trouble in troubles(node.watch)] == ["Warning"] * 2
    assert node.client().end() == 0


async def test_a_daemon_that_was_released_is_not_missed(node: _Node) -> None:
    await node.watch.look()
    released = node.records.pop(node.hold)
    node.daemons.undo(node.hold, {node.hold: released}, "boot-1")
    await node.watch.look()
    assert troubles(node.watch) == [] and not node.records


@pytest.mark.parametrize("other", [record, lambda made: HoldRecord(HoldState.UNDOING, "boot-1", made)])
async def test_only_what_is_made_in_this_boot_is_watched(node: _Node, other: object) -> None:
    assert callable(other)
    changed = other(node.records[node.hold].made)
    node.records[node.hold] = HoldRecord(
        changed.state, "boot-0" if changed.state is HoldState.MADE else "boot-1", changed.made
    )
    node.kill()
    await node.watch.look()
    assert not node.daemons.stands(node.records[node.hold].made)
    assert troubles(node.watch) == []


async def test_a_trouble_of_a_mig_device_names_it(node: _Node) -> None:
    hold = MpsDaemon("claim-b", (node.hold.gpus[0],), mig="MIG-1")
    node.records = {hold: HoldRecord(HoldState.MADE, "boot-1")}
    node.failure = NodeNotReady("no")
    await node.watch.look()
    (trouble,) = troubles(node.watch)
    assert trouble.instance == "MIG-1" and list(node.watch.conditions()) == [node.hold.gpus[0].uuid]


async def test_a_driver_without_programs_ends_no_watch(node: _Node) -> None:
    (node.host.root / "usr/bin/nvidia-cuda-mps-control").unlink()
    for _ in range(8):
        await node.watch.look()
    assert troubles(node.watch)


class _Daemons:
    """Daemons that are seen as a test says, and a watch over them."""

    def __init__(self, *keys: str) -> None:
        self.holds = [MpsDaemon(key, (GpuIdentity("GPU-1", "0000:01:00.0"),)) for key in keys or ("claim-a",)]
        self.records: dict[Hold, HoldRecord] = {hold: HoldRecord(HoldState.MADE, "boot-1") for hold in self.holds}
        self.sees: Callable[[MpsDaemon], Sight] = lambda hold: _WELL
        self.looks = 0
        self.released = False
        self.started: list[tuple[str, float]] = []
        self.now = 0.0
        self.watch = MpsWatch(
            self, lambda: self.records, lambda: "boot-1", self._again, clock=lambda: self.now, interval_s=0.01
        )

    def processes(self) -> tuple[MarkedProcess, ...]:
        return ()

    def look(self, hold: MpsDaemon, seen: Sequence[MarkedProcess]) -> Sight:
        self.looks += 1
        return self.sees(hold)

    def stands(self, made: Made) -> bool:
        return True

    async def _again(self, hold: MpsDaemon) -> None:
        self.started.append((hold.key, self.now))
        if self.released:
            del self.records[hold]


async def test_a_daemon_that_stands_is_asked_now_and_then() -> None:
    daemons, asked = _Daemons(), []
    for _ in range(2 * _ASKED_EVERY):
        before = daemons.looks
        await daemons.watch.look()
        asked.append(daemons.looks > before)
    assert asked == [True, *[False] * (_ASKED_EVERY - 1)] * 2


async def test_a_daemon_that_was_silent_is_asked_with_the_next_look_until_it_answers() -> None:
    daemons = _Daemons()
    sights = iter((_BUSY, _WELL))
    daemons.sees = lambda hold: next(sights)
    for _ in range(4):
        await daemons.watch.look()
    assert daemons.looks == 2


async def test_a_daemon_that_dies_again_and_again_is_started_ever_less_often_and_told() -> None:
    daemons = _Daemons()
    daemons.sees = lambda hold: _DEAD
    for daemons.now in (0.0, 0.5, 1.0, 2.5, 6.0):
        await daemons.watch.look()
        if daemons.now in (0.5, 2.5):
            (trouble,) = troubles(daemons.watch)
            assert trouble.severity == "Critical" and "restarted too often" in trouble.message
        daemons.watch._looks = 0
    assert [when for _, when in daemons.started] == [0.0, 1.0, 6.0]


async def test_a_trouble_is_as_old_as_its_first_report(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(f"2026-01-01T00:00:{second:02}Z" for second in range(60))
    monkeypatch.setattr(mps_watch, "wire_time", lambda when: next(times))
    daemons = _Daemons()

    async def since(now: float, sight: Sight) -> list[str]:
        daemons.now, daemons.sees, daemons.watch._looks = now, lambda hold: sight, 0
        await daemons.watch.look()
        return [trouble.since[-3:-1] for trouble in troubles(daemons.watch)]

    assert await since(0.0, _DEAD) == ["00"]
    assert await since(20.0, _DEAD) == ["00"], "the same again, while it is reported"
    assert await since(90.0, _WELL) == []
    assert await since(700.0, _DEAD) == ["01"]
    assert [await since(now, _BUSY) for now in (701.0, 702.0, 703.0)] == [["01"], ["02"], ["02"]]
    assert await since(704.0, _WELL) == ["03"]


async def test_a_daemon_that_is_busy_now_and_then_is_no_trouble() -> None:
    daemons = _Daemons()
    sights = iter((_BUSY, _WELL) * 3)
    daemons.sees = lambda hold: next(sights)
    for _ in range(6):
        daemons.watch._looks = 0
        await daemons.watch.look()
        assert troubles(daemons.watch) == []


async def test_a_daemon_that_is_released_while_it_is_looked_at_is_not_started() -> None:
    daemons = _Daemons()

    def released(hold: MpsDaemon) -> Sight:
        del daemons.records[hold]
        return _DEAD

    daemons.sees = released
    await daemons.watch.look()
    assert daemons.started == []


async def test_a_daemon_that_is_released_while_it_is_started_is_no_trouble() -> None:
    daemons = _Daemons()
    daemons.sees = lambda hold: _DEAD
    daemons.released = True
    await daemons.watch.look()
    assert daemons.started and troubles(daemons.watch) == []


@pytest.mark.parametrize(
    ("sights", "expected"),
    [
        ((_DEAD, _BUSY), ["Warning", "Warning"]),
        ((_BUSY, _BUSY, _WELL, _BUSY), ["", "Critical", "Warning", "Warning"]),
    ],
)
async def test_what_was_wrong_before_makes_a_daemon_that_is_busy_once_no_worse(
    sights: tuple[Sight, ...], expected: list[str]
) -> None:
    daemons, severities, seen = _Daemons(), [], iter(sights)
    daemons.sees = lambda hold: next(seen)
    for _ in sights:
        daemons.watch._looks = 0
        await daemons.watch.look()
        severities.append("".join(trouble.severity for trouble in troubles(daemons.watch)))
    assert severities == expected


async def test_a_trouble_of_a_mig_device_that_was_made_names_it() -> None:
    daemons = _Daemons()
    (whole,) = daemons.holds
    mig = ComputeInstance(GpuInstance(whole.gpus[0], "1g.10gb", 19, 0, 1))
    hold = replace(whole, mig=mig)
    daemons.sees = lambda hold: _DEAD
    made = HoldRecord(HoldState.MADE, "boot-1", Made((("uuid", "MIG-1"),)))
    daemons.records = {hold: HoldRecord(HoldState.MADE, "boot-1"), mig: made}
    await daemons.watch.look()
    assert [trouble.instance for trouble in troubles(daemons.watch)] == ["MIG-1"]
    del daemons.records[mig]
    assert [trouble.instance for trouble in troubles(daemons.watch)] == [None]


async def test_a_daemon_that_cannot_be_looked_at_keeps_nobody_from_the_others() -> None:
    daemons = _Daemons("claim-a", "claim-b")

    def seen(hold: MpsDaemon) -> Sight:
        if hold.key == "claim-a":
            raise NodeNotReady("cannot be read")
        return _DEAD

    daemons.sees = seen
    await daemons.watch.look()
    assert daemons.started == [("claim-b", 0.0)]


async def test_a_watch_looks_at_every_interval() -> None:
    daemons = _Daemons()

    def busy(hold: MpsDaemon) -> Sight:
        if daemons.looks == 3:
            raise EOFError
        return _BUSY  # so that the next look asks again

    daemons.sees = busy
    with pytest.raises(EOFError):
        await asyncio.wait_for(daemons.watch.run(), 10)


async def test_a_node_that_does_not_tell_its_boot_ends_no_watch(node: _Node) -> None:
    def no_boot_id() -> str:
        raise NodeNotReady("cannot be read", about="file boot_id")

    watch = MpsWatch(node.daemons, lambda: node.records, no_boot_id, node._again, interval_s=0.01)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await watch.run()
