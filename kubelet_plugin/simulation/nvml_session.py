"""A session with the NVML of a simulated node: handles, and what every call meets before it is answered.

The functions themselves are in the modules `nvml_mig` and `nvml` beside this one, which extend `Session`. A function
of the library is a method under one of the decorators here, by what its first argument is a handle of: it is then
called with the state of that GPU or instance. That state is shared and only read; what is to change is changed through
`SimulatedHost.edit`.
"""

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Literal

import pynvml

from kubelet_plugin.simulation.host import SimulatedHost
from kubelet_plugin.simulation.partitions import PartitionRefused, mig_device
from kubelet_plugin.simulation.programs.node import Attached, RootedNode
from kubelet_plugin.simulation.state import (
    ComputeInstanceState,
    GpuInstanceState,
    GpuState,
    NodeState,
    StateFile,
    mishaps_after,
)

_HANDLES_START = 0x7F0000000000
_INSTANCES_START = 0x7F8000000000


class Crash(BaseException):
    """Stands for the death of the calling process: no caller handles it."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What a handle stands for. `number` is a GPU instance's creation, `mig_uuid` names a MIG device or its compute
    instance: a handle does not come to life again with the next instance that gets the same id. `recorded` is a handle
    that a record names, with that name as `mig_uuid`."""

    kind: Literal["gpu", "mig", "gpu instance", "compute instance", "recorded"]
    session: int
    uuid: str
    number: int = 0
    mig_uuid: str = ""


type Mig = tuple[GpuInstanceState, ComputeInstanceState]


type _Subject = Callable[[GpuState, Reference], tuple[Any, ...]]
"""What a function is called with after the GPU. Raises PartitionRefused."""


def _query(kinds: tuple[str, ...], subject: _Subject) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Of functions whose first argument is a handle of one of these kinds: `answer(self, gpu, *subject, ...)`."""

    def decorate(answer: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(answer)
        def wrapper(self: "Session", handle: Any, /, *args: Any, **kwargs: Any) -> Any:
            def work(reference: Reference, gpu: GpuState) -> Any:
                return answer(self, gpu, *subject(gpu, reference), *args, **kwargs)

            return self.answered(handle, answer.__name__, kinds, work)

        return wrapper

    return decorate


def _no_mig(gpu: GpuState, reference: Reference) -> tuple[()]:
    if reference.kind == "mig":
        raise PartitionRefused(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return ()


gpu_query = _query(("gpu", "mig"), _no_mig)
"""A function of GPUs: `answer(self, gpu, ...)`. Handles of MIG devices are NOT_SUPPORTED."""
device_query = _query(
    ("gpu", "mig"), lambda gpu, reference: (mig_device(gpu, reference.mig_uuid) if reference.kind == "mig" else None,)
)
"""A function of GPUs and MIG devices alike: `answer(self, gpu, mig, ...)`."""
gpu_instance_query = _query(("gpu instance",), lambda gpu, reference: (gpu_instance(gpu, reference.number),))
"""A function of GPU instances: `answer(self, gpu, instance, ...)`."""
compute_instance_query = _query(("compute instance",), lambda gpu, reference: (mig_device(gpu, reference.mig_uuid),))
"""A function of compute instances: `answer(self, gpu, (gpu instance, compute instance), ...)`."""


class Session:
    """The library as one process has it. `_uuids` are the GPUs that it enumerated when it was initialized."""

    def __init__(self, root: Path) -> None:
        self._file = StateFile(root)
        self._host = SimulatedHost(root)
        self._started = 0
        self._session = 0
        self._uuids: tuple[str, ...] = ()
        self._attached: Attached | None = None
        self._naming = threading.Lock()
        self._references: dict[int, Reference] = {}
        self._addresses: dict[Reference, int] = {}

    def attach(self) -> None:
        """From now on this process is a client of the driver."""
        self._attached = RootedNode(str(self._host.root)).attach()

    def detach(self) -> None:
        if self._attached is not None:
            self._attached.close()
            self._attached = None

    def alone(self) -> bool:
        """Whether no other session is open on this node."""
        return self._attached is None or self._attached.alone()

    def node(self, function: str) -> NodeState:
        """The state, for a caller whose session is alive. Raises NVMLError otherwise."""
        state = self._machine()
        if function in state.driver.missing:
            raise error(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        if not self._started or state.driver.session != self._session:
            raise error(pynvml.NVML_ERROR_UNINITIALIZED)
        if not state.driver.loaded:
            raise error(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        return state

    def _machine(self) -> NodeState:
        """Raises NVMLError when the machine's folder was removed."""
        try:
            return self._file.read()
        except FileNotFoundError:
            raise error(pynvml.NVML_ERROR_DRIVER_NOT_LOADED) from None

    def answered[R](
        self, handle: Any, function: str, kinds: tuple[str, ...], work: Callable[[Reference, GpuState], R]
    ) -> R:
        """What `work` answers about the GPU that `handle` belongs to, unless the call fails or has a mishap."""
        state = self.node(function)
        reference = self._reference(handle)
        if reference.kind not in kinds:
            raise error(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        dies, gpu = self.met(state, reference.uuid, function)
        self.check(gpu)
        try:
            result = work(reference, gpu)
        except PartitionRefused as refused:
            raise error(refused.code) from None
        if dies:
            raise Crash(function)
        return result

    def gpu_of(self, handle: Any, function: str) -> GpuState:
        """Of an argument beside the first."""
        state = self.node(function)
        gpu = state.gpu(self._reference(handle).uuid)
        self.check(gpu)
        return gpu

    def check(self, gpu: GpuState) -> None:
        """Raises NVMLError when the GPU cannot be asked."""
        if gpu.bound_to != "nvidia":
            raise error(pynvml.NVML_ERROR_GPU_IS_LOST)
        if gpu.fault:
            raise error(gpu.fault)

    def gpu_handle(self, uuid: str) -> Any:
        handles = self._file.latest.gpu(uuid).handles
        address = _HANDLES_START + (self._session << 16) + (handles % 256 << 8) + self._uuids.index(uuid)
        return ctypes.cast(ctypes.c_void_p(address), pynvml.c_nvmlDevice_t)

    def mig_handle(self, gpu: GpuState, item: ComputeInstanceState) -> Any:
        reference = Reference("mig", self._session, gpu.uuid, mig_uuid=item.uuid)
        return self._pointer(reference, pynvml.c_nvmlDevice_t)

    def gpu_instance_handle(self, gpu: GpuState, instance: GpuInstanceState) -> Any:
        reference = Reference("gpu instance", self._session, gpu.uuid, number=instance.number)
        return self._pointer(reference, pynvml.c_nvmlGpuInstance_t)

    def compute_instance_handle(self, gpu: GpuState, item: ComputeInstanceState) -> Any:
        reference = Reference("compute instance", self._session, gpu.uuid, mig_uuid=item.uuid)
        return self._pointer(reference, pynvml.c_nvmlComputeInstance_t)

    def check_privileged(self) -> None:
        if not self._file.latest.driver.privileged:
            raise error(pynvml.NVML_ERROR_NO_PERMISSION)

    def _pointer(self, reference: Reference, kind: Any) -> Any:
        with self._naming:  # callers may be in several threads
            address = self._addresses.setdefault(reference, _INSTANCES_START + 16 * len(self._addresses))
            self._references[address] = reference
        return ctypes.cast(ctypes.c_void_p(address), kind)

    def _reference(self, handle: Any) -> Reference:
        at = address(handle)
        reference = self._references.get(at)
        if reference is None:
            session, rest = divmod(at - _HANDLES_START, 1 << 16)
            handles, index = divmod(rest, 1 << 8)
            if index >= len(self._uuids) or handles != self._file.latest.gpu(self._uuids[index]).handles % 256:
                raise error(pynvml.NVML_ERROR_INVALID_ARGUMENT)
            reference = Reference("gpu", session, self._uuids[index])
        if reference.session != self._session:
            raise error(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return reference

    def met(self, state: NodeState, uuid: str, function: str) -> tuple[bool, GpuState]:
        """The GPU after this function's mishap, if it has one. True: the caller dies when the work is done."""
        gpu = state.gpu(uuid)
        mishap = gpu.mishaps.get(function)
        if mishap is None:
            return False, gpu
        if mishap.times is not None:
            with self._host.edit() as state:
                gpu = state.gpu(uuid)
                gpu.mishaps = mishaps_after(gpu.mishaps, function, mishap)
        time.sleep(mishap.delay_s)
        if mishap.crash == "before":
            raise Crash(function)
        if mishap.code:
            raise error(mishap.code)
        # Meanwhile the node may have changed in any way.
        return mishap.crash == "after", self.node(function).gpu(uuid)


def gpu_instance(gpu: GpuState, number: int) -> GpuInstanceState:
    """Raises PartitionRefused when it is gone."""
    for instance in gpu.instances:
        if instance.number == number:
            return instance
    raise PartitionRefused(pynvml.NVML_ERROR_NOT_FOUND)


def supported[T](value: T | None) -> T:
    if value is None:
        raise error(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return value


def error(code: int) -> Exception:
    made: Exception = pynvml.NVMLError(code)
    return made


def address(pointer: Any) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


def pointed(reference: Any) -> Any:
    """What a C argument points to: `byref(x)`, `pointer(x)`, or an array, which is its own pointer."""
    if hasattr(reference, "_obj"):
        return reference._obj
    return reference.contents if hasattr(reference, "contents") else reference
