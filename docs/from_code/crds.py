"""The CustomResourceDefinitions of NodeInventory, ComputeDomain and GpuPolicy, made from their models so that the two
cannot drift apart.

`make generate` writes the committed files; a test compares them. The docstrings of the fields are the
descriptions that `kubectl explain` shows.
"""

import ast
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType, ModuleType

import yaml
from pydantic import BaseModel

from dra_driver.api import computedomain, gpu_settings, gpupolicy, inventory, meta, policy
from dra_driver.api.meta import COMPUTE_DOMAINS, GPU_POLICIES, NODE_INVENTORIES, JsonObject, Resource

_FOLDER = Path(__file__).parents[2] / "dra_driver" / "api" / "crds"


@dataclass(frozen=True, slots=True)
class CustomDefinition:
    """One custom type. `columns` are name, type and path of what `kubectl get` shows; `rules` are CEL, for the spec.

    The status is a subresource, so that writers of the spec cannot write the status and vice versa.
    """

    resource: Resource
    module: ModuleType
    spec: type[BaseModel]
    columns: tuple[tuple[str, str, str], ...]
    short_name: str
    status: type[BaseModel]
    defaults: Mapping[str, object] = MappingProxyType({})
    """Of fields of the spec that columns show."""
    rules: tuple[tuple[str, str], ...] = ()

    @property
    def file(self) -> Path:
        return _FOLDER / f"{self.resource.kind.lower()}.yaml"


NODE_INVENTORY = CustomDefinition(
    NODE_INVENTORIES,
    inventory,
    inventory.NodeInventorySpec,
    (
        ("GPUs", "integer", ".spec.summary.gpus"),
        ("Healthy", "string", ".spec.summary.healthy"),
        ("Product", "string", ".spec.summary.product"),
        ("Driver", "string", ".spec.summary.driver"),
        ("Clique", "string", ".spec.summary.clique"),
        ("Policy", "string", f".status.conditions[?(@.type=='{inventory.POLICY_FOLLOWED}')].reason"),
        ("Age", "date", ".metadata.creationTimestamp"),
    ),
    "ninv",
    status=inventory.NodeInventoryStatus,
)

COMPUTE_DOMAIN = CustomDefinition(
    COMPUTE_DOMAINS,
    computedomain,
    computedomain.ComputeDomainSpec,
    (
        ("Status", "string", ".status.status"),
        ("Nodes", "string", ".status.readyNodes"),
        ("Reason", "string", ".status.conditions[?(@.type=='Ready')].reason"),
        ("Template", "string", ".spec.channel.resourceClaimTemplate.name"),
        ("Age", "date", ".metadata.creationTimestamp"),
    ),
    "cd",
    status=computedomain.ComputeDomainStatus,
    rules=(("self == oldSelf", "a ComputeDomain cannot be changed; delete it and create another"),),
)

_WAYS = "[has(s.replicas), has(s.capacity), has(s.unlimited) && s.unlimited].filter(w, w).size()"

GPU_POLICY = CustomDefinition(
    GPU_POLICIES,
    gpupolicy,
    gpupolicy.GpuPolicySpec,
    (
        ("Priority", "integer", ".spec.priority"),
        ("Nodes", "integer", ".status.nodes"),
        ("GPUs", "integer", ".status.gpus"),
        ("Offered", "string", ".status.offered"),
        ("Waiting", "integer", ".status.waitingGPUs"),
        ("Followed", "string", ".status.conditions[?(@.type=='Followed')].reason"),
        ("Age", "date", ".metadata.creationTimestamp"),
    ),
    "gpol",
    status=gpupolicy.GpuPolicyStatus,
    defaults={"priority": 0},
    rules=(
        (
            "!has(self.gpus) || !(has(self.computeDomains) || has(self.health))",
            "computeDomains and health apply to whole nodes; move them to a policy without gpus",
        ),
        (
            "!has(self.mig) || self.mig.mode == 'Dynamic'"
            " || !(has(self.mig.profiles) || has(self.mig.computeInstances)"
            " || has(self.mig.wholeGpu) && !self.mig.wholeGpu"
            " || has(self.mig.modeChange) && self.mig.modeChange != 'Never')",
            "mode Static offers what exists; profiles, computeInstances, wholeGpu and modeChange are for mode Dynamic",
        ),
        (
            f"!has(self.sharing) || self.sharing.all(s, s.strategy == 'Exclusive' ? {_WAYS} == 0 : {_WAYS} == 1)",
            "a sharing entry sets exactly one of replicas, capacity and unlimited; with strategy Exclusive, none",
        ),
        (
            "!has(self.sharing) || self.sharing.all(s, !has(s.interval) || s.strategy == 'TimeSlicing'"
            " && !(has(s.devices) && s.devices == 'mig'))",
            "interval is for strategy TimeSlicing on full GPUs",
        ),
        (
            "!has(self.sharing) || self.sharing.all(s, !(has(s.multiUser) && s.multiUser) || s.strategy == 'MPS')",
            "multiUser is for strategy MPS",
        ),
        (
            "!has(self.sharing) || self.sharing.all(s, !has(s.profiles) || has(s.devices) && s.devices == 'mig')",
            "profiles are for devices: mig",
        ),
        (
            "!has(self.attributes) || self.attributes.all(n, [has(self.attributes[n].int),"
            " has(self.attributes[n].bool), has(self.attributes[n].string), has(self.attributes[n].version)]"
            ".filter(h, h).size() == 1)",
            "an attribute sets exactly one of int, bool, string and version",
        ),
    ),
)

DEFINITIONS = (NODE_INVENTORY, COMPUTE_DOMAIN, GPU_POLICY)

FILE = NODE_INVENTORY.file


def crd(definition: CustomDefinition) -> JsonObject:
    """The definition as an object. Same model, same object."""
    resource = definition.resource
    version: JsonObject = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [
            {"name": name, "type": type_, "jsonPath": path} for name, type_, path in definition.columns
        ],
        "schema": {"openAPIV3Schema": _schema(definition)},
        "subresources": {"status": {}},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {
            "group": resource.group,
            "names": {
                "kind": resource.kind,
                "listKind": f"{resource.kind}List",
                "plural": resource.plural,
                "singular": resource.kind.lower(),
                "shortNames": [definition.short_name],
            },
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "versions": [version],
        },
    }


def _schema(definition: CustomDefinition) -> JsonObject:
    descriptions = {
        (model.__name__, name): text
        for module in (meta, gpu_settings, policy, definition.module)
        for model in vars(module).values()
        if isinstance(model, type) and issubclass(model, BaseModel) and model.__module__ == module.__name__
        for name, text in field_docstrings(model).items()
    }
    spec = _of_model(definition.spec, descriptions)
    for name, default in definition.defaults.items():
        spec["properties"][name]["default"] = default
    if definition.rules:
        spec["x-kubernetes-validations"] = [{"rule": rule, "message": message} for rule, message in definition.rules]
    return {
        "type": "object",
        "description": inspect.cleandoc(definition.module.__doc__ or "").partition("\n")[0],
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": _of_model(definition.status, descriptions),
        },
    }


def _of_model(model: type[BaseModel], descriptions: dict[tuple[str, str], str]) -> JsonObject:
    schema = model.model_json_schema(by_alias=True, mode="validation")
    return _structural(schema, schema.get("$defs", {}), descriptions)


def render(definition: CustomDefinition) -> str:
    """The content of the committed file."""
    source = f"dra_driver/api/{definition.module.__name__.rpartition('.')[2]}.py"
    header = f"# Generated from {source} by `make generate`; do not edit.\n"
    return header + yaml.safe_dump(crd(definition), sort_keys=False, width=120, allow_unicode=True)


def _structural(schema: JsonObject, definitions: JsonObject, descriptions: dict[tuple[str, str], str]) -> JsonObject:
    """A structural schema (Kubernetes) from a JSON schema (pydantic): no references, titles, nulls or defaults."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        (schema,) = [option for option in schema["anyOf"] if option != {"type": "null"}]
        return _structural(schema, definitions, descriptions)
    if schema["type"] == "array":
        return {"type": "array", **_bounds(schema), "items": _structural(schema["items"], definitions, descriptions)}
    if schema["type"] == "object":
        return _object(schema, definitions, descriptions)
    if schema["type"] == "integer":
        return {"type": "integer", "format": "int64", **_bounds(schema)}
    return {key: schema[key] for key in ("type", "enum") if key in schema} | _bounds(schema)


_BOUNDS = ("minimum", "maximum", "minItems", "maxItems", "maxLength", "minProperties", "maxProperties")


def _bounds(schema: JsonObject) -> JsonObject:
    return {key: schema[key] for key in _BOUNDS if key in schema}


def _object(schema: JsonObject, definitions: JsonObject, descriptions: dict[tuple[str, str], str]) -> JsonObject:
    if isinstance(schema.get("additionalProperties"), dict):
        values = _structural(schema["additionalProperties"], definitions, descriptions)
        return {"type": "object", **_bounds(schema), "additionalProperties": values}
    properties = {}
    for name, property_ in schema["properties"].items():
        properties[name] = _structural(property_, definitions, descriptions)
        if description := descriptions.get((schema["title"], name)):
            properties[name] = {"description": description} | properties[name]
    required = {"required": schema["required"]} if schema.get("required") else {}
    return {"type": "object", **required, "properties": properties}


def field_docstrings(model: type[BaseModel]) -> dict[str, str]:
    """Docstrings of the fields that the class itself declares, by wire name."""
    fields = model.model_fields
    return {fields[name].alias or name: text for name, text in docstrings(model).items() if name in fields}


def docstrings(of: type) -> dict[str, str]:
    """Of the annotated names that the class itself declares."""
    (tree,) = ast.parse(inspect.getsource(of)).body
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for field, following in pairwise(tree.body):
        match field, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = " ".join(text.split())
    return texts


if __name__ == "__main__":
    for definition in DEFINITIONS:
        definition.file.write_text(render(definition), encoding="utf-8")
