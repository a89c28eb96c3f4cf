"""What claims of ComputeDomains this node has: a small file each, which outlives a reboot; CDI files do not.

A record is written before the CDI file of its claim and removed after it, so whatever is on the node is known. It holds
what is needed to make the file again and to answer kubelet without the API server. Calls block.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from dra_driver.errors import NodeNotReady
from dra_driver.names import ClaimRef, is_uid
from dra_driver.runtime.files import read_if_present, remove, remove_temporaries, write_durably
from kubelet_plugin.domains.wanted import WantedDevice

_log = structlog.get_logger(__name__)

_ENDING = ".json"
_DAMAGED = ".damaged"


@dataclass(frozen=True, slots=True)
class DomainName:
    """Where a domain is in the cluster, for the environment of its daemon."""

    namespace: str
    name: str
    uid: str
    clique: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """One claim. `domain` is None for a claim that only looks on (admin access)."""

    claim: ClaimRef
    devices: tuple[WantedDevice, ...]
    domain: DomainName | None


class Records:
    """The records below `folder`, by claim UID."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def all(self) -> Mapping[str, Record]:
        """Raises NodeNotReady when the folder cannot be read. A damaged record is put aside: its claim's CDI file, if
        there is one, belongs to nobody then, and kubelet comes again for a claim that is still wanted."""
        try:
            paths = sorted(self._folder.glob(f"*{_ENDING}"))
        except OSError as error:
            raise NodeNotReady(f"cannot be listed: {error.strerror}", about=f"folder {self._folder}") from error
        found = {}
        for path in paths:
            record = self._read(path)
            if record is not None:
                found[record.claim.uid] = record
        return found

    def get(self, uid: str) -> Record | None:
        return self._read(self._path(uid))

    def write(self, record: Record) -> None:
        """Durably. Raises NodeNotReady."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_durably(self._path(record.claim.uid), json.dumps(asdict(record), sort_keys=True).encode())

    def remove(self, uid: str) -> None:
        """A missing one is fine. Raises NodeNotReady."""
        remove(self._path(uid))

    def remove_leftovers(self) -> None:
        """Temporary files of writes that were cut short."""
        if self._folder.is_dir():
            remove_temporaries(self._folder, "")

    def _path(self, uid: str) -> Path:
        if not is_uid(uid):
            raise NodeNotReady("cannot be the UID of a Kubernetes object", about=f"claim UID {uid!r}")
        return self._folder / f"{uid}{_ENDING}"

    def _read(self, path: Path) -> Record | None:
        content = read_if_present(path)
        if content is None:
            return None
        try:
            return _record(json.loads(content))
        except (ValueError, KeyError, TypeError) as error:
            aside = path.with_suffix(_DAMAGED)
            path.replace(aside)
            _log.error("a record cannot be read and was put aside", file=str(aside), error=repr(error))
            return None


def _record(raw: dict[str, object]) -> Record:
    claim, devices, domain = raw["claim"], raw["devices"], raw["domain"]
    if not isinstance(claim, dict) or not isinstance(devices, list):
        raise TypeError("not a record")
    return Record(
        ClaimRef(**claim),
        tuple(WantedDevice(**{**device, "requests": tuple(device["requests"])}) for device in devices),
        DomainName(**domain) if isinstance(domain, dict) else None,
    )
