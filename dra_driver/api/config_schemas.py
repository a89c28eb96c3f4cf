"""JSON schemas of the opaque configs, for editors and for checks without this driver: `docs/schemas/<kind>.json`.

Made from the same descriptions that decoding uses. `python -m dra_driver.api.config_schemas` writes the committed
files; a test compares. What a schema cannot say stays with the decoder: the least and the most amount of memory where
it has a unit, a UUID in two spellings, and that somebody, claim or class, has to name the strategy.
"""

import inspect
import json
from pathlib import Path

from dra_driver.api.config import DEVICE_CONFIGS, DOMAIN_CONFIGS, DeviceConfig
from dra_driver.api.meta import JsonObject
from dra_driver.names import CONFIG_API_VERSION

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"


def schema_of(kind: type[DeviceConfig]) -> JsonObject:
    """Of a whole `parameters` object. Draft 2020-12."""
    fields = kind.described.schema()
    header = {"apiVersion": {"const": CONFIG_API_VERSION}, "kind": {"const": kind.kind}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": kind.kind,
        "description": inspect.cleandoc(kind.__doc__ or ""),
        **fields,
        "required": list(header),
        "properties": {**header, **fields["properties"]},
    }


def files() -> dict[str, str]:
    """Name to content."""
    return {
        f"{kind.kind}.json": json.dumps(schema_of(kind), indent=2) + "\n" for kind in (*DEVICE_CONFIGS, *DOMAIN_CONFIGS)
    }


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in files().items():
        (FOLDER / name).write_text(content, encoding="utf-8")
