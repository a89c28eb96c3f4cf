"""The reconcilers' queue: keys to process, each at most once at a time, and again after a pause if it failed. An event
only says *which* object to process; `workers` read the newest state. A key that is added during its processing is
processed once more afterwards, never twice at once.

There are two lanes: news of one object does not wait until all objects have been looked at because something changed
for all of them.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from dra_driver.errors import ClusterError, NotFound
from dra_driver.kube.watch import Backoff

_log = structlog.get_logger(__name__)


class WorkQueue:
    """Used from one event loop. `backoff` makes the pauses of one key; they start again from the shortest after a
    success."""

    def __init__(self, backoff: Callable[[], Backoff] = lambda: Backoff(first_s=0.1, longest_s=60.0)) -> None:
        self._new_backoff = backoff
        self._soon: OrderedDict[str, None] = OrderedDict()
        self._later: OrderedDict[str, None] = OrderedDict()
        """The lanes: keys in the order in which they are processed."""
        self._due_keys = asyncio.Semaphore(0)
        """As many as there are keys in the lanes."""
        self._works = False
        self._working: set[str] = set()
        self._again: dict[str, bool] = {}
        """Keys to process once more, and whether soon."""
        self._backoffs: dict[str, Backoff] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.retries = 0
        """Number of pauses after failures."""
        self.idle = asyncio.Event()
        """Set while no key is due or in progress; pausing keys do not count."""
        self.idle.set()

    def __len__(self) -> int:
        """Keys that wait, pause or are in progress."""
        return len(self._soon.keys() | self._later.keys() | self._working | self._timers.keys())

    def add(self, key: str, *, soon: bool = False) -> None:
        """Processes `key` as soon as possible, with `soon` before all keys that were added without; ends its pause."""
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._working:
            self._again[key] = soon or self._again.get(key, False)
            return
        if key not in self._soon and key not in self._later:
            self._due_keys.release()
            self.idle.clear()
        elif not soon or (key in self._soon and self._works):
            return
        self._soon.pop(key, None)
        self._later.pop(key, None)
        (self._soon if soon else self._later)[key] = None

    def add_after(self, key: str, delay_s: float) -> None:
        """Processes `key` after a pause, unless it is due sooner."""
        if key in self._soon or key in self._later or key in self._again:
            return
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= loop.time() + delay_s:
                return
            timer.cancel()
        self._timers[key] = loop.call_later(delay_s, partial(self.add, key, soon=True))

    def retry(self, key: str, at_least_s: float = 0.0) -> float:
        """Processes `key` after its next, longer pause; returns the pause in seconds."""
        self.retries += 1
        pause_s = self._backoffs.setdefault(key, self._new_backoff()).next_s(at_least_s)
        self.add_after(key, pause_s)
        return pause_s

    def succeeded(self, key: str) -> None:
        """Resets the pauses of `key` to the shortest."""
        self._backoffs.pop(key, None)

    async def attempt(self, key: str, work: Awaitable[None]) -> None:
        """Does the work of `key`, and pauses it after a ClusterError. What is gone meanwhile needs no work: its
        deletion is another change."""
        try:
            await work
        except NotFound:
            self.succeeded(key)
        except ClusterError as error:
            pause_s = self.retry(key, error.retry_after_s or 0.0)
            _log.debug("is tried again", key=key, error=str(error), pause_s=round(pause_s, 2))
        else:
            self.succeeded(key)

    async def work(self, handle: Callable[[str], Awaitable[None]], workers: int) -> None:
        """Processes keys until cancelled. `handle` handles the errors that it expects. Any other exception is a defect:
        it is logged, and the key pauses, because one object must not keep all others from being processed.

        Of the keys that were added before with `soon`, the last one is processed first: what it says is the newest.
        """
        self._soon, self._works = OrderedDict(reversed(self._soon.items())), True
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(self._work(handle))
        finally:
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()

    async def _work(self, handle: Callable[[str], Awaitable[None]]) -> None:
        while True:
            # Neither `acquire` nor a key with nothing to write lets other tasks run, such as the renewal of the lease.
            await asyncio.sleep(0)
            await self._due_keys.acquire()
            key, _ = (self._soon or self._later).popitem(last=False)
            self._working.add(key)
            try:
                await handle(key)
            except Exception as error:  # noqa: BLE001 - see `work`
                pause_s = self.retry(key)
                _log.error("failed unexpectedly", key=key, retry_s=round(pause_s, 1), exc_info=error)
            finally:
                self._working.discard(key)
                soon = self._again.pop(key, None)
                if soon is not None:
                    self.add(key, soon=soon)
                elif not self._soon and not self._later and not self._working:
                    self.idle.set()
