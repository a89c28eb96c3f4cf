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


class SliceRules(TypeRules):
    """ResourceSlice."""

    def default(self, obj: JsonObject, situation: Situation) -> None:
        for device in obj["spec"].get("devices") or ():
            for taint in device.get("taints") or ():
                taint.setdefault("timeAdded", situation.now)
            for amount in (device.get("capacity") or {}).values():
                amount.setdefault("value", "0")
        if situation.minor < 35:
            obj["spec"].setdefault("devices", None)

    def prepare(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> None:
        drop_disabled(obj, old, situation.gates)
        driver = obj["spec"].get("driver", "")
        if driver != driver.lower() and situation.minor >= 35:
            situation.warnings.append(
                f'spec.driver: driver names should be lowercase; "{driver}" contains uppercase characters'
            )

    def problems(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> list[FieldProblem]:
        return problems_of_slice(obj["spec"], old and old["spec"], SliceLimits.of(situation.minor))


class TemplateRules(TypeRules):
    """ResourceClaimTemplate, and what a claim has in common with it: its spec never changes."""

    path = "spec.spec"
    """Of the spec of the claim."""

    def spec_of(self, obj: JsonObject) -> JsonObject:
        spec: JsonObject = obj["spec"]["spec"]
        return spec

    def default(self, obj: JsonObject, situation: Situation) -> None:
        default_claim_spec(self.spec_of(obj))

    def prepare(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> None:
        drop_disabled(obj, old, situation.gates)

    def problems(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> list[FieldProblem]:
        if old is not None:
            return [] if same(obj["spec"], old["spec"]) else [invalid("spec", "<value omitted>", "field is immutable")]
        # Constraints may be about distinct values if the gate is on; 1.34 keeps and takes them in any case.
        consumable = situation.minor < 35 or situation.gates.enabled("DRAConsumableCapacity")
        spec = self.spec_of(obj)
        problems = problems_of_claim_spec(spec, self.path, situation.selector_problem, consumable=consumable)
        return self.with_others(problems, _admin_problems(spec, obj, situation), obj)

    def with_others(
        self, problems: list[FieldProblem], admin: list[FieldProblem], obj: JsonObject
    ) -> list[FieldProblem]:
        """All problems, in the order of the real server."""
        return template_problems(obj["spec"].get("metadata") or {}) + problems + admin


class ClaimRules(TemplateRules):
    """ResourceClaim. Its allocation is set once and can then only be cleared."""

    path = "spec"

    def spec_of(self, obj: JsonObject) -> JsonObject:
        spec: JsonObject = obj["spec"]
        return spec

    def with_others(
        self, problems: list[FieldProblem], admin: list[FieldProblem], obj: JsonObject
    ) -> list[FieldProblem]:
        return admin[:1] + problems

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


class ClassRules(TypeRules):
    """DeviceClass."""

    def prepare(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> None:
        drop_disabled(obj, old, situation.gates)

    def problems(self, obj: JsonObject, old: JsonObject | None, situation: Situation) -> list[FieldProblem]:
        return problems_of_class_spec(obj["spec"], situation.selector_problem)


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
