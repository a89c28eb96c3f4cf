"""What differs between types: preparation, immutability, validation, grace periods, what follows a write.

`Rules` asks the module of each API group; types without rules of their own get the common ones only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from dra_driver.api.meta import JsonObject
from dra_driver.simulation.apiserver.resource_types import Registry, ResourceType
from dra_driver.simulation.apiserver.status import Problem
from dra_driver.simulation.apiserver.store import Store


@dataclass(frozen=True, slots=True)
class Situation:
    """What a rule may look at besides the object. `subresource` is empty for a write of the object itself."""

    kind: ResourceType
    subresource: str
    store: Store
    registry: Registry
    now: datetime
    warnings: list[str]


class Rules:
    """The common rules and the way to those of each type."""

    def __init__(self) -> None:
        self._followers: list[Callable[[ResourceType, JsonObject, bool], None]] = []

    def follow(self, follower: Callable[[ResourceType, JsonObject, bool], None]) -> None:
        """`follower(type, object, gone)` is called after each write."""
        self._followers.append(follower)

    def prepare_create(self, obj: JsonObject, situation: Situation) -> None:
        kind = situation.kind
        if kind.tracks_generation:
            obj["metadata"]["generation"] = 1
        if "status" in kind.subresources and kind.custom:
            obj.pop("status", None)

    def problems_of_new(self, obj: JsonObject, situation: Situation) -> list[Problem]:
        return []

    def prepare_update(self, obj: JsonObject, old: JsonObject, situation: Situation) -> JsonObject:
        kind = situation.kind
        if situation.subresource == "status":
            metadata = {**old["metadata"]}
            obj = {**old, "metadata": metadata, "status": obj.get("status", {})}
        elif "status" in kind.subresources:
            obj.pop("status", None)
            if "status" in old:
                obj["status"] = old["status"]
        if kind.tracks_generation and _content(obj) != _content(old):
            obj["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        return obj

    def problems_of_change(self, obj: JsonObject, old: JsonObject, situation: Situation) -> list[Problem]:
        return []

    def grace_period_s(self, kind: ResourceType, obj: JsonObject, asked: int | None) -> int:
        """Seconds that an object lives on after its deletion; 0 for all but pods that run on a node."""
        if kind.key != ("", "pods"):
            return 0
        if not obj.get("spec", {}).get("nodeName") or obj.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            return 0
        return obj["spec"].get("terminationGracePeriodSeconds", 30) if asked is None else asked

    def held_by_content(self, kind: ResourceType, obj: JsonObject) -> bool:
        """A namespace stays until it is empty."""
        return kind.key == ("", "namespaces")

    def mark_terminating(self, kind: ResourceType, obj: JsonObject) -> None:
        if kind.key == ("", "namespaces"):
            obj["status"] = {**obj.get("status", {}), "phase": "Terminating"}

    def after_write(self, kind: ResourceType, obj: JsonObject) -> None:
        for follower in self._followers:
            follower(kind, obj, False)

    def after_removal(self, kind: ResourceType, obj: JsonObject) -> None:
        for follower in self._followers:
            follower(kind, obj, True)


def _content(obj: JsonObject) -> JsonObject:
    return {name: value for name, value in obj.items() if name not in ("metadata", "status", "apiVersion", "kind")}
