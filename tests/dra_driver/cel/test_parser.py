import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.rows import rows

from dra_driver.api.resource import Device
from dra_driver.cel.device import CelDevice, compile_selector
from dra_driver.cel.errors import CelNotJudged, CelSyntaxError
from dra_driver.cel.parser import parse
from dra_driver.cel.tree import (
    Bind,
    CallNode,
    Comprehension,
    Conditional,
    Constant,
    Has,
    Index,
    Logical,
    Name,
    Select,
    SyntaxNode,
    children,
)


def shape(node: SyntaxNode) -> object:
    """A tree as nested tuples, without positions."""
    match node:
        case Constant(value=value):
            return value
        case Name(name=name):
            return name
        case Select(operand=operand, field=field, optional=optional):
            return (shape(operand), "?" + field if optional else field)
        case Index(operand=operand, index=index):
            return (shape(operand), [shape(index)])
        case CallNode(function=function, target=target, arguments=arguments):
            return (function, *([shape(target)] if target else []), *map(shape, arguments))
        case Logical(operator=operator, parts=parts):
            return (operator, *map(shape, parts))
        case Conditional():
            return ("?:", *map(shape, children(node)))
    raise AssertionError(node)


@rows(
    "text, tree",
    [
        ("1 + 2 * 3", ("+", 1, ("*", 2, 3))),
        ("(1 + 2) * 3", ("*", ("+", 1, 2), 3)),
        ("1 - 2 - 3", ("-", ("-", 1, 2), 3)),
        ("a == b && c || d", ("||", ("&&", ("==", "a", "b"), "c"), "d")),
        ("a || b && c", ("||", "a", ("&&", "b", "c"))),
        ("a && b && c", ("&&", "a", "b", "c")),
        ("!a.b", ("!_", ("a", "b"))),
        ("--a", "a"),
        ("---a", ("-_", "a")),
        ("-1 + -x", ("+", -1, ("-_", "x"))),
        ("a ? b : c ? d : e", ("?:", "a", "b", ("?:", "c", "d", "e"))),
        ("a in b.c", ("in", "a", ("b", "c"))),
        ('a["x"].y', (("a", ["x"]), "y")),
        ("a.?b", ("a", "?b")),
        ("f(1, x).g(2)", ("g", ("f", 1, "x"), 2)),
        ("a // a comment\n && b", ("&&", "a", "b")),
        ("-9223372036854775808", -(2**63)),
        ("0xFF", 255),
        (".a", "a"),
    ],
)
def test_operators_bind_as_the_language_defines(text: str, tree: object) -> None:
    assert shape(parse(text)) == tree


@rows(
    "text, value",
    [
        (r'"\n\t\"\\"', '\n\t"\\'),
        (r"'\x41\u00e9\U0001F600\101'", "Aé😀A"),
        (r"r'\n'", r"\n"),
        (r'R"\d+"', r"\d+"),
        ("'''a 'quoted'\nline'''", "a 'quoted'\nline"),
        ("1e3", 1000.0),
        (".5", 0.5),
        (5000 * "0" + "7", 7),
        ("true", True),
        ("null", None),
    ],
)
def test_literals_have_their_values(text: str, value: object) -> None:
    node = parse(text)
    assert isinstance(node, Constant)
    assert (node.value, type(node.value)) == (value, type(value))


def test_macros_stay_what_was_written() -> None:
    assert isinstance(parse("has(a.b)"), Has)
    bound = parse("cel.bind(x, a, x.b)")
    assert isinstance(bound, Bind) and bound.variable == "x"
    mapped = parse("a.map(x, x > 1, x * 2)")
    assert isinstance(mapped, Comprehension) and mapped.kind == "map" and mapped.condition is not None


def test_a_method_that_is_called_like_a_macro_is_a_method_with_another_number_of_arguments() -> None:
    assert isinstance(parse("a.all(x)"), CallNode)


@rows(
    "text, column, message",
    [
        ("", 1, "the expression is empty"),
        ("a ==", 5, "expected a value, found the end of the expression"),
        ("a = b", 3, "equality is `==`"),
        ("a & b", 3, "the logical and is `&&`"),
        ("a | b", 3, "the logical or is `||`"),
        ("(a", 3, "expected `)` to close the parenthesis"),
        ("a b", 3, "expected an operator or the end"),
        ("a.", 3, "expected a field name after `.`"),
        ("a.'b'", 3, "expected a field name"),
        ("a[1", 4, "expected `]` after the index"),
        ("f(a, ", 6, "expected a value"),
        ("f(a,)", 5, "expected a value, found `)`"),
        ("f(a", 4, "expected `)` to close the call of `f`"),
        ("a ? b", 6, "expected `:`"),
        ("{1 2}", 4, "expected `:` between key and value"),
        ("'abc", 1, "string is not closed with '"),
        (r"'a\q'", 3, "unknown escape"),
        (r"'\ud800'", 2, "not a Unicode character"),
        ("a == '\ud800'", 7, "not a Unicode character"),
        ("rr'a'", 1, "unknown string prefix"),
        ("9223372036854775808", 1, "does not fit in 64 bits"),
        ("1 + " + 5000 * "9", 5, "does not fit in 64 bits"),
        ("-" + 5000 * "9", 1, "does not fit in 64 bits"),
        ("while", 1, "`while` is a reserved word"),
        ("!-a", 2, "`-` cannot follow `!`"),
        ("Foo{a: 1}", 4, "there is no message type `Foo`"),
        ("has(a)", 5, "has() needs a field"),
        ('has(a.b["c"])', 5, 'write `"c" in a.b`'),
        ("a.all(1, true)", 7, "a variable must be a simple name"),
        ("a.b &&\n  c d", 5, "expected an operator or the end"),
    ],
)
def test_errors_point_at_the_character(text: str, column: int, message: str) -> None:
    with pytest.raises(CelSyntaxError) as raised:
        parse(text)
    assert message in raised.value.message
    assert raised.value.column == column


def test_an_error_in_a_later_line_says_which_line() -> None:
    with pytest.raises(CelSyntaxError) as raised:
        parse('device.driver == "a" &&\n  device.')
    assert str(raised.value).startswith("line 2, column 10: ")
    assert raised.value.excerpt == "  device.\n         ^"


def test_an_excerpt_underlines_the_offending_part() -> None:
    with pytest.raises(CelSyntaxError) as raised:
        parse("a && while")
    assert raised.value.excerpt == "a && while\n     ^^^^^"


def test_expressions_longer_than_the_api_server_accepts_are_refused() -> None:
    parse(f"'{'a' * 10238}'")
    with pytest.raises(CelSyntaxError, match="longer than 10240 bytes"):
        parse(f"'{'é' * 5120}'")


@settings(deadline=None)
@given(st.text(alphabet=st.sampled_from(list("ab1.'\"()[]{}?:!-+*/%<>=&|,u \n\\xrE")), max_size=30))
def test_any_text_is_a_tree_or_a_syntax_error_inside_of_the_text(text: str) -> None:
    try:
        root = parse(text)
    except (CelSyntaxError, CelNotJudged) as error:
        assert 0 <= error.start <= len(text)
        assert error.excerpt.count("^") >= 1
    else:
        assert 0 <= root.start < root.end <= len(text)


@rows(
    "deepest",
    [
        "(" * 54 + "true" + ")" * 54,
        "+".join("1" * 108) + " > 0",
        "[" * 53 + "]" * 53 + " == []",
        "'a'" + ".trim()" * 107 + " == 'a'",
        "!(" * 53 + "true" + ")" * 53,
        "true ? true : " * 54 + "false",
        "[1].all(x, " * 53 + "true" + ")" * 53,
    ],
)
def test_deep_expressions_are_read_within_the_usual_limit_of_recursion(deepest: str) -> None:
    assert sys.getrecursionlimit() <= 1000
    compile_selector(deepest).matches(CelDevice("gpu.nvidia.com", Device.of({"name": "gpu"})))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [("!" * 9000 + "true", True), ("!" * 9001 + "true", False), ("-" * 9000 + "1 == 1", True), ("!!1 == 1", True)],
)
def test_pairs_of_signs_are_nothing(expression: str, expected: bool) -> None:
    assert compile_selector(expression).matches(CelDevice("a.example", Device.of({"name": "gpu"}))) is expected
