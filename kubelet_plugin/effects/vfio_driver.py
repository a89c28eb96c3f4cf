"""What the NVIDIA driver is asked, and told, of a GPU that is to be lent to a virtual machine or has come back."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from dra_driver.errors import HardwareError
from kubelet_plugin.hardware.calls import Code
from kubelet_plugin.hardware.nvml import Nvml
from kubelet_plugin.prepare.holds import GpuIdentity


class GpuDriver(Protocol):
    """What is asked of the NVIDIA driver about one GPU. Every method blocks and may raise HardwareError."""

    def persistence(self, gpu: GpuIdentity) -> bool: ...

    def set_persistence(self, gpu: GpuIdentity, *, on: bool) -> None: ...

    def mig_enabled(self, gpu: GpuIdentity) -> bool: ...

    def sees(self, gpu: GpuIdentity) -> bool:
        """Whether NVML lists it, in a session that was begun after this call."""

    def without_nvml(self, work: Callable[[], None]) -> None:
        """Call `work` while no NVML session of this process has a GPU open."""


class Hardware(Protocol):
    """What is needed of `kubelet_plugin.discovery.Hardware`."""

    def use[T](self, work: Callable[[Nvml], T]) -> T: ...

    def without_session[T](self, work: Callable[[], T]) -> T: ...


class DriverOfNode:
    """The NVIDIA driver through NVML. `paused` keeps other sessions of this process away: that of the events."""

    def __init__(
        self, hardware: Hardware, paused: Callable[[], AbstractContextManager[None]] = lambda: nullcontext()
    ) -> None:
        self._hardware = hardware
        self._paused = paused

    def persistence(self, gpu: GpuIdentity) -> bool:
        def read(nvml: Nvml) -> bool:
            # A driver that knows no such thing (NOT_SUPPORTED) has nothing to be switched off.
            mode = nvml.supported(str(gpu), nvml.library.nvmlDeviceGetPersistenceMode, nvml.handle(gpu.uuid))
            return bool(mode)

        return self._hardware.use(read)

    def set_persistence(self, gpu: GpuIdentity, *, on: bool) -> None:
        """By way of the persistence daemon, where the library finds its socket in /run/nvidia-persistenced."""
        self._hardware.use(
            lambda nvml: nvml.call(str(gpu), nvml.library.nvmlDeviceSetPersistenceMode, nvml.handle(gpu.uuid), int(on))
        )

    def mig_enabled(self, gpu: GpuIdentity) -> bool:
        def read(nvml: Nvml) -> bool:
            mode = nvml.supported(str(gpu), nvml.library.nvmlDeviceGetMigMode, nvml.handle(gpu.uuid))
            return mode is not None and bool(mode[0])

        return self._hardware.use(read)

    def sees(self, gpu: GpuIdentity) -> bool:
        # Which GPUs there are, a library finds out when its first session begins.
        self.without_nvml(lambda: None)
        try:
            self._hardware.use(lambda nvml: nvml.handle(gpu.uuid))
        except HardwareError as error:
            if error.code == Code.NOT_FOUND:
                return False
            raise
        return True

    def without_nvml(self, work: Callable[[], None]) -> None:
        with self._paused():
            self._hardware.without_session(work)
