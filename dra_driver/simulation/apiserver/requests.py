"""A URL becomes what it asks for: type, namespace, name, subresource, and the query of lists with its selectors.

Source of the grammar of selectors: Kubernetes' "Labels and Selectors"; selectable fields: `resource_types.py`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra_driver.api.meta import JsonObject
from dra_driver.apirules.status import ApiError, bad_request
from dra_driver.simulation.apiserver.resource_types import ResourceType, TypeRegistry

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
    predicate: Predicate
    limit: int
    continue_token: str
    resource_version: str
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
        timeout_s=float(_number(query, "timeoutSeconds")) or None,
        bookmarks=_flag(query, "allowWatchBookmarks"),
        initial_events=_flag(query, "sendInitialEvents"),
    )


_IN_SET = re.compile(r"^(?P<key>\S+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)$")
_EQUALITY = re.compile(r"^(?P<key>[^=!<>\s]+)\s*(?P<op>==|!=|=)\s*(?P<value>[^=!<>\s]*)$")
_COMMA = re.compile(r",(?![^(]*\))")
"""Outside parentheses."""
_EXISTS = re.compile(r"^(?P<absent>!\s*)?(?P<key>[A-Za-z0-9][-A-Za-z0-9_./]*)$")


def everything(_obj: JsonObject) -> bool:
    """The predicate of an empty selector."""
    return True


def label_selector(text: str) -> Predicate:
    """Raises ApiError 400 for text that is no selector."""
    terms = [_label_term(term.strip()) for term in _COMMA.split(text) if term.strip()]
    if not terms:
        return everything

    def matches(obj: JsonObject) -> bool:
        labels = obj["metadata"].get("labels") or {}
        return all(term(labels) for term in terms)

    return matches


def _label_term(term: str) -> Callable[[dict[str, str]], bool]:
    if match := _IN_SET.match(term):
        key, values = match["key"], {value.strip() for value in match["values"].split(",")}
        if match["op"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if match := _EQUALITY.match(term):
        key, op, value = match["key"], match["op"], match["value"]
        return lambda labels: (labels.get(key) == value) is (op != "!=")
    if match := _EXISTS.match(term):
        key, absent = match["key"], match["absent"] is not None
        return lambda labels: (key in labels) is not absent
    raise bad_request(f"unable to parse requirement: found {term!r}, expected: a label selector")


def _field(obj: Any, path: Sequence[str]) -> str:
    """A selectable field as the server compares it: absent is the empty string."""
    for name in path:
        obj = obj.get(name) if isinstance(obj, dict) else None
    return "" if obj is None else str(obj).lower() if isinstance(obj, bool) else str(obj)


def field_selector(text: str, allowed: Sequence[str]) -> Predicate:
    """Raises ApiError 400 for text that is no selector, or for a field outside `allowed`."""
    terms: list[tuple[list[str], bool, str]] = []
    for term in filter(None, (part.strip() for part in text.split(","))):
        match = _EQUALITY.match(term)
        if match is None:
            raise bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        if match["key"] not in allowed:
            raise bad_request(f"field label not supported: {match['key']}")
        terms.append((match["key"].split("."), match["op"] != "!=", match["value"]))
    if not terms:
        return everything
    return lambda obj: all((_field(obj, path) == wanted) is equal for path, equal, wanted in terms)


def both(first: Predicate, second: Predicate) -> Predicate:
    """An object must satisfy both."""
    if first is everything:
        return second
    return first if second is everything else lambda obj: first(obj) and second(obj)
