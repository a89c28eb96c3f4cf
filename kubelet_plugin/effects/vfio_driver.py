"""Queries and settings of the NVIDIA driver for a GPU that will be lent to a virtual machine or has come back."""

from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import structlog

from dra_driver.errors import HardwareError, NodeNotReady
from dra_driver.runtime.threads import in_own_thread
from kubelet_plugin.effects.nvml_user import NvmlUser
from kubelet_plugin.effects.on_host import OnHost
from kubelet_plugin.hardware.calls import NvmlCode
from kubelet_plugin.hardware.driver_programs import DriverPrograms
from kubelet_plugin.hardware.nvml import Nvml
from kubelet_plugin.hardware.vfio import SysfsWriter
from kubelet_plugin.prepare.holds import GpuIdentity

_log = structlog.get_logger(__name__)


class HostSmi:
    """nvidia-smi of the driver root. Every failure is a HardwareError about the GPU."""

    def __init__(self, programs: DriverPrograms, on_host: OnHost) -> None:
        self._programs = programs
        self._on_host = on_host

    def persistence(self, gpu: GpuIdentity) -> bool:
        """Whether the GPU stays initialized while it is not used, by the daemon or by the kernel module itself."""
        answer = self._run(gpu, "--query-gpu=persistence_mode", "--format=csv,noheader")
        return answer.strip() == "Enabled"

    def set_persistence(self, gpu: GpuIdentity, *, on: bool) -> None:
        """By the daemon, where one runs."""
        self._run(gpu, "-pm", str(int(on)))

    def reset(self, gpu: GpuIdentity) -> None:
        """Reset this GPU and no other. Refused while any process has it open, but for daemons of the driver."""
        self._run(gpu, "--gpu-reset")

    def _run(self, gpu: GpuIdentity, *words: str) -> str:
        try:
            program = self._programs.find("nvidia-smi")
            words = ("-i", gpu.pci_bus_id, *words)
            path = program.path_inside if self._on_host.isolates else str(program.file)
            return self._on_host.run(
                [path, *words], "nvidia-smi", root=program.chroot, environment=program.host_environment
            )
        except NodeNotReady as error:
            raise HardwareError(f"nvidia-smi {' '.join(words)}: {error.message}", about=str(gpu)) from error


_DEVICES = "/sys/bus/pci/devices"
_DRIVERS = "/sys/bus/pci/drivers"


class PatientWrites:
    """Writes to sysfs with a time limit: after it, the caller must try again, and the write continues on its own.

    The writes of one GPU stay in order: as long as one of them hangs, the next is not begun.
    """

    def __init__(self, sysfs: SysfsWriter, patience_s: float) -> None:
        self._sysfs = sysfs
        self._patience_s = patience_s
        self._hanging: dict[str, tuple[str, Future[None]]] = {}
        """By address: a write that hangs, in words, and its end."""

    def order(self, gpu: GpuIdentity, address: str, name: str, text: str) -> None:
        self._write(gpu, address, f"{_DEVICES}/{address}/{name}", text)

    def unbind(self, gpu: GpuIdentity, address: str) -> None:
        self._write(gpu, address, f"{_DEVICES}/{address}/driver/unbind", address)

    def bind(self, gpu: GpuIdentity, address: str, driver: str) -> None:
        self._write(gpu, address, f"{_DRIVERS}/{driver}/bind", address)

    def _write(self, gpu: GpuIdentity, address: str, host_path: str, text: str) -> None:
        """Raises HardwareError when the kernel refuses it, or has not done it in time."""
        if (hanging := self._hanging.get(address)) is not None:
            before, end = hanging
            if not wait([end], self._patience_s).done:
                raise HardwareError(f"the kernel still does not end a write ({before})", about=str(gpu))
            del self._hanging[address]
            # The GPU's state has changed: the caller must look again.
            raise HardwareError("the kernel has just ended an earlier write", about=str(gpu), retry_after_s=0.5)
        what = f"{text or 'nothing'} to {host_path}"
        end = in_own_thread(what, partial(self._sysfs.write, host_path, text + "\n"))
        if not wait([end], self._patience_s).done:
            self._hanging[address] = what, end
            raise HardwareError(
                f"the kernel has not ended a write for {self._patience_s:g} s ({what}): something has the GPU open, or"
                " its driver hangs; see the kernel log",
                about=str(gpu),
            )
        try:
            end.result()
        except OSError as error:
            raise HardwareError(f"the kernel refused a write ({what}): {error.strerror}", about=str(gpu)) from error


class DriverOfNode:
    """The NVIDIA driver through NVML and nvidia-smi. `paused` keeps other sessions of this process away: the events'.
    Every method blocks and may raise HardwareError.

    A GPU is persistent in one of two ways that do not know each other: nvidia-persistenced has it open, or the kernel
    module keeps it by itself. NVML's call reaches the second alone; nvidia-smi asks the daemon where one runs.
    """

    def __init__(
        self,
        nvml: NvmlUser,
        smi: HostSmi,
        paused: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._nvml = nvml
        self._smi = smi
        self._paused = paused

    def persistence(self, gpu: GpuIdentity) -> bool:
        try:
            return self._smi.persistence(gpu) or self._kernel_persistence(gpu)
        except HardwareError as error:
            _log.info("nvidia-smi does not say whether a GPU is persistent", gpu=str(gpu), error=error.message)
            return self._kernel_persistence(gpu)

    def set_persistence(self, gpu: GpuIdentity, *, on: bool) -> None:
        """Set it, even if it is set already: that changes nothing.

        Off: in both ways, without an NVML session of the plugin, whose handles would become invalid (nvml.h).

        On: by the daemon, or by the kernel module if that fails. If all GPUs were unbound while a daemon ran, it opens
        only one of them again (dra-driver-nvidia-gpu issue 1037).
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

        return self._nvml.use(gpu, read)

    def _set_kernel_persistence(self, gpu: GpuIdentity, *, on: bool) -> None:
        self._nvml.use(
            gpu,
            lambda nvml: nvml.call(str(gpu), nvml.library.nvmlDeviceSetPersistenceMode, nvml.handle(gpu.uuid), int(on)),
        )

    def mig_enabled(self, gpu: GpuIdentity) -> bool:
        return self._nvml.use(gpu, lambda nvml: nvml.mig(gpu.uuid).is_on())

    def sees(self, gpu: GpuIdentity) -> bool:
        """Whether NVML lists it, in a session that was begun after this call."""
        # Which GPUs there are, a library finds out when its first session begins.
        self.without_nvml(lambda: None)
        try:
            self._nvml.use(gpu, lambda nvml: nvml.handle(gpu.uuid))
        except HardwareError as error:
            if error.code == NvmlCode.NOT_FOUND:
                return False
            raise
        return True

    def without_nvml(self, work: Callable[[], None]) -> None:
        """Call `work` while no NVML session of this process has a GPU open."""
        with self._paused():
            self._nvml.without_session(work)
