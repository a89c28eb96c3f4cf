"""What differs between types: defaults, preparation and validation. The defaults that need no thought are data, in
`resource_types.yaml`; `fill` fills them in."""

from dataclasses import dataclass

from dra_driver.api.meta import JsonObject
from dra_driver.apirules.status import FieldProblem
from dra_driver.kubernetes import FeatureGates
from dra_driver.simulation.apiserver.decode import copy_json
from dra_driver.simulation.apiserver.resource_types import ResourceType
from dra_driver.simulation.apiserver.store import Store


def fill(obj: JsonObject, defaults: JsonObject) -> None:
    """Sets what is missing, in place. The form of `defaults` is described in `resource_types.yaml`."""
    for name, default in defaults.items():
        if isinstance(default, list):
            for item in obj.get(name) or ():
                fill(item, default[0])
        elif name.endswith("?"):
            fill(obj.get(name[:-1]) or {}, default)
        elif isinstance(default, dict) and default:
            fill(obj.setdefault(name, {}), default)
        else:
            obj.setdefault(name, copy_json(default))


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
        """Fills in what the API defaults beyond the table; called for every object that comes in."""

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
