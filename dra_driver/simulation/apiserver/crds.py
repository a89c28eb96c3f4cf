"""CustomResourceDefinitions: what they add to the table of types, the status the server gives them, and the validation
of their objects: the structural schema, and the rules in CEL of `x-kubernetes-validations`.

A rule that mentions `oldSelf` holds for changes alone, and only if the previous value can be found: fields, values of
maps, and items of lists that have keys. What was wrong before and did not change passes. Not simulated: limits of cost,
`messageExpression`, `optionalOldSelf`, and rules with functions that are not known here, such as `duration`.
Source: Kubernetes' pages on CustomResourceDefinitions.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Any

from dra_driver.api.meta import JsonObject, Resource
from dra_driver.apirules.schema import Schema, custom_schema
from dra_driver.apirules.status import (
    FieldProblem,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
    too_long,
    too_many,
    type_invalid,
)
from dra_driver.cel.check import check
from dra_driver.cel.errors import CelError, CelNotJudged
from dra_driver.cel.evaluate import CelProgram
from dra_driver.cel.functions import CURRENT, Server, functions_of
from dra_driver.cel.overloads import Environment, ObjectType
from dra_driver.cel.parser import parse
from dra_driver.cel.types import DYN
from dra_driver.simulation.apiserver.decode import json_type
from dra_driver.simulation.apiserver.patch import key_of_item
from dra_driver.simulation.apiserver.resource_types import Column, ResourceType
from dra_driver.simulation.apiserver.rules import Situation, TypeRules

KEY = ("apiextensions.k8s.io", "customresourcedefinitions")


def served_types(crd: JsonObject) -> list[ResourceType]:
    """One entry for each served version."""
    spec = crd["spec"]
    (storage,) = _stored_versions(spec)
    return [_served_type(spec, version, storage) for version in spec["versions"] if version.get("served")]


def open_type(resource: Resource, storage: str | None = None) -> ResourceType:
    """A custom type of which nothing is known but its names: any content is stored, and it has a status. `storage` is
    its version of storage, if not this one."""
    names = {"plural": resource.plural, "kind": resource.kind}
    scope = "Namespaced" if resource.namespaced else "Cluster"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": resource.version, "schema": schema, "subresources": {"status": {}}}
    return _served_type({"group": resource.group, "scope": scope, "names": names}, version, storage or resource.version)


def _served_type(spec: JsonObject, version: JsonObject, storage: str) -> ResourceType:
    names = spec["names"]
    resource = Resource(spec["group"], version["name"], names["plural"], names["kind"], spec["scope"] == "Namespaced")
    columns = version.get("additionalPrinterColumns") or ({"name": "Age", "type": "date", "jsonPath": _CREATED},)
    return ResourceType(
        resource,
        names.get("singular") or names["kind"].lower(),
        (Column.read("Name", None), *map(_column, columns)),
        tuple(names.get("shortNames", ())),
        tuple(names.get("categories", ())),
        frozenset(version.get("subresources", {})),
        tuple(field["jsonPath"].lstrip(".") for field in version.get("selectableFields", ())),
        custom_schema(version.get("schema", {}).get("openAPIV3Schema")),
        marks=frozenset({"conditional", "generation"}),
        storage_version=storage,
    )


_CREATED = ".metadata.creationTimestamp"


def _column(raw: JsonObject) -> Column:
    more = {name: raw[name] for name in ("priority", "description", "format") if name in raw}
    return Column(raw["name"], raw["type"], raw["jsonPath"], **more)


class DefinitionRules(TypeRules):
    """CustomResourceDefinition; that its schemas are structural is not checked."""

    def default(self, obj: JsonObject, situation: Situation) -> None:
        names = obj["spec"]["names"]
        kind = names.get("kind", "")
        names.setdefault("singular", kind.lower())
        names.setdefault("listKind", f"{kind}List")

    def problems(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> list[FieldProblem]:
        spec = obj["spec"]
        names, problems = spec["names"], []
        wanted = f"{names.get('plural', '')}.{spec.get('group', '')}"
        if obj["metadata"].get("name") != wanted:
            why = f'must be spec.names.plural+"."+spec.group ({wanted})'
            problems.append(invalid("metadata.name", obj["metadata"].get("name", ""), why))
        problems += [required(f"spec.names.{name}") for name in ("plural", "kind") if not names.get(name)]
        if not spec.get("group"):
            problems.append(required("spec.group"))
        if spec.get("scope") not in ("Cluster", "Namespaced"):
            problems.append(not_supported("spec.scope", spec.get("scope", ""), ("Cluster", "Namespaced")))
        problems += [
            invalid(f"spec.{name}", spec.get(name), "field is immutable")
            for name in ("group", "scope")
            if old is not None and spec.get(name) != old["spec"].get(name)
        ]
        if len(_stored_versions(spec)) != 1:
            why = "must have exactly one version marked as storage version"
            problems.append(invalid("spec.versions", "<value omitted>", why))
        return problems

    def prepare(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> None:
        if old is None:
            names = {"plural": "", "kind": ""}
            stored = _stored_versions(obj["spec"])
            obj["status"] = {"conditions": None, "acceptedNames": names, "storedVersions": stored}


def _stored_versions(spec: JsonObject) -> list[str]:
    return [item["name"] for item in spec.get("versions") or () if item.get("storage")]


class CustomRules(TypeRules):
    """Objects of custom types: their structural schema, and then its rules."""

    def problems(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> list[FieldProblem]:
        schema = situation.kind.schema
        return _problems_of_value(obj, schema) or list(
            _problems_of_rules(obj, _MISSING if old is None else old, schema)
        )

    def status_problems(self, obj: JsonObject, old: JsonObject, situation: Situation) -> list[FieldProblem]:
        return self.problems(obj, old, situation)


def accepted_status(crd: JsonObject, now: str) -> JsonObject:
    """The status of a definition whose names are free: established at once."""
    before = crd.get("status", {}).get("storedVersions", [])
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": now, "reason": reason, "message": message}
        for kind, reason, message in (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
    ]
    return {
        "conditions": conditions,
        "acceptedNames": crd["spec"]["names"],
        "storedVersions": [*before, *(name for name in _stored_versions(crd["spec"]) if name not in before)],
    }


# -- validation of custom objects


def _problems_of_value(value: Any, schema: Schema, path: str = "") -> list[FieldProblem]:
    """All that is wrong with `value`, which was pruned and defaulted before."""
    if value is None:
        if schema.raw.get("nullable") or schema.type == "":
            return []
        return [_wrong_type(path, "null", schema.type)]
    if schema.raw.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, int | str):
            return [_wrong_type(path, json_type(value), "integer,string")]
        return []
    if schema.type and not _is_type(value, schema.type):
        return [_wrong_type(path, json_type(value), schema.type)]
    checks: dict[type, Callable[[Any, Schema, str], list[FieldProblem]]] = {dict: _object, list: _array, str: _string}
    problems = checks.get(type(value), _number)(value, schema, path)
    allowed = schema.raw.get("enum")
    if allowed is not None and value not in allowed:
        problems.append(not_supported(path, value, [str(item) for item in allowed]))
    return problems


def _is_type(value: object, wanted: str) -> bool:
    actual = json_type(value)
    if wanted == "integer" and isinstance(value, float):
        return value.is_integer()
    return actual == wanted or (wanted == "number" and actual == "integer")


def _wrong_type(path: str, actual: str, wanted: str) -> FieldProblem:
    return type_invalid(path, actual, f'{path} in body must be of type {wanted}: "{actual}"')


def _child(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _object(value: dict[str, Any], schema: Schema, path: str) -> list[FieldProblem]:
    problems = [required(_child(path, name)) for name in schema.raw.get("required", ()) if name not in value]
    for name, item in value.items():
        child = schema.properties.get(name)
        if child is not None and child.definition is None:
            problems += _problems_of_value(item, child, _child(path, name))
        elif child is None and schema.additional is not None:
            problems += _problems_of_value(item, schema.additional, f"{path}.{name}")
    problems += _bounds(len(value), schema, path, "minProperties", "maxProperties", "should have at {} {} properties")
    return problems


def _array(value: list[Any], schema: Schema, path: str) -> list[FieldProblem]:
    problems: list[FieldProblem] = []
    if schema.items is not None:
        for index, item in enumerate(value):
            problems += _problems_of_value(item, schema.items, f"{path}[{index}]")
    problems += _bounds(len(value), schema, path, "minItems", "maxItems", "should have at {} {} items")
    if schema.list_type in ("set", "map"):
        keys = [key_of_item(item, schema) for item in value]
        texts = [json.dumps(key, sort_keys=True) for key in keys]  # in which 1 is not true
        problems += [duplicate(f"{path}[{at}]", key) for at, key in enumerate(keys) if texts[at] in texts[:at]]
    return problems


def _bounds(count: int, schema: Schema, path: str, low: str, high: str, text: str) -> list[FieldProblem]:
    problems = []
    if low in schema.raw and count < schema.raw[low]:
        problems.append(invalid(path, count, f"{path} in body {text.format('least', schema.raw[low])}"))
    if high in schema.raw and count > schema.raw[high]:
        limit = schema.raw[high]
        problems.append(too_long(path, limit) if high == "maxLength" else too_many(path, count, limit))
    return problems


def _string(value: str, schema: Schema, path: str) -> list[FieldProblem]:
    problems = _bounds(len(value), schema, path, "minLength", "maxLength", "should be at {} {} chars long")
    pattern = schema.raw.get("pattern")
    if pattern is not None and re.search(pattern, value) is None:
        problems.append(invalid(path, value, f"{path} in body should match '{pattern}'"))
    form = schema.raw.get("format")
    if form == "date-time" and not _is_moment(value):
        problems.append(type_invalid(path, value, f"{path} in body must be of type date-time: {json.dumps(value)}"))
    return problems


def _is_moment(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _number(value: Any, schema: Schema, path: str) -> list[FieldProblem]:
    if isinstance(value, bool):
        return []
    low, high, problems = schema.raw.get("minimum"), schema.raw.get("maximum"), []
    if low is not None and value < low:
        problems.append(invalid(path, value, f"{path} in body should be greater than or equal to {low}"))
    if high is not None and value > high:
        problems.append(invalid(path, value, f"{path} in body should be less than or equal to {high}"))
    return problems


_OLD = re.compile(r"\boldSelf\b")
_MISSING: Any = object()


def _problems_of_rules(value: Any, old: Any, schema: Schema, path: str = "") -> Iterator[FieldProblem]:
    """What the rules say of a value that is right otherwise. `old` is the one before, or `_MISSING`."""
    for rule in schema.raw.get("x-kubernetes-validations", ()):
        yield from _broken(rule, value, old, path, schema.type)
    if isinstance(value, dict):
        for name, item in value.items():
            child = schema.child(name)
            if child is not None and child.definition is None:
                before = old.get(name, _MISSING) if isinstance(old, dict) else _MISSING
                yield from _problems_of_rules(item, before, child, f"{path}.{name}" if path else name)
    if isinstance(value, list) and schema.items is not None:
        for index, item in enumerate(value):
            yield from _problems_of_rules(item, _same_item(item, old, schema), schema.items, f"{path}[{index}]")


def _broken(rule: dict[str, Any], value: Any, old: Any, path: str, kind: str) -> Iterator[FieldProblem]:
    changes = _OLD.search(rule["rule"]) is not None
    if (changes and old is _MISSING) or (not changes and old == value):
        return
    try:
        names, values = (("self", "oldSelf"), (value, old)) if changes else (("self",), (value,))
        holds = compiled(rule["rule"], names, CURRENT)(*values)
    except CelNotJudged:
        return
    except CelError as error:
        yield _invalid(path, f"{error} evaluating rule: {rule['rule']}")
        return
    if not holds:
        where = f"{path}{rule.get('fieldPath', '')}".lstrip(".")
        message = str(rule.get("message", f"failed rule: {rule['rule']}")).strip()
        older = (35, FieldProblem(where, "FieldValueInvalid", f'Invalid value: "{kind}": {message}'))
        known = _PROBLEMS.get(rule.get("reason", ""))
        yield known(where, message) if known else replace(_invalid(where, message), older=older)


def _invalid(field: str, detail: str) -> FieldProblem:
    """Without the value, which may be a large one."""
    return FieldProblem(field, "FieldValueInvalid", f"Invalid value: {detail}")


_PROBLEMS: dict[str, Callable[[str, str], FieldProblem]] = {
    "FieldValueForbidden": forbidden,
    "FieldValueRequired": required,
}


def _same_item(item: Any, old: Any, schema: Schema) -> Any:
    """The item of the same keys in the list before."""
    if schema.list_type != "map" or not isinstance(old, list):
        return _MISSING
    key = key_of_item(item, schema)
    return next((candidate for candidate in old if key_of_item(candidate, schema) == key), _MISSING)


@lru_cache(maxsize=512)
def compiled(expression: str, names: tuple[str, ...], server: Server) -> Callable[..., bool]:
    """Whether an expression is true of JSON values, given in the order of `names`. Raises CelError when it is compiled,
    and when it is asked."""
    environment = Environment({name: ObjectType(DYN, {}) for name in names}, functions_of(server))
    program = CelProgram(check(parse(expression), expression, environment))
    return lambda *values: program.evaluate_all([*map(_cel_value, values)]) is True


def _cel_value(value: Any) -> Any:
    """Lists are tuples in CEL programs."""
    if isinstance(value, dict):
        return {name: _cel_value(item) for name, item in value.items()}
    return tuple(map(_cel_value, value)) if isinstance(value, list) else value
