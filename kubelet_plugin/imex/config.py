"""The configuration of an IMEX daemon, and where it and its neighbours are. Pure.

Keys and values are those of NVIDIA's IMEX guide. Only what differs from the defaults is said.
"""

from dataclasses import dataclass
from pathlib import Path

FOLDER = "/imexd"
"""Of a daemon's container, unless a setting says something else."""

PEER_PORT = 50000
"""TCP, between the daemons of a domain."""

CONFIG_FILE = "config.cfg"
"""In the daemon's folder, as everything here."""
CONTROL_SOCKET = "imex.sock"
SUPERVISOR_SOCKET = "supervisor.sock"


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of one daemon, of its container alone."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / CONFIG_FILE

    @property
    def nodes(self) -> Path:
        return self.folder / "nodes_config.cfg"

    @property
    def control_socket(self) -> Path:
        return self.folder / CONTROL_SOCKET

    @property
    def supervisor_socket(self) -> Path:
        return self.folder / SUPERVISOR_SOCKET


def config_text(place: Place, address: str) -> str:
    """`address` is the pod's: peers find the daemon there, and it finds itself in the list of nodes by it.

    Commands are taken from a socket in the folder alone, so that no other pod can give any. Nobody waits for peers at
    the first start, since most of the list's names belong to no node at all; a daemon that was killed waits until those
    that had imported memory from it have let go of it (RECOVERY). It remembers them for as long as its pod lives.
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
