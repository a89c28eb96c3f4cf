"""Lists and watches: selection, pages, and streams of changes from a position in the history.

An object that starts to match a selector arrives as ADDED, one that stops as DELETED with its last matching state.
"""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from dra_driver.api.meta import JsonObject
from dra_driver.apirules.status import ApiError, bad_request, expired
from dra_driver.simulation.apiserver.requests import ListQuery, RequestTarget
from dra_driver.simulation.apiserver.store import Store, StoredVersion, StoreEvent, Subscription, encode

_CONTINUE_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter."
)


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list. `remaining` is None when unknown (a selector is in use) or nothing is left."""

    entries: list[StoredVersion]
    revision: int
    continue_token: str
    remaining: int | None


def list_page(store: Store, target: RequestTarget, query: ListQuery) -> Page:
    """One page of a list. Raises ApiError 410 when the list that the page belongs to was forgotten."""
    if query.continue_token:
        revision, start = _read_token(query.continue_token)
        entries = store.page(target.kind.key, revision)
        if entries is None:
            raise expired(_CONTINUE_EXPIRED)
        entries = entries[start:]
    else:
        revision, start = store.revision, 0
        entries = store.entries(target.kind.key)
    if not query.limit and not query.continue_token:
        return Page(_selected(entries, target, query), revision, "", None)
    return _cut(store, target, query, entries, revision, start)


def _cut(
    store: Store, target: RequestTarget, query: ListQuery, entries: list[StoredVersion], revision: int, start: int
) -> Page:
    taken: list[StoredVersion] = []
    for position, entry in enumerate(entries):
        if not _selects(entry, target, query):
            continue
        if query.limit and len(taken) == query.limit:
            if start == 0:
                store.keep_page(target.kind.key, revision, entries)
            rest = None
            if query.plain:
                rest = len(_selected(entries[position:], target, query))
            return Page(taken, revision, _token(revision, start + position), rest)
        taken.append(entry)
    return Page(taken, revision, "", None)


def _selects(entry: StoredVersion, target: RequestTarget, query: ListQuery) -> bool:
    if target.namespace is not None and entry.key[0] != target.namespace:
        return False
    return query.predicate(entry.obj)


def _selected(entries: list[StoredVersion], target: RequestTarget, query: ListQuery) -> list[StoredVersion]:
    if target.namespace is None and query.plain:
        return entries
    return [entry for entry in entries if _selects(entry, target, query)]


def _token(revision: int, start: int) -> str:
    return base64.urlsafe_b64encode(json.dumps({"rv": revision, "start": start}).encode()).decode()


def _read_token(token: str) -> tuple[int, int]:
    try:
        content = json.loads(base64.urlsafe_b64decode(token.encode()))
        return int(content["rv"]), int(content["start"])
    except (ValueError, KeyError, TypeError) as error:
        raise bad_request("continue key is not valid") from error


def list_metadata(page: Page) -> JsonObject:
    """The position of the list, and how to get the next page."""
    metadata: JsonObject = {"resourceVersion": str(page.revision)}
    if page.continue_token:
        metadata["continue"] = page.continue_token
        if page.remaining is not None:
            metadata["remainingItemCount"] = page.remaining
    return metadata


def list_document(target: RequestTarget, page: Page) -> bytes:
    """The List object, put together from the encoded entries."""
    resource = target.kind.resource
    head = json.dumps(
        {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": list_metadata(page)}
    )
    bare = not target.kind.custom
    items = b",".join(entry.encoded(resource.api_version, bare=bare) for entry in page.entries)
    return head[:-1].encode() + b',"items":[' + items + b"]}"


INITIAL_EVENTS_END = "k8s.io/initial-events-end"

type Encoder = Callable[[StoredVersion], bytes]
"""How an entry looks in this stream: as itself, as a table, as metadata only."""


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """Seconds between bookmarks, and how long a stream lasts when the client does not say."""

    bookmark_interval_s: float = 60.0
    timeout_s: float = 1800.0


def _line(event_type: str, obj: bytes) -> bytes:
    return b'{"type":"' + event_type.encode() + b'","object":' + obj + b"}\n"


def _bookmark(target: RequestTarget, revision: int, *, initial: bool) -> bytes:
    metadata: JsonObject = {"resourceVersion": str(revision), "creationTimestamp": None}
    if initial:
        metadata["annotations"] = {INITIAL_EVENTS_END: "true"}
    resource = target.kind.resource
    obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
    return _line("BOOKMARK", encode(obj))


def _relevant(event: StoreEvent, target: RequestTarget, query: ListQuery) -> tuple[str, StoredVersion] | None:
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


def _last_matching(event: StoreEvent) -> StoredVersion:
    previous = event.previous.obj if event.previous is not None else event.entry.obj
    metadata = {**previous["metadata"], "resourceVersion": str(event.entry.revision)}
    return StoredVersion({**previous, "metadata": metadata}, event.entry.revision)


class WatchStream:
    """One client's stream: `lines()` yields chunks of complete lines until the time is over or the server stops."""

    def __init__(
        self, store: Store, target: RequestTarget, query: ListQuery, encoder: Encoder, settings: WatchSettings
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

    def _wants(self, event: StoreEvent) -> bool:
        return _relevant(event, self._target, self._query) is not None

    def _first_lines(self) -> bytes:
        """Existing objects or the missed part of the history; later changes reach the subscription."""
        query, store = self._query, self._store
        self._sent_revision = store.revision
        if query.initial_events or query.resource_version in ("", "0"):
            entries = store.entries(self._target.kind.key)
            events = [StoreEvent(self._target.kind.key, "ADDED", entry, None) for entry in entries]
            lines = self._encoded(events)
            if query.initial_events and query.bookmarks:
                lines += _bookmark(self._target, store.revision, initial=True)
            return lines
        return self._encoded(store.since(self._target.kind.key, int(query.resource_version)))

    def _encoded(self, events: list[StoreEvent]) -> bytes:
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
