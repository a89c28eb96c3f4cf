"""Request bodies that kubectl sends as protobuf: those of `create namespace`, `create configmap`, `auth can-i`.

Everything else of kubectl, and every client of ours, speaks JSON. The field numbers are those of the published
`generated.proto` files of k8s.io/api and k8s.io/apimachinery.
"""

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from dra_driver.api.meta import JsonObject
from dra_driver.simulation.apiserver.status import ApiError, bad_request

CONTENT_TYPE = "application/vnd.kubernetes.protobuf"
_MAGIC = b"k8s\x00"

# A message: field number to name and form. Forms: str, int, bool, strs (repeated), map (of strings), bytes (map of
# bytes), or a nested message.
type _Message = Mapping[int, tuple[str, Any]]

_META: _Message = {
    1: ("name", "str"),
    2: ("generateName", "str"),
    3: ("namespace", "str"),
    5: ("uid", "str"),
    6: ("resourceVersion", "str"),
    11: ("labels", "map"),
    12: ("annotations", "map"),
    14: ("finalizers", "strs"),
}
_DELETE_OPTIONS: _Message = {
    1: ("gracePeriodSeconds", "int"),
    2: ("preconditions", {1: ("uid", "str"), 2: ("resourceVersion", "str")}),
    3: ("orphanDependents", "bool"),
    4: ("propagationPolicy", "str"),
    5: ("dryRun", "strs"),
}
_ACCESS: _Message = {
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
_KINDS: Mapping[str, _Message] = {
    "Namespace": {1: ("metadata", _META), 2: ("spec", {1: ("finalizers", "strs")})},
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
    "SelfSubjectAccessReview": {1: ("metadata", _META), 2: ("spec", _ACCESS)},
    "SelfSubjectRulesReview": {1: ("metadata", _META), 2: ("spec", {1: ("namespace", "str")})},
    "SelfSubjectReview": {1: ("metadata", _META)},
}


def decode(body: bytes) -> JsonObject:
    """The object in JSON's form. Raises ApiError 415 for a kind that is not in the table, 400 for broken bytes."""
    if not body.startswith(_MAGIC):
        raise bad_request("the body is not in Kubernetes' protobuf envelope")
    try:
        envelope = dict(_fields(body[len(_MAGIC) :]))
        type_meta = dict(_fields(_bytes(envelope.get(1, b""))))
        api_version, kind = (_bytes(type_meta.get(number, b"")).decode() for number in (1, 2))
        if kind not in _KINDS:
            accepted = "accepted media types include: application/json, application/yaml"
            raise ApiError(415, f"a {kind} in protobuf is not understood - {accepted}", details={})
        return {"apiVersion": api_version, "kind": kind, **_message(_bytes(envelope.get(2, b"")), _KINDS[kind])}
    except (IndexError, UnicodeDecodeError, TypeError) as error:
        raise bad_request(f"the protobuf message is broken: {error}") from error


def _message(data: bytes, shape: _Message) -> JsonObject:
    result: JsonObject = {}
    for number, value in _fields(data):
        if number not in shape:
            continue
        name, form = shape[number]
        if isinstance(form, Mapping):
            result[name] = _message(_bytes(value), form)
        elif form in ("map", "bytes"):
            entry = dict(_fields(_bytes(value)))
            key, content = _bytes(entry.get(1, b"")).decode(), _bytes(entry.get(2, b""))
            text = base64.b64encode(content).decode() if form == "bytes" else content.decode()
            result.setdefault(name, {})[key] = text
        elif form == "strs":
            result.setdefault(name, []).append(_bytes(value).decode())
        elif form == "str":
            result[name] = _bytes(value).decode()
        else:
            result[name] = bool(value) if form == "bool" else value
    return {name: value for name, value in result.items() if value != ""}


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
