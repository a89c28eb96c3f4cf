"""Costs are those of the API server, which were measured there (tests/contracts/test_selectors.py)."""

import pytest
from support.rows import rows

from dra_driver.api.resource import Device
from dra_driver.cel.cost import LIMIT
from dra_driver.cel.device import CelDevice, compile_selector
from dra_driver.cel.errors import CelCostError, CelRuntimeError
from dra_driver.cel.trace import trace

DEVICE = CelDevice("gpu.nvidia.com", Device.of({"name": "gpu"}))


@rows(
    "expression, cost",
    [
        ("true", 0),
        ("device.allowMultipleAllocations", 2),
        ("device.driver == 'gpu.nvidia.com'", 4),
        ("device.attributes['a'].x", 4),
        ("has(device.attributes['a'].x)", 3),
        ("[1, 2].all(n, n > 0)", 10 + 1 + 2 * (3 + 2)),
        ("cel.bind(a, 1, a == 2)", 10 + 2),
        ("device.attributes['a'].x.matches('abcd')", 4 + 7),
        ("lists.range(1000).size() == 1", 1000 + 11 + 1 + 1),
    ],
)
def test_small_selectors_have_small_costs(expression: str, cost: int) -> None:
    assert compile_selector(expression).cost == cost


@pytest.mark.parametrize(
    ("expression", "part", "message"),
    [
        ("device.driver == 'a' && ['a', 'b'].isSorted()", "['a', 'b'].isSorted()", "values of unlimited size"),
        ("[1].all(n, string(n) == string(2))", "string(n) == string(2)", "values of unlimited size"),
        (
            "true && lists.range(1000).all(n, lists.range(1000).size() > n)",
            "lists.range(1000).all(n, lists.range(1000).size() > n)",
            "this part may cost 1018012, 1000000 is allowed",
        ),
    ],
)
def test_the_error_points_at_the_smallest_part_that_is_too_much(expression: str, part: str, message: str) -> None:
    with pytest.raises(CelCostError) as raised:
        compile_selector(expression)
    assert expression[raised.value.start : raised.value.end] == part
    assert message in raised.value.message


def test_what_is_stored_all_the_same_is_evaluated_up_to_the_limit() -> None:
    sorted_names = compile_selector("['a', 'b'].isSorted()", cost_limit=None)
    assert sorted_names.cost > LIMIT
    assert sorted_names.matches(DEVICE)
    endless = compile_selector("lists.range(3000).all(i, lists.range(3000).size() > i)", cost_limit=None)
    with pytest.raises(CelRuntimeError, match="actual cost limit exceeded"):
        endless.matches(DEVICE)


def test_the_limit_is_no_error_that_another_part_outweighs() -> None:
    expression = "lists.range(3000).all(i, lists.range(3000).size() > i) || true"
    with pytest.raises(CelRuntimeError, match="actual cost limit exceeded"):
        compile_selector(expression, cost_limit=None).matches(DEVICE)


def test_an_evaluation_that_skips_parts_costs_less_than_its_estimate() -> None:
    expression = "device.driver == 'a' && device.attributes['a'].all(id, id.contains('abc'))"
    assert trace(expression, DEVICE).cost < compile_selector(expression).cost


@pytest.mark.parametrize(
    "expression",
    [
        "lists.range(100000000).size() > 0 || true",
        "cel.bind(a, lists.range(90000).map(x, 'aaaaaaaaaa').join(), a.replace('a', a)).size() > 0 || true",
        "cel.bind(a, lists.range(90000).map(x, 'a'), a.join(a.join('a'))).size() > 0 || true",
    ],
)
def test_what_is_too_large_is_not_built(expression: str) -> None:
    with pytest.raises(CelRuntimeError, match="actual cost limit exceeded"):
        compile_selector(expression, cost_limit=None).matches(DEVICE)
