"""The simulated node as its programs see it: the state file as JSON, without the libraries that check it.

The same file, lock and way of replacing as `kubelet_plugin.simulation.state`, which says what the fields mean.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kubelet_plugin.simulation.clients import Attached

_SIZE = re.compile(r"(\d+)([KMG]?)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Node:
    """The node below `root`."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._path = f"{root}/sim/state.json"

    def read(self) -> dict[str, Any]:
        """Raises OSError when there is no such node any more."""
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
        with self.edit() as state:
            for gpu in state["gpus"]:
                if not (gpu["persistenced"] or gpu["persistence_mode"] or gpu["clients"]):
                    gpu["compute_mode"] = gpu["time_slice"] = 0

    def boots(self) -> int:
        """Differs after every reboot; -1 when the node is gone."""
        try:
            return int(self.read()["boots"])
        except (OSError, ValueError):
            return -1


def size_bytes(text: str) -> int | None:
    """`512M` as bytes; None when it is no such thing."""
    match = _SIZE.fullmatch(text.strip().upper())
    return int(match[1]) * _UNITS[match[2]] if match is not None else None


def visible_devices(state: dict[str, Any], visible: str | None) -> list[str]:
    """The UUIDs that CUDA enumerates, in order, from CUDA_VISIBLE_DEVICES: it ends at the first unknown one."""
    gpus = [gpu["uuid"] for gpu in state["gpus"] if gpu["bound_to"] == "nvidia" and not gpu["fault"]]
    if visible is None:
        return gpus
    known = set(gpus) | set(mig_uuids(state))
    found: list[str] = []
    for word in filter(None, (part.strip() for part in visible.split(","))):
        uuid = gpus[int(word)] if word.isdecimal() and int(word) < len(gpus) else word
        if uuid not in known:
            break
        found.append(uuid)
    return found


def mig_uuids(state: dict[str, Any]) -> list[str]:
    """The UUIDs of all MIG devices of the node."""
    instances = [instance for gpu in state["gpus"] for instance in gpu["instances"]]
    return [device["uuid"] for instance in instances for device in instance["compute_instances"]]
