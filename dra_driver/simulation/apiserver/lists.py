"""Reads: a URL becomes what it asks for, and that a list, a page of one, or a stream of changes from a position on.

An object that starts to match a selector arrives as ADDED, one that stops as DELETED with its last matching state.
Source of the grammar of selectors: Kubernetes' "Labels and Selectors"; selectable fields: `resource_types.py`.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from dra_driver.api.meta import JsonObject
from dra_driver.api.untyped import Path, value_at
from dra_driver.apirules.status import ApiError, bad_request, expired
from dra_driver.simulation.apiserver.resource_types import ResourceType, TypeRegistry
from dra_driver.simulation.apiserver.store import Store, StoredVersion, StoreEvent, encode

type Predicate = Callable[[JsonObject], bool]


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """What a path addresses: `namespace` None is all of them or no namespace, `name` None is the collection."""

    kind: ResourceType
    namespace: str | None
    name: str | None
    subresource: str

    @property
    def place(self) -> str:
        """The namespace as the store spells it."""
        return self.namespace or ""


def resolve(registry: TypeRegistry, path: str) -> RequestTarget | None:
    """None when nothing is served at `path`."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = None
    if rest[0] == "namespaces" and len(rest) > 2 and (rest[2] != "status" or len(rest) > 3):
        namespace, rest = rest[1], rest[2:]
    kind = registry.find(group, version, rest[0])
    if kind is None or len(rest) > 3 or (namespace is not None and not kind.resource.namespaced):
        return None
    name = rest[1] if len(rest) > 1 else None
    subresource = rest[2] if len(rest) > 2 else ""
    if subresource and subresource not in kind.subresources:
        return None
    if name is not None and kind.resource.namespaced and namespace is None:
        return None
    return RequestTarget(kind, namespace, name, subresource)


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The query of a list, watch or collection delete."""

    watch: bool
    terms: tuple[Predicate, ...]
    """Of its selectors: an object must satisfy all of them."""
    limit: int
    continue_token: str
    resource_version: str
    timeout_s: float | None
    bookmarks: bool
    initial_events: bool

    def selects(self, obj: JsonObject) -> bool:
        return all(term(obj) for term in self.terms)


def _flag(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "").lower() in ("1", "true")


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name) or "0"
    if not text.isdigit():
        raise bad_request(f"invalid value for {name}: {text!r}")
    return int(text)


def list_query(kind: ResourceType, query: Mapping[str, str]) -> ListQuery:
    """Raises ApiError 400 for values that cannot be read."""
    version, watch = query.get("resourceVersion", ""), _flag(query, "watch")
    if version and not version.isdigit():
        message = f'resourceVersion: Invalid value: "{version}": not a number'
        raise ApiError(500, message, reason="") if watch else bad_request(message)
    return ListQuery(
        watch=watch,
        terms=(
            *_label_terms(query.get("labelSelector", "")),
            *_field_terms(query.get("fieldSelector", ""), kind.selectable),
        ),
        limit=_number(query, "limit"),
        continue_token=query.get("continue", ""),
        resource_version=version,
        timeout_s=float(_number(query, "timeoutSeconds")) or None,
        bookmarks=_flag(query, "allowWatchBookmarks"),
        initial_events=_flag(query, "sendInitialEvents"),
    )


_IN_SET = re.compile(r"^(?P<key>\S+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)$")
_EQUALITY = re.compile(r"^(?P<key>[^=!<>\s]+)\s*(?P<op>==|!=|=)\s*(?P<value>[^=!<>\s]*)$")
_COMMA = re.compile(r",(?![^(]*\))")
"""Outside parentheses."""
_EXISTS = re.compile(r"^(?P<absent>!\s*)?(?P<key>[A-Za-z0-9][-A-Za-z0-9_./]*)$")


def _label_terms(text: str) -> Iterator[Predicate]:
    """Raises ApiError 400 for text that is no selector."""
    for part in filter(None, (part.strip() for part in _COMMA.split(text))):
        if match := _IN_SET.match(part):
            values = {value.strip() for value in match["values"].split(",")}
            yield partial(_has_label, match["key"], values, match["op"] == "in")
        elif match := _EQUALITY.match(part):
            yield partial(_has_label, match["key"], {match["value"]}, match["op"] != "!=")
        elif match := _EXISTS.match(part):
            yield partial(_has_label, match["key"], {None}, match["absent"] is not None)
        else:
            raise bad_request(f"unable to parse requirement: found {part!r}, expected: a label selector")


def _has_label(key: str, values: Container[str | None], among: bool, obj: JsonObject) -> bool:
    """Whether the label's value, None if it is absent, is one of `values`; not `among`: whether it is none of them."""
    return ((obj["metadata"].get("labels") or {}).get(key) in values) is among


def _field_terms(text: str, allowed: Sequence[str]) -> Iterator[Predicate]:
    """Raises ApiError 400 for text that is no selector, or for a field outside `allowed`."""
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _EQUALITY.match(part)
        if match is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
        if match["key"] not in allowed:
            raise bad_request(f"field label not supported: {match['key']}")
        yield partial(_has_field, tuple(match["key"].split(".")), match["value"], match["op"] != "!=")


def _has_field(path: Path, wanted: str, equal: bool, obj: JsonObject) -> bool:
    """Compared as the server does: absent is the empty string."""
    value = value_at(obj, path)
    text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return (text == wanted) is equal


# -- lists

_CONTINUE_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter."
)


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list. `remaining` is None when unknown (a selector is in use) or nothing is left."""

    entries: list[StoredVersion]
    revision: int
    continue_token: str = ""
    remaining: int | None = None


def list_page(store: Store, target: RequestTarget, query: ListQuery) -> Page:
    """One page of a list. Raises ApiError 410 when the list that the page belongs to was forgotten."""
    revision, start, known = store.revision, 0, None
    if query.continue_token:
        revision, start = _read_token(query.continue_token)
        known = store.page(target.kind.key, revision)
        if known is None:
            raise expired(_CONTINUE_EXPIRED)
    entries = known if known is not None else store.entries(target.kind.key)
    matching = entries
    if target.namespace is not None or query.terms:
        in_place = (entry for entry in entries if target.namespace in (None, entry.key[0]))
        matching = [entry for entry in in_place if query.selects(entry.obj)]
    end = start + query.limit
    if not query.limit or end >= len(matching):
        return Page(matching[start:], revision)
    store.keep_page(target.kind.key, revision, entries)
    rest = len(matching) - end if not query.terms else None
    return Page(matching[start:end], revision, f"{revision}.{end}", rest)


def _read_token(token: str) -> tuple[int, int]:
    try:
        revision, start = map(int, token.split("."))
    except ValueError as error:
        raise bad_request("continue key is not valid") from error
    return revision, start


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


# -- watches

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


_WATCH_S = 1800.0
"""How long a stream lasts when the client does not say."""


def _line(event_type: str, obj: bytes) -> bytes:
    return b'{"type":"' + event_type.encode() + b'","object":' + obj + b"}\n"


def _bookmark(target: RequestTarget, revision: int, *, initial: bool) -> bytes:
    metadata: JsonObject = {"resourceVersion": str(revision), "creationTimestamp": None}
    if initial:
        metadata["annotations"] = {INITIAL_EVENTS_END: "true"}
    resource = target.kind.resource
    obj = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata}
    return _line("BOOKMARK", encode(obj))


def _seen(event: StoreEvent, target: RequestTarget, query: ListQuery) -> tuple[str, StoredVersion] | None:
    """What a watcher with these selectors sees of a change: the event's type and the object; None for nothing."""
    namespace, name = event.entry.key
    if target.namespace not in (None, namespace) or target.name not in (None, name):
        return None
    if not query.terms:
        return event.type, event.entry
    after = event.type != "DELETED" and query.selects(event.entry.obj)
    before = event.previous is not None and query.selects(event.previous.obj)
    if after:
        return ("MODIFIED" if before else "ADDED"), event.entry
    if not before or event.previous is None:
        return None
    return "DELETED", event.previous.at(event.entry.revision)


async def watch_lines(
    store: Store,
    target: RequestTarget,
    query: ListQuery,
    encoder: Callable[[StoredVersion], bytes],
    bookmark_interval_s: float,
) -> AsyncGenerator[bytes]:
    """One client's stream: chunks of complete lines, until the time is over or the server stops. `encoder` gives an
    entry the look that the client wants: as itself, as a table, as metadata only."""
    key, seen = target.kind.key, partial(_seen, target=target, query=query)

    def lines(events: list[StoreEvent]) -> bytes:
        return b"".join(_line(item[0], encoder(item[1])) for event in events if (item := seen(event)) is not None)

    # What changes from here on reaches the subscription; before it come the objects, or the missed part of the history.
    subscription = store.subscribe(key, lambda event: seen(event) is not None)
    try:
        if query.initial_events or query.resource_version in ("", "0"):
            first = lines([StoreEvent(key, "ADDED", entry, None) for entry in store.entries(key)])
            if query.initial_events and query.bookmarks:
                first += _bookmark(target, store.revision, initial=True)
        else:
            try:
                first = lines(store.since(key, int(query.resource_version)))
            except ApiError as error:
                yield _line("ERROR", encode(error.to_status()))
                return
        if first:
            yield first
        clock = asyncio.get_running_loop().time
        end = clock() + (query.timeout_s or _WATCH_S)
        bookmark_at = clock() + bookmark_interval_s
        while not subscription.closed and (now := clock()) < end:
            chunk = lines(await subscription.next_batch(max(0.0, min(end, bookmark_at) - now)))
            if clock() >= min(bookmark_at, end):
                bookmark_at = clock() + bookmark_interval_s
                if query.bookmarks:
                    chunk += _bookmark(target, store.revision, initial=False)
            if chunk:
                yield chunk
    finally:
        store.unsubscribe(key, subscription)
