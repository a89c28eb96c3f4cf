"""Selectors on devices, as Kubernetes evaluates them."""

from typing import Any

import pytest
from support.rows import rows
from support.selectors import ACCEPTED, REFUSED

from dra_driver.api.resource import Device
from dra_driver.cel.device import CelDevice, compile_selector
from dra_driver.cel.errors import CelRuntimeError, CelSyntaxError, CelTypeError

DRIVER = "gpu.nvidia.com"
H100: dict[str, Any] = {
    "name": "gpu-1",
    "attributes": {
        "type": {"string": "gpu"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "architecture": {"string": "Hopper"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "migCapable": {"bool": True},
        "multiprocessors": {"int": 132},
        "resource.kubernetes.io/numaNode": {"int": 0},
    },
    "capacity": {"memory": {"value": "81559Mi"}, "example.com/slots": {"value": "4"}},
}


def matches(expression: str, device: dict[str, Any] = H100) -> bool:
    return compile_selector(expression).matches(CelDevice(DRIVER, Device.of(device)))


@rows("expression", ACCEPTED)
def test_selectors_that_people_write_match(expression: str) -> None:
    assert matches(expression) is True


@rows(
    "expression",
    [
        "device.driver == 'other' && device.attributes['other'].type == 'gpu'",
        "device.attributes['other'].type == 'gpu' && device.driver == 'other'",
        "device.attributes['gpu.nvidia.com'].type == 'mig'",
        "device.attributes['gpu.nvidia.com'].type == 1",
        "device.attributes['gpu.nvidia.com'].migCapable == 'true'",
        "device.capacity['gpu.nvidia.com'].memory == quantity('80Gi')",
    ],
)
def test_selectors_that_are_false_are_no_errors(expression: str) -> None:
    assert matches(expression) is False


@rows(
    "expression, message",
    [
        ("device.attributes['gpu.nvidia.com'].vbios == 'x'", "no such key: vbios"),
        ("device.attributes['other'].type == 'gpu'", "no such key: type"),
        ("device.attributes['gpu.nvidia.com']['vbios'] == 'x'", "no such key: vbios"),
        ("device.attributes['gpu.nvidia.com'].type > 3", "no such overload: string > int"),
        ("device.attributes['gpu.nvidia.com'].type.compareTo(semver('1.0.0')) > 0", "compareTo(string, semver)"),
        ("device.attributes['gpu.nvidia.com'].type", "the result must be bool, not string"),
        ("!device.attributes['gpu.nvidia.com'].type", "no such overload: !string"),
        ("device.attributes['gpu.nvidia.com'].type && true", "expected bool, found string"),
        ("device.attributes['gpu.nvidia.com'].type.x == 1", "a string has no field `x`"),
        ("quantity(device.attributes['gpu.nvidia.com'].type) == quantity('1')", "not a quantity: 'gpu'"),
        ("semver(device.attributes['gpu.nvidia.com'].type).major() == 1", "not a semantic version: 'gpu'"),
        ("device.attributes['gpu.nvidia.com'].multiprocessors / 0 == 1", "division by zero"),
        ("device.attributes['gpu.nvidia.com'].multiprocessors * 9223372036854775807 > 1", "integer overflow"),
        ("device.attributes['gpu.nvidia.com'].productName.matches('(' + '')", "invalid regular expression"),
        ("['a', 'b'][device.attributes['gpu.nvidia.com'].multiprocessors] == 'a'", "index out of bounds: 132"),
    ],
)
def test_run_time_errors_say_what_and_where(expression: str, message: str) -> None:
    with pytest.raises(CelRuntimeError) as raised:
        matches(expression)
    assert message in raised.value.message
    assert 0 <= raised.value.start < len(expression)


@rows(
    "expression, result",
    [
        ("device.attributes['gpu.nvidia.com'].cudaComputeCapability == 'x'", None),
        ("device.attributes['gpu.nvidia.com'].cudaComputeCapability == 9", None),
        ("'x' == device.attributes['gpu.nvidia.com'].cudaComputeCapability", False),
        ("device.attributes['gpu.nvidia.com'].cudaComputeCapability != 'x'", True),
        ("device.attributes['gpu.nvidia.com'].cudaComputeCapability in ['x']", False),
        ("device.attributes['gpu.nvidia.com'].cudaComputeCapability == null", False),
        ("[device.attributes['gpu.nvidia.com'].cudaComputeCapability] == ['x']", True),
        ("dyn(device.capacity['gpu.nvidia.com'].memory) == dyn('80Gi')", None),
    ],
)
def test_versions_and_quantities_are_equal_to_nothing_else_in_kubernetes_own_way(
    expression: str, result: bool | None
) -> None:
    """Found by comparison with a real kube-scheduler: on the left of `==` such a comparison is an error."""
    if result is None:
        with pytest.raises(CelRuntimeError, match="no such overload"):
            matches(expression)
    else:
        assert matches(expression) == result


def test_an_error_is_absorbed_when_another_part_decides() -> None:
    assert matches("device.attributes['x'].y || device.driver == 'gpu.nvidia.com'")
    assert not matches("device.attributes['x'].y && device.driver == 'other'")
    with pytest.raises(CelRuntimeError, match="no such key: y"):
        matches("device.attributes['x'].y || device.driver == 'other'")
    with pytest.raises(CelRuntimeError, match="no such key: y"):
        matches("['a', 'b'].all(v, device.attributes['x'].y == v || v == 'a')")
    assert matches("['a', 'b'].exists(v, device.attributes['x'].y == v || v == 'b')")


@rows("expression, column, message", REFUSED)
def test_what_can_never_work_is_refused_before_any_device_is_looked_at(
    expression: str, column: int, message: str
) -> None:
    with pytest.raises(CelTypeError) as raised:
        compile_selector(expression)
    assert message in raised.value.message
    assert raised.value.column == column


def test_attributes_of_other_domains_keep_their_domain() -> None:
    device = {"name": "gpu", "attributes": {"example.com/rack": {"string": "r1"}, "rack": {"string": "own"}}}
    assert matches("device.attributes['example.com'].rack == 'r1'", device)
    assert matches("device.attributes['gpu.nvidia.com'].rack == 'own'", device)


def test_looking_for_a_domain_does_not_add_it() -> None:
    device = CelDevice(DRIVER, Device.of(H100))
    assert compile_selector("device.attributes['x'].size() == 0").matches(device)
    assert compile_selector("!('x' in device.attributes)").matches(device)


def test_versions_compare_by_precedence() -> None:
    device = {"name": "gpu", "attributes": {"driverVersion": {"version": "580.126.9"}}}
    assert matches("device.attributes['gpu.nvidia.com'].driverVersion.isGreaterThan(semver('580.95.5'))", device)
    assert matches("semver('1.0.0-rc.1').isLessThan(semver('1.0.0'))", device)


def test_a_selector_is_compiled_once() -> None:
    assert compile_selector("device.driver == 'a'") is compile_selector("device.driver == 'a'")


def test_a_selector_that_is_no_expression_is_a_syntax_error() -> None:
    with pytest.raises(CelSyntaxError, match="column 18"):
        compile_selector("device.driver == ")
