"""The files of a simulated node, by what they come from: a profile, whose files are made up, or a record.

`kubelet_plugin.simulation.host` asks for the parts of a tree when the driver or the machine comes and goes.
"""

from pathlib import Path
from typing import Protocol

from kubelet_plugin.record.format import read_record
from kubelet_plugin.simulation import driver_files, kernel_files
from kubelet_plugin.simulation.recorded.start import RECORD
from kubelet_plugin.simulation.recorded.tree import RecordedTree
from kubelet_plugin.simulation.state import NodeState
from kubelet_plugin.simulation.tree import path


class Tree(Protocol):
    """`root` is the folder that the node is in; `state` says what is there now."""

    def write_machine(self, root: Path, state: NodeState) -> None:
        """What is there with the machine and the kernel, with or without an NVIDIA driver."""

    def write_kernel_files(self, root: Path, state: NodeState) -> None:
        """What the NVIDIA kernel modules show."""

    def remove_kernel_files(self, root: Path, state: NodeState) -> None: ...

    def write_driver_files(self, root: Path, state: NodeState) -> None:
        """The files of the driver's packages."""

    def remove_driver_files(self, root: Path, state: NodeState) -> None: ...

    def adopt_programs(self, root: Path, state: NodeState) -> None:
        """The driver's programs are run by this process's interpreter from now on."""


class GeneratedTree:
    """Of a profile's node."""

    write_machine = staticmethod(kernel_files.write_machine)
    write_kernel_files = staticmethod(kernel_files.write_kernel_files)
    remove_kernel_files = staticmethod(kernel_files.remove_kernel_files)
    write_driver_files = staticmethod(driver_files.write_driver_files)
    adopt_programs = staticmethod(driver_files.adopt_programs)

    @staticmethod
    def remove_driver_files(root: Path, state: NodeState) -> None:
        for host_path, _ in driver_files.files_of_driver(state):
            path(root, host_path).unlink(missing_ok=True)


def tree_of(root: Path, state: NodeState) -> Tree:
    """The tree of the node below `root`."""
    return RecordedTree(read_record(root / RECORD)) if state.recorded is not None else GeneratedTree()
