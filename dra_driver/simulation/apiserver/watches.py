"""Watch streams: from a position in the history, through selectors, to lines of JSON.

An object that starts to match a selector arrives as ADDED, one that stops as DELETED with its last matching state.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from dra_driver.api.meta import JsonObject
from dra_driver.apirules.status import ApiError
from dra_driver.simulation.apiserver.requests import ListQuery, Target
from dra_driver.simulation.apiserver.store import Entry, Event, Store, Subscription, encode

INITIAL_EVENTS_END = "k8s.io/initial-events-end"

type Encoder = Callable[[Entry], bytes]
"""How an entry looks in this stream: as itself, as a table, as metadata only."""


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """Seconds between bookmarks, and how long a stream lasts when the client does not say."""

    bookmark_interval_s: float = 60.0
    timeout_s: float = 1800.0


def _line(event_type: str, obj: bytes) -> bytes:
    return b'{"type":"' + event_type.encode() + b'","object":' + obj + b"}\n"


def _bookmark(target: Target, revision: int, *, initial: bool) -> bytes:
    metadata: JsonObject = {"resourceVersion": str(revision), "creationTimestamp": None}
    if initial:
        metadata["annotations"] = {INITIAL_EVENTS_END: "true"}
    resource = target.kind.resource
    obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
    return _line("BOOKMARK", encode(obj))


def _relevant(event: Event, target: Target, query: ListQuery) -> tuple[str, Entry] | None:
    """What a watcher with these selectors sees of a change: the event's type and the object; None for nothing."""
    if target.namespace is not None and event.entry.key[0] != target.namespace:
        return None
    if target.name is not None and event.entry.key[1] != target.name:
        return None
    if query.plain:
        return event.type, event.entry
    after = event.type != "DELETED" and query.predicate(event.entry.obj)
    before = event.previous is not None and query.predicate(event.previous.obj)
    if after:
        return ("MODIFIED" if before else "ADDED"), event.entry
    if not before or event.previous is None:
        return None
    return "DELETED", event.entry if event.type == "DELETED" else _last_matching(event)


def _last_matching(event: Event) -> Entry:
    previous = event.previous.obj if event.previous is not None else event.entry.obj
    metadata = {**previous["metadata"], "resourceVersion": str(event.entry.revision)}
    return Entry({**previous, "metadata": metadata}, event.entry.revision)


class WatchStream:
    """One client's stream: `lines()` yields chunks of complete lines until the time is over or the server stops."""

    def __init__(
        self, store: Store, target: Target, query: ListQuery, encoder: Encoder, settings: WatchSettings
    ) -> None:
        self._store = store
        self._target = target
        self._query = query
        self._encoder = encoder
        self._settings = settings
        self._sent_revision = 0

    async def lines(self) -> AsyncGenerator[bytes]:
        key = self._target.kind.key
        subscription = self._store.subscribe(key, self._wants)
        try:
            try:
                first = self._first_lines()
            except ApiError as error:
                yield _line("ERROR", encode(error.to_status()))
                return
            if first:
                yield first
            async for chunk in self._live(subscription):
                yield chunk
        finally:
            self._store.unsubscribe(key, subscription)

    def _wants(self, event: Event) -> bool:
        return _relevant(event, self._target, self._query) is not None

    def _first_lines(self) -> bytes:
        """Existing objects or the missed part of the history; whatever happens later reaches the subscription."""
        query, store = self._query, self._store
        self._sent_revision = store.revision
        wants_state = query.resource_version in ("", "0")
        if query.initial_events or (wants_state and not query.match):
            entries = store.entries(self._target.kind.key)
            events = [Event(self._target.kind.key, "ADDED", entry, None) for entry in entries]
            lines = self._encoded(events)
            if query.initial_events and query.bookmarks:
                lines += _bookmark(self._target, store.revision, initial=True)
            return lines
        return self._encoded(store.since(self._target.kind.key, int(query.resource_version)))

    def _encoded(self, events: list[Event]) -> bytes:
        lines = []
        for event in events:
            seen = _relevant(event, self._target, self._query)
            if seen is not None:
                lines.append(_line(seen[0], self._encoder(seen[1])))
        return b"".join(lines)

    async def _live(self, subscription: Subscription) -> AsyncGenerator[bytes]:
        clock = asyncio.get_running_loop().time
        end = clock() + (self._query.timeout_s or self._settings.timeout_s)
        bookmark_at = clock() + self._settings.bookmark_interval_s
        while not subscription.closed and (now := clock()) < end:
            batch = await subscription.next_batch(max(0.0, min(end, bookmark_at) - now))
            lines = self._encoded([event for event in batch if event.entry.revision > self._sent_revision])
            if batch:
                self._sent_revision = max(self._sent_revision, batch[-1].entry.revision)
            if clock() >= min(bookmark_at, end):
                bookmark_at = clock() + self._settings.bookmark_interval_s
                if self._query.bookmarks:
                    lines += _bookmark(self._target, self._store.revision, initial=False)
            if lines:
                yield lines
