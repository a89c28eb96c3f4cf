"""A plugin that is killed after any operation on a file ends, when the kubelet tries again, as if it had not been.

Every test runs its story once undisturbed and counts what it does to files, then once for some or all of these
operations with SIGKILL right after it, a restart, and kubelet's retry of what was not answered.
"""

import shutil
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.plugin_process import Died, NodeUnderTest, Plugin, PluginForks, plugin_on
from support.rows import slow_but
from support.world import World

type Call = Callable[[Plugin], Awaitable[object]]

STRIDES = slow_but([1, 9], 9)
"""After every ninth operation in `make test`, after every one in `make test-all`."""


@dataclass
class Ending:
    """What a story leaves: kubelet's answers, the files before and after its last call."""

    answers: list[object] = field(default_factory=list)
    before_last: dict[str, bytes] = field(default_factory=dict)
    afterwards: dict[str, bytes] = field(default_factory=dict)


async def story(
    forks: PluginForks, node: NodeUnderTest, calls: Sequence[Call], log: Path, kill_after: int | None
) -> Ending:
    """Kubelet makes `calls` one after the other; one that is not answered is made again to the restarted plugin."""
    ending = Ending()
    async with plugin_on(forks, node, kill_after=kill_after, kill_log=log) as plugin:
        if await plugin.ready():
            with suppress(Died):
                await go_on(ending, node, plugin, calls)
    if len(ending.answers) < len(calls):
        async with plugin_on(forks, node) as plugin:
            await go_on(ending, node, plugin, calls)
    ending.afterwards = node.files()
    return ending


async def go_on(ending: Ending, node: NodeUnderTest, plugin: Plugin, calls: Sequence[Call]) -> None:
    for number in range(len(ending.answers), len(calls)):
        if number == len(calls) - 1 and not ending.before_last:
            ending.before_last = node.files()
        ending.answers.append(await calls[number](plugin))


async def same_wherever_it_is_killed(
    forks: PluginForks,
    world: World,
    calls: Sequence[Call],
    stride: int,
    prepare_node: Callable[[NodeUnderTest], object] = lambda _: None,
) -> tuple[Ending, int]:
    """The undisturbed ending, and the number of operations, after each `stride`th of which it ended the same."""
    log = world.folder / "operations"
    node = world.fresh_node()
    prepare_node(node)
    undisturbed = await story(forks, node, calls, log, None)
    operations = log.read_text().splitlines()
    for number, operation in list(enumerate(operations, start=1))[::stride]:
        node = world.fresh_node()
        prepare_node(node)
        disturbed = await story(forks, node, calls, log, number)
        assert disturbed == undisturbed, f"killed after {number}: {operation}\n{node.log.read_text()}"
    return undisturbed, len(operations)


@pytest.mark.parametrize("stride", STRIDES)
async def test_killed_while_preparing_and_unpreparing(forks: PluginForks, world: World, stride: int) -> None:
    devices = world.fresh_node().devices
    first = await world.allocated("one", devices[:1])
    second = await world.allocated("two", devices[1:3])
    heir = await world.allocated("heir", devices[:1])
    calls: list[Call] = [
        lambda plugin: plugin.prepare(first, second),
        lambda plugin: plugin.prepare(first, second),
        lambda plugin: plugin.unprepare(first),
        lambda plugin: plugin.prepare(heir),
        lambda plugin: plugin.unprepare(first, second, heir),
    ]
    undisturbed, operations = await same_wherever_it_is_killed(forks, world, calls, stride)
    assert operations >= 20
    assert undisturbed.answers[0] == undisturbed.answers[1]
    assert undisturbed.answers[2] == {first.uid: ""}
    prepared = {path for path in undisturbed.before_last if path.startswith("cdi/")}
    assert len(prepared) == 4, "each with its device metadata"
    assert not any(first.uid in path for path in prepared)
    described = [path for path in undisturbed.before_last if path.startswith("state/dra-device-metadata/")]
    assert len(described) == 2
    left = undisturbed.afterwards
    assert {Path(path).parent.name for path in left} == {"state"}
    assert not any(ref.uid.encode() in content for ref in (first, second, heir) for content in left.values())


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("what", ["reboot", "files lost"])
async def test_killed_while_putting_right(forks: PluginForks, world: World, what: str, stride: int) -> None:
    """After a reboot, or when CDI files were lost or altered, a claim was deleted and a stray file was left.

    Of the deleted claim's pod containers may still run, unless the node booted.
    """
    before = world.fresh_node()
    devices = before.devices
    staying = [await world.allocated(f"kept-{index}", [devices[index]]) for index in range(2)]
    gone = await world.allocated("gone", [devices[2]])
    async with plugin_on(forks, before) as plugin:
        await plugin.prepare(*staying, gone)
        expected = before.files()
    await world.delete(gone)
    left = before.folder.rename(world.folder / "left")

    def as_it_was_left(node: NodeUnderTest) -> None:
        shutil.copytree(left / "state", node.state, dirs_exist_ok=True)
        if what == "reboot":
            return
        shutil.copytree(left / "cdi", node.cdi, dirs_exist_ok=True)
        for path in [*node.cdi.iterdir(), *(node.state / "dra-device-metadata").iterdir()]:
            if staying[0].uid in path.name:
                stray = path.with_name(path.name.replace(staying[0].uid, "00000000-0000-0000-0000-000000000000"))
                path.rename(stray)
            elif staying[1].uid in path.name:
                path.write_text("{}")

    if what == "reboot":
        world.host.reboot()
    undisturbed, operations = await same_wherever_it_is_killed(
        forks,
        world,
        [lambda plugin: plugin.prepare(*staying), lambda plugin: plugin.unprepare(*staying, gone)],
        stride,
        as_it_was_left,
    )
    assert operations >= 6
    cdi = {path: content for path, content in undisturbed.before_last.items() if path.startswith("cdi/")}
    assert cdi == {
        path: content
        for path, content in expected.items()
        if path.startswith("cdi/") and (what != "reboot" or gone.uid not in path)
    }
    assert {Path(path).parent.name for path in undisturbed.afterwards} == {"state"}


@pytest.mark.parametrize("stride", STRIDES)
async def test_killed_beside_a_newer_instance_that_goes_on(forks: PluginForks, world: World, stride: int) -> None:
    """In a rolling update nobody starts again after the old instance is killed: the new one serves already."""
    devices = world.fresh_node().devices
    claim = await world.allocated("one", devices[:2])
    heir = await world.allocated("heir", devices[1:3])
    calls: list[Call] = [
        lambda plugin: plugin.prepare(claim),
        lambda plugin: plugin.unprepare(claim),
        lambda plugin: plugin.prepare(heir),
    ]

    async def story_of_two(node: NodeUnderTest, log: Path, kill_after: int | None) -> Ending:
        ending = Ending()
        async with plugin_on(forks, node, pod_uid="new") as new:
            async with plugin_on(forks, node, pod_uid="old", kill_after=kill_after, kill_log=log) as old:
                if await old.ready():
                    with suppress(Died):
                        await go_on(ending, node, old, calls)
            await go_on(ending, node, new, calls)
            ending.afterwards = without_staged(node.files())
        return ending

    log = world.folder / "operations"
    undisturbed = await story_of_two(world.fresh_node(), log, None)
    operations = log.read_text().splitlines()
    assert len(operations) >= 10
    for number, operation in list(enumerate(operations, start=1))[::stride]:
        node = world.fresh_node()
        disturbed = await story_of_two(node, log, number)
        where = f"killed after {number}: {operation}\n{node.log.read_text()}"
        assert disturbed.answers == undisturbed.answers, where
        assert disturbed.afterwards == undisturbed.afterwards, where
        async with plugin_on(forks, node) as plugin:
            await plugin.unprepare(claim, heir)
        assert list(node.cdi.iterdir()) == [], where
        assert without_staged(node.files()) == node.files(), where


def without_staged(files: dict[str, bytes]) -> dict[str, bytes]:
    """Without what the killed instance was writing, which is removed at the next start."""
    return {path: content for path, content in files.items() if not Path(path).name.startswith(".")}
