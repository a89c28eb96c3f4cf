"""What Kubernetes 1.36 makes of expressions at the edges of CEL: it refuses them, fails, or has a value.

`server_answers.json` was recorded from its own compiler of selectors, in the environment of stored expressions. Values
are written as type(value).
"""

import json
from pathlib import Path

import pytest
from support.rows import rows

from dra_driver.api.resource import Device
from dra_driver.cel.check import check
from dra_driver.cel.device import CelDevice, device_environment
from dra_driver.cel.errors import CelError
from dra_driver.cel.evaluate import CelProgram
from dra_driver.cel.functions import CURRENT
from dra_driver.cel.parser import parse
from dra_driver.cel.types import type_name

_ANSWERS = json.loads((Path(__file__).parent / "server_answers.json").read_text())
_ATTRIBUTES = {"kind": {"string": "a"}, "size": {"int": 7}, "flag": {"bool": True}, "ver": {"version": "1.2.3"}}
_DEVICE = CelDevice("gpu.nvidia.com", Device.of({"name": "gpu", "attributes": _ATTRIBUTES}))


def _shown(value: object) -> str:
    match value:
        case tuple():
            return f"[{', '.join(map(_shown, value))}]"
        case bool():
            return f"bool({str(value).lower()})"
        case float():
            return f"double({'NaN' if value != value else repr(value).removesuffix('.0')})"
    return f"{type_name(value)}({int(value) if isinstance(value, int) else value})"


@rows("answer", _ANSWERS)
def test_an_expression_is_what_a_server_makes_of_it(answer: dict[str, object]) -> None:
    expression = str(answer["expr"])
    if "refused" in answer:
        with pytest.raises(CelError):
            check(parse(expression), expression, device_environment(CURRENT))
        return
    checked = check(parse(expression), expression, device_environment(CURRENT))
    if "fails" in answer:
        with pytest.raises(CelError):
            CelProgram(checked).evaluate(_DEVICE)
    elif "value" in answer:
        assert _shown(CelProgram(checked).evaluate(_DEVICE)) == answer["value"]
