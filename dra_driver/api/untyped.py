"""Ways into objects whose types are not known: anything may be anywhere. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from dra_driver.api.meta import JsonObject

type Path = tuple[str | int, ...]
"""Into the object of one document: keys of maps and indexes of lists. Empty is the object itself."""


def path_text(path: Path) -> str:
    """As in our errors, and as `Document.place` reads it: `spec.containers[0].resources.limits[nvidia.com/gpu]`."""
    text = ""
    for part in path:
        if isinstance(part, int) or not part.replace("-", "").replace("_", "").isalnum():
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def value_at(obj: object, path: Path) -> Any:
    """What is there; None where there is nothing."""
    for part in path:
        if isinstance(obj, Mapping) and isinstance(part, str):
            obj = obj.get(part)
        elif isinstance(obj, list) and isinstance(part, int) and -len(obj) <= part < len(obj):
            obj = obj[part]
        else:
            return None
    return obj


def places_in(value: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Each value of an object with its path: a map or list first, then what is in it."""
    yield path, value
    if isinstance(value, dict | list):
        for part, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places_in(inner, (*path, part))


def list_in(value: object) -> list[Any]:
    """Empty where something else is there."""
    return value if isinstance(value, list) else []


def map_in(value: object) -> JsonObject:
    """Empty where something else is there."""
    return value if isinstance(value, dict) else {}


def maps_in(value: object) -> list[JsonObject]:
    """Items of a list; an item that is no map is empty, so that positions stay."""
    return [map_in(item) for item in list_in(value)]


def lacking(observed: object, wanted: object, path: str = "") -> Iterator[str]:
    """Paths at which an object lacks what is wanted; servers add defaults, and newer ones fields."""
    if isinstance(wanted, Mapping) and isinstance(observed, Mapping):
        for key, value in wanted.items():
            yield from lacking(observed.get(key), value, f"{path}.{key}" if path else str(key))
    elif isinstance(wanted, list) and isinstance(observed, list) and len(observed) == len(wanted):
        if any(list(lacking(*pair)) for pair in zip(observed, wanted, strict=True)):
            yield path
    elif observed != wanted:
        yield path
