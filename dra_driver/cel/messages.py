"""Messages that an expression can build, such as `google.protobuf.Int64Value{value: 3}`: their fields and values.

An API server knows the well-known types of Protobuf. A wrapper is its value, but its type also takes null. `Any` is
left out: it holds any message in bytes.

Source: cel-go's common/types (pb, provider); compared with a Kubernetes API server.
"""

import struct
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dra_driver.cel.library.times import duration_text, timestamp_text
from dra_driver.cel.overloads import Failed
from dra_driver.cel.types import (
    BOOL,
    BYTES,
    DOUBLE,
    DURATION,
    DYN,
    EMPTY,
    INT,
    STRING,
    TIMESTAMP,
    UINT,
    Type,
    list_of,
    map_of,
    type_name,
    wrapper_of,
)
from dra_driver.cel.values import INT_MAX, INT_MIN, Duration, Empty, Optional, Timestamp, Uint

type Fields = Mapping[str, object]

NOT_JUDGED = "google.protobuf.Any"
_NANOSECONDS = 10**9
_EXACT = 2**53


@dataclass(frozen=True, slots=True)
class Message:
    """`make` gets the fields that were given, in their order, and raises Failed."""

    type: Type
    fields: Mapping[str, Type]
    make: Callable[[Fields], object]


def _wrapper(kind: Type, zero: object, narrowed: Callable[[object], object] = lambda value: value) -> Message:
    return Message(wrapper_of(kind), {"value": kind}, lambda given: narrowed(given.get("value", zero)))


def _within[T](low: int, high: int) -> Callable[[object], object]:
    def narrowed(value: object) -> object:
        if not isinstance(value, int) or not low <= value <= high:
            raise Failed("field type conversion error: integer overflow")
        return value

    return narrowed


def _single(value: object) -> object:
    """As a float of 32 bits."""
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return float("inf") if isinstance(value, float) and value > 0 else float("-inf")


def _moment(given: Fields) -> int:
    seconds, nanoseconds = given.get("seconds", 0), given.get("nanos", 0)
    assert isinstance(seconds, int) and isinstance(nanoseconds, int)
    _within(-(2**31), 2**31 - 1)(nanoseconds)
    return seconds * _NANOSECONDS + nanoseconds


def _value(given: Fields) -> object:
    """The last field counts; with several, an API server takes any of them, another one each time."""
    return _json(list(given.values())[-1]) if given and list(given)[-1] != "null_value" else None


def _json(value: object) -> object:
    match value:
        case bool() | str() | None | float():
            return value
        case int():
            return float(value) if -_EXACT < value < _EXACT else str(int(value))
        case bytes():
            return b64encode(value).decode()
        case Duration():
            return duration_text(value)
        case Timestamp():
            return timestamp_text(value)
        case Empty():
            return {}
        case Optional(present=True, value=inner):
            return _json(inner)
        case tuple():
            return tuple(map(_json, value))
        case Mapping():
            if all(isinstance(key, str) for key in value):
                return {key: _json(item) for key, item in value.items()}
    raise Failed(f"field type conversion error: {type_name(value)} is no JSON value")


_TIME: Mapping[str, Type] = {"seconds": INT, "nanos": INT}
_INT32, _UINT32 = _within(-(2**31), 2**31 - 1), _within(0, 2**32 - 1)

MESSAGES: Mapping[str, Message] = {
    f"google.protobuf.{name}": message
    for name, message in {
        "BoolValue": _wrapper(BOOL, False),
        "BytesValue": _wrapper(BYTES, b""),
        "DoubleValue": _wrapper(DOUBLE, 0.0),
        "FloatValue": _wrapper(DOUBLE, 0.0, _single),
        "Int32Value": _wrapper(INT, 0, _INT32),
        "Int64Value": _wrapper(INT, 0),
        "StringValue": _wrapper(STRING, ""),
        "UInt32Value": _wrapper(UINT, Uint(0), _UINT32),
        "UInt64Value": _wrapper(UINT, Uint(0)),
        "Duration": Message(DURATION, _TIME, lambda given: Duration(max(INT_MIN, min(INT_MAX, _moment(given))))),
        "Timestamp": Message(TIMESTAMP, _TIME, lambda given: Timestamp(_moment(given))),
        "Empty": Message(EMPTY, {}, lambda _: Empty()),
        "ListValue": Message(list_of(DYN), {"values": list_of(DYN)}, lambda given: _json(given.get("values", ()))),
        "Struct": Message(
            map_of(STRING, DYN), {"fields": map_of(STRING, DYN)}, lambda given: _json(given.get("fields", {}))
        ),
        "Value": Message(
            DYN,
            {
                "null_value": INT,
                "number_value": DOUBLE,
                "string_value": STRING,
                "bool_value": BOOL,
                "struct_value": map_of(STRING, DYN),
                "list_value": list_of(DYN),
            },
            _value,
        ),
    }.items()
}


def made(message: Message, given: Fields) -> object:
    """Raises Failed for a field of another type, where the check could not know it."""
    for name, value in given.items():
        if type_name(value) != message.fields[name].name:
            raise Failed(f"field type conversion error: {name} cannot be {type_name(value)}")
    return message.make(given)
