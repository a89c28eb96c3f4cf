"""Keeps a long-running process small. `main` calls this module twice: first, and after everything has started. Most of
a service's memory is libraries; its daily work fits into the memory that start-up leaves free after a cleanup.
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
    """Call before threads start: glibc gives each thread its own arena, up to 8 per CPU, and most waste memory. Does
    nothing if the C library has no such settings (musl).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, _ARENAS)
        mallopt(_TRIM_THRESHOLD, _TRIM_BYTES)


def settle() -> None:
    """Call when everything is loaded: frees start-up garbage, and excludes the rest from garbage collection."""
    gc.collect()
    gc.freeze()
    library = ctypes.CDLL(None)
    malloc_trim = getattr(library, "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
    _let_go_of_code(library)


def _let_go_of_code(library: ctypes.CDLL) -> None:
    """Unmaps the pages of libraries' code. Most ran only at start-up; the others return when they are used. Only
    executable mappings of files, which are never written, so the page cache has them. Other read-only mappings contain
    relocated addresses, which are in no file.
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
