"""The libraries' functions give the values that a real API server gives for the same expressions."""

import pytest
from support.cel_values import BIND_HOLD, COSTLY, FAIL, HOLD, NO_EXPRESSION, NOT_JUDGED, TOO_LONG
from support.rows import rows

from dra_driver.api.resource import Device
from dra_driver.cel.device import CelDevice, CompiledSelector, checked_selector, compile_selector
from dra_driver.cel.errors import CelCostError, CelError, CelNotJudged, CelRuntimeError
from dra_driver.cel.functions import CURRENT

_DEVICE = CelDevice("gpu.nvidia.com", Device.of({"name": "gpu-0"}))


@rows("expression", [*HOLD, *BIND_HOLD, *COSTLY])
def test_what_is_true_for_the_api_server_is_true_here(expression: str) -> None:
    assert CompiledSelector(checked_selector(expression), CURRENT).matches(_DEVICE) is True


@rows("expression", TOO_LONG)
def test_what_could_run_for_minutes_is_refused(expression: str) -> None:
    with pytest.raises(CelCostError, match="too complex"):
        compile_selector(expression)


@rows("expression, message", FAIL)
def test_what_fails_for_the_api_server_fails_here(expression: str, message: str) -> None:
    selector = compile_selector(expression)
    with pytest.raises(CelRuntimeError) as raised:
        selector.matches(_DEVICE)
    assert message in raised.value.message


@rows("expression", NO_EXPRESSION)
def test_what_the_api_server_refuses_is_refused_here(expression: str) -> None:
    with pytest.raises(CelError) as raised:
        compile_selector(expression)
    assert not isinstance(raised.value, CelRuntimeError)


@rows("expression", NOT_JUDGED)
def test_what_is_not_known_here_is_left_to_an_api_server(expression: str) -> None:
    with pytest.raises(CelNotJudged, match="not judged: "):
        compile_selector(expression)
