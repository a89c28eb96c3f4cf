"""From the domain's status to a running IMEX daemon that knows its peers, and the answers to kubelet's probes.

The status is followed by one watch of one object. While the API server or the controller is away, or the object is
gone, the daemon goes on with what is known: it must not disturb a workload that runs.
"""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Never

import structlog

from dra_driver.api.computedomain import ComputeDomain
from dra_driver.api.meta import JsonObject
from dra_driver.domains.peers import Peers, Step, hosts, node_list, peers_of, step_after
from dra_driver.errors import InvalidInput, NodeNotReady
from dra_driver.kube.watch import MirrorChange
from dra_driver.runtime.files import write_durably
from kubelet_plugin.imex.config import Place, config_text
from kubelet_plugin.imex.probe import IDLE, RUNS, WAITS
from kubelet_plugin.imex.program import Program
from kubelet_plugin.imex.settings import ImexSettings

_log = structlog.get_logger(__name__)

_WRITE_AGAIN_S = 5.0


def decoded(obj: JsonObject) -> ComputeDomain | InvalidInput:
    """What a mirror keeps of a domain."""
    try:
        return ComputeDomain.of(obj)
    except InvalidInput as error:
        return error


class Supervisor:
    """`run` it with `serving` around; `saw` is told of the domain. `by_name`: the driver looks names up again."""

    def __init__(self, settings: ImexSettings, program: Program, *, by_name: bool) -> None:
        self._settings = settings
        self._place = Place(settings.folder)
        self._program = program
        self._by_name = by_name
        self._wanted: Peers | None = None
        self._applied: Peers | None = None
        self._changed = asyncio.Event()
        self._waits_for = f"ComputeDomain {settings.namespace}/{settings.name} has not been read yet"

    def saw(self, change: MirrorChange[ComputeDomain | InvalidInput]) -> None:
        """The domain was read, or has changed."""
        settings, domain = self._settings, change.after
        about = f"ComputeDomain {settings.namespace}/{settings.name}"
        if not isinstance(domain, ComputeDomain):
            self._goes_on(f"{about} is gone" if domain is None else f"{about} makes no sense: {domain}")
        elif domain.metadata.uid != settings.uid:
            self._goes_on(f"{about} is another one now, with UID {domain.metadata.uid}")
        elif (peers := peers_of(domain.status, settings.node_name, settings.address)) is None:
            self._goes_on(f"{about} does not list node {settings.node_name} with address {settings.address}")
        elif peers != self._wanted:
            self._wanted = peers
            self._changed.set()

    def state(self) -> dict[str, str]:
        """What the probes are told."""
        if self._applied is None:
            return {"state": WAITS, "message": self._waits_for}
        if not self._applied.clique:
            return {"state": IDLE, "message": "NVLink does not leave this machine: no IMEX daemon is needed"}
        if self._program.problem is not None:
            return {"state": WAITS, "message": f"the IMEX daemon {self._program.problem}"}
        return {"state": RUNS, "message": f"the IMEX daemon runs as number {self._applied.index}"}

    async def run(self) -> Never:
        """Apply what was seen, each time it changed."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            assert self._wanted is not None, "it was there before the event"
            try:
                await self._apply(self._wanted)
            except NodeNotReady as error:
                self._waits_for = str(error)
                _log.error("what the IMEX daemon needs cannot be written", reason=str(error), retry_s=_WRITE_AGAIN_S)
                self._changed.set()
                await asyncio.sleep(_WRITE_AGAIN_S)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answer probes while the block runs: whoever connects gets one line of JSON. Raises NodeNotReady."""
        listener = _listener(self._place)
        server = await asyncio.start_unix_server(self._answer, sock=listener)
        async with server:
            yield

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):  # who asked does not wait any more
            writer.write(json.dumps(self.state()).encode() + b"\n")
            await writer.drain()
        writer.close()

    def _goes_on(self, why: str) -> None:
        if self._wanted is None:
            self._waits_for = why
            _log.info("waits", reason=why)
        else:
            _log.warning("continues with the known peers", reason=why)

    async def _apply(self, peers: Peers) -> None:
        step = step_after(self._applied, peers, by_name=self._by_name)
        members = {str(index): address for index, address in peers.addresses}
        _log.info("peers", clique=peers.clique, index=peers.index, members=members, step=step.value)
        if not peers.clique:
            self._program.rest()
        elif step is not Step.NOTHING:
            await asyncio.to_thread(self._write, peers)
            if step is Step.RESTART:
                self._program.restart()
            else:
                self._program.look_up()
        self._applied = peers

    def _write(self, peers: Peers) -> None:
        """All that the daemon reads. Raises NodeNotReady."""
        place, settings = self._place, self._settings
        _write_if_other(place.config, config_text(place, settings.address))
        _write_if_other(place.nodes, node_list(peers, settings.max_nodes, by_name=self._by_name))
        if self._by_name:
            _rewrite(settings.hosts_file, peers)


def _write_if_other(path: Path, text: str) -> None:
    with suppress(OSError):  # then it is another one
        if path.read_text() == text:
            return
    write_durably(path, text.encode())


def _rewrite(path: Path, peers: Peers) -> None:
    """A file of hosts is a mount of its own in a container: it cannot be replaced, only written over."""
    try:
        with path.open("r+", encoding="utf-8") as file:
            before = file.read()
            after = hosts(before, peers)
            if after != before:
                file.seek(0)
                file.write(after)
                file.truncate()
    except OSError as error:
        raise NodeNotReady(f"cannot be written: {error.strerror}", about=f"file {path}") from error


def _listener(place: Place) -> socket.socket:
    """A socket in the folder, however long its path is; that of a supervisor before this one goes."""
    path = place.supervisor_socket
    try:
        place.folder.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        fd = os.open(place.folder, os.O_RDONLY | os.O_DIRECTORY)
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(f"/proc/self/fd/{fd}/{path.name}")
        finally:
            os.close(fd)
    except OSError as error:
        raise NodeNotReady(f"cannot be made: {error.strerror}", about=f"socket {path}") from error
    return listener
