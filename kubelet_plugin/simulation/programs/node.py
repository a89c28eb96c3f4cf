"""The simulated node as its programs see it: the state file as JSON, without the libraries that check it; and sessions.

The same file, lock and way of replacing as `kubelet_plugin.simulation.state`, which says what the fields mean. Each
NVML session holds a shared lock while it lasts. The kernel ends a lock with its process, so a killed plugin's session
ends as a real one does. The driver forgets the compute mode and time slice of an idle GPU that is not persistent when
its last client closes it; here that shows when the next session begins. Standard library only, because programs import
it. Source: NVIDIA, Driver Persistence, "Data Persistence".
"""

import fcntl
import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_SIZE = re.compile(r"(\d+)([KMG]?)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Attached:
    """A client of the driver, until `close`. `first` is called when there was no other."""

    def __init__(self, file: str, first: Callable[[], None]) -> None:
        self._fd: int | None = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            first()
        except BlockingIOError:
            pass
        fcntl.flock(self._fd, fcntl.LOCK_SH)

    def alone(self) -> bool:
        """Whether there is no other client; asks for the lock and gives back what is more than a share of it."""
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


DEVICES_VARIABLE, MOUNTS_VARIABLE, USER_VARIABLE = "SIMULATED_DEVICES", "SIMULATED_MOUNTS", "SIMULATED_USER"
"""Set by `dra_driver.simulation.kubelet.containers`; not set on the host itself."""


class RootedNode:
    """The node below `root`."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._path = f"{root}/sim/state.json"

    def read(self) -> dict[str, Any]:
        """Raises OSError when the node no longer exists."""
        with open(self._path, encoding="utf-8") as file:
            state: dict[str, Any] = json.load(file)
        return state

    @contextmanager
    def edit(self) -> Iterator[dict[str, Any]]:
        with open(f"{self.root}/sim/lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = self.read()
            yield state
            temporary = f"{self.root}/sim/state.{os.getpid()}.tmp"
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(state, file, indent=1)
            os.replace(temporary, self._path)

    def attach(self) -> Attached:
        """Become a client of the driver."""
        return Attached(f"{self.root}/sim/clients", self._initialise)

    def _initialise(self) -> None:
        """The driver initializes GPUs that no process had open: what is not kept is as after a boot."""
        if any(map(_forgets, self.read()["gpus"])):
            with self.edit() as state:
                for gpu in filter(_forgets, state["gpus"]):
                    gpu["compute_mode"] = gpu["time_slice"] = 0

    def boots(self) -> int:
        """Differs after every reboot; -1 when the node is gone."""
        try:
            return int(self.read()["boots"])
        except (OSError, ValueError):
            return -1


def _forgets(gpu: dict[str, Any]) -> bool:
    """Whether it has settings that the driver forgets when no session is open."""
    in_use = gpu["persistenced"] or gpu["persistence_mode"] or gpu["clients"]
    return gpu["bound_to"] == "nvidia" and not in_use and bool(gpu["compute_mode"] or gpu["time_slice"])


@contextmanager
def short_path(path: str) -> Iterator[str]:
    """A name of a socket that fits into its address, however long the path is."""
    folder, _, name = path.rpartition("/")
    fd = os.open(folder or "/", os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}/{name}"
    finally:
        os.close(fd)


def connect(peer: socket.socket, path: str) -> None:
    """To a socket, however long its path is."""
    with short_path(path) as name:
        peer.connect(name)


def size_bytes(text: str) -> int | None:
    """`512M` as bytes; None when it is no such thing."""
    match = _SIZE.fullmatch(text.strip().upper())
    return int(match[1]) * _UNITS[match[2]] if match is not None else None


def visible_devices(state: dict[str, Any], visible: str | None) -> list[str]:
    """The UUIDs that CUDA enumerates, in order, from CUDA_VISIBLE_DEVICES: it ends at the first unknown one."""
    gpus = [gpu["uuid"] for gpu in state["gpus"] if gpu["bound_to"] == "nvidia" and not gpu["fault"]]
    if visible is None:
        return gpus
    instances = [instance for gpu in state["gpus"] for instance in gpu["instances"]]
    known = {*gpus, *(device["uuid"] for instance in instances for device in instance["compute_instances"])}
    results: list[str] = []
    for word in filter(None, (part.strip() for part in visible.split(","))):
        uuid = gpus[int(word)] if word.isdecimal() and int(word) < len(gpus) else word
        if uuid not in known:
            break
        results.append(uuid)
    return results
