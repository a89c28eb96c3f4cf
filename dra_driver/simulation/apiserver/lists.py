"""Lists: selection, pages, and the position in the history from which a watch may go on."""

import base64
import json
from dataclasses import dataclass

from dra_driver.api.meta import JsonObject
from dra_driver.apirules.status import ApiError, bad_request, expired
from dra_driver.simulation.apiserver.requests import ListQuery, Target
from dra_driver.simulation.apiserver.store import Entry, Store

_CONTINUE_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter."
)


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a list. `remaining` is None when unknown (a selector is in use) or nothing is left."""

    entries: list[Entry]
    revision: int
    continue_token: str
    remaining: int | None


def list_page(store: Store, target: Target, query: ListQuery) -> Page:
    """One page of a list. Raises ApiError 410 when the list that the page belongs to was forgotten."""
    if query.continue_token:
        revision, start = _read_token(query.continue_token)
        entries = store.page(target.kind.key, revision)
        if entries is None:
            raise expired(_CONTINUE_EXPIRED)
        entries = entries[start:]
    else:
        _check_position(store, query)
        revision, start = store.revision, 0
        entries = store.entries(target.kind.key)
    if not query.limit and not query.continue_token:
        return Page(_selected(entries, target, query), revision, "", None)
    return _cut(store, target, query, entries, revision, start)


def _cut(store: Store, target: Target, query: ListQuery, entries: list[Entry], revision: int, start: int) -> Page:
    taken: list[Entry] = []
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


def _selects(entry: Entry, target: Target, query: ListQuery) -> bool:
    if target.namespace is not None and entry.key[0] != target.namespace:
        return False
    return query.predicate(entry.obj)


def _selected(entries: list[Entry], target: Target, query: ListQuery) -> list[Entry]:
    if target.namespace is None and query.plain:
        return entries
    return [entry for entry in entries if _selects(entry, target, query)]


def _check_position(store: Store, query: ListQuery) -> None:
    if not query.resource_version:
        if query.match:
            raise bad_request("resourceVersionMatch is forbidden unless resourceVersion is provided")
        return
    wanted = int(query.resource_version)
    if query.match == "Exact" and wanted != store.revision:
        raise expired(f"The resourceVersion for the provided list is too old: {wanted}")
    if wanted > store.revision:
        raise ApiError(
            504,
            f"Timeout: Too large resource version: {wanted}, current: {store.revision}",
            details={
                "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
                "retryAfterSeconds": 1,
            },
        )


def _token(revision: int, start: int) -> str:
    return base64.urlsafe_b64encode(json.dumps({"rv": revision, "start": start}).encode()).decode()


def _read_token(token: str) -> tuple[int, int]:
    try:
        content = json.loads(base64.urlsafe_b64decode(token.encode()))
        return int(content["rv"]), int(content["start"])
    except (ValueError, KeyError, TypeError) as error:
        raise bad_request("continue key is not valid") from error


def list_metadata(page: Page) -> JsonObject:
    """The position of the list, and how to go on."""
    metadata: JsonObject = {"resourceVersion": str(page.revision)}
    if page.continue_token:
        metadata["continue"] = page.continue_token
        if page.remaining is not None:
            metadata["remainingItemCount"] = page.remaining
    return metadata


def list_document(target: Target, page: Page) -> bytes:
    """The List object, put together from the encoded entries."""
    resource = target.kind.resource
    head = json.dumps(
        {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": list_metadata(page)}
    )
    bare = not target.kind.custom
    items = b",".join(entry.encoded(resource.api_version, bare=bare) for entry in page.entries)
    return head[:-1].encode() + b',"items":[' + items + b"]}"
