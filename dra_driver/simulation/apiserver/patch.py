"""Merge patch and strategic merge patch; `apply.py` has server-side apply.

Pure: object and patch in, new object out; neither input is changed. Sources: RFC 7386, and Kubernetes'
"Update API Objects in Place Using kubectl patch" for the strategic directives.
"""

from collections.abc import Callable
from typing import Any

from dra_driver.api.meta import JsonObject
from dra_driver.apirules.schema import OPEN, Schema
from dra_driver.apirules.status import bad_request
from dra_driver.simulation.apiserver.decode import copy_json


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: null deletes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return copy_json(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merge_patch(result.get(name), value)
    return result


def through_maps(value: Any, schema: Schema) -> Any:
    """As a typed value comes out of a detour through maps: the keys of free content (RawExtension) are sorted.

    Strategic merge patch and server-side apply take it for the whole object; merge patch leaves what it does
    not touch as it was. Seen in kube-apiserver 1.36.
    """
    if schema.opaque:
        return _sorted(value)
    if isinstance(value, dict):
        return {name: through_maps(item, schema.child(name) or OPEN) for name, item in value.items()}
    if isinstance(value, list) and schema.items is not None:
        return [through_maps(item, schema.items) for item in value]
    return value


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _sorted(value[name]) for name in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


_DIRECTIVE = "$patch"
_DELETE_FROM = "$deleteFromPrimitiveList/"
_ORDER = "$setElementOrder/"
_RETAIN = "$retainKeys"


def strategic_merge(target: JsonObject, patch: JsonObject, schema: Schema) -> JsonObject:
    """Like a merge patch, but lists with a merge key are merged by it, and `$patch` directives are followed."""
    if patch.get(_DIRECTIVE) == "replace":
        return {name: copy_json(value) for name, value in patch.items() if name != _DIRECTIVE}
    if patch.get(_DIRECTIVE) == "delete":
        return {}
    result = dict(target)
    if isinstance(retained := patch.get(_RETAIN), list):
        result = {name: value for name, value in result.items() if name in retained}
    for name, value in patch.items():
        if name.startswith(_DELETE_FROM):
            field = name.removeprefix(_DELETE_FROM)
            result[field] = [item for item in result.get(field, []) if item not in value]
        elif name.startswith(_ORDER):
            field = name.removeprefix(_ORDER)
            if field not in patch and field in result:
                result[field] = _merged(result[field], [], schema.child(field), value)
        elif name.startswith("$"):
            continue
        elif value is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value, schema.child(name), patch.get(_ORDER + name))
    return result


def _merged(old: Any, value: Any, schema: Schema | None, order: list[Any] | None) -> Any:
    if isinstance(value, dict):
        if schema is None or schema.opaque:
            return merge_patch(old, value)
        return strategic_merge(old if isinstance(old, dict) else {}, value, schema)
    if isinstance(value, list) and schema is not None and schema.merges:
        return _merged_list(old if isinstance(old, list) else [], value, schema, order)
    return copy_json(value)


def _merged_list(old: list[Any], patch: list[Any], schema: Schema, order: list[Any] | None) -> list[Any]:
    key = schema.merge_key
    if key is None:
        merged = [*old, *(item for item in patch if item not in old)]
        return _ordered(merged, old, patch if order is None else order, lambda item: item)
    if any(isinstance(item, dict) and item.get(_DIRECTIVE) == "replace" for item in patch):
        return [copy_json(item) for item in patch if _DIRECTIVE not in item]
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise bad_request(f"map: {item} does not contain declared merge key: {key}")
    # Deletions come first, wherever they stand in the patch.
    deleted = [item[key] for item in patch if item.get(_DIRECTIVE) == "delete"]
    merged = [have for have in old if have.get(key) not in deleted]
    patch = [item for item in patch if item.get(_DIRECTIVE) != "delete"]
    for item in patch:
        position = next((at for at, have in enumerate(merged) if have.get(key) == item[key]), None)
        if position is None:
            merged.append(strategic_merge({}, item, schema.items or schema))
        else:
            merged[position] = strategic_merge(merged[position], item, schema.items or schema)
    return _ordered(merged, old, patch if order is None else order, lambda item: item.get(key))


def _ordered(merged: list[Any], old: list[Any], order: list[Any], identity: Callable[[Any], Any]) -> list[Any]:
    """Items that `order` names keep its order, the others theirs; where both are known, the old list decides."""
    named = [identity(item) for item in order]
    before = [identity(item) for item in old]
    ours = sorted((item for item in merged if identity(item) in named), key=lambda item: named.index(identity(item)))
    others = [item for item in merged if identity(item) not in named]
    result: list[Any] = []
    while ours or others:
        first_is_other = bool(others) and (
            not ours
            or (identity(ours[0]) in before and before.index(identity(others[0])) < before.index(identity(ours[0])))
        )
        result.append((others if first_is_other else ours).pop(0))
    return result
