import pytest
from support.rows import rows

from dra_driver.cel.device import compile_selector
from dra_driver.cel.errors import CelNotJudged
from dra_driver.cel.library.texts import PatternTooLarge, compiled_pattern
from dra_driver.cel.overloads import Failed


@rows(
    "pattern, text, expected",
    [
        ("H[12]00", "NVIDIA H100", True),
        ("^H100$", "H100\n", False),
        (r"H100\z", "H100", True),
        ("(?m)^b$", "a\nb\nc", True),
        ("[[:digit:]]+", "H100", True),
        ("[^[:alpha:]]", "abc", False),
        ("[]a]", "]", True),
        ("[^]a]", "]", False),
        ("[$]", "$", True),
        ("[*+]+", "*+", True),
        ("[(?<]", "(", True),
        ("(?i)h100", "H100", True),
        ("(?P<x>a)(?:b)", "ab", True),
        ("(?<x>a)", "a", True),
        (r"\.", "a", False),
        (r"\d", "٣", False),
        (r"\p{L}+", "日本", True),
        (r"\x{61}", "a", True),
        (r"^\Qa.b\E$", "a.b", True),
        (r"\Q\C\E", r"\C", True),
        ("a{,2}", "a{,2}", True),
        ("a{,2}", "aa", False),
    ],
)
def test_patterns_mean_what_re2_means(pattern: str, text: str, expected: bool) -> None:
    assert (compiled_pattern(pattern).search(text) is not None) == expected


@rows(
    "pattern",
    [
        "(?=a)",
        "(?!a)",
        "(?<=a)b",
        "(?<!a)b",
        r"(a)\1",
        "a++",
        "a{2}+",
        "(?>a)",
        "(",
        "[[:nope:]]",
        r"a\Z",
        "*",
        "a{1001}",
        r"\C",
        "a**",
    ],
)
def test_what_re2_has_not_is_refused(pattern: str) -> None:
    with pytest.raises(Failed, match="invalid regular expression"):
        compiled_pattern(pattern)


def test_no_pattern_backtracks() -> None:
    """Each of these takes a backtracking engine longer than the age of the universe."""
    text = "a" * 10_000 + "!"
    for pattern in ("^(a|aa)+$", "^(a+)+$", "(x+x+)+y", "^(a?){1000}a{1000}$"):
        assert compiled_pattern(pattern).search(text) is None


@pytest.mark.parametrize("pattern", [r"\pL{999}", "|".join(f"a[ab]{{{count}}}c" for count in range(900, 1000))])
def test_a_pattern_that_would_take_seconds_is_not_judged(pattern: str) -> None:
    """An API server stores it: Go's limit is far higher."""
    with pytest.raises(PatternTooLarge):
        compiled_pattern(pattern)
    expression = f"device.driver.matches(r'{pattern}')"
    with pytest.raises(CelNotJudged, match="the regular expression is too large to be run here") as raised:
        compile_selector(expression)
    assert expression[raised.value.start : raised.value.end] == f"r'{pattern}'"


@rows("pattern", [".{1,1000}", r"([a-z][a-z0-9-]{1,255}\.?)+", r"\pL{1,10}", "(?i)NVIDIA (A|H)[12]00.*"])
def test_patterns_for_attributes_are_not_too_large(pattern: str) -> None:
    assert compiled_pattern(pattern).search("nvidia h100") is not None


def test_the_flag_for_ungreedy_matches_is_known() -> None:
    match = compiled_pattern("(?U)a+").search("aaa")
    assert match is not None and match.group() == "a"
