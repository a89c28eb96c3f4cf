"""The programs of a simulated cluster: started quickly, and started again when they end.

A node plugin imports for longer than it then works for an example. So `dra_driver.simulation.cluster` runs this module
beside itself, with the modules to import; it forks itself for each program. It reads one JSON order a line and answers
each with one JSON line: a process id to `start`, the exit status to `status`. The fork runs the module's own `main`,
with its own arguments, log and signals. A module that cannot be imported is imported again in the fork, whose log then
says why. `dractl cluster` starts programs again, as kubelet does with containers: at once the first time; one that ends
again soon, after a pause that doubles up to a minute. Demos and tests do not: they must find a program that ends.
"""

import asyncio
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from signal import Signals
from typing import Any

from dra_driver.errors import InvalidInput, NodeNotReady

_REFUSED = 2
"""Exit status of our programs for invalid settings."""
_STOP_TIMEOUT_S = 10.0
_ENDING = (signal.SIGINT, signal.SIGTERM)


class Forked:
    """A running program, as `asyncio.subprocess.Process` is one."""

    def __init__(self, forks: "Forks", pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        """None while it runs; negative for a signal."""
        self._ended = asyncio.create_task(self._end(forks))

    async def wait(self) -> int:
        """Until it ends; answers the exit status."""
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        # No other process can have the id by now: the process that forked it waits for its end only when asked here.
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def _end(self, forks: "Forks") -> int:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        descriptor = os.pidfd_open(self.pid)
        loop.add_reader(descriptor, over.set)
        try:
            await over.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        try:
            self.returncode = await forks.order(do="status", pid=self.pid)
        except NodeNotReady:
            # The forking process has ended, too: `pkill` finds it by the same command line as its programs.
            self.returncode = -signal.SIGKILL
        return self.returncode


class Forks:
    """The process that forks. Use `Forks.running(...)`, which also stops it; what it has forked lives on."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._lock = asyncio.Lock()

    @property
    def there(self) -> bool:
        return self._process.returncode is None

    @classmethod
    @asynccontextmanager
    async def running(cls, modules: Sequence[str], environment: Mapping[str, str]) -> AsyncIterator["Forks | None"]:
        """None where the end of a process that is not one's own cannot be waited for: elsewhere than on Linux."""
        if not hasattr(os, "pidfd_open"):
            yield None
            return
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-m", "dra_driver.simulation.processes", *modules)
        # Ctrl-C reaches all that run in a terminal. The new process has this mask from its first moment.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
        try:
            process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=dict(environment))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        try:
            yield cls(process)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def start(self, module: str, arguments: Sequence[str], log: Path) -> Forked:
        """Raises NodeNotReady."""
        return Forked(self, await self.order(do="start", module=module, arguments=list(arguments), log=str(log)))

    async def order(self, **order: Any) -> int:
        """Raises NodeNotReady when the process has ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        async with self._lock:
            with suppress(ConnectionError):
                self._process.stdin.write(json.dumps(order).encode() + b"\n")
                await self._process.stdin.drain()
            answer = await self._process.stdout.readline()
        if not answer:
            raise NodeNotReady("has ended by itself", about="the process that starts the simulated nodes' programs")
        return int(answer)


class Process:
    """A process of the project with its log; a process that ends by itself is an error that shows the log's end."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        self._command = tuple(command)
        self._process: asyncio.subprocess.Process | Forked | None = None

    async def start(self, forks: Forks | None = None) -> None:
        """As a process of its own; a module of the driver is forked if `forks` has imported it."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if forks is not None and forks.there and self._command[:2] == (sys.executable, "-m"):
            _, _, module, *arguments = self._command
            self._process = await forks.start(module, arguments, self.log)
            return
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=own_environment()
            )

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def ended(self) -> int | None:
        """Exit status of one that ended by itself, negative for a signal."""
        return None if self._process is None else self._process.returncode

    def check(self) -> None:
        """Raises NodeNotReady when the process ended by itself, InvalidInput when it refused its settings."""
        if self.ended is not None:
            lines = self.log.read_text(errors="replace").splitlines()
            if self.ended == _REFUSED and lines:
                raise InvalidInput(_reason(lines[-1]), about=self.name)
            tail = "\n  ".join(lines[-12:])
            raise NodeNotReady(f"ended with status {self.ended}; its log ends:\n  {tail}", about=self.name)

    async def stop(self, *, kill: bool = False) -> None:
        """SIGTERM and wait, or SIGKILL; also when it ended already."""
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), _STOP_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()


def _reason(line: str) -> str:
    """What the last line of a log, JSON or plain, gives as the reason of the end."""
    try:
        return str(json.loads(line)["reason"])
    except (ValueError, TypeError, KeyError):
        return line


def own_environment() -> dict[str, str]:
    """Settings of the surrounding shell must not leak into the simulated processes."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("GPU_DRA_", "KUBE"))}


def _fork(order: Mapping[str, Any]) -> int:
    """Answers the process id. Never returns in the child."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for target, descriptor in ((0, null), (1, log), (2, log)):
            os.dup2(descriptor, target)
        # Not Ctrl-C: the cluster stops its programs in order.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
        sys.argv = [order["module"], *order["arguments"]]
        importlib.import_module(order["module"]).main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except Exception:  # noqa: BLE001 - as the interpreter does it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _serve(modules: Sequence[str]) -> None:
    # These signals are for the cluster, which stops what was forked in order; when it is gone, the orders end.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    for module in modules:
        with suppress(Exception):  # the fork meets the error again, and logs it
            importlib.import_module(module)
    # What is here stays: no child walks it to find garbage, nor copies the pages that it would write on meanwhile.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        answer = _fork(order) if order["do"] == "start" else _status(order["pid"])
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


def _status(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_STEADY_S = 60.0
"""Who ran for as long is started again at once when it ends."""


class Restarts:
    """Of processes that run now. `report` gets a sentence each time that one has ended; `clock` gives seconds."""

    def __init__(
        self,
        processes: Iterable[Process],
        start: Callable[[Process], Awaitable[None]],
        report: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._processes = tuple(processes)
        self._start = start
        self._report = report
        self._clock = clock
        self._started = {process.name: clock() for process in self._processes}
        self._pauses = {process.name: 0.0 for process in self._processes}
        """Before the next start."""
        self._due: dict[str, float] = {}
        """When those that have ended are started again."""

    async def look(self) -> None:
        """Start again what has ended, when it is its time."""
        for process in self._processes:
            name = process.name
            if process.ended is None:
                continue
            if name not in self._due:
                self._note_end(process)
            if self._clock() >= self._due[name]:
                await self._start(process)
                del self._due[name]
                self._started[name] = self._clock()
                self._pauses[name] = min(max(2 * self._pauses[name], _FIRST_PAUSE_S), _LONGEST_PAUSE_S)

    def _note_end(self, process: Process) -> None:
        name, now = process.name, self._clock()
        if now - self._started[name] >= _STEADY_S:
            self._pauses[name] = 0.0
        self._due[name] = now + self._pauses[name]
        when = f"in {self._pauses[name]:.0f} s" if self._pauses[name] else "now"
        self._report(f"{name} {_how(process.ended)}; it is started again {when}. Its log: {process.log}")


def _how(status: int | None) -> str:
    if status is not None and status < 0:
        return f"was ended by {Signals(-status).name}"
    return f"ended with status {status}"


if __name__ == "__main__":
    _serve(sys.argv[1:])
