"""What the status of a claim says about its binding conditions: dra_driver/api/binding.py."""

from typing import Any

from support.claims import NODE, a_claim, a_ref, a_result, device_name

from dra_driver.api.binding import (
    BINDING_FAILED,
    BINDING_READY,
    binding_failure,
    has_binding_conditions,
    waiting_results,
)
from dra_driver.api.meta import JsonObject
from dra_driver.names import GPU_DRIVER

BINDS: dict[str, Any] = {"bindingConditions": [BINDING_READY], "bindingFailureConditions": [BINDING_FAILED]}


def status(device: int, **conditions: str) -> JsonObject:
    """`status.devices` of a device, by condition type."""
    return {
        "driver": GPU_DRIVER,
        "pool": NODE,
        "device": device_name(device),
        "conditions": [
            {"type": name, "status": value, "reason": "Because", "message": f"of {device}"}
            for name, value in conditions.items()
        ],
    }


def claim(*results: JsonObject, devices: Any = ()) -> JsonObject:
    obj = a_claim(a_ref(), *results)
    obj["status"]["devices"] = list(devices)
    return obj


def waiting(obj: JsonObject) -> list[str]:
    return [result["device"] for result in waiting_results(obj)]


def test_a_device_waits_until_its_condition_is_true() -> None:
    two = a_result(0, **BINDS), a_result(1, **BINDS)
    assert waiting(claim(*two)) == [device_name(0), device_name(1)]
    assert waiting(claim(*two, devices=[status(0, BindingReady="True")])) == [device_name(1)]
    false = [status(0, BindingReady="True"), status(1, BindingReady="False", Ready="True")]
    assert waiting(claim(*two, devices=false)) == [device_name(1)]
    assert waiting(claim(*two, devices=[status(0, BindingReady="True"), status(1, BindingReady="True")])) == []


def test_a_claim_without_conditions_or_without_an_allocation_waits_for_nothing() -> None:
    for obj in (claim(a_result(0)), a_claim(a_ref()), {"metadata": {}}):
        assert waiting_results(obj) == () and binding_failure(obj) is None and not has_binding_conditions(obj)
    assert has_binding_conditions(claim(a_result(0), a_result(1, **BINDS)))


def test_a_failure_ends_the_waiting_of_all_devices() -> None:
    two = a_result(0, **BINDS), a_result(1, **BINDS)
    failed = claim(*two, devices=[status(0, BindingReady="True", BindingFailed="True")])
    assert binding_failure(failed) == "Because: of 0"
    assert waiting(failed) == []
    assert binding_failure(claim(*two, devices=[status(0, BindingFailed="False")])) is None


def test_the_scheduler_sees_no_failure_behind_a_device_that_is_not_ready() -> None:
    obj = claim(a_result(0, **BINDS), a_result(1, **BINDS), devices=[status(1, BindingFailed="True")])
    assert binding_failure(obj) is None
    assert device_name(0) in waiting(obj)


def test_only_the_conditions_that_the_allocation_names_count() -> None:
    other = claim(a_result(0, bindingConditions=["example.com/attached"]), devices=[status(0, BindingReady="True")])
    assert waiting(other) == [device_name(0)]
    assert (
        binding_failure(claim(a_result(0, bindingConditions=["x"]), devices=[status(0, BindingFailed="True")])) is None
    )
