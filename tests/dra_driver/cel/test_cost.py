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


_PATTERN = "|".join(f"a[ab]{{{count}}}c" for count in range(980, 1000))
_ABOUT = 20_000
"""Instructions of this pattern."""
_TEXT = "ab" * 2000
_DRIVER = f"device.driver.matches('{_PATTERN}')"


@rows(
    "expression, characters",
    [
        (_DRIVER, 64),
        (f"'{_TEXT}'.matches('{_PATTERN}')", 4000),
        (f"matches('{_TEXT}' + device.driver, '{_PATTERN}')", 4064),
        (f"cel.bind(text, '{_TEXT}', text.find('{_PATTERN}') != '')", 4000),
        (f"(true ? '{_TEXT}' : device.driver).findAll('{_PATTERN}', 1) != []", 4000),
        (f"cel.bind(text, device.driver, {_DRIVER})", 64),
        (f"cel.bind(p, '{_PATTERN}', device.driver.matches(p))", 64),
    ],
)
def test_a_regular_expression_counts_by_the_text_and_its_own_size(expression: str, characters: int) -> None:
    steps = characters * _ABOUT // 250
    assert steps * 0.98 < compile_selector(expression).cost < steps * 1.02 + 20


def test_a_usual_regular_expression_costs_little() -> None:
    assert compile_selector("device.driver.matches('^gpu[.]nvidia[.]com$')").cost < 10


@rows(
    "expression",
    [
        f"'{_TEXT}'.split('').all(x, '{_TEXT}'.split('').all(y, x == y))",
        f"cel.bind(list, '{_TEXT}'.split(''), list.all(x, list.all(y, x == y)))",
        f"['{_TEXT}'.findAll('.')].all(list, list.all(x, list.all(y, x == y)))",
        f"cel.bind(text, '{_TEXT}' + device.driver, text.matches('{_PATTERN}') && text.matches('{_PATTERN}$')"
        f" && text.matches('^{_PATTERN}'))",
    ],
)
def test_what_is_made_of_long_texts_is_too_much(expression: str) -> None:
    with pytest.raises(CelCostError, match="1000000 are allowed"):
        compile_selector(expression)


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
