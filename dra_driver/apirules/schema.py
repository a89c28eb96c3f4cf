"""The fields of types: one view of the schemas of built-in types and CustomResourceDefinitions.

Built-in schemas are data in `schemas/`: names, types and merge rules from the OpenAPI documents of kube-apiserver
1.36 (see tests/contracts/extract_schemas.py), without fields that older servers do not have; custom ones come from the
CRD. Decoding, defaulting, patches, server-side apply and the OpenAPI documents use this form.
"""

import json
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

from dra_driver.api.meta import JsonObject
from dra_driver.kubernetes import CURRENT

type Definitions = dict[str, JsonObject]

_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_API = "io.k8s.api."
_LIST_VALUES = dict.fromkeys(("bools", "ints", "strings", "versions"), 36)
_MAPPINGS = {"nodeAllocatableResourceMappings": 36}
_CRD = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition"
_NEWER: dict[str, dict[str, int]] = {
    _API + "core.v1.NodeStatus": {"declaredFeatures": 35},
    _API + "core.v1.PodCertificateProjection": {"userAnnotations": 35},
    _API + "core.v1.PodSpec": {"schedulingGroup": 36},
    _API + "core.v1.PodStatus": {
        "allocatedResources": 35,
        "resources": 35,
        "nodeAllocatableResourceClaimStatuses": 36,
    },
    _API + "core.v1.ResourceHealth": {"message": 36},
    _API + "core.v1.VolumeMountStatus": {"volumeStatus": 36},
    _API + "resource.v1.Device": _MAPPINGS,
    _API + "resource.v1.DeviceAttribute": _LIST_VALUES,
    _API + "resource.v1beta1.BasicDevice": _MAPPINGS,
    _API + "resource.v1beta1.DeviceAttribute": _LIST_VALUES,
    _API + "resource.v1beta2.Device": _MAPPINGS,
    _API + "resource.v1beta2.DeviceAttribute": _LIST_VALUES,
    _CRD + "Condition": {"observedGeneration": 35},
    _CRD + "Status": {"observedGeneration": 35},
    "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta": {"shardInfo": 36},
}
"""Fields that servers before this minor version do not have. `test_schemas.py` compares with each real server."""


class Schema:
    """A schema and, lazily, those of its children. References are resolved."""

    def __init__(self, raw: JsonObject, definitions: Definitions | None = None) -> None:
        self.definitions = definitions or {}
        reference = raw.get("$ref")
        self.definition: str | None = reference if isinstance(reference, str) else None
        """Name of the definition behind a reference."""
        self.raw: JsonObject = {**self.definitions[reference], **raw} if isinstance(reference, str) else raw

    @cached_property
    def properties(self) -> dict[str, "Schema"]:
        return {name: Schema(child, self.definitions) for name, child in self.raw.get("properties", {}).items()}

    @cached_property
    def items(self) -> "Schema | None":
        raw = self.raw.get("items")
        return Schema(raw, self.definitions) if isinstance(raw, dict) else None

    @cached_property
    def additional(self) -> "Schema | None":
        """The schema of a map's values."""
        raw = self.raw.get("additionalProperties")
        if raw is True:
            return OPEN
        return Schema(raw, self.definitions) if isinstance(raw, dict) else None

    @cached_property
    def type(self) -> str:
        """JSON type, or empty for any."""
        return str(self.raw.get("type", ""))

    @cached_property
    def preserves_unknown(self) -> bool:
        return self.raw.get("x-kubernetes-preserve-unknown-fields") is True

    @cached_property
    def embedded(self) -> bool:
        """The value is a whole object with apiVersion, kind and metadata."""
        return self.raw.get("x-kubernetes-embedded-resource") is True

    @cached_property
    def opaque(self) -> bool:
        """Any content is allowed, and merges replace it as a whole."""
        return self.type in ("", "object") and not (
            "properties" in self.raw or "additionalProperties" in self.raw or "oneOf" in self.raw
        )

    @cached_property
    def list_type(self) -> str:
        """`atomic`, `set` or `map`; lists of unmarked types are atomic."""
        return str(self.raw.get("x-kubernetes-list-type", "atomic"))

    @cached_property
    def list_keys(self) -> tuple[str, ...]:
        return tuple(self.raw.get("x-kubernetes-list-map-keys", ()))

    @cached_property
    def atomic_map(self) -> bool:
        return self.raw.get("x-kubernetes-map-type") == "atomic"

    @cached_property
    def merge_key(self) -> str | None:
        """Key of a strategic merge patch; None if lists are replaced."""
        strategy = str(self.raw.get("x-kubernetes-patch-strategy", ""))
        return self.raw.get("x-kubernetes-patch-merge-key") if "merge" in strategy.split(",") else None

    @cached_property
    def merges(self) -> bool:
        """Strategic merge patches merge this list instead of replacing it."""
        return "merge" in str(self.raw.get("x-kubernetes-patch-strategy", "")).split(",")

    def child(self, name: str) -> "Schema | None":
        """The schema of a field or map value; None if the field does not exist."""
        return self.properties.get(name) or self.additional


OPEN = Schema({"x-kubernetes-preserve-unknown-fields": True, "type": "object"})
"""Anything goes."""


@cache
def definitions(minor: int = CURRENT) -> Definitions:
    """All definitions of built-in types, by their OpenAPI names, with the fields that a server 1.`minor` knows."""
    if minor < CURRENT:
        return {name: _without_newer(name, schema, minor) for name, schema in definitions().items()}
    if minor > CURRENT:
        return definitions()
    merged: Definitions = {}
    for file in files(__package__).joinpath("schemas").iterdir():
        if file.name.endswith(".json"):
            merged.update(json.loads(file.read_text()))
    return merged


def _without_newer(name: str, schema: JsonObject, minor: int) -> JsonObject:
    newer = {field for field, since in _NEWER.get(name, {}).items() if minor < since}
    if not newer:
        return schema
    return {**schema, "properties": {name: item for name, item in schema["properties"].items() if name not in newer}}


@cache
def _kinds() -> dict[tuple[str, str, str], str]:
    return {
        (kind["group"], kind["version"], kind["kind"]): name
        for name, schema in definitions().items()
        for kind in schema.get("x-kubernetes-group-version-kind", ())
    }


@cache
def definition_name(group: str, version: str, kind: str) -> str | None:
    """OpenAPI name of a built-in kind. DeviceTaintRule has the same form in v1 as in v1beta2."""
    if (group, version, kind) == ("resource.k8s.io", "v1", "DeviceTaintRule"):
        version = "v1beta2"
    return _kinds().get((group, version, kind))


@cache
def builtin_schema(group: str, version: str, kind: str, minor: int = CURRENT) -> Schema:
    """The schema of a built-in kind on a server 1.`minor`."""
    name = definition_name(group, version, kind)
    return Schema({"$ref": name}, definitions(minor)) if name else OPEN


@cache
def metadata_schema() -> Schema:
    """ObjectMeta, which custom objects share with built-in ones."""
    return Schema({"$ref": _META}, definitions())


def custom_schema(raw: JsonObject | None) -> Schema:
    """The schema of a custom type, with the three fields that every object has."""
    if raw is None:
        return OPEN
    known: dict[str, Any] = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"$ref": _META}}
    return Schema({**raw, "properties": {**raw.get("properties", {}), **known}}, definitions())
