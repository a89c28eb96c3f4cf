"""A trace says what every part of a selector is worth, and which part it was."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cel_values import FAIL, HOLD, TOO_LONG
from support.selectors import ACCEPTED

from dra_driver.api.resource import Device
from dra_driver.cel.device import CelDevice, compile_selector
from dra_driver.cel.errors import CelRuntimeError, CelTypeError
from dra_driver.cel.trace import Trace, failing_part, trace

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


def sentences(expression: str) -> list[str]:
    return [one.sentence for one in failing_part(trace(expression, DEVICE))]


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        (
            "!(device.driver == 'a') && device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('100Gi')) >= 0",
            [
                "`device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('100Gi')) >= 0` is false: memory is 80Gi",
            ],
        ),
        ("device.driver == 'other'", ["`device.driver == 'other'` is false: driver is \"gpu.nvidia.com\""]),
        (
            "device.attributes['gpu.nvidia.com'].type == 'mig' || "
            "device.attributes['gpu.nvidia.com'].multiprocessors > 200",
            [
                "`device.attributes['gpu.nvidia.com'].type == 'mig'` is false: type is \"gpu\"",
                "`device.attributes['gpu.nvidia.com'].multiprocessors > 200` is false: multiprocessors is 132",
            ],
        ),
        (
            "!device.attributes['gpu.nvidia.com'].migCapable",
            ["`device.attributes['gpu.nvidia.com'].migCapable` is true"],
        ),
        (
            "cel.bind(a, device.attributes['gpu.nvidia.com'], a.type == 'gpu' && a.cudaComputeCapability.major() < 9)",
            ["`a.cudaComputeCapability.major() < 9` is false: cudaComputeCapability is 9.0.0"],
        ),
        (
            "has(device.attributes['gpu.nvidia.com'].vbios)",
            ["`has(device.attributes['gpu.nvidia.com'].vbios)` is false: vbios is missing"],
        ),
        (
            "'amd.com' in device.attributes",
            ["`'amd.com' in device.attributes` is false: attributes has only gpu.nvidia.com"],
        ),
        (
            "device.attributes['gpu.nvidia.com'].?vbios.orValue('a') == 'b'",
            ["`device.attributes['gpu.nvidia.com'].?vbios.orValue('a') == 'b'` is false: vbios is missing"],
        ),
        (
            "['A100'].exists(n, device.attributes['gpu.nvidia.com'].productName.contains(n))",
            [
                "`['A100'].exists(n, device.attributes['gpu.nvidia.com'].productName.contains(n))` is false: "
                'productName is "NVIDIA H100"',
            ],
        ),
        (
            "['H100', 'SXM'].all(n, device.attributes['gpu.nvidia.com'].productName.contains(n))",
            [
                "`device.attributes['gpu.nvidia.com'].productName.contains(n)` is false: "
                'productName is "NVIDIA H100", n is "SXM"',
            ],
        ),
        (
            "device.driver == 'other' ? true : false",
            ["`device.driver == 'other'` is false: driver is \"gpu.nvidia.com\""],
        ),
        (
            "device.attributes['gpu.nvidia.com'].typ == 'gpu'",
            ["`device.attributes['gpu.nvidia.com'].typ` fails: no such key: typ; did you mean `type`?"],
        ),
        (
            "device.attributes['gpu.nvidia.com'].type > 3 && true",
            ["`device.attributes['gpu.nvidia.com'].type > 3` fails: no such overload: string > int"],
        ),
        (
            "device.attributes['gpu.nvidia.com'].type",
            ["`device.attributes['gpu.nvidia.com'].type` fails: the result must be bool, not string"],
        ),
        ("false", ["`false` is false"]),
        ("device.driver == 'gpu.nvidia.com'", []),
    ],
)
def test_the_failing_part_is_told_with_its_values(expression: str, said: list[str]) -> None:
    assert sentences(expression) == said


def test_every_part_has_its_value_in_the_order_of_the_text() -> None:
    traced = trace("device.driver == 'a' && device.allowMultipleAllocations", DEVICE)
    assert [(part.text, part.value, part.rounds) for part in traced.parts] == [
        ("device.driver == 'a' && device.allowMultipleAllocations", False, 1),
        ("device.driver == 'a'", False, 1),
        ("device.driver", "gpu.nvidia.com", 1),
        ("device", DEVICE, 1),
        ("'a'", "a", 1),
        ("device.allowMultipleAllocations", None, 0),
        ("device", None, 0),
    ]


def test_in_a_loop_the_last_round_is_told() -> None:
    traced = trace("[1, 2, 3].all(n, n < 2)", DEVICE)
    part = next(one for one in traced.parts if one.text == "n < 2")
    assert (part.value, part.rounds) == (False, 2)


def test_an_error_that_another_part_outweighs_is_not_what_failed() -> None:
    traced = trace("device.attributes['x'].y == 1 && device.driver == 'a'", DEVICE)
    assert traced.value is False
    assert [one.part.text for one in failing_part(traced)] == ["device.driver == 'a'"]


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
def test_a_trace_ends_as_the_evaluation_does_and_blames_something_when_it_is_not_true(expression: str) -> None:
    traced: Trace = trace(expression, DEVICE)
    assert (traced.error.message if traced.error else traced.value) == outcome(expression)
    blamed = failing_part(traced)
    assert bool(blamed) == (traced.value is not True)
    for one in blamed:
        assert expression[one.part.start : one.part.end] == one.part.text
        assert one.sentence


@settings(max_examples=300, deadline=None)
@given(_JOINED)
def test_no_evaluation_costs_much_more_than_its_estimate(expression: str) -> None:
    """The scheduler's own count may exceed the estimate too: `startsWith` is estimated by its argument alone."""
    assert trace(expression, DEVICE).cost <= 10 * compile_selector(expression, cost_limit=None).cost + 10
