"""The time slice of a GPU: how long one process computes before the next one's turn.

Prepare enters here through the port of `kubelet_plugin.prepare.holds`. NVML has no call for it, so the driver's
nvidia-smi sets it, for one GPU at a time. The driver forgets it with a reboot, a reset, or when it is reloaded; nothing
but the interval is touched, and only for GPUs of claims that asked for one. Calls block.
"""

from dra_driver.errors import HardwareError
from kubelet_plugin.effects.nvml_user import NvmlUser
from kubelet_plugin.hardware.calls import NvmlCode
from kubelet_plugin.hardware.driver_programs import DriverPrograms
from kubelet_plugin.hardware.nvml import Nvml
from kubelet_plugin.prepare.holds import ComputeMode, GpuIdentity, Made, Records, TimeSlice

_GPU_IS_GONE = (NvmlCode.NOT_FOUND, NvmlCode.DRIVER_NOT_LOADED, NvmlCode.GPU_IS_LOST)
"""Perhaps: NVML says so, too, when one of its queries failed. A GPU that the driver lost comes back with the default
mode."""


class ComputeModes:
    """Sets compute modes through NVML. Facts: `was`, the number of the mode before."""

    def __init__(self, nvml: NvmlUser) -> None:
        self._nvml = nvml

    def before(self, hold: ComputeMode, records: Records) -> Made:
        """What the mode is. Raises HardwareError."""
        return _was(self._nvml.use(hold.gpu, lambda nvml: nvml.compute_mode(hold.gpu.uuid)))

    def make(self, hold: ComputeMode, records: Records) -> Made:
        """Set the mode, unless it is set already. Raises HardwareError.

        After a reboot, the previous mode is the default again, unless an administrator has set another one since.
        """
        record = records[hold]
        fresh = record.boot_id == self._nvml.boot_id()

        def change(nvml: Nvml) -> int:
            mode = nvml.compute_mode(hold.gpu.uuid)
            if mode != hold.mode:
                nvml.set_compute_mode(hold.gpu.uuid, hold.mode)
            return mode

        mode_before = self._nvml.use(hold.gpu, change)
        known = record.made.get("was")
        return _was(int(known) if fresh and known is not None else mode_before)

    def undo(self, hold: ComputeMode, records: Records, boot_id: str) -> None:
        """Restore the previous mode, unless an administrator has changed it meanwhile or the GPU is gone."""
        record = records[hold]
        was = record.made.get("was")
        if was is None or record.boot_id != boot_id:
            return

        def restore(nvml: Nvml) -> None:
            if nvml.compute_mode(hold.gpu.uuid) == hold.mode != int(was):
                nvml.set_compute_mode(hold.gpu.uuid, int(was))

        try:
            self._nvml.use(hold.gpu, restore)
        except HardwareError as error:
            if error.code not in _GPU_IS_GONE or self._nvml.bound(hold.gpu.pci_bus_id):
                raise


def _was(mode: int) -> Made:
    return Made((("was", str(mode)),))


INTERVALS = {"Default": 0, "Short": 1, "Medium": 2, "Long": 3}
"""Our words, and nvidia-smi's numbers. Source: `nvidia-smi compute-policy --help`."""


class TimeSlices:
    """Sets the time slice with the driver's nvidia-smi."""

    def __init__(self, programs: DriverPrograms, nvml: NvmlUser) -> None:
        self._programs = programs
        self._nvml = nvml

    def before(self, hold: TimeSlice, records: Records) -> Made:
        """Nothing to remember: the way back is Default. Raises NodeNotReady when there is no nvidia-smi."""
        self._programs.find("nvidia-smi")
        return Made()

    def make(self, hold: TimeSlice, records: Records) -> Made:
        """Set the interval; setting it again changes nothing. Raises NodeNotReady, HardwareError."""
        self._set(hold.gpu, INTERVALS[hold.interval])
        return Made()

    def undo(self, hold: TimeSlice, records: Records, boot_id: str) -> None:
        """Back to Default; nothing to do after a reboot, or on a GPU that is gone or divided. Raises NodeNotReady.

        A GPU in MIG mode refuses to be given a time slice. Not seen on hardware: whether an earlier one comes back when
        the mode is off again.
        """
        record = records.get(hold)
        if record is not None and record.boot_id != boot_id:
            return
        try:
            self._set(hold.gpu, INTERVALS["Default"])
        except HardwareError as error:
            if error.code == NvmlCode.NOT_SUPPORTED and self._is_divided(hold.gpu):
                return
            if error.code not in _GPU_IS_GONE or self._nvml.bound(hold.gpu.pci_bus_id):
                raise

    def _is_divided(self, gpu: GpuIdentity) -> bool:
        return self._nvml.use(gpu, lambda nvml: nvml.mig(gpu.uuid).is_on())

    def _set(self, gpu: GpuIdentity, interval: int) -> None:
        words = ("compute-policy", "-i", gpu.uuid, "--set-timeslice", str(interval))
        # While our session is open: a GPU that is not persistent would forget it when nvidia-smi ends.
        self._nvml.use(gpu, lambda _: self._programs.run("nvidia-smi", words, about=str(gpu)))
