"""Resource quantities as the server writes them: parsed, compared, and put into their canonical form.

Source: the rules of k8s.io/apimachinery's Quantity (DecimalSI, BinarySI and DecimalExponent, at most nano precision,
rounded away from zero).
"""

import re
from fractions import Fraction

_FORM = re.compile(r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+))(?P<suffix>[eE][+-]?\d+|[numkMGTPE]|[KMGTPE]i)?")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_NAME = {power: name for name, power in _DECIMAL.items()}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_BINARY_NAMES = ("", *_BINARY)
_NANO = 1_000_000_000


def parse(text: str | float) -> tuple[Fraction, str]:
    """Value and suffix. Raises ValueError."""
    found = _FORM.fullmatch(str(text).strip())
    if found is None:
        raise ValueError(f"not a quantity: {text!r}")
    suffix = found["suffix"] or ""
    value = Fraction(found["number"] + ("0" if found["number"].endswith(".") else ""))
    if suffix in _BINARY:
        value *= 2 ** _BINARY[suffix]
    elif suffix[:1] in ("e", "E") and len(suffix) > 1:
        value *= Fraction(10) ** int(suffix[1:])
    else:
        value *= Fraction(10) ** _DECIMAL[suffix]
    return _rounded(value), suffix


def value_of(text: str | float) -> Fraction:
    """The number. Raises ValueError."""
    return parse(text)[0]


def canonical(text: str | float) -> str:
    """The one spelling of this quantity: `1024Mi` is `1Gi`, `0.5` is `500m`. Raises ValueError."""
    value, suffix = parse(text)
    if value == 0:
        return "0"
    if suffix in _BINARY and abs(value) >= 1024 and value.denominator == 1:
        return _binary(int(value))
    power, mantissa = _decimal(value)
    if suffix[:1] in ("e", "E") and len(suffix) > 1:
        return f"{mantissa}e{power}" if power else str(mantissa)
    return f"{mantissa}{_DECIMAL_NAME[power]}"


def _rounded(value: Fraction) -> Fraction:
    scaled = value * _NANO
    if scaled.denominator == 1:
        return value
    up = -(-abs(scaled.numerator) // scaled.denominator)
    return Fraction(up if value > 0 else -up, _NANO)


def _binary(value: int) -> str:
    steps = 0
    while value % 1024 == 0 and steps < len(_BINARY):
        value, steps = value // 1024, steps + 1
    return f"{value}{_BINARY_NAMES[steps]}"


def _decimal(value: Fraction) -> tuple[int, int]:
    power = -9
    scaled = int(value * _NANO)
    while scaled % 1000 == 0 and power < 18:
        scaled, power = scaled // 1000, power + 3
    return power, scaled
