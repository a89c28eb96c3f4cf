import pytest

from dra_driver.cel.patterns import Unsupported, compiled


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
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
    ],
)
def test_patterns_mean_what_re2_means(pattern: str, text: str, found: bool) -> None:
    assert (compiled(pattern).search(text) is not None) == found


@pytest.mark.parametrize(
    "pattern",
    ["(?=a)", "(?!a)", "(?<=a)b", "(?<!a)b", r"(a)\1", "a++", "a{2}+", "(?>a)", "(", "[[:nope:]]", r"a\Z", "*"],
)
def test_what_re2_has_not_is_refused(pattern: str) -> None:
    with pytest.raises(Unsupported, match="invalid regular expression"):
        compiled(pattern)
