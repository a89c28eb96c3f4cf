"""Turns the OpenAPI documents of a real kube-apiserver into the compact form that the simulated one carries.

Run with a folder of `/openapi/v3/<group version>` documents, saved as `<group version with '/' as '_'>.json`:

    python tests/contracts/extract_schemas.py FOLDER dra_driver/apirules/schemas

Only names, types and merge rules are kept, no descriptions. One definition per line, so that a difference between
two Kubernetes versions is readable. `test_schemas.py` compares the result with a real server.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

GROUP_VERSIONS = (
    "api/v1",
    "apis/admissionregistration.k8s.io/v1",
    "apis/apiextensions.k8s.io/v1",
    "apis/apps/v1",
    "apis/authentication.k8s.io/v1",
    "apis/authorization.k8s.io/v1",
    "apis/batch/v1",
    "apis/coordination.k8s.io/v1",
    "apis/events.k8s.io/v1",
    "apis/networking.k8s.io/v1",
    "apis/policy/v1",
    "apis/rbac.authorization.k8s.io/v1",
    "apis/resource.k8s.io/v1",
    "apis/resource.k8s.io/v1beta1",
    "apis/resource.k8s.io/v1beta2",
    "apis/scheduling.k8s.io/v1",
)

_PREFIX = "#/components/schemas/"


def compact(schema: object) -> Any:
    """Without descriptions; a reference wrapped to carry a default becomes a reference with a default."""
    if isinstance(schema, list):
        return [compact(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    slim = {
        key: compact(value)
        for key, value in sorted(schema.items())
        if not (key == "description" and isinstance(value, str)) and key != "x-kubernetes-unions"
    }
    if isinstance(reference := slim.get("$ref"), str):
        slim["$ref"] = reference.removeprefix(_PREFIX)
    if isinstance(slim.get("allOf"), list):
        return {**slim.pop("allOf")[0], **slim}
    return slim


def file_of(definition: str) -> str:
    """The data file that a definition goes to: one per API group, the shared ones under `meta`."""
    words = definition.split(".")
    if definition.startswith("io.k8s.api."):
        return words[3]
    return "apiextensions" if "apiextensions" in definition else "meta"


def extract(documents: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """File to definition name to schema."""
    files: dict[str, dict[str, Any]] = {}
    for document in documents:
        for name, schema in document["components"]["schemas"].items():
            files.setdefault(file_of(name), {})[name] = compact(schema)
    return files


def render(definitions: dict[str, Any]) -> str:
    """One definition per line."""
    lines = [
        f"{json.dumps(name)}:{json.dumps(definitions[name], separators=(',', ':'))}" for name in sorted(definitions)
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main(source: Path, target: Path) -> None:
    documents = [json.loads((source / f"{name.replace('/', '_')}.json").read_text()) for name in GROUP_VERSIONS]
    for name, definitions in extract(documents).items():
        (target / f"{name}.json").write_text(render(definitions))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
