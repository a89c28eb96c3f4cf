"""Builders of nodes: a simulated host in a folder, and the services of the plugin that look at it."""

from dataclasses import dataclass
from pathlib import Path

from kubelet_plugin.facts.discovery import Discovery
from kubelet_plugin.facts.hardware import Hardware, NvmlSource
from kubelet_plugin.hardware.nvml import Nvml
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.prepare.holds import GpuIdentity
from kubelet_plugin.simulation.host import SimulatedHost, create_host
from kubelet_plugin.simulation.nvml import SimulatedNvml


@dataclass(frozen=True)
class Node:
    """One simulated machine, seen by a plugin."""

    host: SimulatedHost

    @property
    def files(self) -> HostFiles:
        return HostFiles(self.host.root)

    @property
    def hardware(self) -> Hardware:
        """A new look at the machine, as a plugin that has just started has it."""
        return Hardware(self.files, self.open_nvml)

    def gpu(self, index: int) -> GpuIdentity:
        state = self.host.state.gpus[index]
        return GpuIdentity(state.uuid, state.address)

    def open_nvml(self) -> NvmlSource:
        return NvmlSource(SimulatedNvml(self.host.root), str(self.host.driver_root))

    def nvml(self) -> Nvml:
        """An NVML session that has been started."""
        nvml = Nvml(SimulatedNvml(self.host.root))
        nvml.start()
        return nvml

    def discovery(self, *, interval_s: float = 3600.0, patience_s: float = 30.0) -> Discovery:
        return Discovery(self.hardware, interval_s=interval_s, patience_s=patience_s)


def a_node(folder: Path, profile: str = "dgx-h100", index: int = 0, *, gpus: int | None = None) -> Node:
    """With `gpus` the first ones alone: each look at the node takes as long as it has GPUs."""
    return Node(create_host(folder / "host", profile, index, gpus=gpus))
