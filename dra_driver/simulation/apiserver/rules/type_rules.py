"""What differs between types: defaults, preparation, validation, grace periods, what follows a write.

`Rules` knows the common rules and hands the rest to the `TypeRules` of each type; types without their own get the
common ones only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dra_driver.api.meta import JsonObject
from dra_driver.apirules.metadata import problems_of_metadata, problems_of_metadata_change
from dra_driver.apirules.status import FieldProblem
from dra_driver.kubernetes import FeatureGates
from dra_driver.simulation.apiserver.resource_types import ResourceType
from dra_driver.simulation.apiserver.store import Store, TypeKey

type Follower = Callable[[ResourceType, JsonObject, bool], None]


@dataclass(frozen=True, slots=True)
class Situation:
    """What a rule may look at besides the object. `subresource` is empty for a write of the object itself."""

    kind: ResourceType
    subresource: str
    store: Store
    gates: FeatureGates
    minor: int
    now: str
    """RFC 3339 with seconds."""
    warnings: list[str]

    def namespace_labels(self, obj: JsonObject) -> JsonObject:
        """Labels of the namespace that the object is in."""
        entry = self.store.get(("", "namespaces"), "", obj["metadata"].get("namespace", ""))
        labels: JsonObject = (entry.obj["metadata"].get("labels") or {}) if entry is not None else {}
        return labels


class TypeRules:
    """The rules of one type; every method may be left as it is. Objects handed in may be changed in place."""

    def default(self, obj: JsonObject, situation: Situation) -> None:
        """Fills in what the API defaults; called for every object that comes in."""

    def prepare(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> None:
        """Before validation of a creation (`old` None) or of a change of the object itself."""

    def prepare_status(self, obj: JsonObject, old: JsonObject, situation: Situation) -> None:
        """Before validation of a change of the status."""

    def problems(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> list[FieldProblem]:
        """What is wrong with a creation (`old` None) or a change of the object itself."""
        return []

    def status_problems(self, obj: JsonObject, old: JsonObject, situation: Situation) -> list[FieldProblem]:
        """What is wrong with a change of the status."""
        return []


class Rules:
    """All rules of one server. `custom` are those of custom types, `by_type` those of built-in ones."""

    def __init__(self, by_type: Mapping[TypeKey, TypeRules], custom: TypeRules) -> None:
        self._by_type = by_type
        self._custom = custom
        self._common = TypeRules()
        self._followers: list[Follower] = []

    def follow(self, follower: Follower) -> None:
        """`follower(type, object, gone)` is called after each write."""
        self._followers.append(follower)

    def of(self, kind: ResourceType) -> TypeRules:
        """The rules of a type."""
        return self._custom if kind.custom else self._by_type.get(kind.key, self._common)

    def default(self, obj: JsonObject, situation: Situation) -> None:
        self.of(situation.kind).default(obj, situation)

    def prepare_create(self, obj: JsonObject, situation: Situation) -> None:
        """Metadata that the server owns is already there."""
        kind = situation.kind
        if "generation" in kind.marks:
            obj["metadata"]["generation"] = 1
        if kind.resets_status:
            obj.pop("status", None)
            kind.fill_status(obj)
        self.of(kind).prepare(obj, None, situation)

    def problems_of_new(self, obj: JsonObject, situation: Situation) -> list[FieldProblem]:
        problems = problems_of_metadata(situation.kind.key, obj["metadata"])
        return problems + self.of(situation.kind).problems(obj, None, situation)

    def prepare_update(self, obj: JsonObject, old: JsonObject, situation: Situation) -> JsonObject:
        """The object that an update makes: a status update takes only the status, any other leaves it alone."""
        kind, rules = situation.kind, self.of(situation.kind)
        if situation.subresource == "status":
            changed = {**old, "metadata": {**old["metadata"], "uid": obj["metadata"]["uid"]}}
            changed.pop("status", None)
            if "status" in obj or not kind.custom:
                changed["status"] = obj.get("status", {})
            rules.prepare_status(changed, old, situation)
            return changed
        if "status" in kind.subresources:
            obj.pop("status", None)
            if "status" in old:
                obj["status"] = old["status"]
        rules.prepare(obj, old, situation)
        if "generation" in kind.marks and _content(obj, kind) != _content(old, kind):
            obj["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        return obj

    def problems_of_change(self, obj: JsonObject, old: JsonObject, situation: Situation) -> list[FieldProblem]:
        rules = self.of(situation.kind)
        if situation.subresource == "status":
            problems = problems_of_metadata_change(obj["metadata"], old["metadata"])
            return problems + rules.status_problems(obj, old, situation)
        problems = problems_of_metadata(situation.kind.key, obj["metadata"])
        problems += problems_of_metadata_change(obj["metadata"], old["metadata"])
        return problems + rules.problems(obj, old, situation)

    def grace_period_s(self, kind: ResourceType, obj: JsonObject, asked: int | None) -> int:
        """Seconds that an object lives on after its deletion; 0 for all but pods that run on a node."""
        if not kind.deleted_gracefully:
            return 0
        spec = obj.get("spec", {})
        grace_s: int = spec.get("terminationGracePeriodSeconds", 30) if asked is None else asked
        ended = obj.get("status", {}).get("phase") in ("Succeeded", "Failed")
        return 0 if ended or not spec.get("nodeName") else grace_s

    def held_by_content(self, kind: ResourceType, obj: JsonObject) -> bool:
        """A namespace stays until it is empty."""
        return kind.key == ("", "namespaces") and bool(obj.get("spec", {}).get("finalizers"))

    def mark_terminating(self, kind: ResourceType, obj: JsonObject) -> None:
        """What a deletion that must wait shows beyond its timestamp."""
        if kind.key == ("", "namespaces"):
            obj["status"] = {**obj.get("status", {}), "phase": "Terminating"}

    def after_write(self, kind: ResourceType, obj: JsonObject) -> None:
        for follower in self._followers:
            follower(kind, obj, False)

    def after_removal(self, kind: ResourceType, obj: JsonObject) -> None:
        for follower in self._followers:
            follower(kind, obj, True)


def _content(obj: JsonObject, kind: ResourceType) -> JsonObject:
    ignored = {"metadata", "apiVersion", "kind"} | ({"status"} if "status" in kind.subresources else set())
    return {name: value for name, value in obj.items() if name not in ignored}
