"""Holds and what is remembered of them as JSON objects, for `kubelet_plugin.prepare.journal`. Pure.

A hold is a value, and one that is only half understood would be another hold. So a hold of an unknown kind, or with a
field that this release does not know, is kept whole as `UnknownHold`: its claim can be answered, but neither made nor
undone. A field at its default is not written, so a later release may add fields that older ones never meet.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, cast

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel, to_snake

from dra_driver.api.meta import Model
from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    ComputeMode,
    GpuInstance,
    Hold,
    HoldRecord,
    HoldState,
    Made,
    MigMode,
    MpsDaemon,
    TimeSlice,
    UnknownHold,
    VfioBinding,
)

_KIND = "kind"

_KINDS: Mapping[str, type[Any]] = {
    "mig-mode": MigMode,
    "gpu-instance": GpuInstance,
    "compute-instance": ComputeInstance,
    "compute-mode": ComputeMode,
    "time-slice": TimeSlice,
    "mps-daemon": MpsDaemon,
    "vfio-binding": VfioBinding,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


class _Record(Model):
    hold: dict[str, Any]
    state: HoldState
    boot_id: str = Field(alias="bootID")
    made: dict[str, str] = Field(default_factory=dict)


_CHECKSUM_DIGITS = 32
_OBJECT = TypeAdapter(dict[str, Any])


def line_of(obj: Mapping[str, Any]) -> bytes:
    """An object as a line with its checksum: see `kubelet_plugin.prepare.journal`."""
    text = _text(obj).encode()
    return b"%s %s\n" % (_checksum(text), text)


def object_of(line: bytes) -> dict[str, Any]:
    """What `line_of` made this of, without its end. Raises ValueError."""
    checksum, _, text = line.partition(b" ")
    if checksum != _checksum(text):
        raise ValueError("the checksum does not fit")
    return _OBJECT.validate_json(text)


def _checksum(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:_CHECKSUM_DIGITS].encode()


RECORD_FIELDS = frozenset(info.alias or name for name, info in _Record.model_fields.items())


def hold_to_wire(hold: Hold) -> dict[str, Any]:
    if isinstance(hold, UnknownHold):
        found: dict[str, Any] = json.loads(hold.text)
        return found
    return {_KIND: _NAMES[type(hold)], **plain(hold)}


def hold_from_wire(obj: Mapping[str, Any]) -> Hold:
    """Raises ValueError when the object has no kind."""
    name = obj.get(_KIND)
    if not isinstance(name, str):
        raise ValueError("a hold without kind")
    kind = _KINDS.get(name)
    if kind is not None:
        try:
            hold: Hold = from_plain(kind, {key: value for key, value in obj.items() if key != _KIND})
            return hold
        except ValueError:
            pass
    return UnknownHold(name, _text(obj))


def record_to_wire(hold: Hold, record: HoldRecord) -> dict[str, Any]:
    model = _Record(hold=hold_to_wire(hold), state=record.state, boot_id=record.boot_id, made=dict(record.made.facts))
    return {**(json.loads(record.extra) if record.extra else {}), **model.to_wire()}


def record_from_wire(obj: dict[str, Any]) -> tuple[Hold, HoldRecord]:
    """Raises ValueError, or its child ValidationError, for what is no record."""
    model = _Record.model_validate(obj)
    unknown = {key: value for key, value in obj.items() if key not in RECORD_FIELDS}
    record = HoldRecord(
        model.state, model.boot_id, Made(tuple(sorted(model.made.items()))), _text(unknown) if unknown else ""
    )
    return hold_from_wire(model.hold), record


def plain(value: Any) -> Any:
    """A dataclass of this journal as JSON has it, in camelCase and without what is at its default."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    if not is_dataclass(value):
        return value
    own = ((field, getattr(value, field.name)) for field in fields(value))
    return {to_camel(field.name): plain(found) for field, found in own if found != field.default}


def from_plain[T](kind: type[T], obj: object) -> T:
    """The value that `plain` made this of. Raises ValueError for anything else, unknown fields included."""
    try:
        value: T = _adapter(cast(Any, kind)).validate_python(_snake(obj))
    except ValidationError as error:
        raise ValueError(f"{kind.__name__}: {error.errors()[0]['msg']}") from error
    if plain(value) != obj:
        raise ValueError(f"{kind.__name__}: fields that are not known")
    return value


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _snake(obj: Any) -> Any:
    if isinstance(obj, dict):
        return {to_snake(key): _snake(value) for key, value in obj.items()}
    return [_snake(one) for one in obj] if isinstance(obj, list) else obj


def _text(obj: Mapping[str, Any]) -> str:
    return json.dumps(obj, separators=(",", ":"), sort_keys=True)
