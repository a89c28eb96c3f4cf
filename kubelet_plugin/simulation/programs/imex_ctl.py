"""nvidia-imex-ctl of a simulated node: asks an IMEX daemon for its state, and for that of its domain.

`-q` prints the daemon's state, one word; `-N` all nodes and their connections, `-N -j` the same as JSON.
"""

import json
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from kubelet_plugin.simulation.programs.imex_config import ConfigRefused, read_config
from kubelet_plugin.simulation.programs.node import connect

_DEFAULT_CONFIG = "/etc/nvidia-imex/config.cfg"
_TIMEOUT_S = 5.0

_CODES = {
    "CONNECTED": "C", "NEVER_CONNECTED": "N", "INVALID": "I", "DISCONNECTED": "D", "VERSION_MISMATCH": "!V!",
    "NODE_MAP_MISMATCH": "!M!",
}  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    _, *options = arguments
    try:
        where, asked = _options(options)
        answer = _asked(where, "nodes" if "-N" in asked else "row")
    except ConfigRefused as refusal:
        sys.stderr.write(f"{refusal}\n")
        return 1
    except OSError as error:
        sys.stdout.write("UNAVAILABLE\n")
        sys.stderr.write(f"Failed to connect to the IMEX daemon: {error}\n")
        return 1
    if "-N" not in asked:
        sys.stdout.write(f"{answer['state']}\n")
    elif "-j" in asked:
        sys.stdout.write(json.dumps(answer) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in _table(answer))
    return 0


def _options(options: list[str]) -> tuple[str, set[str]]:
    """The path of the daemon's socket, and what is asked. Raises ConfigRefused."""
    config, where = _DEFAULT_CONFIG, ""
    asked: set[str] = set()
    rest = iter(options)
    for word in rest:
        if word == "-c":
            config = next(rest, "")
        elif word.startswith("--u="):
            where = word.removeprefix("--u=")
        elif word in ("-q", "-N", "-j", "-H"):
            asked.add(word)
        else:
            raise ConfigRefused(f"Unknown option: {word}")
    if not {"-q", "-N"} & asked:
        raise ConfigRefused("Nothing was asked: -q or -N")
    return where or _from_config(config), asked


def _from_config(path: str) -> str:
    config = read_config(path)
    if config["IMEX_CMD_ENABLED"] != "1":
        raise ConfigRefused(f"{path} does not enable commands")
    return config["IMEX_CMD_UNIX_DOMAIN_PATH"]


def _asked(where: str, question: str) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(_TIMEOUT_S)
        connect(peer, where)
        peer.sendall(json.dumps({"ask": question}).encode() + b"\n")
        with peer.makefile(encoding="utf-8") as stream:
            line = stream.readline()
    if not line:
        raise ConnectionResetError("the daemon went away")
    answer: dict[str, Any] = json.loads(line)
    return answer


def _table(answer: dict[str, Any]) -> Iterator[str]:
    """As the real one prints it: the nodes, then who is connected to whom."""
    yield answer["timestamp"]
    yield "Nodes:"
    nodes = answer["nodes"]
    for number, node in nodes.items():
        host = f"* {node['host']} *" if node["local"] else f"- {node['host']} -"
        yield f"Node #{number:<3} {host} {node['status']:<20} - Version: {node['version']}"
    yield ""
    yield " Nodes From\\To  " + "".join(f"{number:<4}" for number in nodes)
    for number, node in nodes.items():
        codes = (_CODES[item["status"]] for item in node["connections"].values())
        yield f"       {number:<9}" + "".join(f"{code:<4}" for code in codes)
    yield f"Domain State: {answer['status']}"
