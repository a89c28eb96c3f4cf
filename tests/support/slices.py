"""A pool of ResourceSlices as the API server stores it, and how readers see it."""

import itertools
from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

from dra_driver.api.meta import JsonObject
from dra_driver.slices.diff import (
    CreateSlice,
    ObservedSlice,
    SliceWrite,
    UpdateSlice,
    WantedPool,
    new_object,
    observed_slice,
    update_patch,
)

type Contents = tuple[tuple[str, str], ...]
"""Name and contents of each device and counter set, sorted by name: what a reader makes of a pool."""


class StoredSlices:
    """Slices by name, with names generated and patches merged as a server does."""

    def __init__(self, objects: Iterable[JsonObject] = ()) -> None:
        self.objects = {obj["metadata"]["name"]: deepcopy(obj) for obj in objects}
        self._serial = itertools.count(1)

    def do(self, pool: WantedPool, write: SliceWrite) -> None:
        if isinstance(write, CreateSlice):
            obj = deepcopy(new_object(pool, write))
            serial = next(self._serial)
            base = obj["metadata"].pop("generateName")[:58]
            obj["metadata"].update(name=f"{base}n{serial:04d}", uid=f"new-{serial}", resourceVersion="1")
            self.objects[obj["metadata"]["name"]] = obj
        elif isinstance(write, UpdateSlice):
            obj = self.objects[write.observed.name]
            patch = update_patch(pool, write)
            assert patch["metadata"]["resourceVersion"] == obj["metadata"]["resourceVersion"]
            self.objects[write.observed.name] = _merged(obj, patch)
            version = int(obj["metadata"]["resourceVersion"]) + 1
            self.objects[write.observed.name]["metadata"]["resourceVersion"] = str(version)
        else:
            del self.objects[write.observed.name]

    def observed(self) -> tuple[ObservedSlice, ...]:
        return tuple(observed_slice(obj) for obj in self.objects.values())

    def seen_by_readers(self, node: str) -> set[Contents]:
        """What readers may believe of this pool: empty when no reader sees a complete pool.

        A reader takes the count from any one slice of the generation, and starts with the slices of its node.
        """
        of_node = [obj for obj in self.objects.values() if obj["spec"].get("nodeName") == node]
        return _believed(of_node) | _believed(list(self.objects.values()))


def contents(specs: Iterable[JsonObject]) -> Contents:
    """Of slices, by their `spec` or what of it is wanted."""
    items = [item for spec in specs for kind in ("devices", "sharedCounters") for item in spec.get(kind) or ()]
    return tuple(sorted((item["name"], repr(sorted((item.get("attributes") or item).items()))) for item in items))


def _believed(objects: Sequence[JsonObject]) -> set[Contents]:
    newest = max((obj["spec"]["pool"]["generation"] for obj in objects), default=0)
    current = [obj for obj in objects if obj["spec"]["pool"]["generation"] == newest]
    if not any(obj["spec"]["pool"]["resourceSliceCount"] == len(current) for obj in current):
        return set()
    return {contents(obj["spec"] for obj in current)}


def _merged(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result
