"""Costs are those of the API server, which were measured there (tests/contracts/test_selectors.py)."""

import pytest
from support.rows import rows

from dra_driver.cel.device import compile_selector
from dra_driver.cel.errors import CelCostError


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
