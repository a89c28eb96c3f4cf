"""The values of all parts of a selector, as explanations ask for them."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cel_values import FAIL, HOLD
from support.rows import examples
from support.selectors import ACCEPTED

from dra_driver.api.resource import Device
from dra_driver.cel.device import CelDevice, CompiledSelector, checked_selector, values_of_parts
from dra_driver.cel.errors import CelRuntimeError, CelTypeError
from dra_driver.cel.functions import CURRENT

H100: dict[str, Any] = {
    "name": "gpu-1",
    "attributes": {
        "type": {"string": "gpu"},
        "productName": {"string": "NVIDIA H100"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "migCapable": {"bool": True},
        "multiprocessors": {"int": 132},
    },
    "capacity": {"memory": {"value": "80Gi"}},
}
DEVICE = CelDevice("gpu.nvidia.com", Device.of(H100))


def worth(expression: str) -> list[tuple[str, object]]:
    """Of each part in the order of the text, the larger ones first."""
    _, values = values_of_parts(expression, DEVICE)
    parts = sorted(values.items(), key=lambda item: (item[0].start, -item[0].end))
    return [(expression[node.start : node.end], value) for node, value in parts]


def test_every_part_that_is_evaluated_has_its_value() -> None:
    assert worth("device.driver == 'a' && device.allowMultipleAllocations") == [
        ("device.driver == 'a' && device.allowMultipleAllocations", False),
        ("device.driver == 'a'", False),
        ("device.driver", "gpu.nvidia.com"),
        ("device", DEVICE),
    ]


def test_in_a_loop_the_value_is_that_of_the_last_round() -> None:
    assert ("n < 2", False) in worth("[1, 2, 3].all(n, n < 2)")


def test_what_is_no_selector_has_no_values() -> None:
    with pytest.raises(CelTypeError):
        values_of_parts("device.driver", DEVICE)


def outcome(expression: str) -> object:
    try:
        return CompiledSelector(checked_selector(expression), CURRENT).matches(DEVICE)
    except CelRuntimeError as error:
        return error.message


_PARTS = st.sampled_from([*ACCEPTED, *HOLD, *(selector for selector, _ in FAIL)])
_JOINED = st.recursive(
    _PARTS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["&&", "||"]), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
        inner.map(lambda operand: f"!({operand})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]}) ? ({t[1]}) : ({t[2]})"),
        inner.map(lambda operand: f"cel.bind(x, {operand}, x)"),
        inner.map(lambda operand: f"[1, 2].all(x, {operand})"),
    ),
    max_leaves=4,
)


@settings(max_examples=examples(300), deadline=None)
@given(_JOINED)
def test_the_value_of_the_root_is_what_the_scheduler_answers(expression: str) -> None:
    try:
        root, values = values_of_parts(expression, DEVICE)
    except CelRuntimeError as error:
        assert error.message == outcome(expression)
    else:
        assert values[root] == outcome(expression)
