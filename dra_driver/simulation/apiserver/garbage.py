"""What follows a deletion in the background: dependents go after their owner, and content with its namespace.

On a real cluster this is the work of two controllers; here it runs right after the write that caused it, before the
next request. An owner is the object of that name only if its UID is the one in the reference.
"""

import asyncio
from collections import deque

from dra_driver.api.meta import JsonObject
from dra_driver.simulation.apiserver.objects import NAMESPACE_KEY, DeleteOptions, ObjectService, WriteOptions, copied
from dra_driver.simulation.apiserver.resource_types import ResourceType
from dra_driver.simulation.apiserver.store import StoredVersion, TypeKey

type _Place = tuple[TypeKey, str, str]
"""Type, namespace, name."""

_COLLECTOR = WriteOptions()


class GarbageCollector:
    """Follows all writes of `objects`, which happen in a running event loop."""

    def __init__(self, objects: ObjectService) -> None:
        self._objects = objects
        self._dependents: dict[str, set[_Place]] = {}
        """What has or had an owner, by the owner's UID."""
        self._waiting: deque[tuple[_Place, str, bool]] = deque()
        self._scheduled = False
        objects.followers.append(self._follow)

    def _wake(self) -> None:
        if self._waiting and not self._scheduled:
            asyncio.get_running_loop().call_soon(self._run)
            self._scheduled = True

    def _follow(self, kind: ResourceType, obj: JsonObject, gone: bool) -> None:
        metadata = obj["metadata"]
        place = (kind.key, metadata.get("namespace", ""), metadata["name"])
        owners = metadata.get("ownerReferences") or ()
        for owner in owners:
            self._dependents.setdefault(owner["uid"], set()).add(place)
        if owners or gone or metadata.get("deletionTimestamp") is not None:
            self._waiting.append((place, metadata["uid"], gone))
            self._wake()

    def _run(self) -> None:
        self._scheduled = False
        for _ in range(len(self._waiting)):
            place, uid, gone = self._waiting.popleft()
            if not gone:
                self._look_at(place)
                continue
            for dependent in sorted(self._dependents.pop(uid, ())):
                self._look_at(dependent)
            if place[1]:
                self._look_at((NAMESPACE_KEY, "", place[1]))
        self._wake()

    def _look_at(self, place: _Place) -> None:
        entry = self._objects.store.get(*place)
        kind = self._objects.registry.of_key(place[0])
        if entry is None or kind is None:
            return
        metadata = entry.obj["metadata"]
        if metadata.get("deletionTimestamp") is None:
            self._judge(kind, entry)
        elif place[0] == NAMESPACE_KEY:
            self._empty_namespace(kind, entry)

    def _judge(self, kind: ResourceType, entry: StoredVersion) -> None:
        """Deletes an object all of whose owners are gone; takes away references to some that are."""
        references = entry.obj["metadata"].get("ownerReferences") or []
        alive = [reference for reference in references if self._is_there(reference, kind, entry)]
        if not references or len(alive) == len(references):
            return
        if not alive:
            self._objects.delete(kind, *entry.key, DeleteOptions())
            return
        obj = copied(entry)
        obj["metadata"]["ownerReferences"] = alive
        self._objects.change(kind, entry, obj, "", _COLLECTOR)

    def _is_there(self, reference: JsonObject, kind: ResourceType, entry: StoredVersion) -> bool:
        """False only when it is certain: the owner's type is served and no object of that name has that UID."""
        owner_kind = self._objects.registry.of_kind(reference["apiVersion"], reference["kind"])
        if owner_kind is None or (owner_kind.resource.namespaced and not kind.resource.namespaced):
            return True
        namespace = entry.key[0] if owner_kind.resource.namespaced else ""
        owner = self._objects.store.get(owner_kind.key, namespace, reference["name"])
        return owner is not None and owner.obj["metadata"]["uid"] == reference["uid"]

    def _empty_namespace(self, kind: ResourceType, entry: StoredVersion) -> None:
        """Deletes all content, once; the namespace goes with the last of it."""
        name, remains = entry.key[1], False
        for content_kind in {resource_type.key: resource_type for resource_type in self._objects.registry}.values():
            for content in self._objects.store.entries(content_kind.key, name):
                if content.obj["metadata"].get("deletionTimestamp") is None:
                    self._objects.delete(content_kind, *content.key, DeleteOptions())
                remains = remains or self._objects.store.get(content_kind.key, *content.key) is not None
        if not remains:
            self._objects.remove(kind, entry)
