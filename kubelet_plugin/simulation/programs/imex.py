"""nvidia-imex of a simulated node: a daemon that connects to its peers over TCP, and knows how they are.

It refuses to start where the real one does: an invalid configuration, no list of nodes, an address that is
not in it, no capability to manage the fabric, a port that is taken, no driver. It reads its list of nodes at its start
alone, looks names up again at SIGUSR1, and leaves connections alone whose address stayed. It ends with its node. No
process imports memory here, so it never waits for a recovery. It stays in the foreground, and is ready without
its peers, as its supervisors want it.
"""

import asyncio
import hashlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from kubelet_plugin.simulation.programs.imex_config import ConfigRefused, read_config, read_nodes, resolved
from kubelet_plugin.simulation.programs.node import DEVICES_VARIABLE, RootedNode, short_path

CONNECTED, NEVER, INVALID, DISCONNECTED = "CONNECTED", "NEVER_CONNECTED", "INVALID", "DISCONNECTED"
WRONG_VERSION, WRONG_MAP = "VERSION_MISMATCH", "NODE_MAP_MISMATCH"

_MANAGEMENT = "proc/driver/nvidia/capabilities/fabric-imex-mgmt"
_RETRY_S = 0.2
_ANSWER_S = 2.0
_POLL_S = 0.5


def main(arguments: Sequence[str]) -> int:
    root, *options = arguments
    node = RootedNode(root)
    try:
        if options[:1] != ["-c"] or len(options) != 2:
            raise ConfigRefused("usage: nvidia-imex -c <configuration file>")
        daemon = _Daemon(node, read_config(options[1]), options[1])
        asyncio.run(daemon.run())
    except ConfigRefused as refusal:
        _log("ERROR", str(refusal))
        return 1
    return 0


class _Peer:
    """What is known of one line of the list of nodes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.address: str | None = None
        self.status = NEVER
        self.times = 0
        self.moved = asyncio.Event()


class _Daemon:
    def __init__(self, node: RootedNode, config: dict[str, str], path: str) -> None:
        self._node = node
        self._config = config
        self._path = path
        self._boots = node.boots()
        self._version = _driver_version(node)
        _check_capability(node)
        names = read_nodes(config["IMEX_NODE_CONFIG_FILE"])
        self._map = hashlib.sha256("\n".join(names).encode()).hexdigest()
        self._peers = [_Peer(name) for name in names]
        self._look_up()
        self._bind, self._own = self._place(config["BIND_INTERFACE_IP"])
        self._port = int(config["SERVER_PORT"])
        self._end = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._end.set)
        loop.add_signal_handler(signal.SIGUSR1, self._signalled)
        servers = await self._serve()
        own = self._peers[self._own]
        own.status = CONNECTED
        _log("INFO", f"IMEX version {self._version}, node {self._own} of {len(self._peers)}, listens at {self._bind}")
        others = [peer for peer in self._peers if peer is not own]
        tasks = [loop.create_task(self._follow(self._peers.index(peer), peer)) for peer in others]
        tasks.append(loop.create_task(self._watch_node()))
        await self._end.wait()
        _log("INFO", "shutting down")
        for server in servers:
            server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def state(self) -> str:
        return "SHUTTING_DOWN" if self._end.is_set() else "READY"

    def _place(self, wanted: str) -> tuple[str, int]:
        """The own address and number."""
        for index, peer in enumerate(self._peers):
            if peer.address is not None and (peer.address == wanted if wanted else _is_ours(peer.address)):
                return peer.address, index
        where = f"address {wanted}" if wanted else "no address of this machine"
        raise ConfigRefused(
            f"{where} is {'not ' if wanted else ''}among the nodes of {self._config['IMEX_NODE_CONFIG_FILE']}"
        )

    async def _serve(self) -> list[asyncio.Server]:
        servers = []
        config = self._config
        try:
            servers.append(await asyncio.start_server(self._answer, self._bind, self._port))
            if config["IMEX_CMD_ENABLED"] == "1":
                listener = _unix_listener(config["IMEX_CMD_UNIX_DOMAIN_PATH"])
                servers.append(await asyncio.start_unix_server(self._answer, sock=listener))
        except OSError as error:
            raise ConfigRefused(f"cannot listen: {error.strerror or error}") from error
        return servers

    def _signalled(self) -> None:
        _log("INFO", "looking the names of all nodes up again")
        self._look_up()

    def _look_up(self) -> None:
        for peer, address in zip(self._peers, resolved([item.name for item in self._peers]), strict=True):
            if address != peer.address:
                peer.address = address
                peer.moved.set()

    async def _follow(self, index: int, peer: _Peer) -> None:
        """Be connected to a peer for as long as it is where its name says."""
        while True:
            peer.moved.clear()
            with suppress(OSError, ValueError, TimeoutError):
                if peer.address is not None:
                    await self._meet(index, peer, peer.address)
            if peer.status == CONNECTED:
                peer.status = DISCONNECTED
                _log("WARNING", f"Connection lost to node {index}")
            with suppress(TimeoutError):
                await asyncio.wait_for(peer.moved.wait(), None if peer.address is None else _RETRY_S)

    async def _meet(self, index: int, peer: _Peer, address: str) -> None:
        """One connection, from its beginning to its end."""
        reader, writer = await asyncio.open_connection(address, self._port, local_addr=(self._bind, 0))
        try:
            writer.write(json.dumps({"ask": "hello"}).encode() + b"\n")
            hello = json.loads(await asyncio.wait_for(reader.readline(), _ANSWER_S))
            if hello["version"] != self._version:
                peer.status = WRONG_VERSION
                return
            if hello["map"] != self._map:
                peer.status = WRONG_MAP
                return
            peer.status = CONNECTED
            peer.times += 1
            _log("INFO", f"Connection established to node {index} at {address}, number of times: {peer.times}")
            moved, over = asyncio.ensure_future(peer.moved.wait()), asyncio.ensure_future(reader.read(1))
            await asyncio.wait((moved, over), return_when=asyncio.FIRST_COMPLETED)
            moved.cancel()
            over.cancel()
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A peer or a command: a line of JSON for a line of JSON, until the other end has enough."""
        with suppress(OSError, ValueError, KeyError):
            while line := await reader.readline():
                asked = json.loads(line)["ask"]
                answer: Any = await self._domain() if asked == "nodes" else self._row()
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        writer.close()

    def _row(self) -> dict[str, Any]:
        """What this daemon says of itself and its connections."""
        connections = {str(index): {"status": peer.status} for index, peer in enumerate(self._peers)}
        return {"state": self.state, "version": self._version, "map": self._map, "connections": connections}

    async def _domain(self) -> dict[str, Any]:
        """How all nodes of the list are, each as it says itself."""
        rows = await asyncio.gather(*(self._row_of(index, peer) for index, peer in enumerate(self._peers)))
        nodes = {}
        for index, (peer, row) in enumerate(zip(self._peers, rows, strict=True)):
            known = row or {"state": "UNAVAILABLE", "version": "", "connections": {}}
            nodes[str(index)] = {
                "status": known["state"],
                "host": peer.name,
                "local": index == self._own,
                "version": known["version"],
                "connections": {
                    str(other): known["connections"].get(str(other), {"status": INVALID})
                    for other in range(len(self._peers))
                },
            }
        every = all(item["status"] == CONNECTED for node in nodes.values() for item in node["connections"].values())
        stamp = time.strftime("%m/%d/%Y %H:%M:%S.000")
        status = ("UP" if every else "DEGRADED") if self.state == "READY" else "DOWN"
        return {"timestamp": stamp, "status": status, "nodes": nodes}

    async def _row_of(self, index: int, peer: _Peer) -> dict[str, Any] | None:
        if index == self._own:
            return self._row()
        if peer.address is None:
            return None
        with suppress(OSError, ValueError, TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = await asyncio.open_connection(peer.address, self._port, local_addr=(self._bind, 0))
                writer.write(json.dumps({"ask": "row"}).encode() + b"\n")
                row: dict[str, Any] = json.loads(await reader.readline())
                writer.close()
                return row
        return None

    async def _watch_node(self) -> None:
        """The daemon goes with its machine and with its container's folder."""
        while self._node.boots() == self._boots and os.path.exists(self._path):  # noqa: ASYNC110 - there is no notice
            await asyncio.sleep(_POLL_S)
        self._end.set()


def _driver_version(node: RootedNode) -> str:
    try:
        driver = node.read()["driver"]
    except OSError as error:
        raise ConfigRefused(f"there is no such node: {error}") from error
    if not driver["loaded"]:
        raise ConfigRefused("cannot open the NVIDIA driver: is it loaded?")
    return str(driver["version"])


def _check_capability(node: RootedNode) -> None:
    """A container has the device node of the capability, or it cannot manage the fabric."""
    devices = os.environ.get(DEVICES_VARIABLE)
    if devices is None:
        return
    try:
        with open(f"{node.root}/{_MANAGEMENT}", encoding="utf-8") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
        minor = fields["DeviceFileMinor"].strip()
    except (OSError, KeyError) as error:
        raise ConfigRefused(f"cannot read /{_MANAGEMENT}: {error}") from error
    if f"/dev/nvidia-caps/nvidia-cap{minor}" not in devices.split(":"):
        raise ConfigRefused(f"no permission to manage the fabric: /dev/nvidia-caps/nvidia-cap{minor} cannot be opened")


def _is_ours(address: str) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe, suppress(OSError):
        probe.bind((address, 0))
        return True
    return False


def _unix_listener(path: str) -> socket.socket:
    with suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    with short_path(path) as name:
        listener.bind(name)
    return listener


def _log(level: str, message: str) -> None:
    stamp = time.strftime("%b %d %Y %H:%M:%S")
    with suppress(OSError):
        sys.stderr.write(f"[{stamp}] [{level}] [tid {os.getpid()}] {message}\n")
