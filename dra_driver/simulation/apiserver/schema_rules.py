"""Rules in CEL of custom types' schemas (`x-kubernetes-validations`), as far as they can be told without types.

A rule that mentions `oldSelf` holds for changes alone, and where the value before can be found: fields, values of maps,
and items of lists that have keys. What was wrong before and did not change is let pass. Not simulated are limits of
cost, `messageExpression` and `optionalOldSelf`. Source: Kubernetes' page on CustomResourceDefinitions.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

from dra_driver.apirules.schema import Schema
from dra_driver.apirules.status import Problem, forbidden, required
from dra_driver.cel.check import check
from dra_driver.cel.errors import CelError
from dra_driver.cel.evaluate import Program
from dra_driver.cel.functions import FUNCTIONS
from dra_driver.cel.overloads import Environment, ObjectType
from dra_driver.cel.parser import parse
from dra_driver.cel.types import DYN

_OLD = re.compile(r"\boldSelf\b")
_MISSING: Any = object()


def problems_of_rules(value: Any, old: Any, schema: Schema) -> list[Problem]:
    """What the rules say of an object that is right otherwise; `old` is None for a new one."""
    return list(_problems(value, _MISSING if old is None else old, schema, ""))


def _problems(value: Any, old: Any, schema: Schema, path: str) -> Iterator[Problem]:
    for rule in schema.raw.get("x-kubernetes-validations", ()):
        yield from _broken(rule, value, old, path, schema.type)
    if isinstance(value, dict):
        for name, item in value.items():
            child = schema.child(name)
            if child is not None and child.definition is None:
                before = old.get(name, _MISSING) if isinstance(old, dict) else _MISSING
                yield from _problems(item, before, child, f"{path}.{name}" if path else name)
    if isinstance(value, list) and schema.items is not None:
        for index, item in enumerate(value):
            yield from _problems(item, _same_item(item, old, schema), schema.items, f"{path}[{index}]")


def _broken(rule: dict[str, Any], value: Any, old: Any, path: str, kind: str) -> Iterator[Problem]:
    changes = _OLD.search(rule["rule"]) is not None
    if (changes and old is _MISSING) or (not changes and old == value):
        return
    try:
        holds = _compiled(rule["rule"], changes)(value, old)
    except CelError as error:
        yield _invalid(path, f"{error} evaluating rule: {rule['rule']}")
        return
    if not holds:
        where = f"{path}{rule.get('fieldPath', '')}".lstrip(".")
        said = str(rule.get("message", f"failed rule: {rule['rule']}")).strip()
        older = (35, Problem(where, "FieldValueInvalid", f'Invalid value: "{kind}": {said}'))
        known = _PROBLEMS.get(rule.get("reason", ""))
        yield known(where, said) if known else replace(_invalid(where, said), older=older)


def _invalid(field: str, said: str) -> Problem:
    """Without the value, which may be a large one."""
    return Problem(field, "FieldValueInvalid", f"Invalid value: {said}")


_PROBLEMS: dict[str, Callable[[str, str], Problem]] = {
    "FieldValueForbidden": forbidden,
    "FieldValueRequired": required,
}


def _same_item(item: Any, old: Any, schema: Schema) -> Any:
    """The item of the same keys in the list before."""
    if schema.list_type != "map" or not isinstance(old, list) or not isinstance(item, dict):
        return _MISSING
    keys = [item.get(name) for name in schema.list_keys]
    same = (one for one in old if isinstance(one, dict) and [one.get(name) for name in schema.list_keys] == keys)
    return next(same, _MISSING)


@lru_cache(maxsize=256)
def _compiled(rule: str, changes: bool) -> Callable[[Any, Any], bool]:
    """Raises CelError when it is compiled, and when it is asked."""
    names = ("self", "oldSelf") if changes else ("self",)
    environment = Environment({name: ObjectType(DYN, {}) for name in names}, FUNCTIONS)
    program = Program(check(parse(rule), rule, environment))
    return lambda value, old: program.evaluate_all([value, old] if changes else [value]) is True
