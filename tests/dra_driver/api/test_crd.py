"""The committed CustomResourceDefinitions are those of the models."""

from typing import Any

import pytest
import yaml

from docs.from_code.crds import COMPUTE_DOMAIN, DEFINITIONS, FILE, NODE_INVENTORY, CustomDefinition, crd, render
from dra_driver.api.computedomain import ComputeDomainSpec, ComputeDomainStatus
from dra_driver.api.inventory import GpuFacts, NodeInventorySpec


def objects(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """This schema and all below it."""
    inner = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
    return [schema, *(below for inner_schema in inner for below in objects(inner_schema))]


def schema_of(definition: CustomDefinition, part: str = "spec") -> dict[str, Any]:
    (version,) = crd(definition)["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"][part]
    return schema


def spec_schema() -> dict[str, Any]:
    return schema_of(NODE_INVENTORY)


every_definition = pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.resource.kind)


@every_definition
def test_the_committed_file_is_what_the_generator_writes(definition: CustomDefinition) -> None:
    assert definition.file.read_text(encoding="utf-8") == render(definition)


def test_it_is_one_yaml_document_with_the_columns_that_a_person_wants() -> None:
    definition = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    columns = [column["name"] for column in definition["spec"]["versions"][0]["additionalPrinterColumns"]]
    assert columns == ["GPUs", "Healthy", "Product", "Driver", "Clique", "Policy", "Age"]


@every_definition
def test_the_schema_is_structural(definition: CustomDefinition) -> None:
    """Kubernetes' rules: every node has a type, and nothing refers to anything or has alternatives."""
    for schema in [below for part in ("spec", "status") for below in objects(schema_of(definition, part))]:
        assert schema["type"] in ("object", "array", "string", "integer", "boolean")
        assert not {"$ref", "anyOf", "oneOf", "allOf", "title", "nullable"} & schema.keys()


@every_definition
def test_only_what_a_column_shows_has_a_default(definition: CustomDefinition) -> None:
    """A default of an older definition stays in stored objects."""
    spec = schema_of(definition)
    with_default = [name for name, field in spec["properties"].items() if "default" in field]
    assert with_default == list(definition.defaults)
    assert sum("default" in schema for schema in objects(spec)) == len(with_default)


@every_definition
def test_bounds_are_numbers_that_an_api_server_can_compare(definition: CustomDefinition) -> None:
    """It compares as floats, and refuses every object where a bound is none of JSON's exact integers."""
    for schema in [below for part in ("spec", "status") for below in objects(schema_of(definition, part))]:
        assert all(abs(schema[bound]) < 2**53 for bound in ("minimum", "maximum") if bound in schema)


def test_the_schema_has_every_field_under_its_wire_name() -> None:
    assert set(spec_schema()["properties"]) == {field.alias for field in NodeInventorySpec.model_fields.values()}
    gpu = spec_schema()["properties"]["gpus"]["items"]
    assert set(gpu["properties"]) == {field.alias for field in GpuFacts.model_fields.values()}
    assert "pciBusID" in gpu["required"]
    assert "memoryBytes" not in gpu["required"]


def test_fields_are_described_by_the_sentences_of_the_model() -> None:
    gpu = spec_schema()["properties"]["gpus"]["items"]["properties"]
    assert gpu["minor"]["description"] == "N of /dev/nvidiaN."


def test_a_compute_domain_has_a_status_of_its_own_and_a_spec_that_stays() -> None:
    (version,) = crd(COMPUTE_DOMAIN)["spec"]["versions"]
    assert version["subresources"] == {"status": {}}
    assert set(schema_of(COMPUTE_DOMAIN)["properties"]) == {f.alias for f in ComputeDomainSpec.model_fields.values()}
    status = schema_of(COMPUTE_DOMAIN, "status")
    assert set(status["properties"]) == {field.alias for field in ComputeDomainStatus.model_fields.values()}
    assert [rule["rule"] for rule in schema_of(COMPUTE_DOMAIN)["x-kubernetes-validations"]] == ["self == oldSelf"]
    assert schema_of(COMPUTE_DOMAIN)["properties"]["numNodes"]["minimum"] == 0
