"""The cases of the CEL specification have the values that it says, but for what Kubernetes has not or has otherwise."""

import math
import os
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

import pytest
from support.cel_spec import CLONE, FAILS, cases

from dra_driver.api.resource import Device
from dra_driver.cel.check import check
from dra_driver.cel.device import CelDevice, device_environment
from dra_driver.cel.errors import CelError, CelNotJudged
from dra_driver.cel.evaluate import CelProgram
from dra_driver.cel.functions import CURRENT
from dra_driver.cel.parser import parse

NOT_OF_KUBERNETES = (
    # Functions that it has not, and messages of the specification's own.
    *("math_ext/*", "block_ext/*", "encoders_ext/*", "string_ext/reverse/*"),
    *("parse/whitespace/*", "parse/comments/*", "fields/quoted_map_fields/*"),
    # A literal has items of one type.
    *("comparisons/eq_literal/*mixed_type*", "comparisons/eq_literal/*_false_vs_types", "comparisons/*mixed*_type*"),
    *("comparisons/eq_literal/not_eq_*null*", "conversions/dyn/dyn_heterogeneous_list", "dynamic/*/literal"),
    *("fields/map_fields/map_key_*", "fields/map_fields/map_value_mix_type", "fields/in/mixed_numbers_*"),
    *("macros*/*/*_type_shortcircuit", "macros*/*/*_type_exhaustive", "optionals/optionals/map_key_mixed_*"),
    "optionals/optionals/optional_chaining_13",
    # Of two entries with one key the last one counts.
    "fields/qualified_identifier_resolution/map_value_repeat_key",
    # A map cannot be indexed with bytes at all; below an optional value nothing has no fields, and that is no error.
    *("fields/map_fields/map_bad_key_type_*", "optionals/optionals/map_null_entry_no_such_key"),
    "optionals/optionals/map_present_key_invalid_field",
    # Older than the specification: formats, indices after the end, IPv4 in IPv6.
    *("string_ext/value_errors/*indexof_out_of_range", "network_ext/ipv4/ipv4_*equals_ipv6"),
)
"""Each was seen to be so on a Kubernetes API server of 1.36."""


NOT_JUDGED = object()
"""Messages of Protobuf, for instance: left to the API server."""


def ours(expression: str) -> object:
    try:
        checked = check(parse(expression), expression, device_environment(CURRENT))
        return CelProgram(checked).evaluate(CelDevice("driver", Device.of({"name": "gpu"})))
    except CelNotJudged:
        return NOT_JUDGED
    except CelError:
        return FAILS


def same(value: object, wanted: object) -> bool:
    """Types count, and NaN is like NaN."""
    match value:
        case bool() | None | str():
            return type(value) is type(wanted) and value == wanted
        case int():
            return type(wanted) is int and value == wanted
        case float():
            return type(wanted) is float and (value == wanted or (math.isnan(value) and math.isnan(wanted)))
        case tuple():
            return isinstance(wanted, list) and len(value) == len(wanted) and all(map(same, value, wanted))
        case Mapping():
            pairs = list(value.items())
            return (
                isinstance(wanted, list)
                and len(pairs) == len(wanted)
                and all(any(same(k, key) and same(v, item) for k, v in pairs) for key, item in wanted)
            )
    return False


@pytest.mark.skipif(CLONE not in os.environ, reason=f"{CLONE} names no clone of google/cel-spec")
def test_expressions_are_worth_what_the_specification_says() -> None:
    values = [(case, ours(case.expression)) for case in cases(Path(os.environ[CLONE]))]
    judged = [(case, value) for case, value in values if value is not NOT_JUDGED]
    wrong = [case.name for case, value in judged if not same(value, case.value)]
    assert [name for name in wrong if not any(fnmatch(name, pattern) for pattern in NOT_OF_KUBERNETES)] == []
    assert len(judged) > 700 and len(wrong) < len(judged) / 4
