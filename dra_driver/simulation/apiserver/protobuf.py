"""Kubernetes' protobuf form of objects: read from clients that send it, written for clients that ask for it.

Read is what `kubectl create` sends (namespaces, Deployments, roles and others; all else it sends as JSON) and claims,
whose opaque parameters keep their bytes in no other form; written are claims alone, one at a time. A field that is not
in the table beside this module, `protobuf.yaml`, is refused.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from dra_driver.api.meta import JsonObject, wire_time
from dra_driver.apirules.status import ApiError, bad_request
from dra_driver.bundled import read_yaml

type Shape = dict[int, tuple[str, Any]]
"""Name and form of each field, by its number. The forms are those of the table, of which messages are shapes."""


@dataclass(frozen=True, slots=True)
class Inline:
    """A message without a name of its own in JSON."""

    shape: Shape


@cache
def shapes() -> tuple[Mapping[str, Shape], Mapping[str, Shape]]:
    """Of kinds, and of messages in them, by name."""
    table = read_yaml(files(__package__).joinpath("protobuf.yaml").read_text(encoding="utf-8"))
    kinds: dict[str, Shape] = {name: {} for name in table["kinds"]}
    messages: dict[str, Shape] = {name: {} for name in table["messages"]}
    known = kinds | messages

    def form(text: str) -> Any:
        if text.startswith("list of "):
            return [form(text.removeprefix("list of "))]
        if text.startswith("inline "):
            return Inline(known[text.removeprefix("inline ")])
        return known.get(text, text or "str")

    for name, fields in (table["kinds"] | table["messages"]).items():
        for field, text in fields.items():
            number, _, rest = str(text).partition(" ")
            known[name][int(number)] = field, form(rest)
    return kinds, messages


CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
_NUMBER, _TEXT = 0, 2
"""Wire types."""


SWAGGER_TYPE = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
SWAGGER_SENT = SWAGGER_TYPE.replace("@", ".")
"""What kubectl asks for is no valid media type; servers answer with another one."""


def swagger(version: str) -> bytes:
    """The shell of /openapi/v2, which kubectl reads in this form alone: `Document` of gnostic's OpenAPIv2.proto, with
    the version of OpenAPI, title and version of the server, and no paths."""
    info = _field(1, b"Kubernetes") + _field(2, version.encode())
    return _field(1, b"2.0") + _field(2, info) + _field(8, b"")


def encode(obj: JsonObject) -> bytes | None:
    """None for an object that has no such form here."""
    if (obj["apiVersion"], obj["kind"]) != ("resource.k8s.io/v1", "ResourceClaim"):
        return None
    type_meta = _field(1, obj["apiVersion"].encode()) + _field(2, obj["kind"].encode())
    return _MAGIC + _field(1, type_meta) + _field(2, _encoded(obj, shapes()[0]["ResourceClaim"]))


def decode(body: bytes) -> JsonObject:
    """The object in JSON's form. Raises ApiError 415 for a kind that is not in the table, 400 for broken bytes."""
    if not body.startswith(_MAGIC):
        raise bad_request("the body is not in Kubernetes' protobuf envelope")
    try:
        envelope = dict(_fields(body[len(_MAGIC) :]))
        type_meta = dict(_fields(_bytes(envelope.get(1, b""))))
        api_version, kind = (_bytes(type_meta.get(number, b"")).decode() for number in (1, 2))
        kinds, _ = shapes()
        if kind not in kinds:
            accepted = "accepted media types include: application/json, application/yaml"
            raise ApiError(415, f"a {kind} in protobuf is not understood - {accepted}", details={})
        return {"apiVersion": api_version, "kind": kind, **_message(_bytes(envelope.get(2, b"")), kinds[kind])}
    except (DecodeError, ValueError, OverflowError, OSError, TypeError) as error:
        raise bad_request(f"the protobuf message is broken: {error}") from error


def _message(data: bytes, shape: Shape) -> JsonObject:
    result: JsonObject = {name: "" for name, form in shape.values() if form == "text"}
    for number, value in _fields(data):
        if number not in shape:
            if value and shape is not shapes()[1]["ObjectMeta"]:
                fields = ", ".join(name for name, _ in shape.values() if name)
                raise ApiError(
                    415, f"field {number} beside {fields} is not understood in protobuf; send JSON", details={}
                )
            continue
        name, form = shape[number]
        if form == "unread":
            continue
        if isinstance(form, list):
            result.setdefault(name, []).append(_decoded(value, form[0]))
        elif form in ("map", "bytes", "quantities"):
            entry = dict(_fields(_bytes(value)))
            key, content = _bytes(entry.get(1, b"")).decode(), _bytes(entry.get(2, b""))
            result.setdefault(name, {})[key] = _entry(content, form)
        elif isinstance(form, Inline):
            result |= _message(_bytes(value), form.shape)
        else:
            result[name] = _decoded(value, form)
    return {name: value for name, value in result.items() if value != "" or (name, "text") in shape.values()}


def _entry(content: bytes, form: str) -> str:
    if form == "bytes":
        return base64.b64encode(content).decode()
    return _bytes(dict(_fields(content)).get(1, b"")).decode() if form == "quantities" else content.decode()


def _decoded(value: int | bytes, form: Any) -> Any:
    if isinstance(form, dict):
        return _message(_bytes(value), form)
    if form in ("str", "text"):
        return _bytes(value).decode()
    if form == "raw":
        return json.loads(_bytes(dict(_fields(_bytes(value))).get(1, b"null")))
    if form == "time":
        if not value:
            return ""
        seconds = dict(_fields(_bytes(value))).get(1, 0)
        return wire_time(datetime.fromtimestamp(_signed(seconds), UTC))
    if form == "count":
        return _signed(value) or ""
    if form == "flag":
        return bool(value) or ""
    if form == "number or name":
        parts = dict(_fields(_bytes(value)))
        return _bytes(parts.get(3, b"")).decode() if parts.get(1) else _signed(parts.get(2, 0))
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
    """Field numbers with their raw values, in order. Kubernetes has no numbers of fixed width."""
    fields = UnknownFieldSet(Empty.FromString(data))
    for field in (fields[index] for index in range(len(fields))):
        if field.wire_type in (_NUMBER, _TEXT):
            yield field.field_number, field.data


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
    if isinstance(form, dict):
        return _encoded(value, form)
    if form == "raw":
        return _field(1, json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())
    if form == "time":
        return _number(1 << 3) + _number(int(datetime.fromisoformat(value).timestamp()) % (1 << 64))
    return str(value).encode()


def _field(number: int, content: bytes) -> bytes:
    return _number(number << 3 | _TEXT) + _number(len(content)) + content


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
