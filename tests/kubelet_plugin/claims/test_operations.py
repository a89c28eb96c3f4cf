"""An operation that only waits is dropped when kubelet gives up its call, and goes on undisturbed otherwise."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import pytest

from dra_driver.errors import NodeNotReady
from dra_driver.names import GPU_DRIVER, ClaimRef
from kubelet_plugin.claims.operations import ClaimNotes, Operations
from kubelet_plugin.prepare.listener import ClaimListener, Operation

CLAIM = ClaimRef("default", "gpu", "uid-gpu")


async def test_what_waits_is_cancelled_at_once_and_its_task_is_not() -> None:
    notes, cancelled = ClaimNotes(), []

    async def wait() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def operation() -> str:
        with pytest.raises(NodeNotReady, match="gave up"):
            await notes.while_wanted(CLAIM, wait)
        async with asyncio.timeout(10):  # which would take a cancellation that is left for its own
            await asyncio.sleep(0)
        return "answered"

    task = asyncio.create_task(operation())
    await asyncio.sleep(0)
    notes.give_up()
    await asyncio.wait({task}, timeout=1)
    assert cancelled and task.result() == "answered" and not task.cancelling()


async def test_nothing_is_begun_for_a_call_that_was_given_up_before() -> None:
    notes = ClaimNotes()
    notes.give_up()

    async def wait() -> None:
        raise AssertionError

    with pytest.raises(NodeNotReady, match="gave up"):
        await notes.while_wanted(CLAIM, wait)


async def test_what_was_begun_after_the_wait_is_finished() -> None:
    notes, begun = ClaimNotes(), asyncio.Event()

    async def wait() -> int:
        return 1

    async def operation() -> int:
        answer = await notes.while_wanted(CLAIM, wait)
        begun.set()
        await asyncio.sleep(0.01)
        return answer

    task = asyncio.create_task(operation())
    await begun.wait()
    notes.give_up()
    assert await task == 1


async def test_another_cancellation_stays_one() -> None:
    notes = ClaimNotes()
    task = asyncio.create_task(notes.while_wanted(CLAIM, lambda: asyncio.sleep(10)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Ends also a loop that never gives back control, which no timeout of asyncio can."""

    def interrupt(*_: object) -> None:
        raise TimeoutError(f"still running after {seconds} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


async def test_closing_ends_when_the_last_work_has_ended_at_that_moment() -> None:
    operations = Operations(GPU_DRIVER, ClaimListener())
    assert operations.begin(_nothing()).task.done()
    with interrupted_after(5.0):
        await operations.close()


class Heard(ClaimListener):
    """`operations` that ended, each with what the context of its task had."""

    def __init__(self) -> None:
        self.operations: list[tuple[str, str]] = []

    def ended(self, operation: Operation) -> None:
        self.operations.append((operation.claim.name, OF_TASK.get()))


OF_TASK = ContextVar("of_task", default="")


async def test_how_it_ended_is_reported_after_the_answer_in_its_own_context_and_before_the_end() -> None:
    heard = Heard()
    operations = Operations(GPU_DRIVER, heard)
    claims = [ClaimRef("default", name, f"uid-{name}") for name in "ab"]

    async def act(claim: ClaimRef, notes: ClaimNotes) -> str:
        OF_TASK.set(claim.name)
        return claim.name.upper()

    assert await operations.each("prepare", claims, act) == {"uid-a": "A", "uid-b": "B"}
    assert heard.operations == []
    await operations.close()
    assert heard.operations == [("a", "a"), ("b", "b")]


async def _nothing() -> None:
    pass
