"""Starts our programs quickly: a process that has imported them, and forks itself for each.

A node plugin imports for longer than it then works for an example. `dra_driver.simulation.cluster` runs this beside
itself, with the modules to import; it reads one JSON order a line and answers each with one JSON line: a process id to
`start`, the exit status to `status`. What it forks is the module's own `main`, with its own arguments, log and signals.
A module that cannot be imported is imported again where it was to run, whose log then says why.
"""

import asyncio
import gc
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from dra_driver.errors import NodeNotReady

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
        # No other process can have the id by now: its end is waited for by whoever forked it, when it is asked here.
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
            # Whoever could tell has ended, too: it has the same command line as its programs, by which `pkill` kills.
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
        command = (sys.executable, "-m", "dra_driver.simulation.forks", *modules)
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env=dict(environment))
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
        """Raises NodeNotReady when it is not there any more."""
        assert self._process.stdin is not None and self._process.stdout is not None
        async with self._lock:
            with suppress(ConnectionError):
                self._process.stdin.write(json.dumps(order).encode() + b"\n")
                await self._process.stdin.drain()
            answer = await self._process.stdout.readline()
        if not answer:
            raise NodeNotReady("has ended by itself", about="the process that starts the simulated nodes' programs")
        return int(answer)


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
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
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
    # These are for whoever runs the cluster, and stops in order what was forked; without that one, the orders end.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    for module in modules:
        with suppress(Exception):  # who runs the module meets the error again, and tells it
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


if __name__ == "__main__":
    _serve(sys.argv[1:])
