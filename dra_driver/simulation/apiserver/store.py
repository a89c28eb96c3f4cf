"""All objects, one global revision, and the history that watches read.

Objects in the store are never changed in place: a write puts a new dict. So an entry's encoded bytes are made once and
shared by every list and watch, and a list that is being paged keeps seeing the state it began with.
"""

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dra_driver.api.meta import JsonObject
from dra_driver.apirules.status import expired
from dra_driver.runtime.tasks import until

type TypeKey = tuple[str, str]
"""API group and plural: versions of one type share their objects."""

type ObjectKey = tuple[str, str]
"""Namespace (empty for cluster-scoped objects) and name."""


def encode(obj: object) -> bytes:
    """Compact JSON."""
    return json.dumps(obj, separators=(",", ":"), ensure_ascii=False).encode()


EVENTS_API = "events.k8s.io/v1"
_EVENT_NAMES: Mapping[str, str] = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
"""Fields of events.k8s.io/v1 by their names in the core group, in whose form events are stored."""


_SERVED_NAMES = {stored: served for served, stored in _EVENT_NAMES.items()}


def stored_event(obj: JsonObject) -> JsonObject:
    """An event of events.k8s.io/v1 in the form of the core group."""
    return {_EVENT_NAMES.get(name, name): value for name, value in obj.items()}


@dataclass(slots=True)
class StoredVersion:
    """One version of one object; `obj` must not be changed."""

    obj: JsonObject
    revision: int
    _encoded: dict[tuple[str, bool], bytes] = field(default_factory=dict)

    @property
    def key(self) -> ObjectKey:
        metadata = self.obj["metadata"]
        return metadata.get("namespace", ""), metadata["name"]

    def at(self, revision: int) -> "StoredVersion":
        """The same content under another revision."""
        metadata = {**self.obj["metadata"], "resourceVersion": str(revision)}
        return StoredVersion({**self.obj, "metadata": metadata}, revision)

    def served_as(self, api_version: str, *, bare: bool = False) -> JsonObject:
        """The object in the shape of one of its versions; the stored dict itself where nothing differs.

        `bare` leaves out version and kind, as the lists of built-in types do.
        """
        if self.obj["apiVersion"] == api_version and not bare:
            return self.obj
        names = _SERVED_NAMES if api_version == EVENTS_API else {}
        served = {names.get(name, name): value for name, value in self.obj.items()} | {"apiVersion": api_version}
        return {name: value for name, value in served.items() if not (bare and name in ("apiVersion", "kind"))}

    def encoded(self, api_version: str, *, bare: bool = False) -> bytes:
        """JSON of `served_as`, made once."""
        key = api_version, bare
        content = self._encoded.get(key)
        if content is None:
            content = self._encoded[key] = encode(self.served_as(api_version, bare=bare))
        return content


@dataclass(slots=True)
class StoreEvent:
    """A change: `entry` after it (for DELETED the last state), `previous` before it (None for ADDED)."""

    type_key: TypeKey
    type: str
    entry: StoredVersion
    previous: StoredVersion | None


class Subscription:
    """The changes of one type since it was opened, in order, as far as the reader wants them. Read by one task.

    Wanting is asked before the reader is woken: with a thousand kubelets, each change concerns one or two.
    """

    def __init__(self, wants: Callable[[StoreEvent], bool]) -> None:
        self._wants = wants
        self._events: deque[StoreEvent] = deque()
        self._wake = asyncio.Event()
        self.closed = False

    def push(self, event: StoreEvent) -> None:
        if not self._wants(event):
            return
        self._events.append(event)
        self._wake.set()

    def close(self) -> None:
        """Ends the reader: the server stops, or the type is gone."""
        self.closed = True
        self._wake.set()

    async def next_batch(self, timeout_s: float) -> list[StoreEvent]:
        """All changes that are waiting; an empty list after `timeout_s` or when closed."""
        if not self._events and not self.closed:
            await until(self._wake, timeout_s)
        self._wake.clear()
        batch = list(self._events)
        self._events.clear()
        return batch


class Store:
    """`history_size` is how many changes watches may look back; older positions answer 410."""

    def __init__(self, *, history_size: int = 20_000) -> None:
        self.revision = 1
        self.history_size = history_size
        self.compacted_revision = 0
        self._objects: dict[TypeKey, dict[ObjectKey, StoredVersion]] = {}
        self._sorted: dict[TypeKey, list[ObjectKey]] = {}
        self._history: deque[StoreEvent] = deque()
        self._subscriptions: dict[TypeKey, set[Subscription]] = {}
        self._pages: dict[tuple[TypeKey, int], list[StoredVersion]] = {}

    def get(self, type_key: TypeKey, namespace: str, name: str) -> StoredVersion | None:
        return self._objects.get(type_key, {}).get((namespace, name))

    def entries(self, type_key: TypeKey, namespace: str | None = None) -> list[StoredVersion]:
        """Sorted by namespace and name; `namespace` None means all."""
        objects = self._objects.get(type_key, {})
        order = self._sorted.get(type_key)
        if order is None:
            # By the joined key, as in etcd: namespace a-b comes before namespace a.
            order = self._sorted[type_key] = sorted(objects, key="/".join)
        if namespace is None:
            return [objects[key] for key in order]
        return [objects[key] for key in order if key[0] == namespace]

    def put(self, type_key: TypeKey, obj: JsonObject) -> StoredVersion:
        """Stores `obj` under a new revision, which becomes its resourceVersion. The store owns `obj` from now on."""
        self.revision += 1
        obj["metadata"]["resourceVersion"] = str(self.revision)
        entry = StoredVersion(obj, self.revision)
        objects = self._objects.setdefault(type_key, {})
        previous = objects.get(entry.key)
        if previous is None:
            self._sorted.pop(type_key, None)
        objects[entry.key] = entry
        self._publish(StoreEvent(type_key, "MODIFIED" if previous else "ADDED", entry, previous))
        return entry

    def remove(self, type_key: TypeKey, namespace: str, name: str) -> StoredVersion:
        """Takes the object out; the answer is its last state under the revision of the deletion."""
        previous = self._objects[type_key].pop((namespace, name))
        self._sorted.pop(type_key, None)
        self.revision += 1
        entry = previous.at(self.revision)
        self._publish(StoreEvent(type_key, "DELETED", entry, previous))
        return entry

    def _publish(self, event: StoreEvent) -> None:
        self._history.append(event)
        while len(self._history) > self.history_size:
            self.compacted_revision = self._history.popleft().entry.revision
        for subscription in self._subscriptions.get(event.type_key, ()):
            subscription.push(event)

    def compact(self) -> None:
        """Forgets all history and all open list pages, as etcd's compaction does."""
        self._history.clear()
        self._pages.clear()
        self.compacted_revision = self.revision

    def since(self, type_key: TypeKey, revision: int) -> list[StoreEvent]:
        """The changes after `revision`. Raises ApiError 410 when the history does not reach back that far."""
        if revision < self.compacted_revision:
            raise expired(f"too old resource version: {revision} ({self.compacted_revision})")
        events: list[StoreEvent] = []
        for event in reversed(self._history):
            if event.entry.revision <= revision:
                break
            if event.type_key == type_key:
                events.append(event)
        events.reverse()
        return events

    def subscribe(self, type_key: TypeKey, wants: Callable[[StoreEvent], bool]) -> Subscription:
        """Opens a subscription; close it with `unsubscribe`."""
        subscription = Subscription(wants)
        self._subscriptions.setdefault(type_key, set()).add(subscription)
        return subscription

    def unsubscribe(self, type_key: TypeKey, subscription: Subscription) -> None:
        self._subscriptions.get(type_key, set()).discard(subscription)

    def close_subscriptions(self, type_key: TypeKey | None = None) -> None:
        """Ends the watches of one type, or of all."""
        for key, subscriptions in self._subscriptions.items():
            if type_key in (None, key):
                for subscription in list(subscriptions):
                    subscription.close()

    def keep_page(self, type_key: TypeKey, revision: int, entries: list[StoredVersion]) -> None:
        """Keeps a list that a client pages through; a limited number of them, oldest forgotten first."""
        self._pages[type_key, revision] = entries
        while len(self._pages) > 64:
            del self._pages[next(iter(self._pages))]

    def page(self, type_key: TypeKey, revision: int) -> list[StoredVersion] | None:
        """The list as it was at `revision`, or None when it was forgotten."""
        return self._pages.get((type_key, revision))
