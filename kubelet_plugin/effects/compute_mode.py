"""The compute mode of a GPU: whether processes may share it, or one has it to itself, which with MPS is the server.

Prepare enters here through the port of `kubelet_plugin.prepare.holds`. What the mode was is remembered before it is
changed, so that an administrator's choice comes back, whatever it was. The driver forgets the mode with a reboot.
Calls block.
"""

from dra_driver.errors import HardwareError
from kubelet_plugin.effects.nvml_user import NvmlUser
from kubelet_plugin.hardware.calls import Code
from kubelet_plugin.hardware.nvml import Nvml
from kubelet_plugin.prepare.holds import ComputeMode, Made, Records

_GONE = (Code.NOT_FOUND, Code.DRIVER_NOT_LOADED, Code.GPU_IS_LOST)
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
        """Set the mode, unless it is so. Raises HardwareError.

        After a reboot what was before is the default again, unless somebody has chosen since.
        """
        record = records[hold]
        fresh = record.boot_id == self._nvml.boot_id()

        def change(nvml: Nvml) -> int:
            mode = nvml.compute_mode(hold.gpu.uuid)
            if mode != hold.mode:
                nvml.set_compute_mode(hold.gpu.uuid, hold.mode)
            return mode

        found = self._nvml.use(hold.gpu, change)
        known = record.made.get("was")
        return _was(int(known) if fresh and known is not None else found)

    def undo(self, hold: ComputeMode, records: Records, boot_id: str) -> None:
        """Back to what it was, unless somebody else has changed it meanwhile, or the GPU is gone."""
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
            if error.code not in _GONE or self._nvml.bound(hold.gpu.pci_bus_id):
                raise


def _was(mode: int) -> Made:
    return Made((("was", str(mode)),))
