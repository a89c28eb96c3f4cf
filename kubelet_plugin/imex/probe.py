"""What kubelet's probes ask of a supervisor that runs in the same container: does it answer, and is its daemon ready?

A probe is a process of its own every few seconds on each node of a domain, so this imports the standard library alone.
"""

import json
import os
import socket
import subprocess
from pathlib import Path

from kubelet_plugin.imex.config import Place

CONTROL = "nvidia-imex-ctl"
READY = "READY"
"""What the daemon says of itself then; any other word is not ready."""

WAITS, IDLE, RUNS = "waits", "idle", "runs"
"""States of a supervisor: its node is not in the domain yet; there is nothing to run; its daemon runs."""

_PATIENCE_S = 4.0
"""Of two questions that a probe asks; kubelet gives it 10 s."""


def live(place: Place) -> str | None:
    """None while the supervisor answers, else what is wrong."""
    answer = _ask(place)
    return answer if isinstance(answer, str) else None


def ready(place: Place) -> str | None:
    """None when the node's place among the peers is in use and the daemon there is READY, or none is needed."""
    answer = _ask(place)
    if isinstance(answer, str):
        return answer
    if answer["state"] == RUNS:
        return _not_ready(place)
    return None if answer["state"] == IDLE else answer["message"]


def connect_in(folder: Path, name: str, peer: socket.socket) -> None:
    """Connect to a socket in `folder`, however long its path is. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        peer.connect(f"/proc/self/fd/{fd}/{name}")
    finally:
        os.close(fd)


def _ask(place: Place) -> dict[str, str] | str:
    """The supervisor's state and message, or why there is none."""
    try:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(_PATIENCE_S)
            connect_in(place.folder, place.supervisor_socket.name, peer)
            with peer.makefile("rb") as stream:
                answer = json.loads(stream.readline())
            return {"state": str(answer["state"]), "message": str(answer["message"])}
    except (OSError, ValueError, KeyError) as error:
        return f"the supervisor does not answer: {error}"


def _not_ready(place: Place) -> str | None:
    try:
        done = subprocess.run(
            [CONTROL, "-c", str(place.config), "-q"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{CONTROL}: {error}"
    word = done.stdout.strip()
    if word == READY and done.returncode == 0:
        return None
    return f"the IMEX daemon is {word or done.stderr.strip() or 'silent'}"
