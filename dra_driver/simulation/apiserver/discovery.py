"""The documents by which clients learn what is served: and the version.

Without aggregated discovery: clients that ask for it take these documents, too.
"""

from dra_driver.api.meta import JsonObject
from dra_driver.simulation.apiserver.resource_types import Registry, ResourceType, sorted_by_name

_OBJECT_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_SUBRESOURCE_VERBS = {"binding": ["create"], "eviction": ["create"], "finalize": ["update"]}
_FOREIGN_KINDS = {
    "binding": ("", "v1", "Binding"),
    "eviction": ("policy", "v1", "Eviction"),
}
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


def _subresource_verbs(name: str) -> list[str]:
    return _SUBRESOURCE_VERBS.get(name, ["get", "patch", "update"])


def _version_order(version: str) -> tuple[int, str]:
    rank = 0 if "alpha" not in version and "beta" not in version else 1 if "beta" in version else 2
    return rank, "".join(chr(0x10FFFF - ord(char)) for char in version)


def _grouped(registry: Registry) -> dict[str, dict[str, list[ResourceType]]]:
    groups = registry.groups()
    for group, version, _plural, _kind in REVIEWS:
        groups.setdefault(group, {}).setdefault(version, [])
    return {
        group: {version: versions[version] for version in sorted(versions, key=_version_order)}
        for group, versions in groups.items()
    }


def knows(registry: Registry, path: str) -> bool:
    """Whether `path` is below an API version that is served; others are no API paths at all."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 1:
        return parts[1] in _grouped(registry)[""]
    return parts[0] == "apis" and len(parts) > 2 and parts[2] in _grouped(registry).get(parts[1], {})


def api_versions() -> JsonObject:
    """/api."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def api_group_list(registry: Registry) -> JsonObject:
    """/apis."""
    groups = [_api_group(group, versions) for group, versions in _grouped(registry).items() if group]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def api_group(registry: Registry, group: str) -> JsonObject | None:
    """/apis/<group>."""
    versions = _grouped(registry).get(group)
    return (
        None
        if not group or versions is None
        else {"kind": "APIGroup", "apiVersion": "v1", **_api_group(group, versions)}
    )


def _api_group(group: str, versions: dict[str, list[ResourceType]]) -> JsonObject:
    named = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": named, "preferredVersion": named[0]}


def api_resource_list(registry: Registry, group: str, version: str) -> JsonObject | None:
    """/api/v1 and /apis/<group>/<version>."""
    types = _grouped(registry).get(group, {}).get(version)
    if types is None:
        return None
    resources: list[JsonObject] = []
    for kind in sorted_by_name(types):
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
    document: JsonObject = {
        "name": kind.resource.plural,
        "singularName": kind.singular,
        "namespaced": kind.resource.namespaced,
        "kind": kind.resource.kind,
        "verbs": verbs_of(kind),
    }
    if kind.short_names:
        document["shortNames"] = list(kind.short_names)
    if kind.categories:
        document["categories"] = list(kind.categories)
    return document


def _api_subresource(kind: ResourceType, name: str) -> JsonObject:
    document: JsonObject = {
        "name": f"{kind.resource.plural}/{name}",
        "singularName": "",
        "namespaced": kind.resource.namespaced,
        "kind": kind.resource.kind,
        "verbs": _subresource_verbs(name),
    }
    if name in _FOREIGN_KINDS:
        document["group"], document["version"], document["kind"] = _FOREIGN_KINDS[name]
    return document
