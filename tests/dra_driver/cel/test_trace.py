"""A trace says what every part of a selector is worth."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cel_values import FAIL, HOLD, TOO_LONG
from support.selectors import ACCEPTED

from dra_driver.api.resource import Device
from dra_driver.cel.device import CelDevice, compile_selector
from dra_driver.cel.errors import CelRuntimeError, CelTypeError
from dra_driver.cel.trace import Trace, trace

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


def worth(traced: Trace) -> list[tuple[str, object, int]]:
    """Of each part in the order of the text, the larger ones first."""
    parts = sorted(traced.by_node.items(), key=lambda item: (item[0].start, -item[0].end))
    return [(traced.expression[node.start : node.end], part.value, part.rounds) for node, part in parts]


def test_every_part_has_its_value() -> None:
    assert worth(trace("device.driver == 'a' && device.allowMultipleAllocations", DEVICE)) == [
        ("device.driver == 'a' && device.allowMultipleAllocations", False, 1),
        ("device.driver == 'a'", False, 1),
        ("device.driver", "gpu.nvidia.com", 1),
        ("device", DEVICE, 1),
        ("'a'", "a", 1),
        ("device.allowMultipleAllocations", None, 0),
        ("device", None, 0),
    ]


def test_in_a_loop_the_last_round_is_told() -> None:
    assert ("n < 2", False, 2) in worth(trace("[1, 2, 3].all(n, n < 2)", DEVICE))


def test_an_evaluation_over_the_limit_ends_in_an_error() -> None:
    traced = trace(TOO_LONG[0], DEVICE)
    assert traced.error is not None and "actual cost limit exceeded" in traced.error.message


def test_what_is_no_selector_has_no_trace() -> None:
    with pytest.raises(CelTypeError):
        trace("device.driver", DEVICE)


def outcome(expression: str) -> object:
    try:
        return compile_selector(expression, cost_limit=None).matches(DEVICE)
    except CelRuntimeError as error:
        return error.message


_PARTS = st.sampled_from([*ACCEPTED, *HOLD, *(one for one, _ in FAIL)])
_JOINED = st.recursive(
    _PARTS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["&&", "||"]), inner).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
        inner.map(lambda one: f"!({one})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]}) ? ({t[1]}) : ({t[2]})"),
        inner.map(lambda one: f"cel.bind(x, {one}, x)"),
        inner.map(lambda one: f"[1, 2].all(x, {one})"),
    ),
    max_leaves=4,
)


@settings(max_examples=300, deadline=None)
@given(_JOINED)
def test_a_trace_ends_as_the_evaluation_does(expression: str) -> None:
    traced: Trace = trace(expression, DEVICE)
    assert (traced.error.message if traced.error else traced.value) == outcome(expression)


@settings(max_examples=300, deadline=None)
@given(_JOINED)
def test_no_evaluation_costs_much_more_than_its_estimate(expression: str) -> None:
    """The scheduler's own count may exceed the estimate too: `startsWith` is estimated by its argument alone."""
    assert trace(expression, DEVICE).cost <= 10 * compile_selector(expression, cost_limit=None).cost + 10
