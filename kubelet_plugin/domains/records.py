"""What claims of ComputeDomains this node has: a small file each, which outlives a reboot; CDI files do not.

A record is written before the CDI file of its claim and removed after it, so whatever is on the node is known. It holds
what is needed to make the file again and to answer kubelet without the API server. Calls block, and every failure is a
`NodeNotReady` that names the file.

Fields are only ever added; a reader passes over those that it does not know. A record that makes no sense is put aside,
and stays known as damaged until it is written again or removed: its claim's pods may be running.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import structlog

from dra_driver.errors import NodeNotReady
from dra_driver.names import ClaimRef, is_uid
from dra_driver.runtime.files import (
    listed,
    make_folder,
    read_if_present,
    remove,
    remove_temporaries,
    rename,
    write_durably,
)
from kubelet_plugin.domains.wanted import DomainName, Record, WantedDevice
from kubelet_plugin.prepare.turns import Turns

_log = structlog.get_logger(__name__)

_ENDING = ".json"
_DAMAGED = ".damaged"


class Records:
    """The records below `folder`, by claim UID."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def all(self) -> Mapping[str, Record]:
        """Raises NodeNotReady when the folder cannot be read: then nobody may think that there are none."""
        found = {}
        for uid in self._with_ending(_ENDING):
            record = self._read(self.folder / f"{uid}{_ENDING}")
            if record is not None:
                found[record.claim.uid] = record
        return found

    def damaged(self) -> frozenset[str]:
        """UIDs of the claims whose record was put aside, as `all` and `get` do. Raises NodeNotReady."""
        return frozenset(self._with_ending(_DAMAGED))

    def get(self, uid: str) -> Record | None:
        return self._read(self._path(uid))

    def write(self, record: Record) -> None:
        """Durably. Raises NodeNotReady."""
        path = self._path(record.claim.uid)
        make_folder(self.folder)
        write_durably(path, json.dumps(asdict(record), sort_keys=True).encode())
        remove(path.with_suffix(_DAMAGED))

    def remove(self, uid: str) -> None:
        """A missing one is fine. Raises NodeNotReady."""
        remove(self._path(uid))
        remove(self._path(uid).with_suffix(_DAMAGED))

    def remove_leftovers(self) -> None:
        """Temporary files of writes that were cut short."""
        if self.folder.is_dir():
            remove_temporaries(self.folder, "")

    def turns(self) -> Turns:
        """Whose turn it is to change them, over all instances of the plugin."""
        return Turns(self.folder)

    def _with_ending(self, ending: str) -> list[str]:
        """What has another name is none of ours."""
        names = [path.name.removesuffix(ending) for path in listed(self.folder) if path.name.endswith(ending)]
        return sorted(name for name in names if is_uid(name))

    def _path(self, uid: str) -> Path:
        if not is_uid(uid):
            raise NodeNotReady("cannot be the UID of a Kubernetes object", about=f"claim UID {uid!r}")
        return self.folder / f"{uid}{_ENDING}"

    def _read(self, path: Path) -> Record | None:
        content = read_if_present(path)
        if content is None:
            return None
        try:
            return _record(json.loads(content))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            aside = path.with_suffix(_DAMAGED)
            rename(path, aside)
            _log.error("a record cannot be read and was put aside", file=str(aside), error=repr(error))
            return None


def _record(raw: dict[str, Any]) -> Record:
    claim, devices, domain = raw["claim"], raw["devices"], raw["domain"]
    found = Record(
        _known(ClaimRef, claim),
        tuple(_known(WantedDevice, {**device, "requests": tuple(device["requests"])}) for device in devices),
        None if domain is None else _known(DomainName, domain),
    )
    if not found.devices or not is_uid(found.claim.uid):
        raise ValueError("not a record")
    return found


def _known[T](kind: Callable[..., T], raw: dict[str, Any]) -> T:
    """Without the fields of a newer release."""
    return kind(**{one.name: raw[one.name] for one in fields(kind) if one.name in raw})  # type: ignore[arg-type] # a dataclass
