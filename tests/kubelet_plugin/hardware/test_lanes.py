"""Whoever hangs keeps its own lane, and no other: kubelet_plugin/hardware/lanes.py."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from support.mps import until

from dra_driver.errors import HardwareError
from kubelet_plugin.hardware.lanes import Lanes, calling

SOON_S = 0.02


class Stuck:
    """Work that is in a call into NVML until `go`."""

    def __init__(self) -> None:
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self) -> str:
        with calling():
            self.begun.set()
            self.go.wait(20)
        return "late"


@contextmanager
def hanging(lanes: Lanes, lane: str = "GPU A", **limits: float) -> Iterator[tuple[Stuck, "Future[str]"]]:
    stuck = Stuck()
    with ThreadPoolExecutor(1) as threads:
        job = threads.submit(lambda: lanes.run(lane, stuck, **limits))
        assert stuck.begun.wait(10)
        try:
            yield stuck, job
        finally:
            stuck.go.set()


def in_threads(*works: Callable[[], object]) -> list[object]:
    """What each answers, or raises, when all are done at once."""

    def outcome(work: Callable[[], object]) -> object:
        try:
            return work()
        except HardwareError as error:
            return type(error)

    with ThreadPoolExecutor(len(works)) as threads:
        return list(threads.map(outcome, works))


def test_work_of_other_lanes_is_done_while_one_hangs() -> None:
    lanes = Lanes(turn_s=20.0)
    with hanging(lanes) as (_, job):
        assert [lanes.run("GPU B", lambda: 1), lanes.run("GPU C", lambda: 2)] == [1, 2]
        assert not job.done()
    assert job.result() == "late"


def test_work_of_one_lane_is_done_one_after_the_other() -> None:
    lanes, order = Lanes(turn_s=20.0), list[str]()
    with hanging(lanes) as (stuck, _), ThreadPoolExecutor(1) as threads:
        after = threads.submit(lambda: lanes.run("GPU A", lambda: order.append("after")))
        assert lanes.run("GPU B", lambda: order.append("other")) is None
        stuck.go.set()
        after.result()
    assert order == ["other", "after"]


def test_a_call_that_hangs_is_given_up_and_its_lane_is_busy_at_once_until_it_ends() -> None:
    lanes = Lanes(turn_s=20.0, hung_s=SOON_S)
    stuck = Stuck()
    with pytest.raises(HardwareError, match="GPU A: NVML has not answered"):
        lanes.run("GPU A", stuck)
    threads = threading.active_count()
    for _ in range(3):
        with pytest.raises(HardwareError, match=r"GPU A: NVML has been busy .* which may hang"):
            lanes.run("GPU A", lambda: None)
    assert threading.active_count() == threads, "no further thread can hang"
    assert lanes.busy
    stuck.go.set()
    until(lambda: not lanes.busy)
    assert lanes.run("GPU A", lambda: "well") == "well"
    assert not lanes.busy


def test_a_job_without_time_makes_no_further_call() -> None:
    lanes, calls, waiting = Lanes(turn_s=20.0), list[int](), threading.Event()

    def slow() -> None:
        for number in range(2):
            with calling():
                calls.append(number)
                waiting.wait(20)

    with pytest.raises(HardwareError):
        lanes.run("GPU A", slow, total_s=SOON_S)
    waiting.set()
    lanes.run("GPU A", lambda: None)  # its turn comes when the slow call has returned
    assert 1 not in calls


def test_who_waits_for_a_lane_gives_up_after_its_turn_time() -> None:
    lanes = Lanes(turn_s=SOON_S)
    with hanging(lanes), pytest.raises(HardwareError, match="busy"):
        lanes.run("GPU A", lambda: None)


def test_what_runs_alone_waits_for_all_others_and_they_for_it() -> None:
    lanes, order = Lanes(turn_s=20.0), list[str]()
    alone = threading.Event()

    def by_itself() -> None:
        order.append("alone")
        alone.set()

    with hanging(lanes) as (stuck, _), ThreadPoolExecutor(1) as threads:
        job = threads.submit(lambda: lanes.run_alone(by_itself))
        lanes.run("GPU B", lambda: order.append("B"))
        assert not alone.is_set()
        stuck.go.set()
        job.result()
        lanes.run("GPU B", lambda: order.append("B again"))
    assert order == ["B", "alone", "B again"]


def test_nothing_runs_alone_during_jobs_that_belong_together() -> None:
    lanes = Lanes(turn_s=SOON_S)
    with lanes.together():
        assert lanes.run("GPU A", lambda: 1) == 1
        with pytest.raises(HardwareError):
            lanes.run_alone(lambda: None)
    assert lanes.run_alone(lambda: 2) == 2


def test_work_that_waits_for_something_else_is_not_taken_for_hung() -> None:
    lanes = Lanes(turn_s=20.0, hung_s=SOON_S)
    assert lanes.run("GPU A", lambda: threading.Event().wait(3 * SOON_S)) is False


def test_when_the_plugin_ends_nobody_waits_long_for_a_turn_or_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubelet_plugin.hardware.lanes.LAST_WAIT_S", SOON_S)
    lanes, stuck = Lanes(turn_s=600.0), Stuck()
    with ThreadPoolExecutor(1) as threads:
        job = threads.submit(lambda: lanes.run("GPU A", stuck))
        assert stuck.begun.wait(10)
        lanes.end()
        assert in_threads(lambda: lanes.run("GPU A", lambda: None)) == [HardwareError]
        with pytest.raises(HardwareError):
            job.result(20)
        assert lanes.run("GPU B", lambda: "still") == "still"
        stuck.go.set()


def test_an_error_reaches_whoever_asked_and_ends_the_job() -> None:
    lanes = Lanes(turn_s=20.0)

    def fails() -> None:
        raise HardwareError("no", about="GPU A")

    for run in (lambda: lanes.run("GPU A", fails), lambda: lanes.run_alone(fails)):
        with pytest.raises(HardwareError, match="no"):
            run()
    assert not lanes.busy


def test_many_jobs_of_many_lanes_each_get_their_answer() -> None:
    lanes = Lanes(turn_s=20.0)
    works = [lambda n=number: lanes.run(f"GPU {n % 4}", lambda: n) for number in range(24)]
    works += [lambda: lanes.run_alone(lambda: -1)] * 4
    assert in_threads(*works) == [*range(24), *[-1] * 4]


def test_threads_are_daemons() -> None:
    """A thread that hangs must not keep the process from ending."""
    assert Lanes(turn_s=1.0).run("GPU A", lambda: threading.current_thread().daemon)
