"""nvidia-smi of a simulated node without a process of its own: two of them for each GPU cost more than the tests."""

from collections.abc import Callable

from dra_driver.errors import HardwareError
from kubelet_plugin.effects.vfio_driver import HostSmi
from kubelet_plugin.hardware.sysfs import HostFiles
from kubelet_plugin.prepare.holds import GpuIdentity
from kubelet_plugin.simulation.programs import smi
from kubelet_plugin.simulation.programs.node import RootedNode


class SmiInProcess(HostSmi):
    """`around` is called before and after each run, with the words."""

    def __init__(self, files: HostFiles, around: Callable[[str], None] = lambda moment: None) -> None:
        self._files = files
        self._around = around

    def _run(self, gpu: GpuIdentity, *words: str) -> str:
        node = RootedNode(str(self._files.root))
        self._around(f"before nvidia-smi {' '.join(words)}")
        try:
            printed = "".join(f"{line}\n" for line in smi._run(node, smi._words(["-i", gpu.uuid, *words])))
        except smi._Refused as error:
            raise HardwareError(str(error), about=str(gpu)) from error
        self._around(f"after nvidia-smi {' '.join(words)}")
        return printed
