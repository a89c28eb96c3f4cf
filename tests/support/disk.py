"""A folder whose disk fails on command, and a process that dies on command while it writes there; within one test.

For state machines, which run thousands of crashes: `support.kill_points` and `support.refusals` do the same to real
processes. A death is an error out of the n-th change and out of every later one, so nothing after it reaches the disk.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_CHANGES = ("replace", "unlink")
_FLUSHES = ("write", "fsync")


class Disk:
    """Changes below `root` go through here while the context lasts."""

    def __init__(self, root: Path) -> None:
        self._root = str(root.resolve()) + "/"
        self._originals: dict[str, Callable[..., Any]] = {}
        self.full = False
        """Nothing can be written or flushed; files can be removed."""
        self.dies_after: int | None = None
        """So many changes succeed, then the process is dead. None: it lives."""

    @property
    def dead(self) -> bool:
        return self.dies_after is not None and self.dies_after <= 0

    def __enter__(self) -> Self:
        self._patch("open", lambda path, flags, *_: str(Path(path).absolute()) if flags & os.O_CREAT else "")
        for name in _CHANGES:
            self._patch(name, lambda path, *_: str(Path(path).absolute()))
        for name in (*_FLUSHES, "ftruncate"):
            self._patch(name, _path_of_descriptor)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, function in self._originals.items():
            setattr(os, name, function)

    def operate(self) -> None:
        """Something else that the process does counts as a change, too. Raises when the process is dead."""
        self._allow("act", self._root)

    def _patch(self, name: str, path_of: Callable[..., str]) -> None:
        original = self._originals[name] = getattr(os, name)

        def operation(*args: Any, **kwargs: Any) -> Any:
            path = path_of(*args)
            if path and (path + "/").startswith(self._root):
                self._allow(name, path)
            return original(*args, **kwargs)

        setattr(os, name, operation)

    def _allow(self, name: str, path: str) -> None:
        if self.dead:
            raise OSError(errno.EIO, "the process is dead", path)
        if self.full and name in _FLUSHES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if self.dies_after is not None:
            self.dies_after -= 1


def _path_of_descriptor(descriptor: int, *_: Any) -> str:
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:
        return ""
