"""A CUDA program that is a client of a simulated MPS daemon, as a process.

It attaches to the daemon of its environment and prints one line of JSON: the server, devices and limits that it got. It
ends with its standard input or after `--seconds`; `--allocate 10G` takes memory of the first device. It fails with a
sentence where a real one would: no daemon, too many clients, more memory than its limit, a server that dies.
"""

import json
import os
import select
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = (sys.executable, "-S", "-E", __file__)


def main(words: Sequence[str]) -> int:
    from kubelet_plugin.simulation.programs.cuda import attached
    from kubelet_plugin.simulation.programs.node import size_bytes

    options = dict(zip(words[::2], words[1::2], strict=False))
    seconds = float(options["--seconds"]) if "--seconds" in options else None
    try:
        with socket.socket(socket.AF_UNIX) as server:
            granted = attached(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"), server)
            check_allocation(granted, size_bytes(options.get("--allocate", "0")) or 0)
            sys.stdout.write(json.dumps(granted) + "\n")
            sys.stdout.flush()
            return stay(server, seconds)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"CUDA: {error}\n")
        return 1


def check_allocation(granted: dict[str, object], amount: int) -> None:
    memory, devices = granted["memory"], granted["devices"]
    if isinstance(memory, dict) and isinstance(devices, list) and amount > memory.get(devices[0], amount):
        raise ValueError(f"out of memory: {amount} bytes, and the limit is {memory[devices[0]]}")


def stay(server: socket.socket, seconds: float | None) -> int:
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


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
