"""The journal as text: blocks of a header, lines for claims, and lines for holds. Pure: bytes in and out.

The first block is a whole journal (`encode`); each later one is a change to what the blocks before it say
(`encode_change`). Only `kubelet_plugin.prepare.store` reads and writes the bytes. Every line is

    <first 32 hex digits of the SHA-256 of the rest> <JSON object>

A line that fails its checksum costs that line only. Fields have the names of the dataclasses, in camelCase; a field at
its default is left out. The rules between releases, so that two can share the file during a rolling update, and a
downgrade works:

* Fields are only added. A reader keeps fields that it does not know, and writes them back (`extra`).
* A hold of an unknown kind, or with an unknown field, would be another hold if it were half understood. It is kept
  whole (`UnknownHold`): its claim can be answered, but the hold can be neither made nor undone.
* A release whose entries would mislead an older one raises `minReader`. An older one then touches nothing
  (`Unreadable`).
* A header counts the lines of its block, so that a file that lost its end is noticed. A change whose lines are not all
  there is `unfinished`: a process was killed while it wrote it, or another one writes it now. Whole changes that are
  missing at the end are noticed by the log of holds only.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from functools import cache, lru_cache
from types import NoneType
from typing import Any, Literal, cast

from pydantic import TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel, to_snake

from dra_driver.errors import CorruptState, Help, Move
from dra_driver.names import ClaimRef
from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    ComputeMode,
    FabricPartition,
    GpuInstance,
    Hold,
    HoldRecord,
    Made,
    MigMode,
    MpsDaemon,
    Records,
    SwitchedMode,
    TimeSlice,
    UnknownHold,
    VfioBinding,
)
from kubelet_plugin.prepare.lifecycle import BindingStage, Entry, Held, HeldDevice

VERSION = 1

_KIND = "kind"
_KINDS: Mapping[str, type[Any]] = {
    "mig-mode": MigMode,
    "gpu-instance": GpuInstance,
    "compute-instance": ComputeInstance,
    "fabric-partition": FabricPartition,
    "compute-mode": ComputeMode,
    "time-slice": TimeSlice,
    "mps-daemon": MpsDaemon,
    "vfio-binding": VfioBinding,
    "switched-mode": SwitchedMode,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_CHECKSUM_DIGITS = 32
_REMEMBERED_LINES = 128
"""A node seldom has more claims. Each takes 2 KiB, also those that are released."""
_OBJECT, _FACTS = TypeAdapter(dict[str, Any]), TypeAdapter(dict[str, str])


@dataclass(frozen=True, slots=True)
class Damage:
    """A line that cannot be trusted, as it is in the file, and why; an empty line stands for what is missing."""

    line: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class DomainName:
    """A ComputeDomain, and the clique that this node has in it."""

    namespace: str
    name: str
    uid: str
    clique: str = ""


@dataclass(frozen=True, slots=True)
class DomainDevice:
    """`mode` is that of a channel; a daemon has none. With `admin`, it observes and is part of no domain."""

    name: str
    kind: Literal["channel", "daemon"]
    requests: tuple[str, ...]
    domain_uid: str
    mode: Literal["Single", "All"] | None
    admin: bool = False


@dataclass(frozen=True, slots=True)
class DomainClaim:
    """What a claim of the ComputeDomain driver has on this node. `domain` is None for admin access."""

    claim: ClaimRef
    devices: tuple[DomainDevice, ...]
    domain: DomainName | None
    binding: BindingStage = BindingStage.NONE
    extra: str = ""


type DomainClaims = Mapping[str, DomainClaim]
"""By claim UID. Never changed: a change makes a new one."""


@dataclass(frozen=True, slots=True)
class Journal:
    """`incomplete` is set while entries may have been lost and the API server has not been asked about them."""

    held: Held
    incomplete: bool = False
    damage: tuple[Damage, ...] = ()
    """Found while decoding; never encoded."""
    extra: str = ""
    holds: Records = field(default_factory=dict)
    """Every hold that was begun and not yet taken back. Never changed: a change makes a new one."""
    domains: DomainClaims = field(default_factory=dict)
    unfinished: Damage | None = None
    """The change at the end of the file, if it is not whole; never encoded. Nothing of it counts."""


class Unreadable(CorruptState):
    """The journal is whole, but was written by a newer release for its like."""

    help = Help(
        Move.ADMINISTRATOR,
        "The journal of this node was written by a newer release, which says that this one must not read it. "
        "Nothing is prepared or released until the newer release runs.",
        "Install the newer release again; the downgrade that works is described in [upgrade.md](upgrade.md#downgrade).",
    )


@dataclass(frozen=True, slots=True)
class _Header:
    version: int
    min_reader: int
    lines: int
    incomplete: bool = False
    extra: str = ""


type _Change = tuple[Literal["held", "domains", "holds"], Any, Any]
"""Of which mapping of `Journal`, its key, and the new value; None: it is gone."""

_GONE: Mapping[str, Literal["held", "domains", "holds"]] = {
    "goneClaim": "held",
    "goneDomainClaim": "domains",
    "goneHold": "holds",
}


def encode(journal: Journal) -> bytes:
    """The whole file's content. The same journal gives the same bytes."""
    lines = [_line(journal.held[uid]) for uid in sorted(journal.held)]
    lines += [_line(journal.domains[uid]) for uid in sorted(journal.domains)]
    lines += sorted(_record_line(hold, record) for hold, record in journal.holds.items())
    return _block(journal, lines)


def encode_change(before: Journal, after: Journal) -> bytes:
    """What is added to a file that says `before`, so that it says `after`."""
    lines = [_line(entry) for entry in _new(before.held, after.held).values()]
    lines += [_line(claim) for claim in _new(before.domains, after.domains).values()]
    lines += [_record_line(hold, record) for hold, record in _new(before.holds, after.holds).items()]
    lines += [line_of({"goneClaim": uid}) for uid in before.held if uid not in after.held]
    lines += [line_of({"goneDomainClaim": uid}) for uid in before.domains if uid not in after.domains]
    lines += [line_of({"goneHold": _plain(hold)}) for hold in before.holds if hold not in after.holds]
    return _block(after, lines)


def _block(journal: Journal, lines: Sequence[bytes]) -> bytes:
    return b"".join((_line(_Header(VERSION, VERSION, len(lines), journal.incomplete, journal.extra)), *lines))


def _new[K, V](before: Mapping[K, V], after: Mapping[K, V]) -> dict[K, V]:
    return {key: value for key, value in after.items() if (old := before.get(key)) is not value and old != value}


def decode(content: bytes) -> Journal:
    """What is good in `content`; the rest is in `damage`. Raises Unreadable when a newer release forbids reading."""
    *lines, rest = content.split(b"\n")
    reader = _Reader()
    for line in lines:
        reader.add(line)
    if rest or not lines:
        reader.add(rest, cut_off=True)
    return reader.journal()


class _Reader:
    """Puts the lines of a file together. What is wrong with a line costs that line only."""

    def __init__(self) -> None:
        self._mappings: dict[str, dict[Any, Any]] = {"held": {}, "domains": {}, "holds": {}}
        self._damage: list[Damage] = []
        self._blocks = 0
        self._header = self._next = _Header(VERSION, VERSION, 0)
        """Of the last block that is whole, and of the present one."""
        self._changes: list[_Change] = []
        """Of the present block."""
        self._due = 0
        """Lines that the present block still lacks."""
        self._half = b""

    def add(self, line: bytes, *, cut_off: bool = False) -> None:
        """The next line; `cut_off` if the file ends before the end of the line. Raises Unreadable."""
        try:
            obj = object_of(line)
            if "minReader" in obj:
                self._begin(_value(_Header, obj))
                return
            self._changes.append(_change_of(obj))
            why = "" if self._due or self._damage else "its header says that there are fewer lines"
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            if cut_off and self._is_after_first:
                self._half = line
                return
            why = str(error) if self._blocks else f"header: {error}"
        if why:
            self._damage.append(Damage(line, why))
        self._blocks, self._due = self._blocks or 1, max(0, self._due - 1)
        if not self._due:
            self._apply()

    def journal(self) -> Journal:
        """After the last line."""
        unfinished = None
        if self._is_after_first and (self._due or self._half):
            unfinished = Damage(self._half, "the last change is not whole")
        else:
            self._end()
        return Journal(
            **self._mappings,
            incomplete=bool(self._damage) or self._header.incomplete,
            damage=tuple(self._damage),
            extra=self._header.extra,
            unfinished=unfinished,
        )

    @property
    def _is_after_first(self) -> bool:
        """The first block is there as a whole when there is a file; a later one may be on its way."""
        return self._blocks > 1 or (self._blocks == 1 and not self._due)

    def _begin(self, header: _Header) -> None:
        if header.min_reader > VERSION:
            raise Unreadable(
                f"was written by a newer release for format {header.min_reader}; this release reads format {VERSION}."
                " Run the newer release again"
            )
        self._end()
        self._blocks, self._next, self._due = self._blocks + 1, header, header.lines
        if not self._due:
            self._apply()

    def _end(self) -> None:
        if self._due:
            self._damage.append(Damage(b"", f"{self._due} of {self._next.lines} lines are missing"))
        self._apply()

    def _apply(self) -> None:
        self._header, self._due = self._next, 0
        for mapping, key, value in self._changes:
            if value is None:
                self._mappings[mapping].pop(key, None)
            else:
                self._mappings[mapping][key] = value
        self._changes.clear()


def _change_of(obj: Mapping[str, Any]) -> _Change:
    """Raises ValueError, KeyError or TypeError for what is none."""
    for name, mapping in _GONE.items():
        if name in obj:
            return mapping, hold_of(obj[name]) if mapping == "holds" else str(obj[name]), None
    if "hold" in obj:
        return ("holds", *record_of(obj))
    if "domain" in obj:
        domain_claim = _domain_claim(obj)
        return "domains", domain_claim.claim.uid, domain_claim
    entry = _entry(obj)
    return "held", entry.claim.uid, entry


@lru_cache(maxsize=_REMEMBERED_LINES)
def _line(value: Entry | DomainClaim | _Header) -> bytes:
    """Remembered, because a journal that is written as a whole contains entries that were added before."""
    return line_of(_plain(value))


@lru_cache(maxsize=_REMEMBERED_LINES)
def _record_line(hold: Hold, record: HoldRecord) -> bytes:
    return line_of(record_to_wire(hold, record))


def line_of(obj: Mapping[str, Any]) -> bytes:
    """An object as a line with its checksum."""
    text = _text(obj).encode()
    return b"%s %s\n" % (_checksum(text), text)


def object_of(line: bytes) -> dict[str, Any]:
    """What `line_of` made this of, without its end. Raises ValueError.

    The checksum is over the bytes of the file, so that it is right for fields that another release wrote, too.
    """
    checksum, _, text = line.partition(b" ")
    if checksum != _checksum(text):
        raise ValueError("the checksum does not fit")
    return _OBJECT.validate_json(text)


def _checksum(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest()[:_CHECKSUM_DIGITS].encode()


def record_to_wire(hold: Hold, record: HoldRecord) -> dict[str, Any]:
    return {"hold": _plain(hold), **_plain(record)}


def record_of(obj: Mapping[str, Any]) -> tuple[Hold, HoldRecord]:
    """Raises ValueError for what is no record."""
    rest = {name: value for name, value in obj.items() if name not in ("hold", "made")}
    facts = _FACTS.validate_python(obj.get("made", {}))
    return hold_of(obj["hold"]), replace(_value(HoldRecord, rest), made=Made(tuple(sorted(facts.items()))))


def hold_of(obj: Mapping[str, Any]) -> Hold:
    """Raises ValueError when the object has no kind."""
    name = obj.get(_KIND)
    if not isinstance(name, str):
        raise ValueError("a hold without kind")
    if name in _KINDS:
        try:
            hold: Hold = _value(_KINDS[name], obj)
            return hold
        except ValueError:
            pass
    return UnknownHold(name, _text(obj))


def _entry(obj: Mapping[str, Any]) -> Entry:
    entry = _value(Entry, {name: value for name, value in obj.items() if name != "holds"} | {"devices": []})
    devices = tuple(_value(HeldDevice, device) for device in obj["devices"])
    for device in devices:
        _ = device.use  # raises ValueError for what cannot be
    return replace(entry, devices=devices, holds=tuple(map(hold_of, obj.get("holds", ()))))


def _domain_claim(obj: Mapping[str, Any]) -> DomainClaim:
    claim = _value(DomainClaim, obj)
    if not claim.devices:
        raise ValueError("a claim without devices")
    return claim


_AS_THEY_ARE = (str, int, bool, NoneType)


def _plain(value: Any) -> Any:
    """A dataclass of this journal as JSON has it, in camelCase and without what is at its default."""
    if type(value) in _AS_THEY_ARE:
        return value
    match value:
        case tuple():
            return [_plain(item) for item in value]
        case Enum():
            return value.value
        case Made():
            return dict(value.facts)
        case UnknownHold():
            return json.loads(value.text)
    if not is_dataclass(value):
        return value
    plain = {}
    for name, json_name, default in _written_fields(value.__class__):
        content = getattr(value, name)
        if content != default:
            plain[json_name] = _plain(content)
    if type(value) in _NAMES:
        plain[_KIND] = _NAMES[type(value)]
    extra = getattr(value, "extra", "")
    return {**_OBJECT.validate_json(extra), **plain} if extra else plain


@cache
def _written_fields(kind: type[Any]) -> tuple[tuple[str, str, object], ...]:
    """Attribute, name in JSON, and default of each."""
    return tuple((item.name, to_camel(item.name), item.default) for item in fields(kind) if item.name != "extra")


def _value[T](kind: type[T], obj: Mapping[str, Any]) -> T:
    """The value that `_plain` made this of; fields that `kind` does not know are in its `extra`. Raises ValueError for
    anything else, also for unknown fields further down, and where there is no `extra`."""
    names = {to_camel(item.name) for item in fields(cast(Any, kind))}
    known = {name: content for name, content in obj.items() if name in names}
    unknown = {name: content for name, content in obj.items() if name not in names}
    if unknown.get(_KIND) == _NAMES.get(kind):
        unknown.pop(_KIND, None)
    try:
        value: T = _adapter(cast(Any, kind)).validate_python(_snake(known))
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or kind.__name__}: {first['msg']}") from error
    if unknown:
        if "extra" not in names:
            raise ValueError(f"{kind.__name__}: {', '.join(sorted(unknown))} is not known")
        value = replace(cast(Any, value), extra=_text(unknown))
    if any(obj.get(name) != content for name, content in _plain(value).items()):
        raise ValueError(f"{kind.__name__}: has fields or values that are not known")
    return value


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _snake(obj: Any) -> Any:
    if isinstance(obj, dict):
        return {to_snake(name): _snake(value) for name, value in obj.items()}
    return [_snake(item) for item in obj] if isinstance(obj, list) else obj


_text = json.JSONEncoder(separators=(",", ":"), sort_keys=True).encode
