"""A fabric partition active: Fabric Manager sets the NVSwitches so that its GPUs reach each other, and no others.

Prepare enters here through the port of `kubelet_plugin.prepare.holds`. A partition that was active before the first
claim belongs to an administrator or another tool: it is used and left active. A GPU joins its fabric when the driver
initializes it, so those of a partition are not open while it is activated: persistence mode is off for that moment, and
the plugin's own NVML session is closed. Source: documentation of FabricManagerPartitioning in
kubernetes-sigs/dra-driver-nvidia-gpu; not seen on hardware. Calls block, also for the whole node.
"""

from collections.abc import Collection

from dra_driver.errors import HardwareError
from kubelet_plugin.effects.nvml_user import NvmlUser
from kubelet_plugin.effects.vfio_driver import DriverOfNode
from kubelet_plugin.hardware.nvfm import ABOUT, FabricManager, FabricPartitionNow, FmCode
from kubelet_plugin.prepare.holds import FabricPartition, GpuIdentity, Made, Records, described

_ACTIVE, _INACTIVE = "active", "inactive"


class FabricPartitions:
    """Effect of `FabricPartition`. Facts: `was`; and `persistent`, the UUIDs of GPUs whose persistence mode must be
    switched on again, none when it is made."""

    def __init__(self, manager: FabricManager, driver: DriverOfNode, nvml: NvmlUser) -> None:
        self._manager = manager
        self._driver = driver
        self._nvml = nvml

    def before(self, hold: FabricPartition, records: Records) -> Made:
        """Whether it is active. Raises HardwareError while another partition has one of its GPUs."""
        partition = self._look(hold)
        persistent = [] if partition.active else self._persistent(hold)
        return Made((("persistent", ",".join(persistent)), ("was", _ACTIVE if partition.active else _INACTIVE)))

    def make(self, hold: FabricPartition, records: Records) -> Made:
        """Activate it, or find it active. Raises HardwareError.

        After a reboot, a partition that is active was activated by another tool since.
        """
        record, partition = records[hold], self._look(hold)
        was = record.made.get("was") if record.boot_id == self._nvml.boot_id() else None
        persistent = _recorded_persistent(record.made)
        if not partition.active:
            self._activate(hold, persistent or self._persistent(hold))
        else:
            self._restore(hold, persistent)  # an earlier attempt ended before it did
        return Made((("persistent", ""), ("was", was or (_ACTIVE if partition.active else _INACTIVE))))

    def undo(self, hold: FabricPartition, records: Records, boot_id: str) -> None:
        """Deactivate it, if this driver activated it. Raises HardwareError. A boot deactivates all partitions."""
        record = records[hold]
        if record.boot_id != boot_id:
            return
        if record.made.get("was") == _INACTIVE and self._is_active(hold):
            try:
                self._manager.deactivate(hold.partition)
            except HardwareError as error:
                # Another tool may have deactivated it meanwhile; but the library says so, too, when it is not
                # initialized (nv_fm_agent.h).
                if error.code != FmCode.UNINITIALIZED or self._is_active(hold):
                    raise
        self._restore(hold, _recorded_persistent(record.made))

    def _look(self, hold: FabricPartition) -> FabricPartitionNow:
        partitions = self._manager.partitions()
        wanted = next((partition for partition in partitions if partition.id == hold.partition), None)
        if wanted is None or len(wanted.members) != len(hold.gpus):
            raise HardwareError(
                f"{described(hold)} no longer exists, because Fabric Manager offers other partitions now; delete the"
                " pod and its claim, so that the claim is allocated again",
                about=ABOUT,
            )
        numbers = {member.physical_id for member in wanted.members}
        for other in partitions:
            if other.active and other != wanted and numbers & {member.physical_id for member in other.members}:
                raise HardwareError(
                    f"{described(hold)} cannot be activated: partition {other.id} is active and has some of its GPUs."
                    " An administrator or another tool activated it; deactivate it with"
                    f" `fmpm -d {other.id}`, and the kubelet tries again",
                    about=ABOUT,
                    code=FmCode.IN_USE,
                )
        return wanted

    def _is_active(self, hold: FabricPartition) -> bool:
        return any(partition.active and partition.id == hold.partition for partition in self._manager.partitions())

    def _activate(self, hold: FabricPartition, persistent: Collection[str]) -> None:
        for gpu in self._at_home(hold):
            if gpu.uuid in persistent:
                self._driver.set_persistence(gpu, on=False)
        try:
            self._driver.without_nvml(lambda: self._manager.activate(hold.partition))
        except HardwareError as error:
            if error.code != FmCode.IN_USE or not self._is_active(hold):
                raise
        finally:
            self._restore(hold, persistent)

    def _persistent(self, hold: FabricPartition) -> list[str]:
        return [gpu.uuid for gpu in self._at_home(hold) if self._driver.persistence(gpu)]

    def _restore(self, hold: FabricPartition, persistent: Collection[str]) -> None:
        for gpu in self._at_home(hold):
            if gpu.uuid in persistent:
                self._driver.set_persistence(gpu, on=True)

    def _at_home(self, hold: FabricPartition) -> list[GpuIdentity]:
        """The GPUs that the nvidia driver has: of others nothing can be asked, and nothing is open."""
        return [gpu for gpu in hold.gpus if self._nvml.bound(gpu.pci_bus_id)]


def _recorded_persistent(made: Made) -> list[str]:
    return [uuid for uuid in (made.get("persistent") or "").split(",") if uuid]
