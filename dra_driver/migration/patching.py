"""What patches make of an object, as kustomize applies them: strategic merge patches and JSON patches. Pure.

Only what decides about pods is known: lists of pods that are merged by a key in the kinds of Kubernetes itself. In
other kinds, and in lists without a key, a patch's list takes the place of the one that was there. What cannot be
followed is refused, never guessed. Source: kustomize's kyaml/yaml/merge2, and RFC 6902.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dra_driver.api.meta import JsonObject
from dra_driver.migration.kind_table import kind_of
from dra_driver.migration.model import Path, path_text, value_at

_MERGE_KEYS: Mapping[str, str] = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "ownerReferences": "uid",
}
"""By the field that holds the list. Claims of a pod are too young for the schema that kustomize has: no key."""
_GROUPS = ("", "apps", "batch", "extensions")
_DIRECTIVE = "$patch"


class CannotFollow(Exception):
    """What a patch makes of an object is not known here. The message says why."""


# -- strategic merge patches


def merged(obj: JsonObject, patch: JsonObject) -> JsonObject | None:
    """The object after the patch, a copy; None: the patch deletes it. Raises CannotFollow."""
    found = _merged_map(obj, patch, by_key=kind_of(obj)[0] in _GROUPS)
    if found is None:
        return None
    # A patch says which object it is for; it does not rename it.
    return {**found, **{key: obj[key] for key in ("apiVersion", "kind") if key in obj}, "metadata": _named(found, obj)}


def _named(found: JsonObject, obj: JsonObject) -> Any:
    metadata, own = found.get("metadata"), obj.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(own, dict):
        return metadata
    kept = {key: own[key] for key in ("name", "namespace") if key in own}
    return {key: value for key, value in metadata.items() if key not in ("name", "namespace")} | kept


def _merged_map(old: Mapping[str, Any], patch: Mapping[str, Any], *, by_key: bool) -> JsonObject | None:
    directive = patch.get(_DIRECTIVE)
    if directive == "delete":
        return None
    if any(key.startswith("$") and key != _DIRECTIVE for key in patch) or directive not in (None, "merge", "replace"):
        raise CannotFollow(f"it has directives that are not followed: {', '.join(k for k in patch if k[:1] == '$')}")
    found = {} if directive == "replace" else dict(old)
    for key, value in patch.items():
        if key == _DIRECTIVE:
            continue
        if value is None:
            found.pop(key, None)
            continue
        new = _merged_value(key, found.get(key), value, by_key=by_key)
        if new is None:
            found.pop(key, None)
        else:
            found[key] = new
    return found


def _merged_value(key: str, old: Any, patch: Any, *, by_key: bool) -> Any:
    if isinstance(patch, dict):
        return _merged_map(old if isinstance(old, dict) else {}, patch, by_key=by_key)
    if isinstance(patch, list):
        name = _MERGE_KEYS.get(key) if by_key else None
        if name is not None and all(isinstance(one, dict) for one in patch):
            return _merged_list(old if isinstance(old, list) else [], patch, name)
        if any(isinstance(one, dict) and _DIRECTIVE in one for one in patch):
            raise CannotFollow(f"it has a directive in the list {key}")
    return copy.deepcopy(patch)


def _merged_list(old: list[Any], patch: Sequence[JsonObject], name: str) -> list[Any]:
    """Items that are new stand before those that were there, as kustomize puts them."""
    found = list(old)
    added = []
    for one in patch:
        directive = one.get(_DIRECTIVE)
        if name not in one:
            if directive == "replace" and len(one) == 1:
                found = []
                continue
            raise CannotFollow(f"an item of a list has no {name}")
        at = next((i for i, was in enumerate(found) if isinstance(was, dict) and was.get(name) == one[name]), None)
        new = _merged_map(found[at] if at is not None else {}, one, by_key=True)
        if at is None:
            added += [new] if new is not None else []
        elif new is None:
            del found[at]
        else:
            found[at] = new
    return [*added, *found]


# -- JSON patches


def operated(obj: JsonObject, operations: Sequence[Any]) -> Iterator[JsonObject]:
    """The object, and a copy of it after each operation. Raises CannotFollow, also for what kustomize would refuse."""
    yield obj
    for one in operations:
        obj = after_operation(obj, one)
        yield obj


def after_operation(obj: JsonObject, operation: Any) -> JsonObject:
    """A copy. Raises CannotFollow."""
    if not isinstance(operation, dict) or not isinstance(operation.get("path"), str):
        raise CannotFollow("it is not a list of operations with paths")
    found: Any = copy.deepcopy(obj)
    _operate(found, operation, pointed(operation["path"], found))
    return found  # type: ignore[no-any-return]


def pointed(text: str, obj: Any) -> Path:
    """Where a JSON pointer is in the object: indexes of lists as numbers; `-` is behind the last one."""
    path: Path = ()
    for part in text.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        there = value_at(obj, path)
        if isinstance(there, list):
            if key != "-" and not key.isdecimal():
                raise CannotFollow(f"{text} is not a place in a list")
            path = (*path, len(there) if key == "-" else int(key))
        else:
            path = (*path, key)
    if not path:
        raise CannotFollow("it replaces the whole object")
    return path


def _operate(obj: Any, operation: JsonObject, path: Path) -> None:
    kind = operation.get("op")
    if kind == "test":
        if value_at(obj, path) != operation.get("value"):
            raise CannotFollow(f"{path_text(path)} is not what it tests for")
    elif kind in ("add", "replace"):
        _put(obj, path, copy.deepcopy(operation.get("value")), new=kind == "add")
    elif kind == "remove":
        _taken(obj, path)
    elif kind in ("move", "copy") and isinstance(operation.get("from"), str):
        source = pointed(operation["from"], obj)
        value = _taken(obj, source) if kind == "move" else copy.deepcopy(_there(obj, source))
        _put(obj, path, value, new=True)
    else:
        raise CannotFollow(f"its operation {kind} is not followed")


def _there(obj: Any, path: Path) -> Any:
    parent, last = value_at(obj, path[:-1]), path[-1]
    known = last in parent if isinstance(parent, dict) else isinstance(parent, list) and int(last) < len(parent)
    if not known:
        raise CannotFollow(f"{path_text(path)} is not there")
    return parent[last]


def _put(obj: Any, path: Path, value: Any, *, new: bool) -> None:
    parent, last = value_at(obj, path[:-1]), path[-1]
    if not new:
        _there(obj, path)
    if isinstance(parent, list) and isinstance(last, int) and last <= len(parent):
        parent[last : last + (0 if new else 1)] = [value]
    elif isinstance(parent, dict):
        parent[last] = value
    else:
        raise CannotFollow(f"{path_text(path[:-1])} is not there")


def _taken(obj: Any, path: Path) -> Any:
    value = _there(obj, path)
    del value_at(obj, path[:-1])[path[-1]]
    return value
