"""The documents by which clients learn what is served: discovery, version, and OpenAPI.

There is no aggregated discovery: clients that ask for it accept these documents, too. OpenAPI has what kubectl needs to
find merge keys, to see that the server validates fields, and to explain: version 3 has one document for each API
version; version 2 is an empty shell, because clients look in version 3 first.
"""

from typing import Any

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
REVIEWS = (
    ("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview"),
    ("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview"),
    ("authorization.k8s.io", "v1", "selfsubjectrulesreviews", "SelfSubjectRulesReview"),
    ("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview"),
)
"""Types that answer a question and store nothing: group, version, plural, kind."""


def review_at(path: str) -> str | None:
    """The kind of review that is asked for at `path`."""
    return next((kind for group, version, plural, kind in REVIEWS if path == f"/apis/{group}/{version}/{plural}"), None)


def version_document(git_version: str) -> JsonObject:
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
    """Namespaces cannot be deleted as a collection."""
    return [verb for verb in _OBJECT_VERBS if verb != "deletecollection" or kind.key != ("", "namespaces")]


def _version_order(version: str) -> tuple[int, str]:
    rank = 0 if "alpha" not in version and "beta" not in version else 1 if "beta" in version else 2
    return rank, "".join(chr(0x10FFFF - ord(char)) for char in version)


def _grouped(registry: TypeRegistry) -> dict[str, dict[str, list[ResourceType]]]:
    groups = registry.groups()
    for group, version, _plural, _kind in REVIEWS:
        groups.setdefault(group, {}).setdefault(version, [])
    return {
        group: {version: versions[version] for version in sorted(versions, key=_version_order)}
        for group, versions in groups.items()
    }


def knows(registry: TypeRegistry, path: str) -> bool:
    """Whether `path` is below an API version that is served; others are no API paths at all."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 1:
        return parts[1] in _grouped(registry)[""]
    return parts[0] == "apis" and len(parts) > 2 and parts[2] in _grouped(registry).get(parts[1], {})


def api_versions() -> JsonObject:
    """/api."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def api_group_list(registry: TypeRegistry) -> JsonObject:
    """/apis."""
    groups = [_api_group(group, versions) for group, versions in _grouped(registry).items() if group]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def api_group(registry: TypeRegistry, group: str) -> JsonObject | None:
    """/apis/<group>."""
    versions = _grouped(registry).get(group)
    if not group or versions is None:
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_api_group(group, versions)}


def _api_group(group: str, versions: dict[str, list[ResourceType]]) -> JsonObject:
    named = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": named, "preferredVersion": named[0]}


def api_resource_list(registry: TypeRegistry, group: str, version: str) -> JsonObject | None:
    """/api/v1 and /apis/<group>/<version>."""
    types = _grouped(registry).get(group, {}).get(version)
    if types is None:
        return None
    resources: list[JsonObject] = []
    for kind in sorted(types, key=lambda kind: kind.resource.plural):
        resources.append(_api_resource(kind))
        resources.extend(_api_subresource(kind, name) for name in sorted(kind.subresources))
    resources.extend(
        {"name": plural, "singularName": name.lower(), "namespaced": False, "kind": name, "verbs": ["create"]}
        for of_group, of_version, plural, name in REVIEWS
        if (of_group, of_version) == (group, version)
    )
    group_version = f"{group}/{version}" if group else version
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


def openapi_root(registry: TypeRegistry, revision: int) -> JsonObject:
    """/openapi/v3: where each version's document is. `revision` changes whenever a document may have changed."""
    versions = sorted({resource_type.resource.api_version for resource_type in registry})
    return {
        "paths": {
            _prefix(version): {"serverRelativeURL": f"/openapi/v3/{_prefix(version)}?hash={revision:X}"}
            for version in versions
        }
    }


def _prefix(api_version: str) -> str:
    return f"apis/{api_version}" if "/" in api_version else f"api/{api_version}"


def openapi_document(registry: TypeRegistry, prefix: str, version: str) -> JsonObject | None:
    """/openapi/v3/api/v1 and /openapi/v3/apis/<group>/<version>; None when nothing is served there."""
    types = [resource_type for resource_type in registry if _prefix(resource_type.resource.api_version) == prefix]
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
