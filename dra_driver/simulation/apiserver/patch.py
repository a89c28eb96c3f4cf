"""Changes of an object by a patch: merge patch, strategic merge patch, JSON patch, and server-side apply.

Pure: except for JSON patch, neither input is changed. Server-side apply has no record of managers: each applier's last
configuration says what it may remove. What an applier no longer says goes, unless another applier says it too. No
change is a conflict, and objects have no `managedFields`. Sources: RFC 7386, RFC 6902, and Kubernetes' pages "Update
API Objects in Place Using kubectl patch" and "Server-Side Apply".
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

from dra_driver.api.meta import JsonObject
from dra_driver.apirules.schema import OPEN, Schema
from dra_driver.apirules.status import ApiError, bad_request
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


type FieldPath = tuple[str, ...]


def fields_of(value: Any, schema: Schema, path: FieldPath = ()) -> Iterator[FieldPath]:
    """All fields, map entries and list items that a configuration names."""
    for name, (item, child) in _children(value, schema).items():
        yield (*path, name)
        yield from fields_of(item, child, (*path, name))


def merged(live: Any, config: Any, schema: Schema) -> Any:
    """`live` with everything that `config` says; shares nothing with `config`."""
    if type(live) is not type(config) or _is_atomic(config, schema):
        return copy_json(config)
    if isinstance(config, dict):
        return {**live, **{name: merged(live.get(name), item, _child(schema, name)) for name, item in config.items()}}
    items = schema.items or OPEN
    known, wanted = ({_element(item, schema): item for item in items_} for items_ in (live, config))
    left, order = list(known), list[str]()
    for name in wanted:
        while left and left[0] not in wanted:
            order.append(left.pop(0))
        order.append(name)
        left = [other for other in left if other != name]
    order += left
    return [merged(known.get(name), wanted[name], items) if name in wanted else known[name] for name in order]


def without(value: Any, schema: Schema, gone: set[FieldPath], path: FieldPath = ()) -> Any:
    """`value` without the fields `gone`, and without what becomes empty by that. Maps keep the entries of others."""
    rest_by_name = {}
    for name, (item, child) in _children(value, schema).items():
        inner = (*path, name)
        if inner in gone and not (isinstance(item, dict | list) and _is_shared(item, child)):
            continue
        rest = without(item, child, gone, inner) if _children(item, child) else item
        if rest or not item:
            rest_by_name[name] = rest
    return rest_by_name if isinstance(value, dict) else list(rest_by_name.values())


def _is_shared(item: Any, schema: Schema) -> bool:
    """Several appliers may have entries in it."""
    return not _is_atomic(item, schema) and (isinstance(item, list) or schema.additional is not None)


def _is_atomic(value: Any, schema: Schema) -> bool:
    if isinstance(value, dict):
        return schema.atomic_map or (schema.opaque and schema is not OPEN and not schema.preserves_unknown)
    return not isinstance(value, list) or schema.list_type not in ("map", "set") or schema.items is None


def _children(value: Any, schema: Schema) -> dict[str, tuple[Any, Schema]]:
    if _is_atomic(value, schema):
        return {}
    if isinstance(value, dict):
        return {name: (item, _child(schema, name)) for name, item in value.items()}
    return {_element(item, schema): (item, schema.items or OPEN) for item in value}


def _child(schema: Schema, name: str) -> Schema:
    return schema.child(name) or OPEN


def _element(item: Any, schema: Schema) -> str:
    """The path element of an item of a keyed list or a set."""
    return json.dumps(key_of_item(item, schema), sort_keys=True)


def key_of_item(item: Any, schema: Schema) -> Any:
    """What identifies an item of a keyed list: its keys, or their defaults; of a set, the item itself."""
    if schema.list_type == "set" or not isinstance(item, dict):
        return item
    fields = (schema.items or OPEN).properties
    defaults = {name: fields[name].raw.get("default") for name in schema.list_keys if name in fields}
    return {name: item.get(name, defaults.get(name)) for name in schema.list_keys}


_OPERATIONS = ("add", "remove", "replace", "move", "copy", "test")


def json_patch(document: JsonObject, operations: object) -> JsonObject:
    """RFC 6902, on a document that it may change. Raises ApiError 400 for what is no patch, 422 for one that does not
    apply."""
    if not isinstance(operations, list) or not all(
        isinstance(item, dict) and item.get("op") in _OPERATIONS for item in operations
    ):
        raise bad_request("a JSON patch is a list of operations")
    holder: JsonObject = {"": document}
    for item in operations:
        try:
            _operate(holder, item)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            what = f"{item['op']} operation does not apply: doc is missing path: {item.get('path')}"
            raise ApiError(422, f"the server rejected our request due to an error in our request: {what}") from error
    result: JsonObject = holder[""]
    return result


def _operate(holder: JsonObject, operation: JsonObject) -> None:
    op = operation["op"]
    if op in ("move", "copy"):
        parent, name = _pointed(holder, operation["from"])
        value = copy_json(parent[name])
        if op == "move":
            del parent[name]
        op = "add"
    else:
        value = operation["value"] if op != "remove" else None
    parent, name = _pointed(holder, operation["path"])
    if op == "test" and parent[name] != value:
        raise ValueError("the value differs")
    if op in ("remove", "replace"):
        del parent[name]
    if op in ("add", "replace") and isinstance(parent, list):
        parent.insert(name, value)
    elif op in ("add", "replace"):
        parent[name] = value


def _pointed(holder: JsonObject, pointer: str) -> tuple[Any, Any]:
    """What holds the value at a JSON pointer (RFC 6901), and its key or index there; `-` is the end of a list."""
    value: Any = holder
    keys = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")]
    for number, key in enumerate(keys):
        place: Any = (len(value) if key == "-" else int(key)) if isinstance(value, list) else key
        if number == len(keys) - 1:
            return value, place
        value = value[place]
    raise ValueError("an empty pointer")
