"""Server-side apply without a record of managers: each applier's last configuration says what it may remove.

What an applier no longer says goes, unless another applier says it too. Nobody's change is a conflict, and objects have
no `managedFields`. A path names a field by `f:name`, an item of a keyed list by `k:{...}`, an item of a set by `v:...`.
Lists and maps that are atomic are one field. Source: Kubernetes' "Server-Side Apply".
"""

import json
from collections.abc import Iterator
from typing import Any

from dra_driver.apirules.schema import OPEN, Schema
from dra_driver.simulation.apiserver.decode import copy_json

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
    kept = {}
    for name, (item, child) in _children(value, schema).items():
        inner = (*path, name)
        if inner in gone and not (isinstance(item, dict | list) and _is_shared(item, child)):
            continue
        rest = without(item, child, gone, inner) if _children(item, child) else item
        if rest or not item:
            kept[name] = rest
    return {name[2:]: item for name, item in kept.items()} if isinstance(value, dict) else list(kept.values())


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
        return {f"f:{name}": (item, _child(schema, name)) for name, item in value.items()}
    return {_element(item, schema): (item, schema.items or OPEN) for item in value}


def _child(schema: Schema, name: str) -> Schema:
    return schema.child(name) or OPEN


def _element(item: Any, schema: Schema) -> str:
    """The path element of an item of a keyed list or a set."""
    if schema.list_type == "set" or not isinstance(item, dict):
        return f"v:{json.dumps(item, sort_keys=True)}"
    fields = (schema.items or OPEN).properties
    keys = {
        name: item.get(name, fields[name].raw.get("default") if name in fields else None) for name in schema.list_keys
    }
    return f"k:{json.dumps(keys, sort_keys=True)}"
