"""The picture of the slices is ahead of the watch by our own writes, and never falls back behind them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress

from support.background import background
from support.plugin import eventually

from dra_driver.api.meta import JsonObject
from dra_driver.errors import Unreachable
from dra_driver.kube.client import Listing, WatchEvent
from dra_driver.kube.watch import Watches
from dra_driver.publish.observed import ObservedSlices
from dra_driver.slices.diff import MANAGED_BY, MANAGER, CreateSlice, WantedSlice, observed_slice


def a_slice(name: str = "a", *, version: int = 1, uid: str | None = None, generation: int = 1) -> JsonObject:
    return {
        "metadata": {
            "name": name,
            "uid": uid or f"uid-{name}",
            "resourceVersion": str(version),
            "labels": {MANAGED_BY: MANAGER},
        },
        "spec": {
            "driver": "gpu.nvidia.com",
            "nodeName": "node-a",
            "pool": {"name": "node-a", "generation": generation, "resourceSliceCount": 1},
        },
    }


class Server:
    """A collection whose watch shows what the test says."""

    def __init__(self, *items: JsonObject) -> None:
        self.items = list(items)
        self.events: asyncio.Queue[WatchEvent | Unreachable] = asyncio.Queue()

    async def pages(self, resource: object, **more: object) -> AsyncGenerator[Listing, None]:
        yield Listing(self.items, "1")

    async def watch(self, resource: object, **more: object) -> AsyncGenerator[WatchEvent, None]:
        while True:
            event = await self.events.get()
            if isinstance(event, Unreachable):
                raise event
            yield event


class Scene:
    def __init__(self, *items: JsonObject, unseen_s: float = 60.0) -> None:
        self.server = Server(*items)
        self.changes: list[bool] = []
        """For each call to look at the pool, whether it was because of a loss."""
        watches = Watches(self.server)
        self.slices = ObservedSlices(watches, "gpu.nvidia.com", None, self._changed, unseen_s=unseen_s)

    def _changed(self, pool: str, *, lost: bool) -> None:
        assert pool == "node-a"
        self.changes.append(lost)

    async def shows(self, kind: str, obj: JsonObject) -> None:
        self.server.events.put_nowait(WatchEvent(kind, obj))
        for _ in range(10):
            await asyncio.sleep(0)

    def generations(self) -> list[int]:
        return [item.generation for item in self.slices.of_pool("node-a")]


@asynccontextmanager
async def watching(*items: JsonObject, unseen_s: float = 60.0) -> AsyncIterator[Scene]:
    """A collection that has these items, as the watch shows it."""
    scene = Scene(*items, unseen_s=unseen_s)
    async with background(scene.slices.mirror.run()):
        await scene.slices.mirror.synced.wait()
        scene.changes.clear()
        yield scene
    scene.slices.close()


async def test_a_creation_counts_at_once_and_its_event_is_no_news() -> None:
    async with watching() as scene:
        scene.slices.wrote(a_slice(version=5))
        assert scene.generations() == [1]
        await scene.shows("ADDED", a_slice(version=5))
        assert (scene.generations(), scene.changes) == ([1], [])


def creation() -> CreateSlice:
    """Of `a_slice`."""
    return CreateSlice(WantedSlice(0, {}, observed_slice(a_slice()).digest), 1, 1)


async def test_the_event_of_a_creation_may_come_before_the_answer() -> None:
    async with watching() as scene:
        with scene.slices.writing("node-a", creation()):
            await scene.shows("ADDED", a_slice(version=5))
            assert scene.generations() == [1]
            scene.slices.wrote(a_slice(version=5))
        assert (scene.generations(), scene.changes) == ([1], [])
        await scene.shows("MODIFIED", a_slice(version=6))
        assert scene.changes == [False]


async def test_what_others_do_to_a_slice_before_the_answer_to_its_creation_is_news() -> None:
    async with watching() as scene:
        with scene.slices.writing("node-a", creation()):
            await scene.shows("ADDED", a_slice(version=5))
            await scene.shows("MODIFIED", a_slice(version=6, generation=2))
            await scene.shows("MODIFIED", a_slice(version=7))
        assert scene.changes[:2] == [False, False]


async def test_a_second_slice_from_a_creation_whose_answer_was_lost_is_news_after_the_answer() -> None:
    async with watching() as scene:
        with scene.slices.writing("node-a", creation()):
            await scene.shows("ADDED", a_slice("lost", version=4))
            assert scene.changes == []
            scene.slices.wrote(a_slice(version=5))
        assert (scene.generations(), scene.changes) == ([1, 1], [False])


async def test_a_write_that_fails_after_its_event_is_news_and_one_without_event_is_not() -> None:
    async with watching() as scene:
        with suppress(Unreachable), scene.slices.writing("node-a", creation()):
            raise Unreachable("no answer")
        assert scene.changes == []
        with suppress(Unreachable), scene.slices.writing("node-a", creation()):
            await scene.shows("ADDED", a_slice(version=5))
            raise Unreachable("no answer")
        assert scene.changes == [False]


async def test_an_update_is_not_taken_back_by_an_older_event() -> None:
    async with watching(a_slice(version=1)) as scene:
        scene.slices.wrote(a_slice(version=9, generation=3))
        await scene.shows("MODIFIED", a_slice(version=5, generation=2))
        assert (scene.generations(), scene.changes) == ([3], [])
        await scene.shows("MODIFIED", a_slice(version=10, generation=4))
        assert (scene.generations(), scene.changes) == ([4], [False])


async def test_a_slice_that_others_delete_is_a_loss_and_one_that_we_delete_is_not() -> None:
    async with watching(a_slice("a"), a_slice("b")) as scene:
        ours, _ = scene.slices.of_pool("node-a")
        scene.slices.deleting(ours)
        scene.slices.deleted(ours)
        assert len(scene.slices.of_pool("node-a")) == 1
        await scene.shows("DELETED", a_slice("a", version=7))
        await scene.shows("DELETED", a_slice("b", version=8))
        assert (scene.generations(), scene.changes) == ([], [False, True])
        assert list(scene.slices.pools()) == []


async def test_the_event_of_our_deletion_may_come_before_the_answer() -> None:
    async with watching(a_slice()) as scene:
        (ours,) = scene.slices.of_pool("node-a")
        scene.slices.deleting(ours)
        await scene.shows("DELETED", a_slice(version=7))
        scene.slices.deleted(ours)
        assert (scene.generations(), scene.changes) == ([], [False])


async def test_a_deletion_that_was_refused_leaves_the_slice_to_others() -> None:
    async with watching(a_slice()) as scene:
        (ours,) = scene.slices.of_pool("node-a")
        scene.slices.deleting(ours)
        scene.slices.not_deleted(ours)
        assert scene.generations() == [1]
        await scene.shows("DELETED", a_slice(version=7))
        assert scene.changes == [True]


async def test_the_answer_to_a_creation_that_comes_after_the_deletion_brings_nothing_back() -> None:
    """kubelet wiped the new slice before its creator heard of it."""
    async with watching() as scene:
        await scene.shows("ADDED", a_slice(version=5))
        await scene.shows("DELETED", a_slice(version=6))
        scene.slices.wrote(a_slice(version=5))
        assert (scene.generations(), scene.changes) == ([], [False, True])


async def test_another_slice_under_the_same_name_is_a_loss_and_a_find() -> None:
    async with watching(a_slice(version=1, uid="old")) as scene:
        await scene.shows("ADDED", a_slice(version=9, uid="new", generation=2))
        assert (scene.generations(), scene.changes) == ([2], [True, False])


async def test_a_creation_that_the_watch_never_shows_was_lost() -> None:
    async with watching(unseen_s=0.01) as scene:
        scene.slices.wrote(a_slice(version=5))
        await asyncio.sleep(0.05)
        assert (scene.generations(), scene.changes) == ([], [True])


async def test_a_watch_that_is_broken_is_no_reason_to_forget_a_creation() -> None:
    async with watching(unseen_s=0.01) as scene:
        scene.slices.wrote(a_slice(version=5))
        scene.server.events.put_nowait(Unreachable("away", retry_after_s=60.0))
        await asyncio.sleep(0.05)
        assert (scene.generations(), scene.changes) == ([1], [])


async def test_a_creation_that_the_watch_does_not_show_after_it_was_broken_was_lost() -> None:
    async with watching(unseen_s=0.01) as scene:
        scene.slices.wrote(a_slice(version=5))
        scene.server.events.put_nowait(Unreachable("away", retry_after_s=0.05))
        await asyncio.sleep(0.02)
        assert scene.generations() == [1]
        scene.server.events.put_nowait(WatchEvent("ADDED", a_slice("b", version=9, generation=2)))
        await eventually(lambda: scene.generations() == [2])
        assert scene.changes == [False, True]


async def test_versions_that_are_no_numbers_have_no_order() -> None:
    """The API promises numbers only from Kubernetes 1.35 on; what comes later counts then."""
    for known, news in (("5", "x"), ("x", "5"), ("x", "w")):
        obj = a_slice(generation=1)
        obj["metadata"]["resourceVersion"] = known
        async with watching(obj) as scene:
            obj = a_slice(generation=2)
            obj["metadata"]["resourceVersion"] = news
            await scene.shows("MODIFIED", obj)
            assert scene.generations() == [2]


async def test_a_creation_that_was_deleted_again_before_it_was_seen_is_no_loss() -> None:
    async with watching(unseen_s=0.01) as scene:
        ours = scene.slices.wrote(a_slice(version=5))
        scene.slices.deleting(ours)
        scene.slices.deleted(ours)
        await asyncio.sleep(0.05)
        assert (scene.generations(), scene.changes) == ([], [])


async def test_some_thousand_deletions_are_remembered_and_the_oldest_forgotten() -> None:
    scene = Scene()
    (first, *others, last) = (observed_slice(a_slice(uid=f"uid-{number}")) for number in range(4098))
    for item in (first, *others, last):
        scene.slices.deleting(item)
    for item, known in ((first, False), (others[0], False), (others[1], True), (last, True)):
        scene.slices.wrote(a_slice(uid=item.uid))
        assert (scene.slices.of_pool("node-a") == ()) is known
        scene.slices.deleted(item)
    scene.slices.close()


def test_a_slice_that_makes_no_sense_is_remembered_as_it_is() -> None:
    item = observed_slice({"metadata": {"name": "x"}, "spec": None})
    assert (item.pool, item.generation, item.index, item.ours) == ("", 0, None, False)
