"""Of which claims and devices this node has written `status.devices`, on the node's disk.

A plugin that is killed between the release of a claim and the write that says so finds the claim in no journal. What is
noted here before each write tells its successor where to look. A memory, not a promise: one that makes no sense is
forgotten, and of two plugins during an update the last to write it is remembered. Calls block.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from dra_driver.errors import NodeNotReady
from dra_driver.names import ClaimRef
from dra_driver.runtime.files import read_if_present, write_durably
from kubelet_plugin.reporting.claim_devices import Key

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Told:
    claim: ClaimRef
    devices: frozenset[Key]
    """At most those: a write may have failed."""


class ToldClaims:
    """Of one driver, in the file `path`. Nothing here raises: without a memory the statuses are still written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told: dict[str, Told] = {}

    def read(self) -> Mapping[str, Told]:
        """What the plugin before this one had noted, by the claims' UIDs."""
        try:
            content = read_if_present(self._path)
            raw: dict[str, Any] = {} if content is None else json.loads(content)
            self._told = {uid: _told(uid, one) for uid, one in raw.items()} | self._told
        except (NodeNotReady, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            _log.warning(
                "the record of claims' status cannot be read; starting with an empty one",
                file=str(self._path),
                error=str(error),
            )
        return dict(self._told)

    def note(self, claim: ClaimRef, devices: Collection[Key]) -> None:
        """All that may be said of a claim from now on; nothing, and it is forgotten."""
        before = self._told.get(claim.uid)
        if devices:
            self._told[claim.uid] = Told(claim, frozenset(devices))
        else:
            self._told.pop(claim.uid, None)
        if self._told.get(claim.uid) == before:
            return
        try:
            content = {uid: _raw(one) for uid, one in self._told.items()}
            write_durably(self._path, json.dumps(content, sort_keys=True).encode() + b"\n", mode=0o600)
        except NodeNotReady as error:
            _log.warning("the record of claims' status cannot be written", file=str(self._path), error=str(error))


def _told(uid: str, raw: Mapping[str, Any]) -> Told:
    devices = frozenset((str(pool), str(device), str(share)) for pool, device, share in raw["devices"])
    return Told(ClaimRef(str(raw["namespace"]), str(raw["name"]), uid), devices)


def _raw(told: Told) -> dict[str, Any]:
    return {"namespace": told.claim.namespace, "name": told.claim.name, "devices": sorted(told.devices)}
