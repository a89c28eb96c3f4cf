"""Kubernetes' protobuf form of objects: read from those who send it, written for those who ask for it.

Read is what kubectl sends (`create namespace`, `create configmap`, `auth can-i`) and claims, whose opaque parameters
keep their bytes in no other form; written are claims alone, one at a time. Everything else of kubectl, and of our
clients, is JSON. Which fields there are is said in `protobuf_shapes.py`.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from dra_driver.api.meta import JsonObject
from dra_driver.apirules.status import ApiError, bad_request
from dra_driver.simulation.apiserver.protobuf_shapes import CLAIM, KINDS, Inline, Shape

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"


def encode(obj: JsonObject) -> bytes | None:
    """None for an object that has no such form here."""
    if (obj["apiVersion"], obj["kind"]) != ("resource.k8s.io/v1", "ResourceClaim"):
        return None
    type_meta = _field(1, obj["apiVersion"].encode()) + _field(2, obj["kind"].encode())
    return _MAGIC + _field(1, type_meta) + _field(2, _encoded(obj, CLAIM))


def decode(body: bytes) -> JsonObject:
    """The object in JSON's form. Raises ApiError 415 for a kind that is not in the table, 400 for broken bytes."""
    if not body.startswith(_MAGIC):
        raise bad_request("the body is not in Kubernetes' protobuf envelope")
    try:
        envelope = dict(_fields(body[len(_MAGIC) :]))
        type_meta = dict(_fields(_bytes(envelope.get(1, b""))))
        api_version, kind = (_bytes(type_meta.get(number, b"")).decode() for number in (1, 2))
        if kind not in KINDS:
            accepted = "accepted media types include: application/json, application/yaml"
            raise ApiError(415, f"a {kind} in protobuf is not understood - {accepted}", details={})
        return {"apiVersion": api_version, "kind": kind, **_message(_bytes(envelope.get(2, b"")), KINDS[kind])}
    except (IndexError, ValueError, OverflowError, OSError, TypeError) as error:
        raise bad_request(f"the protobuf message is broken: {error}") from error


def _message(data: bytes, shape: Shape) -> JsonObject:
    result: JsonObject = {name: "" for name, form in shape.values() if form == "text"}
    for number, value in _fields(data):
        if number not in shape:
            continue
        name, form = shape[number]
        if isinstance(form, list):
            result.setdefault(name, []).append(_one(value, form[0]))
        elif form in ("map", "bytes", "quantities"):
            entry = dict(_fields(_bytes(value)))
            key, content = _bytes(entry.get(1, b"")).decode(), _bytes(entry.get(2, b""))
            result.setdefault(name, {})[key] = _entry(content, form)
        elif isinstance(form, Inline):
            result |= _message(_bytes(value), form.shape)
        else:
            result[name] = _one(value, form)
    return {name: value for name, value in result.items() if value != "" or (name, "text") in shape.values()}


def _entry(content: bytes, form: str) -> str:
    if form == "bytes":
        return base64.b64encode(content).decode()
    return _bytes(dict(_fields(content)).get(1, b"")).decode() if form == "quantities" else content.decode()


def _one(value: int | bytes, form: Any) -> Any:
    if isinstance(form, Mapping):
        return _message(_bytes(value), form)
    if form in ("str", "text"):
        return _bytes(value).decode()
    if form == "raw":
        return json.loads(_bytes(dict(_fields(_bytes(value))).get(1, b"null")))
    if form == "time":
        if not value:
            return ""
        seconds = dict(_fields(_bytes(value))).get(1, 0)
        return datetime.fromtimestamp(_signed(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if form == "count":
        return _signed(value) or ""
    return bool(value) if form == "bool" else _signed(value)


def _signed(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise TypeError("text stands where a number is expected")
    return value - (1 << 64) if value >> 63 else value


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, bytes):
        return value
    raise TypeError("a number stands where text or a message is expected")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers with their raw values, in order."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _varint(data, at)
            yield number, value
        elif wire == 2:
            length, at = _varint(data, at)
            if at + length > len(data):
                raise IndexError("a field is cut off")
            yield number, data[at : at + length]
            at += length
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        else:
            raise TypeError(f"wire type {wire} is not in use")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at


def _encoded(obj: JsonObject, shape: Shape) -> bytes:
    out = b""
    for number, (name, form) in shape.items():
        if isinstance(form, Inline):
            out += _field(number, _encoded(obj, form.shape))
        elif (value := obj.get(name)) is None:
            continue
        elif isinstance(form, list):
            out += b"".join(_field(number, _content(item, form[0])) for item in value)
        elif form in ("map", "quantities"):
            for key, item in value.items():
                content = item.encode()
                pair = _field(1, key.encode()) + _field(2, content if form == "map" else _field(1, content))
                out += _field(number, pair)
        elif form in ("int", "count", "bool"):
            out += _number(number << 3) + _number(int(value) % (1 << 64))
        else:
            out += _field(number, _content(value, form))
    return out


def _content(value: Any, form: Any) -> bytes:
    if isinstance(form, Mapping):
        return _encoded(value, form)
    if form == "raw":
        return _field(1, json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())
    if form == "time":
        return _number(1 << 3) + _number(int(datetime.fromisoformat(value).timestamp()) % (1 << 64))
    return str(value).encode()


def _field(number: int, content: bytes) -> bytes:
    return _number(number << 3 | 2) + _number(len(content)) + content


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
