"""The rules of resource.k8s.io: defaults, dropped fields, immutability, and who may ask for admin access."""

from dra_driver.api.meta import JsonObject
from dra_driver.apirules.dra_claims import (
    default_claim_spec,
    problems_of_claim_spec,
    problems_of_class_spec,
    problems_of_status,
)
from dra_driver.apirules.dra_fields import admin_access_denied, same
from dra_driver.apirules.dra_gates import drop_disabled
from dra_driver.apirules.dra_slices import SliceLimits, problems_of_slice
from dra_driver.apirules.metadata import template_problems
from dra_driver.apirules.status import FieldProblem, invalid
from dra_driver.names import ADMIN_ACCESS_LABEL
from dra_driver.simulation.apiserver.rules import Situation, TypeRules
from dra_driver.simulation.apiserver.store import TypeKey


class DraRules(TypeRules):
    """What the types of resource.k8s.io have in common: fields of features that are off are dropped."""

    def prepare(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> None:
        drop_disabled(obj, old, situation.gates)


class SliceRules(DraRules):
    """ResourceSlice."""

    def default(self, obj: JsonObject, situation: Situation) -> None:
        for device in obj["spec"].get("devices") or ():
            for taint in device.get("taints") or ():
                taint.setdefault("timeAdded", situation.now)
            for amount in (device.get("capacity") or {}).values():
                amount.setdefault("value", "0")
        if situation.gates.minor < 35:
            obj["spec"].setdefault("devices", None)

    def prepare(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> None:
        super().prepare(obj, old, situation)
        driver = obj["spec"].get("driver", "")
        if driver != driver.lower() and situation.gates.minor >= 35:
            situation.warnings.append(
                f'spec.driver: driver names should be lowercase; "{driver}" contains uppercase characters'
            )

    def problems(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> list[FieldProblem]:
        return problems_of_slice(obj["spec"], old and old["spec"], SliceLimits.of(situation.gates.minor))


class TemplateRules(DraRules):
    """ResourceClaimTemplate."""

    def default(self, obj: JsonObject, situation: Situation) -> None:
        default_claim_spec(obj["spec"]["spec"])

    def problems(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> list[FieldProblem]:
        if old is not None:
            return _changed_spec(obj, old)
        spec, metadata = obj["spec"]["spec"], obj["spec"].get("metadata") or {}
        problems = template_problems(metadata) + _problems_of_spec(spec, "spec.spec", situation)
        return problems + _admin_problems(spec, obj, situation)


class ClaimRules(DraRules):
    """ResourceClaim. Its allocation is set once and can then only be cleared."""

    def default(self, obj: JsonObject, situation: Situation) -> None:
        default_claim_spec(obj["spec"])

    def problems(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> list[FieldProblem]:
        if old is not None:
            return _changed_spec(obj, old)
        spec = obj["spec"]
        return _admin_problems(spec, obj, situation)[:1] + _problems_of_spec(spec, "spec", situation)

    def prepare_status(self, obj: JsonObject, old: JsonObject, situation: Situation) -> None:
        status, before = obj["status"], old.get("status", {})
        drop_disabled(obj, old, situation.gates, status=True)
        _drop_released_devices(status, before)

    def status_problems(self, obj: JsonObject, old: JsonObject, situation: Situation) -> list[FieldProblem]:
        status, before = obj["status"], old.get("status", {})
        problems = []
        admin = [index for index, result in enumerate(_results(status)) if result.get("adminAccess")]
        granted = any(result.get("adminAccess") for result in _results(before))
        if admin and not granted and not _admin_allowed(obj, situation):
            problems.append(admin_access_denied(f"status.allocation.devices.results[{admin[0]}].adminAccess"))
        deleting = obj["metadata"].get("deletionTimestamp") is not None
        return problems + problems_of_status(status, before, obj["spec"], deleting=deleting)


class ClassRules(DraRules):
    """DeviceClass."""

    def problems(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> list[FieldProblem]:
        return problems_of_class_spec(obj["spec"], situation.selector_problem)


def _changed_spec(obj: JsonObject, old: JsonObject) -> list[FieldProblem]:
    """That of a claim or a template never changes."""
    return [] if same(obj["spec"], old["spec"]) else [invalid("spec", "<value omitted>", "field is immutable")]


def _problems_of_spec(spec: JsonObject, path: str, situation: Situation) -> list[FieldProblem]:
    # Constraints may be about distinct values if the gate is on; 1.34 keeps and takes them in any case.
    consumable = situation.gates.minor < 35 or situation.gates.enabled("DRAConsumableCapacity")
    return problems_of_claim_spec(spec, path, situation.selector_problem, consumable=consumable)


def _admin_allowed(obj: JsonObject, situation: Situation) -> bool:
    return situation.namespace_labels(obj).get(ADMIN_ACCESS_LABEL) == "true"


def _admin_problems(spec: JsonObject, obj: JsonObject, situation: Situation) -> list[FieldProblem]:
    """For each request of a claim's spec that may not have the access that it asks for."""
    if _admin_allowed(obj, situation):
        return []
    return [
        admin_access_denied(f"spec.devices.requests[{index}].adminAccess")
        for index, request in enumerate((spec.get("devices") or {}).get("requests") or ())
        if (request.get("exactly") or {}).get("adminAccess")
    ]


def _results(status: JsonObject) -> list[JsonObject]:
    results: list[JsonObject] = ((status.get("allocation") or {}).get("devices") or {}).get("results") or []
    return results


def _device_id(value: JsonObject) -> tuple[object, ...]:
    return tuple(value.get(name) for name in ("driver", "pool", "device", "shareID"))


def _drop_released_devices(status: JsonObject, before: JsonObject) -> None:
    """Entries of `devices` for what was allocated and no longer is; clients unaware of the field need not do it."""
    released = {_device_id(result) for result in _results(before)} - {_device_id(result) for result in _results(status)}
    still = [item for item in status.get("devices") or () if _device_id(item) not in released]
    status.pop("devices", None)
    if still:
        status["devices"] = still


DRA_RULES: dict[TypeKey, TypeRules] = {
    ("resource.k8s.io", "resourceslices"): SliceRules(),
    ("resource.k8s.io", "resourceclaims"): ClaimRules(),
    ("resource.k8s.io", "resourceclaimtemplates"): TemplateRules(),
    ("resource.k8s.io", "deviceclasses"): ClassRules(),
}
