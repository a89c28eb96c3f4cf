"""Kubernetes quantities and semantic versions as comparable values.

A `Quantity` is an exact number with the spelling family it was written in; comparisons use the number, so "1024Mi"
equals "1Gi". A `Version` is semver 2.0.0 with its precedence; `padded_version` makes one from the two to four dotted
numbers of NVIDIA's versions. Pure values, used by slices, CEL, the allocator and the simulated API server.

Source: k8s.io/apimachinery resource.Quantity (canonical form, nano precision, rounding away from zero); semver.org.
"""

import re
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache, total_ordering
from typing import Literal

type QuantityFormat = Literal["DecimalSI", "BinarySI", "DecimalExponent"]

_QUANTITY = re.compile(r"([+-]?)([0-9]*)(\.?[0-9]*)(Ki|Mi|Gi|Ti|Pi|Ei|[numkMGTPE]|[eE][+-]?[0-9]{1,3})?")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_SUFFIX = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_NANO = 10**9
_MOST_DIGITS = 18
"""For numbers that an API server stores as 64-bit integers."""

_WHOLE_NUMBER = re.compile(r"[0-9]{1,20}")


def whole_number(text: str | None) -> int | None:
    """The number that at most 20 digits write; None for other text. `str.isdigit` accepts `²`, which `int` does not."""
    return int(text) if text is not None and _WHOLE_NUMBER.fullmatch(text) else None


_NUMBER = r"(?:0|[1-9][0-9]*)"
_IDENTIFIER = rf"(?:{_NUMBER}|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)"
_SEMVER = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})"
    rf"(?:-({_IDENTIFIER}(?:\.{_IDENTIFIER})*))?"
    r"(?:\+([0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*))?"
)


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """An exact amount. Compares by value only; `str()` is the canonical form that the API server writes."""

    value: Fraction
    format: QuantityFormat = field(default="DecimalSI", compare=False)
    is_int64: bool = field(default=True, compare=False)
    """Whether an API server stores it as a 64-bit integer; this depends on the spelling, not the value."""
    is_computed: bool = field(default=False, compare=False)
    """Whether CEL computed it by adding or subtracting; an API server's `==` does not accept it on its right side."""

    @staticmethod
    @lru_cache(maxsize=4096)
    def parse(text: str) -> "Quantity":
        """From a spelling like `80Gi`, `1500m`, `1e3`. Raises ValueError.

        More precision than a billionth is rounded away from zero, as the API server does. Remembered, because thousands
        of devices have the same few amounts.
        """
        match = _QUANTITY.fullmatch(text)
        if match is None or not text:
            raise ValueError(f"not a quantity: {text!r}")
        # Without digits it is 0: the API server also accepts `G`.
        sign, whole, fraction, suffix = match[1], match[2].lstrip("0"), match[3][1:], match[4] or ""
        number = Fraction(f"{sign}{whole or 0}.{fraction or 0}")
        digits = len(whole or "0") + len(fraction)
        if suffix and suffix in _BINARY:
            power = _BINARY.index(suffix)
            fits = not fraction and 15 - digits - power * 3 - 1 >= 0
            return Quantity(_to_nano(number * 1024**power), "BinarySI", fits)
        exponent = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
        fits = digits <= _MOST_DIGITS and exponent >= len(fraction)
        value = _to_nano(number * Fraction(10) ** exponent)
        return Quantity(value, "DecimalSI" if suffix in _DECIMAL else "DecimalExponent", fits)

    @classmethod
    def read(cls, value: object) -> "Quantity | None":
        """Of a field of a manifest, which can be a number, too. None: it is no quantity."""
        try:
            return cls.parse(str(value)) if isinstance(value, int | float | str) else None
        except ValueError:
            return None

    @classmethod
    def of_bytes(cls, count: int) -> "Quantity":
        """An amount of memory: `Quantity.of_bytes(2**30)` becomes `1Gi`, and 625000, which is no multiple of Ki,
        `625k`."""
        return cls(Fraction(count), "DecimalSI" if count % 1024 else "BinarySI")

    def __str__(self) -> str:
        if self.value == 0:
            return "0"
        # Amounts below 1024 have no binary suffix, so the server writes them as decimals: 0.5Ki is 512, 1000 is 1k.
        # The same applies to fractions: 0.1Gi is 107374182400m.
        if self.format == "BinarySI" and abs(self.value) >= 1024 and self.value.denominator == 1:
            return _binary(int(self.value))
        mantissa, exponent = _shortest(self.value)
        if self.format == "DecimalExponent":
            return f"{mantissa}e{exponent}" if exponent else str(mantissa)
        return f"{mantissa}{_DECIMAL_SUFFIX[exponent]}"


def canonical_quantity(text: str) -> str:
    """The API server's canonical spelling of an amount: `1024Mi` becomes `1Gi`. Raises ValueError."""
    return str(Quantity.parse(text))


def _to_nano(value: Fraction) -> Fraction:
    scaled = value * _NANO
    if scaled.denominator == 1:
        return value
    magnitude = -(-abs(scaled.numerator) // scaled.denominator)
    return Fraction(magnitude if scaled > 0 else -magnitude, _NANO)


def _binary(value: int) -> str:
    whole, power = abs(value), 0
    while whole % 1024 == 0 and power < len(_BINARY) - 1:
        whole //= 1024
        power += 1
    return f"{'-' if value < 0 else ''}{whole}{_BINARY[power]}"


def _shortest(value: Fraction) -> tuple[int, int]:
    mantissa, exponent = int(value * _NANO), -9
    while mantissa % 1000 == 0 and exponent < 18:
        mantissa //= 1000
        exponent += 3
    return mantissa, exponent


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """Semver 2.0.0. Build metadata is kept but, as semver requires, ignored in comparisons."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[str, ...] = ()
    build: str = ""

    @classmethod
    def parse(cls, text: str) -> "Version":
        """Strict semver: three numbers without leading zeros. Raises ValueError."""
        match = _SEMVER.fullmatch(text)
        if match is None:
            raise ValueError(f"not a semantic version: {text!r}")
        prerelease = tuple(match[4].split(".")) if match[4] else ()
        return cls(int(match[1]), int(match[2]), int(match[3]), prerelease, match[5] or "")

    def _precedence(self) -> tuple[object, ...]:
        # Without leading zeros, numbers compare by length, then as text; Python does not convert 4300 digits.
        identifiers = tuple((0, len(part), part) if part.isdigit() else (1, 0, part) for part in self.prerelease)
        return (self.major, self.minor, self.patch, not self.prerelease, identifiers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self._precedence() == other._precedence()

    def __lt__(self, other: "Version") -> bool:
        return self._precedence() < other._precedence()

    def __hash__(self) -> int:
        return hash(self._precedence())

    def __str__(self) -> str:
        prerelease = f"-{'.'.join(self.prerelease)}" if self.prerelease else ""
        return f"{self.major}.{self.minor}.{self.patch}{prerelease}{f'+{self.build}' if self.build else ''}"


def padded_version(text: str) -> Version | None:
    """Semver from a vendor's version: `580.126.09` is 580.126.9, `13.0` is 13.0.0; None for other text. Semver forbids
    leading zeros and requires three numbers; a fourth becomes build metadata.
    """
    parts = text.strip().split(".")
    if not 1 <= len(parts) <= 4 or not all(part.isascii() and part.isdigit() for part in parts):
        return None
    numbers = [int(part) for part in parts]
    major, minor, patch = (*numbers, 0, 0)[:3]
    return Version(major, minor, patch, build=str(numbers[3]) if len(numbers) == 4 else "")
