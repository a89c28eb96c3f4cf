"""Keeps the logs of MPS daemons small. Nobody else rotates them, and a daemon keeps its files open while it lives.

`kubelet_plugin.effects.mps` enters here whenever it looks at a daemon.
"""

import os
import stat
from contextlib import suppress
from pathlib import Path

MOST_BYTES = 1 << 20
"""Of one log, and as much again for what was before."""

_OLD = ".1"
_BLOCK_BYTES = 512


def bound_logs(folder: Path, most_bytes: int = MOST_BYTES) -> None:
    """Empty each log of `folder` that takes more than `most_bytes` on the disk; its end goes to a file with `.1`.

    In place, because the daemon goes on writing to the file that it has open. If it does not append, its file then has
    a hole at the beginning, so blocks count and not the size. Servers run as users of pods: no link is followed.
    """
    with suppress(OSError):
        for path in sorted(folder.glob("*.log")):
            with suppress(OSError):
                _bound(path, most_bytes)


def _bound(path: Path, most_bytes: int) -> None:
    log = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(log)
        if not stat.S_ISREG(found.st_mode) or found.st_blocks * _BLOCK_BYTES <= most_bytes:
            return
        end = os.pread(log, most_bytes, max(found.st_size - most_bytes, 0))
        old = path.with_name(path.name + _OLD)
        old.unlink(missing_ok=True)
        copy = os.open(old, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.write(copy, end)
        finally:
            os.close(copy)
        os.ftruncate(log, 0)
    finally:
        os.close(log)
