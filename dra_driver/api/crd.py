"""The CustomResourceDefinition of NodeInventory, made from its model so that the two cannot drift apart.

`python -m dra_driver.api.crd` writes the committed file; a test compares the two. The docstrings of the fields are the
descriptions that `kubectl explain` shows.
"""

import ast
import inspect
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from dra_driver.api import inventory
from dra_driver.api.meta import NODE_INVENTORIES, JsonObject

FILE = Path(__file__).parent / "crds" / "nodeinventory.yaml"

_COLUMNS = (
    ("GPUs", "integer", ".spec.summary.gpus"),
    ("Healthy", "string", ".spec.summary.healthy"),
    ("Product", "string", ".spec.summary.product"),
    ("Driver", "string", ".spec.summary.driver"),
    ("Clique", "string", ".spec.summary.clique"),
    ("Age", "date", ".metadata.creationTimestamp"),
)

_HEADER = "# Generated from dra_driver/api/inventory.py by `python -m dra_driver.api.crd`; do not edit.\n"


def node_inventory_crd() -> JsonObject:
    """The definition as an object. Same model, same object."""
    kind, plural, group = NODE_INVENTORIES.kind, NODE_INVENTORIES.plural, NODE_INVENTORIES.group
    descriptions = _field_descriptions()
    schema = inventory.NodeInventorySpec.model_json_schema(by_alias=True, mode="validation")
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": ["ninv"],
            },
            "scope": "Cluster",
            "versions": [
                {
                    "name": NODE_INVENTORIES.version,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [
                        {"name": name, "type": type_, "jsonPath": path} for name, type_, path in _COLUMNS
                    ],
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "description": inspect.cleandoc(inventory.__doc__ or "").partition("\n")[0],
                            "required": ["spec"],
                            "properties": {
                                "apiVersion": {"type": "string"},
                                "kind": {"type": "string"},
                                "metadata": {"type": "object"},
                                "spec": _structural(schema, schema.get("$defs", {}), descriptions),
                            },
                        }
                    },
                }
            ],
        },
    }


def render() -> str:
    """The definition as the committed file has it."""
    return _HEADER + yaml.safe_dump(node_inventory_crd(), sort_keys=False, width=120, allow_unicode=True)


def _structural(schema: JsonObject, definitions: JsonObject, descriptions: dict[tuple[str, str], str]) -> JsonObject:
    """A structural schema (Kubernetes) from a JSON schema (pydantic): no references, titles, nulls or defaults."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        (schema,) = [option for option in schema["anyOf"] if option != {"type": "null"}]
        return _structural(schema, definitions, descriptions)
    if schema["type"] == "array":
        return {"type": "array", "items": _structural(schema["items"], definitions, descriptions)}
    if schema["type"] == "object":
        return _object(schema, definitions, descriptions)
    if schema["type"] == "integer":
        return {"type": "integer", "format": "int64"}
    return {key: schema[key] for key in ("type", "enum") if key in schema}


def _object(schema: JsonObject, definitions: JsonObject, descriptions: dict[tuple[str, str], str]) -> JsonObject:
    properties = {}
    for name, property_ in schema["properties"].items():
        properties[name] = _structural(property_, definitions, descriptions)
        if description := descriptions.get((schema["title"], name)):
            properties[name] = {"description": description} | properties[name]
    required = {"required": schema["required"]} if schema.get("required") else {}
    return {"type": "object", **required, "properties": properties}


def _field_descriptions() -> dict[tuple[str, str], str]:
    """By model and wire name: the string below a field in the source of the models."""
    found = {}
    for node in ast.parse(inspect.getsource(inventory)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        model: type[BaseModel] = getattr(inventory, node.name)
        for field, following in zip(node.body, node.body[1:], strict=False):
            text = _text(following)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and text is not None:
                alias = model.model_fields[field.target.id].alias or field.target.id
                found[node.name, alias] = " ".join(text.split())
    return found


def _text(node: ast.stmt) -> str | None:
    value: Any = node.value.value if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) else None
    return value if isinstance(value, str) else None


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
