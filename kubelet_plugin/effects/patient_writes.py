"""Writes to sysfs about PCI devices, for which the kernel may need for ever.

`kubelet_plugin.effects.vfio` enters here, to take a GPU from one driver and give it to another.
"""

import queue
import threading

from dra_driver.errors import HardwareError
from kubelet_plugin.hardware.vfio import SysfsWriter
from kubelet_plugin.prepare.holds import GpuIdentity

_DEVICES = "/sys/bus/pci/devices"
_DRIVERS = "/sys/bus/pci/drivers"


class PatientWrites:
    """Writes to sysfs that do not last for ever: the caller is told to come again, and the write goes on alone.

    What one GPU's writes do is done in order: as long as one of them hangs, the next is not begun.
    """

    def __init__(self, sysfs: SysfsWriter, patience_s: float) -> None:
        self._sysfs = sysfs
        self._patience_s = patience_s
        self._hanging: dict[str, threading.Thread] = {}

    def order(self, gpu: GpuIdentity, address: str, name: str, text: str) -> None:
        self._write(gpu, address, f"{_DEVICES}/{address}/{name}", text)

    def unbind(self, gpu: GpuIdentity, address: str) -> None:
        self._write(gpu, address, f"{_DEVICES}/{address}/driver/unbind", address)

    def bind(self, gpu: GpuIdentity, address: str, driver: str) -> None:
        self._write(gpu, address, f"{_DRIVERS}/{driver}/bind", address)

    def _write(self, gpu: GpuIdentity, address: str, host_path: str, text: str) -> None:
        """Raises HardwareError when the kernel refuses it, or has not done it in time."""
        hanging = self._hanging.get(address)
        if hanging is not None:
            hanging.join(self._patience_s)
            if hanging.is_alive():
                raise HardwareError(f"the kernel still does not end a write ({hanging.name})", about=str(gpu))
            del self._hanging[address]
            # The world is another one now: whoever asked has to look again.
            raise HardwareError("the kernel has just ended an earlier write", about=str(gpu), retry_after_s=0.5)
        outcome: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

        def write() -> None:
            try:
                self._sysfs.write(host_path, text + "\n")
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits, as it is
                outcome.put(error)
            else:
                outcome.put(None)

        # A daemon: a driver that hangs must not keep the process from ending.
        thread = threading.Thread(target=write, name=f"{text or 'nothing'} to {host_path}", daemon=True)
        thread.start()
        try:
            error = outcome.get(timeout=self._patience_s)
        except queue.Empty:
            self._hanging[address] = thread
            raise HardwareError(
                f"the kernel has not ended a write for {self._patience_s:g} s ({thread.name}): something has the GPU"
                " open, or its driver hangs; see the kernel log",
                about=str(gpu),
            ) from None
        if isinstance(error, OSError):
            raise HardwareError(
                f"the kernel refused a write ({thread.name}): {error.strerror}", about=str(gpu)
            ) from error
        if error is not None:
            raise error
