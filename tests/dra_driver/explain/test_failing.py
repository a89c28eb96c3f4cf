"""Why a selector does not hold for a device, in the words of people."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.allocation import gpu
from support.rows import rows

from dra_driver.api.resource import Device
from dra_driver.cel.device import CelDevice, compile_selector
from dra_driver.cel.errors import CelRuntimeError
from dra_driver.explain.failing import amount_text, failing_parts
from dra_driver.quantity import Quantity

GPU = "device.attributes['gpu.nvidia.com']"
MEMORY = "device.capacity['gpu.nvidia.com'].memory"
NUMA = "device.attributes['resource.kubernetes.io'].numaNode"


def _device() -> CelDevice:
    numa = {"resource.kubernetes.io/numaNode": 0}
    described = gpu(
        "gpu-0", memory="81559Mi", productName="Tesla T4", migCapable=False, driverVersion="v580.1.2", **numa
    )
    return CelDevice("gpu.nvidia.com", Device.of(described))


@rows(
    "expression, parts",
    [
        (f"{MEMORY}.compareTo(quantity('100Gi')) >= 0", ["memory 79.6Gi < 100Gi"]),
        (f"quantity('100Gi').compareTo({MEMORY}) <= 0", ["memory 79.6Gi < 100Gi"]),
        (f"{MEMORY}.isLessThan(quantity('40Gi'))", ["memory 79.6Gi >= 40Gi"]),
        (f"!{MEMORY}.isGreaterThan(quantity('40Gi'))", ["memory 79.6Gi > 40Gi"]),
        (f"{GPU}.type == 'mig'", ['type is "gpu", not "mig"']),
        (f"'mig' == {GPU}['type']", ['type is "gpu", not "mig"']),
        (f"{GPU}.type != 'gpu'", ['type is "gpu"']),
        (f"{GPU}.migCapable", ["migCapable is false"]),
        (f"{GPU}.type == 'gpu' && {GPU}.migCapable && false", ["migCapable is false"]),
        (f"{GPU}.type == 'mig' || {GPU}.migCapable", ['type is "gpu", not "mig"', "migCapable is false"]),
        (f"!({GPU}.type == 'gpu' && {GPU}.productName == 'Tesla T4')", ['type is "gpu"', 'productName is "Tesla T4"']),
        (f"{GPU}.productName in ['A', 'B']", ['productName "Tesla T4" is not one of ["A", "B"]']),
        (f"!({GPU}.productName in ['Tesla T4'])", ['productName "Tesla T4" is one of ["Tesla T4"]']),
        (f"{NUMA} == 1", ["resource.kubernetes.io/numaNode is 0, not 1"]),
        (f"{GPU}.migCapable ? true : {NUMA} > 3", ["resource.kubernetes.io/numaNode 0 <= 3"]),
        (f"has({GPU}.serial)", ["it has no attribute serial"]),
        (f"has({GPU}.serial) && {GPU}.serial == '1'", ["it has no attribute serial"]),
        ("has(device.capacity['gpu.nvidia.com'].cores)", ["it has no capacity cores"]),
        ("device.driver == 'other.example.com'", ['driver is "gpu.nvidia.com", not "other.example.com"']),
        (
            f"{GPU}.productName.startsWith('NVIDIA')",
            ["productName.startsWith('NVIDIA') is false (productName is \"Tesla T4\")"],
        ),
        (f"cel.bind(name, {GPU}.type, name == 'mig')", ["name == 'mig' is false (name is \"gpu\")"]),
        ("false", ["the selector is just false"]),
    ],
)
def test_the_part_that_decides_is_said_with_its_values(expression: str, parts: list[str]) -> None:
    assert [part.explanation for part in failing_parts(expression, _device())] == parts


def test_a_selector_that_holds_has_no_failing_part() -> None:
    assert failing_parts(f"{GPU}.type == 'gpu'", _device()) == ()


def test_a_selector_that_fails_is_an_error() -> None:
    with pytest.raises(CelRuntimeError):
        failing_parts(f"{GPU}.nonsense == 1", _device())


_COMPARED = st.sampled_from(
    [
        f"{GPU}.type == 'gpu'",
        f"{GPU}.type == 'mig'",
        f"{GPU}.migCapable",
        f"{MEMORY}.compareTo(quantity('100Gi')) >= 0",
        f"{MEMORY}.isGreaterThan(quantity('10Gi'))",
        f"{NUMA} < 1",
        f"{NUMA} > 5",
        f"has({GPU}.serial)",
    ]
)
_EXPRESSIONS = st.recursive(
    _COMPARED,
    lambda inner: (
        st.tuples(inner, st.sampled_from(["&&", "||"]), inner).map(
            lambda operands: f"({operands[0]} {operands[1]} {operands[2]})"
        )
        | inner.map(lambda operand: f"!({operand})")
        | st.tuples(inner, inner, inner).map(lambda operands: f"({operands[0]} ? {operands[1]} : {operands[2]})")
    ),
    max_leaves=8,
)


@given(expression=_EXPRESSIONS)
def test_there_is_a_failing_part_exactly_when_the_selector_is_false(expression: str) -> None:
    parts = failing_parts(expression, _device())
    assert bool(parts) != compile_selector(expression).matches(_device())
    assert all(" ".join(expression[part.start : part.end].split()) == part.text for part in parts)


@given(bound=st.integers(0, 200), sign=st.sampled_from([">=", ">", "<", "<=", "=="]))
def test_with_the_devices_own_value_in_its_place_the_comparison_holds(bound: int, sign: str) -> None:
    expression = f"{MEMORY}.compareTo(quantity('{bound}Gi')) {sign} 0"
    for part in failing_parts(expression, _device()):
        literal = part.comparison.literal if part.comparison is not None else None
        assert literal is not None
        changed = expression[: literal.start] + literal.fitting + expression[literal.end :]
        assert compile_selector(changed).matches(_device())


@pytest.mark.parametrize(
    ("text", "shown"), [("81559Mi", "79.6Gi"), ("80Gi", "80Gi"), ("2Ti", "2Ti"), ("7", "7"), ("0", "0")]
)
def test_amounts_are_written_in_units_that_people_read(text: str, shown: str) -> None:
    assert amount_text(Quantity.parse(text)) == shown
