"""Writes the chart's generated files: copies of definitions and classes, values.schema.json, README.md.

`make generate` runs it, and a test compares what it would write with what is committed. The schema comes from
values.yaml (types of the defaults, and the `@schema` lines above them), from the models of the publishing policy, and
from the schemas of Kubernetes' own types, so that Helm rejects every misspelled value.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dra_driver.api.policy import PublishingPolicy
from dra_driver.features import GATES
from kubelet_plugin.simulation.profiles import profile_names

type Json = dict[str, Any]

REPOSITORY = Path(__file__).parents[1]
CHART = REPOSITORY / "charts" / "gpu-dra-driver"
KUBERNETES = REPOSITORY / "dra_driver" / "apirules" / "schemas"
COPIES = {"crds": REPOSITORY / "dra_driver" / "api" / "crds", "deviceclasses": REPOSITORY / "deviceclasses"}

_ANNOTATION = "@schema "
_LONGEST_DEFAULT = 60
_EXTENDED_RESOURCE = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
"""Or empty. Kubernetes reserves names below kubernetes.io."""

_QUANTITY_TYPE = "io.k8s.apimachinery.pkg.api.resource.Quantity"
_QUANTITY: Json = {
    "type": ["string", "number"],
    "pattern": r"^[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$",
}
"""Source: resource.Quantity of apimachinery. The published schemas do not describe it."""


def _cidr() -> Json:
    """An address range that API servers accept: IPv4 or IPv6, at most eight groups, no leading zeros.

    Source: ValidateIPBlock of Kubernetes, which parses with net.ParseCIDR.
    """
    byte, group = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])", "[0-9a-fA-F]{1,4}"
    shortened = "|".join(f"({group}:){{1,{7 - after}}}(:{group}){{1,{after}}}" for after in range(1, 7))
    groups = f"({group}:){{7}}{group}|({group}:){{1,7}}:|{shortened}|:((:{group}){{1,7}}|:)"
    four = f"({byte}[.]){{3}}{byte}/(3[0-2]|[12]?[0-9])"
    return {"type": "string", "pattern": f"^({four}|({groups})/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))$"}


_KEY = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$"
_LABEL: Json = {"type": "string", "pattern": "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$", "maxLength": 63}
_OWN_LABELS = [f"app.kubernetes.io/{name}" for name in ("name", "instance", "component", "managed-by")]


def _mapping(value: Json, *, without: Sequence[str] = ()) -> Json:
    """A map with metadata keys. Not with `propertyNames`: for its failures Helm reports a wrong place and no reason."""
    refused: Json = {"properties": dict.fromkeys(without, False)} if without else {}
    return {"type": "object", **refused, "patternProperties": {_KEY: value}, "additionalProperties": False}


_MAPPINGS: Mapping[str, Json] = {
    "labels": _mapping(_LABEL, without=_OWN_LABELS),
    "selector": _mapping(_LABEL),
    "annotations": _mapping({"type": "string"}),
}
"""By their name in `@schema` (`{labels: true}`): labels that the chart sets, labels to select by, annotations."""

_BLOCK_TYPE = "io.k8s.api.networking.v1.IPBlock"


@dataclass(frozen=True)
class Value:
    """One entry of values.yaml with the comment above it."""

    path: tuple[str, ...]
    default: Any
    text: str
    annotation: Json | None
    children: "tuple[Value, ...] | None"
    """None: a leaf, even if its default is a map."""

    def leaves(self) -> Iterator["Value"]:
        for child in self.children or ():
            yield from child.leaves()
        if self.children is None:
            yield self


def read_values(text: str) -> tuple[Value, ...]:
    """In the order of the file."""
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)
    return _entries(root, text.splitlines(), ())


def _entries(node: yaml.MappingNode, lines: list[str], path: tuple[str, ...]) -> tuple[Value, ...]:
    values = []
    for key, value in node.value:
        text, annotation = _comment(lines, key.start_mark.line)
        here = (*path, key.value)
        # A map with an `@schema` line is one value.
        nested = annotation is None and isinstance(value, yaml.MappingNode) and value.value
        children = _entries(value, lines, here) if nested else None
        default = yaml.safe_load(yaml.serialize(value))
        values.append(Value(here, default, text, annotation, children))
    return tuple(values)


def _comment(lines: list[str], line: int) -> tuple[str, Json | None]:
    above = []
    while line > 0 and lines[line - 1].strip().startswith("#"):
        line -= 1
        above.append(lines[line].strip().lstrip("#").strip())
    above.reverse()
    annotations = [line.removeprefix(_ANNOTATION) for line in above if line.startswith(_ANNOTATION)]
    text = " ".join(line for line in above if not line.startswith(_ANNOTATION))
    return text, yaml.safe_load(annotations[0]) if annotations else None


class Schema:
    """The JSON schema of the values; `definitions` grows while it is made."""

    def __init__(self) -> None:
        self._definitions: Json = {}
        self._kubernetes: Json = {}
        for file in sorted(KUBERNETES.glob("*.json")):
            self._kubernetes |= json.loads(file.read_text())
        classes = sorted(path.name.removesuffix(".yaml") for path in COPIES["deviceclasses"].glob("*.yaml"))
        resource = {"type": "string", "pattern": _EXTENDED_RESOURCE, "not": {"pattern": "kubernetes[.]io/"}}
        self._class_names = dict.fromkeys(classes, resource)

    def of(self, values: tuple[Value, ...]) -> Json:
        body = self._object(values)
        # A parent chart may pass global values.
        body["properties"]["global"] = {"type": "object"}
        # Draft 7 is what every Helm 3 and 4 understands.
        return {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$comment": "Generated from values.yaml by `make generate`; do not edit.",
            **body,
            "definitions": {name: self._definitions[name] for name in sorted(self._definitions)},
        }

    def _object(self, values: tuple[Value, ...]) -> Json:
        properties = {value.path[-1]: self._value(value) for value in values}
        return {"type": "object", "additionalProperties": False, "properties": properties}

    def _value(self, value: Value) -> Json:
        described = {"description": value.text} if value.text else {}
        if value.children is not None:
            return {**described, **self._object(value.children)}
        return {**described, **self._leaf(value)}

    def _leaf(self, value: Value) -> Json:
        schema = dict(value.annotation or {})
        if schema.pop("policy", False):
            return self._policy()
        if schema.pop("featureGates", False):
            gates: Json = {
                gate.feature: {"type": "boolean", "description": gate.means, "default": gate.default}
                for gate in GATES.values()
            }
            return {"type": "object", "additionalProperties": False, "properties": gates}
        if schema.pop("simulatedProfile", False):
            return {"type": "string", "pattern": f"^(({'|'.join(profile_names())}|/[^:]+)(:[0-9]+)?)?$"}
        if schema.pop("deviceClassNames", False):
            return {"type": "object", "additionalProperties": False, "properties": self._class_names}
        schema = self._resolved(schema)
        if "$ref" in schema or "type" in schema:
            return schema
        kinds: Mapping[type, str] = {
            str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object",
        }  # fmt: skip
        kind = kinds[type(value.default)]
        if kind in ("array", "object") and not schema:
            raise ValueError(f"values.yaml: {'.'.join(value.path)} needs a line `# @schema`")
        return {"type": kind, **schema}

    def _resolved(self, annotation: Any) -> Any:
        """With every `{kubernetes: core.v1.Affinity}` as a reference."""
        if isinstance(annotation, dict):
            if annotation.keys() == {"kubernetes"}:
                return self._reference(f"io.k8s.api.{annotation['kubernetes']}")
            if annotation.keys() == {"cidr"}:
                return _cidr()
            for name, mapping in _MAPPINGS.items():
                if annotation == {name: True}:
                    return mapping
            return {key: self._resolved(child) for key, child in annotation.items()}
        return [self._resolved(child) for child in annotation] if isinstance(annotation, list) else annotation

    def _reference(self, name: str) -> Json:
        if name not in self._definitions:
            self._definitions[name] = {}
            definition = _QUANTITY if name == _QUANTITY_TYPE else self._kubernetes_type(self._kubernetes[name])
            if name == _BLOCK_TYPE:
                definition["properties"] |= {"cidr": _cidr(), "except": {"type": "array", "items": _cidr()}}
            self._definitions[name] = definition
        return {"$ref": f"#/definitions/{name}"}

    def _kubernetes_type(self, raw: Json) -> Json:
        """A JSON schema that rejects unknown fields, without what only the server needs (merging, validation)."""
        if "$ref" in raw:
            return self._reference(raw["$ref"])
        if raw.get("x-kubernetes-int-or-string") or raw.get("format") in ("int-or-string", "quantity"):
            return {"type": ["string", "number"]}
        made: Json = {key: raw[key] for key in ("type", "enum", "required") if key in raw}
        if "properties" in raw:
            made["properties"] = {name: self._kubernetes_type(field) for name, field in raw["properties"].items()}
            made["additionalProperties"] = False
        elif isinstance(raw.get("additionalProperties"), dict):
            made["additionalProperties"] = self._kubernetes_type(raw["additionalProperties"])
        if "items" in raw:
            made["items"] = self._kubernetes_type(raw["items"])
        return made

    def _policy(self) -> Json:
        return policy_schema(self._definitions)


def policy_schema(definitions: Json) -> Json:
    """The fields of a PublishingPolicy, as the model has them; the chart adds apiVersion and kind itself."""
    made = PublishingPolicy.model_json_schema(by_alias=True, ref_template="#/definitions/{model}")
    types: Json = {name: _plain(schema) for name, schema in made.pop("$defs").items()}
    # The model describes parsed values; users write a string, a number, true or false, or a version.
    version = {
        "type": "object", "additionalProperties": False, "required": ["version"],
        "properties": {"version": {"type": "string"}},
    }  # fmt: skip
    types["AttributeRule"]["properties"]["values"] = {
        "type": "object", "minProperties": 1,
        "additionalProperties": {"anyOf": [{"type": ["string", "integer", "boolean"]}, version]},
    }  # fmt: skip
    del types["Attribute"]
    # What the model's validators check across fields.
    ways = ("replicas", "capacity", "unlimited")
    types["SharingRule"]["oneOf"] = [
        {
            "required": [way],
            "properties": {
                "strategy": {"enum": ["TimeSlicing", "MPS"]},
                **({way: {"const": True}} if way == "unlimited" else {}),
            },
        }
        for way in ways
    ] + [
        {
            "properties": {
                "strategy": {"const": "Exclusive"},
                "unlimited": {"const": False},
                "multiUser": {"const": False},
            },
            "not": {"anyOf": [{"required": [field]} for field in ("replicas", "capacity", "interval")]},
        }
    ]  # fmt: skip
    definitions.update(types)
    properties = {
        name: _plain(schema) for name, schema in made["properties"].items() if name not in ("apiVersion", "kind")
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _plain(schema: Any) -> Any:
    """Without titles, defaults and null: to get the default, users leave a field out."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "anyOf" in schema:
        (choice,) = [option for option in schema["anyOf"] if option != {"type": "null"}]
        return {**_plain(choice), **_plain({key: schema[key] for key in schema.keys() - {"anyOf", "default", "title"}})}
    made = {}
    for key, value in schema.items():
        if key in ("title", "default") and not isinstance(value, dict):
            continue
        if key == "default":
            continue
        made[key] = {name: _plain(child) for name, child in value.items()} if key == "properties" else _plain(value)
    return made


def render_schema() -> str:
    values = read_values((CHART / "values.yaml").read_text())
    return json.dumps(Schema().of(values), indent=1, ensure_ascii=False) + "\n"


_README = """\
<!-- Generated from values.yaml by `make generate`; do not edit. -->
# gpu-dra-driver: the chart

```sh
helm install gpu-dra-driver charts/gpu-dra-driver --namespace gpu-dra --create-namespace \\
  --set image.repository=REGISTRY/gpu-dra-driver
helm test gpu-dra-driver --namespace gpu-dra
```

Kubernetes 1.34 or newer. How to build the image, what to do on which cluster, upgrades and removal: `docs/install.md`.
Helm rejects unknown values: every value is in the tables below.

"""


def render_readme() -> str:
    lines = [_README.rstrip("\n"), ""]
    plain: list[Value] = []
    for value in read_values((CHART / "values.yaml").read_text()):
        if value.children is None:
            plain.append(value)
    lines += ["## The whole release", "", *_table(plain), ""]
    for value in read_values((CHART / "values.yaml").read_text()):
        if value.children is not None:
            lines += [f"## {value.path[0]}", ""]
            lines += [value.text, ""] if value.text else []
            lines += [*_table(list(value.leaves())), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _table(values: list[Value]) -> Iterator[str]:
    yield "| Value | Default | |"
    yield "|---|---|---|"
    for value in values:
        default = json.dumps(value.default, ensure_ascii=False)
        if len(default) > _LONGEST_DEFAULT:
            default = "see values.yaml"
        text = re.sub(r"\|", r"\\|", value.text)
        yield f"| `{'.'.join(value.path)}` | `{default}` | {text} |"


def render_gates() -> str:
    """Defaults and required gates, for templates that check whether a gate is on."""
    gates = {
        "defaults": {str(feature): gate.default for feature, gate in GATES.items()},
        "needs": {
            str(feature): [str(needed) for needed in gate.needs] for feature, gate in GATES.items() if gate.needs
        },
    }
    return f"# Generated from dra_driver/features.py by `make generate`; do not edit.\n{yaml.safe_dump(gates)}"


def render_needed() -> str:
    """Paths of values that templates need: maps of values, and values whose default is not empty."""

    def needed(values: tuple[Value, ...]) -> Iterator[str]:
        for value in values:
            says = not isinstance(value.default, list | dict) and value.default not in ("", None)
            if value.children is not None or (says and value.path[-1] not in _MAY_BE_NULL):
                yield ".".join(value.path)
            yield from needed(value.children or ())

    paths = list(needed(read_values((CHART / "values.yaml").read_text())))
    return f"# Generated from values.yaml by `make generate`; do not edit.\n{yaml.safe_dump(paths)}"


_MAY_BE_NULL = ("priorityClassName",)
"""Names of values with a default that may be null."""


def generated() -> dict[Path, str]:
    """Every generated file and its content."""
    files = {
        CHART / "values.schema.json": render_schema(),
        CHART / "README.md": render_readme(),
        CHART / "files" / "feature-gates.yaml": render_gates(),
        CHART / "files" / "needed-values.yaml": render_needed(),
    }
    for folder, source in COPIES.items():
        for file in sorted(source.glob("*.yaml")):
            files[CHART / "files" / folder / file.name] = file.read_text(encoding="utf-8")
    return files


def main() -> None:
    files = generated()
    for folder in COPIES:
        for stale in set((CHART / "files" / folder).glob("*")) - files.keys():
            stale.unlink()
    for path, content in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
