"""Random expressions about a map `x.d`, whose values are VALUES. Most of them are wrong in some way."""

from hypothesis import strategies as st

VALUES: dict[str, object] = {
    "one": 1, "two": 2, "minus": -3, "big": 2**62, "half": 0.5, "whole": 2.0, "yes": True, "no": False, "text": "abc",
    "digits": "12", "empty": "", "names": ["a", "b", "abc"], "numbers": [3, 1, 2], "none": [],
    "table": {"a": 1, "b": 2},
}  # fmt: skip


_ATOMS = st.one_of(
    st.sampled_from([f"x.d.{name}" for name in VALUES]),
    st.sampled_from(["x.d.missing", 'x.d["one"]', 'x.d["missing"]']),
    st.sampled_from(["0", "1", "-1", "7", "9223372036854775807", "-9223372036854775808", "0x1F"]),
    st.sampled_from(["1.5", "-0.5", "1e3", "0.0", ".5", "true", "false", "null", "[]", "{}"]),
    st.sampled_from(['"abc"', "'a'", '""', r'"\u00e9\n"', "r'a\\b'", '"""x"y"""', '"ABC"', "'b'"]),
)
_BINARY = ["+", "-", "*", "/", "%", "==", "!=", "<", "<=", ">", ">=", "in", "&&", "||"]
_METHODS = ["startsWith", "endsWith", "contains", "indexOf", "lastIndexOf", "split", "charAt", "substring", "join"]
_PLAIN_METHODS = ["size", "lowerAscii", "upperAscii", "trim"]
_CLAUSES = ["%s", "%d", "%.1f", "%e", "%x", "%X", "%b", "%o", "a%%%s", "%.3s", "%z", "%"]
_WRAPPERS = [f"google.protobuf.{name}Value" for name in ("Bool", "Double", "Float", "Int32", "Int64", "String")]


def _optionals(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, st.sampled_from([".?a", ".?missing", "[?0]", "[?'a']"])).map(lambda t: f"{t[0]}{t[1]}"),
        st.tuples(st.sampled_from(["of", "ofNonZeroValue"]), inner).map(lambda t: f"optional.{t[0]}({t[1]})"),
        st.just("optional.none()"),
    )


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(inner, st.sampled_from(_BINARY), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(st.sampled_from(["!", "-"]), inner).map(lambda t: f"{t[0]}({t[1]})"),
        st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} ? {t[1]} : {t[2]})"),
        st.tuples(inner, st.sampled_from(_METHODS), inner).map(lambda t: f"{t[0]}.{t[1]}({t[2]})"),
        st.tuples(inner, st.sampled_from(_PLAIN_METHODS)).map(lambda t: f"{t[0]}.{t[1]}()"),
        st.tuples(st.sampled_from(["size", "int", "double", "string", "dyn", "bool"]), inner).map(
            lambda t: f"{t[0]}({t[1]})"
        ),
        st.tuples(inner, inner).map(lambda t: f"{t[0]}[{t[1]}]"),
        st.tuples(inner, inner).map(lambda t: f"[dyn({t[0]}), dyn({t[1]})]"),
        st.tuples(inner, inner).map(lambda t: f"{{'a': dyn({t[0]}), 'b': dyn({t[1]})}}"),
        st.tuples(inner, st.sampled_from(["all", "exists", "exists_one", "map", "filter"]), inner).map(
            lambda t: f"{t[0]}.{t[1]}(v, {t[2]} == v)"
        ),
        st.tuples(inner, st.sampled_from(["a", "missing"])).map(lambda t: f"has({t[0]}.{t[1]})"),
        st.tuples(inner, inner).map(lambda t: f"cel.bind(w, {t[0]}, [dyn(w), dyn({t[1]})])"),
        st.tuples(inner, st.sampled_from(["charAt", "substring", "join"]), inner).map(
            lambda t: f"{t[0]}.{t[1]}({t[2]})"
        ),
        st.tuples(inner, st.sampled_from(["replace", "substring"]), inner, inner).map(
            lambda t: f"{t[0]}.{t[1]}({t[2]}, {t[3]})"
        ),
        st.tuples(inner, inner).map(lambda t: f"{t[0]}.split(',', {t[1]})"),
        st.tuples(inner, st.sampled_from(["b", "^a.*c$", "[[:alpha:]]+", "(?i)ABC", r"\\d{2}", "a|$"])).map(
            lambda t: f"{t[0]}.matches('{t[1]}')"
        ),
        st.tuples(inner, inner).map(lambda t: f"cel.bind(w, {t[0]}, {t[1]} == 1 || w == 1)"),
        # Optionals only inside of expressions: the oracle's Python binding cannot show them, and crashes on some.
        st.tuples(_optionals(inner), inner).map(lambda t: f"{t[0]}.orValue({t[1]})"),
        _optionals(inner).map(lambda t: f"{t}.hasValue()"),
        st.tuples(_optionals(inner), _optionals(inner)).map(lambda t: f"{t[0]}.or({t[1]}).value()"),
        st.tuples(_optionals(inner), inner, inner).map(
            lambda t: f"{t[0]}.optMap(v, [dyn(v), dyn({t[1]})]).orValue([{t[2]}])"
        ),
    )


def _of_kubernetes(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """What Google's evaluator for Python has not, or has otherwise: `format`, wrappers, literals of one type."""
    clauses = st.sampled_from(_CLAUSES)
    return st.one_of(
        _larger(inner),
        st.tuples(inner, inner).map(lambda t: f"[{t[0]}, {t[1]}]"),
        st.tuples(clauses, inner).map(lambda t: f"'{t[0]}'.format([{t[1]}])"),
        st.tuples(clauses, inner).map(lambda t: f"'{t[0]}'.format([dyn({t[1]})])"),
        st.tuples(clauses, inner, inner).map(lambda t: f"('{t[0]}' + '%s').format([{t[1]}, {t[2]}])"),
        st.tuples(st.sampled_from(_WRAPPERS), inner).map(lambda t: f"{t[0]}{{value: {t[1]}}}"),
        st.sampled_from(_WRAPPERS).map(lambda name: f"{name}{{}}"),
        inner.map(lambda value: f"type({value})"),
        st.sampled_from(["int", "string", "bool", "double", "list", "map", "null_type", "type"]),
    )


EXPRESSIONS = st.recursive(_ATOMS, _larger, max_leaves=6)
KUBERNETES_EXPRESSIONS = st.recursive(_ATOMS, _of_kubernetes, max_leaves=6)


def about_a_device(expression: str) -> str:
    """The same about the attributes of a device, whose types nobody knows before the evaluation."""
    return expression.replace("x.d", "device.attributes['a']")
