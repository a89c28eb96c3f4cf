"""Keeps a long-running process small. `main` calls this module first, and after everything has started. Most of a
service's memory is libraries; its daily work fits into the memory that start-up leaves free after a cleanup.
"""

import asyncio
import ctypes
import gc
import mmap
from asyncio import sslproto
from functools import cache

_ARENA_MAX = -8
_TRIM_THRESHOLD = -1
_ARENAS = 2
_TRIM_BYTES = 256 * 1024
_TLS_BUFFER_BYTES = 64 * 1024
_FIRST_WORK_S = 2.0
_DONT_NEED = 4
"""MADV_DONTNEED, madvise(2)."""
_PT_LOAD = 1
_PF_W = 2
"""elf(5)."""


def limit() -> None:
    """Call before threads start and connections are opened, and after the imports."""
    _limit_allocator()
    _segments_of_files()
    # asyncio reserves as much for each TLS connection, and fills it: 256 KiB, though a TLS record has at most 16 KiB.
    sslproto.SSLProtocol.max_size = _TLS_BUFFER_BYTES


def _limit_allocator() -> None:
    """glibc gives each thread its own arena, up to 8 per CPU, and most waste memory. Does nothing if the C library has
    no such settings (musl).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, _ARENAS)
        mallopt(_TRIM_THRESHOLD, _TRIM_BYTES)


def settle() -> None:
    """Call when everything is loaded: frees start-up garbage, and excludes the rest from garbage collection."""
    gc.collect()
    gc.freeze()
    _let_go()


async def settle_later() -> None:
    """For a service whose first work, for instance its connections, is done soon after it has started: lets go once
    more of what was needed only for that."""
    await asyncio.sleep(_FIRST_WORK_S)
    _let_go()


def _let_go() -> None:
    library = ctypes.CDLL(None)
    malloc_trim = getattr(library, "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
    _let_go_of_libraries(library)


def _let_go_of_libraries(library: ctypes.CDLL) -> None:
    """Unmaps the pages of libraries that come from their files: code, constants, symbols. Most were used only at
    start-up; the others return when they are used.
    """
    for start, size in _segments_of_files():
        library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _DONT_NEED)


@cache
def _segments_of_files() -> tuple[tuple[int, int], ...]:
    """Addresses and sizes of what libraries map and never write. Segments that are written, also by relocation, are
    left out, because their pages are in no file.

    Remembered from before threads started: the C library holds its lock of loaded libraries during the calls, and a
    thread that imports a compiled module would wait for it with Python's lock. Libraries are never unloaded.
    """
    iterate = getattr(ctypes.CDLL(None), "dl_iterate_phdr", None)
    if iterate is None:
        return ()
    segments = []

    def add(info: "ctypes._Pointer[_LoadedObject]", size: int, data: int | None) -> int:
        loaded = info.contents
        for header in loaded.headers[: loaded.count]:
            if header.type == _PT_LOAD and not header.flags & _PF_W:
                start = (loaded.base + header.address) & -mmap.PAGESIZE
                segments.append((start, loaded.base + header.address + header.file_bytes - start))
        return 0

    iterate(_CALLBACK(add), None)
    return tuple(segments)


class _ProgramHeader(ctypes.Structure):
    """Elf64_Phdr, elf(5)."""

    _fields_ = (
        ("type", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("offset", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("physical_address", ctypes.c_uint64),
        ("file_bytes", ctypes.c_uint64),
        ("memory_bytes", ctypes.c_uint64),
        ("alignment", ctypes.c_uint64),
    )


class _LoadedObject(ctypes.Structure):
    """The beginning of struct dl_phdr_info, dl_iterate_phdr(3)."""

    _fields_ = (
        ("base", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.POINTER(_ProgramHeader)),
        ("count", ctypes.c_uint16),
    )


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_LoadedObject), ctypes.c_size_t, ctypes.c_void_p)
