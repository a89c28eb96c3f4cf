"""Keeps a long-running process small. `main` enters here twice: first thing, and when everything has started.

A service is mostly its libraries: what it does in a day fits into what start-up leaves behind, if that is tidied.
"""

import ctypes
import gc

_ARENA_MAX = -8
_TRIM_THRESHOLD = -1
_ARENAS = 2
_TRIM_BYTES = 256 * 1024


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
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
