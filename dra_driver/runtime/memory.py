"""Keeps a long-running process small. `main` enters here twice: first thing, and when everything has started.

A service is mostly its libraries: what it does in a day fits into what start-up leaves behind, if that is tidied.
"""

import ctypes
import gc
from pathlib import Path

_ARENA_MAX = -8
_TRIM_THRESHOLD = -1
_ARENAS = 2
_TRIM_BYTES = 256 * 1024
_DONT_NEED = 4
"""MADV_DONTNEED, madvise(2)."""


def limit_allocator() -> None:
    """Before threads start: glibc gives each its own arena, up to 8 per CPU, and few are ever used well.

    Does nothing where the C library has no such settings (musl).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, _ARENAS)
        mallopt(_TRIM_THRESHOLD, _TRIM_BYTES)


def settle() -> None:
    """When everything is loaded: free what start-up left, and keep the collector from walking the rest for ever."""
    gc.collect()
    gc.freeze()
    library = ctypes.CDLL(None)
    malloc_trim = getattr(library, "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
    _let_go_of_code(library)


def _let_go_of_code(library: ctypes.CDLL) -> None:
    """Unmap the pages of libraries' code. Most of them ran once, at start-up; the others come back as they are used.

    Only executable mappings of files: nothing was ever written to them, so the page cache has all of it. Other
    read-only mappings hold relocated addresses, which no file has.
    """
    try:
        mappings = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return
    for mapping in mappings:
        addresses, permissions, _, _, inode, *_ = mapping.split(maxsplit=5)
        if permissions == "r-xp" and inode != "0":
            start, end = (int(address, 16) for address in addresses.split("-"))
            library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _DONT_NEED)
