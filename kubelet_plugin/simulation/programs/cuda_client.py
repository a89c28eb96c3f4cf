"""A CUDA program of a simulated node: attaches to the MPS daemon of its environment and stays until it is ended.

It prints one line of JSON with the server, devices and limits that it got, and ends with its standard input or after
`--seconds`. `--allocate 10G` takes memory of the first device. It fails, with a sentence, where a real one would: no
daemon, too many clients, more memory than its limit, a server that dies.
"""

import json
import os
import select
import socket
import sys
import time
from collections.abc import Sequence

from kubelet_plugin.simulation.programs.mps_control import connect, connected
from kubelet_plugin.simulation.programs.node import size_bytes


def main(arguments: Sequence[str]) -> int:
    options = dict(zip(arguments[1::2], arguments[2::2], strict=False))
    pipe = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    seconds = float(options["--seconds"]) if "--seconds" in options else None
    try:
        with socket.socket(socket.AF_UNIX) as server:
            granted = attached(pipe, server)
            _check_allocation(granted, size_bytes(options.get("--allocate", "0")) or 0)
            sys.stdout.write(json.dumps(granted) + "\n")
            sys.stdout.flush()
            return _stay(server, seconds)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"CUDA: {error}\n")
        return 1


def attached(pipe: str, server: socket.socket) -> dict[str, object]:
    try:
        with connected(pipe) as ask:
            found = json.loads(ask("attach " + json.dumps({"uid": os.getuid()}, separators=(",", ":"))))
    except OSError as error:
        raise ValueError(f"no MPS daemon in {pipe}: {error}") from error
    if "error" in found:
        raise ValueError(found["error"])
    connect(server, pipe, found["socket"])
    asked = {
        "pid": os.getpid(),
        "threads": os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
        "memory": os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
    }
    server.sendall(json.dumps(asked).encode() + b"\n")
    granted: dict[str, object] = json.loads(server.makefile().readline() or '{"error": "the MPS server went away"}')
    if "error" in granted:
        raise ValueError(granted["error"])
    return granted


def _check_allocation(granted: dict[str, object], amount: int) -> None:
    memory, devices = granted["memory"], granted["devices"]
    if isinstance(memory, dict) and isinstance(devices, list) and amount > memory.get(devices[0], amount):
        raise ValueError(f"out of memory: {amount} bytes, and the limit is {memory[devices[0]]}")


def _stay(server: socket.socket, seconds: float | None) -> int:
    deadline = time.monotonic() + seconds if seconds is not None else None
    inputs = [server, sys.stdin] if deadline is None else [server]
    while deadline is None or time.monotonic() < deadline:
        rest = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select(inputs, [], [], rest)
        if server in ready:
            raise ValueError("the MPS server died")
        if sys.stdin in ready and not sys.stdin.readline():
            return 0
    return 0
