"""Formats of names and other texts: `format.dns1123Label().validate('…')`. Source: Kubernetes' format library.

A text that has the format gives no value, another one a list of what is wrong with it; the sentences are our own.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date

from dra_driver.cel.library.urls import is_url
from dra_driver.cel.overloads import Library, function, method
from dra_driver.cel.types import FORMAT, STRING, list_of, optional_of
from dra_driver.cel.values import ABSENT, NamedFormat, Optional

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(rf"{_LABEL.pattern}(\.{_LABEL.pattern})*")
_LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_UUID = re.compile(r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
_BASE64 = re.compile(r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))")


@dataclass(frozen=True, slots=True)
class _Rule:
    """`pattern_size` is what Kubernetes takes for the length of the format's regular expression."""

    holds: Callable[[str], bool]
    pattern_size: int
    prefix: bool = False
    """Whether the text is the beginning of a name, so that it may end with a dash."""


def _named(pattern: re.Pattern[str], longest: int) -> Callable[[str], bool]:
    return lambda text: len(text.encode()) <= longest and pattern.fullmatch(text) is not None


_is_label, _is_subdomain = _named(_LABEL, 63), _named(_SUBDOMAIN, 253)
_is_name = _named(_QUALIFIED, 63)


def _is_qualified(text: str) -> bool:
    prefix, slash, name = text.rpartition("/")
    return _is_name(name) and (not slash or _is_subdomain(prefix))


def _is_date(text: str) -> bool:
    try:
        return bool(_DATE.fullmatch(text) and date.fromisoformat(text))
    except ValueError:
        return False


def _is_moment(text: str) -> bool:
    day, separator, rest = text.lower().partition("t")
    match = _TIME.fullmatch(rest.partition("t")[0])
    return bool(separator and match) and _is_date(day) and _in_a_day(rest)


def _in_a_day(time: str) -> bool:
    return time[0:2] <= "23" and time[3:5] <= "59" and time[6:8] <= "59"


_RULES: Mapping[str, _Rule] = {
    "dns1123Label": _Rule(_is_label, 30),
    "dns1123Subdomain": _Rule(_is_subdomain, 60),
    "dns1035Label": _Rule(_named(_LABEL_1035, 63), 30),
    "qualifiedName": _Rule(_is_qualified, 60),
    "dns1123LabelPrefix": _Rule(_is_label, 30, prefix=True),
    "dns1123SubdomainPrefix": _Rule(_is_subdomain, 60, prefix=True),
    "dns1035LabelPrefix": _Rule(_named(_LABEL_1035, 63), 30, prefix=True),
    "labelValue": _Rule(lambda text: text == "" or _is_name(text), 40),
    "uri": _Rule(is_url, 1103),
    "uuid": _Rule(lambda text: _UUID.fullmatch(text) is not None, 70),
    "byte": _Rule(lambda text: _BASE64.fullmatch(text) is not None, 84),
    "date": _Rule(_is_date, 71),
    "datetime": _Rule(_is_moment, 71),
}


def pattern_size(named: NamedFormat) -> int:
    """The length that counts in the cost of a validation."""
    return _RULES[named.name].pattern_size


def _validate(named: NamedFormat, text: str) -> Optional:
    rule = _RULES[named.name]
    whole = f"{text[:-2]}a" if rule.prefix and len(text) > 1 and text.endswith("-") else text
    return ABSENT if rule.holds(whole) else Optional((f"{text!r} is no {named.name}",))


def _by_name(name: str) -> Optional:
    return Optional(NamedFormat(name)) if name in _RULES else ABSENT


def _constant(name: str) -> Callable[[], NamedFormat]:
    value = NamedFormat(name)
    return lambda: value


NAMED_FORMATS: Library = {
    "format.named": [function(optional_of(FORMAT), _by_name, STRING)],
    "validate": [method(optional_of(list_of(STRING)), _validate, FORMAT, STRING)],
    **{f"format.{name}": [function(FORMAT, _constant(name))] for name in _RULES},
}
