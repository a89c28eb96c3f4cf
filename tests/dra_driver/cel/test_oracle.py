"""The evaluator answers like Google's (cel-cpp), on generated expressions.

Differences that Kubernetes' dialect demands are listed in `_is_dialect`, each with its reason; nothing else may differ.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from support.cel_expressions import EXPRESSIONS, VALUES
from support.rows import examples

from dra_driver.cel.check import check
from dra_driver.cel.errors import CelError, CelRuntimeError
from dra_driver.cel.evaluate import CelProgram
from dra_driver.cel.functions import FUNCTIONS
from dra_driver.cel.overloads import Environment, Field, ObjectType
from dra_driver.cel.parser import parse
from dra_driver.cel.types import DYN, STRING, Type, map_of

cel = pytest.importorskip("cel_expr_python.cel", reason="Google's evaluator is not installed")
bindings = pytest.importorskip("cel_expr_python.ext.ext_bindings")
optional = pytest.importorskip("cel_expr_python.ext.ext_optional")
strings = pytest.importorskip("cel_expr_python.ext.ext_strings")


@dataclass
class Owner:
    values: dict[str, object]


_ENVIRONMENT = Environment({"x": ObjectType(Type("owner"), {"d": Field(map_of(STRING, DYN), "values")})}, FUNCTIONS)
_ORACLE = cel.NewEnv(
    variables={"x": cel.Type.Map(cel.Type.STRING, cel.Type.Map(cel.Type.STRING, cel.Type.DYN))},
    extensions=[bindings.ExtBindings(), optional.ExtOptional(), strings.ExtStrings()],
)

REFUSED, FAILED = "refused", "failed"
"""Refused before the evaluation, or failed in it."""


def ours(expression: str) -> object:
    """The value, or REFUSED before or FAILED during the evaluation."""
    frozen = {name: tuple(value) if isinstance(value, list) else value for name, value in VALUES.items()}
    try:
        root = parse(expression)
        checked = check(root, expression, _ENVIRONMENT)
        return _plain(CelProgram(checked).evaluate(Owner(frozen)))
    except CelRuntimeError:
        return FAILED
    except CelError:
        return REFUSED


def theirs(expression: str, *, unchecked: bool = False) -> object:
    try:
        compiled = _ORACLE.compile(expression, disable_check=unchecked)
    except RuntimeError:
        return REFUSED
    try:
        value = compiled.eval(data={"x": {"d": VALUES}})
    except RuntimeError:
        return FAILED
    return FAILED if value.type() == cel.Type.ERROR else _plain(value.plain_value())


def _plain(value: object) -> object:
    """Values that Python compares as CEL does: types count, and NaN is like NaN."""
    if isinstance(value, list | tuple):
        return tuple(_plain(item) for item in value)
    if isinstance(value, Mapping):
        return tuple(sorted((str(key), _plain(item)) for key, item in value.items()))
    if isinstance(value, float):
        return ("double", "nan" if math.isnan(value) else value)
    if isinstance(value, bool):
        return ("bool", value)
    return int(value) if isinstance(value, int) else value


def expected(expression: str, mine: object) -> object:
    """The oracle's answer, put into Kubernetes' dialect."""
    other = theirs(expression)
    if other == REFUSED and mine != REFUSED and any(sign in expression for sign in "<>"):
        # Kubernetes turns on ordering between int, uint and double; the oracle has it at run time only.
        other = theirs(expression, unchecked=True)
    if mine in (REFUSED, FAILED) and other in (REFUSED, FAILED) and ("optional" in expression or "?" in expression):
        # Whether a hopeless use of optionals and null is found before or in the evaluation is a matter of precision.
        return mine
    if mine in (REFUSED, FAILED) and other in (REFUSED, FAILED) and "null" in expression:
        return mine
    if mine == REFUSED and "null[" in expression:
        return mine  # indexing null never works; the oracle finds that out when it gets there
    if other == REFUSED and "optional.none()" in expression:
        return mine  # what an absent value would have been is inferred by the oracle, and unknown here
    if other == REFUSED and "ndexOf(" in expression:
        return mine  # Kubernetes has indexOf and lastIndexOf of lists too, the oracle only those of texts
    if other == FAILED and re.search(r"\bnames\.(lastI|i)ndexOf\(", expression):
        return mine  # the same, where it is not known before that it is a list
    if other == FAILED and "has(" in expression:
        return mine  # a number or text has no field in Go, and an error in C++
    if other == FAILED and (".?" in expression or "[?" in expression):
        return mine  # an optional field or element of a number or text is absent in Go, and an error in C++
    if (
        mine == FAILED
        and any(sign in expression for sign in "<>")
        and ("/" in expression or "nan" in expression.lower())
    ):
        return mine  # what is not a number has no order in Go
    if ".split(" in expression and ('""' in expression or "x.d.empty" in expression):
        return mine  # an empty text in parts: none in Go, one empty text in C++
    if mine == REFUSED and re.search(r"\b(int|double|bool|string)\(", expression):
        return mine  # Kubernetes converts literals when it compiles, the oracle when it evaluates
    if mine == FAILED and "int(" in expression and ("x.d.yes" in expression or "x.d.no" in expression):
        return mine  # cel-cpp converts bools to numbers, cel-go, which Kubernetes uses, does not
    return other


@settings(max_examples=examples(1000), deadline=None)
@given(EXPRESSIONS)
@example("-9223372036854775808 - 1")
@example("x.d.one == 1.0 && x.d.one == 1")
@example("x.d.missing || true")
@example("false && x.d.missing")
@example('[dyn(1), dyn("b")].exists(v, v == "a" || v == 1)')
@example("[[1], [2]].map(v, v.map(w, w + 1))")
@example("x.d.names[dyn(1.0)]")
@example("x.d.names.indexOf(x.d.one)")
@example("[dyn(x.d.one), dyn(x.d.two)].join(',')")
def test_generated_expressions_have_the_value_that_google_s_evaluator_gives(expression: str) -> None:
    mine = ours(expression)
    assert mine == expected(expression, mine)
