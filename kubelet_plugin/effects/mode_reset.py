"""Switches the MIG mode of a GPU that needs a reset for it (A100, A30), while nothing uses the GPU.

`kubelet_plugin.claims.mode_changes` enters here, after the journal has the intent. Each call looks at what is there
first, so an earlier attempt may have ended anywhere:

    mode is set (pending) ── NVML resets the GPU itself, if no other process has it open ──► mode is on
                          └─ else nvidia-smi resets it, while this process has no session ──► mode is on

NVIDIA's own daemons let go of a GPU for its reset (Fabric Manager, nvidia-persistenced). Source: DGX A100 user guide,
"Multi-Instance GPU", which ends only nvsm and dcgm; nvml.h, nvmlDeviceSetMigMode. Only this GPU is ever reset. Never
seen on hardware. Calls block.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from dra_driver.errors import HardwareError
from kubelet_plugin.effects.nvml_user import NvmlUser
from kubelet_plugin.effects.vfio_driver import DriverOfNode, HostSmi
from kubelet_plugin.hardware.calls import NvmlCode
from kubelet_plugin.hardware.mig import Mode
from kubelet_plugin.hardware.nvml import Nvml
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.hardware.vfio import minor_at, node_names, this_process, users
from kubelet_plugin.prepare.holds import GpuIdentity

_OF_NVIDIA = ("nvidia-persiste", "nv-fabricmanage", "nv-fabricmanager")
"""As the kernel cuts the names."""
_GRAPHICS = "/sys/module/nvidia_drm"


class ModeResets:
    """Within `paused` no other NVML session of this process is open."""

    def __init__(
        self,
        host: HostFiles,
        nvml: NvmlUser,
        driver: DriverOfNode,
        smi: HostSmi,
        paused: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._host = host
        self._nvml = nvml
        self._driver = driver
        self._smi = smi
        self._paused = paused

    def users(self, gpu: GpuIdentity) -> tuple[str, ...]:
        """Programs that have the GPU open: `dcgm-exporter (4711)`. Not this process, and not NVIDIA's own daemons."""
        pci, own = self._host.pci(gpu.pci_bus_id), this_process(self._host)
        nodes = node_names(self._host, pci, minor_at(self._host, pci.address))
        return tuple(
            str(user)
            for user in users(self._host, nodes)
            if user.pid != own and not user.command.startswith(_OF_NVIDIA)
        )

    @property
    def graphics(self) -> bool:
        """Whether the kernel module nvidia_drm is loaded, which keeps GPUs from being reset."""
        return self._host.resolve(_GRAPHICS) is not None

    def instances(self, gpu: GpuIdentity) -> tuple[str, ...]:
        """GPU instances on it, which a reset would destroy. Raises HardwareError, also if NVML does not list all."""

        def look(nvml: Nvml) -> tuple[str, ...]:
            mig = nvml.mig(gpu.uuid)
            return tuple(map(str, mig.instances(sure=True))) if _known(mig.mode(), gpu).on else ()

        return self._nvml.use(gpu, look)

    def switch(self, gpu: GpuIdentity, *, on: bool) -> None:
        """Switch the mode, or find it switched. Raises HardwareError; then the change may be pending.

        The caller has seen that nothing uses the GPU. A program that comes in between is in the way of the reset, and
        is not harmed: NVML and nvidia-smi refuse.
        """
        done = Mode(on, on)
        if self._mode(gpu) == done:
            return
        with self._paused():
            self._nvml.use(gpu, lambda nvml: nvml.mig(gpu.uuid).set_mode(on))
        # A reset may have given the GPU another minor number, and earlier handles are invalid.
        self._driver.without_nvml(lambda: None)
        if self._mode(gpu) == done:
            return
        if using := self.users(gpu):
            raise HardwareError(f"programs have the GPU open: {', '.join(using)}", about=str(gpu), code=NvmlCode.IN_USE)
        self._driver.without_nvml(lambda: self._smi.reset(gpu))
        if (mode := self._mode(gpu)) != done:
            raise HardwareError(
                f"MIG mode is {'on' if mode.on else 'off'} after the reset; search the kernel log for NVRM",
                about=str(gpu),
                code=NvmlCode.RESET_REQUIRED,
            )

    def cancel(self, gpu: GpuIdentity) -> bool:
        """Leave no change pending; whether the mode is on. Raises HardwareError."""

        def settle(nvml: Nvml) -> bool:
            mig = nvml.mig(gpu.uuid)
            mode = _known(mig.mode(), gpu)
            if mode.pending != mode.on:
                mig.set_mode(mode.on)
            return mode.on

        return self._nvml.use(gpu, settle)

    def _mode(self, gpu: GpuIdentity) -> Mode:
        return self._nvml.use(gpu, lambda nvml: _known(nvml.mig(gpu.uuid).mode(), gpu))


def _known(mode: Mode | None, gpu: GpuIdentity) -> Mode:
    if mode is None:
        raise HardwareError("NVML does not say now whether MIG mode is on", about=str(gpu), code=NvmlCode.NOT_FOUND)
    return mode
