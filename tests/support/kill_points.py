"""Kills its own process (SIGKILL) right after the n-th operation that changes files in given folders.

For the processes of crash tests. It replaces the functions of `os` through which every file is written, moved and
removed, so it knows nothing about the code that it stops, and that code nothing about it. Memory is lost with the
process and the page cache is not: exactly what a killed plugin leaves behind. A flush changes nothing of that, so there
is nothing to learn from being killed after one.
"""

import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_BY_PATH = ("replace", "rename", "unlink", "remove", "link")
_BY_DESCRIPTOR = ("write", "ftruncate")


class KillPoints:
    """Counts the operations below `folders`, notes each in `log`, and kills after number `kill_after` (None: never)."""

    def __init__(self, folders: Sequence[Path], log: Path, kill_after: int | None) -> None:
        self._folders = tuple(str(folder.resolve()) + "/" for folder in folders)
        self._kill_after = kill_after
        self._count = 0
        self._lock = threading.Lock()
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._write = os.write

    def arm(self) -> None:
        """From now on in this process, all threads."""
        for name in _BY_PATH:
            setattr(os, name, self._wrapped(name, getattr(os, name), _named_path))
        for name in _BY_DESCRIPTOR:
            setattr(os, name, self._wrapped(name, getattr(os, name), _path_of_descriptor))

    def _wrapped(self, name: str, function: Callable[..., Any], path_of: Callable[..., str]) -> Callable[..., Any]:
        def operation(*args: Any, **kwargs: Any) -> Any:
            path = path_of(*args)
            if not (path + "/").startswith(self._folders):
                return function(*args, **kwargs)
            # One at a time: nothing else of this process may happen between the operation and its end.
            with self._lock:
                result = function(*args, **kwargs)
                self._count += 1
                self._write(self._log, f"{name} {path}\n".encode())
                if self._count == self._kill_after:
                    os.kill(os.getpid(), signal.SIGKILL)
            return result

        return operation


def _named_path(*args: Any) -> str:
    return str(Path(args[0]).absolute())


def _path_of_descriptor(*args: Any) -> str:
    try:
        return str(Path(f"/proc/self/fd/{args[0]}").readlink())
    except OSError:
        return ""
