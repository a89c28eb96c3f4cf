"""Create, read, update, patch and delete: the rules that hold for objects of every type.

Called by the HTTP handlers, one call a request; nothing here awaits, so each call is atomic. What differs between types
(validation, immutable fields, dropped fields) is asked of `rules.py`.
"""

import random
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from dra_driver.api.meta import NAMESPACES, JsonObject, wire_time
from dra_driver.apirules.status import (
    MODIFIED,
    ApiError,
    FieldProblem,
    already_exists,
    bad_request,
    conflict,
    denied,
    invalid,
    invalid_object,
    not_found,
    precondition_failed,
)
from dra_driver.kubernetes import FeatureGates
from dra_driver.simulation.apiserver.decode import Decoder, copy_json
from dra_driver.simulation.apiserver.patch import FieldPath, fields_of, merged, through_maps, without
from dra_driver.simulation.apiserver.resource_types import ResourceType, TypeRegistry
from dra_driver.simulation.apiserver.rules.type_rules import Rules, Situation
from dra_driver.simulation.apiserver.store import EVENTS_API, Store, StoredVersion, stored_event

_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_LONGEST_BASE = 58
_SERVER_OWNED = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
    "managedFields",
)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Query parameters of a write. `warnings` collects what goes into Warning headers."""

    dry_run: bool = False
    field_validation: str = "Warn"
    field_manager: str = ""
    warnings: list[str] = field(default_factory=list)


class UnknownFields(ApiError):
    """400: strict decoding met fields that the type does not have."""

    def __init__(self, paths: list[str], message: str) -> None:
        super().__init__(400, message)
        self.paths = paths


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """Body and query of a delete; None where the client said nothing."""

    grace_period_s: int | None = None
    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False


class ObjectService:
    """All reads and writes go through here."""

    def __init__(self, store: Store, registry: TypeRegistry, rules: Rules, gates: FeatureGates, minor: int) -> None:
        self.store = store
        self.registry = registry
        self.rules = rules
        self.gates = gates
        self.minor = minor
        self._applied: dict[str, dict[tuple[str, str], set[FieldPath]]] = {}
        """What each applier, by its name and subresource, said last of the object with this UID."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def get(self, kind: ResourceType, namespace: str, name: str) -> StoredVersion:
        """Raises ApiError 404."""
        entry = self.store.get(kind.key, namespace, name)
        if entry is None:
            raise not_found(kind.resource, name)
        return entry

    def create(self, kind: ResourceType, namespace: str, body: JsonObject, options: WriteOptions) -> StoredVersion:
        """Stores a new object. The namespace in the body, when there is one, must be that of the path."""
        obj = self._decode(kind, body, options)
        metadata = obj["metadata"]
        self._settle_namespace(kind, metadata, namespace)
        if metadata.get("resourceVersion"):
            raise ApiError(500, "resourceVersion should not be set on objects to be created", reason="")
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = self.generated_name(kind, metadata["generateName"], namespace)
        self._require_namespace(kind, namespace, metadata.get("name", ""))
        for name in _SERVER_OWNED:
            metadata.pop(name, None)
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = wire_time(self.now())
        situation = self._situation(kind, options)
        self.rules.default(obj, situation)
        self.rules.prepare_create(obj, situation)
        self._refuse(kind, obj, self.rules.problems_of_new(obj, situation))
        self.admit(kind, "", obj, None, options)
        if self.store.get(kind.key, namespace, metadata["name"]) is not None:
            raise already_exists(kind.resource, metadata["name"])
        if options.dry_run:
            return StoredVersion(obj, self.store.revision)
        return self.store_unchecked(kind, obj)

    def update(
        self, kind: ResourceType, namespace: str, name: str, subresource: str, body: JsonObject, options: WriteOptions
    ) -> StoredVersion:
        """Replaces an object, or its status. A resourceVersion in the body must be the current one."""
        obj = self._decode(kind, body, options)
        metadata = obj["metadata"]
        self._settle_namespace(kind, metadata, namespace)
        if metadata.get("name", "") != name:
            raise bad_request(
                f"the name of the object ({metadata.get('name', '')}) does not match the name on the URL ({name})"
            )
        old = self.get(kind, namespace, name)
        self._check_uid(kind, old, metadata.get("uid") or None)
        return self.change(kind, old, obj, subresource, options)

    def patch(
        self, kind: ResourceType, old: StoredVersion, subresource: str, patched: JsonObject, options: WriteOptions
    ) -> StoredVersion:
        """Puts the outcome of a patch of `old` in its place."""
        obj = self._decode(kind, patched, options)
        self._settle_namespace(kind, obj["metadata"], old.key[0])
        if obj["metadata"].get("name") != old.key[1]:
            raise bad_request(f"the name of the object does not match the name on the URL ({old.key[1]})")
        return self.change(kind, old, obj, subresource, options)

    def change(
        self, kind: ResourceType, old: StoredVersion, obj: JsonObject, subresource: str, options: WriteOptions
    ) -> StoredVersion:
        """Puts `obj` in the place of `old`: preconditions, isolation of status, validation, removal at last finalizer.

        Nothing is written, and no revision used, when nothing changed.
        """
        metadata, before = obj["metadata"], old.obj["metadata"]
        if metadata.get("resourceVersion") not in (None, "", before["resourceVersion"]):
            raise conflict(kind.resource, before["name"], MODIFIED)
        if not metadata.get("resourceVersion") and "conditional" in kind.marks:
            why = "must be specified for an update"
            error = invalid_object(kind.resource, before["name"], [invalid("metadata.resourceVersion", 0, why)])
            raise ApiError(422, error.message, details={**(error.details or {}), "kind": kind.resource.plural})
        metadata.setdefault("uid", before["uid"])
        for name in (*_SERVER_OWNED[1:], "generation"):
            metadata.pop(name, None)
            if name in before:
                metadata[name] = before[name]
        situation = self._situation(kind, options, subresource)
        self.rules.default(obj, situation)
        obj = self.rules.prepare_update(obj, old.obj, situation)
        self._refuse(kind, obj, self.rules.problems_of_change(obj, old.obj, situation))
        obj["metadata"]["resourceVersion"] = before["resourceVersion"]
        self.admit(kind, subresource, obj, old.obj, options)
        if obj == old.obj:
            return old
        if options.dry_run:
            return StoredVersion(obj, old.revision)
        if self._finished(obj):
            # The write that takes the last finalizer away is never stored: watchers see the state before it go.
            self.remove(kind, old)
            return StoredVersion(obj, old.revision)
        return self.store_unchecked(kind, obj)

    def apply(
        self, kind: ResourceType, namespace: str, name: str, subresource: str, config: JsonObject, options: WriteOptions
    ) -> tuple[StoredVersion, bool]:
        """Server-side apply; answers the object and whether it is new."""
        if not (config.get("apiVersion") and config.get("kind")):
            raise bad_request("invalid object type: apiVersion and kind are required")
        config = self._decode_config(kind, config)
        self._settle_namespace(kind, config["metadata"], namespace)
        if config["metadata"].setdefault("name", name) != name:
            raise bad_request(f"name in URL does not match name in Content object: {config['metadata']['name']}")
        if config["metadata"].pop("managedFields", None):
            raise bad_request("metadata.managedFields must be nil")
        old = self.store.get(kind.key, namespace, name)
        if old is None and subresource:
            raise not_found(kind.resource, name)
        fields = set(fields_of(config, kind.schema))
        applied = self._applied.get(old.obj["metadata"]["uid"], {}) if old is not None else {}
        applier = (options.field_manager, subresource)
        obj = config
        if old is not None:
            others = {path for other, paths in applied.items() if other != applier for path in paths}
            gone = applied.get(applier, set()) - fields - others
            obj = without(merged(old.obj, config, kind.schema), kind.schema, gone)
        obj = obj if kind.custom else through_maps(obj, kind.schema)
        if old is None:
            entry = self.create(kind, namespace, obj, options)
        else:
            entry = self.patch(kind, old, subresource, obj, options)
        if not options.dry_run:
            self._applied.setdefault(entry.obj["metadata"]["uid"], {})[applier] = fields
        return entry, old is None

    def delete(
        self, kind: ResourceType, namespace: str, name: str, options: DeleteOptions
    ) -> tuple[StoredVersion, bool]:
        """The object's last state, and whether it is gone already (else it waits for finalizers or its node)."""
        old = self.get(kind, namespace, name)
        self._check_uid(kind, old, options.uid)
        self._check_version(kind, old, options.resource_version)
        self.admit(kind, "", None, old.obj, options)
        if options.dry_run:
            return old, True
        obj = {**old.obj, "metadata": dict(old.obj["metadata"])}
        metadata = obj["metadata"]
        grace_s = self.rules.grace_period_s(kind, obj, options.grace_period_s)
        waits = bool(metadata.get("finalizers")) or self.rules.held_by_content(kind, obj)
        goes = grace_s == 0 and not waits
        if goes and not kind.deleted_gracefully:
            return self.remove(kind, old), True
        self._mark_deleted(kind, obj, grace_s)
        entry = old if obj == old.obj else self.store_unchecked(kind, obj)
        return (self.remove(kind, entry) if goes else entry), goes

    def _mark_deleted(self, kind: ResourceType, obj: JsonObject, grace_s: int) -> None:
        """Puts the time of the deletion on an object; a later deletion can only bring it forward."""
        metadata = obj["metadata"]
        already = metadata.get("deletionTimestamp") is not None
        if already and grace_s >= metadata.get("deletionGracePeriodSeconds", 0):
            return
        metadata["deletionTimestamp"] = wire_time(self.now() + timedelta(seconds=grace_s))
        if kind.key != ("", "namespaces"):
            metadata["deletionGracePeriodSeconds"] = grace_s
        if metadata.get("generation") and not already:
            metadata["generation"] += 1
        self.rules.mark_terminating(kind, obj)

    def store_unchecked(self, kind: ResourceType, obj: JsonObject) -> StoredVersion:
        """Stores `obj` as the server's own doing: nothing is validated or reset."""
        entry = self.store.put(kind.key, obj)
        self.rules.after_write(kind, entry.obj)
        return entry

    def remove(self, kind: ResourceType, old: StoredVersion) -> StoredVersion:
        """Takes an object out that nothing holds."""
        entry = self.store.remove(kind.key, *old.key)
        self._applied.pop(old.obj["metadata"]["uid"], None)
        self.rules.after_removal(kind, entry.obj)
        return entry

    def _situation(self, kind: ResourceType, options: WriteOptions, subresource: str = "") -> Situation:
        now = wire_time(self.now())
        return Situation(kind, subresource, self.store, self.gates, self.minor, now, options.warnings)

    def _decode_config(self, kind: ResourceType, config: JsonObject) -> JsonObject:
        """An applied configuration: as written, and nothing in it may be unknown."""
        options = WriteOptions(field_validation="Strict")
        try:
            return self._decode(kind, config, options, as_written=True)
        except UnknownFields as error:
            path = error.paths[0]
            raise ApiError(
                500, f"failed to create typed patch object: .{path}: field not declared in schema", reason=""
            ) from error

    def _decode(
        self, kind: ResourceType, body: JsonObject, options: WriteOptions, *, as_written: bool = False
    ) -> JsonObject:
        if not isinstance(body.get("metadata", {}), dict | None):
            raise bad_request("metadata must be an object")
        resource = kind.resource
        if kind.custom and not (body.get("kind") and body.get("apiVersion")):
            raise bad_request("Object 'Kind' or 'apiVersion' is missing")
        if body.get("kind", resource.kind) != resource.kind or body.get("apiVersion") not in (
            None,
            resource.api_version,
        ):
            raise bad_request(
                f"the API version in the data ({body.get('apiVersion')}) does not match the expected API version "
                f"({resource.api_version})"
            )
        decoder = Decoder(resource.kind, strict_types=not kind.custom, as_written=as_written)
        obj = decoder.decode({**body, "metadata": body.get("metadata") or {}}, kind.schema)
        self._report_unknown(kind, decoder.unknown, options)
        obj = stored_event(obj) if resource.api_version == EVENTS_API else obj
        obj["apiVersion"], obj["kind"] = kind.storage_api_version, resource.kind
        return {"apiVersion": obj.pop("apiVersion"), "kind": obj.pop("kind"), **obj}

    def _report_unknown(self, kind: ResourceType, unknown: list[str], options: WriteOptions) -> None:
        problems = [f'unknown field "{path}"' for path in unknown]
        if not problems or options.field_validation == "Ignore":
            return
        if options.field_validation == "Strict":
            raise UnknownFields(
                unknown,
                f"{kind.resource.kind} in version {kind.resource.version!r} cannot be handled as a "
                f"{kind.resource.kind}: strict decoding error: {', '.join(problems)}".replace("'", '"'),
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
        entry = self.store.get(("", "namespaces"), "", namespace)
        if entry is None:
            raise not_found(NAMESPACES, namespace)
        if entry.obj.get("status", {}).get("phase") == "Terminating":
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

    def admit(
        self,
        kind: ResourceType,
        subresource: str,
        obj: JsonObject | None,
        old: JsonObject | None,
        options: WriteOptions | DeleteOptions,
    ) -> None:
        """Called with each change that is valid, before it is stored. `obj` None: a deletion; `old` None: a creation.

        Here nothing else is asked; tests of webhooks ask them.
        """

    def generated_name(self, kind: ResourceType, base: str, namespace: str) -> str:
        """A name that begins with `base` and that no object has."""
        for _ in range(8):
            name = base[:_LONGEST_BASE] + "".join(random.choices(_SUFFIX_ALPHABET, k=5))
            if self.store.get(kind.key, namespace, name) is None:
                break
        return name

    def _refuse(self, kind: ResourceType, obj: JsonObject, problems: list[FieldProblem]) -> None:
        if problems:
            reported = [problem.on(self.minor) for problem in problems]
            raise invalid_object(kind.resource, obj["metadata"].get("name", ""), reported)

    def _check_uid(self, kind: ResourceType, old: StoredVersion, uid: str | None) -> None:
        actual = old.obj["metadata"]["uid"]
        if uid not in (None, actual):
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {actual}"
            raise precondition_failed(kind.resource, old.key[1], why)

    def _check_version(self, kind: ResourceType, old: StoredVersion, version: str | None) -> None:
        actual = old.obj["metadata"]["resourceVersion"]
        if version not in (None, actual):
            why = (
                f"Precondition failed: ResourceVersion in precondition: {version}, ResourceVersion in object meta: "
                f"{actual}"
            )
            raise precondition_failed(kind.resource, old.key[1], why)

    def _finished(self, obj: JsonObject) -> bool:
        metadata = obj["metadata"]
        return (
            metadata.get("deletionTimestamp") is not None
            and not metadata.get("finalizers")
            and metadata.get("deletionGracePeriodSeconds", 0) == 0
            and obj["kind"] != "Namespace"
        )


def copied(entry: StoredVersion) -> JsonObject:
    """A copy of an entry's object that may be changed."""
    result: JsonObject = copy_json(entry.obj)
    return result
