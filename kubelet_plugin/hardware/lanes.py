"""Work on GPUs in threads that may hang: one job at a time for each GPU, and no caller waits without a limit.

`kubelet_plugin.facts.hardware.Hardware` enters here. NVML may be called by several threads at once (NVML API
Reference), and a driver that hangs or takes seconds usually does so about one GPU. So each GPU has a *lane*: jobs of
different lanes run side by side, and a job that hangs keeps its own lane alone. A job that needs the whole node, such
as one that ends the NVML session, runs `alone`: it waits for all others, and cannot begin while one of them hangs.

Threads are daemons, so that a hung one does not keep the process from ending. There is at most one for each lane, and
lanes are the node's GPUs, twice at most (by PCI address, and by NVML's index until the address is known), and one for
the session: so many threads can hang, and no more.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import inf

from dra_driver.errors import HardwareError

HUNG_S = 30.0
"""A call into NVML that has not returned for as long is taken for hung. Loading a GPU's firmware takes some seconds."""

READ_S = 20.0
"""A GPU that needs longer to be read, or for its events to be registered, is taken for one that does not answer.
It takes some milliseconds, and seconds after a cold start."""

LAST_WAIT_S = 5.0
"""How long callers wait for NVML while the plugin ends, and how long a call is waited for then."""

_LOOK_S = 1.0
"""How often a job is looked at while the plugin ends: there is no notice of its calls into NVML."""

_TIMEOUT = 10
"""NVML's code; it stands for calls that do not return, too."""


def is_silent(error: Exception) -> bool:
    """Whether a call has not returned in time, or so many were slow that the job was given up."""
    return isinstance(error, HardwareError) and error.code == _TIMEOUT


@dataclass(slots=True, eq=False)
class Job:
    """`deadline`: no call begins after it. `calling_since`: when the call began that is under way, None: none is."""

    lane: str
    alone: bool
    deadline: float
    since: float
    calling_since: float | None = None
    ended: bool = False
    error: BaseException | None = None


class _GivenUp(BaseException):
    """Ends a job that has no time left: nothing that asks the hardware takes it for an answer."""


_JOB: ContextVar[Job | None] = ContextVar("job", default=None)
"""The job of this thread."""


@contextmanager
def calling() -> Iterator[None]:
    """Around each call into the library. Ends the job of this thread when it has no time left."""
    job = _JOB.get()
    if job is None:
        yield
        return
    if time.monotonic() > job.deadline:
        raise _GivenUp
    job.calling_since = time.monotonic()
    try:
        yield
    finally:
        job.calling_since = None


class Lanes:
    """For any thread. `turn_s` is how long a job waits for the one before it."""

    def __init__(self, turn_s: float, hung_s: float = HUNG_S) -> None:
        self._turn_s = turn_s
        self._hung_s = hung_s
        self._changed = threading.Condition()
        self._jobs: dict[str, Job] = {}
        self._alone: Job | None = None
        self._together = 0
        self._ending_since: float | None = None

    def run[T](self, lane: str, work: Callable[[], T], *, total_s: float = inf) -> T:
        """Call `work` in the lane's next turn, and give up after `total_s` in all, or when one of its calls hangs.

        Work that was given up may still run; until it ends, its lane is busy.
        Raises HardwareError for which `is_silent` holds, and what `work` raises.
        """
        return self._run(Job(lane, False, time.monotonic() + total_s, time.monotonic()), work, self._hung_s)

    def run_alone[T](self, work: Callable[[], T], *, hung_s: float = inf) -> T:
        """Call `work` while nothing else runs. Waits for its end, or until one of its calls has hung for `hung_s`."""
        return self._run(Job("driver", True, inf, time.monotonic()), work, hung_s)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Several jobs in lanes, and none that runs alone among them. Waits as long as it takes."""
        with self._changed:
            self._changed.wait_for(lambda: self._alone is None)
            self._together += 1
        try:
            yield
        finally:
            with self._changed:
                self._together -= 1
                self._changed.notify_all()

    @property
    def busy(self) -> bool:
        """Whether a job runs, as one does that was given up and hangs."""
        return bool(self._jobs) or self._alone is not None

    def end(self) -> None:
        """The plugin ends: from now on, no caller waits long for a turn, or for a call into NVML."""
        with self._changed:
            self._ending_since = time.monotonic()
            self._changed.notify_all()

    def _run[T](self, job: Job, work: Callable[[], T], hung_s: float) -> T:
        self._begin(job)
        results: list[T] = []

        def run() -> None:
            _JOB.set(job)
            try:
                results.append(work())
            except _GivenUp:
                job.error = HardwareError(
                    "NVML answers too slowly; search the kernel log for NVRM", about=job.lane, code=_TIMEOUT
                )
            except BaseException as error:  # noqa: BLE001 - for the waiting caller, as it is
                job.error = error
            finally:
                self._end(job)

        try:
            threading.Thread(target=run, name=f"hardware {job.lane}", daemon=True).start()
        except RuntimeError as error:
            self._end(job)
            raise HardwareError(f"no thread can be started for it: {error}", about=job.lane) from error
        self._wait_for(job, hung_s)
        if job.error is not None:
            raise job.error
        return results[0]

    def _begin(self, job: Job) -> None:
        begun = time.monotonic()
        limit = begun + self._turn_s if job.deadline == inf else job.deadline
        with self._changed:
            while blockers := self._blockers(job):
                limits = [limit, self._last(begun), *(self._hung_at(blocker, job) for blocker in blockers)]
                rest = min(limits) - time.monotonic()
                if rest <= 0:
                    raise self._busy(job, blockers[0])
                self._changed.wait(min(rest, self._hung_s))
            if job.alone:
                self._alone = job
            else:
                self._jobs[job.lane] = job

    def _blockers(self, job: Job) -> list[Job | None]:
        """The jobs that keep this one from beginning; None stands for a look between two jobs."""
        if self._alone is not None:
            return [self._alone]
        if job.alone:
            return [*self._jobs.values(), *([None] if self._together else [])]
        before = self._jobs.get(job.lane)
        return [] if before is None else [before]

    def _hung_at(self, blocker: Job | None, job: Job) -> float:
        """When a job that is waited for is taken for hung, unless it makes another call. A job with a limit of its own
        does not wait for one that was given up, either."""
        if blocker is None:
            return inf
        hung_s = self._hung_s if self._ending_since is None else LAST_WAIT_S
        hung_at = inf if blocker.calling_since is None else blocker.calling_since + hung_s
        return hung_at if job.deadline == inf else min(hung_at, blocker.deadline)

    def _last(self, begun: float) -> float:
        return inf if self._ending_since is None else max(begun, self._ending_since) + LAST_WAIT_S

    def _busy(self, job: Job, blocker: Job | None) -> HardwareError:
        lane, since = ("driver", time.monotonic()) if blocker is None else (blocker.lane, blocker.since)
        what = "" if lane in (job.lane, "driver") else f" about {lane}"
        return HardwareError(
            f"NVML has been busy for {time.monotonic() - since:.1f} s with an earlier call{what}, which may hang; if"
            " this persists, search the kernel log for NVRM: the GPU or the node may need a reset",
            about=job.lane,
            code=_TIMEOUT,
        )

    def _end(self, job: Job) -> None:
        with self._changed:
            job.ended = True
            if self._alone is job:
                self._alone = None
            else:
                del self._jobs[job.lane]
            self._changed.notify_all()

    def _wait_for(self, job: Job, hung_s: float) -> None:
        """Until it ends. Only calls into NVML are taken for hung: what else a job does has limits of its own."""
        begun = time.monotonic()
        with self._changed:
            while not job.ended:
                now, since = time.monotonic(), job.calling_since
                limit = job.deadline
                if since is not None:
                    limit = min(limit, since + hung_s, self._last(begun))
                if limit <= now:
                    raise HardwareError(
                        f"NVML has not answered for {now - begun:.0f} s; search the kernel log for NVRM: the GPU"
                        " or the node may need a reset",
                        about=job.lane,
                        code=_TIMEOUT,
                    )
                self._changed.wait(min(limit - now, _LOOK_S if self._ending_since is not None else self._hung_s))
