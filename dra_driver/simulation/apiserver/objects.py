"""Create, read, update, patch and delete: the rules that hold for objects of every type.

Called by the HTTP handlers, one call a request; nothing here awaits, so each call is atomic. What differs between types
(validation, immutable fields, dropped fields) is asked of `rules.py`.
"""

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from dra_driver.api.meta import JsonObject
from dra_driver.simulation.apiserver.decode import Decoder, copy_json
from dra_driver.simulation.apiserver.feature_gates import FeatureGates
from dra_driver.simulation.apiserver.resource_types import Registry, ResourceType
from dra_driver.simulation.apiserver.rules import Rules, Situation
from dra_driver.simulation.apiserver.status import (
    MODIFIED,
    ApiError,
    Problem,
    already_exists,
    bad_request,
    conflict,
    denied,
    invalid_object,
    not_found,
)
from dra_driver.simulation.apiserver.store import Entry, Store

_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_LONGEST_BASE = 58
_SERVER_OWNED = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink")


def timestamp(moment: datetime) -> str:
    """RFC 3339 with seconds, as metav1.Time."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Query parameters of a write. `warnings` collects what goes into Warning headers."""

    dry_run: bool = False
    field_validation: str = "Warn"
    field_manager: str = "unknown"
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """Body and query of a delete; None where the client said nothing."""

    grace_period_s: int | None = None
    propagation: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False


class Objects:
    """All reads and writes go through here. `now` is the wall clock."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        rules: Rules,
        gates: FeatureGates,
        minor: int,
        now: Callable[[], datetime],
    ) -> None:
        self.store = store
        self.registry = registry
        self.rules = rules
        self.gates = gates
        self.minor = minor
        self.now = now

    def get(self, kind: ResourceType, namespace: str, name: str) -> Entry:
        """Raises ApiError 404."""
        entry = self.store.get(kind.key, namespace, name)
        if entry is None:
            raise not_found(kind.resource, name)
        return entry

    def create(self, kind: ResourceType, namespace: str, body: JsonObject, options: WriteOptions) -> Entry:
        """Stores a new object. The namespace in the body, when there is one, must be that of the path."""
        obj = self._decode(kind, body, options)
        metadata = obj["metadata"]
        self._settle_namespace(kind, metadata, namespace)
        if metadata.get("resourceVersion"):
            raise ApiError(500, "resourceVersion should not be set on objects to be created", reason="")
        if not metadata.get("name") and metadata.get("generateName"):
            self._generate_name(kind, metadata, namespace)
        self._require_namespace(kind, namespace, metadata.get("name", ""))
        for name in _SERVER_OWNED:
            metadata.pop(name, None)
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = timestamp(self.now())
        metadata.pop("generation", None)
        situation = self._situation(kind, options)
        self.rules.default(obj, situation)
        self.rules.prepare_create(obj, situation)
        self._refuse(kind, obj, self.rules.problems_of_new(obj, situation))
        if self.store.get(kind.key, namespace, metadata["name"]) is not None:
            raise already_exists(kind.resource, metadata["name"])
        if options.dry_run:
            return Entry(obj, self.store.revision)
        return self._stored(kind, obj)

    def update(
        self, kind: ResourceType, namespace: str, name: str, subresource: str, body: JsonObject, options: WriteOptions
    ) -> Entry:
        """Replaces an object, or its status. A resourceVersion in the body must be the current one."""
        old = self.get(kind, namespace, name)
        obj = self._decode(kind, body, options)
        metadata = obj["metadata"]
        self._settle_namespace(kind, metadata, namespace)
        if metadata.get("name", "") != name:
            raise bad_request(
                f"the name of the object ({metadata.get('name', '')}) does not match the name on the URL ({name})"
            )
        return self.change(kind, old, obj, subresource, options)

    def change(self, kind: ResourceType, old: Entry, obj: JsonObject, subresource: str, options: WriteOptions) -> Entry:
        """Puts `obj` in the place of `old`: preconditions, isolation of status, validation, removal at last finalizer.

        Nothing is written, and no revision used, when nothing changed.
        """
        metadata, before = obj["metadata"], old.obj["metadata"]
        self._check_preconditions(kind, old, metadata.get("uid") or None, metadata.get("resourceVersion") or None)
        for name in (*_SERVER_OWNED, "generation"):
            metadata.pop(name, None)
            if name in before:
                metadata[name] = before[name]
        situation = self._situation(kind, options, subresource)
        self.rules.default(obj, situation)
        obj = self.rules.prepare_update(obj, old.obj, situation)
        self._refuse(kind, obj, self.rules.problems_of_change(obj, old.obj, situation))
        obj["metadata"]["resourceVersion"] = before["resourceVersion"]
        if obj == old.obj:
            return old
        if options.dry_run:
            return Entry(obj, old.revision)
        if self._finished(obj):
            self.store.put(kind.key, obj)
            return self._removed(kind, old)
        return self._stored(kind, obj)

    def delete(self, kind: ResourceType, namespace: str, name: str, options: DeleteOptions) -> tuple[Entry, bool]:
        """The object's last state, and whether it is gone already (else it waits for finalizers or its node)."""
        old = self.get(kind, namespace, name)
        self._check_preconditions(kind, old, options.uid, options.resource_version)
        if options.dry_run:
            return old, True
        obj = {**old.obj, "metadata": dict(old.obj["metadata"])}
        metadata = obj["metadata"]
        self._settle_finalizers(metadata, options.propagation)
        grace_s = self.rules.grace_period_s(kind, obj, options.grace_period_s)
        waits = bool(metadata.get("finalizers")) or self.rules.held_by_content(kind, obj)
        if grace_s == 0 and not waits:
            return self._removed(kind, old), True
        already = metadata.get("deletionTimestamp") is not None
        if not already or grace_s < metadata.get("deletionGracePeriodSeconds", 0):
            metadata["deletionTimestamp"] = timestamp(self.now() + timedelta(seconds=grace_s))
            metadata["deletionGracePeriodSeconds"] = grace_s
            if metadata.get("generation") and not already:
                metadata["generation"] += 1
            self.rules.mark_terminating(kind, obj)
        if obj == old.obj:
            return old, False
        return self._stored(kind, obj), False

    def finish(self, kind: ResourceType, entry: Entry) -> Entry:
        """Takes an object out that nothing holds any more."""
        return self._removed(kind, entry)

    # Hooks of derived state (types of CRDs): called after each write.

    def _stored(self, kind: ResourceType, obj: JsonObject) -> Entry:
        entry = self.store.put(kind.key, obj)
        self.rules.after_write(kind, entry.obj)
        return entry

    def _removed(self, kind: ResourceType, old: Entry) -> Entry:
        entry = self.store.remove(kind.key, *old.key)
        self.rules.after_removal(kind, entry.obj)
        return entry

    def _situation(self, kind: ResourceType, options: WriteOptions, subresource: str = "") -> Situation:
        now = timestamp(self.now())
        return Situation(kind, subresource, self.store, self.gates, self.minor, now, options.warnings)

    def _decode(self, kind: ResourceType, body: JsonObject, options: WriteOptions) -> JsonObject:
        if not isinstance(body.get("metadata", {}), dict | None):
            raise bad_request("metadata must be an object")
        resource = kind.resource
        if body.get("kind", resource.kind) != resource.kind or body.get("apiVersion") not in (
            None,
            resource.api_version,
        ):
            raise bad_request(
                f"the API version in the data ({body.get('apiVersion')}) does not match the expected API version "
                f"({resource.api_version})"
            )
        decoder = Decoder(resource.kind, strict_types=not kind.custom)
        obj = decoder.decode({**body, "metadata": body.get("metadata") or {}}, kind.schema)
        self._report_unknown(kind, decoder.unknown, options)
        obj["apiVersion"], obj["kind"] = kind.storage_api_version, resource.kind
        return {"apiVersion": obj.pop("apiVersion"), "kind": obj.pop("kind"), **obj}

    def _report_unknown(self, kind: ResourceType, unknown: list[str], options: WriteOptions) -> None:
        problems = [f'unknown field "{path}"' for path in unknown]
        if not problems or options.field_validation == "Ignore":
            return
        if options.field_validation == "Strict":
            raise bad_request(
                f"{kind.resource.kind} in version {kind.resource.version!r} cannot be handled as a "
                f"{kind.resource.kind}: strict decoding error: {', '.join(problems)}".replace("'", '"')
            )
        options.warnings.extend(problems)

    def _settle_namespace(self, kind: ResourceType, metadata: JsonObject, namespace: str) -> None:
        given = metadata.get("namespace") or namespace
        if kind.resource.namespaced and given != namespace:
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        metadata.pop("namespace", None)
        if kind.resource.namespaced:
            metadata["namespace"] = namespace

    def _require_namespace(self, kind: ResourceType, namespace: str, name: str) -> None:
        if not kind.resource.namespaced:
            return
        namespaces = self.registry.find("", "v1", "namespaces")
        found = self.store.get(("", "namespaces"), "", namespace)
        if found is None and namespaces is not None:
            raise not_found(namespaces.resource, namespace)
        if found is not None and found.obj.get("status", {}).get("phase") == "Terminating":
            error = denied(
                kind.resource,
                name,
                f"unable to create new content in namespace {namespace} because it is being terminated",
            )
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {namespace} is being terminated",
                "field": "metadata.namespace",
            }
            raise ApiError(403, error.message, details={**(error.details or {}), "causes": [cause]})

    def _generate_name(self, kind: ResourceType, metadata: JsonObject, namespace: str) -> None:
        base = metadata["generateName"][:_LONGEST_BASE]
        for _ in range(8):
            name = base + "".join(random.choices(_SUFFIX_ALPHABET, k=5))
            if self.store.get(kind.key, namespace, name) is None:
                break
        metadata["name"] = name

    def _refuse(self, kind: ResourceType, obj: JsonObject, problems: list[Problem]) -> None:
        if problems:
            raise invalid_object(kind.resource, obj["metadata"].get("name", ""), problems)

    def _check_preconditions(
        self, kind: ResourceType, old: Entry, uid: str | None, resource_version: str | None
    ) -> None:
        metadata = old.obj["metadata"]
        if uid is not None and uid != metadata["uid"]:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {metadata['uid']}"
            raise conflict(kind.resource, metadata["name"], why)
        if resource_version not in (None, "0", metadata["resourceVersion"]):
            raise conflict(kind.resource, metadata["name"], MODIFIED)

    def _settle_finalizers(self, metadata: JsonObject, propagation: str | None) -> None:
        """Propagation is remembered as a finalizer that the garbage collector removes."""
        if propagation is None:
            return
        wanted = {"Orphan": "orphan", "Foreground": "foregroundDeletion"}.get(propagation)
        kept = [one for one in metadata.get("finalizers", []) if one not in ("orphan", "foregroundDeletion")]
        if wanted is not None:
            kept.append(wanted)
        metadata.pop("finalizers", None)
        if kept:
            metadata["finalizers"] = kept

    def _finished(self, obj: JsonObject) -> bool:
        metadata = obj["metadata"]
        return (
            metadata.get("deletionTimestamp") is not None
            and not metadata.get("finalizers")
            and metadata.get("deletionGracePeriodSeconds", 0) == 0
            and obj["kind"] != "Namespace"
        )


def copied(entry: Entry) -> JsonObject:
    """A copy of an entry's object that may be changed."""
    result: JsonObject = copy_json(entry.obj)
    return result
