"""Create, read, update, patch and delete: the rules that hold for objects of every type.

Called by the HTTP handlers, one call a request; nothing here awaits, so each call is atomic. What differs between types
(validation, immutable fields, dropped fields) is asked of their rules (`rules.py`).
"""

import random
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from dra_driver.api.meta import NAMESPACES, JsonObject, wire_time
from dra_driver.apirules.metadata import problems_of_metadata, problems_of_metadata_change
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
from dra_driver.simulation.apiserver.lists import RequestTarget
from dra_driver.simulation.apiserver.patch import FieldPath, fields_of, merged, through_maps, without
from dra_driver.simulation.apiserver.resource_types import ResourceType, TypeRegistry
from dra_driver.simulation.apiserver.rules import Situation, TypeRules, fill
from dra_driver.simulation.apiserver.store import EVENTS_API, Store, StoredVersion, TypeKey, stored_event

type Follower = Callable[[ResourceType, JsonObject, bool], None]
"""Called after each write with the type, the object, and whether it is gone."""

NAMESPACE_KEY: TypeKey = ("", "namespaces")
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


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """Body and query of a delete; None where the client said nothing."""

    grace_period_s: int | None = None
    uid: str | None = None
    resource_version: str | None = None
    dry_run: bool = False


class ObjectService:
    """All reads and writes go through here. `rules` are those of built-in types, `custom_rules` those of all others;
    types without their own get the common ones only."""

    def __init__(
        self,
        store: Store,
        registry: TypeRegistry,
        rules: Mapping[TypeKey, TypeRules],
        custom_rules: TypeRules,
        gates: FeatureGates,
    ) -> None:
        self.store = store
        self.registry = registry
        self.gates = gates
        self.followers: list[Follower] = []
        self._rules = rules
        self._custom_rules = custom_rules
        self._common_rules = TypeRules()
        self._applied: dict[str, dict[tuple[str, str], set[FieldPath]]] = {}
        """What each applier, by its name and subresource, said last of the object with this UID."""

    def get(self, kind: ResourceType, namespace: str, name: str) -> StoredVersion:
        """Raises ApiError 404."""
        entry = self.store.get(kind.key, namespace, name)
        if entry is None:
            raise not_found(kind.resource, name)
        return entry

    def create(self, kind: ResourceType, namespace: str, body: JsonObject, options: WriteOptions) -> StoredVersion:
        """Stores a new object. The namespace in the body, when there is one, must be that of the path."""
        obj = self._decode(kind, namespace, body, options)
        metadata = obj["metadata"]
        if metadata.get("resourceVersion"):
            raise ApiError(500, "resourceVersion should not be set on objects to be created", reason="")
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = self.generated_name(kind, metadata["generateName"], namespace)
        self._require_namespace(kind, namespace, metadata.get("name", ""))
        for name in _SERVER_OWNED:
            metadata.pop(name, None)
        metadata["uid"] = str(uuid.uuid4())
        metadata["creationTimestamp"] = wire_time(datetime.now(UTC))
        situation, rules = self._situation(kind, options), self._rules_of(kind)
        fill(obj, kind.defaults)
        rules.default(obj, situation)
        if "generation" in kind.marks:
            metadata["generation"] = 1
        if kind.resets_status:
            obj.pop("status", None)
            obj |= kind.empty_status
        rules.prepare(obj, None, situation)
        self._refuse(kind, obj, problems_of_metadata(kind.key, metadata) + rules.problems(obj, None, situation))
        self.admit(kind, "", obj, None, options)
        if self.store.get(kind.key, namespace, metadata["name"]) is not None:
            raise already_exists(kind.resource, metadata["name"])
        if options.dry_run:
            return StoredVersion(obj, self.store.revision)
        return self.store_unchecked(kind, obj)

    def update(
        self, target: RequestTarget, body: JsonObject, options: WriteOptions, *, patched: StoredVersion | None = None
    ) -> StoredVersion:
        """Replaces an object, or its status. A resourceVersion in the body must be the current one. `patched` is what
        the body is the outcome of a patch of; else a uid in the body is a precondition."""
        kind, name = target.kind, target.name or ""
        obj = self._decode(kind, target.place, body, options)
        given = obj["metadata"].get("name", "")
        if given != name:
            raise bad_request(f"the name of the object ({given}) does not match the name on the URL ({name})")
        old = patched or self.get(kind, target.place, name)
        if patched is None:
            self._check_preconditions(kind, old, uid=obj["metadata"].get("uid") or None)
        return self.change(kind, old, obj, target.subresource, options)

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
        fill(obj, kind.defaults)
        self._rules_of(kind).default(obj, situation)
        obj = self._prepared(obj, old.obj, situation)
        self._refuse(kind, obj, self._problems_of_change(obj, old.obj, situation))
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

    def _prepared(self, obj: JsonObject, old: JsonObject, situation: Situation) -> JsonObject:
        """The object that an update makes: a status update takes only the status, any other leaves it alone."""
        kind, rules = situation.kind, self._rules_of(situation.kind)
        if situation.subresource == "status":
            changed = {**old, "metadata": {**old["metadata"], "uid": obj["metadata"]["uid"]}}
            changed.pop("status", None)
            if "status" in obj or not kind.custom:
                changed["status"] = obj.get("status", {})
            rules.prepare_status(changed, old, situation)
            return changed
        if "status" in kind.subresources:
            obj.pop("status", None)
            if "status" in old:
                obj["status"] = old["status"]
        rules.prepare(obj, old, situation)
        if "generation" in kind.marks and _content(obj, kind) != _content(old, kind):
            obj["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        return obj

    def _problems_of_change(self, obj: JsonObject, old: JsonObject, situation: Situation) -> list[FieldProblem]:
        rules, metadata = self._rules_of(situation.kind), obj["metadata"]
        problems = problems_of_metadata_change(metadata, old["metadata"])
        if situation.subresource == "status":
            return problems + rules.status_problems(obj, old, situation)
        return problems_of_metadata(situation.kind.key, metadata) + problems + rules.problems(obj, old, situation)

    def apply(self, target: RequestTarget, config: JsonObject, options: WriteOptions) -> tuple[StoredVersion, bool]:
        """Server-side apply; answers the object and whether it is new. Nothing in a configuration may be unknown."""
        kind, namespace, name = target.kind, target.place, target.name or ""
        if not (config.get("apiVersion") and config.get("kind")):
            raise bad_request("invalid object type: apiVersion and kind are required")
        config = self._decode(kind, namespace, config, None)
        if config["metadata"].setdefault("name", name) != name:
            raise bad_request(f"name in URL does not match name in Content object: {config['metadata']['name']}")
        if config["metadata"].pop("managedFields", None):
            raise bad_request("metadata.managedFields must be nil")
        old = self.store.get(kind.key, namespace, name)
        if old is None and target.subresource:
            raise not_found(kind.resource, name)
        fields = set(fields_of(config, kind.schema))
        applied = self._applied.get(old.obj["metadata"]["uid"], {}) if old is not None else {}
        applier = (options.field_manager, target.subresource)
        obj = config
        if old is not None:
            others = {path for other, paths in applied.items() if other != applier for path in paths}
            gone = applied.get(applier, set()) - fields - others
            obj = without(merged(old.obj, config, kind.schema), kind.schema, gone)
        obj = obj if kind.custom else through_maps(obj, kind.schema)
        if old is None:
            entry = self.create(kind, namespace, obj, options)
        else:
            entry = self.update(target, obj, options, patched=old)
        if not options.dry_run:
            self._applied.setdefault(entry.obj["metadata"]["uid"], {})[applier] = fields
        return entry, old is None

    def delete(
        self, kind: ResourceType, namespace: str, name: str, options: DeleteOptions
    ) -> tuple[StoredVersion, bool]:
        """The object's last state, and whether it is gone already (else it waits for finalizers or its node)."""
        old = self.get(kind, namespace, name)
        self._check_preconditions(kind, old, options.uid, options.resource_version)
        self.admit(kind, "", None, old.obj, options)
        if options.dry_run:
            return old, True
        obj = {**old.obj, "metadata": dict(old.obj["metadata"])}
        # The deletion of a pod is announced before it happens, with the time that the pod still has.
        is_pod, is_namespace = kind.key == ("", "pods"), kind.key == NAMESPACE_KEY
        grace_s = _grace_period_s(obj, options.grace_period_s) if is_pod else 0
        has_content = is_namespace and bool(obj.get("spec", {}).get("finalizers"))
        goes = grace_s == 0 and not obj["metadata"].get("finalizers") and not has_content
        if goes and not is_pod:
            return self.remove(kind, old), True
        self._mark_deleted(obj, grace_s, is_namespace=is_namespace)
        entry = old if obj == old.obj else self.store_unchecked(kind, obj)
        return (self.remove(kind, entry) if goes else entry), goes

    def _mark_deleted(self, obj: JsonObject, grace_s: int, *, is_namespace: bool) -> None:
        """Puts the time of the deletion on an object; a later deletion can only bring it forward."""
        metadata = obj["metadata"]
        already = metadata.get("deletionTimestamp") is not None
        if already and grace_s >= metadata.get("deletionGracePeriodSeconds", 0):
            return
        metadata["deletionTimestamp"] = wire_time(datetime.now(UTC) + timedelta(seconds=grace_s))
        if metadata.get("generation") and not already:
            metadata["generation"] += 1
        if is_namespace:
            obj["status"] = {**obj.get("status", {}), "phase": "Terminating"}
        else:
            metadata["deletionGracePeriodSeconds"] = grace_s

    def store_unchecked(self, kind: ResourceType, obj: JsonObject) -> StoredVersion:
        """Stores `obj` as the server's own doing: nothing is validated or reset."""
        entry = self.store.put(kind.key, obj)
        for follower in self.followers:
            follower(kind, entry.obj, False)
        return entry

    def remove(self, kind: ResourceType, old: StoredVersion) -> StoredVersion:
        """Takes an object out that nothing holds."""
        entry = self.store.remove(kind.key, *old.key)
        self._applied.pop(old.obj["metadata"]["uid"], None)
        for follower in self.followers:
            follower(kind, entry.obj, True)
        return entry

    def _rules_of(self, kind: ResourceType) -> TypeRules:
        return self._custom_rules if kind.custom else self._rules.get(kind.key, self._common_rules)

    def _situation(self, kind: ResourceType, options: WriteOptions, subresource: str = "") -> Situation:
        now = wire_time(datetime.now(UTC))
        return Situation(kind, subresource, self.store, self.gates, now, options.warnings)

    def _decode(self, kind: ResourceType, namespace: str, body: JsonObject, options: WriteOptions | None) -> JsonObject:
        """The object of a body. `options` None: a configuration that is applied, as it is written."""
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
        decoder = Decoder(resource.kind, strict_types=not kind.custom, as_written=options is None)
        obj = decoder.decode({**body, "metadata": body.get("metadata") or {}}, kind.schema)
        if decoder.unknown:
            self._report_unknown(kind, decoder.unknown, options)
        obj = stored_event(obj) if resource.api_version == EVENTS_API else obj
        metadata = obj["metadata"]
        given = metadata.pop("namespace", None) or namespace
        if resource.namespaced:
            if given != namespace:
                why = "the namespace of the provided object does not match the namespace sent on the request"
                raise bad_request(why)
            metadata["namespace"] = namespace
        obj["apiVersion"], obj["kind"] = kind.storage_api_version, resource.kind
        return {"apiVersion": obj.pop("apiVersion"), "kind": obj.pop("kind"), **obj}

    def _report_unknown(self, kind: ResourceType, unknown: list[str], options: WriteOptions | None) -> None:
        if options is None:
            why = f"failed to create typed patch object: .{unknown[0]}: field not declared in schema"
            raise ApiError(500, why, reason="")
        problems = [f'unknown field "{path}"' for path in unknown]
        if options.field_validation == "Strict":
            name, listed = kind.resource.kind, ", ".join(problems)
            why = f'{name} in version "{kind.resource.version}" cannot be handled as a {name}: strict decoding error:'
            raise ApiError(400, f"{why} {listed}")
        if options.field_validation != "Ignore":
            options.warnings.extend(problems)

    def _require_namespace(self, kind: ResourceType, namespace: str, name: str) -> None:
        if not kind.resource.namespaced:
            return
        entry = self.store.get(NAMESPACE_KEY, "", namespace)
        if entry is None:
            raise not_found(NAMESPACES, namespace)
        if entry.obj.get("status", {}).get("phase") == "Terminating":
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            error = denied(kind.resource, name, why)
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
            reported = [problem.on(self.gates.minor) for problem in problems]
            raise invalid_object(kind.resource, obj["metadata"].get("name", ""), reported)

    def _check_preconditions(
        self, kind: ResourceType, old: StoredVersion, uid: str | None, version: str | None = None
    ) -> None:
        metadata = old.obj["metadata"]
        for name, wanted, actual in (
            ("UID", uid, metadata["uid"]),
            ("ResourceVersion", version, metadata["resourceVersion"]),
        ):
            if wanted not in (None, actual):
                why = f"Precondition failed: {name} in precondition: {wanted}, {name} in object meta: {actual}"
                raise precondition_failed(kind.resource, old.key[1], why)

    def _finished(self, obj: JsonObject) -> bool:
        metadata = obj["metadata"]
        return (
            metadata.get("deletionTimestamp") is not None
            and not metadata.get("finalizers")
            and metadata.get("deletionGracePeriodSeconds", 0) == 0
            and obj["kind"] != "Namespace"
        )


def _grace_period_s(pod: JsonObject, asked: int | None) -> int:
    """Seconds that a pod lives on after its deletion, if it runs on a node."""
    spec = pod.get("spec", {})
    grace_s: int = spec.get("terminationGracePeriodSeconds", 30) if asked is None else asked
    ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return 0 if ended or not spec.get("nodeName") else grace_s


def _content(obj: JsonObject, kind: ResourceType) -> JsonObject:
    ignored = {"metadata", "apiVersion", "kind"} | ({"status"} if "status" in kind.subresources else set())
    return {name: value for name, value in obj.items() if name not in ignored}


def copied(entry: StoredVersion) -> JsonObject:
    """A copy of an entry's object that may be changed."""
    result: JsonObject = copy_json(entry.obj)
    return result
