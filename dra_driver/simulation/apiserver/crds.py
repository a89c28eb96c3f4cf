"""CustomResourceDefinitions: what they add to the table of types, and the status the server gives them."""

from typing import Any

from dra_driver.api.meta import JsonObject, Resource
from dra_driver.simulation.apiserver.resource_types import ResourceType
from dra_driver.simulation.apiserver.schema import custom_schema
from dra_driver.simulation.apiserver.tables import Column

KEY = ("apiextensions.k8s.io", "customresourcedefinitions")


def served_types(crd: JsonObject) -> list[ResourceType]:
    """One entry for each served version."""
    spec = crd["spec"]
    storage = next((one["name"] for one in spec["versions"] if one.get("storage")), "")
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
        columns=tuple(_column(one) for one in version.get("additionalPrinterColumns", ())),
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


def fill_names(crd: JsonObject) -> None:
    """The names that follow from the kind when they are not given."""
    names = crd.get("spec", {}).get("names", {})
    kind = names.get("kind", "")
    names.setdefault("singular", kind.lower())
    names.setdefault("listKind", f"{kind}List")
    crd.get("spec", {}).setdefault("conversion", {"strategy": "None"})


def accepted_status(crd: JsonObject, now: str) -> JsonObject:
    """The status of a definition whose names are free: established at once."""
    stored = [one["name"] for one in crd["spec"]["versions"] if one.get("storage")]
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
