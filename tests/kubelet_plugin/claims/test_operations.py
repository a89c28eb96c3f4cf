"""An operation that only waits is dropped when kubelet gives up its call, and goes on undisturbed otherwise."""

import asyncio

import pytest

from dra_driver.errors import NodeNotReady
from dra_driver.names import ClaimRef
from kubelet_plugin.claims.operations import ClaimNotes

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
