"""A URL becomes what it asks for: type, namespace, name, subresource, and the query of lists and writes."""

from collections.abc import Mapping
from dataclasses import dataclass

from dra_driver.apirules.status import ApiError, bad_request
from dra_driver.simulation.apiserver.resource_types import Registry, ResourceType
from dra_driver.simulation.apiserver.selectors import (
    Predicate,
    both,
    everything,
    field_selector,
    label_selector,
)


@dataclass(frozen=True, slots=True)
class Target:
    """What a path addresses: `namespace` None is all of them or no namespace, `name` None is the collection."""

    kind: ResourceType
    namespace: str | None
    name: str | None
    subresource: str

    @property
    def place(self) -> str:
        """The namespace as the store spells it."""
        return self.namespace or ""


def resolve(registry: Registry, path: str) -> Target | None:
    """None when nothing is served at `path`."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = None
    if rest[0] == "namespaces" and len(rest) > 2 and (rest[2] not in ("status", "finalize") or len(rest) > 3):
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
    return Target(kind, namespace, name, subresource)


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The query of a list, watch or collection delete."""

    watch: bool
    predicate: Predicate
    limit: int
    continue_token: str
    resource_version: str
    match: str
    timeout_s: float | None
    bookmarks: bool
    initial_events: bool

    @property
    def plain(self) -> bool:
        """Without selectors."""
        return self.predicate is everything


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
        predicate=both(
            label_selector(query.get("labelSelector", "")),
            field_selector(query.get("fieldSelector", ""), kind.selectable),
        ),
        limit=_number(query, "limit"),
        continue_token=query.get("continue", ""),
        resource_version=version,
        match=query.get("resourceVersionMatch", ""),
        timeout_s=float(_number(query, "timeoutSeconds")) or None,
        bookmarks=_flag(query, "allowWatchBookmarks"),
        initial_events=_flag(query, "sendInitialEvents"),
    )
