"""JSON schemas of the opaque configs, for editors and for checks without this driver: `docs/schemas/<kind>.json`.

Made from the models that decoding uses. `make generate` writes the committed files; a test compares. A schema cannot
say: the limits of a memory amount with a unit, a UUID in two spellings, and that claim or class must name the strategy.
"""

import inspect
import json
from pathlib import Path

from docs.from_code.crds import docstrings
from dra_driver.api import config
from dra_driver.api.config import ANY_PREFIX, DEVICE_CONFIGS, DOMAIN_CONFIGS, DeviceConfig, adapter, wire_name
from dra_driver.api.meta import JsonObject
from dra_driver.names import CONFIG_API_VERSION

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"


def schema_of(kind: type[DeviceConfig]) -> JsonObject:
    """The schema of a whole `parameters` object. Draft 2020-12."""
    schema = json.loads(json.dumps(adapter(kind.kind).json_schema()).replace(ANY_PREFIX, kind.uuid_prefix))
    for name, block in {kind.kind: schema, **schema.get("$defs", {})}.items():
        # Another config may have what is missing in this one, and null is the same as missing.
        block.pop("required", None)
        if "properties" in block:
            texts = {wire_name(field): text for field, text in docstrings(getattr(config, name)).items()}
            block["properties"] = {
                field: {"description": texts[field], **_nullable(written)}
                for field, written in block["properties"].items()
            }
    header = {"apiVersion": {"const": CONFIG_API_VERSION}, "kind": {"const": kind.kind}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "description": inspect.cleandoc(kind.__doc__ or ""),
        "required": list(header),
        "properties": {**header, **schema["properties"]},
    }


def _nullable(field: JsonObject) -> JsonObject:
    outside = {}
    field.pop("title", None)
    if isinstance(default := field.pop("default", None), str | bool) and default != "":
        outside["default"] = default
    options = field.pop("anyOf", None) or [field]
    null: JsonObject = {"type": "null"}
    return {**outside, "anyOf": options if null in options else [*options, null]}


def files() -> dict[str, str]:
    """Name to content."""
    return {
        f"{kind.kind}.json": json.dumps(schema_of(kind), indent=2) + "\n" for kind in (*DEVICE_CONFIGS, *DOMAIN_CONFIGS)
    }


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in files().items():
        (FOLDER / name).write_text(content, encoding="utf-8")
