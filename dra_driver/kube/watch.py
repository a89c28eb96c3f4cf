"""A local copy of a collection that follows the server.

`Reflector` lists once, then watches from there; it starts over when the position expired (410), and comes back by
itself when the server was away. Readers look at `objects`; whoever must act gives an `on_change`. The copy is behind
the server by design: a decision made from it is guarded by resourceVersion when it is written.
"""

import asyncio
import random
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Never

import structlog

from dra_driver.api.meta import JsonObject, Resource
from dra_driver.errors import ClusterError, Gone
from dra_driver.kube.client import Kube

_log = structlog.get_logger(__name__)

type Key = tuple[str, str]
"""Namespace (empty for cluster-scoped objects) and name."""


def key_of(obj: JsonObject) -> Key:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


@dataclass(frozen=True, slots=True)
class Change:
    """`before` is None for a new object, `after` None for one that is gone."""

    key: Key
    before: JsonObject | None
    after: JsonObject | None


@dataclass(slots=True)
class Backoff:
    """Growing, jittered waits: half to all of `first_s`, doubled up to `longest_s`. `reset` after a success."""

    first_s: float = 0.2
    longest_s: float = 30.0
    _next_s: float = field(default=0.0, init=False)

    def next_s(self) -> float:
        self._next_s = min(self.longest_s, max(self.first_s, 2 * self._next_s))
        return self._next_s * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self._next_s = 0.0


class Reflector:
    """The objects of one collection, by key. `synced` is set once the first list is in, and stays set."""

    def __init__(
        self,
        kube: Kube,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str | None = None,
        field_selector: str | None = None,
        on_change: Callable[[Change], None] = lambda change: None,
        backoff: Backoff | None = None,
    ) -> None:
        self.objects: dict[Key, JsonObject] = {}
        self.synced = asyncio.Event()
        self._kube = kube
        self._resource = resource
        self._namespace = namespace
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._on_change = on_change
        self._backoff = backoff or Backoff()
        self._position: str | None = None

    async def run(self) -> Never:
        """Follow the server until cancelled."""
        while True:
            try:
                if self._position is None:
                    await self._list()
                await self._watch()
            except Gone:
                self._position = None
            except ClusterError as error:
                wait_s = max(self._backoff.next_s(), error.retry_after_s or 0.0)
                _log.warning(
                    "watch interrupted", resource=self._resource.plural, error=str(error), retry_s=round(wait_s, 1)
                )
                # A server that was away may have been restored from elsewhere: only a list tells what is true now.
                self._position = None
                await asyncio.sleep(wait_s)

    async def _list(self) -> None:
        listing = await self._kube.list(
            self._resource,
            namespace=self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
        )
        present = {key_of(obj): obj for obj in listing.items}
        for key in self.objects.keys() - present.keys():
            self._set(key, None)
        for key, obj in present.items():
            self._set(key, obj)
        self._position = listing.resource_version
        self._backoff.reset()
        self.synced.set()

    async def _watch(self) -> None:
        assert self._position is not None
        events = self._kube.watch(
            self._resource,
            namespace=self._namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            resource_version=self._position,
        )
        async with aclosing(events):
            async for event in events:
                self._backoff.reset()
                self._position = event.object["metadata"]["resourceVersion"]
                if event.type != "BOOKMARK":
                    self._set(key_of(event.object), None if event.type == "DELETED" else event.object)

    def _set(self, key: Key, after: JsonObject | None) -> None:
        before = self.objects.get(key)
        if after is None:
            if before is None:
                return
            del self.objects[key]
        else:
            if before is not None and _version(before) == _version(after):
                return
            self.objects[key] = after
        self._on_change(Change(key, before, after))


def _version(obj: JsonObject) -> str:
    return str(obj["metadata"].get("resourceVersion"))
