"""Real plugin processes in bad surroundings: disks, API server, hardware, driver files, and what an earlier run left.

Each test ends the same way: what was wrong is over, the kubelet tries again, and nothing of it is left after unprepare.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
import pytest
from support.plugin import eventually
from support.plugin_process import NodeUnderTest, Plugin, PluginForks, devices_of, plugin_on
from support.rows import slow_but
from support.world import World

from dra_driver.names import ClaimRef
from kubelet_plugin.prepare.store import DAMAGED, JOURNAL, JournalFile
from kubelet_plugin.simulation.host import SimulatedHost

GETS = r"/resourceclaims/"
GPU_IS_LOST = 15


def error_of(answers: dict[str, object], ref: ClaimRef) -> str:
    """The claim's error, a single line."""
    error = answers[ref.uid]
    assert isinstance(error, str)
    assert error
    assert "\n" not in error
    return error


def uids_in_journal(node: NodeUnderTest, *refs: ClaimRef) -> list[str]:
    held = JournalFile(node.state).current().held
    return [ref.name for ref in refs if ref.uid in held]


async def released(node: NodeUnderTest, plugin: Plugin, *refs: ClaimRef) -> None:
    """Unprepare, and look that nothing is left."""
    assert set((await plugin.unprepare(*refs)).values()) == {""}
    assert node.cdi_files() == set()
    if (node.state / JOURNAL).exists():
        assert uids_in_journal(node, *refs) == []
    # The plugin still writes what it reported.
    await eventually(lambda: not [path for path in node.state.iterdir() if path.name.endswith(".tmp")])


@pytest.mark.parametrize("error", slow_but(["ENOSPC", "EROFS", "EIO"], "ENOSPC"))
@pytest.mark.parametrize("where", ["cdi", "state"])
async def test_a_folder_that_refuses(forks: PluginForks, world: World, where: str, error: str) -> None:
    """The claim's error names the file and the reason; prepared claims stay prepared, and the retry succeeds."""
    node = world.fresh_node()
    before = await world.allocated("before", node.devices[:1])
    ref = await world.allocated("train", node.devices[1:2])
    folder = node.cdi if where == "cdi" else node.state
    async with plugin_on(forks, node) as plugin:
        held = await plugin.prepare(before)
        files = node.cdi_files()
        with node.refusing(folder, error):
            message = error_of(await plugin.prepare(ref), ref)
            assert str(folder) in message
            assert node.cdi_files() == files
            assert await plugin.prepare(before) == held
            if where == "state" or error != "ENOSPC":
                assert str(folder) in error_of(await plugin.unprepare(before), before)

        assert await plugin.prepare(before) == held
        assert devices_of(await plugin.prepare(ref)) == {ref.uid: (node.devices[1],)}
        await released(node, plugin, before, ref)


@pytest.mark.parametrize("where", ["cdi", "state"])
async def test_killed_while_a_folder_refuses(forks: PluginForks, world: World, where: str) -> None:
    node = world.fresh_node()
    ref = await world.allocated("train", node.devices[:1])
    with node.refusing(node.cdi if where == "cdi" else node.state, "ENOSPC"):
        async with plugin_on(forks, node) as plugin:
            error_of(await plugin.prepare(ref), ref)
    async with plugin_on(forks, node) as plugin:
        assert node.cdi_files() == set()
        devices_of(await plugin.prepare(ref))
        await released(node, plugin, ref)


async def test_a_missing_cdi_folder_is_named_and_used_when_it_is_there(forks: PluginForks, world: World) -> None:
    node = world.fresh_node()
    ref = await world.allocated("train", node.devices[:1])
    node.cdi.rmdir()
    missing = node.folder / "not" / "mounted"
    node.options = (f"--cdi-root={missing}",)
    async with plugin_on(forks, node) as plugin:
        assert str(missing) in error_of(await plugin.prepare(ref), ref)
        missing.parent.mkdir()

        devices_of(await plugin.prepare(ref))

        assert len(list(missing.iterdir())) == 2
        assert await plugin.unprepare(ref) == {ref.uid: ""}
        assert list(missing.iterdir()) == []


@pytest.mark.parametrize(("status", "times"), [(409, 1), (410, 1), (429, 2), (500, 2)])
async def test_an_api_server_with_passing_trouble_costs_no_retry_of_kubelet(
    forks: PluginForks, world: World, status: int, times: int
) -> None:
    node = world.fresh_node()
    ref = await world.allocated("train", node.devices[:1])
    async with plugin_on(forks, node) as plugin:
        world.server.fail_next("GET", GETS, status, times)

        assert devices_of(await plugin.prepare(ref)) == {ref.uid: (node.devices[0],)}
        await released(node, plugin, ref)


async def test_a_server_that_refuses_the_plugin_says_whose_move_it_is(forks: PluginForks, world: World) -> None:
    node = world.fresh_node()
    ref = await world.allocated("train", node.devices[:1])
    async with plugin_on(forks, node) as plugin:
        world.server.fail_next("GET", GETS, 403, 1, "resourceclaims is forbidden")

        message = error_of(await plugin.prepare(ref), ref)

        assert "forbidden" in message
        assert "administrator" in message
        assert node.cdi_files() == set()
        devices_of(await plugin.prepare(ref))


async def test_kubelet_gives_up_while_the_api_server_is_busy_and_its_retry_succeeds(
    forks: PluginForks, world: World
) -> None:
    node = world.fresh_node()
    ref = await world.allocated("train", node.devices[:1])
    async with plugin_on(forks, node) as plugin:
        world.server.fail_next("GET", GETS, 500, 4)
        with pytest.raises(grpc.aio.AioRpcError) as given_up:
            await plugin.prepare(ref, timeout_s=0.2)
        assert given_up.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED

        assert devices_of(await plugin.prepare(ref)) == {ref.uid: (node.devices[0],)}
        await released(node, plugin, ref)


async def test_without_the_api_server_the_plugin_starts_serves_what_it_holds_and_releases(
    forks: PluginForks, world: World
) -> None:
    node = world.fresh_node()
    first = await world.allocated("first", node.devices[:1])
    second = await world.allocated("second", node.devices[1:2])
    lost = await world.allocated("lost", node.devices[2:3])
    async with plugin_on(forks, node) as plugin:
        answers = await plugin.prepare(first, second, lost)
    await world.server.stop()
    try:
        async with plugin_on(forks, node) as plugin:
            assert await plugin.prepare(first) == {first.uid: answers[first.uid]}
            assert await plugin.unprepare(second) == {second.uid: ""}
            assert len(node.cdi_files()) == 4
    finally:
        await world.server.start(port=int(world.server.url.rsplit(":", 1)[1]))
    await world.delete(lost)
    async with plugin_on(forks, node) as plugin:
        assert uids_in_journal(node, first, second, lost) == ["first", "lost"]
        await released(node, plugin, first, lost)


async def test_a_claim_created_again_under_its_name_is_another_claim(forks: PluginForks, world: World) -> None:
    node = world.fresh_node()
    old = await world.allocated("train", node.devices[:1])
    async with plugin_on(forks, node) as plugin:
        devices_of(await plugin.prepare(old))
        await world.delete(old)
        new = await world.allocated("train", node.devices[1:2])

        answers = await plugin.prepare(old, new)

        assert "created again" in error_of(answers, old)
        assert devices_of({new.uid: answers[new.uid]}) == {new.uid: (node.devices[1],)}
        assert await plugin.unprepare(old) == {old.uid: ""}
        assert uids_in_journal(node, old, new) == ["train"]
        await released(node, plugin, new)


async def test_a_claim_created_again_while_the_plugin_was_away_waits_until_kubelet_releases_the_old_one(
    forks: PluginForks, world: World
) -> None:
    node = world.fresh_node()
    old = await world.allocated("train", node.devices[:1])
    async with plugin_on(forks, node) as plugin:
        devices_of(await plugin.prepare(old))
    await world.delete(old)
    new = await world.allocated("train", node.devices[:1])
    async with plugin_on(forks, node) as plugin:
        waiting = asyncio.ensure_future(plugin.prepare(new))
        assert await plugin.unprepare(old) == {old.uid: ""}

        assert devices_of(await waiting) == {new.uid: (node.devices[0],)}
        await released(node, plugin, old, new)


async def test_one_lost_gpu_fails_its_claim_and_no_other(forks: PluginForks, world: World) -> None:
    node = world.fresh_node()
    good = await world.allocated("good", node.devices[:1])
    bad = await world.allocated("bad", node.devices[1:2])
    world.host.lose_gpu(1, GPU_IS_LOST)
    async with plugin_on(forks, node) as plugin:
        answers = await plugin.prepare(good, bad)

        assert devices_of({good.uid: answers[good.uid]})
        assert node.devices[1] in error_of(answers, bad)
        assert "lost" in error_of(answers, bad)
        world.host.lose_gpu(1, 0)
        assert devices_of(await plugin.prepare(bad)) == {bad.uid: (node.devices[1],)}
        await released(node, plugin, good, bad)


async def test_a_gpu_lost_under_a_prepared_claim_leaves_it_prepared_and_releasable(
    forks: PluginForks, world: World
) -> None:
    node = world.fresh_node()
    ref = await world.allocated("train", node.devices[:1])
    async with plugin_on(forks, node) as plugin:
        answer = await plugin.prepare(ref)
    world.host.lose_gpu(0, GPU_IS_LOST)
    async with plugin_on(forks, node) as plugin:
        assert await plugin.prepare(ref) == answer
        await released(node, plugin, ref)


@contextmanager
def missing(host: SimulatedHost, name: str) -> Iterator[None]:
    """Meanwhile, files of the driver root with that in their name are not there."""
    hidden = [path for path in host.root.rglob("*") if name in path.name and (path.is_symlink() or path.is_file())]
    assert hidden
    for path in hidden:
        path.rename(path.with_name(f"hidden-{len(path.name)}"))
    try:
        yield
    finally:
        for path in hidden:
            path.with_name(f"hidden-{len(path.name)}").rename(path)


@pytest.mark.parametrize("name", slow_but(["libcuda.so", "nvidia-uvm", "nvidiactl"], "libcuda.so"))
async def test_half_a_driver_root_is_named_and_nothing_of_it_is_kept(
    forks: PluginForks, world: World, name: str
) -> None:
    node = world.fresh_node()
    ref = await world.allocated("train", node.devices[:1])
    before = await world.allocated("before", node.devices[1:2])
    async with plugin_on(forks, node) as plugin:
        answer = await plugin.prepare(before)
        with missing(world.host, "nvidia-modprobe"), missing(world.host, name):  # it would make device nodes again
            assert name in error_of(await plugin.prepare(ref), ref)
            assert len(node.cdi_files()) == 2
            assert await plugin.prepare(before) == answer

        devices_of(await plugin.prepare(ref))

        await released(node, plugin, ref, before)


async def test_a_plugin_that_starts_with_half_a_driver_root_serves_what_it_holds(
    forks: PluginForks, world: World
) -> None:
    node = world.fresh_node()
    ref = await world.allocated("train", node.devices[:1])
    async with plugin_on(forks, node) as plugin:
        answer = await plugin.prepare(ref)
        files = node.files()
    with missing(world.host, "libcuda.so"):
        async with plugin_on(forks, node) as plugin:
            assert await plugin.prepare(ref) == answer
            assert node.files() == files
            await released(node, plugin, ref)


def spoil_entry(node: NodeUnderTest, ref: ClaimRef) -> None:
    path = node.state / JOURNAL
    path.write_bytes(path.read_bytes().replace(ref.uid.encode(), b"#" * len(ref.uid)))


def spoil_all(node: NodeUnderTest, _: ClaimRef) -> None:
    (node.state / JOURNAL).write_bytes(b"\0" * 100)


def lose(node: NodeUnderTest, _: ClaimRef) -> None:
    (node.state / JOURNAL).unlink()


@pytest.mark.parametrize("damage", [spoil_entry, spoil_all, lose])
async def test_a_damaged_journal_is_completed_from_the_api_and_gives_no_gpu_twice(
    forks: PluginForks, world: World, damage: Callable[[NodeUnderTest, ClaimRef], None]
) -> None:
    node = world.fresh_node()
    first = await world.allocated("one", node.devices[:1])
    second = await world.allocated("two", node.devices[1:2])
    thief = await world.allocated("thief", node.devices[:1])
    async with plugin_on(forks, node) as plugin:
        answers = await plugin.prepare(first, second)
        files = node.files()
    damage(node, first)
    async with plugin_on(forks, node) as plugin:
        assert {path: text for path, text in node.files().items() if DAMAGED not in path} == files
        assert (node.state / DAMAGED).exists() == (damage is not lose)
        assert "team-a/one" in error_of(await plugin.prepare(thief), thief)
        assert await plugin.prepare(first, second) == answers
        await released(node, plugin, first, second)


async def test_a_damaged_journal_without_the_api_server_gives_nothing_away(forks: PluginForks, world: World) -> None:
    node = world.fresh_node()
    first = await world.allocated("one", node.devices[:1])
    thief = await world.allocated("thief", node.devices[:1])
    async with plugin_on(forks, node) as plugin:
        devices_of(await plugin.prepare(first))
    spoil_all(node, first)
    files = node.cdi_files()
    world.server.fail_next("GET", GETS.rstrip("/"), 500, 1000)
    async with plugin_on(forks, node) as plugin:
        assert "journal" in error_of(await plugin.prepare(thief), thief)
        assert node.cdi_files() == files
        world.server.clear_faults()
        assert "team-a/one" in error_of(await plugin.prepare(thief), thief)
        await released(node, plugin, first)
        assert devices_of(await plugin.prepare(thief)) == {thief.uid: (node.devices[0],)}


async def test_two_instances_of_a_rolling_update_share_what_is_held(forks: PluginForks, world: World) -> None:
    node = world.fresh_node()
    first = await world.allocated("one", node.devices[:1])
    second = await world.allocated("two", node.devices[1:2])
    thief = await world.allocated("thief", node.devices[:1])
    async with plugin_on(forks, node, pod_uid="old") as old, plugin_on(forks, node, pod_uid="new") as new:
        answer = await old.prepare(first)

        assert await new.prepare(first) == answer
        assert "team-a/one" in error_of(await new.prepare(thief), thief)
        devices_of(await new.prepare(second))
        assert await old.unprepare(second) == {second.uid: ""}
        await old.kill()
        await released(node, new, first, second)


async def test_a_plugin_with_nothing_to_put_right_touches_no_file(forks: PluginForks, world: World) -> None:
    node = world.fresh_node()
    ref = await world.allocated("train", node.devices[:1])
    async with plugin_on(forks, node) as plugin:
        devices_of(await plugin.prepare(ref))
    before = {path: path.stat().st_mtime_ns for path in [*node.cdi.iterdir(), node.state / JOURNAL]}
    async with plugin_on(forks, node) as plugin:
        devices_of(await plugin.prepare(ref))

    assert {path: path.stat().st_mtime_ns for path in before} == before


async def test_a_claim_deleted_while_the_plugin_serves_is_swept_when_kubelet_never_comes(
    forks: PluginForks, world: World
) -> None:
    """Not before it was stale for long; so here only that it is noticed and still held."""
    node = world.fresh_node()
    node.options = ("--cleanup-interval=0.1",)
    ref = await world.allocated("train", node.devices[:1])
    async with plugin_on(forks, node) as plugin:
        devices_of(await plugin.prepare(ref))
        await world.delete(ref)

        await eventually(lambda: "no longer exists; the kubelet is given time" in node.log.read_text())

        assert uids_in_journal(node, ref) == ["train"]
        await released(node, plugin, ref)
