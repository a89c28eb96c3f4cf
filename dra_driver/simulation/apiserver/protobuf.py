"""Kubernetes' protobuf form of objects: read from clients that send it, written for clients that ask for it.

Read is what `kubectl create` sends (namespaces, Deployments, roles and others; all else it sends as JSON) and claims,
whose opaque parameters keep their bytes in no other form; written are claims alone, one at a time. The messages are
made of the table beside this module, `protobuf.yaml`. A field that is not in it is refused.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from dra_driver.api.meta import JsonObject, wire_time
from dra_driver.apirules.status import ApiError, bad_request
from dra_driver.bundled import read_yaml


@dataclass(frozen=True, slots=True)
class FieldForm:
    """Of a field, in the words of the table; `of` is a message by its name, or how a value of JSON is written."""

    of: str
    is_list: bool = False
    inline: bool = False


@cache
def _source() -> Mapping[str, Mapping[str, Mapping[str, object]]]:
    known: JsonObject = read_yaml(files(__package__).joinpath("protobuf.yaml").read_text(encoding="utf-8"))
    return known


@cache
def table() -> Mapping[str, Mapping[str, tuple[int, FieldForm]]]:
    """Number and form of each field, by message."""
    return {
        name: {field: _read(str(text)) for field, text in fields.items()}
        for part in _source().values()
        for name, fields in part.items()
    }


def _read(text: str) -> tuple[int, FieldForm]:
    number, _, form = text.partition(" ")
    of = form.removeprefix("list of ").removeprefix("inline ") or "str"
    return int(number), FieldForm(of, form.startswith("list of ") or of in _MAPS, form.startswith("inline "))


_SCALARS = {
    **dict.fromkeys(("str", "text"), FieldDescriptorProto.TYPE_STRING),
    **dict.fromkeys(("int", "count"), FieldDescriptorProto.TYPE_INT64),
    **dict.fromkeys(("bool", "flag"), FieldDescriptorProto.TYPE_BOOL),
    **dict.fromkeys(("raw bytes", "unread"), FieldDescriptorProto.TYPE_BYTES),
}
_MAPS = {"map": "MapEntry", "bytes": "BytesEntry", "quantities": "QuantityEntry"}
_MESSAGES = {**_MAPS, "time": "Time", "raw": "RawExtension", "number or name": "IntOrString"}
"""What carries values that are no messages in JSON."""


@cache
def _pool() -> DescriptorPool:
    file = FileDescriptorProto(name="kubernetes.proto", package="k8s", syntax="proto2")
    for name, fields in table().items():
        message = file.message_type.add(name=name)
        for field, (number, form) in fields.items():
            label = FieldDescriptorProto.LABEL_REPEATED if form.is_list else FieldDescriptorProto.LABEL_OPTIONAL
            described = message.field.add(name=field, number=number, label=label)
            described.type = _SCALARS.get(form.of, FieldDescriptorProto.TYPE_MESSAGE)
            if form.of not in _SCALARS:
                described.type_name = f".k8s.{_MESSAGES.get(form.of, form.of)}"
    pool = DescriptorPool()
    pool.Add(file)
    return pool


def _new(name: str) -> Any:
    return GetMessageClass(_pool().FindMessageTypeByName(f"k8s.{name}"))()


CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"
SWAGGER_TYPE = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
SWAGGER_SENT = SWAGGER_TYPE.replace("@", ".")
"""What kubectl asks for is no valid media type; servers answer with another one."""


def swagger(version: str) -> bytes:
    """The shell of /openapi/v2, which kubectl reads in this form alone: the version of OpenAPI, title and version of
    the server, and no paths."""
    info = {"title": "Kubernetes", "version": version}
    return _written({"swagger": "2.0", "info": info, "paths": {}}, _new("SwaggerDocument"))


def encode(obj: JsonObject) -> bytes | None:
    """None for an object that has no such form here."""
    if (obj["apiVersion"], obj["kind"]) != ("resource.k8s.io/v1", "ResourceClaim"):
        return None
    envelope = _new("Envelope")
    envelope.raw = _written(obj, _new("ResourceClaim"))
    return _MAGIC + _written({"typeMeta": obj}, envelope)


def decode(body: bytes) -> JsonObject:
    """The object in JSON's form. Raises ApiError 415 for a kind that is not in the table, 400 for broken bytes."""
    if not body.startswith(_MAGIC):
        raise bad_request("the body is not in Kubernetes' protobuf envelope")
    try:
        envelope = _new("Envelope")
        envelope.ParseFromString(body[len(_MAGIC) :])
        kind = envelope.typeMeta.kind
        if kind not in _source()["kinds"]:
            accepted = "accepted media types include: application/json, application/yaml"
            raise ApiError(415, f"a {kind} in protobuf is not understood - {accepted}", details={})
        message = _new(kind)
        message.ParseFromString(envelope.raw)
        return {"apiVersion": envelope.typeMeta.apiVersion, "kind": kind, **_object(message)}
    except (DecodeError, ValueError, OverflowError, OSError, TypeError) as error:
        raise bad_request(f"the protobuf message is broken: {error}") from error


def _object(message: Message) -> JsonObject:
    """In JSON. Texts, times, counts and flags without a value are left out."""
    name, unknown = message.DESCRIPTOR.name, UnknownFieldSet(message)
    for field in (unknown[index] for index in range(len(unknown))):
        if field.data and name != "ObjectMeta":
            fields = ", ".join(table()[name])
            why = f"field {field.field_number} beside {fields} is not understood in protobuf; send JSON"
            raise ApiError(415, why, details={})
    result: JsonObject = {}
    for key, (_, form) in table()[name].items():
        value = getattr(message, key)
        if form.of == "unread" or not (value if form.is_list else form.of == "text" or message.HasField(key)):
            continue
        if form.of in _MAPS:
            result[key] = {entry.key: _json(entry.value, form.of) for entry in value}
        elif form.is_list:
            result[key] = [_json(item, form.of) for item in value]
        elif form.inline:
            result |= _object(value)
        elif (shown := _json(value, form.of)) != "" or form.of == "text":
            result[key] = shown
    return result


def _json(value: Any, form: str) -> Any:
    if form in ("count", "flag"):
        return value or ""
    if form in _SCALARS or form == "map":
        return value
    if form == "bytes":
        return base64.b64encode(value).decode()
    if form == "quantities":
        return value.string
    if form == "raw":
        return json.loads(value.raw or b"null")
    if form == "time":
        return wire_time(datetime.fromtimestamp(value.seconds, UTC)) if value.ByteSize() else ""
    if form == "number or name":
        return value.strVal if value.type else value.intVal
    return _object(value)


def _written(obj: JsonObject, message: Any) -> bytes:
    _fill(message, obj)
    written: bytes = message.SerializeToString()
    return written


def _fill(message: Any, obj: Any) -> None:
    for name, (_, form) in table()[message.DESCRIPTOR.name].items():
        value: Any = obj if form.inline else obj.get(name)
        place = getattr(message, name)
        if value is None:
            continue
        if form.of in _MAPS:
            for key, item in value.items():
                place.add(key=key, value={"string": item} if form.of == "quantities" else item)
        elif form.of in _SCALARS and form.is_list:
            place.extend(value)
        elif form.of in _SCALARS:
            setattr(message, name, value)
        else:
            for item in value if form.is_list else (value,):
                inner = place.add() if form.is_list else place
                inner.SetInParent()
                if form.of == "raw":
                    inner.raw = json.dumps(item, separators=(",", ":"), ensure_ascii=False).encode()
                elif form.of == "time":
                    inner.seconds = int(datetime.fromisoformat(item).timestamp())
                else:
                    _fill(inner, item)
