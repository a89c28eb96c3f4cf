"""Calls into NVML through a pynvml-shaped library, and what its errors mean.

`kubelet_plugin.hardware.nvml` and its neighbors ask here. The library is a parameter, so the simulated one takes the
same road as the real one. Every foreign exception becomes a `HardwareError` in `Calls.call` and nowhere else. Which
calls may run side by side is for `kubelet_plugin.hardware.lanes`.
"""

from collections.abc import Callable, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any

import pynvml
from pydantic import ValidationError

from dra_driver.api.inventory import Problem
from dra_driver.errors import HardwareError
from dra_driver.phrases import shown
from kubelet_plugin.hardware.driver_files import load
from kubelet_plugin.hardware.lanes import calling


class NvmlCode(IntEnum):
    """The NVML return values that are distinguished here. Compared as numbers: `NVMLError` itself cannot be hashed."""

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    IRQ_ISSUE = 11
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    INSUFFICIENT_RESOURCES = 23
    ARGUMENT_VERSION_MISMATCH = 25
    UNKNOWN = 999


NOT_THERE = frozenset({NvmlCode.NOT_SUPPORTED, NvmlCode.FUNCTION_NOT_FOUND})
"""The hardware has no such thing, or the driver is too old to know the question."""

_SESSION_OVER = frozenset({NvmlCode.UNINITIALIZED, NvmlCode.DRIVER_NOT_LOADED, NvmlCode.LIB_RM_VERSION_MISMATCH})
"""Not about one GPU: the driver went away or was replaced, NVML must be initialized again."""

GPU_GONE = frozenset({NvmlCode.GPU_IS_LOST, NvmlCode.RESET_REQUIRED})

_REASONS = {
    NvmlCode.NO_PERMISSION: "NoPermission",
    NvmlCode.DRIVER_NOT_LOADED: "DriverNotLoaded",
    NvmlCode.TIMEOUT: "NotResponding",
    NvmlCode.LIBRARY_NOT_FOUND: "LibraryNotFound",
    NvmlCode.GPU_IS_LOST: "GpuIsLost",
    NvmlCode.RESET_REQUIRED: "ResetRequired",
    NvmlCode.LIB_RM_VERSION_MISMATCH: "DriverVersionMismatch",
}

_ADVICE: Mapping[int, str] = {
    NvmlCode.NO_PERMISSION: "the node plugin must run as root with access to /dev/nvidia*",
    NvmlCode.INSUFFICIENT_POWER: "attach the GPU's external power cables",
    NvmlCode.DRIVER_NOT_LOADED: "the nvidia kernel module is not loaded",
    NvmlCode.LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 was not found; is the driver installed, and the driver root right?",
    NvmlCode.IRQ_ISSUE: "the kernel gets no interrupts of the GPU; search its log for NVRM",
    NvmlCode.CORRUPTED_INFOROM: "the GPU's InfoROM is corrupted; have the GPU serviced",
    NvmlCode.GPU_IS_LOST: "the GPU fell off the bus or became unreachable; reboot or service the node",
    NvmlCode.RESET_REQUIRED: "the GPU must be reset before it can be used",
    NvmlCode.OPERATING_SYSTEM: "the system or a cgroup blocks the GPU; the plugin must run in a privileged container",
    NvmlCode.LIB_RM_VERSION_MISMATCH: "the driver's libraries and the loaded kernel module are of different versions",
    NvmlCode.UNKNOWN: "search the kernel log for NVRM",
}
"""Source: nvml.h, nvmlReturn_t."""


type NvmlLibrary = Any
"""Module `pynvml` of nvidia-ml-py, or what stands in for it: its functions, structures, constants and exceptions."""


def load_library(file: Path | None = None) -> NvmlLibrary:
    """The real NVML. `file` is libnvidia-ml below a driver root; None leaves the search to the dynamic linker.

    Loading again, from another file, is how a driver that was upgraded under a running plugin is followed. Give the
    file with its version in the name: the dynamic linker answers a name that it knows with the library it has.
    Raises HardwareError (LIBRARY_NOT_FOUND) when the file cannot be loaded.
    """
    try:
        pynvml.nvmlLib = load(file) if file is not None else None
    except OSError as error:
        raise HardwareError(
            f"{error}; wait for the driver's installation to end, or install the driver again",
            about="driver",
            code=NvmlCode.LIBRARY_NOT_FOUND,
        ) from error
    # pynvml remembers the address of every function that it called, in any library.
    pynvml._nvmlGetFunctionPointer_cache.clear()
    return pynvml


def problem_of(error: HardwareError, subject: str) -> Problem:
    """An NVML failure as a user reads it in the NodeInventory."""
    reason = _REASONS[NvmlCode(error.code)] if error.code in _REASONS else "NvmlError"
    return Problem(subject=subject, reason=reason, message=error.message)


class Calls:
    """The library. `about` is what an error is about: `GPU 0000:1b:00.0`, `driver`."""

    def __init__(self, library: NvmlLibrary) -> None:
        self.library = library

    def supported[**P, R](self, about: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
        """The answer; None when the hardware has no such thing. Raises HardwareError for every other failure."""
        try:
            return self.call(about, function, *args, **kwargs)
        except HardwareError as error:
            if error.code in NOT_THERE:
                return None
            raise

    def described[**P, R](self, about: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
        """The answer; None when the driver does not tell. Raises HardwareError when the GPU or the driver is gone."""
        try:
            return self.call(about, function, *args, **kwargs)
        except HardwareError as error:
            if session_over(error) or error.code in GPU_GONE:
                raise
            return None

    def call[**P, R](self, about: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """One call into NVML. The only place where its exceptions are known."""
        with calling():
            try:
                return function(*args, **kwargs)
            except self.library.NVMLError as error:
                raise translated(error, about) from error
            except UnicodeDecodeError as error:
                raise HardwareError("NVML answered with bytes that are not text", about=about) from error


def session_over(error: HardwareError) -> bool:
    """Whether the failure is NVML's as a whole: the session must be stopped and a new one started."""
    return error.code in _SESSION_OVER


def translated(error: Exception, about: str) -> HardwareError:
    """An NVMLError as a HardwareError, with advice where there is some. `about` names the GPU, or `driver`."""
    code = int(getattr(error, "value", 999))
    advice = _ADVICE.get(code)
    message = f"NVML: {error} ({code})"
    return HardwareError(f"{message}; {advice}" if advice else message, about=about, code=code)


def answered_wrong(error: ValidationError, about: str) -> HardwareError:
    message = f"NVML gave an answer that cannot be true: {what_is_wrong(error)}; search the kernel log for NVRM"
    return HardwareError(message, about=about)


def what_is_wrong(error: ValidationError) -> str:
    """Names the answer that is beyond what any hardware has, such as a memory of all ones."""
    first = error.errors()[0]
    limit = first["msg"].replace("Input should", "it should")
    return f"{'.'.join(map(str, first['loc']))} is {shown(first['input'])}, {limit}"
