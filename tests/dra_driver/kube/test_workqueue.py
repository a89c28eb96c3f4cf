"""A key is looked at once for many events, never twice at once, and again when it failed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from support.background import background

from dra_driver.errors import ClusterError, NotFound, Unreachable
from dra_driver.kube.watch import Backoff
from dra_driver.kube.workqueue import WorkQueue


@asynccontextmanager
async def working(queue: WorkQueue, handle: Callable[[str], Awaitable[None]], workers: int = 4) -> AsyncIterator[None]:
    async with background(queue.work(handle, workers)):
        yield


async def settled() -> None:
    """Every task has run as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


class Handler:
    """Counts, and waits when it is told to."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.at_once = 0
        self.most_at_once = 0
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def __call__(self, key: str) -> None:
        self.seen.append(key)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.may_go_on.wait()
        self.at_once -= 1


async def test_many_events_are_one_look() -> None:
    queue, handler = WorkQueue(), Handler()
    assert queue.idle.is_set()
    for _ in range(5):
        queue.add("a")
    queue.add("b")
    queue.add("a")
    assert not queue.idle.is_set()
    async with working(queue, handler):
        await queue.idle.wait()
    assert handler.seen == ["a", "b"]
    assert len(queue) == 0


async def test_what_is_to_be_processed_soon_does_not_wait_for_the_others() -> None:
    queue, handler = WorkQueue(), Handler()
    handler.may_go_on.clear()
    for key in ("a", "b", "c", "d"):
        queue.add(key)
    async with working(queue, handler, workers=1):
        await settled()
        queue.add("e", soon=True)
        queue.add("c", soon=True)
        queue.add("c")
        queue.add("e", soon=True)
        queue.add("a", soon=True)
        handler.may_go_on.set()
        await queue.idle.wait()
    assert handler.seen == ["a", "e", "c", "a", "b", "d"]


async def test_of_what_was_added_before_the_work_the_newest_is_processed_first() -> None:
    queue, handler = WorkQueue(), Handler()
    for key in ("a", "b", "c", "d"):
        queue.add(key)
    for key in ("c", "b", "c"):
        queue.add(key, soon=True)
    async with working(queue, handler, workers=1):
        await queue.idle.wait()
    assert handler.seen == ["c", "b", "a", "d"]
    assert len(queue) == 0


async def test_a_key_that_changes_while_it_is_looked_at_is_looked_at_again_afterwards() -> None:
    queue, handler = WorkQueue(), Handler()
    handler.may_go_on.clear()
    queue.add("a")
    async with working(queue, handler):
        await settled()
        for _ in range(3):
            queue.add("a")
        await settled()
        assert (handler.seen, handler.most_at_once) == (["a"], 1)
        handler.may_go_on.set()
        await queue.idle.wait()
    assert (handler.seen, handler.most_at_once) == (["a", "a"], 1)


async def test_a_key_is_processed_again_as_soon_as_its_most_urgent_event_says() -> None:
    queue, handler = WorkQueue(), Handler()
    handler.may_go_on.clear()
    for key in ("a", "b"):
        queue.add(key)
    async with working(queue, handler, workers=2):
        await settled()
        for key in ("c", "d"):
            queue.add(key)
        queue.add("a")
        queue.add("b", soon=True)
        queue.add("b")
        handler.may_go_on.set()
        await queue.idle.wait()
    assert handler.seen == ["a", "b", "b", "c", "d", "a"]


async def test_no_more_keys_at_once_than_workers() -> None:
    queue, handler = WorkQueue(), Handler()
    handler.may_go_on.clear()
    for number in range(10):
        queue.add(str(number))
    async with working(queue, handler, workers=3):
        await settled()
        assert handler.at_once == 3
        handler.may_go_on.set()
        await queue.idle.wait()
    assert len(handler.seen) == 10


async def test_a_failed_key_comes_back_later_and_later_until_it_succeeds() -> None:
    queue = WorkQueue(lambda: Backoff(first_s=0.001, longest_s=1.0))
    pauses: list[float] = []
    done = asyncio.Event()

    async def handle(key: str) -> None:
        if len(pauses) < 4:
            pauses.append(queue.retry(key))
        else:
            queue.succeeded(key)
            done.set()

    queue.add("a")
    async with working(queue, handle):
        async with asyncio.timeout(5):
            await done.wait()
        assert pauses[3] > pauses[1] > pauses[0] / 2
        assert queue.retry("a") <= 0.001
        assert queue.retry("b", at_least_s=9.0) == 9.0


async def test_a_defect_that_one_key_brings_to_light_keeps_no_other_from_being_looked_at() -> None:
    queue = WorkQueue(lambda: Backoff(first_s=0.001, longest_s=1.0))
    seen: list[str] = []
    done = asyncio.Event()

    async def handle(key: str) -> None:
        seen.append(key)
        if seen.count("bad") == 3:
            done.set()
        elif key == "bad":
            raise ZeroDivisionError

    queue.add("bad")
    queue.add("good")
    async with working(queue, handle, workers=1):
        async with asyncio.timeout(5):
            await done.wait()
    assert seen == ["bad", "good", "bad", "bad"]


async def test_an_event_ends_a_pause() -> None:
    queue, handler = WorkQueue(), Handler()
    async with working(queue, handler):
        queue.add_after("a", 0.02)
        assert len(queue) == 1
        queue.add("a")
        await settled()
        assert (handler.seen, len(queue)) == (["a"], 0)
        await asyncio.sleep(0.04)
    assert handler.seen == ["a"]


async def test_a_pause_ends_before_what_is_not_urgent() -> None:
    queue, handler = WorkQueue(), Handler()
    handler.may_go_on.clear()
    async with working(queue, handler, workers=1):
        for key in ("a", "b", "c"):
            queue.add(key)
        await settled()
        queue.add_after("d", 0.001)
        await asyncio.sleep(0.01)
        handler.may_go_on.set()
        await queue.idle.wait()
    assert handler.seen == ["a", "d", "b", "c"]


async def test_a_pause_does_not_delay_what_is_due() -> None:
    queue, handler = WorkQueue(), Handler()
    handler.may_go_on.clear()
    for key in ("a", "b"):
        queue.add(key)
    queue.add("c", soon=True)
    async with working(queue, handler, workers=1):
        await settled()
        queue.add("c")
        for key in ("a", "b", "c"):
            queue.add_after(key, 60.0)
        assert len(queue) == 3
        handler.may_go_on.set()
        await queue.idle.wait()
        assert len(queue) == 0
    assert handler.seen == ["c", "a", "b", "c"]


async def test_pauses_end_with_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, handler = WorkQueue(), Handler()
    loop, timers = asyncio.get_running_loop(), list[asyncio.TimerHandle]()
    call_later = loop.call_later

    def seen_call_later(delay_s: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        timers.append(call_later(delay_s, callback))
        return timers[-1]

    async with working(queue, handler):
        await settled()
        with monkeypatch.context() as patched:
            patched.setattr(loop, "call_later", seen_call_later)
            queue.add_after("a", 60.0)
    assert [timer.cancelled() for timer in timers] == [True]
    assert (len(queue), handler.seen) == (0, [])


async def test_an_attempt_that_fails_is_repeated_and_one_for_what_is_gone_is_not() -> None:
    queue = WorkQueue(lambda: Backoff(first_s=20.0, longest_s=60.0))

    async def raising(error: ClusterError) -> None:
        raise error

    await queue.attempt("a", raising(Unreachable("busy", retry_after_s=40.0)))
    await queue.attempt("b", raising(Unreachable("away")))
    assert (len(queue), queue.retries) == (2, 2)
    assert queue.retry("b") > 20.0, "the second pause is longer"
    await queue.attempt("b", raising(NotFound("b is gone")))
    assert queue.retry("b") <= 20.0
    await queue.attempt("b", asyncio.sleep(0))
    assert queue.retry("b") <= 20.0


async def test_of_two_pauses_the_shorter_counts() -> None:
    queue, handler = WorkQueue(), Handler()
    async with working(queue, handler):
        queue.add_after("a", 0.03)
        queue.add_after("a", 0.001)
        queue.add_after("a", 60.0)
        await asyncio.sleep(0.05)
    assert handler.seen == ["a"]
    assert len(queue) == 0


async def test_a_server_that_is_too_busy_is_left_alone_as_long_as_it_says() -> None:
    queue, handler = WorkQueue(lambda: Backoff(first_s=0.001, longest_s=0.001)), Handler()

    async def too_busy() -> None:
        raise Unreachable("busy", status=429, retry_after_s=60.0)

    async with working(queue, handler):
        await queue.attempt("a", too_busy())
        await asyncio.sleep(0.02)
    assert handler.seen == []


async def test_other_tasks_run_between_keys_that_need_no_wait() -> None:
    """Otherwise thousands of pools that are as they should be keep the lease from being renewed."""
    queue, handled, ticks = WorkQueue(), list[str](), list[int]()

    async def handle(key: str) -> None:
        handled.append(key)

    async def tick() -> None:
        while True:
            ticks.append(len(handled))
            await asyncio.sleep(0)

    for number in range(100):
        queue.add(str(number))
    tasks = [asyncio.create_task(tick()), asyncio.create_task(queue.work(handle, 1))]
    await queue.idle.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert len({*ticks}) > 90
