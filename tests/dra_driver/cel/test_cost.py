"""A selector is refused when it could run for minutes, and the message points at the loop."""

from itertools import pairwise

import pytest
from support.rows import rows

from dra_driver.api.resource import Device
from dra_driver.cel.device import CelDevice, compile_selector
from dra_driver.cel.errors import CelCostError, CelRuntimeError
from dra_driver.cel.functions import Server


@rows(
    "expression, steps",
    [
        ("true", 0),
        ("device.driver == 'gpu.nvidia.com'", 3),
        ("[1, 2].all(n, n > 0)", 1 + 2 * (1 + 2)),
        ("device.attributes['a'].exists(id, id == 'x')", 3 + 32 * (1 + 2)),
        ("(true ? [1] : [1, 2]).map(n, n).exists(n, n == 1)", 1 + 1 + 2 + 2 * 2 + 2 * 2),
    ],
)
def test_a_loop_counts_for_each_element(expression: str, steps: int) -> None:
    assert compile_selector(expression).cost == steps


def test_the_error_points_at_the_smallest_part_that_is_too_much() -> None:
    maps = "device.attributes"
    loop = f"{maps}.all(a, {maps}.all(b, {maps}.all(c, {maps}.all(d, a + b != c + d))))"
    with pytest.raises(CelCostError, match="1000000 are allowed") as raised:
        compile_selector(f"true && {loop}")
    assert f"true && {loop}"[raised.value.start : raised.value.end] == loop


@rows(
    "expression",
    [
        "cel.bind(a, 'x', "
        + "".join(f"cel.bind({new}, {old} + {old}, " for old, new in pairwise("abcdefghijklmnopqr"))
        + "r != ''"
        + ")" * 18,
        "'aaaaaaaaaaaaaaaa'" + ".replace('a', 'aaaaaaaaaaaaaaaa')" * 5 + " != ''",
    ],
)
def test_results_cannot_grow_without_bound(expression: str) -> None:
    with pytest.raises(CelRuntimeError, match="too long"):
        compile_selector(expression).matches(CelDevice("gpu.nvidia.com", Device.of({"name": "gpu-0"})))


def test_types_are_compared_in_lists_because_an_api_server_stores_no_other_selector() -> None:
    """Seen on Kubernetes 1.36.2: `type(1) == int` is refused for its cost, `type(1) in [int]` is stored."""
    kind = "type(device.attributes['a'].x)"
    new = Server.of(36, stored=False)
    for expression in (f"{kind} == int", f"device.driver == 'a' || dyn({kind}) != int"):
        with pytest.raises(CelCostError, match="write `type\\(x\\) in \\[int\\]`"):
            compile_selector(expression, new)
        compile_selector(expression, Server.of(36))
    compile_selector(f"{kind} in [int]", new)
