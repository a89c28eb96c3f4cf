"""The thread for short blocking work."""

import asyncio
import gc
import threading
from collections.abc import Callable

import pytest
from support.plugin import eventually

from dra_driver.runtime.threads import SerialThread


def raising(error: Exception) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


async def test_calls_run_one_after_another_in_one_thread_that_is_not_this() -> None:
    thread = SerialThread("work")
    order: list[int] = []
    names = await asyncio.gather(
        *(
            thread.run(lambda number=number: (order.append(number), threading.current_thread().name)[1])
            for number in range(20)
        )
    )
    assert order == list(range(20))
    assert set(names) == {"work"}
    thread.close()


async def test_what_work_raises_is_for_its_caller_and_the_next_is_called() -> None:
    thread = SerialThread("work")
    failing, good = thread.run(raising(ValueError("no"))), thread.run(lambda: 3)
    with pytest.raises(ValueError, match="no"):
        await failing
    assert await good == 3
    thread.close()


async def test_a_caller_that_is_canceled_disturbs_nothing() -> None:
    thread = SerialThread("work")
    go_on = threading.Event()
    canceled = thread.run(go_on.wait)
    canceled.cancel()
    go_on.set()
    assert await thread.run(lambda: 3) == 3
    thread.close()


async def test_closing_waits_for_calls_and_refuses_new_ones() -> None:
    thread = SerialThread("work")
    done: list[int] = []
    for number in range(50):
        thread.call(lambda number=number: done.append(number))
    thread.close()
    assert done == list(range(50))
    with pytest.raises(RuntimeError, match="the thread work is closed"):
        thread.run(lambda: 3)


def test_a_thread_without_calls_is_closed_without_having_begun() -> None:
    SerialThread("idle").close()
    assert "idle" not in {thread.name for thread in threading.enumerate()}


async def test_the_thread_ends_with_its_object() -> None:
    thread = SerialThread("short-lived")
    await thread.run(lambda: None)
    del thread
    gc.collect()
    await eventually(lambda: "short-lived" not in {thread.name for thread in threading.enumerate()})


def test_work_that_ends_after_its_event_loop_stops_nothing() -> None:
    thread = SerialThread("work")
    go_on = threading.Event()

    async def begin() -> None:
        thread.run(go_on.wait)

    asyncio.run(begin())
    go_on.set()
    assert asyncio.run(_called(thread)) == 3
    thread.close()


async def _called(thread: SerialThread) -> int:
    return await thread.run(lambda: 3)
