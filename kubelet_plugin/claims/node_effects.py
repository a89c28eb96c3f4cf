"""Builds the effects of all kinds of holds from this node's adapters, and reads from the journal what the driver made.

`kubelet_plugin.main` and the proofs of a node (`kubelet_plugin.doctor.node_proofs`) enter here.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from dra_driver.api.inventory import ModeObstacle
from dra_driver.errors import DriverError
from kubelet_plugin.effects.fabric_partitions import FabricPartitions
from kubelet_plugin.effects.gpu_settings import ComputeModes, TimeSlices
from kubelet_plugin.effects.mig import ComputeInstances, GpuInstances, MigModes
from kubelet_plugin.effects.mode_reset import ModeResets
from kubelet_plugin.effects.mps import MpsDaemons
from kubelet_plugin.effects.on_host import OnHost
from kubelet_plugin.effects.vfio import VfioBindings
from kubelet_plugin.effects.vfio_driver import DriverOfNode, HostSmi
from kubelet_plugin.facts.hardware import Hardware
from kubelet_plugin.hardware.driver_programs import DriverPrograms
from kubelet_plugin.hardware.nvfm import FabricManager
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.hardware.vfio import HostModules, KernelModules, Sysfs, SysfsWriter
from kubelet_plugin.prepare.holds import (
    ComputeInstance,
    ComputeMode,
    Effects,
    FabricPartition,
    GpuInstance,
    MigMode,
    MpsDaemon,
    TimeSlice,
    VfioBinding,
)
from kubelet_plugin.prepare.ours import NOTHING, DriverFootprint, claimed
from kubelet_plugin.prepare.store import JournalStore


@dataclass(frozen=True, slots=True)
class NodeMachine:
    """What of a node is another thing in the simulation."""

    host: HostFiles
    on_host: OnHost
    sysfs: SysfsWriter
    modules: KernelModules


def machine_of(host: HostFiles, simulated: Path | None) -> NodeMachine:
    """What holds act on, besides NVML: processes and mounts, the kernel's files and modules. `simulated` is the folder
    of a simulated host, None for a real one."""
    if simulated is None:
        on_host = OnHost.real(host)
        return NodeMachine(host, on_host, Sysfs(host), HostModules(host, on_host.run))

    # Only here: a real node has no use for it.
    from kubelet_plugin.simulation.vfio import SimulatedKernel

    kernel = SimulatedKernel(simulated)
    return NodeMachine(host, OnHost.simulated(host), kernel, kernel)


def effects_of(
    machine: NodeMachine,
    hardware: Hardware,
    programs: DriverPrograms,
    daemons: MpsDaemons,
    paused: Callable[[], AbstractContextManager[None]],
    fabric: FabricManager | None = None,
) -> Effects:
    """`paused` keeps the process's other NVML sessions away. Without `fabric` there are no fabric partitions."""
    driver = DriverOfNode(hardware, HostSmi(programs, machine.on_host), paused)
    return {
        **({} if fabric is None else {FabricPartition: FabricPartitions(fabric, driver, hardware)}),
        MigMode: MigModes(hardware, paused),
        GpuInstance: GpuInstances(hardware),
        ComputeInstance: ComputeInstances(hardware),
        ComputeMode: ComputeModes(hardware),
        TimeSlice: TimeSlices(programs, hardware),
        MpsDaemon: daemons,
        VfioBinding: VfioBindings(machine.host, machine.sysfs, machine.modules, driver),
    }


def mode_resets(
    machine: NodeMachine,
    hardware: Hardware,
    programs: DriverPrograms,
    paused: Callable[[], AbstractContextManager[None]],
) -> ModeResets:
    smi = HostSmi(programs, machine.on_host)
    return ModeResets(machine.host, hardware, DriverOfNode(hardware, smi, paused), smi, paused)


class CurrentFootprint:
    """What the driver made, read from the journal at each call, in any thread. If unreadable: the last known state."""

    def __init__(self, journal: JournalStore, host: HostFiles) -> None:
        self._journal = journal
        self._host = host
        self._last: DriverFootprint = NOTHING
        self._obstacles: Mapping[str, ModeObstacle] = {}

    def report(self, obstacles: Mapping[str, ModeObstacle]) -> None:
        """What is in the way of switching MIG modes, by the UUID of the GPU."""
        self._obstacles = obstacles

    def __call__(self) -> DriverFootprint:
        try:
            self._last = claimed(self._journal.current, self._host.boot_id())
        except DriverError:
            return self._last
        return replace(self._last, obstacles=self._obstacles)
