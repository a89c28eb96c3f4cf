"""Makes a process's file system refuse on command: a full disk or a read-only mount, without being one.

For processes of crash tests, which cannot mount anything. A switch is a file whose text is an errno name (`ENOSPC`,
`EROFS`); while it exists, nothing below its folder can be created, written, flushed, moved or removed.
"""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Refusals:
    """`switches`: the file that makes everything below a folder fail, by folder."""

    def __init__(self, switches: dict[Path, Path]) -> None:
        self._switches = {str(folder.resolve()) + "/": switch for folder, switch in switches.items()}

    def arm(self) -> None:
        """From now on in this process."""
        for name in ("replace", "rename", "unlink", "remove", "link", "mkdir"):
            setattr(os, name, self._wrapped(getattr(os, name), lambda path, *_: str(Path(path).absolute())))
        for name in ("write", "fsync", "fdatasync"):
            setattr(os, name, self._wrapped(getattr(os, name), _path_of_descriptor))
        os.open = self._wrapped(os.open, _path_if_created)

    def _wrapped(self, function: Callable[..., Any], path_of: Callable[..., str]) -> Callable[..., Any]:
        def operation(*args: Any, **kwargs: Any) -> Any:
            path = path_of(*args)
            for folder, switch in self._switches.items():
                if path and (path + "/").startswith(folder) and switch.exists():
                    name = switch.read_text().strip()
                    number = getattr(errno, name)
                    if _forbids(name, function.__name__):
                        raise OSError(number, os.strerror(number), path)
            return function(*args, **kwargs)

        return operation


def _forbids(error: str, operation: str) -> bool:
    """A full disk lets files be removed and empty ones be made; a read-only one nothing."""
    return error != "ENOSPC" or operation in ("write", "fsync", "fdatasync")


def _path_of_descriptor(descriptor: int, *_: Any) -> str:
    try:
        return str(Path(f"/proc/self/fd/{descriptor}").readlink())
    except OSError:
        return ""


def _path_if_created(path: Any, flags: int, *_: Any, **__: Any) -> str:
    return str(Path(path).absolute()) if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR) else ""
