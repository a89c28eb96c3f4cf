"""nvidia-cuda-mps-server of a simulated node: holds the clients of one user, and each to its limits.

Started by the control daemon as a process of its own, which outlives it while it has clients. A client is a
connection: it ends with the server, and the server ends when its node reboots.
"""

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any, NoReturn

from kubelet_plugin.simulation.programs.node import RootedNode, size_bytes

_POLL_S = 0.2


class Limits:
    """What a server is started with: percent of threads, bytes of memory by device, clients for each device."""

    def __init__(self, threads: float, memory: dict[str, int], most_clients: int) -> None:
        self.threads = threads
        self.memory = memory
        self.most_clients = most_clients


def main(_arguments: Sequence[str]) -> int:
    sys.stderr.write("nvidia-cuda-mps-server is started by nvidia-cuda-mps-control\n")
    return 1


def serve(
    node: RootedNode, pipe: str, log: str, devices: list[str], limits: Limits, boots: int, ready: int
) -> NoReturn:  # pragma: no cover - a process of its own
    """Be the server, in a process that was forked for it. `ready` is written to when clients can come."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    # The daemon's socket and lock must not outlive it in here.
    os.closerange(3, ready)
    os.closerange(ready + 1, 1024)
    daemon, name = os.getppid(), f"server-{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(name)
    listener.listen(128)
    os.write(ready, b".")
    os.close(ready)
    _log(log, f"Creating server context on {len(devices)} devices")
    clients: dict[socket.socket, int] = {}
    while node.boots() == boots and os.path.exists(pipe) and (clients or os.getppid() == daemon):
        readable, _, _ = select.select([listener, *clients], [], [], _POLL_S)
        for item in readable:
            if item is listener:
                _admit(listener.accept()[0], clients, devices, limits, log)
            elif not item.recv(4096):
                _log(log, f"Client {clients.pop(item)} disconnected")
                item.close()
    os._exit(0)


def _admit(
    peer: socket.socket, clients: dict[socket.socket, int], devices: list[str], limits: Limits, log: str
) -> None:
    peer.settimeout(1.0)
    try:
        asked = json.loads(peer.makefile().readline())
        if asked.get("list"):
            answer: Any = sorted(clients.values())
        elif len(clients) >= limits.most_clients:
            answer = {"error": f"the limit of {limits.most_clients} clients is reached"}
        else:
            answer = _granted(asked, devices, limits)
        peer.sendall(json.dumps(answer).encode() + b"\n")
    except (OSError, ValueError) as error:
        _log(log, f"Client refused: {error}")
        peer.close()
        return
    if isinstance(answer, list) or "error" in answer:
        peer.close()
        return
    peer.settimeout(None)
    clients[peer] = int(asked["pid"])
    _log(log, f"Client {asked['pid']} connected")


def _granted(asked: dict[str, Any], devices: list[str], limits: Limits) -> dict[str, Any]:
    """A client may ask for less than the server's limits, never for more."""
    memory = dict(limits.memory)
    for part in filter(None, str(asked.get("memory") or "").split(",")):
        word, _, size = part.partition("=")
        device = devices[int(word)] if word.isdecimal() and int(word) < len(devices) else word
        amount = size_bytes(size)
        if device not in devices or amount is None:
            return {"error": f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT: {part} is not <device>=<size>"}
        memory[device] = min(amount, memory.get(device, amount))
    threads = min(limits.threads, float(asked.get("threads") or 100.0))
    return {"server": os.getpid(), "devices": devices, "threads": threads, "memory": memory}


def _log(path: str, message: str) -> None:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"[{stamp}.000 Server {os.getpid():5d}] {message}\n")
    except OSError:
        return
