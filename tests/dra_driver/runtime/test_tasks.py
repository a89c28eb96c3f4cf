"""How a service ends: in order after a signal, with status 1 and a line when a part of it failed."""

import asyncio
import gc
import os
import signal
import subprocess
import sys

import pytest

from dra_driver.errors import InvalidInput, NodeNotReady
from dra_driver.runtime.tasks import Begun, forever, run_service, to_next, until_signal


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_service_in_order_with_status_0(number: signal.Signals) -> None:
    events = []

    async def background() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            events.append("background ended")

    async def service() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(forever("background", background))
            try:
                asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), number)
                await until_signal()
            finally:
                await asyncio.sleep(0)
                events.append("sockets closed")

    assert run_service(service()) == 0
    assert events == ["sockets closed", "background ended"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_while_the_service_starts_ends_it_as_well(number: signal.Signals) -> None:
    """A pod that is deleted as soon as it was made: where nobody handles it, process 1 never hears of the signal."""
    events = []

    async def service() -> None:
        try:
            asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), number)
            await asyncio.sleep(30)
            events.append("started")
        finally:
            await asyncio.sleep(0)
            events.append("what was begun is put away")

    assert run_service(service()) == 0
    assert events == ["what was begun is put away"]


def test_an_error_of_a_part_ends_the_service_with_status_1_and_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    async def failing() -> None:
        raise NodeNotReady("kubelet refused the registration", about="driver gpu.nvidia.com")

    async def service() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(forever("registration", failing))
            await until_signal()

    assert run_service(service()) == 1
    assert "driver gpu.nvidia.com: kubelet refused the registration" in capsys.readouterr().out


def test_settings_that_make_no_sense_end_the_service_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    async def service() -> None:
        raise InvalidInput("cannot be read", about="kubeconfig /nowhere")

    assert run_service(service()) == 2
    assert "kubeconfig /nowhere: cannot be read" in capsys.readouterr().out


def test_a_part_that_ends_by_itself_is_a_defect_with_its_name() -> None:
    async def nothing() -> None:
        return

    async def service() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(forever("reporter", nothing))
            await until_signal()

    with pytest.raises(ExceptionGroup) as ended:
        run_service(service())
    assert ended.group_contains(RuntimeError, match="reporter ended by itself")


@pytest.mark.filterwarnings("error")
def test_a_service_that_fails_before_its_parts_had_a_turn_leaves_nothing_behind(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def part() -> None:
        await asyncio.Event().wait()

    async def service() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(forever("discovery", part))
            raise NodeNotReady("cannot listen", about="socket /k/dra.sock")

    assert run_service(service()) == 1
    gc.collect()
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 1
    assert err == ""


def test_a_thread_that_hangs_does_not_keep_the_process_from_ending() -> None:
    script = """
import threading
from dra_driver.runtime.tasks import Begun, exit_after
threading.Thread(target=threading.Event().wait).start()
exit_after(0.05)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0
    assert "some of its work hangs" in ended.stdout + ended.stderr


@pytest.mark.parametrize("interval_s", [0.02, 0.05])
async def test_what_is_done_at_intervals_is_done_at_the_same_moments(interval_s: float) -> None:
    loop = asyncio.get_running_loop()
    before = -1.0
    for _ in range(5):
        left_s = to_next(interval_s)
        assert interval_s / 10 < left_s <= 1.1 * interval_s
        moment = (loop.time() + left_s) / interval_s
        assert abs(moment - round(moment)) < 0.1
        assert round(moment) != before, "not twice at one moment"
        before = round(moment)
        await asyncio.sleep(left_s)


async def test_begun_work_ends_although_its_waiters_are_canceled() -> None:
    go_on = asyncio.Event()

    async def work() -> int:
        await go_on.wait()
        return 3

    begun = Begun(work())
    patient, impatient = asyncio.create_task(begun.ended()), asyncio.create_task(begun.ended())
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.wait([impatient])
    assert not begun.task.done() and not patient.done()
    go_on.set()
    await patient
    assert begun.task.result() == 3
    await begun.ended()  # at once


@pytest.mark.parametrize("error", [NodeNotReady("no", about="it"), asyncio.CancelledError()])
async def test_begun_work_has_ended_when_its_waiters_go_on_however_it_ends(error: BaseException) -> None:
    go_on = asyncio.Event()

    async def work() -> None:
        await go_on.wait()
        raise error

    begun = Begun(work())
    asyncio.get_running_loop().call_soon(go_on.set)
    await begun.ended()
    with pytest.raises(type(error)):
        begun.task.result()


async def test_begun_work_that_waits_for_nothing_has_ended_at_once() -> None:
    async def work() -> int:
        return 3

    assert Begun(work()).task.result() == 3
