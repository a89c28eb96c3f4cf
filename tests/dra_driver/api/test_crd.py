"""The committed CustomResourceDefinition is that of the model."""

from typing import Any

import yaml

from dra_driver.api.crd import FILE, node_inventory_crd, render
from dra_driver.api.inventory import GpuFacts, NodeInventorySpec


def objects(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """This schema and all below it."""
    inner = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
    return [schema, *(found for one in inner for found in objects(one))]


def spec_schema() -> dict[str, Any]:
    (version,) = node_inventory_crd()["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def test_the_committed_file_is_what_the_generator_writes() -> None:
    assert FILE.read_text(encoding="utf-8") == render()


def test_it_is_one_yaml_document_with_the_columns_that_a_person_wants() -> None:
    crd = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    columns = [column["name"] for column in crd["spec"]["versions"][0]["additionalPrinterColumns"]]
    assert columns == ["GPUs", "Healthy", "Product", "Driver", "Clique", "Age"]


def test_the_schema_is_structural() -> None:
    """Kubernetes' rules: every node has a type, and nothing refers to anything or has alternatives."""
    for schema in objects(spec_schema()):
        assert schema["type"] in ("object", "array", "string", "integer", "boolean")
        assert not {"$ref", "anyOf", "oneOf", "allOf", "default", "title", "nullable"} & schema.keys()


def test_the_schema_has_every_field_under_its_wire_name() -> None:
    assert set(spec_schema()["properties"]) == {field.alias for field in NodeInventorySpec.model_fields.values()}
    gpu = spec_schema()["properties"]["gpus"]["items"]
    assert set(gpu["properties"]) == {field.alias for field in GpuFacts.model_fields.values()}
    assert "pciBusID" in gpu["required"]
    assert "memoryBytes" not in gpu["required"]


def test_fields_are_described_by_the_sentences_of_the_model() -> None:
    gpu = spec_schema()["properties"]["gpus"]["items"]["properties"]
    assert gpu["minor"]["description"] == "N of /dev/nvidiaN."
