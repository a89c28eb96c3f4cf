"""What the NVIDIA driver is asked, and told, of a GPU that is to be lent to a virtual machine or has come back."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import structlog

from dra_driver.errors import HardwareError
from kubelet_plugin.effects.host_smi import HostSmi
from kubelet_plugin.hardware.calls import Code
from kubelet_plugin.hardware.nvml import Nvml
from kubelet_plugin.prepare.holds import GpuIdentity

_log = structlog.get_logger(__name__)


class GpuDriver(Protocol):
    """What is asked of the NVIDIA driver about one GPU. Every method blocks and may raise HardwareError."""

    def persistence(self, gpu: GpuIdentity) -> bool: ...

    def set_persistence(self, gpu: GpuIdentity, *, on: bool) -> None:
        """Whatever it is; setting it again changes nothing."""

    def mig_enabled(self, gpu: GpuIdentity) -> bool: ...

    def sees(self, gpu: GpuIdentity) -> bool:
        """Whether NVML lists it, in a session that was begun after this call."""

    def without_nvml(self, work: Callable[[], None]) -> None:
        """Call `work` while no NVML session of this process has a GPU open."""


class Hardware(Protocol):
    """What is needed of `kubelet_plugin.facts.discovery.Hardware`."""

    def use[T](self, gpu: GpuIdentity, work: Callable[[Nvml], T]) -> T: ...

    def without_session[T](self, work: Callable[[], T]) -> T: ...


class DriverOfNode:
    """The NVIDIA driver through NVML and nvidia-smi. `paused` keeps other sessions of this process away: the events'.

    A GPU is persistent in one of two ways that do not know each other: nvidia-persistenced has it open, or the kernel
    module keeps it by itself. NVML's call reaches the second alone; nvidia-smi asks the daemon where one runs.
    """

    def __init__(
        self,
        hardware: Hardware,
        smi: HostSmi,
        paused: Callable[[], AbstractContextManager[None]] = lambda: nullcontext(),
    ) -> None:
        self._hardware = hardware
        self._smi = smi
        self._paused = paused

    def persistence(self, gpu: GpuIdentity) -> bool:
        try:
            return self._smi.persistence(gpu) or self._kernel_persistence(gpu)
        except HardwareError as error:
            _log.info("nvidia-smi does not say whether a GPU is persistent", gpu=str(gpu), error=error.message)
            return self._kernel_persistence(gpu)

    def set_persistence(self, gpu: GpuIdentity, *, on: bool) -> None:
        """Off: in both ways, without a session of ours, whose handles would be invalid afterwards (nvml.h).

        On: by the daemon; by the kernel module where that fails. A daemon under which all GPUs were unbound opens only
        one of them again (dra-driver-nvidia-gpu issue 1037).
        """
        try:
            if on:
                self._smi.set_persistence(gpu, on=True)
                return
            self.without_nvml(lambda: self._smi.set_persistence(gpu, on=False))
        except HardwareError as error:
            _log.warning("nvidia-smi does not set persistence mode; NVML is asked", gpu=str(gpu), error=error.message)
        if on or self._kernel_persistence(gpu):
            self._set_kernel_persistence(gpu, on=on)
            self.without_nvml(lambda: None)

    def _kernel_persistence(self, gpu: GpuIdentity) -> bool:
        def read(nvml: Nvml) -> bool:
            # A driver that knows no such thing (NOT_SUPPORTED) has nothing to be switched off.
            mode = nvml.supported(str(gpu), nvml.library.nvmlDeviceGetPersistenceMode, nvml.handle(gpu.uuid))
            return bool(mode)

        return self._hardware.use(gpu, read)

    def _set_kernel_persistence(self, gpu: GpuIdentity, *, on: bool) -> None:
        self._hardware.use(
            gpu,
            lambda nvml: nvml.call(str(gpu), nvml.library.nvmlDeviceSetPersistenceMode, nvml.handle(gpu.uuid), int(on)),
        )

    def mig_enabled(self, gpu: GpuIdentity) -> bool:
        def read(nvml: Nvml) -> bool:
            mode = nvml.supported(str(gpu), nvml.library.nvmlDeviceGetMigMode, nvml.handle(gpu.uuid))
            return mode is not None and bool(mode[0])

        return self._hardware.use(gpu, read)

    def sees(self, gpu: GpuIdentity) -> bool:
        # Which GPUs there are, a library finds out when its first session begins.
        self.without_nvml(lambda: None)
        try:
            self._hardware.use(gpu, lambda nvml: nvml.handle(gpu.uuid))
        except HardwareError as error:
            if error.code == Code.NOT_FOUND:
                return False
            raise
        return True

    def without_nvml(self, work: Callable[[], None]) -> None:
        with self._paused():
            self._hardware.without_session(work)
