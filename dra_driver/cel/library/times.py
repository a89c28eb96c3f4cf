"""Durations and timestamps. Source: CEL language definition; Kubernetes counts in UTC where no zone is given."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from fractions import Fraction
from zoneinfo import ZoneInfo

from dra_driver.cel.overloads import Failed, Library, Overload, function, method
from dra_driver.cel.types import DURATION, INT, INT_MAX, INT_MIN, STRING, TIMESTAMP, Duration, Timestamp

_SECOND = 10**9
_UNITS = {
    "ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": _SECOND, "m": 60 * _SECOND, "h": 3600 * _SECOND,
}  # fmt: skip
_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_DURATION = re.compile(rf"([+-]?)((?:{_PART.pattern})+|0)")
_TIMESTAMP = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]+))?(Z|[+-][0-9]{2}:[0-9]{2})"
)
_OFFSET = re.compile(r"([+-]?)([0-9]{1,2}):([0-9]{2})")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_S, _LAST_S = -62135596800, 253402300799
"""The years 1 to 9999."""


def duration(text: str) -> Duration:
    """Raises Failed."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise Failed(f"invalid duration: {text!r}")
    total = sum(int(Fraction(number.removesuffix(".")) * _UNITS[unit]) for number, unit in _PART.findall(match[2]))
    return _duration(-total if match[1] == "-" else total)


def timestamp(text: str) -> Timestamp:
    """Raises Failed."""
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise Failed(f"invalid timestamp: {text!r}")
    seconds, fraction, zone = match.groups()
    try:
        moment = datetime.fromisoformat(seconds + zone)
    except ValueError:
        raise Failed(f"invalid timestamp: {text!r}") from None
    offset = moment.utcoffset() or timedelta()
    whole = (moment - _EPOCH) // timedelta(seconds=1)
    nanoseconds = int((fraction or "")[:9].ljust(9, "0"))
    return _timestamp(whole * _SECOND + nanoseconds, offset // timedelta(seconds=1))


def _duration(nanoseconds: int) -> Duration:
    if not INT_MIN <= nanoseconds <= INT_MAX:
        raise Failed("integer overflow")
    return Duration(nanoseconds)


def _timestamp(nanoseconds: int, offset_s: int = 0) -> Timestamp:
    if not _FIRST_S <= nanoseconds // _SECOND <= _LAST_S:
        raise Failed("timestamp overflow")
    return Timestamp(nanoseconds, offset_s)


def _fraction(nanoseconds: int) -> str:
    return f".{nanoseconds:09d}".rstrip("0") if nanoseconds else ""


def duration_text(value: Duration) -> str:
    seconds, rest = divmod(abs(value.nanoseconds), _SECOND)
    return f"{'-' if value.nanoseconds < 0 else ''}{seconds}{_fraction(rest)}s"


def timestamp_text(value: Timestamp) -> str:
    moment = _in_zone(value, timezone(timedelta(seconds=value.offset_s))).isoformat(timespec="seconds")
    return moment[:19] + _fraction(value.nanoseconds % _SECOND) + (moment[19:] if value.offset_s else "Z")


def _in_zone(value: Timestamp, zone: tzinfo) -> datetime:
    return (_EPOCH + timedelta(seconds=value.nanoseconds // _SECOND)).astimezone(zone)


def _zone(name: str) -> tzinfo:
    if match := _OFFSET.fullmatch(name):
        offset = timedelta(hours=int(match[2]), minutes=int(match[3]))
        return timezone(-offset if match[1] == "-" else offset)
    try:
        return ZoneInfo(name)
    except (ValueError, OSError):
        raise Failed(f"unknown time zone {name}") from None


def _part(part: Callable[[datetime], int]) -> list[Overload]:
    """A part of the date or time of day, in UTC or in a zone."""
    return [
        method(INT, lambda value: part(_in_zone(value, UTC)), TIMESTAMP),
        method(INT, lambda value, zone: part(_in_zone(value, _zone(zone))), TIMESTAMP, STRING),
    ]


def _whole(unit: int) -> Overload:
    """How many whole units a duration has, towards zero."""
    return method(INT, lambda value: int(Fraction(value.nanoseconds, unit)), DURATION)


def _milliseconds(value: Timestamp) -> int:
    return value.nanoseconds % _SECOND // 10**6


TIMES: Library = {
    "duration": [function(DURATION, lambda value: value, DURATION), function(DURATION, duration, STRING)],
    "timestamp": [
        function(TIMESTAMP, lambda value: value, TIMESTAMP),
        function(TIMESTAMP, timestamp, STRING),
        function(TIMESTAMP, lambda seconds: _timestamp(seconds * _SECOND), INT),
    ],
    "string": [function(STRING, duration_text, DURATION), function(STRING, timestamp_text, TIMESTAMP)],
    "int": [
        function(INT, lambda value: value.nanoseconds // _SECOND, TIMESTAMP),
        function(INT, lambda value: value.nanoseconds, DURATION),
    ],
    "+": [
        function(DURATION, lambda a, b: _duration(a.nanoseconds + b.nanoseconds), DURATION, DURATION),
        function(TIMESTAMP, lambda a, b: _timestamp(a.nanoseconds + b.nanoseconds), TIMESTAMP, DURATION),
        function(TIMESTAMP, lambda a, b: _timestamp(a.nanoseconds + b.nanoseconds), DURATION, TIMESTAMP),
    ],
    "-": [
        function(DURATION, lambda a, b: _duration(a.nanoseconds - b.nanoseconds), DURATION, DURATION),
        function(TIMESTAMP, lambda a, b: _timestamp(a.nanoseconds - b.nanoseconds), TIMESTAMP, DURATION),
        function(DURATION, lambda a, b: _duration(a.nanoseconds - b.nanoseconds), TIMESTAMP, TIMESTAMP),
    ],
    "getFullYear": _part(lambda moment: moment.year),
    "getMonth": _part(lambda moment: moment.month - 1),
    "getDate": _part(lambda moment: moment.day),
    "getDayOfMonth": _part(lambda moment: moment.day - 1),
    "getDayOfWeek": _part(lambda moment: moment.isoweekday() % 7),
    "getDayOfYear": _part(lambda moment: moment.timetuple().tm_yday - 1),
    "getHours": [*_part(lambda moment: moment.hour), _whole(3600 * _SECOND)],
    "getMinutes": [*_part(lambda moment: moment.minute), _whole(60 * _SECOND)],
    "getSeconds": [*_part(lambda moment: moment.second), _whole(_SECOND)],
    "getMilliseconds": [
        method(INT, _milliseconds, TIMESTAMP),
        method(INT, lambda value, zone: (_zone(zone), _milliseconds(value))[1], TIMESTAMP, STRING),
        _whole(10**6),
    ],
}
