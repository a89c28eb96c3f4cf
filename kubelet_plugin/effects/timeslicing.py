"""The time slice of a GPU: how long one process computes before the next one's turn.

Prepare enters here through the port of `kubelet_plugin.prepare.holds`. NVML has no call for it, so the driver's
nvidia-smi sets it, for one GPU at a time. The driver forgets it with a reboot, a reset, or when it is reloaded; nothing
but the interval is touched, and only for GPUs of claims that asked for one. Calls block.
"""

from dra_driver.errors import HardwareError
from kubelet_plugin.effects.nvml_user import NvmlUser
from kubelet_plugin.hardware.calls import Code
from kubelet_plugin.hardware.driver_programs import DriverPrograms
from kubelet_plugin.prepare.holds import GpuIdentity, Made, Records, TimeSlice

INTERVALS = {"Default": 0, "Short": 1, "Medium": 2, "Long": 3}
"""Our words, and nvidia-smi's numbers. Source: `nvidia-smi compute-policy --help`."""

_GONE = (Code.NOT_FOUND, Code.DRIVER_NOT_LOADED, Code.GPU_IS_LOST)
"""Perhaps: NVML, with whose number nvidia-smi ends, says so, too, when one of its queries failed. A GPU that the driver
lost comes back with the default interval."""


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
        """Back to Default; nothing to do after a reboot, or on a GPU that is gone. Raises NodeNotReady."""
        record = records.get(hold)
        if record is not None and record.boot_id != boot_id:
            return
        try:
            self._set(hold.gpu, INTERVALS["Default"])
        except HardwareError as error:
            if error.code not in _GONE or self._nvml.bound(hold.gpu.pci_bus_id):
                raise

    def _set(self, gpu: GpuIdentity, interval: int) -> None:
        words = ("compute-policy", "-i", gpu.uuid, "--set-timeslice", str(interval))
        # While our session is open: a GPU that is not persistent would forget it when nvidia-smi ends.
        self._nvml.use(gpu, lambda _: self._programs.run("nvidia-smi", words, about=str(gpu)))
