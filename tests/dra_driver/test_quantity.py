"""Amounts and versions compare by what they mean and are written as the API server writes them."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import rows

from dra_driver.quantity import Quantity, Version, canonical_quantity, padded_version


@rows(
    "written, canonical",
    [
        ("1024Mi", "1Gi"),
        ("81559Mi", "81559Mi"),
        ("85899345920", "85899345920"),
        ("1000", "1k"),
        ("1000Ki", "1000Ki"),
        ("0.5Ki", "512"),
        ("0.9765625Ki", "1k"),
        ("1.5Gi", "1536Mi"),
        ("0.5", "500m"),
        ("1500m", "1500m"),
        ("1.5", "1500m"),
        ("1e3", "1e3"),
        ("1E6", "1e6"),
        ("12e2", "1200"),
        ("1E", "1E"),
        ("0", "0"),
        ("0Gi", "0"),
        ("-1024Ki", "-1Mi"),
        ("+5", "5"),
        (".5", "500m"),
        ("5.", "5"),
        ("0.1n", "1n"),
        ("-1.5n", "-2n"),
        ("1Ei", "1Ei"),
    ],
)
def test_an_amount_has_one_spelling(written: str, canonical: str) -> None:
    assert canonical_quantity(written) == canonical


@rows("text", ["G", "Gi", "m", "+", "-G", ".", ".G", "E"])
def test_an_amount_without_digits_is_nothing(text: str) -> None:
    """So the API server reads it."""
    assert Quantity.parse(text).value == 0


@rows("text", ["", "1 Gi", "1Gb", "1..5", "--1", "1KI", "0x10", "1e", "NaN", "１"])
def test_what_is_not_an_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        Quantity.parse(text)


def test_amounts_compare_by_value_whatever_their_spelling() -> None:
    assert Quantity.parse("1024Mi") == Quantity.parse("1Gi") == Quantity.of_bytes(2**30)
    assert hash(Quantity.parse("1000m")) == hash(Quantity.parse("1"))
    assert Quantity.parse("1G") < Quantity.parse("1Gi")


@given(
    st.builds(
        lambda number, format: Quantity(Fraction(number, 10**9), format),
        st.integers(-(10**27), 10**27),
        st.sampled_from(["DecimalSI", "DecimalExponent"]),
    )
    | st.builds(Quantity.of_bytes, st.integers(-(2**70), 2**70))
)
def test_the_canonical_form_says_the_same_and_is_final(quantity: Quantity) -> None:
    again = Quantity.parse(str(quantity))
    assert again == quantity
    assert str(again) == str(quantity)


def test_versions_follow_semver_precedence() -> None:
    """The chain of semver.org, section 11."""
    chain = [
        "1.0.0-alpha",
        "1.0.0-alpha.1",
        "1.0.0-alpha.beta",
        "1.0.0-beta",
        "1.0.0-beta.2",
        "1.0.0-beta.11",
        "1.0.0-rc.1",
        "1.0.0",
        "1.0.1",
        "1.2.0",
        "1.10.0",
    ]
    versions = [Version.parse(text) for text in chain]
    assert sorted(set(versions)) == versions
    assert [str(version) for version in versions] == chain


def test_build_metadata_does_not_count_in_comparisons() -> None:
    assert Version.parse("1.2.3+a") == Version.parse("1.2.3+b")
    assert str(Version.parse("1.2.3-rc.1+build.5")) == "1.2.3-rc.1+build.5"


@rows("text", ["1", "1.2", "01.2.3", "1.2.3-", "1.2.3-01", "v1.2.3", "1.2.3.4", "1.2.3\n"])
def test_what_is_not_semver_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a semantic version"):
        Version.parse(text)


@rows(
    "vendor, semver",
    [
        ("580.126.09", "580.126.9"),
        ("570.158.01", "570.158.1"),
        ("13.0", "13.0.0"),
        ("9", "9.0.0"),
        ("96.00.a1", None),
        ("", None),
        ("535.54.03.01", "535.54.3+1"),
        ("1.2.3.4.5", None),
    ],
)
def test_a_vendor_version_becomes_semver(vendor: str, semver: str | None) -> None:
    version = padded_version(vendor)
    assert (None if version is None else str(version)) == semver


@given(st.lists(st.integers(0, 9999).map(lambda number: f"{number:02d}"), min_size=1, max_size=4).map(".".join))
def test_every_dotted_number_makes_a_valid_version(text: str) -> None:
    version = padded_version(text)
    assert version is not None
    assert Version.parse(str(version)) == version


@pytest.mark.parametrize(("count", "text"), [(0, "0"), (1000, "1k"), (1024, "1Ki"), (625000, "625k"), (2**30, "1Gi")])
def test_bytes_are_written_as_the_server_writes_them(count: int, text: str) -> None:
    assert str(Quantity.of_bytes(count)) == canonical_quantity(text) == text


def test_versions_of_thousands_of_digits_are_refused_or_compared() -> None:
    with pytest.raises(ValueError, match="digits"):
        Version.parse(5000 * "9" + ".0.0")
    longer, shorter = (Version.parse("1.0.0-" + digits * "9") for digits in (5001, 5000))
    assert shorter < longer
    assert Version.parse("1.0.0-9") < Version.parse("1.0.0-10")
