"""The documents by which clients learn what is served: discovery, version, and OpenAPI.

There is no aggregated discovery: clients that ask for it accept these documents, too. OpenAPI has what kubectl needs to
find merge keys, to see that the server validates fields, and to explain: version 3 has one document for each API
version; version 2 is an empty shell, because clients look in version 3 first.
"""

import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

from dra_driver.api.meta import JsonObject
from dra_driver.apirules.schema import Definitions, definition_name
from dra_driver.simulation.apiserver.resource_types import ResourceType, TypeRegistry

_OBJECT_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_SUBRESOURCES: dict[str, tuple[list[str], tuple[str, str, str]]] = {
    "attach": (["create", "get"], ("", "v1", "PodAttachOptions")),
    "binding": (["create"], ("", "v1", "Binding")),
    "eviction": (["create"], ("policy", "v1", "Eviction")),
    "exec": (["create", "get"], ("", "v1", "PodExecOptions")),
    "log": (["get"], ("", "v1", "Pod")),
    "portforward": (["create", "get"], ("", "v1", "PodPortForwardOptions")),
    "scale": (["get", "patch", "update"], ("autoscaling", "v1", "Scale")),
}
"""Verbs and kind of those that differ from the others, which are read and changed in the kind of their object."""


def document(registry: TypeRegistry, path: str, version: str, revision: int) -> JsonObject | str | None:
    """What there is at a path that names no type; None for nothing. `version` and `revision` are the server's."""
    groups = _groups(registry)
    match path.strip("/").split("/"):
        case ["healthz" | "readyz" | "livez"]:
            return "ok"
        case ["version"]:
            return _version_document(version)
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            listed = [_api_group(name, versions) for name, versions in groups.items() if name]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
        case ["apis", group] if group and group in groups:
            return {"kind": "APIGroup", "apiVersion": "v1", **_api_group(group, groups[group])}
        case ["api", known] if known in groups[""]:
            return _resource_list(known, groups[""][known])
        case ["apis", group, known] if known in groups.get(group, ()):
            return _resource_list(f"{group}/{known}", groups[group][known])
        case ["openapi", "v3"]:
            return _openapi_root(registry, revision)
        case ["openapi", "v3", *prefix]:
            return _openapi_document(registry, "/".join(prefix), version)
    return None


def knows(registry: TypeRegistry, path: str) -> bool:
    """Whether `path` is below an API version that is served; others are no API paths at all."""
    match path.strip("/").split("/"):
        case ["api", version, *_]:
            return version in registry.groups()[""]
        case ["apis", group, version, *_]:
            return version in registry.groups().get(group, ())
    return False


def _version_document(git_version: str) -> JsonObject:
    """`git_version` as `v1.36.2`."""
    major, minor = git_version.removeprefix("v").split(".")[:2]
    return {
        "major": major,
        "minor": minor,
        "gitVersion": git_version,
        "gitCommit": "0" * 40,
        "gitTreeState": "clean",
        "buildDate": "2026-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "none",
        "platform": "linux/amd64",
    }


def verbs_of(kind: ResourceType) -> list[str]:
    """Reviews are answered and not stored. Namespaces cannot be deleted as a collection."""
    if "review" in kind.marks:
        return ["create"]
    return [verb for verb in _OBJECT_VERBS if verb != "deletecollection" or kind.key != ("", "namespaces")]


_VERSION = re.compile(r"v(?P<major>\d+)(?:(?P<stage>alpha|beta)(?P<minor>\d+))?")
_STAGES = (None, "beta", "alpha")


def _version_order(version: str) -> tuple[int, int, int, str]:
    """The most stable and newest version first, and others last, by name. Source: Kubernetes, Versions in
    CustomResourceDefinitions, "Version priority"."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return len(_STAGES), 0, 0, version
    return _STAGES.index(match["stage"]), -int(match["major"]), -int(match["minor"] or 0), version


def _groups(registry: TypeRegistry) -> dict[str, dict[str, list[ResourceType]]]:
    return {
        group: {version: versions[version] for version in sorted(versions, key=_version_order)}
        for group, versions in registry.groups().items()
    }


def _api_group(group: str, versions: Iterable[str]) -> JsonObject:
    named = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": named, "preferredVersion": named[0]}


def _resource_list(group_version: str, types: Iterable[ResourceType]) -> JsonObject:
    resources: list[JsonObject] = []
    for kind in sorted(types, key=lambda kind: kind.resource.plural):
        resources.append(_api_resource(kind))
        resources.extend(_api_subresource(kind, name) for name in sorted(kind.subresources))
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources}


def _api_resource(kind: ResourceType) -> JsonObject:
    return {
        "name": kind.resource.plural,
        "singularName": kind.singular,
        "namespaced": kind.resource.namespaced,
        "kind": kind.resource.kind,
        "verbs": verbs_of(kind),
        **({"shortNames": list(kind.short_names)} if kind.short_names else {}),
        **({"categories": list(kind.categories)} if kind.categories else {}),
    }


def _api_subresource(kind: ResourceType, name: str) -> JsonObject:
    verbs, (group, version, of_kind) = _SUBRESOURCES.get(
        name, (["get", "patch", "update"], ("", "v1", kind.resource.kind))
    )
    return {
        "name": f"{kind.resource.plural}/{name}",
        "singularName": "",
        "namespaced": kind.resource.namespaced,
        "kind": of_kind,
        "verbs": verbs,
        **({"group": group, "version": version} if (group, version) != ("", "v1") else {}),
    }


_SCHEMAS = "#/components/schemas/"


def _prefix(api_version: str) -> str:
    return f"apis/{api_version}" if "/" in api_version else f"api/{api_version}"


def _openapi_root(registry: TypeRegistry, revision: int) -> JsonObject:
    """Where each version's document is. `revision` changes whenever a document may have changed."""
    prefixes = [_prefix(version) for version in sorted({kind.resource.api_version for kind in registry})]
    return {"paths": {name: {"serverRelativeURL": f"/openapi/v3/{name}?hash={revision:X}"} for name in prefixes}}


def _openapi_document(registry: TypeRegistry, prefix: str, version: str) -> JsonObject | None:
    """Of an API version; None when nothing is served there."""
    schemas: JsonObject = {}
    paths: JsonObject = {}
    for kind in registry:
        if _prefix(kind.resource.api_version) == prefix:
            paths.update(_paths(kind, _add_schemas(kind, schemas)))
    if not paths:
        return None
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": version},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _add_schemas(kind: ResourceType, schemas: JsonObject) -> str:
    resource = kind.resource
    gvk = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    name = definition_name(resource.group, resource.version, resource.kind)
    if name is None:
        reverse = ".".join(reversed(resource.group.split(".")))
        name = f"{reverse}.{resource.version}.{resource.kind}"
    raw = {key: value for key, value in kind.schema.raw.items() if key != "$ref"}
    expanded = _expanded(raw, schemas, kind.schema.definitions)
    schemas[name] = {**expanded, "x-kubernetes-group-version-kind": [gvk]}
    return name


def _expanded(value: Any, schemas: JsonObject, known: Definitions) -> Any:
    """Our compact references as OpenAPI writes them, with what they refer to added to `schemas`."""
    if isinstance(value, list):
        return [_expanded(item, schemas, known) for item in value]
    if not isinstance(value, dict):
        return value
    reference = value.get("$ref")
    if not isinstance(reference, str):
        return {key: _expanded(item, schemas, known) for key, item in value.items()}
    if reference not in schemas:
        schemas[reference] = {}
        schemas[reference] = _expanded(known[reference], schemas, known)
    target = {"$ref": _SCHEMAS + reference}
    return {"allOf": [target], "default": value["default"]} if "default" in value else target


def _paths(kind: ResourceType, schema_name: str) -> JsonObject:
    resource = kind.resource
    gvk = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    body = {"content": {"application/json": {"schema": {"$ref": _SCHEMAS + schema_name}}}}
    namespace = "{namespace}" if resource.namespaced else None
    operations: JsonObject = {}
    for verb in ("get", "put", "patch", "delete"):
        operations[verb] = {
            "parameters": [_query("fieldValidation"), _query("dryRun"), _query("fieldManager")],
            "responses": {"200": {"description": "OK", **body}},
            "x-kubernetes-group-version-kind": gvk,
            "x-kubernetes-action": verb,
        }
    create = {**operations["put"], "x-kubernetes-action": "post"}
    object_path, collection_path = unquote(resource.path(namespace, "{name}")), unquote(resource.path(namespace))
    return {object_path: operations, collection_path: {"post": create}}


def _query(name: str) -> JsonObject:
    return {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
