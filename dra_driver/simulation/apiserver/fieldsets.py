"""Sets of fields: what an object has, how two objects differ, and their form in `managedFields`.

A field is a path of elements as FieldsV1 spells them: `f:name` for a field or map entry, `k:{...}` for an item of a
keyed list, `v:...` for an item of a set. What counts as one field follows the schema: atomic lists and maps are one,
whatever they contain. Source: Kubernetes' "Server-Side Apply" and sigs.k8s.io/structured-merge-diff.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from dra_driver.api.meta import JsonObject
from dra_driver.apirules.schema import OPEN, Schema
from dra_driver.simulation.apiserver.decode import copy_json

type Path = tuple[str, ...]

ABSENT = object()
"""A value that is not there."""


@dataclass
class Difference:
    """Fields that only the new object has, only the old one had, or that both have with other values."""

    added: set[Path] = field(default_factory=set)
    removed: set[Path] = field(default_factory=set)
    modified: set[Path] = field(default_factory=set)


def _canonical(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def is_leaf(value: object, schema: Schema) -> bool:
    """Whether the value is one field, with all that it contains."""
    if isinstance(value, dict):
        return schema.atomic_map or (schema.opaque and schema is not OPEN and not schema.preserves_unknown)
    if isinstance(value, list):
        return schema.list_type not in ("map", "set") or schema.items is None
    return True


def items_of(value: Any, schema: Schema) -> dict[str, tuple[Any, Schema]]:
    """The fields directly inside a value that is not a leaf: element to value and schema."""
    if isinstance(value, dict):
        return {f"f:{name}": (item, schema.child(name) or OPEN) for name, item in value.items()}
    items = schema.items or OPEN
    return {element(item, schema): (item, items) for item in value}


def element(item: Any, schema: Schema) -> str:
    """The path element of an item of a keyed list or a set."""
    if schema.list_type == "set":
        return f"v:{_canonical(item)}"
    children = (schema.items or OPEN).properties
    keys = {}
    for name in schema.list_keys:
        default = children[name].raw.get("default") if name in children else None
        value = item.get(name, default) if isinstance(item, dict) else None
        if value is not None:
            keys[name] = value
    return f"k:{_canonical(keys)}"


def fields_of(value: Any, schema: Schema, path: Path = ()) -> Iterator[Path]:
    """The fields that an applied configuration claims: its leaves, and the entries of its maps and lists."""
    if is_leaf(value, schema):
        yield path
        return
    for name, (item, child) in items_of(value, schema).items():
        inner = (*path, name)
        declared = name.startswith("f:") and name[2:] in schema.properties
        if item is None or item == {} or not declared:
            yield inner
        yield from fields_of(item, child, inner)


def difference(old: Any, new: Any, schema: Schema) -> Difference:
    """How `new` differs from `old`; either may be ABSENT."""
    found = Difference()
    _compare(old, new, schema, (), found)
    return found


def _compare(old: Any, new: Any, schema: Schema, path: Path, found: Difference) -> None:
    if old is new or (old == new and type(old) is type(new)):
        return
    parts: list[dict[str, tuple[Any, Schema]]] = []
    for value in (old, new):
        inner = value is not ABSENT and not is_leaf(value, schema)
        parts.append(items_of(value, schema) if inner else {})
    before, after = parts
    for name in before.keys() | after.keys():
        old_item, child = before.get(name, (ABSENT, OPEN))
        new_item, child = after.get(name, (ABSENT, child))
        _compare(old_item, new_item, child, (*path, name), found)
    if old is ABSENT:
        found.added.add(path)
    elif new is ABSENT:
        found.removed.add(path)
    elif (not before and not after) or (None not in (old, new) and type(old) is not type(new)):
        found.modified.add(path)


def encode_fields(paths: Iterable[Path]) -> JsonObject:
    """FieldsV1."""
    tree: JsonObject = {}
    for path in sorted(paths):
        node = tree
        for name in path:
            node = node.setdefault(name, {})
        node["."] = {}
    return _slim(tree)


def _slim(node: JsonObject) -> JsonObject:
    if set(node) == {"."}:
        return {}
    return {name: _slim(child) if name != "." else {} for name, child in sorted(node.items())}


def decode_fields(tree: JsonObject, path: Path = ()) -> Iterator[Path]:
    """The paths in a FieldsV1."""
    if not tree and path:
        yield path
    for name, child in tree.items():
        if name == ".":
            yield path
        else:
            yield from decode_fields(child, (*path, name))


def merged(live: Any, config: Any, schema: Schema) -> Any:
    """`live` with everything that `config` says; nothing is taken away. Shares nothing with `config`."""
    if live is ABSENT or type(live) is not type(config) or is_leaf(config, schema):
        return copy_json(config)
    if isinstance(config, dict):
        result = dict(live)
        for name, value in config.items():
            result[name] = merged(live.get(name, ABSENT), value, schema.child(name) or OPEN)
        return result
    return _merged_list(live, config, schema)


def _merged_list(live: list[Any], config: list[Any], schema: Schema) -> list[Any]:
    """Items of both, in the order of `config`; those that only `live` has stay before the one they stood before."""
    items = schema.items or OPEN
    known = {element(item, schema): item for item in live}
    said = {element(item, schema): item for item in config}
    ours, theirs = list(said), list(known)
    shared = [name for name in ours if name in known]
    order: list[str] = []
    while ours or theirs:
        if ours and theirs and theirs[0] != ours[0] and theirs[0] in said and shared and theirs[0] != shared[0]:
            theirs.pop(0)
        elif theirs and theirs[0] not in said:
            order.append(theirs.pop(0))
        elif ours:
            name = ours.pop(0)
            order.append(name)
            if theirs and theirs[0] == name:
                theirs.pop(0)
            if shared and shared[0] == name:
                shared.pop(0)
        else:
            theirs.pop(0)
    return [merged(known.get(name, ABSENT), said[name], items) if name in said else known[name] for name in order]


def with_declared_parents(paths: Iterable[Path], schema: Schema) -> set[Path]:
    """The paths and the declared fields on the way: who gives up all that a struct holds gives up the struct."""
    found = set(paths)
    for path in list(found):
        current = schema
        for length, name in enumerate(path, start=1):
            declared = name.startswith("f:") and name[2:] in current.properties
            if declared:
                found.add(path[:length])
            current = (current.child(name[2:]) if name.startswith("f:") else current.items) or OPEN
    return found


def without(value: Any, schema: Schema, given_up: set[Path], owned: set[Path], path: Path = ()) -> Any:
    """`value` without the fields that were given up, and without what becomes empty by that.

    A list item or map entry that nobody owns any more goes as a whole, even with fields that somebody owns inside it; a
    declared field goes with what the server filled in, unless something in it is `owned`.
    """
    if is_leaf(value, schema):
        return value
    kept = {}
    for name, (item, child) in items_of(value, schema).items():
        inner = (*path, name)
        declared = name.startswith("f:") and name[2:] in schema.properties
        if inner in given_up and not (declared and any(one[: len(inner)] == inner for one in owned)):
            continue
        rest = without(item, child, given_up, owned, inner)
        if rest or rest == item or (inner in owned and isinstance(item, dict)):
            kept[name] = rest
    return {name[2:]: item for name, item in kept.items()} if isinstance(value, dict) else list(kept.values())
