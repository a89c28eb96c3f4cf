"""The driver's nvidia-smi, run where an administrator would run it: on the host, or in the driver's own root.

What only works there comes through here: persistence mode. Its call to nvidia-persistenced goes through a socket at a
fixed path of the system that the daemon runs in. The daemon's unit removes the socket's folder and makes it again at
each start, so a mount of it into the plugin's container would soon lead nowhere. Calls block.
"""

from dra_driver.errors import HardwareError, NodeNotReady
from kubelet_plugin.effects.on_host import OnHost
from kubelet_plugin.hardware.driver_programs import DriverPrograms
from kubelet_plugin.prepare.holds import GpuIdentity


class HostSmi:
    """nvidia-smi of the driver root. Every failure is a HardwareError about the GPU."""

    def __init__(self, programs: DriverPrograms, on_host: OnHost) -> None:
        self._programs = programs
        self._on_host = on_host

    def persistence(self, gpu: GpuIdentity) -> bool:
        """Whether the GPU stays initialised while nobody uses it, by the daemon or by the kernel module itself."""
        answer = self._run(gpu, "--query-gpu=persistence_mode", "--format=csv,noheader")
        return answer.strip() == "Enabled"

    def set_persistence(self, gpu: GpuIdentity, *, on: bool) -> None:
        """By the daemon, where one runs."""
        self._run(gpu, "-pm", str(int(on)))

    def _run(self, gpu: GpuIdentity, *words: str) -> str:
        try:
            program = self._programs.find("nvidia-smi")
            words = ("-i", gpu.pci_bus_id, *words)
            path = program.path_inside if self._on_host.isolates else str(program.file)
            return self._on_host.run(
                [path, *words], "nvidia-smi", root=program.chroot, environment=program.host_environment
            )
        except NodeNotReady as error:
            raise HardwareError(f"nvidia-smi {' '.join(words)}: {error.message}", about=str(gpu)) from error
