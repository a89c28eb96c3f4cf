"""From the domain's status to a running IMEX daemon that knows its peers, and the answers to the kubelet's probes.

One watch of one object follows the status. While the API server or the controller is down, or the object is gone, the
daemon continues with the known peers, so that running workloads are not disturbed.
"""

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Never

import structlog

from dra_driver.api.computedomain import ComputeDomain
from dra_driver.domains.peers import Peers, PeerUpdate, hosts, node_list, peers_of, step_after
from dra_driver.errors import InvalidInput, NodeNotReady
from dra_driver.kube.watch import Backoff, MirrorChange
from dra_driver.runtime.files import write_durably
from dra_driver.runtime.tasks import until
from kubelet_plugin.imex.probe import IDLE, RUNS, WAITS, ProbeFolder, config_text, short_path
from kubelet_plugin.imex.settings import ImexSettings

_log = structlog.get_logger(__name__)

_STEADY_S = 60.0
"""A program that ran so long is started again at once when it ends."""
_STOP_S = 10.0
"""For an orderly end; the kubelet kills the pod after 30 s."""
NOTICED_S = 7.0
"""How long an unexpected end is reported, even if the program is back sooner. The kubelet probes readiness every 5 s,
so the end reaches the domain's status, and Events of the pods whose programs the daemon served."""
_YOUNG_S = 10.0
"""So long after its start a program may not have looked names up yet, or may be about to."""


class SupervisedProgram:
    """`run` it, then call `restart`, also for the first start. Its output goes where the supervisor's log goes.
    `noticed_s` is the minimum time for which an unexpected end is a problem."""

    def __init__(self, command: Sequence[str], backoff: Backoff | None = None, *, noticed_s: float = NOTICED_S) -> None:
        self._problem = "has not been started"
        self._problem_until_s = 0.0
        """By the event loop's clock; while it does not run, it is a problem anyway."""
        self._noticed_s = noticed_s
        self._command = tuple(command)
        self._backoff = backoff or Backoff(first_s=0.5, longest_s=30.0)
        self._wanted = asyncio.Event()
        self._again = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self._started_s = 0.0

    @property
    def pid(self) -> int | None:
        """None while it does not run."""
        return self._process.pid if self._process is not None else None

    @property
    def problem(self) -> str | None:
        """Why it does not run, or did not a moment ago; None while all is well."""
        if self._process is None:
            return self._problem
        if asyncio.get_running_loop().time() < self._problem_until_s:
            return f"{self._problem}, and is only just back"
        return None

    def restart(self) -> None:
        """Start it again, with the present files."""
        self._wanted.set()
        self._again.set()

    def rest(self) -> None:
        """It is not needed: it is ended, and stays so until `restart`."""
        self._wanted.clear()
        self._again.set()

    def look_up(self) -> None:
        """Have it look up its names again, because addresses have changed. If it does not run, it will at its start.

        A program that was only just started may miss the signal, so the signal is repeated.
        """
        process = self._process
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGUSR1)
        loop = asyncio.get_running_loop()
        young_s = self._started_s + _YOUNG_S - loop.time()
        if young_s > 0:
            loop.call_later(young_s, self._look_up_again, process)

    def _look_up_again(self, process: asyncio.subprocess.Process) -> None:
        if process is self._process:
            self.look_up()

    async def run(self) -> Never:
        """Until cancelled; then the program is ended first."""
        try:
            while True:
                await self._wanted.wait()
                self._again.clear()
                await self._run_once()
        finally:
            await self._stop()

    async def _run_once(self) -> None:
        """From one start to the time for the next."""
        loop = asyncio.get_running_loop()
        try:
            self._process = await asyncio.create_subprocess_exec(*self._command, stdin=asyncio.subprocess.DEVNULL)
        except OSError as error:
            await self._pause(f"cannot be started: {error.strerror}")
            return
        self._started_s = loop.time()
        _log.info("started", program=self._command[0], pid=self._process.pid)
        ended, asked = asyncio.ensure_future(self._process.wait()), asyncio.ensure_future(self._again.wait())
        try:
            await asyncio.wait((ended, asked), return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            ended.cancel()
        status = self._process.returncode
        if status is None:
            await self._stop()
            return
        self._process = None
        if loop.time() - self._started_s >= _STEADY_S:
            self._backoff.reset()
        await self._pause(f"ended by signal {-status}" if status < 0 else f"ended with status {status}")

    async def _pause(self, problem: str) -> None:
        self._problem = problem
        self._problem_until_s = asyncio.get_running_loop().time() + self._noticed_s
        wait_s = self._backoff.next_s()
        _log.error("does not run", program=self._command[0], reason=problem, retry_s=round(wait_s, 1))
        await until(self._again, wait_s)

    async def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        self._problem = "was stopped"
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            _log.warning("did not end when it was asked to, and is killed", program=self._command[0])
            process.kill()
            await process.wait()


_WRITE_AGAIN_S = 5.0


class Supervisor:
    """`run` it inside `serving`; `saw` gets the domain. `by_name`: the driver looks names up again."""

    def __init__(self, settings: ImexSettings, program: SupervisedProgram, *, by_name: bool) -> None:
        self._settings = settings
        self._place = ProbeFolder(settings.folder)
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
            self._goes_on(f"{about} is gone" if domain is None else f"{about} is invalid: {domain}")
        elif domain.metadata.uid != settings.uid:
            self._goes_on(f"{about} is another one now, with UID {domain.metadata.uid}")
        elif (peers := peers_of(domain.status, settings.node_name, settings.address)) is None:
            self._goes_on(f"{about} does not list node {settings.node_name} with address {settings.address}")
        elif peers != self._wanted:
            self._wanted = peers
            self._changed.set()

    def state(self) -> dict[str, str]:
        """The answer to the probes."""
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
        """Answer probes while the block runs: each connection gets one line of JSON. Raises NodeNotReady."""
        listener = _listener(self._place)
        server = await asyncio.start_unix_server(self._answer, sock=listener)
        async with server:
            yield

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):  # the client no longer waits
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
        elif step is not PeerUpdate.NOTHING:
            await asyncio.to_thread(self._write, peers)
            if step is PeerUpdate.RESTART:
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


def _listener(place: ProbeFolder) -> socket.socket:
    """A socket in the folder, however long its path is; that of a supervisor before this one goes."""
    path = place.supervisor_socket
    try:
        place.folder.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        with short_path(path) as name:
            listener.bind(name)
    except OSError as error:
        raise NodeNotReady(f"cannot be made: {error.strerror}", about=f"socket {path}") from error
    return listener
