"""OpenAPI documents: enough for kubectl to find merge keys, to see that the server validates fields, and to explain.

Version 3 has one document per API version with the schemas of its types; version 2 is an empty shell, because clients
that look there find what they need in version 3 first.
"""

from typing import Any

from dra_driver.api.meta import JsonObject
from dra_driver.apirules.schema import Definitions, definition_name
from dra_driver.simulation.apiserver.resource_types import Registry, ResourceType

_SCHEMAS = "#/components/schemas/"


def swagger(version: str) -> JsonObject:
    """/openapi/v2."""
    return {"swagger": "2.0", "info": {"title": "Kubernetes", "version": version}, "paths": {}, "definitions": {}}


def root(registry: Registry, revision: int) -> JsonObject:
    """/openapi/v3: where each version's document is. `revision` changes whenever a document may have changed."""
    versions = sorted({one.resource.api_version for one in registry})
    return {
        "paths": {
            _prefix(version): {"serverRelativeURL": f"/openapi/v3/{_prefix(version)}?hash={revision:X}"}
            for version in versions
        }
    }


def _prefix(api_version: str) -> str:
    return f"apis/{api_version}" if "/" in api_version else f"api/{api_version}"


def document(registry: Registry, prefix: str, version: str) -> JsonObject | None:
    """/openapi/v3/api/v1 and /openapi/v3/apis/<group>/<version>; None when nothing is served there."""
    types = [one for one in registry if _prefix(one.resource.api_version) == prefix]
    if not types:
        return None
    schemas: JsonObject = {}
    paths: JsonObject = {}
    for kind in types:
        name = _add_schemas(kind, schemas)
        paths.update(_paths(kind, name))
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
    return {resource.path(namespace, "{name}"): operations, resource.path(namespace): {"post": create}}


def _query(name: str) -> JsonObject:
    return {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
