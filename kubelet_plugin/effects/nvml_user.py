"""The port through which effects reach the GPUs."""

from collections.abc import Callable
from typing import Protocol

from kubelet_plugin.hardware.nvml import Nvml
from kubelet_plugin.prepare.holds import GpuIdentity


class NvmlUser(Protocol):
    """What is needed of `kubelet_plugin.facts.hardware.Hardware`."""

    def use[T](self, gpu: GpuIdentity, work: Callable[[Nvml], T]) -> T: ...

    def without_session[T](self, work: Callable[[], T]) -> T: ...

    def boot_id(self) -> str: ...

    def bound(self, pci_bus_id: str) -> bool:
        """Whether the GPU is bound to the nvidia driver according to the kernel, regardless of what NVML says."""
