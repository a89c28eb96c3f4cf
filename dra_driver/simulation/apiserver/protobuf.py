"""Kubernetes' protobuf form of objects: read from clients that send it, written for clients that ask for it.

Read is what `kubectl create` sends (namespaces, Deployments, roles and others; all else it sends as JSON) and claims,
whose opaque parameters keep their bytes in no other form; written are claims alone, one at a time. A field that is not
in the tables is refused.

First the fields of each message, by number: name and form. Forms: str, text (a str that is there also when empty), int,
count (an int that is left out when 0), bool, flag (a bool that is left out when false), number or name, time, raw (any
JSON), map (of strings), bytes (map of bytes), quantities (map of them), unread, a nested message, Inline (its fields
are the outer object's in JSON), and a list of one form for what is repeated. The numbers are those of the published
`generated.proto` files of k8s.io/api and k8s.io/apimachinery.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dra_driver.api.meta import JsonObject
from dra_driver.apirules.status import ApiError, bad_request
from dra_driver.simulation.apiserver.protobuf_workloads import workload_shapes

type Shape = Mapping[int, tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class Inline:
    """A message without a name of its own in JSON."""

    shape: Shape


_OWNER: Shape = {
    1: ("kind", "str"),
    3: ("name", "str"),
    4: ("uid", "str"),
    5: ("apiVersion", "str"),
    6: ("controller", "bool"),
    7: ("blockOwnerDeletion", "bool"),
}
_META: Shape = {
    1: ("name", "str"),
    2: ("generateName", "str"),
    3: ("namespace", "str"),
    4: ("selfLink", "str"),
    5: ("uid", "str"),
    6: ("resourceVersion", "str"),
    7: ("generation", "count"),
    8: ("creationTimestamp", "time"),
    9: ("deletionTimestamp", "time"),
    10: ("deletionGracePeriodSeconds", "int"),
    11: ("labels", "map"),
    12: ("annotations", "map"),
    13: ("ownerReferences", [_OWNER]),
    14: ("finalizers", ["str"]),
}
_DELETE_OPTIONS: Shape = {
    1: ("gracePeriodSeconds", "int"),
    2: ("preconditions", {1: ("uid", "str"), 2: ("resourceVersion", "str")}),
    3: ("orphanDependents", "bool"),
    4: ("propagationPolicy", "str"),
    5: ("dryRun", ["str"]),
}
_ACCESS: Shape = {
    1: (
        "resourceAttributes",
        {
            1: ("namespace", "str"),
            2: ("verb", "str"),
            3: ("group", "str"),
            4: ("version", "str"),
            5: ("resource", "str"),
            6: ("subresource", "str"),
            7: ("name", "str"),
        },
    ),
    2: ("nonResourceAttributes", {1: ("path", "str"), 2: ("verb", "str")}),
}

_TOLERATION: Shape = {
    1: ("key", "str"),
    2: ("operator", "str"),
    3: ("value", "str"),
    4: ("effect", "str"),
    5: ("tolerationSeconds", "int"),
}
_SELECTOR: Shape = {1: ("cel", {1: ("expression", "str")})}
_CAPACITY: Shape = {1: ("requests", "quantities")}
_EXACTLY: Shape = {
    1: ("deviceClassName", "str"),
    2: ("selectors", [_SELECTOR]),
    3: ("allocationMode", "str"),
    4: ("count", "count"),
    5: ("adminAccess", "bool"),
    6: ("tolerations", [_TOLERATION]),
    7: ("capacity", _CAPACITY),
}
_ALTERNATIVE: Shape = {
    1: ("name", "str"),
    2: ("deviceClassName", "str"),
    3: ("selectors", [_SELECTOR]),
    4: ("allocationMode", "str"),
    5: ("count", "count"),
    6: ("tolerations", [_TOLERATION]),
    7: ("capacity", _CAPACITY),
}
_REQUEST: Shape = {1: ("name", "str"), 2: ("exactly", _EXACTLY), 3: ("firstAvailable", [_ALTERNATIVE])}
_CONSTRAINT: Shape = {1: ("requests", ["str"]), 2: ("matchAttribute", "str"), 3: ("distinctAttribute", "str")}
_CONFIGURATION = Inline({1: ("opaque", {1: ("driver", "str"), 2: ("parameters", "raw")})})
_SPEC: Shape = {
    1: (
        "devices",
        {
            1: ("requests", [_REQUEST]),
            2: ("constraints", [_CONSTRAINT]),
            3: ("config", [{1: ("requests", ["str"]), 2: ("", _CONFIGURATION)}]),
        },
    )
}
_RESULT: Shape = {
    1: ("request", "str"),
    2: ("driver", "str"),
    3: ("pool", "str"),
    4: ("device", "str"),
    5: ("adminAccess", "bool"),
    6: ("tolerations", [_TOLERATION]),
    7: ("bindingConditions", ["str"]),
    8: ("bindingFailureConditions", ["str"]),
    9: ("shareID", "str"),
    10: ("consumedCapacity", "quantities"),
}
_REQUIREMENT: Shape = {1: ("key", "str"), 2: ("operator", "str"), 3: ("values", ["str"])}
_TERM: Shape = {1: ("matchExpressions", [_REQUIREMENT]), 2: ("matchFields", [_REQUIREMENT])}
_ALLOCATION: Shape = {
    1: (
        "devices",
        {
            1: ("results", [_RESULT]),
            2: ("config", [{1: ("source", "str"), 2: ("requests", ["str"]), 3: ("", _CONFIGURATION)}]),
        },
    ),
    3: ("nodeSelector", {1: ("nodeSelectorTerms", [_TERM])}),
    5: ("allocationTimestamp", "time"),
}
_CONSUMER: Shape = {1: ("apiGroup", "str"), 3: ("resource", "str"), 4: ("name", "str"), 5: ("uid", "str")}
_CONDITION: Shape = {
    1: ("type", "str"),
    2: ("status", "str"),
    3: ("observedGeneration", "count"),
    4: ("lastTransitionTime", "time"),
    5: ("reason", "str"),
    6: ("message", "text"),
}
_DEVICE_STATUS: Shape = {
    1: ("driver", "str"),
    2: ("pool", "str"),
    3: ("device", "str"),
    4: ("conditions", [_CONDITION]),
    5: ("data", "raw"),
    6: ("networkData", {1: ("interfaceName", "str"), 2: ("ips", ["str"]), 3: ("hardwareAddress", "str")}),
    7: ("shareID", "str"),
}
CLAIM: Shape = {
    1: ("metadata", _META),
    2: ("spec", _SPEC),
    3: (
        "status",
        {1: ("allocation", _ALLOCATION), 2: ("reservedFor", [_CONSUMER]), 4: ("devices", [_DEVICE_STATUS])},
    ),
}

KINDS: Mapping[str, Shape] = {
    "Namespace": {1: ("metadata", _META), 2: ("spec", {1: ("finalizers", ["str"])}), 3: ("status", "unread")},
    "ConfigMap": {1: ("metadata", _META), 2: ("data", "map"), 3: ("binaryData", "bytes"), 4: ("immutable", "bool")},
    "Secret": {
        1: ("metadata", _META),
        2: ("data", "bytes"),
        3: ("type", "str"),
        4: ("stringData", "map"),
        5: ("immutable", "bool"),
    },
    "ServiceAccount": {1: ("metadata", _META)},
    "DeleteOptions": _DELETE_OPTIONS,
    "Eviction": {1: ("metadata", _META), 2: ("deleteOptions", _DELETE_OPTIONS)},
    "SelfSubjectAccessReview": {1: ("metadata", _META), 2: ("spec", _ACCESS), 3: ("status", "unread")},
    "SelfSubjectRulesReview": {
        1: ("metadata", _META),
        2: ("spec", {1: ("namespace", "str")}),
        3: ("status", "unread"),
    },
    "SelfSubjectReview": {1: ("metadata", _META), 2: ("status", "unread")},
    "ResourceClaim": CLAIM,
    **workload_shapes(_META, _TOLERATION, Inline),
}


CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"


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
            if value and shape is not _META:
                fields = ", ".join(name for name, _ in shape.values() if name)
                raise ApiError(
                    415, f"field {number} beside {fields} is not understood in protobuf; send JSON", details={}
                )
            continue
        name, form = shape[number]
        if form == "unread":
            continue
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
