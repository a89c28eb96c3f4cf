"""Who manages which field: the bookkeeping in `metadata.managedFields`, and server-side apply on top of it.

Every write goes through here. A plain update takes over what it changes; an apply claims what it says, gives up what
it no longer says, and is refused when it changes what somebody else manages (unless forced).
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from dra_driver.api.meta import JsonObject, Resource
from dra_driver.apirules.schema import Schema
from dra_driver.apirules.status import ApiError
from dra_driver.simulation.apiserver.fieldsets import (
    Path,
    decode_fields,
    difference,
    encode_fields,
    fields_of,
    merged,
    with_declared_parents,
    without,
)
from dra_driver.simulation.apiserver.resource_types import ResourceType

_META_OWNED = (
    "name",
    "namespace",
    "creationTimestamp",
    "selfLink",
    "uid",
    "generation",
    "managedFields",
    "resourceVersion",
)
_NOT_TRACKED = {("f:apiVersion",), ("f:kind",), ("f:metadata",), *(("f:metadata", f"f:{name}") for name in _META_OWNED)}
_BEFORE = "before-first-apply"
"""The manager of what was there when the first apply came to an object without managers."""
_NEVER = {"deletionTimestamp", "deletionGracePeriodSeconds"}


@dataclass(frozen=True, slots=True)
class Manager:
    """One entry of managedFields without its fields. `operation` is Apply or Update."""

    name: str
    operation: str
    api_version: str
    subresource: str

    def __str__(self) -> str:
        place = f' with subresource "{self.subresource}"' if self.subresource else ""
        return f'"{self.name}"{place} using {self.api_version}'


@dataclass
class _Claim:
    fields: set[Path]
    time: str


type _Claims = dict[Manager, _Claim]


def _read(metadata: JsonObject) -> _Claims:
    claims: _Claims = {}
    for entry in metadata.get("managedFields") or ():
        manager = Manager(
            entry.get("manager", ""),
            entry.get("operation", ""),
            entry.get("apiVersion", ""),
            entry.get("subresource", ""),
        )
        claims[manager] = _Claim(set(decode_fields(entry.get("fieldsV1") or {})), entry.get("time", ""))
    return claims


def _write(metadata: JsonObject, claims: _Claims) -> None:
    entries = []
    for manager, claim in claims.items():
        if not claim.fields:
            continue
        entry = {
            "manager": manager.name,
            "operation": manager.operation,
            "apiVersion": manager.api_version,
            "time": claim.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": encode_fields(claim.fields),
        }
        if manager.subresource:
            entry["subresource"] = manager.subresource
        entries.append(entry)
    entries.sort(key=lambda one: (one["operation"], one["time"], one["manager"], one.get("subresource", "")))
    metadata.pop("managedFields", None)
    if entries:
        metadata["managedFields"] = entries


def _tracked(paths: Iterable[Path], kind: ResourceType, subresource: str) -> set[Path]:
    """Without what the server owns, and without what this way of writing cannot change."""
    status_only, has_status = subresource == "status", "status" in kind.subresources
    kept = set()
    for path in paths:
        if not path or path in _NOT_TRACKED or (path[0] == "f:metadata" and len(path) > 1 and path[1][2:] in _NEVER):
            continue
        if status_only and path[0] != "f:status":
            continue
        if not subresource and has_status and path[0] == "f:status":
            continue
        kept.add(path)
    return kept


def _empty(kind: ResourceType) -> JsonObject:
    """The object without any content: what typed objects have anyway is not anybody's doing."""
    if kind.custom:
        return {"metadata": {}}
    return {**_empty_struct(kind.storage_schema), "metadata": {}}


def _empty_struct(schema: Schema) -> JsonObject:
    """Structs that are always there, and in them null for lists and maps that are never left out."""
    result: JsonObject = {}
    for name, child in schema.properties.items():
        if child.raw.get("default") == {}:
            result[name] = _empty_struct(child)
        elif name in schema.raw.get("required", ()) and child.type in ("array", "object"):
            result[name] = None
    return result


def record_update(
    kind: ResourceType, old: JsonObject | None, new: JsonObject, name: str, subresource: str, now: str
) -> None:
    """Brings `new`'s managedFields up to date after a write by `name` that made it out of `old`.

    An object that lost its last manager is not followed any more, until somebody applies to it.
    """
    before = old if old is not None else _empty(kind)
    claims = _read(before["metadata"])
    if old is not None and not claims:
        return
    changes = difference(before, new, kind.storage_schema)
    if not (changes.added or changes.removed or changes.modified):
        _write(new["metadata"], claims)
        return
    taken = _tracked(changes.added | changes.modified, kind, subresource)
    removed = _tracked(changes.removed, kind, subresource)
    own = Manager(name, "Update", kind.resource.api_version, subresource)
    for manager, claim in claims.items():
        claim.fields -= removed if manager == own else removed | taken
    mine = claims.setdefault(own, _Claim(set(), now))
    if taken or removed:
        mine.time = now
    mine.fields |= taken
    _write(new["metadata"], claims)


@dataclass(frozen=True, slots=True)
class Applied:
    """The outcome of an apply before defaults and validation."""

    obj: JsonObject
    claims: list[JsonObject]
    """managedFields, for when the object went through the ordinary update."""


def apply(
    kind: ResourceType,
    live: JsonObject | None,
    config: JsonObject,
    name: str,
    subresource: str,
    *,
    force: bool,
    now: str,
) -> Applied:
    """`config` applied to `live` (None: there is no object yet). Raises ApiError 409 that lists every conflict."""
    schema = kind.storage_schema
    own = Manager(name, "Apply", kind.resource.api_version, subresource)
    before = live if live is not None else _empty(kind)
    claims = _read(before["metadata"])
    if live is not None and not claims:
        present = _tracked(difference(_empty(kind), live, schema).added, kind, subresource)
        claims[Manager(_BEFORE, "Update", kind.resource.api_version, "")] = _Claim(present, now)
    said = _tracked(fields_of(config, schema), kind, subresource)
    result = merged(before, config, schema)
    before_said = with_declared_parents(claims[own].fields, schema) if own in claims else set()
    given_up = _tracked(before_said - said, kind, subresource)
    others = {path for manager, claim in claims.items() if manager != own for path in claim.fields}
    result = without(result, schema, given_up - others, others | said)
    changes = difference(before, result, schema)
    taken = _tracked(changes.added | changes.modified, kind, subresource)
    _resolve_conflicts(kind.resource, claims, own, taken, force=force)
    for claim in claims.values():
        claim.fields -= _tracked(changes.removed, kind, subresource)
    previous = claims.get(own)
    time = previous.time if previous is not None and previous.fields == said and not taken else now
    claims[own] = _Claim(said, time)
    metadata: JsonObject = {}
    _write(metadata, claims)
    return Applied(result, metadata.get("managedFields", []))


def _resolve_conflicts(resource: Resource, claims: _Claims, own: Manager, taken: set[Path], *, force: bool) -> None:
    conflicts = {manager: sorted(claim.fields & taken) for manager, claim in claims.items() if manager != own}
    conflicts = {manager: paths for manager, paths in conflicts.items() if paths}
    if force:
        for claim in (claims[manager] for manager in conflicts):
            claim.fields -= taken
        return
    if not conflicts:
        return
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {manager}", "field": _shown(path)}
        for manager, paths in conflicts.items()
        for path in paths
    ]
    word = "conflict" if len(causes) == 1 else "conflicts"
    listed = "\n".join(
        f"conflicts with {manager}:\n" + "\n".join(f"- {_shown(path)}" for path in paths)
        for manager, paths in conflicts.items()
    )
    if len(causes) == 1:
        listed = f"{causes[0]['message']}: {causes[0]['field']}"
    message = f"Apply failed with {len(causes)} {word}: {listed}"
    raise ApiError(409, message, details={"causes": causes})


def _shown(path: Path) -> str:
    """`.spec.template.metadata.labels.app`, `.status.conditions[type="Ready"].status`."""
    text = ""
    for name in path:
        kind, _, rest = name.partition(":")
        if kind == "f":
            text += f".{rest}"
        elif kind == "k":
            keys = json.loads(rest)
            text += "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in sorted(keys.items())) + "]"
        else:
            text += f"[={rest}]"
    return text
