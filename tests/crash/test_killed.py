"""A plugin that is killed after any operation on a file ends, when kubelet tries again, as if it had not been.

Every test runs its story once undisturbed and counts what it does to files, then once for each of these operations
with SIGKILL right after it, a restart, and kubelet's retry of what was not answered.
"""

import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.plugin_process import Died, NodeUnderTest, Plugin, PluginForks, plugin_on
from support.world import World

type Call = Callable[[Plugin], Awaitable[object]]


@dataclass
class Ending:
    """What a story leaves: kubelet's answers, the files before and after the last claim is released."""

    answers: list[object]
    files: dict[str, bytes]
    afterwards: dict[str, bytes]


async def story(
    forks: PluginForks, node: NodeUnderTest, calls: Sequence[Call], last: Call, log: Path, kill_after: int | None
) -> Ending:
    """Kubelet makes `calls` one after the other; one that is not answered is made again to the restarted plugin."""
    answers: list[object] = []
    async with plugin_on(forks, node, kill_after=kill_after, kill_log=log) as plugin:
        alive = await plugin.ready()
        while alive and len(answers) < len(calls):
            try:
                answers.append(await calls[len(answers)](plugin))
            except Died:
                alive = False
        if alive:
            return await ending(node, plugin, answers, last)
    async with plugin_on(forks, node) as plugin:
        assert await plugin.ready(), node.log.read_text()
        for call in calls[len(answers) :]:
            answers.append(await call(plugin))
        return await ending(node, plugin, answers, last)


async def ending(node: NodeUnderTest, plugin: Plugin, answers: list[object], last: Call) -> Ending:
    files = node.files()
    await last(plugin)
    return Ending(answers, files, node.files())


async def same_wherever_it_is_killed(
    forks: PluginForks,
    world: World,
    calls: Sequence[Call],
    last: Call,
    prepare_node: Callable[[NodeUnderTest], object] = lambda _: None,
) -> tuple[Ending, int]:
    """The undisturbed ending, and the number of operations after each of which the story ended the same."""
    log = world.folder / "operations"
    node = world.fresh_node()
    prepare_node(node)
    undisturbed = await story(forks, node, calls, last, log, None)
    operations = log.read_text().splitlines()
    for number, operation in enumerate(operations, start=1):
        node = world.fresh_node()
        prepare_node(node)
        disturbed = await story(forks, node, calls, last, log, number)
        assert disturbed == undisturbed, f"killed after {number}: {operation}\n{node.log.read_text()}"
        shutil.rmtree(node.folder)
    return undisturbed, len(operations)


async def test_killed_while_preparing_and_unpreparing(forks: PluginForks, world: World) -> None:
    devices = world.fresh_node().devices
    one = await world.allocated("one", devices[:1])
    two = await world.allocated("two", devices[1:3])
    heir = await world.allocated("heir", devices[:1])
    calls: list[Call] = [
        lambda plugin: plugin.prepare(one, two),
        lambda plugin: plugin.prepare(one, two),
        lambda plugin: plugin.unprepare(one),
        lambda plugin: plugin.prepare(heir),
    ]
    undisturbed, operations = await same_wherever_it_is_killed(
        forks, world, calls, lambda plugin: plugin.unprepare(one, two, heir)
    )
    assert operations >= 15
    assert undisturbed.answers[0] == undisturbed.answers[1]
    assert undisturbed.answers[2] == {one.uid: ""}
    prepared = {path for path in undisturbed.files if path.startswith("cdi/")}
    assert len(prepared) == 2
    assert not any(one.uid in path for path in prepared)
    left = undisturbed.afterwards
    assert {Path(path).parent.name for path in left} == {"state"}
    assert not any(ref.uid.encode() in content for ref in (one, two, heir) for content in left.values())


@pytest.mark.parametrize("what", ["reboot", "files lost"])
async def test_killed_while_putting_right(forks: PluginForks, world: World, what: str) -> None:
    """After a reboot, or when CDI files were lost or altered, a claim was deleted and a stray file was left."""
    before = world.fresh_node()
    devices = before.devices
    kept = [await world.allocated(f"kept-{index}", [devices[index]]) for index in range(2)]
    gone = await world.allocated("gone", [devices[2]])
    async with plugin_on(forks, before) as plugin:
        assert await plugin.ready(), before.log.read_text()
        await plugin.prepare(*kept, gone)
        expected = before.files()
    await world.delete(gone)

    def as_it_was_left(node: NodeUnderTest) -> None:
        shutil.copytree(before.state, node.state, dirs_exist_ok=True)
        if what == "reboot":
            return
        shutil.copytree(before.cdi, node.cdi, dirs_exist_ok=True)
        for path in node.cdi.iterdir():
            if kept[0].uid in path.name:
                stray = path.with_name(path.name.replace(kept[0].uid, "00000000-0000-0000-0000-000000000000"))
                path.rename(stray)
            elif kept[1].uid in path.name:
                path.write_text("{}")

    if what == "reboot":
        world.host.reboot()
    undisturbed, operations = await same_wherever_it_is_killed(
        forks,
        world,
        [lambda plugin: plugin.prepare(*kept)],
        lambda plugin: plugin.unprepare(*kept, gone),
        as_it_was_left,
    )
    assert operations >= 8
    cdi = {path: content for path, content in undisturbed.files.items() if path.startswith("cdi/")}
    assert cdi == {
        path: content for path, content in expected.items() if path.startswith("cdi/") and gone.uid not in path
    }
    assert {Path(path).parent.name for path in undisturbed.afterwards} == {"state"}
