"""CustomResourceDefinitions and the types they define."""

from typing import Any

import pytest
from support.api import MERGE, Api, Refused
from support.dra_objects import crd

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
TABLE = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}

SCHEMA = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 5, "pattern": "^[a-z]+$"},
                "size": {"type": "integer", "default": 3, "minimum": 1, "maximum": 9},
                "mode": {"type": "string", "enum": ["Fast", "Slow"]},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "when": {"type": "string", "format": "date-time"},
                "either": {"x-kubernetes-int-or-string": True},
                "maybe": {"type": "string", "nullable": True},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "many": {"type": "array", "maxItems": 2, "items": {"type": "number"}},
                "nested": {
                    "type": "object",
                    "properties": {"deep": {"type": "string", "default": "d"}},
                },
                "keyed": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["k"],
                    "items": {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}},
                },
            },
        },
        "status": {"type": "object", "properties": {"ready": {"type": "boolean"}, "since": {"type": "string"}}},
    },
}


class Things:
    """A defined type and its objects."""

    def __init__(self, api: Api, plural: str) -> None:
        self.path = f"/apis/contract.dra.gpu/v1/{plural}"
        self.definition = f"{DEFINITIONS}/{plural}.contract.dra.gpu"
        self.kind = plural[:-1].capitalize()
        self.api = api

    def thing(self, name: str = "a", **fields: Any) -> dict[str, Any]:
        body = {"apiVersion": "contract.dra.gpu/v1", "kind": self.kind, "metadata": {"name": name}}
        return {**body, "spec": {"name": "abc"}, **fields}

    async def create(self, name: str = "a", **fields: Any) -> dict[str, Any]:
        return await self.api.post(self.path, self.thing(name, **fields))


async def defined(api: Api, unique: str, version: dict[str, Any] | None = None, **spec: Any) -> Things:
    plural = f"{unique}s"
    await api.define(crd(plural, {"schema": {"openAPIV3Schema": SCHEMA}, **(version or {})}, **spec))
    return Things(api, plural)


async def test_a_definition_is_established_and_served(api: Api, unique: str) -> None:
    things = await defined(api, unique)
    obj = await api.get(things.definition)
    conditions = {condition["type"]: condition["status"] for condition in obj["status"]["conditions"]}
    assert conditions["NamesAccepted"] == conditions["Established"] == "True"
    assert obj["status"]["storedVersions"] == ["v1"]
    assert obj["status"]["acceptedNames"]["plural"] == f"{unique}s"
    assert obj["spec"]["names"]["listKind"] == f"{things.kind}List"
    assert obj["spec"]["conversion"] == {"strategy": "None"}
    assert (await api.get(things.path))["kind"] == f"{things.kind}List"


async def test_items_of_custom_types_carry_version_and_kind(api: Api, unique: str) -> None:
    things = await defined(api, unique)
    created = await things.create()
    assert (await api.get(things.path))["items"] == [created]


async def test_unknown_fields_are_pruned_and_defaults_filled_in(api: Api, unique: str) -> None:
    things = await defined(api, unique)
    created = await things.create(spec={"name": "abc", "nonsense": 1, "nested": {}, "free": {"x": [1]}}, other=1)
    assert created["spec"] == {"name": "abc", "size": 3, "nested": {"deep": "d"}, "free": {"x": [1]}}
    assert "other" not in created
    refusal = await api.refused("POST", things.path, things.thing("b", other=1), fieldValidation="Strict")
    assert (refusal.status, 'unknown field "other"' in refusal.message) == (400, True)


async def test_a_null_is_pruned_where_there_is_a_default_and_kept_where_it_is_allowed(api: Api, unique: str) -> None:
    things = await defined(api, unique)
    created = await things.create(spec={"name": "abc", "size": None, "maybe": None})
    assert created["spec"] == {"name": "abc", "size": 3, "maybe": None}


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        ({}, ("spec.name", "FieldValueRequired")),
        ({"name": 1}, ("spec.name", "FieldValueTypeInvalid")),
        ({"name": ""}, ("spec.name", "FieldValueInvalid")),
        ({"name": "abcdef"}, ("spec.name", "FieldValueTooLong")),
        ({"name": "A"}, ("spec.name", "FieldValueInvalid")),
        ({"name": "a", "size": 0}, ("spec.size", "FieldValueInvalid")),
        ({"name": "a", "size": 10}, ("spec.size", "FieldValueInvalid")),
        ({"name": "a", "size": "3"}, ("spec.size", "FieldValueTypeInvalid")),
        ({"name": "a", "size": 1.5}, ("spec.size", "FieldValueTypeInvalid")),
        ({"name": "a", "mode": "Other"}, ("spec.mode", "FieldValueNotSupported")),
        ({"name": "a", "labels": {"k": 1}}, ("spec.labels.k", "FieldValueTypeInvalid")),
        ({"name": "a", "when": "yesterday"}, ("spec.when", "FieldValueTypeInvalid")),
        ({"name": "a", "either": True}, ("spec.either", "FieldValueTypeInvalid")),
        ({"name": "a", "many": [1, 2, 3]}, ("spec.many", "FieldValueTooMany")),
        ({"name": "a", "many": ["x"]}, ("spec.many[0]", "FieldValueTypeInvalid")),
        ({"name": "a", "keyed": [{"k": "x"}, {"k": "x"}]}, ("spec.keyed[1]", "FieldValueDuplicate")),
        ({"name": "a", "keyed": [{}]}, ("spec.keyed[0].k", "FieldValueRequired")),
        ("text", ("spec", "FieldValueTypeInvalid")),
    ],
)
async def test_objects_are_held_to_their_schema(
    api: Api, unique: str, spec: dict[str, Any], cause: tuple[str, str]
) -> None:
    things = await defined(api, unique)
    refusal = await api.refused("POST", things.path, things.thing(spec=spec))
    assert (refusal.status, refusal.reason) == (422, "Invalid")
    assert cause in refusal.causes


async def test_an_object_without_a_required_part_is_refused(api: Api, unique: str) -> None:
    things = await defined(api, unique)
    body = things.thing()
    del body["spec"]
    assert ("spec", "FieldValueRequired") in (await api.refused("POST", things.path, body)).causes


async def test_generation_counts_changes_outside_metadata(api: Api, unique: str) -> None:
    things = await defined(api, unique)
    path = f"{things.path}/a"
    assert (await things.create())["metadata"]["generation"] == 1
    labelled = await api.patch(path, {"metadata": {"labels": {"a": "b"}}})
    assert labelled["metadata"]["generation"] == 1
    assert (await api.patch(path, {"spec": {"size": 4}}))["metadata"]["generation"] == 2


async def test_a_status_subresource_keeps_spec_and_status_apart(api: Api, unique: str) -> None:
    things = await defined(api, unique, {"subresources": {"status": {}}})
    path = f"{things.path}/a"
    created = await things.create(status={"ready": True})
    assert "status" not in created
    patch = {"spec": {"size": 9}, "status": {"ready": True}, "metadata": {"labels": {"a": "b"}}}
    changed = await api.patch(f"{path}/status", patch)
    assert (changed["status"], changed["spec"]["size"]) == ({"ready": True}, 3)
    assert changed["metadata"]["generation"] == 1
    assert "labels" not in changed["metadata"]
    changed = await api.patch(path, {"spec": {"size": 9}, "status": {"ready": False}})
    assert (changed["status"], changed["spec"]["size"]) == ({"ready": True}, 9)
    refusal = await api.refused("PATCH", f"{path}/status", {"status": {"ready": "yes"}}, MERGE)
    assert refusal.causes == {("status.ready", "FieldValueTypeInvalid")}


async def test_without_the_subresource_status_is_a_field_like_others(api: Api, unique: str) -> None:
    things = await defined(api, unique)
    created = await things.create(status={"ready": True})
    assert created["status"] == {"ready": True}
    assert (await api.refused("GET", f"{things.path}/a/status")).status == 404
    changed = await api.patch(f"{things.path}/a", {"status": {"ready": False}})
    assert (changed["status"], changed["metadata"]["generation"]) == ({"ready": False}, 2)


async def test_a_replace_needs_the_version(api: Api, unique: str) -> None:
    things = await defined(api, unique)
    created = await things.create()
    refusal = await api.refused("PUT", f"{things.path}/a", things.thing())
    assert refusal.causes == {("metadata.resourceVersion", "FieldValueInvalid")}
    created["spec"]["size"] = 5
    assert (await api.put(f"{things.path}/a", created))["spec"]["size"] == 5


async def test_version_and_kind_are_required(api: Api, unique: str) -> None:
    things = await defined(api, unique)
    assert (await api.refused("POST", things.path, {"metadata": {"name": "a"}, "spec": {"name": "a"}})).status == 400
    wrong = {**things.thing(), "apiVersion": "contract.dra.gpu/v2"}
    assert (await api.refused("POST", things.path, wrong)).status == 400


async def test_printer_columns(api: Api, unique: str) -> None:
    columns = [
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
        {"name": "Mode", "type": "string", "jsonPath": ".spec.mode", "priority": 1},
        {"name": "Ready", "type": "boolean", "jsonPath": ".status.ready"},
        {"name": "Picked", "type": "string", "jsonPath": '.spec.keyed[?(@.k=="y")].k'},
        {"name": "Dotted", "type": "string", "jsonPath": r".metadata.labels.x\.example/y"},
        {"name": "All", "type": "string", "jsonPath": ".spec.many"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    things = await defined(api, unique, {"additionalPrinterColumns": columns})
    spec = {"name": "a", "keyed": [{"k": "x"}, {"k": "y"}], "many": [1, 2]}
    metadata = {"name": "a", "labels": {"x.example/y": "label"}}
    await things.create(spec=spec, metadata=metadata, status={"ready": True})
    table = await api.request("GET", things.path, headers=TABLE)
    assert [(column["name"], column["type"], column["priority"]) for column in table["columnDefinitions"]] == [
        ("Name", "string", 0),
        *((column["name"], column["type"], column.get("priority", 0)) for column in columns),
    ]
    cells = table["rows"][0]["cells"]
    assert cells[:7] == ["a", 3, None, True, "y", "label", "[1,2]"]
    assert cells[7].endswith("s")


async def test_without_printer_columns_a_table_has_name_and_age(api: Api, unique: str) -> None:
    things = await defined(api, unique)
    table = await api.request("GET", things.path, headers=TABLE)
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Age"]


async def test_namespaced_types(api: Api, namespace: str) -> None:
    plural = f"{namespace}s"
    await api.define(crd(plural, scope="Namespaced"))
    base, kind = "/apis/contract.dra.gpu/v1", namespace.capitalize()
    body = {"apiVersion": "contract.dra.gpu/v1", "kind": kind, "metadata": {"name": "a"}}
    created = await api.post(f"{base}/namespaces/{namespace}/{plural}", body)
    assert created["metadata"]["namespace"] == namespace
    assert (await api.get(f"{base}/{plural}"))["items"] == [created]
    assert (await api.refused("POST", f"{base}/namespaces/none/{plural}", body)).status == 404


async def test_several_versions_show_the_same_objects(api: Api, unique: str) -> None:
    plural, kind = f"{unique}s", unique.capitalize()
    free = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    versions = [
        {"name": "v1", "served": True, "storage": True, "schema": free},
        {"name": "v1alpha1", "served": True, "storage": False, "schema": free},
        {"name": "v0", "served": False, "storage": False, "schema": free},
    ]
    await api.define(crd(plural, versions=versions))
    base = "/apis/contract.dra.gpu"
    old = {"apiVersion": "contract.dra.gpu/v1alpha1", "kind": kind, "metadata": {"name": "a"}, "spec": {"x": 1}}
    created = await api.post(f"{base}/v1alpha1/{plural}", old)
    assert created["apiVersion"] == "contract.dra.gpu/v1alpha1"
    read = await api.get(f"{base}/v1/{plural}/a")
    assert (read["apiVersion"], read["spec"]) == ("contract.dra.gpu/v1", {"x": 1})
    assert read["metadata"]["uid"] == created["metadata"]["uid"]
    assert (await api.refused("GET", f"{base}/v0/{plural}")).status == 404


async def test_a_changed_schema_holds_for_later_writes(api: Api, unique: str) -> None:
    things = await defined(api, unique)
    await things.create()
    definition = await api.get(things.definition)
    properties = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    properties["added"] = {"type": "string"}
    await api.put(things.definition, definition)

    async def is_stored() -> bool:
        changed = await api.patch(f"{things.path}/a", {"spec": {"added": "x"}})
        return changed["spec"].get("added") == "x"

    await api.eventually(is_stored)


async def test_objects_go_with_their_definition(api: Api, unique: str) -> None:
    things = await defined(api, unique)
    await things.create()
    await api.delete(things.definition)

    async def unserved() -> bool:
        return await api.is_gone(things.path)

    await api.eventually(unserved)
    assert await api.is_gone(things.definition)


BAD_DEFINITIONS: dict[str, tuple[dict[str, Any], str]] = {
    "another name": ({"metadata": {"name": "other.contract.dra.gpu"}}, "metadata.name"),
    "no storage version": ({"version": {"storage": False}}, "spec.versions"),
    "an unknown scope": ({"spec": {"scope": "Galaxy"}}, "spec.scope"),
}


@pytest.mark.parametrize(("change", "field"), BAD_DEFINITIONS.values(), ids=BAD_DEFINITIONS.keys())
async def test_a_wrong_definition_is_refused(api: Api, unique: str, change: dict[str, Any], field: str) -> None:
    body = crd(f"{unique}s", change.get("version", {}))
    body["spec"].update(change.get("spec", {}))
    body["metadata"].update(change.get("metadata", {}))
    refusal = await api.refused("POST", DEFINITIONS, body)
    assert refusal.status == 422
    assert field in {name for name, _ in refusal.causes}


async def test_selectable_fields_of_custom_types(api: Api, unique: str) -> None:
    things = await defined(api, unique, {"selectableFields": [{"jsonPath": ".spec.mode"}]})
    await things.create("a", spec={"name": "a", "mode": "Fast"})
    await things.create("b", spec={"name": "b"})
    listed = await api.get(things.path, fieldSelector="spec.mode=Fast")
    assert [thing["metadata"]["name"] for thing in listed["items"]] == ["a"]


RULES = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "x-kubernetes-validations": [
                {"rule": "self.low <= self.high", "message": "low is above high"},
                {"rule": "!has(self.fixed) || !has(oldSelf.fixed) || self.fixed == oldSelf.fixed"},
            ],
            "properties": {
                "low": {"type": "integer", "default": 1},
                "high": {"type": "integer", "default": 9},
                "fixed": {"type": "string", "maxLength": 20},
                "whole": {
                    "type": "object",
                    "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
                    "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "it is for ever"}],
                },
                "parts": {
                    "type": "array",
                    "maxItems": 5,
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["k"],
                    "items": {
                        "type": "object",
                        "required": ["k"],
                        "properties": {
                            "k": {"type": "string", "maxLength": 5},
                            "v": {
                                "type": "integer",
                                "x-kubernetes-validations": [
                                    {
                                        "rule": "self >= oldSelf",
                                        "reason": "FieldValueForbidden",
                                        "message": "it only grows",
                                    }
                                ],
                            },
                        },
                    },
                },
            },
        },
    },
}


def in_words_of(api: Api, message: str) -> str:
    """Servers before 1.35 name the type of a value that breaks a rule."""
    return message.replace("Invalid value: ", 'Invalid value: "object": ') if api.minor < 35 else message


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ({"low": 5}, {"low": 9}, None),
        ({"low": 5}, {"low": 10}, "spec: Invalid value: low is above high"),
        ({"fixed": "x"}, {"fixed": "y"}, "failed rule: !has(self.fixed)"),
        ({}, {"fixed": "y"}, None),
        ({"whole": {"a": "x"}}, {"whole": {"a": "x"}, "low": 2}, None),
        ({"whole": {"a": "x"}}, {"whole": {"a": "x", "b": "y"}}, "spec.whole: Invalid value: it is for ever"),
        ({"whole": {"a": "x"}}, {}, None),
        ({}, {"whole": {"a": "x"}}, None),
        (
            {"parts": [{"k": "a", "v": 3}, {"k": "b", "v": 3}]},
            {"parts": [{"k": "b", "v": 2}, {"k": "a", "v": 4}, {"k": "c", "v": 0}]},
            "spec.parts[0].v: Forbidden: it only grows",
        ),
    ],
)
async def test_rules_of_a_schema_hold_for_objects_and_for_their_changes(
    api: Api, unique: str, before: dict[str, Any], after: dict[str, Any], message: str | None
) -> None:
    things = await defined(api, unique, {"schema": {"openAPIV3Schema": RULES}})
    made = await things.create(spec=before)
    if message is None:
        await api.put(f"{things.path}/a", {**made, "spec": after})
    else:
        refusal = await api.refused("PUT", f"{things.path}/a", {**made, "spec": after})
        assert (refusal.status, in_words_of(api, message) in refusal.message) == (422, True), refusal.message


async def test_a_new_object_is_held_to_the_rules_that_are_not_about_changes(api: Api, unique: str) -> None:
    things = await defined(api, unique, {"schema": {"openAPIV3Schema": RULES}})
    refusal = await api.refused("POST", things.path, things.thing(spec={"low": 10, "whole": {"a": "x"}}))
    assert refusal.status == 422
    assert in_words_of(api, "spec: Invalid value: low is above high") in refusal.message


async def test_what_was_wrong_before_a_rule_and_does_not_change_is_let_pass(api: Api, unique: str) -> None:
    things = await defined(api, unique)
    await things.create()
    definition = await api.get(things.definition)
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["x-kubernetes-validations"] = [{"rule": "self.name != 'abc'", "message": "not this name"}]
    await api.put(things.definition, definition)

    async def holds() -> bool:
        try:
            await api.patch(f"{things.path}/a", {"spec": {"size": 4}})
            await api.patch(f"{things.path}/a", {"spec": {"size": 5}})
        except Refused as refusal:
            assert "not this name" in refusal.message
            return True
        return False

    await api.eventually(holds)
    await api.patch(f"{things.path}/a", {"metadata": {"labels": {"x": "y"}}})
