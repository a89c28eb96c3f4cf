"""The journal as text: one header line and one line for each claim. Pure: bytes in and out.

`kubelet_plugin.prepare.store` keeps the bytes; nobody else reads them. Every line is

    <first 32 hex digits of the SHA-256 of the rest> <JSON object>

The claims come first, the records of holds after them (`kubelet_plugin.prepare.hold_lines`).

The checksum is over the bytes as they are in the file, never over something serialized again, so a release with other
fields finds it correct. A line that fails it costs that line only.

The rules between releases, so that two of them can share the file during a rolling update and a downgrade is possible:

* Fields are only ever added. A reader keeps the fields that it does not know and writes them back (`extra`).
* A kind of hold that a reader does not know is kept too (`UnknownHold`); its claim can be answered, not released.
* `minReader` in the header is raised by a release whose entries would mislead an older one. An older reader then
  touches nothing (`Unreadable`), instead of taking the file for damaged.
* The header counts entries and records, so that a file that lost its end is noticed.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

from pydantic import Field, JsonValue, TypeAdapter, ValidationError

from dra_driver.api.meta import Model
from dra_driver.devices.model import Kind, Partition
from dra_driver.errors import CorruptState, Help, Move
from dra_driver.names import ClaimRef
from kubelet_plugin.prepare.hold_lines import (
    from_plain,
    hold_from_wire,
    hold_to_wire,
    line_of,
    object_of,
    plain,
    record_from_wire,
    record_to_wire,
)
from kubelet_plugin.prepare.holds import Hold, HoldRecord, Records
from kubelet_plugin.prepare.lifecycle import Entry, Held, HeldDevice, SharedUse

VERSION = 1


@dataclass(frozen=True, slots=True)
class Damage:
    """A line that cannot be trusted, as it is in the file, and why; an empty line stands for what is missing."""

    line: bytes
    reason: str


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


class Journals(Protocol):
    """The journal as it stands: what those need of `kubelet_plugin.prepare.store.JournalStore` who only read it."""

    @property
    def current(self) -> Journal: ...


class Unreadable(CorruptState):
    """The journal is whole, but was written by a newer release for its like."""

    help = Help(
        Move.ADMINISTRATOR,
        "The journal of this node was written by a newer release, which says that this one must not read it. "
        "Nothing is prepared or released until the newer release runs.",
        "Install the newer release again; the downgrade that works is described in [upgrade.md](upgrade.md#downgrade).",
    )


class _Header(Model):
    version: int
    min_reader: int
    entries: int
    incomplete: bool = False
    holds: int | None = None


class _Device(Model):
    requests: tuple[str, ...]
    pool: str
    device: str
    gpu: str
    pci: str
    cdi: tuple[str, ...]
    admin_access: bool = False
    share_id: str | None = Field(default=None, alias="shareID")
    kind: Kind | None = None
    partition: dict[str, JsonValue] | None = None
    mig_uuid: str | None = Field(default=None, alias="migUUID")
    gpu_instance: str | None = None
    vfio_api: bool | None = Field(default=None, alias="vfioAPI")
    sharing: dict[str, JsonValue] | None = None


class _Entry(Model):
    uid: str
    namespace: str
    name: str
    boot_id: str = Field(alias="bootID")
    devices: tuple[dict[str, JsonValue], ...]
    cdi_sha256: str | None = None
    holds: tuple[dict[str, JsonValue], ...] | None = None
    releasing: bool | None = None


_OBJECT = TypeAdapter(dict[str, Any])


def encode(journal: Journal) -> bytes:
    """The file's content. The same journal gives the same bytes."""
    header = _Header(
        version=VERSION,
        min_reader=VERSION,
        entries=len(journal.held),
        incomplete=journal.incomplete,
        holds=len(journal.holds) or None,
    )
    lines = [line_of(_merged(header, journal.extra))]
    lines += [_entry_line(journal.held[uid]) for uid in sorted(journal.held)]
    lines += sorted(_record_line(hold, record) for hold, record in journal.holds.items())
    return b"".join(lines)


def decode(content: bytes) -> Journal:
    """What is good in `content`; the rest is in `damage`. Raises Unreadable when a newer release forbids reading."""
    first, *lines = content.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()  # what follows the last newline; of a file that was cut off it is a line like any other
    damage: list[Damage] = []
    header: _Header | None = None
    extra = ""
    try:
        found = object_of(first)
        header, extra = _Header.model_validate(found), _extra(found, _Header)
    except (ValueError, ValidationError) as error:
        damage.append(Damage(first, f"header: {_reason(error)}"))
    if header is not None and header.min_reader > VERSION:
        raise Unreadable(
            f"was written by a newer release for format {header.min_reader}; this release reads format {VERSION}."
            " Run the newer release again"
        )
    held, holds, bad = _found(lines)
    damage += bad
    if header is not None:
        damage += _missing(header, len(held), len(holds), len(bad))
    return Journal(
        held,
        incomplete=bool(damage) or (header is not None and header.incomplete),
        damage=tuple(damage),
        extra=extra,
        holds=holds,
    )


def _missing(header: _Header, held: int, holds: int, bad: int) -> list[Damage]:
    expected = header.entries + (header.holds or 0)
    if expected <= held + holds + bad:
        return []
    what = "entries" if header.holds is None else "entries and records of holds"
    return [Damage(b"", f"{expected - held - holds - bad} of {expected} {what} are missing")]


def _found(lines: Iterable[bytes]) -> tuple[dict[str, Entry], dict[Hold, HoldRecord], list[Damage]]:
    held: dict[str, Entry] = {}
    holds: dict[Hold, HoldRecord] = {}
    damage: list[Damage] = []
    for line in lines:
        try:
            obj = object_of(line)
            if "hold" in obj:
                hold, record = record_from_wire(obj)
                holds[hold] = record
            else:
                entry = _entry_from_wire(obj)
                held[entry.claim.uid] = entry
        except (ValueError, ValidationError) as error:
            damage.append(Damage(line, _reason(error)))
    return held, holds, damage


@lru_cache(maxsize=256)
def _entry_line(entry: Entry) -> bytes:
    """Remembered, because every write contains all entries and changes few of them."""
    return line_of(_entry_to_wire(entry))


@lru_cache(maxsize=256)
def _record_line(hold: Hold, record: HoldRecord) -> bytes:
    return line_of(record_to_wire(hold, record))


def _entry_to_wire(entry: Entry) -> dict[str, Any]:
    model = _Entry(
        uid=entry.claim.uid,
        namespace=entry.claim.namespace,
        name=entry.claim.name,
        boot_id=entry.boot_id,
        devices=tuple(_device_to_wire(device) for device in entry.devices),
        cdi_sha256=entry.cdi_digest,
        holds=tuple(hold_to_wire(hold) for hold in entry.holds) or None,
        releasing=entry.releasing or None,
    )
    return _merged(model, entry.extra)


def _entry_from_wire(obj: dict[str, Any]) -> Entry:
    model = _Entry.model_validate(obj)
    return Entry(
        claim=ClaimRef(model.namespace, model.name, model.uid),
        boot_id=model.boot_id,
        devices=tuple(_device_from_wire(device) for device in model.devices),
        cdi_digest=model.cdi_sha256,
        holds=tuple(hold_from_wire(hold) for hold in model.holds or ()),
        releasing=model.releasing is True,
        extra=_extra(obj, _Entry),
    )


def _device_to_wire(device: HeldDevice) -> dict[str, Any]:
    model = _Device(
        requests=device.request_names,
        pool=device.pool,
        device=device.device,
        gpu=device.gpu_uuid,
        pci=device.pci_bus_id,
        cdi=device.cdi_ids,
        admin_access=device.admin_access,
        share_id=device.share_id,
        kind=None if device.kind is Kind.GPU else device.kind,
        partition=None if device.partition is None else plain(device.partition),
        mig_uuid=device.mig_uuid,
        gpu_instance=device.gpu_instance or None,
        vfio_api=device.vfio_api or None,
        sharing=None if device.sharing is None else plain(device.sharing),
    )
    return _merged(model, device.extra)


def _device_from_wire(obj: dict[str, Any]) -> HeldDevice:
    model = _Device.model_validate(obj)
    device = HeldDevice(
        request_names=model.requests,
        pool=model.pool,
        device=model.device,
        gpu_uuid=model.gpu,
        pci_bus_id=model.pci,
        cdi_ids=model.cdi,
        admin_access=model.admin_access,
        share_id=model.share_id,
        kind=model.kind or Kind.GPU,
        partition=None if model.partition is None else from_plain(Partition, model.partition),
        mig_uuid=model.mig_uuid,
        gpu_instance=model.gpu_instance or "",
        vfio_api=model.vfio_api is True,
        sharing=None if model.sharing is None else from_plain(SharedUse, model.sharing),
        extra=_extra(obj, _Device),
    )
    _ = device.use  # raises ValueError for what cannot be
    return device


def _merged(model: Model, extra: str) -> dict[str, Any]:
    return {**(_OBJECT.validate_json(extra) if extra else {}), **model.to_wire()}


def _extra(obj: dict[str, Any], model: type[Model]) -> str:
    known = {info.alias or name for name, info in model.model_fields.items()}
    unknown = {key: value for key, value in obj.items() if key not in known}
    return _text(unknown) if unknown else ""


def _text(obj: dict[str, Any]) -> str:
    return json.dumps(obj, separators=(",", ":"), sort_keys=True)


def _reason(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or 'line'}: {first['msg']}"
    return str(error)
