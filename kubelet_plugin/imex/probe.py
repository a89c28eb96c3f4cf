"""What kubelet's probes ask of a supervisor that runs in the same container: does it answer, and is its daemon ready?

A probe is a process of its own every few seconds on each node of a domain, so this imports the standard library alone.
"""

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FOLDER = "/imexd"
"""Of a daemon's container, unless a setting says something else."""

PEER_PORT = 50000
"""TCP, between the daemons of a domain."""


@dataclass(frozen=True, slots=True)
class ProbeFolder:
    """The folder of one daemon, of its container alone."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "config.cfg"

    @property
    def nodes(self) -> Path:
        return self.folder / "nodes_config.cfg"

    @property
    def control_socket(self) -> Path:
        return self.folder / "imex.sock"

    @property
    def supervisor_socket(self) -> Path:
        return self.folder / "supervisor.sock"


def config_text(place: ProbeFolder, address: str) -> str:
    """`address` is the pod's: peers find the daemon there, and it finds itself in the list of nodes by it.

    The daemon takes commands only from a socket in the folder, so that no other pod can give any. At its first start it
    does not wait for peers, because most names of the list belong to no node. A daemon that was killed waits until the
    peers that had imported memory from it have released it (RECOVERY). It remembers them as long as its pod exists.
    """
    keys = {
        "LOG_LEVEL": 4,
        "LOG_FILE_NAME": "",
        "STATS_FILE_NAME": "",
        "LOG_USE_SYSLOG": 0,
        "DAEMONIZE": 0,
        "BIND_INTERFACE_IP": address,
        "SERVER_PORT": PEER_PORT,
        "IMEX_NODE_CONFIG_FILE": place.nodes,
        "IMEX_WAIT_FOR_QUORUM": "RECOVERY",
        "IMEX_CMD_ENABLED": 1,
        "IMEX_CMD_UNIX_DOMAIN_PATH": place.control_socket,
    }
    return "".join(f"{key}={value}\n" for key, value in keys.items())


CONTROL = "nvidia-imex-ctl"
READY = "READY"
"""What the daemon says of itself then; any other word is not ready."""

WAITS, IDLE, RUNS = "waits", "idle", "runs"
"""States of a supervisor: its node is not in the domain yet; there is nothing to run; its daemon runs."""

_PATIENCE_S = 4.0
"""Of two questions that a probe asks; kubelet gives it 10 s."""


def live(place: ProbeFolder) -> str | None:
    """None while the supervisor answers, else what is wrong."""
    answer = _ask(place)
    return answer if isinstance(answer, str) else None


def ready(place: ProbeFolder) -> str | None:
    """None when the node's place among the peers is in use and the daemon there is READY, or none is needed."""
    answer = _ask(place)
    if isinstance(answer, str):
        return answer
    if answer["state"] == RUNS:
        return _not_ready(place)
    return None if answer["state"] == IDLE else answer["message"]


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A name of a socket that fits into its address, however long the path is. Raises OSError."""
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        os.close(fd)


def _ask(place: ProbeFolder) -> dict[str, str] | str:
    """The supervisor's state and message, or why there is none."""
    try:
        with socket.socket(socket.AF_UNIX) as peer, short_path(place.supervisor_socket) as name:
            peer.settimeout(_PATIENCE_S)
            peer.connect(name)
            with peer.makefile("rb") as stream:
                answer = json.loads(stream.readline())
            return {"state": str(answer["state"]), "message": str(answer["message"])}
    except (OSError, ValueError, KeyError) as error:
        return f"the supervisor does not answer: {error}"


def _not_ready(place: ProbeFolder) -> str | None:
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
