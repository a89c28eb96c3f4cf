"""`gpu-dra-cuda-check`: a CUDA program for a container that has a claim; the pods of `dractl doctor --prove` run it.

It loads libcuda.so.1, starts CUDA, names every device by its UUID, and takes and frees some memory of each. It writes
one line of JSON to standard output and to the container's termination message, and ends with status 1 when a step
failed; with `--seconds N` it stays so long before. Standard library only; the image needs no CUDA toolkit.
Source: CUDA Driver API; names with _v2 are those that cuda.h maps the plain ones to.
"""

import argparse
import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

LIBRARY = "libcuda.so.1"
MESSAGE_VARIABLE = "GPU_DRA_TERMINATION_MESSAGE"
"""The file of the termination message, if it is not where Kubernetes has it by default."""
_MESSAGE_FILE = "/dev/termination-log"
_LONGEST_MESSAGE = 4000
"""Kubernetes keeps 4096 bytes of a termination message."""
_SIZE_BYTES = 16 << 20

type Report = dict[str, Any]


class CudaFailed(Exception):
    """A step that failed: the function, and what CUDA or the dynamic linker says."""

    def __init__(self, step: str, message: str) -> None:
        super().__init__(message)
        self.step = step


def main() -> None:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str], load: Callable[[str], Any] = ctypes.CDLL, user: int | None = None) -> int:
    """Check, report, and answer the exit status. `user` None: who runs this."""
    parser = argparse.ArgumentParser(
        prog="gpu-dra-cuda-check", description="Try CUDA on what this container was given."
    )
    parser.add_argument("--seconds", type=float, default=0.0, help="stay so long after the check")
    seconds: float = parser.parse_args(arguments).seconds
    report = {"user": os.getuid() if user is None else user, **check(load)}
    time.sleep(seconds)
    line = json.dumps(report, separators=(",", ":"))
    sys.stdout.write(line + "\n")
    with suppress(OSError):
        Path(os.environ.get(MESSAGE_VARIABLE, _MESSAGE_FILE)).write_text(line[:_LONGEST_MESSAGE], encoding="utf-8")
    return 0 if report["error"] is None else 1


def check(load: Callable[[str], Any]) -> Report:
    """`devices`: uuid, name and memory of each that worked; `step` and `error` of what did not, None otherwise."""
    report: Report = {"version": None, "devices": [], "step": None, "error": None}
    try:
        cuda = _Cuda(_loaded(load))
        cuda.call("cuInit", 0)
        report["version"] = cuda.number("cuDriverGetVersion")
        for index in range(cuda.number("cuDeviceGetCount")):
            report["devices"].append(_used(cuda, index))
    except CudaFailed as failure:
        report |= {"step": failure.step, "error": str(failure)}
    return report


def _loaded(load: Callable[[str], Any]) -> Any:
    try:
        return load(LIBRARY)
    except OSError as error:
        raise CudaFailed("load", str(error)) from error


def _used(cuda: "_Cuda", index: int) -> Report:
    """Take and free memory of one device."""
    device, total, pointer, context = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_uint64(), ctypes.c_void_p()
    cuda.call("cuDeviceGet", ctypes.byref(device), index)
    name = ctypes.create_string_buffer(256)
    cuda.call("cuDeviceGetName", name, len(name), device)
    uuid = cuda.uuid(device)
    cuda.call("cuDeviceTotalMem_v2", ctypes.byref(total), device)
    cuda.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        cuda.call("cuCtxSetCurrent", context)
        cuda.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(_SIZE_BYTES))
        cuda.call("cuMemsetD8_v2", pointer, ctypes.c_ubyte(0), ctypes.c_size_t(_SIZE_BYTES))
        cuda.call("cuMemFree_v2", pointer)
    finally:
        with suppress(CudaFailed):
            cuda.call("cuDevicePrimaryCtxRelease_v2", device)
    return {"uuid": uuid, "name": name.value.decode(errors="replace"), "memoryBytes": total.value}


class _Cuda:
    """Calls of the library, whose failures become CudaFailed."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def call(self, name: str, *arguments: Any) -> None:
        code = int(self._function(name)(*arguments))
        if code:
            raise CudaFailed(name, f"{self._named(code)} ({code})")

    def number(self, name: str) -> int:
        value = ctypes.c_int()
        self.call(name, ctypes.byref(value))
        return value.value

    def uuid(self, device: ctypes.c_int) -> str:
        """Of the MIG device, if it is one: the older function gives that of its GPU."""
        buffer = ctypes.create_string_buffer(16)
        try:
            self.call("cuDeviceGetUuid_v2", buffer, device)
        except CudaFailed:
            self.call("cuDeviceGetUuid", buffer, device)
        text = buffer.raw.hex()
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

    def _function(self, name: str) -> Any:
        try:
            return getattr(self._library, name)
        except AttributeError as error:
            raise CudaFailed(name, f"{LIBRARY} has no such function: is it the driver's?") from error

    def _named(self, code: int) -> str:
        text = ctypes.c_char_p()
        with suppress(AttributeError):
            if not self._library.cuGetErrorName(code, ctypes.byref(text)) and text.value:
                return text.value.decode(errors="replace")
        return "CUDA error"


if __name__ == "__main__":
    main()
