"""A local copy of a collection that follows the server by lists and watches. A `Reflector` keeps whole objects; a
`Mirror` keeps only what `keep` extracts from each object, so that a thousand nodes do not cost a thousand decoded
objects. Parts of one process that follow the same collections share `Watches`, so that each is listed and watched once.

A list and a watch are retried forever, with growing, jittered pauses: after a broken connection, an expired position
(410), without a server, or for a resource type that is not installed yet. Readers use `objects`; `on_change` is called
in the order of the server's events and must not block. A list after a gap reports what is new, different or gone, as a
watch would have. The copy can be stale by design, so writes that depend on it are guarded by resourceVersion.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Never

import structlog

from dra_driver.api.meta import JsonObject, Resource
from dra_driver.errors import ClusterError, Gone
from dra_driver.kube.client import Kube

_log = structlog.get_logger(__name__)

_SHORTEST_WATCH_S = 1.0
"""A watch that ends sooner without an event is a failure, so that a broken proxy is not called in a tight loop."""

_PAGE = 100
"""Slices and inventories are large; few at a time keep the memory of a listing small."""

type Key = tuple[str, str]
"""Namespace (empty for cluster-scoped objects) and name."""


def key_of(obj: JsonObject) -> Key:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


@dataclass(frozen=True, slots=True)
class MirrorChange[T]:
    """`before` is None for a new object, `after` None for a deleted one. `listed`: found by a list, so it happened
    earlier, and the order of such changes is unknown.
    """

    key: Key
    before: T | None
    after: T | None
    listed: bool = False


type Change = MirrorChange[JsonObject]


@dataclass(slots=True)
class Backoff:
    """Growing, jittered waits: half to all of `first_s`, doubled up to `longest_s`. `reset` after a success."""

    first_s: float = 0.2
    longest_s: float = 30.0
    _next_s: float = field(default=0.0, init=False)

    def next_s(self, at_least_s: float = 0.0) -> float:
        self._next_s = min(self.longest_s, max(self.first_s, 2 * self._next_s))
        return max(at_least_s, self._next_s * random.uniform(0.5, 1.0))

    def reset(self) -> None:
        self._next_s = 0.0


def _whole(obj: JsonObject) -> Any:
    return obj


class Mirror[T]:
    """The results of `keep` for the objects of one collection, by key. If `keep` cannot read an object, its previous
    result stays and the log names the object; others are not affected. Mirrors that are made of the same `Watches` in
    place of a `Kube` share a list and a watch, which `Watches.run` runs.
    """

    def __init__(
        self,
        kube: "Kube | Watches",
        resource: Resource,
        *,
        keep: Callable[[JsonObject], T] = _whole,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        on_change: Callable[[MirrorChange[T]], None] = lambda change: None,
        backoff: Backoff | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.objects: dict[Key, T] = {}
        self.keep = keep
        self._on_change = on_change
        selection = _Selection(resource, namespace, label_selector, field_selector)
        if isinstance(kube, Watches):
            self._source = kube.source(selection)
        else:
            self._source = _Source(kube, selection, backoff or Backoff(), sleep)
        self._source.feed(self)

    @property
    def synced(self) -> asyncio.Event:
        """Set after the first list, and stays set."""
        return self._source.synced

    @property
    def failure(self) -> ClusterError | None:
        """Why the copy does not follow the server at the moment, or None."""
        return self._source.failure

    async def run(self) -> Never:
        """Follows the server until cancelled."""
        await self._source.run()

    def learn(self, key: Key, after: T, *, listed: bool) -> None:
        """For the list and the watch: what `keep` made of the object."""
        before = self.objects.get(key)
        self.objects[key] = after
        self._on_change(MirrorChange(key, before, after, listed))

    def forget(self, key: Key, *, listed: bool) -> None:
        """For the list and the watch: the object does not exist any longer."""
        before = self.objects.pop(key, None)
        if before is not None:
            self._on_change(MirrorChange(key, before, None, listed))


@dataclass(frozen=True, slots=True)
class _Selection:
    resource: Resource
    namespace: str | None = None
    label_selector: str | None = None
    field_selector: str | None = None


class _Source:
    """One list and watch, for all mirrors that it feeds."""

    def __init__(
        self, kube: Kube, selection: _Selection, backoff: Backoff, sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        self.synced = asyncio.Event()
        self.failure: ClusterError | None = None
        self._kube = kube
        self._selection = selection
        self._backoff = backoff
        self._sleep = sleep
        self._mirrors: list[Mirror[Any]] = []
        self._runs = False
        self._versions: dict[Key, str] = {}
        """Of the objects that exist; marked for one that a mirror could not read."""
        self._position: str | None = None
        self._progress = False
        """Whether anything came since the last attempt."""
        self._just_listed = False
        """Whether the watch has not advanced since the list."""

    def feed(self, mirror: Mirror[Any]) -> None:
        """Only before `run`: a mirror that came later would not see the objects that were read before."""
        if self._runs:
            raise RuntimeError(f"{self._selection.resource.plural} are followed already")
        self._mirrors.append(mirror)

    async def run(self) -> Never:
        """Follows the server until cancelled."""
        self._runs = True
        while True:
            self._progress = False
            try:
                if self._position is None:
                    await self._list()
                await self._watch()
                if not self._progress:
                    await self._sleep(self._backoff.next_s())
            except ClusterError as error:
                await self._recover(error)

    async def _recover(self, error: ClusterError) -> None:
        # Without an answer the position is still valid. An error may come from a server that was restored from a
        # backup; then only a list shows the current state.
        if error.status is not None or isinstance(error, Gone):
            self._position = None
        # A position can also expire while the server is down. It answers again now, so do not wait.
        if isinstance(error, Gone) and not self._just_listed:
            return
        # Several copies lose the same server at once, and all retry.
        tell = _log.debug if str(self.failure) == str(error) else _log.warning
        self.failure = error
        wait_s = self._backoff.next_s(error.retry_after_s or 0.0)
        tell("watch interrupted", resource=self._selection.resource.plural, error=str(error), retry_s=round(wait_s, 1))
        await self._sleep(wait_s)

    async def _list(self) -> None:
        keys: set[Key] = set()
        position = ""
        pages = self._kube.pages(
            self._selection.resource,
            namespace=self._selection.namespace,
            label_selector=self._selection.label_selector,
            field_selector=self._selection.field_selector,
            limit=_PAGE,
        )
        async with aclosing(pages):
            async for page in pages:
                position = page.resource_version
                for obj in page.items:
                    # A page of a large cluster takes seconds, in which the lease must be renewed. No task runs between
                    # the last object and `synced`: a listener that the object wakes finds the list complete.
                    await asyncio.sleep(0)
                    keys.add(key_of(obj))
                    self._learn(obj, listed=True)
        # The owner of a mirror may have entered the answer to a write, which no watch has shown.
        known = self._versions.keys() | {key for mirror in self._mirrors for key in mirror.objects}
        for key in known - keys:
            self._forget(key, listed=True)
        self._position = position
        self._just_listed = True
        self._follows()
        self.synced.set()

    async def _watch(self) -> None:
        assert self._position is not None
        started = asyncio.get_running_loop().time()
        events = self._kube.watch(
            self._selection.resource,
            namespace=self._selection.namespace,
            label_selector=self._selection.label_selector,
            field_selector=self._selection.field_selector,
            resource_version=self._position,
            accepted=self._follows,
        )
        async with aclosing(events):
            async for event in events:
                self._progressed()
                self._position = event.object["metadata"]["resourceVersion"]
                if event.type == "DELETED":
                    self._forget(key_of(event.object), listed=False)
                elif event.type != "BOOKMARK":
                    self._learn(event.object, listed=False)
        if asyncio.get_running_loop().time() - started >= _SHORTEST_WATCH_S:
            self._progressed()

    def _progressed(self) -> None:
        self._progress, self._just_listed = True, False
        self._follows()
        self._backoff.reset()

    def _follows(self) -> None:
        if self.failure is not None:
            _log.info("watching again", resource=self._selection.resource.plural)
        self.failure = None

    def _learn(self, obj: JsonObject, *, listed: bool) -> None:
        key, version = key_of(obj), str(obj["metadata"].get("resourceVersion"))
        known = self._versions.get(key)
        if known == version:
            return
        results: dict[Callable[[JsonObject], Any], Any] = {}
        problem: Exception | None = None
        for mirror in self._mirrors:
            try:
                if mirror.keep not in results:
                    results[mirror.keep] = mirror.keep(obj)
            except Exception as error:  # noqa: BLE001 - one object must not stop the copy of the others
                problem = error
            else:
                mirror.learn(key, results[mirror.keep], listed=listed)
        # An invalid object is read again with the next list, because perhaps only this answer was damaged.
        self._versions[key] = version if problem is None else f"invalid {version}"
        if problem is not None and known != self._versions[key]:
            plural = self._selection.resource.plural
            _log.warning("an object is invalid", resource=plural, key=key, error=repr(problem))

    def _forget(self, key: Key, *, listed: bool) -> None:
        self._versions.pop(key, None)
        for mirror in self._mirrors:
            mirror.forget(key, listed=listed)


class Watches:
    """Lists and watches that the mirrors of several parts of a process share: each collection is read once."""

    def __init__(self, kube: Kube) -> None:
        self.kube = kube
        self._sources: dict[_Selection, _Source] = {}

    def source(self, selection: _Selection) -> _Source:
        """For `Mirror`."""
        if selection not in self._sources:
            self._sources[selection] = _Source(self.kube, selection, Backoff(), asyncio.sleep)
        return self._sources[selection]

    async def read(self) -> None:
        """Returns when all collections were read once."""
        for source in self._sources.values():
            await source.synced.wait()

    async def run(self) -> None:
        """Follows the server until cancelled, for all mirrors that were made before."""
        async with asyncio.TaskGroup() as group:
            for source in self._sources.values():
                group.create_task(source.run())


async def follow(mirrors: Iterable[Mirror[Any]], tasks: asyncio.TaskGroup) -> None:
    """Runs all of them as `tasks`; returns when each has completed its first list."""
    started = tuple(mirrors)
    for mirror in started:
        tasks.create_task(mirror.run())
    for mirror in started:
        await mirror.synced.wait()


class Reflector(Mirror[JsonObject]):
    """A mirror that keeps whole objects, for small collections."""
