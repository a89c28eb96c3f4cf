"""Checks of single fields that several kinds of resource.k8s.io share. All limits are those of the API's reference."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dra_driver.api.meta import JsonObject
from dra_driver.apirules.metadata import dns_label, dns_subdomain, label_value, qualified_name
from dra_driver.apirules.status import (
    FieldProblem,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
    too_long,
    too_many,
)

OPAQUE_LIMIT_BYTES = 10 * 1024
_C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
TAINT_EFFECTS = ("NoExecute", "NoSchedule", "None")


def driver_name(name: str, path: str) -> list[FieldProblem]:
    """A DNS subdomain of at most 63 characters; upper case is tolerated."""
    if not name:
        return [required(path)]
    if len(name) > 63:
        return [too_long(path, 63)]
    return [invalid(path, name, why)] if (why := dns_subdomain(name.lower())) else []


def pool_name(name: str, path: str) -> list[FieldProblem]:
    """DNS subdomains joined by '/', at most 253 characters."""
    if not name:
        return [required(path)]
    problems = [too_long(path, 253)] if len(name) > 253 else []
    problems += [invalid(path, part, why) for part in name.split("/") if (why := dns_subdomain(part))]
    return problems


def label(name: str, path: str) -> list[FieldProblem]:
    """A DNS label; an empty one is invalid rather than missing, as for device and request names."""
    return [invalid(path, name, why)] if (why := dns_label(name)) else []


def required_label(name: str, path: str) -> list[FieldProblem]:
    """A required DNS label."""
    return label(name, path) if name else [required(path)]


def identifier(name: str, path: str) -> list[FieldProblem]:
    """A C identifier of at most 32 characters."""
    problems = [too_long(path, 32)] if len(name) > 32 else []
    if _C_IDENTIFIER.fullmatch(name) is None:
        why = "a valid C identifier starts with a letter or '_', then letters, digits or '_'"
        problems.append(invalid(path, name, why))
    return problems


def attribute_name(name: str, path: str) -> list[FieldProblem]:
    """QualifiedName: a C identifier, with or without a domain. Names with two slashes pass, as on a real server."""
    if name.count("/") > 1:
        return []
    domain, slash, own = name.rpartition("/")
    if not slash:
        return identifier(own, path)
    problems = driver_name(domain, path) if domain else [_empty(path, "the domain must not be empty")]
    return problems + (identifier(own, path) if own else [_empty(path, "the name must not be empty")])


def _empty(path: str, why: str) -> FieldProblem:
    return replace(invalid(path, "", why), older=(35, required(path, why)))


def key_of_map(name: str, path: str) -> list[FieldProblem]:
    """The attribute name of an entry of the map at `path`; servers before 1.36 report the entry, not the map."""
    return [replace(problem, older=(36, _at_entry(problem, name))) for problem in attribute_name(name, path)]


def _at_entry(problem: FieldProblem, name: str) -> FieldProblem:
    older = problem.older and (problem.older[0], _at_entry(problem.older[1], name))
    return replace(problem, field=f"{problem.field}[{name}]", older=older)


def full_attribute_name(name: str, path: str) -> list[FieldProblem]:
    """FullyQualifiedName: the domain is required."""
    problems = attribute_name(name, path)
    if "/" not in name:
        why = "a fully qualified name must be a domain and a name separated by a slash"
        problems.append(invalid(path, name, why))
    return problems


def share_id(value: str, path: str) -> list[FieldProblem]:
    """A lower-case UUID."""
    return [] if _UUID.fullmatch(value) else [invalid(path, value, "must be a UUID in lower case")]


def label_name(name: str, path: str) -> list[FieldProblem]:
    """A label key."""
    return [invalid(path, name, why)] if (why := qualified_name(name)) else []


def taint(value: JsonObject, path: str, effects: Sequence[str] = TAINT_EFFECTS) -> list[FieldProblem]:
    """DeviceTaint."""
    problems = label_name(value.get("key", ""), f"{path}.key")
    if why := label_value(value.get("value", "")):
        problems.append(invalid(f"{path}.value", value["value"], why))
    effect = value.get("effect", "")
    if not effect:
        problems.append(required(f"{path}.effect"))
    elif effect not in effects:
        problems.append(not_supported(f"{path}.effect", effect, effects))
    return problems


def toleration(value: JsonObject, path: str) -> list[FieldProblem]:
    """DeviceToleration."""
    problems = label_name(value["key"], f"{path}.key") if value.get("key") else []
    operator, against, effect = value.get("operator", ""), value.get("value", ""), value.get("effect", "")
    if operator == "Exists" and against:
        problems.append(invalid(f"{path}.value", against, "must be empty for operator `Exists`"))
    elif operator == "Equal" and (why := label_value(against)):
        problems.append(invalid(f"{path}.value", against, why))
    elif not operator:
        problems.append(required(f"{path}.operator"))
    elif operator not in ("Equal", "Exists"):
        problems.append(not_supported(f"{path}.operator", operator, ("Equal", "Exists")))
    if effect and effect not in TAINT_EFFECTS:
        problems.append(not_supported(f"{path}.effect", effect, TAINT_EFFECTS))
    return problems


def json_parameters(value: object, path: str) -> list[FieldProblem]:
    """A JSON object of at most 10 KiB: opaque parameters, device status data."""
    if value is None:
        return [required(path)]
    if len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()) > OPAQUE_LIMIT_BYTES:
        return [too_long(path, OPAQUE_LIMIT_BYTES)]
    if not isinstance(value, dict):
        return [invalid(path, "<value omitted>", "must be a valid JSON object")]
    return []


def same(value: object, old: object) -> bool:
    """Whether an immutable part is unchanged. Opaque parameters are compared as bytes, so the order of keys matters."""
    return value == old and _parameters(value) == _parameters(old)


def _parameters(value: object) -> list[str]:
    if isinstance(value, list):
        return [text for item in value for text in _parameters(item)]
    if not isinstance(value, dict):
        return []
    own = [json.dumps(value["opaque"].get("parameters"))] if "opaque" in value else []
    return own + [text for name, item in value.items() if name != "opaque" for text in _parameters(item)]


def opaque_config(config: JsonObject, path: str) -> list[FieldProblem]:
    """The device configuration inside a claim, class or allocation."""
    opaque = config.get("opaque")
    if opaque is None:
        return [required(f"{path}.opaque")]
    problems = driver_name(opaque.get("driver", ""), f"{path}.opaque.driver")
    return problems + json_parameters(opaque.get("parameters"), f"{path}.opaque.parameters")


def binding_conditions(value: JsonObject, path: str) -> list[FieldProblem]:
    """The two condition lists of a device or an allocation result."""
    wanted, failing = value.get("bindingConditions") or [], value.get("bindingFailureConditions") or []
    own, other = f"{path}.bindingConditions", f"{path}.bindingFailureConditions"
    problems = listed(wanted, 4, own, label_name) + listed(failing, 4, other, label_name)
    problems += repeated(wanted, own) + repeated(failing, other)
    for index, condition in enumerate(failing):
        if condition in wanted:
            why = "bindingFailureConditions must not overlap with bindingConditions"
            problems.append(invalid(f"{other}[{index}]", condition, why))
    if failing and not wanted:
        problems.append(invalid(own, [], "bindingConditions are required to use bindingFailureConditions"))
    if wanted and not failing:
        problems.append(invalid(other, [], "bindingFailureConditions are required to use bindingConditions"))
    return problems


def listed(
    items: Sequence[Any] | None, limit: int | None, path: str, check: Callable[[Any, str], list[FieldProblem]]
) -> list[FieldProblem]:
    """Checks the length of a list and all its items; if it is too long, nothing else."""
    items = items or ()
    if limit is not None and len(items) > limit:
        return [too_many(path, len(items), limit)]
    return [problem for index, item in enumerate(items) for problem in check(item, f"{path}[{index}]")]


def repeated(keys: Sequence[object], path: str, name: str = "") -> list[FieldProblem]:
    """Keys of a list that must be unique; `name` is their field."""
    seen: set[object] = set()
    problems = []
    for index, key in enumerate(keys):
        if key in seen:
            problems.append(duplicate(f"{path}[{index}]", key, name))
        seen.add(key)
    return problems


def unique_list(
    items: Sequence[Any] | None,
    limit: int | None,
    path: str,
    check: Callable[[Any, str], list[FieldProblem]],
    key: Callable[[Any], object] | str,
) -> list[FieldProblem]:
    """`listed`, and all items have different keys; a key is a field of an item or derived from it."""
    problems = listed(items, limit, path, check)
    if limit is not None and len(items or ()) > limit:
        return problems
    if isinstance(key, str):
        return problems + repeated([item.get(key) for item in items or ()], path, key)
    return problems + repeated([key(item) for item in items or ()], path)


def node_selector(value: JsonObject, path: str) -> list[FieldProblem]:
    """At least one term."""
    return (
        [] if value.get("nodeSelectorTerms") else [required(f"{path}.nodeSelectorTerms", "must have at least one term")]
    )


def conditions(items: Sequence[JsonObject], limit: int, path: str) -> list[FieldProblem]:
    """metav1.Condition lists."""
    problems = [too_many(path, len(items), limit)] if len(items) > limit else []
    for index, item in enumerate(items):
        where = f"{path}[{index}]"
        for name in ("type", "lastTransitionTime", "reason"):
            if not item.get(name):
                problems.append(required(f"{where}.{name}", "must be set"))
        if item.get("status") not in ("False", "True", "Unknown"):
            problems.append(not_supported(f"{where}.status", item.get("status", ""), ("False", "True", "Unknown")))
    return problems + repeated([condition.get("type") for condition in items], path)


def admin_access_denied(path: str) -> FieldProblem:
    """Reports admin access outside a namespace that allows it."""
    return forbidden(
        path,
        "admin access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing "
        "namespace",
    )
