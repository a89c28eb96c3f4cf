"""CustomResourceDefinitions: what they add to the table of types, and the status the server gives them."""

from collections.abc import Sequence
from typing import Any

from dra_driver.api.meta import JsonObject, Resource
from dra_driver.apirules.schema import custom_schema
from dra_driver.apirules.status import FieldProblem, forbidden, invalid, not_supported, required
from dra_driver.simulation.apiserver.custom_objects import problems_of_custom, problems_of_rules
from dra_driver.simulation.apiserver.resource_types import Column, ResourceType
from dra_driver.simulation.apiserver.rules import Situation, TypeRules

_COLUMN_TYPES = ("integer", "number", "string", "boolean", "date")
KEY = ("apiextensions.k8s.io", "customresourcedefinitions")


def served_types(crd: JsonObject) -> list[ResourceType]:
    """One entry for each served version."""
    spec = crd["spec"]
    storage = next((item["name"] for item in spec["versions"] if item.get("storage")), "")
    return [_served_type(spec, version, storage) for version in spec["versions"] if version.get("served")]


def _served_type(spec: JsonObject, version: JsonObject, storage: str) -> ResourceType:
    names = spec["names"]
    resource = Resource(spec["group"], version["name"], names["plural"], names["kind"], spec["scope"] == "Namespaced")
    return ResourceType(
        resource,
        names.get("singular") or names["kind"].lower(),
        tuple(names.get("shortNames", ())),
        tuple(names.get("categories", ())),
        frozenset(version.get("subresources", {})),
        tuple(field["jsonPath"].lstrip(".") for field in version.get("selectableFields", ())),
        custom_schema(version.get("schema", {}).get("openAPIV3Schema")),
        custom=True,
        columns=tuple(_column(item) for item in version.get("additionalPrinterColumns", ())),
        storage_version=storage,
    )


def _column(raw: JsonObject) -> Column:
    return Column(
        raw["name"],
        raw["type"],
        raw["jsonPath"],
        raw.get("priority", 0),
        raw.get("description", ""),
        raw.get("format", ""),
    )


class DefinitionRules(TypeRules):
    """CustomResourceDefinition."""

    def default(self, obj: JsonObject, situation: Situation) -> None:
        spec = obj.setdefault("spec", {})
        names = spec.setdefault("names", {})
        kind = names.get("kind", "")
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", f"{kind}List")
        spec.setdefault("conversion", {"strategy": "None"})
        for version in spec.get("versions") or ():
            for column in version.get("additionalPrinterColumns") or ():
                column.setdefault("priority", 0)

    def problems(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> list[FieldProblem]:
        spec = obj["spec"]
        names, problems = spec["names"], []
        wanted = f"{names.get('plural', '')}.{spec.get('group', '')}"
        if obj["metadata"].get("name") != wanted:
            why = f'must be spec.names.plural+"."+spec.group ({wanted})'
            problems.append(invalid("metadata.name", obj["metadata"].get("name", ""), why))
        problems += [required(f"spec.names.{name}") for name in ("plural", "kind") if not names.get(name)]
        if not spec.get("group"):
            problems.append(required("spec.group"))
        if spec.get("scope") not in ("Cluster", "Namespaced"):
            problems.append(not_supported("spec.scope", spec.get("scope", ""), ("Cluster", "Namespaced")))
        if old is not None:
            fixed = (("spec.group", "group"), ("spec.scope", "scope"))
            problems += [
                invalid(path, spec.get(name), "field is immutable")
                for path, name in fixed
                if spec.get(name) != old["spec"].get(name)
            ]
        return problems + _problems_of_versions(spec.get("versions") or [], spec)

    def prepare(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> None:
        if old is None:
            stored = [item["name"] for item in obj["spec"].get("versions") or () if item.get("storage")]
            obj["status"] = {
                "conditions": None,
                "acceptedNames": {"plural": "", "kind": ""},
                "storedVersions": stored,
            }


def _problems_of_versions(versions: list[JsonObject], spec: JsonObject) -> list[FieldProblem]:
    problems: list[FieldProblem] = []
    if sum(bool(version.get("storage")) for version in versions) != 1:
        why = "must have exactly one version marked as storage version"
        problems.append(invalid("spec.versions", "<value omitted>", why))
    if spec.get("preserveUnknownFields"):
        why = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in the schema instead"
        problems.append(invalid("spec.preserveUnknownFields", True, why))
    schemas = [(version.get("schema") or {}).get("openAPIV3Schema") for version in versions]
    columns = [version.get("additionalPrinterColumns") for version in versions]
    for index, (schema, own_columns) in enumerate(zip(schemas, columns, strict=True)):
        path = f"spec.versions[{index}]"
        if schema is None:
            problems.append(required(f"{path}.schema.openAPIV3Schema", "schemas are required"))
            continue
        where = _path_of(schemas, "spec.validation", f"{path}.schema")
        problems += _problems_of_schema(schema, f"{where}.openAPIV3Schema", root=True)
        where = _path_of(columns, "spec", path)
        for at, column in enumerate(own_columns or ()):
            problems += _problems_of_column(column, f"{where}.additionalPrinterColumns[{at}]")
    return problems


def _path_of(values: Sequence[object], common: str, own: str) -> str:
    """Where a problem is reported: at the place for all versions, when they agree."""
    return common if all(value == values[0] for value in values) else own


def _problems_of_column(column: JsonObject, path: str) -> list[FieldProblem]:
    fields = (("name", "name"), ("type", "type"), ("jsonPath", "JSONPath"))
    problems = [required(f"{path}.{shown}") for name, shown in fields if not column.get(name)]
    if column.get("type") and column["type"] not in _COLUMN_TYPES:
        problems.append(not_supported(f"{path}.type", column["type"], _COLUMN_TYPES))
    if column.get("jsonPath") and not column["jsonPath"].startswith("."):
        problems.append(invalid(f"{path}.JSONPath", column["jsonPath"], "must be a simple JSON path starting with ."))
    return problems


def _problems_of_schema(schema: JsonObject, path: str, *, root: bool = False) -> list[FieldProblem]:
    """What makes a schema structural: every value has a type, and lists that are maps have keys."""
    problems: list[FieldProblem] = []
    wanted = schema.get("type")
    any_type = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    if root and wanted != "object":
        problems.append(invalid(f"{path}.type", wanted or "", "must be object at the root"))
    elif not wanted and not any_type:
        problems.append(required(f"{path}.type", "must not be empty for specified object fields"))
    if wanted == "array" and not schema.get("items"):
        problems.append(required(f"{path}.items", "must be specified"))
    if schema.get("x-kubernetes-list-type") == "map" and not schema.get("x-kubernetes-list-map-keys"):
        problems.append(required(f"{path}.x-kubernetes-list-map-keys", "must not be empty if listType is map"))
    if "additionalProperties" in schema and schema.get("properties"):
        problems.append(forbidden(f"{path}.additionalProperties", "mutual exclusive with properties"))
    for name, child in (schema.get("properties") or {}).items():
        if not (root and name == "metadata"):
            problems += _problems_of_schema(child, f"{path}.properties[{name}]")
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            problems += _problems_of_schema(schema[name], f"{path}.{name}")
    return problems


class CustomRules(TypeRules):
    """Objects of custom types: their structural schema, and then its rules."""

    def problems(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> list[FieldProblem]:
        schema = situation.kind.schema
        return problems_of_custom(obj, schema) or problems_of_rules(obj, old, schema)

    def status_problems(self, obj: JsonObject, old: JsonObject, situation: Situation) -> list[FieldProblem]:
        return self.problems(obj, old, situation)


def accepted_status(crd: JsonObject, now: str) -> JsonObject:
    """The status of a definition whose names are free: established at once."""
    stored = [item["name"] for item in crd["spec"]["versions"] if item.get("storage")]
    before = crd.get("status", {}).get("storedVersions", [])
    conditions: list[dict[str, Any]] = [
        {
            "type": "NamesAccepted",
            "status": "True",
            "lastTransitionTime": now,
            "reason": "NoConflicts",
            "message": "no conflicts found",
        },
        {
            "type": "Established",
            "status": "True",
            "lastTransitionTime": now,
            "reason": "InitialNamesAccepted",
            "message": "the initial names have been accepted",
        },
    ]
    return {
        "conditions": conditions,
        "acceptedNames": crd["spec"]["names"],
        "storedVersions": [*before, *(name for name in stored if name not in before)],
    }
