"""CustomResourceDefinitions: what they add to the table of types, and the status the server gives them."""

from typing import Any

from dra_driver.api.meta import JsonObject, Resource
from dra_driver.apirules.schema import custom_schema
from dra_driver.apirules.status import FieldProblem, invalid, not_supported, required
from dra_driver.simulation.apiserver.custom_objects import problems_of_custom, problems_of_rules
from dra_driver.simulation.apiserver.resource_types import Column, ResourceType
from dra_driver.simulation.apiserver.rules import Situation, TypeRules

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
    """CustomResourceDefinition; that its schemas are structural is not checked."""

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
        stored = sum(bool(version.get("storage")) for version in spec.get("versions") or ())
        if stored != 1:
            problems.append(
                invalid("spec.versions", "<value omitted>", "must have exactly one version marked as storage version")
            )
        return problems

    def prepare(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> None:
        if old is None:
            stored = [item["name"] for item in obj["spec"].get("versions") or () if item.get("storage")]
            obj["status"] = {
                "conditions": None,
                "acceptedNames": {"plural": "", "kind": ""},
                "storedVersions": stored,
            }


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
