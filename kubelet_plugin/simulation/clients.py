"""Which processes have an NVML session with a simulated node: each holds a shared lock while it lasts.

The kernel ends a lock with its process, so a killed plugin's session ends as a real one does. nvidia-smi of the node
(`kubelet_plugin.simulation.programs.node`) takes part. Standard library only, because programs import it.

Nobody keeps an idle GPU initialised that is not persistent: the driver forgets its compute mode and time slice when the
last client closes it. Here that shows when the next session begins. Source: NVIDIA, Driver Persistence, "Data
Persistence".
"""

import fcntl
import os
from collections.abc import Callable


class Attached:
    """A client of the driver, until `close`. `first` is called when nobody else was one."""

    def __init__(self, file: str, first: Callable[[], None]) -> None:
        self._fd: int | None = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            first()
        except BlockingIOError:
            pass
        fcntl.flock(self._fd, fcntl.LOCK_SH)

    def alone(self) -> bool:
        """Whether nobody else is a client; asks for the lock and gives back what is more than a share of it."""
        assert self._fd is not None, "not closed"
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(self._fd, fcntl.LOCK_SH)
            return False
        fcntl.flock(self._fd, fcntl.LOCK_SH)
        return True

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __del__(self) -> None:
        self.close()
