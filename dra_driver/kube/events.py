"""Kubernetes Events (events.k8s.io/v1), which `kubectl describe` shows. `EventRecorder.tell` only queues an Event, so
it can be called anywhere in the event loop; `run` writes. A repeated Event becomes a series, written at most once a
minute. Rate limits protect the API server: all writes of a process share one token bucket, and each object has a bucket
for its new Events, with the values of client-go's spam filter (25, then one in five minutes). Events are not state:
Events over a limit, or that cannot be written, are dropped and counted (`dropped`). If the cluster forbids Events, the
recorder tries again ten minutes later. For the same Event on many objects without repetition, callers await
`write_once` for each.
"""

import asyncio
import hashlib
import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import structlog

from dra_driver.api.meta import JsonObject, Resource, micro_time
from dra_driver.errors import AlreadyExists, ClusterError, NotFound, Unreachable
from dra_driver.kube.client import Kube
from dra_driver.kube.watch import Backoff
from dra_driver.names import ClaimRef

_log = structlog.get_logger(__name__)

EVENTS_V1 = Resource("events.k8s.io", "v1", "events", "Event", True)

_LONGEST_NOTE = 1024
_LONGEST_NAME = 230
_WAITING = 100
_REMEMBERED = 512
_OBJECTS = 4096
_PER_OBJECT = 25
_PER_OBJECT_EVERY_S = 300.0
"""Source: client-go tools/record events_cache.go, defaultSpamBurst and defaultSpamQPS."""
_NOT_ALLOWED_PAUSE_S = 600.0
_WINDOW_S = 360.0
"""How long a repetition belongs to the same Event."""
_PER_REASON = 5
"""Maximum different Events for one object and reason within that time."""
_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Regarding:
    """The object that an Event is about. Events about objects without a namespace are in `default`."""

    api_version: str
    kind: str
    name: str
    uid: str
    namespace: str | None = None

    @classmethod
    def claim(cls, ref: ClaimRef) -> "Regarding":
        return cls("resource.k8s.io/v1", "ResourceClaim", ref.name, ref.uid, ref.namespace)

    @classmethod
    def pod(cls, namespace: str, name: str, uid: str) -> "Regarding":
        return cls("v1", "Pod", name, uid, namespace)

    @classmethod
    def node(cls, name: str) -> "Regarding":
        """The UID field has the name, as in the kubelet's own Events."""
        return cls("v1", "Node", name, name)

    def to_wire(self) -> JsonObject:
        place = {} if self.namespace is None else {"namespace": self.namespace}
        return {"apiVersion": self.api_version, "kind": self.kind, "name": self.name, "uid": self.uid, **place}


@dataclass(frozen=True, slots=True)
class News:
    """Content of an Event: `reason` in CamelCase, `action` the operation, `note` a sentence. `since` is the start, if
    known; then the server has only one Event of it, even after a restart or from several reporters."""

    regarding: Regarding
    type: Literal["Normal", "Warning"]
    reason: str
    action: str
    note: str
    since: str = ""


class _Bucket:
    """A token bucket. Seconds are those of the event loop."""

    def __init__(self, size: int, every_s: float) -> None:
        self._size = size
        self._every_s = every_s
        self._tokens = float(size)
        self._at = _clock()

    def wait_s(self) -> float:
        """Takes a token; returns the wait until it is available."""
        self._fill()
        self._tokens -= 1.0
        return max(0.0, -self._tokens * self._every_s)

    def take(self) -> bool:
        """Takes a token if one is available."""
        self._fill()
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True

    def _fill(self) -> None:
        now = _clock()
        self._tokens = min(self._size, self._tokens + (now - self._at) / self._every_s)
        self._at = now


type Dropped = Literal["object", "process", "refused"]
"""Why an Event was not written: its object had too many, the process had too many, or the API server refused it."""


@dataclass(slots=True)
class _Recent:
    """A recent Event. `written` is its count on the server."""

    name: str
    count: int
    last: datetime
    written: int = 0
    written_at: float = 0.0


class EventRecorder:
    """Writes the Events of one process. Call `tell` from the event loop; `run` runs until cancelled. `series_every_s`:
    interval between writes of a series. `burst` and `pause_s`: the bucket of the process.
    """

    def __init__(
        self,
        kube: Kube,
        *,
        controller: str,
        instance: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        series_every_s: float = 60.0,
        burst: int = 20,
        pause_s: float = 1.0,
    ) -> None:
        self._kube = kube
        self._controller = controller
        self._instance = instance[:128]
        self._now = now
        self._series_every_s = series_every_s
        self._burst = burst
        self._pause_s = pause_s
        self._bucket: _Bucket | None = None
        self._objects: OrderedDict[Regarding, _Bucket] = OrderedDict()
        self._recent: OrderedDict[News, _Recent] = OrderedDict()
        self._waiting: deque[News] = deque()
        self._changed = asyncio.Event()
        self._silent_until = 0.0
        self.dropped: Counter[Dropped] = Counter()
        """Counts of Events that were not written."""

    def tell(self, news: News) -> None:
        """Queues an Event. Never waits, never raises."""
        now = self._now()
        self._forget(now)
        recent = self._recent.get(news)
        if recent is not None:
            recent.count += 1
            recent.last = now
            self._recent.move_to_end(news)
        elif len(self._waiting) >= _WAITING:
            self.dropped["process"] += 1
            return
        elif self._says_too_much(news):
            self.dropped["object"] += 1
            return
        else:
            suffix = _digest(news.reason, news.note, news.since) if news.since else secrets.token_hex(8)
            self._recent[news] = _Recent(_event_name(news, suffix), 1, now)
            self._waiting.append(news)
        self._changed.set()

    async def write_once(self, news: News, key: str) -> None:
        """Writes an Event now, within the rate limit, unless the server already has an Event of that object and `key`.
        Raises Unreachable; drops forbidden Events."""
        if self._silent():
            self.dropped["refused"] += 1
            return
        if not self._bucket_of(news.regarding).take():
            self.dropped["object"] += 1
            return
        await self._token()
        await self._attempt(news, self._write(news, _event_name(news, _digest(news.regarding.uid, key))))

    async def run(self) -> None:
        """Writes queued Events until cancelled."""
        backoff = Backoff(first_s=1.0, longest_s=60.0)
        while True:
            await self._wait()
            try:
                await self.write()
                backoff.reset()
            except Unreachable as error:
                await asyncio.sleep(backoff.next_s(error.retry_after_s or 0.0))

    async def write(self) -> None:
        """Writes all due Events. Raises Unreachable; then they are still due."""
        if self._silent():
            self._drop()
            return
        while self._waiting and not self._silent():
            await self._token()
            news = self._waiting[0]
            recent = self._recent.get(news)
            if recent is not None:
                await self._attempt(news, self._write(news, recent.name, recent))
            if self._waiting and self._waiting[0] is news:
                self._waiting.popleft()
        for news, recent in list(self._recent.items()):
            if self._due_at(recent) <= _clock() and not self._silent():
                await self._token()
                await self._attempt(news, self._continue(news, recent))

    async def _write(self, news: News, name: str, recent: _Recent | None = None) -> None:
        with suppress(AlreadyExists):  # written by a call whose answer was lost, or before a restart
            await self._kube.create(EVENTS_V1, self._object(news, name))
        if recent is not None:
            recent.written, recent.written_at = 1, _clock()

    async def _continue(self, news: News, recent: _Recent) -> None:
        count, last = recent.count, micro_time(recent.last)
        series = {"series": {"count": count, "lastObservedTime": last}}
        try:
            await self._kube.merge_patch(
                EVENTS_V1, recent.name, series, namespace=news.regarding.namespace or "default"
            )
        except NotFound:
            # Events expire after an hour by default; write a new one.
            del self._recent[news]
            return
        recent.written, recent.written_at = count, _clock()

    async def _attempt(self, news: News, write: Coroutine[None, None, None]) -> None:
        try:
            await write
        except Unreachable:
            raise
        except ClusterError as error:
            # Forbidden, or the namespace is being deleted: retrying does not help.
            self._recent.pop(news, None)
            if error.status in (401, 403) and "being terminated" not in error.message:
                _log.warning("Events cannot be written", error=str(error), again_in_s=_NOT_ALLOWED_PAUSE_S)
                self._silent_until = _clock() + _NOT_ALLOWED_PAUSE_S
                self._drop()
            else:
                self.dropped["refused"] += 1

    def _object(self, news: News, name: str) -> JsonObject:
        note = news.note
        short = note.encode()[: _LONGEST_NOTE - 3].decode(errors="ignore")
        return {
            "apiVersion": EVENTS_V1.api_version,
            "kind": "Event",
            "metadata": {"name": name, "namespace": news.regarding.namespace or "default"},
            "eventTime": micro_time(self._now()),
            "reportingController": self._controller,
            "reportingInstance": self._instance,
            "action": news.action,
            "reason": news.reason,
            "type": news.type,
            "regarding": news.regarding.to_wire(),
            "note": note if len(note.encode()) <= _LONGEST_NOTE else f"{short}...",
        }

    async def _wait(self) -> None:
        """Waits until an Event is due."""
        self._changed.clear()
        due = min((self._due_at(recent) for recent in self._recent.values()), default=_NEVER)
        if self._waiting or due <= _clock():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(None if due == _NEVER else due - _clock()):
                await self._changed.wait()

    async def _token(self) -> None:
        if self._bucket is None:
            self._bucket = _Bucket(self._burst, self._pause_s)
        if wait_s := self._bucket.wait_s():
            await asyncio.sleep(wait_s)

    def _bucket_of(self, regarding: Regarding) -> _Bucket:
        bucket = self._objects.setdefault(regarding, _Bucket(_PER_OBJECT, _PER_OBJECT_EVERY_S))
        self._objects.move_to_end(regarding)
        if len(self._objects) > _OBJECTS:
            self._objects.popitem(last=False)
        return bucket

    def _due_at(self, recent: _Recent) -> float:
        """By the event loop's clock; infinite if the server has all of it."""
        if recent.written == 0 or recent.count == recent.written:
            return _NEVER
        # The first repetition is written at once.
        return 0.0 if recent.written == 1 else recent.written_at + self._series_every_s

    def _says_too_much(self, news: News) -> bool:
        same = [other for other in self._recent if (other.regarding, other.reason) == (news.regarding, news.reason)]
        return len(same) >= _PER_REASON or not self._bucket_of(news.regarding).take()

    def _forget(self, now: datetime) -> None:
        """Forgets Events that were not repeated within the window, except those not yet written."""
        for news, recent in list(self._recent.items()):
            over = (now - recent.last).total_seconds() > _WINDOW_S and recent.written == recent.count
            if over or len(self._recent) > _REMEMBERED:
                del self._recent[news]
            else:
                break

    def _silent(self) -> bool:
        return _clock() < self._silent_until

    def _drop(self) -> None:
        self.dropped["refused"] += len(self._waiting)
        self._waiting.clear()
        self._recent.clear()


def _event_name(news: News, suffix: str) -> str:
    return f"{news.regarding.name[:_LONGEST_NAME].rstrip('.-')}.{suffix}"


def _digest(*parts: str) -> str:
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


def _clock() -> float:
    return asyncio.get_running_loop().time()
