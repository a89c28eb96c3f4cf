"""What ends in a cluster that is kept running: when it is started again, and what is said of it."""

from dataclasses import dataclass
from pathlib import Path

from dra_driver.simulation.processes import Restarts


@dataclass
class Program:
    name: str
    log: Path = Path("/logs/x")
    ended: int | None = None


class Scene:
    def __init__(self) -> None:
        self.now = 100.0
        self.plugin, self.controller = Program("plugin of node a"), Program("controller")
        self.reports: list[str] = []
        self.started: list[float] = []
        self.restarts = Restarts([self.plugin, self.controller], self.start, self.reports.append, lambda: self.now)

    async def start(self, program: Program) -> None:
        assert program is self.plugin
        program.ended = None
        self.started.append(self.now)

    async def passes(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.now += 1
            await self.restarts.look()


async def test_what_ends_is_started_again_at_once_and_told() -> None:
    scene = Scene()
    await scene.passes(3)
    assert (scene.started, scene.reports) == ([], [])
    scene.plugin.ended = -9
    await scene.passes(5)
    assert scene.started == [104.0]
    assert scene.reports == ["plugin of node a was ended by SIGKILL; it is started again now. Its log: /logs/x"]


async def test_what_ends_again_and_again_waits_longer_and_longer_and_is_told_as_often() -> None:
    scene = Scene()
    for _ in range(400):
        scene.plugin.ended = 3
        await scene.passes(1)
    pauses = [round(after - before) for before, after in zip(scene.started, scene.started[1:], strict=False)]
    assert pauses[:7] == [2, 3, 5, 9, 17, 33, 61]
    assert set(pauses[6:]) == {61}
    assert len(scene.reports) == len(scene.started) + 1 < 14
    assert "ended with status 3; it is started again in 60 s" in scene.reports[-1]


async def test_what_ran_for_a_while_begins_anew() -> None:
    scene = Scene()
    for _ in range(3):
        scene.plugin.ended = 1
        await scene.passes(10)
    await scene.passes(60)
    scene.plugin.ended = 1
    await scene.passes(1)
    assert scene.started[-1] == scene.now
