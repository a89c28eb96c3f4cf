"""What replacements of kustomizations make of objects: a value of one is copied into fields of others. Pure.

Followed are fields, indexes, `[name=…]`, `*`, `create`, `delimiter` and `index`, as kustomize has them; what cannot be
followed is refused, never guessed. Source: kustomize's api/filters/replacement.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dra_driver.api.meta import JsonObject
from dra_driver.migration.model import Path, value_at
from dra_driver.migration.patching import CannotFollow
from dra_driver.migration.unrendered import speaks_of_gpus

_NAME = "metadata.name"
_PART = re.compile(r"\[([^\]]*)\]|((?:\\.|[^.\\\[])+)")
_GIVEN = ("metadata", "selector", "labels", "annotations", "replicas")
"""Fields with what kustomizations put there in other ways, which is not known here."""
_OF_MUCH = ("resources", "limits", "requests", "nodeSelector", "tolerations", "claims", "resourceClaims", "spec")
"""Fields whose values may speak of GPUs."""
NOT_KNOWN = "(given by kustomize)"
"""Stands for what is not known and has nothing to do with GPUs."""


def source_value(obj: JsonObject, source: Mapping[str, Any]) -> Any:
    """What is copied. Raises CannotFollow."""
    text = _field_path(source.get("fieldPath"))
    places = list(_places(obj, parts(text), ()))
    if len(places) != 1:
        if _is_given(text):
            return NOT_KNOWN
        raise CannotFollow(f"{text}, which it copies, would not be there")
    value = copy.deepcopy(value_at(obj, places[0]))
    delimiter, index = _divided(source)
    if not delimiter:
        return value
    divided = _as_text(value).split(delimiter)
    if not 0 <= index < len(divided):
        raise CannotFollow(f"{text} has no part {index}")
    return divided[index]


def replaced(obj: JsonObject, target: Mapping[str, Any], value: Any) -> JsonObject:
    """A copy of an object that is selected, with the value in its fields. Raises CannotFollow."""
    found = copy.deepcopy(obj)
    listed = target.get("fieldPaths")
    for text in listed if isinstance(listed, list) and listed else [_NAME]:
        told = parts(_field_path(text))
        if value is NOT_KNOWN and (speaks_of_gpus(text) or told[-1] in _OF_MUCH):
            raise CannotFollow(f"what it writes into {text} is not known")
        if value_at(target, ("options", "create")):
            _create(found, told, value)
        places = list(_places(found, told, ()))
        if not places and not _is_given(text):
            raise CannotFollow(f"{text}, into which it writes, would not be there")
        for place in places:
            old = value_at(found, place)
            if value is NOT_KNOWN and isinstance(old, dict | list):
                raise CannotFollow(f"what it writes into {text} is not known")
            value_at(found, place[:-1])[place[-1]] = _put(old, value, *_divided(target))
    return found


def parts(text: str) -> list[str]:
    """Of a path with dots: what is in brackets is one, without these unless it chooses items of a list."""
    found = []
    for bracketed, plain in _PART.findall(text):
        found.append(f"[{bracketed}]" if "=" in bracketed else bracketed or re.sub(r"\\(.)", r"\1", plain))
    return found


def _field_path(told: object) -> str:
    if told is not None and not isinstance(told, str):
        raise CannotFollow("it has a field path that is no text")
    return told or _NAME


def has_pods(source: Mapping[str, Any]) -> bool:
    """Whether it may be of pods what is copied, rather than names and the like."""
    return not _is_given(_field_path(source.get("fieldPath")))


def _is_given(text: str) -> bool:
    return any(part in _GIVEN for part in parts(text)) and not speaks_of_gpus(text)


def _divided(told: Mapping[str, Any]) -> tuple[str, int]:
    delimiter, index = (value_at(told, ("options", name)) for name in ("delimiter", "index"))
    return delimiter if isinstance(delimiter, str) else "", index if isinstance(index, int) else 0


def _places(value: Any, told: Sequence[str], path: Path) -> Iterator[Path]:
    if not told:
        yield path
        return
    first, rest = told[0], told[1:]
    for key in _keys(value, first):
        yield from _places(value[key], rest, (*path, key))


def _keys(value: Any, part: str) -> Iterator[str | int]:
    if part == "*":
        yield from value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    elif isinstance(value, dict):
        yield from [part] if part in value else []
    elif isinstance(value, list) and part.isdecimal():
        yield from [int(part)] if int(part) < len(value) else []
    elif isinstance(value, list) and part.startswith("["):
        name, _, wanted = part[1:-1].partition("=")
        for index, one in enumerate(value):
            there = one.get(name) if isinstance(one, dict) else one if not name else None
            if there is not None and re.fullmatch(wanted, _as_text(there)):
                yield index


def _create(obj: JsonObject, told: Sequence[str], value: Any) -> None:
    """Maps on the way to the field, and the field. Raises CannotFollow where a list would have to grow."""
    now: Any = obj
    for at, part in enumerate(told):
        if isinstance(now, dict) and part not in now and not part.startswith("[") and part != "*":
            now[part] = {} if at + 1 < len(told) else ({} if isinstance(value, dict) else None)
        keys = list(_keys(now, part))
        if len(keys) != 1:
            if not keys:
                raise CannotFollow(f"it would create {'.'.join(told)}")
            for key in keys:
                _create({"": now[key]}, ["", *told[at + 1 :]], value)
            return
        now = now[keys[0]]


def _put(old: Any, value: Any, delimiter: str, index: int) -> Any:
    if delimiter:
        if isinstance(old, dict | list):
            raise CannotFollow("it divides what is no text")
        divided = _as_text(old).split(delimiter)
        if index < 0:
            divided.insert(0, _as_text(value))
        elif index >= len(divided):
            divided.append(_as_text(value))
        else:
            divided[index] = _as_text(value)
        return delimiter.join(divided)
    # The field keeps its type: a number stays one, and a text.
    if isinstance(old, str) and not isinstance(value, dict | list):
        return _as_text(value)
    if isinstance(old, int) and isinstance(value, str) and value.isdecimal():
        return int(value)
    return copy.deepcopy(value)


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value}"
