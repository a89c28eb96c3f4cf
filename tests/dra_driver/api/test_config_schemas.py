"""The committed JSON schemas are made from the fields that decoding knows, and the two agree."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from jsonschema import Draft202012Validator
from support.configs import configs, encode_config, written
from support.rows import rows

from docs.from_code.config_schemas import FOLDER, files, schema_of
from dra_driver.api.config import DEVICE_CONFIGS, DeviceConfig
from dra_driver.api.opaque import PartialConfig, kind_of
from dra_driver.api.opaque import written_config as read
from dra_driver.errors import InvalidConfig
from dra_driver.names import CONFIG_API_VERSION

KINDS = {kind.kind: kind for kind in DEVICE_CONFIGS}
SCHEMAS = {name: Draft202012Validator(schema_of(kind)) for name, kind in KINDS.items()}
BAD = yaml.safe_load((Path(__file__).parent / "bad_configs.yaml").read_text(encoding="utf-8"))


def test_the_committed_files_are_what_the_generator_writes() -> None:
    assert {name: (FOLDER / name).read_text(encoding="utf-8") for name in files()} == files()


@pytest.mark.parametrize("kind", DEVICE_CONFIGS)
def test_each_is_a_schema_that_describes_every_field(kind: type[DeviceConfig]) -> None:
    schema = schema_of(kind)
    Draft202012Validator.check_schema(schema)

    def check(part: dict[str, Any]) -> None:
        for name, field in part.get("properties", {}).items():
            assert "const" in field or field["description"].endswith("."), name
            check(field)

    check(schema)


@given(configs)
def test_every_config_that_can_be_is_right_by_its_schema(config: DeviceConfig) -> None:
    SCHEMAS[config.kind].validate(json.loads(json.dumps(encode_config(config))))


@given(written())
def test_so_is_every_part_of_a_config(part: PartialConfig) -> None:
    SCHEMAS["GpuConfig"].validate({"apiVersion": CONFIG_API_VERSION, "kind": "GpuConfig", **part.tree})


BEYOND_SCHEMAS = ("must be at least `1Mi`", "must be less than `8Ei`", "names a device twice, in different spellings")


def single_configs() -> list[dict[str, Any]]:
    """Of the table of wrong configs: each one by itself, whatever is wrong with it."""
    return [
        ({} if row.get("bare") else {"apiVersion": CONFIG_API_VERSION}) | config
        for row in BAD
        for config in (*row.get("class", ()), *row.get("claim", ()))
        if isinstance(config.get("kind"), str) and config["kind"] in KINDS
    ]


@rows("parameters", single_configs())
def test_what_is_wrong_in_itself_is_wrong_by_the_schema_as_far_as_schemas_go(
    parameters: dict[str, Any],
) -> None:
    valid = SCHEMAS[parameters["kind"]].is_valid(parameters)
    try:
        read(parameters, KINDS[kind_of(parameters, field="p")], field="p")
    except InvalidConfig as error:
        assert not valid or error.message.partition("; ")[2] in BEYOND_SCHEMAS or error.message in BEYOND_SCHEMAS
    else:
        assert valid
