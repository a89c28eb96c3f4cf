"""Whose turn it is with a hold: one caller at a time, in this process and in all instances of the plugin on the node.

`kubelet_plugin.prepare.execute` takes a turn around *look, make or undo, record*, and for several at once in the order
of `kubelet_plugin.prepare.holds.in_order`. Between processes the turns are ranges of one lock file, one byte for each
name, so that nothing is left over of them; they vanish with their process.
"""

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from weakref import WeakValueDictionary

from dra_driver.errors import NodeNotReady

LOCK = "holds.lock"

_PATIENCE_S = 40.0
"""As long as kubelet waits for an answer, nearly: another instance may be waiting for a driver or a daemon."""

_POLL_S = 0.02


class Turns:
    """Turns by name, for one event loop; `folder` is that of the journal."""

    def __init__(self, folder: Path, *, patience_s: float = _PATIENCE_S) -> None:
        self._path = folder / LOCK
        self._patience_s = patience_s
        self._descriptor: int | None = None
        self._local: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """A lock lives as long as a task has or awaits it."""

    @asynccontextmanager
    async def of(self, name: str, *, about: str) -> AsyncIterator[None]:
        """Raises NodeNotReady when another instance keeps its turn for too long, or the disk refuses.

        `about` says for people what the name stands for.
        """
        lock = self._local.setdefault(name, asyncio.Lock())
        async with lock:
            place = _place(name)
            await self._lock(place, about)
            try:
                yield
            finally:
                fcntl.lockf(self._open(), fcntl.LOCK_UN, 1, place)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    async def _lock(self, place: int, about: str) -> None:
        deadline = asyncio.get_running_loop().time() + self._patience_s
        while True:
            try:
                fcntl.lockf(self._open(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            except (BlockingIOError, PermissionError):  # POSIX allows either
                if asyncio.get_running_loop().time() > deadline:
                    raise NodeNotReady(
                        f"another instance of the plugin has been at it for {self._patience_s:g} s; is it hung?",
                        about=about,
                    ) from None
            except OSError as error:
                raise NodeNotReady(f"cannot be locked: {error.strerror}", about=f"file {self._path}") from error
            else:
                return
            await asyncio.sleep(_POLL_S)

    def _open(self) -> int:
        # One descriptor, kept: to close another one of the same file would give up all of the process's locks.
        if self._descriptor is None:
            try:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise NodeNotReady(f"cannot be opened: {error.strerror}", about=f"file {self._path}") from error
        return self._descriptor


def _place(name: str) -> int:
    """The byte of a name; that two names share one costs no more than that one waits for the other."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
