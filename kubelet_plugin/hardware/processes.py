"""Processes of the host, told apart by a mark in their environment.

Effects that start daemons enter here. A daemon is started with a variable that names what it belongs to; whatever it
starts inherits that. So ours are found again after a restart of the plugin, servers of a daemon with it, and nobody
else's process is ever taken for one, however often the kernel gives a number out again. Nothing here signals a process.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, order=True)
class Process:
    """`started` is in clock ticks after boot, and with `pid` the identity of a process in this boot."""

    started: int
    pid: int
    mark: str


class Processes:
    """What `proc` shows: the /proc of the host's PID namespace."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc

    def marked(self, variable: str) -> tuple[Process, ...]:
        """All with this variable in their environment, oldest first; costs some 20 ms for a thousand processes."""
        names = (entry.name for entry in self._proc.iterdir())
        found = (self._process(int(name), variable) for name in names if name.isdecimal())
        return tuple(sorted(process for process in found if process is not None))

    def runs(self, process: Process) -> bool:
        """Whether it is there and has not ended; a zombie has."""
        return self._started(process.pid) == process.started

    def _process(self, pid: int, variable: str) -> Process | None:
        mark = next(self._values(pid, variable.encode()), None)
        started = self._started(pid) if mark is not None else None
        return Process(started, pid, mark) if started is not None and mark is not None else None

    def _values(self, pid: int, variable: bytes) -> Iterator[str]:
        try:
            environment = (self._proc / str(pid) / "environ").read_bytes()
        except OSError:
            return  # it ended, or is none of ours to read
        for item in environment.split(b"\0"):
            name, _, value = item.partition(b"=")
            if name == variable:
                yield value.decode(errors="replace")

    def _started(self, pid: int) -> int | None:
        """Source: proc(5), field 22 of /proc/<pid>/stat; the name before it may contain anything."""
        try:
            fields = (self._proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        words = fields.rpartition(")")[2].split()
        return int(words[19]) if words and words[0] not in ("Z", "X") else None
