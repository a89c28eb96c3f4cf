"""The journal on disk: one small file, to which changes are added; many changes in one durable write.

`kubelet_plugin.prepare.execute` commits changes here, the service reads. A change is a function from journal to journal
that may refuse by raising; it decides on what is on disk at that moment, and its decision is on disk when `commit`
returns. Changes that arrive while a write is under way go together into the next one, so eight claims prepared at
once cost one or two writes, not eight.

During a rolling update two instances of the plugin share the file. A lock file is held (`flock`) around *read again if
changed, decide, write*, and around nothing else: no API call, no hardware, no waiting. The lock ends with its process.

A change is added to the end and flushed. A crash leaves the old or the new content, or an unfinished change. No caller
relies on that one; but a file that lost its end looks the same, so the next instance asks the API server as if claims
were lost. Now and then, and after every failure, the file is written as a whole under a temporary name, flushed,
and renamed over the old one. Unreadable parts are appended to `claims.damaged` before they leave the journal.
"""

import asyncio
import fcntl
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from dra_driver.errors import DriverError, NodeNotReady
from dra_driver.runtime.files import append_durably, is_there, read_if_present, remove_temporaries, write_durably
from dra_driver.runtime.threads import SerialThread, settle
from kubelet_plugin.prepare.holds import Hold, HoldRecord, HoldState, Records, described
from kubelet_plugin.prepare.journal import (
    Damage,
    Journal,
    decode,
    encode,
    encode_change,
    line_of,
    object_of,
    record_of,
    record_to_wire,
)

HOLD_LOG = "holds.log"
_GONE = "gone"
_LONGEST_BYTES = 256 * 1024


class HoldLog:
    """The file in `folder`. Every method raises NodeNotReady when the disk refuses."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / HOLD_LOG

    @property
    def exists(self) -> bool:
        return is_there(self._path)

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
                hold, record = record_of(obj)
            except (ValueError, KeyError, TypeError, RecursionError):
                bad += 1
                continue
            holds.pop(hold, None)
            if not is_gone:
                holds[hold] = record
        return holds, bad

    def changed(self, before: Records, after: Records) -> None:
        """Add what is new or another. That a hold is being undone is not written: it is there until it is gone."""
        self._add(
            [record_to_wire(hold, record) for hold, record in after.items() if _is_news(before.get(hold), record)]
        )

    def gone(self, before: Records, after: Records) -> None:
        """Add which holds are undone."""
        lost = {hold: record for hold, record in before.items() if hold not in after}
        self._add([{**record_to_wire(hold, record), _GONE: True} for hold, record in lost.items()])
        if lost and self._path.stat().st_size > _LONGEST_BYTES:
            self.rewrite(after)

    def rewrite(self, records: Records) -> None:
        """These holds, and nothing else."""
        write_durably(self._path, _text(list(map(record_to_wire, records, records.values()))), mode=0o600)

    def _add(self, objects: Collection[dict[str, Any]]) -> None:
        if objects:
            append_durably(self._path, _text(objects), mode=0o600)


def _text(objects: Collection[dict[str, Any]]) -> bytes:
    return b"".join(map(line_of, objects))


def _is_news(before: HoldRecord | None, after: HoldRecord) -> bool:
    if before is None:
        return True
    return after.state is not HoldState.UNDOING and before != after


JOURNAL = "claims.journal"
DAMAGED = "claims.damaged"
LOCK = "claims.lock"

_LOCK_TIMEOUT_S = 10.0
"""The other instance holds the lock for one durable write, about a millisecond."""

_LOCK_POLL_S = 0.002

_LINES_TO_SPARE = 200
"""The file is written as a whole again when it has more lines than twice those that count, and these."""

type Change = Callable[[Journal], Journal]
"""Decides, and changes nothing by itself; raises a DriverError to refuse. May be called in another thread."""

type Around = AbstractContextManager[object]
"""Blocking work of a moment, in the journal's thread. It is entered before the change; its error withholds the change.
It is left after the write, with the error if the change was not made. An error of its end does not take the change
back."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The file as it was last read or written; `signature` is that of the file, None when there was none."""

    signature: tuple[int, int, int] | None
    journal: Journal
    lines: int = 0


class JournalFile:
    """The file and its lock; blocking. `transact` is called from one thread at a time, `current` from any."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / JOURNAL
        self._lock = folder / LOCK
        self._seen: _Seen | None = None
        self._known: Journal | None = None
        """As it was in the file when there was one last."""
        self._log = HoldLog(folder)
        self._compared = False
        """Whether the journal was compared with the log of holds since it was found damaged or missing."""
        self._has_failed = False
        """Whether the last write failed: the file, or its name, may not be on the disk."""

    @property
    def exists(self) -> bool:
        """Raises NodeNotReady when the folder may not be read."""
        return is_there(self._path)

    def current(self) -> Journal:
        """The journal as it is on disk now. Raises NodeNotReady, or `Unreadable`."""
        seen = self._seen
        if seen is None or seen.signature != self._signature():
            # Not written yet, or by another instance. Setting this beside a running transaction is harmless: if it
            # overwrites the transaction's result, the signature differs the next time.
            self._seen = seen = self._looked_at()
        return seen.journal

    def presume_lost(self) -> None:
        """Without a file, claims are missing: it was removed since it was written."""
        self._known, self._seen = self._known or self._without_file(), None

    def remove_leftovers(self) -> None:
        """Remove temporary files of processes that were killed, of all files in the folder. Raises NodeNotReady."""
        remove_temporaries(self._folder, "")

    def transact(self, changes: Sequence[Change]) -> list[Journal | DriverError]:
        """Apply the changes in order, each on the result of those before, and make them durable in one write.

        The answer has, for each, the journal after it or its refusal. Nothing to write: nothing is written.
        Raises NodeNotReady when the disk refuses; then none of the changes counts, and memory is as the disk.
        """
        with self._locked():
            before, _ = self._compared_with_log(self.current())
            after = before
            outcomes: list[Journal | DriverError] = []
            for change in changes:
                try:
                    after = change(after)
                    outcomes.append(after)
                except DriverError as refusal:
                    outcomes.append(refusal)
            if after != before:
                self._log.changed(before.holds, after.holds)
                self._add(before, after)
                # A hold that stays in the log is undone once more after the next start, which changes nothing.
                with suppress(NodeNotReady):
                    self._log.gone(before.holds, after.holds)
        return outcomes

    def settle(self) -> tuple[Damage, ...]:
        """Repair what was damaged, or is missing from one of the two records. Raises NodeNotReady, Unreadable."""
        self.remove_leftovers()
        with self._locked():
            _, damage = self._compared_with_log(self.current())
        return damage

    def _compared_with_log(self, journal: Journal) -> tuple[Journal, tuple[Damage, ...]]:
        """The journal without damage and with the holds that only the log has, and what was wrong.

        Lines that cannot be trusted go to the side file first, then out of the journal; a crash between repeats.
        """
        damage = journal.damage if journal.unfinished is None else (*journal.damage, journal.unfinished)
        if self._compared and not damage and self._seen is not None and self._seen.signature is not None:
            return journal, ()
        logged, bad = self._log.read()
        stored = journal.holds if self.exists else {}
        lost = {hold: record for hold, record in logged.items() if hold not in stored}
        # The claims of these holds may be lost, too: no journal, or one that lost whole changes at its end.
        incomplete = journal.incomplete or bool(damage) or bool(lost)
        holds = {**lost, **journal.holds}
        if damage and self._log.exists:
            # The log is written first. A journal that lost its end has holds that are gone, and of others older facts.
            holds = {**journal.holds, **logged} if bad else dict(logged)
        whole = replace(journal, damage=(), unfinished=None, holds=holds, incomplete=incomplete)
        if lines := [item.line for item in damage if item.line]:
            side = self._folder / DAMAGED
            write_durably(side, (read_if_present(side) or b"") + b"".join(b"%s\n" % line for line in lines))
        if lost or damage:
            self._replace(whole)
        if bad or logged.keys() != whole.holds.keys():
            self._log.rewrite(whole.holds)
        self._compared = True
        return whole, (
            *damage,
            *(Damage(b"", f"{described(hold)} was missing and is known from {HOLD_LOG}") for hold in lost),
            *([Damage(b"", f"{bad} lines of {HOLD_LOG} cannot be read")] if bad else []),
        )

    def _add(self, before: Journal, after: Journal) -> None:
        """What is in the file is `before`; should this fail halfway, the next look says what is in it then."""
        change = encode_change(before, after)
        seen = self._seen
        lines = change.count(b"\n") + (seen.lines if seen is not None else 0)
        live = len(after.held) + len(after.domains) + len(after.holds)
        if seen is None or seen.signature is None or self._has_failed or lines > 2 * live + _LINES_TO_SPARE:
            self._replace(after)
            return
        self._has_failed = True
        append_durably(self._path, change, create=False)
        self._now_has(after, lines)

    def _replace(self, journal: Journal) -> None:
        self._has_failed = True
        content = encode(journal)
        write_durably(self._path, content, mode=0o600)
        self._now_has(journal, content.count(b"\n"))

    def _now_has(self, journal: Journal, lines: int) -> None:
        self._has_failed = False
        self._seen, self._known = _Seen(self._signature(), journal, lines), journal

    def _looked_at(self) -> _Seen:
        """Without waiting. An unfinished change is another instance's at work, which has the lock, or damage."""
        seen = self._read()
        if seen.journal.unfinished is None:
            return seen
        try:
            with self._locked(patience_s=0):
                seen = self._read()
        except NodeNotReady:
            return seen
        damaged = seen.journal.unfinished is not None
        return replace(seen, journal=replace(seen.journal, incomplete=True)) if damaged else seen

    def _read(self) -> _Seen:
        # Replaced between the two: the signature is the older one, and the next look reads again.
        signature = self._signature()
        content = read_if_present(self._path)
        if content is None:
            return _Seen(signature, self._without_file())
        self._known = decode(content)
        return _Seen(signature, self._known, content.count(b"\n"))

    def _without_file(self) -> Journal:
        """No instance removes the file. If an administrator does, no claim loses its GPU: the next commit writes the
        file again, and because of `incomplete` the API server is asked for what another instance wrote meanwhile."""
        if self._known is None:
            # Holds that were made are of claims that were written.
            logged, _ = self._log.read()
            return Journal({}, holds=logged, incomplete=bool(logged))
        return replace(self._known, incomplete=True, damage=(), unfinished=None)

    def _signature(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None  # not there, or for `read_if_present` to explain
        return (status.st_ino, status.st_mtime_ns, status.st_size)

    @contextmanager
    def _locked(self, patience_s: float | None = None) -> Iterator[None]:
        path, flags = self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        try:
            try:
                descriptor = os.open(path, flags, 0o600)
            except FileNotFoundError:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                descriptor = os.open(path, flags, 0o600)
        except OSError as error:
            raise NodeNotReady(f"cannot be opened: {error.strerror or error}", about=f"file {path}") from error
        try:
            _wait_for_lock(descriptor, path, _LOCK_TIMEOUT_S if patience_s is None else patience_s)
            yield
        finally:
            os.close(descriptor)


class JournalStore:
    """The journal for one event loop: commits that come together are written together."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = JournalFile(folder)
        # A thread of its own: a hung NVML call in the common pool must not hold up the journal.
        self._thread = SerialThread("journal")
        self._waiting: deque[_Waiting] = deque()
        """The loop's thread adds, the journal's takes: what comes until it runs shares its write."""
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def exists(self) -> bool:
        """Whether there is a journal; there is none at the first start, and after an administrator removed it."""
        return self._file.exists

    def presume_lost(self) -> None:
        """If there is no journal: claims are missing in it, so it is `incomplete`. Nothing is written for that."""
        self._file.presume_lost()

    @property
    def current(self) -> Journal:
        """What is on disk now, other instances' changes included. Raises NodeNotReady or Unreadable."""
        return self._file.current()

    async def commit(self, change: Change, *, around: Around | None = None) -> Journal:
        """Apply `change`; when this returns it is durable. Raises what `change` or `around` raises, NodeNotReady or
        Unreadable.

        `around` needs no other thread, which would cost more than its work. Cancelling the caller does not take the
        change back.
        """
        loop = asyncio.get_running_loop()
        waiting = _Waiting(change, around or nullcontext(), loop.create_future())
        self._waiting.append(waiting)
        if self._idle.is_set():
            self._idle.clear()
            loop.call_soon(self._write_waiting, loop)  # together with those that come in this round of the loop
        return await waiting.future

    async def put_aside_damage(self) -> tuple[Damage, ...]:
        """Move what cannot be read to the side file, and take from the log of holds what the journal lost; the answer
        says what and why. Called at start. What killed processes were writing is removed.
        """
        return await self._thread.run(self._file.settle)

    async def remove_leftovers(self) -> None:
        """Remove temporary files of processes that were killed, of all files in the folder. Raises NodeNotReady."""
        await self._thread.run(self._file.remove_leftovers)

    async def written(self) -> None:
        """Wait for the writes that were begun."""
        await self._idle.wait()

    async def close(self) -> None:
        """When no driver on the node needs it any longer."""
        await self.written()
        self._thread.close()

    def _write_waiting(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._thread.call(partial(self._write, loop))
        except RuntimeError as error:  # The journal is closed.
            batch = self._taken()
            self._written(batch, [error] * len(batch), loop)

    def _taken(self) -> list["_Waiting"]:
        taken = []
        with suppress(IndexError):
            while True:
                taken.append(self._waiting.popleft())
        return taken

    def _write(self, loop: asyncio.AbstractEventLoop) -> None:
        """In the journal's thread."""
        batch = self._taken()
        outcomes = _transacted(self._file, batch)
        with suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(self._written, batch, outcomes, loop)

    def _written(
        self, batch: Sequence["_Waiting"], outcomes: Sequence[Journal | Exception], loop: asyncio.AbstractEventLoop
    ) -> None:
        for waiting, outcome in zip(batch, outcomes, strict=True):
            settle(waiting.future, outcome)
        if self._waiting:
            self._write_waiting(loop)
        else:
            self._idle.set()


@dataclass(frozen=True, slots=True)
class _Waiting:
    change: Change
    around: Around
    future: asyncio.Future[Journal]


def _transacted(file: JournalFile, batch: Sequence[_Waiting]) -> list[Journal | Exception]:
    """The outcome for each. Raises nothing. Each `around` that was entered is left."""
    outcomes: dict[int, Journal | Exception] = {}
    for number, waiting in enumerate(batch):
        try:
            waiting.around.__enter__()
        except Exception as error:  # noqa: BLE001 - its caller gets it, of any type
            outcomes[number] = error
    ready = [number for number in range(len(batch)) if number not in outcomes]
    try:
        made: Sequence[Journal | Exception] = file.transact([batch[number].change for number in ready]) if ready else []
    except Exception as error:  # noqa: BLE001 - each waiting caller gets it, of any type
        made = [error] * len(ready)
    for number, outcome in zip(ready, made, strict=True):
        outcomes[number] = _left(batch[number].around, outcome)
    return [outcomes[number] for number in range(len(batch))]


def _left(around: Around, outcome: Journal | Exception) -> Journal | Exception:
    """The outcome after the end of `around`, which cannot make an error good."""
    error = outcome if isinstance(outcome, Exception) else None
    try:
        around.__exit__(type(error) if error is not None else None, error, None)
    except Exception as ending:  # noqa: BLE001 - its caller gets it, of any type
        return error or ending
    return outcome


def _wait_for_lock(descriptor: int, path: Path, patience_s: float) -> None:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise NodeNotReady(
                    f"another instance of the plugin has held it for {patience_s:g} s; is it hung?",
                    about=f"file {path}",
                ) from None
            time.sleep(_LOCK_POLL_S)
        else:
            return
