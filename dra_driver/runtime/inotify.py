"""Notices from the kernel that a file was replaced or removed, so that a service need not look every second."""

import asyncio
import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_MOVED_FROM, _MOVED_TO, _DELETE = 0x40, 0x80, 0x200
_EVENT = struct.Struct("iIII")
"""Watch, mask, cookie, and the size of the name that follows. Source: inotify(7)."""
_READ_BYTES = 4096


@contextmanager
def replacements(path: Path, notice: Callable[[], None]) -> Iterator[bool]:
    """While the block runs, `notice` is called in the event loop after a file was renamed to `path`, as
    `dra_driver.runtime.files.write_durably` does, or `path` was renamed or removed. A write in place gives no notice.

    Yields whether the kernel gives notices. It does not if the folder is missing or if all inotify instances of the
    node's users are in use. Network file systems give none of changes by other nodes.
    """
    fd = _watching(path.parent)
    if fd is None:
        yield False
        return
    name = os.fsencode(path.name)

    def read() -> None:
        # An event without a name: the queue was full, or the folder is gone.
        if {name, b""} & set(_names(os.read(fd, _READ_BYTES))):
            notice()

    loop = asyncio.get_running_loop()
    loop.add_reader(fd, read)
    try:
        yield True
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def _watching(folder: Path) -> int | None:
    library = ctypes.CDLL(None)
    if not hasattr(library, "inotify_init1"):
        return None
    fd: int = library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if fd < 0:
        return None
    if library.inotify_add_watch(fd, os.fsencode(folder), _MOVED_FROM | _MOVED_TO | _DELETE) < 0:
        os.close(fd)
        return None
    return fd


def _names(events: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(events):
        *_, size = _EVENT.unpack_from(events, position)
        position += _EVENT.size
        yield events[position : position + size].rstrip(b"\0")
        position += size
