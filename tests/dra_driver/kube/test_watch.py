"""A mirror follows the server through gaps, expired positions and silence, and reports every change once."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.background import background
from support.objects import node

from dra_driver.api.meta import NODES, JsonObject
from dra_driver.errors import ClusterError, Gone, Rejected, Unreachable
from dra_driver.kube import watch
from dra_driver.kube.client import Endpoint, Kube, Listing, WatchEvent
from dra_driver.kube.watch import Backoff, Mirror, MirrorChange, Reflector, Watches
from dra_driver.simulation.apiserver.server import SimulatedApiServer

NONE_LEFT = Rejected("the script has ended")


def obj(name: str, version: int) -> JsonObject:
    return {"metadata": {"name": name, "uid": name, "resourceVersion": str(version)}}


class Script:
    """An API server that does what it is told, step by step: listings, and watches as events with an optional error."""

    def __init__(self, *steps: Listing | Exception | list[Any]) -> None:
        self.steps = list(steps)
        self.positions: list[str] = []

    async def pages(self, resource: object, **more: object) -> AsyncIterator[Listing]:
        self.positions.append("list")
        step = self._next()
        if isinstance(step, Exception):
            raise step
        assert isinstance(step, Listing)
        yield step

    async def watch(
        self, resource: object, *, resource_version: str, accepted: Callable[[], None], **more: object
    ) -> AsyncIterator[WatchEvent]:
        self.positions.append(resource_version)
        step = self._next()
        if isinstance(step, list):
            accepted()
        for event in step if isinstance(step, list) else [step]:
            if isinstance(event, Exception):
                raise event
            assert isinstance(event, WatchEvent)
            yield event

    def _next(self) -> object:
        return self.steps.pop(0) if self.steps else NONE_LEFT


class Followed:
    """What a mirror of a scripted server did."""

    def __init__(self, *steps: Listing | Exception | list[Any]) -> None:
        self.script = Script(*steps)
        self.pauses: list[float] = []
        self.changes: list[MirrorChange[str]] = []
        self.mirror: Mirror[str] = Mirror(
            self.script,
            NODES,
            keep=lambda item: str(item["metadata"]["resourceVersion"]),
            on_change=self.changes.append,
            backoff=Backoff(first_s=1.0, longest_s=8.0),
            sleep=self._sleep,
        )

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if not self.script.steps:
            raise asyncio.CancelledError

    async def run(self) -> "Followed":
        with pytest.raises(asyncio.CancelledError):
            await self.mirror.run()
        return self

    def calls(self) -> list[tuple[str, str | None, str | None]]:
        return [(change.key[1], change.before, change.after) for change in self.changes]


def listing(version: int, *items: JsonObject) -> Listing:
    return Listing(list(items), str(version))


def event(kind: str, name: str, version: int) -> WatchEvent:
    return WatchEvent(kind, obj(name, version))


async def test_a_listing_and_the_events_after_it_make_the_copy() -> None:
    followed = await Followed(
        listing(5, obj("a", 1), obj("b", 2)),
        [event("ADDED", "c", 6), event("MODIFIED", "a", 7), event("DELETED", "b", 8), event("BOOKMARK", "", 9)],
    ).run()
    assert followed.mirror.objects == {("", "a"): "7", ("", "c"): "6"}
    assert followed.calls() == [("a", None, "1"), ("b", None, "2"), ("c", None, "6"), ("a", "1", "7"), ("b", "2", None)]
    assert [change.listed for change in followed.changes] == [True, True, False, False, False]


async def test_a_watch_goes_on_where_the_last_one_ended_bookmarks_included() -> None:
    followed = await Followed(listing(5), [event("BOOKMARK", "", 9)], [event("ADDED", "a", 12)]).run()
    assert followed.script.positions == ["list", "5", "9", "12"]


async def test_after_an_expired_position_only_what_changed_is_reported() -> None:
    followed = await Followed(
        listing(5, obj("a", 1), obj("b", 2), obj("c", 3)),
        [event("MODIFIED", "a", 6), Gone("expired")],
        listing(9, obj("a", 6), obj("b", 8), obj("d", 9)),
    ).run()
    assert followed.script.positions[:4] == ["list", "5", "list", "9"]
    assert followed.calls()[4:] == [("b", "2", "8"), ("d", None, "9"), ("c", "3", None)]
    assert all(change.listed for change in followed.changes[4:])
    assert len(followed.pauses) == 1, "only the end of the script paused"


async def test_a_server_without_an_answer_is_asked_from_the_same_position_later_and_later() -> None:
    away = Unreachable("refused")
    followed = await Followed(listing(5), *[away] * 6, [event("ADDED", "a", 6)]).run()
    assert followed.script.positions == ["list", *["5"] * 7, "6"]
    for pause, longest in zip(followed.pauses, [1, 2, 4, 8, 8, 8], strict=False):
        assert longest / 2 <= pause <= longest
    assert followed.pauses[6] <= 1.0, "after a success pauses start anew"


async def test_an_error_that_the_server_answers_means_to_list_again() -> None:
    """A server that was restored from a backup has another history."""
    followed = await Followed(listing(5), Unreachable("too large resource version", status=504), listing(3)).run()
    assert followed.script.positions[:4] == ["list", "5", "list", "3"]


async def test_the_server_says_how_long_to_wait() -> None:
    followed = await Followed(Unreachable("busy", status=429, retry_after_s=20.0), listing(1)).run()
    assert followed.pauses[0] == 20.0


async def test_watches_that_end_at_once_are_no_busy_loop() -> None:
    followed = await Followed(listing(5), [], [], [], []).run()
    assert len(followed.pauses) == 4


async def test_a_long_watch_without_an_event_is_followed_by_another_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers end a watch after some minutes."""
    monkeypatch.setattr(watch, "_SHORTEST_WATCH_S", 0.0)
    followed = await Followed(listing(5), [], [], []).run()
    assert len(followed.pauses) == 1, "the end of the script"


async def test_an_object_that_a_restored_server_has_again_is_learned_again() -> None:
    followed = await Followed(
        listing(5, obj("a", 1)), [event("DELETED", "a", 6), Gone("expired")], listing(5, obj("a", 1))
    ).run()
    assert followed.calls() == [("a", None, "1"), ("a", "1", None), ("a", None, "1")]


async def test_positions_that_always_expire_are_no_busy_loop() -> None:
    followed = await Followed(*[listing(5), Gone("expired")] * 4).run()
    assert len(followed.pauses) == 4


async def test_after_an_outage_it_follows_as_soon_as_its_watch_is_accepted(api_server: SimulatedApiServer) -> None:
    """A quiet collection has an event a minute, and readiness waits for this."""
    async with following(api_server) as reflector:
        await reflector.synced.wait()
        await api_server.stop()
        await fails(reflector, True)
        await api_server.start()
        await fails(reflector, False)


async def fails(reflector: Reflector, yes: bool) -> None:
    async with asyncio.timeout(10):
        while True:
            if (reflector.failure is not None) is yes:
                return
            await asyncio.sleep(0.01)


async def test_a_position_that_expired_while_the_server_was_away_is_no_reason_to_wait_longer() -> None:
    away = Unreachable("refused")
    followed = await Followed(listing(5), [event("ADDED", "a", 6)], *[away] * 3, Gone("expired"), listing(9)).run()
    assert followed.script.positions[:7] == ["list", "5", *["6"] * 4, "list"]
    assert len(followed.pauses) == 4, "three while it was away, and the end of the script"


async def test_an_outage_is_told_once_and_so_is_its_end() -> None:
    away = Unreachable("refused")
    with capture_logs() as logs:
        await Followed(listing(5), *[away] * 5, Unreachable("no route"), [event("ADDED", "a", 6)]).run()
    lines = [(entry["log_level"], entry.get("error")) for entry in logs if entry["log_level"] != "debug"]
    assert lines[:3] == [("warning", "refused"), ("warning", "no route"), ("info", None)]


async def test_a_failed_first_listing_leaves_it_unsynced_and_says_why() -> None:
    followed = await Followed(Rejected("forbidden", status=403)).run()
    assert not followed.mirror.synced.is_set()
    assert isinstance(followed.mirror.failure, ClusterError)


async def test_it_says_so_when_it_follows_again() -> None:
    followed = Followed(Unreachable("away"), listing(5))
    states: list[object] = []
    followed.mirror.synced.set = lambda: states.append(followed.mirror.failure)
    await followed.run()
    assert states == [None]


@asynccontextmanager
async def following(server: SimulatedApiServer) -> AsyncIterator[Reflector]:
    async with Kube(Endpoint(server.url)) as client:
        reflector = Reflector(client, NODES, backoff=Backoff(first_s=0.01, longest_s=0.05))
        async with background(reflector.run()):
            yield reflector


async def becomes(reflector: Reflector, names: Iterable[str]) -> None:
    wanted = {("", name) for name in names}
    async with asyncio.timeout(10):
        while True:
            if reflector.objects.keys() == wanted:
                return
            await asyncio.sleep(0.01)


async def test_a_real_watch_is_followed_through_an_outage_and_a_lost_history(
    api_server: SimulatedApiServer, kube: Kube
) -> None:
    await kube.create(NODES, node("a"))
    async with following(api_server) as reflector:
        await becomes(reflector, ["a"])
        await kube.create(NODES, node("b"))
        await becomes(reflector, ["a", "b"])
        await api_server.stop()
        await api_server.start()
        await kube.delete(NODES, "a")
        await becomes(reflector, ["b"])
        await api_server.stop()
        api_server.store.compact()
        await api_server.start()
        await kube.create(NODES, node("c"))
        await becomes(reflector, ["b", "c"])


@pytest.mark.parametrize("error", [KeyError("spec"), IndexError(0), ZeroDivisionError(), RecursionError()])
async def test_an_object_that_cannot_be_read_costs_the_others_nothing(error: Exception) -> None:
    """It stays as it was known; the log names it once for each version."""
    followed = Followed(listing(3, obj("a", 1), obj("b", 2)), [event("MODIFIED", "a", 4), event("MODIFIED", "b", 5)])

    def keep(item: JsonObject) -> str:
        if item["metadata"]["resourceVersion"] == "4":
            raise error
        return str(item["metadata"]["resourceVersion"])

    followed.mirror = Mirror(followed.script, NODES, keep=keep, sleep=followed._sleep)
    with capture_logs() as logs:
        await followed.run()
    assert followed.mirror.objects == {("", "a"): "1", ("", "b"): "5"}
    assert [line["key"] for line in logs if line["event"] == "an object is invalid"] == [("", "a")]


async def test_an_object_of_a_damaged_answer_is_read_with_the_next_list() -> None:
    """A broken proxy spoiled the answer: the object itself has not changed, so no watch ever brings it again."""
    followed = Followed(listing(3, obj("a", 1), obj("b", 2)), Gone("expired"), listing(3, obj("a", 1), obj("b", 2)))
    damaged = iter([True, False])

    def keep(item: JsonObject) -> str:
        if item["metadata"]["name"] == "a" and next(damaged):
            raise KeyError("spec")
        return str(item["metadata"]["resourceVersion"])

    followed.mirror = Mirror(followed.script, NODES, keep=keep, sleep=followed._sleep)
    await followed.run()
    assert followed.mirror.objects == {("", "a"): "1", ("", "b"): "2"}


async def test_mirrors_of_the_same_watches_share_a_list_and_a_watch() -> None:
    """What they keep in the same way is read once; what one of them cannot read costs the other nothing."""
    script = Script(
        listing(3, obj("a", 1), obj("b", 2)),
        [event("MODIFIED", "a", 4), event("DELETED", "b", 5), Gone("expired")],
        listing(6, obj("a", 4), obj("c", 6)),
    )
    reads: list[str] = []

    def version(item: JsonObject) -> str:
        reads.append(item["metadata"]["name"])
        return str(item["metadata"]["resourceVersion"])

    def strict(item: JsonObject) -> str:
        if item["metadata"]["resourceVersion"] == "4":
            raise KeyError("spec")
        return "read"

    watches = Watches(script)
    changes: list[MirrorChange[str]] = []
    first, second = (Mirror(watches, NODES, keep=version, on_change=changes.append) for _ in range(2))
    complete = asyncio.Event()
    third = Mirror(watches, NODES, keep=strict, on_change=lambda change: change.key[1] == "c" and complete.set())
    async with background(watches.run()):
        await asyncio.wait_for(complete.wait(), 5)
    assert script.positions[:4] == ["list", "3", "list", "6"]
    assert first.objects == second.objects == {("", "a"): "4", ("", "c"): "6"}
    assert [change.key[1] for change in changes] == ["a", "a", "b", "b", "a", "a", "b", "b", "a", "a", "c", "c"]
    assert third.objects == {("", "a"): "read", ("", "c"): "read"}
    assert reads == ["a", "b", "a", "a", "c"], "a is read again, because not all could read it"


async def test_a_mirror_cannot_join_a_watch_that_runs_already(api_server: SimulatedApiServer) -> None:
    async with Kube(Endpoint(api_server.url)) as client:
        watches = Watches(client)
        mirror = Mirror(watches, NODES)
        async with background(watches.run()):
            await mirror.synced.wait()
            with pytest.raises(RuntimeError, match="nodes are followed already"):
                Mirror(watches, NODES)


async def test_other_tasks_run_between_the_objects_of_a_list_and_who_is_woken_finds_it_complete() -> None:
    """The lease is renewed meanwhile. The webhook looks at its one object when it is woken, and not again for long."""
    woken, complete = asyncio.Event(), list[bool]()
    objects = [obj(str(number), number) for number in range(1, 51)]
    listed: list[int] = []
    mirror: Mirror[JsonObject] = Mirror(Script(Listing(objects, "50")), NODES, on_change=lambda _: woken.set())  # type: ignore[arg-type]

    async def listener() -> None:
        while not mirror.synced.is_set():
            await woken.wait()
            woken.clear()
            listed.append(len(mirror.objects))
            complete.append(mirror.synced.is_set())

    tasks = [asyncio.create_task(listener()), asyncio.create_task(mirror.run())]
    await asyncio.wait_for(tasks[0], 5)
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len(listed) > 40, "others run between objects"
    assert (listed[-1], complete[-1]) == (50, True)
