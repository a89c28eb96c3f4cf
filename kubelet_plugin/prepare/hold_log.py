"""A second record of what was made of the hardware: one file beside the journal, to which lines are added only.

`kubelet_plugin.prepare.store` writes each record of a hold here before the journal has it, and that it is gone after
the journal has forgotten it. So a hold that only this file knows was lost from the journal, was never begun, or is
undone already: it is taken into the journal as left behind, and undoing it is right in each case. Calls block; the
caller has the journal's lock.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dra_driver.runtime.files import append_durably, read_if_present, write_durably
from kubelet_plugin.prepare.hold_lines import line_of, object_of, record_from_wire, record_to_wire
from kubelet_plugin.prepare.holds import Hold, HoldRecord, HoldState, Records

HOLD_LOG = "holds.log"
_GONE = "gone"
_LONGEST_BYTES = 256 * 1024


class HoldLog:
    """The file in `folder`. Every method raises NodeNotReady when the disk refuses."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / HOLD_LOG

    def read(self) -> tuple[Records, int]:
        """The holds that are there, each as it was written last, and how many lines cannot be read.

        A last line without its end was never followed by an act, and does not count.
        """
        holds: dict[Hold, HoldRecord] = {}
        bad = 0
        *lines, _ = (read_if_present(self._path) or b"").split(b"\n")
        for line in filter(None, lines):
            try:
                obj = object_of(line)
                is_gone = obj.pop(_GONE, False)
                hold, record = record_from_wire(obj)
            except (ValueError, ValidationError, RecursionError):
                bad += 1
                continue
            holds.pop(hold, None)
            if not is_gone:
                holds[hold] = record
        return holds, bad

    def changed(self, before: Records, after: Records) -> None:
        """Add what is new or another. That a hold is being undone is not written: it is there until it is gone."""
        new = {hold: record for hold, record in after.items() if _is_news(before.get(hold), record)}
        self._add({hold: record_to_wire(hold, record) for hold, record in new.items()})

    def gone(self, before: Records, after: Records) -> None:
        """Add which holds are undone."""
        lost = {hold: record for hold, record in before.items() if hold not in after}
        self._add({hold: {**record_to_wire(hold, record), _GONE: True} for hold, record in lost.items()})
        if lost and self._path.stat().st_size > _LONGEST_BYTES:
            self.rewrite(after)

    def rewrite(self, records: Records) -> None:
        """These holds, and nothing else."""
        write_durably(self._path, _text(list(map(record_to_wire, records, records.values()))), mode=0o600)

    def _add(self, lines: Mapping[Hold, dict[str, Any]]) -> None:
        if lines:
            append_durably(self._path, _text(list(lines.values())), mode=0o600)


def _text(objects: Collection[dict[str, Any]]) -> bytes:
    return b"".join(map(line_of, objects))


def _is_news(before: HoldRecord | None, after: HoldRecord) -> bool:
    if before is None:
        return True
    return after.state is not HoldState.UNDOING and before != after
