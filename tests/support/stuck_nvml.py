"""Simulated NVML in which calls about one GPU do not return until they may, as with a driver that hangs."""

import threading
from pathlib import Path

from kubelet_plugin.simulation.nvml import SimulatedNvml
from kubelet_plugin.simulation.state import GpuState, NodeState


class StuckNvml(SimulatedNvml):
    """`stick` and `free` calls about a GPU, by its UUID; `hit` is set when one is stuck."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.hit = threading.Event()
        self._stuck = ""
        self._function = ""
        self._free = threading.Event()

    def stick(self, uuid: str, function: str = "") -> None:
        """All calls, or those of one function."""
        self.hit.clear()
        self._free.clear()
        self._stuck, self._function = uuid, function

    def free(self) -> None:
        self._stuck = ""
        self._free.set()

    def met(self, state: NodeState, uuid: str, function: str) -> tuple[bool, GpuState]:
        if uuid == self._stuck and self._function in ("", function):
            self.hit.set()
            self._free.wait(60)
        return super().met(self.node(function), uuid, function)
