"""docs/configuration.md says what is so: its examples decode, and its rules are those of the code."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.rows import rows

from docs.from_code.config_schemas import schema_of
from dra_driver.api.config import DEVICE_CONFIGS, DeviceConfig, GpuConfig, Mps, Sharing
from dra_driver.api.opaque import combined, kind_of, written_config
from dra_driver.names import GPU_DRIVER

PAGE = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text(encoding="utf-8")
KINDS = {kind.kind: kind for kind in DEVICE_CONFIGS}
DOCUMENTS = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)]


def parameters_in(document: Any) -> Iterator[dict[str, Any]]:
    """The opaque configs of a manifest; a document that is one is its own."""
    if isinstance(document, list):
        for entry in document:
            yield from parameters_in(entry)
    elif isinstance(document, dict):
        if document.get("kind") in KINDS:
            yield document
        for entry in document.values():
            yield from parameters_in(entry)


SHOWN = [parameters for document in DOCUMENTS for parameters in parameters_in(document)]


@rows("parameters", SHOWN)
def test_every_example_decodes(parameters: dict[str, Any]) -> None:
    written_config(parameters, KINDS[kind_of(parameters, field="p")], field="p")


def test_there_is_an_example_of_every_kind_and_field() -> None:
    def paths(tree: dict[str, Any]) -> Iterator[str]:
        for name, value in tree.items():
            yield name
            yield from paths(value) if isinstance(value, dict) else ()

    def described(schema: dict[str, Any]) -> Iterator[str]:
        for block in (schema, *schema.get("$defs", {}).values()):
            yield from block.get("properties", {}).keys() - {"apiVersion", "kind"}

    for kind in DEVICE_CONFIGS:
        shown = {path for parameters in SHOWN if parameters["kind"] == kind.kind for path in paths(parameters)}
        # Of MIG devices only what differs from GPUs is repeated.
        missing = set(described(schema_of(kind))) - shown
        assert not missing or kind.kind == "MigDeviceConfig", missing
    assert {parameters["kind"] for parameters in SHOWN} == set(KINDS)


def test_opaque_configs_in_manifests_are_for_this_driver() -> None:
    assert re.findall(r"driver: (\S+)", PAGE)
    assert set(re.findall(r"^ +driver: (\S+)", PAGE, re.M)) == {GPU_DRIVER}


def test_the_class_and_the_claim_of_the_page_make_what_the_page_says() -> None:
    of_class = next(next(parameters_in(document)) for document in DOCUMENTS if document["kind"] == "DeviceClass")
    of_claim = next(config for config in SHOWN if "strategy" not in config.get("sharing", {"strategy": None}))
    both = combined(
        [written_config(parameters, GpuConfig, field="p") for parameters in (of_class, of_claim)], GpuConfig
    )
    assert both.sharing == Sharing("MPS", mps=Mps(50, 8 * 2**30))


@pytest.mark.parametrize("kind", DEVICE_CONFIGS)
def test_each_kind_has_a_part_of_the_page_and_its_schema(kind: type[DeviceConfig]) -> None:
    assert f"## {kind.kind}\n" in PAGE
    assert f"(schemas/{kind.kind}.json)" in PAGE
