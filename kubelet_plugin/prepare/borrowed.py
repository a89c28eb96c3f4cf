"""Hardware that is changed for a moment without a claim: a proof's holds, in a journal of their own.

`dractl doctor --prove` borrows here, with the effects that claims have. Each hold is recorded before it is made, so
that the next proof, or the plugin when it starts, undoes what a killed proof has left. A lock that ends with its
process shows whether a proof runs now. Calls block.
"""

import asyncio
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from dra_driver.errors import DriverError, NodeNotReady
from dra_driver.runtime.files import is_there
from kubelet_plugin.prepare.holds import Effect, Effects, Hold, HoldRecord, HoldState, Records, described, in_order
from kubelet_plugin.prepare.store import JournalFile

_log = structlog.get_logger(__name__)

FOLDER = "proof"
"""Below the plugin's folder."""
_LOCK = "borrowing.lock"


class Borrowed:
    """Below `folder`, which is there only while something is borrowed or left."""

    def __init__(self, folder: Path, effects: Effects, boot_id: Callable[[], str]) -> None:
        self._folder = folder
        self._effects = effects
        self._boot_id = boot_id

    def give_back(self) -> tuple[str, ...]:
        """Take back what a killed process has left; what that was, in words. Nothing while another one is at it.

        Raises NodeNotReady when something cannot be taken back now; it stays in the journal then.
        """
        if not is_there(self._folder):
            return ()
        with self._alone() as alone:
            return self._undo_all() if alone else ()

    async def settle(self) -> None:
        """`give_back` when a plugin starts. What cannot be taken back now is logged, and left to the next one."""
        try:
            for what in await asyncio.to_thread(self.give_back):
                _log.warning("taken back after a proof that was killed", what=what)
        except DriverError as error:
            _log.warning("what a proof left cannot be taken back", error=str(error))

    def there_and_back[T](self, holds: Sequence[Hold], look: Callable[[Records], T]) -> T:
        """Make the holds in order, answer what `look` returns while they exist, and undo all, even after an error.

        Raises NodeNotReady: a hold cannot be made, or not taken back, or another process borrows now.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._alone() as alone:
            if not alone:
                raise NodeNotReady("another proof changes this node now; wait until it has ended", about="proof")
            self._undo_all(keep=True)
            try:
                self.begin(holds)
                return look(self._records())
            finally:
                self._undo_all()

    def begin(self, holds: Sequence[Hold]) -> None:
        """Make the holds in order, each written down before; `give_back` takes them back. The folder is there."""
        for hold in holds:
            self._make(hold)

    def _make(self, hold: Hold) -> None:
        effect, boot_id = self._effect(hold), self._boot_id()
        made = effect.before(hold, self._records())
        self._write(hold, HoldRecord(HoldState.INTENT, boot_id, made))
        made = effect.make(hold, self._records())
        self._write(hold, HoldRecord(HoldState.MADE, boot_id, made))

    def _undo_all(self, *, keep: bool = False) -> tuple[str, ...]:
        """Last made, first taken back. The folder goes with the last, unless it is to `keep`."""
        undone = []
        records = self._records()
        for hold in reversed(in_order(records)):
            self._effect(hold).undo(hold, records, self._boot_id())
            self._write(hold, None)
            undone.append(described(hold))
        if not keep:
            shutil.rmtree(self._folder, ignore_errors=True)
        return tuple(undone)

    def _effect(self, hold: Hold) -> Effect[Any]:
        effect = self._effects.get(type(hold))
        if effect is None:
            raise NodeNotReady("run the release that made it, to take it back", about=described(hold))
        return effect

    def _records(self) -> dict[Hold, HoldRecord]:
        return dict(JournalFile(self._folder).current().holds)

    def _write(self, hold: Hold, record: HoldRecord | None) -> None:
        others = {known: value for known, value in self._records().items() if known != hold}
        holds = others if record is None else {**others, hold: record}
        JournalFile(self._folder).transact([lambda journal: replace(journal, holds=holds)])

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        try:
            descriptor = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise NodeNotReady(f"cannot be opened: {error.strerror}", about=f"file {self._folder / _LOCK}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
        finally:
            os.close(descriptor)
